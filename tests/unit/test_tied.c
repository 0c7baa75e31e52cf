/* test_tied.c - the gradient of tables that a pipeline's first and last rank share: both end with
 * the bits of a plain sum, whatever the order in which they hold them, and nothing else changes.
 * links: test_threads mc_pipe */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "../support/comm_threads.h"
#include "../../core/base/arena.h"
#include "../../core/base/rng.h"
#include "../../core/pipe/tied.h"

/* ---- a graph that is only its parameters ---- */

enum { MAXP = 4, RANKS = 3, LONG = 2 * 65536 + 5, FLAT = 3 * 65536, TIMES = 3 };
struct mc_graph {
    int n;
    struct mc_param p[MAXP];
};

int mc_graph_nparams(const struct mc_graph *g)
{
    return g->n;
}

const struct mc_param *mc_graph_param(const struct mc_graph *g, int i)
{
    return &g->p[i];
}

static void add(struct mc_graph *g, const char *name, int64_t offset, int64_t count, int elsewhere)
{
    struct mc_param *p = &g->p[g->n++];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->offset = offset;
    p->count = p->stored = count;
    p->elsewhere = elsewhere;
}

/* ---- */

struct job {
    enum mc_dtype dtype;
    int64_t count;
    struct mc_graph g[RANKS];
    size_t bytes[RANKS];
    double grads[RANKS][FLAT], was[RANKS][FLAT]; /* of dtype */
    char why[RANKS][400];
};

static double get(const struct job *j, const void *flat, int64_t i)
{
    return j->dtype == MC_F64 ? ((const double *)flat)[i] : (double)((const float *)flat)[i];
}

static void fill(const struct job *j, void *flat, int rank, int turn)
{
    uint64_t key = mc_rng_key((uint64_t)(7 + rank), "tied");
    for (int64_t i = 0; i < FLAT; i++) {
        double v = mc_rng_uniform(key, (uint64_t)turn, (uint64_t)i) - 0.5;
        if (j->dtype == MC_F64)
            ((double *)flat)[i] = v;
        else
            ((float *)flat)[i] = (float)v;
    }
}

static mc_status turns(struct job *j, struct mc_tied *t, int me, struct mc_err *err)
{
    for (int k = 0; k < TIMES; k++) {
        fill(j, j->grads[me], me, k);
        MC_TRY(mc_tied_sum(t, err));
    }
    fill(j, j->was[me], me, TIMES - 1);
    return MC_OK;
}

static void rank(struct mc_mesh *mesh, void *arg)
{
    struct job *j = arg;
    int me = mesh->coord[MC_AXIS_PP];
    struct mc_err err = {0};
    struct mc_pool *pool = NULL;
    struct mc_tied *t = NULL;
    const struct mc_kern_ops *k = NULL;
    void *buffer = NULL;
    mc_status st = mc_pool_create(1, &pool, &err);
    if (st == MC_OK)
        st = mc_kern_get(MC_DEVICE_CPU, j->dtype, &k, &err);
    j->bytes[me] = mc_tied_bytes(&j->g[me], j->dtype);
    if (st == MC_OK && j->bytes[me] > 0)
        buffer = mc_alloc(j->bytes[me], "test");
    const struct mc_tied_cfg cfg = {.graph = &j->g[me],
                                    .mesh = mesh,
                                    .stem = 0,
                                    .head = RANKS - 1,
                                    .kern = k,
                                    .pool = pool,
                                    .grads = j->grads[me],
                                    .buffer = buffer};
    if (st == MC_OK)
        st = mc_tied_create(&cfg, &t, &err);
    if (st == MC_OK)
        st = turns(j, t, me, &err);
    if (st != MC_OK)
        snprintf(j->why[me], sizeof j->why[me], "rank %d: %.300s", me, err.msg);
    mc_tied_destroy(t);
    mc_free(buffer);
    mc_pool_destroy(pool);
}

static void look(const struct job *j, int me, int other)
{
    for (int64_t i = 0; i < FLAT; i++) {
        double want = get(j, j->was[me], i);
        for (int p = 0; p < j->g[me].n; p++) {
            const struct mc_param *x = &j->g[me].p[p];
            const struct mc_param *y = NULL;
            if (x->elsewhere == 0 || i < x->offset || i >= x->offset + x->count)
                continue;
            for (int q = 0; q < j->g[other].n; q++)
                if (strcmp(j->g[other].p[q].name, x->name) == 0)
                    y = &j->g[other].p[q];
            double a = want, b = get(j, j->was[other], y->offset + i - x->offset);
            want = j->dtype == MC_F64 ? a + b : (double)((float)a + (float)b);
        }
        if (get(j, j->grads[me], i) != want)
            fail_msg("rank %d, element %lld: %.17g, not %.17g", me, (long long)i,
                     get(j, j->grads[me], i), want);
    }
}

static void run(enum mc_dtype dtype)
{
    static struct job j;
    struct mc_layout layout;
    struct mc_err err = {0};
    memset(&j, 0, sizeof j);
    j.dtype = dtype;
    add(&j.g[0], "embed.weight", 16, LONG, 1); /* not in the order of the names, nor as the head */
    add(&j.g[0], "layers.0.w", LONG + 16, 100, 0);
    add(&j.g[0], "bias", LONG + 200, 7, 1);
    add(&j.g[1], "layers.1.w", 0, 1000, 0);
    add(&j.g[2], "bias", 3, 7, -1);
    add(&j.g[2], "norm", 20, 9, 0);
    add(&j.g[2], "embed.weight", 64, LONG, -1);
    const int size[MC_NAXES] = {
        [MC_AXIS_TP] = 1, [MC_AXIS_CP] = 1, [MC_AXIS_EP] = 1, [MC_AXIS_DP] = 1, [MC_AXIS_PP] = 3};
    assert_int_equal(mc_layout_init(&layout, "tp-cp-ep-dp-pp", size, RANKS, &err), MC_OK);
    assert_int_equal(mc_test_mesh(&layout, INT64_C(20000000000), rank, &j, &err), MC_OK);
    for (int r = 0; r < RANKS; r++)
        if (j.why[r][0])
            fail_msg("%s", j.why[r]);
    assert_int_equal(j.bytes[1], 0);
    assert_true(j.bytes[0] > 0 && j.bytes[0] == j.bytes[2]);
    assert_true(j.bytes[0] < LONG * mc_dtype_size(dtype)); /* slices, not a copy */
    look(&j, 0, RANKS - 1);
    look(&j, 1, 1);
    look(&j, RANKS - 1, 0);
}

static void tied_sums_are_those_of_one_rank(void **state)
{
    (void)state;
    run(MC_F32);
    run(MC_F64);
}

static void tied_takes_little_for_small_tables(void **state)
{
    (void)state;
    struct mc_graph g = {0};
    assert_int_equal(mc_tied_bytes(&g, MC_F32), 0);
    add(&g, "a", 0, 10, 0);
    assert_int_equal(mc_tied_bytes(&g, MC_F32), 0);
    add(&g, "b", 16, 3, 1);
    assert_in_range(mc_tied_bytes(&g, MC_F32), 2 * 3 * sizeof(float), 2 * MC_ALIGN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tied_sums_are_those_of_one_rank),
        cmocka_unit_test(tied_takes_little_for_small_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
