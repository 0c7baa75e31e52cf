-- The learning rate m.lr.wsd.
local m = require "mascon"

return m.recipe {
    name  = "lr_wsd",
    model = m.models.llama { layers = 1, hidden = 16, heads = 2, seq = 8 },
    data  = { train = "../../../recipes/text/moon.txt" },
    batch = { global = 2 },
    steps = { steps = 10 },
    lr    = m.lr.wsd { peak = 1e-3, warmup = 2, decay = 4, tail = "cosine" },
}
