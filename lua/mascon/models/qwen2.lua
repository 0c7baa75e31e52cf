-- qwen2.lua - llama with biases on q, k and v alone; theta 1e6, eps 1e-6. An ordinary file: copy and edit.
-- Published shapes (layers hidden heads kv_heads ffn; vocab 151936 (7B up: 152064), seq 32768):
--   0.5B 24 896 14 2 4864 tied    1.5B 28 1536 12 2 8960 tied    7B 28 3584 28 4 18944    72B 80 8192 64 8 29568
-- Longer contexts: rope_scaling = "yarn", rope_factor = 4, rope_original = 32768.
local m = require "mascon"
local nn = m.nn

local function block(x, c)
    -- residual-output projections start smaller, so that the stream's variance does not grow with depth
    local std = c.init_std / math.sqrt(2 * c.layers)
    local h = nn.rmsnorm("attn_norm", x, { eps = c.eps })
    local q = nn.linear("attn.q", h, c.heads * c.head_dim, { shard = "column", bias = true })
    local k = nn.linear("attn.k", h, c.kv_heads * c.head_dim, { shard = "column", bias = true })
    local v = nn.linear("attn.v", h, c.kv_heads * c.head_dim, { shard = "column", bias = true })
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

return function(cfg)
    if type(cfg) ~= "table" then host.fail "m.models.qwen2: takes one table, as in m.models.qwen2 { ... }" end
    local t = { preset = "qwen2", theta = 1000000, eps = 1e-6, block = block }
    for k, v in pairs(cfg) do t[k] = v end
    return m.decoder(t)
end
