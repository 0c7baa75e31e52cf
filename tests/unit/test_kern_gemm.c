/* test_kern_gemm.c - products against sums in another order, all transposes, strides, odd sizes,
 * alpha, acc, bias; bits the same on 1, 2, 3 and 5 threads; the grid; the table lookup.
 * links: mc_kern
 */
#include "kern_test.h"
#include "../../core/kern/kern_int.h"

struct shape {
    int64_t m, n, k;
};

/* c [M,N] by columns of A times rows of B: outer products, k ascending. */
static void outer_products(const struct shape *s, int ta, int tb, const double *a, const double *b,
                           double alpha, double *c)
{
    for (int64_t p = 0; p < s->k; p++)
        for (int64_t i = 0; i < s->m; i++) {
            double x = alpha * (ta ? a[p * s->m + i] : a[i * s->k + p]);
            for (int64_t j = 0; j < s->n; j++)
                c[i * s->n + j] += x * (tb ? b[j * s->k + p] : b[p * s->n + j]);
        }
}

static void check(const struct mc_kern_ops *k, const struct shape *s, int ta, int tb, int mode)
{
    int64_t pad = mode ? 3 : 0; /* ld > n in the richer modes */
    int64_t am = ta ? s->k : s->m, an = ta ? s->m : s->k;
    int64_t bm = tb ? s->n : s->k, bn = tb ? s->k : s->n;
    double alpha = mode ? 0.75 : 1;
    int acc = mode == 1, bias = mode == 2;
    double *a = noise_new(am * an, 1), *b = noise_new(bm * bn, 2), *c = noise_new(s->m * s->n, 3);
    double *bi = noise_new(s->n, 4), *ref = zeros_new(s->m * s->n);
    if (acc)
        memcpy(ref, c, (size_t)(s->m * s->n) * sizeof *ref);
    outer_products(s, ta, tb, a, b, alpha, ref);
    for (int64_t i = 0; bias && i < s->m * s->n; i++)
        ref[i] += bi[i % s->n];
    void *ka = mat(k, a, am, an, an + pad), *kb = mat(k, b, bm, bn, bn + pad);
    void *kbi = vec(k, bi, s->n), *kept = NULL;
    for (int t = 0; t < POOLS; t++) {
        void *kc = mat(k, acc ? c : NULL, s->m, s->n, s->n + pad);
        k->gemm(pools[t], &(struct mc_gemm){.m = s->m,
                                            .n = s->n,
                                            .k = s->k,
                                            .ta = ta,
                                            .tb = tb,
                                            .a = ka,
                                            .lda = an + pad,
                                            .b = kb,
                                            .ldb = bn + pad,
                                            .c = kc,
                                            .ldc = s->n + pad,
                                            .alpha = alpha,
                                            .acc = acc,
                                            .bias = bias ? kbi : NULL});
        close_to(k, "gemm", kc, s->n + pad, ref, s->m, s->n);
        same_bits(&kept, kc, (size_t)(s->m * (s->n + pad)) * elem(k));
        mc_free(kc);
    }
    mc_free(kept), mc_free(ka), mc_free(kb), mc_free(kbi);
    mc_free(a), mc_free(b), mc_free(c), mc_free(bi), mc_free(ref);
}

static void test_odd_sizes(void **state)
{
    static const int64_t edge[] = {1, 7, 129, 257};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 64; i++) {
            struct shape s = {edge[i & 3], edge[i >> 2 & 3], edge[i >> 4]};
            for (int op = 0; op < 4; op++)
                check(tables[d], &s, op & 1, op >> 1, (i + op) % 3);
        }
}

static void test_tiled_sizes(void **state)
{
    static const struct shape sizes[] = {
        {300, 500, 130}, {768, 384, 128}, {1, 3000, 700}, {513, 65, 300}, {5, 4, 0}};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 5; i++)
            for (int op = 0; op < 4; op++)
                check(tables[d], &sizes[i], op & 1, op >> 1, (i + op) % 3);
}

/* The kernel of a weight gradient: many rows summed, added to what is there, in fp32. */
static void test_long_k(void **state)
{
    struct shape s = {33, 65, 5000};
    (void)state;
    check(tables[0], &s, 1, 0, 1);
    check(tables[1], &s, 1, 0, 1);
}

static void test_grid(void **state)
{
    (void)state;
    for (int64_t m = 1; m < 3000; m = m * 3 / 2 + 1)
        for (int64_t n = 1; n < 5000; n = n * 3 / 2 + 1)
            for (int64_t k = 1; k < 3000; k = k * 5 + 2) {
                struct mc_gemm_grid g = mc_gemm_cpu_grid(m, n, k);
                assert_true((g.tiles_m - 1) * g.tile_m < m && g.tiles_m * g.tile_m >= m);
                assert_true((g.tiles_n - 1) * g.tile_n < n && g.tiles_n * g.tile_n >= n);
                assert_true(g.tiles_m * g.tiles_n <= 16);
            }
    assert_int_equal(mc_gemm_cpu_grid(64, 64, 64).tiles_m, 1);
    struct mc_gemm_grid g = mc_gemm_cpu_grid(1024, 2304, 768);
    assert_int_equal(g.tiles_m * g.tiles_n, 16);
}

static void test_lookup(void **state)
{
    const struct mc_kern_ops *k = NULL;
    struct mc_err err = {0};
    char text[128];
    (void)state;
    assert_int_equal(mc_kern_get(MC_DEVICE_CPU, MC_F16, &k, &err), MC_E_MACHINE);
    assert_non_null(strstr(err.msg, "F16"));
    assert_non_null(strstr(err.msg, "fp32"));
    mc_err_clear(&err);
    assert_int_equal(mc_kern_get(MC_DEVICE_CUDA, MC_F32, &k, &err), MC_E_MACHINE);
    assert_non_null(strstr(err.msg, "CUDA"));
    assert_null(k); /* outputs only on success */
    assert_string_equal(tables[0]->name, "cpu-f32");
    assert_string_equal(tables[1]->name, "cpu-f64");
    mc_kern_fingerprint(text, sizeof text);
    assert_memory_equal(text, "openblas 0.", 11);
    mc_kern_fingerprint(text, 5);
    assert_string_equal(text, "open");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_sizes), cmocka_unit_test(test_tiled_sizes),
        cmocka_unit_test(test_long_k),    cmocka_unit_test(test_grid),
        cmocka_unit_test(test_lookup),
    };
    return cmocka_run_group_tests(tests, kern_setup, kern_teardown);
}
