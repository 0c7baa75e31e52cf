-- import.lua PROGRAM [MODELS] - `mascon ckpt import` against Hugging Face transformers: tiny random models that import/make.py
-- saved there give the same logits here; a run goes on from them; what does not fit is refused by name, and nothing is written.
-- MODELS: a folder of such models made now, instead of the kept ones: logits only.
local ffi = require "ffi"
local program = arg[1] or error "usage: luajit tests/golden/import.lua PROGRAM [MODELS]"
local function capture(cmd)
    local p = io.popen(cmd .. "; echo \"rc=$?\""); local s = p:read "*a"; p:close()
    local out, rc = s:match("^(.*)rc=(%d+)\n$")
    return out, tonumber(rc)
end
local function line(cmd) return (capture(cmd):gsub("\n$", "")) end
program = line("realpath '" .. program .. "'")
local driver = program:match "^(.*)/[^/]*$" .. "/tests/logits_driver"
local home = line("realpath '" .. (arg[0]:match "^(.*)/[^/]*$" or ".") .. "/../..'")
local golden = home .. "/tests/golden/import/"
local models = arg[2] and line("realpath '" .. arg[2] .. "'") .. "/" or golden
local dir = line "mktemp -d /tmp/mascon-import-XXXXXX"
local passed, failed = 0, 0
local function check(ok, what, seen)
    if ok then passed = passed + 1 else failed = failed + 1; print("FAILED " .. what .. (seen and ": " .. tostring(seen) or "")) end
    return ok
end
local function slurp(path) local f = io.open(path, "rb"); if not f then return "" end; local s = f:read "*a"; f:close(); return s end
local function write(path, s) local f = assert(io.open(path, "wb")); f:write(s); f:close() end
local function mascon(args) return capture(("cd %s && MASCON_HOME=%s %s %s 2>&1"):format(dir, home, program, args)) end
local T, V = 24, 257
local ids = {}
for i = 0, T - 1 do ids[#ids + 1] = (37 * i + 11) % V end
write(dir .. "/ids", table.concat(ids, " "))

-- ||a - b|| / ||b|| of our logits and theirs; the worst row, and all
local function logits_differ(run, family)
    local out, rc = capture(("%s %s/%s/ckpt/step-000000000.e1 <%s/ids"):format(driver, dir, run, dir))
    local theirs = slurp(models .. family .. "/logits.f32")
    if rc ~= 0 or #out ~= T * V * 8 or #theirs ~= T * V * 4 then return 1 / 0, 1 / 0 end
    local a, b = ffi.new("double[?]", T * V), ffi.new("float[?]", T * V)
    ffi.copy(a, out, #out)
    ffi.copy(b, theirs, #theirs)
    local worst, off, size = 0, 0, 0
    for r = 0, T - 1 do
        local o, s = 0, 0
        for j = r * V, r * V + V - 1 do
            o = o + (a[j] - b[j]) ^ 2
            s = s + b[j] ^ 2
        end
        worst, off, size = math.max(worst, math.sqrt(o / s)), off + o, size + s
    end
    return worst, math.sqrt(off / size)
end

local families = { "llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt2" }
for _, f in ipairs(families) do
    for p, limit in pairs { fp32 = 1e-5, fp64 = 1e-5, bf16 = 0.05 } do -- bf16: rounded after each of some 20 ops; all rows together
        local run = f .. "-" .. p
        local out, rc = mascon(("ckpt import %s --recipe %s.lua --run %s --set precision=%s --json"):format(models .. f, golden .. f, run, p))
        if check(rc == 0, run .. ": import", out) then
            local worst, all = logits_differ(run, f)
            check((p == "bf16" and all or worst) <= limit, run .. ": logits differ from transformers'", worst)
            print(("%s: logits within %.1e of transformers' (worst row %.1e)"):format(run, all, worst))
        end
    end
end
local function finish()
    print(("%d passed, %d failed, 0 skipped"):format(passed, failed))
    if failed == 0 then os.execute("rm -rf " .. dir) end
    os.exit(failed == 0 and 0 or 1)
end
if arg[2] then finish() end

-- ---- the run goes on ----
local _, rc = mascon "ckpt verify llama-fp32"
check(rc == 0, "verify")
local out
out = mascon "ckpt show llama-bf16 --json"
check(out:find '"name":"master/embed.weight"' and out:find '"name":"model/embed.weight"', "bf16: weights and masters")
_, rc = mascon "eval llama-bf16"
check(rc == 0, "eval at bf16")
out, rc = mascon "eval llama-fp32 --json"
local before = tonumber(out:match '"loss":([%d.e+-]+)')
check(rc == 0 and before, "eval", out)
out, rc = mascon "generate llama-fp32 --tokens 3 --no-stop"
check(rc == 0, "generate", out)
os.execute(("cp -r %s/llama-fp32 %s/copy"):format(dir, dir))
out, rc = mascon(("ckpt import %sllama --recipe %sllama.lua --run llama-fp32"):format(golden, golden))
check(rc == 2 and out:find("holds a run already", 1, true), "a second import into the run", out)
out, rc = mascon(("train %sllama.lua --run copy --resume auto --quiet"):format(golden))
check(rc == 0, "train --resume auto", out)
check(#(slurp(dir .. "/copy/metrics.jsonl"):gsub("[^\n]", "")) == 6, "six steps")
out = mascon "eval copy --json"
local after = tonumber(out:match '"loss":([%d.e+-]+)')
check(after and after < before, "six steps from the imported weights make the loss smaller", after)
check(slurp(dir .. "/copy/events.jsonl"):find '"kind":"import","from":"[^"]*","family":"llama","tensors":21', "the event")

-- ---- an import that could not be finished is none ----
out, rc = mascon(("ckpt import %sllama --recipe %sllama.lua --run full"):format(golden, golden))
check(rc == 0, "the size of a checkpoint", out)
out, rc = capture(("cd %s && rm -rf full && ulimit -f 8 && MASCON_HOME=%s %s ckpt import %sllama --recipe %sllama.lua --run full 2>&1"):format(
    dir, home, program, golden, golden))
check(rc == 76 and out:find("the last save failed", 1, true), "a full disk", rc .. " " .. out)
check(not io.open(dir .. "/full/segments/001/resolved.json"), "a full disk: a segment was made")
out, rc = mascon(("ckpt import %sllama --recipe %sllama.lua --run full"):format(golden, golden))
check(rc == 0, "with room again", out)
out, rc = mascon(("train %sllama.lua --run full --quiet"):format(golden))
check(rc == 2 and out:find("--resume auto", 1, true), "train without --resume", out)
write(dir .. "/hook.lua", "return { state = { n = 0 }, on_step_end = function(ev, self) self.state.n = self.state.n + 1 end }")
out, rc = mascon(("train %sllama.lua --run full --quiet --resume 0 --set 'hooks={\"%s/hook.lua\"}'"):format(golden, dir))
check(rc == 0, "train --resume 0, with a hook", out)
out = mascon "ckpt show full"
check(out:find('"n":6', 1, true), "the hook's state", out)

-- ---- a shard's names, one file alone, without config.json ----
os.execute(("mkdir %s/alone && cp %sgpt2/model.safetensors %s/alone/any.safetensors"):format(dir, golden, dir))
out, rc = mascon(("ckpt import alone/any.safetensors --recipe %sgpt2.lua --run alone-run"):format(golden))
check(rc == 0 and out:find("(gpt2)", 1, true), "a file alone: its family by its names", out)
check(logits_differ("alone-run", "gpt2") <= 1e-5, "a file alone: logits")

-- ---- what does not fit ----
-- A file taken apart: header text and data; put together again.
local function parts(s)
    local n = 0
    for i = 8, 1, -1 do n = n * 256 + s:byte(i) end
    return s:sub(9, 8 + n), s:sub(9 + n)
end
local function whole(header, data)
    local n, b = #header, {}
    for i = 1, 8 do b[i] = string.char(n % 256); n = math.floor(n / 256) end
    return table.concat(b) .. header .. data
end
local llama, config = slurp(golden .. "llama/model.safetensors"), slurp(golden .. "llama/config.json")
local header, data = parts(llama)
local count = 0
-- the llama with another file, another config; the run must not be made, and the message must say `what`
local function refused(name, file, what, cfg, set)
    count = count + 1
    local folder, run = "bad" .. count, "run" .. count
    os.execute(("mkdir %s/%s"):format(dir, folder))
    write(("%s/%s/model.safetensors"):format(dir, folder), file)
    if cfg ~= false then write(("%s/%s/config.json"):format(dir, folder), cfg or config) end
    local o, r = mascon(("ckpt import %s --recipe %sllama.lua --run %s %s"):format(folder, golden, run, set or ""))
    check(r == 2, name .. ": exit", r .. " " .. o)
    for _, w in ipairs(type(what) == "table" and what or { what }) do
        check(o:find(w, 1, true), name .. ": nothing says " .. w, o)
    end
    check(not io.open(("%s/%s/run.lock"):format(dir, run)), name .. ": a run was made")
end
local function sub(s, a, b) local t, n = s:gsub(a, b, 1); assert(n == 1, a); return t end
local norm = '"model%.norm%.weight":{"dtype":"F32","shape":%[16%],"data_offsets":%[(%d+),(%d+)%]}'
local lo, hi = header:match(norm)

refused("cut short", llama:sub(1, -9), "the file is cut short")
refused("cut in the header", llama:sub(1, 300), "no safetensors file")
refused("an empty file", "", "0 bytes are no safetensors file")
refused("something else", ("moon"):rep(99), "no safetensors file")
refused("bytes behind the last tensor", llama .. "12345678", "belong to no tensor")
refused("a header of another kind", whole("[1, 2]", data), "not a JSON object")
refused("a name twice", whole(sub(header, '"model%.norm%.weight"', '"lm_head.weight"'), data), "its header is not a JSON object")
refused("an unknown dtype", whole(sub(header, norm, '"model.norm.weight":{"dtype":"F12","shape":[16],"data_offsets":[%1,%2]}'), data),
    { "model.norm.weight", '"dtype" that is not known' })
refused("whole numbers", whole(sub(header, norm, '"model.norm.weight":{"dtype":"I32","shape":[16],"data_offsets":[%1,%2]}'), data),
    { "model.norm.weight", "its dtype is I32" })
refused("a shape that does not take its bytes",
    whole(sub(header, norm, '"model.norm.weight":{"dtype":"F32","shape":[17],"data_offsets":[%1,%2]}'), data), "do not take the 64 bytes")
refused("a shape past all bounds", whole(sub(header, norm,
    '"model.norm.weight":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[%1,%2]}'), data), "past 2^63")
refused("overlapping tensors", whole(sub(header, norm, ('"model.norm.weight":{"dtype":"F32","shape":[16],"data_offsets":[%d,%d]}'):format(
    lo - 4, hi - 4)), data), "overlap")
refused("another shape", whole(sub(header, norm, '"model.norm.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[%1,%2]}'), data),
    { "model.norm.weight", "its shape is [4, 4]", "norm.weight of [16] needs [16]" })
refused("a tensor less", whole(sub(header, '"model%.norm%.weight"', '"model.layers.0.self_attn.rotary_emb.inv_freq"'), data),
    { "norm.weight: not in the file: norm.weight, for [16]" })
refused("a tensor that is none of a llama's", whole(sub(header, '"model%.norm%.weight"', '"model.moon.weight"'), data),
    { "model.moon.weight: a llama has no tensor of that name", "norm.weight: not in the file" })
refused("a tensor that the recipe has no use for", whole(sub(header, '"model%.norm%.weight"', '"model.layers.1.self_attn.q_proj.bias"'), data),
    "the recipe's model has no layers.1.attn.q.bias")
refused("a layer too many", whole(header:gsub("model%.layers%.1", "model.layers.2"), data),
    { "the recipe's model has no layers.2.attn.q.weight", "layers.1.attn.q.weight: not in the file" })
refused("one parameter twice", whole(sub(header, '"model%.norm%.weight"', '"model.norm.weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"norm.weight"'), data),
    "norm.weight has come from")
local nan = data:sub(1, lo) .. "\0\0\192\127" .. data:sub(lo + 5)
refused("not a number", whole(header, nan), { "model.norm.weight", "element 0 is" })

refused("another model", llama, 'model_type "bert"', (config:gsub('"llama"', '"bert"')))
refused("a config that is none", llama, "config.json", "{")
for key, value in pairs { hidden_size = 32, num_hidden_layers = 3, num_attention_heads = 2, num_key_value_heads = 4, intermediate_size = 25,
    vocab_size = 258, rms_norm_eps = 1e-6, rope_theta = 5000, factor = 2, original_max_position_embeddings = 64, low_freq_factor = 2,
    high_freq_factor = 5 } do
    refused(key, llama, { key .. ": config.json says " .. ("%.17g"):format(value) }, sub(config, '"' .. key .. '": [%d.e+-]+', ('"%s": %.17g'):format(key, value)))
end
refused("hidden_act", llama, 'hidden_act: config.json says "gelu"', sub(config, '"silu"', '"gelu"'))
refused("rope_type", llama, "rope_type: config.json says yarn", sub(config, '"rope_type": "llama3"', '"rope_type": "yarn"'))
refused("tie_word_embeddings", llama, "tie_word_embeddings: config.json says true, model.tied is false",
    sub(config, '"tie_word_embeddings": false', '"tie_word_embeddings": true'))
refused("sliding_window", llama, "sliding_window: config.json says 5, the model's layer 0 sees 0", sub(config, "{", '{ "sliding_window": 5,'))
refused("a window in the recipe", llama, "sliding_window: config.json says 0, the model's layer 0 sees 5", nil, "--set model.window=5")
refused("a tied head that differs", llama, "set model.tied = false", false, "--set model.tied=true")

-- a head stored beside the embedding that it is tied to
local qwen = slurp(golden .. "qwen2/model.safetensors")
local qh, qd = parts(qwen)
local b, e = qh:match '"model%.embed_tokens%.weight":{"dtype":"F32","shape":%[257,16%],"data_offsets":%[(%d+),(%d+)%]}'
local twice = whole(qh:gsub("^{", ('{"lm_head.weight":{"dtype":"F32","shape":[257,16],"data_offsets":[%d,%d]},'):format(#qd, #qd + e - b)), qd .. qd:sub(b + 1, e))
os.execute(("mkdir %s/tied"):format(dir))
write(dir .. "/tied/model.safetensors", twice)
out, rc = mascon(("ckpt import tied --recipe %sqwen2.lua --run tied-run"):format(golden))
check(rc == 0, "a tied head that is stored, too", out)

-- an index
local index = slurp(golden .. "qwen3/model.safetensors.index.json")
local function shards(name, text, what, after)
    count = count + 1
    os.execute(("cp -r %sqwen3 %s/bad%d; rm %s/bad%d/config.json"):format(golden, dir, count, dir, count))
    write(("%s/bad%d/model.safetensors.index.json"):format(dir, count), text)
    os.execute(("cd %s/bad%d; %s"):format(dir, count, after or "true"))
    local o, r = mascon(("ckpt import bad%d --recipe %sqwen3.lua --run run%d"):format(count, golden, count))
    check(r == 2 and o:find(what, 1, true), name, r .. " " .. o)
end
shards("an index that forgets a tensor", sub(index, '"model%.norm%.weight"', '"model.norm.bias"'), 'does not know tensor "model.norm.weight"')
local other = index:match '"lm_head%.weight": "([^"]*)"' == "model-00003-of-00003.safetensors" and "model-00001-of-00003.safetensors"
    or "model-00003-of-00003.safetensors"
shards("an index that gives a tensor to another file", sub(index, '"lm_head%.weight": "[^"]*"', ('"lm_head.weight": "%s"'):format(other)),
    'tensor "lm_head.weight" is not in ' .. other)
shards("a path in an index", sub(index, '"lm_head%.weight": "', '"lm_head.weight": "../'), "not a plain name")
shards("a shard that is not there", index, "model-00002-of-00003.safetensors", "rm model-00002-of-00003.safetensors")
shards("no index", "[]", "no index of safetensors files")
shards("an index and a file", index, "name the one that is meant", "cp model-00001-of-00003.safetensors model.safetensors")

out, rc = mascon "ckpt import nowhere"
check(rc == 2 and out:find("--recipe RECIPE", 1, true), "no recipe", out)
out, rc = mascon(("ckpt import nowhere --recipe %sllama.lua"):format(golden))
check(rc == 2 and out:find("nowhere", 1, true), "no such file", out)
finish()
