-- gpt3.lua - gpt2 whose second, fourth ... layers see a band only, where window is given. The paper alternates dense and banded
-- layers and does not say the band's width; without window all are dense, as in most reproductions.
-- Published shapes (layers hidden heads; ffn 4 x hidden, vocab 50257, seq 2048): 125M 12 768 12    350M 24 1024 16
--   760M 24 1536 16    1.3B 24 2048 24    2.7B 32 2560 32    6.7B 32 4096 32    13B 40 5140 40    175B 96 12288 96
-- (1.3B's and 13B's heads do not divide hidden: head_dim = 128 there, as published.)
local m = require "mascon"
local nn = m.nn

local function stem(tokens, c)
    local x = nn.positions("pos", nn.embedding("embed", tokens, c.vocab), c.seq)
    return nn.dropout("embed_drop", x, c.dropout)
end

local function block(x, c, layer)
    -- residual-output projections start smaller, so that the stream's variance does not grow with depth
    local std = c.init_std / math.sqrt(2 * c.layers)
    local h = nn.layernorm("attn_norm", x, { eps = c.eps })
    local q = nn.linear("attn.q", h, c.heads * c.head_dim, { shard = "column", bias = c.bias })
    local k = nn.linear("attn.k", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
    local v = nn.linear("attn.v", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
    local a = nn.attention(q, k, v, { head_dim = c.head_dim, window = layer % 2 == 0 and c.window or 0 })
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
    if type(cfg) ~= "table" then host.fail "m.models.gpt3: takes one table, as in m.models.gpt3 { ... }" end
    local t = { preset = "gpt3", bias = true, tied = true, stem = stem, block = block, head = head }
    for k, v in pairs(cfg) do t[k] = v end
    return m.decoder(t)
end
