-- expect: inherits: 
-- expect: 640 tokens
-- Another recipe's table, with some keys replaced.
local m = require "mascon"

return {
    inherit = "base.lua",
    name    = "inherits",
    model   = { layers = 3, tied = false },
    steps   = { tokens = 640 }, -- replaces steps.steps
    lr      = m.lr.inverse_sqrt { peak = 1e-3, warmup = 2 },
}
