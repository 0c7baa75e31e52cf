local m = require "mascon"

return m.recipe {
    name  = "phases",
    seed  = 1,
    model = m.models.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, seq = 16 },
    data  = { tokenizer = "bytes", train = { "../../../recipes/text/moon.txt", "phases.lua" }, block = 128,
              phases = { { from = "1k tokens", seq = 64, batch = "512 tokens" }, { from = "2k tokens", weights = { 1, 0 } } } },
    batch = { global = 4, micro = 2 },
    steps = { tokens = "5k" },
    lr    = m.lr.wsd { peak = 1e-3, warmup = "500 tokens", decay = "1k tokens" },
    log   = { norms = { every = 10 }, mixture = { every = 5 } },
    cluster = { peak = { fp32 = 0.15 } },
}
