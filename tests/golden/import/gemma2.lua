-- The shape of make.py's gemma2.
local m = require "mascon"

return m.recipe {
    name  = "gemma2",
    model = m.models.gemma {
        layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 257, seq = 24,
        kv_heads = 2, head_dim = 8, window = 5, attn_softcap = 2, logit_softcap = 3, post_norms = true, query_scale = 10,
    },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", holdout = 0.2 },
    batch = { global = 4, micro = 2 },
    steps = { steps = 6 },
    lr    = m.lr.constant { peak = 1e-3 },
}
