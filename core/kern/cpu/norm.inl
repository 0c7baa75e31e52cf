/* norm.inl - rmsnorm, layernorm, their backwards, and the sums over rows (weights, biases).
 *
 * Sums over rows go through partial sums of fixed parts of the rows, added in part order: a part
 * reads whole rows, so memory is read once and in order. Shapes: x, y, dx, dy [M, C]; w, b, dw, db
 * [C]; rstd, mean [M]; scratch [parts, C] (twice for layernorm: dw then db). */
#define PART_ROWS 64 /* at least */
#define PARTS_MAX 16

static int64_t part_rows(int64_t m)
{
    int64_t r = (m + PARTS_MAX - 1) / PARTS_MAX;
    return r < PART_ROWS ? PART_ROWS : r;
}
static int64_t parts_of(int64_t m)
{
    return (m + part_rows(m) - 1) / part_rows(m);
}

/* Vectors that rmsnorm norms: rows, or heads of rows. Vector v of a matrix with row stride ld. */
static int64_t norm_vectors(int64_t m, int64_t heads)
{
    return heads > 1 ? m * heads : m;
}
INL int64_t vector_at(int64_t v, int64_t heads, int64_t ld, int64_t n)
{
    return heads > 1 ? v / heads * ld + v % heads * n : v * ld;
}

HOT static void rmsnorm_task(void *arg, int task, int thread)
{
    const struct mc_norm *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n);
    int64_t r1 = min_i64(r0 + rows_per_task(n), norm_vectors(o->m, o->heads));
    const stored *w = o->w;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + vector_at(r, o->heads, o->ldx, n);
        stored *y = (stored *)o->y + vector_at(r, o->heads, o->ldy, n);
        real s = (real)1 / sqrt_r(vec_dot(x, x, n) / (real)n + (real)o->eps);
        if (o->unit) {
            EACH for (int64_t j = 0; j < n; j++) y[j] =
                nearest(val(x[j]) * s * ((real)1 + val(w[j])));
        } else {
            EACH for (int64_t j = 0; j < n; j++) y[j] = nearest(val(x[j]) * s * val(w[j]));
        }
        ((real *)o->rstd)[r] = s;
    }
}

static void rmsnorm(struct mc_pool *pool, const struct mc_norm *o)
{
    run(pool, rmsnorm_task, o, row_tasks(norm_vectors(o->m, o->heads), o->c));
}

INL real centred_squares(const stored *x, real mean, int64_t n)
{
    real a[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            a[j] += (val(x[i + j]) - mean) * (val(x[i + j]) - mean);
    for (int j = 0; i + j < n; j++)
        a[j] += (val(x[i + j]) - mean) * (val(x[i + j]) - mean);
    return lanes_sum(a);
}

HOT static void layernorm_task(void *arg, int task, int thread)
{
    const struct mc_norm *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    const stored *w = o->w, *b = o->b;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + r * o->ldx;
        stored *y = (stored *)o->y + r * o->ldy;
        real mean = vec_sum(x, n) / (real)n;
        real s = (real)1 / sqrt_r(centred_squares(x, mean, n) / (real)n + (real)o->eps);
        if (b) {
            EACH for (int64_t j = 0; j < n; j++) y[j] =
                nearest((val(x[j]) - mean) * s * val(w[j]) + val(b[j]));
        } else {
            EACH for (int64_t j = 0; j < n; j++) y[j] = nearest((val(x[j]) - mean) * s * val(w[j]));
        }
        ((real *)o->rstd)[r] = s;
        ((real *)o->mean)[r] = mean;
    }
}

static void layernorm(struct mc_pool *pool, const struct mc_norm *o)
{
    run(pool, layernorm_task, o, row_tasks(o->m, o->c));
}

/* With g = dy w (unit: dy (1 + w)) and h = x rstd:  dx = rstd (g - h mean(g h)). */
HOT static void rmsnorm_bwd_input_task(void *arg, int task, int thread)
{
    const struct mc_norm_grad *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n);
    int64_t r1 = min_i64(r0 + rows_per_task(n), norm_vectors(o->m, o->heads));
    const stored *w = o->w;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + vector_at(r, o->heads, o->ldx, n);
        const stored *dy = (const stored *)o->dy + vector_at(r, o->heads, o->lddy, n);
        stored *dx = (stored *)o->dx + vector_at(r, o->heads, o->lddx, n);
        real s = ((const real *)o->rstd)[r];
        if (o->unit) {
            real u = (vec_dot3(dy, w, x, n) + vec_dot(dy, x, n)) * s * s / (real)n;
            if (!o->acc_dx)
                memset(dx, 0, (size_t)n * sizeof(stored));
            EACH for (int64_t j = 0; j < n; j++) dx[j] =
                nearest(val(dx[j]) + s * (val(dy[j]) * ((real)1 + val(w[j])) - val(x[j]) * u));
            continue;
        }
        real k = vec_dot3(dy, w, x, n) * s * s / (real)n;
        if (o->acc_dx) {
            EACH for (int64_t j = 0; j < n; j++) dx[j] =
                nearest(val(dx[j]) + s * (val(dy[j]) * val(w[j]) - val(x[j]) * k));
        } else {
            EACH for (int64_t j = 0; j < n; j++) dx[j] =
                nearest(s * (val(dy[j]) * val(w[j]) - val(x[j]) * k));
        }
    }
}

static void rmsnorm_bwd_input(struct mc_pool *pool, const struct mc_norm_grad *o)
{
    run(pool, rmsnorm_bwd_input_task, o, row_tasks(norm_vectors(o->m, o->heads), o->c));
}

/* sum of dy w (x - mean) */
INL real centred_dot(const stored *dy, const stored *w, const stored *x, real mean, int64_t n)
{
    real a[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            a[j] += val(dy[i + j]) * val(w[i + j]) * (val(x[i + j]) - mean);
    for (int j = 0; i + j < n; j++)
        a[j] += val(dy[i + j]) * val(w[i + j]) * (val(x[i + j]) - mean);
    return lanes_sum(a);
}

/* With g = dy w and h = (x - mean) rstd:  dx = rstd (g - mean(g) - h mean(g h)). */
HOT static void layernorm_bwd_input_task(void *arg, int task, int thread)
{
    const struct mc_norm_grad *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    const stored *w = o->w;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + r * o->ldx,
                     *dy = (const stored *)o->dy + r * o->lddy;
        stored *dx = (stored *)o->dx + r * o->lddx;
        real s = ((const real *)o->rstd)[r], mean = ((const real *)o->mean)[r];
        real gm = vec_dot(dy, w, n) / (real)n;
        real k = centred_dot(dy, w, x, mean, n) * s * s / (real)n;
        if (o->acc_dx) {
            EACH for (int64_t j = 0; j < n; j++) dx[j] =
                nearest(val(dx[j]) + s * (val(dy[j]) * val(w[j]) - gm - (val(x[j]) - mean) * k));
        } else {
            EACH for (int64_t j = 0; j < n; j++) dx[j] =
                nearest(s * (val(dy[j]) * val(w[j]) - gm - (val(x[j]) - mean) * k));
        }
    }
}

static void layernorm_bwd_input(struct mc_pool *pool, const struct mc_norm_grad *o)
{
    run(pool, layernorm_bwd_input_task, o, row_tasks(o->m, o->c));
}

/* -- Sums over rows --------------------------------------------------------------------------- */

/* sum[c] += part 0, part 1, ... of parts [parts, C] */
HOT static void fold_parts(real *sum, const real *parts, int64_t count, int64_t n)
{
    for (int64_t p = 0; p < count; p++) {
        const real *part = parts + p * n;
        EACH for (int64_t j = 0; j < n; j++) sum[j] += part[j];
    }
}

HOT static void rmsnorm_bwd_weight_task(void *arg, int task, int thread)
{
    const struct mc_norm_grad *o = arg;
    int64_t n = o->c, m = norm_vectors(o->m, o->heads);
    int64_t r0 = task * part_rows(m), r1 = min_i64(r0 + part_rows(m), m);
    real *dw = (real *)o->scratch + task * n;
    (void)thread;
    memset(dw, 0, (size_t)n * sizeof(real));
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + vector_at(r, o->heads, o->ldx, n);
        const stored *dy = (const stored *)o->dy + vector_at(r, o->heads, o->lddy, n);
        real s = ((const real *)o->rstd)[r];
        EACH for (int64_t j = 0; j < n; j++) dw[j] += val(dy[j]) * (val(x[j]) * s);
    }
}

static void rmsnorm_bwd_weight(struct mc_pool *pool, const struct mc_norm_grad *o)
{
    int64_t parts = parts_of(norm_vectors(o->m, o->heads));
    run(pool, rmsnorm_bwd_weight_task, o, (int)parts);
    fold_parts(o->dw, o->scratch, parts, o->c);
}

HOT static void layernorm_bwd_weight_task(void *arg, int task, int thread)
{
    const struct mc_norm_grad *o = arg;
    int64_t n = o->c, r0 = task * part_rows(o->m), r1 = min_i64(r0 + part_rows(o->m), o->m);
    real *dw = (real *)o->scratch + task * n, *db = dw + parts_of(o->m) * n;
    (void)thread;
    memset(dw, 0, (size_t)n * sizeof(real));
    memset(db, 0, (size_t)n * sizeof(real));
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + r * o->ldx,
                     *dy = (const stored *)o->dy + r * o->lddy;
        real s = ((const real *)o->rstd)[r], mean = ((const real *)o->mean)[r];
        EACH for (int64_t j = 0; j < n; j++)
        {
            dw[j] += val(dy[j]) * ((val(x[j]) - mean) * s);
            db[j] += val(dy[j]);
        }
    }
}

static void layernorm_bwd_weight(struct mc_pool *pool, const struct mc_norm_grad *o)
{
    int64_t parts = parts_of(o->m);
    run(pool, layernorm_bwd_weight_task, o, (int)parts);
    fold_parts(o->dw, o->scratch, parts, o->c);
    if (o->db)
        fold_parts(o->db, (const real *)o->scratch + parts * o->c, parts, o->c);
}

struct bias_job {
    int64_t m, n;
    const stored *dy;
    int64_t lddy;
    real *parts; /* [parts, N] */
};

HOT static void bias_bwd_task(void *arg, int task, int thread)
{
    const struct bias_job *o = arg;
    int64_t n = o->n, r0 = task * part_rows(o->m), r1 = min_i64(r0 + part_rows(o->m), o->m);
    real *db = o->parts + task * n;
    (void)thread;
    memset(db, 0, (size_t)n * sizeof(real));
    for (int64_t r = r0; r < r1; r++) {
        const stored *dy = o->dy + r * o->lddy;
        EACH for (int64_t j = 0; j < n; j++) db[j] += val(dy[j]);
    }
}

static void bias_bwd(struct mc_pool *pool, int64_t m, int64_t n, const void *dy, int64_t lddy,
                     void *db, void *scratch)
{
    struct bias_job job = {m, n, dy, lddy, scratch};
    run(pool, bias_bwd_task, &job, (int)parts_of(m));
    fold_parts(db, scratch, parts_of(m), n);
}

static size_t norm_scratch(int64_t m, int64_t c)
{
    return (size_t)(2 * parts_of(m) * c) * sizeof(real);
}
static size_t bias_scratch(int64_t m, int64_t n)
{
    return (size_t)(parts_of(m) * n) * sizeof(real);
}
