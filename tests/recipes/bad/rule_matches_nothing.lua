-- expect: optim.rules
-- expect: lairs
local m = require "mascon"
return m.recipe {
    name = "bad", model = m.models.llama { layers = 2, hidden = 64, heads = 4, ffn = 128, seq = 32 },
    data = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micro = 1 }, steps = { steps = 1 }, lr = m.lr.constant { peak = 1e-3 },
    optim = m.adamw { rules = { { match = "lairs.*", weight_decay = 0 } } },
}
