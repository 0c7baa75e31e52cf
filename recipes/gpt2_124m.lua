-- gpt2_124m.lua - the smallest published GPT-2, 124 M parameters. Its data is only declared: `check`, `explain` and
-- `plan` work; `train` says what is missing. With GPT-2's tokenizer.json and data packed by it:
--   --set 'data={ tokenizer = "tokenizer.json", train = "packed" }'
local m = require "mascon"

return m.recipe {
    name  = "gpt2_124m",
    seed  = 1234,
    model = m.models.gpt2 { layers = 12, hidden = 768, heads = 12, ffn = 3072, vocab = 50257, seq = 1024 },
    data  = m.data.declared { tokens = "10B", vocab = 50257 },
    batch = { global = 512, micro = 4 },
    steps = { tokens = "10B" },
    lr    = m.lr.cosine { peak = 6e-4, floor = 6e-5, warmup = "375M tokens" },
    optim = m.adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip = 1.0 },
    checkpoint = { every = "30 min", keep = 3 },
    hooks = { "hooks/skip_anomaly.lua", "hooks/save_before_timeout.lua" },
}
