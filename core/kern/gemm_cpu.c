/* gemm_cpu.c - the grid of a product's tiles, and OpenBLAS as we use it: one BLAS thread, called
 * from our own parallel loop over tiles. Floor 2 (kern). Includes: base. With cpu/gemm.inl and
 * cpu/attn.inl the only users of BLAS.
 *
 * Why not BLAS threads: their split of a product depends on how many there are, and so do the last
 * bits of its result. Here the split is ours and follows from the shape alone.
 *
 * I1  The grid is a function of (M, N, K). K is never split.
 * I2  OpenBLAS must be the pthread flavour, openblas_get_parallel() == 1: the serial flavour may be
 *     built without the locks that concurrent callers need, the OpenMP flavour brings a second set
 *     of threads that spin against ours.
 * I3  After mc_gemm_cpu_start() each pool thread has held a BLAS packing buffer at the same time as
 *     all others, so that the buffers exist before the memory baseline is taken.
 * I4  The products of this very CPU's kernels have been compared with integers known exactly.
 * Memory: handle life during start only; OpenBLAS keeps its packing buffers to the end.
 * Threads: start on the trainer thread (it runs the pool); the grid from any. */
#include <cblas.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include "../base/arena.h"
#include "../base/clock.h"
#include "kern_int.h"

/* A tile packs its own op(B), so a short one costs more than a narrow one: of what a core can do in
 * fp32 (116 GFLOP/s on Zen 4, K 768) 256 rows and 96 to 384 columns reach 95 %, 128 rows 91, 64
 * rows
 * 85. A tile of 4 MFLOP runs 40 us, ten times what waking a thread costs. 8 or 16 tiles keep 2, 4,
 * 8 (and 16) threads even. */
#define TILE_FLOP  4e6
#define TILES_FEW  8
#define MANY_FLOP  6e8 /* above: the second doubling costs little */
#define TILES_MAX  16
#define EDGE_M     192 /* rows and columns of a tile, at least, where there are more */
#define EDGE_N     64
#define TILE_ALIGN 16

static int64_t tile_size(int64_t n, int64_t parts)
{
    int64_t t = (n + parts - 1) / parts;
    return (t + TILE_ALIGN - 1) / TILE_ALIGN * TILE_ALIGN;
}

struct mc_gemm_grid mc_gemm_cpu_grid(int64_t m, int64_t n, int64_t k)
{
    double flop = 2.0 * (double)m * (double)n * (double)k;
    int64_t most = flop < MANY_FLOP ? TILES_FEW : TILES_MAX;
    int64_t want = flop < (double)most * TILE_FLOP ? (int64_t)(flop / TILE_FLOP) : most;
    int64_t pm = 1, pn = 1; /* parts: double them until there are enough tiles */
    while (pm * pn * 2 <= want) {
        int64_t em = m / pm, en = n / pn;
        int can_m = em >= 2 * EDGE_M, can_n = en >= 2 * EDGE_N;
        if (can_m && (em >= 2 * en || !can_n))
            pm *= 2;
        else if (can_n)
            pn *= 2;
        else
            break;
    }
    struct mc_gemm_grid g;
    g.tile_m = tile_size(m, pm);
    g.tile_n = tile_size(n, pn);
    g.tiles_m = (m + g.tile_m - 1) / g.tile_m;
    g.tiles_n = (n + g.tile_n - 1) / g.tile_n;
    return g;
}

/* -- Start ------------------------------------------------------------------------------------ */

#define CHECK_M 37
#define CHECK_N 19
#define CHECK_K 53

/* Small integers: every product and sum is exact in fp32 and fp64, so any difference is a fault. */
static int digit(int i, int j, int salt)
{
    return (i * 7 + j * 5 + i * j % 3 + salt) % 11 - 5;
}

/* op 0..3: transposes of A (bit 0) and B (bit 1). Returns 1 when both precisions are right. I4 */
static int products_are_right(int op)
{
    static const float nan32 = 0.0f / 0.0f; /* beta = 0 must not read C */
    float a[CHECK_M * CHECK_K], b[CHECK_K * CHECK_N], c[CHECK_M * CHECK_N];
    double da[CHECK_M * CHECK_K], db[CHECK_K * CHECK_N], dc[CHECK_M * CHECK_N];
    int ta = op & 1, tb = op >> 1;
    int lda = ta ? CHECK_M : CHECK_K, ldb = tb ? CHECK_K : CHECK_N;
    for (int i = 0; i < CHECK_M; i++)
        for (int p = 0; p < CHECK_K; p++)
            da[ta ? p * lda + i : i * lda + p] = digit(i, p, 1);
    for (int p = 0; p < CHECK_K; p++)
        for (int j = 0; j < CHECK_N; j++)
            db[tb ? j * ldb + p : p * ldb + j] = digit(p, j, 4);
    for (int i = 0; i < CHECK_M * CHECK_K; i++)
        a[i] = (float)da[i];
    for (int i = 0; i < CHECK_K * CHECK_N; i++)
        b[i] = (float)db[i];
    for (int i = 0; i < CHECK_M * CHECK_N; i++)
        dc[i] = c[i] = nan32;
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                CHECK_M, CHECK_N, CHECK_K, 1.0f, a, lda, b, ldb, 0.0f, c, CHECK_N);
    cblas_dgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                CHECK_M, CHECK_N, CHECK_K, 1.0, da, lda, db, ldb, 0.0, dc, CHECK_N);
    for (int i = 0; i < CHECK_M; i++)
        for (int j = 0; j < CHECK_N; j++) {
            int want = 0;
            for (int p = 0; p < CHECK_K; p++)
                want += digit(i, p, 1) * digit(p, j, 4);
            if (c[i * CHECK_N + j] != (float)want || dc[i * CHECK_N + j] != (double)want)
                return 0;
        }
    return 1;
}

#define WARM    256
#define WARM_NS 1000000000 /* a thread that never comes costs a second, not a hang */

struct warm {
    int threads;
    atomic_int arrived[2];
    unsigned char *buf; /* [1 + threads][WARM * WARM] of fp64: one shared operand, one C each */
};

static void meet(atomic_int *arrived, int threads)
{
    int64_t until = mc_clock_ns() + WARM_NS;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < threads && mc_clock_ns() < until)
        sched_yield();
}

/* As many tasks as threads, and none leaves before all are in: each thread runs exactly one. I3 */
static void warm_task(void *arg, int task, int thread)
{
    struct warm *w = arg;
    size_t one = (size_t)WARM * WARM * sizeof(double);
    void *c = w->buf + one * (size_t)(1 + task);
    (void)thread;
    meet(&w->arrived[0], w->threads);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, WARM, WARM, WARM, 1.0f,
                (const float *)(const void *)w->buf, WARM, (const float *)(const void *)w->buf,
                WARM, 0.0f, c, WARM);
    meet(&w->arrived[1], w->threads);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, WARM, WARM, WARM, 1.0,
                (const double *)(const void *)w->buf, WARM, (const double *)(const void *)w->buf,
                WARM, 0.0, c, WARM);
}

/* OpenBLAS maps a packing buffer for each caller and, refused, asks again for ever. So the address
 * space for them is asked for once beforehand, where a refusal is an answer. */
#define BLAS_BUFFER ((size_t)128 << 20) /* the largest among x86-64 cores of 0.3.21 */

static mc_status room_for_buffers(int threads, struct mc_err *err)
{
    size_t bytes = BLAS_BUFFER * (size_t)threads;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return mc_err_set(err, MC_E_MACHINE,
                          "no address space for the packing buffers of OpenBLAS (%zu MiB for %d "
                          "threads); raise the limit (ulimit -v), or use fewer threads "
                          "(OMP_NUM_THREADS)",
                          bytes >> 20, threads);
    munmap(p, bytes);
    return MC_OK;
}

mc_status mc_gemm_cpu_start(struct mc_pool *pool, struct mc_err *err)
{
    MC_TRY(room_for_buffers(mc_pool_threads(pool), err));
    int flavour = openblas_get_parallel();
    if (flavour != 1) /* I2 */
        return mc_err_set(
            err, MC_E_MACHINE,
            "OpenBLAS is the %s flavour and the pthread flavour is needed; on Debian: "
            "apt-get install libopenblas0-pthread, then start again",
            flavour == 0 ? "serial" : "OpenMP");
    openblas_set_num_threads(1);
    for (int op = 0; op < 4; op++)
        if (!products_are_right(op)) /* I4 */
            return mc_err_set(err, MC_E_MACHINE,
                              "OpenBLAS (%s) computes wrong products on this CPU; install another "
                              "version, or set OPENBLAS_CORETYPE=Haswell before the start",
                              openblas_get_config());
    struct warm w = {.threads = mc_pool_threads(pool)};
    size_t bytes = (size_t)WARM * WARM * sizeof(double) * (size_t)(1 + w.threads);
    w.buf = mc_alloc(bytes, "BLAS warm-up");
    if (!w.buf)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the BLAS warm-up (%zu bytes)", bytes);
    mc_pool_run(pool, warm_task, &w, w.threads);
    mc_free(w.buf);
    return MC_OK;
}

/* Where large products are ours (cpu/gemm.inl), their chains of multiply-adds are part of the bits.
 */
static const char *products(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return " own products by 1536 bytes";
#endif
    return "";
}

/* "openblas 0.3.21 SkylakeX glibc 2.36 own products by 1536 bytes": the core name chooses BLAS's
 * kernels, the C library computes fp64 exp and log. */
void mc_gemm_cpu_fingerprint(char *dst, size_t cap)
{
    const char *config = openblas_get_config(); /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." */
    const char *at = strchr(config, ' ');
    const char *version = at ? at + 1 : config;
    int len = (int)strcspn(version, " ");
#ifdef __GLIBC__
    snprintf(dst, cap, "openblas %.*s %s glibc %s%s", len, version, openblas_get_corename(),
             gnu_get_libc_version(), products());
#else
    snprintf(dst, cap, "openblas %.*s %s%s", len, version, openblas_get_corename(), products());
#endif
}
