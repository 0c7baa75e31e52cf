-- recipes_spec.lua - the bundled recipes through the program: what `explain` says after inherit and --set.
local mascon = os.getenv "MASCON" or "build/release/mascon"

local function run(args)
    local p = io.popen(("'%s' %s 2>&1 </dev/null; echo exit=$?"):format(mascon, args))
    local text = p:read "*a"
    p:close()
    return tonumber(text:match "exit=(%d+)%s*$"), text
end
local function explain(args)
    local rc, text = run("explain " .. args)
    assert.are.equal(0, rc, text)
    local values = {}
    for line in text:gmatch "[^\n]+" do
        local key, value = line:match "^([%w_%.]+)%s+= (.-)%s%s+%S.*$"
        if key then values[key] = value:gsub('"', "") end
    end
    return values
end

describe("tiny_llama", function()
    it("keeps the shape that tests rely on", function()
        local v = explain "recipes/tiny_llama.lua"
        assert.are.same({ "8", "8", "4", "12", "1" },
            { v["model.layers"], v["model.heads"], v["model.kv_heads"], v["batch.global"], v["batch.micro"] })
        assert.are.equal("fp32", v["precision"])
        assert.are.equal("0", v["model.dropout"])
        assert.are.equal(0, tonumber(v["model.seq"]) % 4)
        assert.are.equal("constant", v["lr.kind"])
        assert.is_truthy(v["lr.peak"])
        assert.is_truthy(v["lr.warmup"])
        assert.are.equal("50 steps", v["steps.steps"])
    end)
    it("has a text of some 16 KB that never changes", function()
        local f = assert(io.open("recipes/text/moon.txt", "rb"))
        local text = f:read "*a"
        f:close()
        local sum = 0
        for i = 1, #text do sum = (sum * 31 + text:byte(i)) % 4294967291 end
        assert.are.equal(15509, #text)
        assert.are.equal(141118195, sum)
    end)
end)

describe("--set", function()
    it("changes values, creates tables, replaces targets", function()
        local v = explain "recipes/tiny_llama.lua --set lr.peak=0.5 --set parallel.tp=2 --set steps.tokens=12288"
        assert.are.equal("0.5", v["lr.peak"])
        assert.are.equal("2", v["parallel.tp"])
        assert.are.equal("12288 tokens", v["steps.tokens"])
        assert.is_nil(v["steps.steps"])
    end)
    it("names unknown keys", function()
        local rc, text = run "check recipes/tiny_llama.lua --set lr.peek=1"
        assert.are.equal(2, rc)
        assert.is_truthy(text:find("lr.peek", 1, true) and text:find("peak", 1, true))
    end)
end)

describe("a recipe that wants a text", function()
    it("passes check with a note, and is refused by train", function()
        local rc, text = run "check recipes/quickstart.lua"
        assert.are.equal(0, rc)
        assert.is_truthy(text:find("note", 1, true))
        rc, text = run "train recipes/quickstart.lua --run /tmp/mascon-spec-never"
        assert.are.equal(2, rc)
        assert.is_truthy(text:find("data.train", 1, true))
    end)
end)

describe("gpt2_124m", function()
    it("has the published number of parameters", function()
        local rc, text = run "check recipes/gpt2_124m.lua"
        assert.are.equal(0, rc)
        assert.is_truthy(text:find("124,439,808", 1, true), text)
    end)
end)
