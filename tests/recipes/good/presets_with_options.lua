-- expect: presets_with_options: 35,072 parameters
-- qwen3 with all that its keys can ask of rope, attention and the loss.
local m = require "mascon"

return m.recipe {
    name  = "presets_with_options",
    model = m.models.qwen3 { layers = 2, hidden = 32, heads = 4, kv_heads = 2, head_dim = 8, ffn = 64, seq = 16, documents = true,
                             window = 8, rope_scaling = "yarn", rope_factor = 4, rope_original = 16, z_loss = 1e-4, label_smoothing = 0.1 },
    data  = { tokenizer = "bytes", train = "../../../recipes/text/moon.txt" },
    batch = { global = 4, micro = 2 },
    steps = { steps = 3 },
    lr    = m.lr.constant { peak = 1e-3 },
}
