/* test_kern_loss.c - cross entropy, AdamW, fp64 sums, conversions, and the fp32 exp over its range.
 * links: mc_kern
 */
#include "kern_test.h"

#define real        float
#define REAL_IS_F32 1
#define INL         static inline
#include "../../core/kern/cpu/math.inl"

/* -- cross entropy ---------------------------------------------------------------------------- */

struct loss {
    int64_t m, v;
    double *x, scale;
    int32_t *targets;
    double smoothing, z;
};

static void make(struct loss *f, int64_t m, int64_t v, int masked)
{
    *f = (struct loss){m, v, noise_new(m * v, 1), 1.0 / 37, NULL, 0, 0};
    f->targets = mc_alloc((size_t)m * sizeof *f->targets, "test");
    for (int64_t r = 0; r < m; r++)
        f->targets[r] = masked == 2 || (masked == 1 && r % 3 == 1)
                            ? -(int32_t)(1 + r)
                            : (int32_t)((r * 61 + v - 1) % v);
    for (int64_t i = 0; i < m * v; i++)
        f->x[i] = (double)(float)(f->x[i] * 6 + (double)(i / v % 4) * 50);
}

static void compute(const struct mc_kern_ops *k, struct mc_pool *pool, const struct loss *f,
                    void **loss, void **grad)
{
    int64_t ld = f->v + 3;
    void *lse = vec(k, NULL, f->m);
    int padded = f->smoothing > 0; /* then two of the three columns beyond are the logits' own */
    *loss = vec(k, NULL, f->m), *grad = mat(k, f->x, f->m, f->v, ld);
    struct mc_xent o = {.m = f->m,
                        .v = f->v,
                        .targets = f->targets,
                        .logits = *grad,
                        .ld = ld,
                        .lse = lse,
                        .loss = *loss,
                        .scale = f->scale,
                        .smoothing = f->smoothing,
                        .z = f->z,
                        .pad = padded ? 2 : 0};
    for (int64_t r = 0; padded && r < f->m; r++)
        set(k, *grad, r * ld + f->v, NAN), set(k, *grad, r * ld + f->v + 1, 1e30);
    k->xent(pool, &o);
    k->xent_bwd(pool, &o);
    for (int64_t r = 0; r < f->m; r++) {
        assert_true(get(k, *grad, r * ld + f->v) == (padded ? 0 : PAD));
        assert_true(get(k, *grad, r * ld + f->v + 1) == (padded ? 0 : PAD));
        set(k, *grad, r * ld + f->v, PAD), set(k, *grad, r * ld + f->v + 1, PAD);
    }
    mc_free(lse);
}

static void xent(const struct mc_kern_ops *k, int64_t m, int64_t v, int masked)
{
    struct loss f;
    make(&f, m, v, masked);
    double *loss = zeros_new(m), *grad = zeros_new(m * v);
    for (int64_t r = 0; r < m; r++) {
        int32_t t = f.targets[r];
        if (t < 0)
            continue;
        long double sum = 0; /* sum over j of exp(x_j - x_t): loss is its log */
        for (int64_t j = v - 1; j >= 0; j--)
            sum += expl((long double)f.x[r * v + j] - f.x[r * v + t]);
        loss[r] = (double)logl(sum);
        for (int64_t j = 0; j < v; j++)
            grad[r * v + j] =
                (double)(expl((long double)f.x[r * v + j] - f.x[r * v + t]) / sum - (j == t)) *
                f.scale;
    }
    void *kept_l = NULL, *kept_g = NULL;
    for (int t = 0; t < POOLS; t++) {
        void *kl, *kg;
        compute(k, pools[t], &f, &kl, &kg);
        double bound = k->dtype == MC_F32 ? 1e-5 : 1e-12;
        assert_true(gap(k, kl, m, loss, 1, m) <= bound);
        assert_true(gap(k, kg, v + 3, grad, m, v) <= bound * (v == 1 ? 0 : 3));
        for (int64_t r = 0; r < m; r++)
            if (f.targets[r] < 0)
                assert_true(get(k, kl, r) == 0 && get(k, kg, r * (v + 3)) == 0);
        same_bits(&kept_l, kl, (size_t)m * elem(k));
        same_bits(&kept_g, kg, (size_t)(m * (v + 3)) * elem(k));
        mc_free(kl), mc_free(kg);
    }
    mc_free(kept_l), mc_free(kept_g), mc_free(loss), mc_free(grad);
    mc_free(f.x), mc_free(f.targets);
}

static void test_xent(void **state)
{
    static const int64_t rows[] = {1, 7, 129}, vocab[] = {1, 5, 257, 20000};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 12; i++)
            for (int masked = 0; masked < 3; masked++)
                xent(tables[d], vocab[i / 3] > 1000 ? 3 : rows[i % 3], vocab[i / 3], masked);
}

/* Smoothing and z-loss as the expectation over a smeared target, plus z (log of the plain sum)^2.
 */
static void xent_smooth(const struct mc_kern_ops *k, int64_t m, int64_t v, double e, double z)
{
    struct loss f;
    make(&f, m, v, 1);
    f.smoothing = e, f.z = z;
    double *loss = zeros_new(m), *grad = zeros_new(m * v);
    for (int64_t r = 0; r < m; r++) {
        int32_t t = f.targets[r];
        long double sum = 0, log_z;
        for (int64_t j = 0; t >= 0 && j < v; j++)
            sum += expl((long double)f.x[r * v + j]);
        log_z = logl(sum);
        for (int64_t j = 0; t >= 0 && j < v; j++) {
            long double log_p = f.x[r * v + j] - log_z, p = expl(log_p);
            long double q = (long double)e / v + (j == t ? 1 - (long double)e : 0);
            loss[r] -= (double)(q * log_p);
            grad[r * v + j] = (double)((p - q + 2 * z * log_z * p) * f.scale);
        }
        if (t >= 0)
            loss[r] += (double)(z * log_z * log_z);
    }
    void *kept = NULL;
    for (int t = 0; t < POOLS; t++) {
        void *kl, *kg;
        double bound = k->dtype == MC_F32 ? 1e-5 : 1e-12;
        compute(k, pools[t], &f, &kl, &kg);
        assert_true(gap(k, kl, m, loss, 1, m) <= bound);
        assert_true(gap(k, kg, v + 3, grad, m, v) <= bound * 3);
        same_bits(&kept, kg, (size_t)(m * (v + 3)) * elem(k));
        mc_free(kl), mc_free(kg);
    }
    mc_free(kept), mc_free(loss), mc_free(grad), mc_free(f.x), mc_free(f.targets);
}

static void test_xent_smooth(void **state)
{
    static const int64_t rows[] = {1, 7, 129}, vocab[] = {5, 257, 20000};
    (void)state;
    for (int i = 0; i < 18; i++) {
        int64_t m = i / 6 == 2 ? 3 : rows[i / 2 % 3];
        xent_smooth(tables[i & 1], m, vocab[i / 6], 0.1, 0);
        xent_smooth(tables[i & 1], m, vocab[i / 6], 0, 1e-2);
        xent_smooth(tables[i & 1], m, vocab[i / 6], 0.2, 1e-4);
    }
}

/* Logits of +-1e4: no overflow, the loss is the gap. Masked rows may hold anything, and a target
 * past the vocabulary is NaN rather than someone else's memory. */
static void test_xent_extremes(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        const struct mc_kern_ops *k = tables[d];
        double x[4][3] = {{1e4, -1e4, 0}, {1e4, -1e4, 0}, {NAN, INFINITY, 0}, {1, 2, 3}};
        int32_t targets[] = {0, 1, -100, 3};
        struct loss f = {4, 3, &x[0][0], 1, targets, 0, 0};
        void *loss, *grad;
        compute(k, pools[0], &f, &loss, &grad);
        assert_true(get(k, loss, 0) == 0 && get(k, loss, 1) == 2e4 && get(k, loss, 2) == 0);
        assert_true(isnan(get(k, loss, 3)) && isnan(get(k, grad, 18)));
        assert_true(get(k, grad, 0) == 0 && get(k, grad, 6) == 1 && get(k, grad, 7) == -1);
        assert_true(get(k, grad, 12) == 0 && get(k, grad, 13) == 0 && get(k, grad, 14) == 0);
        mc_free(loss), mc_free(grad);
    }
}

static double total(void *arg)
{
    struct loss *f = arg;
    void *loss, *grad;
    double s = 0;
    compute(tables[1], pools[0], f, &loss, &grad);
    for (int64_t r = 0; r < f->m; r++)
        s += ((double *)loss)[r] * f->scale;
    mc_free(loss), mc_free(grad);
    return s;
}

static void test_xent_differences(void **state)
{
    (void)state;
    for (int smooth = 0; smooth < 2; smooth++) {
        struct loss f;
        void *loss, *grad;
        make(&f, 7, 33, 1);
        if (smooth)
            f.smoothing = 0.1, f.z = 1e-3;
        compute(tables[1], pools[0], &f, &loss, &grad);
        double *g = zeros_new(7 * 33);
        for (int i = 0; i < 7 * 33; i++)
            g[i] = ((double *)grad)[i / 33 * 36 + i % 33];
        close_fd("xent", g, differences(total, &f, f.x, 7 * 33), 7 * 33);
        mc_free(g), mc_free(loss), mc_free(grad), mc_free(f.x), mc_free(f.targets);
    }
}

/* -- AdamW ------------------------------------------------------------------------------------ */

static void adamw(const struct mc_kern_ops *k, int64_t n)
{
    double *w = noise_new(n, 1), *m = zeros_new(n), *v = zeros_new(n), *all[5];
    for (int s = 0; s < 5; s++)
        all[s] = noise_new(n, (uint64_t)(10 + s));
    void *kept = NULL;
    double lr = 0.01, b1 = 0.9, b2 = 0.95, eps = 1e-8, decay = 0.1, clip = 0.7;
    double *ref = zeros_new(n);
    memcpy(ref, w, (size_t)n * sizeof *w);
    for (int s = 1; s <= 5; s++) /* moments as explicit weighted sums of all past gradients */
        for (int64_t i = 0; i < n; i++) {
            double mh = 0, vh = 0;
            for (int p = 1; p <= s; p++) {
                double g = all[p - 1][i] * clip;
                mh += (1 - b1) * pow(b1, s - p) * g, vh += (1 - b2) * pow(b2, s - p) * g * g;
            }
            m[i] = mh, v[i] = vh;
            ref[i] -= lr * decay * ref[i] +
                      lr * (mh / (1 - pow(b1, s))) / (sqrt(vh / (1 - pow(b2, s))) + eps);
        }
    for (int t = 0; t < POOLS; t++) {
        double *zero = zeros_new(n);
        void *kw = vec(k, w, n), *km = vec(k, zero, n), *kv = vec(k, zero, n);
        for (int s = 1; s <= 5; s++) {
            void *kg = vec(k, all[s - 1], n);
            k->adamw(pools[t], &(struct mc_adamw){.n = n,
                                                  .w = kw,
                                                  .m = km,
                                                  .v = kv,
                                                  .g = kg,
                                                  .gscale = clip,
                                                  .lr = lr,
                                                  .beta1 = b1,
                                                  .beta2 = b2,
                                                  .eps = eps,
                                                  .decay = decay,
                                                  .bias1 = 1 - pow(b1, s),
                                                  .bias2 = 1 - pow(b2, s)});
            mc_free(kg);
        }
        close_to(k, "adamw w", kw, n, ref, 1, n);
        close_to(k, "adamw m", km, n, m, 1, n);
        close_to(k, "adamw v", kv, n, v, 1, n);
        same_bits(&kept, kw, (size_t)n * elem(k));
        mc_free(zero), mc_free(kw), mc_free(km), mc_free(kv);
    }
    for (int s = 0; s < 5; s++)
        mc_free(all[s]);
    mc_free(kept), mc_free(ref), mc_free(w), mc_free(m), mc_free(v);
}

static void test_adamw(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        adamw(tables[d], 1);
        adamw(tables[d], 257);
        adamw(tables[d], 40001);
    }
}

/* -- Sums and conversions --------------------------------------------------------------------- */

static void test_sums(void **state)
{
    static const int64_t sizes[] = {0, 1, 7, 257, 16384, 16385, 100003, 5000011};
    (void)state;
    for (int i = 0; i < 16; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        int64_t n = sizes[i / 2];
        double *x = noise_new(n, 1), first[2] = {0, 0};
        void *kx = vec(k, x, n);
        long double s = 0, q = 0;
        for (int64_t j = n - 1; j >= 0; j--)
            s += x[j], q += (long double)x[j] * x[j];
        for (int t = 0; t < POOLS; t++) {
            double got[2] = {k->sum(pools[t], kx, n), k->sum_squares(pools[t], kx, n)};
            assert_true(fabs(got[0] - (double)s) <= 1e-13 * (double)(n + 1));
            assert_true(fabs(got[1] - (double)q) <= 1e-13 * (double)(q + 1e-9));
            if (t == 0)
                memcpy(first, got, sizeof got);
            assert_memory_equal(first, got, sizeof got);
        }
        mc_free(x), mc_free(kx);
    }
}

static void test_conversions(void **state)
{
    (void)state;
    double ties[] = {1 + 0x1p-24, 1 + 3 * 0x1p-24, 1 + 0x1.8p-24, -(1 + 0x1p-24), 1e300, 0x1p-150};
    float want[] = {1, 1 + 0x1p-22f, 1 + 0x1p-23f, -1, INFINITY, 0}, got[6], same[6];
    double wide[6];
    tables[1]->to_f32(got, ties, 6);
    assert_memory_equal(got, want, sizeof want);
    tables[1]->from_f32(wide, want, 6);
    for (int i = 0; i < 6; i++)
        assert_true(wide[i] == (double)want[i]);
    tables[0]->from_f32(same, want, 6);
    assert_memory_equal(same, want, sizeof want);
    tables[0]->to_f32(got, same, 6);
    assert_memory_equal(got, want, sizeof want);
}

/* Every 97th float between the ends against exp in fp64: at most 1 ulp. */
static void test_exp(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t b = 0x30000000; b < 0x42b20000; b += 97) {
            uint32_t bits = b | sign << 31;
            float x;
            memcpy(&x, &bits, sizeof x);
            if (x > 88.72283f || x < -87.33654f)
                continue;
            double want = exp((double)x);
            int e;
            frexp(want, &e);
            worst = fmax(worst, fabs((double)exp_r(x) - want) / ldexp(1, e - 24));
        }
    assert_true(worst > 0.3 && worst <= 1.0);
    assert_true(exp_r(0) == 1 && exp_r(-0.0f) == 1);
    assert_true(exp_r(-INFINITY) == 0 && exp_r(-88) == 0 && exp_r(INFINITY) == INFINITY);
    assert_true(exp_r(88.8f) == INFINITY && exp_r(88.72f) < INFINITY && isnan(exp_r(NAN)));
}

/* Every 97th float of either sign up to 12 against tanh in fp64: at most 4 ulp. */
static void test_tanh(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t b = 0x30000000; b < 0x41400000; b += 97) {
            uint32_t bits = b | sign << 31;
            float x;
            memcpy(&x, &bits, sizeof x);
            double want = tanh((double)x);
            int e;
            frexp(want, &e);
            worst = fmax(worst, fabs((double)tanh_r(x) - want) / ldexp(1, e - 24));
        }
    print_message("  tanh: %.2f ulp\n", worst);
    assert_true(worst > 0.3 && worst <= 4.0);
    assert_true(tanh_r(0) == 0 && tanh_r(INFINITY) == 1 && tanh_r(-1e30f) == -1);
    assert_true(isnan(tanh_r(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xent),          cmocka_unit_test(test_xent_smooth),
        cmocka_unit_test(test_xent_extremes), cmocka_unit_test(test_xent_differences),
        cmocka_unit_test(test_adamw),         cmocka_unit_test(test_sums),
        cmocka_unit_test(test_conversions),   cmocka_unit_test(test_exp),
        cmocka_unit_test(test_tanh),
    };
    return cmocka_run_group_tests(tests, kern_setup, kern_teardown);
}
