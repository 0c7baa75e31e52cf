-- matrix.lua PROGRAM [BUILD/tests] [--quick | --chains | [--overlap] LAYOUT ...] [--reference PROGRAM] [--limit S]
-- Any layout means what one rank means.
--
-- Layouts are generated from the axes below so that every pair of values of two axes meets in one of them; the script proves
-- that and fails if one is missing. Each trains a few steps and is held against one rank that computes the samples one by one:
--   initial weights and their hash   bit for bit (the rate of step 1 is 0)
--   loss and norm of every step; every gradient of step 1; every value and moment after the last step
-- by the metric of lib/ckpt.lua: fp64 to 1e-11, which is the proof; fp32 as the noise twin allows, which is one rank with the
-- samples of each batch in reverse order (lib/world.lua): at most max(1e-6, 5 x the twin's largest deviation).
-- Then: layouts with overlap off and on over a slow link, bit for bit; runs that go on with another layout at every step.
-- MC_TEST_LONG: every three values meet.
-- --reference: the program that runs on one rank, where that is another one (tests/mutations). --limit: seconds of a run.
-- LAYOUT: as printed beside a failure, for example 'model=gpt2 dp=2 tp=2 sp=1'; what is not said is the first value.
local here = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = here .. "/lib/?.lua;" .. here .. "/../fault/lib/?.lua;" .. package.path
local P = require "proc"
local W = require "world"
local ckpt = require "ckpt"
local cover = require "cover"

local AXES = {
    { "model", W.NAMES },
    { "dp", { 1, 2, 3, 4 } },
    { "tp", { 1, 2, 4 } },
    { "sp", { 0, 1 } },
    { "shard", { 0, 1 } },   -- parallel.shard_optimizer
    { "grads", { 0, 1 } },   -- parallel.overlap.grads
    { "params", { 0, 1 } },  -- parallel.overlap.params
    { "recompute", { "none", "block" } },
    { "micro", { 1, 2 } },
    { "global", { 22, 23, 24 } }, -- 23 is divided by no dp; 22 over 2 to 4 leaves microbatches of one beside those of two
    { "precision", { "fp64", "fp32" } },
}
local function legal(c) return not (AXES[9][2][c[9]] == 2 and AXES[10][2][c[10]] == 23) end -- whole microbatches on one rank
local LIMIT = 1e-11
local QUANTITIES = { "loss", "norm", "gradient", "value", "moment" }
local long = os.getenv "MC_TEST_LONG" ~= nil

local program = arg[1] or error "usage: luajit tests/dist/matrix.lua PROGRAM [--quick | --chains | LAYOUT ...]"
local option = { limit = "120" }
for i = 2, #arg do
    if not arg[i]:find "^%-%-" and not arg[i]:find "=" and not arg[i - 1]:find "^%-%-" then option.tests = arg[i] end
    local k = arg[i]:match "^%-%-(%l+)$"
    if k then option[k] = arg[i + 1] or "" end
end
local function capture(cmd)
    local p = io.popen(cmd)
    local s = p:read "*a"
    p:close()
    return (s:gsub("\n$", ""))
end
program = capture("realpath '" .. program .. "'")
local judge_program = option.reference and capture("realpath '" .. option.reference .. "'") or program
local dir = P.tmpdir()
W.write(dir, assert(P.read(here .. "/../../recipes/text/moon.txt")))

-- ---- layouts ----

local function named(c)
    local l = {}
    for d, axis in ipairs(AXES) do l[axis[1]] = axis[2][c[d]] end
    return l
end
local function text(l)
    local t = {}
    for _, axis in ipairs(AXES) do
        if l[axis[1]] ~= axis[2][1] or axis[1] == "model" then t[#t + 1] = axis[1] .. "=" .. l[axis[1]] end
    end
    return table.concat(t, " ")
end
local function parse(s)
    local l = {}
    for _, axis in ipairs(AXES) do l[axis[1]] = axis[2][1] end
    for k, v in s:gmatch "(%w+)=([%w_]+)" do
        local known
        for _, axis in ipairs(AXES) do
            for _, value in ipairs(axis[2]) do
                if axis[1] == k and tostring(value) == v then l[k], known = value, true end
            end
        end
        if not known then error(("%s=%s is on no axis"):format(k, v), 0) end
    end
    return l
end
local function with(l, changes)
    local t = {}
    for k, v in pairs(l) do t[k] = v end
    for k, v in pairs(changes) do t[k] = v end
    return t
end

-- ---- runs: as many at a time as have 16 ranks together ----

local RANKS_AT_ONCE = 16
local nruns = 0

-- One run: { layout, twin, path }; `more` are further arguments.
local function start(l, o)
    o = o or {}
    local run = { layout = l, what = text(l), path = o.path, ranks = l.dp * l.tp }
    nruns = nruns + 1
    run.path = run.path or ("%s/run%03d"):format(dir, nruns)
    run.env = { OMP_NUM_THREADS = "1" }
    for k, v in pairs(o.env or {}) do run.env[k] = v end
    run.argv = { o.program or program, "train", ("%s/%s-%d%s.lua"):format(dir, l.model, l.global, o.twin and "-twin" or ""), "--json",
        "--run", run.path, "--ranks", tostring(run.ranks) }
    local function set(k, v)
        run.argv[#run.argv + 1] = "--set"
        run.argv[#run.argv + 1] = k .. "=" .. tostring(v)
    end
    set("precision", l.precision)
    set("parallel.tp", l.tp)
    set("parallel.sp", l.sp == 1)
    set("parallel.shard_optimizer", l.shard == 1)
    set("parallel.overlap.grads", l.grads == 1)
    set("parallel.overlap.params", l.params == 1)
    set("parallel.recompute", l.recompute)
    set("batch.micro", l.micro)
    for _, a in ipairs(o.more or {}) do run.argv[#run.argv + 1] = a end
    return run
end

-- Runs them all; then(run) as each ends.
local function go(runs, after)
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
            if not done and P.now() - r.started > tonumber(option.limit) then
                P.kill(r.pid, P.SIGKILL)
                P.wait(r.pid, 10)
                done, rc, sig = true, nil, "no end within " .. option.limit .. " s"
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
    P.check(false, "%s: " .. fmt .. "\n    again: luajit tests/dist/matrix.lua PROGRAM '%s'", r.what, ...)
end
local function ended_well(r)
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

local function relative(a, b)
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
        most("loss", relative(x.loss[s], y.loss[s]), "step " .. s)
        most("norm", relative(x.norm[s], y.norm[s]), "step " .. s)
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

-- ---- the comparison ----

local reference, twin = {}, {}
local worst = { fp64 = {}, fp32 = {} }
local compared, bitwise, biggest = 0, 0, 0

local function one_rank(l)
    return with(parse "", { model = l.model, global = l.global, precision = l.precision })
end
local function key(l) return text(one_rank(l)) end

-- The references that these layouts need, run.
local function make_references(layouts)
    local runs = {}
    for _, l in ipairs(layouts) do
        local k = key(l)
        if not reference[k] then
            reference[k] = start(one_rank(l), { program = judge_program })
            runs[#runs + 1] = reference[k]
            if l.precision == "fp32" then
                -- dropout goes by the place in the batch: in reverse order it would be another computation
                local still = W.DROPS[l.model] and { "--set", "model.dropout=0" }
                twin[k] = start(one_rank(l), { program = judge_program, twin = true, more = still })
                twin[k].of = still and start(one_rank(l), { program = judge_program, more = still }) or reference[k]
                runs[#runs + 1] = twin[k]
                if still then runs[#runs + 1] = twin[k].of end
            end
        end
    end
    go(runs, function(r)
        if not ended_well(r) then
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
    return #runs
end

local function limit(l, q)
    if l.precision == "fp64" then return LIMIT end
    local most = math.max(1e-6, 5 * twin[key(l)].dev[q])
    return q == "gradient" and math.min(most, 1e-5) or most
end

local function judge(r)
    if not ended_well(r) then return end
    local ref = reference[key(r.layout)]
    local sound, a, b = pcall(function() return load(r), load(ref) end)
    if not sound then return failed(r, "%s", tostring(a), r.what) end
    local ok = true
    local function must(cond, fmt, ...)
        if not cond then
            ok = false
            failed(r, fmt, ...)
        end
    end
    local other = ckpt.differs(b.first, a.first, "model/")
    must(not other, "initial weights differ from one rank's: %s", tostring(other), r.what)
    must(a.first.hash == b.first.hash, "weights_hash of the same weights is %s, not %s", a.first.hash, b.first.hash, r.what)
    must(#a.last.name == #b.last.name, "the checkpoint has %d tensors, not %d", #a.last.name, #b.last.name, r.what)
    local dev, who, n = deviations(r, ref, r.layout.model)
    for _, q in ipairs(QUANTITIES) do
        local most = limit(r.layout, q)
        must(dev[q] <= most, "%s deviates by %.3g (%s), allowed: %.3g", q, dev[q], who[q], most, r.what)
        local w = worst[r.layout.precision]
        if dev[q] >= (w[q] and w[q][1] or 0) then w[q] = { dev[q], who[q], r.what } end
    end
    compared = compared + n
    biggest = math.max(biggest, r.ranks)
    if ok then P.check(true, "") end
end

local function matrix(layouts)
    local refs = make_references(layouts)
    local runs, microbatches = {}, 0
    for i, l in ipairs(layouts) do
        runs[i] = start(l)
        if math.floor(l.global / l.dp) / l.micro > 2 then microbatches = microbatches + 1 end
    end
    go(runs, judge)
    print(("%d layouts up to %d ranks, %d with 3 microbatches or more on every replica; %d runs of one rank")
        :format(#layouts, biggest, microbatches, refs))
end

-- Overlap changes when things happen, never a bit of them: over a link that makes each message of a bucket late, and without
-- saves between the steps, which would wait for all. Of `layouts` the first `count` with replicas.
local function overlap(layouts, count)
    local shim, of, runs = (option.tests or "") .. "/libpreload_link.so", {}, {}
    local o = { more = { "--set", "checkpoint.every=100 steps", "--set", "steps.steps=" .. 2 * W.STEPS } }
    if P.read(shim) then
        o.env = { LD_PRELOAD = shim, MC_LINK_MS = "5", MC_LINK_BYTES = "4000" }
    else
        P.skip "no slow link (libpreload_link.so): overlap at full speed"
    end
    for _, l in ipairs(layouts) do
        if l.dp > 1 and #runs < 2 * count then
            local on = start(with(l, { grads = 1, params = 1 }), o)
            of[on] = start(with(l, { grads = 0, params = 0 }), o)
            runs[#runs + 1], runs[#runs + 2] = on, of[on]
        end
    end
    local sound = {}
    go(runs, function(r) sound[r] = ended_well(r) end)
    for _, r in ipairs(runs) do
        if of[r] and sound[r] and sound[of[r]] then
            local what
            local a, b = P.metrics(r.path), P.metrics(of[r].path)
            for s = 1, 2 * W.STEPS do
                for _, k in ipairs { "loss", "grad_norm" } do
                    if P.field(a[s], k) ~= P.field(b[s], k) then what = what or ("%s of step %d"):format(k, s) end
                end
            end
            local x, y = ckpt.read(ckpt.find(r.path, 2 * W.STEPS)), ckpt.read(ckpt.find(of[r].path, 2 * W.STEPS))
            what = what or ckpt.differs(y, x, "")
            bitwise = bitwise + 1
            P.check(not what, "%s: overlap changes bits: %s", r.what, tostring(what))
        end
    end
    print(("%d layouts with overlap off and on: the same bits"):format(#runs / 2))
end

-- A run that is saved on one layout and goes on with the next one, every step.
local CHAINS = {
    { "model=gpt2 dp=2 tp=2 sp=1 shard=1", "model=gpt2 tp=4", "model=gpt2 dp=3 shard=1 grads=1 params=1" },
    { "model=one_kv", "model=one_kv dp=4 shard=1 micro=2", "model=one_kv tp=4 dp=2 sp=1" },
    { "model=llama tp=4 sp=1 dp=3", "model=llama dp=2 tp=2 shard=1 recompute=block", "model=llama" },
}
local function chains()
    local list = {}
    for _, c in ipairs(CHAINS) do list[#list + 1] = with(parse(c[1]), {}) end
    make_references(list)
    local last = {}
    for s = 1, W.STEPS do
        local runs = {}
        for i, c in ipairs(CHAINS) do
            if s == 1 or last[i].rc == 0 then
                runs[#runs + 1] = start(parse(c[s]), { path = ("%s/chain%d"):format(dir, i),
                    more = { "--set", "steps.steps=" .. s, "--resume", s == 1 and "never" or "auto" } })
                last[i] = runs[#runs]
                last[i].what = table.concat(c, " -> ")
            end
        end
        go(runs, function() end)
    end
    for _, r in ipairs(last) do judge(r) end
    print(("%d runs that change their layout at every step"):format(#CHAINS))
end

-- Sequences without labels are in the batch: the same steps with all labels have another loss.
local function masks()
    local l = parse "model=llama"
    local all = start(l, { more = { "--set", "data.mask_eod=false" } })
    make_references { l }
    go({ all }, ended_well)
    if all.rc == 0 then
        local d = relative(load(all).loss[1], load(reference[key(l)]).loss[1])
        P.check(d > 1e-5, "the loss of step 1 is the same with and without labels after an end of document (%g)", d)
    end
end

-- A few layouts that together touch everything, for whoever wants to know quickly.
local QUICK = {
    "model=gpt2 dp=2 tp=2 sp=1 shard=1 grads=1 params=1",
    "model=one_kv dp=3 tp=4 shard=1",
    "model=odd tp=4 sp=1 micro=2",
    "model=qwen dp=2 tp=4 sp=1 grads=1 recompute=block",
    "model=llama dp=4 shard=1 params=1",
}

local function pairs_proved(all, list, k, name)
    local seen, possible = cover.count(AXES, all, list, k)
    print(("%d of %d %s of axis values"):format(seen, possible, name))
    return seen == possible
end

local began, layouts = P.now(), {}
for i = 2, #arg do
    if arg[i]:find "=" then layouts[#layouts + 1] = parse(arg[i]) end
end
if option.overlap then
    overlap(layouts, #layouts)
elseif #layouts > 0 then
    matrix(layouts)
elseif option.chains then
    chains()
elseif option.quick then
    for i, s in ipairs(QUICK) do layouts[i] = parse(s) end
    matrix(layouts)
    overlap(layouts, 2)
else
    local all = cover.product(AXES, legal)
    local list = cover.fill(AXES, all, {}, 2)
    local proof = {} -- more of what proves: fp64, several ranks
    for _, c in ipairs(all) do
        if c[#AXES] == 1 and c[2] * c[3] > 1 then proof[#proof + 1] = c end
    end
    cover.fill(AXES, long and all or proof, list, 3, not long and 44 or nil)
    P.check(pairs_proved(all, list, 2, "pairs"), "a pair of axis values is in no layout")
    if long then P.check(pairs_proved(all, list, 3, "triples"), "three axis values are in no layout") end
    P.check(#list >= 40, "only %d layouts", #list)
    for i, c in ipairs(list) do layouts[i] = named(c) end
    matrix(layouts)
    overlap(layouts, long and 100 or 8)
    chains()
    masks()
end
for _, p in ipairs { "fp64", "fp32" } do
    for _, q in ipairs(QUANTITIES) do
        local w = worst[p][q]
        if w then print(("%s %-9s deviates at most by %.2e  (%s, %s)"):format(p, q, w[1], w[2], w[3])) end
    end
end
print(("%d comparisons of numbers and tensors with one rank, %d runs bit for bit, %.0f s"):format(compared, bitwise,
    P.now() - began))
P.sh("rm -rf '" .. dir .. "'")
P.finish()
