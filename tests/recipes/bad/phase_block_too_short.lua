-- expect: 32 is below the longest sequence, 64 tokens
local m = require "mascon"

return m.recipe {
    name  = "bad",
    seed  = 1,
    model = m.models.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, seq = 16 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", block = 32, phases = { { from = 5, seq = 64 } } },
    batch = { global = 4, micro = 2 },
    steps = { steps = 10 },
    lr    = m.lr.constant { peak = 1e-3, warmup = 2 },
}
