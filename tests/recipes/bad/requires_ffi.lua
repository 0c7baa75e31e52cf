-- expect: module 'ffi' is not beside the recipe
local ffi = require "ffi"
return {}
