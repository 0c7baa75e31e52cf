-- nn.lua - the ops that a model's functions call. A value is a proxy: the call is written down, nothing is computed.
--
-- I1  A function's calls form a list; value 0 is its argument, call i (from 0) makes value i + 1.
-- I2  A value belongs to one trace; `width` is its number of columns where that is known.
-- I3  Every mistake is one message at the caller's line.

local nn, Value = {}, {}
local fail = host.fail
local trace -- the trace in progress: { calls = {}, names = {}, used = {}, c = scalars }

local function kind_of(v) return rawequal(v, nil) and "nil" or type(v) end
local function is_value(v) return type(v) == "table" and rawget(v, "trace") ~= nil and rawget(v, "id") ~= nil end

local function value(op, v, what)
    if not is_value(v) then fail(("nn.%s: %s must be a traced value, not %s"):format(op, what, kind_of(v))) end
    if v.trace ~= trace then fail(("nn.%s: %s belongs to another function's trace"):format(op, what)) end
    return v
end

local function new_value(width)
    return setmetatable({ trace = trace, id = #trace.calls, width = width }, Value)
end

local function check_name(op, name)
    if type(name) ~= "string" then fail(("nn.%s: the first argument is the name, a text, not %s"):format(op, kind_of(name))) end
    if #name > 60 or not name:find("^[%a_][%w_]*$") and not name:find("^[%a_][%w_%.]*[%w_]$") or name:find("..", 1, true) then
        fail(("nn.%s: '%s' is no name: letters, digits, _ and single inner dots, at most 60"):format(op, name))
    end
    if trace.names[name] then
        fail(("nn.%s: the name '%s' is taken already, on line %d"):format(op, name, trace.names[name]))
    end
    trace.names[name] = host.line()
end

-- Writes a call down; returns its value.
local function emit(op, name, inputs, attrs, width)
    if not trace then fail(("nn.%s: ops can be called only inside a model's stem, block or head"):format(op)) end
    local ids = {}
    for i, v in ipairs(inputs) do
        ids[i] = v.id
        trace.used[v.id] = true
    end
    trace.calls[#trace.calls + 1] = { op = op, name = name, ["in"] = ids, attrs = attrs, line = host.line() }
    return new_value(width)
end

local function begin(op)
    if not trace then fail(("nn.%s: ops can be called only inside a model's stem, block or head"):format(op)) end
end

local function whole(op, v, what)
    if type(v) ~= "number" or v ~= math.floor(v) or v < 1 or v > 2 ^ 40 then
        fail(("nn.%s: %s must be a whole number from 1, not %s"):format(op, what, type(v) == "number" and v or kind_of(v)))
    end
    return v
end

-- options(op, given, { key = check }): every key known, every value of its type.
local checks = {
    bool = function(v) return type(v) == "boolean", "true or false" end,
    number = function(v) return type(v) == "number" and v == v and v < math.huge and v > -math.huge, "a number" end,
    nonneg = function(v) return type(v) == "number" and v >= 0 and v < math.huge, "a number from 0" end,
    positive = function(v) return type(v) == "number" and v > 0 and v < math.huge, "a number above 0" end,
    whole = function(v) return type(v) == "number" and v >= 1 and v == math.floor(v), "a whole number from 1" end,
    text = function(v) return type(v) == "string" and #v < 64, "a short text" end,
    shard = function(v) return v == "column" or v == "row", '"column" or "row"' end,
    layout = function(v) return v == "half" or v == "interleaved", '"half" or "interleaved"' end,
    scaling = function(v)
        return v == "none" or v == "linear" or v == "llama3" or v == "yarn", '"none", "linear", "llama3" or "yarn"'
    end,
    count = function(v) return type(v) == "number" and v >= 0 and v == math.floor(v) and v < 2 ^ 40, "a whole number from 0" end,
}
local function options(op, given, known)
    local out = {}
    if given == nil then return out end
    if type(given) ~= "table" or is_value(given) then fail(("nn.%s: options must be a table, not %s"):format(op, is_value(given) and "a value" or kind_of(given))) end
    for k, v in pairs(given) do
        if not known[k] then
            local names = {}
            for name in pairs(known) do names[#names + 1] = name end
            local near = type(k) == "string" and host.nearest(k, names)
            fail(("nn.%s: unknown option '%s'%s"):format(op, tostring(k), near and ("; did you mean '" .. near .. "'?")
                or #names > 0 and (" (it takes " .. table.concat(names, ", ") .. ")") or " (it takes none)"))
        end
        local ok, want = checks[known[k]](v)
        if not ok then fail(("nn.%s: option '%s' must be %s"):format(op, k, want)) end
        out[k] = v
    end
    return out
end

local function same_width(op, a, b)
    if a.width and b.width and a.width ~= b.width then
        fail(("nn.%s: widths differ: %d and %d"):format(op, a.width, b.width))
    end
    return a.width or b.width
end

-- ---- Ops with parameters ----

-- tokens -> rows of a table [vocab, hidden]. std: of the initial weights.
function nn.embedding(name, tokens, vocab, opt)
    begin "embedding"
    check_name("embedding", name)
    value("embedding", tokens, "the tokens")
    if not trace.tokens or tokens.id ~= 0 then fail("nn.embedding: its input must be the token ids, the stem's argument") end
    whole("embedding", vocab, "vocab")
    local a = options("embedding", opt, { std = "nonneg" })
    a.vocab = vocab
    return emit("embedding", name, { tokens }, a, trace.c.hidden)
end

-- y = x + w[position]. max: positions in the table.
function nn.positions(name, x, max, opt)
    begin "positions"
    check_name("positions", name)
    value("positions", x, "x")
    whole("positions", max, "max")
    local a = options("positions", opt, { std = "nonneg" })
    a.max = max
    return emit("positions", name, { x }, a, x.width)
end

-- y = x W' (+ b). shard: how tensor parallelism cuts W. tied: full name of a parameter to use instead of one of its own.
function nn.linear(name, x, out, opt)
    begin "linear"
    check_name("linear", name)
    value("linear", x, "x")
    whole("linear", out, "the output width")
    local a = options("linear", opt, { bias = "bool", shard = "shard", std = "nonneg", tied = "text" })
    a.out = out
    return emit("linear", name, { x }, a, out)
end

local function norm(op, known)
    nn[op] = function(name, x, opt)
        begin(op)
        check_name(op, name)
        value(op, x, "x")
        local a = options(op, opt, known)
        if a.head_dim and x.width and x.width % a.head_dim ~= 0 then
            fail(("nn.%s: the width %d is no multiple of head_dim %d"):format(op, x.width, a.head_dim))
        end
        if a.eps == nil then a.eps = trace.c.eps end
        return emit(op, name, { x }, a, x.width)
    end
end
-- x / sqrt(mean(x^2) + eps) * w. head_dim: each head of x apart, one w for all. unit_offset: * (1 + w), w from 0.
norm("rmsnorm", { eps = "nonneg", head_dim = "whole", unit_offset = "bool" })
norm("layernorm", { eps = "nonneg" }) -- (x - mean) / sqrt(var + eps) * w + b

-- ---- Ops without parameters ----

-- Rotates the pairs of each head by position. Two values in, two out. rotary_dim: only the first columns of a head.
-- Scaling (formulas: core/graph/op_rope.c) is the model's, rope_scaling, rope_factor, rope_original, unless said here.
function nn.rope(q, k, opt)
    begin "rope"
    value("rope", q, "q")
    value("rope", k, "k")
    local a = options("rope", opt, { theta = "positive", head_dim = "whole", rotary_dim = "whole", layout = "layout",
        scaling = "scaling", factor = "positive", original_max = "whole", low_freq_factor = "positive",
        high_freq_factor = "positive", beta_fast = "positive", beta_slow = "positive", attention_factor = "positive" })
    local c = trace.c
    a.theta, a.head_dim, a.scaling = a.theta or c.theta, a.head_dim or c.head_dim, a.scaling or c.rope_scaling
    if a.scaling == "none" then
        a.scaling = nil
    else
        a.factor = a.factor or c.rope_factor
        if a.scaling ~= "linear" and not a.original_max then
            if c.rope_original < 1 then fail(('nn.rope: scaling "%s" needs original_max, or model.rope_original'):format(a.scaling)) end
            a.original_max = c.rope_original
        end
    end
    local turned, which = a.rotary_dim or a.head_dim, a.rotary_dim and "rotary_dim" or "head_dim"
    if turned % 2 ~= 0 then fail(("nn.rope: %s %d is odd; rope rotates pairs"):format(which, turned)) end
    if turned > a.head_dim then fail(("nn.rope: rotary_dim %d is more than head_dim %d"):format(turned, a.head_dim)) end
    local function attrs()
        local t = {}
        for key, v in pairs(a) do t[key] = v end
        return t
    end
    local rq = emit("rope", "", { q }, attrs(), q.width)
    return rq, emit("rope", "", { k }, attrs(), k.width)
end

-- Causal attention; the numbers of heads follow from the widths. scale: 1 / sqrt(head_dim) when not given. softcap: scores
-- become softcap * tanh(score / softcap). window, documents: what is seen; the model's own unless said here (0, false: all).
function nn.attention(q, k, v, opt)
    begin "attention"
    value("attention", q, "q")
    value("attention", k, "k")
    value("attention", v, "v")
    local a = options("attention", opt, { causal = "bool", head_dim = "whole", scale = "positive", softcap = "positive",
        window = "count", documents = "bool" })
    if a.causal == nil then a.causal = true end
    if a.window == nil and a.causal then a.window = trace.c.window end
    if a.documents == nil and a.causal then a.documents = trace.c.documents end
    if a.window == 0 then a.window = nil end
    if not a.documents then a.documents = nil end
    a.head_dim = a.head_dim or trace.c.head_dim
    same_width("attention", k, v)
    for what, x in pairs { q = q, k = k } do
        if x.width and x.width % a.head_dim ~= 0 then
            fail(("nn.attention: the width %d of %s is no multiple of head_dim %d"):format(x.width, what, a.head_dim))
        end
    end
    if q.width and k.width and (q.width / a.head_dim) % (k.width / a.head_dim) ~= 0 then
        fail(("nn.attention: %d query heads cannot share %d key heads"):format(q.width / a.head_dim, k.width / a.head_dim))
    end
    return emit("attention", "", { q, k, v }, a, q.width)
end

function nn.gelu(x, opt)
    begin "gelu"
    value("gelu", x, "x")
    return emit("gelu", "", { x }, options("gelu", opt, { erf = "bool" }), x.width)
end

local function unary(op)
    nn[op] = function(x, opt)
        begin(op)
        value(op, x, "x")
        return emit(op, "", { x }, options(op, opt, {}), x.width)
    end
end
unary "silu"
unary "relu"
unary "relu_squared" -- max(x, 0)^2

-- cap * tanh(x / cap)
function nn.softcap(x, cap)
    begin "softcap"
    value("softcap", x, "x")
    if not checks.positive(cap) then fail(("nn.softcap: the cap must be a number above 0, not %s"):format(kind_of(cap))) end
    return emit("softcap", "", { x }, { cap = cap }, x.width)
end

local function gated(op, known)
    nn[op] = function(gate, up, opt)
        begin(op)
        value(op, gate, "gate")
        value(op, up, "up")
        return emit(op, "", { gate, up }, options(op, opt, known), same_width(op, gate, up))
    end
end
gated("swiglu", {})               -- silu(gate) * up
gated("geglu", { erf = "bool" })  -- gelu(gate) * up

function nn.add(a, b)
    begin "add"
    value("add", a, "the left side")
    value("add", b, "the right side")
    return emit("add", "", { a, b }, {}, same_width("add", a, b))
end

function nn.scale(x, s)
    begin "scale"
    value("scale", x, "x")
    if not checks.number(s) then fail(("nn.scale: the factor must be a finite number, not %s"):format(kind_of(s))) end
    return emit("scale", "", { x }, { scale = s }, x.width)
end

-- Zeroes elements with probability p in training and divides the rest by 1 - p. p = 0: x itself.
function nn.dropout(name, x, p)
    begin "dropout"
    value("dropout", x, "x")
    if type(p) ~= "number" or not (p >= 0 and p < 1) then
        fail(("nn.dropout: p must be a number from 0 to below 1, not %s"):format(type(p) == "number" and p or kind_of(p)))
    end
    check_name("dropout", name)
    if p == 0 then return x end
    return emit("dropout", name, { x }, { p = p }, x.width)
end

-- ---- Operators on values ----

Value.__add = function(a, b) return nn.add(a, b) end
Value.__mul = function(a, b)
    if type(a) == "number" then a, b = b, a end
    if type(b) ~= "number" then fail "values can be multiplied only by a number (nn.scale)" end
    return nn.scale(a, b)
end
local function no_operator(sign)
    return function() fail(("values have no operator '%s'; there is +, and * with a number"):format(sign)) end
end
for name, sign in pairs { __sub = "-", __div = "/", __unm = "-", __pow = "^", __mod = "%", __concat = "..", __lt = "<", __le = "<=", __call = "( )" } do
    Value[name] = no_operator(sign)
end
Value.__index = function(_, k) fail(("a traced value has no member '%s'"):format(tostring(k))) end
Value.__newindex = function() fail "a traced value cannot be changed" end
Value.__metatable = false
Value.__tostring = function(v) return ("value %d of the trace"):format(rawget(v, "id")) end

-- ---- For trace.lua ----

-- Runs fn(argument, ...) under a new trace; returns its calls. tokens: the argument is the token ids.
host.record = function(what, fn, c, tokens, result_width, ...)
    trace = { calls = {}, names = {}, used = {}, c = c, tokens = tokens }
    local t = trace
    local arg = new_value(not tokens and c.hidden or nil)
    local out, extra = fn(arg, ...)
    trace = nil
    if not is_value(out) then fail(("model.%s: the function must return a traced value, not %s"):format(what, kind_of(out))) end
    if out.trace ~= t then fail(("model.%s: returned a value of another function's trace"):format(what)) end
    if extra ~= nil then fail(("model.%s: the function must return one value"):format(what)) end
    if #t.calls == 0 then fail(("model.%s: the function calls no op"):format(what)) end
    for i, call in ipairs(t.calls) do
        if i ~= out.id and not t.used[i] then
            fail(("model.%s: the result of %s '%s' on line %d is not used"):format(what, call.op, call.name, call.line))
        end
    end
    if result_width and out.width and out.width ~= result_width then
        fail(("model.%s: returned a value of width %d, not %d"):format(what, out.width, result_width))
    end
    return t.calls
end

return host.strict and host.strict(nn, "nn") or nn
