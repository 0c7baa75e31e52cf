-- reference.lua - docs/recipe_reference.md is what the program prints: made from the rows that bind a recipe, never by hand.
-- To renew it: mascon doc > docs/recipe_reference.md
local mascon = assert(arg[1], "usage: luajit tests/golden/reference.lua PROGRAM")
local p = assert(io.popen(mascon .. " doc")); local now = p:read("*a"); p:close()
local f = assert(io.open("docs/recipe_reference.md")); local kept = f:read("*a"); f:close()
if now == kept then print("1 passed, 0 failed, 0 skipped"); os.exit(0) end
print("FAILED docs/recipe_reference.md is not what `mascon doc` prints; renew it: mascon doc > docs/recipe_reference.md")
print("0 passed, 1 failed, 0 skipped")
os.exit(1)
