/* test_pipe.c - pipelines that run: threads as ranks against one whole graph.
 * links: test_threads mc_lua mc_pipe
 *
 * The reference is the whole model in one unsplit graph that runs F0 B0 F1 B1 ... by direct calls.
 * Every schedule, bundled, made by chance or edited at random, must give its losses of each
 * microbatch and its gradients bit for bit, whatever the number of ranks, chunks and microbatches,
 * however short the last one. Buffers begin as NaN. */
#include "pipe_maker.h"

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
                struct mc_sched *s = made(p, v, count);
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
