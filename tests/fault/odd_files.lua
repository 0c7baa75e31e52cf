-- odd_files.lua PROGRAM - a recipe that is no file: a message and exit 2, never a wait for somebody to write a pipe.
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local P = require "lib.proc"
local a = P.args(arg)
local dir = P.tmpdir()
P.sh(("cd '%s' && mkfifo pipe && ln -s loop loop"):format(dir))
for _, c in ipairs { { dir .. "/pipe", "a pipe or device, not a file" }, { "/dev/zero", "a pipe or device, not a file" },
    { dir .. "/loop", "symbolic links" }, { "/proc/self/mem", "/proc/self/mem" }, { dir, "a folder" } } do
    for _, command in ipairs { "check", "train" } do
        local rc, sig, _, err = P.run({ a.program, command, c[1] }, dir, { limit = 30 })
        P.check(rc == 2, "%s %s: %s, not 2", command, c[1], tostring(rc or sig))
        P.check(err:find(c[2], 1, true), "%s %s: %s", command, c[1], err)
    end
end
P.sh("rm -rf '" .. dir .. "'")
P.finish()
