-- llama2.lua - the llama block with Llama 2's numbers: theta 10000, eps 1e-5, no biases, nothing tied.
-- Published shapes (layers hidden heads kv_heads ffn; vocab 32000, seq 4096):
--   7B 32 4096 32 32 11008    13B 40 5120 40 40 13824    70B 80 8192 64 8 28672
local llama = require "mascon.models.llama"

return function(cfg)
    if type(cfg) ~= "table" then host.fail "m.models.llama2: takes one table, as in m.models.llama2 { ... }" end
    local t = { preset = "llama2", theta = 10000, eps = 1e-5 }
    for k, v in pairs(cfg) do t[k] = v end
    return llama(t)
end
