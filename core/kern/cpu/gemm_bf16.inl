/* gemm_bf16.inl - C[M,N] = alpha op(A) op(B) (+ C) of bf16 operands, over the tiles of gemm_cpu.c's
 * grid: blocks of both are widened to fp32 while they are brought into the cache, and multiplied
 * there by gemm.inl's fp32 block.
 *
 * I1  A sum runs over all of K in fp32, K ascending in blocks of WIDE_K; then alpha, C and the bias
 *     have entered it, and it is rounded once. A wide C is fp32 in memory and never rounded.
 * I2  The blocks lie on the stack of the thread: 320 KiB. */
#define WIDE_M 128
#define WIDE_N 128
#define WIDE_K 256

struct wide_blocks {
    real a[WIDE_M * WIDE_K], b[WIDE_K * WIDE_N], c[WIDE_M * WIDE_N];
};

/* to [rows, cols] packed. */
HOT static void widen(real *to, const stored *x, int64_t ldx, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        const stored *from = x + i * ldx;
        real *row = to + i * cols;
        EACH for (int64_t j = 0; j < cols; j++) row[j] = val(from[j]);
    }
}

/* y = round(x (+ y) (+ bias)), x [rows, cols] packed. */
HOT static void narrow(stored *y, int64_t ldy, const real *x, int64_t rows, int64_t cols, int acc,
                       const stored *bias)
{
    for (int64_t i = 0; i < rows; i++) {
        const real *from = x + i * cols;
        stored *row = y + i * ldy;
        if (acc) {
            EACH for (int64_t j = 0; j < cols; j++) row[j] = nearest(val(row[j]) + from[j]);
        } else if (bias) {
            EACH for (int64_t j = 0; j < cols; j++) row[j] = nearest(from[j] + val(bias[j]));
        } else {
            EACH for (int64_t j = 0; j < cols; j++) row[j] = nearest(from[j]);
        }
    }
}

struct gemm_job {
    const struct mc_gemm *o;
    struct mc_gemm_grid g;
};

/* Rows i0 .. and columns j0 .. of C, [m, n], within one block. */
static void gemm_wide(const struct mc_gemm *o, int64_t i0, int64_t j0, int64_t m, int64_t n,
                      struct wide_blocks *w)
{
    const stored *a = (const stored *)o->a + (o->ta ? i0 : i0 * o->lda);
    const stored *b = (const stored *)o->b + (o->tb ? j0 * o->ldb : j0);
    real *c = o->wide ? (real *)o->c + i0 * o->ldc + j0 : w->c;
    int64_t ldc = o->wide ? o->ldc : n, p = 0;
    do { /* once even if K = 0. I1 */
        int64_t k = min_i64(WIDE_K, o->k - p);
        widen(w->a, a + (o->ta ? p * o->lda : p), o->lda, o->ta ? k : m, o->ta ? m : k);
        widen(w->b, b + (o->tb ? p : p * o->ldb), o->ldb, o->tb ? n : k, o->tb ? k : n);
        gemm_block(o->ta, o->tb, m, n, k, (real)o->alpha, w->a, o->ta ? m : k, w->b, o->tb ? k : n,
                   p > 0 || (o->wide && o->acc), c, ldc);
        p += k;
    } while (p < o->k);
    if (!o->wide)
        narrow((stored *)o->c + i0 * o->ldc + j0, o->ldc, w->c, m, n, o->acc,
               o->bias ? (const stored *)o->bias + j0 : NULL);
}

static void gemm_task(void *arg, int task, int thread)
{
    const struct gemm_job *job = arg;
    const struct mc_gemm *o = job->o;
    int64_t i0 = task / job->g.tiles_n * job->g.tile_m, j0 = task % job->g.tiles_n * job->g.tile_n;
    int64_t i1 = min_i64(i0 + job->g.tile_m, o->m), j1 = min_i64(j0 + job->g.tile_n, o->n);
    struct wide_blocks w; /* I2 */
    (void)thread;
    for (int64_t i = i0; i < i1; i += WIDE_M)
        for (int64_t j = j0; j < j1; j += WIDE_N)
            gemm_wide(o, i, j, min_i64(WIDE_M, i1 - i), min_i64(WIDE_N, j1 - j), &w);
}

static void gemm(struct mc_pool *pool, const struct mc_gemm *o)
{
    MC_ASSERT(!(o->wide && o->bias));
    if (o->m == 0 || o->n == 0)
        return;
    struct gemm_job job = {o, mc_gemm_cpu_grid(o->m, o->n, o->k)};
    run(pool, gemm_task, &job, (int)(job.g.tiles_m * job.g.tiles_n));
}
