-- run.lua - every recipe of good/ must pass `mascon check`, every one of bad/ must fail with the messages it opens with.
-- luajit tests/recipes/run.lua PATH_OF_MASCON          (from the top of the source tree)
--
-- A bad recipe opens with one or more lines `-- expect: part of a message`; check must exit with 2 and print each part.
-- A good one may open with `-- expect:` too: parts of the notes. `-- args: ...` adds arguments.
local mascon = arg[1] or error "usage: luajit tests/recipes/run.lua PATH_OF_MASCON"
local here = arg[0]:match "^(.*)/[^/]*$" or "."

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local function list(dir)
    local names = {}
    for name in io.popen("ls " .. quote(dir)):lines() do
        if name:find "%.lua$" then names[#names + 1] = name end
    end
    table.sort(names)
    return names
end

local function head(path)
    local expects, args = {}, ""
    for line in io.lines(path) do
        local e, a = line:match "^%-%- expect: (.*)$", line:match "^%-%- args: (.*)$"
        if not e and not a then break end
        expects[#expects + 1] = e
        args = a or args
    end
    return expects, args
end

local function check(path, args)
    local p = io.popen(("%s check %s %s 2>&1 </dev/null; echo exit=$?"):format(quote(mascon), quote(path), args))
    local text = p:read "*a"
    p:close()
    return tonumber(text:match "exit=(%d+)%s*$"), text
end

local passed, failed = 0, 0
local function one(dir, name, want)
    local path = dir .. "/" .. name
    local expects, args = head(path)
    local why
    if want == 2 and #expects == 0 then why = "it opens with no `-- expect:`" end
    local rc, text = check(path, args)
    if rc ~= want then why = ("exit code %s, wanted %d"):format(tostring(rc), want) end
    for _, e in ipairs(expects) do
        if not text:find(e, 1, true) then why = "no message holds: " .. e end
    end
    if text:find "ERROR: AddressSanitizer" or text:find "runtime error:" then why = "sanitizer report" end
    if why then
        failed = failed + 1
        print(("FAILED %s: %s\n%s"):format(path, why, text))
    else
        passed = passed + 1
    end
end

for _, name in ipairs(list(here .. "/good")) do one(here .. "/good", name, 0) end
local bad = list(here .. "/bad")
for _, name in ipairs(bad) do one(here .. "/bad", name, 2) end
for _, name in ipairs(list(here .. "/../../recipes")) do one(here .. "/../../recipes", name, 0) end
if #bad < 60 then
    failed = failed + 1
    print(("FAILED only %d bad recipes; at least 60 are wanted"):format(#bad))
end
print(("%d passed, %d failed, 0 skipped"):format(passed, failed))
os.exit(failed == 0 and passed > 0 and 0 or 1)
