-- The shape of make.py's gpt2.
local m = require "mascon"

return m.recipe {
    name  = "gpt2",
    model = m.models.gpt2 {
        layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 257, seq = 24,
        eps = 1e-5,
    },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", holdout = 0.2 },
    batch = { global = 4, micro = 2 },
    steps = { steps = 6 },
    lr    = m.lr.constant { peak = 1e-3 },
}
