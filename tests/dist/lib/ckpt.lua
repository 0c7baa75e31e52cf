-- ckpt.lua - reads a checkpoint by its documented format (ckpt/manifest.c, ckpt/writer.c), with none of the engine's code:
-- what is compared is what lies on the disk. Every logical element must be there exactly once.
local ffi = require "ffi"
local json = require "json"
ffi.cdef "size_t ZSTD_decompress(void *dst, size_t cap, const void *src, size_t n);"
local zstd = ffi.load "libzstd.so.1"
local M = {}

local C_TYPE, SIZE = { F32 = "float", F64 = "double" }, { F32 = 4, F64 = 8 }

local function slurp(path)
    local f = assert(io.open(path, "rb"))
    local s = f:read "*a"
    f:close()
    return s
end

local function product(t)
    local n = 1
    for _, v in ipairs(t) do n = n * v end
    return n
end

-- The bytes of one box, its chunks one after the other.
local function box_bytes(box, file, size)
    local n = product(box.n) * size
    local out, at = ffi.new("uint8_t[?]", n), 0
    for _, c in ipairs(box.chunks) do
        local offset, stored, raw, how = c[1], c[2], c[3], c[4]
        assert(at + raw <= n and offset + stored <= #file, "a chunk is longer than its box")
        local src = ffi.cast("const uint8_t *", file) + offset
        if how == "zstd" then
            assert(tonumber(zstd.ZSTD_decompress(out + at, raw, src, stored)) == raw, "a chunk does not unpack")
        else
            assert(how == "raw" and stored == raw, "a chunk is stored in an unknown way")
            ffi.copy(out + at, src, raw)
        end
        at = at + raw
    end
    assert(at == n, "a box lacks bytes")
    return out
end

-- Puts a box into its tensor, run by run of the last dimension.
local function place(t, seen, box, values)
    local shape, nd = t.shape, #t.shape
    local run = nd > 0 and box.n[nd] or 1
    local at = {}
    for d = 1, nd do at[d] = 0 end
    for r = 0, product(box.n) / run - 1 do
        local to = 0
        for d = 1, nd do to = to * shape[d] + box.lo[d] + at[d] end
        for i = 0, run - 1 do
            assert(seen[to + i] == 0, "an element is there twice")
            seen[to + i] = 1
            t.data[to + i] = values[r * run + i]
        end
        for d = nd - 1, 1, -1 do
            at[d] = at[d] + 1
            if at[d] < box.n[d] then break end
            at[d] = 0
        end
    end
end

-- Folder of a checkpoint -> { tensor = { [name] = { shape, dtype, n, data } }, name = { sorted }, hash, step }
function M.read(folder)
    local m = json.read(slurp(folder .. "/manifest.json"))
    local file, out = {}, { tensor = {}, name = {}, hash = m.weights_hash, step = m.step }
    for i, f in ipairs(m.files) do
        file[i] = slurp(folder .. "/" .. f.name)
        assert(#file[i] == f.bytes, f.name .. " has another size than the manifest says")
    end
    for _, s in ipairs(m.tensors) do
        local ct = C_TYPE[s.dtype] or error("dtype " .. s.dtype)
        local t = { shape = s.shape, dtype = s.dtype, n = product(s.shape) }
        local seen, n = ffi.new("uint8_t[?]", t.n), 0
        t.data = ffi.new(ct .. "[?]", t.n)
        for _, b in ipairs(s.boxes) do
            local bytes = box_bytes(b, file[b.file + 1], SIZE[s.dtype])
            place(t, seen, b, ffi.cast("const " .. ct .. " *", bytes))
            n = n + product(b.n)
        end
        assert(n == t.n, s.name .. " is not whole")
        t.bytes = t.n * SIZE[s.dtype]
        out.tensor[s.name] = t
        out.name[#out.name + 1] = s.name
    end
    table.sort(out.name)
    return out
end

-- The folder of a run's checkpoint of `step`, of the newest epoch; nil: none.
function M.find(run, step)
    local p = io.popen(("ls -d '%s'/ckpt/step-%09d.e* 2>/dev/null | sort -V | tail -n 1"):format(run, step))
    local s = p:read "*l"
    p:close()
    return s
end

-- Are the tensors whose names begin with `prefix` the same, bit for bit? nil: yes; else the first that is not.
function M.differs(a, b, prefix)
    for _, name in ipairs(a.name) do
        if name:sub(1, #prefix) == prefix then
            local x, y = a.tensor[name], b.tensor[name]
            if not y or x.bytes ~= y.bytes or ffi.string(x.data, x.bytes) ~= ffi.string(y.data, y.bytes) then return name end
        end
    end
end

-- Largest deviation over the tensors of a prefix, and which: ||a - ref|| / max(||ref||, 1e-3 ||all refs|| sqrt(n / N)), so that a
-- tensor that is exactly zero (the gradient of a key bias without rope) is held against what is next to it.
function M.deviation(a, ref, prefix, leave_out)
    local all, N, square, diff = 0, 0, {}, {}
    for _, name in ipairs(ref.name) do
        if name:sub(1, #prefix) == prefix then
            local x, r = a.tensor[name], ref.tensor[name]
            if not x then return math.huge, name .. " is missing" end
            if x.n ~= r.n then return math.huge, name .. " has another shape" end
            local d, s, xd, rd = 0, 0, x.data, r.data
            for i = 0, r.n - 1 do
                local e = xd[i] - rd[i]
                d, s = d + e * e, s + rd[i] * rd[i]
            end
            square[name], diff[name] = s, d
            all, N = all + s, N + r.n
        end
    end
    local worst, who, count = 0, "none", 0
    for name, d in pairs(diff) do
        if not (leave_out and name:find(leave_out)) then
            local v = math.sqrt(d) / math.max(math.sqrt(square[name]), 1e-3 * math.sqrt(all * ref.tensor[name].n / N))
            if d == 0 then v = 0 end
            if v ~= v then v = math.huge end
            if v > worst then worst, who = v, name end
            count = count + 1
        end
    end
    return worst, who, count
end

return M
