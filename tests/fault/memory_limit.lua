-- memory_limit.lua PROGRAM - commands under ulimit -v: done, or an exit code with a word, never a hang.
--
-- OpenBLAS starts its threads when it is loaded; short of memory one of them tried again for ever, and the end of the
-- process waited for it. core/cli/early.c keeps them from being started. A rank's own products were refused a packing buffer and
-- asked for ever: core/kern/gemm_cpu.c asks for the room once beforehand.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()

local function limited(kib, ...)
    local rc, sig, _, err = P.run({ "/bin/sh", "-c", "ulimit -v " .. kib .. "; exec \"$@\"", "sh", a.program, ... }, dir, { limit = 30 })
    return rc, sig, err
end

local commands = { { "check", a.recipe }, { "explain", a.recipe }, { "doc" }, { "version" }, { "ckpt", "ls", dir },
    { "data", "inspect", "recipes/text/moon.txt" } }
for _, kib in ipairs { 20000, 40000, 60000, 70000, 80000, 100000, 130000, 160000, 200000 } do
    for _, c in ipairs(commands) do
        local rc, sig, err = limited(kib, unpack(c))
        P.check(rc == 0 or rc and kib < 200000 and (rc == 3 or rc == 76 or rc == 127), "mascon %s under %d KiB: %s: %s", c[1], kib,
            tostring(rc or sig), err)
        P.check(rc == 0 or err ~= "", "mascon %s under %d KiB: exit %s without a word", c[1], kib, tostring(rc))
    end
end

for _, kib in ipairs { 60000, 100000, 200000, 300000, 400000 } do
    local rc, sig, err = limited(kib, "train", a.recipe, "--run", dir .. "/limit" .. kib, "--set", "steps.steps=1", "--quiet")
    P.check(rc == 0 or rc == 3 or rc == 76, "mascon train under %d KiB: %s: %s", kib, tostring(rc or sig), err)
    P.check(rc == 0 or err ~= "", "mascon train under %d KiB: exit %s without a word", kib, tostring(rc))
end

-- One thread, whatever the caller's environment says, under the program's own name.
local pid = P.spawn(P.train(a, dir .. "/run", { "--set", "steps.steps=5000" }), { env = { OPENBLAS_NUM_THREADS = "8" } })
P.within(pid, 1)
local env, comm = P.read("/proc/" .. pid .. "/environ") or "", P.read("/proc/" .. pid .. "/comm")
P.check(comm == "mascon\n", "the process is called %s", tostring(comm))
P.check(env:find("OPENBLAS_NUM_THREADS=1\0", 1, true) and not env:find("NUM_THREADS=8", 1, true), "environment: %s", env)
P.kill(pid, P.SIGTERM)
P.wait(pid, 60)
P.sh("rm -rf '" .. dir .. "'")
P.finish()
