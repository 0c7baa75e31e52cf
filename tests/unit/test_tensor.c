/* test_tensor.c - dtypes, shapes, boxes: disjoint and covering, by painting them; the CPU device.
 * links: mc_tensor mc_device */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/device/device.h"
#include "../../core/tensor/tensor.h"

static void dtypes_round_trip(void **state)
{
    (void)state;
    static const size_t want[MC_NDTYPES] = {4, 8, 2, 2, 4, 8, 2, 1};
    for (int t = 0; t < MC_NDTYPES; t++) {
        assert_int_equal(mc_dtype_size((enum mc_dtype)t), want[t]);
        assert_int_equal(mc_dtype_parse(mc_dtype_name((enum mc_dtype)t)), t);
    }
    assert_string_equal(mc_dtype_name(MC_BF16), "BF16");
    assert_int_equal(mc_dtype_parse("f32"), -1);
    assert_int_equal(mc_dtype_parse(""), -1);
}

static void counts_see_overflow(void **state)
{
    (void)state;
    struct mc_shape s = {0};
    assert_int_equal(mc_shape_count(&s), 1);
    s = mc_shape_2(3, 5);
    assert_int_equal(mc_shape_count(&s), 15);
    s = mc_shape_2((int64_t)1 << 32, (int64_t)1 << 30);
    assert_true(mc_shape_count(&s) == (int64_t)1 << 62);
    s = mc_shape_2((int64_t)1 << 32, (int64_t)1 << 31);
    assert_int_equal(mc_shape_count(&s), -1);
    s = mc_shape_2(3, -1);
    assert_int_equal(mc_shape_count(&s), -1);
    s = mc_shape_1(0);
    assert_int_equal(mc_shape_count(&s), 0);
    struct mc_shape a = mc_shape_1(3), b = mc_shape_2(3, 1);
    assert_false(mc_shape_eq(&a, &b));
    b = mc_shape_1(3);
    assert_true(mc_shape_eq(&a, &b));
}

/* Every element of an 8 x 12 tensor lies in exactly one box of the ranks that shard it. */
static void boxes_cover_once(void **state)
{
    (void)state;
    struct mc_shape s = mc_shape_2(8, 12);
    static const int sizes[][MC_NAXES] = {{2, 1, 1, 1, 1}, {2, 1, 1, 2, 1}, {4, 1, 1, 2, 1},
                                          {2, 2, 1, 1, 1}, {1, 1, 1, 4, 1}, {2, 1, 1, 3, 1}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int tp_dim = 0; tp_dim < 2; tp_dim++)
            for (int dp_dim = 0; dp_dim < 2; dp_dim++) {
                struct mc_sharding sh = {0};
                const int *size = sizes[k];
                int seen[8][12] = {{0}}, coord[MC_NAXES] = {0}, refused = 0;
                sh.on[MC_AXIS_TP] = (struct mc_place){MC_SHARD, (uint8_t)tp_dim, MC_CONTIGUOUS, 0};
                sh.on[MC_AXIS_CP] = (struct mc_place){MC_SHARD, (uint8_t)dp_dim, MC_CONTIGUOUS, 0};
                sh.on[MC_AXIS_DP] = (struct mc_place){MC_SHARD, (uint8_t)dp_dim, MC_CONTIGUOUS, 0};
                for (coord[MC_AXIS_TP] = 0; coord[MC_AXIS_TP] < size[MC_AXIS_TP];
                     coord[MC_AXIS_TP]++)
                    for (coord[MC_AXIS_CP] = 0; coord[MC_AXIS_CP] < size[MC_AXIS_CP];
                         coord[MC_AXIS_CP]++)
                        for (coord[MC_AXIS_DP] = 0; coord[MC_AXIS_DP] < size[MC_AXIS_DP];
                             coord[MC_AXIS_DP]++) {
                            struct mc_box b;
                            if (!mc_box_of(&s, &sh, coord, size, &b)) {
                                refused = 1;
                                continue;
                            }
                            assert_int_equal(mc_box_count(&b), b.n[0] * b.n[1]);
                            for (int64_t i = b.lo[0]; i < b.lo[0] + b.n[0]; i++)
                                for (int64_t j = b.lo[1]; j < b.lo[1] + b.n[1]; j++)
                                    seen[i][j]++;
                        }
                for (int i = 0; i < 8 && !refused; i++)
                    for (int j = 0; j < 12; j++)
                        assert_int_equal(seen[i][j], 1);
                int parts[2] = {1, 1}; /* of rows, of columns */
                parts[tp_dim] *= size[MC_AXIS_TP];
                parts[dp_dim] *= size[MC_AXIS_CP] * size[MC_AXIS_DP];
                assert_int_equal(refused, 8 % parts[0] != 0 || 12 % parts[1] != 0);
            }
}

static void tp_cuts_before_dp(void **state)
{
    (void)state;
    struct mc_shape s = mc_shape_2(8, 2);
    struct mc_sharding sh = {0};
    struct mc_box b;
    int size[MC_NAXES] = {2, 1, 1, 2, 1}, coord[MC_NAXES] = {1, 0, 0, 0, 0};
    sh.on[MC_AXIS_TP].kind = sh.on[MC_AXIS_DP].kind = MC_SHARD;
    assert_true(mc_box_of(&s, &sh, coord, size, &b));
    assert_int_equal(b.lo[0], 4); /* rows 4-7 are tp rank 1's, of which dp rank 0 has 4-5 */
    assert_int_equal(b.n[0], 2);
}

/* 9 rows over 4 coordinates: 3, 3, 3, 0; over 5: 2 2 2 2 1; columns in 2 parts with 2 copies each.
 */
static void padded_parts_run_short_and_copies_agree(void **state)
{
    (void)state;
    struct mc_shape s = mc_shape_2(9, 4);
    struct mc_sharding sh = {0};
    struct mc_box b;
    int size[MC_NAXES] = {4, 1, 1, 1, 1}, coord[MC_NAXES] = {0};
    static const int64_t four[] = {3, 3, 3, 0}, five[] = {2, 2, 2, 2, 1};
    sh.on[MC_AXIS_TP] = (struct mc_place){.kind = MC_SHARD, .how = MC_PADDED};
    for (size[0] = 4; size[0] < 6; size[0]++) {
        int64_t end = 0;
        for (coord[0] = 0; coord[0] < size[0]; coord[0]++) {
            assert_true(mc_box_of(&s, &sh, coord, size, &b));
            assert_int_equal(b.lo[0], end);
            assert_int_equal(b.n[0], size[0] == 4 ? four[coord[0]] : five[coord[0]]);
            end = b.lo[0] + b.n[0];
        }
        assert_int_equal(end, 9);
    }
    sh.on[MC_AXIS_TP] = (struct mc_place){.kind = MC_SHARD, .dim = 1, .copies = 2};
    size[0] = 4;
    for (coord[0] = 0; coord[0] < 4; coord[0]++) {
        assert_true(mc_box_of(&s, &sh, coord, size, &b));
        assert_int_equal(b.lo[1], coord[0] / 2 * 2);
        assert_int_equal(b.n[1], 2);
    }
    size[0] = 3; /* 2 does not divide 3 */
    coord[0] = 0;
    assert_false(mc_box_of(&s, &sh, coord, size, &b));
    struct mc_place one = {.kind = MC_SHARD, .dim = 1, .copies = 1},
                    none = {.kind = MC_SHARD, .dim = 1};
    assert_true(mc_place_same(&one, &none));
    assert_false(mc_place_same(&one, &sh.on[MC_AXIS_TP]));
}

static void boxes_that_are_none_are_refused(void **state)
{
    (void)state;
    struct mc_shape s = mc_shape_2(8, 2);
    struct mc_sharding sh = {0};
    struct mc_box b;
    int size[MC_NAXES] = {2, 1, 1, 1, 1}, coord[MC_NAXES] = {2, 0, 0, 0, 0};
    sh.on[MC_AXIS_TP].kind = MC_SHARD;
    assert_false(mc_box_of(&s, &sh, coord, size, &b)); /* coordinate past the axis */
    coord[MC_AXIS_TP] = 0;
    sh.on[MC_AXIS_TP].dim = 2;
    assert_false(mc_box_of(&s, &sh, coord, size, &b)); /* no such dimension */
    sh.on[MC_AXIS_TP].dim = 0;
    sh.on[MC_AXIS_TP].how = MC_ZIGZAG;
    assert_false(mc_box_of(&s, &sh, coord, size, &b)); /* two pieces */
    size[MC_AXIS_TP] = 1;
    assert_true(mc_box_of(&s, &sh, coord, size, &b));
    assert_int_equal(mc_box_count(&b), 16);
}

static void shardings_print(void **state)
{
    (void)state;
    char s[64];
    struct mc_sharding sh = {0};
    mc_sharding_print(&sh, s, sizeof s);
    assert_string_equal(s, "replicate");
    sh.on[MC_AXIS_TP] = (struct mc_place){MC_SHARD, 1, MC_CONTIGUOUS, 0};
    sh.on[MC_AXIS_CP] = (struct mc_place){MC_SHARD, 0, MC_ZIGZAG, 0};
    sh.on[MC_AXIS_DP].kind = MC_PARTIAL;
    mc_sharding_print(&sh, s, sizeof s);
    assert_string_equal(s, "tp:shard(1) cp:shard(0,zigzag) dp:partial");
    sh.on[MC_AXIS_CP] = (struct mc_place){.kind = MC_SHARD, .how = MC_PADDED, .copies = 2};
    mc_sharding_print(&sh, s, sizeof s);
    assert_string_equal(s, "tp:shard(1) cp:shard(0,padded,x2) dp:partial");
    for (int cap = 1; cap < 40; cap++) {
        memset(s, '#', sizeof s);
        mc_sharding_print(&sh, s, cap);
        assert_int_equal(s[cap], '#');
        assert_true((int)strlen(s) < cap);
    }
    assert_string_equal(mc_axis_name(MC_AXIS_PP), "pp");
}

static void cpu_device_works_and_has_a_name(void **state)
{
    (void)state;
    struct mc_device d;
    struct mc_arena a;
    struct mc_err e = {0};
    char in[100], out[100];
    assert_int_equal(mc_device_kind_parse("cpu"), MC_DEVICE_CPU);
    assert_int_equal(mc_device_kind_parse("cuda"), MC_DEVICE_CUDA);
    assert_int_equal(mc_device_kind_parse("gpu"), -1);
    assert_int_equal(mc_device_open(MC_DEVICE_CPU, 0, &d, &e), MC_OK);
    assert_string_equal(d.ops->name, "cpu");
    assert_true(strlen(d.model) > 2);
    print_message("device model: %s\n", d.model);
    assert_int_equal(d.ops->arena_init(&d, &a, "test", 1000, &e), MC_OK);
    void *p = mc_arena_take(&a, 100);
    for (int i = 0; i < 100; i++)
        in[i] = (char)(i * 3);
    d.ops->copy_in(&d, p, in, 100);
    d.ops->copy_out(&d, out, p, 100);
    assert_memory_equal(in, out, 100);
    d.ops->zero(&d, p, 100);
    d.ops->copy_out(&d, out, p, 100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(out[i], 0);
    d.ops->arena_fini(&d, &a);
    mc_device_close(&d);
}

static void absent_devices_are_said_to_be(void **state)
{
    (void)state;
    struct mc_device d;
    struct mc_err e = {0};
    assert_int_equal(mc_device_open(MC_DEVICE_CUDA, 0, &d, &e), MC_E_MACHINE);
    assert_non_null(strstr(e.msg, "cuda"));
    assert_non_null(strstr(e.msg, "--device cpu"));
    mc_err_clear(&e);
    assert_int_equal(mc_device_open(MC_DEVICE_CPU, 1, &d, &e), MC_E_MACHINE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_round_trip),
        cmocka_unit_test(counts_see_overflow),
        cmocka_unit_test(boxes_cover_once),
        cmocka_unit_test(tp_cuts_before_dp),
        cmocka_unit_test(padded_parts_run_short_and_copies_agree),
        cmocka_unit_test(boxes_that_are_none_are_refused),
        cmocka_unit_test(shardings_print),
        cmocka_unit_test(cpu_device_works_and_has_a_name),
        cmocka_unit_test(absent_devices_are_said_to_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
