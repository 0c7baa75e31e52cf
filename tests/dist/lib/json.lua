-- json.lua - a small JSON reader, so that the program's own is not its judge. null is json.null, or what the caller says.
local M = { null = {} }

local ESCAPES = { n = "\n", t = "\t", r = "\r", b = "\b", f = "\f" }

-- null: what a null becomes, in place of json.null; json.nothing leaves the member out.
M.nothing = {}
function M.read(s, null)
    if null == nil then null = M.null end
    local i = 1
    local value
    local function fail(what) error(("JSON: %s at %d in %s"):format(what, i, s:sub(i - 40, i + 40)), 0) end
    local function space() i = s:find("[^ \n\r\t]", i) or #s + 1 end
    local function text()
        local out = {}
        i = i + 1
        while true do
            local stop = s:find('["\\]', i) or fail "open string"
            out[#out + 1] = s:sub(i, stop - 1)
            i = stop + 1
            if s:byte(stop) == 34 then return table.concat(out) end
            local e = s:sub(i, i)
            if e == "u" then
                local n = tonumber(s:sub(i + 1, i + 4), 16)
                out[#out + 1] = n < 128 and string.char(n) or "?"
                i = i + 4
            else
                out[#out + 1] = ESCAPES[e] or e
            end
            i = i + 1
        end
    end
    local function list(close, item)
        local t = {}
        i = i + 1
        space()
        if s:sub(i, i) == close then i = i + 1 return t end
        while true do
            item(t)
            space()
            local d = s:sub(i, i)
            i = i + 1
            if d == close then return t end
            if d ~= "," then fail "no comma" end
        end
    end
    local function member(t)
        space()
        if s:sub(i, i) ~= '"' then fail "no key" end
        local k = text()
        space()
        if s:sub(i, i) ~= ":" then fail "no colon" end
        i = i + 1
        t[k] = value()
    end
    local function item(t) t[#t + 1] = value() end
    function value()
        space()
        local c = s:sub(i, i)
        if c == "{" then return list("}", member) end
        if c == "[" then return list("]", item) end
        if c == '"' then return text() end
        for word, v in pairs { ["true"] = true, ["false"] = false, null = null } do
            if s:sub(i, i + #word - 1) == word then
                i = i + #word
                if v == M.nothing then return nil end
                return v
            end
        end
        local n = s:match("^-?%d+%.?%d*[eE]?[+-]?%d*", i) or fail "no value"
        i = i + #n
        return tonumber(n)
    end
    local v = value()
    space()
    if i <= #s then fail "more after the end" end
    return v
end

return M
