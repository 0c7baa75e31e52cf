-- The shape of reference.py's llama3.
local m = require "mascon"

return m.recipe {
    model = m.models.llama3 {
        layers = 2, hidden = 32, heads = 4, ffn = 56, vocab = 61, seq = 24,
        kv_heads = 2, theta = 10000, rope_scaling = "llama3", rope_factor = 8, rope_original = 32,
    },
    data  = m.data.declared { tokens = 1000, vocab = 61 },
    batch = { global = 2 },
    steps = { steps = 1 },
    lr    = m.lr.constant { peak = 1e-3 },
}
