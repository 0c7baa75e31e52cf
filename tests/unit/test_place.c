/* test_place.c - layouts against nodes: blocks, uneven host lists, ranks dealt in turns.
 * links: mc_plan */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/plan/place.h"

static struct mc_layout layout(const char *order, int tp, int dp, int pp)
{
    const int size[MC_NAXES] = {tp, 1, 1, dp, pp};
    struct mc_layout l;
    assert_int_equal(mc_layout_init(&l, order, size, tp * dp * pp, NULL), MC_OK);
    return l;
}

static void refused(const struct mc_layout *l, const int *node_of, int per_node, const char *says)
{
    struct mc_place_counts p;
    struct mc_err e = {0};
    assert_int_equal(mc_place_check(l, node_of, per_node, &p, &e), MC_E_RECIPE);
    if (!strstr(e.msg, says))
        fail_msg("nothing says \"%s\": %s", says, e.msg);
}

static void blocks_of_whole_nodes_fit(void **state)
{
    (void)state;
    struct mc_place_counts p;
    struct mc_layout l = layout(MC_ORDER_DEFAULT, 8, 80, 8);
    assert_int_equal(mc_place_check(&l, NULL, 8, &p, NULL), MC_OK);
    assert_int_equal(p.nodes_of_pipeline, 8); /* pp 8 with tp 8: exactly 8 nodes */
    assert_int_equal(p.pipelines_of_node, 1);
    l = layout(MC_ORDER_DEFAULT, 4, 4, 2); /* half a node a stage: two pipelines a node */
    assert_int_equal(mc_place_check(&l, NULL, 8, &p, NULL), MC_OK);
    assert_int_equal(p.nodes_of_pipeline, 2);
    assert_int_equal(p.pipelines_of_node, 2);
    l = layout("tp-pp-dp", 4, 4, 2); /* ... and one, when stages are neighbours */
    assert_int_equal(mc_place_check(&l, NULL, 8, &p, NULL), MC_OK);
    assert_int_equal(p.nodes_of_pipeline, 1);
    assert_int_equal(p.pipelines_of_node, 1);
}

static void groups_that_leave_their_node_are_refused(void **state)
{
    (void)state;
    struct mc_layout l = layout(MC_ORDER_DEFAULT, 8, 2, 1);
    refused(&l, NULL, 4, "8 is more than the 4 ranks of a node");
    l = layout(MC_ORDER_DEFAULT, 3, 8, 1);
    refused(&l, NULL, 8, "group of rank 6 leaves its node: rank 6 is on node 0 (8 ranks), rank 8");
    l = layout("dp-tp", 4, 8, 1);
    refused(&l, NULL, 8, "group of rank 0 leaves its node");
    /* a real host list: two nodes, ranks dealt in turns */
    int turns[16];
    for (int r = 0; r < 16; r++)
        turns[r] = r % 2;
    l = layout(MC_ORDER_DEFAULT, 8, 2, 1);
    refused(&l, turns, 0, "rank 0 is on node 0 (8 ranks), rank 1 on node 1");
}

static void pipelines_cover_their_nodes_exactly(void **state)
{
    (void)state;
    struct mc_place_counts p;
    struct mc_layout l = layout(MC_ORDER_DEFAULT, 4, 1, 4);
    int node_of[16];
    for (int r = 0; r < 16; r++)
        node_of[r] = 3 - r / 4; /* whole nodes, in any order */
    assert_int_equal(mc_place_check(&l, node_of, 4, &p, NULL), MC_OK);
    for (int r = 0; r < 16; r++)
        node_of[r] = r < 8 ? 0 : r / 4 - 1; /* two stages on one node of eight */
    refused(&l, node_of, 4, "should cover exactly 4 nodes of 4 ranks; it covers 3 nodes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_whole_nodes_fit),
        cmocka_unit_test(groups_that_leave_their_node_are_refused),
        cmocka_unit_test(pipelines_cover_their_nodes_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
