-- pipeline.lua - a model whose ops take next to no time, for tests/bench/pipeline: what it measures is how ops wait for one another.
local m = require "mascon"

return m.recipe {
    name  = "pipeline",
    seed  = 1,
    model = m.models.llama { layers = 8, hidden = 16, heads = 2, ffn = 32, seq = 8 },
    data  = { tokenizer = "bytes", train = "../../recipes/text/moon.txt" },
    batch = { global = 8, micro = 1 },
    steps = { steps = 4 },
    lr    = m.lr.constant { peak = 1e-3 },
    checkpoint = { every = "1000 steps" },
    parallel = { pp = 4 },
}
