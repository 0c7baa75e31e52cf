-- gemma.lua - embeddings times sqrt(hidden), norms of 1 + w, geglu, a tied head. An ordinary file: copy and edit.
-- Options of this preset, beside the model's keys: attn_softcap, logit_softcap (tanh caps; Gemma 2: 50 and 30), post_norms
-- (norms after attention and mlp too, Gemma 2), query_scale (scores are divided by its root; head_dim when not given). With
-- window, the first, third ... layers see a window, as in Gemma 2.
-- Published shapes (layers hidden heads kv_heads head_dim ffn; vocab 256000, seq 8192):
--   2B 18 2048 8 1 256 16384    7B 28 3072 16 16 256 24576;    Gemma 2: 2B 26 2304 8 4 256 9216, 9B 42 3584 16 8 256 14336
local m = require "mascon"
local nn = m.nn
local options = { attn_softcap = 0, logit_softcap = 0, post_norms = false, query_scale = 0 }

return function(cfg)
    if type(cfg) ~= "table" then host.fail "m.models.gemma: takes one table, as in m.models.gemma { ... }" end
    local o, t = {}, { preset = "gemma", tied = true, eps = 1e-6 }
    for k, v in pairs(options) do o[k] = v end
    for k, v in pairs(cfg) do
        if options[k] ~= nil and type(v) ~= type(options[k]) then
            host.fail(("m.models.gemma: %s must be a %s"):format(k, type(options[k])))
        end
        (options[k] ~= nil and o or t)[k] = v
    end
    local function norm(name, x, c) return nn.rmsnorm(name, x, { eps = c.eps, unit_offset = true }) end
    function t.stem(tokens, c) return nn.embedding("embed", tokens, c.vocab) * math.sqrt(c.hidden) end
    function t.block(x, c, layer)
        local h = norm("attn_norm", x, c)
        local q = nn.linear("attn.q", h, c.heads * c.head_dim, { shard = "column", bias = c.bias })
        local k = nn.linear("attn.k", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
        local v = nn.linear("attn.v", h, c.kv_heads * c.head_dim, { shard = "column", bias = c.bias })
        q, k = nn.rope(q, k, { theta = c.theta, head_dim = c.head_dim })
        local a = nn.attention(q, k, v, { head_dim = c.head_dim, softcap = o.attn_softcap > 0 and o.attn_softcap or nil,
            scale = o.query_scale > 0 and 1 / math.sqrt(o.query_scale) or nil, window = layer % 2 == 1 and c.window or 0 })
        a = nn.linear("attn.o", a, c.hidden, { shard = "row", bias = c.bias })
        x = x + nn.dropout("attn.drop", o.post_norms and norm("attn.post_norm", a, c) or a, c.dropout)
        local g = norm("mlp_norm", x, c)
        local gate = nn.linear("mlp.gate", g, c.ffn, { shard = "column" })
        local up = nn.linear("mlp.up", g, c.ffn, { shard = "column" })
        local f = nn.linear("mlp.down", nn.geglu(gate, up), c.hidden, { shard = "row" })
        return x + nn.dropout("mlp.drop", o.post_norms and norm("mlp.post_norm", f, c) or f, c.dropout)
    end
    function t.head(x, c)
        local logits = nn.linear("head", norm("norm", x, c), c.vocab,
            { shard = "column", tied = c.tied and "embed.weight" or nil })
        return o.logit_softcap > 0 and nn.softcap(logits, o.logit_softcap) or logits
    end
    return m.decoder(t)
end
