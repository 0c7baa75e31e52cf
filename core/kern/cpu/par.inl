/* par.inl - cutting work into tasks by shape, and the fixed lanes of every sum.
 *
 * HOT compiles a task for several vector widths, chosen once at program start. The result is the
 * same for all: element-wise work is IEEE, and sums keep LANES partial sums by index modulo LANES,
 * folded as a tree, however wide the registers are. Sanitizers instrument the chooser before they
 * are ready, so they get the plain build. */
#if defined(HOT) /* the test that compares the widths brings its own */
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                           \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && defined(__OPTIMIZE__)
#define HOT __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HOT
#endif
#define INL static inline __attribute__((always_inline))

/* Before a loop: no iteration reads what another one writes (outputs may *be* an input). */
#if defined(__clang__) /* a loop that it declines to vectorise is slower, not wrong */
#pragma clang diagnostic ignored "-Wpass-failed"
#define EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define EACH _Pragma("GCC ivdep")
#endif

#define LANES      16
#define TASK_ELEMS 16384 /* elements a task: 64 KiB of fp32, a few microseconds */

/* What a value is in memory (stored) and what it is computed in (real): the same, but for bf16,
 * which is read exactly, computed in fp32 and rounded to nearest even once, where a kernel stores
 * its output. Statistics, tables, token losses and gradients of parameters are `real` in memory
 * too. */
#if STORED_IS_REAL
INL real val(stored x)
{
    return x;
}
INL stored nearest(real x)
{
    return x;
}
#else
INL real val(stored x)
{
    return mc_bf16_to_f32(x);
}
INL stored nearest(real x)
{
    return mc_bf16_from_f32(x);
}
#endif

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows a task of an [m, c] operand takes. */
static int64_t rows_per_task(int64_t c)
{
    return c >= TASK_ELEMS ? 1 : TASK_ELEMS / (c + !c);
}
static int row_tasks(int64_t m, int64_t c)
{
    int64_t per = rows_per_task(c);
    return (int)((m + per - 1) / per);
}

static void run(struct mc_pool *pool, mc_pool_fn fn, const void *arg, int tasks)
{
    if (tasks == 1)
        fn((void *)(uintptr_t)arg, 0, 0);
    else if (tasks > 1)
        mc_pool_run(pool, fn, (void *)(uintptr_t)arg, tasks);
}

/* -- Sums in fixed lanes ---------------------------------------------------------------------- */

INL real lanes_sum(real *a) /* a: [LANES], destroyed */
{
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            a[j] += a[j + w];
    return a[0];
}

INL real vec_sum(const stored *x, int64_t n)
{
    real a[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            a[j] += val(x[i + j]);
    for (int j = 0; i + j < n; j++)
        a[j] += val(x[i + j]);
    return lanes_sum(a);
}

INL real vec_dot(const stored *x, const stored *y, int64_t n)
{
    real a[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            a[j] += val(x[i + j]) * val(y[i + j]);
    for (int j = 0; i + j < n; j++)
        a[j] += val(x[i + j]) * val(y[i + j]);
    return lanes_sum(a);
}

INL real vec_dot3(const stored *x, const stored *y, const stored *z, int64_t n)
{
    real a[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            a[j] += val(x[i + j]) * val(y[i + j]) * val(z[i + j]);
    for (int j = 0; i + j < n; j++)
        a[j] += val(x[i + j]) * val(y[i + j]) * val(z[i + j]);
    return lanes_sum(a);
}

INL real vec_max(const stored *x, int64_t n) /* n >= 1; NaN elements are passed over */
{
    real a[LANES];
    int64_t i = 0;
    for (int j = 0; j < LANES; j++)
        a[j] = (real)-INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            a[j] = val(x[i + j]) > a[j] ? val(x[i + j]) : a[j];
    for (int j = 0; i + j < n; j++)
        a[j] = val(x[i + j]) > a[j] ? val(x[i + j]) : a[j];
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            a[j] = a[j + w] > a[j] ? a[j + w] : a[j];
    return a[0];
}
