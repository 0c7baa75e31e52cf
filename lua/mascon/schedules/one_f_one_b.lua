-- one_f_one_b.lua - one forward, one backward: as many forwards as there are ranks behind, then in turn.
-- Rank r keeps min(p - r, m) microbatches, however many there are.
return function(p)
    if p.chunks ~= 1 then error("one_f_one_b has one chunk a rank; \"interleaved\" has more", 0) end
    local s, m = {}, p.microbatches
    for r = 0, p.ranks - 1 do
        local list = {}
        local warmup = math.min(p.ranks - 1 - r, m)
        local function add(op, mb) list[#list + 1] = { op = op, mb = mb, chunk = 0 } end
        for mb = 0, warmup - 1 do add("F", mb) end
        for mb = 0, m - 1 - warmup do
            add("F", warmup + mb)
            add("B", mb)
        end
        for mb = m - warmup, m - 1 do add("B", mb) end
        s[r + 1] = list
    end
    return s
end
