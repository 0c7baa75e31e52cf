-- shrink.lua PROGRAM - a data file is cut while a run reads it: exit 76 and a message that names the file, not a bare
-- signal 7; with the file back, the same command goes on to the same end.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local text = dir .. "/text.txt"
P.sh(("for i in $(seq 64); do cat recipes/text/moon.txt; done > '%s' && cp '%s' '%s.kept'"):format(text, text, text))

local function argv(run)
    return P.train(a, run, { "--resume", "auto", "--set", "data.train=" .. text, "--set", 'checkpoint.every="5 steps"' })
end
local rc, sig, last, err = P.run(argv(dir .. "/ref"), dir)
P.check(rc == 0, "the reference run: %s: %s", tostring(rc or sig), err)
local hash = P.field(last, "weights_hash")

local run = dir .. "/run"
local pid = P.spawn(argv(run), { out = dir .. "/out", err = dir .. "/err" })
local till = P.now() + 60
repeat
    P.sleep(0.01)
    local _, n = P.metrics(run)
until n >= 7 or P.now() > till
P.sh(("truncate -s 100 '%s'"):format(text))
rc, sig = P.wait(pid, 120)
err = P.read(dir .. "/err") or ""
P.check(rc == 76, "after the cut: %s, not 76: %s", tostring(rc or sig), err)
P.check(err:find("data file " .. text .. " shrank", 1, true), "the file is not named: %s", err)
P.check(not err:find("signal 7", 1, true), "still a bare signal: %s", err)

P.sh(("cp '%s.kept' '%s'"):format(text, text))
rc, sig, last, err = P.run(argv(run), dir)
P.check(rc == 0 and P.field(last, "weights_hash") == hash, "resumed: %s, weights %s, not %s: %s", tostring(rc or sig),
    tostring(P.field(last, "weights_hash")), tostring(hash), err)
P.sh("rm -rf '" .. dir .. "'")
P.finish()
