-- trace.lua - runs a model's functions once with proxies and gives the call lists that the graph is built from.
-- Called by C: trace(c, { stem =, block =, head = }), c the bound scalars.
require "mascon"
local nn = require "mascon.nn"

local function default_stem(tokens, c)
    return nn.embedding("embed", tokens, c.vocab)
end
local function default_head(x, c)
    local h = c.preset == "gpt2" and nn.layernorm("norm", x, { eps = c.eps }) or nn.rmsnorm("norm", x, { eps = c.eps })
    return nn.linear("head", h, c.vocab, { shard = "column", tied = c.tied and "embed.weight" or nil })
end

-- A text that is equal for equal traces; lines are left out.
local function fingerprint(calls)
    local parts = {}
    for _, call in ipairs(calls) do
        parts[#parts + 1] = ("%s|%s|%s"):format(call.op, call.name, table.concat(call["in"], ","))
        for k, v in pairs(call.attrs) do
            parts[#parts + 1] = type(v) == "number" and ("%s=%.17g"):format(k, v) or ("%s=%s:%s"):format(k, type(v), tostring(v))
        end
    end
    return table.concat(parts, "\n")
end

return function(scalars, fns)
    local names = {}
    for k in pairs(scalars) do names[#names + 1] = k end
    -- What the functions see as `c`: the scalars, read only, unknown names an error.
    local c = setmetatable({}, {
        __index = function(_, k)
            if scalars[k] ~= nil then return scalars[k] end
            local near = type(k) == "string" and host.nearest(k, names)
            host.fail(("the model has no scalar '%s'%s"):format(tostring(k), near and ("; did you mean '" .. near .. "'?") or ""))
        end,
        __newindex = function() host.fail "the model's scalars cannot be changed while it is traced" end,
        __metatable = false,
    })
    local out = { blocks = {}, layer_block = {} }
    out.stem = host.record("stem", fns.stem or default_stem, c, true, c.hidden, c)
    local known = {}
    for layer = 1, c.layers do
        local calls = host.record("block", fns.block, c, false, c.hidden, c, layer)
        local key = fingerprint(calls)
        if not known[key] then
            out.blocks[#out.blocks + 1] = calls
            known[key] = #out.blocks
        end
        out.layer_block[layer] = known[key] - 1
    end
    out.head = host.record("head", fns.head or default_head, c, false, c.vocab, c)
    return out
end
