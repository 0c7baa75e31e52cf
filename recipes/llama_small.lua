-- llama_small.lua - a llama written out with mascon.nn, to copy and change: the same as m.models.llama, in full.
-- The data is declared: `check`, `explain` and `plan` work; name your own under `data` to train.
local m  = require "mascon"
local nn = m.nn

local function block(x, c)
    local std = c.init_std / math.sqrt(2 * c.layers) -- residual-output projections start smaller
    local h = nn.rmsnorm("attn_norm", x, { eps = c.eps })
    local q = nn.linear("attn.q", h, c.heads    * c.head_dim, { shard = "column" })
    local k = nn.linear("attn.k", h, c.kv_heads * c.head_dim, { shard = "column" })
    local v = nn.linear("attn.v", h, c.kv_heads * c.head_dim, { shard = "column" })
    q, k = nn.rope(q, k, { theta = c.theta, head_dim = c.head_dim })
    local a = nn.attention(q, k, v, { causal = true })
    x = x + nn.linear("attn.o", a, c.hidden, { shard = "row", std = std })
    local g = nn.rmsnorm("mlp_norm", x, { eps = c.eps })
    local gate = nn.linear("mlp.gate", g, c.ffn, { shard = "column" })
    local up   = nn.linear("mlp.up",   g, c.ffn, { shard = "column" })
    return x + nn.linear("mlp.down", nn.swiglu(gate, up), c.hidden, { shard = "row", std = std })
end

return m.recipe {
    name  = "llama_small",
    seed  = 1234,
    model = m.decoder {
        layers = 12, hidden = 768, heads = 12, kv_heads = 4, head_dim = 64, ffn = 2048, vocab = 32000,
        seq = 1024, theta = 10000, eps = 1e-5, tied = false, block = block,
    },
    data  = m.data.declared { tokens = "10B", vocab = 32000 },
    batch = { global = 512, micro = 4, ramp = { { tokens = 0, global = 128 }, { tokens = "2B", global = 512 } } },
    steps = { tokens = "10B" },
    lr    = m.lr.wsd { peak = 6e-4, warmup = "200M tokens", decay = "1B tokens", tail = "sqrt" },
    optim = m.adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip = 1.0, no_decay = { "norm", "bias" } },
    checkpoint = { every = "60 min", keep = 3 },
    hooks = { "hooks/log_jsonl.lua", "hooks/skip_anomaly.lua", "hooks/save_before_timeout.lua" },
}
