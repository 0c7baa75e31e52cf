-- The shape of reference.py's mistral.
local m = require "mascon"

return m.recipe {
    model = m.models.mistral {
        layers = 2, hidden = 32, heads = 4, ffn = 56, vocab = 61, seq = 24,
        kv_heads = 1, window = 7,
    },
    data  = m.data.declared { tokens = 1000, vocab = 61 },
    batch = { global = 2 },
    steps = { steps = 1 },
    lr    = m.lr.constant { peak = 1e-3 },
}
