-- pipes.lua PROGRAM [BUILD/tests] [--quick | --chains | --wild FIRST --count N | [--overlap] LAYOUT ...] [--reference PROGRAM] [--limit S]
-- Any pipeline means what one rank means, and changes no bit.
--
-- As matrix.lua: layouts from the axes below, so that every pair of values that can meet does; each against one rank that
-- computes the samples one by one (lib/layouts.lua), fp64 to 1e-11. And more than that: number of pipeline ranks, schedule,
-- chunks, cut of the layers, overlap and recomputation change nothing at all, in fp32 as in fp64. Each run has losses, norms and
-- whole checkpoints bit for bit as those of the same layout without a pipeline (pp 1: same tp, dp, sp, micro, global).
-- Besides, layouts by chance under schedules by chance. MC_TEST_LONG: every three values that can meet do, and more by chance.
local here = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = here .. "/lib/?.lua;" .. here .. "/../fault/lib/?.lua;" .. package.path
local P = require "proc"
local W = require "world"
local cover = require "cover"
local L = require "layouts"

local LAYERS = 8
-- No layers where there is a stem or a head; neighbours of one rank and of another.
local UNEVEN = { [2] = { "5,3", "0,3,4,1" }, [4] = { "3,1,4,0", "0,2,1,1,2,1,1,0" } }
-- A schedule of nobody else's: waves of three microbatches, breadth first; stages from the last rank to the first and, with two
-- chunks, back, the later chunk number first; gradients of inputs in descending microbatches, those of weights only in the wave
-- after, ascending; a wave of one goes without the split.
local OWN = [[
return function(p)
    local s, v, m = { place = {} }, p.chunks, p.microbatches
    for r = 0, p.ranks - 1 do
        local list, owed = {}, {}
        local function add(op, mb, chunk) list[#list + 1] = { op = op, mb = mb, chunk = chunk } end
        local function pay()
            for _, x in ipairs(owed) do add("W", x[1], x[2]) end
            owed = {}
        end
        for first = 0, m - 1, 3 do
            local last = math.min(first + 3, m) - 1
            for c = v - 1, 0, -1 do
                for mb = first, last do add("F", mb, c) end
            end
            pay()
            for c = 0, v - 1 do
                for mb = last, first, -1 do add(last > first and "I" or "B", mb, c) end
                for mb = first, last do
                    if last > first then owed[#owed + 1] = { mb, c } end
                end
            end
        end
        pay()
        s[r + 1], s.place[r + 1] = list, {}
        for c = 0, v - 1 do
            local turn = v - 1 - c -- 0: the first time through the ranks
            s.place[r + 1][c + 1] = turn * p.ranks + (turn % 2 == 0 and p.ranks - 1 - r or r)
        end
    end
    return s
end
]]

-- Schedules of nobody: any stage anywhere, and any order that can be. All ops whose messages have come are drawn from; what comes
-- from one rank is taken in the order in which it was sent, and weights of a stage go in ascending microbatches. %d: the seed.
local RANDOM = [[
return function(p)
    local state = %d
    local function draw(n)
        state = state * 48271 %% 2147483647
        return math.floor(state / 2147483647 * n) + 1
    end
    draw(1)
    local n, v, m, stages = p.ranks, p.chunks, p.microbatches, p.stages
    local deck, s, rank, chunk = {}, { place = {} }, {}, {}
    for i = 0, stages - 1 do deck[i + 1] = i end
    for r = 1, n do
        s[r], s.place[r] = {}, {}
        for c = 1, v do
            local stage = table.remove(deck, draw(#deck))
            s.place[r][c], rank[stage], chunk[stage] = stage, r, c - 1
        end
    end
    local queue, ready, weights, owed = {}, {}, {}, {} -- channels; ops that can run; next W and microbatches with I, of a stage
    local function offer(op, stage, mb) ready[#ready + 1] = { op = op, stage = stage, mb = mb } end
    local function hand_on(op, stage, to, mb)
        if not rank[to] then return end
        if rank[to] == rank[stage] then return offer(op, to, mb) end
        local k = op .. rank[stage] .. "-" .. rank[to]
        queue[k] = queue[k] or {}
        table.insert(queue[k], { to, mb })
        if #queue[k] == 1 then ready[#ready + 1] = { op = op, stage = to, mb = mb, from = k } end
    end
    local function offer_weight(stage)
        if owed[stage][weights[stage] ] then offer("W", stage, weights[stage]) end
    end
    for stage = 0, stages - 1 do weights[stage], owed[stage] = 0, {} end
    for mb = 0, m - 1 do offer("F", 0, mb) end
    while #ready > 0 do
        local x = table.remove(ready, draw(#ready))
        local whole = x.op == "I" and weights[x.stage] == x.mb and draw(3) == 1 -- B
        table.insert(s[rank[x.stage] ], { op = whole and "B" or x.op, mb = x.mb, chunk = chunk[x.stage] })
        if x.from then
            local q = queue[x.from]
            table.remove(q, 1)
            if q[1] then ready[#ready + 1] = { op = x.op, stage = q[1][1], mb = q[1][2], from = x.from } end
        end
        if x.op == "F" and x.stage == stages - 1 then
            offer("I", x.stage, x.mb)
        elseif x.op == "F" then
            hand_on("F", x.stage, x.stage + 1, x.mb)
        elseif x.op == "I" then
            hand_on("I", x.stage, x.stage - 1, x.mb)
            owed[x.stage][x.mb] = true
            if whole then
                weights[x.stage] = x.mb + 1
                offer_weight(x.stage)
            elseif weights[x.stage] == x.mb then
                offer_weight(x.stage)
            end
        else
            weights[x.stage] = x.mb + 1
            offer_weight(x.stage)
        end
    end
    return s
end
]]

local function write(name, text)
    local file = assert(io.open(L.dir .. "/" .. name, "w"))
    file:write(text)
    file:close()
end
local function schedule_of(l)
    local seed = l.schedule:match "^random(%d+)$"
    if seed then write(l.schedule .. ".lua", RANDOM:format(seed)) end
    return "parallel.schedule", (seed or l.schedule == "own") and ("%s/%s.lua"):format(L.dir, l.schedule) or l.schedule
end

local AXES = {
    { "model", W.NAMES },
    { "pp", { 1, 2, 4 }, also = "^3$", set = "parallel.pp" },
    { "chunks", { 1, 2 }, also = "^[34]$", set = "parallel.chunks" },
    { "schedule", { "one_f_one_b", "gpipe", "interleaved", "zb_h1", "zb_v", "own" }, also = "^random%d+$", set = schedule_of },
    { "stages", { "even", "auto", "uneven" },
        set = function(l) return "parallel.stages", l.stages == "uneven" and UNEVEN[l.pp][l.chunks] or l.stages end },
    { "tp", { 1, 2 }, set = "parallel.tp" },
    { "sp", { 0, 1 }, set = "parallel.sp", yes = 1 },
    { "dp", { 1, 2, 3 } },
    { "shard", { 0, 1 }, set = "parallel.shard_optimizer", yes = 1 },
    { "grads", { 0, 1 }, set = "parallel.overlap.grads", yes = 1 },
    { "params", { 0, 1 }, set = "parallel.overlap.params", yes = 1 },
    { "recompute", { "none", "block", "gather" },
        set = function(l) return "parallel.recompute", l.recompute == "gather" and '{"all_gather"}' or l.recompute end },
    { "micro", { 1, 2 }, set = "batch.micro" },
    { "global", { 22, 23, 24 } },
    { "precision", { "fp64", "fp32" }, set = "precision" },
}
local BOUND = {} -- the axes of which some values cannot meet
for d, axis in ipairs(AXES) do
    if ("pp chunks schedule tp dp micro global"):find(axis[1], 1, true) then BOUND[#BOUND + 1] = d end
end
local function groups_of_pp(l)
    for _, own in ipairs { math.floor(l.global / l.dp), math.ceil(l.global / l.dp) } do
        if math.ceil(own / l.micro) % l.pp ~= 0 then return false end
    end
    return true
end
local CHUNKS = { one_f_one_b = 1, zb_h1 = 1, zb_v = 2 }
local function may_be(l)
    if l.pp == 1 or l.pp * l.tp * l.dp > 16 then return false end -- pp 1 is what all are held against
    if l.micro == 2 and l.global == 23 then return false end -- whole microbatches on one rank
    if l.schedule == "interleaved" and not groups_of_pp(l) then return false end
    return (CHUNKS[l.schedule] or l.chunks) == l.chunks
end
local function legal(c)
    local l = {}
    for _, d in ipairs(BOUND) do l[AXES[d][1]] = AXES[d][2][c[d]] end
    return may_be(l)
end
local function partner(l)
    return L.with(l, { pp = 1, chunks = 1, schedule = "one_f_one_b", stages = "even", grads = 0, params = 0, recompute = "none",
        sp = l.tp > 1 and l.sp or 0, shard = l.dp > 1 and l.shard or 0 })
end

local long = os.getenv "MC_TEST_LONG" ~= nil
local option, layouts = L.open({ script = "pipes.lua", axes = AXES, layers = LAYERS, eps = 1e-5, here = here }, arg)
write("own.lua", OWN)

local CHAINS = { -- the first three have the bits of one partner all the way
    { "model=gpt2 pp=4 dp=2", "model=gpt2 pp=2 chunks=2 schedule=zb_v stages=uneven dp=2", "model=gpt2 dp=2" },
    { "model=llama tp=2", "model=llama tp=2 pp=4 chunks=2 schedule=own stages=auto", "model=llama tp=2 pp=2 schedule=zb_h1" },
    { "model=one_kv pp=2 micro=2 global=24 precision=fp32", "model=one_kv pp=4 schedule=gpipe micro=2 global=24 precision=fp32",
        "model=one_kv pp=4 chunks=2 schedule=interleaved micro=2 global=24 precision=fp32" },
    { "model=one_kv pp=4 schedule=zb_h1 dp=2 shard=1", "model=one_kv pp=2 chunks=2 schedule=gpipe tp=2 sp=1", "model=one_kv dp=3" },
    { "model=qwen dp=3 shard=1", "model=qwen pp=4 tp=2 dp=2 schedule=own stages=uneven",
        "model=qwen pp=2 chunks=2 schedule=zb_v dp=3 grads=1 params=1 shard=1" },
}
local QUICK = {
    "model=gpt2 pp=2 schedule=zb_h1 stages=uneven dp=2 shard=1 grads=1 params=1",
    "model=llama pp=4 tp=2 sp=1",
    "model=one_kv pp=4 chunks=2 schedule=own stages=uneven dp=2 micro=2",
    "model=qwen pp=2 chunks=2 schedule=interleaved stages=auto dp=3 micro=2 precision=fp32",
    "model=odd pp=4 chunks=2 schedule=zb_v stages=auto recompute=block precision=fp32",
}

-- A step of one sample: half of the replicas have none and run nothing, and the step in which it has no label runs nothing
-- anywhere. One schedule more, too, of one microbatch.
local function few()
    local n, list = 9, {}
    for _, s in ipairs { "model=gpt2 pp=2 schedule=zb_h1 dp=2 shard=1", "model=llama pp=4 chunks=2 schedule=zb_v dp=2 precision=fp32" } do
        local l = L.parse(s)
        local o = { more = { "--set", "batch.global=1", "--set", "steps.steps=" .. n } }
        list[#list + 1] = { L.start(l, o), L.start(partner(l), o) }
    end
    L.same(list, n, "other bits with one sample a step")
    local by, empty = P.metrics(list[1][1].path), 0
    for s = 1, n do
        if P.field(by[s] or "", "loss") == "0" then empty = empty + 1 end
    end
    P.check(empty == 1, "%d steps of %d without a label", empty, n)
    print(("%d layouts with one sample a step: the same bits"):format(#list))
end

-- Layouts by chance, each under a schedule by chance; some with pipelines of which the axes know nothing.
local function wild(first, count)
    local rand, list = P.rng(1000 + first), {}
    while #list < count do
        local c = {}
        for d, axis in ipairs(AXES) do c[d] = math.floor(rand(1, #axis[2] + 1)) end
        local l = L.named(c)
        l.schedule = "random" .. first + #list
        local more = ({ { 3, 1 }, { 3, 2 }, { 3, 3 }, { 2, 3 }, { 2, 4 } })[math.floor(rand(1, 13))]
        if more then l.pp, l.chunks, l.stages = more[1], more[2], "auto" end
        if may_be(l) then list[#list + 1] = l end
    end
    return list
end

if option.overlap then
    L.overlap(layouts, #layouts)
elseif #layouts > 0 then
    L.matrix(layouts, partner)
elseif option.wild then -- the number of the first, how many
    L.matrix(wild(tonumber(option.wild), tonumber(option.count)), partner)
elseif option.chains then
    L.chains(CHAINS, partner)
elseif option.quick then
    for i, s in ipairs(QUICK) do layouts[i] = L.parse(s) end
    L.matrix(layouts, partner)
else
    local space = cover.space(AXES, BOUND, legal)
    local list = cover.fill_space(space, {}, 2)
    cover.fill_space(space, list, 3, not long and 60 or nil)
    P.check(L.proved("pairs", cover.count_space(space, list, 2)), "a pair of axis values is in no layout")
    P.check(L.proved("triples", cover.count_space(space, list, 3)) or not long, "three axis values are in no layout")
    P.check(#list >= 60, "only %d layouts", #list)
    for i, c in ipairs(list) do layouts[i] = L.named(c) end
    for _, l in ipairs(wild(1, long and 30 or 6)) do layouts[#layouts + 1] = l end
    L.matrix(layouts, partner)
    L.overlap(layouts, long and 20 or 3)
    L.chains(CHAINS, partner)
    few()
end
L.close()
