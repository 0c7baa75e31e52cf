-- The learning rate m.lr.pieces.
local m = require "mascon"

return m.recipe {
    name  = "lr_pieces",
    model = m.models.llama { layers = 1, hidden = 16, heads = 2, seq = 8 },
    data  = { train = "../../../recipes/text/moon.txt" },
    batch = { global = 2 },
    steps = { steps = 10 },
    lr    = m.lr.pieces { { upto = 5, from = 0, to = 1e-3, shape = "linear" }, { upto = 10, from = 1e-3, to = 1e-4, shape = "cosine" } },
}
