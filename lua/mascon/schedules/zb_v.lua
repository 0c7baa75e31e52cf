-- zb_v.lua - two chunks a rank placed as a V: rank r holds stage r (chunk 0, down) and stage 2p-1-r (chunk 1, up), so the loss
-- lies with the embedding. With equal times of F, I and W no rank is idle between its first and its last op.
-- Written for at least 2p - 1 microbatches; with fewer, the surplus is left out.
return function(p)
    if p.chunks ~= 2 then error(("zb_v has two chunks a rank, not %d"):format(p.chunks), 0) end
    local n, m = p.ranks, p.microbatches
    local all = math.max(2 * n - 1, m)
    local s = { place = {} }
    for r = 0, n - 1 do
        local list = {}
        local done = { F0 = 0, F1 = 0, I0 = 0, I1 = 0, W0 = 0, W1 = 0 }
        local function add(op, chunk, times)
            local key = op .. chunk
            for _ = 1, times or 1 do
                if done[key] < m then list[#list + 1] = { op = op, mb = done[key], chunk = chunk } end
                done[key] = done[key] + 1
            end
        end
        add("F", 0, 2 * (n - r) - 1)
        for _ = 1, r do add("F", 1) add("F", 0) end
        for _ = 1, n - r do add("F", 1) add("I", 1) add("W", 1) end
        while done.F0 < all or done.F1 < all do
            if done.F0 < all then add("F", 0) end
            add("I", 0) add("W", 0)
            add("F", 1) add("I", 1) add("W", 1)
        end
        for _ = 1, r do add("I", 0) add("I", 1) end
        for _ = 1, n - r do add("I", 0) add("W", 0) end
        add("W", 1, all - done.W1)
        add("W", 0, all - done.W0)
        s[r + 1] = list
        s.place[r + 1] = { r, 2 * n - 1 - r }
    end
    return s
end
