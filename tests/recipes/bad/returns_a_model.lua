-- expect: returned what belongs inside a recipe (a decoder)
local m = require "mascon"
return m.models.llama { layers = 1, hidden = 8, heads = 2, seq = 8 }
