-- diff_run.lua PROGRAM [BUILD/tests] - what diff-run, ckpt diff and trace say: nothing of layouts that mean the same, op by op in
-- fp64; and of what was planted from outside (other data, a changed update, dropout) the right step, op, tensor and rank.
package.path = arg[0]:gsub("[^/]*$", "") .. "../fault/?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
local small = { "model.hidden=64", "model.ffn=192", "model.seq=64", "model.head_dim=8", "model.layers=2", "steps.steps=6", 'checkpoint.every="3 steps"' }

local function train(name, ranks, set, more, env)
    local v = P.train(a, dir .. "/" .. name, { "--ranks", tostring(ranks) })
    for _, l in ipairs { small, set } do
        for _, s in ipairs(l) do v[#v + 1] = "--set"; v[#v + 1] = s end
    end
    for _, s in ipairs(more or {}) do v[#v + 1] = s end
    local rc, sig, _, err = P.run(v, dir, { limit = 120, env = env })
    P.check(rc == 0, "%s: exit %s: %s", name, tostring(rc or sig), err)
end
local function ask(want, ...)
    local v = { a.program, ... }
    for i = 2, #v do v[i] = v[i]:gsub("^@", dir .. "/") end
    local rc, _, last, err = P.run(v, dir, { limit = 60 })
    P.check(rc == want, "%s: exit %s, not %d: %s%s", table.concat(v, " ", 2), tostring(rc), want, err, last:sub(1, 300))
    return last, err
end
local function first(json) return json:match '"first":(%b{})' or "" end

-- any layout, op by op: fp64 is the proof
local rec = { "--record", "2", "--trace", "3" }
train("one", 1, { "precision=fp64" }, rec)
for name, l in pairs {
    tp2sp = { 4, { "parallel.tp=2", "parallel.sp=true" } },
    tp8 = { 8, { "parallel.tp=8", "batch.micro=6" } }, -- two ranks share a key head; other microbatches
    dp4split = { 4, { "parallel.shard_optimizer=true", "parallel.overlap.grads=true", "parallel.overlap.params=true" } },
} do
    local set = { "precision=fp64" }
    for _, s in ipairs(l[2]) do set[#set + 1] = s end
    train(name, l[1], set, rec)
    local out = ask(0, "diff-run", "@one", "@" .. name, "--json")
    P.check(tonumber(P.field(out, "compared")) > 100 and P.field(out, "differ") == "false" and not out:find '"disagree_',
        "%s: %s", name, out)
    ask(0, "ckpt", "diff", "@one", "@" .. name, "--tolerance", "1e-11")
    ask(4, "ckpt", "diff", "@one", "@" .. name) -- rounding is seen
    ask(4, "diff-run", "@one", "@" .. name, "--tolerance", "1e-19")
end

-- recording changes no bit, and a run is itself
train("plain", 1, { "precision=fp64" })
ask(0, "ckpt", "diff", "@one", "@plain")
train("again", 4, { "precision=fp64", "parallel.tp=2", "parallel.sp=true" }, rec)
local out = ask(0, "diff-run", "@tp2sp", "@again", "--json")
P.check(P.field(out, "same_layout") == "true" and P.field(out, "not_bitwise") == "0", "the same run twice: %s", out)

-- the same ranks with other layers each, or in another order: not rank by rank, and nothing differs
local laid = { stages = { 2, { "parallel.pp=2", "parallel.stages={1,1}" }, { "parallel.pp=2", "parallel.stages={2,0}" }, "0" },
    order = { 4, { "parallel.tp=2", "parallel.dp=2" }, { "parallel.tp=2", "parallel.dp=2", "parallel.order=dp-tp-cp-ep-pp" } } }
for name, l in pairs(laid) do
    for k = 1, 2 do train(name .. k, l[1], l[1 + k], rec) end
    out = ask(0, "diff-run", "@" .. name .. 1, "@" .. name .. 2, "--json", unpack(l[4] and { "--tolerance", l[4] } or {}))
    P.check(P.field(out, "same_layout") == "false" and tonumber(P.field(out, "compared")) > 100 and P.field(out, "differ") == "false",
        "%s: %s", name, out:sub(1, 600))
end

-- planted: the same weights meet other data from step 4 on
local function copy(name) P.sh(("cp -r '%s/again' '%s/%s'"):format(dir, dir, name)) end
copy "seed"
train("again", 4, { "precision=fp64", "parallel.tp=2", "parallel.sp=true" }, { "--resume", "3", "--record", "4" })
train("seed", 4, { "precision=fp64", "parallel.tp=2", "parallel.sp=true", "seed=99" }, { "--resume", "3", "--allow", "seed", "--record", "4" })
out = ask(4, "diff-run", "@again", "@seed", "--json", "--step", "4")
P.check(P.field(out, "first_step") == "4" and P.field(first(out), "verb") == "data", "other data: %s", out:sub(1, 600))
-- planted: a rate that is another at step 4: all ops and gradients of that step agree, the weights after it do not
copy "rate"
train("rate", 4, { "precision=fp64", "parallel.tp=2", "parallel.sp=true", "lr.peak=1e-2" }, { "--resume", "3", "--record", "4" })
out = ask(4, "diff-run", "@again", "@rate", "--json", "--step", "4")
P.check(P.field(out, "first_step") == "5" and P.field(first(out), "verb") == "state" and
    P.field(first(out), "name"):find "^model/", "another rate: %s", out:sub(1, 800))
-- planted: dropout; the step that differs is the first, the op is the one behind it, forward
train("drop", 4, { "precision=fp64", "parallel.tp=2", "parallel.sp=true", "model.dropout=0.2" }, { "--record", "2" })
train("drop1", 1, { "precision=fp64", "model.dropout=0.2" }, { "--record", "2" })
ask(0, "diff-run", "@drop1", "@drop", "--json") -- dropout itself is the same on any layout
out = ask(4, "diff-run", "@tp2sp", "@drop", "--json")
P.check(P.field(out, "first_step") == "1" and P.field(first(out), "first_sample") == "12", "dropout: %s", out:sub(1, 600))

-- a trace for a browser: every rank, and on slow links a reduction that begins before the backward ends
ask(0, "trace", "@dp4split", "--out", "@trace.json")
local text = P.read(dir .. "/trace.json") or ""
for r = 0, 3 do P.check(text:find('"pid":' .. r .. ',"tid":1'), "no transfers of rank %d in the trace", r) end
local function ends(name)
    local ts, dur = text:match('"name":"' .. name .. '".-"pid":0.-"ts":([%d.e+-]+),"dur":([%d.e+-]+)')
    return tonumber(ts), tonumber(ts) + tonumber(dur)
end
local begun, ended = ends "reduce 3", select(2, ends "backward %-1")
P.check(begun < ended, "the head's reduction began at %s us, the backward ended at %s us", tostring(begun), tostring(ended))

-- what cannot be compared
train("other", 1, { "model.ffn=128" })
for _, c in ipairs {
    { "different models", "diff-run", "@one", "@other" }, { "different models", "ckpt", "diff", "@one", "@other" },
    { "no run", "diff-run", "@one", "@nowhere" }, { "neither a checkpoint nor a record", "diff-run", "@one", "@plain", "--step", "4" },
    { "no trace", "trace", "@plain" }, { "two checkpoints", "ckpt", "diff", "@one" }, { "too many", "ckpt", "ls", "@one", "@plain" },
    { "same step", "train", a.recipe, "--run", "@x", "--record", "2", "--trace", "2" },
} do
    local _, err = ask(2, unpack(c, 2))
    P.check(err:find(c[1], 1, true), "%s: the message is %s", table.concat(c, " ", 2), err)
end
local torn = dir .. "/plain/segments/001/record-2.0.jsonl"
P.sh(("head -n 50 '%s/one/segments/001/record-2.0.jsonl' >'%s'"):format(dir, torn))
local _, err = ask(2, "diff-run", "@one", "@plain")
P.check(err:find "not whole", "a torn record: %s", err)
P.sh("rm -rf '" .. dir .. "'")
P.finish()
