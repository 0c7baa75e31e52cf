/* test_sketch.c - sketches against the norms that they stand for, and against their own parts.
 * links: mc_tensor
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "../../core/tensor/sketch.h"

enum { N = 4000 };
static double g_x[N], g_y[N];

/* A generator that the code under test does not use. */
static void fill(double *x, uint32_t seed, double scale)
{
    for (int i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = scale * ((double)(seed >> 8) / (1 << 23) - 1);
    }
}

static void distance_is_estimated(void **state)
{
    double mean = 0;
    (void)state;
    for (int seed = 0; seed < 200; seed++) {
        struct mc_sketch a = {0}, b = {0};
        double apart = 0;
        fill(g_x, (uint32_t)seed, 1);
        fill(g_y, (uint32_t)seed + 1000, 1e-3);
        for (int i = 0; i < N; i++) {
            apart += g_y[i] * g_y[i];
            g_y[i] += g_x[i];
        }
        mc_sketch_add(&a, g_x, MC_F64, 0, N);
        mc_sketch_add(&b, g_y, MC_F64, 0, N);
        double r = mc_sketch_apart(&a, &b) / sqrt(apart);
        assert_true(r > 0.15 && r < 2.5); /* chi-square with 8 degrees: beyond once in 10^6 */
        mean += r * r / 200;
        assert_true(a.hash != b.hash);
    }
    assert_true(fabs(mean - 1) < 0.2); /* no bias: sqrt(2/8/200) is 0.035 */
}

static void parts_add_up_in_any_cut(void **state)
{
    struct mc_sketch all = {0}, sum = {0}, half = {0};
    (void)state;
    fill(g_x, 3, 1);
    mc_sketch_add(&all, g_x, MC_F64, 77, N);
    for (int i = 0, n; i < N; i += n) { /* 1, 2, 4 ... and what is left */
        struct mc_sketch part = {0};
        n = i + 1 < N - i ? i + 1 : N - i;
        mc_sketch_add(&part, g_x + i, MC_F64, 77 + i, n);
        mc_sketch_join(&sum, &part);
    }
    assert_int_equal(sum.count, N);
    assert_true(sum.hash == all.hash);
    assert_true(mc_sketch_apart(&sum, &all) < 1e-12);
    assert_true(fabs(sum.squares - all.squares) < 1e-9 && fabs(sum.sum - all.sum) < 1e-9);
    /* a partial sum on each of two ranks: x = y + (x - y) */
    fill(g_y, 4, 5);
    mc_sketch_add(&half, g_y, MC_F64, 77, N);
    for (int i = 0; i < N; i++)
        g_y[i] = g_x[i] - g_y[i];
    mc_sketch_add(&half, g_y, MC_F64, 77, N);
    assert_true(mc_sketch_apart(&half, &all) < 1e-11);
    /* the index counts: the same numbers one place on are another tensor */
    struct mc_sketch moved = {0};
    mc_sketch_add(&moved, g_x, MC_F64, 78, N);
    assert_true(mc_sketch_apart(&moved, &all) > 0.3 * sqrt(2 * all.squares));
}

static void every_type_and_what_is_no_number(void **state)
{
    float f[3] = {1.5f, -2, 0.25f};
    uint16_t h[3] = {0x3fc0, 0xc000, 0x3e80}; /* the same in bf16 */
    double d[3] = {1.5, -2, 0.25};
    struct mc_sketch a = {0}, b = {0}, c = {0}, nan = {0};
    (void)state;
    mc_sketch_add(&a, f, MC_F32, 0, 3);
    mc_sketch_add(&b, h, MC_BF16, 0, 3);
    mc_sketch_add(&c, d, MC_F64, 0, 3);
    assert_true(a.squares == 1.5 * 1.5 + 4 + 0.0625 && a.sum == -0.25 && a.max == 2);
    assert_true(mc_sketch_apart(&a, &b) == 0 && mc_sketch_apart(&a, &c) == 0);
    d[1] = NAN;
    mc_sketch_add(&nan, d, MC_F64, 0, 3);
    assert_int_equal(nan.nonfinite, 1);
    assert_true(isinf(mc_sketch_apart(&a, &nan)) && isfinite(nan.squares));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distance_is_estimated),
        cmocka_unit_test(parts_add_up_in_any_cut),
        cmocka_unit_test(every_type_and_what_is_no_number),
    };
    return cmocka_run_group_tests_name("sketch", tests, NULL, NULL);
}
