-- layouts.lua - trains layouts and holds them against one rank, and against each other: what matrix.lua and pipes.lua share.
--
-- A layout is a table of axis values. Each run trains the steps of world.lua and saves at each; held against one rank that
-- computes the samples one by one:
--   initial weights and their hash   bit for bit (the rate of step 1 is 0)
--   loss and norm of every step; every gradient of step 1; every value and moment after the last step
-- by the metric of ckpt.lua: fp64 to 1e-11, which is the proof; fp32 as the noise twin allows, which is one rank with the
-- samples of each batch in reverse order: at most max(1e-6, 5 x the twin's largest deviation).
-- Between two layouts that should differ in nothing: losses and norms digit by digit, all tensors bit for bit.
local P = require "proc"
local W = require "world"
local ckpt = require "ckpt"
local L = { nruns = 0, compared = 0, bitwise = 0, biggest = 0, runs_of_one = 0 }

local LIMIT = 1e-11
local QUANTITIES = { "loss", "norm", "gradient", "value", "moment" }
local RANKS_AT_ONCE = 16
local worst = { fp64 = {}, fp32 = {} }
local axes, script, dir, program, judge_program

local function capture(cmd)
    local p = io.popen(cmd)
    local s = p:read "*a"
    p:close()
    return (s:gsub("\n$", ""))
end

-- o: script, axes { { name, values, set = key of the recipe, or what gives key and value of a layout, yes = 1: values 0 and 1
-- mean false and true, also = pattern of further values }, ... }, layers, eps. Arguments: PROGRAM [BUILD/tests] [--OPTION] [LAYOUT ...] [--reference PROGRAM] [--limit S].
-- Returns options, and the layouts among the arguments.
function L.open(o, argv)
    axes, script = o.axes, o.script
    program = argv[1] or error(("usage: luajit tests/dist/%s PROGRAM [BUILD/tests] [OPTION] [LAYOUT ...]"):format(script), 0)
    L.option = { limit = "120" }
    for i = 2, #argv do
        if not argv[i]:find "^%-%-" and not argv[i]:find "=" and not argv[i - 1]:find "^%-%-" then L.option.tests = argv[i] end
        local k = argv[i]:match "^%-%-(%l+)$"
        if k then L.option[k] = argv[i + 1] or "" end
    end
    program = capture("realpath '" .. program .. "'")
    judge_program = L.option.reference and capture("realpath '" .. L.option.reference .. "'") or program
    dir = P.tmpdir()
    L.dir, L.began = dir, P.now()
    W.write(dir, assert(P.read(o.here .. "/../../recipes/text/moon.txt")), o.layers, o.eps or 1e-8)
    local layouts = {}
    for i = 2, #argv do
        if argv[i]:find "=" then layouts[#layouts + 1] = L.parse(argv[i]) end
    end
    return L.option, layouts
end

-- ---- layouts ----

function L.named(c)
    local l = {}
    for d, axis in ipairs(axes) do l[axis[1]] = axis[2][c[d]] end
    return l
end
function L.text(l)
    local t = {}
    for _, axis in ipairs(axes) do
        if l[axis[1]] ~= axis[2][1] or axis[1] == "model" then t[#t + 1] = axis[1] .. "=" .. l[axis[1]] end
    end
    return table.concat(t, " ")
end
function L.parse(s)
    local l = {}
    for _, axis in ipairs(axes) do l[axis[1]] = axis[2][1] end
    for k, v in s:gmatch "(%w+)=([%w_]+)" do
        local known
        for _, axis in ipairs(axes) do
            for _, value in ipairs(axis[2]) do
                if axis[1] == k and tostring(value) == v then l[k], known = value, true end
            end
            if axis[1] == k and axis.also and v:find(axis.also) then l[k], known = tonumber(v) or v, true end
        end
        if not known then error(("%s=%s is on no axis"):format(k, v), 0) end
    end
    return l
end
function L.with(l, changes)
    local t = {}
    for k, v in pairs(l) do t[k] = v end
    for k, v in pairs(changes) do t[k] = v end
    return t
end

-- ---- runs: as many at a time as have 16 ranks together ----

-- One run: { layout, twin, path }; `more` are further arguments.
function L.start(l, o)
    o = o or {}
    local run = { layout = l, what = L.text(l), path = o.path, ranks = l.dp * l.tp * (l.pp or 1) }
    L.nruns = L.nruns + 1
    run.path = run.path or ("%s/run%03d"):format(dir, L.nruns)
    run.env = { OMP_NUM_THREADS = "1" }
    for k, v in pairs(o.env or {}) do run.env[k] = v end
    run.argv = { o.program or program, "train", ("%s/%s-%d%s.lua"):format(dir, l.model, l.global, o.twin and "-twin" or ""), "--json",
        "--run", run.path, "--ranks", tostring(run.ranks) }
    for _, axis in ipairs(axes) do
        local k, v = axis.set, l[axis[1]]
        if type(k) == "function" then k, v = k(l) end
        if axis.yes then v = v == 1 end
        if k then
            run.argv[#run.argv + 1] = "--set"
            run.argv[#run.argv + 1] = k .. "=" .. tostring(v)
        end
    end
    for _, a in ipairs(o.more or {}) do run.argv[#run.argv + 1] = a end
    return run
end

-- Runs them all; after(run) as each ends.
function L.go(runs, after)
    local waiting, flying, ranks = { unpack(runs) }, {}, 0
    while #waiting > 0 or #flying > 0 do
        for i = #waiting, 1, -1 do
            local r = waiting[#waiting + 1 - i]
            if r and (ranks == 0 or ranks + r.ranks <= RANKS_AT_ONCE) then
                table.remove(waiting, #waiting + 1 - i)
                r.pid = P.spawn(r.argv, { out = r.path .. ".out", err = r.path .. ".err", env = r.env })
                r.started, ranks = P.now(), ranks + r.ranks
                flying[#flying + 1] = r
            end
        end
        for i = #flying, 1, -1 do
            local r = flying[i]
            local done, rc, sig = P.poll(r.pid)
            if not done and P.now() - r.started > tonumber(L.option.limit) then
                P.kill(r.pid, P.SIGKILL)
                P.wait(r.pid, 10)
                done, rc, sig = true, nil, "no end within " .. L.option.limit .. " s"
            end
            if done then
                table.remove(flying, i)
                ranks, r.rc, r.seconds = ranks - r.ranks, rc or sig, P.now() - r.started
                after(r)
            end
        end
        P.sleep(0.005)
    end
end

local function failed(r, fmt, ...)
    P.check(false, "%s: " .. fmt .. "\n    again: luajit tests/dist/%s PROGRAM '%s'", r.what, ...)
end
function L.ended_well(r)
    if r.rc == 0 then return true end
    local err = P.read(r.path .. ".err") or ""
    P.check(false, "%s: exit %s: %s", r.what, tostring(r.rc), err:sub(-700))
    return false
end

-- What a run left: metrics, first and last checkpoint.
local function load(r)
    if r.seen then return r.seen end
    local by, _, top = P.metrics(r.path)
    local s = { loss = {}, norm = {}, line = by, top = top }
    for i = 1, top do
        s.loss[i] = tonumber(P.field(by[i], "loss"))
        s.norm[i] = tonumber(P.field(by[i], "grad_norm"))
    end
    s.first = ckpt.read(ckpt.find(r.path, 1) or error(r.what .. ": no checkpoint of step 1", 0))
    s.last = ckpt.read(ckpt.find(r.path, W.STEPS) or error(r.what .. ": no checkpoint of the last step", 0))
    r.seen = s
    return s
end
L.load = load

function L.relative(a, b)
    if a == nil or b == nil or a ~= a or b ~= b then return math.huge end
    return a == b and 0 or math.abs(a - b) / math.max(math.abs(b), 1e-300)
end

-- Deviation of run a from run b by quantity, and what deviates most; how many numbers or tensors were held together.
local function deviations(a, b, model)
    local x, y, dev, who, n = load(a), load(b), {}, {}, 0
    local function most(q, v, name)
        if v >= (dev[q] or 0) then dev[q], who[q] = v, name end
    end
    for s = 1, W.STEPS do
        most("loss", L.relative(x.loss[s], y.loss[s]), "step " .. s)
        most("norm", L.relative(x.norm[s], y.norm[s]), "step " .. s)
        n = n + 2
    end
    local function tensors(q, at, prefix, leave_out)
        local v, name, count = ckpt.deviation(x[at], y[at], prefix, leave_out)
        most(q, v, name)
        n = n + (count or 1)
    end
    tensors("gradient", "first", "adam_m/")
    tensors("value", "last", "model/", W.no_value(model, a.layout.precision))
    tensors("moment", "last", "adam_m/")
    tensors("moment", "last", "adam_v/", W.no_value(model, a.layout.precision))
    return dev, who, n
end

-- The first thing in which two runs of n steps differ at all; nil: the same bits. at: the steps whose checkpoints are compared.
local function apart(a, b, n, at)
    local x, y = P.metrics(a.path), P.metrics(b.path)
    for s = 1, n do
        for _, k in ipairs { "loss", "grad_norm" } do
            local u, v = P.field(x[s] or "", k), P.field(y[s] or "", k)
            if u ~= v or not u then return ("%s of step %d (%s, %s)"):format(k, s, tostring(u), tostring(v)) end
        end
    end
    for _, s in ipairs(at) do
        local u, v = ckpt.read(ckpt.find(a.path, s)), ckpt.read(ckpt.find(b.path, s))
        local what = ckpt.differs(v, u, "")
        if what then return ("%s after step %d"):format(what, s) end
        if #u.name ~= #v.name or u.hash ~= v.hash then return ("weights_hash or the tensors after step %d"):format(s) end
    end
end

-- ---- one rank ----

local reference, twin = {}, {}

function L.one_rank(l)
    return L.with(L.parse "", { model = l.model, global = l.global, precision = l.precision })
end
local function key(l) return L.text(L.one_rank(l)) end
function L.reference(l) return reference[key(l)] end

-- The references that these layouts need, run, with the runs of `more`.
function L.make_references(layouts, more)
    local runs, count = { unpack(more or {}) }, 0
    local function add(l, o)
        local r = L.start(l, o)
        runs[#runs + 1], count = r, count + 1
        return r
    end
    for _, l in ipairs(layouts) do
        local k = key(l)
        if not reference[k] then
            reference[k] = add(L.one_rank(l), { program = judge_program })
            if l.precision == "fp32" then
                -- dropout goes by the place in the batch: in reverse order it would be another computation
                local still = W.DROPS[l.model] and { "--set", "model.dropout=0" }
                twin[k] = add(L.one_rank(l), { program = judge_program, twin = true, more = still })
                twin[k].of = still and add(L.one_rank(l), { program = judge_program, more = still }) or reference[k]
            end
        end
    end
    L.go(runs, function(r)
        if not L.ended_well(r) then
            P.finish()
        end
    end)
    for k, t in pairs(twin) do
        if not t.dev then
            local who
            t.dev, who = deviations(t, t.of, t.layout.model)
            P.check(t.dev.gradient > 0 and t.dev.gradient < 1e-4, "%s: the noise twin deviates by %g (%s): it is no twin", k,
                t.dev.gradient, who.gradient)
        end
    end
    L.runs_of_one = L.runs_of_one + count
end

local function limit(l, q)
    if l.precision == "fp64" then return LIMIT end
    local most = math.max(1e-6, 5 * twin[key(l)].dev[q])
    return q == "gradient" and math.min(most, 1e-5) or most
end

-- A run that has ended, against one rank and, where it has one, bit for bit against its partner.
function L.judge(r)
    if not L.ended_well(r) then return end
    local ref, ok = reference[key(r.layout)], true
    local sound, a, b = pcall(function() return load(r), load(ref) end)
    if not sound then return failed(r, "%s", tostring(a), script, r.what) end
    local function must(cond, fmt, ...)
        if not cond then
            ok = false
            failed(r, fmt, ...)
        end
    end
    local other = ckpt.differs(b.first, a.first, "model/")
    must(not other, "initial weights differ from one rank's: %s", tostring(other), script, r.what)
    must(a.first.hash == b.first.hash, "weights_hash of the same weights is %s, not %s", a.first.hash, b.first.hash, script, r.what)
    must(#a.last.name == #b.last.name, "the checkpoint has %d tensors, not %d", #a.last.name, #b.last.name, script, r.what)
    local dev, who, n = deviations(r, ref, r.layout.model)
    for _, q in ipairs(QUANTITIES) do
        local most = limit(r.layout, q)
        must(dev[q] <= most, "%s deviates by %.3g (%s), allowed: %.3g", q, dev[q], who[q], most, script, r.what)
        local w = worst[r.layout.precision]
        if dev[q] >= (w[q] and w[q][1] or 0) then w[q] = { dev[q], who[q], r.what } end
    end
    if r.partner then
        local what = apart(r, r.partner, W.STEPS, { 1, W.STEPS })
        L.bitwise = L.bitwise + 1
        must(not what, "other bits than %s: %s", r.partner.what, tostring(what), script, r.what)
    end
    L.compared = L.compared + n
    L.biggest = math.max(L.biggest, r.ranks)
    if ok then P.check(true, "") end
end

-- The one-rank runs that these layouts need, and a run of each partner; gives partner -> run.
local function make_partners(layouts, of)
    local by, more = {}, {}
    for _, l in pairs(of) do
        local k = L.text(l)
        if k ~= key(l) and not by[k] then
            by[k] = L.start(l, { program = judge_program })
            more[#more + 1] = by[k]
        end
    end
    L.make_references(layouts, more)
    for _, l in pairs(of) do by[L.text(l)] = by[L.text(l)] or reference[key(l)] end
    return by, #more
end

-- Trains and judges. partner(layout): the layout, of fewer ranks, whose bits it must have; may be nil.
function L.matrix(layouts, partner)
    local of, microbatches, before = {}, 0, L.runs_of_one
    for i, l in ipairs(layouts) do
        of[i] = partner and partner(l)
        if math.floor(l.global / l.dp) / l.micro > 2 then microbatches = microbatches + 1 end
    end
    local by, n = make_partners(layouts, of)
    local runs = {}
    for i, l in ipairs(layouts) do
        runs[i] = L.start(l)
        runs[i].partner = of[i] and by[L.text(of[i])]
    end
    L.go(runs, function(r)
        L.judge(r)
        r.seen = nil
    end)
    print(("%d layouts up to %d ranks, %d with 3 microbatches or more on every replica; %d runs of one rank")
        :format(#layouts, L.biggest, microbatches, L.runs_of_one - before))
    if partner then print(("%d further runs without a pipeline, whose bits they must have"):format(n)) end
end

-- Runs pairs { run, other } of n steps, which must have the same bits: metrics, and the checkpoint of the last step.
function L.same(list, n, story)
    local runs, sound = {}, {}
    for _, x in ipairs(list) do runs[#runs + 1], runs[#runs + 2] = x[1], x[2] end
    L.go(runs, function(r) sound[r] = L.ended_well(r) end)
    for _, x in ipairs(list) do
        if sound[x[1]] and sound[x[2]] then
            local what = apart(x[1], x[2], n, { n })
            L.bitwise = L.bitwise + 1
            P.check(not what, "%s: %s: %s", x[1].what, story, tostring(what))
        end
    end
end

-- Overlap changes when things happen, never a bit of them: over a link that makes each message of a bucket late, and without
-- saves between the steps, which would wait for all. Of `layouts` the first `count` with replicas.
function L.overlap(layouts, count)
    local shim, list = (L.option.tests or "") .. "/libpreload_link.so", {}
    local o = { more = { "--set", "checkpoint.every=100 steps", "--set", "steps.steps=" .. 2 * W.STEPS } }
    if P.read(shim) then
        o.env = { LD_PRELOAD = shim, MC_LINK_MS = "5", MC_LINK_BYTES = "4000" }
    else
        P.skip "no slow link (libpreload_link.so): overlap at full speed"
    end
    for _, l in ipairs(layouts) do
        if l.dp > 1 and #list < count then
            list[#list + 1] = { L.start(L.with(l, { grads = 1, params = 1 }), o), L.start(L.with(l, { grads = 0, params = 0 }), o) }
        end
    end
    L.same(list, 2 * W.STEPS, "overlap changes bits")
    print(("%d layouts with overlap off and on: the same bits"):format(#list))
end

-- Runs that are saved on one layout and go on with the next one, every step. Where all of them have one partner, its bits.
function L.chains(list, partner)
    local firsts, of, last = {}, {}, {}
    for i, c in ipairs(list) do
        firsts[i] = L.parse(c[1])
        of[i] = partner and partner(firsts[i])
        for s = 2, #c do
            if of[i] and L.text(partner(L.parse(c[s]))) ~= L.text(of[i]) then of[i] = nil end
        end
    end
    local by = make_partners(firsts, of)
    for s = 1, W.STEPS do
        local runs = {}
        for i, c in ipairs(list) do
            if s == 1 or last[i].rc == 0 then
                local r = L.start(L.parse(c[s]), { path = ("%s/chain%d"):format(dir, i),
                    more = { "--set", "steps.steps=" .. s, "--resume", s == 1 and "never" or "auto" } })
                r.what, r.partner = table.concat(c, " -> "), of[i] and by[L.text(of[i])]
                runs[#runs + 1], last[i] = r, r
            end
        end
        L.go(runs, function() end)
    end
    for _, r in ipairs(last) do L.judge(r) end
    print(("%d runs that change their layout at every step"):format(#list))
end

function L.proved(name, seen, possible)
    print(("%d of %d %s of axis values"):format(seen, possible, name))
    return seen == possible
end

-- What deviated most, and the end.
function L.close()
    for _, p in ipairs { "fp64", "fp32" } do
        for _, q in ipairs(QUANTITIES) do
            local w = worst[p][q]
            if w then print(("%s %-9s deviates at most by %.2e  (%s, %s)"):format(p, q, w[1], w[2], w[3])) end
        end
    end
    print(("%d comparisons of numbers and tensors with one rank, %d runs bit for bit, %.0f s"):format(L.compared, L.bitwise,
        P.now() - L.began))
    P.sh("rm -rf '" .. dir .. "'")
    P.finish()
end

return L
