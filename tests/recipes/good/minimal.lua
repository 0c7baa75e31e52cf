-- expect: minimal: 
-- The least that a recipe must say; the rest are defaults.
local m = require "mascon"

return {
    model = m.models.llama { layers = 1, hidden = 16, heads = 2, seq = 8 },
    data  = { train = "../../../recipes/text/moon.txt" },
    batch = { global = 1 },
    steps = { steps = 1 },
    lr    = m.lr.constant { peak = 1e-3 },
}
