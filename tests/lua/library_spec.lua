-- library_spec.lua - the Lua library's own logic in plain LuaJIT, with a small stand-in for the C table `host`.
local function library()
    local tags = setmetatable({}, { __mode = "k" })
    local host = {
        tag = function(t, tag) tags[t] = tag return t end,
        fail = function(msg) error(msg, 0) end,
        line = function() return 1 end,
        nearest = function() return nil end,
    }
    local loaded = {}
    local env = setmetatable({ host = host }, { __index = _G })
    function env.require(name)
        if loaded[name] == nil then
            local path = name == "mascon" and "lua/mascon/init.lua" or "lua/" .. name:gsub("%.", "/") .. ".lua"
            loaded[name] = setfenv(assert(loadfile(path)), env)(name)
        end
        return loaded[name]
    end
    return env.require, tags
end

local scalars = { layers = 2, hidden = 8, heads = 2, kv_heads = 1, head_dim = 4, ffn = 16, vocab = 257, seq = 4,
                  theta = 1e4, eps = 1e-5, dropout = 0, init_std = 0.02, tied = false, bias = false, preset = "" }
local function with(t)
    local s = {}
    for k, v in pairs(scalars) do s[k] = v end
    for k, v in pairs(t) do s[k] = v end
    return s
end
local function ops(calls)
    local t = {}
    for i, c in ipairs(calls) do t[i] = c.op .. (c.name ~= "" and ":" .. c.name or "") end
    return table.concat(t, " ")
end

describe("constructors", function()
    it("only tag the table that they are given", function()
        local require, tags = library()
        local m = require "mascon"
        local t = { peak = 1 }
        assert.are.equal(t, m.lr.cosine(t))
        assert.are.equal("lr.cosine", tags[t])
        assert.are.equal("adamw", tags[m.adamw {}])
        assert.are.equal("data.required", tags[m.data.required])
        assert.are.equal("data.declared", tags[m.data.declared { tokens = 1, vocab = 2 }])
        assert.are.equal("decoder", tags[m.models.gpt2 { layers = 1 }])
        assert.are.equal("one_f_one_b", m.schedule.one_f_one_b)
    end)
    it("refuse anything but one table", function()
        local m = library() "mascon"
        assert.has_error(function() m.adamw(1) end, "m.adamw: takes one table, as in m.adamw { ... }")
        assert.has_error(function() m.lr.cosine({}, {}) end)
        assert.has_error(function() m.models.llama() end)
        assert.has_error(function() return m.lr.cosin end, "m.lr has no 'cosin'")
    end)
    it("leave a preset's own table untouched", function()
        local m = library() "mascon"
        local mine = { layers = 3 }
        local t = m.models.llama(mine)
        assert.are.same({ layers = 3 }, mine)
        assert.are.equal(3, t.layers)
        assert.are.equal("llama", t.preset)
    end)
end)

describe("trace", function()
    it("writes the llama block in the order of its text", function()
        local require = library()
        local t = require("mascon").models.llama {}
        local out = require "mascon.trace"(scalars, t)
        assert.are.equal("embedding:embed", ops(out.stem))
        assert.are.equal("rmsnorm:attn_norm linear:attn.q linear:attn.k linear:attn.v rope rope attention linear:attn.o add "
            .. "rmsnorm:mlp_norm linear:mlp.gate linear:mlp.up swiglu linear:mlp.down add", ops(out.blocks[1]))
        assert.are.equal("rmsnorm:norm linear:head", ops(out.head))
        assert.are.same({ 0, 0 }, out.layer_block)
        assert.are.equal(1, #out.blocks)
        assert.are.same({ 5, 6, 4 }, out.blocks[1][7]["in"]) -- rotated q, rotated k, v
        assert.are.equal(4, out.blocks[1][3].attrs.out)        -- one kv head of 4
        assert.is_nil(out.head[2].attrs.tied)
    end)
    it("writes gpt2 with dropout where it is not zero, and ties the head", function()
        local require = library()
        local t = require("mascon").models.gpt2 {}
        local s = with { dropout = 0.1, bias = true, tied = true, preset = "gpt2" }
        local out = require "mascon.trace"(s, t)
        assert.are.equal("embedding:embed positions:pos dropout:embed_drop", ops(out.stem))
        assert.are.equal("layernorm:attn_norm linear:attn.q linear:attn.k linear:attn.v attention linear:attn.o dropout:attn.drop add "
            .. "layernorm:mlp_norm linear:mlp.up gelu linear:mlp.down dropout:mlp.drop add", ops(out.blocks[1]))
        assert.are.equal("embed.weight", out.head[2].attrs.tied)
        assert.is_true(out.blocks[1][2].attrs.bias)
        assert.is_true(math.abs(out.blocks[1][6].attrs.std - 0.02 / 2) < 1e-15)
        local dry = require "mascon.trace"(with { preset = "gpt2" }, t)
        assert.is_nil(ops(dry.blocks[1]):find "dropout")
    end)
    it("keeps layers apart that differ in one attribute", function()
        local require = library()
        local nn = require("mascon").nn
        local out = require "mascon.trace"(with { layers = 4 }, {
            block = function(x, c, layer) return nn.scale(x, layer > 2 and 0.5 or 0.25) end,
        })
        assert.are.same({ 0, 0, 1, 1 }, out.layer_block)
    end)
    it("takes + and * in either order", function()
        local require = library()
        local nn = require("mascon").nn
        local out = require "mascon.trace"(scalars, { block = function(x) return 2 * x + x * 3 end })
        assert.are.equal("scale scale add", ops(out.blocks[1]))
        assert.are.equal(2, out.blocks[1][1].attrs.scale)
        assert.are.equal(3, out.blocks[1][2].attrs.scale)
    end)
    it("forgets a trace that failed", function()
        local require = library()
        local nn = require("mascon").nn
        local trace = require "mascon.trace"
        assert.has_error(function() trace(scalars, { block = function(x) return nn.gelu(nil) end }) end)
        local out = trace(scalars, { block = function(x) return nn.gelu(x) end })
        assert.are.equal("gelu", ops(out.blocks[1]))
    end)
end)
