-- matrix.lua PROGRAM [BUILD/tests] [--quick | --chains | [--overlap] LAYOUT ...] [--reference PROGRAM] [--limit S]
-- Any layout means what one rank means.
--
-- Layouts are generated from the axes below so that every pair of values of two axes meets in one of them; the script proves
-- that and fails if one is missing. Each trains a few steps and is held against one rank that computes the samples one by one
-- (lib/layouts.lua). Then: layouts with overlap off and on over a slow link, bit for bit; runs that go on with another layout
-- at every step. Pipelines are in pipes.lua.
-- MC_TEST_LONG: every three values meet.
-- --reference: the program that runs on one rank, where that is another one (tests/mutations). --limit: seconds of a run.
-- LAYOUT: as printed beside a failure, for example 'model=gpt2 dp=2 tp=2 sp=1'; what is not said is the first value.
local here = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = here .. "/lib/?.lua;" .. here .. "/../fault/lib/?.lua;" .. package.path
local P = require "proc"
local W = require "world"
local cover = require "cover"
local L = require "layouts"

local AXES = {
    { "model", W.NAMES },
    { "dp", { 1, 2, 3, 4 } },
    { "tp", { 1, 2, 4 }, set = "parallel.tp" },
    { "sp", { 0, 1 }, set = "parallel.sp", yes = 1 },
    { "shard", { 0, 1 }, set = "parallel.shard_optimizer", yes = 1 },
    { "grads", { 0, 1 }, set = "parallel.overlap.grads", yes = 1 },
    { "params", { 0, 1 }, set = "parallel.overlap.params", yes = 1 },
    { "recompute", { "none", "block", "gather" },
        set = function(l) return "parallel.recompute", l.recompute == "gather" and '{"all_gather"}' or l.recompute end },
    { "micro", { 1, 2 }, set = "batch.micro" },
    { "global", { 22, 23, 24 } }, -- 23 is divided by no dp; 22 over 2 to 4 leaves microbatches of one beside those of two
    { "precision", { "fp64", "fp32" }, set = "precision" },
}
local function legal(c) return not (AXES[9][2][c[9]] == 2 and AXES[10][2][c[10]] == 23) end -- whole microbatches on one rank
local long = os.getenv "MC_TEST_LONG" ~= nil
local option, layouts = L.open({ script = "matrix.lua", axes = AXES, layers = 2, here = here }, arg)

local CHAINS = {
    { "model=gpt2 dp=2 tp=2 sp=1 shard=1", "model=gpt2 tp=4", "model=gpt2 dp=3 shard=1 grads=1 params=1" },
    { "model=one_kv", "model=one_kv dp=4 shard=1 micro=2", "model=one_kv tp=4 dp=2 sp=1" },
    { "model=llama tp=4 sp=1 dp=3", "model=llama dp=2 tp=2 shard=1 recompute=block", "model=llama" },
}

-- Sequences without labels are in the batch: the same steps with all labels have another loss.
local function masks()
    local l = L.parse "model=llama"
    local all = L.start(l, { more = { "--set", "data.mask_eod=false" } })
    L.make_references { l }
    L.go({ all }, L.ended_well)
    if all.rc == 0 then
        local d = L.relative(L.load(all).loss[1], L.load(L.reference(l)).loss[1])
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

if option.overlap then
    L.overlap(layouts, #layouts)
elseif #layouts > 0 then
    L.matrix(layouts)
elseif option.chains then
    L.chains(CHAINS)
elseif option.quick then
    for i, s in ipairs(QUICK) do layouts[i] = L.parse(s) end
    L.matrix(layouts)
    L.overlap(layouts, 2)
else
    local all = cover.product(AXES, legal)
    local list = cover.fill(AXES, all, {}, 2)
    local proof = {} -- more of what proves: fp64, several ranks
    for _, c in ipairs(all) do
        if c[#AXES] == 1 and c[2] * c[3] > 1 then proof[#proof + 1] = c end
    end
    cover.fill(AXES, long and all or proof, list, 3, not long and 44 or nil)
    P.check(L.proved("pairs", cover.count(AXES, all, list, 2)), "a pair of axis values is in no layout")
    if long then P.check(L.proved("triples", cover.count(AXES, all, list, 3)), "three axis values are in no layout") end
    P.check(#list >= 40, "only %d layouts", #list)
    for i, c in ipairs(list) do layouts[i] = L.named(c) end
    L.matrix(layouts)
    L.overlap(layouts, long and 100 or 8)
    L.chains(CHAINS)
    masks()
end
L.close()
