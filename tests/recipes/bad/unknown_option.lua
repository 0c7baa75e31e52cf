-- expect: unknown option 'sharding'
local m = require "mascon"
local nn = m.nn
local function block(x, c)
    return nn.linear("a", x, c.hidden, { sharding = "row" })
end

return m.recipe {
    name  = "bad",
    seed  = 1,
    model = m.decoder { layers = 2, hidden = 32, heads = 4, seq = 16, block = block },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micro = 2 },
    steps = { steps = 10 },
    lr    = m.lr.constant { peak = 1e-3, warmup = 2 },
}
