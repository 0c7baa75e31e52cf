-- expect: parallel.pad: the run is slowed on purpose: a microbatch takes a rank at least F 0.02 s, I 0.01 s, W 0 s
-- args: --ranks 2
local m = require "mascon"
return m.recipe {
  model = m.models.llama { layers = 4, hidden = 32, heads = 4, seq = 16 }, data = { train = "../../../recipes/text/moon.txt" },
  batch = { global = 8, micro = 1 }, steps = { steps = 10 }, lr = m.lr.constant { peak = 1e-3 },
  parallel = { pp = 2, chunks = 2, schedule = "zb_v", stages = { 0, 2, 2, 0 }, pad = { F = "20 ms", I = 0.01 } },
}
