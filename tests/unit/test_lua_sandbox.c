/* test_lua_sandbox.c - what a recipe cannot reach, and what stops one that will not stop.
 * links: mc_lua
 * Each escape is a text that would succeed in plain LuaJIT; the test wants the sandbox's message.
 * The last test shows that the harness can fail: a harmless recipe loads. */
#include "lua_util.h"
#include <time.h>

static const struct {
    const char *code, *expect;
} escapes[] = {
    {"io.open('/etc/passwd')", "'io' is not available"},
    {"os.execute('true')", "'os' is not available"},
    {"os.getenv('HOME')", "'os' is not available"},
    {"debug.getregistry()", "'debug' is not available"},
    {"package.loadlib('libc.so.6', '*')", "'package' is not available"},
    {"ffi.C.abort()", "'ffi' is not available"},
    {"jit.on()", "'jit' is not available"},
    {"require 'ffi'", "'ffi' is not beside the recipe"},
    {"require 'jit'", "'jit' is not beside the recipe"},
    {"require 'io'", "'io' is not beside the recipe"},
    {"require 'debug'", "'debug' is not beside the recipe"},
    {"require 'jit.opt'", "'jit.opt' is not beside the recipe"},
    {"require '../secret'", "no module name"},
    {"require '/etc/passwd'", "no module name"},
    {"require '..secret'", "no module name"},
    {"require 'a..b'", "no module name"},
    {"require 'a\\0b'", "zero byte"},
    {"require 'mascon.../../x'", "no module name"},
    {"require 'mascon.nothing'", "not in the Mascon library"},
    {"load('return 1')", "'load' is not available"},
    {"loadstring('return 1')()", "'loadstring' is not available"},
    {"loadfile('/etc/passwd')", "'loadfile' is not available"},
    {"dofile('/etc/passwd')", "'dofile' is not available"},
    {"getfenv(0)", "'getfenv' is not available"},
    {"setfenv(1, {})", "'setfenv' is not available"},
    {"newproxy(true)", "'newproxy' is not available"},
    {"collectgarbage('stop')", "'collectgarbage' is not available"},
    {"coroutine.wrap(function() end)()", "'coroutine' is not available"},
    {"xpcall(error, function() while true do end end)", "'xpcall' is not available"},
    {"next({})", "'next' is not available"},
    {"module('x')", "'module' is not available"},
    {"_G.io.open('x')", "'_G' is not available"},
    {"string.dump(function() end)", "'string.dump' is not available"},
    {"local f = function() end; (('x').dump)(f)", "nil value"},
    {"table.foreach({}, print)", "'table.foreach' is not available"},
    {"math.random()", "'math.random' is not available"},
    {"math.randomseed(1)", "'math.randomseed' is not available"},
    {"getmetatable('').__index = {}", "boolean"},
    {"setmetatable(string, nil)", "protected metatable"},
    {"setmetatable('', {})", "table expected"},
    {"local e = require('mascon').nn; e.host.fail('x')", "nn has no 'host'"},
    {"host.fail('x')", "unknown name 'host'"},
    {"require('mascon').io.open('x')", "mascon has no 'io'"},
    {"tostring(nil)(1)", "call a string value"},
    {"for k in pairs({ [{}] = 1 }) do end", "no order"},
    {"unpakc({})", "did you mean 'unpack'"},
};

static void sandbox_refuses_each_escape(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        char text[512];
        struct loaded x;
        snprintf(text, sizeof text, "\n%s\nreturn {}\n", escapes[i].code);
        load_text(&x, text);
        expect_problem(&x, escapes[i].expect, NULL, 2);
        unload(&x);
    }
}

/* The same must hold when the error is caught and something else is tried. */
static void sandbox_stays_shut_under_pcall(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x, "local got = {}\n"
                  "for i, name in ipairs { 'io', 'os', 'debug', 'ffi', 'jit', 'package', 'load', "
                  "'loadstring', 'setfenv' } do\n"
                  "  if pcall(function() return assert(rawget(getmetatable(name) or {}, name)) "
                  "end) then got[#got + 1] = name end\n"
                  "  local ok, v = pcall(require, name)\n"
                  "  if ok then got[#got + 1] = name end\n"
                  "end\n"
                  "error('got ' .. #got)\n");
    expect_problem(&x, "got 0", NULL, 7);
    unload(&x);
}

static void sandbox_refuses_bytecode(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x, "\033LJ\002");
    expect_problem(&x, "compiled Lua is not accepted", NULL, 0);
    unload(&x);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void budget_stops(const char *code, const char *expect)
{
    char text[512];
    struct loaded x;
    const double t0 = seconds();
    snprintf(text, sizeof text, "%s\nreturn {}\n", code);
    load_text(&x, text);
    expect_problem(&x, expect, NULL, 0);
    assert_true(seconds() - t0 < 20); /* CPU time is what counts; the machine may be loaded */
    unload(&x);
}

static void budget_stops_endless_loop(void **state)
{
    (void)state;
    budget_stops("local x = 0 while true do x = x + 1 end", "ran longer than 2000 ms");
}
/* A budget that raises once is swallowed by this one; a sticky one is not. */
static void budget_stops_pcall_loop(void **state)
{
    (void)state;
    budget_stops("while true do pcall(function() while true do end end) end", "ran longer than");
}
static void budget_stops_recursive_pcall(void **state)
{
    (void)state;
    budget_stops("local function f() while true do pcall(f) end end f()", "ran longer than");
}
static void budget_stops_loop_in_gsub_and_sort(void **state)
{
    (void)state;
    budget_stops("('x'):rep(100):gsub('.', function() while true do end end)", "ran longer than");
}
static void cap_stops_table_bomb(void **state)
{
    (void)state;
    budget_stops("local t = {} for i = 1, 1e9 do t[i] = { i } end", "256 MiB");
}
static void cap_stops_string_bomb(void **state)
{
    (void)state;
    budget_stops("local s = ('x'):rep(2 ^ 29)", "256 MiB");
}
static void cap_stops_doubling_string(void **state)
{
    (void)state;
    budget_stops("local s = 'x' while true do s = s .. s end", "256 MiB");
}
static void cap_is_an_error_that_pcall_sees(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x, RECIPE("assert(not pcall(function() return ('x'):rep(2 ^ 29) end))\n", ""));
    expect_ok(&x);
    unload(&x);
}
static void stack_overflow_is_an_error(void **state)
{
    (void)state;
    budget_stops("local function f() return 1 + f() end f()", "stack overflow");
}
static void error_objects_are_reported(void **state)
{
    (void)state;
    budget_stops("error({ 1 })", "not a text but a table");
}

static void pairs_visits_keys_in_one_order(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x, "local t = { [3] = 1, zeta = 1, [1] = 1, alpha = 1, [true] = 1, [false] = 1, "
                  "beta = 1, [-2] = 1, [2.5] = 1 }\n"
                  "local s = {}\n"
                  "for k, v in pairs(t) do s[#s + 1] = tostring(k); t.beta = nil end\n"
                  "error(table.concat(s, ' '))\n");
    expect_problem(&x, "-2 1 2.5 3 alpha zeta false true", NULL, 4);
    unload(&x);
}

static void harmless_recipe_loads(void **state)
{
    struct loaded x;
    (void)state;
    load_text(
        &x,
        RECIPE(
            "print('hello', 1, true, {})\nlocal t = { 1, 2 }\n"
            "assert(select('#', unpack(t)) == 2 and #('x'):rep(3) == 3 and bit.band(3, 6) == 2)\n",
            ""));
    expect_ok(&x);
    unload(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sandbox_refuses_each_escape),
        cmocka_unit_test(sandbox_stays_shut_under_pcall),
        cmocka_unit_test(sandbox_refuses_bytecode),
        cmocka_unit_test(budget_stops_endless_loop),
        cmocka_unit_test(budget_stops_pcall_loop),
        cmocka_unit_test(budget_stops_recursive_pcall),
        cmocka_unit_test(budget_stops_loop_in_gsub_and_sort),
        cmocka_unit_test(cap_stops_table_bomb),
        cmocka_unit_test(cap_stops_string_bomb),
        cmocka_unit_test(cap_stops_doubling_string),
        cmocka_unit_test(cap_is_an_error_that_pcall_sees),
        cmocka_unit_test(stack_overflow_is_an_error),
        cmocka_unit_test(error_objects_are_reported),
        cmocka_unit_test(pairs_visits_keys_in_one_order),
        cmocka_unit_test(harmless_recipe_loads),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
