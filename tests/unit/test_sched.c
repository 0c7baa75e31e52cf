/* test_sched.c - bundled schedules: proven, simulated against closed forms and against a longest
 * path by relaxation; broken ones refused with the right counter-example.
 * links: mc_lua mc_pipe */
#include "lua_util.h"
#include <math.h>
#include "../../core/pipe/sched.h"

static struct loaded g_x;

static struct mc_sched *get(const char *name, int p, int v, int m, const struct mc_sched_costs *c,
                            struct mc_err *err)
{
    char set[300];
    const char *sets[1] = {set};
    struct mc_sched *s = NULL;
    snprintf(set, sizeof set, "parallel.schedule=%s", name);
    load_file(&g_x, MC_SOURCE_HOME "/recipes/tiny_llama.lua", sets, 1);
    assert_int_equal(g_x.st, MC_OK);
    const struct mc_sched_ask ask = {.ranks = p, .chunks = v, .microbatches = m, .costs = c};
    mc_status st = mc_lua_schedule(&g_x.l, &ask, &s, err);
    mc_lua_loaded_fini(&g_x.l);
    mc_problems_fini(&g_x.problems);
    assert_int_equal(st == MC_OK, s != NULL);
    return s;
}

/* -- A longest path, by relaxation: no ranks' loop, no queue, no channels. --------------------- */

static double dur(const struct mc_sched *s, const struct mc_sched_costs *c, int rank,
                  const struct mc_sched_rec *x)
{
    int st = s->place[rank * s->chunks + x->chunk];
    if (x->op == MC_SCHED_F)
        return c->f[st];
    if (x->op == MC_SCHED_W)
        return c->w[st];
    return c->i[st] + (x->op == MC_SCHED_B ? c->w[st] : 0);
}

/* The record that does `kind` (0: F, 1: B or I) of each stage and microbatch. */
static int64_t *who_does(const struct mc_sched *s)
{
    int S = mc_sched_stages(s), m = s->microbatches;
    int64_t *who = calloc((size_t)(2 * S * m), sizeof *who);
    for (int r = 0; r < s->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++)
            if (s->rec[k].op != MC_SCHED_W)
                who[((s->rec[k].op != MC_SCHED_F) * S + s->place[r * s->chunks + s->rec[k].chunk]) *
                        m +
                    s->rec[k].mb] = k;
    return who;
}

static double longest_path(const struct mc_sched *s, const struct mc_sched_costs *c)
{
    int S = mc_sched_stages(s), m = s->microbatches;
    int64_t n = s->first[s->ranks], *who = who_does(s);
    double *end = calloc((size_t)n, sizeof *end), last = 0;
    for (int moved = 1; moved;) {
        moved = 0;
        for (int r = 0; r < s->ranks; r++)
            for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
                const struct mc_sched_rec *x = &s->rec[k];
                int stage = s->place[r * s->chunks + x->chunk], back = x->op != MC_SCHED_F;
                int from = back ? stage + 1 : stage - 1;
                double begin = k > s->first[r] ? end[k - 1] : 0;
                if (x->op != MC_SCHED_W && from >= 0 && from < S) {
                    int64_t j = who[(back * S + from) * m + x->mb];
                    int here = j >= s->first[r] && j < s->first[r + 1];
                    begin = fmax(begin, end[j] + (here ? 0 : c->hop));
                }
                double e = begin + dur(s, c, r, x);
                if (e != end[k])
                    end[k] = e, moved = 1;
                last = fmax(last, e);
            }
    }
    free(end);
    free(who);
    return last;
}

struct even {
    double f[64], i[64], w[64];
    struct mc_sched_costs c;
};
static void even(struct even *e, double f, double i, double w, int v)
{
    for (int k = 0; k < 64; k++) {
        e->f[k] = f / v;
        e->i[k] = i / v;
        e->w[k] = w / v;
    }
    e->c = (struct mc_sched_costs){.f = e->f, .i = e->i, .w = e->w, .depth = 1 << 20};
}

static void prove(const struct mc_sched *s, int depth)
{
    struct mc_err err = {0};
    const struct mc_sched_limits lim = {.depth = depth};
    if (mc_sched_verify(s, &lim, NULL, NULL, &err) != MC_OK)
        fail_msg("%s p %d v %d m %d depth %d: %s", s->name, s->ranks, s->chunks, s->microbatches,
                 depth, err.msg);
}

static double makespan(const struct mc_sched *s, const struct mc_sched_costs *c,
                       struct mc_sched_rank_report *ranks)
{
    struct mc_sched_report r = {.rank = ranks};
    assert_int_equal(mc_sched_simulate(s, c, &r, NULL), MC_OK);
    return r.makespan;
}

/* F, I, W of one rank. */
static const double g_times[][3] = {{1, 1, 1}, {1, 1, 0.5},      {1, 1.25, 0.75}, {2, 1, 3},
                                    {1, 2, 2}, {0.5, 1.5, 0.25}, {1, 1, 0.0625}};
enum { TIMES = sizeof g_times / sizeof *g_times };

struct seen {
    double makespan, bubble, busy; /* busy: of a rank; all have the same */
    struct mc_sched_rank_report rank[8];
};

/* Simulated, and by relaxation. */
static struct seen both(const struct mc_sched *s, const double t[3])
{
    struct seen x = {.busy = s->microbatches * (t[0] + t[1] + t[2])};
    struct mc_sched_report r = {.rank = x.rank};
    struct even e;
    even(&e, t[0], t[1], t[2], s->chunks);
    assert_int_equal(mc_sched_simulate(s, &e.c, &r, NULL), MC_OK);
    assert_true(fabs(r.makespan - longest_path(s, &e.c)) < 1e-9 * r.makespan);
    for (int k = 0; k < s->ranks; k++)
        assert_true(fabs(x.rank[k].busy - x.busy) < 1e-9 * x.busy);
    x.makespan = r.makespan;
    x.bubble = r.bubble;
    return x;
}

/* The form: so much time beyond the work of a rank. */
static void is(const struct mc_sched *s, const struct seen *x, double beyond)
{
    if (fabs(x->makespan - x->busy - beyond) > 1e-9 * x->makespan)
        fail_msg("%s, p %d v %d m %d: %.12g beyond the work %.12g, not %.12g", s->name, s->ranks,
                 s->chunks, s->microbatches, x->makespan - x->busy, x->busy, beyond);
    assert_true(fabs(x->bubble - beyond / (x->busy + beyond)) < 1e-12);
}

static void closed_forms(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int m = 8; m <= 32; m++) {
            struct mc_sched *s[3] = {get("gpipe", p, 1, m, NULL, NULL),
                                     get("one_f_one_b", p, 1, m, NULL, NULL),
                                     get("zb_h1", p, 1, m, NULL, NULL)};
            for (int k = 0; k < 3; k++)
                prove(s[k], 1);
            for (int t = 0; t < TIMES; t++) {
                double f = g_times[t][0], i = g_times[t][1], w = g_times[t][2], b = i + w;
                struct seen x = both(s[0], g_times[t]);
                is(s[0], &x, (p - 1) * (f + b));
                assert_true(fabs(x.bubble - (p - 1.0) / (m + p - 1)) < 1e-12);
                for (int r = 0; r < p; r++)
                    assert_int_equal(x.rank[r].alive, m);
                x = both(s[1], g_times[t]);
                is(s[1], &x, (p - 1) * (f + b));
                for (int r = 0; r < p; r++)
                    assert_int_equal(x.rank[r].alive, p - r < m ? p - r : m);
                x = both(s[2], g_times[t]);
                if (w <= i && w <= f) /* else W does not fit the gaps */
                    is(s[2], &x, (p - 1) * (f + i - w));
                for (int r = 0; r < p; r++)
                    assert_int_equal(x.rank[r].alive, p);
            }
            for (int k = 0; k < 3; k++)
                mc_sched_destroy(s[k]);
        }
}

/* All forwards, then all backwards, chunk by chunk: the pipeline fills and empties in stages that
 * are a v-th as long, if the first chunk keeps the ranks busy until the first of its microbatches
 * is round. */
static void gpipe_of_chunks(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int v = 2; v <= 4; v++)
            for (int m = 8; m <= 32; m += 3) {
                struct mc_sched *s = get("gpipe", p, v, m, NULL, NULL);
                for (int t = 0; t < TIMES; t++) {
                    struct seen x = both(s, g_times[t]);
                    is(s, &x, (p - 1) * (g_times[t][0] + g_times[t][1] + g_times[t][2]) / v);
                    assert_int_equal(x.rank[0].alive, v * m);
                }
                mc_sched_destroy(s);
            }
}

static void interleaved(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int v = 1; v <= 4; v++)
            for (int m = p; m <= 32; m += p) {
                struct mc_sched *s = get("interleaved", p, v, m, NULL, NULL);
                prove(s, 2);
                for (int t = 0; t < TIMES; t++) {
                    struct seen x = both(s, g_times[t]);
                    is(s, &x, (p - 1) * (g_times[t][0] + g_times[t][1] + g_times[t][2]) / v);
                    assert_true(fabs(x.bubble - (p - 1.0) / (v * m + p - 1)) < 1e-12);
                    for (int r = 0; r < p && m > p; r++) /* p + (p - 1 - 2 r) / v microbatches */
                        assert_true(
                            fabs((double)x.rank[r].alive / v - (p + (p - 1.0 - 2 * r) / v)) < 1e-9);
                }
                mc_sched_destroy(s);
            }
    struct mc_err err = {0};
    assert_null(get("interleaved", 4, 2, 10, NULL, &err));
    assert_non_null(strstr(err.msg, "groups of 4"));
}

static void zb_v(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 32; m++) {
            struct mc_sched *s = get("zb_v", p, 2, m, NULL, NULL);
            prove(s, 2);
            for (int t = 0; t < TIMES; t++) {
                struct seen x = both(s, g_times[t]);
                if (t > 0 || m < 2 * p - 1)
                    continue;
                is(s, &x, (p - 1) * 0.5);
                for (int r = 0; r < p; r++) { /* no idle time inside; p microbatches alive */
                    assert_true(fabs(x.rank[r].last - x.rank[r].first - x.rank[r].busy) < 1e-9);
                    assert_int_equal(x.rank[r].alive, 2 * p);
                }
            }
            mc_sched_destroy(s);
        }
}

/* Who wins: 4 ranks, 8 microbatches, as in docs/schedules.md. */
static void who_wins(void **state)
{
    (void)state;
    static const double cheap[3] = {1, 1, 0.0625}, even_times[3] = {1, 1, 1};
    struct mc_sched *one = get("one_f_one_b", 4, 1, 8, NULL, NULL),
                    *two = get("interleaved", 4, 2, 8, NULL, NULL),
                    *h1 = get("zb_h1", 4, 1, 8, NULL, NULL), *v = get("zb_v", 4, 2, 8, NULL, NULL);
    assert_true(both(h1, even_times).makespan < both(two, even_times).makespan);
    assert_true(both(two, even_times).makespan < both(one, even_times).makespan);
    assert_true(both(v, even_times).makespan < both(h1, even_times).makespan);
    /* weight gradients that cost next to nothing fill no gaps */
    assert_true(both(two, cheap).makespan < both(h1, cheap).makespan);
    assert_true(both(h1, cheap).makespan < both(one, cheap).makespan);
    mc_sched_destroy(one);
    mc_sched_destroy(two);
    mc_sched_destroy(h1);
    mc_sched_destroy(v);
}

/* Uneven stages, a hop, every schedule: the run agrees with the longest path. */
static void uneven_against_relaxation(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int v;
    } all[] = {{"gpipe", 1},       {"gpipe", 3}, {"one_f_one_b", 1}, {"interleaved", 2},
               {"interleaved", 3}, {"zb_h1", 1}, {"zb_v", 2}};
    struct even e;
    even(&e, 1, 1, 1, 1);
    uint64_t x = 88172645463325252u;
    for (int k = 0; k < 64; k++) {
        double *t[3] = {&e.f[k], &e.i[k], &e.w[k]};
        for (int j = 0; j < 3; j++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            *t[j] = 0.25 + (double)(x % 1000) / 500;
        }
    }
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        for (int p = 1; p <= 5; p += 2)
            for (int m = p; m <= 15; m += p) {
                struct mc_sched *s = get(all[a].name, p, all[a].v, m, NULL, NULL);
                int depth = 0;
                assert_int_equal(mc_sched_least_depth(s, m, &depth, NULL), MC_OK);
                /* breadth first over several chunks: a batch waits for the first rank's turn */
                int breadth = !strcmp(all[a].name, "gpipe") && all[a].v > 1;
                assert_true(depth >= 1 && (breadth || depth <= 2));
                prove(s, depth);
                for (int h = 0; h < 2; h++) {
                    e.c.hop = 0.3 * h;
                    assert_true(fabs(makespan(s, &e.c, NULL) - longest_path(s, &e.c)) < 1e-9);
                }
                mc_sched_destroy(s);
            }
}

/* -- Refusals --------------------------------------------------------------------------------- */

static void refused(struct mc_sched *s, int depth, const char *const *words)
{
    struct mc_err err = {0};
    const struct mc_sched_limits lim = {.depth = depth};
    assert_int_equal(mc_sched_verify(s, &lim, NULL, NULL, &err), MC_E_RECIPE);
    for (int k = 0; words[k]; k++)
        if (!strstr(err.msg, words[k]))
            fail_msg("\"%s\" is not in: %s", words[k], err.msg);
    mc_sched_destroy(s);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void swap(struct mc_sched *s, int rank, int a, int b)
{
    struct mc_sched_rec *x = &s->rec[s->first[rank]], t = x[a];
    x[a] = x[b];
    x[b] = t;
}

static void each_point_refuses(void **state)
{
    (void)state;
    struct mc_sched *s = get("one_f_one_b", 4, 1, 6, NULL, NULL);
    s->place[2] = 1;
    refused(s, 1, WORDS("stage 1 on rank 1", "on rank 2"));
    s = get("one_f_one_b", 4, 1, 6, NULL, NULL);
    s->rec[2].mb = 6;
    refused(s, 1, WORDS("rank 0 slot 2", "microbatch 6", "0 to 5"));
    s = get("one_f_one_b", 4, 1, 6, NULL, NULL);
    s->rec[1].mb = 0;
    refused(s, 1, WORDS("rank 0 slot 1 (F of microbatch 0)", "does again", "slot 0"));
    s = get("zb_h1", 4, 1, 6, NULL, NULL);
    for (int64_t k = s->first[2]; k < s->first[3]; k++)
        if (s->rec[k].op == MC_SCHED_W && s->rec[k].mb == 5) {
            s->rec[k].op = MC_SCHED_I;
            s->rec[k].mb = 4; /* twice I of 4, no W of 5: the double is told first */
        }
    refused(s, 1, WORDS("does again"));
    s = get("gpipe", 2, 1, 3, NULL, NULL);
    s->first[2]--; /* the last B of rank 1 is missing */
    refused(s, 1, WORDS("rank 1 never does B (or I and W) of microbatch 2, chunk 0 (stage 1)"));
    s = get("gpipe", 2, 1, 3, NULL, NULL);
    swap(s, 0, 2, 5);
    refused(s, 1, WORDS("rank 0 slot 2 (B of microbatch 2) comes before its forward"));
    s = get("gpipe", 2, 1, 3, NULL, NULL);
    swap(s, 0, 3, 4);
    refused(s, 1, WORDS("B of microbatch 1", "comes before", "B of microbatch 0", "ascending"));
    s = get("gpipe", 2, 1, 3, NULL, NULL);
    swap(s, 0, 0, 1); /* forwards in another order than the receiver takes them */
    refused(s, 1, WORDS("message 0 from rank 0 to rank 1", "F of microbatch 1", "one order"));
    struct mc_err err = {0};
    s = get("one_f_one_b", 4, 1, 6, NULL, NULL);
    const int64_t few[4] = {3, 3, 3, 3};
    const struct mc_sched_limits lim = {.depth = 1, .alive = few};
    assert_int_equal(mc_sched_verify(s, &lim, NULL, NULL, &err), MC_E_RECIPE);
    assert_non_null(strstr(err.msg, "rank 0 slot 3 (F of microbatch 3)"));
    assert_non_null(strstr(err.msg, "memory allows 3"));
    mc_sched_destroy(s);
}

static int g_lines;
static char g_picture[8][220];
static void keep_line(void *arg, const char *text)
{
    (void)arg;
    if (g_lines < 8)
        snprintf(g_picture[g_lines], sizeof g_picture[0], "%s", text);
    g_lines++;
}

static void a_lock_is_told_as_its_circle(void **state)
{
    (void)state;
    struct mc_err err = {0};
    struct mc_sched *s = get("one_f_one_b", 2, 1, 4, NULL, NULL);
    /* rank 0: F0 F1 B0 ... -> F0 B0 F1 ...; rank 1: F0 B0 F1 B1 -> F0 F1 B0 B1: each waits */
    swap(s, 0, 1, 2);
    swap(s, 1, 1, 2);
    const struct mc_sched_limits lim = {.depth = 4};
    assert_int_equal(mc_sched_verify(s, &lim, keep_line, NULL, &err), MC_E_RECIPE);
    assert_non_null(strstr(err.msg, "the ranks lock"));
    assert_non_null(strstr(
        err.msg, "rank 0 slot 1 (B of microbatch 0) waits for rank 1 slot 2 (B of microbatch 0)"));
    assert_non_null(strstr(
        err.msg, "rank 1 slot 1 (F of microbatch 1) waits for rank 0 slot 2 (F of microbatch 1)"));
    assert_int_equal(g_lines, 2);
    assert_non_null(strstr(g_picture[0], "F0 | B0"));
    mc_sched_destroy(s);
    /* Room: rank 0 sends three before it takes anything; rank 1 takes none before it has sent
     * two gradients. It runs with depth 3, locks with depth 1. */
    err = (struct mc_err){0};
    s = get("gpipe", 2, 2, 3, NULL, NULL);
    prove(s, 3);
    mc_sched_destroy(s);
}

/* A file of the user's, beside nothing of ours. */
static void own_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *say[3];
    } bad[] = {
        {"return 5", {"my.lua", "returns a function(p)", "number"}},
        {"return function(p)\n  error('no such luck')\nend", {"my.lua:2", "no such luck", ""}},
        {"return function(p)\n  while true do end\nend", {"my.lua:2", "", ""}},
        {"return function(p) return p end", {"my.lua:1", "has 0 lists; there are 2 ranks", ""}},
        {"\nreturn function(p) return { {}, 1 } end", {"my.lua:2", "rank 1 has number", ""}},
        {"return function(p) return { { 7 }, {} } end", {"rank 0 slot 0 is number", "", ""}},
        {"return function(p) return { { { op = 'X', mb = 0 } }, {} } end",
         {"rank 0 slot 0", "op is \"X\"", "\"F\", \"B\""}},
        {"return function(p) return { { { op = 'U', mb = 0 } }, {} } end", {"reserved", "", ""}},
        {"return function(p) return { { { op = 'F', mb = 0.5 } }, {} } end",
         {"mb is a fraction", "", ""}},
        {"return function(p) return { { { op = 'F', mb = p.microbatches } }, {} } end",
         {"rank 0 slot 0", "mb is 4", "from 0 to 3"}},
        {"return function(p) return { { { op = 'F' } }, {} } end", {"mb is nil", "", ""}},
        {"return function(p) return { { { op = 'F', mb = 0, chnk = 1 } }, {} } end",
         {"rank 0 slot 0", "a member \"chnk\"", "chunk ="}},
        {"return function(p) return { { { 'F', 0 } }, {} } end",
         {"rank 0 slot 0", "not a list", ""}},
        {"\nreturn function(p) return { {}, {}, plcae = 'v' } end",
         {"my.lua:2", "a member \"plcae\"", "only place"}},
        {"return function(p) return { {}, {}, place = 'zigzag' } end",
         {"place is the text zigzag", "", ""}},
        {"return function(p) return { {}, {}, place = { { 0 } } } end", {"place[2]", "", ""}},
        {"local x = io", {"my.lua:1", "", ""}},
    };
    char name[300];
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        struct mc_err err = {0};
        snprintf(name, sizeof name, "%s", write_file("my.lua", bad[k].text));
        assert_null(get(name, 2, 1, 4, NULL, &err));
        assert_int_equal(err.code, MC_E_RECIPE);
        for (int w = 0; w < 3; w++)
            if (!strstr(err.msg, bad[k].say[w]))
                fail_msg("%zu: \"%s\" is not in: %s", k, bad[k].say[w], err.msg);
    }
    /* costs are shown by stage, and what it returns is what is proven */
    struct even e;
    even(&e, 1, 2, 3, 1);
    e.f[1] = 7;
    snprintf(name, sizeof name, "%s",
             write_file("my.lua", "return function(p)\n"
                                  "  assert(p.costs.F[2] == 7 and p.costs.I[1] == 2 and "
                                  "p.costs.W[2] == 3 and p.stages == 2)\n"
                                  "  local s = { {}, {}, place = { { 1 }, { 0 } } }\n"
                                  "  for r = 1, 2 do for _, op in ipairs { 'F', 'B' } do\n"
                                  "    for mb = 0, p.microbatches - 1 do s[r][#s[r] + 1] = { op = "
                                  "op, mb = mb } end end end\n"
                                  "  return s\nend"));
    struct mc_err err = {0};
    struct mc_sched *s = get(name, 2, 1, 4, &e.c, &err);
    if (!s)
        fail_msg("%s", err.msg);
    assert_int_equal(s->place[0], 1);
    prove(s, 1);
    mc_sched_destroy(s);
}

static void large_ones_are_quick(void **state)
{
    (void)state;
    struct mc_sched *s = get("interleaved", 64, 4, 512, NULL, NULL);
    assert_int_equal(s->first[64], 64 * 4 * 512 * 2);
    prove(s, 2);
    mc_sched_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_forms),       cmocka_unit_test(gpipe_of_chunks),
        cmocka_unit_test(interleaved),        cmocka_unit_test(zb_v),
        cmocka_unit_test(who_wins),           cmocka_unit_test(uneven_against_relaxation),
        cmocka_unit_test(each_point_refuses), cmocka_unit_test(a_lock_is_told_as_its_circle),
        cmocka_unit_test(own_files),          cmocka_unit_test(large_ones_are_quick),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
