-- expect: stages_are_nonsense.lua:7: parallel.stages: must be "even", "auto" or a list of layers a stage such as { 3, 2, 2, 1 }, not "uneven"
-- args: --ranks 2
local m = require "mascon"
return m.recipe {
  model = m.models.llama { layers = 4, hidden = 32, heads = 4, seq = 16 }, data = { train = "text" },
  batch = { global = 8, micro = 1 }, steps = { steps = 10 }, lr = m.lr.constant { peak = 1e-3 },
  parallel = { pp = 2, stages = "uneven" },
}
