-- expect: loops_for_ever.lua:4: ran longer than 2000 ms
local x = 0
while true do
    pcall(function() while true do x = x + 1 end end)
end
