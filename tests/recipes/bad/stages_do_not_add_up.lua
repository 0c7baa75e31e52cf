-- expect: stages_do_not_add_up.lua:9: parallel.stages: 2,0,1 are 3 layers, the model has 4
-- expect: stages_do_not_add_up.lua:9: parallel.stages: stage 1 of 0 to 2 has no layers
-- args: --ranks 3
local m = require "mascon"
return m.recipe {
  model = m.models.llama { layers = 4, hidden = 32, heads = 4, seq = 16 }, data = { train = "text" },
  batch = { global = 8, micro = 1 }, steps = { steps = 10 }, lr = m.lr.constant { peak = 1e-3 },
  parallel = {
    pp = 3, stages = { 2, 0, 1 } },
}
