-- train.lua PROGRAM BUILD/tests [--steps N] - runs of several ranks, as processes over the real transport, against runs of one:
-- the same numbers on any layout, the same bits whatever overlaps, a kill -9 and a resume that change nothing, no allocation in
-- the step loop, and a timeline that shows gradients on their way while the backward runs. Short: 10 steps; long: 50.
package.path = arg[0]:gsub("[^/]*$", "") .. "../fault/?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local steps = tonumber(a.steps or (a.long or os.getenv "MC_TEST_LONG") and 50 or 10)
local tests = a.tests or "build/release/tests"
local shim = tests .. "/libpreload_link.so"

local function argv(name, ranks, set)
    local v = P.train(a, dir .. "/" .. name, { "--ranks", tostring(ranks) })
    for _, s in ipairs(set) do
        v[#v + 1] = "--set"
        v[#v + 1] = s
    end
    return v
end
local function lines(name, file)
    local r = {}
    for l in (P.read(dir .. "/" .. name .. "/" .. file) or ""):gmatch "[^\n]+" do r[#r + 1] = l end
    return r
end
local function run(name, ranks, set, o)
    local n = { name = name }
    set[#set + 1] = "steps.steps=" .. (o and o.steps or steps)
    local rc, sig, last, err = P.run(argv(name, ranks, set), dir, { env = o and o.env, limit = 200 })
    P.check(rc == 0, "%s: exit %s: %s", name, tostring(rc or sig), err)
    n.hash = P.field(last or "", "weights_hash")
    for _, l in ipairs(lines(name, "metrics.jsonl")) do
        n[tonumber(P.field(l, "step"))] = tonumber(P.field(l, "loss"))
        n.exposed = (n.exposed or 0) + (tonumber(P.field(l, "exposed_ms") or "") or 0)
    end
    for _, l in ipairs(lines(name, "events.jsonl")) do
        if l:find '"kind":"memory_peak"' then
            P.check(P.field(l, "step_allocations") == "0", "%s: the step loop allocates: %s", name, l)
        end
    end
    return n
end
local function near(n, one, first, within)
    local worst = 0
    for i = 1, #one do
        local d = math.abs((n[i] or 0 / 0) - one[i]) / math.abs(one[i])
        P.check(d <= (i == 1 and first or within), "%s: step %d: loss %s, %s: %s", n.name, i, tostring(n[i]), one.name, one[i])
        worst = math.max(worst, d)
    end
    print(("%s against %s: %d steps, losses within %.1e"):format(n.name, one.name, #one, worst))
end
local split = { "parallel.shard_optimizer=true" }
local both = { "parallel.shard_optimizer=true", "parallel.overlap.grads=true", "parallel.overlap.params=true" }
local function with(list, ...)
    local r = { ... }
    for _, s in ipairs(list) do r[#r + 1] = s end
    return r
end

-- any layout
local one = run("one", 1, {})
P.check(#one == steps, "one rank: %d steps of %d", #one, steps)
near(run("tp2-dp4-sp", 8, { "parallel.tp=2", "parallel.sp=true" }), one, 1e-6, 1e-4)
local one64 = run("one-fp64", 1, { "precision=fp64" }, { steps = 4 })
near(run("tp2-dp2-sp-fp64", 4, with(both, "precision=fp64", "parallel.tp=2", "parallel.sp=true"), { steps = 4 }), one64, 1e-11, 1e-11)

-- switches change no bit
local plain = run("dp3", 3, {})
for name, set in pairs { ["dp3-sharded"] = with(split), ["dp3-sharded-overlap"] = with(both) } do
    local n = run(name, 3, set)
    P.check(n.hash == plain.hash, "%s: weights %s, dp3: %s", name, tostring(n.hash), tostring(plain.hash))
end

-- kill -9 of one rank, then resume: as if never killed
local name, set = "killed", with(both, 'checkpoint.every="3 steps"', "steps.steps=" .. steps)
local pid = P.spawn(argv(name, 3, set), { out = dir .. "/out", err = dir .. "/err" })
local victim
while not victim and not P.poll(pid) do
    if #lines(name, "metrics.jsonl") >= 5 then victim = P.children(pid)[2] end
    P.sleep(0.005)
end
P.check(victim and P.kill(victim, P.SIGKILL), "no rank to kill")
local rc = P.wait(pid, 20)
P.check(rc == 76, "a rank was killed: exit %s", tostring(rc))
local v = argv(name, 3, set)
v[#v + 1] = "--resume"
v[#v + 1] = "auto"
local last, err
rc, _, last, err = P.run(v, dir, { limit = 200 })
P.check(rc == 0 and P.field(last or "", "weights_hash") == plain.hash, "killed and resumed: exit %s, weights %s, not %s: %s",
    tostring(rc), tostring(P.field(last or "", "weights_hash")), tostring(plain.hash), err)

-- a gradient transfer begins before the backward ends; with a slow link, less is waited for
if P.read(shim) then
    local env = { LD_PRELOAD = shim, MC_LINK_MS = "15", MC_LINK_BYTES = "20000" }
    local off = run("slow", 2, with(split), { env = env, steps = 6 })
    local on = run("slow-overlap", 2, with(both), { env = env, steps = 6 })
    P.check(on.exposed < 0.8 * off.exposed, "exposed %.1f ms with overlap, %.1f without", on.exposed, off.exposed)
    P.check(on.hash == off.hash, "overlap on a slow link changes weights")
    print(("15 ms a message: %.0f ms waited for transfers in 6 steps, with overlap %.0f"):format(off.exposed, on.exposed))
    local line = lines("slow-overlap", "segments/001/timeline.jsonl")[3] or ""
    local ended = tonumber(line:match '"kind":"backward".-"end":([%d.e-]+)' or "")
    local begun = tonumber(line:match '"kind":"reduce".-"begin":([%d.e-]+)' or "")
    P.check(begun and ended and begun < ended, "no reduction began before the backward's end: %s", line:sub(1, 300))
else
    P.skip "no UCX: the slow link cannot be preloaded"
end
P.sh("rm -rf '" .. dir .. "'")
P.finish()
