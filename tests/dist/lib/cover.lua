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

-- How many tuples of k axes the list has of those that there could be: could(of) is the set of their keys.
local function met(axes, list, k, could)
    local seen, possible = 0, 0
    for _, of in ipairs(choose(#axes, k)) do
        local has = {}
        for _, c in ipairs(list) do has[key(c, of)] = true end
        for n in pairs(could(of)) do
            possible = possible + 1
            if has[n] then seen = seen + 1 end
        end
    end
    return seen, possible
end

-- What combinations of k axes the list has, of all that `all` has: seen, possible.
function M.count(axes, all, list, k)
    return met(axes, list, k, function(of)
        local could = {}
        for _, c in ipairs(all) do could[key(c, of)] = true end
        return could
    end)
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

-- ---- spaces too large to be listed ----

-- Only the axes `bound` (indices) stand in each other's way: a combination of their values is legal(c) or not; all other axes
-- take any value with any. Gives what the functions below take.
function M.space(axes, bound, legal)
    local space, some, is = { axes = axes, core = {}, free = {} }, {}, {}
    for i, d in ipairs(bound) do some[i], is[d] = axes[d], true end
    for d = 1, #axes do
        if not is[d] then space.free[#space.free + 1] = d end
    end
    for _, c in ipairs(M.product(some)) do
        local whole = {}
        for i, d in ipairs(bound) do whole[d] = c[i] end
        if legal(whole) then space.core[#space.core + 1] = whole end
    end
    space.is_bound = is
    return space
end

-- Every tuple of values of the axes `of` that a legal combination has: { [key] = true }, and in order, as { [axis] = value }.
local function tuples(space, of)
    local set, list = {}, {}
    local function go(c, i)
        while of[i] and space.is_bound[of[i]] do i = i + 1 end
        if not of[i] then
            local n = key(c, of)
            if not set[n] then
                local t = {}
                for _, d in ipairs(of) do t[d] = c[d] end
                set[n], list[#list + 1] = true, t
            end
            return
        end
        for v = 1, #space.axes[of[i]][2] do
            c[of[i]] = v
            go(c, i + 1)
        end
    end
    local seen = {}
    for _, core in ipairs(space.core) do
        local c, n = {}, 0
        for _, d in ipairs(of) do
            if space.is_bound[d] then c[d], n = core[d], n * 16 + core[d] end
        end
        if not seen[n] then
            seen[n] = true
            go(c, 1)
        end
    end
    return set, list
end

-- As count: seen, possible.
function M.count_space(space, list, k)
    return met(space.axes, list, k, function(of) return (tuples(space, of)) end)
end

-- As fill: each combination has the first tuple that is missing, and of those the one with the most that are missing, its free
-- axes chosen one after the other. So it ends with all tuples, or `most` combinations. Where nothing decides, values take turns.
function M.fill_space(space, list, k, most)
    local sets, n = choose(#space.axes, k), #space.axes
    local missing, order, with = {}, {}, {}
    for d = 1, n do with[d] = {} end
    for i, of in ipairs(sets) do
        missing[i], order[i] = tuples(space, of)
        for _, d in ipairs(of) do with[d][#with[d] + 1] = i end
    end
    local function mark(c)
        for i, of in ipairs(sets) do missing[i][key(c, of)] = nil end
    end
    local function next_missing()
        for i, of in ipairs(sets) do
            for _, t in ipairs(order[i]) do
                if missing[i][key(t, of)] then return t end
            end
        end
    end
    -- How many missing tuples of the sets `which` c has, as far as it is filled in.
    local function gain(c, which)
        local sum = 0
        for _, i in ipairs(which) do
            local of, whole = sets[i], true
            for _, d in ipairs(of) do whole = whole and c[d] end
            if whole and missing[i][key(c, of)] then sum = sum + 1 end
        end
        return sum
    end
    local every = {}
    for i = 1, #sets do every[i] = i end
    for _, c in ipairs(list) do mark(c) end
    while #list < (most or math.huge) do
        local want, best, most_new = next_missing(), nil, -1
        if not want then break end
        for turn = 1, #space.core do
            local core, c, fits = space.core[(#list * 7 + turn) % #space.core + 1], {}, true
            for d in pairs(space.is_bound) do
                c[d] = core[d]
                fits = fits and (want[d] or core[d]) == core[d]
            end
            if fits then
                for _, d in ipairs(space.free) do c[d] = want[d] end
                local sum = gain(c, every)
                for i, d in ipairs(space.free) do
                    if not c[d] then
                        local value, high, values = 1, -1, #space.axes[d][2]
                        for turn = 1, values do
                            local v = math.floor(#list / i + turn) % values + 1
                            c[d] = v
                            local g = gain(c, with[d])
                            if g > high then value, high = v, g end
                        end
                        c[d], sum = value, sum + high
                    end
                end
                if sum > most_new then best, most_new = c, sum end
            end
        end
        list[#list + 1] = best
        mark(best)
    end
    return list
end

return M
