-- expect: 'io' is not available
local f = io.open("/etc/passwd")
return {}
