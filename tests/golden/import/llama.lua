-- The shape of make.py's llama.
local m = require "mascon"

return m.recipe {
    name  = "llama",
    model = m.models.llama3 {
        layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 257, seq = 24,
        kv_heads = 2, theta = 10000, rope_scaling = "llama3", rope_factor = 8, rope_original = 32,
    },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", holdout = 0.2 },
    batch = { global = 4, micro = 2 },
    steps = { steps = 6 },
    lr    = m.lr.constant { peak = 1e-3 },
}
