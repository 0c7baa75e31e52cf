-- pack_faults.lua - `mascon data pack` fails or is killed at every single call that changes a file.
-- luajit tests/fault/pack_faults.lua PROGRAM BUILD/tests
-- Failed: an exit that says so, and nothing left. Killed: what is left is not taken for data, and the same call then succeeds with
-- the bytes of a pack that nobody disturbed.
local program, build = arg[1], arg[2]
local home = arg[0]:match "^(.*)/tests/fault/[^/]*$" or "."
local function capture(cmd)
    local p = io.popen(cmd)
    local s = p:read "*a"
    p:close()
    return s
end
local lib = capture("realpath " .. build .. "/libpreload_io.so"):gsub("\n", "")
local tmp = capture "mktemp -d /tmp/mascon-pack-XXXXXX":gsub("\n", "")
local function run(cmd)
    local rc = os.execute(cmd)
    return rc > 255 and rc / 256 or rc
end
local function read(path)
    local f = io.open(path, "rb")
    if not f then return nil end
    local s = f:read "*a"
    f:close()
    return s
end
local passed, failed = 0, 0
local function check(ok, fmt, ...)
    if ok then passed = passed + 1 return end
    failed = failed + 1
    print("FAILED " .. fmt:format(...))
end

local f = assert(io.open(tmp .. "/in.jsonl", "wb"))
for i = 1, 40 do f:write(('{"text":"%s"}\n'):format(("line %d "):format(i):rep(40000 / 8))) end -- 1.6 MB: several writes
f:close()
local pack = ("%s data pack %s/in.jsonl --workers 2 --out %s/out/x >/dev/null 2>%s/err"):format(program, tmp, tmp, tmp)
local function fault(what) return ("MC_IO_DIR=%s/out MC_IO_FAIL=%s MC_IO_COUNT=%s/count LD_PRELOAD=%s "):format(tmp, what, tmp, lib) end
local function fresh() run(("rm -rf %s/out && mkdir %s/out"):format(tmp, tmp)) end
local ends = { ".bin", ".idx", ".json" }

fresh()
check(run(fault "999999:eio" .. pack) == 0, "a pack that nobody disturbs: %s", read(tmp .. "/err"))
local calls, whole = tonumber(read(tmp .. "/count")), {}
for i, e in ipairs(ends) do whole[i] = read(tmp .. "/out/x" .. e) end
check(calls and calls >= 15, "%s calls seen", calls)

for n = 1, calls do
    for _, what in ipairs { "eio", "enospc", "kill", "short" } do
        fresh()
        local rc = run(fault(n .. ":" .. what) .. pack)
        local left = capture(("ls %s/out"):format(tmp))
        if what == "kill" then
            check(rc == 137 or rc == 9, "call %d, kill: exit %s", n, rc)
            if not read(tmp .. "/out/x.idx") then
                local r = run(("%s data inspect %s/out/x >/dev/null 2>&1"):format(program, tmp))
                check(r ~= 0, "call %d: a half is taken for data: %s", n, left)
                r = run(pack)
                check(r == 0, "call %d: the same call after the kill: exit %d, %s; left were %s", n, r, read(tmp .. "/err"), left)
            end
        elseif rc ~= 0 then
            check(rc == 76 and left == "", "call %d, %s: exit %d, left %s", n, what, rc, left)
        else -- the loss is repaired (a short write goes on) or does not matter
            check(what == "short", "call %d, %s: exit 0", n, what)
        end
        if rc == 0 or what == "kill" then
            for i, e in ipairs(ends) do check(read(tmp .. "/out/x" .. e) == whole[i], "call %d, %s: x%s differs", n, what, e) end
            check(not capture(("ls %s/out"):format(tmp)):find "tmp", "call %d, %s: a .tmp is left", n, what)
        end
    end
end
run("rm -rf " .. tmp)
print(("%d passed, %d failed, 0 skipped"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
