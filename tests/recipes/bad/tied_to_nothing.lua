-- expect: wte.weight
local m = require "mascon"
local nn = m.nn
local function block(x, c)
    return nn.gelu(x)
end
local function head(x, c)
    return nn.linear("head", x, c.vocab, { tied = "wte.weight" })
end

return m.recipe {
    name  = "bad",
    seed  = 1,
    model = m.decoder { layers = 2, hidden = 32, heads = 4, seq = 16, block = block, head = head },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micro = 2 },
    steps = { steps = 10 },
    lr    = m.lr.constant { peak = 1e-3, warmup = 2 },
}
