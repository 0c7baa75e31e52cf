/* optim.inl - AdamW on the flat master, sums in fp64, conversions. */
#define SUM_PARTS 256 /* partial sums on the caller's stack: 2 KiB */

/* m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
 * w = w - lr decay w - lr (m / bias1) / (sqrt(v / bias2) + eps).  Scalars in fp64, rounded once.
 * All four are `real`; `rounded` takes w as the kernels read it. */
HOT static void adamw_task(void *arg, int task, int thread)
{
    const struct mc_adamw *o = arg;
    int64_t i0 = (int64_t)task * TASK_ELEMS, n = min_i64(TASK_ELEMS, o->n - i0);
    real *w = (real *)o->w + i0, *m = (real *)o->m + i0, *v = (real *)o->v + i0;
    const real *g = (const real *)o->g + i0;
    stored *rounded = o->rounded ? (stored *)o->rounded + i0 : NULL;
    real gs = (real)o->gscale, b1 = (real)o->beta1, b2 = (real)o->beta2, eps = (real)o->eps;
    real a1 = (real)(1 - o->beta1), a2 = (real)(1 - o->beta2);
    real keep = (real)(1 - o->lr * o->decay), step = (real)(o->lr / o->bias1);
    real root = (real)(1 / sqrt(o->bias2));
    (void)thread;
    EACH for (int64_t i = 0; i < n; i++)
    {
        real gi = g[i] * gs;
        real mi = b1 * m[i] + a1 * gi;
        real vi = b2 * v[i] + a2 * (gi * gi);
        m[i] = mi;
        v[i] = vi;
        w[i] = w[i] * keep - step * mi / (sqrt_r(vi) * root + eps);
    }
    if (rounded) {
        EACH for (int64_t i = 0; i < n; i++) rounded[i] = nearest(w[i]);
    }
}

static void adamw(struct mc_pool *pool, const struct mc_adamw *o)
{
    run(pool, adamw_task, o, (int)((o->n + TASK_ELEMS - 1) / TASK_ELEMS));
}

/* -- Sums in fp64 ----------------------------------------------------------------------------- */

struct sum_job {
    const real *x;
    int64_t n, per; /* elements a part, a multiple of LANES */
    int squares;
    double part[SUM_PARTS];
};

HOT static void sum_task(void *arg, int task, int thread)
{
    struct sum_job *o = arg;
    const real *x = o->x + task * o->per;
    int64_t n = min_i64(o->per, o->n - task * o->per), i = 0;
    double a[LANES] = {0};
    (void)thread;
    if (o->squares) {
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++)
                a[j] += (double)x[i + j] * (double)x[i + j];
        for (int j = 0; i + j < n; j++)
            a[j] += (double)x[i + j] * (double)x[i + j];
    } else {
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++)
                a[j] += (double)x[i + j];
        for (int j = 0; i + j < n; j++)
            a[j] += (double)x[i + j];
    }
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            a[j] += a[j + w];
    o->part[task] = a[0];
}

static double sum_parts(struct mc_pool *pool, const void *x, int64_t n, int squares)
{
    struct sum_job job = {.x = x, .n = n, .squares = squares};
    int64_t per = (n + SUM_PARTS - 1) / SUM_PARTS;
    per = per < TASK_ELEMS ? TASK_ELEMS : (per + LANES - 1) / LANES * LANES;
    job.per = per;
    int parts = (int)((n + per - 1) / per);
    run(pool, sum_task, &job, parts);
    double s = 0;
    for (int p = 0; p < parts; p++)
        s += job.part[p];
    return s;
}

static double sum(struct mc_pool *pool, const void *x, int64_t n)
{
    return sum_parts(pool, x, n, 0);
}
static double sum_squares(struct mc_pool *pool, const void *x, int64_t n)
{
    return sum_parts(pool, x, n, 1);
}

/* -- Conversions: exact, or rounded to nearest even by the cast ------------------------------- */

HOT static void from_f32(void *dst, const float *src, int64_t n)
{
    stored *d = dst;
    EACH for (int64_t i = 0; i < n; i++) d[i] = nearest((real)src[i]);
}
HOT static void to_f32(float *dst, const void *src, int64_t n)
{
    const stored *s = src;
    EACH for (int64_t i = 0; i < n; i++) dst[i] = (float)val(s[i]);
}
