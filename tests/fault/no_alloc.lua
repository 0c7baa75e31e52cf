-- no_alloc.lua PROGRAM BUILD/tests [options] - the step loop allocates nothing: 100 steps, counted from outside at malloc
-- and mmap, over the engine and every library in it but OpenBLAS: its kernels for small matrices take a packing buffer from
-- malloc and give it back within the call (on some CPUs), which is told, not judged. The window opens when metrics.jsonl gets
-- line 20 and closes at line 120.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local shim = (a.tests or "build/release/tests") .. "/libpreload_alloc.so"
if not P.check(P.read(shim), "%s is missing", shim) then P.finish() end
for _, threads in ipairs(a.threads and { a.threads } or { "1", "3" }) do
    local report = dir .. "/report" .. threads
    local argv = P.train(a, dir .. "/run" .. threads, { "--set", "steps.steps=125", "--set", 'checkpoint.every="1000 steps"' })
    local rc, sig, _, err = P.run(argv, dir, { env = { LD_PRELOAD = shim, MC_ALLOC_WATCH = "metrics.jsonl:20:120",
        MC_ALLOC_REPORT = report, MC_ALLOC_APART = "libopenblas", OMP_NUM_THREADS = threads } })
    P.check(rc == 0, "%s threads: exit %s: %s", threads, tostring(rc or sig), err)
    local text = P.read(report) or "no report: metrics.jsonl never got line 120 from one process\n"
    P.check(text:find "calls=0 bytes=0", "%s threads: steps 21 to 120 allocate: %s", threads, text)
    print(("%s threads: %s"):format(threads, text:match "[^\n]*"))
end
P.sh("rm -rf '" .. dir .. "'")
P.finish()
