-- gpipe.lua - all forwards, then all backwards. The whole batch is kept: m microbatches alive on every rank.
-- With more chunks a rank (stage = chunk x ranks + rank), all microbatches pass one chunk before the next: breadth first.
return function(p)
    local s = {}
    for r = 1, p.ranks do
        local list = {}
        for c = 0, p.chunks - 1 do
            for mb = 0, p.microbatches - 1 do list[#list + 1] = { op = "F", mb = mb, chunk = c } end
        end
        for c = p.chunks - 1, 0, -1 do
            for mb = 0, p.microbatches - 1 do list[#list + 1] = { op = "B", mb = mb, chunk = c } end
        end
        s[r] = list
    end
    return s
end
