-- expect: syntax_error.lua:6:
-- expect: '}' expected
local m = require "mascon"
return {
    name = "x"
    seed = 1,
}
