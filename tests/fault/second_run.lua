-- second_run.lua PROGRAM [BUILD/tests] [options] - a second run in the same folder is refused at once, with the holder's
-- pid, and does the first no harm; without --resume a folder that holds a run is refused, too; a start right after the
-- agent was killed waits for the lock instead of refusing.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local run = dir .. "/run"
local MORE = { "--resume", "auto", "--set", 'checkpoint.every="10 steps"' }

local rc, sig, last, err = P.run(P.train(a, dir .. "/ref", MORE), dir)
P.check(rc == 0, "the reference run ended with %s: %s", tostring(rc or sig), err)
local hash = P.field(last, "weights_hash")

local function first_step(pid)
    local till = P.now() + 60
    repeat
        local _, n = P.metrics(run)
        if n > 0 then return true end
        local done = P.poll(pid)
    until done or P.now() > till
end

local pid = P.spawn(P.train(a, run, MORE), { out = dir .. "/out1", err = dir .. "/err1" })
P.check(first_step(pid), "the first run made no step: %s", P.last_line(dir .. "/err1"))
for _, more in ipairs { { "--resume", "auto" }, { "--resume", "auto", "--set", "steps.steps=3" } } do
    local took
    rc, sig, last, err, took = P.run(P.train(a, run, more), dir, { limit = 30 })
    P.check(rc == 3, "a second run: exit %s, not 3: %s", tostring(rc or sig), err)
    P.check(err:find(tostring(pid), 1, true) or last:find(tostring(pid), 1, true), "its message does not name pid %d: %s", pid, err)
    P.check(took < 3, "it took %.1f s to refuse", took)
end
rc, sig, last, err = P.run(P.train(a, run), dir, { limit = 30 })
P.check(rc == 2 or rc == 3, "a second run without --resume: exit %s: %s", tostring(rc or sig), err)
rc, sig = P.wait(pid, 120)
last = P.last_line(dir .. "/out1")
P.check(rc == 0 and P.field(last, "weights_hash") == hash, "the first run was harmed: exit %s, weights %s, alone %s",
    tostring(rc or sig), tostring(P.field(last, "weights_hash")), tostring(hash))
local before = P.read(run .. "/metrics.jsonl")
rc, sig, last, err = P.run(P.train(a, run), dir, { limit = 30 })
P.check(rc == 2 or rc == 3, "a finished run without --resume: exit %s: %s", tostring(rc or sig), err)
P.check(P.read(run .. "/metrics.jsonl") == before, "the refused start changed metrics.jsonl")

P.sh("rm -rf '" .. run .. "'")
pid = P.spawn(P.train(a, run, MORE), { out = dir .. "/out1", err = dir .. "/err1" })
P.check(first_step(pid), "the run made no step: %s", P.last_line(dir .. "/err1"))
P.kill(pid, P.SIGKILL)
P.wait(pid, 10)
rc, sig, last, err = P.run(P.train(a, run, MORE), dir)
P.check(rc == 0 and P.field(last, "weights_hash") == hash, "started right after kill -9 of the agent: exit %s: %s",
    tostring(rc or sig), err)
P.sh("rm -rf '" .. dir .. "'")
P.finish()
