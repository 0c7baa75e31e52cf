-- pipes.lua - eight layers with all that crosses the stages of a pipeline: a tied head, dropout, an evaluation, norms by layer.
-- Eight microbatches go in groups of two and four; other numbers of them come by --set batch.global.
local m = require "mascon"

return m.recipe {
    name  = "pipes",
    seed  = 11,
    model = m.models.gpt2 { layers = 8, hidden = 32, heads = 4, ffn = 64, seq = 32, dropout = 0.1 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", holdout = 0.1 },
    batch = { global = 16, micro = 2 },
    steps = { steps = 6 },
    lr    = m.lr.constant { peak = 3e-3, warmup = "2 steps" },
    optim = m.adamw {},
    precision  = "fp32",
    eval       = { every = "3 steps", samples = 11 },
    log        = { norms = { every = 2 } },
    checkpoint = { every = "2 steps", keep = 9 },
}
