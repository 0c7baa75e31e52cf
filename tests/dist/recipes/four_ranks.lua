-- four_ranks.lua - four ranks with all that a layout can have at once, small enough to be killed and resumed many times.
local m = require "mascon"

return m.recipe {
    name  = "four_ranks",
    seed  = 5,
    model = m.models.llama { layers = 2, hidden = 64, heads = 8, kv_heads = 4, ffn = 128, seq = 32 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 11, micro = 1 },
    steps = { steps = 60 },
    lr    = m.lr.constant { peak = 3e-3, warmup = "10 steps" },
    optim = m.adamw {},
    precision  = "fp32",
    parallel   = { tp = 2, dp = 2, sp = true, shard_optimizer = true, overlap = { grads = true, params = true } },
    checkpoint = { every = "7 steps", keep = 3 },
}
