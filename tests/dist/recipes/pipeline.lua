-- pipeline.lua - four ranks, each two of them a pipeline whose first and last stage share a table, small enough to be killed and
-- resumed many times.
local m = require "mascon"

return m.recipe {
    name  = "pipeline",
    seed  = 6,
    model = m.models.gpt2 { layers = 4, hidden = 32, heads = 4, ffn = 64, seq = 32, dropout = 0.1 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 11, micro = 1 },
    steps = { steps = 150 },
    lr    = m.lr.constant { peak = 3e-3, warmup = "10 steps" },
    optim = m.adamw {},
    precision  = "fp32",
    parallel   = { pp = 2, dp = 2, schedule = "zb_h1", stages = { 3, 1 }, shard_optimizer = true,
                   overlap = { grads = true, params = true } },
    checkpoint = { every = "7 steps", keep = 3 },
}
