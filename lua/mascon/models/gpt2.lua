-- gpt2.lua - pre-norm decoder with layernorm, learned positions, biases, gelu (tanh form) and a tied head. Copy and edit.
local m = require "mascon"
local nn = m.nn

local function stem(tokens, c)
    local x = nn.embedding("embed", tokens, c.vocab)
    x = nn.positions("pos", x, c.seq)
    return nn.dropout("embed_drop", x, c.dropout)
end

local function block(x, c)
    -- residual-output projections start smaller, so that the stream's variance does not grow with depth
    local std = c.init_std / math.sqrt(2 * c.layers)
    local h = nn.layernorm("attn_norm", x, { eps = c.eps })
    local q = nn.linear("attn.q", h, c.heads * c.head_dim, { shard = "column", bias = c.bias })
    local k = nn.linear("attn.k", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
    local v = nn.linear("attn.v", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
    local a = nn.attention(q, k, v, { causal = true, head_dim = c.head_dim })
    a = nn.linear("attn.o", a, c.hidden, { shard = "row", bias = c.bias, std = std })
    x = x + nn.dropout("attn.drop", a, c.dropout)
    local g = nn.layernorm("mlp_norm", x, { eps = c.eps })
    local f = nn.gelu(nn.linear("mlp.up", g, c.ffn, { shard = "column", bias = c.bias }))
    f = nn.linear("mlp.down", f, c.hidden, { shard = "row", bias = c.bias, std = std })
    return x + nn.dropout("mlp.drop", f, c.dropout)
end

local function head(x, c)
    return nn.linear("head", nn.layernorm("norm", x, { eps = c.eps }), c.vocab,
        { shard = "column", tied = c.tied and "embed.weight" or nil })
end

return function(cfg)
    if type(cfg) ~= "table" then host.fail "m.models.gpt2: takes one table, as in m.models.gpt2 { ... }" end
    local t = { preset = "gpt2", bias = true, tied = true, stem = stem, block = block, head = head }
    for k, v in pairs(cfg) do t[k] = v end
    return m.decoder(t)
end
