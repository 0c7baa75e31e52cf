-- expect: model.window: no attention of the model takes it
local m = require "mascon"

return m.recipe {
    name  = "bad",
    seed  = 1,
    model = m.models.gpt3 { layers = 1, hidden = 32, heads = 4, seq = 16, window = 8 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micro = 2 },
    steps = { steps = 10 },
    lr    = m.lr.constant { peak = 1e-3, warmup = 2 },
}
