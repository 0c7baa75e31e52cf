-- expect: 'os' is not available
os.execute("true")
return {}
