-- qwen3.lua - llama whose queries and keys are normed head by head before rope; theta 1e6, eps 1e-6, head_dim apart from
-- hidden / heads. An ordinary file: copy and edit.
-- Published shapes (layers hidden heads kv_heads ffn; head_dim 128, vocab 151936, seq 40960):
--   0.6B 28 1024 16 8 3072 tied    1.7B 28 2048 16 8 6144 tied    4B 36 2560 32 8 9728 tied    8B 36 4096 32 8 12288
--   14B 40 5120 40 8 17408    32B 64 5120 64 8 25600.    Longer: rope_scaling = "yarn", rope_factor = 4, rope_original = 32768.
local m = require "mascon"
local nn = m.nn

local function block(x, c)
    -- residual-output projections start smaller, so that the stream's variance does not grow with depth
    local std = c.init_std / math.sqrt(2 * c.layers)
    local h = nn.rmsnorm("attn_norm", x, { eps = c.eps })
    local q = nn.linear("attn.q", h, c.heads * c.head_dim, { shard = "column", bias = c.bias })
    local k = nn.linear("attn.k", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
    local v = nn.linear("attn.v", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
    q = nn.rmsnorm("attn.q_norm", q, { eps = c.eps, head_dim = c.head_dim })
    k = nn.rmsnorm("attn.k_norm", k, { eps = c.eps, head_dim = c.head_dim })
    q, k = nn.rope(q, k, { theta = c.theta, head_dim = c.head_dim })
    local a = nn.attention(q, k, v, { causal = true, head_dim = c.head_dim })
    a = nn.linear("attn.o", a, c.hidden, { shard = "row", bias = c.bias, std = std })
    x = x + nn.dropout("attn.drop", a, c.dropout)
    local g = nn.rmsnorm("mlp_norm", x, { eps = c.eps })
    local gate = nn.linear("mlp.gate", g, c.ffn, { shard = "column" })
    local up = nn.linear("mlp.up", g, c.ffn, { shard = "column" })
    local f = nn.linear("mlp.down", nn.swiglu(gate, up), c.hidden, { shard = "row", std = std })
    return x + nn.dropout("mlp.drop", f, c.dropout)
end

return function(cfg)
    if type(cfg) ~= "table" then host.fail "m.models.qwen3: takes one table, as in m.models.qwen3 { ... }" end
    local t = { preset = "qwen3", theta = 1000000, eps = 1e-6, head_dim = 128, block = block }
    for k, v in pairs(cfg) do t[k] = v end
    return m.decoder(t)
end
