-- dense_500b.lua - a dense model of some 500 billion parameters for 640 nodes of 8 devices: a plan, to be looked at before anything is
-- asked of a cluster. `mascon plan recipes/dense_500b.lua --nodes 640 --per-node 8`
-- Eight devices of a node share every layer (tp), eight nodes share the layers (pp), eighty such groups share the batch (dp).
local m = require "mascon"

return m.recipe {
    name  = "dense_500b",
    seed  = 1234,
    model = m.models.llama {
        layers = 128, hidden = 18432, heads = 144, kv_heads = 8, head_dim = 128, ffn = 57344, -- 502 B parameters
        vocab = 128256, seq = 8192, theta = 500000, tied = false,
    },
    data  = m.data.declared { tokens = "15000B", vocab = 128256 }, -- bring yours: --set data.train=...
    batch = { global = 1920, micro = 1 },                          -- 24 microbatches a replica, 15.7 M tokens a step
    steps = { tokens = "15000B" },
    lr    = m.lr.cosine { peak = 8e-5, floor = 8e-7, warmup = "30B tokens" },
    optim = m.adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip = 1.0 },
    device    = "cuda",
    precision = "bf16",
    parallel  = {
        tp = 8, pp = 8, dp = "auto", sp = true, shard_optimizer = true, overlap = { grads = true, params = true },
        schedule = m.schedule.one_f_one_b,
        recompute = { "all_gather", "rmsnorm", "swiglu" }, -- a third of what would be kept, for no product again
    },
    checkpoint = { every = "60 min", keep = 3, stall = "1 s" },
    cluster    = { nodes = 640, per_node = 8, mem = "180 GB", mtbf = "8 h" },
}
