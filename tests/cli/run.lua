-- run.lua - the program as a person or a script meets it: commands, exit codes, files, signals, resumes.
-- luajit tests/cli/run.lua PROGRAM [pattern]        (only cases whose name has `pattern`)
-- Each case runs in a folder of its own below a temporary one; a failure says which case and what was seen.

local program = arg[1] or error "usage: luajit tests/cli/run.lua PROGRAM [pattern]"
local pattern = arg[2] or ""
local here = arg[0]:match "^(.*)/[^/]*$" or "."

local function capture(cmd)
    local p = io.popen(cmd)
    local s = p:read "*a"
    p:close()
    return s
end
local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end
program = capture("realpath " .. quote(program)):gsub("\n", "")
local home = capture("realpath " .. quote(here .. "/../..")):gsub("\n", "")
local tmp = capture "mktemp -d /tmp/mascon-cli-XXXXXX":gsub("\n", "")
local tiny = home .. "/recipes/tiny_llama.lua" -- for what any recipe serves
local small = tmp .. "/small.lua"              -- for what must be quick: a step takes milliseconds

local function read(path)
    local f = io.open(path, "rb")
    if not f then return nil end
    local s = f:read "*a"
    f:close()
    return s
end
local function write(path, s)
    local f = assert(io.open(path, "wb"))
    f:write(s)
    f:close()
end

write(small, ([[
local m = require "mascon"
return m.recipe {
  name = "small", seed = 1234,
  model = m.models.llama { layers = 2, hidden = 64, heads = 8, kv_heads = 4, ffn = 192, seq = 64 },
  data = { tokenizer = "bytes", train = "%s/recipes/text/moon.txt" },
  batch = { global = 12, micro = 1 },
  steps = { steps = 50 },
  lr = m.lr.constant { peak = 3e-3, warmup = "10 steps" },
  optim = m.adamw { weight_decay = 0.1, clip = 1.0 },
  precision = "fp32",
  checkpoint = { every = "20 steps", keep = 3 },
}]]):format(home))

local reader = dofile(here .. "/../dist/lib/json.lua") -- not the program's own
local function json(s) return reader.read(s, reader.nothing) end
local function lines(path)
    local t = {}
    for l in (read(path) or ""):gmatch "[^\n]+" do t[#t + 1] = l end
    return t
end
local function events(run, kind)
    local t = {}
    for _, l in ipairs(lines(run .. "/events.jsonl")) do
        local e = json(l)
        if not kind or e.kind == kind then t[#t + 1] = e end
    end
    return t
end
local function metrics(run)
    local t = {}
    for i, l in ipairs(lines(run .. "/metrics.jsonl")) do t[i] = json(l) end
    return t
end

-- ---- running it ----
local dir
local function sh(cmd)
    local rc = os.execute(("cd %s && { %s ; } >out 2>err"):format(quote(dir), cmd))
    if rc > 255 then rc = rc / 256 end
    return rc, read(dir .. "/out"), read(dir .. "/err")
end
-- What runs in the background is waited for by what it shows, never by a time: a loaded machine is slow, not wrong. The limits
-- are there to end a case whose program hangs.
-- shell: until COND holds, the program $P is gone, or five minutes are over
local function await(cond)
    return ("i=0; while ! { %s ; } 2>/dev/null && kill -0 $P 2>/dev/null && [ $i -lt 30000 ]; do sleep 0.01; i=$((i+1)); done"):format(cond)
end
-- shell: RUN has N lines of metrics
local function steps_done(run, n) return ("[ $(wc -l <%s/metrics.jsonl) -ge %d ]"):format(run, n) end
-- shell: the end of $P; its exit code, 137 if it takes more than five minutes
local reap = await "false" .. "; kill -9 $P 2>/dev/null; wait $P"
-- shell: start a training in the background as $P and wait until RUN has N lines of metrics (N = 0: its first step began)
local function background(args, run, n)
    return ("%s train %s --run %s %s >/dev/null 2>&1 & P=$!; "):format(quote(program), small, run, args)
        .. await(n > 0 and steps_done(run, n) or ("grep -q first_step %s/events.jsonl"):format(run))
end
-- far more steps than any case waits for: a run that something must end
local endless = "--set steps.steps=1000000 "
local function mascon(args, env) return sh((env or "") .. " " .. quote(program) .. " " .. args) end
local function last(out) return json(out:match "([^\n]*)\n?$") end

local function expect(ok, fmt, ...)
    if not ok then error(fmt:format(...), 2) end
end
local function same(got, want, what)
    if got ~= want then error(("%s: got %s, want %s"):format(what, tostring(got), tostring(want)), 2) end
end
local function has(s, what)
    if not s:find(what, 1, true) then error(("nothing says %q in:\n%s"):format(what, s:sub(1, 800)), 2) end
end
-- train the small recipe; extra arguments; the last line comes parsed
local function train(args, env)
    local rc, out, err = mascon(("train %s --json %s"):format(small, args or ""), env)
    return rc, last(out), err
end
-- a recipe of this case
local function recipe(name, text)
    write(dir .. "/" .. name, text)
    return name
end

local cases = {}
local function case(name, fn) cases[#cases + 1] = { name, fn } end

-- ---- usage ----
case("help of the program and of each command", function()
    local rc, out = mascon "help"
    same(rc, 0, "exit")
    for _, c in ipairs { "check", "explain", "plan", "train", "eval", "generate", "ckpt", "compare", "data", "doc", "version" } do
        has(out, "  " .. c)
        local r, o = mascon(c .. " --help")
        same(r, 0, c .. " --help")
        has(o, "usage: mascon " .. c)
        r = mascon("help " .. c)
        same(r, 0, "help " .. c)
    end
    local r, _, e = mascon ""
    same(r, 2, "no command")
    has(e, "usage: mascon")
end)

case("unknown words name the nearest", function()
    local rc, _, err = mascon "trian x"
    same(rc, 2, "exit")
    has(err, 'did you mean "train"?')
    rc, _, err = mascon("train x --resum auto")
    same(rc, 2, "exit")
    has(err, 'did you mean "--resume"?')
    rc, _, err = mascon("ckpt verfy x")
    same(rc, 2, "exit")
    has(err, 'did you mean "verify"?')
    rc, _, err = mascon("data inspct x")
    same(rc, 2, "exit")
    has(err, 'did you mean "inspect"?')
end)

case("malformed arguments", function()
    for a, what in pairs {
        ["check"] = "missing", ["check a b"] = "one word too many", ["check a --ranks"] = "needs a value",
        ["check a --ranks x"] = "not a whole number", ["check a --ranks 0"] = "not in",
        ["check a --ranks 1 --ranks 2"] = "given twice", ["check a --json=1"] = "takes no value",
        ["generate a --temperature hot"] = "not a number", ["generate a --top-p 2"] = "not in",
        ["train " .. small .. " --resume sometimes"] = "--resume is auto, never or a step",
    } do
        local rc, _, err = mascon(a)
        same(rc, 2, a)
        has(err, what)
    end
end)

case("version", function()
    local rc, out = mascon "version --json"
    same(rc, 0, "exit")
    expect(json(out).version:match "^%d+%.%d+%.%d+$", "no version in %s", out)
end)

case("doc", function()
    local rc, out = mascon "doc"
    same(rc, 0, "exit")
    has(out, "log_every")
    rc, out = mascon "doc ops"
    same(rc, 0, "exit")
    has(out, "rmsnorm")
    rc, out = mascon "doc linear"
    same(rc, 0, "an op")
    has(out, "linear")
    has(out, "bias")
    expect(not out:find "rmsnorm", "other ops too")
    local _, _, err = mascon "doc linaer"
    has(err, '"linear"')
    rc = mascon "doc no.such.key"
    same(rc, 2, "unknown key")
end)

-- ---- check and explain ----
case("check: a sound recipe", function()
    local rc, out = mascon("check " .. tiny)
    same(rc, 0, "exit")
    same(out:match "^[^\n]*", "ok", "first line")
    rc, out = mascon("check --json " .. tiny)
    same(rc, 0, "exit")
    local j = json(out)
    same(j.ok, true, "ok")
    same(#j.errors, 0, "errors")
    same(j.steps, 50, "steps")
    j = json(select(2, mascon("check --json " .. small)))
    -- by hand: embedding and head 2 x 257 x 64; a block: q, o 2 x 64 x 64, k, v 2 x 64 x 32, mlp 3 x 64 x 192, 2 norms; last norm
    same(j.parameters, 2 * 257 * 64 + 2 * (2 * 4096 + 2 * 2048 + 3 * 12288 + 2 * 64) + 64, "parameters")
    expect(j.memory.total > 4 * 4 * j.parameters, "memory")
end)

case("check: all errors of a recipe in one run", function()
    local r = recipe("bad.lua", [[
local m = require "mascon"
return m.recipe {
  inherit = "]] .. tiny .. [[",
  lerning_rate = 3,
  batch = { global = 10, micro = 4 },
  log_every = -1,
}]])
    local rc, _, err = mascon("check " .. r)
    same(rc, 2, "exit")
    has(err, "lerning_rate")
    has(err, "log_every")
    has(err, "nothing was started")
    expect(tonumber(err:match "(%d+) errors; nothing was started") >= 3, "fewer than 3 errors:\n%s", err)
    expect(err:find "bad%.lua:%d+: ", "no file:line:\n%s", err)
    local rc2, out = mascon("check --json " .. r)
    same(rc2, 2, "exit")
    local j = json(out)
    expect(#j.errors >= 3, "fewer than 3 errors in JSON")
    for _, e in ipairs(j.errors) do
        expect(e.path and e.file and e.line and e.message and e.hint, "a member is missing in %s", out)
    end
end)

case("check: no such file", function()
    local rc, _, err = mascon "check nowhere.lua"
    same(rc, 2, "exit")
    has(err, "nowhere.lua")
    rc = mascon("check " .. tiny, "MASCON_HOME=/nowhere")
    same(rc, 2, "no home")
end)

-- Parameters, operations and coordinates by hand, or as Megatron's own functions give them for the same model.
case("plan: who holds what on 5,120 ranks", function()
    local big = home .. "/recipes/dense_500b.lua --nodes 640 --per-node 8 --rank 3347 --json"
    local rc, out = mascon("plan " .. big)
    same(rc, 0, "exit")
    local j = json(out)
    same(j.ranks, 5120, "ranks")
    same(("%d %d %d"):format(j.layout.tp, j.layout.pp, j.layout.dp), "8 8 80", "layout")
    -- 3347 = 3 + 8 x 418, 418 = 18 + 80 x 5
    same(("%d %d %d"):format(j.rank.tp, j.rank.dp, j.rank.pp), "3 18 5", "rank")
    same(("%d %d"):format(j.rank.node, j.rank.device), "418 3", "node and device")
    same(j.microbatches, 24, "1920 / 80")
    same(j.tokens_per_step, 1920 * 8192, "tokens")
    local h, f, v = 18432, 57344, 128256
    local layer = 2 * h * h + 2 * h * 1024 + 3 * h * f + 2 * h
    same(j.params, 128 * layer + 2 * v * h + h, "parameters")
    same(j.stages[1].params, 16 * layer + v * h, "first stage")
    same(j.stages[8].params, 16 * layer + v * h + h, "last stage")
    same(j.per_rank[2].params, 16 * ((layer - 2 * h) / 8 + 2 * h), "of a rank: all but the norms is cut")
    same(j.checkpoint.bytes, 14 * j.params, "a checkpoint")
    rc, out = mascon("plan " .. big .. [[ --set 'parallel.order="tp-cp-ep-pp-dp"']])
    j = json(out) -- 418 = 2 + 8 x 52
    same(("%d %d %d"):format(j.rank.tp, j.rank.pp, j.rank.dp), "3 2 52", "in the other order")
    rc, out = mascon("plan " .. home .. "/recipes/dense_500b.lua --rank 5120")
    same(rc, 2, "a rank that is not there")
    same(mascon("plan " .. home .. "/recipes/dense_500b.lua --nodes 1280 --per-node 4"), 2, "tp past the node")
    has(read(dir .. "/err"), "8 is more than the 4 ranks of a node")
    same(mascon("train " .. home .. "/recipes/dense_500b.lua"), 2, "declared data")
end)

case("plan: a schedule is simulated and drawn; one that locks is refused before anything starts", function()
    local four = tiny .. " --ranks 4 --set parallel.pp=4 "
    local rc, out = mascon("plan " .. four .. "--set parallel.schedule=zb_h1 --costs 1,1,1 --json")
    same(rc, 0, "exit")
    local j = json(out)
    same(j.bubble.makespan, 12 * 3 + 3, "12 (F + B) + 3 (F + I - W)")
    same(j.bubble.fraction, 1 - 36 / 39, "bubble")
    for r = 1, 4 do same(j.bubble.ranks[r].peak_microbatches, 4, "kept at once") end
    -- predicted times are in one unit: what ranks do is the same work, whatever the cut, the chunks and the schedule
    local busy
    for _, set in ipairs { "", "--set 'parallel.stages={3,2,2,1}'", "--set parallel.schedule=zb_v --set parallel.chunks=2" } do
        local sum = 0
        rc, out = mascon("plan " .. four .. set .. " --json")
        for _, r in ipairs(json(out).bubble.ranks) do sum = sum + r.busy end
        busy = busy or sum
        expect(math.abs(sum - busy) < 1e-9 * busy, "%s: busy for %.17g, even: %.17g", set, sum, busy)
    end
    rc, out = mascon("plan " .. four .. "--costs 1,1,1 --draw --svg s.svg")
    same(rc, 0, "exit")
    has(out, "rank 0   F0-F1-F2-F3-.") -- run ahead by three, then wait
    has(read(dir .. "/s.svg"), "<title>B microbatch 11 chunk 0: ")
    same(mascon("plan " .. four .. "--costs 1,2"), 2, "two times")
    same(mascon("plan " .. tiny .. " --draw"), 2, "nothing to draw")
    -- rank 0 wants each gradient before the next forward; the others run one forward ahead, and the function is not made for
    -- one microbatch, which is no fault of the schedule that the run would have
    write(dir .. "/lock.lua", [[
return function(p)
    local s = {}
    for r = 1, p.ranks do
        s[r] = {}
        local ahead = r == 1 and 1 or 2
        for mb = 0, ahead - 1 do table.insert(s[r], { op = "F", mb = mb }) end
        for mb = 0, p.microbatches - 1 do
            table.insert(s[r], { op = "B", mb = mb })
            if mb + ahead < p.microbatches then table.insert(s[r], { op = "F", mb = mb + ahead }) end
        end
    end
    return s
end
]])
    for _, what in ipairs { "check ", "plan " } do
        same(mascon(what .. four .. "--set parallel.schedule=lock.lua"), 2, what)
        local err = read(dir .. "/err")
        has(err, "lock.lua:1: the ranks lock: rank 0 slot 1 (B of microbatch 0) waits for rank 1 slot 2")
        has(err, "with 2 microbatches") -- the smallest that shows it
        has(err, "rank 0   F0 | B0 F1 B1")
    end
    -- rank 0 keeps all twelve; what is left of the memory beside weights holds some of them
    local keeps = "check " .. four .. "--set parallel.schedule=gpipe --set \"cluster.mem='8 MiB'\""
    same(mascon(keeps), 2, "more than fits")
    has(read(dir .. "/err"), "cluster.mem: one rank needs ")
    has(read(dir .. "/err"), "parallel.schedule: with 12 microbatches: gpipe: with rank 0 slot ")
    has(read(dir .. "/err"), " microbatches of a chunk are kept at once; memory allows ")
    same(mascon((keeps:gsub("8 MiB", "3 MiB"))), 2, "weights do not fit either")
    expect(not read(dir .. "/err"):find "kept at once", "the schedule is blamed")
    write(dir .. "/raise.lua", "return function(p)\n\n  error 'not today'\nend")
    same(mascon("check " .. four .. "--set parallel.schedule=raise.lua"), 2, "raises")
    has(read(dir .. "/err"), "raise.lua:3: not today")
    -- ten million records of four ranks are no reason to take a gigabyte for the proof
    write(dir .. "/many.lua", "return function(p)\n local x, t, s = { op = 'F', mb = 0 }, {}, {}\n for i = 1, 1e7 do t[i] = x end\n"
        .. " for r = 1, p.ranks do s[r] = t end\n return s\nend")
    same(mascon("check " .. four .. "--set parallel.schedule=many.lua"), 2, "ten million records")
    has(read(dir .. "/err"), "many.lua:1: rank 0 has 10000000 records; F, I and W of 12 microbatches through 1 chunks are 36")
    write(dir .. "/nul.lua", "return function(p) return { { { op = 'F\\0', mb = 0 } }, {}, {}, {} } end")
    same(mascon("check " .. four .. "--set parallel.schedule=nul.lua"), 2, "an op with a byte behind it")
    -- one that loops is called once: not for every smaller number of microbatches (4 s each) as well
    write(dir .. "/loops.lua", "return function(p)\n while true do end\nend")
    local _, cpu = sh(("bash -c 'TIMEFORMAT=%%U; time %s check %s --set parallel.schedule=loops.lua 2>loops.err' 2>&1")
        :format(quote(program):sub(2, -2), four))
    has(read(dir .. "/loops.err"), "loops.lua:2: ran longer than 4000 ms of CPU time")
    cpu = tonumber(cpu:match "([%d.]+)%s*$")
    expect(cpu and cpu > 3.5 and cpu < 7, "it took %s s of CPU time", tostring(cpu))
end)

case("plan: layers are cut as a list says, by predicted work, or by that of a traced run", function()
    local wide = "--set model.layers=9 --set model.hidden=32 --set model.heads=4 --set model.ffn=64 --set model.vocab=2000 "
    local four = small .. " --ranks 4 --set parallel.pp=4 " .. wide
    same(mascon("plan " .. four), 2, "9 layers over 4, evenly")
    has(read(dir .. "/err"), 'layers 9 is not a multiple of parallel.pp x chunks 4')
    has(read(dir .. "/err"), '"auto", or a list')
    local rc, out = mascon("plan --json " .. four .. "--set 'parallel.stages={4,2,3,0}'")
    same(rc, 0, "a list")
    local j = json(out)
    local function ends(p) local t = {} for i, s in ipairs(p.stages) do t[i] = s.end_layer end return table.concat(t, " ") end
    same(ends(j), "4 6 9 9", "ends")
    local layer = 2 * 32 * 32 + 2 * 32 * 32 + 3 * 32 * 64 + 2 * 32
    same(j.per_rank[2].params, 2 * layer, "two layers")
    same(j.per_rank[4].params, 2000 * 32 + 32, "the head alone")
    rc, out = mascon("plan --json " .. four .. "--set parallel.stages=auto")
    j = json(out)
    -- products of a token: a layer 10240 and attention 2 x 32 x 64 / 2; the head 64000, which is 5.2 layers: alone; 9 over 3
    same(ends(j), "3 6 9 9", "by operations")
    same(j.cut.proven, true, "proven")
    same(mascon("check " .. four .. "--set parallel.stages=auto"), 0, "check")
    has(read(dir .. "/err"), 'note: parallel.stages: "auto" is { 3, 3, 3, 0 }')
    local one, head = 10240 + 2 * 32 * 32, 64000
    expect(math.abs(j.cut.imbalance - head * 4 / (9 * one + head)) < 1e-12, "imbalance %s", j.cut.imbalance)
    expect(math.abs(j.stages[1].work - 3 * one / (9 * one + head)) < 1e-12, "work %s", j.stages[1].work)
    rc, out = mascon("plan --json " .. small .. " --ranks 2 --set parallel.pp=2 --set parallel.chunks=2 " .. wide ..
        "--set parallel.stages=auto --set parallel.schedule=zb_v")
    j = json(out)
    same(("%d %d %d %d"):format(j.stages[1].rank, j.stages[2].rank, j.stages[3].rank, j.stages[4].rank), "0 1 1 0", "there and back")
    same(j.stages[4].end_layer - j.stages[4].first_layer + j.stages[1].end_layer, 2, "the rank of the head has two layers")
    -- measured, without a pipeline; the copy says that an op of layer 0 took a second more
    same(mascon("train " .. small .. " " .. wide .. "--set steps.steps=2 --trace 2"), 0, "traced")
    rc, out = mascon("plan --json " .. four .. "--set parallel.stages=auto --costs runs/small")
    same(rc, 0, "measured")
    j = json(out)
    same(j.cut.by, "measured", "by")
    same(j.bubble.times, "measured", "times")
    local trace = lines(dir .. "/runs/small/segments/001/trace-2.0.jsonl")
    local f, first, last, mbs = {}, 1e300, 0, {}
    for _, l in ipairs(trace) do -- what all of it took, by another sum
        local e = json(l)
        if e.at == "op" then
            f[1] = (f[1] or 0) + e["end"] - e.begin
            if not mbs[e.mb] then mbs[e.mb] = true; mbs[1] = (mbs[1] or 0) + 1 end
        end
    end
    local busy = 0
    for _, r in ipairs(j.bubble.ranks) do busy = busy + r.busy end
    expect(math.abs(busy - f[1] * 1e-3) < 1e-9 * busy, "%s s busy, %s ms of ops", busy, f[1])
    for i, l in ipairs(trace) do
        if l:find '"layer":9,' and l:find '"op":"linear"' then -- the head: as if it took 9 s for the step
            trace[i] = l:gsub('"end":([%d.]+)', function(e) return ('"end":%.6f'):format(e + 9000) end)
        end
    end
    write(dir .. "/runs/small/segments/001/trace-2.0.jsonl", table.concat(trace, "\n") .. "\n")
    rc, out = mascon("plan " .. four .. "--set parallel.stages=auto --costs runs/small")
    has(out, 'parallel.stages = { 3, 3, 3, 0 }, which is "auto"')
    has(out, "measured in step 2 of runs/small")
    same(mascon("plan " .. four .. "--set parallel.stages=auto --costs runs/small --set model.ffn=96"), 2, "another model")
    has(read(dir .. "/err"), "was traced with model.ffn = 64; here it is 96")
    trace[#trace] = nil
    write(dir .. "/runs/small/segments/001/trace-2.0.jsonl", table.concat(trace, "\n") .. "\n")
    same(mascon("plan " .. four .. "--set parallel.stages=auto --costs runs/small"), 2, "cut off")
    has(read(dir .. "/err"), "not whole: its last line is missing")
    same(mascon("plan " .. four .. "--costs nowhere"), 2, "neither")
end)

case("plan and trace: a pipeline's measured times, and what they predict", function()
    local two = "--ranks 2 --set parallel.pp=2 --set parallel.schedule=zb_h1 --set batch.global=4 "
    same(mascon("train " .. small .. " " .. two .. [[--set steps.steps=2 --trace 2 --set 'parallel.pad={F="9 ms",I="6 ms",W="3 ms"}']]), 0, "trained")
    local _, out = mascon "trace runs/small"
    local did, would = { [0] = {}, {} }, { [0] = {}, {} }
    for _, e in ipairs(json(out).traceEvents) do
        if e.cat == "pipeline" then table.insert(did[e.pid], e) end
        if e.cat == "predicted" then table.insert(would[e.pid], e) end
    end
    local least, first, last, begun = { F = 9, I = 6, W = 3 }, 1e300, 0, {}
    for r = 0, 1 do
        same(#did[r], 12, "F, I and W of 4 microbatches on rank " .. r)
        same(#would[r], 12, "predicted on rank " .. r)
        for i, e in ipairs(did[r]) do
            local p = would[r][i]
            same(e.name, p.name, "the same order")
            expect(e.dur >= 999 * least[e.name:sub(1, 1)] and p.dur >= 999 * least[e.name:sub(1, 1)], "%s took %s us", e.name, e.dur)
            if i > 1 then expect(p.ts >= would[r][i - 1].ts + would[r][i - 1].dur - 1e-3, "%s begins in another op", p.name) end
            first, last = math.min(first, p.ts), math.max(last, p.ts + p.dur)
            begun[r .. e.name] = p
        end
    end
    for mb = 0, 3 do -- a forward waits for the rank before, an input gradient for the rank after
        local function of(rank, op) return begun[("%d%s%d.0"):format(rank, op, mb)] end
        local f, i = of(0, "F"), of(1, "I")
        expect(of(1, "F").ts >= f.ts + f.dur - 1e-3 and of(0, "I").ts >= i.ts + i.dur - 1e-3, "microbatch %d", mb)
    end
    expect(math.abs(first - did[0][1].ts) < 1e-3, "both begin together")
    local rc
    rc, out = mascon("plan --json " .. small .. " " .. two .. "--costs runs/small")
    same(rc, 0, "plan")
    local j = json(out)
    expect(math.abs(j.bubble.makespan - (last - first) * 1e-6) < 1e-6, "%s s in plan, %s us in trace", j.bubble.makespan, last - first)
    expect(j.bubble.ranks[1].busy > 4 * 0.018, "padding counts")
    for r = 1, 2 do -- zb_h1 of 4 microbatches keeps two at once, whose activations are slots of the rank's graph
        local p = j.per_rank[r]
        same(j.bubble.ranks[r].peak_microbatches, 2, "kept at once")
        same(p.activations_bytes % 2, 0, "slots")
        expect(p.total_bytes > p.state_bytes + p.activations_bytes + p.pipe_bytes, "total of rank %d", r)
        -- a message is a microbatch of 64 tokens x 64 wide in fp32: a few of them each way
        if r == 1 then -- of the first rank the run itself says what it took
            local took = events(dir .. "/runs/small", "memory")[1]
            same(p.activations_bytes, took.arenas.slots, "slots as taken")
            same(p.pipe_bytes, took.arenas.pipe, "messages as taken")
        end
        expect(p.pipe_bytes % (64 * 64 * 4) == 0 and p.pipe_bytes >= 3 * 64 * 64 * 4 and p.pipe_bytes < 12 * 64 * 64 * 4, "%d", p.pipe_bytes)
    end
    local schedule = dir .. "/runs/small/segments/001/schedule.txt"
    local kept = read(schedule)
    write(schedule, (kept:gsub("cut 0 1 2", "cut 0 1 999")))
    same(mascon("plan " .. small .. " " .. two .. "--costs runs/small"), 2, "stages of another model")
    has(read(dir .. "/err"), "cuts 999 layers, the model has 2")
    write(schedule, kept)
    -- other stages: from their ops, which the padding is not in
    rc, out = mascon("plan --json " .. small .. " --ranks 2 --set parallel.pp=2 --set batch.global=4 --set 'parallel.stages={2,0}' --costs runs/small")
    local ops = 0
    for r = 0, 1 do
        for _, l in ipairs(lines(("%s/runs/small/segments/001/trace-2.%d.jsonl"):format(dir, r))) do
            local e = json(l)
            if e.at == "op" then ops = ops + e["end"] - e.begin end
        end
    end
    j = json(out)
    local busy = j.bubble.ranks[1].busy + j.bubble.ranks[2].busy
    expect(math.abs(busy - ops * 1e-3) < 1e-9 * busy, "%s s busy, %s ms of ops", busy, ops)
end)

case("plan: operations and parameters are Megatron's", function()
    local head = [[local m = require "mascon"
return m.recipe { name = "x", seed = 1, lr = m.lr.constant { peak = 1e-4, warmup = 10 }, steps = { steps = 100 }, device = "cuda", precision = "bf16",
  ]]
    local l8 = recipe("l8.lua", head .. [[batch = { global = 8, micro = 1 }, data = m.data.declared { tokens = "1T", vocab = 128256 },
  model = m.models.llama { layers = 32, hidden = 4096, heads = 32, kv_heads = 8, head_dim = 128, ffn = 14336, vocab = 128256, seq = 8192 } }]])
    local j = json(select(2, mascon("plan --json " .. l8 .. " --ranks 8")))
    same(j.flops.per_token_causal, 51470401536, "operations a token")
    same(j.params, 8030261248, "parameters")
    same(j.even.state_bytes_sharded, 8030261248 * (6 + 12 / 8), "state")
    local g175 = recipe("g175.lua", head .. [[batch = { global = 5120, micro = 1 }, data = m.data.declared { tokens = "1T", vocab = 51200 },
  parallel = { tp = 8, pp = 8 },
  model = m.models.gpt2 { layers = 96, hidden = 12288, heads = 96, vocab = 51200, seq = 2048, tied = true } }]])
    j = json(select(2, mascon("plan --json " .. g175 .. " --nodes 640 --per-node 8")))
    same(j.flops.per_token_causal, 2174868359479296 / 2048, "operations a token")
    same(j.microbatches, 64, "microbatches")
    -- it counts no biases and positions: 2.7185 B on a rank, 2.7971 B on the fullest of the last stage
    expect(math.abs(j.per_rank[4].params / 2.7185e9 - 1) < 3e-4, "a rank: %d", j.per_rank[4].params)
    expect(math.abs(j.per_rank[8].params / 2.7971e9 - 1) < 3e-4, "the last stage: %d", j.per_rank[8].params)
end)

case("explain says where values come from", function()
    local rc, out = mascon("explain " .. tiny .. " --set batch.global=24")
    same(rc, 0, "exit")
    has(out, "--set")
    has(out, "default")
    has(out, "memory of one rank")
    rc, out = mascon("explain --json " .. tiny)
    same(rc, 0, "exit")
    json(out)
end)

-- ---- train ----
case("train: files, last line, refusal, finished resume", function()
    local rc, r, err = train "--set steps.steps=6 --set checkpoint.every='2 steps' --set log_every=2"
    same(rc, 0, "exit")
    same(r.exit, 0, "exit in the last line")
    same(r.step, 6, "step")
    same(r.run, "runs/small", "run")
    expect(r.weights_hash:match "^%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x$", "hash %s", tostring(r.weights_hash))
    has(err, "iteration        2/       6 | consumed samples:           24 |")
    local m = metrics(dir .. "/runs/small")
    same(#m, 6, "lines of metrics")
    for i, l in ipairs(m) do
        same(l.step, i, "step")
        same(l.samples, 12 * i, "samples")
        same(l.tokens, 12 * 64 * i, "tokens")
        same(l.segment, 1, "segment")
        expect(l.loss and l.grad_norm and l.lr and l.step_ms and l.tokens_per_s and l.skipped == 0, "member missing")
    end
    same(m[6].loss, r.loss, "loss of the last line")
    local run = dir .. "/runs/small"
    has(read(run .. "/segments/001/launch_map.tsv"), "rank\thost\tdevice\ttp\tcp\tep\tdp\tpp\n0\t")
    json(read(run .. "/segments/001/resolved.json"))
    same(read(run .. "/segments/001/recipe.lua"), read(small), "copy of the recipe")
    local mem = events(run, "memory")[1]
    same(mem.planned, mem.allocated, "planned and allocated bytes")
    local peak = events(run, "memory_peak")[1]
    same(peak.step_allocations, 0, "allocations in steps")
    local over = peak.rss_peak - peak.baseline - peak.planned
    expect(over <= math.max(0.05 * peak.planned, 32 * 1048576), "peak is %d bytes over the plan", over)
    -- again
    rc, _, err = mascon("train " .. small)
    same(rc, 2, "an existing run without --resume")
    has(err, "--resume auto")
    local before = #events(run)
    local rc2, r2 = train "--set steps.steps=6 --resume auto"
    same(rc2, 0, "finished")
    for k, v in pairs(r) do same(r2[k], v, "last line of a finished run: " .. k) end
    same(#events(run), before, "events of a finished run")
    same(read(run .. "/segments/002/resolved.json"), nil, "a second segment")
end)

case("train --profile: rows are the whole of the steps, and count the work", function()
    local rc, r, err = train "--profile --set steps.steps=6 --set batch.global=2 --set checkpoint.every='3 steps'"
    same(rc, 0, "exit")
    local p = r.profile
    same(p.steps, 6, "steps")
    expect(p.gemm_gflops > 0 and p.memory_gb_per_s > 0, "no ceilings")
    local share, seconds, linear, saves = 0, 0, {}, 0
    for _, row in ipairs(p.rows) do
        share, seconds = share + row.share, seconds + row.seconds
        if row.what == "linear" then linear[row.verb] = row end
        if row.what == "checkpoint" then saves = row.calls end
    end
    expect(math.abs(share - 1) < 1e-9 and math.abs(seconds - p.seconds) < 1e-9, "shares are no whole: %g", share)
    expect(saves >= 1, "no checkpoint among the rows")
    -- 12 rows of 64 tokens; two layers of q, k, v 64 x 128, o 64 x 64, gate and up 64 x 384, down 192 x 64; head 64 x 257
    local once = 12 * 64 * 2 * (2 * (64 * 128 + 64 * 64 + 64 * 384 + 192 * 64) + 64 * 257)
    for _, verb in ipairs { "forward", "backward weight", "backward input" } do
        same(linear[verb].flops, once, "operations of linear, " .. verb)
    end
    has(err, "optimizer")
    same(#json(read(dir .. "/runs/small/segments/001/profile.json")).rows, #p.rows, "rows in the file")
    rc, r = train "--resume auto --quiet --set steps.steps=7"
    same(r.profile, nil, "profile that was not asked for")
end)

case("train: an error of the recipe leaves no run behind", function()
    local rc, r = train "--set model.layers=0"
    same(rc, 2, "exit")
    same(r.exit, 2, "exit in the last line")
    same(read(dir .. "/runs/small/run.lock"), nil, "a run")
end)

case("--set of an exclusive group: replaces what the recipe says, but not another --set", function()
    local rc, out = mascon("explain " .. small .. " --set steps.tokens=3k")
    same(rc, 0, "one")
    has(out:match "[^\n]*steps%.tokens[^\n]*", "--set")
    expect(not out:find("steps.steps", 1, true), "the recipe's own is still there")
    local err
    rc, out, err = mascon("check " .. small .. " --set steps.tokens=3k --set steps.steps=4")
    same(rc, 2, "two")
    has(err, "only one of steps.tokens and steps.steps can be set")
    same((mascon("check " .. small .. " --set steps.steps=3 --set steps.steps=4")), 0, "the same key twice: the last one")
end)

case("explain: what functions made has their line as origin", function()
    local rc, out = mascon("explain " .. home .. "/tests/recipes/good/functions_of_progress.lua")
    same(rc, 0, "exit")
    has(out:match "\nlr%.values[^\n]*", ".lua:10")
    has(out:match "\nbatch%.ramp[^\n]*", ".lua:8")
end)

case("train: a missing text", function()
    local rc, _, err = train "--set data.train=nowhere.txt"
    same(rc, 2, "exit")
    has(err, "nowhere.txt")
end)

case("train: a folder that is no run, a resume of nothing", function()
    os.execute("mkdir " .. quote(dir .. "/full"))
    write(dir .. "/full/letter.txt", "dear moon")
    local rc, _, err = train "--run full"
    same(rc, 3, "exit")
    has(err, "holds no run")
    has(err, "choose another --run")
    expect(not err:find("empty it", 1, true), "advice to delete what is not ours: %s", err)
    rc = train "--run none --resume 5"
    same(rc, 2, "resume of a step of no run")
    rc = train "--run new --resume auto --set steps.steps=1"
    same(rc, 0, "auto without a run is fresh")
end)

case("train: a second run in the same folder is refused", function()
    sh(background(endless, "runs/small", 2) .. "; echo $P >pid")
    local pid = read(dir .. "/pid"):match "%d+"
    local rc, _, err = train "--resume auto"
    same(rc, 3, "exit")
    has(err, pid)
    sh(("P=%s; kill -9 $P; "):format(pid) .. await "grep -q '^State:.[ZX]' /proc/$P/status") -- dead, reaped or not
    rc = train "--resume auto --set steps.steps=3" -- its agent is dead: no refusal, at most a short wait
    same(rc, 0, "after its death")
end)

case("the run folder is deleted, replaced, or loses its lock: 76, and it is left alone", function()
    local long = endless .. "--json --set checkpoint.every='1000000 steps'"
    local function under(run, what)
        return sh(("%s train %s --run %s %s >o 2>e & P=$!; "):format(quote(program), small, run, long)
            .. await(steps_done(run, 3)) .. "; " .. what .. "; " .. reap)
    end
    same(under("gone", "rm -rf gone"), 76, "deleted")
    has(read(dir .. "/e"), "was deleted or replaced")
    same(last(read(dir .. "/o")).exit, 76, "last line")
    has(last(read(dir .. "/o")).message, "was deleted or replaced")
    expect(not read(dir .. "/gone/run.lock") and sh "test ! -e gone" == 0, "the folder was made anew")
    same(under("unlocked", "rm unlocked/run.lock; cp unlocked/events.jsonl before"), 76, "the lock is deleted")
    same(read(dir .. "/unlocked/events.jsonl"), read(dir .. "/before"), "events")
    same(sh "test -z \"$(ls -A unlocked/incidents; ls -A unlocked/ckpt)\"", 0, "nothing else written")
    -- replaced by another run: that one is not disturbed
    local next_run = ("%s train %s --run new --quiet --json >o2 2>e2"):format(quote(program), small)
    same(under("new", "rm -rf new; " .. next_run), 76, "replaced")
    same(last(read(dir .. "/o2")).exit, 0, "the other run")
    local m = metrics(dir .. "/new")
    same(#m, 50, "its steps")
    same(#events(dir .. "/new", "incident"), 0, "its incidents")
    same(#events(dir .. "/new", "end"), 1, "its ends")
end)

-- runs that are stopped from outside have no end of their own; the one they are compared with is as long as they became
case("kill -9 and resume: bit for bit", function()
    for _, p in ipairs { "fp32", "fp64" } do
        local set = ("--set precision=%s --set checkpoint.every='3 steps' --quiet "):format(p)
        local run, n = "killed-" .. p, 0
        for i = 1, 4 do -- wherever it is then: in a step, in a save, between them
            sh(background("--resume auto " .. set .. endless, run, 13 * i) .. ("; sleep 0.0%d; kill -9 $P; "):format(i * 2) .. reap)
        end
        for _, l in ipairs(metrics(dir .. "/" .. run)) do n = math.max(n, l.step) end
        expect(n >= 13, "killed before step 13: %d", n)
        local to = ("--set steps.steps=%d "):format(n + 5)
        local rc2, r = train(("--run %s --resume auto %s"):format(run, set .. to), "OMP_NUM_THREADS=3")
        same(rc2, 0, "resumed")
        local rc, whole = train("--run whole-" .. p .. " " .. set .. to)
        same(rc, 0, "never killed")
        same(r.step, n + 5, "last step")
        same(r.weights_hash, whole.weights_hash, "weights_hash " .. p)
        same(r.loss, whole.loss, "loss")
        local want, seen, steps = metrics(dir .. "/whole-" .. p), {}, 0
        for _, l in ipairs(metrics(dir .. "/" .. run)) do
            same(l.loss, want[l.step].loss, "loss of step " .. l.step)
            same(l.grad_norm, want[l.step].grad_norm, "norm of step " .. l.step)
            steps = steps + (seen[l.step] and 0 or 1)
            seen[l.step] = true
        end
        same(steps, n + 5, "steps that have a line")
        expect(#events(dir .. "/" .. run, "resume") >= 1, "it was never resumed")
    end
end)

case("SIGINT: 75 with a checkpoint, then on to the same end", function()
    local rc = sh(background(endless .. "--quiet", "b", 10) .. "; kill -INT $P; " .. reap)
    same(rc, 75, "exit after ctrl-C")
    local stop = events(dir .. "/b", "stop")[1]
    has(stop.why, "signal 2")
    local c = events(dir .. "/b", "checkpoint")
    same(c[#c].step, stop.step, "the checkpoint of the stop")
    local n = stop.step + 30
    local set = ("--set steps.steps=%d --quiet"):format(n)
    local rc2, r = train("--run b --resume auto " .. set)
    same(rc2, 0, "resumed")
    local _, whole = train("--run a " .. set)
    same(r.weights_hash, whole.weights_hash, "weights_hash")
    for _, f in ipairs { "a", "b" } do same(#metrics(dir .. "/" .. f), n, "lines of " .. f) end
end)

case("SIGHUP, SIGUSR1 and SIGUSR2 stop a run in order, too; under nohup SIGHUP does not", function()
    local set = endless .. "--set checkpoint.every='1000000 steps'"
    for _, sig in ipairs { "HUP", "USR1", "USR2" } do
        local run = "run" .. sig
        local rc = sh(background(set, run, 3) .. "; kill -" .. sig .. " $P; " .. reap)
        same(rc, 75, sig)
        same(events(dir .. "/" .. run, "signal")[1].signal, sig, "event")
        same(#events(dir .. "/" .. run, "checkpoint"), 1, "checkpoints")
    end
    local rc = sh("trap '' HUP; " .. background(set, "hup", 3) .. "; kill -HUP $P; n=$(wc -l <hup/metrics.jsonl); "
        .. await "[ $(wc -l <hup/metrics.jsonl) -ge $((n+20)) ]" .. "; kill -TERM $P; " .. reap)
    same(rc, 75, "SIGHUP was ignored at the start: 20 steps later it runs, until SIGTERM")
    local e = events(dir .. "/hup", "signal")
    same(#e, 1, "signals that counted")
    same(e[1].signal, "TERM", "the one that did")
end)

case("timeout(1) signals process and group at once: that is one request", function()
    -- at its own SIGTERM it does what it does when the time is up
    local rc = sh(("timeout --preserve-status 600 %s train %s --quiet %s & P=$!; "):format(quote(program), small, endless)
        .. await(steps_done("runs/small", 3)) .. "; kill -TERM $P; " .. reap)
    same(rc, 75, "exit")
    local stop = events(dir .. "/runs/small", "stop")[1]
    local c = events(dir .. "/runs/small", "checkpoint")
    same(c[#c].step, stop.step, "the checkpoint of the stop")
    same(#events(dir .. "/runs/small", "signal"), 1, "signals that counted")
end)

case("a machine that cannot: 3, and nothing was entered", function()
    local rc, r, err = train "--set model.layers=400 --set model.hidden=8192 --set model.heads=64 --set model.ffn=32768"
    same(rc, 3, "exit")
    same(r.exit, 3, "exit in the last line")
    has(err, "this machine has")
    same(read(dir .. "/runs/small/run.lock"), nil, "a run")
    rc, _, err = train "--ranks 2 --set parallel.cp=2"
    same(rc, 2, "context parallel in this version")
    has(err, "context parallel")
end)

case("a signal before the first update: 76, and nothing lost", function()
    -- one step of this takes a minute
    local rc = sh(background("--set batch.global=60000", "runs/small", 0):gsub("2>&1", "2>said", 1) .. "; kill -TERM $P; " .. reap)
    same(rc, 76, "exit")
    has(read(dir .. "/said"), "stopped by SIGTERM before the first update")
    same(#events(dir .. "/runs/small", "checkpoint"), 0, "checkpoints")
    same(#events(dir .. "/runs/small", "incident"), 0, "incidents of an orderly stop")
    rc = train "--resume auto --set steps.steps=2"
    same(rc, 0, "again")
end)

case("a signal while the recipe is still being read: 76 with a message; a second one kills", function()
    write(dir .. "/slow.lua", ([[
local n = 0
for i = 1, 4e8 do n = n + i %% 3 end
return require "mascon".recipe { inherit = "%s" }]]):format(small))
    -- TERM is caught: the program has begun, and the next thing that takes time is the recipe's loop (2 s of CPU time)
    local begun = await "grep -q '^SigCgt:.*[4-7c-f]...$' /proc/$P/status"
    local function stopped(kills)
        return sh(("%s train slow.lua --run R --json >o 2>e & P=$!; "):format(quote(program)) .. begun .. "; " .. kills .. "; " .. reap)
    end
    for _, sig in ipairs { "TERM", "INT", "HUP" } do
        same(stopped("kill -" .. sig .. " $P"), 76, sig)
        has(read(dir .. "/e"), "stopped by SIG" .. sig .. " before the first update")
        local l = last(read(dir .. "/o"))
        same(l.exit, 76, "exit in the last line")
        same(l.step, 0, "step")
        has(l.message, "before the first update")
        expect(sh "test ! -e R" == 0, "a run folder was made")
    end
    -- the second when the first is no longer pending: signals that wait together come in an order of the kernel's own
    same(stopped("kill -TERM $P; " .. await "grep -q '^ShdPnd:.0*$' /proc/$P/status" .. "; kill -INT $P"), 128 + 2, "two signals")
end)

case("environment that says nothing is told: OMP_NUM_THREADS, SLURM_JOB_END_TIME", function()
    for v, what in pairs { ["0"] = "not a number of threads", ["-1"] = "not a number of threads", abc = "not a number of threads",
        ["2,3"] = "the first counts here; 2 threads are used", ["1x"] = "not a number of threads" } do
        sh "rm -rf runs"
        local rc, _, err = train("--set steps.steps=1", "OMP_NUM_THREADS=" .. v)
        same(rc, 0, v)
        has(err, "OMP_NUM_THREADS=" .. v .. ": ")
        has(err, what)
        local _, times = err:gsub("OMP_NUM_THREADS", "")
        same(times, 1, "times it is said")
    end
    for v, bad in pairs { abc = true, ["12h"] = true, ["-5"] = true, ["99999999999999999999"] = true, ["4000000000"] = false } do
        sh "rm -rf runs"
        local rc, _, err = train("--set steps.steps=1", "OMP_NUM_THREADS=1 SLURM_JOB_END_TIME=" .. v)
        same(rc, 0, v)
        same(err:find("SLURM_JOB_END_TIME=" .. v .. ": not seconds since 1970", 1, true) ~= nil, bad, v)
        expect(not err:find("OMP_NUM", 1, true), "a warning of nothing: %s", err)
    end
end)

case("time_limit: 75, again and again to the end", function()
    local limit, stops, tries, rc, r = 500, 0, 0, nil, nil
    while stops < 3 and tries < 20 do
        rc, r = train(("--resume auto --quiet %s --set time_limit='%d ms'"):format(endless, limit))
        expect(rc == 75 or rc == 76, "exit %d", rc)
        if rc == 75 then stops = stops + 1 else limit = 2 * limit end -- no step in that time: a slower machine
        tries = tries + 1
    end
    same(stops, 3, "orderly stops")
    for _, e in ipairs(events(dir .. "/runs/small", "stop")) do has(e.why, "time limit of ") end
    local to = ("--quiet --set steps.steps=%d"):format(r.step + 10)
    rc, r = train(("--resume auto --set time_limit='60 min' %s"):format(to))
    same(rc, 0, "at last")
    local _, whole = train("--run whole " .. to)
    same(r.weights_hash, whole.weights_hash, "weights_hash")
end)

case("the rank is killed: 76 and an incident that names it", function()
    local rc = sh(background(endless, "runs/small", 3) .. "; pkill -9 -P $P; " .. reap)
    same(rc, 76, "exit")
    local i = json(read(dir .. "/runs/small/incidents/001.json"))
    same(i.cause.class, "rank_death", "class")
    same(i.cause.rank, 0, "rank")
    expect(i.cause.pid > 0 and i.step > 0, "pid or step missing")
end)

case("resume: what changed is told, what is frozen is refused", function()
    train "--set steps.steps=2 --quiet"
    local rc, _, err = train "--resume auto --set steps.steps=4 --set seed=7 --quiet"
    same(rc, 2, "another seed")
    has(err, "seed")
    rc = train "--resume auto --set steps.steps=4 --set seed=7 --allow seed --quiet"
    same(rc, 0, "allowed")
    rc, _, err = train "--resume auto --set steps.steps=6 --quiet --allow sead"
    same(rc, 2, "no such key to allow")
    has(err, '--allow sead: no such key; did you mean "seed"?')
    rc = train "--resume auto --set steps.steps=6 --set lr.peak=1e-3 --quiet --allow seed"
    same(rc, 0, "another peak")
    local told = false
    for _, e in ipairs(events(dir .. "/runs/small", "changed")) do told = told or e.path == "lr.peak" end
    expect(told, "lr.peak changed and no event says so")
end)

case("a resume that cannot load is refused before anything is written", function()
    train "--set steps.steps=2 --quiet"
    local run = dir .. "/runs/small"
    local before = read(run .. "/events.jsonl")
    local function refused(args, ...)
        local rc, r, err = train(args)
        same(rc, 2, args)
        same(r.exit, 2, "exit in the last line")
        for _, what in ipairs { ... } do has(err, what) end
        same(read(run .. "/events.jsonl"), before, "events after " .. args)
        expect(not read(run .. "/segments/002/resolved.json"), "a segment after %s", args)
        expect(not read(run .. "/incidents/001.json"), "an incident after %s", args)
        return err
    end
    local more = " --quiet --set steps.steps=4 --resume "
    refused(more .. "auto --set precision=fp64 --allow precision", "stored as F32", "new run: --run DIR")
    refused(more .. "auto --set model.ffn=200 --allow model", "model/", "new run: --run DIR")
    refused(more .. "auto --set data.holdout=0.3 --allow data.holdout", "new run: --run DIR")
    refused(more .. "10 --set lr.peak=1e-3", "no checkpoint of step 10; there are: 2")
    -- a frozen key: --allow is offered where it would help
    local err = refused(more .. "auto --set precision=fp64", "new run with --run DIR")
    expect(not err:find("--allow", 1, true), "--allow precision is offered")
    refused(more .. "auto --set seed=3", "--allow seed changes it all the same")
    -- and the run goes on
    local rc, r = train(more .. "auto --set lr.peak=1e-3")
    same(rc, 0, "a plain resume")
    same(r.step, 4, "step")
    same(events(run, "changed")[1].path, "lr.peak", "what changed")
end)

case("a resume is compared with what it goes on from, not with a start that came to nothing", function()
    local set = " --quiet --set steps.steps=4 --set checkpoint.every='2 steps' --set checkpoint.keep=5"
    train(set)
    local run = dir .. "/runs/small"
    -- a later start that allowed another seed and died before its first checkpoint
    sh("cp -r runs/small/segments/001 runs/small/segments/002 && sed -i 's/\"seed\": 1234/\"seed\": 7/' runs/small/segments/002/resolved.json")
    has(read(run .. "/segments/002/resolved.json"), '"seed": 7')
    local rc, _, err = train("--resume auto" .. set .. " --set steps.steps=6")
    same(rc, 0, "the seed of the checkpoint: " .. err)
    rc = train("--resume 2" .. set .. " --set steps.steps=6 --set seed=7")
    same(rc, 2, "another seed")
end)

case("a finished run whose newest checkpoint is damaged is not said to be finished", function()
    local set = "--set steps.steps=4 --set checkpoint.every='2 steps' --set checkpoint.keep=5 --quiet"
    local _, whole = train(set)
    local data = dir .. "/runs/small/ckpt/step-000000004.e1/data-00000.mcd"
    local s = read(data)
    write(data, s:sub(1, #s / 2) .. string.char((s:byte(#s / 2 + 1) + 1) % 256) .. s:sub(#s / 2 + 2))
    local rc, r = train("--resume auto " .. set)
    same(rc, 0, "exit")
    same(r.weights_hash, whole.weights_hash, "weights_hash")
    same(#metrics(dir .. "/runs/small"), 6, "steps 3 and 4 were made again")
    same(events(dir .. "/runs/small", "checkpoint_damaged")[1].checkpoint, "step-000000004.e1", "the damaged one")
end)

case("notes: check says what it reckoned with, a plain start of train says none of it", function()
    local _, _, err = mascon("check " .. small)
    has(err, "note: ranks: 1")
    has(err, "note: memory of one rank: ")
    local rc, _, err2 = train "--set steps.steps=1"
    same(rc, 0, "exit")
    expect(not err2:find("note:", 1, true), "train: %s", err2)
    has(select(3, train "--run b --set steps.steps=1 --set parallel.sp=true"), "note: parallel.sp has no effect")
end)

case("--resume STEP goes back", function()
    local set = "--set checkpoint.every='2 steps' --set checkpoint.keep=5 --quiet"
    local _, whole = train("--set steps.steps=6 " .. set)
    local rc, r = train("--set steps.steps=6 --resume 2 " .. set)
    same(rc, 0, "exit")
    same(r.weights_hash, whole.weights_hash, "weights_hash")
    local m = metrics(dir .. "/runs/small")
    same(#m, 10, "lines: 6 + 4 replayed")
    same(m[7].step, 3, "first replayed step")
    same(m[7].segment, 2, "its segment")
    rc = train("--set steps.steps=6 --resume 3 " .. set)
    same(rc, 2, "a step that has no checkpoint")
end)

case("bf16: weights stored or rebuilt from their masters, the same run and the same text", function()
    local set = "--set precision=bf16 --set checkpoint.every='2 steps' --quiet "
    local _, whole = train("--run whole --set steps.steps=4 " .. set)
    local rc, half = train("--run parts --set steps.steps=2 --set checkpoint.weights=rebuild " .. set)
    same(rc, 0, "rebuild")
    local _, shown = mascon "ckpt show parts"
    expect(not shown:find("model/", 1, true) and shown:find("master/", 1, true), "ckpt show: %s", shown)
    same((mascon "ckpt verify parts"), 0, "verify")
    local ask = "generate %s --step 2 --tokens 12 --temperature 0 --no-stop --prompt moon"
    local eval = "eval %s --step 2 --samples 2 --json --data " .. home .. "/recipes/text/moon.txt"
    for _, cmd in ipairs { ask, eval } do
        local rc1, stored = mascon(cmd:format "whole")
        local rc2, rebuilt = mascon(cmd:format "parts")
        same(rc1 + rc2, 0, cmd)
        same((rebuilt:gsub("parts", "whole")), stored, cmd)
    end
    local _, r = train("--run parts --set steps.steps=4 --resume auto " .. set) -- and from here on they are stored
    same(r.weights_hash, whole.weights_hash, "weights")
    expect(half.weights_hash ~= r.weights_hash, "no step was made")
    has(select(2, mascon "ckpt show parts"), "model/")
    same((train("--run parts --set steps.steps=4 --resume auto " .. set:gsub("bf16", "fp32"))), 2, "another precision")
end)

case("damage: the newest checkpoint is named and the older one taken", function()
    local set = "--set checkpoint.every='2 steps' --set checkpoint.keep=5 --quiet"
    train("--set steps.steps=4 " .. set)
    local run = dir .. "/runs/small"
    local data = run .. "/ckpt/step-000000004.e1/data-00000.mcd"
    local s = read(data)
    write(data, s:sub(1, #s / 2) .. string.char((s:byte(#s / 2 + 1) + 1) % 256) .. s:sub(#s / 2 + 2))
    same((mascon "ckpt verify runs/small"), 4, "verify")
    local rc, r = train("--set steps.steps=6 --resume auto " .. set)
    same(rc, 0, "exit")
    same(r.step, 6, "step")
    same(events(run, "checkpoint_damaged")[1].checkpoint, "step-000000004.e1", "the damaged one")
    same(events(run, "resume")[1].step, 2, "resumed from")
    -- and when none is whole, that is an error, not a fresh start
    sh "for f in runs/small/ckpt/*/data-00000.mcd; do printf x >$f; done"
    local rc8, r8, e8 = train("--set steps.steps=8 --resume auto " .. set)
    same(rc8, 77, "none whole")
    for _, c in ipairs { "step-000000002.e1", "step-000000004.e1", "step-000000006.e2" } do has(r8.message, c) end
    expect(not e8:find("may help", 1, true), "advice to try again: %s", e8)
    rc = mascon("train " .. small .. " --set steps.steps=8 --resume 4 " .. set)
    same(rc, 77, "that step")
    has(read(dir .. "/err"), "step-000000004.e")
    expect(not read(dir .. "/out"):find("may help", 1, true), "advice to try again: %s", read(dir .. "/out"))
end)

case("damage: every byte in its place but one, in all checkpoints: 77 by the rank, too", function()
    local set = "--set checkpoint.every='2 steps' --quiet"
    train("--set steps.steps=4 " .. set)
    for _, k in ipairs { 2, 4 } do
        local data = ("%s/runs/small/ckpt/step-%09d.e1/data-00000.mcd"):format(dir, k)
        local d = read(data)
        write(data, d:sub(1, #d / 2) .. string.char((d:byte(#d / 2 + 1) + 1) % 256) .. d:sub(#d / 2 + 2))
    end
    for _, how in ipairs { "auto", "2", "4" } do
        local rc, r = train(("--set steps.steps=8 --resume %s %s"):format(how, set))
        same(rc, 77, "resume " .. how)
        has(r.message, how == "2" and "step-000000002.e1" or "step-000000004.e1")
    end
end)

case("damage: resolved.json of the newest segment", function()
    train "--set steps.steps=4 --set checkpoint.every='2 steps' --quiet"
    local text = { empty = "", garbage = "moon", another = "{}" }
    for what, t in pairs(text) do
        write(dir .. "/runs/small/segments/001/resolved.json", t)
        sh "rm -rf copy; cp -r runs/small copy"
        local rc, _, err = train "--run copy --set steps.steps=6 --resume auto --quiet"
        same(rc, 0, what .. ": " .. err) -- the checkpoint has the recipe
        rc, _, err = train "--run copy --set seed=7 --set steps.steps=8 --resume auto --quiet"
        same(rc, 2, what .. ": what is frozen is still frozen")
        sh "rm -rf copy; cp -r runs/small copy; rm -rf copy/ckpt/*"
        local rc2, r2 = train "--run copy --set steps.steps=6 --resume auto --quiet"
        same(rc2, 77, what .. ", no checkpoint")
        has(r2.message, "delete the folder segments/001")
    end
    sh "mkdir runs/small/segments/999"
    same((train "--set steps.steps=6 --resume auto --quiet"), 0, "an empty segment")
    sh "test -f runs/small/segments/1000/resolved.json || exit 1"
    sh "rm -rf runs/small/ckpt/*; mkdir runs/small/segments/1001"
    local rc, r = train "--set steps.steps=7 --resume auto --quiet"
    same(rc, 77, "an empty segment, no checkpoint")
    has(r.message, "delete the folder segments/1001")
    sh "rmdir runs/small/segments/1001"
    same((train "--set steps.steps=7 --resume auto --quiet"), 0, "as it said")
end)

case("torn last line of metrics.jsonl is cut", function()
    local set = "--quiet"
    train("--set steps.steps=2 " .. set)
    local path = dir .. "/runs/small/metrics.jsonl"
    write(path, read(path) .. '{"step":3,"lo')
    train("--resume auto --set steps.steps=4 " .. set)
    local m = metrics(dir .. "/runs/small")
    same(#m, 4, "lines")
    same(m[3].step, 3, "step")
end)

case("torn last line of events.jsonl is cut; strange lines of metrics.jsonl are told once, and left", function()
    train "--set steps.steps=2 --quiet"
    local run = dir .. "/runs/small"
    write(run .. "/events.jsonl", read(run .. "/events.jsonl") .. '{"time":"2026-01-01","kind":"to')
    local whole = read(run .. "/metrics.jsonl")
    local one, two = whole:match "([^\n]*\n)([^\n]*\n)"
    write(run .. "/metrics.jsonl", one .. "moon\n" .. two .. '\0\0\0\n{"step":9,"lo\n\n')
    local rc, _, err = train "--resume auto --set steps.steps=4 --quiet"
    same(rc, 0, "exit")
    expect(#events(run) > 4, "events") -- each of them parses
    same(#events(run, "to"), 0, "the torn one")
    local _, n = err:gsub("metrics%.jsonl: 4 lines are no metrics, the first is line 2", "")
    same(n, 1, "warnings in " .. err)
    local text = read(run .. "/metrics.jsonl")
    has(text, "moon\n")
    local _, steps = text:gsub('{"step":[^\n]*}\n', "")
    same(steps, 4, "steps")
    sh "rm -rf runs"
    train "--set steps.steps=2 --quiet"
    _, _, err = train "--resume auto --set steps.steps=4 --quiet"
    expect(not err:find("no metrics", 1, true), "a warning of nothing: %s", err)
end)

case("damage of a checkpoint is named once in a start by the retention", function()
    local set = "--set checkpoint.every='2 steps' --set checkpoint.keep=2 --quiet"
    train("--set steps.steps=6 " .. set)
    local data = dir .. "/runs/small/ckpt/step-000000006.e1/data-00000.mcd"
    local d = read(data)
    write(data, d:sub(1, #d / 2) .. string.char((d:byte(#d / 2 + 1) + 1) % 256) .. d:sub(#d / 2 + 2))
    local rc, _, err = train("--set steps.steps=14 --resume auto " .. set)
    same(rc, 0, "exit")
    local _, n = err:gsub("retention: [^\n]*step%-000000006%.e1", "")
    same(n, 1, "warnings in " .. err)
end)

case("NaN: null in metrics, an event, the rule's exit code", function()
    local set = "--set steps.steps=8 --set lr.peak=1000 --set lr.warmup=0 --set optim.clip=0 --set optim.eps=1e-30 --quiet"
    local rc, r = train("--run abort --set anomaly.nonfinite=abort " .. set)
    same(rc, 77, "abort")
    same(r.exit, 77, "exit in the last line")
    same(#events(dir .. "/abort", "incident"), 1, "incidents")
    rc = train("--run skip --set anomaly.nonfinite=skip --set anomaly.max_skips=3 " .. set)
    same(rc, 77, "three skips in a row")
    local m = metrics(dir .. "/skip")
    same(m[#m].skipped, 3, "skipped")
    expect(m[#m].loss == nil or m[#m].grad_norm == nil, "nothing is null")
    local kinds = 0
    for _, e in ipairs(events(dir .. "/skip")) do
        if e.kind:find "^nonfinite_" then kinds = kinds + 1 end
    end
    same(kinds, 3, "events")
end)

case("a spike of the norm: skipped, told, and the window carried through a resume", function()
    -- without warm-up norms fall from the start; a factor just above 0 makes any later norm a spike
    local set = "--set steps.steps=10 --set anomaly.spike=skip --set anomaly.spike_factor=0.01 --set anomaly.spike_window=8 --quiet "
    local rc = train("--run a " .. set)
    same(rc, 0, "exit")
    local m = metrics(dir .. "/a")
    same(m[8].skipped, 0, "before the window is full")
    same(m[10].skipped, 2, "after")
    local e = events(dir .. "/a", "spike")
    same(#e, 2, "events")
    same(e[1].step, 9, "step")
    expect(e[1].ratio > 0.01, "ratio")
    same(m[10].loss == m[9].loss, false, "other data")
    -- stopped in the middle of filling: the same steps are skipped
    train("--run b --set checkpoint.every='1 steps' " .. set:gsub("=10", "=5"))
    rc = train("--run b --resume auto " .. set)
    same(rc, 0, "resumed")
    local n = metrics(dir .. "/b")
    same(n[10].skipped, 2, "skipped after a resume")
    same(n[10].loss, m[10].loss, "loss after a resume")
end)

case("evaluation at intervals and by command", function()
    local rc, _, err = train "--set steps.steps=6 --set data.holdout=0.2 --set eval.every='3 steps'"
    same(rc, 0, "exit")
    has(err, " validation loss at iteration 3 | lm loss value: ")
    local e = events(dir .. "/runs/small", "eval")
    same(#e, 2, "evaluations")
    same(e[2].step, 6, "step")
    local rc2, out = mascon "eval runs/small --json"
    same(rc2, 0, "eval")
    local j = json(out)
    same(j.loss, e[2].loss, "the same loss by command")
    expect(math.abs(j.bits_per_byte - j.loss / math.log(2)) < 1e-12, "bits per byte")
    expect(math.abs(j.perplexity - math.exp(j.loss)) < 1e-9 * j.perplexity, "perplexity")
    local rc3, out3 = mascon("eval runs/small --samples 4 --json --data " .. home .. "/recipes/text/moon.txt")
    same(rc3, 0, "eval of a text")
    same(json(out3).samples, 4, "samples")
    same((mascon "eval runs/small --data nowhere.txt"), 2, "no such text")
    same((mascon "eval nowhere"), 2, "no such run")
end)

case("generate: same seed, same text; limits", function()
    train "--set steps.steps=4 --quiet"
    local g = "generate runs/small --prompt 'The moon' --tokens 30 "
    local rc, a = mascon(g .. "--seed 5")
    same(rc, 0, "exit")
    has(a, "The moon")
    same(select(2, mascon(g .. "--seed 5")), a, "the same seed")
    expect(select(2, mascon(g .. "--seed 6")) ~= a, "another seed gives the same text")
    same(select(2, mascon(g .. "--seed 5", "OMP_NUM_THREADS=1")), a, "one thread")
    local z = g .. "--temperature 0 "
    same(select(2, mascon(z .. "--seed 1")), select(2, mascon(z .. "--seed 2")), "greedy text")
    same(select(2, mascon(z)), select(2, mascon(g .. "--top-k 1")), "greedy is top-k 1")
    local j = json(select(2, mascon(g .. "--json")))
    same(j.prompt, "The moon", "prompt")
    expect(j.tokens <= 30, "tokens")
    local _, _, err = mascon("generate runs/small --no-stop --tokens 500")
    has(err, "context")
    same((mascon("generate runs/small --prompt " .. ("x"):rep(64))), 2, "a prompt as long as the context")
    same((mascon("generate runs/small/ckpt/step-000000004.e1 --tokens 3")), 0, "one checkpoint")
    sh "cp -r runs/small/ckpt/step-000000004.e1 step-000000004.e1 && rm -rf runs"
    same((mascon("generate step-000000004.e1 --tokens 3")), 0, "a checkpoint away from its run")
end)

-- ---- hooks ----
local function with_hooks(name, hooks, more)
    return recipe(name, ([[
local m = require "mascon"
return m.recipe { inherit = "%s", %s
  hooks = { %s } }]]):format(small, more or "", hooks))
end
case("what cannot be written to stdout: 76 and a message; a reader that left: quiet", function()
    same((train "--set steps.steps=2"), 0, "a model")
    local cmds = { "version", "help", "doc steps", "check " .. small, "check --json " .. small, "explain " .. small,
        "generate runs/small --tokens 3", "generate runs/small --tokens 3 --json", "eval runs/small --json --data " .. home .. "/recipes/text/moon.txt --samples 2",
        "ckpt ls runs/small", "ckpt show runs/small", "ckpt verify runs/small --json", "data inspect " .. home .. "/recipes/text/moon.txt",
        "train " .. small .. " --run full --json --quiet --set steps.steps=1" }
    for _, c in ipairs(cmds) do
        local rc = sh(quote(program) .. " " .. c .. " >/dev/full 2>e")
        same(rc, 76, c)
        has(read(dir .. "/e"), "standard output: ")
        rc = sh(("mkfifo p; exec 4<>p 5>p 4<&-; rm p; %s %s >&5 2>e"):format(quote(program), c:gsub("run full", "run left")))
        same(rc, 0, c .. ", a reader that left")
        expect(not read(dir .. "/e"):find("standard output", 1, true), "%s: %s", c, read(dir .. "/e"))
    end
    same((mascon "ckpt ls nowhere >/dev/full"), 2, "a code of its own")
    local rc = sh(quote(program) .. " generate runs/small --tokens 40 --no-stop | head -c 1")
    same(rc, 0, "head")
    same(read(dir .. "/err"), "", "what it says")
end)

case("hooks: answers take effect with the next step, are logged and replayed", function()
    write(dir .. "/h.lua", [[
return { state = { calls = 0 },
  on_step_end = function(ev, self)
    self.state.calls = self.state.calls + 1
    if ev.step == 3 then return { lr_scale = 0.5 } end
    if ev.step == 5 then return { checkpoint = true } end
    if ev.step == 8 then return { stop = "enough" } end
  end }]])
    local r = with_hooks("r.lua", '"h.lua"', "checkpoint = { every = '3 steps', keep = 9 },")
    local rc, out = mascon("train " .. r .. " --json --quiet")
    same(rc, 75, "stopped by the hook")
    local run = dir .. "/runs/small"
    local m = metrics(run)
    same(#m, 9, "steps")
    local lr = function(k) return m[k].lr end
    expect(math.abs(lr(4) / lr(3) - 0.5 * 4 / 3) < 1e-9, "lr of step 4: %g after %g", lr(4), lr(3)) -- warm-up: k/10
    local d = events(run, "directive")
    same(#d, 3, "directives")
    same(d[1].step, 4, "lr_scale in force at")
    same(d[3].why, "enough", "why")
    local steps = {}
    for _, c in ipairs(events(run, "checkpoint")) do steps[#steps + 1] = c.step end
    same(table.concat(steps, " "), "3 6 9", "checkpoints") -- the hook's falls on step 6
    -- back to step 3: the answer given then lies in its checkpoint
    rc = mascon("train " .. r .. " --json --quiet --resume 3")
    same(rc, 75, "replayed")
    local again = metrics(run)
    same(#again, 15, "lines")
    for i = 10, 15 do
        same(again[i].loss, m[again[i].step].loss, "loss of replayed step " .. again[i].step)
        same(again[i].lr, m[again[i].step].lr, "lr of replayed step " .. again[i].step)
    end
    local books = json(select(2, mascon "ckpt show runs/small --json --step 9"))
    has(select(2, mascon "ckpt show runs/small --step 9"), '"calls":9')
    expect(books, "no books")
end)

case("a signal during an evaluation: it is owed, and the resumed run begins with it; the last one, too", function()
    write(dir .. "/h.lua", [[
return { state = { n = 0 },
  on_eval = function(ev, self)
    self.state.n = self.state.n + 1
    self.log("eval of step " .. ev.step .. " lr " .. tostring(ev.lr))
    return { lr_scale = 0.5 ^ self.state.n }
  end }]])
    write(dir .. "/valid.txt", ("the tide comes and goes with the moon; "):rep(6000))
    local more = [[
  eval = { every = "2 steps" }, checkpoint = { every = "2 steps", keep = 9 },]]
    local r = with_hooks("r.lua", '"h.lua"', more)
    local args = ("train %s --json --quiet --set steps.steps=4 --set data.valid=%s/valid.txt"):format(r, dir)
    local rc, ref, err = mascon(args .. " --run ref")
    same(rc, 0, "uninterrupted: " .. err)
    -- stopped in the evaluation of step n, which follows the line of that step; where the signal came too late, again
    local function stop_at(n, evals)
        sh "rm -rf before; cp -r cut before"
        for _ = 1, 20 do
            local rc1, out1 = sh(("%s %s --run cut --resume auto >o 2>e & P=$!; "):format(quote(program), args)
                .. await(steps_done("cut", n)) .. "; kill -TERM $P; " .. reap .. "; R=$?; cat o; exit $R")
            if #events(dir .. "/cut", "eval") == evals then
                same(rc1, 75, "stopped in the evaluation of step " .. n .. ": " .. out1)
                same(last(out1).step, n, "step")
                return
            end
            sh "rm -rf cut; cp -r before cut"
        end
        error(("no signal of 20 fell into the evaluation of step %d"):format(n))
    end
    stop_at(2, 0)
    stop_at(4, 1)
    local rc3, out3, err3 = mascon(args .. " --run cut --resume auto")
    same(rc3, 0, "the debt is paid: " .. err3)
    same(#metrics(dir .. "/cut"), 4, "steps")
    local want, got = events(dir .. "/ref", "eval"), events(dir .. "/cut", "eval")
    same(#got, 2, "evaluations")
    for i = 1, 2 do
        same(got[i].step, want[i].step, "step of evaluation " .. i)
        same(got[i].loss, want[i].loss, "loss of evaluation " .. i)
        same(metrics(dir .. "/cut")[2 + i].lr, metrics(dir .. "/ref")[2 + i].lr, "lr")
    end
    want, got = events(dir .. "/ref", "hook_log"), events(dir .. "/cut", "hook_log")
    for i = 1, 2 do same(got[i].message, want[i].message, "what on_eval saw") end
    same(last(out3).weights_hash, last(ref).weights_hash, "weights")
    has(select(2, mascon "ckpt show cut"), '"n":2')
    same((mascon(args .. " --run cut --resume auto")), 0, "finished")
    same(#events(dir .. "/cut", "eval"), 2, "evaluations after a resume of the finished run")
end)

case("hooks: what on_checkpoint changes is there after kill -9 and resume, after a stop, and in a longer run", function()
    write(dir .. "/h.lua", [[
return { state = { n = 0 },
  on_checkpoint = function(ev, self)
    self.state.n = self.state.n + 1
    self.log(("step %d loss %.17g norm %.17g lr %.17g %s"):format(ev.ckpt_step, ev.loss, ev.grad_norm, ev.lr, ev.ckpt_path:match "[^/]*$"))
    return { lr_scale = 0.7 ^ self.state.n }
  end }]])
    local r = with_hooks("r.lua", '"h.lua"', "checkpoint = { every = '4 steps', keep = 9 },")
    local args = ("train %s --json --quiet --set steps.steps=14"):format(r)
    local rc, ref = mascon(args .. " --run ref")
    same(rc, 0, "uninterrupted")
    local function alike(run, what)
        local want, got = metrics(dir .. "/ref"), {}
        for _, m in ipairs(metrics(dir .. "/" .. run)) do got[m.step] = m end
        for i = 1, 14 do
            same(got[i].loss, want[i].loss, what .. ": loss of step " .. i)
            same(got[i].lr, want[i].lr, what .. ": lr of step " .. i)
        end
        has(select(2, mascon("ckpt show " .. run)), '"n":3') -- 4, 8, 12; the call at the end comes after its checkpoint
    end
    -- from any checkpoint of the run: as if it had been killed right after the commit
    for _, k in ipairs { 4, 8, 12 } do
        sh "rm -rf again; cp -r ref again"
        local rc2, out2 = mascon(("%s --run again --resume %d"):format(args, k))
        same(rc2, 0, "resumed")
        same(last(out2).weights_hash, last(ref).weights_hash, "weights after a resume of step " .. k)
        alike("again", "step " .. k)
        local calls = {}
        for _, e in ipairs(events(dir .. "/again", "hook_log")) do
            if e.message:find("step " .. k .. " ", 1, true) == 1 then calls[#calls + 1] = e.message end
        end
        same(#calls, 2, "calls of step " .. k)
        same(calls[2], calls[1], "the event")
    end
    for _, how in ipairs { "KILL", "TERM" } do
        sh(("rm -rf cut; %s %s --run cut >/dev/null 2>&1 & P=$!; "):format(quote(program), args)
            .. await(steps_done("cut", 6)) .. ("; kill -%s $P; "):format(how) .. reap)
        local rc3, out3, err3 = mascon(args .. " --run cut --resume auto")
        same(rc3, 0, how .. ": " .. err3)
        same(last(out3).weights_hash, last(ref).weights_hash, "weights after " .. how)
        alike("cut", how)
    end
    -- the last checkpoint of a shorter run is one that is due in a longer one
    same((mascon(args .. " --run short --set steps.steps=8")), 0, "8 steps")
    local n = #events(dir .. "/short", "hook_log")
    same((mascon(args .. " --run short --set steps.steps=8 --resume auto")), 0, "finished")
    same(#events(dir .. "/short", "hook_log"), n, "calls by a resume of the finished run")
    local rc4, out4 = mascon(args .. " --run short --resume auto")
    same(rc4, 0, "14 steps")
    same(last(out4).weights_hash, last(ref).weights_hash, "weights")
end)

case("hooks: three errors in a row stop the run with a checkpoint", function()
    write(dir .. "/h.lua", "return { on_step_end = function() error 'no such moon' end }")
    local r = with_hooks("r.lua", '"h.lua"')
    local rc, out = mascon("train " .. r .. " --json --quiet")
    same(rc, 77, "exit")
    has(last(out).message, "h.lua")
    local run = dir .. "/runs/small"
    same(#events(run, "hook_error"), 3, "errors told")
    local c = events(run, "checkpoint")
    same(c[#c].step, 3, "the checkpoint of the last step")
end)

case("hooks: on_anomaly overrules the recipe's rule", function()
    write(dir .. "/h.lua", "return { on_anomaly = function(ev) return { action = 'skip' } end }")
    local r = with_hooks("r.lua", '"h.lua"', [[
      anomaly = { nonfinite = "abort", max_skips = 2 }, lr = m.lr.constant { peak = 1000 },
      optim = m.adamw { clip = 0, eps = 1e-30 }, steps = { steps = 9 },]])
    local rc = mascon("train " .. r .. " --json --quiet")
    same(rc, 77, "exit")
    local m = metrics(dir .. "/runs/small")
    same(m[#m].skipped, 2, "skipped")
end)

case("hooks: on_grad sees norms, the shipped ones run", function()
    write(dir .. "/h.lua", "return { on_grad = function(ev, self) self.log(('%.17g'):format(ev.grad_norm)) end }")
    local r = with_hooks("r.lua", '"h.lua", { "hooks/eval_every.lua", steps = 2 }, "hooks/skip_anomaly.lua", "hooks/save_before_timeout.lua", { "hooks/log_jsonl.lua", members = "step loss" }',
        "data = { tokenizer = 'bytes', train = '" .. home .. "/recipes/text/moon.txt', holdout = 0.1 }, steps = { steps = 5 },")
    local rc, out, err = mascon("train " .. r .. " --json --quiet")
    same(rc, 0, "exit: " .. err .. out)
    local run = dir .. "/runs/small"
    local m = metrics(run)
    local e = events(run, "eval")
    same(e[1] and e[1].step, 3, "first evaluation") -- asked for after step 2
    local logged, norm = 0, nil
    for _, l in ipairs(events(run, "hook_log")) do
        if l.hook:find "h%.lua" then norm = tonumber(l.message) end
        if l.hook:find "log_jsonl" then
            logged = logged + 1
            same(norm, m[logged].grad_norm, "norm by the hook")
            same(json(l.message).loss, m[logged].loss, "loss by the hook")
        end
    end
    same(logged, 5, "lines of log_jsonl")
end)

case("hooks: one that nothing can interrupt ends the run with an incident", function()
    write(dir .. "/h.lua", 'return { on_step_end = function(ev) if ev.step == 3 then string.find(("a"):rep(40000), (".-"):rep(20) .. "b") end end }')
    local r = with_hooks("r.lua", '"h.lua"')
    local rc, out = mascon("train " .. r .. " --json --quiet")
    same(rc, 77, "exit")
    has(last(out).message, "cannot be interrupted")
    has(json(read(dir .. "/runs/small/incidents/001.json")).cause.message, "h.lua")
end)

-- ---- checkpoints and data ----
case("ckpt ls, show, verify", function()
    train "--set steps.steps=4 --set checkpoint.every='1 steps' --set checkpoint.keep=2 --quiet"
    local rc, out = mascon "ckpt ls runs/small --json"
    same(rc, 0, "ls")
    local l = json(out).checkpoints
    same(#l, 2, "kept")
    same(l[2].step, 4, "newest last")
    local rc2, shown = mascon "ckpt show runs/small --json"
    same(rc2, 0, "show")
    local r = select(2, train "--set steps.steps=4 --resume auto --quiet")
    has(shown, r.weights_hash)
    same(json(shown).weights_hash, r.weights_hash, "weights_hash of show")
    for _, p in ipairs { "runs/small", "runs/small/ckpt", "runs/small/ckpt/step-000000004.e1" } do
        same((mascon("ckpt verify " .. p)), 0, "verify " .. p)
        same((mascon("ckpt ls " .. p)), 0, "ls " .. p)
        same((mascon("ckpt show " .. p)), 0, "show " .. p)
    end
    same((mascon "ckpt ls nowhere"), 2, "nowhere")
    same((mascon "ckpt show nowhere"), 2, "nowhere")
end)

case("ckpt verify: a copy under the name of another checkpoint", function()
    same((train "--set steps.steps=2"), 0, "a run")
    sh "cp -r runs/small/ckpt/step-000000002.e1 runs/small/ckpt/step-000000007.e1"
    for _, path in ipairs { "runs/small", "runs/small/ckpt/step-000000007.e1", "runs/small/ckpt/step-000000007.e1/" } do
        local rc, out = mascon("ckpt verify " .. path)
        same(rc, 4, path)
        has(out, "its manifest is that of step 2, epoch 1")
    end
    has(select(2, mascon "ckpt ls runs/small"), "its manifest is that of step 2, epoch 1")
    same((mascon "ckpt verify runs/small/ckpt/step-000000002.e1/"), 0, "its own name")
end)

case("data pack, inspect, verify, and training on what was packed", function()
    local text = home .. "/recipes/text/moon.txt"
    local rc, out = mascon(("data pack %s --out moon --json"):format(text))
    same(rc, 0, "pack")
    same(json(out).documents, 1, "documents")
    same(json(out).tokens, #read(text) + 1, "tokens")
    same((mascon "data inspect moon"), 0, "inspect")
    same((mascon "data verify moon --vocab 257"), 0, "verify")
    local _, a = train("--run a --set steps.steps=3 --quiet --set data.train=" .. dir .. "/moon")
    expect(a.loss, "no loss on packed data")
    local s = read(dir .. "/moon.bin")
    write(dir .. "/moon.bin", "Z" .. s:sub(2))
    same((mascon "data verify moon"), 4, "verify of a damaged file")
    local b, _, err
    rc, b, err = train("--run b --set steps.steps=3 --quiet --set data.train=" .. dir .. "/moon")
    same(rc, 2, "training on a damaged file")
    has(err, "moon.bin: bytes 0 to " .. #s - 1 .. " are not those that were packed")
    write(dir .. "/moon.bin", s .. "ZZ")
    has(select(3, mascon("check " .. small .. " --set data.train=" .. dir .. "/moon")), "moon.bin: " .. #s + 2 .. " bytes, but ")
    same((mascon(("data pack %s"):format(text))), 2, "pack without --out")
end)

case("an id past the vocabulary: named when it is met, and the work until then is kept", function()
    mascon(("data pack %s/recipes/text/moon.txt --out moon"):format(home))
    os.remove(dir .. "/moon.json") -- nothing but the id itself gives it away
    local s = read(dir .. "/moon.bin")
    local at = 2 * 64 * 100 + 1 -- in sample 100: some later step draws it
    write(dir .. "/moon.bin", s:sub(1, at - 1) .. "\1\2" .. s:sub(at + 2)) -- 513
    local rc, r, err = train("--quiet --set steps.steps=400 --set data.train=" .. dir .. "/moon")
    expect(rc == 77 or rc == 2, "exit %s", rc)
    has(err, "513")
    local m = metrics(dir .. "/runs/small")
    if #m > 0 then
        same(rc, 77, "exit after progress")
        local c = events(dir .. "/runs/small", "checkpoint")
        same(c[#c].step, #m, "the checkpoint of the last step")
    end
    same((mascon "data verify moon --vocab 257"), 4, "verify")
end)

case("data pack: JSONL, packed and not, in a folder; by any number of workers; what is wrong is named", function()
    sh "mkdir web"
    local l = {}
    for i = 1, 3000 do l[i] = ('{"id":%d,"text":"document %d\\u00e9","body":"%s"}'):format(i, i, ("x"):rep(i)) end
    write(dir .. "/web/a.jsonl", table.concat(l, "\n") .. "\n")
    write(dir .. "/web/b.jsonl", '{"text":"b","body":""}\n')
    write(dir .. "/web/c.txt", "a text\n")
    sh "gzip web/b.jsonl"
    local hash
    for _, w in ipairs { 1, 2, 3, 8 } do
        local rc, out, err = mascon(("data pack web --out w%d --workers %d --json"):format(w, w))
        same(rc, 0, "exit: " .. err)
        local j = json(out)
        same(j.documents, 3002, "documents")
        hash = hash or j.hash
        same(j.hash, hash, "hash with " .. w .. " workers")
        same(read(("%s/w%d.idx"):format(dir, w)), read(dir .. "/w1.idx"), "index")
        same((mascon(("data verify w%d"):format(w))), 0, "verify")
    end
    local rc, _, err = mascon "data pack web/a.jsonl --key body --out body"
    same(rc, 0, "exit: " .. err)
    same(#read(dir .. "/body.bin"), 2 * (3000 * 3001 / 2 + 3000), "bytes of the bodies")
    l[2345] = '{"id":1}'
    write(dir .. "/web/a.jsonl", table.concat(l, "\n"))
    rc, _, err = mascon "data pack web --out bad"
    same(rc, 2, "a line without text")
    has(err, 'web/a.jsonl:2345: no member "text"')
    expect(sh "ls bad*" ~= 0, "something is left")
    rc, _, err = mascon "data pack web --out bad --format jsonx"
    same(rc, 2, "format")
    rc = sh(("truncate -s 2G big; %s data pack big --out big & P=$!; "):format(quote(program))
        .. await "[ -s big.bin.tmp ]" .. "; kill -9 $P; " .. reap)
    expect(rc ~= 0 and not read(dir .. "/big.bin"), "a killed pack left big.bin")
    sh "truncate -s 1000 big"
    same((mascon "data pack big --out big"), 0, "the same again")
    same(#read(dir .. "/big.bin"), 2002, "bytes")
    expect(sh "ls *.tmp" ~= 0, "a .tmp is left")
end)

case("a source that is too short is named as the recipe names it", function()
    write(dir .. "/short.txt", "moon")
    local _, _, err = mascon("check " .. with_hooks("r.lua", "", 'data = { train = "short.txt" },'))
    has(err, 'source "short.txt" has 5 tokens')
end)

case("data that cannot be trained on is found by check and by train, before a run folder exists", function()
    write(dir .. "/short.txt", "too short")
    write(dir .. "/web.jsonl", '{"text":"x"}\n')
    write(dir .. "/wide.jsonl", '{"text":"' .. ("x"):rep(500) .. '"}\n')
    write(dir .. "/empty.txt", "")
    sh "mkdir nothing"
    same((mascon "data pack wide.jsonl --out wide"), 0, "pack")
    local j = read(dir .. "/wide.json")
    write(dir .. "/wide.json", (j:gsub('"max_id": %d+', '"max_id": 300')))
    for name, what in pairs {
        ["short.txt"] = "10 tokens there, but one sample of sequence length 64 needs 65", ["empty.txt"] = "1 tokens there",
        ["web.jsonl"] = "JSONL is not read as it is: pack it first", ["nothing"] = "no regular file below this folder",
        ["missing"] = "no such file or folder", ["wide"] = "ids up to 300, past the vocabulary of 257",
    } do
        local set = " --set data.train=" .. dir .. "/" .. name
        local rc, _, err = mascon("check " .. small .. set)
        same(rc, 2, "check, " .. name)
        has(err, what)
        rc, _, err = train("--quiet" .. set)
        same(rc, 2, "train, " .. name)
        has(err, what)
        expect(sh "test -e runs" ~= 0, "%s: a run folder was made", name)
    end
end)

-- {a, b, c ...} of the newest checkpoint's cursor: samples taken of each source
local function taken(run)
    local t, out = {}, select(2, mascon(("ckpt show %s --json"):format(run)))
    for n in (out:match '"cursor":%b{}' or ""):gmatch '"taken":(%d+)' do t[#t + 1] = tonumber(n) end
    expect(#t > 0, "no cursor in %s", out:sub(1, 300))
    return t
end

case("order = megatron: the length of the run is part of it, and a resume keeps it or is refused", function()
    for i = 1, 40 do write(("%s/t%02d"):format(dir, i), (("%d piece of text. "):format(i)):rep(3 * i)) end
    sh "mkdir many; mv t?? many"
    same((mascon "data pack many --out many2"), 0, "pack")
    local set = "--quiet --set data.train=" .. dir .. "/many2 --set data.order=megatron "
    local rc, a, err = train(set .. "--run a --set steps.steps=4")
    same(rc, 0, "exit: " .. err)
    has(read(dir .. "/a/segments/001/resolved.json") or read(dir .. "/a/segments/000/resolved.json"), '"samples": 48')
    same(taken("a")[1], 48, "samples drawn")
    rc, a = train(set .. "--run a --set steps.steps=6 --resume auto") -- 72 samples: still the first epoch
    same(rc, 0, "a longer run of the same order")
    local b = select(2, train(set .. "--run b --set steps.steps=6"))
    same(a.weights_hash, b.weights_hash, "resumed = never stopped")
    rc, a, err = train(set .. "--run a --set steps.steps=200 --resume auto")
    expect(rc ~= 0 and rc ~= 1, "another order: exit %d", rc)
    has(err, "data.samples")
    rc, a, err = train(set .. "--run c --set steps.steps=6 --set data.samples=71")
    same(rc, 2, "fewer samples than the run takes")
    has(err, "the target of steps takes 72 samples")
    rc, a, err = train(set .. "--run e --set steps.steps=4 --set data.split='{3,1}' --set eval.every=2")
    same(rc, 0, "exit: " .. err)
    local seen = events(dir .. "/e", "eval")
    same(#seen, 2, "evaluations on the split")
    rc, a = mascon "eval e --json"
    same(rc, 0, "eval of the run")
    local off = math.abs(json(a).loss - seen[2].loss)
    expect(off < 1e-9, "eval differs from the one in training by %g", off)
    same((mascon("eval e --data " .. home .. "/recipes/text/moon.txt")), 0, "eval of another text")
    rc, a, err = train("--quiet --set data.order=megatron --run d")
    same(rc, 2, "text")
    has(err, "mascon data pack")
    expect(not read(dir .. "/d/events.jsonl") and sh "test -e d" ~= 0, "a run folder was made")
end)

case("weights of the blend change on resume: each source goes on where it was, nothing repeats", function()
    local text = read(home .. "/recipes/text/moon.txt")
    write(dir .. "/a.txt", text:sub(1, 7000))
    write(dir .. "/b.txt", text:sub(7001))
    local function mix(wa, wb)
        return ("data.train='{{\"%s/a.txt\",weight=%g},{\"%s/b.txt\",weight=%g}}'"):format(dir, wa, dir, wb)
    end
    local rc, _, err = train("--quiet --set steps.steps=5 --set " .. mix(3, 1)) -- 60 samples
    same(rc, 0, "exit: " .. err)
    local t = taken "runs/small"
    same(t[1], 45, "3/4 of 60")
    same(t[2], 15, "1/4 of 60")
    rc = train("--quiet --resume auto --set steps.steps=7 --set " .. mix(1, 2)) -- 24 more: 8 and 16
    same(rc, 0, "resume")
    t = taken "runs/small"
    same(t[1], 45 + 8, "a goes on at 45, a third of 24")
    same(t[2], 15 + 16, "b goes on at 15, two thirds of 24")
    local said = 0
    for _, e in ipairs(events(dir .. "/runs/small", "changed")) do
        said = said + (e.path:find "data.train%[%d%].weight" and 1 or 0)
    end
    same(said, 2, "changes of weights in events.jsonl")
    rc = train("--quiet --resume auto --set steps.steps=9 --set " .. mix(1, 2)) -- unchanged: the shares go on
    same(rc, 0, "second resume")
    t = taken "runs/small"
    same(t[1] + t[2], 108, "all samples")
    same(t[1], 45 + 16, "a third of 48 since the change")
end)

-- What compare says is held against runs of `mascon train` by hand, and its ratio against the rounds it gives. No times.
case("compare: recomputation takes less memory and gives the same losses", function()
    local a, b = [['parallel.recompute="none"']], [['parallel.recompute="block"']]
    local rc, out, err = mascon(("compare %s --a %s --b %s --steps 3 --warmup 1 --rounds 2 --json"):format(small, a, b))
    same(rc, 0, "exit: " .. err)
    local j = json(out)
    for k, set in pairs { a = a, b = b } do
        rc = train(("--quiet --set steps.steps=4 --run %s --set %s"):format(k, set))
        same(rc, 0, "by hand")
        local m = metrics(dir .. "/" .. k)
        same(j[k].first_loss, m[1].loss, "first loss")
        same(j[k].last_loss, m[4].loss, "last loss")
        same(j[k].planned, events(dir .. "/" .. k, "memory")[1].planned, "planned")
        same(j[k].planned, j[k].allocated, "allocated")
        same(j[k].repeats, true, "rounds of one setting")
        same(j[k].tokens_per_step, 12 * 64, "tokens a step")
        expect(j[k].peak > j[k].planned, "peak %d below the plan", j[k].peak)
        expect(not j[k].exposed_ms, "exposed communication of one rank")
        local r = j[k].rounds
        same(#r, 2, "rounds")
        same(j[k].step_ms.least, math.min(r[1].ms, r[2].ms), "least")
        same(j[k].step_ms.median, 0.5 * (r[1].ms + r[2].ms), "median")
    end
    expect(j.b.planned < j.a.planned, "recomputation plans %d, without it %d", j.b.planned, j.a.planned)
    same(j.losses, "bitwise", "losses")
    same(j.note, nil, "note")
    local x, y = j.b.rounds[1].ms / j.a.rounds[1].ms, j.b.rounds[2].ms / j.a.rounds[2].ms
    same(j.ratio.most, math.max(x, y), "ratio")
    local apart = j.a.step_ms.most < j.b.step_ms.least or j.b.step_ms.most < j.a.step_ms.least
    same(j.above_noise, apart, "above the noise")
    expect(sh "test -e runs" ~= 0, "the temporary folder is still there")
end)

case("compare: layouts agree to rounding, other work is said, several ranks wait", function()
    local short = "compare " .. small .. " --steps 2 --warmup 0 --rounds 1 "
    local rc, out, err = mascon(short .. "--ranks 2 --b parallel.tp=2 --json")
    same(rc, 0, "exit: " .. err)
    local j = json(out)
    same(j.losses, "rounding", "two layouts in fp32")
    same(j.a.ranks, 2, "ranks")
    expect(j.a.exposed_ms > 0, "data parallelism without exposed communication")
    expect(j.b.planned < j.a.planned, "half of the model plans %d, all of it %d", j.b.planned, j.a.planned)
    rc, out = mascon(short .. "--set seed=7 --b lr.peak=0.1 --b batch.global=24")
    same(rc, 0, "exit")
    has(out, "losses are different")
    has(out, "different numbers of tokens a step")
    has(out, "in one round")
    rc, out = mascon(short .. tiny)
    same(rc, 0, "two recipes")
    has(out, "different models")
end)

case("compare: bad input, a run that fails, a stop: said, passed on, and nothing is left", function()
    for args, what in pairs {
        [small .. " --b no.such=1"] = "that was setting B", ["nowhere.lua"] = "nowhere.lua", [small .. " --rounds 0"] = "not in",
        [small .. " --set steps.steps=9"] = "compare settles steps itself", [small .. " " .. tiny .. " x"] = "one word too many",
    } do
        local rc, _, err = mascon("compare " .. args)
        same(rc, 2, args)
        has(err, what)
        expect(sh "test -e runs" ~= 0, "%s: something was started", args)
    end
    local rc, _, err = sh(("ulimit -f 512; %s compare %s --steps 1 --rounds 1"):format(quote(program), small)) -- no room for a checkpoint
    same(rc, 76, "a run that fails")
    has(err, "CHECKPOINT OF STEP 3 FAILED")
    has(err, "round 1 of setting A ended with exit code 76")
    expect(sh "test -e runs" ~= 0, "after a failure something is left")
    sh(("%s compare %s --steps 100000 >say 2>&1 & P=$!; "):format(quote(program), small) .. await "grep -q first_step runs/*/A1/events.jsonl"
        .. "; kill -INT $P; " .. reap .. "; echo $? >code")
    same(read(dir .. "/code"), "76\n", "stopped")
    has(read(dir .. "/say"), "stopped by SIGINT")
    expect(sh "test -e runs" ~= 0, "after a stop something is left")
end)

-- ---- a full disk ----
case("a full disk: the run ends with 76 and what was committed stays", function()
    -- files may not grow past 512 KiB: a checkpoint (1.6 MiB) cannot be written
    local rc, out, err = sh(("ulimit -f 512; %s train %s --json --quiet --set steps.steps=4 --set checkpoint.every='2 steps'")
        :format(quote(program), small))
    same(rc, 76, "exit")
    has(err, "CHECKPOINT OF STEP 2 FAILED")
    same(#metrics(dir .. "/runs/small"), 4, "training went on")
    same(#events(dir .. "/runs/small", "checkpoint_failed"), 2, "events")
    rc = train "--resume auto --set steps.steps=4 --quiet"
    same(rc, 0, "with room again")
end)

-- A program in PREFIX/bin takes its library from PREFIX/share/mascon, wherever PREFIX is; one in a build folder from its source tree.
case("an installed program finds its library beside itself", function()
    local prefix = dir .. "/some prefix"
    same(sh(("mkdir -p %s/bin %s/share/mascon && cp %s %s/bin/mascon && cp -r %s/lua %s/hooks %s/recipes %s/share/mascon"):format(
        quote(prefix), quote(prefix), quote(program), quote(prefix), quote(home), quote(home), quote(home), quote(prefix))), 0, "copy")
    local rc, out = sh(("%s/bin/mascon version --json"):format(quote(prefix)))
    same(rc, 0, "version")
    has(out, "some prefix/share/mascon")
    same(sh(("%s/bin/mascon check %s/share/mascon/recipes/tiny_llama.lua"):format(quote(prefix), quote(prefix))), 0, "check")
    rc, out = sh(("mv %s/share %s/gone && %s/bin/mascon version"):format(quote(prefix), quote(prefix), quote(prefix)))
    has(out, home)
end)

-- ---- all ----
local failed, ran = 0, 0
for i, c in ipairs(cases) do
    if c[1]:find(pattern, 1, true) then
        dir = ("%s/%02d"):format(tmp, i)
        os.execute("mkdir " .. quote(dir))
        local ok, why = pcall(c[2])
        ran = ran + 1
        io.write(ok and "ok    " or "FAIL  ", c[1], "\n")
        if not ok then
            failed = failed + 1
            io.write("      ", tostring(why):gsub("\n", "\n      "), "\n      in ", dir, "\n")
        end
        io.flush()
    end
end
io.write(("%d passed, %d failed, 0 skipped\n"):format(ran - failed, failed))
if failed == 0 then os.execute("rm -rf " .. quote(tmp)) end
os.exit(failed == 0 and 0 or 1)
