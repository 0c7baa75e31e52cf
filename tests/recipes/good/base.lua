-- What inherits.lua inherits from.
local m = require "mascon"

return m.recipe {
    name  = "base",
    model = m.models.gpt2 { layers = 2, hidden = 32, heads = 4, seq = 16, dropout = 0.1 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micro = 2 },
    steps = { steps = 20 },
    lr    = m.lr.linear { peak = 1e-3, warmup = 2 },
    optim = m.adamw { clip = 2, rules = { { "layers.*.attn.*", weight_decay = 0 } } },
}
