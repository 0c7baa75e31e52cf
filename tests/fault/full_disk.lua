-- full_disk.lua PROGRAM BUILD/tests [options] - the disk fills up under a run: a message that names the file and says so,
-- exit 76 in the end, every older checkpoint whole, and a resume with more room that ends with the same weights.
--
-- As root on a small tmpfs; for everybody by a preloaded library that says ENOSPC from some call on.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local MORE = { "--resume", "auto", "--set", 'checkpoint.every="5 steps"' }

local rc, sig, last, err = P.run(P.train(a, dir .. "/ref", MORE), dir)
P.check(rc == 0, "the reference run ended with %s: %s", tostring(rc or sig), err)
local hash = P.field(last, "weights_hash")
P.wait(P.spawn({ a.program, "ckpt", "show", dir .. "/ref", "--json" }, { out = dir .. "/show" }), 30)
local bytes = tonumber(P.field(P.read(dir .. "/show") or "", "bytes") or "") or 6e6

local function full(what, run, env, relief)
    rc, sig, last, err = P.run(P.train(a, run, MORE), dir, { env = env })
    P.check(rc == 76, "%s: exit %s, not 76: %s", what, tostring(rc or sig), err)
    P.check(err:find("No space left", 1, true) and err:find("ckpt/step-", 1, true), "%s: no message of the full disk: %s", what,
        err:sub(-400))
    P.check(P.wait(P.spawn { a.program, "ckpt", "verify", run }, 60) == 0, "%s: an older checkpoint is damaged", what)
    P.wait(P.spawn({ a.program, "ckpt", "ls", run, "--json" }, { out = dir .. "/ls" }), 30)
    local _, n = (P.read(dir .. "/ls") or ""):gsub('"whole":%s*true', "")
    P.check(n >= 1, "%s: no older checkpoint is left", what)
    relief()
    rc, sig, last, err = P.run(P.train(a, run, MORE), dir)
    P.check(rc == 0 and P.field(last, "weights_hash") == hash, "%s: resumed with room: exit %s, weights %s, not %s: %s", what,
        tostring(rc or sig), tostring(P.field(last, "weights_hash")), tostring(hash), err:sub(-300))
    print(("%s: %d older checkpoints whole, then resumed"):format(what, n))
end

local small = dir .. "/small"
P.sh("mkdir '" .. small .. "'")
if P.is_root() and P.sh(("mount -t tmpfs -o size=%d none '%s' 2>/dev/null"):format(bytes * 2.5, small)) then
    full("a tmpfs with room for two and a half", small .. "/run", nil, function()
        P.sh(("mount -o remount,size=%d '%s'"):format(bytes * 10, small))
    end)
    P.sh("umount -l '" .. small .. "'")
else
    P.skip "a really full disk (mounting a tmpfs needs root)"
end

local shim = (a.tests or "build/release/tests") .. "/libpreload_io.so"
if P.read(shim) then
    -- the third save and all later ones find no room; logs still do
    full("ENOSPC from the third preallocation on", dir .. "/run",
        { LD_PRELOAD = shim, MC_IO_DIR = dir .. "/run/ckpt", MC_IO_OPS = "fallocate", MC_IO_FAIL = "3+:enospc" }, function() end)
else
    P.check(false, "%s is missing", shim)
end
P.sh("rm -rf '" .. dir .. "'")
P.finish()
