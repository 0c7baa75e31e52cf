-- floors.lua - the laws of the C tree: includes point down, few calls are banned, files and lines keep their size, and every header
-- compiles alone. Run from the repository root: luajit tests/lint/floors.lua
-- A line that must break a law says why in a comment on it: `rule zero: why`; a file that must be long says so in its first 40 lines;
-- a table of wide rows stands between clang-format off and on, with such a comment in the three lines before it. free() of what a
-- library allocated says whose it is: `free(text); /* jansson's */`.
local passed, failed, skipped = 0, 0, 0
local function check(ok, what)
    if ok then passed = passed + 1 else failed = failed + 1; print("FAILED " .. what) end
end
local function lines_of(cmd)
    local p = assert(io.popen(cmd)); local t = {}
    for l in p:lines() do t[#t + 1] = l end
    p:close(); return t
end
local function slurp(path)
    local f = assert(io.open(path, "rb")); local s = f:read("*a"); f:close(); return s
end

-- Floor of each module: the folder below core/, or lua, ckpt.
local floor = {
    base = 0, tensor = 1, device = 1, recipe = 1, kern = 2, comm = 2, par = 3, run = 3, data = 3, graph = 4, pipe = 5, optim = 5,
    ckpt = 5, train = 6, agent = 6, plan = 6, lua = 7, cli = 8,
}
-- Where a floor has two storeys: a module that stands on a neighbour of its floor, and on which. Never both ways.
local beside = { recipe = { tensor = true, device = true }, plan = { train = true } }
local function module_of(path)
    return path:match("^core/([^/]+)/") or path:match("^(lua)/") or path:match("^(ckpt)/")
end

-- The text with comments, strings and characters blanked, line ends kept.
local function code_only(s)
    local out, i, n = {}, 1, #s
    while i <= n do
        local c, two = s:sub(i, i), s:sub(i, i + 1)
        local stop
        if two == "/*" then stop = (s:find("*/", i + 2, true) or n) + 1
        elseif two == "//" then stop = (s:find("\n", i, true) or n + 1) - 1
        elseif c == '"' or c == "'" then
            stop = i + 1
            while stop <= n and s:sub(stop, stop) ~= c do stop = stop + (s:sub(stop, stop) == "\\" and 2 or 1) end
        end
        if stop then out[#out + 1] = s:sub(i, stop):gsub("[^\n]", " "); i = stop + 1
        else out[#out + 1] = c; i = i + 1 end
    end
    return table.concat(out)
end

local function each_line(s, f)
    local n = 0
    for l in (s:sub(-1) == "\n" and s or s .. "\n"):gmatch("(.-)\n") do n = n + 1; f(l, n) end
    return n
end

local function columns(l) -- code points; a tab would be one, but there is none
    local _, n = l:gsub("[^\128-\191]", "")
    return n
end

local banned = { malloc = 1, calloc = 1, realloc = 1, free = 1, strcpy = 1, strcat = 1, sprintf = 1, gets = 1, alloca = 1, system = 1 }
local words = { "TO" .. "DO", "FIX" .. "ME", "X" .. "XX" }

-- "a/b/../c.h" -> "a/c.h"; nil when it leaves the tree
local function normal(path)
    local t = {}
    for part in path:gmatch("[^/]+") do
        if part == ".." then
            if #t == 0 then return nil end
            t[#t] = nil
        elseif part ~= "." then t[#t + 1] = part end
    end
    return table.concat(t, "/")
end

local here = {}
local all = lines_of("git ls-files -co --exclude-standard")
for _, f in ipairs(all) do here[f] = true end

local function check_include(file, n, line, raw)
    local at = file .. ":" .. n
    local own, dir = module_of(file), file:match("^(.*)/")
    local sys = line:match("^%s*#%s*include%s*<([^>]+)>")
    if sys then
        if sys:match("^lua") or sys:match("^lauxlib") then check(own == "lua", at .. ": <" .. sys .. "> belongs to lua/ alone") end
        if sys == "cblas.h" then check(own == "kern", at .. ": <cblas.h> belongs to core/kern alone") end
        return
    end
    local inc = line:match('^%s*#%s*include%s*"([^"]+)"')
    if not inc then return end
    if inc:match("^lua[%w]*%.h$") or inc == "lauxlib.h" or inc == "cblas.h" then
        return check(false, at .. ': "' .. inc .. '" is a system header: use <>')
    end
    local path = normal(dir .. "/" .. inc)
    if not (path and here[path]) then return check(false, at .. ': "' .. inc .. '" is no file of the tree') end
    local theirs = module_of(path)
    if not theirs then return check(false, at .. ": includes " .. path .. ", which is no module") end
    local down = floor[theirs] and floor[own] and floor[theirs] < floor[own]
    check(theirs == own or down or (beside[own] and beside[own][theirs]) or raw:find("rule zero:", 1, true) ~= nil,
          ("%s: %s (floor %s) includes %s (floor %s): only its own folder and lower floors"):format(
              at, own, tostring(floor[own]), theirs, tostring(floor[theirs])))
    check(theirs == own or not path:match("_int%.h$"), at .. ": " .. path .. " is for its own folder only")
end

local function check_code(file, s)
    local own, raw = module_of(file), {}
    each_line(s, function(l, n) raw[n] = l end)
    each_line(code_only(s), function(l, n)
        local at, excused = file .. ":" .. n, raw[n]:find("rule zero:", 1, true)
        if own and own ~= "base" then
            for name in l:gmatch("%f[%w_]([%a_][%w_]*)%s*%(") do
                local member = l:find("[%.>]%s*" .. name .. "%s*%(")
                local theirs = name == "free" and raw[n]:find("/%*.*%a's.*%*/")
                if banned[name] and not (excused or member or theirs) then
                    check(false, at .. ": " .. name .. "() belongs to core/base (mc_alloc, mc_free, snprintf, ...)")
                end
            end
        end
        if own then check(excused or not l:find("typedef%s+struct"), at .. ": no typedef of a struct") end
        if l:match("^%s*#%s*include") and own then check_include(file, n, raw[n], raw[n]) end
    end)
    local wide = false -- inside a table whose width has a reason
    each_line(s, function(l, n)
        local at = file .. ":" .. n
        if l:find("clang-format off", 1, true) then
            wide = (table.concat(raw, "\n", math.max(1, n - 3), n)):find("rule zero:", 1, true) ~= nil
        elseif l:find("clang-format on", 1, true) then wide = false end
        if columns(l) > 100 and not wide and not l:find("rule zero:", 1, true) then check(false, at .. ": " .. columns(l) .. " columns, the most is 100") end
        if l:find("\t", 1, true) then check(false, at .. ": a tab; four spaces here") end
        if l:find("%s$") then check(false, at .. ": blanks at the end of the line") end
    end)
end

local headers = {}
for _, file in ipairs(all) do
    local ext = file:match("%.(%w+)$")
    local is_c = ext == "c" or ext == "h" or ext == "inl"
    if is_c or ext == "lua" then
        local s = slurp(file)
        each_line(s, function(l, n)
            for _, w in ipairs(words) do
                if l:find("%f[%w_]" .. w .. "%f[^%w_]") then check(false, file .. ":" .. n .. ": " .. w .. " left behind") end
            end
        end)
        if is_c then
            local n = each_line(s, function() end)
            local head = {}
            each_line(s, function(l, k) if k <= 40 then head[#head + 1] = l end end)
            local most = ext == "h" and 400 or 800
            check(n <= most or table.concat(head, "\n"):find("rule zero:", 1, true) ~= nil,
                  file .. ": " .. n .. " lines, the most is " .. most)
            check_code(file, s)
            local own = module_of(file)
            if file:match("^core/") and own then check(floor[own] ~= nil, file .. ": core/" .. own .. " has no floor") end
            if ext == "c" and own then check(s:match("^/%*"), file .. ": opens without saying what it is") end
            if ext == "h" and own then
                check(s:find("#pragma once", 1, true) ~= nil, file .. ": no #pragma once")
                headers[#headers + 1] = file
            end
        end
    end
end

-- Every header compiles alone.
local cflags = lines_of("pkg-config --cflags luajit libxxhash jansson libzstd 2>/dev/null")[1] or ""
for _, d in ipairs(lines_of("ls -d /usr/include/*/openblas-pthread 2>/dev/null")) do cflags = cflags .. " -isystem " .. d end
local cc = os.getenv("CC") or "cc"
if os.execute("command -v " .. cc .. " >/dev/null 2>&1") ~= 0 then
    skipped = skipped + #headers
    print("skip: no C compiler (" .. cc .. "): headers were not compiled alone")
else
    for _, h in ipairs(headers) do
        local cmd = ("%s -std=c17 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wvla -Werror -Wno-unused-function "
                     .. "-fsyntax-only %s -x c -include %s /dev/null 2>&1"):format(cc, cflags, h)
        local out = lines_of(cmd)
        check(#out == 0, h .. " does not compile alone: " .. (out[1] or ""))
    end
end

print(("%d passed, %d failed, %d skipped"):format(passed, failed, skipped))
os.exit(failed == 0 and 0 or 1)
