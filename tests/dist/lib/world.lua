-- world.lua - what the layouts train: five small models, and data in which every step has a sequence without any label and
-- sequences of unequal length.
--
-- 24 sources of one weight give one sample each in turn, so the batch of a step is the list of sources, and the list in reverse
-- is the same batch in reverse order: that is the noise twin, from outside. Each source has one sample a step. Tokens of end of
-- document carry no label (data.mask_eod): source 7 is nothing else, every third one is so in part.
-- The learning rate of step 1 is 0: the first checkpoint has the initial weights, and in adam_m the first gradient times
-- (1 - beta1) and the clip factor, the same on all layouts. Later it is low: at 1e-2 AdamW makes of the rounding of a first step
-- twenty times as much in adam_v, in fp64 as in fp32, and a twin that changes the order of samples alone does not show that.
local bit = require "bit"
local W = { STEPS = 3, SOURCES = 24, SEQ = 16, EOS = 256 }

W.MODELS = {
    -- tied vocabulary of 257 rows (tp divides it nowhere), positions, biases of column and row linears, dropout by logical row
    gpt2 = "m.models.gpt2 { layers = %d, hidden = 32, heads = 4, ffn = 64, seq = 16, dropout = 0.1, vocab = 257 }",
    -- untied, grouped queries, a vocabulary that tp divides
    llama = "m.models.llama { layers = %d, hidden = 64, heads = 8, kv_heads = 4, ffn = 96, seq = 16, vocab = 260 }",
    -- an odd vocabulary, untied and wider than the tokenizer's, beside a width that is no power of two
    odd = "m.models.llama { layers = %d, hidden = 40, heads = 4, kv_heads = 4, ffn = 56, seq = 16, vocab = 263 }",
    -- one key head for all: each rank of tp 2 and 4 has a copy, biases too
    one_kv = "m.models.llama { layers = %d, hidden = 32, heads = 4, kv_heads = 1, ffn = 64, seq = 16, bias = true, tied = true, vocab = 261 }",
    -- biases, norms of heads, two key heads, of which at tp 4 each has two owners
    qwen = "m.models.qwen3 { layers = %d, hidden = 32, heads = 8, kv_heads = 2, head_dim = 8, ffn = 64, seq = 16, bias = true, vocab = 260 }",
}
W.NAMES = { "gpt2", "llama", "odd", "one_kv", "qwen" }
W.DROPS = { gpt2 = true }
-- Parameters whose values are noise: softmax does not see what is added to all keys alike, so the gradient of a key bias is zero
-- without rope, and so small with it that in fp32 AdamW's first steps are made of its rounding. Their gradients are compared.
function W.no_value(model, precision)
    return (model == "gpt2" or precision == "fp32") and "attn%.k%.bias$" or nil
end

local RECIPE = [[
local m = require "mascon"
return m.recipe {
  name = "%s", seed = 77,
  model = %s,
  data = { tokenizer = "bytes", mask_eod = true, train = { %s } },
  batch = { global = %d, micro = 1 },
  steps = { steps = %d },
  lr = function(s) return s.step == 1 and 0 or 1e-3 end,
  optim = m.adamw { betas = { 0.9, 0.95 }, eps = %g, weight_decay = 0.1, clip = %s },
  precision = "fp64",
  checkpoint = { every = "1 steps", keep = 100 },
}
]]

local function write(path, s)
    local f = assert(io.open(path, "wb"))
    f:write(s)
    f:close()
end

local function little(n, bytes)
    local t = {}
    for i = 1, bytes do
        t[i] = string.char(n % 256)
        n = math.floor(n / 256)
    end
    return table.concat(t)
end

-- Packed data of one document in the format of core/data/indexed.c: 16-bit ids.
local function pack(prefix, ids)
    local t = {}
    for i, id in ipairs(ids) do t[i] = little(id, 2) end
    write(prefix .. ".bin", table.concat(t))
    write(prefix .. ".idx", "MMIDIDX\0\0" .. little(1, 8) .. "\8" .. little(1, 8) .. little(2, 8)
        .. little(#ids, 4) .. little(0, 8) .. little(0, 8) .. little(1, 8))
end

local function tokens_of(source, text)
    local ids = {}
    for i = 1, W.STEPS * W.SEQ + 1 do
        local at = (source * 611 + i * 1) % #text + 1
        ids[i] = text:byte(at)
        local in_sample = (i - 1) % W.SEQ
        if source == 7 or source % 3 == 0 and in_sample >= 3 + source % 11 then ids[i] = W.EOS end
    end
    return ids
end

-- Writes the data, and the recipes of models with so many layers, below dir. eps: AdamW's. An element whose gradients are as small
-- as eps moves by what their rounding is, in relation to it; of many layers some have such elements, and no twin tells of them.
function W.write(dir, text, layers, eps)
    os.execute("mkdir -p '" .. dir .. "/data'")
    for s = 1, W.SOURCES do pack(("%s/data/s%02d"):format(dir, s), tokens_of(s, text)) end
    for i, name in ipairs(W.NAMES) do
        for _, global in ipairs { 22, 23, 24 } do
            local there, back = {}, {}
            for s = 1, global do
                local path = ('"data/s%02d"'):format(s)
                there[s], back[global + 1 - s] = path, path
            end
            local function recipe(suffix, list)
                write(("%s/%s-%d%s.lua"):format(dir, name, global, suffix),
                    RECIPE:format(name, W.MODELS[name]:format(layers), table.concat(list, ", "), global, W.STEPS, eps, i % 2 == 0 and "0" or "0.5"))
            end
            recipe("", there)
            recipe("-twin", back)
        end
    end
end

return W
