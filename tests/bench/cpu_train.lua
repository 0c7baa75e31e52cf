-- cpu_train.lua - the model that tests/bench/cpu_train trains; it sets sizes, batch and text.
local m = require "mascon"
return m.recipe {
    name  = "cpu_train",
    seed  = 1,
    model = m.models.gpt2 { layers = 12, hidden = 768, heads = 12, ffn = 3072, vocab = 50257, seq = 64 },
    data  = { tokenizer = "bytes", train = m.data.required },
    batch = { global = 4, micro = 4 },
    steps = { steps = 8 },
    lr    = m.lr.constant { peak = 3e-4 },
    optim = m.adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip = 1.0 },
}
