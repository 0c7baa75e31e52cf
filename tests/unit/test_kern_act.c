/* test_kern_act.c - activations, swiglu, add and dropout against libm in fp64 and finite
 * differences; in place; dropout against Philox asked word by word.
 * links: mc_kern
 */
#include "kern_test.h"
#include "../../core/base/rng.h"

#define CAP 2.5

/* The textbook forms, with tanh and erf themselves. */
static double formula(enum mc_unary_kind kind, double x)
{
    switch (kind) {
    case MC_UNARY_GELU:
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * pow(x, 3))));
    case MC_UNARY_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2.0)));
    case MC_UNARY_SILU:
        return x * 0.5 * (1 + tanh(x / 2));
    case MC_UNARY_RELU:
        return fmax(x, 0);
    case MC_UNARY_RELU_SQUARED:
        return x > 0 ? x * x : 0;
    case MC_UNARY_SOFTCAP:
        return CAP * tanh(x / CAP);
    }
    return NAN;
}
static double slope(enum mc_unary_kind kind, double x)
{
    double h = 1e-3; /* sixth order differences of the formula */
    return (45 * (formula(kind, x + h) - formula(kind, x - h)) -
            9 * (formula(kind, x + 2 * h) - formula(kind, x - 2 * h)) +
            (formula(kind, x + 3 * h) - formula(kind, x - 3 * h))) /
           (60 * h);
}

static const int64_t rows[] = {1, 7, 129}, cols[] = {1, 5, 257, 5000};

static void unary(const struct mc_kern_ops *k, enum mc_unary_kind kind, int64_t m, int64_t c)
{
    double *x = noise_new(m * c, 1), *dy = noise_new(m * c, 2);
    double *y = zeros_new(m * c), *dx = zeros_new(m * c), bound = k->dtype == MC_F32 ? 1e-5 : 1e-10;
    int64_t ld = c + 3;
    void *kept_y = NULL, *kept_dx = NULL;
    for (int64_t i = 0; i < m * c; i++) {
        x[i] = x[i] * 6 + (kind == MC_UNARY_RELU || kind == MC_UNARY_RELU_SQUARED
                               ? (x[i] < 0 ? -0.01 : 0.01)
                               : 0);
        x[i] = (double)(float)x[i];
        y[i] = formula(kind, x[i]);
        dx[i] = dy[i] * slope(kind, x[i]);
    }
    for (int t = 0; t < POOLS; t++)
        for (int place = 0; place < 2; place++) { /* out of place, in place: the same bits */
            void *kx = mat(k, x, m, c, ld), *kdy = mat(k, dy, m, c, ld);
            void *ky = place ? mat(k, x, m, c, ld) : mat(k, NULL, m, c, ld);
            void *kdx = place ? kdy : mat(k, NULL, m, c, ld);
            k->unary(pools[t], &(struct mc_unary){.kind = kind,
                                                  .m = m,
                                                  .c = c,
                                                  .x = place ? ky : kx,
                                                  .ldx = ld,
                                                  .y = ky,
                                                  .ldy = ld,
                                                  .cap = CAP});
            k->unary_bwd(pools[t], &(struct mc_unary){.kind = kind,
                                                      .m = m,
                                                      .c = c,
                                                      .x = kx,
                                                      .ldx = ld,
                                                      .dy = kdy,
                                                      .lddy = ld,
                                                      .dx = kdx,
                                                      .lddx = ld,
                                                      .cap = CAP});
            close_to(k, "unary", ky, ld, y, m, c);
            assert_true(gap(k, kdx, ld, dx, m, c) <= bound);
            same_bits(&kept_y, ky, (size_t)(m * ld) * elem(k));
            same_bits(&kept_dx, kdx, (size_t)(m * ld) * elem(k));
            mc_free(kx), mc_free(kdy), mc_free(ky);
            if (!place)
                mc_free(kdx);
        }
    mc_free(kept_y), mc_free(kept_dx), mc_free(x), mc_free(dy), mc_free(y), mc_free(dx);
}

static void test_unary(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int kind = MC_UNARY_GELU; kind <= MC_UNARY_SOFTCAP; kind++)
            for (int i = 0; i < 12; i++)
                unary(tables[d], (enum mc_unary_kind)kind, rows[i % 3], cols[i / 3]);
}

/* Far from 0 nothing overflows: the values and slopes are x and 1, or 0 and 0. */
static void test_far(void **state)
{
    static const double far[] = {-1e4, -200, -90, 90, 200, 1e4};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int kind = MC_UNARY_GELU; kind <= MC_UNARY_RELU; kind++) {
            const struct mc_kern_ops *k = tables[d];
            double one[6] = {1, 1, 1, 1, 1, 1};
            void *x = vec(k, far, 6), *y = vec(k, NULL, 6), *dy = vec(k, one, 6);
            struct mc_unary o = {.kind = (enum mc_unary_kind)kind,
                                 .m = 1,
                                 .c = 6,
                                 .x = x,
                                 .ldx = 6,
                                 .y = y,
                                 .ldy = 6,
                                 .dy = dy,
                                 .lddy = 6,
                                 .dx = dy,
                                 .lddx = 6};
            k->unary(pools[0], &o);
            k->unary_bwd(pools[0], &o);
            for (int i = 0; i < 6; i++) {
                assert_true(fabs(get(k, y, i) - fmax(far[i], 0)) < 1e-30);
                assert_true(fabs(get(k, dy, i) - (far[i] > 0)) < 1e-30);
            }
            mc_free(x), mc_free(y), mc_free(dy);
        }
}

/* The cap: beyond it values are +-cap and slopes 0; the limits of tanh itself. */
static void test_softcap_far(void **state)
{
    double far[] = {-INFINITY, -1e30, -100, 100, 1e30, INFINITY, 0, NAN};
    (void)state;
    for (int d = 0; d < 2; d++) {
        const struct mc_kern_ops *k = tables[d];
        double one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        void *x = vec(k, far, 8), *y = vec(k, NULL, 8), *dy = vec(k, one, 8);
        struct mc_unary o = {.kind = MC_UNARY_SOFTCAP, .m = 1, .c = 8, .x = x, .ldx = 8, .y = y};
        o.ldy = o.lddy = o.lddx = 8, o.dy = o.dx = dy, o.cap = CAP;
        k->unary(pools[0], &o);
        k->unary_bwd(pools[0], &o);
        for (int i = 0; i < 6; i++)
            assert_true(get(k, y, i) == (i < 3 ? -CAP : CAP) && get(k, dy, i) == 0);
        assert_true(get(k, y, 6) == 0 && get(k, dy, 6) == 1 && isnan(get(k, y, 7)));
        mc_free(x), mc_free(y), mc_free(dy);
    }
}

/* -- swiglu and its kin ----------------------------------------------------------------------- */

struct glu {
    int64_t m, c;
    double *g, *u, *w;
    enum mc_gate_kind gate;
};

static void glu_compute(const struct mc_kern_ops *k, struct mc_pool *pool, const struct glu *f,
                        void **y, void **dgu)
{
    /* gate and up side by side in one buffer, and their gradients too */
    int64_t ld = 2 * f->c + 1;
    void *gu = mat(k, NULL, f->m, ld, ld), *dy = mat(k, f->w, f->m, f->c, f->c);
    *y = mat(k, NULL, f->m, f->c, f->c), *dgu = mat(k, NULL, f->m, ld - 1, ld);
    for (int64_t i = 0; i < f->m * f->c; i++) {
        set(k, gu, i / f->c * ld + i % f->c, f->g[i]);
        set(k, gu, i / f->c * ld + f->c + i % f->c, f->u[i]);
    }
    struct mc_swiglu o = {.m = f->m,
                          .c = f->c,
                          .g = gu,
                          .u = (char *)gu + (size_t)f->c * elem(k),
                          .ldg = ld,
                          .ldu = ld,
                          .y = *y,
                          .ldy = f->c,
                          .dy = dy,
                          .lddy = f->c,
                          .dg = *dgu,
                          .du = (char *)*dgu + (size_t)f->c * elem(k),
                          .lddg = ld,
                          .lddu = ld,
                          .gate = f->gate};
    k->swiglu(pool, &o);
    k->swiglu_bwd(pool, &o);
    mc_free(gu), mc_free(dy);
}

static double glu_weighted(void *arg)
{
    struct glu *f = arg;
    void *y, *dgu;
    double s = 0;
    glu_compute(tables[1], pools[0], f, &y, &dgu);
    for (int64_t i = 0; i < f->m * f->c; i++)
        s += f->w[i] * ((double *)y)[i];
    mc_free(y), mc_free(dgu);
    return s;
}

static void test_swiglu(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        struct glu f = {rows[i / 2 % 3], cols[i / 6], NULL, NULL, NULL, MC_GATE_SILU};
        int64_t n = f.m * f.c;
        f.g = noise_new(n, 1), f.u = noise_new(n, 2), f.w = noise_new(n, 3);
        double *y = zeros_new(n), *d = zeros_new(2 * n);
        for (int64_t j = 0; j < n; j++) {
            double g = f.g[j] = (double)(float)(f.g[j] * 5), s = 1 / (1 + exp(-g));
            int64_t at = j / f.c * 2 * f.c + j % f.c;
            y[j] = g * s * f.u[j];
            d[at] = f.w[j] * f.u[j] * (s + g * exp(-g) * s * s);
            d[at + f.c] = f.w[j] * g * s;
        }
        void *kept_y = NULL, *kept_d = NULL, *ky, *kd;
        for (int t = 0; t < POOLS; t++) {
            glu_compute(k, pools[t], &f, &ky, &kd);
            close_to(k, "swiglu", ky, f.c, y, f.m, f.c);
            close_to(k, "swiglu_bwd", kd, 2 * f.c + 1, d, f.m, 2 * f.c);
            same_bits(&kept_y, ky, (size_t)n * elem(k));
            same_bits(&kept_d, kd, (size_t)(f.m * (2 * f.c + 1)) * elem(k));
            mc_free(ky), mc_free(kd);
        }
        if (n == 35 && (i & 1)) {
            glu_compute(tables[1], pools[0], &f, &ky, &kd);
            double dg[35], du[35];
            for (int j = 0; j < 35; j++)
                dg[j] = ((double *)kd)[j / 5 * 11 + j % 5],
                du[j] = ((double *)kd)[j / 5 * 11 + 5 + j % 5];
            close_fd("swiglu dg", dg, differences(glu_weighted, &f, f.g, 35), 35);
            close_fd("swiglu du", du, differences(glu_weighted, &f, f.u, 35), 35);
            mc_free(ky), mc_free(kd);
        }
        mc_free(kept_y), mc_free(kept_d), mc_free(y), mc_free(d);
        mc_free(f.g), mc_free(f.u), mc_free(f.w);
    }
}

/* gelu gates: against the textbook forms and their slopes, and by differences. */
static void test_geglu(void **state)
{
    (void)state;
    for (int i = 0; i < 48; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        int erf_form = i / 24;
        struct glu f = {rows[i / 2 % 3], cols[i / 6 % 4], NULL, NULL, NULL, MC_GATE_GELU};
        enum mc_unary_kind kind = erf_form ? MC_UNARY_GELU_ERF : MC_UNARY_GELU;
        int64_t n = f.m * f.c, ld = 2 * f.c + 1;
        f.gate = erf_form ? MC_GATE_GELU_ERF : MC_GATE_GELU;
        f.g = noise_new(n, 1), f.u = noise_new(n, 2), f.w = noise_new(n, 3);
        double *y = zeros_new(n), *d = zeros_new(2 * n), bound = i & 1 ? 1e-10 : 1e-5;
        for (int64_t j = 0; j < n; j++) {
            double g = f.g[j] = (double)(float)(f.g[j] * 5);
            int64_t at = j / f.c * 2 * f.c + j % f.c;
            y[j] = formula(kind, g) * f.u[j];
            d[at] = f.w[j] * f.u[j] * slope(kind, g);
            d[at + f.c] = f.w[j] * formula(kind, g);
        }
        void *kept = NULL, *ky, *kd;
        for (int t = 0; t < POOLS; t++) {
            glu_compute(k, pools[t], &f, &ky, &kd);
            close_to(k, "geglu", ky, f.c, y, f.m, f.c);
            assert_true(gap(k, kd, ld, d, f.m, 2 * f.c) <= bound);
            same_bits(&kept, kd, (size_t)(f.m * ld) * elem(k));
            mc_free(ky), mc_free(kd);
        }
        if (n == 35 && (i & 1)) {
            glu_compute(tables[1], pools[0], &f, &ky, &kd);
            double dg[35], du[35];
            for (int j = 0; j < 35; j++)
                dg[j] = ((double *)kd)[j / 5 * 11 + j % 5],
                du[j] = ((double *)kd)[j / 5 * 11 + 5 + j % 5];
            close_fd("geglu dg", dg, differences(glu_weighted, &f, f.g, 35), 35);
            close_fd("geglu du", du, differences(glu_weighted, &f, f.u, 35), 35);
            mc_free(ky), mc_free(kd);
        }
        mc_free(kept), mc_free(y), mc_free(d), mc_free(f.g), mc_free(f.u), mc_free(f.w);
    }
}

/* -- unary backward by differences of the kernel itself ---------------------------------------- */

struct one {
    enum mc_unary_kind kind;
    double *x, *w;
};
static double one_weighted(void *arg)
{
    struct one *f = arg;
    double y[35], s = 0;
    tables[1]->unary(
        pools[0],
        &(struct mc_unary){
            .kind = f->kind, .m = 7, .c = 5, .x = f->x, .ldx = 5, .y = y, .ldy = 5, .cap = CAP});
    for (int i = 0; i < 35; i++)
        s += y[i] * f->w[i];
    return s;
}
static void test_unary_differences(void **state)
{
    (void)state;
    for (int kind = MC_UNARY_GELU; kind <= MC_UNARY_SOFTCAP; kind++) {
        struct one f = {(enum mc_unary_kind)kind, noise_new(35, 1), noise_new(35, 2)};
        double dx[35];
        for (int i = 0; i < 35; i++)
            f.x[i] = f.x[i] * 3 + (f.x[i] < 0 ? -0.01 : 0.01);
        tables[1]->unary_bwd(pools[0], &(struct mc_unary){.kind = f.kind,
                                                          .m = 7,
                                                          .c = 5,
                                                          .x = f.x,
                                                          .ldx = 5,
                                                          .dy = f.w,
                                                          .lddy = 5,
                                                          .dx = dx,
                                                          .lddx = 5,
                                                          .cap = CAP});
        close_fd("unary dx", dx, differences(one_weighted, &f, f.x, 35), 35);
        mc_free(f.x), mc_free(f.w);
    }
}

/* -- add, dropout ----------------------------------------------------------------------------- */

static void test_add(void **state)
{
    static const double factor[][2] = {{1, 1}, {0.5, -2}, {1, 0.25}};
    (void)state;
    for (int i = 0; i < 72; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        int64_t m = rows[i / 2 % 3], c = cols[i / 6 % 4];
        const double *a = factor[i / 24];
        double *x = noise_new(m * c, 1), *y = noise_new(m * c, 2), *z = zeros_new(m * c);
        void *ky = mat(k, y, m, c, c + 1);
        for (int64_t j = 0; j < m * c; j++)
            z[j] = a[0] * x[j] + a[1] * y[j];
        for (int t = 0; t < POOLS; t++) {
            void *kx = mat(k, x, m, c, c + 2); /* z is x */
            k->add(pools[t], &(struct mc_add){.m = m,
                                              .c = c,
                                              .x = kx,
                                              .ldx = c + 2,
                                              .y = ky,
                                              .ldy = c + 1,
                                              .z = kx,
                                              .ldz = c + 2,
                                              .ax = a[0],
                                              .ay = a[1]});
            close_to(k, "add", kx, c + 2, z, m, c);
            mc_free(kx);
        }
        mc_free(ky), mc_free(x), mc_free(y), mc_free(z);
    }
}

/* Infinities and NaN, too, which 0 y would spoil. */
static void a_copy_keeps_every_bit(void **state)
{
    static const double far[] = {INFINITY, -INFINITY, NAN, -0.0, 0.0, 1e-45, -1.5};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct mc_kern_ops *k = tables[i];
        void *x = mat(k, far, 1, 7, 7), *z = mat(k, far + 1, 1, 6, 7);
        k->add(pools[0],
               &(struct mc_add){
                   .m = 1, .c = 7, .x = x, .ldx = 7, .y = x, .ldy = 7, .z = z, .ldz = 7, .ax = 1});
        assert_memory_equal(x, z, 7 * mc_dtype_size(k->dtype));
        mc_free(x), mc_free(z);
    }
}

static uint32_t word_of(uint64_t key, uint64_t step, uint64_t e)
{
    uint32_t ctr[4] = {(uint32_t)(e / 4), (uint32_t)(e / 4 >> 32), (uint32_t)step,
                       (uint32_t)(step >> 32)};
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)}, out[4];
    mc_philox4x32(ctr, k, out);
    return out[e % 4];
}

static void test_dropout(void **state)
{
    const uint64_t key = 0x123456789abcdef0u, step = 0x100000007u;
    (void)state;
    for (int i = 0; i < 24; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        int64_t m = rows[i / 2 % 3], c = cols[i / 6], ld = c + 1;
        double p = i % 3 == 0 ? 0.1 : 0.5, *x = noise_new(m * c, 1), *y = zeros_new(m * c);
        int64_t *row = mc_alloc((size_t)m * sizeof *row, "test");
        for (int64_t r = 0; r < m; r++)
            row[r] = (r * 37 + 5) % 1000 + ((int64_t)1 << 33);
        uint64_t first = (uint64_t)i * 3;
        for (int mapped = 0; mapped < 2; mapped++) {
            void *kx = mat(k, x, m, c, ld), *kept = NULL;
            for (int64_t j = 0; j < m * c; j++) {
                int64_t r = mapped ? row[j / c] : j / c;
                uint64_t e = first + (uint64_t)(r * c + j % c);
                y[j] = (double)word_of(key, step, e) / 4294967296.0 >= p ? x[j] / (1 - p) : 0;
            }
            for (int t = 0; t < POOLS; t++) {
                void *ky = mat(k, NULL, m, c, ld);
                k->dropout(pools[t], &(struct mc_dropout){.m = m,
                                                          .c = c,
                                                          .x = kx,
                                                          .ldx = ld,
                                                          .y = ky,
                                                          .ldy = ld,
                                                          .p = p,
                                                          .key = key,
                                                          .step = step,
                                                          .first = first,
                                                          .row = mapped ? row : NULL});
                close_to(k, "dropout", ky, ld, y, m, c);
                same_bits(&kept, ky, (size_t)(m * ld) * elem(k));
                mc_free(ky);
            }
            mc_free(kx), mc_free(kept);
        }
        mc_free(x), mc_free(y), mc_free(row);
    }
}

/* The share that is kept is 1 - p within 5 standard deviations; p = 0 keeps all. */
static void test_dropout_share(void **state)
{
    enum { N = 200000 };
    float *x = mc_alloc(N * sizeof *x, "test"), *y = mc_alloc(N * sizeof *y, "test");
    int64_t kept = 0;
    struct mc_dropout o = {.m = 200,
                           .c = N / 200,
                           .x = x,
                           .ldx = N / 200,
                           .y = y,
                           .ldy = N / 200,
                           .p = 0.3,
                           .key = 5,
                           .step = 1};
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = 1;
    tables[0]->dropout(pools[1], &o);
    for (int i = 0; i < N; i++)
        kept += y[i] != 0;
    assert_true(fabs((double)kept / N - 0.7) < 5 * sqrt(0.21 / N));
    o.p = 0;
    tables[0]->dropout(pools[1], &o);
    assert_memory_equal(x, y, N * sizeof *x);
    mc_free(x), mc_free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary),       cmocka_unit_test(test_far),
        cmocka_unit_test(test_softcap_far), cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_geglu),       cmocka_unit_test(test_unary_differences),
        cmocka_unit_test(test_add),         cmocka_unit_test(a_copy_keeps_every_bit),
        cmocka_unit_test(test_dropout),     cmocka_unit_test(test_dropout_share),
    };
    return cmocka_run_group_tests(tests, kern_setup, kern_teardown);
}
