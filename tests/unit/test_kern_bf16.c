/* test_kern_bf16.c - every bf16 kernel against a plain formula in fp64 that is rounded once: the
 * stated rounding point, and no other.
 * links: mc_kern
 *
 * Rounding is monotone. So when fp32 arithmetic inside a kernel is off by at most `slack`, what it
 * stores lies between round16(ref - slack) and round16(ref + slack), and for nearly every element
 * these are one number. A kernel that rounds inside, twice or elsewhere misses it: half a unit of
 * bf16 is 2^-9, slack at most some 2^-20 of the operands. round16 is written with rint() on scaled
 * doubles, the kernels' with integers. All on 1, 2, 3 and 5 threads with the same bits. */
#include "kern_test.h"
#include "../../core/tensor/bf16.h"

#define M     37
#define C     83
#define LD    90
#define EPS32 5.96e-8 /* 2^-24 */

static const struct mc_kern_ops *k16;

/* -- The format ------------------------------------------------------------------------------- */

static double round16(double x)
{
    if (x == 0 || !isfinite(x))
        return x;
    int e = ilogb(x) < -126 ? -126 : ilogb(x);
    double y = ldexp(rint(ldexp(x, 7 - e)), e - 7);
    return fabs(y) >= 0x1p128 ? copysign(INFINITY, x) : y;
}

static float from_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

/* All 2^16 values, their fp32 neighbours, and the ties between them, one by one and in vectors. */
static void bf16_rounds_to_nearest_even(void **state)
{
    enum { AROUND = 7 };
    static const int32_t near[AROUND] = {0, 1, -1, 0x7fff, 0x8000, 0x8001, 0x4321};
    float *x = mc_alloc(AROUND * 65536 * sizeof *x, "test");
    uint16_t *y = mc_alloc(AROUND * 65536 * sizeof *y, "test");
    int64_t n = 0, ties = 0, subnormal = 0;
    (void)state;
    for (uint32_t v = 0; v < 65536; v++)
        for (int i = 0; i < AROUND; i++)
            x[n++] = from_bits((v << 16) + (uint32_t)near[i]);
    k16->from_f32(y, x, n);
    for (int64_t i = 0; i < n; i++) {
        float back;
        assert_int_equal(y[i], mc_bf16_from_f32(x[i]));
        k16->to_f32(&back, &y[i], 1);
        if (isnan(x[i])) { /* quiet, its sign kept */
            assert_true(isnan(back) && (y[i] & 0x40) && !signbit(back) == !signbit(x[i]));
            continue;
        }
        if (!((double)back == round16((double)x[i]) && !signbit(back) == !signbit(x[i])))
            fail_msg("%a became %a, not %a", (double)x[i], (double)back, round16((double)x[i]));
        ties += i % AROUND == 4;
        subnormal += back != 0 && fabsf(back) < 0x1p-126f;
    }
    assert_true(ties > 65000 && subnormal > 1000);
    mc_free(x);
    mc_free(y);
}

/* -- Operands and the comparison -------------------------------------------------------------- */

/* n bf16 values in [-size, size). */
static double *noise16(int64_t n, uint64_t seed, double size)
{
    double *x = noise_new(n, seed);
    for (int64_t i = 0; i < n; i++)
        x[i] = round16(x[i] * size);
    return x;
}

/* [m, n] with stride ld; src NULL: NaN. */
static uint16_t *mat16(const double *src, int64_t m, int64_t n, int64_t ld)
{
    uint16_t *p = mc_alloc((size_t)(m * ld + 1) * sizeof *p, "test");
    assert_non_null(p);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ld; j++)
            p[i * ld + j] = mc_bf16_from_f32((float)(j >= n ? PAD
                                                     : src  ? src[i * n + j]
                                                            : (double)NAN));
    return p;
}

/* Decided: one number. Exact ties of short operands are not; nor is what slack itself drowns. */
static void rounded_once(const char *what, const uint16_t *got, int64_t ld, const double *ref,
                         int64_t m, int64_t n, double slack)
{
    int64_t decided = 0, counted = 0;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double r = ref[i * n + j], g = (double)mc_bf16_to_f32(got[i * ld + j]);
            double low = round16(r - slack), high = round16(r + slack);
            counted += fabs(r) > 1024 * slack;
            decided += fabs(r) > 1024 * slack && low == high;
            if (!(low <= g && g <= high))
                fail_msg("%s [%lld, %lld]: %.9g, where %.9g rounds to %.9g", what, (long long)i,
                         (long long)j, g, r, round16(r));
        }
        for (int64_t j = n; j < ld; j++)
            assert_int_equal(got[i * ld + j], mc_bf16_from_f32((float)PAD));
    }
    if (decided * 10 < counted * 7)
        fail_msg("%s: of %lld elements only %lld are decided", what, (long long)counted,
                 (long long)decided);
}

/* Wide outputs are not rounded. */
static void never_rounded(const char *what, const float *got, int64_t ld, const double *ref,
                          int64_t m, int64_t n, double slack)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            if (!(fabs((double)got[i * ld + j] - ref[i * n + j]) <= slack))
                fail_msg("%s [%lld, %lld]: %.9g, not %.9g", what, (long long)i, (long long)j,
                         (double)got[i * ld + j], ref[i * n + j]);
}

/* -- Products --------------------------------------------------------------------------------- */

enum mode { PLAIN, ACC, BIAS, WIDE, NMODES };

static void product(int64_t m, int64_t n, int64_t k, int ta, int tb, enum mode mode)
{
    int64_t am = ta ? k : m, an = ta ? m : k, bm = tb ? n : k, bn = tb ? k : n;
    double *a = noise16(am * an, 1, 1), *b = noise16(bm * bn, 2, 1), *c = noise16(m * n, 3, 1);
    double *bias = noise16(n, 4, 1), *ref = zeros_new(m * n), alpha = mode == PLAIN ? 1 : 0.75;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double s = 0;
            for (int64_t p = 0; p < k; p++)
                s += (ta ? a[p * m + i] : a[i * k + p]) * (tb ? b[j * k + p] : b[p * n + j]);
            ref[i * n + j] = alpha * s + (mode == ACC || mode == WIDE ? c[i * n + j] : 0) +
                             (mode == BIAS ? bias[j] : 0);
        }
    uint16_t *ka = mat16(a, am, an, an + 3), *kb = mat16(b, bm, bn, bn + 1);
    uint16_t *kbias = mat16(bias, 1, n, n);
    void *kept = NULL;
    struct mc_gemm g = {.m = m, .n = n, .k = k, .ta = ta, .tb = tb, .a = ka, .b = kb};
    g.lda = an + 3, g.ldb = bn + 1, g.ldc = n + 2, g.alpha = alpha;
    g.acc = mode == ACC || mode == WIDE, g.wide = mode == WIDE;
    g.bias = mode == BIAS ? kbias : NULL;
    double slack = (double)(k + 4) * EPS32;
    for (int t = 0; t < POOLS; t++) {
        void *kc = mode == WIDE ? mat(tables[0], c, m, n, n + 2)
                                : (void *)mat16(mode == ACC ? c : NULL, m, n, n + 2);
        g.c = kc;
        k16->gemm(pools[t], &g);
        if (mode == WIDE)
            never_rounded("gemm, wide", kc, n + 2, ref, m, n, slack);
        else
            rounded_once("gemm", kc, n + 2, ref, m, n, slack);
        same_bits(&kept, kc, (size_t)(m * (n + 2)) * (mode == WIDE ? 4 : 2));
        mc_free(kc);
    }
    mc_free(kept), mc_free(ka), mc_free(kb), mc_free(kbias);
    mc_free(a), mc_free(b), mc_free(c), mc_free(bias), mc_free(ref);
}

static void products(void **state)
{
    static const int64_t edge[] = {1, 7, 129, 257};
    static const int64_t large[][3] = {{300, 500, 300}, {5, 4, 0}, {1, 700, 900}, {33, 65, 3000}};
    (void)state;
    for (int i = 0; i < 64; i++)
        for (int op = 0; op < 4; op++)
            product(edge[i & 3], edge[i >> 2 & 3], edge[i >> 4], op & 1, op >> 1,
                    (enum mode)((i + op) % NMODES));
    for (int i = 0; i < 4; i++)
        for (int op = 0; op < 4; op++)
            product(large[i][0], large[i][1], large[i][2], op & 1, op >> 1,
                    (enum mode)((i + op) % NMODES));
}

/* -- Norms ------------------------------------------------------------------------------------ */

struct norms {
    double *x, *w, *b, *dy, *add, *y, *dx, *dw, *db, *rstd, *mean;
};

/* rows of c; h = (x - mean) rstd, g = dy w, dx = rstd (g - mean g - h mean(g h)); rms: no means. */
static void naive_norm(struct norms *o, int64_t m, int64_t c, int layer, int unit)
{
    for (int64_t r = 0; r < m; r++) {
        const double *x = o->x + r * c, *dy = o->dy + r * c;
        double mean = 0, var = 0, gm = 0, gh = 0;
        for (int64_t j = 0; layer && j < c; j++)
            mean += x[j] / (double)c;
        for (int64_t j = 0; j < c; j++)
            var += (x[j] - mean) * (x[j] - mean) / (double)c;
        double s = 1 / sqrt(var + 1e-5);
        o->rstd[r] = s, o->mean[r] = mean;
        for (int64_t j = 0; j < c; j++) {
            double w = o->w[j] + unit, h = (x[j] - mean) * s;
            o->y[r * c + j] = h * w + (layer ? o->b[j] : 0);
            gm += layer ? dy[j] * w / (double)c : 0;
            gh += dy[j] * w * h / (double)c;
            o->dw[j] += dy[j] * h;
            o->db[j] += dy[j];
        }
        for (int64_t j = 0; j < c; j++) {
            double w = o->w[j] + unit, h = (x[j] - mean) * s;
            o->dx[r * c + j] = s * (dy[j] * w - gm - h * gh);
        }
    }
}

static void norm_case(int layer, int heads, int unit, int acc)
{
    int64_t c = heads > 1 ? C / heads : C, m = M * heads, row = c * heads;
    struct norms o = {noise16(m * c, 1, 3), noise16(c, 2, 1),     noise16(c, 3, 1),
                      noise16(m * c, 4, 1), noise16(m * c, 5, 1), zeros_new(m * c),
                      zeros_new(m * c),     zeros_new(c),         zeros_new(c),
                      zeros_new(m),         zeros_new(m)};
    naive_norm(&o, m, c, layer, unit);
    for (int64_t i = 0; acc && i < m * c; i++)
        o.dx[i] += o.add[i];
    uint16_t *x = mat16(o.x, M, row, LD), *w = mat16(o.w, 1, c, c), *b = mat16(o.b, 1, c, c);
    uint16_t *dy = mat16(o.dy, M, row, LD);
    double *zero = zeros_new(c);
    void *kept[4] = {NULL};
    for (int t = 0; t < POOLS; t++) {
        uint16_t *y = mat16(NULL, M, row, LD), *dx = mat16(acc ? o.add : NULL, M, row, LD);
        float *rstd = vec(tables[0], NULL, m), *mean = vec(tables[0], o.mean, m);
        float *dw = vec(tables[0], zero, c), *db = vec(tables[0], zero, c);
        void *scratch = mc_alloc(k16->norm_scratch(m, c), "test");
        struct mc_norm f = {.m = M, .c = c, .eps = 1e-5, .x = x, .w = w, .y = y, .rstd = rstd};
        struct mc_norm_grad g = {.m = M, .c = c, .x = x, .w = w, .dy = dy, .dx = dx, .dw = dw};
        f.b = layer ? b : NULL, f.mean = mean, f.ldx = f.ldy = LD, f.heads = heads, f.unit = unit;
        g.db = db, g.rstd = rstd, g.mean = mean, g.ldx = g.lddy = g.lddx = LD, g.heads = heads;
        g.unit = unit, g.acc_dx = acc, g.scratch = scratch;
        (layer ? k16->layernorm : k16->rmsnorm)(pools[t], &f);
        (layer ? k16->layernorm_bwd_input : k16->rmsnorm_bwd_input)(pools[t], &g);
        (layer ? k16->layernorm_bwd_weight : k16->rmsnorm_bwd_weight)(pools[t], &g);
        rounded_once("norm y", y, LD, o.y, M, row, 2e-6);
        rounded_once("norm dx", dx, LD, o.dx, M, row, 2e-6);
        never_rounded("rstd", rstd, m, o.rstd, 1, m, 2e-6);
        never_rounded("mean", mean, m, o.mean, 1, m, 2e-6);
        never_rounded("norm dw", dw, c, o.dw, 1, c, 2e-5);
        if (layer)
            never_rounded("norm db", db, c, o.db, 1, c, 2e-5);
        same_bits(&kept[0], y, (size_t)(M * LD) * 2);
        same_bits(&kept[1], dx, (size_t)(M * LD) * 2);
        same_bits(&kept[2], dw, (size_t)c * 4);
        same_bits(&kept[3], rstd, (size_t)m * 4);
        mc_free(y), mc_free(dx), mc_free(rstd), mc_free(mean), mc_free(dw), mc_free(db);
        mc_free(scratch);
    }
    for (int i = 0; i < 4; i++)
        mc_free(kept[i]);
    double *all[] = {o.x, o.w, o.b, o.dy, o.add, o.y, o.dx, o.dw, o.db, o.rstd, o.mean, zero};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mc_free(all[i]);
    mc_free(x), mc_free(w), mc_free(b), mc_free(dy);
}

static void norms(void **state)
{
    (void)state;
    for (int acc = 0; acc < 2; acc++) {
        norm_case(1, 1, 0, acc);
        norm_case(0, 1, 0, acc);
        norm_case(0, 1, 1, acc);
        norm_case(0, 4, 0, acc);
        norm_case(0, 4, 1, acc);
    }
}

/* -- Element by element ----------------------------------------------------------------------- */

static double f_of(int kind, double x, double cap)
{
    switch (kind) {
    case MC_UNARY_GELU:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MC_UNARY_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case MC_UNARY_SILU:
        return x / (1 + exp(-x));
    case MC_UNARY_RELU:
        return fmax(x, 0);
    case MC_UNARY_RELU_SQUARED:
        return fmax(x, 0) * fmax(x, 0);
    default:
        return cap * tanh(x / cap);
    }
}

/* Central differences: 1e-9 off. */
static double slope_of(int kind, double x, double cap)
{
    double h = 1e-6;
    if ((kind == MC_UNARY_RELU || kind == MC_UNARY_RELU_SQUARED) && x <= 0)
        return 0;
    return (f_of(kind, x + h, cap) - f_of(kind, x - h, cap)) / (2 * h);
}

static void activations(void **state)
{
    static const int gates[] = {MC_UNARY_SILU, MC_UNARY_GELU, MC_UNARY_GELU_ERF};
    double *x = noise16(M * C, 1, 6), *u = noise16(M * C, 2, 1), *dy = noise16(M * C, 3, 1);
    double *ref[3] = {zeros_new(M * C), zeros_new(M * C), zeros_new(M * C)};
    uint16_t *kx = mat16(x, M, C, LD), *ku = mat16(u, M, C, LD), *kdy = mat16(dy, M, C, LD);
    uint16_t *o[3] = {mat16(NULL, M, C, LD), mat16(NULL, M, C, LD), mat16(NULL, M, C, LD)};
    (void)state;
    for (int kind = 0; kind <= MC_UNARY_SOFTCAP; kind++) {
        struct mc_unary a = {.kind = (enum mc_unary_kind)kind, .m = M, .c = C, .x = kx, .y = o[0]};
        a.ldx = a.ldy = a.lddy = a.lddx = LD, a.dy = kdy, a.dx = o[1], a.cap = 2.5;
        k16->unary(pools[1], &a);
        k16->unary_bwd(pools[2], &a);
        for (int i = 0; i < M * C; i++) {
            ref[0][i] = f_of(kind, x[i], 2.5);
            ref[1][i] = dy[i] * slope_of(kind, x[i], 2.5);
        }
        rounded_once("activation", o[0], LD, ref[0], M, C, 1e-5);
        rounded_once("its gradient", o[1], LD, ref[1], M, C, 1e-5);
    }
    for (int gate = 0; gate < 3; gate++) {
        struct mc_swiglu s = {.m = M, .c = C, .g = kx, .u = ku, .y = o[0], .dy = kdy};
        s.ldg = s.ldu = s.ldy = s.lddy = s.lddg = s.lddu = LD, s.dg = o[1], s.du = o[2];
        s.gate = (enum mc_gate_kind)gate;
        k16->swiglu(pools[1], &s);
        k16->swiglu_bwd(pools[2], &s);
        for (int i = 0; i < M * C; i++) {
            ref[0][i] = f_of(gates[gate], x[i], 0) * u[i];
            ref[1][i] = dy[i] * u[i] * slope_of(gates[gate], x[i], 0);
            ref[2][i] = dy[i] * f_of(gates[gate], x[i], 0);
        }
        for (int i = 0; i < 3; i++)
            rounded_once("gate", o[i], LD, ref[i], M, C, 1e-5);
    }
    for (int i = 0; i < 3; i++)
        mc_free(ref[i]), mc_free(o[i]);
    mc_free(x), mc_free(u), mc_free(dy), mc_free(kx), mc_free(ku), mc_free(kdy);
}

/* Sums, dropout, rope, tables, bias: what is left of one row at a time. */
static void rows(void **state)
{
    static int32_t ids[M];
    double *x = noise16(M * C, 1, 3), *y = noise16(M * C, 2, 1), *ref = zeros_new(M * C);
    double *sum = zeros_new(M * C), *co = noise_new(M * 20, 3), *si = noise_new(M * 20, 4);
    uint16_t *kx = mat16(x, M, C, LD), *ky = mat16(y, M, C, LD), *o = mat16(NULL, M, C, LD);
    uint16_t *table = mat16(y, M, C, C);
    float *wide = vec(tables[0], sum, M * C), *kco = vec(tables[0], co, M * 20);
    float *ksi = vec(tables[0], si, M * 20);
    (void)state;
    struct mc_add a = {.m = M, .c = C, .x = kx, .y = ky, .z = o, .ax = 1, .ay = 1};
    a.ldx = a.ldy = a.ldz = LD;
    for (int pass = 0; pass < 2; pass++) { /* the residual; a scaled sum */
        k16->add(pools[1], &a);
        for (int i = 0; i < M * C; i++)
            ref[i] = a.ax * x[i] + a.ay * y[i];
        rounded_once("add", o, LD, ref, M, C, 4 * EPS32);
        a.ax = 0.3, a.ay = -1.7;
    }
    for (int i = 0; i < M; i++)
        ids[i] = i * 7 % M;
    struct mc_embed e = {.m = M, .c = C, .vocab = M, .t = M, .ids = ids, .w = table, .x = kx};
    e.ldx = e.ldy = e.lddy = LD, e.y = o, e.dy = kx, e.dw = wide;
    k16->embed(pools[1], &e);
    for (int i = 0; i < M * C; i++)
        ref[i] = y[ids[i / C] * C + i % C];
    rounded_once("embed", o, LD, ref, M, C, 0);
    k16->positions(pools[1], &e);
    for (int i = 0; i < M * C; i++)
        ref[i] = x[i] + y[i];
    rounded_once("positions", o, LD, ref, M, C, 4 * EPS32);
    k16->embed_bwd(pools[1], &e);
    k16->positions_bwd(pools[1], &e);
    for (int i = 0; i < M * C; i++) {
        sum[ids[i / C] * C + i % C] += x[i];
        sum[i] += x[i];
    }
    never_rounded("rows of tables", wide, C, sum, M, C, 1e-6);
    memset(wide, 0, C * sizeof *wide), memset(sum, 0, C * sizeof *sum);
    void *scratch = mc_alloc(k16->bias_scratch(M, C), "test");
    k16->bias_bwd(pools[1], M, C, kx, LD, wide, scratch);
    for (int i = 0; i < M * C; i++)
        sum[i % C] += x[i];
    never_rounded("bias", wide, C, sum, 1, C, 2e-5);
    for (int pairs = 0; pairs < 2; pairs++) { /* 2 heads of 41, 40 columns turned; 83 = 82 + 1 */
        struct mc_rope r = {.b = 1, .t = M, .heads = 2, .d = 41, .cos = kco, .sin = ksi, .x = kx};
        r.ldx = r.ldy = LD, r.y = o, r.turned = 40, r.interleaved = pairs, r.inverse = pairs;
        k16->rope(pools[1], &r);
        memcpy(ref, x, M * C * sizeof *ref);
        for (int i = 0; i < M * 40; i++) {
            int row = i / 40, j = i % 20, h = row * C + i % 40 / 20 * 41;
            int p = h + (pairs ? 2 * j : j), q = h + (pairs ? 2 * j + 1 : j + 20);
            double c = co[row * 20 + j], s = pairs ? -si[row * 20 + j] : si[row * 20 + j];
            ref[p] = x[p] * c - x[q] * s;
            ref[q] = x[q] * c + x[p] * s;
        }
        for (int i = 0; i < M; i++) /* the column beyond the heads is not touched: as o was */
            ref[i * C + 82] = (double)mc_bf16_to_f32(o[i * LD + 82]);
        rounded_once("rope", o, LD, ref, M, C, 8 * EPS32);
    }
    struct mc_dropout d = {.m = M, .c = C, .x = kx, .y = o, .p = 0.2, .key = 3, .first = 1};
    d.ldx = d.ldy = LD;
    k16->dropout(pools[1], &d);
    float *f = mat(tables[0], x, M, C, LD);
    d.x = d.y = f;
    tables[0]->dropout(pools[0], &d); /* the same elements go */
    for (int i = 0; i < M * C; i++)
        ref[i] = f[i / C * LD + i % C] == 0 ? 0 : x[i] / 0.8;
    rounded_once("dropout", o, LD, ref, M, C, 8 * EPS32);
    mc_free(f), mc_free(scratch), mc_free(x), mc_free(y), mc_free(ref), mc_free(sum), mc_free(co);
    mc_free(si), mc_free(kx), mc_free(ky), mc_free(o), mc_free(table), mc_free(wide);
    mc_free(kco), mc_free(ksi);
}

/* -- Attention -------------------------------------------------------------------------------- */

struct attn {
    int64_t b, t, heads, kv, d, window;
    double *q, *k, *v, *d_o, *o, *dq, *dk, *dv, *lse;
};

/* The whole matrix. Backward reads o as it was stored, rounded. */
static void naive_attention(struct attn *a, double scale)
{
    int64_t t = a->t, d = a->d, qw = a->heads * d, kw = a->kv * d;
    double *p = zeros_new(t);
    for (int64_t r = 0; r < a->b * a->heads * t; r++) {
        int64_t i = r % t, h = r / t % a->heads, b = r / t / a->heads;
        int64_t first = a->window > 0 && i >= a->window ? i - a->window + 1 : 0;
        int64_t at = (b * t + i) * qw + h * d, kv = h * a->kv / a->heads * d;
        double sum = 0, delta = 0;
        for (int64_t j = first; j <= i; j++) {
            double s = 0;
            for (int64_t e = 0; e < d; e++)
                s += a->q[at + e] * a->k[(b * t + j) * kw + kv + e];
            sum += p[j] = exp(s * scale);
        }
        a->lse[r] = log(sum);
        for (int64_t e = 0; e < d; e++) {
            double o = 0;
            for (int64_t j = first; j <= i; j++)
                o += p[j] / sum * a->v[(b * t + j) * kw + kv + e];
            a->o[at + e] = o;
            delta += round16(o) * a->d_o[at + e];
        }
        for (int64_t j = first; j <= i; j++) {
            int64_t key = (b * t + j) * kw + kv;
            double dp = 0, pj = p[j] / sum;
            for (int64_t e = 0; e < d; e++)
                dp += a->d_o[at + e] * a->v[key + e];
            double ds = pj * (dp - delta) * scale;
            for (int64_t e = 0; e < d; e++) {
                a->dq[at + e] += ds * a->k[key + e];
                a->dk[key + e] += ds * a->q[at + e];
                a->dv[key + e] += pj * a->d_o[at + e];
            }
        }
    }
    mc_free(p);
}

static void attention_case(int64_t b, int64_t t, int64_t heads, int64_t kv, int64_t d,
                           int64_t window)
{
    int64_t rows_ = b * t, qw = heads * d, kw = kv * d;
    struct attn a = {.b = b, .t = t, .heads = heads, .kv = kv, .d = d, .window = window};
    double **q[] = {&a.q, &a.d_o, &a.o, &a.dq}, **k[] = {&a.k, &a.v, &a.dk, &a.dv};
    for (int i = 0; i < 4; i++) {
        *q[i] = i < 2 ? noise16(rows_ * qw, (uint64_t)i + 1, 1) : zeros_new(rows_ * qw);
        *k[i] = i < 2 ? noise16(rows_ * kw, (uint64_t)i + 5, 1) : zeros_new(rows_ * kw);
    }
    a.lse = zeros_new(rows_ * heads);
    naive_attention(&a, 0.7);
    uint16_t *kq = mat16(a.q, rows_, qw, qw + 3), *kk = mat16(a.k, rows_, kw, kw + 1);
    uint16_t *kv_ = mat16(a.v, rows_, kw, kw + 2), *kdo = mat16(a.d_o, rows_, qw, qw + 1);
    void *kept[4] = {NULL};
    for (int p = 0; p < POOLS; p++) {
        uint16_t *o = mat16(NULL, rows_, qw, qw + 2), *dq = mat16(NULL, rows_, qw, qw + 5);
        uint16_t *dk = mat16(NULL, rows_, kw, kw + 4), *dv = mat16(NULL, rows_, kw, kw + 3);
        float *lse = vec(tables[0], NULL, rows_ * heads);
        size_t room = k16->attn_scratch(b, t, heads, kv, d, pool_threads[p]);
        unsigned char *scratch = mc_alloc(room + 64, "test");
        memset(scratch + room, 99, 64);
        struct mc_attn_grad g = {.f = {.b = b, .t = t, .heads = heads, .kv_heads = kv, .d = d}};
        g.f.q = kq, g.f.k = kk, g.f.v = kv_, g.f.o = o, g.f.lse = lse, g.f.scale = 0.7;
        g.f.ldq = qw + 3, g.f.ldk = kw + 1, g.f.ldv = kw + 2, g.f.ldo = qw + 2, g.f.causal = 1;
        g.f.scratch = g.scratch = scratch, g.f.mask.window = window;
        g.d_o = kdo, g.lddo = qw + 1, g.dq = dq, g.dk = dk, g.dv = dv;
        g.lddq = qw + 5, g.lddk = kw + 4, g.lddv = kw + 3;
        k16->attn(pools[p], &g.f);
        k16->attn_bwd(pools[p], &g);
        rounded_once("attention o", o, qw + 2, a.o, rows_, qw, 2e-6);
        never_rounded("lse", lse, t, a.lse, b * heads, t, 5e-6);
        rounded_once("attention dq", dq, qw + 5, a.dq, rows_, qw, 5e-6);
        rounded_once("attention dk", dk, kw + 4, a.dk, rows_, kw, 1e-5);
        rounded_once("attention dv", dv, kw + 3, a.dv, rows_, kw, 1e-5);
        for (int i = 0; i < 64; i++)
            assert_int_equal(scratch[room + (size_t)i], 99);
        same_bits(&kept[0], o, (size_t)(rows_ * (qw + 2)) * 2);
        same_bits(&kept[1], dq, (size_t)(rows_ * (qw + 5)) * 2);
        same_bits(&kept[2], dk, (size_t)(rows_ * (kw + 4)) * 2);
        same_bits(&kept[3], dv, (size_t)(rows_ * (kw + 3)) * 2);
        if (b == 1) { /* the last rows once more, through a cache */
            int64_t from = t / 3;
            struct mc_attn_cached c = {.t = t - from, .pos0 = from, .heads = heads, .d = d};
            uint16_t *cache = mat16(a.v, t, kw, kw + 1); /* keys and values share a stride */
            c.kv_heads = kv, c.scale = 0.7, c.q = kq + from * (qw + 3), c.ldq = qw + 3;
            c.kc = kk, c.vc = cache, c.ldc = kw + 1, c.o = o, c.ldo = qw + 2;
            c.scratch = scratch, c.mask.window = window;
            k16->attn_cached(pools[p], &c);
            rounded_once("attention, cached", o, qw + 2, a.o + from * qw, t - from, qw, 2e-6);
            mc_free(cache);
        }
        mc_free(o), mc_free(dq), mc_free(dk), mc_free(dv), mc_free(lse), mc_free(scratch);
    }
    for (int i = 0; i < 4; i++)
        mc_free(kept[i]), mc_free(*q[i]), mc_free(*k[i]);
    mc_free(a.lse), mc_free(kq), mc_free(kk), mc_free(kv_), mc_free(kdo);
}

static void attention(void **state)
{
    (void)state;
    attention_case(2, 17, 6, 2, 6, 0);
    attention_case(3, 65, 3, 3, 8, 0);
    attention_case(1, 301, 2, 1, 33, 0);
    attention_case(1, 130, 4, 2, 16, 9);
}

/* -- Loss and update -------------------------------------------------------------------------- */

static void cross_entropy(void **state)
{
    (void)state;
    for (int options = 0; options < 2; options++) {
        double e = options ? 0.1 : 0, z = options ? 1e-2 : 0, scale = 1 / 29.0;
        double *x = noise16(M * C, 1, 8), *ref = zeros_new(M * C), loss[M], lse[M];
        int32_t target[M];
        for (int r = 0; r < M; r++) {
            double sum = 0, mean = 0, *row = x + r * C;
            target[r] = r % 5 == 0 ? -1 : r * 11 % (C - 2);
            for (int j = 0; j < C - 2 && r % 5 == 1; j++) /* a hit: most of the probability */
                target[r] = row[j] > row[target[r]] ? j : target[r];
            for (int j = 0; j < C - 2; j++)
                sum += exp(row[j]), mean += row[j] / (C - 2);
            lse[r] = target[r] < 0 ? 0 : log(sum);
            loss[r] = target[r] < 0 ? 0
                                    : (1 - e) * (lse[r] - row[target[r]]) + e * (lse[r] - mean) +
                                          z * lse[r] * lse[r];
            for (int j = 0; j < C - 2 && target[r] >= 0; j++)
                ref[r * C + j] = scale * (exp(row[j] - lse[r]) * (1 + 2 * z * lse[r]) -
                                          e / (C - 2) - (j == target[r] ? 1 - e : 0));
        }
        void *kept = NULL;
        for (int t = 0; t < POOLS; t++) {
            uint16_t *kx = mat16(x, M, C, LD);
            float *kloss = vec(tables[0], NULL, M), *klse = vec(tables[0], NULL, M);
            struct mc_xent o = {.m = M, .v = C - 2, .pad = 2, .targets = target, .logits = kx};
            o.ld = LD, o.lse = klse, o.loss = kloss, o.scale = scale, o.smoothing = e, o.z = z;
            k16->xent(pools[t], &o);
            never_rounded("token losses", kloss, M, loss, 1, M, 4e-6);
            never_rounded("lse", klse, M, lse, 1, M, 4e-6);
            assert_true(fabs(k16->sum(pools[t], kloss, M) - tables[0]->sum(pools[0], kloss, M)) ==
                        0);
            k16->xent_bwd(pools[t], &o);
            rounded_once("dlogits", kx, LD, ref, M, C, 2e-7 * scale);
            same_bits(&kept, kx, (size_t)(M * LD) * 2);
            mc_free(kx), mc_free(kloss), mc_free(klse);
        }
        mc_free(kept), mc_free(x), mc_free(ref);
    }
}

/* The master is the fp32 kernel's, to the bit; the weight is its rounding. */
static void adamw(void **state)
{
    enum { N = 40000 };
    double *n = noise_new(4 * N, 1);
    (void)state;
    float *p[2] = {vec(tables[0], n, 4 * N), vec(tables[0], n, 4 * N)};
    uint16_t *weight = mat16(NULL, 1, N, N);
    for (int i = 0; i < 2; i++) {
        struct mc_adamw a = {
            .n = N, .w = p[i], .m = p[i] + N, .v = p[i] + 2 * N, .g = p[i] + 3 * N};
        for (int j = 2 * N; j < 3 * N; j++)
            p[i][j] = fabsf(p[i][j]);
        a.gscale = 0.9, a.lr = 0.1, a.beta1 = 0.9, a.beta2 = 0.95, a.eps = 1e-8, a.decay = 0.1;
        a.bias1 = 0.3, a.bias2 = 0.2, a.rounded = i ? weight : NULL;
        (i ? k16 : tables[0])->adamw(pools[2], &a);
    }
    assert_memory_equal(p[0], p[1], 4 * N * sizeof(float));
    for (int i = 0; i < N; i++)
        assert_true((double)mc_bf16_to_f32(weight[i]) == round16((double)p[0][i]));
    assert_ptr_equal(k16->wide, tables[0]);
    mc_free(n), mc_free(p[0]), mc_free(p[1]), mc_free(weight);
}

static int setup(void **state)
{
    if (kern_setup(state) != 0)
        return -1;
    return mc_kern_get(MC_DEVICE_CPU, MC_BF16, &k16, NULL) == MC_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(products),
        cmocka_unit_test(norms),
        cmocka_unit_test(activations),
        cmocka_unit_test(rows),
        cmocka_unit_test(attention),
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(adamw),
    };
    return cmocka_run_group_tests(tests, setup, kern_teardown);
}
