-- expect: must return one table
-- expect: nothing
local m = require "mascon"
