-- llama3.lua - the llama block with Llama 3's numbers: theta 500000, eps 1e-5, no biases.
-- Published shapes (layers hidden heads kv_heads head_dim ffn; vocab 128256, seq 8192):
--   8B 32 4096 32 8 128 14336    70B 80 8192 64 8 128 28672    405B 126 16384 128 8 128 53248
-- Llama 3.1 adds rope_scaling = "llama3", rope_factor = 8, rope_original = 8192 and seq up to 131072; Llama 3.2's small ones
-- (1B 16 2048 32 8 64 8192, 3B 28 3072 24 8 128 8192) have rope_factor = 32 and tied = true.
local llama = require "mascon.models.llama"

return function(cfg)
    if type(cfg) ~= "table" then host.fail "m.models.llama3: takes one table, as in m.models.llama3 { ... }" end
    local t = { preset = "llama3", theta = 500000, eps = 1e-5 }
    for k, v in pairs(cfg) do t[k] = v end
    return llama(t)
end
