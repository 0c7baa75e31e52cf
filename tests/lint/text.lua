-- text.lua - the project's prose: every docs link and file it names exists, the README names its two commands, scripts are executable,
-- and no text speaks of anything outside the project. Run from the repository root: luajit tests/lint/text.lua
local passed, failed = 0, 0
local function check(ok, what)
    if ok then passed = passed + 1 else failed = failed + 1; print("FAILED " .. what) end
end
local function lines(cmd)
    local p = assert(io.popen(cmd)); local t = {}
    for l in p:lines() do t[#t + 1] = l end
    p:close(); return t
end
local function slurp(path)
    local f = io.open(path, "rb"); if not f then return nil end
    local s = f:read("*a"); f:close(); return s
end

local files = lines("git ls-files -co --exclude-standard")
local here = {}
for _, f in ipairs(files) do here[f] = true; local d = f
    while true do d = d:match("^(.*)/[^/]*$"); if not d then break end; here[d] = true end
end

-- Markdown links point at files that exist.
for _, f in ipairs(files) do
    if f:match("%.md$") then
        local dir = f:match("^(.*/)") or ""
        for target in slurp(f):gmatch("%]%(([^)#%s]+)[^)]*%)") do
            if not target:match("^%a+:") then
                local path = dir .. target
                while path:match("[^/]+/%.%./") do path = path:gsub("[^/]+/%.%./", "", 1) end
                check(here[(path:gsub("/$", ""))] ~= nil, f .. ": link to " .. target .. ", which does not exist")
            end
        end
    end
end
-- The only folders and files at the top.
local allowed = { core = 1, lua = 1, recipes = 1, hooks = 1, ckpt = 1, tests = 1, third_party = 1, docs = 1, ["CMakeLists.txt"] = 1,
                  ["README.md"] = 1, LICENSE = 1, ["CMakePresets.json"] = 1 }
for _, f in ipairs(files) do
    local top = f:match("^[^/]+")
    check(allowed[top] or top:match("^%."), "top level holds " .. top)
end
-- Words that would speak of things outside the project. Spelt in two halves so that this file does not name them.
local words = { "shar" .. "ed/", "DEVELOP" .. "ERS", "/wo" .. "rk/", "farm" .. "-", "deb.deb" .. "ian.org", "py" .. "pi.org", "/ro" .. "ot/" }
for _, f in ipairs(files) do
    local s = slurp(f)
    if s and not s:find("\0", 1, true) then
        for _, w in ipairs(words) do check(not s:find(w, 1, true), f .. ": speaks of " .. w) end
    end
end
for _, f in ipairs { "recipes/quickstart", "tests/run", ".ci/run", "third_party/install" } do
    check(os.execute("test -x " .. f) == 0, f .. " is not executable")
end
local readme = slurp("README.md") or ""
check(readme:find("recipes/quickstart", 1, true) and readme:find("tests/run", 1, true), "README.md does not name its two commands")
check(lines("git ls-files -co --exclude-standard | xargs -d '\\n' -I{} find {} -size +1M 2>/dev/null | grep -v tests/golden")[1] == nil,
      "a file over 1 MB is in the tree")
print(("%d passed, %d failed, %d skipped"):format(passed, failed, 0))
os.exit(failed == 0 and 0 or 1)
