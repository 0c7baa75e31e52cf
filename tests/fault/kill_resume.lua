-- kill_resume.lua PROGRAM [BUILD/tests] [options] - kill -9 at random moments, resume, until the run is done: the same
-- weights and, bit for bit, the same logged numbers as the run that was never killed.
--
-- Options (lib/proc.lua): --recipe F --count KILLS --precision P --threads N --seed N --set K=V. Without --precision and
-- --threads a table of cases is run, the full one when MC_TEST_LONG is set. The victim is the rank or the agent, by chance;
-- the moment is uniform over the first half of the time that the run needs. The next start follows at once: after the
-- agent's death the lock must pass on as soon as the last rank is gone.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local SAME = { "loss", "grad_norm", "lr", "tokens", "samples", "skipped" }
local MORE = { "--set", 'checkpoint.every="7 steps"', "--resume", "auto" }

local function difference(ref, got, steps)
    for s = 1, steps do
        if not got[s] then return ("step %d is missing"):format(s) end
        for _, k in ipairs(SAME) do
            local x, y = P.field(ref[s], k), P.field(got[s], k)
            if x == nil or x ~= y then return ("step %d: %s is %s, never killed: %s"):format(s, k, tostring(y), tostring(x)) end
        end
    end
end

-- One start that is killed after `delay` seconds unless it ends before. "killed", "done", or what went wrong.
local function start(argv, env, delay, who)
    local pid = P.spawn(argv, { out = dir .. "/out", err = dir .. "/err", env = env })
    local done, rc, sig = P.within(pid, delay)
    if not done then
        local victim = who == "agent" and pid or P.children(pid)[1]
        if not victim then -- between two lives of a rank, or before its first
            who, victim = "agent", pid
        end
        P.kill(victim, P.SIGKILL)
        rc, sig = P.wait(pid, 60)
        if who == "agent" and (sig == 9 or rc == 0) or who == "rank" and (rc == 76 or rc == 0) then
            return rc == 0 and "done" or "killed"
        end
        return ("after kill -9 of the %s: exit %s"):format(who, tostring(rc or sig))
    end
    return rc == 0 and "done" or ("exit %s: %s"):format(tostring(rc or sig), P.last_line(dir .. "/err"))
end

local function one_case(c)
    local name = ("%s, %d thread%s"):format(c.precision or "recipe's precision", c.threads, c.threads == 1 and "" or "s")
    local o = { recipe = a.recipe, program = a.program, precision = c.precision, set = a.set }
    local env, ref_run, run = { OMP_NUM_THREADS = tostring(c.threads) }, dir .. "/ref", dir .. "/killed"
    P.sh("rm -rf '" .. ref_run .. "'")
    local rc, sig, last, err, took = P.run(P.train(o, ref_run, MORE), dir, { env = env })
    if not P.check(rc == 0, "%s: the reference run ended with %s: %s", name, tostring(rc or sig), err) then return end
    local ref, _, steps = P.metrics(ref_run)
    local hash = P.field(last, "weights_hash")
    local rand, kills, runs, replayed = P.rng(a.seed * 7919 + c.threads), 0, 0, 0
    while kills < c.kills and runs < 100 do
        P.sh("rm -rf '" .. run .. "'")
        runs = runs + 1
        local starts, what = 0, nil
        repeat
            starts = starts + 1
            local delay = kills < c.kills and starts <= 8 and rand(0, took / 2) or 600
            what = start(P.train(o, run, MORE), env, delay, rand(0, 1) < 0.5 and "agent" or "rank")
            if what == "killed" then kills = kills + 1 end
        until what ~= "killed"
        if not P.check(what == "done", "%s: %s", name, what) then return end
        local got, lines = P.metrics(run)
        replayed = replayed + lines - steps
        local again = P.last_line(dir .. "/out")
        local diff = difference(ref, got, steps)
        P.check(diff == nil, "%s: run %d: %s", name, runs, tostring(diff))
        -- a finished run, resumed: 0 at once, the same last line
        rc, sig, last = P.run(P.train(o, run, MORE), dir, { env = env, limit = 60 })
        P.check(rc == 0, "%s: resuming the finished run: exit %s", name, tostring(rc or sig))
        for _, k in ipairs { "weights_hash", "step", "loss" } do
            P.check(P.field(last, k) == P.field(again, k), "%s: last line of the finished run: %s changed", name, k)
        end
        P.check(P.field(last, "weights_hash") == hash, "%s: run %d: weights_hash is %s, never killed: %s", name, runs,
            tostring(P.field(last, "weights_hash")), tostring(hash))
    end
    print(("%s: %d kills over %d runs of %d steps, %d steps replayed, weights %s"):format(name, kills, runs, steps, replayed,
        tostring(hash)))
end

local cases
if a.precision or a.threads or a.count then
    cases = { { precision = a.precision, threads = tonumber(a.threads or 1), kills = tonumber(a.count or 3) } }
elseif a.long then
    cases = {}
    for _, p in ipairs { "fp32", "fp64", "bf16" } do
        for t = 1, 3 do cases[#cases + 1] = { precision = p, threads = t, kills = 20 } end
    end
else
    cases = { { precision = "fp32", threads = 1, kills = 4 }, { precision = "fp64", threads = 2, kills = 2 },
        { precision = "bf16", threads = 2, kills = 3 } }
end
for _, c in ipairs(cases) do one_case(c) end
P.sh("rm -rf '" .. dir .. "'")
P.finish()
