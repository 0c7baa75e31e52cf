-- cover.lua - combinations of axis values such that every pair (or every three) of values of different axes meets somewhere.
-- Greedy: always the combination with the most that has not been seen; ties go to the first. Deterministic.
local M = {}

-- All k of n axes, as lists of indices.
local function choose(n, k)
    local out = {}
    local function go(from, t)
        if #t == k then out[#out + 1] = { unpack(t) } return end
        for i = from, n do
            t[#t + 1] = i
            go(i + 1, t)
            t[#t] = nil
        end
    end
    go(1, {})
    return out
end

-- axes: { { name, values }, ... }. Every legal combination, as lists of value indices.
function M.product(axes, legal)
    local out, at = {}, {}
    local function go(d)
        if d > #axes then
            local c = { unpack(at) }
            if not legal or legal(c) then out[#out + 1] = c end
            return
        end
        for v = 1, #axes[d][2] do
            at[d] = v
            go(d + 1)
        end
    end
    go(1)
    return out
end

local function key(c, axes_of)
    local n = 0
    for _, d in ipairs(axes_of) do n = n * 16 + c[d] end
    return n
end

-- What combinations of k axes the list has, of all that `all` has: seen, possible.
function M.count(axes, all, list, k)
    local seen, possible = 0, 0
    for _, of in ipairs(choose(#axes, k)) do
        local could, has = {}, {}
        for _, c in ipairs(all) do could[key(c, of)] = true end
        for _, c in ipairs(list) do has[key(c, of)] = true end
        for n in pairs(could) do
            possible = possible + 1
            if has[n] then seen = seen + 1 end
        end
    end
    return seen, possible
end

-- Adds combinations out of `from` to list until all of k axes that `from` has are seen, or there are `most`.
function M.fill(axes, from, list, k, most)
    local sets = choose(#axes, k)
    local seen = {}
    for i = 1, #sets do seen[i] = {} end
    local function mark(c)
        for i, of in ipairs(sets) do seen[i][key(c, of)] = true end
    end
    for _, c in ipairs(list) do mark(c) end
    while #list < (most or math.huge) do
        local best, most_new = nil, 0
        for _, c in ipairs(from) do
            local new = 0
            for i = 1, #sets do
                if not seen[i][key(c, sets[i])] then new = new + 1 end
            end
            if new > most_new then best, most_new = c, new end
        end
        if not best then return list end
        list[#list + 1] = best
        mark(best)
    end
    return list
end

return M
