/* test_kern_parts.c - work on a part of a table, a sequence, a row or a vocabulary equals that part
 * of the whole work, which the other test_kern_*.c hold against independent references.
 * links: mc_kern
 */
#include "kern_test.h"

enum { VOCAB = 11, C = 6, ROWS = 15 };

/* Parts of a table: each gives its own rows and zeros, so that their sum is the whole; gradients
 * are blocks of the whole's. A part may be empty; ids beyond the vocabulary are NaN in every part.
 */
static void embed_in_parts(void **state)
{
    static const int64_t cut[] = {0, 4, 8, 11, 11};
    int32_t ids[ROWS];
    (void)state;
    for (int r = 0; r < ROWS; r++)
        ids[r] = r * 7 % VOCAB;
    ids[5] = VOCAB;
    for (int d = 0; d < 2; d++) {
        const struct mc_kern_ops *k = tables[d];
        double *w = noise_new(VOCAB * C, 1), *dy = noise_new(ROWS * C, 2);
        void *kw = vec(k, w, VOCAB * C), *kdy = vec(k, dy, ROWS * C);
        double *zero = zeros_new(VOCAB * C);
        void *dw = vec(k, zero, VOCAB * C), *parts = vec(k, zero, VOCAB * C);
        struct mc_embed o = {.m = ROWS,
                             .c = C,
                             .vocab = VOCAB,
                             .ids = ids,
                             .ldy = C,
                             .dy = kdy,
                             .lddy = C,
                             .w = kw,
                             .dw = dw};
        void *whole = vec(k, NULL, ROWS * C), *y = vec(k, NULL, ROWS * C);
        o.y = whole;
        k->embed(pools[1], &o);
        k->embed_bwd(pools[1], &o);
        for (int p = 0; p < 4; p++) {
            o.first = cut[p];
            o.end = cut[p + 1];
            o.w = (char *)kw + (size_t)(cut[p] * C) * elem(k);
            o.dw = (char *)parts + (size_t)(cut[p] * C) * elem(k);
            o.y = y;
            k->embed(pools[1], &o);
            k->embed_bwd(pools[1], &o);
            for (int r = 0; r < ROWS; r++)
                for (int j = 0; j < C; j++) {
                    int here = ids[r] >= cut[p] && ids[r] < cut[p + 1];
                    double v = get(k, y, r * C + j);
                    if (ids[r] == VOCAB)
                        assert_true(isnan(v));
                    else
                        assert_true(v == (here ? get(k, whole, r * C + j) : 0));
                }
        }
        assert_memory_equal(dw, parts, (size_t)(VOCAB * C) * elem(k));
        mc_free(w), mc_free(dy), mc_free(kw), mc_free(kdy), mc_free(zero), mc_free(dw);
        mc_free(parts), mc_free(whole), mc_free(y);
    }
}

/* Rows 7 .. 14 of three sequences of 5. */
static void positions_in_parts(void **state)
{
    enum { T = 5, FROM = 7 };
    (void)state;
    for (int d = 0; d < 2; d++) {
        const struct mc_kern_ops *k = tables[d];
        double *w = noise_new(T * C, 1), *x = noise_new(ROWS * C, 2), *zero = zeros_new(T * C);
        void *kw = vec(k, w, T * C), *kx = vec(k, x, ROWS * C);
        void *y = vec(k, NULL, ROWS * C), *part = vec(k, NULL, ROWS * C);
        void *dw = vec(k, zero, T * C), *dparts = vec(k, zero, T * C);
        struct mc_embed o = {.m = ROWS,
                             .c = C,
                             .vocab = T,
                             .t = T,
                             .w = kw,
                             .x = kx,
                             .ldx = C,
                             .y = y,
                             .ldy = C,
                             .dy = kx,
                             .lddy = C,
                             .dw = dw};
        k->positions(pools[0], &o);
        k->positions_bwd(pools[0], &o);
        for (int p = 0; p < 2; p++) {
            o.row0 = p ? FROM : 0;
            o.m = p ? ROWS - FROM : FROM;
            o.x = o.dy = (char *)kx + (size_t)(o.row0 * C) * elem(k);
            o.y = (char *)part + (size_t)(o.row0 * C) * elem(k);
            o.dw = dparts; /* one after the other, in row order: the same sums */
            k->positions(pools[0], &o);
            k->positions_bwd(pools[0], &o);
        }
        assert_memory_equal(y, part, (size_t)(ROWS * C) * elem(k));
        assert_memory_equal(dw, dparts, (size_t)(T * C) * elem(k));
        mc_free(w), mc_free(x), mc_free(zero), mc_free(kw), mc_free(kx), mc_free(y);
        mc_free(part), mc_free(dw), mc_free(dparts);
    }
}

static void dropout_in_parts(void **state)
{
    enum { M = 9, N = 301, FROM = 130, ROW = 4 };
    (void)state;
    for (int d = 0; d < 2; d++) {
        const struct mc_kern_ops *k = tables[d];
        double *x = noise_new(M * N, 1);
        void *kx = vec(k, x, M * N), *y = vec(k, NULL, M * N), *part = vec(k, NULL, M * N);
        int64_t row[M]; /* not ascending: words are drawn anew when a row jumps back */
        for (int r = 0; r < M; r++)
            row[r] = r * 5 % M;
        struct mc_dropout o = {.m = M,
                               .c = N,
                               .x = kx,
                               .ldx = N,
                               .y = y,
                               .ldy = N,
                               .p = 0.4,
                               .key = 99,
                               .step = 3,
                               .row = row};
        k->dropout(pools[0], &o);
        for (int p = 0; p < 4; p++) { /* columns apart, and rows apart */
            size_t at = (size_t)((p & 2 ? ROW * N : 0) + (p & 1 ? FROM : 0)) * elem(k);
            o.width = N;
            o.col0 = p & 1 ? FROM : 0;
            o.c = p & 1 ? N - FROM : FROM;
            o.m = p & 2 ? M - ROW : ROW;
            o.row = p & 2 ? row + ROW : row;
            o.x = (char *)kx + at;
            o.y = (char *)part + at;
            k->dropout(pools[0], &o);
        }
        assert_memory_equal(y, part, (size_t)(M * N) * elem(k));
        mc_free(x), mc_free(kx), mc_free(y), mc_free(part);
    }
}

static void xent_parts(const struct mc_kern_ops *k, const int64_t *cut, int parts, double e,
                       double z)
{
    enum { M = 7 };
    int64_t v = cut[parts];
    double *x = noise_new(M * v, 1), worst = 0, scale = 0;
    int32_t targets[M];
    for (int r = 0; r < M; r++)
        targets[r] = r == 3 ? -1 : (int32_t)((r * 61 + v - 1) % v);
    for (int64_t i = 0; i < M * v; i++)
        x[i] = x[i] * 6 + (double)(i / v % 4) * 50;
    void *whole = vec(k, x, M * v), *apart = vec(k, x, M * v);
    void *lse = vec(k, NULL, M), *loss = vec(k, NULL, M), *lse2 = vec(k, NULL, M),
         *loss2 = vec(k, NULL, M);
    double *part = zeros_new(4 * M * parts);
    struct mc_xent o = {.m = M,
                        .v = v,
                        .targets = targets,
                        .logits = whole,
                        .ld = v,
                        .lse = lse,
                        .loss = loss,
                        .scale = 1.0 / 5,
                        .smoothing = e,
                        .z = z};
    k->xent(pools[1], &o);
    k->xent_bwd(pools[1], &o);
    o.all = v;
    o.lse = lse2;
    o.loss = loss2;
    for (int p = 0; p < parts; p++) {
        o.first = cut[p];
        o.v = cut[p + 1] - cut[p];
        o.logits = (char *)apart + (size_t)cut[p] * elem(k);
        o.part = part + 4 * M * p;
        k->xent_part(pools[1], &o);
    }
    o.parts = parts;
    o.part = part;
    o.logits = NULL;
    k->xent_join(pools[1], &o);
    for (int p = 0; p < parts; p++) {
        o.first = cut[p];
        o.v = cut[p + 1] - cut[p];
        o.logits = (char *)apart + (size_t)cut[p] * elem(k);
        k->xent_bwd(pools[1], &o);
    }
    for (int r = 0; r < M; r++) {
        double want = get(k, loss, r), tol = k->dtype == MC_F32 ? 2e-6 : 4e-15;
        assert_true(fabs(get(k, loss2, r) - want) <= tol * (1 + fabs(want)));
        assert_true(fabs(get(k, lse2, r) - get(k, lse, r)) <= tol * (1 + fabs(get(k, lse, r))));
        assert_true(targets[r] >= 0 || get(k, loss2, r) == 0);
    }
    for (int64_t i = 0; i < M * v; i++) {
        worst = fmax(worst, fabs(get(k, whole, i) - get(k, apart, i)));
        scale = fmax(scale, fabs(get(k, whole, i)));
    }
    assert_true(scale > 0 && worst <= (k->dtype == MC_F32 ? 1e-5 : 1e-13) * scale);
    mc_free(x), mc_free(whole), mc_free(apart), mc_free(lse), mc_free(loss), mc_free(lse2);
    mc_free(loss2), mc_free(part);
}

static void cross_entropy_in_parts(void **state)
{
    static const int64_t even[] = {0, 65, 130, 195, 257}, short_[] = {0, 2, 4, 5, 5, 5},
                         one[] = {0, 31}, first_empty[] = {0, 0, 9};
    (void)state;
    for (int i = 0; i < 8; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        double e = i & 2 ? 0.1 : 0, z = i & 4 ? 1e-2 : 0;
        xent_parts(k, even, 4, e, z);
        xent_parts(k, short_, 5, e, z);
        xent_parts(k, one, 1, e, z);
        xent_parts(k, first_empty, 2, e, z);
    }
}

/* A target that no part has is NaN, as it is in one part. */
static void a_target_beyond_all_parts_is_nan(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        const struct mc_kern_ops *k = tables[d];
        const int32_t target = 4;
        double *x = noise_new(4, 1), part[8];
        void *kx = vec(k, x, 4), *lse = vec(k, NULL, 1), *loss = vec(k, NULL, 1);
        struct mc_xent o = {.m = 1,
                            .v = 2,
                            .all = 4,
                            .targets = &target,
                            .ld = 4,
                            .lse = lse,
                            .loss = loss,
                            .scale = 1};
        for (int p = 0; p < 2; p++) {
            o.first = 2 * p;
            o.logits = (char *)kx + (size_t)(2 * p) * elem(k);
            o.part = part + 4 * p;
            k->xent_part(pools[0], &o);
        }
        o.part = part;
        o.parts = 2;
        k->xent_join(pools[0], &o);
        assert_true(isnan(get(k, loss, 0)));
        k->xent_bwd(pools[0], &o);
        assert_true(isnan(get(k, kx, 2)));
        mc_free(x), mc_free(kx), mc_free(lse), mc_free(loss);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_in_parts),
        cmocka_unit_test(positions_in_parts),
        cmocka_unit_test(dropout_in_parts),
        cmocka_unit_test(cross_entropy_in_parts),
        cmocka_unit_test(a_target_beyond_all_parts_is_nan),
    };
    return cmocka_run_group_tests(tests, kern_setup, kern_teardown);
}
