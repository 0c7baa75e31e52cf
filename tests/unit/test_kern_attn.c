/* test_kern_attn.c - blocked attention against the whole T x T matrix in fp64, against finite
 * differences, and against itself through a cache; MHA, GQA, MQA, odd lengths and head sizes.
 * links: mc_kern
 */
#include "kern_test.h"

struct shape {
    int64_t b, t, heads, kv, d;
    int causal;
    double scale;
    struct mc_attn_mask mask; /* start: [b*t] */
};

static int64_t q_width(const struct shape *s)
{
    return s->heads * s->d;
}
static int64_t k_width(const struct shape *s)
{
    return s->kv * s->d;
}

static int sees(const struct shape *s, int64_t b, int64_t i, int64_t j)
{
    if (s->causal && j > i)
        return 0;
    if (s->mask.window > 0 && i - j >= s->mask.window)
        return 0;
    return !s->mask.start || j >= s->mask.start[b * s->t + i];
}

/* Everything of one (sequence, head): p [T, T]. slope, if asked: d score / d (scaled dot). */
static void probabilities(const struct shape *s, const double *q, const double *k, int64_t b,
                          int64_t h, double *p, double *lse, double *slope)
{
    int64_t t = s->t, kv = h * s->kv / s->heads;
    for (int64_t i = 0; i < t; i++) {
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < t; j++) {
            double dot = 0;
            for (int64_t e = 0; e < s->d; e++)
                dot += q[(b * t + i) * q_width(s) + h * s->d + e] *
                       k[(b * t + j) * k_width(s) + kv * s->d + e];
            double x = dot * s->scale, c = s->mask.cap;
            if (slope)
                slope[i * t + j] = c > 0 ? pow(cosh(x / c), -2) : 1;
            p[i * t + j] = !sees(s, b, i, j) ? -INFINITY : c > 0 ? c * tanh(x / c) : x;
            top = fmax(top, p[i * t + j]);
        }
        for (int64_t j = 0; j < t; j++)
            sum += exp(p[i * t + j] - top);
        lse[(b * s->heads + h) * t + i] = top + log(sum);
        for (int64_t j = 0; j < t; j++)
            p[i * t + j] = exp(p[i * t + j] - top) / sum;
    }
}

static void naive(const struct shape *s, const double *q, const double *k, const double *v,
                  double *o, double *lse)
{
    int64_t t = s->t;
    double *p = zeros_new(t * t);
    memset(o, 0, (size_t)(s->b * t * q_width(s)) * sizeof *o);
    for (int64_t b = 0; b < s->b; b++)
        for (int64_t h = 0; h < s->heads; h++) {
            probabilities(s, q, k, b, h, p, lse, NULL);
            int64_t kv = h * s->kv / s->heads;
            for (int64_t j = 0; j < t; j++)
                for (int64_t i = 0; i < t; i++)
                    for (int64_t e = 0; e < s->d; e++)
                        o[(b * t + i) * q_width(s) + h * s->d + e] +=
                            p[i * t + j] * v[(b * t + j) * k_width(s) + kv * s->d + e];
        }
    mc_free(p);
}

struct grads {
    double *dq, *dk, *dv;
};

static void naive_bwd(const struct shape *s, const double *q, const double *k, const double *v,
                      const double *d_o, struct grads *g)
{
    int64_t t = s->t, d = s->d;
    double *p = zeros_new(t * t), *lse = zeros_new(s->b * s->heads * t), *dp = zeros_new(t);
    double *slope = zeros_new(t * t);
    for (int64_t b = 0; b < s->b; b++)
        for (int64_t h = 0; h < s->heads; h++) {
            int64_t kv = h * s->kv / s->heads;
            probabilities(s, q, k, b, h, p, lse, slope);
            for (int64_t i = 0; i < t; i++) {
                const double *go = d_o + (b * t + i) * q_width(s) + h * d;
                double *gq = g->dq + (b * t + i) * q_width(s) + h * d, mean = 0;
                const double *qi = q + (b * t + i) * q_width(s) + h * d;
                for (int64_t j = 0; j < t; j++) {
                    int64_t at = (b * t + j) * k_width(s) + kv * d;
                    dp[j] = 0;
                    for (int64_t e = 0; e < d; e++) {
                        dp[j] += go[e] * v[at + e];
                        g->dv[at + e] += p[i * t + j] * go[e];
                    }
                    mean += p[i * t + j] * dp[j];
                }
                for (int64_t j = 0; j < t; j++) {
                    int64_t at = (b * t + j) * k_width(s) + kv * d;
                    double ds = p[i * t + j] * (dp[j] - mean) * slope[i * t + j] * s->scale;
                    for (int64_t e = 0; e < d; e++) {
                        gq[e] += ds * k[at + e];
                        g->dk[at + e] += ds * qi[e];
                    }
                }
            }
        }
    mc_free(p), mc_free(lse), mc_free(dp), mc_free(slope);
}

struct operands { /* q k v side by side in one buffer, as a fused projection leaves them */
    void *qkv, *o, *lse, *d_o, *dqkv, *scratch;
    int64_t ld, ldo;
};

static void fill(const struct mc_kern_ops *kn, struct operands *x, const struct shape *s,
                 const double *q, const double *k, const double *v, const double *d_o, int threads)
{
    int64_t m = s->b * s->t, qw = q_width(s), kw = k_width(s);
    x->ld = qw + 2 * kw + 1;
    x->ldo = qw + 2;
    x->qkv = mat(kn, NULL, m, x->ld, x->ld);
    x->dqkv = mat(kn, NULL, m, x->ld - 1, x->ld);
    for (int64_t r = 0; r < m; r++) {
        for (int64_t j = 0; j < qw; j++)
            set(kn, x->qkv, r * x->ld + j, q[r * qw + j]);
        for (int64_t j = 0; j < kw; j++) {
            set(kn, x->qkv, r * x->ld + qw + j, k[r * kw + j]);
            set(kn, x->qkv, r * x->ld + qw + kw + j, v[r * kw + j]);
        }
    }
    x->o = mat(kn, NULL, m, qw, x->ldo);
    x->lse = vec(kn, NULL, s->b * s->heads * s->t);
    x->d_o = mat(kn, d_o, m, qw, x->ldo);
    x->scratch =
        mc_alloc(kn->attn_scratch(s->b, s->t, s->heads, s->kv, s->d, threads) + 64, "test");
    memset(x->scratch, 0xff, kn->attn_scratch(s->b, s->t, s->heads, s->kv, s->d, threads));
}

static void drop(struct operands *x)
{
    mc_free(x->qkv), mc_free(x->o), mc_free(x->lse);
    mc_free(x->d_o), mc_free(x->dqkv), mc_free(x->scratch);
}

static void compute(const struct mc_kern_ops *kn, struct mc_pool *pool, struct operands *x,
                    const struct shape *s)
{
    size_t es = elem(kn), qw = (size_t)q_width(s), kw = (size_t)k_width(s);
    struct mc_attn_grad g = {.f = {.b = s->b,
                                   .t = s->t,
                                   .heads = s->heads,
                                   .kv_heads = s->kv,
                                   .d = s->d,
                                   .scale = s->scale,
                                   .causal = s->causal,
                                   .q = x->qkv,
                                   .k = (char *)x->qkv + qw * es,
                                   .v = (char *)x->qkv + (qw + kw) * es,
                                   .ldq = x->ld,
                                   .ldk = x->ld,
                                   .ldv = x->ld,
                                   .o = x->o,
                                   .ldo = x->ldo,
                                   .lse = x->lse,
                                   .scratch = x->scratch,
                                   .mask = s->mask},
                             .d_o = x->d_o,
                             .lddo = x->ldo,
                             .dq = x->dqkv,
                             .dk = (char *)x->dqkv + qw * es,
                             .dv = (char *)x->dqkv + (qw + kw) * es,
                             .lddq = x->ld,
                             .lddk = x->ld,
                             .lddv = x->ld,
                             .scratch = x->scratch};
    kn->attn(pool, &g.f);
    kn->attn_bwd(pool, &g);
}

static double *column_slice(const struct mc_kern_ops *kn, const void *p, int64_t ld, int64_t m,
                            int64_t from, int64_t n)
{
    double *x = zeros_new(m * n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            x[i * n + j] = get(kn, p, i * ld + from + j);
    return x;
}

static void near(const struct mc_kern_ops *kn, const char *what, double *got, const double *ref,
                 int64_t n)
{
    double e = gap64(got, ref, n);
    if (!(e <= tol(kn)))
        fail_msg("%s %s: off by %.3g, allowed %.3g", kn->name, what, e, tol(kn));
    mc_free(got);
}

static void check(const struct mc_kern_ops *kn, const struct shape *s)
{
    int64_t m = s->b * s->t, qw = q_width(s), kw = k_width(s);
    double *q = noise_new(m * qw, 1), *k = noise_new(m * kw, 2), *v = noise_new(m * kw, 3);
    double *d_o = noise_new(m * qw, 4), *o = zeros_new(m * qw), *lse = zeros_new(m * s->heads);
    struct grads g = {zeros_new(m * qw), zeros_new(m * kw), zeros_new(m * kw)};
    void *kept_o = NULL, *kept_g = NULL;
    naive(s, q, k, v, o, lse);
    naive_bwd(s, q, k, v, d_o, &g);
    for (int t = 0; t < POOLS; t++) {
        struct operands x;
        fill(kn, &x, s, q, k, v, d_o, pool_threads[t]);
        compute(kn, pools[t], &x, s);
        same_bits(&kept_o, x.o, (size_t)(m * x.ldo) * elem(kn));
        same_bits(&kept_g, x.dqkv, (size_t)(m * x.ld) * elem(kn));
        if (t == 0) {
            close_to(kn, "attn o", x.o, x.ldo, o, m, qw);
            close_to(kn, "attn lse", x.lse, m * s->heads, lse, 1, m * s->heads);
            assert_true(get(kn, x.dqkv, x.ld - 1) == PAD);
            /* One row has one key: its dq and dk are exactly 0 in the reference, rounding here. */
            if (s->t > 1) {
                near(kn, "dq", column_slice(kn, x.dqkv, x.ld, m, 0, qw), g.dq, m * qw);
                near(kn, "dk", column_slice(kn, x.dqkv, x.ld, m, qw, kw), g.dk, m * kw);
            }
            near(kn, "dv", column_slice(kn, x.dqkv, x.ld, m, qw + kw, kw), g.dv, m * kw);
        }
        drop(&x);
    }
    mc_free(kept_o), mc_free(kept_g), mc_free(q), mc_free(k), mc_free(v), mc_free(d_o);
    mc_free(o), mc_free(lse), mc_free(g.dq), mc_free(g.dk), mc_free(g.dv);
}

static void test_shapes(void **state)
{
    static const int64_t len[] = {1, 7, 129}, size[] = {5, 64, 256};
    static const int64_t head[][2] = {{1, 1}, {3, 3}, {3, 1}, {4, 2}};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                for (int h = 0; h < 4; h++) {
                    struct shape s = {i == 2 ? 1 : 2,
                                      len[i],
                                      head[h][0],
                                      head[h][1],
                                      size[j],
                                      (i + j + h) % 4 != 0,
                                      1 / sqrt((double)size[j]),
                                      {0}};
                    check(tables[d], &s);
                }
}

/* Several key blocks, the last a partial one, causal and not: the running maximum at work. Scores
 * of +-100 make exp overflow in anything that forgets the maximum. */
static void test_long(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        check(tables[d], &(struct shape){1, 600, 2, 1, 16, 1, 0.25, {0}});
        check(tables[d], &(struct shape){1, 600, 1, 1, 8, 0, 0.35, {0}});
        check(tables[d], &(struct shape){2, 256, 1, 1, 8, 1, 0.35, {0}});
    }
    check(tables[1], &(struct shape){1, 530, 1, 1, 16, 1, 30, {0}});
}

/* Starts of documents of the given lengths, over and over; each sequence begins elsewhere. */
static int32_t *starts_new(int64_t b, int64_t t, const int *length, int n)
{
    int32_t *s = mc_alloc((size_t)(b * t) * sizeof *s, "test");
    for (int64_t q = 0; q < b; q++)
        for (int64_t p = 0, at = 0, k = q; p < t; p++) {
            if (p - at == length[k % n])
                at = p, k++;
            s[q * t + p] = (int32_t)at;
        }
    return s;
}

/* Windows within a block, over blocks, wider than the sequence; documents of one token and of
 * several blocks; capped scores; all at once. */
static void test_masks(void **state)
{
    static const int64_t window[] = {1, 2, 17, 64, 100, 257, 300, 1000};
    static const int lengths[][4] = {{1, 1, 1, 1}, {5, 1, 70, 129}, {300, 64, 2, 16}};
    (void)state;
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < 8; i++) {
            check(tables[d], &(struct shape){2, 130, 2, 1, 8, 1, 0.35, {window[i], NULL, 0}});
            check(tables[d], &(struct shape){1, 700, 1, 1, 8, 1, 0.35, {window[i], NULL, 0}});
        }
        for (int i = 0; i < 3; i++) {
            int32_t *start = starts_new(2, 610, lengths[i], 4);
            check(tables[d], &(struct shape){2, 610, 1, 1, 8, 1, 0.35, {0, start, 0}});
            check(tables[d], &(struct shape){2, 610, 2, 1, 8, 1, 2, {90, start, 1.5}});
            mc_free(start);
        }
        check(tables[d], &(struct shape){2, 33, 2, 2, 5, 1, 3, {0, NULL, 2}});
        check(tables[d], &(struct shape){1, 300, 2, 2, 5, 0, 3, {0, NULL, 2}});
    }
}

/* -- Finite differences ----------------------------------------------------------------------- */

struct fd {
    struct shape s;
    double *q, *k, *v, *w; /* f = sum w o */
};

static double weighted(void *arg)
{
    struct fd *f = arg;
    struct operands x;
    int64_t m = f->s.b * f->s.t, qw = q_width(&f->s);
    double sum = 0;
    fill(tables[1], &x, &f->s, f->q, f->k, f->v, f->w, 1);
    compute(tables[1], pools[0], &x, &f->s);
    for (int64_t r = 0; r < m; r++)
        for (int64_t j = 0; j < qw; j++)
            sum += f->w[r * qw + j] * ((double *)x.o)[r * x.ldo + j];
    drop(&x);
    return sum;
}

static void test_differences(void **state)
{
    static const int32_t start[] = {0, 0, 0, 3, 3, 5, 6, 7, 7, 0, 1, 1, 1, 1, 1, 1, 7, 7};
    static const struct shape sizes[] = {
        {2, 7, 3, 3, 5, 1, 0.4, {0}},           {1, 7, 4, 2, 5, 1, 0.4, {0}},
        {1, 9, 3, 1, 6, 0, 0.4, {0}},           {1, 70, 1, 1, 5, 1, 0.4, {0}},
        {1, 70, 2, 1, 5, 1, 0.4, {9, NULL, 0}}, {2, 9, 2, 1, 5, 1, 0.4, {0, start, 0}},
        {1, 9, 2, 1, 5, 1, 2, {0, NULL, 1.5}},  {2, 9, 2, 2, 5, 1, 2, {4, start, 1.5}}};
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct fd f = {.s = sizes[i]};
        struct operands x;
        int64_t m = f.s.b * f.s.t, qw = q_width(&f.s), kw = k_width(&f.s);
        f.q = noise_new(m * qw, 5), f.k = noise_new(m * kw, 6), f.v = noise_new(m * kw, 7);
        f.w = noise_new(m * qw, 8);
        fill(tables[1], &x, &f.s, f.q, f.k, f.v, f.w, 1);
        compute(tables[1], pools[0], &x, &f.s);
        double *dq = column_slice(tables[1], x.dqkv, x.ld, m, 0, qw);
        double *dk = column_slice(tables[1], x.dqkv, x.ld, m, qw, kw);
        double *dv = column_slice(tables[1], x.dqkv, x.ld, m, qw + kw, kw);
        close_fd("attn dq", dq, differences(weighted, &f, f.q, m * qw), m * qw);
        close_fd("attn dk", dk, differences(weighted, &f, f.k, m * kw), m * kw);
        close_fd("attn dv", dv, differences(weighted, &f, f.v, m * kw), m * kw);
        drop(&x);
        mc_free(dq), mc_free(dk), mc_free(dv);
        mc_free(f.q), mc_free(f.k), mc_free(f.v), mc_free(f.w);
    }
}

/* -- Cache ------------------------------------------------------------------------------------ */

/* Rows fed in pieces give what one causal pass over all of them gives. */
static void cached(const struct mc_kern_ops *kn, const struct shape *s, int64_t piece)
{
    int64_t qw = q_width(s), kw = k_width(s);
    double *q = noise_new(s->t * qw, 1), *k = noise_new(s->t * kw, 2);
    double *v = noise_new(s->t * kw, 3), *o = zeros_new(s->t * qw), *lse = zeros_new(s->t * qw);
    void *kept = NULL;
    naive(s, q, k, v, o, lse);
    for (int t = 0; t < POOLS; t++) {
        void *kq = mat(kn, q, s->t, qw, qw + 1), *kc = mat(kn, k, s->t, kw, kw + 3);
        void *vc = mat(kn, v, s->t, kw, kw + 3), *ko = mat(kn, NULL, s->t, qw, qw + 2);
        void *scratch =
            mc_alloc(kn->attn_scratch(1, piece, s->heads, s->kv, s->d, pool_threads[t]), "test");
        for (int64_t p = 0; p < s->t; p += piece)
            kn->attn_cached(
                pools[t],
                &(struct mc_attn_cached){.t = p + piece < s->t ? piece : s->t - p,
                                         .pos0 = p,
                                         .heads = s->heads,
                                         .kv_heads = s->kv,
                                         .d = s->d,
                                         .scale = s->scale,
                                         .q = (char *)kq + (size_t)(p * (qw + 1)) * elem(kn),
                                         .ldq = qw + 1,
                                         .kc = kc,
                                         .vc = vc,
                                         .ldc = kw + 3,
                                         .o = (char *)ko + (size_t)(p * (qw + 2)) * elem(kn),
                                         .ldo = qw + 2,
                                         .scratch = scratch,
                                         .mask = {.window = s->mask.window,
                                                  .start = s->mask.start ? s->mask.start + p : NULL,
                                                  .cap = s->mask.cap}});
        close_to(kn, "attn_cached", ko, qw + 2, o, s->t, qw);
        same_bits(&kept, ko, (size_t)(s->t * (qw + 2)) * elem(kn));
        mc_free(kq), mc_free(kc), mc_free(vc), mc_free(ko), mc_free(scratch);
    }
    mc_free(kept), mc_free(q), mc_free(k), mc_free(v), mc_free(o), mc_free(lse);
}

static void test_cached(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        int32_t *start = starts_new(1, 333, (const int[]){7, 120, 1}, 3);
        cached(tables[d], &(struct shape){1, 33, 4, 2, 5, 1, 0.4, {0}}, 1);
        cached(tables[d], &(struct shape){1, 333, 3, 1, 16, 1, 0.25, {0}}, 101);
        cached(tables[d], &(struct shape){1, 290, 3, 3, 16, 1, 0.25, {0}}, 290);
        cached(tables[d], &(struct shape){1, 300, 2, 2, 64, 1, 0.125, {0}}, 7);
        cached(tables[d], &(struct shape){1, 333, 2, 1, 8, 1, 0.5, {40, NULL, 1}}, 1);
        cached(tables[d], &(struct shape){1, 333, 2, 1, 8, 1, 0.5, {0, start, 0}}, 17);
        cached(tables[d], &(struct shape){1, 333, 2, 1, 8, 1, 0.5, {60, start, 0}}, 101);
        mc_free(start);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_long),
        cmocka_unit_test(test_masks),  cmocka_unit_test(test_differences),
        cmocka_unit_test(test_cached),
    };
    return cmocka_run_group_tests(tests, kern_setup, kern_teardown);
}
