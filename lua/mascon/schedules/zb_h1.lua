-- zb_h1.lua - one_f_one_b with the backward in two: I, the gradient of the input, at once, since the rank before waits for it; W,
-- the gradient of the weights, later, where the rank would be idle. p microbatches alive on every rank.
return function(p)
    if p.chunks ~= 1 then error("zb_h1 has one chunk a rank", 0) end
    local s, m = {}, p.microbatches
    for r = 0, p.ranks - 1 do
        local list = {}
        local function add(op, mb) list[#list + 1] = { op = op, mb = mb, chunk = 0 } end
        local f, w = math.min(p.ranks - r, m), 0
        for mb = 0, f - 1 do add("F", mb) end
        for mb = 0, m - 1 do
            add("I", mb)
            if mb + 1 - w > r then -- more than r weight gradients are owed
                add("W", w)
                w = w + 1
            end
            if f < m then
                add("F", f)
                f = f + 1
            end
        end
        for mb = w, m - 1 do add("W", mb) end
        s[r + 1] = list
    end
    return s
end
