-- The learning rate m.lr.linear.
local m = require "mascon"

return m.recipe {
    name  = "lr_linear",
    model = m.models.llama { layers = 1, hidden = 16, heads = 2, seq = 8 },
    data  = { train = "../../../recipes/text/moon.txt" },
    batch = { global = 2 },
    steps = { steps = 10 },
    lr    = m.lr.linear { peak = 1e-3, init = 1e-4, warmup = "4 samples" },
}
