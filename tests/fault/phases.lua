-- phases.lua PROGRAM [BUILD/tests] [options] - runs of two and three phases: what was read of each source, counted again by
-- the rule as the documentation states it; kill -9 before, at and after each change, and resume: bit for bit the run never
-- killed, its norms and its mixture too; a phase added on resume is the phase that was there from the start.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local here = io.popen("pwd"):read "*l"

-- Three sources, of which one is short: passes begin anew in the run.
local function source(name, bytes, from)
    local text = P.read(here .. "/recipes/text/moon.txt"):sub(from + 1, from + bytes)
    assert(#text == bytes)
    local f = assert(io.open(dir .. "/" .. name, "w"))
    f:write(text)
    f:close()
end
source("long", 9000, 0)
source("mid", 4000, 9000)
source("short", 300, 13000)
local WEIGHT, SEQ, GLOBAL = { 0.5, 0.3, 0.2 }, 16, 8

local function recipe(name, phases, more)
    local path = dir .. "/" .. name .. ".lua"
    local f = assert(io.open(path, "w"))
    f:write(([[
local m = require "mascon"
return m.recipe {
  name = "%s", seed = 5,
  model = m.models.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, seq = %d },
  data = { tokenizer = "bytes", train = { { "long", weight = 0.5 }, { "mid", weight = 0.3 }, { "short", weight = 0.2 } },
           %s },
  batch = { global = %d, micro = 2 }, steps = { steps = 24 }, lr = m.lr.constant { peak = 3e-3, warmup = "5 steps" },
  log = { norms = { every = 3 }, mixture = { every = 1 } },
  checkpoint = { every = "4 steps", keep = 8 }%s
}]]):format(name, SEQ, phases, GLOBAL, more or ""))
    f:close()
    return path
end

-- The rule, written once more. A phase: { at step, seq, batch in samples, weights }, each but the first step optional.
local function recount(phases, steps)
    local seq, global, w, samples, tokens, base = SEQ, GLOBAL, WEIGHT, { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }
    local at = {}
    for step = 1, steps do
        for _, p in ipairs(phases) do
            if p[1] == step - 1 then
                seq, global = p.seq or seq, p.batch or global
                if p.weights then w, base = p.weights, { samples[1], samples[2], samples[3] } end
            end
        end
        local sum = w[1] + w[2] + w[3]
        for _ = 1, global do -- the source that is not ahead and whose next sample is due first
            local drawn = samples[1] + samples[2] + samples[3] - base[1] - base[2] - base[3]
            local best, due
            for s = 1, 3 do
                local share, given = w[s] / sum, samples[s] - base[s]
                if given < share * (drawn + 1) and (not due or (given + 1) / share < due) then best, due = s, (given + 1) / share end
            end
            samples[best], tokens[best] = samples[best] + 1, tokens[best] + seq
        end
        at[step] = { samples = { unpack(samples) }, tokens = { unpack(tokens) } }
    end
    return at
end

local function mixture(line)
    local m = {}
    for s, t in (line:match '"mixture":(%b[])' or ""):gmatch '"samples":(%d+),"tokens":(%d+)' do m[#m + 1] = { tonumber(s), tonumber(t) } end
    return m
end

local function counted(name, run, phases, steps)
    local by = P.metrics(run)
    local want = recount(phases, steps)
    for step = 1, steps do
        local got, all = mixture(by[step]), 0
        for s = 1, 3 do
            local samples, tokens = want[step].samples[s], want[step].tokens[s]
            all = all + tokens
            if not P.check(got[s] and got[s][1] == samples and got[s][2] == tokens,
                "%s: step %d, source %d: %s samples and %s tokens, counted again %d and %d", name, step, s, tostring(got[s] and got[s][1]),
                tostring(got[s] and got[s][2]), samples, tokens) then return end
        end
        P.check(tonumber(P.field(by[step], "tokens")) == all, "%s: step %d: tokens is %s, by source %d", name, step, P.field(by[step], "tokens"), all)
    end
    local p = io.popen(("'%s' ckpt show '%s'"):format(a.program, run))
    local shown, s = p:read "*a", 0
    p:close()
    for samples, tokens in shown:gmatch "read of [^:]*: (%d+) samples, (%d+) tokens" do
        s = s + 1
        P.check(tonumber(samples) == want[steps].samples[s] and tonumber(tokens) == want[steps].tokens[s], "%s: ckpt show, source %d", name, s)
    end
    P.check(s == 3, "%s: ckpt show names %d sources", name, s)
end

local function norms(run)
    local by = {}
    for l in (P.read(run .. "/norms.jsonl") or ""):gmatch "[^\n]+" do by[tonumber(P.field(l, "step"))] = l:gsub('"segment":%d+,', "") end
    return by
end

local function same(name, ref, run)
    local x, _, steps = P.metrics(ref)
    local y, nx, ny = P.metrics(run), norms(ref), norms(run)
    for s = 1, steps do
        local lx = x[s]:gsub('"step_ms":.-"mfu":[^,]*,"segment":%d+', "")
        local ly = (y[s] or ""):gsub('"step_ms":.-"mfu":[^,]*,"segment":%d+', "")
        if not P.check(lx == ly, "%s: step %d: %s, never killed: %s", name, s, ly, lx) then return end
        P.check(nx[s] == ny[s] and (nx[s] ~= nil) == (s % 3 == 0), "%s: norms of step %d: %s, never killed: %s", name, s, tostring(ny[s]), tostring(nx[s]))
    end
    P.check(steps == 24, "%s: %d steps", name, steps)
end

local function train(path, run, more)
    local argv = { a.program, "train", path, "--run", run, "--json", "--quiet" }
    for _, v in ipairs(more or {}) do argv[#argv + 1] = v end
    local rc, sig, last, err = P.run(argv, dir, { env = { OMP_NUM_THREADS = "1" } })
    return rc or sig, last, err
end

-- Kills the rank when the metrics have the line of step k.
local function kill_after(path, run, k, more)
    local argv = { a.program, "train", path, "--run", run, "--json", "--quiet", "--resume", "auto" }
    for _, v in ipairs(more or {}) do argv[#argv + 1] = v end
    local pid = P.spawn(argv, { out = dir .. "/out", err = dir .. "/err", env = { OMP_NUM_THREADS = "1" } })
    local till = P.now() + 60
    while P.now() < till and not select(1, P.metrics(run))[k] and not P.poll(pid) do P.sleep(0.0005) end
    local rank = P.children(pid)[1]
    if rank then P.kill(rank, P.SIGKILL) end
    return P.wait(pid, 60)
end

local TWO = { { 10, seq = 64 } }
local THREE = { { 8, seq = 64, batch = 2 }, { 13, weights = { 1, 0, 3 } }, { 17, seq = 32, batch = 6, weights = { 2, 2, 0 } } }
local cases = {
    { "two", 'phases = { { from = "10 steps", seq = 64 } }', TWO, { 9, 10, 11 } },
    { "three", [[phases = { { from = "8 steps", seq = 64, batch = "128 tokens" }, { from = "13 steps", weights = { 1, 0, 3 } },
        { from = "17 steps", seq = 32, batch = 6, weights = { 2, 2, 0 } } }]], THREE, { 7, 8, 9, 13, 16, 18 } },
    -- a change in the middle of a group, within one length and away from steps of checkpoints
    { "by tokens", 'phases = { { from = "1000 tokens", seq = 64, batch = 4 }, { from = "2500 tokens", seq = 16 } }',
        { { 8, seq = 64, batch = 4 }, { 14, seq = 16 } }, { 8, 13, 15 } },
}
local killed = 0
for _, c in ipairs(cases) do
    local name, path = c[1], recipe(c[1]:gsub(" ", "_"), c[2])
    local ref, run = dir .. "/ref", dir .. "/killed"
    P.sh(("rm -rf '%s'"):format(ref))
    local rc, last, err = train(path, ref)
    if P.check(rc == 0, "%s: ended with %s: %s", name, tostring(rc), err) then
        counted(name, ref, c[3], 24)
        local hash = P.field(last, "weights_hash")
        for _, k in ipairs(c[4]) do
            P.sh(("rm -rf '%s'"):format(run))
            killed = killed + (kill_after(path, run, k) == 76 and 1 or 0)
            rc, last, err = train(path, run, { "--resume", "auto" })
            P.check(rc == 0, "%s, killed after step %d: %s: %s", name, k, tostring(rc), err)
            same(("%s, killed after step %d"):format(name, k), ref, run)
            P.check(P.field(last, "weights_hash") == hash, "%s, killed after step %d: other weights", name, k)
            counted(("%s, killed after step %d"):format(name, k), run, c[3], 24)
        end
    end
end

P.check(killed >= 6, "only %d of 12 runs were killed in time", killed)
print(killed .. " runs killed")

-- A phase added when 6 steps were done, in a run that left room for it: the run that had it from the start.
local room = "block = 64, "
local with, without = recipe("added", room .. cases[1][2]), recipe("added2", room .. "mask_eod = false")
local ref, run = dir .. "/ref2", dir .. "/added"
local rc, last, err = train(with, ref)
P.check(rc == 0, "added: the reference ended with %s: %s", tostring(rc), err)
local hash = P.field(last, "weights_hash")
rc, last, err = train(without, run, { "--set", "steps.steps=6" })
P.check(rc == 0, "added: the first part ended with %s: %s", tostring(rc), err)
rc, last, err = train(with, run, { "--resume", "auto" })
P.check(rc == 0, "added: the second part ended with %s: %s", tostring(rc), err)
P.check(P.field(last, "weights_hash") == hash, "added: other weights than the run that had the phase from the start")
same("added", ref, run)
P.check((P.read(run .. "/events.jsonl") or ""):find '"kind":"changed","path":"data.phases"', "added: the change of data.phases is not in events.jsonl")
P.check((P.read(run .. "/events.jsonl") or ""):find '"kind":"phase","step":11,"phase":1,"seq":64', "added: no event tells the phase")

-- ... and in one that did not: until then it is the run without, then a new pass over each source; no error.
with, without, run = recipe("longer", cases[1][2]), recipe("longer2", "mask_eod = false"), dir .. "/longer"
train(without, run, { "--set", "steps.steps=6" })
rc, last, err = train(with, run, { "--resume", "auto" })
P.check(rc == 0, "longer: ended with %s: %s", tostring(rc), err)
counted("longer", run, TWO, 24)
train(without, dir .. "/plain", { "--set", "steps.steps=10" })
local plain, longer = P.metrics(dir .. "/plain"), P.metrics(run)
for s = 1, 10 do
    P.check(P.field(plain[s], "loss") == P.field(longer[s], "loss"), "longer: step %d is not that of the run without the phase", s)
end
P.sh("rm -rf '" .. dir .. "'")
P.finish()
