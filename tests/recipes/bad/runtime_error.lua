-- expect: runtime_error.lua:4:
-- expect: attempt to index
local m
return m.recipe { }
