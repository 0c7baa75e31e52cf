-- args: --ranks 64
-- A layout for 64 ranks, declared hooks, a ramp: all that this version checks without running.
local m = require "mascon"

return m.recipe {
    name     = "layout",
    seed     = "9007199254740993",
    model    = m.models.llama { layers = 16, hidden = 1024, heads = 16, kv_heads = 8, ffn = 2816, vocab = 32000, seq = 2048 },
    data     = m.data.declared { tokens = "20B", vocab = 32000 },
    batch    = { global = 256, micro = 2, ramp = { { tokens = 0, global = 64 }, { tokens = "1B", global = 256 } } },
    steps    = { tokens = "20B" },
    lr       = m.lr.cosine { peak = 3e-4, floor = 3e-5, warmup = "500M tokens" },
    parallel = { tp = 4, pp = 4, dp = "auto", sp = true, shard_optimizer = true,
                 overlap = { grads = true, params = true }, schedule = m.schedule.one_f_one_b },
    checkpoint = { every = "60 min", keep = 3 },
    time_limit = "4 h",
    anomaly  = { spike_factor = 5, spike = "skip", max_skips = 20 },
    hooks    = { { "hooks/log_jsonl.lua", allow = { "append:run" }, name = "log" }, "hooks/skip_anomaly.lua",
                 { "hooks/save_before_timeout.lua", margin_s = 600 }, { "hooks/eval_every.lua", steps = 100 } },
}
