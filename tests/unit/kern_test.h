/* kern_test.h - shared by test_kern_*.c: pools of several sizes, operands of either dtype made from
 * fp64 values, norms of differences, finite differences.
 *
 * Inputs are always values that fp32 holds exactly, so that an fp64 reference sees what the fp32
 * kernel saw. Padding between rows holds PAD and must survive. */
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/kern/kern.h"

#define PAD    777.0
#define POOLS  4
#define TOL_32 1e-5
#define TOL_64 1e-12
#define TOL_FD 1e-7

static const int pool_threads[POOLS] = {1, 2, 3, 5};
static struct mc_pool *pools[POOLS];
static const struct mc_kern_ops *tables[2]; /* fp32, fp64 */

static inline int kern_setup(void **state)
{
    (void)state;
    for (int i = 0; i < POOLS; i++)
        if (mc_pool_create(pool_threads[i], &pools[i], NULL) != MC_OK)
            return -1;
    if (mc_kern_get(MC_DEVICE_CPU, MC_F32, &tables[0], NULL) != MC_OK ||
        mc_kern_get(MC_DEVICE_CPU, MC_F64, &tables[1], NULL) != MC_OK)
        return -1;
    return mc_kern_start(pools[POOLS - 1], NULL) == MC_OK ? 0 : -1;
}

static inline int kern_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < POOLS; i++)
        mc_pool_destroy(pools[i]);
    return 0;
}

/* A small generator of its own, so that tests do not lean on core/base/rng. [-1, 1), fp32 values.
 */
static inline double noise(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(float)((double)(int64_t)(*s >> 11) / 4503599627370496.0 - 1.0);
}
static inline double *noise_new(int64_t n, uint64_t seed)
{
    double *x = mc_alloc((size_t)(n + 1) * sizeof *x, "test");
    assert_non_null(x);
    seed = seed * 977 + 1;
    for (int64_t i = 0; i < n; i++)
        x[i] = noise(&seed);
    return x;
}
static inline double *zeros_new(int64_t n)
{
    double *x = mc_alloc((size_t)(n + 1) * sizeof *x, "test");
    assert_non_null(x);
    return x;
}

static inline size_t elem(const struct mc_kern_ops *k)
{
    return k->dtype == MC_F32 ? 4 : 8;
}
static inline double tol(const struct mc_kern_ops *k)
{
    return k->dtype == MC_F32 ? TOL_32 : TOL_64;
}
static inline void set(const struct mc_kern_ops *k, void *p, int64_t i, double v)
{
    if (k->dtype == MC_F32)
        ((float *)p)[i] = (float)v;
    else
        ((double *)p)[i] = v;
}
static inline double get(const struct mc_kern_ops *k, const void *p, int64_t i)
{
    return k->dtype == MC_F32 ? (double)((const float *)p)[i] : ((const double *)p)[i];
}
/* src [m, n] -> operand with row stride ld; src NULL: NaN, for outputs that must be overwritten. */
static inline void *mat(const struct mc_kern_ops *k, const double *src, int64_t m, int64_t n,
                        int64_t ld)
{
    void *p = mc_alloc((size_t)(m * ld + 1) * elem(k), "test");
    assert_non_null(p);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ld; j++)
            set(k, p, i * ld + j, j >= n ? PAD : src ? src[i * n + j] : (double)NAN);
    return p;
}
static inline void *vec(const struct mc_kern_ops *k, const double *src, int64_t n)
{
    return mat(k, src, 1, n, n);
}

/* ||got - ref|| / ||ref|| over [m, n], and the padding's survival. */
static inline double gap(const struct mc_kern_ops *k, const void *got, int64_t ld,
                         const double *ref, int64_t m, int64_t n)
{
    double d = 0, r = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ld; j++) {
            double g = get(k, got, i * ld + j);
            if (j >= n) {
                assert_true(g == PAD);
                continue;
            }
            if (!isfinite(g) && isfinite(ref[i * n + j]))
                return INFINITY;
            d += (g - ref[i * n + j]) * (g - ref[i * n + j]);
            r += ref[i * n + j] * ref[i * n + j];
        }
    return r > 0 ? sqrt(d / r) : sqrt(d);
}
static inline void close_to(const struct mc_kern_ops *k, const char *what, const void *got,
                            int64_t ld, const double *ref, int64_t m, int64_t n)
{
    double e = gap(k, got, ld, ref, m, n);
    if (!(e <= tol(k)))
        fail_msg("%s %s [%lld, %lld]: off by %.3g, allowed %.3g", k->name, what, (long long)m,
                 (long long)n, e, tol(k));
}

/* First call keeps the bits, later ones must repeat them. */
static inline void same_bits(void **kept, const void *p, size_t bytes)
{
    if (!*kept) {
        *kept = mc_alloc(bytes + 1, "test");
        assert_non_null(*kept);
        memcpy(*kept, p, bytes);
    } else
        assert_memory_equal(*kept, p, bytes);
}

/* Central differences of f, a function of the n numbers at x; f reads x through arg. */
static inline double *differences(double (*f)(void *arg), void *arg, double *x, int64_t n)
{
    double *g = zeros_new(n), h = 1e-5;
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i];
        x[i] = keep + h;
        double up = f(arg);
        x[i] = keep - h;
        double down = f(arg);
        x[i] = keep;
        g[i] = (up - down) / (2 * h);
    }
    return g;
}
static inline double gap64(const double *a, const double *ref, int64_t n)
{
    double d = 0, r = 0;
    for (int64_t i = 0; i < n; i++) {
        d += (a[i] - ref[i]) * (a[i] - ref[i]);
        r += ref[i] * ref[i];
    }
    return r > 0 ? sqrt(d / r) : sqrt(d);
}
static inline void close_fd(const char *what, const double *got, double *fd, int64_t n)
{
    double e = gap64(got, fd, n);
    if (!(e <= TOL_FD))
        fail_msg("%s: %.3g from finite differences, allowed %.3g", what, e, TOL_FD);
    mc_free(fd);
}
