-- faults.lua - every fault of tests/mutations finds its place: its text is in its file exactly once. Planting them takes long; that
-- one has lost its place is seen here at once. Run from the repository root: luajit tests/lint/faults.lua
package.path = "tests/mutations/?.lua;" .. package.path
local passed, failed = 0, 0
for _, f in ipairs(require "faults") do
    local file = assert(io.open(f.file, "rb"), f.file)
    local s, n, at = file:read "*a", 0, 1
    file:close()
    repeat
        local a, b = s:find(f.from, at, true)
        n, at = a and n + 1 or n, a and b + 1
    until not a
    if n == 1 then passed = passed + 1 else failed = failed + 1; print(("FAILED %s: its text is in %s %d times"):format(f.story, f.file, n)) end
end
print(("%d passed, %d failed, 0 skipped"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
