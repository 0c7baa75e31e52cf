-- expect: stepz: unknown key
-- expect: model.layers
-- expect: lr.peak
-- expect: batch.micr
local m = require "mascon"

return m.recipe {
    name  = "bad",
    seed  = 1,
    model = m.models.llama { layers = 0, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, seq = 16 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micr = 1 },
    steps = { steps = 10 },
    lr = m.lr.constant { peak = "x" },
    stepz = 1,
}
