/* test_layout.c - ranks and coordinates against nested loops; refusals.
 * links: mc_par */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/par/launch_map.h"

enum { TP = MC_AXIS_TP, CP = MC_AXIS_CP, EP = MC_AXIS_EP, DP = MC_AXIS_DP, PP = MC_AXIS_PP };

static void default_order_is_nested_loops(void **state)
{
    (void)state;
    int size[MC_NAXES], rank = 0, c[MC_NAXES], got[MC_NAXES];
    size[TP] = 2, size[CP] = 3, size[EP] = 1, size[DP] = 4, size[PP] = 5;
    struct mc_layout l;
    assert_int_equal(mc_layout_init(&l, MC_ORDER_DEFAULT, size, 120, NULL), MC_OK);
    for (c[PP] = 0; c[PP] < 5; c[PP]++)
        for (c[DP] = 0; c[DP] < 4; c[DP]++)
            for (c[EP] = 0; c[EP] < 1; c[EP]++)
                for (c[CP] = 0; c[CP] < 3; c[CP]++)
                    for (c[TP] = 0; c[TP] < 2; c[TP]++, rank++) {
                        assert_int_equal(mc_layout_rank(&l, c), rank);
                        mc_layout_coord(&l, rank, got);
                        assert_memory_equal(got, c, sizeof c);
                    }
    assert_int_equal(rank, l.world);
}

static void any_order_puts_its_left_end_fastest(void **state)
{
    (void)state;
    int size[MC_NAXES] = {[TP] = 2, [CP] = 1, [EP] = 1, [DP] = 0, [PP] = 4}, c[MC_NAXES];
    struct mc_layout l;
    assert_int_equal(mc_layout_init(&l, "pp-dp-tp", size, 24, NULL), MC_OK);
    assert_int_equal(l.size[DP], 3);
    for (int r = 0; r < 24; r++) {
        mc_layout_coord(&l, r, c);
        assert_int_equal(c[PP], r % 4);
        assert_int_equal(c[DP], r / 4 % 3);
        assert_int_equal(c[TP], r / 12);
        assert_int_equal(c[CP], 0);
        assert_int_equal(mc_layout_rank(&l, c), r);
    }
}

static void groups_partition_the_world(void **state)
{
    (void)state;
    int size[MC_NAXES] = {[TP] = 8, [CP] = 1, [EP] = 1, [DP] = 0, [PP] = 8};
    struct mc_layout l;
    static int ranks[5120], seen[5120];
    assert_int_equal(mc_layout_init(&l, MC_ORDER_DEFAULT, size, 5120, NULL), MC_OK);
    assert_int_equal(l.size[DP], 80);
    for (int a = 0; a < MC_NAXES; a++) {
        memset(seen, 0, sizeof seen);
        for (int r = 0; r < 5120; r++) {
            int n = mc_layout_group(&l, r, (enum mc_axis)a, ranks), mine = 0;
            assert_int_equal(n, l.size[a]);
            for (int i = 0; i < n; i++) {
                mine += ranks[i] == r;
                assert_true(i == 0 || ranks[i] > ranks[i - 1]);
                seen[ranks[i]]++;
            }
            assert_int_equal(mine, 1);
        }
        for (int r = 0; r < 5120; r++) /* once for each member of its group */
            assert_int_equal(seen[r], l.size[a]);
    }
    /* the tp group of every rank is one node of eight */
    for (int r = 0; r < 5120; r++) {
        mc_layout_group(&l, r, MC_AXIS_TP, ranks);
        assert_int_equal(ranks[0], r / 8 * 8);
        assert_int_equal(ranks[7], r / 8 * 8 + 7);
    }
}

static void impossible_layouts_are_refused_with_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *order;
        int size[MC_NAXES], world;
        const char *says;
    } rows[] = {
        {MC_ORDER_DEFAULT, {4, 1, 1, 3, 2}, 16, "tp 4 x dp 3 x pp 2 = 24 ranks, but there are 16"},
        {MC_ORDER_DEFAULT, {4, 1, 1, 0, 2}, 12, "tp 4 x pp 2 = 8 ranks a replica"},
        {MC_ORDER_DEFAULT, {0, 1, 1, 1, 1}, 1, "parallel.tp is 0"},
        {MC_ORDER_DEFAULT, {1, 1, 1, -1, 1}, 1, "parallel.dp is -1"},
        {MC_ORDER_DEFAULT, {1, 1, 1, 1, 1}, 2, "every axis 1 = 1 ranks, but there are 2"},
        {MC_ORDER_DEFAULT, {65536, 65536, 1, 1, 1}, 2, "beyond 2^31"},
        {MC_ORDER_DEFAULT, {1, 1, 1, 1, 1}, 0, "at least 1 rank"},
        {"tp-dp", {1, 1, 1, 1, 2}, 2, "leaves out pp, whose size is 2"},
        {"tp-tp-dp", {1, 1, 1, 1, 1}, 1, "tp stands there twice"},
        {"tp-xp", {1, 1, 1, 1, 1}, 1, "\"xp\" is no axis"},
        {"", {1, 1, 1, 1, 1}, 1, "\"\" is no axis"},
        {"tp-", {1, 1, 1, 1, 1}, 1, "\"\" is no axis"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mc_layout l, before;
        struct mc_err e = {0};
        memset(&l, 0x5a, sizeof l);
        before = l;
        assert_int_not_equal(mc_layout_init(&l, rows[i].order, rows[i].size, rows[i].world, &e),
                             MC_OK);
        if (!strstr(e.msg, rows[i].says))
            fail_msg("row %zu says: %s", i, e.msg);
        assert_memory_equal(&l, &before, sizeof l);
    }
}

static void launch_map_counts_devices_within_a_node(void **state)
{
    (void)state;
    static const char *const hosts[] = {"b", "a"};
    static const int node_of[] = {0, 1, 0, 1}; /* dealt in turns */
    const int size[MC_NAXES] = {2, 1, 1, 2, 1};
    struct mc_layout l;
    char *text;
    assert_int_equal(mc_layout_init(&l, MC_ORDER_DEFAULT, size, 4, NULL), MC_OK);
    struct mc_launch w = {
        .layout = &l, .hosts = hosts, .node_of = node_of, .per_node = 0, .device = "cuda"};
    assert_int_equal(mc_launch_map_text(&w, &text, NULL), MC_OK);
    assert_string_equal(text, "rank\thost\tdevice\ttp\tcp\tep\tdp\tpp\n"
                              "0\tb\tcuda:0\t0\t0\t0\t0\t0\n"
                              "1\ta\tcuda:0\t1\t0\t0\t0\t0\n"
                              "2\tb\tcuda:1\t0\t0\t0\t1\t0\n"
                              "3\ta\tcuda:1\t1\t0\t0\t1\t0\n");
    mc_free(text);
    w.node_of = NULL;
    w.per_node = 2;
    assert_int_equal(mc_launch_map_text(&w, &text, NULL), MC_OK);
    assert_non_null(strstr(text, "\n2\ta\tcuda:0\t0\t0\t0\t1\t0\n"));
    mc_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_order_is_nested_loops),
        cmocka_unit_test(any_order_puts_its_left_end_fastest),
        cmocka_unit_test(groups_partition_the_world),
        cmocka_unit_test(impossible_layouts_are_refused_with_numbers),
        cmocka_unit_test(launch_map_counts_devices_within_a_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
