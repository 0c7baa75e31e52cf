-- lr.lua - the learning-rate schedules, by name. Their formulas stand beside the C that computes them; their keys in the
-- recipe reference. A function of your own may stand in place of any of them: lr = function(s) return ... end,
-- s = { step, samples, tokens, global }: step from 1, samples and tokens read with it, global its batch.
return function(constructor, strict)
    local lr = {}
    for _, kind in ipairs { "constant", "linear", "cosine", "wsd", "inverse_sqrt", "power", "pieces" } do
        lr[kind] = constructor("lr." .. kind, "m.lr." .. kind)
    end
    return strict(lr, "m.lr")
end
