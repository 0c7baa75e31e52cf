-- no_alloc.lua PROGRAM BUILD/tests [options] - the step loop allocates nothing: 100 steps, counted from outside at malloc
-- and mmap, over the engine and every library in it. The window opens when metrics.jsonl gets line 20 and closes at line 120.
-- --threads N, --precision P: that only. Short: 1 and 3 threads in fp32, 2 in fp64; long (MC_TEST_LONG=1): 1, 2 and 3 in both.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local shim = (a.tests or "build/release/tests") .. "/libpreload_alloc.so"
if not P.check(P.read(shim), "%s is missing", shim) then P.finish() end
-- Heads of 8 columns in fp32 and 12 in fp64: widths at which OpenBLAS 0.3.21 allocates for small products on AVX-512 CPUs.
local hidden = { fp32 = "64", fp64 = "96" }
local function watch(threads, precision)
    local name = threads .. "-" .. precision
    local report = dir .. "/report" .. name
    local argv = P.train(a, dir .. "/run" .. name, { "--set", "steps.steps=125", "--set", 'checkpoint.every="1000 steps"',
        "--set", "precision=" .. precision, "--set", "model.hidden=" .. hidden[precision] })
    local rc, sig, _, err = P.run(argv, dir, { env = { LD_PRELOAD = shim, MC_ALLOC_WATCH = "metrics.jsonl:20:120",
        MC_ALLOC_REPORT = report, OMP_NUM_THREADS = threads } })
    P.check(rc == 0, "%s threads, %s: exit %s: %s", threads, precision, tostring(rc or sig), err)
    local text = P.read(report) or "no report: metrics.jsonl never got line 120 from one process\n"
    P.check(text:find "calls=0 bytes=0", "%s threads, %s: steps 21 to 120 allocate: %s", threads, precision, text)
    print(("%s threads, %s: %s"):format(threads, precision, text:match "[^\n]*"))
end
local all = a.long or a.threads or a.precision
for _, threads in ipairs(a.threads and { a.threads } or { "1", "2", "3" }) do
    for _, precision in ipairs(a.precision and { a.precision } or { "fp32", "fp64" }) do
        if all or (threads == "2") == (precision == "fp64") then watch(threads, precision) end
    end
end
P.sh("rm -rf '" .. dir .. "'")
P.finish()
