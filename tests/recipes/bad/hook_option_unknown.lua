-- expect: no option 'stepz'; did you mean 'steps'?
local m = require "mascon"

return m.recipe {
    name  = "bad",
    model = m.models.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, seq = 16 },
    data  = { train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micro = 2 },
    steps = { steps = 10 },
    lr    = m.lr.constant { peak = 1e-3, warmup = 2 },
    hooks = { { "hooks/eval_every.lua", stepz = 15 } },
}
