/* gemm.inl - C[M,N] = alpha op(A) op(B) (+ C) over the tiles of gemm_cpu.c's grid, one BLAS call a
 * tile; the bias is added while the tile is still in the cache. */
struct gemm_job {
    const struct mc_gemm *o;
    struct mc_gemm_grid g;
};

HOT static void bias_add(real *c, int64_t ldc, const real *bias, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++) {
        real *row = c + i * ldc;
        EACH for (int64_t j = 0; j < n; j++) row[j] += bias[j];
    }
}

/* One BLAS call; edges in elements, within int by the assert of gemm(). */
static void gemm_block(int ta, int tb, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
                       int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc)
{
    REAL_GEMM(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)m,
              (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* One row of C, what decoding asks for: BLAS packs all of B for a product, ten times the work of
 * the matrix-vector call. c is cleared here: BLAS versions differ on 0 times a NaN that is there.
 */
static void gemm_one_row(const struct mc_gemm *o, int64_t n, const real *b, real *c)
{
    if (!o->acc)
        memset(c, 0, (size_t)n * sizeof(real));
    REAL_GEMV(CblasRowMajor, o->tb ? CblasNoTrans : CblasTrans, (int)(o->tb ? n : o->k),
              (int)(o->tb ? o->k : n), (real)o->alpha, b, (int)o->ldb, (const real *)o->a,
              o->ta ? (int)o->lda : 1, 1, c, 1);
}

static void gemm_task(void *arg, int task, int thread)
{
    const struct gemm_job *job = arg;
    const struct mc_gemm *o = job->o;
    int64_t i0 = task / job->g.tiles_n * job->g.tile_m, j0 = task % job->g.tiles_n * job->g.tile_n;
    int64_t m = min_i64(job->g.tile_m, o->m - i0), n = min_i64(job->g.tile_n, o->n - j0);
    const real *a = (const real *)o->a + (o->ta ? i0 : i0 * o->lda);
    const real *b = (const real *)o->b + (o->tb ? j0 * o->ldb : j0);
    real *c = (real *)o->c + i0 * o->ldc + j0;
    (void)thread;
    if (o->m == 1)
        gemm_one_row(o, n, b, c);
    else
        gemm_block(o->ta, o->tb, m, n, o->k, (real)o->alpha, a, o->lda, b, o->ldb, o->acc ? 1 : 0,
                   c, o->ldc);
    if (o->bias)
        bias_add(c, o->ldc, (const real *)o->bias + j0, m, n);
}

static void gemm(struct mc_pool *pool, const struct mc_gemm *o)
{
    MC_ASSERT(o->m <= INT_MAX && o->n <= INT_MAX && o->k <= INT_MAX && o->lda <= INT_MAX &&
              o->ldb <= INT_MAX && o->ldc <= INT_MAX);
    if (o->m == 0 || o->n == 0)
        return;
    struct gemm_job job = {o, mc_gemm_cpu_grid(o->m, o->n, o->k)};
    run(pool, gemm_task, &job, (int)(job.g.tiles_m * job.g.tiles_n));
}
