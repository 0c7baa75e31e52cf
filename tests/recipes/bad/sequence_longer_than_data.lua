-- expect: data.train
-- expect: one sample of sequence length 65536
local m = require "mascon"
return m.recipe {
    name = "bad", model = m.models.llama { layers = 2, hidden = 64, heads = 4, ffn = 128, seq = 65536 },
    data = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 1, micro = 1 }, steps = { steps = 1 }, lr = m.lr.constant { peak = 1e-3 }, optim = m.adamw {},
}
