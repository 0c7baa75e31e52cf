-- expect: with sequence lengths that change
local m = require "mascon"

return m.recipe {
    name  = "bad",
    seed  = 1,
    model = m.models.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, seq = 16 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", phases = { { from = 5, seq = 32 } } },
    batch = { global = 4, micro = 2 },
    steps = { tokens = 10000 },
    lr    = m.lr.cosine { peak = 1e-3, warmup = "4 samples" },
}
