-- llama.lua - pre-norm decoder with rmsnorm, rotary positions, grouped queries and swiglu. An ordinary file: copy and edit.
local m = require "mascon"
local nn = m.nn

local function block(x, c)
    -- residual-output projections start smaller, so that the stream's variance does not grow with depth
    local std = c.init_std / math.sqrt(2 * c.layers)
    local h = nn.rmsnorm("attn_norm", x, { eps = c.eps })
    local q = nn.linear("attn.q", h, c.heads * c.head_dim, { shard = "column", bias = c.bias })
    local k = nn.linear("attn.k", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
    local v = nn.linear("attn.v", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
    q, k = nn.rope(q, k, { theta = c.theta, head_dim = c.head_dim })
    local a = nn.attention(q, k, v, { causal = true, head_dim = c.head_dim })
    a = nn.linear("attn.o", a, c.hidden, { shard = "row", bias = c.bias, std = std })
    x = x + nn.dropout("attn.drop", a, c.dropout)
    local g = nn.rmsnorm("mlp_norm", x, { eps = c.eps })
    local gate = nn.linear("mlp.gate", g, c.ffn, { shard = "column", bias = c.bias })
    local up = nn.linear("mlp.up", g, c.ffn, { shard = "column", bias = c.bias })
    local f = nn.linear("mlp.down", nn.swiglu(gate, up), c.hidden, { shard = "row", bias = c.bias, std = std })
    return x + nn.dropout("mlp.drop", f, c.dropout)
end

local function head(x, c)
    return nn.linear("head", nn.rmsnorm("norm", x, { eps = c.eps }), c.vocab,
        { shard = "column", tied = c.tied and "embed.weight" or nil })
end

return function(cfg)
    if type(cfg) ~= "table" then host.fail "m.models.llama: takes one table, as in m.models.llama { ... }" end
    local t = { preset = "llama", block = block, head = head }
    for k, v in pairs(cfg) do t[k] = v end
    return m.decoder(t)
end
