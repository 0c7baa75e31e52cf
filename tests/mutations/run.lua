-- run.lua [pattern] - tests of the tests: plants the faults of faults.lua, one at a time, and says which test turned red.
-- luajit tests/mutations/run.lua [PATTERN]        only faults whose story has PATTERN (plain text)
-- The tree is copied, built once as it is, and then once with each fault; the layouts that the fault names run against one rank
-- of the sound program. A fault that no test sees, that does not build, or whose text is not there exactly once fails the script.
-- With ccache (CMAKE_C_COMPILER_LAUNCHER) and TMPDIR below its base folder the first build is short.
local here = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = here .. "/?.lua;" .. here .. "/../fault/lib/?.lua;" .. package.path
local P = require "proc"
local faults = require "faults"
local pattern = arg[1] or ""

local function write(path, s)
    local f = assert(io.open(path, "wb"))
    f:write(s)
    f:close()
end
local function times(s, what)
    local n, at = 0, 1
    while true do
        local a, b = s:find(what, at, true)
        if not a then return n end
        n, at = n + 1, b + 1
    end
end
local function replaced(s, from, to)
    local a, b = s:find(from, 1, true)
    return s:sub(1, a - 1) .. to .. s:sub(b + 1)
end

local tree = P.tmpdir()
local log = tree .. "/mutation.log"
local function build(more) return P.sh(("cd '%s' && cmake --build --preset release --target mascon preload_link >'%s' 2>&1 %s"):format(tree, log, more or "")) end
if not P.sh(("cd '%s/../..' && git ls-files -co --exclude-standard -z | tar -c --null -T - | tar -x -C '%s'"):format(here, tree))
    or not P.sh(("cd '%s' && cmake --preset release -DMC_TESTS=ON >'%s' 2>&1"):format(tree, log)) or not build() then
    io.write(P.read(log) or "")
    error "the tree does not build as it is"
end
local mutant, sound = tree .. "/build/release/mascon", tree .. "/build/release/mascon.sound"
P.sh(("cp '%s' '%s'"):format(mutant, sound))

local function first_failure(out)
    for l in out:gmatch "[^\n]+" do
        if l:find "^FAILED" then return l:sub(1, 160) end
    end
end

-- Runs the layouts of a fault with the program in hand; what failed, or nil. A script that raised has judged nothing.
local function red(f)
    local argv = { "luajit", tree .. "/tests/dist/" .. f.script, mutant, tree .. "/build/release/tests" }
    for _, l in ipairs(f.layouts) do argv[#argv + 1] = l end
    for _, o in ipairs { "--reference", sound, "--limit", "30" } do argv[#argv + 1] = o end
    local rc = P.wait(P.spawn(argv, { out = log, err = log .. ".err" }), 300)
    if rc == 0 then return nil end
    local what = first_failure(P.read(log) or "")
    P.check(what, "%s: %s: %s", f.story, f.script, (P.read(log .. ".err") or ""):sub(1, 200))
    return what
end

local ran = 0
for _, f in ipairs(faults) do
    if f.story:find(pattern, 1, true) then
        local path = tree .. "/" .. f.file
        local text = P.read(path) or ""
        local n = times(text, f.from)
        ran = ran + 1
        if P.check(n == 1, "%s: its text is %d times in %s, not once", f.story, n, f.file) then
            write(path, replaced(text, f.from, f.to))
            if P.check(build(), "%s: does not build: %s", f.story, (P.read(log) or ""):match "[^\n]*error[^\n]*" or "") then
                local what = red(f)
                P.check(what, "%s: STAYED GREEN on %s", f.story, table.concat(f.layouts, ", "))
                if what then print(("red    %s\n       %s"):format(f.story, what:gsub("^FAILED: ", ""))) end
            end
            write(path, text)
            io.stdout:flush()
        end
    end
end
P.check(ran >= 50 or pattern ~= "", "only %d faults", ran)
print(("%d faults planted"):format(ran))
P.sh("rm -rf '" .. tree .. "'")
P.finish()
