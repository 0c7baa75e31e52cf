-- expect: scaling "linear" does not use beta_fast
local m = require "mascon"
local nn = m.nn
local function block(x)
    local q, k = nn.rope(nn.linear("q", x, 32), nn.linear("k", x, 32), { scaling = "linear", factor = 2, beta_fast = 8 })
    return x + nn.attention(q, k, nn.linear("v", x, 32))
end

return m.recipe {
    name  = "bad",
    seed  = 1,
    model = m.decoder { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, seq = 16, block = block },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micro = 2 },
    steps = { steps = 10 },
    lr    = m.lr.constant { peak = 1e-3, warmup = 2 },
}
