-- tokenizer_run.lua PROGRAM - a run with a tokenizer.json from packing to text: vocabulary and EOS, what is refused, bits per byte,
-- generation, and the copy in the run folder. Bits per byte are counted here from the token file and the names in the vocabulary.
local program = arg[1] or error "usage: luajit tests/golden/tokenizer_run.lua PROGRAM"
local function capture(cmd)
    local p = io.popen(cmd .. "; echo \"rc=$?\""); local s = p:read "*a"; p:close()
    local out, rc = s:match("^(.*)rc=(%d+)\n$")
    return out, tonumber(rc)
end
local function line(cmd) return (capture(cmd):gsub("\n$", "")) end
program = line("realpath '" .. program .. "'")
local home = line("realpath '" .. (arg[0]:match "^(.*)/[^/]*$" or ".") .. "/../..'")
local dir = line "mktemp -d /tmp/mascon-tok-XXXXXX"
local passed, failed = 0, 0
local function check(ok, what, seen)
    if ok then passed = passed + 1 else failed = failed + 1; print("FAILED " .. what .. (seen and ": " .. tostring(seen) or "")) end
end
local function slurp(path) local f = assert(io.open(path, "rb")); local s = f:read "*a"; f:close(); return s end
local function write(path, s) local f = assert(io.open(path, "wb")); f:write(s); f:close() end
local function mascon(args) return capture(("cd %s && MASCON_HOME=%s %s %s 2>&1"):format(dir, home, program, args)) end

local function recipe(name, data)
    write(dir .. "/" .. name, ([[
local m = require "mascon"
return m.recipe { name = "t", seed = 3,
  model = m.models.llama { layers = 2, hidden = 64, heads = 4, kv_heads = 2, ffn = 128, seq = 64 },
  data = { %s }, batch = { global = 4, micro = 2 }, steps = { steps = 6 },
  lr = m.lr.constant { peak = 3e-3, warmup = "2 steps" }, optim = m.adamw { weight_decay = 0.1, clip = 1.0 },
  checkpoint = { every = "3 steps", keep = 2 } }]]):format(data))
end
os.execute(("mkdir %s/tok && cp %s/tests/golden/tokenizer/*.json %s/tok/ && cp %s/recipes/text/moon.txt %s/"):format(dir, home, dir, home, dir))

-- ---- packing, and what a recipe sees of it ----
local out, rc = mascon "data pack moon.txt --out moon --tokenizer tok/qwen2.json"
check(rc == 0, "pack with a tokenizer", out)
recipe("r.lua", [[tokenizer = "tok/qwen2.json", train = "moon", holdout = 0.2]])
out, rc = mascon "check r.lua"
check(rc == 0, "check", out)
out = mascon "explain r.lua"
check(out:find "model%.vocab *= 1807 *tok/qwen2%.json", "explain: vocabulary", out:match "model%.vocab[^\n]*")
check(out:find "model%.eos *= 1800 *tok/qwen2%.json", "explain: EOS", out:match "model%.eos[^\n]*")

-- ---- refusals: one cause, one problem, exit 2 ----
local function refused(what, data, says, set)
    recipe("bad.lua", data)
    local o, code = mascon("check bad.lua" .. (set or ""))
    check(code == 2 and o:find(says, 1, true) and o:find("1 error", 1, true), what, o)
end
refused("text for a tokenizer", [[tokenizer = "tok/qwen2.json", train = "moon.txt"]], "mascon data pack --tokenizer tok/qwen2.json")
refused("packed by another", [[tokenizer = "tok/gpt2.json", train = "moon"]], "was packed by another tokenizer")
refused("packed by another, read as bytes", [[tokenizer = "bytes", train = "moon"]], "was packed by another tokenizer", " --set model.vocab=1807")
refused("no such file", [[tokenizer = "tok/none.json", train = "moon"]], "tok/none.json")
refused("vocabulary below", [[tokenizer = "tok/qwen2.json", train = "moon"]], "1000 is below the tokenizer's", " --set model.vocab=1000")
write(dir .. "/tok/odd.json", (slurp(dir .. "/tok/gpt2.json"):gsub('"type":"BPE"', '"type":"Unigram"')))
refused("Unigram", [[tokenizer = "tok/odd.json", train = "moon"]], "model.type: Unigram")
mascon "data pack moon.txt --out asbytes"
refused("packed as bytes", [[tokenizer = "tok/gpt2.json", train = "asbytes"]], "was packed as bytes")

-- ---- train, evaluate ----
out, rc = mascon "train r.lua --quiet --json"
check(rc == 0, "train", out)
check(slurp(dir .. "/runs/t/tokenizer.json") == slurp(dir .. "/tok/qwen2.json"), "the run keeps its tokenizer")
out, rc = mascon "eval runs/t --json"
check(rc == 0, "eval", out)
local loss, bpb = tonumber(out:match '"loss":([%d%.e+-]+)'), tonumber(out:match '"bits_per_byte":([%d%.e+-]+)')

-- Bytes that an id stands for: the characters of its name; special tokens: none.
local function bytes_of_ids()
    local s, n = slurp(dir .. "/tok/qwen2.json"), {}
    local i = s:find('"vocab":{', 1, true) + 9
    while s:sub(i, i) == '"' do
        local j = i + 1
        while s:sub(j, j) ~= '"' do j = j + (s:sub(j, j) == "\\" and 2 or 1) end
        local name = s:sub(i + 1, j - 1):gsub("\\(.)", "%1")
        local id, after = s:match("^:(%d+)()", j + 1)
        local _, cont = name:gsub("[\128-\191]", "")
        n[tonumber(id)] = #name - cont
        i = after + 1
    end
    return n
end
local function ids_of(path)
    local s, t = slurp(path), {}
    for i = 1, #s, 2 do t[#t + 1] = s:byte(i) + 256 * s:byte(i + 1) end
    return t
end
if loss and bpb then
    local n, t = bytes_of_ids(), ids_of(dir .. "/moon.bin")
    local first, T = math.floor(#t * 0.8), 64
    local samples, bytes = math.floor((#t - first - 1) / T), 0
    for i = first + 2, first + 1 + samples * T do bytes = bytes + (n[t[i]] or 0) end
    local want = loss * samples * T / bytes / math.log(2)
    check(math.abs(bpb - want) < 1e-9 * want, "bits per byte", bpb .. ", counted here: " .. want)
end

-- ---- a tokenizer of one's own ----
out, rc = mascon "data train-tokenizer moon.txt --vocab 500 --out own.json --json"
check(rc == 0 and out:find '"vocab":500', "train-tokenizer", out)
local lines = {}
for l in (slurp(dir .. "/moon.txt"):gsub("[%c\"\\\128-\255]", " ")):gmatch "[^.]+%." do lines[#lines + 1] = ('{"id": 1, "body": "%s"}\n'):format(l) end
write(dir .. "/a.jsonl", table.concat(lines))
out, rc = mascon "data train-tokenizer a.jsonl --key body --words gpt2 --vocab 400 --special '<s>' --special '</s>' --out jl.json --json"
check(rc == 0 and out:find '"vocab":400', "train-tokenizer from JSONL", out)
for i = 1, math.floor(#lines / 2) do lines[i], lines[#lines + 1 - i] = lines[#lines + 1 - i], lines[i] end
write(dir .. "/b.jsonl", table.concat(lines))
mascon "data train-tokenizer b.jsonl --key body --words gpt2 --vocab 400 --special '<s>' --special '</s>' --out jl2.json"
check(slurp(dir .. "/jl.json") == slurp(dir .. "/jl2.json"), "the order of documents does not matter")
recipe("own.lua", [[tokenizer = "jl.json", train = "mine"]])
mascon "data pack a.jsonl --key body --out mine --tokenizer jl.json"
out = mascon "explain own.lua"
check(out:find "model%.vocab *= 400 *jl%.json" and out:find "model%.eos *= 1 *jl%.json", "a recipe with it", out:match "model%.eos[^\n]*")
out, rc = mascon "data train-tokenizer moon.txt --vocab 500 --out own.json"
check(rc == 2 and out:find("own.json exists", 1, true), "train-tokenizer writes over nothing", out)
out, rc = mascon "data train-tokenizer moon.txt --vocab 200 --out small.json"
check(rc == 2 and out:find("256 bytes", 1, true), "train-tokenizer: a vocabulary too small", out)
out, rc = mascon "data train-tokenizer moon.txt --vocab 500 --words bert --out small.json"
check(rc == 2 and out:find("gpt2, llama3 or qwen2", 1, true), "train-tokenizer: unknown words", out)

-- ---- generate ----
local a, ra = mascon "generate runs/t --prompt 'The tide é' --tokens 40 --seed 5"
local b = mascon "generate runs/t --prompt 'The tide é' --tokens 40 --seed 5"
check(ra == 0 and a == b and a:sub(1, 11) == "The tide é", "generate is the same for the same seed", a)
out, rc = mascon "generate runs/t --tokens 5 --json"
check(rc == 0 and out:find '"tokens":5', "generate from nothing begins after EOS", out)
out, rc = mascon "generate runs/t --tokenizer bytes --tokens 5"
check(rc == 0, "generate with another tokenizer that fits", out)
os.execute(("cd %s && sed 's/\"<think>\"/\"<thunk>\"/' tok/qwen2.json > t2 && mv t2 tok/qwen2.json"):format(dir))

-- ---- the file has changed since: a resume is refused, the run goes on with its own copy elsewhere ----
out, rc = mascon "train r.lua --resume auto --set steps.steps=8"
check(rc == 2 and out:find("was packed by another tokenizer", 1, true), "a changed tokenizer and our packed data", out)
os.execute(("rm %s/moon.json"):format(dir)) -- token files of others have no sidecar
out, rc = mascon "train r.lua --resume auto --set steps.steps=8"
check(rc == 2 and out:find("is not the file that this run began with", 1, true), "a changed tokenizer on resume", out)
os.execute(("cd %s && rm -r tok && mv runs/t elsewhere"):format(dir))
out, rc = mascon "generate elsewhere --prompt 'The tide é' --tokens 40 --seed 5"
check(rc == 0 and out == a, "a run that was moved, without its recipe's files", out)

os.execute("rm -rf " .. dir)
print(("%d passed, %d failed, 0 skipped"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
