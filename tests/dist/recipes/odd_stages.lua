-- odd_stages.lua - layers and a head that ask more of a pipeline's stages than a model's do: every other layer is dropout alone,
-- so that a stage of it has nothing to compute when it evaluates, and the head uses the tied table twice.
local m = require "mascon"
local nn = m.nn

local function block(x, c, layer)
    if layer % 2 == 0 then return nn.dropout("drop", x, 0.2) end
    return x + nn.gelu(nn.linear("mix", nn.rmsnorm("norm", x, { eps = c.eps }), c.hidden))
end

local function head(x, c)
    local a = nn.linear("head", x, c.vocab, { tied = "embed.weight" })
    return a + nn.linear("again", nn.layernorm("norm", x, { eps = c.eps }), c.vocab, { tied = "embed.weight" })
end

return m.recipe {
    name  = "odd_stages",
    seed  = 12,
    model = m.decoder { layers = 4, hidden = 16, heads = 2, ffn = 32, seq = 16, vocab = 259, block = block, head = head },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt", holdout = 0.1 },
    batch = { global = 6, micro = 2 },
    steps = { steps = 3 },
    lr    = m.lr.constant { peak = 3e-3 },
    optim = m.adamw {},
    precision  = "fp32",
    eval       = { every = "2 steps", samples = 5 },
    log        = { norms = { every = 1 } },
    checkpoint = { every = "2 steps", keep = 9 },
}
