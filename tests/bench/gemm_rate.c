/* gemm_rate.c - how fast one library multiplies fp32 matrices of given shapes on this machine.
 *
 *     bench_gemm LIBRARY THREADS TIMINGS M:N:K:op...
 *
 * LIBRARY: mascon (our kernels on our pool), openblas, blis, onednn; the last two are opened when
 * asked for, so that the program builds without them. One library a process: each brings threads of
 * its own. A shape is that of a linear layer, M rows (tokens), K inputs, N outputs, row-major:
 *     nt  forward   Y[M,N] = X[M,K] W[N,K]^T
 *     nn  backward  X[M,K] = Y[M,N] W[N,K]
 *     tn  weights   W[N,K] = Y[M,N]^T X[M,K]
 * Operands rotate over 96 MiB, so weights come from memory as they do in a step. Prints a line a
 * shape: "M:N:K:op GFLOP/s", the median of TIMINGS, each of 10 ms or more.
 * Exit 3: the library is not here. */
#include <cblas.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include "../../core/kern/kern.h"

typedef int (*dnnl_fn)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                       const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                       float *c, int64_t ldc);
typedef void (*cblas_fn)(int order, int ta, int tb, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);
static const struct mc_kern_ops *kern;
static struct mc_pool *pool;
static cblas_fn blas;
static dnnl_fn dnnl;

/* C[m,n] = op(A) op(B), all rows dense. */
static void multiply(int ta, int tb, int m, int n, int k, const float *a, const float *b, float *c)
{
    int lda = ta ? m : k, ldb = tb ? k : n;
    if (kern) {
        kern->gemm(pool, &(struct mc_gemm){.m = m,
                                           .n = n,
                                           .k = k,
                                           .ta = ta,
                                           .tb = tb,
                                           .a = a,
                                           .lda = lda,
                                           .b = b,
                                           .ldb = ldb,
                                           .c = c,
                                           .ldc = n,
                                           .alpha = 1});
    } else if (dnnl) {
        dnnl(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb, 0, c, n);
    } else {
        blas(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k,
             1, a, lda, b, ldb, 0, c, n);
    }
}

static void *symbol(const char *file, const char *name)
{
    void *h = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *s = h ? dlsym(h, name) : NULL;
    if (!s)
        fprintf(stderr, "bench_gemm: %s\n", dlerror());
    return s;
}

static int open_library(const char *name, int threads)
{
    struct mc_err err = {0};
    char n[16];
    snprintf(n, sizeof n, "%d", threads);
    setenv("OMP_NUM_THREADS", n, 1);
    setenv("BLIS_NUM_THREADS", n, 1);
    if (!strcmp(name, "openblas")) {
        openblas_set_num_threads(threads);
        blas = (cblas_fn)(void (*)(void))cblas_sgemm;
    } else if (!strcmp(name, "blis")) {
        void *s = symbol("libblis.so.4", "cblas_sgemm");
        memcpy(&blas, &s, sizeof s);
        return s ? 0 : 3;
    } else if (!strcmp(name, "onednn")) {
        void *s = symbol("libdnnl.so.2", "dnnl_sgemm");
        if (!s)
            s = symbol("libdnnl.so.3", "dnnl_sgemm");
        memcpy(&dnnl, &s, sizeof s);
        return s ? 0 : 3;
    } else if (!strcmp(name, "mascon")) {
        if (mc_kern_get(MC_DEVICE_CPU, MC_F32, &kern, &err) != MC_OK ||
            mc_pool_create(threads, &pool, &err) != MC_OK || mc_kern_start(pool, &err) != MC_OK)
            return fprintf(stderr, "bench_gemm: %s\n", err.msg), 3;
    } else {
        return fprintf(stderr, "bench_gemm: no library \"%s\"\n", name), 2;
    }
    return 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define ROTATE ((size_t)96 << 20) /* bytes: three times a large last-level cache's share */

static double rate(int m, int n, int k, const char *op, int timings)
{
    size_t sx = (size_t)m * (size_t)k, sw = (size_t)n * (size_t)k, sy = (size_t)m * (size_t)n;
    size_t one = (sx + sw + sy + 1023) / 1024 * 1024;
    size_t sets = ROTATE / (one * sizeof(float)) + 1, at = 0;
    struct mc_arena arena;
    struct mc_err err = {0};
    double g[64], flop = 2.0 * m * n * k;
    if (mc_arena_init(&arena, "bench", sets * one * sizeof(float), &err) != MC_OK)
        return fprintf(stderr, "bench_gemm: %s\n", err.msg), -1;
    float *buf = mc_arena_take(&arena, sets * one * sizeof(float));
    for (size_t i = 0; i < sets * one; i++)
        buf[i] = (float)((i * UINT64_C(2654435761) >> 8) & 1023) / 1024 - 0.5f;
    timings = timings > 64 ? 64 : timings;
    for (int t = -1; t < timings; t++) { /* the first warms up */
        int64_t t0 = mc_clock_ns(), ns;
        int calls = 0;
        do {
            float *x = buf + one * at, *w = x + sx, *y = w + sw;
            at = (at + 1) % sets;
            if (!strcmp(op, "nt"))
                multiply(0, 1, m, n, k, x, w, y);
            else if (!strcmp(op, "nn"))
                multiply(0, 0, m, k, n, y, w, x);
            else
                multiply(1, 0, n, k, m, y, x, w);
            calls++;
            ns = mc_clock_ns() - t0;
        } while (ns < 10000000);
        if (t >= 0)
            g[t] = flop * calls / (double)ns;
    }
    mc_arena_fini(&arena);
    qsort(g, (size_t)timings, sizeof *g, ascending);
    return g[timings / 2];
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return fprintf(stderr, "usage: bench_gemm LIBRARY THREADS TIMINGS M:N:K:op...\n"), 2;
    int rc = open_library(argv[1], atoi(argv[2]));
    for (int i = 4; i < argc && rc == 0; i++) {
        int m, n, k;
        char op[3];
        if (sscanf(argv[i], "%d:%d:%d:%2s", &m, &n, &k, op) != 4 || m < 1 || n < 1 || k < 1)
            return fprintf(stderr, "bench_gemm: not M:N:K:op: %s\n", argv[i]), 2;
        double r = rate(m, n, k, op, atoi(argv[3]));
        if (r < 0)
            return 1;
        printf("%s %.1f\n", argv[i], r);
        fflush(stdout);
    }
    return rc;
}
