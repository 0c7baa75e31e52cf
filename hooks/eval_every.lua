-- eval_every.lua - an evaluation every `steps` steps, for habits that recipe.eval cannot say; logs the best loss so far.
-- { "hooks/eval_every.lua", steps = 500 }
return {
    options = { steps = "number" },
    state = { best = false, at = 0 },

    on_step_end = function(ev, self)
        local every = self.options.steps
        if every < 1 then error "option `steps` must be at least 1: steps between evaluations" end
        if ev.step % every == 0 then return { eval = true } end
    end,

    on_eval = function(ev, self)
        local s = self.state
        if not s.best or ev.eval_loss < s.best then
            s.best, s.at = ev.eval_loss, ev.step
            self.log(("best evaluation so far: %.4f at step %d"):format(s.best, s.at))
        end
    end,
}
