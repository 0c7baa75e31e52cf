/* test_lua_hooks.c - the hooks host: answers, errors, state, rights, the shipped files.
 * links: mc_lua
 * Answers are compared with records written out by hand; states with the JSON text expected. */
#include "lua_util.h"
#include <math.h>
#include <sys/stat.h>
#include "../../core/base/json.h"

static char g_log[16384];
static void report(void *arg, const char *kind, const char *hook, const char *message)
{
    (void)arg;
    const size_t n = strlen(g_log);
    snprintf(g_log + n, sizeof g_log - n, "%s|%s|%s\n", kind, hook, message);
}

struct hooks {
    struct mc_recipe r;
    struct mc_hook_ops ops;
    struct mc_err err;
    struct mc_directive d;
    mc_status st;
};
static struct hooks g_h;

static void add_entry(struct hooks *h, const char *path)
{
    snprintf(h->r.hook[h->r.nhooks++].path, sizeof h->r.hook[0].path, "%s", path);
}
static void add_num(struct hooks *h, const char *key, double v)
{
    struct mc_hook_cfg *c = &h->r.hook[h->r.nhooks - 1];
    struct mc_attr *a = &c->option[c->noptions++];
    snprintf(a->key, sizeof a->key, "%s", key);
    a->kind = MC_V_NUM;
    a->num = v;
}
static void allow(struct hooks *h, const char *what)
{
    struct mc_hook_cfg *c = &h->r.hook[h->r.nhooks - 1];
    snprintf(c->allow[c->nallow++], sizeof c->allow[0], "%s", what);
}
static struct hooks *start(void)
{
    memset(&g_h, 0, sizeof g_h);
    g_log[0] = 0;
    return &g_h;
}
static mc_status open_hooks(struct hooks *h)
{
    const struct mc_hooks_cfg cfg = {.recipe = &h->r,
                                     .base_dir = g_dir,
                                     .home = MC_SOURCE_HOME,
                                     .run_dir = g_dir,
                                     .report = report};
    return h->st = mc_lua_hooks_open(&cfg, &h->ops, &h->err);
}
/* One hook file of this text. */
static struct hooks *with(const char *text)
{
    struct hooks *h = start();
    write_file("h.lua", text);
    add_entry(h, "h.lua");
    if (open_hooks(h) != MC_OK)
        fail_msg("%s", h->err.msg);
    return h;
}
static struct mc_hook_event event(enum mc_hook_kind kind)
{
    return (struct mc_hook_event){.kind = kind,
                                  .step = 7,
                                  .samples = 70,
                                  .tokens = 700,
                                  .skipped = 1,
                                  .successful = 6,
                                  .target_steps = -1,
                                  .loss = 2.5,
                                  .grad_norm = 0.5,
                                  .lr = 1e-3,
                                  .step_ms = 12,
                                  .tokens_per_s = 1e4,
                                  .mfu = NAN,
                                  .time_left_s = NAN,
                                  .save_s = NAN,
                                  .anomaly = "spike",
                                  .anomaly_ratio = 5,
                                  .eval_loss = 1.5,
                                  .eval_tokens = 99,
                                  .ckpt_path = "/c",
                                  .ckpt_step = 6,
                                  .segment = 2};
}
static mc_status call_ev(struct hooks *h, const struct mc_hook_event *ev)
{
    mc_directive_clear(&h->d);
    mc_err_clear(&h->err);
    return h->ops.call(h->ops.ctx, ev, &h->d, &h->err);
}
static mc_status call(struct hooks *h, enum mc_hook_kind kind)
{
    const struct mc_hook_event ev = event(kind);
    return call_ev(h, &ev);
}
static void stop(struct hooks *h)
{
    h->ops.destroy(h->ops.ctx);
}
static void expect_log(const char *part)
{
    if (!strstr(g_log, part))
        fail_msg("no '%s' in:\n%s", part, g_log);
}

/* -- Answers --------------------------------------------------------------------------------- */

static void answers_become_the_record(void **state)
{
    (void)state;
    struct hooks *h =
        with("return { on_step_end = function(ev, self)\n"
             "  return { stop = 'why not', checkpoint = true, eval = true, lr_scale = 0.5 } end,\n"
             "  on_anomaly = function(ev) return { action = ev.anomaly_ratio > 4 and 'skip' or "
             "'abort' } end }\n");
    assert_int_equal(call(h, MC_HOOK_STEP_END), MC_OK);
    assert_true(h->d.stop && h->d.checkpoint && h->d.eval && h->d.lr_scale == 0.5 &&
                h->d.anomaly_action == -1);
    assert_string_equal(h->d.why, "why not");
    assert_int_equal(call(h, MC_HOOK_ANOMALY), MC_OK);
    assert_int_equal(h->d.anomaly_action, MC_ANOMALY_SKIP);
    assert_true(!h->d.stop && isnan(h->d.lr_scale));
    assert_true(h->ops.wants(h->ops.ctx, MC_HOOK_STEP_END));
    assert_false(h->ops.wants(h->ops.ctx, MC_HOOK_EVAL));
    assert_int_equal(call(h, MC_HOOK_EVAL), MC_OK);
    assert_string_equal(g_log, "");
    stop(h);
}
static void answers_of_several_files_are_merged(void **state)
{
    (void)state;
    struct hooks *h = start();
    write_file("a.lua",
               "return { on_grad = function() return { checkpoint = true, lr_scale = 2 } end }");
    write_file("b.lua", "return { on_grad = function() return { stop = true, lr_scale = 3 } end }");
    write_file("c.lua", "return { on_grad = function() end }");
    add_entry(h, "a.lua");
    add_entry(h, "b.lua");
    add_entry(h, "c.lua");
    assert_int_equal(open_hooks(h), MC_OK);
    assert_int_equal(call(h, MC_HOOK_GRAD), MC_OK);
    assert_true(h->d.stop && h->d.checkpoint && !h->d.eval && h->d.lr_scale == 3);
    assert_string_equal(h->d.why, "b.lua");
    stop(h);
}
/* The option's name and value as the recipe has them ("" : none), and what loading says ("": fine).
 */
static void options_are_held_against_their_declaration(void **state)
{
    static const struct {
        const char *declared, *key;
        enum mc_value_kind kind;
        const char *expect;
    } cases[] = {
        {"{ steps = 'number' }", "steps", MC_V_NUM, ""},
        {"{ steps = 'number?' }", "", MC_V_NUM, ""},
        {"{ steps = 'number' }", "", MC_V_NUM, "option 'steps' is required: a number"},
        {"{ steps = 'number' }", "stepz", MC_V_NUM, "no option 'stepz'; did you mean 'steps'?"},
        {"{ steps = 'number' }", "moon", MC_V_NUM, "no option 'moon'"},
        {"{ steps = 'number?' }", "steps", MC_V_STR, "option 'steps' must be a number"},
        {"{ steps = 'boolean' }", "steps", MC_V_BOOL, ""},
        {"{ steps = 'string' }", "steps", MC_V_BOOL, "option 'steps' must be a string"},
        {"{ steps = 'numbers' }", "", MC_V_NUM, "options.steps must be"},
        {"{ steps = 'number?x' }", "", MC_V_NUM, "options.steps must be"},
        {"{ steps = 3 }", "", MC_V_NUM, "options.steps must be"},
        {"{ 'number' }", "", MC_V_NUM, "an entry without a name"},
        {"true", "", MC_V_NUM, "'options' must be a table"},
        {"nil", "moon", MC_V_NUM, ""}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct hooks *h = start();
        snprintf(text, sizeof text, "return { options = %s, on_eval = function() end }",
                 cases[i].declared);
        write_file("o.lua", text);
        add_entry(h, "o.lua");
        struct mc_hook_cfg *c = &h->r.hook[0];
        if (cases[i].key[0]) {
            c->noptions = 1;
            snprintf(c->option[0].key, sizeof c->option[0].key, "%s", cases[i].key);
            c->option[0].kind = cases[i].kind;
            c->option[0].num = 1;
            snprintf(c->option[0].str, sizeof c->option[0].str, "x");
        }
        mc_status st = open_hooks(h);
        if (cases[i].expect[0]) {
            assert_int_equal(st, MC_E_RECIPE);
            if (!strstr(h->err.msg, cases[i].expect))
                fail_msg("case %zu: no '%s' in: %s", i, cases[i].expect, h->err.msg);
        } else {
            assert_int_equal(st, MC_OK);
            stop(h);
        }
    }
}

static void bad_answers_are_errors(void **state)
{
    static const struct {
        const char *answer, *expect;
    } cases[] = {{"1", "must be nil or a table, not a number"},
                 {"{ stopp = true }", "did you mean 'stop'?"},
                 {"{ zzz = true }", "unknown member 'zzz'"},
                 {"{ true }", "members have names"},
                 {"{ checkpoint = 1 }", "'checkpoint' must be true or false"},
                 {"{ lr_scale = 0 }", "'lr_scale' must be"},
                 {"{ lr_scale = 0 / 0 }", "'lr_scale' must be"},
                 {"{ action = 'skip' }", "only on_anomaly"},
                 {"ev.los", "an event has no 'los'; did you mean 'loss'?"},
                 {"(error('mine'))", "h.lua:1: mine"},
                 {"self.nothing.x", "nil value"},
                 {"io.open('x')", "'io' is not available"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text, "return { on_step_end = function(ev, self) return %s end }",
                 cases[i].answer);
        struct hooks *h = with(text);
        assert_int_equal(call(h, MC_HOOK_STEP_END), MC_OK);
        assert_true(!h->d.stop && !h->d.checkpoint && isnan(h->d.lr_scale)); /* dropped whole */
        expect_log("hook_error|h.lua|on_step_end: ");
        expect_log(cases[i].expect);
        stop(h);
    }
}
static void event_members_without_a_value_are_nil(void **state)
{
    (void)state;
    struct hooks *h = with(
        "return { on_step_end = function(ev, self)\n"
        "  assert(ev.time_left_s == nil and ev.save_s == nil and ev.mfu == nil and ev.target_steps "
        "== nil)\n"
        "  assert(ev.anomaly == nil and ev.eval_loss == nil and ev.ckpt_path == nil)\n"
        "  assert(ev.step == 7 and ev.samples == 70 and ev.tokens == 700 and ev.skipped == 1 and "
        "ev.successful == 6)\n"
        "  assert(ev.loss == 2.5 and ev.grad_norm == 0.5 and ev.lr == 1e-3 and ev.signal == 0 and "
        "ev.segment == 2)\n"
        "end, on_eval = function(ev) assert(ev.eval_loss == 1.5 and ev.eval_tokens == 99) end,\n"
        "on_checkpoint = function(ev) assert(ev.ckpt_path == '/c' and ev.ckpt_step == 6) end }");
    assert_int_equal(call(h, MC_HOOK_STEP_END), MC_OK);
    assert_int_equal(call(h, MC_HOOK_EVAL), MC_OK);
    assert_int_equal(call(h, MC_HOOK_CHECKPOINT), MC_OK);
    assert_string_equal(g_log, "");
    stop(h);
}

static void event_has_norms_of_layers_where_they_are_logged(void **state)
{
    (void)state;
    static const double grad[5] = {0.5, 1, 2, 3, 4}, act[4] = {10, 11, 12, 13};
    struct hooks *h = with(
        "return { on_step_end = function(ev, self)\n"
        "  local g, a = ev.layer_grad_norm, ev.layer_act_rms\n"
        "  if ev.step == 7 then assert(g == nil and a == nil) return end\n"
        "  assert(#g == 3 and #a == 3 and g.stem == 0.5 and g[1] == 1 and g[3] == 3 and g.head == "
        "4)\n"
        "  assert(a.stem == 10 and a[1] == 11 and a[3] == 13 and a.head == nil)\n"
        "end }");
    struct mc_hook_event ev = event(MC_HOOK_STEP_END);
    assert_int_equal(call_ev(h, &ev), MC_OK);
    ev.step = 8;
    ev.layer_grad = grad;
    ev.layer_act = act;
    ev.nlayers = 3;
    assert_int_equal(call_ev(h, &ev), MC_OK);
    assert_string_equal(g_log, "");
    stop(h);
}

/* -- Failures -------------------------------------------------------------------------------- */

static void third_error_in_a_row_gives_up(void **state)
{
    (void)state;
    struct hooks *h =
        with("return { state = { n = 0 }, on_step_end = function(ev, self)\n"
             "  local s = self.state s.n = s.n + 1\n"
             "  if s.n ~= 3 then error('no ' .. s.n) end return { eval = true } end }");
    assert_int_equal(call(h, MC_HOOK_STEP_END), MC_OK);
    assert_int_equal(call(h, MC_HOOK_STEP_END), MC_OK);
    assert_int_equal(call(h, MC_HOOK_STEP_END), MC_OK); /* a success between resets the count */
    assert_true(h->d.eval);
    assert_int_equal(call(h, MC_HOOK_STEP_END), MC_OK);
    assert_int_equal(call(h, MC_HOOK_STEP_END), MC_OK);
    assert_int_equal(call(h, MC_HOOK_STEP_END), MC_E_GIVEUP);
    assert_non_null(strstr(h->err.msg, "no 6"));
    stop(h);
}
static void memory_bomb_in_a_hook_is_an_error(void **state)
{
    (void)state;
    struct hooks *h =
        with("return { on_step_end = function(ev, self)\n"
             "  if ev.step == 7 then local s = ('x'):rep(2 ^ 28) end return { eval = true } end }");
    struct mc_hook_event ev = event(MC_HOOK_STEP_END);
    assert_int_equal(call_ev(h, &ev), MC_OK);
    expect_log("64 MiB");
    ev.step = 8;
    assert_int_equal(call_ev(h, &ev), MC_OK);
    assert_true(h->d.eval); /* the state is sound afterwards */
    stop(h);
}
static void files_that_are_no_hooks_are_refused(void **state)
{
    static const struct {
        const char *text, *expect;
    } cases[] = {{"return 1", "must return a table of functions"},
                 {"", "not nothing"},
                 {"return { on_stepend = function() end }", "did you mean 'on_step_end'?"},
                 {"return { on_step_end = 1 }", "must be a function"},
                 {"return { function() end }", "named functions"},
                 {"return { state = 7 }", "state: must be a table"},
                 {"return { state = { f = function() end } }", "'f' is a function"},
                 {"return { state = { s = ('x'):rep(70000) } }", "larger than 64 KiB"},
                 {"return {", "near '<eof>'"},
                 {"os.exit(0)", "'os' is not available"},
                 {"return setmetatable({}, { __index = 1 }) + 1", "arithmetic"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hooks *h = start();
        write_file("h.lua", cases[i].text);
        add_entry(h, "h.lua");
        assert_int_equal(open_hooks(h), MC_E_RECIPE);
        if (!strstr(h->err.msg, cases[i].expect))
            fail_msg("wanted '%s', got '%s'", cases[i].expect, h->err.msg);
    }
    struct hooks *h = start();
    add_entry(h, "missing.lua");
    assert_int_equal(open_hooks(h), MC_E_RECIPE);
    assert_non_null(strstr(h->err.msg, "no such file"));
}
static void coordinator_functions_are_known_and_said(void **state)
{
    (void)state;
    struct hooks *h =
        with("return { on_signal = function() error('called') end, on_exit = function() end }");
    expect_log("hook_log|h.lua|on_signal belongs to the coordinator");
    expect_log("hook_log|h.lua|on_exit belongs");
    stop(h);
}

/* -- State ----------------------------------------------------------------------------------- */

static char *saved(struct hooks *h)
{
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '{');
    assert_int_equal(h->ops.save_state(h->ops.ctx, &j, "hooks", &h->err), MC_OK);
    mc_json_close(&j, '}');
    assert_false(j.failed);
    static char text[9000];
    snprintf(text, sizeof text, "%.*s", (int)j.len, j.buf);
    mc_json_fini(&j);
    return text;
}
#define STATEFUL                                                                                   \
    "return { state = { n = 0 }, on_step_end = function(ev, self) local s = self.state\n"          \
    "  s.n = s.n + 1 s.third = 1 / 3 s.list = { 1, { 2 }, 'x' } s.text = 'a\"\\n\\195\\164' "      \
    "s.deep = { a = { b = true } }\n"                                                              \
    "  s.sum = (s.sum or 0) + ev.loss self.log(('n %d sum %.17g'):format(s.n, s.sum)) end }"
static void state_round_trips(void **state)
{
    (void)state;
    struct hooks *h = with(STATEFUL);
    assert_string_equal(saved(h), "{\"hooks\":{\"h.lua\":{\"n\":0}}}");
    call(h, MC_HOOK_STEP_END);
    call(h, MC_HOOK_STEP_END);
    char *text = mc_strdup(saved(h));
    assert_string_equal(
        text, "{\"hooks\":{\"h.lua\":{\"deep\":{\"a\":{\"b\":true}},\"list\":[1,[2],\"x\"],\"n\":2,"
              "\"sum\":5,\"text\":\"a\\\"\\n\xc3\xa4\",\"third\":0.3333333333333333}}}");
    stop(h);
    h = with(STATEFUL);
    char *inner = mc_strdup(strchr(text + 1, '{'));
    inner[strlen(inner) - 1] = 0;
    assert_int_equal(h->ops.load_state(h->ops.ctx, inner, &h->err), MC_OK);
    assert_string_equal(saved(h), text);
    call(h, MC_HOOK_STEP_END);
    expect_log("n 3 sum 7.5");
    mc_free(text);
    mc_free(inner);
    stop(h);
}
static void state_that_is_no_data_keeps_the_last_good_one(void **state)
{
    static const char *bad[] = {"function() end",
                                "0 / 0",
                                "1 / 0",
                                "'\\255'",
                                "{ [3] = 1 }",
                                "{ 1, x = 2 }",
                                "setmetatable({}, {})",
                                "('x'):rep(70000)"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "return { state = { n = 1 }, on_step_end = function(ev, self)\n"
                 "if ev.step == 7 then self.state.n = 2 else self.state.bad = %s end end }",
                 bad[i]);
        struct hooks *h = with(text);
        struct mc_hook_event ev = event(MC_HOOK_STEP_END);
        call_ev(h, &ev);
        assert_string_equal(saved(h), "{\"hooks\":{\"h.lua\":{\"n\":2}}}");
        ev.step = 8;
        call_ev(h, &ev);
        assert_string_equal(saved(h), "{\"hooks\":{\"h.lua\":{\"n\":2}}}");
        expect_log("hook_error|h.lua|");
        stop(h);
    }
}
static void state_of_dropped_hooks_is_said(void **state)
{
    (void)state;
    struct hooks *h = with("return { state = { n = 5 } }");
    assert_int_equal(h->ops.load_state(h->ops.ctx, "{\"gone.lua\":{\"a\":1}}", &h->err), MC_OK);
    expect_log("gone.lua");
    assert_string_equal(saved(h), "{\"hooks\":{\"h.lua\":{\"n\":5}}}");
    assert_int_equal(h->ops.load_state(h->ops.ctx, "[1", &h->err), MC_E_CORRUPT);
    mc_err_clear(&h->err);
    assert_int_equal(h->ops.load_state(h->ops.ctx, "{\"h.lua\":3}", &h->err), MC_E_CORRUPT);
    stop(h);
}
static void same_file_twice_has_two_states(void **state)
{
    (void)state;
    struct hooks *h = start();
    write_file("h.lua", "return { state = {}, on_step_end = function(ev, self) self.state.k = "
                        "self.options.k end }");
    add_entry(h, "h.lua");
    add_num(h, "k", 1);
    add_entry(h, "h.lua");
    add_num(h, "k", 2);
    assert_int_equal(open_hooks(h), MC_OK);
    call(h, MC_HOOK_STEP_END);
    assert_string_equal(saved(h), "{\"hooks\":{\"h.lua\":{\"k\":1},\"h.lua#2\":{\"k\":2}}}");
    stop(h);
}
static void files_do_not_share_globals(void **state)
{
    (void)state;
    struct hooks *h = start();
    write_file("a.lua", "x = 1 string.format = nil return { on_step_end = function(ev, self) "
                        "self.log('a ' .. x) end }");
    write_file("b.lua", "return { on_step_end = function(ev, self) self.log(string.format('%d', "
                        "3)) return x end }");
    add_entry(h, "a.lua");
    add_entry(h, "b.lua");
    assert_int_equal(open_hooks(h), MC_OK);
    call(h, MC_HOOK_STEP_END);
    expect_log("hook_log|a.lua|a 1");
    expect_log("hook_log|b.lua|3");
    expect_log("unknown name 'x'");
    stop(h);
}

/* -- Rights ---------------------------------------------------------------------------------- */

static void append_needs_its_right(void **state)
{
    (void)state;
    struct hooks *h =
        with("return { on_step_end = function(ev, self) self.append('x', 'line') end }");
    call(h, MC_HOOK_STEP_END);
    expect_log("not granted");
    stop(h);
    h = start();
    add_entry(h, "h.lua");
    allow(h, "exec:scontrol");
    assert_int_equal(open_hooks(h), MC_E_RECIPE);
    assert_non_null(strstr(h->err.msg, "cannot be granted"));
}
static void append_writes_whole_lines_in_the_run_folder(void **state)
{
    static const char *bad[] = {"'../x', 'l'",  "'', 'l'",      "'a/b', 'l'",
                                "'x', 'a\\nb'", "'x', 'a\\0b'", "'x', ('y'):rep(65536)"};
    (void)state;
    struct hooks *h = start();
    write_file(
        "h.lua",
        "return { on_step_end = function(ev, self) self.append('mine', 'step ' .. ev.step) end }");
    add_entry(h, "h.lua");
    allow(h, "append:run");
    assert_int_equal(open_hooks(h), MC_OK);
    call(h, MC_HOOK_STEP_END);
    call(h, MC_HOOK_STEP_END);
    stop(h);
    char text[64] = "";
    FILE *f = fopen(path_of("hooks-mine.jsonl"), "r");
    assert_non_null(f);
    assert_int_equal(fread(text, 1, sizeof text - 1, f), 14);
    fclose(f);
    assert_string_equal(text, "step 7\nstep 7\n");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char code[200];
        h = start();
        snprintf(code, sizeof code,
                 "return { on_step_end = function(ev, self) self.append(%s) end }", bad[i]);
        write_file("h.lua", code);
        add_entry(h, "h.lua");
        allow(h, "append:run");
        assert_int_equal(open_hooks(h), MC_OK);
        call(h, MC_HOOK_STEP_END);
        expect_log("hook_error|h.lua|on_step_end: ");
        expect_log("self.append");
        stop(h);
    }
}
/* 1 MiB a step: 17 lines of 64 KiB are one too many, at any number of calls; the next step has its
 * own. A pcall does not get around it. */
static void append_is_bounded_a_step(void **state)
{
    (void)state;
    struct hooks *h = start();
    struct mc_hook_event ev = event(MC_HOOK_STEP_END);
    struct stat sb;
    write_file("h.lua", "return { on_step_end = function(ev, self)\n"
                        "  local line, ok, why = ('y'):rep(65535)\n"
                        "  for i = 1, 9 do ok, why = pcall(self.append, 'much', line) end\n"
                        "  if not ok then error(why, 0) end end }");
    add_entry(h, "h.lua");
    allow(h, "append:run");
    assert_int_equal(open_hooks(h), MC_OK);
    ev.step = 8;
    call_ev(h, &ev);
    assert_null(strstr(g_log, "hook_error"));
    call_ev(h, &ev);
    expect_log("self.append: more than 1 MiB at one step");
    assert_int_equal(stat(path_of("hooks-much.jsonl"), &sb), 0);
    assert_int_equal(sb.st_size, 1 << 20);
    g_log[0] = 0;
    ev.step = 9;
    call_ev(h, &ev);
    assert_null(strstr(g_log, "hook_error"));
    assert_int_equal(stat(path_of("hooks-much.jsonl"), &sb), 0);
    assert_int_equal(sb.st_size, (1 << 20) + 9 * 65536);
    stop(h);
}
static void an_answer_is_a_plain_table(void **state)
{
    (void)state;
    struct hooks *h = with("return { on_step_end = function() "
                           "return setmetatable({}, { __index = { stop = true } }) end }");
    call(h, MC_HOOK_STEP_END);
    expect_log("the answer must be a plain table, without a metatable");
    assert_int_equal(h->d.stop, 0);
    stop(h);
}
static void self_is_of_its_own_call_only(void **state)
{
    (void)state;
    struct hooks *h = start();
    write_file("mod.lua", "return {}");
    write_file("a.lua", "local mod = require 'mod' return { on_step_end = function(ev, self) "
                        "mod.self = self end }");
    write_file("b.lua", "local mod = require 'mod' return { on_step_end = function(ev, self) "
                        "mod.self.log('x') end }");
    add_entry(h, "a.lua");
    add_entry(h, "b.lua");
    assert_int_equal(open_hooks(h), MC_OK);
    call(h, MC_HOOK_STEP_END);
    expect_log("self can be used only within a call of this hook");
    stop(h);
}

/* -- The shipped files in the real host ------------------------------------------------------- */

static void shipped_hooks_do_what_they_say(void **state)
{
    (void)state;
    struct hooks *h = start();
    add_entry(h, "hooks/log_jsonl.lua");
    allow(h, "append:run");
    add_entry(h, "hooks/skip_anomaly.lua");
    add_num(h, "max_in_window", 2);
    add_entry(h, "hooks/save_before_timeout.lua");
    add_num(h, "margin_s", 100);
    add_entry(h, "hooks/eval_every.lua");
    add_num(h, "steps", 7);
    if (open_hooks(h) != MC_OK)
        fail_msg("%s", h->err.msg);
    struct mc_hook_event ev = event(MC_HOOK_STEP_END);
    assert_int_equal(call_ev(h, &ev), MC_OK);
    assert_true(h->d.eval && !h->d.stop);
    ev.step = 8;
    ev.time_left_s = 119;
    ev.save_s = 10;
    assert_int_equal(call_ev(h, &ev), MC_OK);
    assert_true(h->d.stop && h->d.checkpoint && !h->d.eval);
    ev.time_left_s = 121;
    assert_int_equal(call_ev(h, &ev), MC_OK);
    assert_false(h->d.stop);
    ev.signal = 15;
    ev.loss = NAN;
    assert_int_equal(call_ev(h, &ev), MC_OK);
    assert_true(h->d.stop && h->d.checkpoint);
    for (int i = 0; i < 3; i++) {
        struct mc_hook_event an = event(MC_HOOK_ANOMALY);
        an.step = 20 + i;
        assert_int_equal(call_ev(h, &an), MC_OK);
        assert_int_equal(h->d.anomaly_action, i < 2 ? MC_ANOMALY_SKIP : MC_ANOMALY_ABORT);
    }
    assert_null(strstr(g_log, "hook_error"));
    stop(h);
    char text[4000] = "";
    FILE *f = fopen(path_of("hooks-log.jsonl"), "r");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    assert_non_null(
        strstr(text, "{\"step\":7,\"samples\":70,\"tokens\":700,\"loss\":2.5,\"grad_norm\":0.5,"));
    assert_non_null(strstr(text, "\"loss\":null"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_become_the_record),
        cmocka_unit_test(answers_of_several_files_are_merged),
        cmocka_unit_test(options_are_held_against_their_declaration),
        cmocka_unit_test(bad_answers_are_errors),
        cmocka_unit_test(event_members_without_a_value_are_nil),
        cmocka_unit_test(event_has_norms_of_layers_where_they_are_logged),
        cmocka_unit_test(third_error_in_a_row_gives_up),
        cmocka_unit_test(memory_bomb_in_a_hook_is_an_error),
        cmocka_unit_test(files_that_are_no_hooks_are_refused),
        cmocka_unit_test(coordinator_functions_are_known_and_said),
        cmocka_unit_test(state_round_trips),
        cmocka_unit_test(state_that_is_no_data_keeps_the_last_good_one),
        cmocka_unit_test(state_of_dropped_hooks_is_said),
        cmocka_unit_test(same_file_twice_has_two_states),
        cmocka_unit_test(files_do_not_share_globals),
        cmocka_unit_test(append_needs_its_right),
        cmocka_unit_test(append_writes_whole_lines_in_the_run_folder),
        cmocka_unit_test(append_is_bounded_a_step),
        cmocka_unit_test(an_answer_is_a_plain_table),
        cmocka_unit_test(self_is_of_its_own_call_only),
        cmocka_unit_test(shipped_hooks_do_what_they_say),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
