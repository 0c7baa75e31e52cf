-- pipeline.lua PROGRAM BUILD/tests - training through a pipeline, as processes over the real transport, against the run without
-- one. In fp32 neither pp nor the schedule changes a bit: of losses, norms, evaluations, weights and checkpoints, tied or not, on
-- any layout beside it, after a kill and on another pipeline than before. What fails, fails in time; what cannot be proven does
-- not start.
package.path = arg[0]:gsub("[^/]*$", "") .. "../fault/?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local long = a.long
local TIED, UNTIED, ODD = "tests/dist/recipes/pipes.lua", "recipes/tiny_llama.lua", "tests/dist/recipes/odd_stages.lua"
local STEPS = { [TIED] = 6, [UNTIED] = 3, [ODD] = 3 }

local function read(name, file) return P.read(dir .. "/" .. name .. "/" .. file) or "" end
local function count(name, file)
    local _, n = read(name, file):gsub("\n", "\n")
    return n
end

-- Keys of the table `parallel` are said without it: { "pp=4", "batch.micro=1" } -> words of the command line.
local PARALLEL = {}
for k in ("tp pp dp sp chunks schedule stages shard_optimizer overlap recompute"):gmatch "%S+" do PARALLEL[k] = true end
local function argv(recipe, name, set, more)
    local ranks, v = 1, {}
    for _, s in ipairs(set) do
        local key, n = s:match "^(%w+)=(%d+)$"
        if key == "pp" or key == "dp" or key == "tp" then ranks = ranks * n end
        v[#v + 1] = "--set"
        v[#v + 1] = (PARALLEL[s:match "^[%w_]+"] and "parallel." or "") .. s
    end
    local w = P.train({ program = a.program, recipe = recipe, set = a.set }, dir .. "/" .. name,
        { "--quiet", "--ranks", tostring(ranks), "--set", "steps.steps=" .. STEPS[recipe] })
    for _, x in ipairs(v) do w[#w + 1] = x end
    for _, x in ipairs(more or {}) do w[#w + 1] = x end
    return w
end

-- All that a run says of its numbers, without times and segments: metrics by step, norms, evaluations, the hash at the end.
local function numbers(name, last)
    local t = { "weights " .. tostring(P.field(last, "weights_hash")) }
    local by, _, top = P.metrics(dir .. "/" .. name)
    for s = 1, top do
        for _, k in ipairs { "step", "loss", "grad_norm", "lr", "tokens", "samples", "skipped" } do
            t[#t + 1] = k .. " " .. tostring(P.field(by[s] or "", k))
        end
    end
    local norms = {}
    for l in read(name, "norms.jsonl"):gmatch "[^\n]+" do norms[tonumber(P.field(l, "step"))] = l:gsub('"segment":%d+,', "") end
    for s = 1, top do t[#t + 1] = norms[s] end
    local evals = {}
    for l in read(name, "events.jsonl"):gmatch '[^\n]*"kind":"eval"[^\n]*' do
        evals[tonumber(P.field(l, "step"))] = P.field(l, "loss") .. " of " .. P.field(l, "tokens")
    end
    for s = 1, top do t[#t + 1] = evals[s] and "eval " .. evals[s] end
    return t
end
local function differ(x, y)
    for i = 1, math.max(#x, #y) do
        if x[i] ~= y[i] then return ("%s, not %s"):format(tostring(x[i]), tostring(y[i])) end
    end
end

local runs = 0
local function run(recipe, name, set, more)
    local rc, sig, last, err = P.run(argv(recipe, name, set, more), dir, { limit = 120 })
    P.check(rc == 0, "%s (%s): exit %s: %s", name, table.concat(set, " "), tostring(rc or sig), err)
    P.check(read(name, "events.jsonl"):match '.*"kind":"memory_peak"[^\n]*"step_allocations":0', "%s: the step loop allocates", name)
    runs = runs + 1
    return numbers(name, last or "")
end

-- ---- every schedule, on every layout beside it ----

local SCHEDULES = { { "one_f_one_b" }, { "gpipe" }, { "zb_h1" }, { "gpipe", 2 }, { "interleaved", 2 }, { "zb_v", 2 } }
local function with(list, ...)
    local r = { ... }
    for _, s in ipairs(list) do r[#r + 1] = s end
    return r
end
local function same(recipe, what, set, ref)
    local d = differ(run(recipe, what, set), ref)
    P.check(not d, "%s (%s): %s", what, table.concat(set, " "), tostring(d))
end
local one = {}
for key, recipe in pairs { tied = TIED, untied = UNTIED } do
    one[key] = run(recipe, key, {})
    P.check(#one[key] > 7 * STEPS[recipe], "%s: only %d numbers to compare", key, #one[key])
    for _, pp in ipairs { 2, 4 } do
        for _, s in ipairs(SCHEDULES) do
            if long or pp == 4 or key == "tied" then
                same(recipe, ("%s-pp%d-%s-%d"):format(key, pp, s[1], s[2] or 1),
                    { "pp=" .. pp, "schedule=" .. s[1], "chunks=" .. (s[2] or 1) }, one[key])
            end
        end
    end
end
for beside, set in pairs {
    dp2 = { "dp=2" },
    ["dp2-sharded"] = { "dp=2", "shard_optimizer=true", "overlap.grads=true", "overlap.params=true" },
    ["tp2-sp"] = { "tp=2", "sp=true" },
    ["short-last-microbatch"] = { "dp=2", "batch.global=14" },
    ["one-sample-less"] = { "dp=2", "batch.global=9", "batch.micro=1" },
    ["a-replica-without-samples"] = { "dp=2", "batch.global=1", "batch.micro=1" },
    recompute = { "recompute=block" },
    bf16 = { "precision=bf16" },
    fp64 = { "precision=fp64", "batch.global=14" },
} do
    local ref = run(TIED, beside, set)
    same(TIED, beside .. "-pp2", with(set, "pp=2", "schedule=zb_h1"), ref)
    if long then same(TIED, beside .. "-pp2-v", with(set, "pp=2", "chunks=2", "schedule=zb_v"), ref) end
end
same(TIED, "stages-listed", { "pp=4", "stages={3,2,2,1}" }, one.tied)
same(TIED, "stages-by-cost", { "pp=3", "stages=auto" }, one.tied)
same(TIED, "stem-and-head-alone", { "pp=3", "stages={0,8,0}", "schedule=zb_h1" }, one.tied)
same(TIED, "a-layer-a-rank", { "pp=8" }, one.tied)
-- More buckets than a group keeps calls open: some transfers wait for others.
local many = { "dp=2", "model.layers=300", "model.hidden=8", "model.heads=1", "model.ffn=8", "steps.steps=3" }
local few = with(many, "shard_optimizer=true", "overlap.grads=true", "overlap.params=true")
local all = run(TIED, "many-layers", many)
same(TIED, "many-layers-overlap", with(many, "overlap.grads=true"), all)
same(TIED, "many-layers-sharded", few, all)
same(TIED, "many-layers-idle-replica", with(few, "batch.global=1", "batch.micro=1"), run(TIED, "one-sample", with(many, "batch.global=1", "batch.micro=1")))
same(TIED, "many-layers-pp2", with(few, "pp=2", "stages={290,10}", "schedule=zb_h1"), all)
local odd = run(ODD, "odd", {})
for i, set in ipairs { { "pp=4" }, { "pp=4", "schedule=zb_h1" }, { "pp=2", "chunks=2", "schedule=zb_v" }, { "pp=2", "chunks=2", "schedule=gpipe" } } do
    same(ODD, "odd-" .. i, set, odd)
end
print(("%d runs with all numbers as without a pipeline"):format(runs))

-- ---- the checkpoint is the same, and goes on anywhere ----

local function mascon(words, limit)
    local w = { a.program }
    for _, x in ipairs(words) do w[#w + 1] = x end
    local rc, sig, last, err = P.run(w, dir, { limit = limit or 60 })
    return rc, last or "", err, sig
end
local function ckpt(name, step) return ("%s/%s/ckpt/step-%09d.e1"):format(dir, name, step) end
local rc, last, err = mascon { "ckpt", "diff", ckpt("tied", 6), ckpt("tied-pp4-zb_v-2", 6) }
P.check(rc == 0, "ckpt diff of pp 1 and pp 4: exit %s: %s%s", tostring(rc), last, err)

-- Killed between two checkpoints, then to the end on each of these.
local function kill_and_resume(name, set, onto)
    local pid = P.spawn(argv(TIED, name, set), { out = dir .. "/out", err = dir .. "/err" })
    local victim, till = nil, P.now() + 60
    while not victim and not P.poll(pid) and P.now() < till do
        if count(name, "metrics.jsonl") >= 3 then victim = P.children(pid)[2] end
        P.sleep(0.002)
    end
    local t = P.now()
    local killed = victim and P.kill(victim, P.SIGKILL)
    local rc = P.wait(pid, 20)
    if not P.check(killed and rc == 76, "%s: killed: exit %s: %s", name, tostring(rc), P.read(dir .. "/err") or "") then return end
    P.check(P.now() - t <= 2, "%s: a killed rank was noticed after %.2f s", name, P.now() - t)
    for i, o in ipairs(onto) do
        local copy = name .. "-" .. i
        P.sh(("cp -a '%s/%s' '%s/%s'"):format(dir, name, dir, copy))
        local d = differ(run(TIED, copy, o, { "--resume", "auto" }), one.tied)
        P.check(not d, "%s, resumed with %s: %s", name, table.concat(o, " "), tostring(d))
        local _, changes = read(copy, "events.jsonl"):gsub('"kind":"changed"', "")
        P.check((changes > 0) == (i > 1), "%s, resumed with %s: %d changes told", name, table.concat(o, " "), changes)
    end
end
local zb_v = { "pp=4", "chunks=2", "schedule=zb_v" }
kill_and_resume("killed", zb_v, { zb_v, { "pp=2" }, {}, { "pp=2", "stages={5,3}", "schedule=zb_h1" } })
kill_and_resume("killed-sharded", { "pp=2", "dp=1", "schedule=zb_h1" }, { { "pp=2", "dp=1", "schedule=zb_h1" }, { "pp=4", "schedule=gpipe" } })

-- A stop signal: the step in hand is done, a checkpoint of it is there, and the rest gives the same.
local pid = P.spawn(argv(TIED, "stopped", zb_v), { out = dir .. "/out", err = dir .. "/err" })
while count("stopped", "metrics.jsonl") < 1 and not P.poll(pid) do P.sleep(0.002) end
P.kill(pid, P.SIGTERM)
rc = P.wait(pid, 20)
P.check(rc == 75, "stopped: exit %s: %s", tostring(rc), P.read(dir .. "/err") or "")
local d = differ(run(TIED, "stopped", zb_v, { "--resume", "auto" }), one.tied)
P.check(not d, "stopped and resumed: %s", tostring(d))

-- To one rank that is not the first, nearly always in an evaluation: all stop, and say why.
pid = P.spawn(argv(TIED, "stopped-in-eval", { "pp=2", "data.holdout=0.9", "eval.samples=0" },
    { "--set", "eval.every=1 steps", "--set", "steps.steps=5000" }), { out = dir .. "/out", err = dir .. "/err" })
while count("stopped-in-eval", "metrics.jsonl") < 2 and not P.poll(pid) do P.sleep(0.002) end
P.kill(P.children(pid)[2], P.SIGTERM)
rc = P.wait(pid, 20)
local why = read("stopped-in-eval", "events.jsonl"):match '"kind":"stop"[^\n]*"why":"([^"]*)"'
P.check(rc == 75 and why == "signal 15 (SIGTERM)", "one rank stopped: exit %s, %s: %s", tostring(rc), tostring(why), P.read(dir .. "/err") or "")

-- A rank that reads another cut than the others, as sound by itself, would train other layers: it is refused.
local shim = a.tests .. "/libpreload_rank.so"
if P.read(shim) then
    local pid = P.spawn(argv(TIED, "other-cut", { "pp=2" }), { out = dir .. "/out", err = dir .. "/err",
        env = { LD_PRELOAD = shim, MC_RANK = "1", MC_RANK_AT = "start", MC_RANK_SIGNAL = "19" } })
    local rank, till = nil, P.now() + 60
    repeat
        rank = P.children(pid)[2]
        P.sleep(0.002)
    until rank and (P.read("/proc/" .. rank .. "/stat") or ""):match "%) (%a)" == "T" or P.poll(pid) or P.now() > till
    local cut = read("other-cut", "segments/001/schedule.txt")
    local f = assert(io.open(dir .. "/other-cut/segments/001/schedule.txt", "w"))
    f:write((cut:gsub("cut 0 4 8", "cut 0 3 8")))
    f:close()
    P.kill(rank, 18)
    local rc = P.wait(pid, 60)
    local err = P.read(dir .. "/err") or ""
    P.check(cut:find "cut 0 4 8" and rc == 3 and err:find "schedule.txt was changed", "a rank with another cut: exit %s: %s", tostring(rc), err)
else
    P.skip "no UCX, no shim: no rank with another cut"
end

-- ---- eval and generate ----

local function said(command, more)
    local w = { command, dir .. "/tied", "--json" }
    for _, x in ipairs(more) do w[#w + 1] = x end
    local rc, last, err = mascon(w)
    P.check(rc == 0, "%s: exit %s: %s", table.concat(w, " "), tostring(rc), err)
    return (last:gsub('"checkpoint":"[^"]*"', ""))
end
for _, c in ipairs { { "eval" }, { "generate", "--prompt", "The moon", "--tokens", "20", "--temperature", "0.8", "--seed", "3" } } do
    local words = { unpack(c, 2) }
    local ref = said(c[1], words)
    for _, pp in ipairs { 2, 3, 4 } do
        local got = said(c[1], with(words, "--ranks", tostring(pp), "--set", "parallel.pp=" .. pp))
        P.check(got == ref, "%s with pp %d: %s, not %s", c[1], pp, got, ref)
    end
end

-- ---- a step as it ran, beside what was to be expected. How near they are depends on what else the machine does: tests/bench/pipeline ----

local pads = 'parallel.pad={F="5 ms",I="5 ms",W="5 ms"}'
for name, chunks in pairs { one_f_one_b = 1, zb_h1 = 1, interleaved = 2 } do
    run(TIED, "trace-" .. name, { "pp=4", "schedule=" .. name, "chunks=" .. chunks }, { "--set", pads, "--trace", "2" })
    local rc, _, err = mascon { "trace", dir .. "/trace-" .. name, "--out", dir .. "/trace.json" }
    local text = P.read(dir .. "/trace.json") or ""
    local measured, predicted = text:match '"bubble":{"measured":([%d.e-]+),"predicted":([%d.e-]+)'
    measured, predicted = tonumber(measured), tonumber(predicted)
    P.check(rc == 0 and err:find "bubble: measured" and measured and predicted, "trace of %s: exit %s: %s", name, tostring(rc), err)
    P.check(measured and measured > 0 and measured < 1 and predicted > 0 and predicted < 1, "%s: bubble %s, predicted %s", name,
        tostring(measured), tostring(predicted))
    for _, op in ipairs { "F7.0", "F0.0", chunks == 2 and "B7.1" or "W7.0" } do
        local _, n = text:gsub('"name":"' .. op .. '"', "")
        if name ~= "one_f_one_b" or op:find "F" then P.check(n == 8, "%s: %d events %s, not 4 measured and 4 predicted", name, n, op) end
    end
    local share = tonumber(P.field(P.last_line(dir .. "/trace-" .. name .. "/metrics.jsonl"), "bubble"))
    P.check(share and share > 0 and share < 1, "%s: bubble %s in metrics.jsonl", name, tostring(share))
end

-- ---- a schedule of the user's: run when it is proven, refused before anything starts when not ----

local function write(name, text)
    local f = assert(io.open(dir .. "/" .. name, "w"))
    f:write(text)
    f:close()
    return dir .. "/" .. name
end
-- Stages the other way round on the ranks, and all forwards first, from the last microbatch down.
local good = write("backwards.lua", [[
return function(p)
    local s = { place = {} }
    for r = 1, p.ranks do
        s[r], s.place[r] = {}, { p.ranks - r }
        for mb = p.microbatches - 1, 0, -1 do s[r][#s[r] + 1] = { op = "F", mb = mb } end
        for mb = 0, p.microbatches - 1 do s[r][#s[r] + 1] = { op = "I", mb = mb } end
        for mb = 0, p.microbatches - 1 do s[r][#s[r] + 1] = { op = "W", mb = mb } end
    end
    return s
end
]])
same(TIED, "backwards", { "pp=2", "schedule=" .. good }, one.tied)
-- The first rank wants each microbatch back before it sends the next; the others want all of them first.
local bad = write("locks.lua", [[
return function(p)
    local s = {}
    for r = 1, p.ranks do
        s[r] = {}
        for mb = 0, p.microbatches - 1 do
            s[r][#s[r] + 1] = { op = "F", mb = mb }
            if r == 1 then s[r][#s[r] + 1] = { op = "B", mb = mb } end
        end
        for mb = 0, p.microbatches - 1 do
            if r > 1 then s[r][#s[r] + 1] = { op = "B", mb = mb } end
        end
    end
    return s
end
]])
local rc, sig, last, err = P.run(argv(TIED, "locks", { "pp=2", "schedule=" .. bad }), dir, { limit = 60 })
P.check(rc == 2 and err:find("locks.lua", 1, true) and err:find "waits for", "a schedule that locks: exit %s: %s", tostring(rc or sig), err)
P.check(not P.read(dir .. "/locks/events.jsonl"), "a schedule that locks has begun a run")

P.sh("rm -rf '" .. dir .. "'")
P.finish()
