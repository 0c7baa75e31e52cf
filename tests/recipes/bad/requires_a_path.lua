-- expect: is no module name
local x = require "../good/minimal"
return {}
