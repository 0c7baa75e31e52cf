-- expect: is a list; it must have keys
return { 1, 2, 3 }
