-- mistral.lua - the llama block with Mistral's numbers. window: each layer sees that many tokens (7B v0.1: 4096; later ones
-- see all, with theta 1e6).
-- Published shape (layers hidden heads kv_heads head_dim ffn; vocab 32000, seq 8192 or more): 7B 32 4096 32 8 128 14336
local llama = require "mascon.models.llama"

return function(cfg)
    if type(cfg) ~= "table" then host.fail "m.models.mistral: takes one table, as in m.models.mistral { ... }" end
    local t = { preset = "mistral", theta = 10000, eps = 1e-5 }
    for k, v in pairs(cfg) do t[k] = v end
    return llama(t)
end
