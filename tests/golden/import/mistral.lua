-- The shape of make.py's mistral.
local m = require "mascon"

return m.recipe {
    name  = "mistral",
    model = m.models.mistral {
        layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 257, seq = 24,
        kv_heads = 1, window = 7,
    },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", holdout = 0.2 },
    batch = { global = 4, micro = 2 },
    steps = { steps = 6 },
    lr    = m.lr.constant { peak = 1e-3 },
}
