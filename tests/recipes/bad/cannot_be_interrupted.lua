-- expect: cannot be interrupted
local s = ("a"):rep(40):find(("a-"):rep(40) .. "b")
return {}
