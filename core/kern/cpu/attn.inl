/* attn.inl - attention that never stores T x T.
 *
 * A block is BQ query rows against up to BK keys: scores [BQ, BK] live in the thread's scratch, and
 * both products are one call. Forward walks the keys once with a running maximum m and sum l
 * per row (a new maximum rescales what the row has so far); backward gets the probabilities again
 * from lse. The blocks follow from the shape alone.
 *
 * I1  Keys that a row may not see have probability exactly 0. Those before its first key, and those
 *     that only fill the row's last LANES, get score -inf instead of loops of their own.
 * I2  One task owns a kv head: it adds dk and dv over its query heads, and over query blocks,
 *     ascending.
 * I3  The first product on an output row overwrites (beta 0), later ones add.
 * I4  A block's keys begin at the first one that its first row sees (the first keys of rows do not
 *     fall), rounded down to LANES; what a window or an earlier document hides is not computed.
 * Shapes: q, o, d_o, dq rows [B*T, heads*D]; k, v, dk, dv rows [B*T, kv_heads*D]; lse [B, heads,
 * T]; scratch [threads, 2, BQ, BK]. */
#define BQ 64
#define BK 256 /* a multiple of BQ: a block's first key is never after its first query */

static size_t attn_scratch(int64_t b, int64_t t, int64_t heads, int64_t kv_heads, int64_t d,
                           int threads)
{
    (void)b, (void)t, (void)heads, (void)kv_heads, (void)d;
    return (size_t)threads * 2 * BQ * BK * sizeof(real);
}

/* How many of the keys j0 .. j0+nk-1 the query at position pos may not look beyond. */
INL int64_t visible(int causal, int64_t pos, int64_t j0, int64_t nk)
{
    int64_t n = causal ? pos + 1 - j0 : nk;
    return n < 0 ? 0 : n > nk ? nk : n;
}

/* The first key that the query at position pos sees; start: of its row, or NULL. */
INL int64_t first_key(const struct mc_attn_mask *m, const int32_t *start, int64_t pos)
{
    int64_t w = m->window > 0 && pos >= m->window ? pos - m->window + 1 : 0;
    return start && *start > w ? *start : w;
}

/* Keys before the row's first one, of j0 .. : their scores to -inf; n of the block are visible.
 * Returns how many they are. */
INL int64_t hide_before(real *s, int64_t first, int64_t j0, int64_t n)
{
    int64_t hidden = first - j0 < 0 ? 0 : min_i64(first - j0, n);
    for (int64_t j = 0; j < hidden; j++)
        s[j] = (real)-INFINITY;
    return hidden;
}

HOT static void cap_scores(real *s, int64_t n, real cap)
{
    real inv = (real)1 / cap;
    EACH for (int64_t j = 0; j < n; j++) s[j] = cap * tanh_r(s[j] * inv);
}

/* Scores s[n..] up to a multiple of LANES, within nk, to -inf; returns where that is. */
INL int64_t fill_lanes(real *s, int64_t n, int64_t nk)
{
    int64_t full = min_i64((n + LANES - 1) / LANES * LANES, nk);
    for (int64_t j = n; j < full; j++)
        s[j] = (real)-INFINITY;
    return full;
}

struct attn_block { /* nq query rows of one head, first at position pos, against all its keys */
    int64_t nq, pos, keys, d;
    int causal;
    const struct mc_attn_mask *mask;
    const int32_t *start; /* [nq] or NULL */
    int64_t from;         /* first block's first key I4 */
    double scale;
    const real *q, *k, *v;
    int64_t ldq, ldk, ldv;
    real *o;
    int64_t ldo;
    real *s;    /* [BQ, BK] scratch */
    real m[BQ]; /* running maximum */
    real l[BQ]; /* running sum of exp(score - m) */
};

/* Scores [nq, nk] of keys j0.. to probabilities relative to the running maximum, in place. */
HOT static void softmax_block(struct attn_block *a, int64_t j0, int64_t nk)
{
    for (int64_t i = 0; i < a->nq; i++) {
        real *s = a->s + i * nk, *o = a->o + i * a->ldo;
        int64_t n = visible(a->causal, a->pos + i, j0, nk), full = fill_lanes(s, n, nk);
        int64_t first = first_key(a->mask, a->start ? a->start + i : NULL, a->pos + i);
        if (hide_before(s, first, j0, n) == n && n > 0) { /* nothing here for this row */
            memset(s, 0, (size_t)nk * sizeof(real));
            continue;
        }
        real top = n > 0 ? vec_max(s, full) : (real)-INFINITY;
        if (top <= a->m[i])
            top = a->m[i];
        else if (j0 > a->from) {
            real fade = exp_r(a->m[i] - top);
            a->l[i] *= fade;
            EACH for (int64_t j = 0; j < a->d; j++) o[j] *= fade;
        }
        EACH for (int64_t j = 0; j < full; j++) s[j] = exp_r(s[j] - top); /* I1 */
        for (int64_t j = full; j < nk; j++)
            s[j] = 0;
        a->m[i] = top;
        a->l[i] += vec_sum(s, full);
    }
}

HOT static void finish_block(struct attn_block *a, real *lse)
{
    for (int64_t i = 0; i < a->nq; i++) {
        real *o = a->o + i * a->ldo, f = (real)1 / a->l[i];
        EACH for (int64_t j = 0; j < a->d; j++) o[j] *= f;
        if (lse)
            lse[i] = a->m[i] + log_r(a->l[i]);
    }
}

static void attn_forward_block(struct attn_block *a, real *lse)
{
    int64_t end = a->causal ? min_i64(a->pos + a->nq, a->keys) : a->keys;
    for (int64_t i = 0; i < a->nq; i++) {
        a->m[i] = (real)-INFINITY;
        a->l[i] = 0;
    }
    a->from = first_key(a->mask, a->start, a->pos) / LANES * LANES;
    for (int64_t j0 = a->from; j0 < end; j0 += BK) {
        int64_t nk = min_i64(BK, end - j0);
        gemm_block(0, 1, a->nq, nk, a->d, (real)a->scale, a->q, a->ldq, a->k + j0 * a->ldk, a->ldk,
                   0, a->s, nk);
        if (a->mask->cap > 0)
            cap_scores(a->s, a->nq * nk, (real)a->mask->cap);
        softmax_block(a, j0, nk);
        gemm_block(0, 0, a->nq, a->d, nk, 1, a->s, nk, a->v + j0 * a->ldv, a->ldv,
                   j0 > a->from ? 1 : 0, a->o, a->ldo); /* I3 */
    }
    finish_block(a, lse);
}

static void attn_task(void *arg, int task, int thread)
{
    const struct mc_attn *f = arg;
    int64_t blocks = (f->t + BQ - 1) / BQ, seq = task / blocks / f->heads;
    int64_t h = task / blocks % f->heads, kv = h / (f->heads / f->kv_heads);
    int64_t q0 = (blocks - 1 - task % blocks) * BQ; /* the longest first: threads end together */
    int64_t row = seq * f->t + q0, key = seq * f->t;
    struct attn_block a;
    a.nq = min_i64(BQ, f->t - q0);
    a.pos = q0;
    a.keys = f->t;
    a.d = f->d;
    a.causal = f->causal;
    a.mask = &f->mask;
    a.start = f->mask.start ? f->mask.start + row : NULL;
    a.scale = f->scale;
    a.ldq = f->ldq;
    a.ldk = f->ldk;
    a.ldv = f->ldv;
    a.ldo = f->ldo;
    a.q = (const real *)f->q + row * f->ldq + h * f->d;
    a.k = (const real *)f->k + key * f->ldk + kv * f->d;
    a.v = (const real *)f->v + key * f->ldv + kv * f->d;
    a.o = (real *)f->o + row * f->ldo + h * f->d;
    a.s = (real *)f->scratch + (int64_t)thread * 2 * BQ * BK;
    attn_forward_block(&a, (real *)f->lse + (seq * f->heads + h) * f->t + q0);
}

static void attn(struct mc_pool *pool, const struct mc_attn *f)
{
    run(pool, attn_task, f, (int)(f->b * f->heads * ((f->t + BQ - 1) / BQ)));
}

/* -- With a cache ----------------------------------------------------------------------------- */

static void attn_cached_task(void *arg, int task, int thread)
{
    const struct mc_attn_cached *f = arg;
    int64_t blocks = (f->t + BQ - 1) / BQ, h = task / blocks, q0 = task % blocks * BQ;
    int64_t kv = h / (f->heads / f->kv_heads);
    struct attn_block a;
    a.nq = min_i64(BQ, f->t - q0);
    a.pos = f->pos0 + q0;
    a.keys = f->pos0 + f->t;
    a.d = f->d;
    a.causal = 1;
    a.mask = &f->mask;
    a.start = f->mask.start ? f->mask.start + q0 : NULL;
    a.scale = f->scale;
    a.ldq = f->ldq;
    a.ldk = f->ldc;
    a.ldv = f->ldc;
    a.ldo = f->ldo;
    a.q = (const real *)f->q + q0 * f->ldq + h * f->d;
    a.k = (const real *)f->kc + kv * f->d;
    a.v = (const real *)f->vc + kv * f->d;
    a.o = (real *)f->o + q0 * f->ldo + h * f->d;
    a.s = (real *)f->scratch + (int64_t)thread * 2 * BQ * BK;
    attn_forward_block(&a, NULL);
}

static void attn_cached(struct mc_pool *pool, const struct mc_attn_cached *f)
{
    run(pool, attn_cached_task, f, (int)(f->heads * ((f->t + BQ - 1) / BQ)));
}

/* -- Backward --------------------------------------------------------------------------------- */

struct attn_grad_block { /* nq query rows of one head against nk keys */
    int64_t nq, nk, pos, j0;
    int causal;
    const struct mc_attn_mask *mask;
    const int32_t *start; /* [nq] or NULL */
    real scale;
    const real *lse;   /* [nq] */
    const real *delta; /* [nq] sum over D of d_o o */
    real *p, *dp;      /* [nq, nk]: scores in, probabilities out; dP in, dS out */
};

/* P = exp(s - lse);  dS = P (dP - delta) scale, of capped scores times 1 - (s / cap)^2. Both 0
 * where the row may not look. I1 */
HOT static void softmax_bwd_block(const struct attn_grad_block *a)
{
    real inv = a->mask->cap > 0 ? (real)1 / (real)a->mask->cap : (real)0;
    for (int64_t i = 0; i < a->nq; i++) {
        real *p = a->p + i * a->nk, *dp = a->dp + i * a->nk;
        real lse = a->lse[i], delta = a->delta[i], scale = a->scale;
        int64_t n = visible(a->causal, a->pos + i, a->j0, a->nk);
        int64_t full = fill_lanes(p, n, a->nk);
        int64_t first = first_key(a->mask, a->start ? a->start + i : NULL, a->pos + i);
        int64_t hidden = hide_before(p, first, a->j0, n);
        if (a->mask->cap > 0) {
            EACH for (int64_t j = 0; j < full; j++)
            {
                real t = p[j] * inv, pj = exp_r(p[j] - lse);
                p[j] = pj;
                dp[j] = pj * (dp[j] - delta) * scale * (((real)1 - t) * ((real)1 + t));
            }
        } else {
            EACH for (int64_t j = 0; j < full; j++)
            {
                real pj = exp_r(p[j] - lse);
                p[j] = pj;
                dp[j] = pj * (dp[j] - delta) * scale;
            }
        }
        for (int64_t j = 0; j < hidden; j++)
            dp[j] = 0; /* not the NaN that -inf made */
        for (int64_t j = n; j < a->nk; j++)
            p[j] = dp[j] = 0;
    }
}

HOT static void attn_deltas(real *delta, const real *o, int64_t ldo, const real *d_o, int64_t lddo,
                            int64_t nq, int64_t d)
{
    for (int64_t i = 0; i < nq; i++)
        delta[i] = vec_dot(o + i * ldo, d_o + i * lddo, d);
}

/* Query rows q0.. of head h in sequence seq: dq of these rows, and their part of dk and dv. */
static void attn_bwd_rows(const struct mc_attn_grad *g, int64_t seq, int64_t h, int64_t q0,
                          real *scratch)
{
    const struct mc_attn *f = &g->f;
    int64_t kv = h / (f->heads / f->kv_heads), d = f->d, key = seq * f->t, row = key + q0;
    int64_t nq = min_i64(BQ, f->t - q0), end = f->causal ? q0 + nq : f->t;
    const real *q = (const real *)f->q + row * f->ldq + h * d;
    const real *d_o = (const real *)g->d_o + row * g->lddo + h * d;
    real *dq = (real *)g->dq + row * g->lddq + h * d;
    real delta[BQ];
    attn_deltas(delta, (const real *)f->o + row * f->ldo + h * d, f->ldo, d_o, g->lddo, nq, d);
    struct attn_grad_block a = {.nq = nq, .pos = q0, .causal = f->causal, .mask = &f->mask};
    a.scale = (real)f->scale;
    a.lse = (const real *)f->lse + (seq * f->heads + h) * f->t + q0;
    a.delta = delta;
    a.p = scratch;
    a.dp = scratch + BQ * BK;
    a.start = f->mask.start ? f->mask.start + row : NULL;
    int64_t from = first_key(a.mask, a.start, q0) / LANES * LANES; /* I4 */
    for (int64_t j0 = from; j0 < end; j0 += BK) {
        int64_t nk = a.nk = min_i64(BK, end - j0);
        const real *k = (const real *)f->k + (key + j0) * f->ldk + kv * d;
        const real *v = (const real *)f->v + (key + j0) * f->ldv + kv * d;
        real *dk = (real *)g->dk + (key + j0) * g->lddk + kv * d;
        real *dv = (real *)g->dv + (key + j0) * g->lddv + kv * d;
        a.j0 = j0;
        gemm_block(0, 1, nq, nk, d, a.scale, q, f->ldq, k, f->ldk, 0, a.p, nk);
        gemm_block(0, 1, nq, nk, d, 1, d_o, g->lddo, v, f->ldv, 0, a.dp, nk);
        if (f->mask.cap > 0)
            cap_scores(a.p, nq * nk, (real)f->mask.cap);
        softmax_bwd_block(&a);
        gemm_block(0, 0, nq, d, nk, 1, a.dp, nk, k, f->ldk, j0 > from ? 1 : 0, dq,
                   g->lddq); /* I3 */
        gemm_block(1, 0, nk, d, nq, 1, a.dp, nk, q, f->ldq, 1, dk, g->lddk);
        gemm_block(1, 0, nk, d, nq, 1, a.p, nk, d_o, g->lddo, 1, dv, g->lddv);
    }
}

static void attn_bwd_task(void *arg, int task, int thread)
{
    const struct mc_attn_grad *g = arg;
    const struct mc_attn *f = &g->f;
    int64_t seq = task / f->kv_heads, kv = task % f->kv_heads, group = f->heads / f->kv_heads;
    real *scratch = (real *)g->scratch + (int64_t)thread * 2 * BQ * BK;
    for (int64_t r = seq * f->t; r < (seq + 1) * f->t; r++) {
        memset((real *)g->dk + r * g->lddk + kv * f->d, 0, (size_t)f->d * sizeof(real));
        memset((real *)g->dv + r * g->lddv + kv * f->d, 0, (size_t)f->d * sizeof(real));
    }
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) /* I2 */
        for (int64_t q0 = 0; q0 < f->t; q0 += BQ)
            attn_bwd_rows(g, seq, h, q0, scratch);
}

static void attn_bwd(struct mc_pool *pool, const struct mc_attn_grad *g)
{
    run(pool, attn_bwd_task, g, (int)(g->f.b * g->f.kv_heads));
}
