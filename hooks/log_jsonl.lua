-- log_jsonl.lua - one JSON line every `every` steps (default 1) with the members you choose.
-- { "hooks/log_jsonl.lua", allow = { "append:run" }, name = "log", members = "step loss lr", every = 1 }
-- With allow = { "append:run" } the lines go to RUN/hooks-NAME.jsonl; without it they are hook_log events.
-- On a resume replayed steps are appended again, with their segment.
local default = "step samples tokens loss grad_norm lr step_ms tokens_per_s skipped segment"

local function json(v)
    if type(v) == "number" then
        if v ~= v or v == math.huge or v == -math.huge then return "null" end
        return ("%.17g"):format(v)
    end
    return '"' .. tostring(v):gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

return {
    options = { name = "string?", members = "string?", every = "number?" },

    on_step_end = function(ev, self)
        local o = self.options
        if ev.step % (o.every or 1) ~= 0 then return end
        local parts = {}
        for name in (o.members or default):gmatch "[%w_]+" do
            local v = ev[name]
            parts[#parts + 1] = ('"%s":%s'):format(name, v == nil and "null" or json(v))
        end
        local line = "{" .. table.concat(parts, ",") .. "}"
        if self.may_append then
            self.append(o.name or "log", line)
        else
            self.log(line)
        end
    end,
}
