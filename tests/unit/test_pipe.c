/* test_pipe.c - pipelines that run: threads as ranks against one whole graph.
 * links: test_threads mc_lua mc_pipe
 *
 * The reference is the whole model in one unsplit graph that runs F0 B0 F1 B1 ... by direct calls.
 * Every schedule, bundled, made by chance or edited at random, must give its losses of each
 * microbatch and its gradients bit for bit, whatever the number of ranks, chunks and microbatches,
 * however short the last one. Buffers begin as NaN. */
#include "pipe_help.h"

static int every_schedule(int tied, enum mc_dtype t)
{
    struct model *m = model_of(tied, t);
    int cells = 0;
    make_batch(m);
    for (int count = 1; count <= 8; count += count < 5 ? 1 : 3) {
        static struct ref ref;
        ref_open(&ref, m, 1, count * MICRO - (count % 2)); /* odd: the last is short */
        for (size_t a = 0; a < sizeof all / sizeof *all; a++)
            for (int p = 2; p <= 4; p++) {
                if (all[a].groups && count % p)
                    continue;
                struct mc_sched *s = bundled(all[a].name, p, all[a].v, count);
                struct mc_line *line = line_with(&s, 1, (count + p) % 2, (count + p) / 2 % 2);
                cells += run_cell(&ref, line, all[a].name, 1);
                mc_line_destroy(line);
            }
        ref_close(&ref);
    }
    mc_free(m);
    return cells;
}

static void tied_in_fp32(void **state)
{
    (void)state;
    print_message("%d cells\n", every_schedule(1, MC_F32));
}
static void tied_in_fp64(void **state)
{
    (void)state;
    print_message("%d cells\n", every_schedule(1, MC_F64));
}
static void untied_in_fp32(void **state)
{
    (void)state;
    print_message("%d cells\n", every_schedule(0, MC_F32));
}
static void untied_in_fp64(void **state)
{
    (void)state;
    print_message("%d cells\n", every_schedule(0, MC_F64));
}

/* With tp the edges are a rank's rows or whole, as sp says. */
static void beside_tensor_parallel(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++)
        for (int sp = 0; sp < 2; sp++) {
            struct model *m = model_of(tied, MC_F32);
            static struct ref ref;
            m->r.parallel.sp = sp;
            make_batch(m);
            ref_open(&ref, m, 2, 4 * MICRO - 1);
            for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
                struct mc_sched *s = bundled(all[a].name, 2, all[a].v, 4);
                struct mc_line *line = line_with(&s, 1, 0, 0);
                run_cell(&ref, line, all[a].name, 2);
                mc_line_destroy(line);
            }
            ref_close(&ref);
            mc_free(m);
        }
}

/* -- Schedules nobody wrote ------------------------------------------------------------------- */

static uint64_t g_seed;
static int any(int n)
{
    g_seed ^= g_seed << 13, g_seed ^= g_seed >> 7, g_seed ^= g_seed << 17;
    return (int)(g_seed >> 16 & 0x7fffffff) % n;
}

/* A schedule made by running it: stages lie where chance puts them, and again and again a random
 * rank does one of the things that it can do next. Sound by construction; the proof must say so. */
struct maker {
    int p, v, m, S;
    int at[64];                          /* of a stage: its rank */
    int f[64][MOST], i[64][MOST], w[64]; /* done; w: how many, ascending */
    int queue[2][16][16][64 * MOST], n[2][16][16], taken[2][16][16]; /* stage * m + mb, sent */
};
static int first_in_line(const struct maker *k, int kind, int from, int to, int stage, int mb)
{
    return from == to || (k->taken[kind][from][to] < k->n[kind][from][to] &&
                          k->queue[kind][from][to][k->taken[kind][from][to]] == stage * k->m + mb);
}
static int can(const struct maker *k, int op, int s, int mb)
{
    int r = k->at[s];
    if (op == MC_SCHED_F)
        return !k->f[s][mb] &&
               (s == 0 || (k->f[s - 1][mb] && first_in_line(k, 0, k->at[s - 1], r, s, mb)));
    if (op == MC_SCHED_W)
        return k->i[s][mb] && k->w[s] == mb;
    return k->f[s][mb] && !k->i[s][mb] && (op == MC_SCHED_I || k->w[s] == mb) &&
           (s == k->S - 1 || (k->i[s + 1][mb] && first_in_line(k, 1, k->at[s + 1], r, s, mb)));
}
static void does(struct maker *k, int op, int s, int mb)
{
    int kind = op != MC_SCHED_F, from = kind ? s + 1 : s - 1, to = kind ? s - 1 : s + 1;
    if (op == MC_SCHED_F)
        k->f[s][mb] = 1;
    else if (op != MC_SCHED_W)
        k->i[s][mb] = 1;
    k->w[s] += op == MC_SCHED_B || op == MC_SCHED_W;
    if (op == MC_SCHED_W)
        return;
    if (from >= 0 && from < k->S && k->at[from] != k->at[s])
        k->taken[kind][k->at[from]][k->at[s]]++;
    if (to >= 0 && to < k->S && k->at[to] != k->at[s])
        k->queue[kind][k->at[s]][k->at[to]][k->n[kind][k->at[s]][k->at[to]]++] = to * k->m + mb;
}
static struct mc_sched *made(int p, int v, int m, int split)
{
    static struct maker k;
    static struct mc_sched_rec rec[16][64 * MOST * 3];
    int64_t counts[16] = {0};
    int chunk[64], left = 0, place[64];
    memset(&k, 0, sizeof k);
    k = (struct maker){.p = p, .v = v, .m = m, .S = p * v};
    for (int s = 0; s < k.S; s++)
        place[s] = s;
    for (int s = k.S - 1; s > 0; s--) {
        int j = any(s + 1), t = place[s];
        place[s] = place[j], place[j] = t;
    }
    for (int i = 0; i < k.S; i++) {
        k.at[place[i]] = i / v;
        chunk[place[i]] = i % v;
    }
    for (left = k.S * m * 2; left > 0;) { /* F, and what ends a pair */
        int r = any(p), op[3] = {MC_SCHED_F, MC_SCHED_B, MC_SCHED_W}, n = 0, pick = -1, ps = 0,
            pm = 0;
        if (split)
            op[1] = any(2) ? MC_SCHED_I : MC_SCHED_B;
        int o = op[any(3)];
        for (int s = 0; s < k.S; s++)
            for (int mb = 0; mb < m && k.at[s] == r; mb++)
                if (can(&k, o, s, mb) && any(++n) == 0)
                    pick = o, ps = s, pm = mb;
        if (pick < 0 && any(4) == 0 && split) { /* B may be out of turn for ever: I is not */
            n = 0;
            for (int s = 0; s < k.S; s++)
                for (int mb = 0; mb < m && k.at[s] == r; mb++)
                    if (can(&k, MC_SCHED_I, s, mb) && any(++n) == 0)
                        pick = MC_SCHED_I, ps = s, pm = mb;
        }
        if (pick < 0)
            continue;
        does(&k, pick, ps, pm);
        rec[r][counts[r]++] =
            (struct mc_sched_rec){.op = (int8_t)pick, .mb = pm, .chunk = (int16_t)chunk[ps]};
        left -= pick != MC_SCHED_I;
    }
    struct mc_sched *s;
    struct mc_err err = {0};
    check_ok(mc_sched_create("made", p, v, m, counts, &s, &err), &err);
    memcpy(s->place, place, (size_t)k.S * sizeof *place);
    for (int r = 0; r < p; r++)
        memcpy(&s->rec[s->first[r]], rec[r], (size_t)counts[r] * sizeof rec[r][0]);
    return s;
}

static void schedules_made_by_chance(void **state)
{
    (void)state;
    int cells = 0, deepest = 0;
    for (int tied = 0; tied < 2; tied++) {
        struct model *m = model_of(tied, MC_F32);
        make_batch(m);
        for (int count = 1; count <= 6; count++) {
            static struct ref ref;
            ref_open(&ref, m, 1, count * MICRO - 1);
            for (int k = 0; k < 12; k++) {
                int p = 2 + k % 3, v = 1 + k / 3 % 2;
                g_seed = (uint64_t)(1 + k + 100 * count + 10000 * tied) * 2654435761u;
                /* without I, gradients must come in ascending order: only split ones may stray */
                struct mc_sched *s = made(p, v, count, 1);
                struct mc_line *line = line_with(&s, 1, 0, 0);
                deepest = line->depth > deepest ? line->depth : deepest;
                cells += run_cell(&ref, line, "made by chance", 1);
                mc_line_destroy(line);
            }
            ref_close(&ref);
        }
        mc_free(m);
    }
    print_message("%d schedules, channels of up to %d messages\n", cells, deepest);
}

static struct mc_sched *copy_of(const struct mc_sched *from)
{
    int64_t counts[16];
    struct mc_sched *s;
    struct mc_err err = {0};
    for (int r = 0; r < from->ranks; r++)
        counts[r] = from->first[r + 1] - from->first[r];
    check_ok(
        mc_sched_create("edited", from->ranks, from->chunks, from->microbatches, counts, &s, &err),
        &err);
    memcpy(s->rec, from->rec, (size_t)s->first[s->ranks] * sizeof *s->rec);
    memcpy(s->place, from->place, (size_t)mc_sched_stages(s) * sizeof *s->place);
    return s;
}

/* Good ones edited: what the verifier accepts at a depth runs at that depth, with the right bits.
 */
static void edited_schedules_that_are_accepted(void **state)
{
    (void)state;
    struct model *m = model_of(1, MC_F32);
    static struct ref ref[7];
    int accepted = 0, tried = 0, by[7] = {0};
    make_batch(m);
    for (int k = 3; k <= 6; k++)
        ref_open(&ref[k], m, 1, k * MICRO - 1);
    g_seed = 88172645463325252u;
    for (; accepted < 120 && tried < 20000; tried++) {
        int a = tried % 7, p = 2 + any(3), count = all[a].groups ? (p == 3 ? 6 : 4) : 3 + any(4);
        if (by[a] >= 20)
            continue;
        struct mc_sched *base = bundled(all[a].name, p, all[a].v, count), *s;
        for (int tries = 0; tries < 40; tries++) {
            struct mc_err err = {0};
            const struct mc_sched_limits lim = {.depth = 1 + any(3)};
            s = copy_of(base);
            for (int e = 1 + any(4); e > 0; e--) {
                int r = any(p), i = any((int)(s->first[r + 1] - s->first[r]) - 1);
                struct mc_sched_rec *x = &s->rec[s->first[r] + i], t = x[0];
                x[0] = x[1], x[1] = t;
            }
            if (mc_sched_verify(s, &lim, NULL, NULL, &err) != MC_OK ||
                memcmp(s->rec, base->rec, (size_t)s->first[p] * sizeof *s->rec) == 0) {
                mc_sched_destroy(s);
                continue;
            }
            int cut[LAYERS + 1];
            struct mc_line *line;
            for (int k = 0; k <= p * all[a].v; k++)
                cut[k] = k * LAYERS / (p * all[a].v);
            check_ok(mc_line_create(p, all[a].v, cut, &s, 1, lim.depth, &line, &err), &err);
            accepted += run_cell(&ref[count], line, "edited", 1);
            by[a]++;
            mc_line_destroy(line);
            break;
        }
        mc_sched_destroy(base);
    }
    print_message("%d edited schedules\n", accepted);
    assert_true(accepted >= 100);
    for (int k = 3; k <= 6; k++)
        ref_close(&ref[k]);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tied_in_fp32),
        cmocka_unit_test(tied_in_fp64),
        cmocka_unit_test(untied_in_fp32),
        cmocka_unit_test(untied_in_fp64),
        cmocka_unit_test(beside_tensor_parallel),
        cmocka_unit_test(schedules_made_by_chance),
        cmocka_unit_test(edited_schedules_that_are_accepted),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
