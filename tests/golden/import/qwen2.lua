-- The shape of make.py's qwen2.
local m = require "mascon"

return m.recipe {
    name  = "qwen2",
    model = m.models.qwen2 {
        layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 257, seq = 24,
        kv_heads = 2, theta = 10000, tied = true, rope_scaling = "yarn", rope_factor = 4, rope_original = 16,
    },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", holdout = 0.2 },
    batch = { global = 4, micro = 2 },
    steps = { steps = 6 },
    lr    = m.lr.constant { peak = 1e-3 },
}
