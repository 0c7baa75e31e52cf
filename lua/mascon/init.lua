-- mascon - what a recipe writes with: constructors that only return tagged tables, the ops, and the presets.
-- Nothing here computes; the C binder gives every message about keys, types and ranges.

-- A table whose unknown members are errors with the nearest name.
local function strict(t, what, late)
    local names
    return setmetatable(t, {
        __index = function(self, k)
            local v = late and late(k)
            if v ~= nil then
                rawset(self, k, v)
                return v
            end
            if not names then
                names = {}
                for name in pairs(self) do names[#names + 1] = name end
            end
            local near = type(k) == "string" and host.nearest(k, names)
            host.fail(("%s has no '%s'%s"):format(what, tostring(k), near and ("; did you mean '" .. near .. "'?") or ""))
        end,
        __metatable = false,
    })
end
host.strict = strict

-- constructor("adamw"): a function that marks the table it is given and returns it.
local function constructor(tag, shown)
    return function(t, extra)
        if type(t) ~= "table" or extra ~= nil then
            host.fail(("%s: takes one table, as in %s { ... }"):format(shown, shown))
        end
        return host.tag(t, tag)
    end
end

local m = {}

m.recipe = constructor("recipe", "m.recipe")
m.decoder = constructor("decoder", "m.decoder")
m.adamw = constructor("adamw", "m.adamw")
m.nn = require "mascon.nn"
m.lr = require("mascon.lr")(constructor, strict)
m.data = strict({
    required = host.tag({}, "data.required"),             -- the user brings the text: --set data.train=FILE
    declared = constructor("data.declared", "m.data.declared"), -- plan only: { tokens =, vocab = }
}, "m.data")
-- Bundled schedules, by the names that parallel.schedule takes.
m.schedule = strict({
    gpipe = "gpipe", one_f_one_b = "one_f_one_b", interleaved = "interleaved", zb_h1 = "zb_h1", zb_v = "zb_v",
}, "m.schedule")
-- m.models.llama is the file models/llama.lua; one of your own is `require "name"` of a file beside the recipe.
local presets = { gpt2 = true, gpt3 = true, llama = true, llama2 = true, llama3 = true, mistral = true, qwen2 = true, qwen3 = true,
    gemma = true }
local models = strict({}, "m.models", function(k) return presets[k] and require("mascon.models." .. k) or nil end)
m.models = models

return strict(m, "mascon")
