-- hooks_spec.lua - the shipped hooks as what they are: functions from an event to an answer. No engine needed.
local function load_hook(name)
    local hook = assert(loadfile("hooks/" .. name .. ".lua"))()
    local self = { options = {}, lines = {}, logs = {}, may_append = false }
    self.state = hook.state or {}
    self.log = function(s) self.logs[#self.logs + 1] = s end
    self.append = function(name_, line) self.lines[#self.lines + 1] = name_ .. " " .. line end
    return hook, self
end

describe("save_before_timeout", function()
    local hook, self
    before_each(function() hook, self = load_hook "save_before_timeout" end)

    it("does nothing where no limit is known", function()
        assert.is_nil(hook.on_step_end({ step = 1, signal = 0 }, self))
    end)
    it("keeps the margin and twice the time of a save", function()
        assert.is_nil(hook.on_step_end({ step = 1, signal = 0, time_left_s = 300 }, self))
        assert.is_true(hook.on_step_end({ step = 1, signal = 0, time_left_s = 299 }, self).checkpoint)
        assert.is_true(hook.on_step_end({ step = 1, signal = 0, time_left_s = 319, save_s = 10 }, self).checkpoint)
        assert.is_nil(hook.on_step_end({ step = 1, signal = 0, time_left_s = 321, save_s = 10 }, self))
    end)
    it("takes its margin from the recipe", function()
        self.options.margin_s = 10
        assert.is_nil(hook.on_step_end({ step = 1, signal = 0, time_left_s = 11 }, self))
        assert.is_string(hook.on_step_end({ step = 1, signal = 0, time_left_s = 9 }, self).stop)
    end)
    it("stops with a checkpoint on a signal", function()
        local a = hook.on_step_end({ step = 1, signal = 15 }, self)
        assert.are.same({ checkpoint = true, stop = "signal 15" }, a)
    end)
end)

describe("skip_anomaly", function()
    local hook, self
    before_each(function() hook, self = load_hook "skip_anomaly" end)
    local function ask(step, kind, ratio)
        return hook.on_anomaly({ step = step, anomaly = kind or "nonfinite_loss", anomaly_ratio = ratio }, self)
    end

    it("skips, and counts in its state", function()
        assert.are.same({ action = "skip" }, ask(5))
        assert.are.same({ action = "skip" }, ask(6, "spike", 9))
        assert.are.equal(2, self.state.total)
        assert.are.same({ 5, 6 }, self.state.steps)
    end)
    it("leaves small spikes to the recipe's rule", function()
        self.options.factor = 4
        assert.is_nil(ask(5, "spike", 4))
        assert.are.same({ action = "skip" }, ask(6, "spike", 4.1))
        assert.are.equal(1, self.state.total)
    end)
    it("aborts when too many fall into the window, not when they are far apart", function()
        self.options.window, self.options.max_in_window = 10, 2
        for step = 10, 200, 10 do assert.are.same({ action = "skip" }, ask(step)) end
        assert.are.same({ action = "skip" }, ask(201))
        assert.are.same({ action = "abort" }, ask(202))
    end)
    it("counts a replayed step once", function()
        self.options.max_in_window = 1
        ask(5)
        assert.are.same({ action = "skip" }, ask(5))
    end)
end)

describe("eval_every", function()
    it("asks at multiples of steps, and remembers the best", function()
        local hook, self = load_hook "eval_every"
        self.options.steps = 3
        local asked = {}
        for step = 1, 9 do
            local a = hook.on_step_end({ step = step }, self)
            if a then asked[#asked + 1] = step end
        end
        assert.are.same({ 3, 6, 9 }, asked)
        for i, loss in ipairs { 3, 2, 2.5 } do hook.on_eval({ step = i, eval_loss = loss }, self) end
        assert.are.same({ best = 2, at = 2 }, self.state)
        assert.are.equal(2, #self.logs)
    end)
    it("says that steps is required", function()
        local hook, self = load_hook "eval_every"
        assert.has_error(function() hook.on_step_end({ step = 1 }, self) end)
    end)
end)

describe("log_jsonl", function()
    local hook, self
    before_each(function() hook, self = load_hook "log_jsonl" end)

    it("writes chosen members, numbers bit for bit", function()
        self.may_append = true
        self.options = { members = "step loss", name = "mine" }
        hook.on_step_end({ step = 3, loss = 1 / 3 }, self)
        assert.are.same({ 'mine {"step":3,"loss":0.33333333333333331}' }, self.lines)
        assert.are.equal(1 / 3, tonumber(self.lines[1]:match '"loss":([%d%.]+)'))
    end)
    it("writes null for what has no value or is not finite", function()
        self.may_append = true
        self.options = { members = "loss mfu lr" }
        hook.on_step_end({ step = 3, loss = 0 / 0, lr = 1 / 0 }, self)
        assert.are.same({ 'log {"loss":null,"mfu":null,"lr":null}' }, self.lines)
    end)
    it("falls back to the log where it has no right", function()
        self.options = { members = "step", every = 2 }
        for step = 1, 4 do hook.on_step_end({ step = step }, self) end
        assert.are.same({ '{"step":2}', '{"step":4}' }, self.logs)
        assert.are.same({}, self.lines)
    end)
end)
