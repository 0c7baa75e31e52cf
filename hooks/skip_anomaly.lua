-- skip_anomaly.lua - answers every anomaly that C reports: skip the update; abort when too many fall close together.
-- { "hooks/skip_anomaly.lua", factor = 4, window = 100, max_in_window = 10 }
--   factor          skip a spike only when the norm is above factor x median (default: any spike that was reported)
--   window          steps looked back (default 100)
--   max_in_window   anomalies in the window that are still skipped (default 10); one more aborts (exit code 77)
-- Its own books stay in `state`, so a resume goes on counting where it stood.
return {
    options = { factor = "number?", window = "number?", max_in_window = "number?" },
    state = { total = 0, steps = {} },

    on_anomaly = function(ev, self)
        local s, o = self.state, self.options
        local spike = ev.anomaly == "spike"
        if spike and o.factor and (ev.anomaly_ratio or 0) <= o.factor then return nil end -- the recipe's rule decides
        local window, keep = o.window or 100, {}
        for _, step in ipairs(s.steps) do
            if step > ev.step - window and step < ev.step then keep[#keep + 1] = step end
        end
        keep[#keep + 1] = ev.step
        s.steps, s.total = keep, s.total + 1
        if #keep > (o.max_in_window or 10) then
            self.log(("%d anomalies within %d steps, the last one (%s) at step %d: giving up"):format(#keep, window, ev.anomaly, ev.step))
            return { action = "abort" }
        end
        self.log(("step %d: %s%s, update skipped (%d so far)"):format(ev.step, ev.anomaly,
            spike and (" of %.3g x the median norm"):format(ev.anomaly_ratio or 0 / 0) or "", s.total))
        return { action = "skip" }
    end,
}
