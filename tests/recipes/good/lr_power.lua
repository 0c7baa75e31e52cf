-- The learning rate m.lr.power.
local m = require "mascon"

return m.recipe {
    name  = "lr_power",
    model = m.models.llama { layers = 1, hidden = 16, heads = 2, seq = 8 },
    data  = { train = "../../../recipes/text/moon.txt" },
    batch = { global = 2 },
    steps = { steps = 10 },
    lr    = m.lr.power { peak = 1e-3, power = 2, floor = 1e-5 },
}
