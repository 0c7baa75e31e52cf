-- lr and the batch as functions: evaluated for every step before the start.
local m = require "mascon"

return m.recipe {
    name  = "functions_of_progress",
    model = m.models.llama { layers = 1, hidden = 16, heads = 2, seq = 8 },
    data  = { train = "../../../recipes/text/moon.txt" },
    batch = { global = function(s) return s.samples < 8 and 2 or 4 end, micro = 2 },
    steps = { samples = 40 },
    lr    = function(s) return 1e-3 * math.min(1, s.step / 4) / math.sqrt(s.global) end,
}
