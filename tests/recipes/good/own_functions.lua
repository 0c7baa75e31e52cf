-- stem, block and head of one's own; layers that differ; a helper in a module beside the recipe.
local m = require "mascon"
local nn = m.nn
local parts = require "lib.parts"

local function stem(tokens, c)
    return nn.scale(nn.embedding("wte", tokens, c.vocab, { std = 0.01 }), math.sqrt(c.hidden))
end
local function block(x, c, layer)
    local h = parts.mlp(nn.rmsnorm("norm", x), c)
    if layer % 2 == 0 then h = nn.dropout("drop", h, 0.1) end
    return x + 0.5 * h
end
local function head(x, c)
    return nn.linear("out", nn.layernorm("last", x, { eps = c.eps }), c.vocab, { tied = "wte.weight", shard = "column" })
end

return m.recipe {
    name  = "own_functions",
    model = m.decoder { layers = 4, hidden = 16, heads = 2, seq = 8, stem = stem, block = block, head = head },
    data  = { tokenizer = "bytes", train = { { "../../../recipes/text/moon.txt", weight = 2 } }, holdout = 0.2 },
    batch = { global = 4, micro = 2 },
    steps = { tokens = 320 },
    lr    = m.lr.cosine { peak = 1e-3, floor = 1e-4, warmup = 2 },
}
