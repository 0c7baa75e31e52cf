-- interleaved.lua - one forward, one backward over v chunks a rank (stage = chunk x ranks + rank): the bubble of one_f_one_b
-- over v, for v times the messages. Microbatches go in groups of `ranks`, each group through all chunks.
return function(p)
    local n, v, m = p.ranks, p.chunks, p.microbatches
    if m % n ~= 0 then
        error(("interleaved wants microbatches in groups of %d (pipeline ranks); there are %d"):format(n, m), 0)
    end
    local function mb_of(k) return math.floor(k / (n * v)) * n + k % n end
    local function chunk_of(k) return math.floor(k % (n * v) / n) end
    local s, all = {}, m * v
    for r = 0, n - 1 do
        local list = {}
        local warmup = math.min(2 * (n - 1 - r) + (v - 1) * n, all)
        local function forward(k) list[#list + 1] = { op = "F", mb = mb_of(k), chunk = chunk_of(k) } end
        local function backward(k) list[#list + 1] = { op = "B", mb = mb_of(k), chunk = v - 1 - chunk_of(k) } end
        for k = 0, warmup - 1 do forward(k) end
        for k = 0, all - warmup - 1 do
            forward(warmup + k)
            backward(k)
        end
        for k = all - warmup, all - 1 do backward(k) end
        s[r + 1] = list
    end
    return s
end
