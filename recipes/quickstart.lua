-- quickstart.lua - a byte-level llama that learns from any text in about two minutes on two cores.
-- recipes/quickstart brings the text; by hand: mascon train recipes/quickstart.lua --set data.train=FILE
local m = require "mascon"

return m.recipe {
    name  = "quickstart",
    seed  = 1,
    model = m.models.llama {
        layers = 6, hidden = 128, heads = 4, kv_heads = 2, ffn = 384, -- 1.25 M parameters
        seq = 256,
    },
    data  = { tokenizer = "bytes", train = m.data.required, holdout = 0.1 }, -- the last tenth is never trained on
    batch = { global = 8, micro = 4 },
    steps = { steps = 700 },
    lr    = m.lr.cosine { peak = 3e-3, floor = 3e-4, warmup = "30 steps" },
    optim = m.adamw { betas = { 0.9, 0.95 }, weight_decay = 0.1, clip = 1.0 },
    eval  = { every = "175 steps", samples = 64 },
    log_every = 50,
    checkpoint = { every = "50 steps", keep = 3 },
}
