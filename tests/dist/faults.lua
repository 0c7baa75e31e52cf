-- faults.lua PROGRAM BUILD/tests - what can happen to one rank of four, to their agent, to the disk and to the command line:
-- the run ends in time with the right code and one message that names who and why, an incident keeps everybody's flight
-- recorder, no process stays, and --resume auto goes on to the weights of the run that nothing happened to.
package.path = arg[0]:gsub("[^/]*$", "") .. "../fault/?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local tests = a.tests or "build/release/tests"
local io_shim, rank_shim = tests .. "/libpreload_io.so", tests .. "/libpreload_rank.so"
local SIGSEGV, SIGSTOP = 11, 19
local STEPS, EVERY = 9, 3

local function argv(name, more)
    local v = P.train(a, dir .. "/" .. name, { "--ranks", "4", "--quiet" })
    for _, s in ipairs { "steps.steps=" .. STEPS, ('checkpoint.every="%d steps"'):format(EVERY), "parallel.tp=2",
        "parallel.shard_optimizer=true", "parallel.overlap.grads=true", "parallel.overlap.params=true" } do
        v[#v + 1] = "--set"
        v[#v + 1] = s
    end
    for _, s in ipairs(more or {}) do v[#v + 1] = s end
    return v
end
local function file(name, f) return P.read(dir .. "/" .. name .. "/" .. f) or "" end
local function steps_of(name)
    local _, n = file(name, "metrics.jsonl"):gsub("\n", "\n")
    return n
end
-- Processes that have this run's folder in their command line: ranks, and the agent.
local function living(name)
    local p = io.popen(("pgrep -f '[-r][-a][rn][uk][n ]* *%s/%s( |$)'"):format(dir, name))
    local all = p:read "*a"
    p:close()
    return all:gsub("%s+$", ""):gsub("\n", " ")
end
local function wait_for(pid, what, test)
    local till = P.now() + 60
    while not test() do
        if P.poll(pid) then return P.check(false, "%s: it ended before: %s", what, P.read(dir .. "/err") or "") end
        if P.now() > till then return P.check(false, "%s: not within 60 s", what) end
        P.sleep(0.005)
    end
    return true
end
local function start(name, more, env) return P.spawn(argv(name, more), { out = dir .. "/out", err = dir .. "/err", env = env }) end
local function rank_of(pid, k)
    for _, c in ipairs(P.children(pid)) do
        if (P.read("/proc/" .. c .. "/cmdline") or ""):match "^[^%z]*%zrank%z[^%z]*%z(%d+)%z" == tostring(k) then return c end
    end
end

-- What is left of a run that failed: one message, one incident, nobody.
-- e: code, class, rank, says, limit (seconds from `since`), step
local function failed(what, name, pid, since, e)
    local rc, sig = P.wait(pid, e.limit + 30)
    local took, err = P.now() - since, P.read(dir .. "/err") or ""
    P.check(rc == e.code, "%s: exit %s, not %d: %s", what, tostring(rc or sig), e.code, err)
    P.check(took <= e.limit, "%s: it took %.2f s, not %g", what, took, e.limit)
    local left = living(name)
    P.check(left == "", "%s: processes stay: %s", what, left)
    local message, n = err:gsub("mascon: ", "")
    P.check(n == 1 and err:sub(1, 8) == "mascon: " and not err:find "[Bb]acktrace" and not err:find "Caught signal", "%s: not one message: %s", what, err)
    for _, s in ipairs(e.says) do P.check(message:find(s, 1, true), "%s: the message lacks '%s': %s", what, s, message) end
    P.check(P.field(P.last_line(dir .. "/out"), "exit") == tostring(e.code), "%s: last line %s", what, P.last_line(dir .. "/out"))
    local incident = file(name, "incidents/001.json")
    P.check(incident:match '"class":%s*"([%w_]+)"' == e.class, "%s: class %s, not %s", what,
        tostring(incident:match '"class":%s*"([%w_]+)"'), e.class)
    P.check(tonumber(incident:match '"rank":%s*(%-?%d+)') == e.rank, "%s: rank %s, not %d", what,
        tostring(incident:match '"rank":%s*(%-?%d+)'), e.rank)
    P.check(incident:find '"pid":%s*%d' and incident:find '"node":%s*"[^"]+"' and incident:find '"step":%s*%-?%d',
        "%s: the incident lacks pid, node or step", what)
    local _, flights = incident:gsub('"flight"', "")
    P.check(flights == (e.flights or 4), "%s: %d flight recorders", what, flights)
    P.check(P.read(dir .. "/" .. name .. "/incidents/002.json") == nil, "%s: more than one incident", what)
    print(("%-44s exit %d after %.2f s: %s"):format(what, e.code, took, (message:gsub("%s+$", ""):sub(1, 200))))
end
local reference
local function resume(what, name, by)
    local rc, sig, last, err = P.run(argv(name, { "--resume", "auto" }), dir, { limit = 120 })
    P.check(rc == 0 and P.field(last, "weights_hash") == reference, "%s, resumed: exit %s, weights %s, not %s: %s", what,
        tostring(rc or sig), tostring(P.field(last, "weights_hash")), tostring(reference), err)
    if by then
        local begun = file(name, "events.jsonl"):match('.*"kind":"resume[^\n]*"step":(%d+)')
        P.check(not begun or tonumber(begun) >= by, "%s: it resumed from step %s, not %d", what, tostring(begun), by)
    end
end

local rc, sig, last, err = P.run(argv "one", dir, { limit = 120 })
P.check(rc == 0, "the reference run: exit %s: %s", tostring(rc or sig), err)
reference = P.field(last or "", "weights_hash")
P.check(living "one" == "", "the reference run left processes: %s", living "one")

-- ---- one rank, in a step ----
for _, c in ipairs {
    { "kill -9 in a step", P.SIGKILL, {}, { code = 76, class = "rank_death", rank = 2, limit = 2,
        says = { "rank 2 (pid ", "was killed by signal 9", "in phase step of step " } } },
    { "SIGSEGV in a step", SIGSEGV, {}, { code = 1, class = "crash", rank = 2, limit = 2,
        says = { "rank 2 (pid ", "was killed by signal 11", "in phase step of step " } } },
    { "SIGSTOP in a step", SIGSTOP, { "--stall", "3" }, { code = 76, class = "laggard", rank = 2, limit = 3 + 2,
        says = { "rank 2 (pid ", "came to a standstill", "after 3.0 s" } } },
} do
    local name = c[1]:gsub("%W+", "-")
    local pid = start(name, c[3])
    if wait_for(pid, c[1], function() return steps_of(name) >= EVERY + 1 end) then
        local victim, t = rank_of(pid, 2), P.now()
        P.check(victim and P.kill(victim, c[2]), "%s: no rank 2", c[1])
        failed(c[1], name, pid, t, c[4])
        resume(c[1], name, EVERY)
    else
        P.wait(pid, 0)
    end
end

-- ---- one rank, at a place that only a shim can hit ----
for _, c in ipairs {
    { "kill -9 in start-up", "start", P.SIGKILL, {}, { code = 76, class = "rank_death", rank = 2, limit = 20,
        says = { "rank 2 (pid ", "was killed by signal 9", "in phase start" } } },
    { "kill -9 when its transport opens", "net", P.SIGKILL, {}, { code = 76, class = "rank_death", rank = 2, limit = 20,
        says = { "rank 2 (pid ", "was killed by signal 9", "in phase start" } } },
    { "it never comes", "start", SIGSTOP, { "--wait", "4" }, { code = 76, class = "rendezvous", rank = 2, limit = 4 + 3,
        says = { "rank 2 (pid ", "1 of 4 ranks did not say hello within 4 s" } } },
    { "it never opens its transport", "net", SIGSTOP, { "--wait", "4" }, { code = 76, class = "rendezvous", rank = 2,
        limit = 4 + 4, says = { "rank 2 (pid ", "1 of 4 ranks did not take part in" } } },
    { "kill -9 in shutdown", "exit", P.SIGKILL, {}, { code = 76, class = "rank_death", rank = 2, limit = 60,
        says = { "rank 2 (pid ", "was killed by signal 9", "in phase exit of step " .. STEPS } } },
    { "it hangs in shutdown", "exit", SIGSTOP, { "--wait", "4" }, { code = 76, class = "exit_timeout", rank = 2, limit = 60,
        says = { "rank 2 (pid ", "did not end within 4 s", "what is committed is safe" } } },
} do
    if P.read(rank_shim) then
        local what, name = c[1], c[1]:gsub("%W+", "-")
        local env = { LD_PRELOAD = rank_shim, MC_RANK = "2", MC_RANK_AT = c[2], MC_RANK_SIGNAL = tostring(c[3]) }
        local t = P.now()
        failed(what, name, start(name, c[4], env), t, c[5])
        resume(what, name)
    else
        P.skip(c[1] .. ": no UCX, no shim")
    end
end

-- ---- one writer of a checkpoint ----
local env = { LD_PRELOAD = io_shim, MC_IO_DIR = dir .. "/killed-in-a-save/ckpt", MC_IO_OPS = "fsync", MC_IO_FAIL = "2:kill",
    MC_IO_RANK = "2" }
local pid = start("killed-in-a-save", nil, env)
failed("kill -9 in a save", "killed-in-a-save", pid, P.now(), { code = 76, class = "rank_death", rank = 2, limit = 60,
    says = { "rank 2 (pid ", "was killed by signal 9", "in phase save of step " } })
P.check(P.wait(P.spawn { a.program, "ckpt", "verify", dir .. "/killed-in-a-save" }, 60) == 0, "kill -9 in a save: verify")
resume("kill -9 in a save", "killed-in-a-save")
env = { LD_PRELOAD = io_shim, MC_IO_DIR = dir .. "/full/ckpt", MC_IO_OPS = "fallocate", MC_IO_FAIL = "2+:enospc", MC_IO_RANK = "3" }
rc, sig, last, err = P.run(argv "full", dir, { env = env, limit = 120 })
P.check(rc == 76 and err:find("No space left", 1, true) and err:find("rank 3", 1, true) and err:find("go on with --resume auto", 1, true),
    "a full disk for one writer: exit %s: %s", tostring(rc or sig), err)
P.check(living "full" == "", "a full disk for one writer: processes stay: %s", living "full")
P.check(P.wait(P.spawn { a.program, "ckpt", "verify", dir .. "/full" }, 60) == 0, "a full disk for one writer: verify")
resume("a full disk for one writer", "full", EVERY)

-- ---- the agent ----
pid = start "agent"
if wait_for(pid, "kill -9 of the agent", function() return steps_of "agent" >= EVERY + 1 end) then
    P.kill(pid, P.SIGKILL)
    local _, signal = P.wait(pid, 10)
    P.check(signal == P.SIGKILL, "the agent was not killed")
    resume("kill -9 of the agent", "agent", EVERY) -- at once: the lock must be free when the last rank is gone
    P.check(living "agent" == "", "kill -9 of the agent: processes stay: %s", living "agent")
end
for what, signal in pairs { SIGTERM = P.SIGTERM, SIGINT = P.SIGINT } do
    pid = start(what, { "--set", "checkpoint.every=1000" })
    if wait_for(pid, what, function() return steps_of(what) >= 2 end) then
        P.kill(pid, signal)
        rc, sig = P.wait(pid, 30)
        P.check(rc == 75, "%s: exit %s: %s", what, tostring(rc or sig), P.read(dir .. "/err"))
        P.check(living(what) == "", "%s: processes stay: %s", what, living(what))
        P.wait(P.spawn({ a.program, "ckpt", "ls", dir .. "/" .. what, "--json" }, { out = dir .. "/ls" }), 30)
        local _, whole = (P.read(dir .. "/ls") or ""):gsub('"whole":%s*true', "")
        P.check(whole == 1, "%s: %d checkpoints, not one", what, whole)
        P.check(P.read(dir .. "/" .. what .. "/incidents/001.json") == nil, "%s: an incident", what)
        resume(what, what, steps_of(what))
    end
end

-- A rank that stands still cannot obey; the second signal means now, and ends the run.
pid = start("deaf", {})
if wait_for(pid, "two signals", function() return steps_of "deaf" >= EVERY + 1 end) then
    P.kill(rank_of(pid, 1), SIGSTOP)
    P.kill(pid, P.SIGTERM)
    P.sleep(0.5)
    local t = P.now()
    P.kill(pid, P.SIGTERM)
    failed("two SIGTERM, one rank deaf", "deaf", pid, t, { code = 76, class = "stop_timeout", rank = 0, limit = 10 + 2,
        says = { "had not ended 10 s after it was asked to" } })
    resume("two SIGTERM, one rank deaf", "deaf", EVERY)
end

-- ---- the command line ----
local function refused(what, code, more, says)
    local v = P.train(a, dir .. "/refused", more)
    local t = P.now()
    rc, sig, last, err = P.run(v, dir, { limit = 30 })
    P.check(rc == code and err:find(says, 1, true), "%s: exit %s, not %d with '%s': %s", what, tostring(rc or sig), code, says, err)
    P.check(P.now() - t < 5 and P.read(dir .. "/refused/launch_map.tsv") == nil and living "refused" == "",
        "%s: something was started", what)
end
refused("a world that tp does not divide", 2, { "--ranks", "3", "--set", "parallel.tp=2" }, "does not divide the 3 ranks")
rc, sig, last, err = P.run({ a.program, "check", a.recipe, "--ranks", "8", "--per-node", "2", "--set", "parallel.tp=4" }, dir)
P.check(rc == 2 and (last .. err):find("tp", 1, true), "tp past the node: exit %s: %s %s", tostring(rc or sig), last, err)
pid = start "first"
if wait_for(pid, "two runs in one folder", function() return steps_of "first" >= 1 end) then
    rc, sig, last, err = P.run(argv("first", { "--resume", "auto" }), dir .. "", { limit = 30 })
    P.check(rc == 3 and err:find(tostring(pid), 1, true), "two runs in one folder: exit %s: %s", tostring(rc or sig), err)
    rc = P.wait(pid, 60)
    P.check(rc == 0, "two runs in one folder: the first one ended with %s", tostring(rc))
end

P.sh("rm -rf '" .. dir .. "'")
P.finish()
