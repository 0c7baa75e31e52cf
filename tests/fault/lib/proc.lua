-- proc.lua - processes, time and small readers for the fault tests (LuaJIT, ffi; Linux).
--
-- A test gets: spawn/wait/kill with deadlines, the children of a process, a seeded random source, the
-- fields of one-line JSON objects as text (so that numbers are compared digit by digit), and a count of
-- what passed. Every process spawned here dies with the test (PDEATHSIG).
local ffi = require "ffi"
local bit = require "bit"
ffi.cdef [[
int fork(void); int execvp(const char *file, const char *const argv[]); void _exit(int);
int waitpid(int pid, int *status, int options); int kill(int pid, int sig); int setpgid(int pid, int pgid);
int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d);
int open(const char *path, int flags, int mode); int dup2(int a, int b); int chdir(const char *path);
int setenv(const char *k, const char *v, int o); int unsetenv(const char *k); int getpid(void); unsigned getuid(void);
struct mc_ts { long s, ns; }; int nanosleep(const struct mc_ts *a, struct mc_ts *b); int clock_gettime(int c, struct mc_ts *t);
]]
local C = ffi.C
local P = { SIGINT = 2, SIGKILL = 9, SIGTERM = 15, passed = 0, failed = 0, skipped = 0 }

function P.now()
    local t = ffi.new "struct mc_ts"
    C.clock_gettime(1, t)
    return tonumber(t.s) + tonumber(t.ns) / 1e9
end

function P.sleep(s)
    local t = ffi.new "struct mc_ts"
    t.s, t.ns = math.floor(s), (s % 1) * 1e9
    C.nanosleep(t, nil)
end

-- o: { out = file, err = file, env = { K = "v" or false } }. Returns the pid.
function P.spawn(argv, o)
    o = o or {}
    local v = ffi.new("const char *[?]", #argv + 1)
    for i, a in ipairs(argv) do v[i - 1] = a end
    v[#argv] = nil
    local pid = C.fork()
    if pid == 0 then
        C.prctl(1, 9, 0, 0, 0)
        C.setpgid(0, 0)
        local function to(fd, path) C.dup2(C.open(path, 577, 420), fd) end -- O_WRONLY|O_CREAT|O_TRUNC, 0644
        C.dup2(C.open("/dev/null", 0, 0), 0)
        to(1, o.out or "/dev/null")
        to(2, o.err or "/dev/null")
        for k, e in pairs(o.env or {}) do
            if e then C.setenv(k, e, 1) else C.unsetenv(k) end
        end
        C.execvp(argv[1], v)
        C._exit(127)
    end
    return pid
end

-- Has it ended? false; or true, exit code (nil: killed), signal.
function P.poll(pid)
    local st = ffi.new "int[1]"
    if C.waitpid(pid, st, 1) ~= pid then return false end
    if bit.band(st[0], 127) == 0 then return true, bit.band(bit.rshift(st[0], 8), 255) end
    return true, nil, bit.band(st[0], 127)
end

-- Waits until it ends, or `seconds` are over: false, then.
function P.within(pid, seconds)
    local till = P.now() + seconds
    repeat
        local done, rc, sig = P.poll(pid)
        if done then return true, rc, sig end
        P.sleep(0.002)
    until P.now() > till
    return false
end

-- Exit code, or nil and the signal. After `limit` seconds it is killed: nil, "timeout".
function P.wait(pid, limit)
    local done, rc, sig = P.within(pid, limit or 600)
    if done then return rc, sig end
    C.kill(-pid, 9)
    C.waitpid(pid, ffi.new "int[1]", 0)
    return nil, "timeout"
end

function P.kill(pid, sig) return C.kill(pid, sig) == 0 end
function P.is_root() return C.getuid() == 0 end

function P.children(pid)
    local f, r = io.open("/proc/" .. pid .. "/task/" .. pid .. "/children"), {}
    if f then
        for c in (f:read "*a" or ""):gmatch "%d+" do r[#r + 1] = tonumber(c) end
        f:close()
    end
    return r
end

function P.read(path)
    local f = io.open(path, "rb")
    if not f then return nil end
    local s = f:read "*a"
    f:close()
    return s
end

function P.last_line(path)
    local last = ""
    for l in (P.read(path) or ""):gmatch "[^\n]+" do last = l end
    return last
end

-- The text of one member of a flat JSON object; nil if it is not there.
function P.field(json, key)
    return json:match('"' .. key .. '":%s*"([^"]*)"') or json:match('"' .. key .. '":%s*([^,}%]]+)')
end

function P.tmpdir(base)
    local p = io.popen("mktemp -d -p '" .. (base or os.getenv "TMPDIR" or "/tmp") .. "' mc_fault.XXXXXX")
    local d = p:read "*l"
    p:close()
    return d
end

function P.sh(cmd)
    local r = os.execute(cmd)
    return r == true or r == 0
end

-- A seeded generator of our own: math.random differs between builds of Lua.
function P.rng(seed)
    local s = seed % 2147483647
    return function(lo, hi)
        s = (s * 48271) % 2147483647
        return lo + (hi - lo) * (s / 2147483647)
    end
end

function P.check(ok, what, ...)
    if ok then
        P.passed = P.passed + 1
    else
        P.failed = P.failed + 1
        print("FAILED: " .. what:format(...))
    end
    return ok
end

function P.skip(why)
    P.skipped = P.skipped + 1
    print("skipped: " .. why)
end

function P.finish()
    print(("%d passed, %d failed, %d skipped"):format(P.passed, P.failed, P.skipped))
    os.exit(P.failed == 0 and 0 or 1)
end

-- ---- a training run ----

-- Lines of metrics.jsonl by step, the last occurrence of each: { [step] = line }, number of lines, highest step.
function P.metrics(run)
    local by, n, top = {}, 0, 0
    for l in (P.read(run .. "/metrics.jsonl") or ""):gmatch "[^\n]+" do
        local s = tonumber(P.field(l, "step") or "")
        if s then
            by[s], n = l, n + 1
            if s > top then top = s end
        end
    end
    return by, n, top
end

function P.args(argv)
    local a = { set = {} }
    local i = 1
    while i <= #argv do
        local k = argv[i]:match "^%-%-(.+)"
        if k == "set" then
            a.set[#a.set + 1] = argv[i + 1]
            i = i + 1
        elseif k then
            a[k] = argv[i + 1]
            i = i + 1
        elseif not a.program then
            a.program = argv[i]
        else
            a.tests = argv[i]
        end
        i = i + 1
    end
    if not a.program then
        io.stderr:write("usage: luajit THIS PROGRAM [BUILD/tests] [--recipe F] [--count N] [--precision P] [--threads N] [--seed N] [--set K=V]\n")
        os.exit(2)
    end
    a.recipe = a.recipe or "recipes/tiny_llama.lua"
    a.long = os.getenv "MC_TEST_LONG" ~= nil
    a.seed = tonumber(a.seed or 1)
    return a
end

-- argv of `mascon train` for these tests.
function P.train(a, run, more)
    local v = { a.program, "train", a.recipe, "--run", run, "--json" }
    if a.precision then
        v[#v + 1] = "--set"
        v[#v + 1] = "precision=" .. a.precision
    end
    for _, s in ipairs(a.set) do
        v[#v + 1] = "--set"
        v[#v + 1] = s
    end
    for _, s in ipairs(more or {}) do v[#v + 1] = s end
    return v
end

-- Runs it to its end. Returns exit code (or nil, signal), the last line of stdout, stderr's text, seconds.
function P.run(argv, dir, o)
    o = o or {}
    o.out, o.err = dir .. "/out", dir .. "/err"
    local t = P.now()
    local rc, sig = P.wait(P.spawn(argv, o), o.limit or 300)
    return rc, sig, P.last_line(o.out), P.read(o.err) or "", P.now() - t
end

return P
