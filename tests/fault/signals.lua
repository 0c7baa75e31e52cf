-- signals.lua PROGRAM [BUILD/tests] [options] - SIGINT and SIGTERM at random moments: an orderly stop.
--
-- 75 with a whole checkpoint of the very step that metrics.jsonl ends with, if this start made at least one update; 76 if
-- it made none, even when older checkpoints exist; 0 if the run was done before. Then the run is resumed to its end, and
-- its weights are those of the run never stopped. The signal goes to the agent alone, or, as from a terminal, to the
-- whole group. --count N: stops a signal.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local run, count = dir .. "/run", tonumber(a.count or (a.long and 20 or 4))
local MORE = { "--resume", "auto" }

local rc, sig, last, err, took = P.run(P.train(a, dir .. "/ref", MORE), dir)
P.check(rc == 0, "the reference run ended with %s: %s", tostring(rc or sig), err)
local hash = P.field(last, "weights_hash")
local _, _, steps = P.metrics(dir .. "/ref")

local function newest()
    P.wait(P.spawn({ a.program, "ckpt", "show", run, "--json" }, { out = dir .. "/show" }), 30)
    return tonumber(P.field(P.read(dir .. "/show") or "", "step") or "")
end

local function stop_once(signal, delay, group)
    local what = ("signal %d to the %s after %.3f s"):format(signal, group and "group" or "agent", delay)
    local _, before = P.metrics(run)
    local old = newest()
    local pid = P.spawn(P.train(a, run, MORE), { out = dir .. "/out", err = dir .. "/err" })
    local ended = P.within(pid, delay)
    if not ended then P.kill(group and -pid or pid, signal) end
    local t = P.now()
    if not ended then rc, sig = P.wait(pid, 60) else return "done" end
    took = P.now() - t
    local _, lines, top = P.metrics(run)
    local made = lines - before
    if sig == signal and made == 0 and delay < 0.05 then return "early" end -- before it could listen
    if rc == 0 then
        P.check(top == steps, "%s: exit 0 at step %d of %d", what, top, steps)
        return "done"
    end
    P.check(rc == (made > 0 and 75 or 76), "%s: exit %s after %d updates of this start: %s", what, tostring(rc or sig), made,
        P.last_line(dir .. "/err"))
    P.check(took < 10, "%s: took %.1f s to stop", what, took)
    if made > 0 then
        P.check(newest() == top, "%s: newest checkpoint is of step %s, the last step was %d", what, tostring(newest()), top)
        P.check(P.field(P.last_line(dir .. "/out"), "exit") == "75", "%s: last line: %s", what, P.last_line(dir .. "/out"))
    else
        P.check(newest() == old, "%s: no update was made, but the newest checkpoint changed from %s to %s", what, tostring(old),
            tostring(newest()))
    end
    return "stopped"
end

local rand, stops, early, runs, span = P.rng(a.seed * 31 + 5), 0, 0, 0, took
for _, signal in ipairs { P.SIGINT, P.SIGTERM } do
    local n = 0
    while n < count and runs < 200 do
        P.sh("rm -rf '" .. run .. "'")
        runs = runs + 1
        local what
        repeat
            -- one in four comes at the very start, where there is nothing to save
            what = stop_once(signal, rand(0, 1) < 0.25 and rand(0, 0.3) or rand(0, span * 0.6), rand(0, 1) < 0.5)
            if what == "stopped" then n, stops = n + 1, stops + 1 end
            if what == "early" then early = early + 1 end
        until what == "done" or n >= count
        rc, sig, last = P.run(P.train(a, run, MORE), dir)
        P.check(rc == 0 and P.field(last, "weights_hash") == hash, "after %d stops: exit %s, weights %s, never stopped: %s", n,
            tostring(rc or sig), tostring(P.field(last, "weights_hash")), tostring(hash))
    end
end
print(("%d orderly stops over %d runs, %d signals before the program could listen"):format(stops, runs, early))
P.sh("rm -rf '" .. dir .. "'")
P.finish()
