-- save_before_timeout.lua - checkpoint and orderly stop (exit code 75) before the time limit, or on a stop signal.
-- { "hooks/save_before_timeout.lua", margin_s = 300 }: how long before the end, beside twice the time that a save takes.
return {
    options = { margin_s = "number?" },

    on_step_end = function(ev, self)
        if ev.signal and ev.signal ~= 0 then
            return { checkpoint = true, stop = ("signal %d"):format(ev.signal) }
        end
        if not ev.time_left_s then return end -- no limit known
        local need = (self.options.margin_s or 300) + 2 * (ev.save_s or 0)
        if ev.time_left_s < need then
            return { checkpoint = true, stop = ("%.0f s left, %.0f s kept for saving"):format(ev.time_left_s, need) }
        end
    end,
}
