/* test_kern_embed.c - rotary positions as complex numbers, token and position tables and their
 * gradients, whose sums must be in row order to the bit.
 * links: mc_kern
 */
#include <complex.h>
#include "kern_test.h"

/* -- rope ------------------------------------------------------------------------------------- */

/* turned: columns of a head that are rotated, 0: all. pairs: interleaved. */
static void rope(const struct mc_kern_ops *k, int64_t t, int64_t heads, int64_t d, int64_t turned,
                 int pairs)
{
    int64_t b = 2, pos0 = 3, m = b * t, w = heads * d, ld = w + 2;
    int64_t r0 = turned ? turned : d, h = r0 / 2;
    double *x = noise_new(m * w, 1), *y = zeros_new(m * w);
    double *co = zeros_new((pos0 + t) * h), *si = zeros_new((pos0 + t) * h);
    for (int64_t p = 0; p < pos0 + t; p++)
        for (int64_t i = 0; i < h; i++) {
            double a = (double)p * pow(10000, -2.0 * (double)i / (double)r0);
            co[p * h + i] = cos(a), si[p * h + i] = sin(a);
        }
    for (int64_t r = 0; r < m; r++)
        for (int64_t q = 0; q < heads; q++) {
            const double *in = x + r * w + q * d;
            double *out = y + r * w + q * d;
            for (int64_t i = 2 * h; i < d; i++)
                out[i] = in[i];
            for (int64_t i = 0; i < h; i++) {
                double a = (double)(pos0 + r % t) * pow(10000, -2.0 * (double)i / (double)r0);
                int64_t re = pairs ? 2 * i : i, im = pairs ? 2 * i + 1 : i + h;
                double complex z = (in[re] + in[im] * I) * cexp(a * I);
                out[re] = creal(z), out[im] = cimag(z);
            }
        }
    void *kc = vec(k, co, (pos0 + t) * h), *ks = vec(k, si, (pos0 + t) * h), *kept = NULL;
    for (int p = 0; p < POOLS; p++)
        for (int place = 0; place < 2; place++) {
            void *kx = mat(k, x, m, w, ld), *ky = place ? kx : mat(k, NULL, m, w, ld);
            struct mc_rope o = {.b = b,
                                .t = t,
                                .heads = heads,
                                .d = d,
                                .pos0 = pos0,
                                .cos = kc,
                                .sin = ks,
                                .x = kx,
                                .ldx = ld,
                                .y = ky,
                                .ldy = ld,
                                .turned = turned,
                                .interleaved = pairs};
            k->rope(pools[p], &o);
            close_to(k, "rope", ky, ld, y, m, w);
            same_bits(&kept, ky, (size_t)(m * ld) * elem(k));
            /* the inverse is the transpose, so it is the backward: it gives x back */
            o.x = o.y = ky, o.inverse = 1;
            k->rope(pools[p], &o);
            close_to(k, "rope inverse", ky, ld, x, m, w);
            mc_free(kx);
            if (!place)
                mc_free(ky);
        }
    mc_free(kept), mc_free(kc), mc_free(ks), mc_free(x), mc_free(y), mc_free(co), mc_free(si);
}

static void test_rope(void **state)
{
    static const int64_t len[] = {1, 7, 129}, size[] = {5, 64, 256};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 9; i++)
            for (int pairs = 0; pairs < 2; pairs++) {
                rope(tables[d], len[i % 3], i % 2 ? 3 : 1, size[i / 3], 0, pairs);
                rope(tables[d], len[i % 3], i % 2 ? 3 : 1, size[i / 3], size[i / 3] / 4 * 2, pairs);
            }
}

/* -- tokens ----------------------------------------------------------------------------------- */

#define VOCAB 257
static const int64_t rows[] = {1, 7, 129}, cols[] = {1, 5, 257};

static int32_t *ids_new(int64_t m)
{
    int32_t *ids = mc_alloc((size_t)m * sizeof *ids, "test");
    for (int64_t r = 0; r < m; r++) /* many repeats, the first and the last id among them */
        ids[r] = r % 3 == 0 ? (int32_t)(r % 2 ? VOCAB - 1 : 0) : (int32_t)(r * 91 % VOCAB);
    return ids;
}

static void test_embed(void **state)
{
    (void)state;
    for (int i = 0; i < 18; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        int64_t m = rows[i / 2 % 3], c = cols[i / 6], ld = c + 2;
        int32_t *ids = ids_new(m);
        double *w = noise_new(VOCAB * c, 1), *dy = noise_new(m * c, 2), *y = zeros_new(m * c);
        void *kw = vec(k, w, VOCAB * c), *kdy = mat(k, dy, m, c, ld), *ref = vec(k, w, VOCAB * c);
        for (int64_t j = 0; j < m * c; j++)
            y[j] = w[ids[j / c] * c + j % c];
        for (int64_t r = 0; r < m; r++) /* ascending rows, each sum rounded: exact comparison */
            for (int64_t j = 0; j < c; j++)
                set(k, ref, ids[r] * c + j, get(k, ref, ids[r] * c + j) + get(k, kdy, r * ld + j));
        for (int t = 0; t < POOLS; t++) {
            void *ky = mat(k, NULL, m, c, ld), *dw = vec(k, w, VOCAB * c);
            struct mc_embed o = {.m = m,
                                 .c = c,
                                 .vocab = VOCAB,
                                 .ids = ids,
                                 .w = kw,
                                 .y = ky,
                                 .ldy = ld,
                                 .dy = kdy,
                                 .lddy = ld,
                                 .dw = dw};
            k->embed(pools[t], &o);
            k->embed_bwd(pools[t], &o);
            assert_true(gap(k, ky, ld, y, m, c) == 0);
            assert_memory_equal(dw, ref, (size_t)(VOCAB * c) * elem(k));
            mc_free(ky), mc_free(dw);
        }
        mc_free(ids), mc_free(w), mc_free(dy), mc_free(y), mc_free(kw), mc_free(kdy), mc_free(ref);
    }
}

/* An id outside the table reads and writes nothing of it, and cannot pass unseen. */
static void test_foreign_ids(void **state)
{
    static const int32_t ids[] = {-1, 2, 3, INT32_MAX, INT32_MIN, 0};
    (void)state;
    for (int d = 0; d < 2; d++) {
        const struct mc_kern_ops *k = tables[d];
        double *w = noise_new(15, 1), *dy = noise_new(30, 2), *zero = zeros_new(15);
        void *kw = vec(k, w, 15), *y = vec(k, NULL, 30), *kdy = vec(k, dy, 30);
        void *dw = vec(k, zero, 15);
        struct mc_embed o = {.m = 6,
                             .c = 5,
                             .vocab = 3,
                             .ids = ids,
                             .w = kw,
                             .y = y,
                             .ldy = 5,
                             .dy = kdy,
                             .lddy = 5,
                             .dw = dw};
        k->embed(pools[0], &o);
        k->embed_bwd(pools[0], &o);
        for (int j = 0; j < 5; j++) {
            assert_true(get(k, y, 5 + j) == w[10 + j] && get(k, y, 25 + j) == w[j]);
            assert_true(isnan(get(k, y, j)) && isnan(get(k, y, 10 + j)) &&
                        isnan(get(k, y, 15 + j)) && isnan(get(k, y, 20 + j)));
            assert_true(get(k, dw, j) == dy[25 + j] && get(k, dw, 5 + j) == 0 &&
                        get(k, dw, 10 + j) == dy[5 + j]);
        }
        mc_free(w), mc_free(dy), mc_free(zero), mc_free(kw), mc_free(y), mc_free(kdy), mc_free(dw);
    }
}

/* -- positions -------------------------------------------------------------------------------- */

static void test_positions(void **state)
{
    (void)state;
    for (int i = 0; i < 18; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        int64_t t = rows[i / 2 % 3], c = cols[i / 6], b = 3, m = b * t, pos0 = i % 2, ld = c + 1;
        int64_t n = (pos0 + t) * c;
        double *x = noise_new(m * c, 1), *w = noise_new(n, 2), *y = zeros_new(m * c);
        void *kw = vec(k, w, n), *kx = mat(k, x, m, c, ld), *ref = vec(k, w, n);
        for (int64_t r = 0; r < m; r++)
            for (int64_t j = 0; j < c; j++) {
                int64_t at = (pos0 + r % t) * c + j;
                y[r * c + j] = x[r * c + j] + w[at];
                set(k, ref, at, get(k, ref, at) + get(k, kx, r * ld + j));
            }
        for (int p = 0; p < POOLS; p++) {
            void *ky = mat(k, NULL, m, c, ld), *dw = vec(k, w, n);
            struct mc_embed o = {.m = m,
                                 .c = c,
                                 .vocab = pos0 + t,
                                 .t = t,
                                 .pos0 = pos0,
                                 .w = kw,
                                 .x = kx,
                                 .ldx = ld,
                                 .y = ky,
                                 .ldy = ld,
                                 .dy = kx,
                                 .lddy = ld,
                                 .dw = dw};
            k->positions(pools[p], &o);
            k->positions_bwd(pools[p], &o);
            close_to(k, "positions", ky, ld, y, m, c);
            assert_memory_equal(dw, ref, (size_t)n * elem(k));
            mc_free(ky), mc_free(dw);
        }
        mc_free(x), mc_free(w), mc_free(y), mc_free(kw), mc_free(kx), mc_free(ref);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_foreign_ids),
        cmocka_unit_test(test_positions),
    };
    return cmocka_run_group_tests(tests, kern_setup, kern_teardown);
}
