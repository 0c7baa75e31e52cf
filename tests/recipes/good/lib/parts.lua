-- A module for own_functions.lua.
local nn = require("mascon").nn
local parts = {}

function parts.mlp(h, c)
    return nn.linear("mlp.down", nn.relu(nn.linear("mlp.up", h, c.ffn, { bias = true })), c.hidden, { bias = true })
end
return parts
