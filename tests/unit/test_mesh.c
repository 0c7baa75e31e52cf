/* test_mesh.c - groups of a layout: against plain enumeration, and against Megatron's.
 * links: mc_par test_ranks */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include "../../core/par/mesh.h"
#include "../support/ranks.h"

struct world {
    const char *order;
    int size[MC_NAXES]; /* tp cp ep dp pp */
    int ranks;
};

/* Coordinates by counting like an odometer, the leftmost axis of the order fastest. */
static void count_up(const struct world *w, int rank, int coord[MC_NAXES])
{
    memset(coord, 0, MC_NAXES * sizeof *coord);
    while (rank-- > 0)
        for (const char *p = w->order; *p; p += p[2] ? 3 : 2) {
            int a = 0;
            while (strncmp(mc_axis_name((enum mc_axis)a), p, 2) != 0)
                a++;
            if (++coord[a] < w->size[a])
                break;
            coord[a] = 0;
        }
}

/* Members: who differs from `me` on the axes of the mask only. */
static void expect(struct test_rank *r, const struct world *w, const struct mc_comm *c,
                   unsigned mask, const char *name)
{
    int mine[MC_NAXES], other[MC_NAXES], n = 0, want[64];
    count_up(w, r->me, mine);
    for (int k = 0; k < w->ranks; k++) {
        int in = 1;
        count_up(w, k, other);
        for (int a = 0; a < MC_NAXES; a++)
            in &= (mask >> a & 1) || other[a] == mine[a];
        if (in)
            want[n++] = k;
    }
    if (n == 1) {
        RANK_CHECK(r, !c);
        return;
    }
    RANK_CHECK(r, c && c->cfg.size == n && strcmp(c->cfg.name, name) == 0);
    RANK_CHECK(r, memcmp(c->cfg.ranks, want, (size_t)n * sizeof *want) == 0);
    RANK_CHECK(r, want[c->cfg.me] == r->me);
}

static int64_t sum_of_ranks(struct test_rank *r, struct mc_comm *c)
{
    int64_t x = r->me;
    struct mc_comm_req *q;
    if (!c)
        return x;
    RANK_CHECK(r, c->ops->all_reduce(c, &x, &x, 1, MC_I64, MC_SUM, NULL, &q, NULL) == MC_OK);
    RANK_CHECK(r, c->ops->wait(c, q, 0, NULL) == MC_OK);
    return x;
}

static void check_mesh(struct test_rank *r, void *arg)
{
    const struct world *w = arg;
    struct mc_layout l;
    struct mc_mesh *m, *twin;
    int coord[MC_NAXES];
    struct mc_comm_net *net = test_rank_net(r, NULL, NULL);
    RANK_CHECK(r, mc_layout_init(&l, w->order, w->size, w->ranks, NULL) == MC_OK);
    RANK_CHECK(r, mc_mesh_create(&l, r->me, net, "", 20000000000, &m, NULL) == MC_OK);
    /* another grid over the same ranks, under other names */
    RANK_CHECK(r, mc_mesh_create(&l, r->me, net, "expert.", 20000000000, &twin, NULL) == MC_OK);
    count_up(w, r->me, coord);
    RANK_CHECK(r, m->rank == r->me && memcmp(m->coord, coord, sizeof coord) == 0);
    for (int a = 0; a < MC_NAXES; a++) {
        expect(r, w, m->axis[a], 1u << a, mc_axis_name((enum mc_axis)a));
        RANK_CHECK(r, !m->axis[a] || m->axis[a]->cfg.me == coord[a]);
    }
    unsigned grad = 1u << MC_AXIS_DP | 1u << MC_AXIS_CP;
    if (w->size[MC_AXIS_CP] == 1)
        RANK_CHECK(r, m->grad == m->axis[MC_AXIS_DP]);
    else if (w->size[MC_AXIS_DP] == 1)
        RANK_CHECK(r, m->grad == m->axis[MC_AXIS_CP]);
    else
        expect(r, w, m->grad, grad, "grad");
    expect(r, w, m->world, (1u << MC_NAXES) - 1, "world");
    /* they work, each among its own */
    struct mc_comm *all[] = {m->axis[0], m->axis[1], m->axis[2],  m->axis[3],   m->axis[4],
                             m->grad,    m->world,   twin->world, twin->axis[0]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t want = all[i] ? 0 : r->me;
        for (int k = 0; all[i] && k < all[i]->cfg.size; k++)
            want += all[i]->cfg.ranks[k];
        RANK_CHECK(r, sum_of_ranks(r, all[i]) == want);
    }
    mc_mesh_abort(twin);
    struct mc_comm_req *q;
    RANK_CHECK(r, !twin->world || twin->world->ops->barrier(twin->world, &q, NULL) == MC_E_PEER);
    RANK_CHECK(r, sum_of_ranks(r, m->world) >= 0);
    mc_mesh_destroy(twin);
    mc_mesh_destroy(m);
    mc_comm_net_close(net);
}

static void groups_are_those_of_plain_counting(void **state)
{
    static struct world worlds[] = {
        {"tp-cp-ep-dp-pp", {2, 1, 1, 2, 2}, 8},
        {"tp-cp-ep-pp-dp", {2, 1, 1, 2, 2}, 8},
        {"tp-cp-ep-dp-pp", {2, 2, 1, 3, 1}, 12},
        {"cp-dp-tp", {1, 2, 1, 2, 1}, 4},
        {"dp-tp", {2, 1, 1, 3, 1}, 6},
        {"tp", {4, 1, 1, 1, 1}, 4},
        {"dp", {1, 1, 1, 5, 1}, 5},
        {"tp", {1, 1, 1, 1, 1}, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        assert_int_equal(test_ranks_run(worlds[i].ranks, check_mesh, &worlds[i], 60, NULL), 0);
}

/* Megatron's groups of 2 x 2 x 2: TP {0,1}{2,3}{4,5}{6,7}; DP {0,2}{1,3}{4,6}{5,7}; PP {0,4}{1,5}
 * {2,6}{3,7}. */
static void check_megatron(struct test_rank *r, void *arg)
{
    static const int tp[8][2] = {{0, 1}, {0, 1}, {2, 3}, {2, 3}, {4, 5}, {4, 5}, {6, 7}, {6, 7}};
    static const int dp[8][2] = {{0, 2}, {1, 3}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {4, 6}, {5, 7}};
    static const int pp[8][2] = {{0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}};
    const int size[MC_NAXES] = {2, 1, 1, 2, 2};
    struct mc_layout l;
    struct mc_mesh *m;
    (void)arg;
    struct mc_comm_net *net = test_rank_net(r, NULL, NULL);
    RANK_CHECK(r, mc_layout_init(&l, MC_ORDER_DEFAULT, size, 8, NULL) == MC_OK);
    RANK_CHECK(r, mc_mesh_create(&l, r->me, net, "", 20000000000, &m, NULL) == MC_OK);
    RANK_CHECK(r, memcmp(m->axis[MC_AXIS_TP]->cfg.ranks, tp[r->me], sizeof tp[0]) == 0);
    RANK_CHECK(r, memcmp(m->axis[MC_AXIS_DP]->cfg.ranks, dp[r->me], sizeof dp[0]) == 0);
    RANK_CHECK(r, memcmp(m->axis[MC_AXIS_PP]->cfg.ranks, pp[r->me], sizeof pp[0]) == 0);
    RANK_CHECK(r, !m->axis[MC_AXIS_CP] && !m->axis[MC_AXIS_EP]);
    RANK_CHECK(r, sum_of_ranks(r, m->world) == 28); /* nobody leaves before all have come */
    mc_mesh_destroy(m);
    mc_comm_net_close(net);
}

static void groups_are_megatrons(void **state)
{
    (void)state;
    assert_int_equal(test_ranks_run(8, check_megatron, NULL, 60, NULL), 0);
}

/* 5,120 ranks, TP8 PP8 DP80: rank 3347 is (tp 3, dp 18, pp 5); without a net no groups are made. */
static void the_large_example(void **state)
{
    (void)state;
    const int size[MC_NAXES] = {8, 1, 1, 80, 8}, want[MC_NAXES] = {3, 0, 0, 18, 5};
    struct mc_layout l;
    struct mc_mesh *m = NULL;
    assert_int_equal(mc_layout_init(&l, MC_ORDER_DEFAULT, size, 5120, NULL), MC_OK);
    assert_int_equal(mc_mesh_create(&l, 3347, NULL, "", 1, &m, NULL), MC_OK);
    assert_memory_equal(m->coord, want, sizeof want);
    assert_null(m->world);
    mc_mesh_destroy(m);
    assert_int_equal(mc_mesh_create(&l, 5120, NULL, "", 1, &m, NULL), MC_E_BUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_those_of_plain_counting),
        cmocka_unit_test(groups_are_megatrons),
        cmocka_unit_test(the_large_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
