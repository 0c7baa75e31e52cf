-- expect: checkpoint.weights: weights are rebuilt from masters at bf16; here they are the masters themselves
local m = require "mascon"

return m.recipe { inherit = "../good/minimal.lua", checkpoint = { weights = "rebuild" } }
