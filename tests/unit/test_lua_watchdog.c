/* test_lua_watchdog.c - what no count hook can interrupt ends the process, with the right code.
 * links: mc_lua
 * Each case runs in a child: recipe 2, hook 77 after its report. */
#include "lua_util.h"
#include <math.h>

#define BOMB "(('a'):rep(40)):find(('a-'):rep(40) .. 'b')\n"

/* Runs fn in a child with stderr in a file; returns its exit code. */
static int in_child(void (*fn)(void))
{
    int status = 0;
    const char *out = path_of("stderr.txt");
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen(out, "w", stderr))
            _exit(99);
        fn();
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}
static int file_has(const char *name, const char *part)
{
    static char text[8192];
    FILE *f = fopen(path_of(name), "r");
    if (!f)
        return 0;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    return strstr(text, part) != NULL;
}

static void recipe_bomb(void)
{
    struct loaded x;
    load_text(&x, "local s = " BOMB "return {}\n");
}
static void watchdog_ends_recipe_with_2(void **state)
{
    (void)state;
    assert_int_equal(in_child(recipe_bomb), 2);
    assert_true(file_has("stderr.txt", "cannot be interrupted"));
    assert_true(file_has("stderr.txt", "recipe.lua"));
}

static void report(void *arg, const char *kind, const char *hook, const char *message)
{
    (void)arg;
    FILE *f = fopen(path_of("report.txt"), "a");
    if (f) {
        fprintf(f, "%s|%s|%s\n", kind, hook, message);
        fclose(f);
    }
}
static void call_hook(const char *text, int calls)
{
    static struct mc_recipe r;
    struct mc_hook_ops ops;
    struct mc_err err = {0};
    write_file("hook.lua", text);
    r.nhooks = 1;
    snprintf(r.hook[0].path, sizeof r.hook[0].path, "hook.lua");
    const struct mc_hooks_cfg cfg = {.recipe = &r,
                                     .base_dir = g_dir,
                                     .home = MC_SOURCE_HOME,
                                     .run_dir = g_dir,
                                     .report = report};
    if (mc_lua_hooks_open(&cfg, &ops, &err) != MC_OK)
        _exit(98);
    const struct mc_hook_event ev = {
        .kind = MC_HOOK_STEP_END, .step = 1, .loss = 1, .time_left_s = NAN};
    struct mc_directive d;
    mc_directive_clear(&d);
    for (int i = 0; i < calls; i++)
        if (ops.call(ops.ctx, &ev, &d, &err) == MC_E_GIVEUP)
            _exit(50 + i);
    ops.destroy(ops.ctx);
}
static void hook_bomb(void)
{
    call_hook("return { on_step_end = function() return " BOMB " end }\n", 1);
}
static void watchdog_ends_hook_with_77_after_its_report(void **state)
{
    (void)state;
    assert_int_equal(in_child(hook_bomb), 77);
    assert_true(file_has("report.txt", "hook_stuck|hook.lua: on_step_end|"));
}
static void hook_loop(void)
{
    call_hook("return { on_step_end = function() while true do pcall(function() while true do end "
              "end) end end }\n",
              5);
}
static void loop_in_hook_is_an_error_not_an_end(void **state)
{
    (void)state;
    assert_int_equal(in_child(hook_loop), 52); /* the third in a row gives up */
    assert_true(file_has("report.txt", "hook_error|hook.lua|on_step_end: "));
    assert_true(file_has("report.txt", "ran longer than 100 ms"));
}
static void hook_fine(void)
{
    call_hook(
        "return { on_step_end = function() local x = 0 for i = 1, 1e5 do x = x + i end end }\n",
        200);
}
static void watchdog_leaves_fair_hooks_alone(void **state)
{
    (void)state;
    assert_int_equal(in_child(hook_fine), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(watchdog_ends_recipe_with_2),
        cmocka_unit_test(watchdog_ends_hook_with_77_after_its_report),
        cmocka_unit_test(loop_in_hook_is_an_error_not_an_end),
        cmocka_unit_test(watchdog_leaves_fair_hooks_alone),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
