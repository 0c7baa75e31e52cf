-- The shape of reference.py's qwen2.
local m = require "mascon"

return m.recipe {
    model = m.models.qwen2 {
        layers = 2, hidden = 32, heads = 4, ffn = 56, vocab = 61, seq = 24,
        kv_heads = 2, theta = 10000, tied = true, rope_scaling = "yarn", rope_factor = 4, rope_original = 16,
    },
    data  = m.data.declared { tokens = 1000, vocab = 61 },
    batch = { global = 2 },
    steps = { steps = 1 },
    lr    = m.lr.constant { peak = 1e-3 },
}
