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
                  theta = 1e4, eps = 1e-5, dropout = 0, init_std = 0.02, tied = false, bias = false, preset = "",
                  window = 0, documents = false, rope_scaling = "none", rope_factor = 1, rope_original = 0 }
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
    it("gives rope and attention the model's scaling, window and documents, unless the call says otherwise", function()
        local require = library()
        local nn = require("mascon").nn
        local s = with { window = 3, documents = true, rope_scaling = "yarn", rope_factor = 4, rope_original = 64 }
        local function traced(rope, attention)
            return require "mascon.trace"(s, { block = function(x)
                local q, k = nn.rope(x, x, rope)
                return nn.attention(q, k, x, attention)
            end }).blocks[1]
        end
        local calls = traced()
        assert.are.same({ theta = 1e4, head_dim = 4, scaling = "yarn", factor = 4, original_max = 64 }, calls[1].attrs)
        assert.are.same(calls[1].attrs, calls[2].attrs)
        assert.are.same({ causal = true, head_dim = 4, window = 3, documents = true }, calls[3].attrs)
        calls = traced({ scaling = "none", rotary_dim = 2, layout = "interleaved" }, { window = 0, documents = false, softcap = 5 })
        assert.are.same({ theta = 1e4, head_dim = 4, rotary_dim = 2, layout = "interleaved" }, calls[1].attrs)
        assert.are.same({ causal = true, head_dim = 4, softcap = 5 }, calls[3].attrs)
        assert.are.same({ causal = false, head_dim = 4 }, traced(nil, { causal = false })[3].attrs)
        s.rope_original = 0
        assert.has_error(traced, 'nn.rope: scaling "yarn" needs original_max, or model.rope_original')
        s.rope_original = 64
        assert.has_error(function() traced { rotary_dim = 6 } end, "nn.rope: rotary_dim 6 is more than head_dim 4")
        assert.has_error(function() traced { rotary_dim = 3 } end, "nn.rope: rotary_dim 3 is odd; rope rotates pairs")
    end)
    it("writes each preset's block and head", function()
        local require = library()
        local attn = "rmsnorm:attn_norm linear:attn.q linear:attn.k linear:attn.v "
        local mlp = "rmsnorm:mlp_norm linear:mlp.gate linear:mlp.up swiglu linear:mlp.down add"
        local plain = attn .. "rope rope attention linear:attn.o add " .. mlp
        local gemma = attn .. "rope rope attention linear:attn.o %sadd rmsnorm:mlp_norm linear:mlp.gate linear:mlp.up geglu linear:mlp.down %sadd"
        local expect = {
            llama2 = plain, llama3 = plain, mistral = plain, qwen2 = plain,
            qwen3 = attn .. "rmsnorm:attn.q_norm rmsnorm:attn.k_norm rope rope attention linear:attn.o add " .. mlp,
            gpt3 = "layernorm:attn_norm linear:attn.q linear:attn.k linear:attn.v attention linear:attn.o add "
                .. "layernorm:mlp_norm linear:mlp.up gelu linear:mlp.down add",
            gemma = gemma:format("", ""),
        }
        for name, block in pairs(expect) do
            local preset = require("mascon").models[name]
            local t = preset {}
            assert.are.equal(name, t.preset)
            assert.are.equal(block, ops(require "mascon.trace"(scalars, t).blocks[1]))
            assert.are.equal(5, preset({ layers = 5 }).layers)
            assert.has_error(function() preset(1) end)
        end
        local bias = require "mascon.trace"(scalars, require("mascon").models.qwen2 {}).blocks[1]
        assert.is_true(bias[2].attrs.bias and bias[3].attrs.bias and bias[4].attrs.bias)
        assert.is_falsy(bias[8].attrs.bias)
        local bands = require "mascon.trace"(with { window = 2 }, require("mascon").models.gpt3 {})
        assert.are.same({ 0, 1 }, bands.layer_block)
        assert.is_nil(bands.blocks[1][5].attrs.window)
        assert.are.equal(2, bands.blocks[2][5].attrs.window)
        local two = require("mascon").models.gemma { attn_softcap = 50, logit_softcap = 30, post_norms = true, query_scale = 16 }
        local out = require "mascon.trace"(with { window = 2, tied = true }, two)
        assert.are.equal("embedding:embed scale", ops(out.stem))
        assert.are.equal(gemma:format("rmsnorm:attn.post_norm ", "rmsnorm:mlp.post_norm "), ops(out.blocks[1]))
        assert.are.same({ causal = true, head_dim = 4, softcap = 50, scale = 0.25, window = 2 }, out.blocks[1][7].attrs)
        assert.is_nil(out.blocks[2][7].attrs.window)
        assert.are.equal("rmsnorm:norm linear:head softcap", ops(out.head))
        assert.has_error(function() require("mascon").models.gemma { attn_softcap = true } end, "m.models.gemma: attn_softcap must be a number")
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
