-- tiny_llama.lua - the recipe of the tests: no arguments, no preparation, 50 steps in some ten seconds on one core.
-- Its shape is chosen so that dp 1-4, tp 4, pp 4 and two chunks divide it. Change nothing here: figures of tests depend on it.
local m = require "mascon"

return m.recipe {
    name  = "tiny_llama",
    seed  = 1234,
    model = m.models.llama {
        layers = 8, hidden = 96, heads = 8, kv_heads = 4, ffn = 256, -- 0.86 M parameters
        seq = 128,
    },
    data  = { tokenizer = "bytes", train = "text/moon.txt" },
    batch = { global = 12, micro = 1 },
    steps = { steps = 50 },
    lr    = m.lr.constant { peak = 1e-3, warmup = "10 steps" }, -- mild: at 3e-3 rounding grows a millionfold in 50 steps
    optim = m.adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip = 1.0 },
    precision  = "fp32",
    checkpoint = { every = "20 steps", keep = 3 },
}
