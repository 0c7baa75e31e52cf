/* act.inl - element-wise work on [M, C]: activations, swiglu, add, dropout. Outputs may be inputs
 * where kern.h says so: element (r, j) of an output depends on element (r, j) of the inputs only.
 *
 * gelu's tanh form is written with the logistic function, (1 + tanh u) / 2 = s(2u): one exp, and no
 * cancellation where tanh is near -1; its exact form with erfc for the same reason. */
#define GELU_A   0.7978845608028654 /* sqrt(2 / pi) */
#define GELU_B   0.044715
#define RSQRT2   0.7071067811865476
#define RSQRT2PI 0.3989422804014327

INL real gelu_u2(real x) /* 2u */
{
    return (real)(2 * GELU_A) * x * ((real)1 + (real)GELU_B * x * x);
}
INL real gelu_f(real x)
{
    return x * sigmoid_r(gelu_u2(x));
}
INL real gelu_d(real x)
{
    real s = sigmoid_r(gelu_u2(x));
    real du2 = (real)(2 * GELU_A) * ((real)1 + (real)(3 * GELU_B) * x * x);
    return s + x * s * ((real)1 - s) * du2;
}
INL real gelu_erf_f(real x)
{
    return x * (real)0.5 * erfc_r(-x * (real)RSQRT2);
}
INL real gelu_erf_d(real x)
{
    return (real)0.5 * erfc_r(-x * (real)RSQRT2) + x * (real)RSQRT2PI * exp_r(x * x * (real)-0.5);
}
INL real silu_d(real x)
{
    real s = sigmoid_r(x);
    return s * ((real)1 + x * ((real)1 - s));
}

HOT static void unary_task(void *arg, int task, int thread)
{
    const struct mc_unary *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    real cap = (real)o->cap, inv = o->cap > 0 ? (real)(1 / o->cap) : (real)0;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + r * o->ldx;
        stored *y = (stored *)o->y + r * o->ldy;
        switch (o->kind) {
        case MC_UNARY_GELU:
            EACH for (int64_t j = 0; j < n; j++) y[j] = nearest(gelu_f(val(x[j])));
            break;
        case MC_UNARY_GELU_ERF:
            for (int64_t j = 0; j < n; j++)
                y[j] = nearest(gelu_erf_f(val(x[j])));
            break;
        case MC_UNARY_SILU:
            EACH for (int64_t j = 0; j < n; j++) y[j] = nearest(val(x[j]) * sigmoid_r(val(x[j])));
            break;
        case MC_UNARY_RELU: /* NaN passes */
            EACH for (int64_t j = 0; j < n; j++) y[j] =
                nearest(val(x[j]) < (real)0 ? (real)0 : val(x[j]));
            break;
        case MC_UNARY_RELU_SQUARED: /* NaN passes */
            EACH for (int64_t j = 0; j < n; j++) y[j] =
                nearest(val(x[j]) < (real)0 ? (real)0 : val(x[j]) * val(x[j]));
            break;
        case MC_UNARY_SOFTCAP:
            EACH for (int64_t j = 0; j < n; j++) y[j] = nearest(cap * tanh_r(val(x[j]) * inv));
            break;
        }
    }
}

static void unary(struct mc_pool *pool, const struct mc_unary *o)
{
    run(pool, unary_task, o, row_tasks(o->m, o->c));
}

HOT static void unary_bwd_task(void *arg, int task, int thread)
{
    const struct mc_unary *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    real inv = o->cap > 0 ? (real)(1 / o->cap) : (real)0;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + r * o->ldx,
                     *dy = (const stored *)o->dy + r * o->lddy;
        stored *dx = (stored *)o->dx + r * o->lddx;
        switch (o->kind) {
        case MC_UNARY_GELU:
            EACH for (int64_t j = 0; j < n; j++) dx[j] = nearest(val(dy[j]) * gelu_d(val(x[j])));
            break;
        case MC_UNARY_GELU_ERF:
            for (int64_t j = 0; j < n; j++)
                dx[j] = nearest(val(dy[j]) * gelu_erf_d(val(x[j])));
            break;
        case MC_UNARY_SILU:
            EACH for (int64_t j = 0; j < n; j++) dx[j] = nearest(val(dy[j]) * silu_d(val(x[j])));
            break;
        case MC_UNARY_RELU: /* 0 at 0 */
            EACH for (int64_t j = 0; j < n; j++) dx[j] =
                nearest(val(x[j]) > (real)0 ? val(dy[j]) : (real)0);
            break;
        case MC_UNARY_RELU_SQUARED:
            EACH for (int64_t j = 0; j < n; j++) dx[j] =
                nearest(val(x[j]) > (real)0 ? (real)2 * val(x[j]) * val(dy[j]) : (real)0);
            break;
        case MC_UNARY_SOFTCAP:
            EACH for (int64_t j = 0; j < n; j++)
            {
                real t = tanh_r(val(x[j]) * inv);
                dx[j] = nearest(val(dy[j]) * (((real)1 - t) * ((real)1 + t)));
            }
            break;
        }
    }
}

static void unary_bwd(struct mc_pool *pool, const struct mc_unary *o)
{
    run(pool, unary_bwd_task, o, row_tasks(o->m, o->c));
}

HOT static void swiglu_task(void *arg, int task, int thread)
{
    const struct mc_swiglu *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *g = (const stored *)o->g + r * o->ldg, *u = (const stored *)o->u + r * o->ldu;
        stored *y = (stored *)o->y + r * o->ldy;
        switch (o->gate) {
        case MC_GATE_SILU:
            EACH for (int64_t j = 0; j < n; j++) y[j] =
                nearest(val(g[j]) * sigmoid_r(val(g[j])) * val(u[j]));
            break;
        case MC_GATE_GELU:
            EACH for (int64_t j = 0; j < n; j++) y[j] = nearest(gelu_f(val(g[j])) * val(u[j]));
            break;
        case MC_GATE_GELU_ERF:
            for (int64_t j = 0; j < n; j++)
                y[j] = nearest(gelu_erf_f(val(g[j])) * val(u[j]));
            break;
        }
    }
}

static void swiglu(struct mc_pool *pool, const struct mc_swiglu *o)
{
    run(pool, swiglu_task, o, row_tasks(o->m, o->c));
}

HOT static void swiglu_bwd_task(void *arg, int task, int thread)
{
    const struct mc_swiglu *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *g = (const stored *)o->g + r * o->ldg, *u = (const stored *)o->u + r * o->ldu;
        const stored *dy = (const stored *)o->dy + r * o->lddy;
        stored *dg = (stored *)o->dg + r * o->lddg, *du = (stored *)o->du + r * o->lddu;
        switch (o->gate) {
        case MC_GATE_SILU:
            EACH for (int64_t j = 0; j < n; j++)
            {
                real x = val(g[j]), d = val(dy[j]), s = sigmoid_r(x);
                real dgj = d * val(u[j]) * (s * ((real)1 + x * ((real)1 - s)));
                du[j] = nearest(d * (x * s));
                dg[j] = nearest(dgj);
            }
            break;
        case MC_GATE_GELU:
            EACH for (int64_t j = 0; j < n; j++)
            {
                real x = val(g[j]), d = val(dy[j]), dgj = d * val(u[j]) * gelu_d(x);
                du[j] = nearest(d * gelu_f(x));
                dg[j] = nearest(dgj);
            }
            break;
        case MC_GATE_GELU_ERF:
            for (int64_t j = 0; j < n; j++) {
                real x = val(g[j]), d = val(dy[j]), dgj = d * val(u[j]) * gelu_erf_d(x);
                du[j] = nearest(d * gelu_erf_f(x));
                dg[j] = nearest(dgj);
            }
            break;
        }
    }
}

static void swiglu_bwd(struct mc_pool *pool, const struct mc_swiglu *o)
{
    run(pool, swiglu_bwd_task, o, row_tasks(o->m, o->c));
}

HOT static void add_task(void *arg, int task, int thread)
{
    const struct mc_add *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    real ax = (real)o->ax, ay = (real)o->ay;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + r * o->ldx, *y = (const stored *)o->y + r * o->ldy;
        stored *z = (stored *)o->z + r * o->ldz;
        if (ax == (real)1 && ay == (real)1) {
            EACH for (int64_t j = 0; j < n; j++) z[j] = nearest(val(x[j]) + val(y[j]));
        } else if (ax == (real)1 && ay == (real)0) { /* a copy: also of what is not finite */
            EACH for (int64_t j = 0; j < n; j++) z[j] = x[j];
        } else {
            EACH for (int64_t j = 0; j < n; j++) z[j] = nearest(ax * val(x[j]) + ay * val(y[j]));
        }
    }
}

static void add(struct mc_pool *pool, const struct mc_add *o)
{
    run(pool, add_task, o, row_tasks(o->m, o->c));
}

/* -- Dropout ---------------------------------------------------------------------------------- */

/* The word of element e = first + row C + j: word e % 4 of Philox under counter
 * { (e / 4) lo, (e / 4) hi, step lo, step hi } and key { key lo, key hi }. Four elements a block.
 *
 * The rounds are those of mc_philox4x32, written out over PHILOX_RUN consecutive blocks, so that
 * they vectorise: it is an integer function, so there is nothing to differ (a test asks both). */
#define PHILOX_RUN 64 /* blocks: 256 elements */

INL void philox_run(const struct mc_dropout *o, uint64_t block, uint32_t *out) /* [RUN * 4] */
{
    uint32_t c0[PHILOX_RUN], c1[PHILOX_RUN], c2[PHILOX_RUN], c3[PHILOX_RUN];
    uint32_t k0 = (uint32_t)o->key, k1 = (uint32_t)(o->key >> 32);
    for (int i = 0; i < PHILOX_RUN; i++) {
        c0[i] = (uint32_t)(block + (uint64_t)i);
        c1[i] = (uint32_t)((block + (uint64_t)i) >> 32);
        c2[i] = (uint32_t)o->step;
        c3[i] = (uint32_t)(o->step >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < PHILOX_RUN; i++) {
            uint64_t p0 = (uint64_t)c0[i] * 0xD2511F53u, p1 = (uint64_t)c2[i] * 0xCD9E8D57u;
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < PHILOX_RUN; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

HOT static void dropout_task(void *arg, int task, int thread)
{
    const struct mc_dropout *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    uint64_t limit = (uint64_t)(o->p * 4294967296.0); /* p in 2^-32: an integer compare */
    real scale = (real)(1 / (1 - o->p));
    uint32_t word[4 * PHILOX_RUN];
    uint64_t have = 0; /* word holds elements have .. have + 4 RUN - 1, once `full` */
    int full = 0;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + r * o->ldx;
        stored *y = (stored *)o->y + r * o->ldy;
        uint64_t width = (uint64_t)(o->width ? o->width : n);
        uint64_t e = o->first + (uint64_t)(o->row ? o->row[r] : r) * width + (uint64_t)o->col0;
        for (int64_t j = 0; j < n;) {
            if (!full || e < have || e - have >= 4 * PHILOX_RUN) {
                have = e / 4 * 4;
                philox_run(o, e / 4, word);
                full = 1;
            }
            int64_t at = (int64_t)(e - have), len = min_i64(n - j, 4 * PHILOX_RUN - at);
            EACH for (int64_t i = 0; i < len; i++) y[j + i] =
                nearest(word[at + i] >= limit ? val(x[j + i]) * scale : (real)0);
            j += len;
            e += (uint64_t)len;
        }
    }
}

static void dropout(struct mc_pool *pool, const struct mc_dropout *o)
{
    run(pool, dropout_task, o, row_tasks(o->m, o->c));
}
