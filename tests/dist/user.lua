-- user.lua PROGRAM - what several ranks give a person besides losses: text and evaluation of a checkpoint on any layout, the
-- norms of layers, phases of data, bf16, and what memory a rank takes.
package.path = arg[0]:gsub("[^/]*$", "") .. "../fault/?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local here = io.popen("pwd"):read "*l"

local function words(list, more)
    local v = { a.program }
    for w in list:gmatch "%S+" do v[#v + 1] = w end
    for _, w in ipairs(more or {}) do v[#v + 1] = w end
    return v
end
-- Exit code, all of stdout, stderr.
local function mascon(list, more, o)
    local rc, sig, _, err = P.run(words(list, more), dir, o or { limit = 120 })
    return rc or sig, P.read(dir .. "/out") or "", err
end
local function near(x, y, within, what)
    local d = x and y and math.abs(x - y) / math.max(math.abs(y), 1e-30) or 1 / 0
    P.check(d <= within, "%s: %s, one rank: %s", what, tostring(x), tostring(y))
    return d
end
local function lines(run, file)
    local r = {}
    for l in (P.read(dir .. "/" .. run .. "/" .. file) or ""):gmatch "[^\n]+" do r[#r + 1] = l end
    return r
end
local function train(run, recipe, more)
    local rc, out, err = mascon(("train %s --run %s/%s --json --quiet %s"):format(recipe, dir, run, more or ""))
    P.check(rc == 0, "%s: exit %s: %s", run, tostring(rc), err)
    local losses = {}
    for _, l in ipairs(lines(run, "metrics.jsonl")) do losses[tonumber(P.field(l, "step"))] = tonumber(P.field(l, "loss")) end
    return losses, P.field(out, "weights_hash")
end

-- text and evaluation of a checkpoint: fewer kv heads than parts, a vocabulary that no layout divides
train("made", "recipes/tiny_llama.lua", "--set steps.steps=20 --set lr.peak=3e-3 --set model.kv_heads=2 --set model.vocab=261"
    .. " --set data.holdout=0.1")
local made = dir .. "/made"
local ask = "generate " .. made .. " --temperature 0 --tokens 40 --no-stop --json"
local evaluate = "eval " .. made .. " --json"
local prompt = { "--prompt", "The moon" }
local _, text = mascon(ask, prompt)
local _, loss = mascon(evaluate)
P.check(P.field(text, "tokens") == "40", "one rank: no text: %s", text)
local layouts = { "--ranks 4 --set parallel.tp=4", "--ranks 2 --set parallel.tp=2 --set parallel.sp=true",
    "--ranks 6 --set parallel.tp=2", "--ranks 3", "--set parallel.tp=4 --set parallel.sp=true",
    "--ranks 8 --set parallel.pp=4 --set parallel.tp=2 --set parallel.sp=true", "--ranks 8 --set parallel.pp=2 --set parallel.tp=2" }
-- a pipeline alone changes no bit
local pipelines = { "--ranks 2 --set parallel.pp=2", "--set parallel.pp=4", "--ranks 4 --set parallel.pp=2", "--set parallel.pp=3" }
local exact = {}
for _, layout in ipairs(pipelines) do
    layouts[#layouts + 1], exact[layout] = layout, not layout:find "ranks 4"
end
for _, layout in ipairs(layouts) do
    local rc, out, err = mascon(ask .. " " .. layout, prompt)
    P.check(rc == 0 and out == text, "generate %s: exit %s, %s, one rank: %s %s", layout, tostring(rc), out, text, err)
    rc, out, err = mascon(evaluate .. " " .. layout)
    P.check(rc == 0, "eval %s: exit %s: %s", layout, tostring(rc), err)
    near(tonumber(P.field(out, "loss")), tonumber(P.field(loss, "loss")), 1e-6, "eval " .. layout)
    P.check(P.field(out, "tokens") == P.field(loss, "tokens"), "eval %s: other tokens: %s", layout, out)
    P.check(not exact[layout] or P.field(out, "loss") == P.field(loss, "loss"), "eval %s: %s, one rank: %s", layout, out, loss)
end
local _, plain = mascon("generate " .. made .. " --tokens 30 --seed 7", prompt)
local rc, drawn = mascon("generate " .. made .. " --tokens 30 --seed 7 --ranks 2", prompt)
P.check(rc == 0 and #plain > 9 and drawn == plain, "drawn text on two replicas: %s, one rank: %s", drawn, plain)
rc, drawn = mascon("generate " .. made .. " --tokens 30 --seed 7 --set parallel.pp=4", prompt)
P.check(rc == 0 and drawn == plain, "drawn text on four pipeline ranks: %s, one rank: %s", drawn, plain)

-- a layout that cannot be, and words that have no meaning here, start nothing
for list, says in pairs {
    ["--ranks 3 --set parallel.tp=2"] = "--ranks is 3", ["--ranks 3 --set parallel.tp=3"] = "tp = 3 does not divide",
    ["--ranks 100"] = "1 to 64", ["--ranks 2 --set lr.peak=1"] = "parallel.tp", ["--set parallel.tp=x"] = "not a number",
    ["--ranks 2 --step 999"] = "999", ["--ranks 3 --set parallel.pp=2"] = "--ranks is 3", ["--set parallel.pp=11"] = "too few",
} do
    for _, command in ipairs { ask, evaluate } do
        local code, out, err = mascon(command .. " " .. list)
        P.check(code == 2 and out == "" and err:find(says, 1, true), "%s %s: exit %s: %s%s", command, list, tostring(code), out, err)
    end
end

-- what all ranks find wrong is said once
local code, _, err = mascon(ask .. " --ranks 2", { "--prompt", ("x"):rep(200) })
P.check(code == 2 and select(2, err:gsub("mascon:", "")) == 1 and err:find "at most 127", "a long prompt: exit %s: %s", tostring(code), err)

-- a rank that dies ends it; a stop signal ends the text in order
local function started(list)
    local pid = P.spawn(words(list), { out = dir .. "/out", err = dir .. "/err" })
    local till = P.now() + 30
    while P.now() < till and #P.children(pid) < 2 do P.sleep(0.005) end
    return pid
end
local pid = started("generate " .. made .. " --no-stop --tokens 100 --ranks 2 --set parallel.tp=2")
P.kill(P.children(pid)[2] or pid, P.SIGKILL)
local t = P.now()
code = P.wait(pid, 20)
P.check(code == 76 and P.now() - t < 2, "a rank was killed: exit %s after %.1f s", tostring(code), P.now() - t)
P.check((P.read(dir .. "/err") or ""):find "rank 1 %(pid %d+ on .-%) was killed by signal 9", "a rank was killed: %s", P.read(dir .. "/err") or "")
P.check(not (P.read(made .. "/events.jsonl") or ""):find "incident", "generate wrote to the run")

-- norms of layers: every number of the line, on any layout
local function numbers(run)
    local r = {}
    for _, l in ipairs(lines(run, "norms.jsonl")) do
        for n in l:gsub('"segment":%d+,', ""):gmatch "[-%d.e+]+" do
            if tonumber(n) then r[#r + 1] = tonumber(n) end
        end
    end
    return r
end
local every = "--set precision=fp64 --set steps.steps=4 --set log.norms.every=2 --set batch.global=6 --set model.layers=3"
train("norms", "recipes/tiny_llama.lua", every)
local want = numbers "norms"
P.check(#want == 2 * (1 + 3 + 2 + 3 + 1), "norms of one rank: %d numbers", #want) -- step; gradients: stem, layers, head; activations
for run, layout in pairs {
    ["norms-tp2-sp-dp2"] = "--ranks 4 --set parallel.tp=2 --set parallel.sp=true --set parallel.shard_optimizer=true",
    ["norms-tp2-dp2"] = "--ranks 4 --set parallel.tp=2", ["norms-dp4"] = "--ranks 4", ["norms-pp3"] = "--ranks 3 --set parallel.pp=3",
    ["norms-pp2-tp2-sp-dp2"] = "--ranks 8 --set parallel.pp=2 --set parallel.tp=2 --set parallel.sp=true"
        .. " --set parallel.schedule=zb_h1 --set parallel.stages=auto",
} do
    train(run, "recipes/tiny_llama.lua", every .. " " .. layout)
    local got = numbers(run)
    P.check(#got == #want, "%s: %d numbers in norms.jsonl, one rank: %d", run, #got, #want)
    for i = 1, #want do near(got[i], want[i], 1e-11, ("%s: number %d"):format(run, i)) end
end

-- phases of data: other lengths, batches and mixtures, on replicas
local function source(name, bytes, from)
    local f = assert(io.open(dir .. "/" .. name, "w"))
    f:write(P.read(here .. "/recipes/text/moon.txt"):sub(from + 1, from + bytes))
    f:close()
end
source("long", 9000, 0)
source("mid", 4000, 9000)
source("short", 300, 13000)
local f = assert(io.open(dir .. "/phases.lua", "w"))
f:write [[
local m = require "mascon"
return m.recipe {
  name = "phases", seed = 5, precision = "fp64",
  model = m.models.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, seq = 16 },
  data = { tokenizer = "bytes", train = { { "long", weight = 0.5 }, { "mid", weight = 0.3 }, { "short", weight = 0.2 } },
           phases = { { from = "8 steps", seq = 64, batch = "128 tokens" }, { from = "13 steps", weights = { 1, 0, 3 } },
                      { from = "17 steps", seq = 32, batch = 6, weights = { 2, 2, 0 } } } },
  batch = { global = 8, micro = 2 }, steps = { steps = 24 }, lr = m.lr.constant { peak = 3e-3, warmup = "5 steps" },
  log = { norms = { every = 3 }, mixture = { every = 1 } },
  checkpoint = { every = "4 steps", keep = 8 },
}]]
f:close()
local one = train("phases", dir .. "/phases.lua")
P.check(#one == 24, "phases on one rank: %d steps", #one)
local mixed = numbers "phases"
local split = "--ranks 4 --set parallel.tp=2 --set parallel.sp=true --set parallel.shard_optimizer=true"
for run, layout in pairs { ["phases-dp2"] = "--ranks 2", ["phases-dp3"] = "--ranks 3", ["phases-tp2-sp-dp2"] = split,
    ["phases-pp2-dp2"] = "--ranks 4 --set parallel.pp=2 --set parallel.schedule=zb_h1" } do
    local got = train(run, dir .. "/phases.lua", layout)
    for i = 1, 24 do near(got[i], one[i], 1e-10, ("%s: loss of step %d"):format(run, i)) end
    local norms = numbers(run)
    P.check(#norms == #mixed, "%s: %d numbers in norms.jsonl", run, #norms)
    for i = 1, #mixed do near(norms[i], mixed[i], 1e-9, ("%s: number %d of norms.jsonl"):format(run, i)) end
    local x, y = lines("phases", "metrics.jsonl"), lines(run, "metrics.jsonl")
    for i = 1, 24 do
        local m = x[i]:match '"mixture":%b[]'
        P.check(m and m == (y[i] or ""):match '"mixture":%b[]', "%s: the mixture of step %d", run, i)
    end
end

-- bf16: a run split both ways is within its rounding of one rank's; stopped and resumed, bit for bit itself
local bf16 = "--set precision=bf16 --set lr.peak=1e-3 --set batch.global=6"
local alone = train("bf16", "recipes/tiny_llama.lua", bf16 .. " --set steps.steps=10")
local exact = train("bf16-fp32", "recipes/tiny_llama.lua", bf16 .. " --set precision=fp32 --set steps.steps=10")
local parts, hash = train("bf16-parts", "recipes/tiny_llama.lua", bf16 .. " --set steps.steps=10 " .. split)
local noise, apart = 0, 0
for i = 1, 10 do
    noise = math.max(noise, math.abs(alone[i] - exact[i]) / exact[i])
    apart = math.max(apart, near(parts[i], alone[i], 5e-4, ("bf16 on 4 ranks: loss of step %d"):format(i)))
end
P.check(noise > 0 and apart > 0, "bf16: no rounding is seen")
for run, layout in pairs { ["bf16-pp2"] = "--set parallel.pp=2", ["bf16-pp4"] = "--set parallel.pp=4 --set parallel.schedule=zb_h1",
    ["bf16-pp4-v"] = "--set parallel.pp=4 --set parallel.chunks=2 --set parallel.schedule=zb_v" } do
    local got = train(run, "recipes/tiny_llama.lua", bf16 .. " --set steps.steps=10 --ranks " .. layout:match "pp=(%d)" .. " " .. layout)
    for i = 1, 10 do P.check(got[i] == alone[i], "%s: loss of step %d: %s, one rank: %s", run, i, tostring(got[i]), tostring(alone[i])) end
end
-- a pipeline in bf16 with a table that its ends share: evaluations on the way, and goes on as another one, then as none
local tied = "--set precision=bf16 --set batch.global=6 --set model.tied=true --set data.holdout=0.1 --set eval.every=3"
local function evals(run)
    local r = {}
    for _, l in ipairs(lines(run, "events.jsonl")) do
        if l:find '"kind":"eval"' then r[#r + 1] = P.field(l, "step") .. ": " .. P.field(l, "loss") end
    end
    return table.concat(r, ", ")
end
local _, whole = train("tied", "recipes/tiny_llama.lua", tied .. " --set steps.steps=9")
local cut
for i, layout in ipairs { "--ranks 4 --set parallel.pp=4 --set parallel.stages=1,3,4,0",
    "--ranks 2 --set parallel.pp=2 --set parallel.chunks=2 --set parallel.schedule=zb_v --resume auto", "--resume auto" } do
    cut = select(2, train("tied-cut", "recipes/tiny_llama.lua", ("%s --set steps.steps=%d %s"):format(tied, 3 * i, layout)))
end
P.check(whole and cut == whole, "three pipelines after each other: weights %s, one rank: %s", tostring(cut), tostring(whole))
_, plain = mascon("generate " .. dir .. "/tied --tokens 30 --seed 7", prompt)
rc, drawn = mascon("generate " .. dir .. "/tied --tokens 30 --seed 7 --set parallel.pp=4", prompt)
P.check(rc == 0 and #plain > 9 and drawn == plain, "drawn text, tied, on four pipeline ranks: %s, one rank: %s", drawn, plain)
P.check(#evals "tied" > 20 and evals "tied-cut" == evals "tied", "evaluations: %s, one rank: %s", evals "tied-cut", evals "tied")
print(("bf16: 4 ranks within %.1e of one rank, which is within %.1e of fp32"):format(apart, noise))
train("bf16-twice", "recipes/tiny_llama.lua", bf16 .. " --set steps.steps=6 " .. split)
local rest, again = train("bf16-twice", "recipes/tiny_llama.lua", bf16 .. " --set steps.steps=10 --resume auto " .. split)
P.check(again == hash and rest[10] == parts[10], "bf16 on 4 ranks, resumed: weights %s, never stopped: %s", tostring(again), tostring(hash))

-- memory: each rank's plan, the fullest of them, and what a run took
local function number(text, key) return tonumber((text:gsub("%s", "")):match('"' .. key .. '":(%d+)')) end
for name, more in pairs { ["memory-whole"] = "", ["memory-sharded"] = "--set parallel.shard_optimizer=true",
    ["memory-pipe"] = "--set parallel.pp=2 --set parallel.schedule=zb_h1" } do
    local shape = "recipes/tiny_llama.lua --ranks 4 --set parallel.tp=2 --set model.vocab=261 --set precision=bf16 --json " .. more
    local most, each = 0, {}
    for k = 0, 3 do
        local rank = select(2, mascon(("plan %s --rank %d"):format(shape, k))):match '"rank":{.-}'
        each[k] = number(rank or "", "memory_bytes") or 0
        most = math.max(most, each[k])
    end
    local checked = number(select(2, mascon("check " .. shape)):match '"memory":{.-}' or "", "total")
    P.check(most > 0 and checked == most, "%s: check: %s, the fullest of 4 planned ranks: %s", name, tostring(checked), tostring(most))
    local code, _, err = mascon(("train %s --run %s/%s --quiet --set steps.steps=1"):format(shape, dir, name))
    P.check(code == 0, "%s: exit %s: %s", name, tostring(code), err) -- each rank asserts that it took what was planned
    local event = (P.read(dir .. "/" .. name .. "/events.jsonl") or ""):match '[^\n]*"kind":"memory"[^\n]*' or ""
    P.check(number(event, "planned") == each[0] and number(event, "allocated") == each[0], "%s: rank 0 planned %d: %s", name, each[0], event)
    if more:find "shard" then P.check(most < (number(select(2, mascon("check " .. shape:gsub(more, "", 1))):match '"memory":{.-}' or "", "total") or 0),
        "%s: sharding saves nothing", name) end
end

-- ranks that together need more than the machine has: refused before a run folder exists
local free = tonumber((P.read "/proc/meminfo"):match "MemAvailable:%s*(%d+)") * 1024
local function total(micro)
    local set = ("--set batch.micro=%d --set batch.global=%d"):format(micro, 2 * micro)
    return number(select(2, mascon("check recipes/tiny_llama.lua --ranks 2 --json " .. set)):match '"memory":{.-}', "total"), set
end
local small, more = total(8), total(16)
local micro = math.floor(0.6 * free / ((more - small) / 8))
local need, set = total(micro)
P.check(need < 0.8 * free and 2 * need > free, "memory of a rank at micro %d: %s of %d", micro, tostring(need), free)
local refused, _, why = mascon(("train recipes/tiny_llama.lua --ranks 2 --run %s/large %s"):format(dir, set))
P.check(refused == 3 and why:find("2 ranks need", 1, true), "two ranks of 0.6 of the memory: exit %s: %s", tostring(refused), why)
P.check(not P.read(dir .. "/large/run.lock") and not io.open(dir .. "/large"), "a run folder was made")

P.sh("rm -rf '" .. dir .. "'")
P.finish()
