/* test_kern_norm.c - rmsnorm, layernorm and the column sums against plain formulas in fp64 and
 * finite differences; sums accumulate; bits do not depend on threads.
 * links: mc_kern
 */
#include "kern_test.h"

struct norm {
    int layer;
    int64_t m, c;
    double eps;
    double *x, *w, *b, *dy; /* b may be NULL */
    int64_t heads;          /* > 1: rows of that many vectors; m counts vectors */
    int unit;
};

static void make(struct norm *f, int layer, int64_t m, int64_t c, int bias)
{
    *f = (struct norm){layer, m, c, 1e-5, noise_new(m * c, 1), noise_new(c, 2), NULL, NULL, 1, 0};
    f->dy = noise_new(m * c, 4);
    for (int64_t i = 0; i < m * c; i++) /* a mean that is not 0, rows of different size */
        f->x[i] = (double)(float)(f->x[i] * (double)(1 + i / c % 5) + 0.5);
    if (bias)
        f->b = noise_new(c, 3);
}

static void drop(struct norm *f)
{
    mc_free(f->x), mc_free(f->w), mc_free(f->b), mc_free(f->dy);
}

/* Moments E[x], E[x^2] first, then one affine map a row. */
static void naive(const struct norm *f, double *y)
{
    for (int64_t r = 0; r < f->m; r++) {
        const double *x = f->x + r * f->c;
        long double e1 = 0, e2 = 0;
        for (int64_t j = f->c - 1; j >= 0; j--)
            e1 += x[j], e2 += (long double)x[j] * x[j];
        e1 = f->layer ? e1 / f->c : 0;
        e2 = e2 / f->c - e1 * e1;
        long double inv = powl(e2 + f->eps, -0.5L);
        for (int64_t j = 0; j < f->c; j++)
            y[r * f->c + j] =
                (double)((x[j] - e1) * inv) * (f->w[j] + f->unit) + (f->b ? f->b[j] : 0);
    }
}

/* The Jacobian of one row, written out: dh_i/dx_j = inv (1[i=j] - 1/C [layer] - h_i h_j / C). */
static void naive_bwd(const struct norm *f, double *dx, double *dw, double *db)
{
    double *h = zeros_new(f->m * f->c);
    struct norm unit = *f;
    unit.unit = 0;
    unit.w = zeros_new(f->c), unit.b = NULL;
    for (int64_t j = 0; j < f->c; j++)
        unit.w[j] = 1;
    naive(&unit, h);
    for (int64_t r = 0; r < f->m; r++) {
        const double *hr = h + r * f->c, *dy = f->dy + r * f->c, *x = f->x + r * f->c;
        double e1 = 0, e2 = 0, n = (double)f->c;
        for (int64_t j = 0; j < f->c; j++)
            e1 += x[j] / n;
        e1 = f->layer ? e1 : 0;
        for (int64_t j = 0; j < f->c; j++)
            e2 += (x[j] - e1) * (x[j] - e1) / n;
        double inv = 1 / sqrt(e2 + f->eps);
        for (int64_t j = 0; j < f->c; j++) {
            double s = 0;
            for (int64_t i = 0; i < f->c; i++)
                s += dy[i] * (f->w[i] + f->unit) *
                     ((i == j) - (f->layer ? 1 / n : 0) - hr[i] * hr[j] / n);
            dx[r * f->c + j] = s * inv;
            dw[j] += dy[j] * hr[j];
            db[j] += dy[j];
        }
    }
    mc_free(h), mc_free(unit.w);
}

struct result {
    void *y, *rstd, *mean, *dx, *dw, *db;
    int64_t ld;
};

static void compute(const struct mc_kern_ops *k, struct mc_pool *pool, const struct norm *f,
                    int acc, const double *start, struct result *o)
{
    int64_t m = f->m, c = f->c, wide = c * f->heads, rows = m / f->heads, ld = o->ld = wide + 3;
    void *x = mat(k, f->x, rows, wide, ld), *w = vec(k, f->w, c);
    void *b = f->b ? vec(k, f->b, c) : NULL;
    void *dy = mat(k, f->dy, rows, wide, ld),
         *scratch = mc_alloc(k->norm_scratch(m, c) + 64, "test");
    memset(scratch, 0xff, k->norm_scratch(m, c));
    o->y = mat(k, NULL, rows, wide, ld), o->rstd = vec(k, NULL, m), o->mean = vec(k, NULL, m);
    o->dx = mat(k, acc ? start : NULL, rows, wide, ld);
    o->dw = vec(k, start, c), o->db = vec(k, start + 1, c);
    struct mc_norm n = {.m = rows,
                        .c = c,
                        .eps = f->eps,
                        .x = x,
                        .ldx = ld,
                        .w = w,
                        .b = b,
                        .y = o->y,
                        .ldy = ld,
                        .rstd = o->rstd,
                        .mean = o->mean,
                        .heads = f->heads,
                        .unit = f->unit};
    struct mc_norm_grad g = {.m = rows,
                             .c = c,
                             .x = x,
                             .ldx = ld,
                             .w = w,
                             .rstd = o->rstd,
                             .mean = o->mean,
                             .dy = dy,
                             .lddy = ld,
                             .dx = o->dx,
                             .lddx = ld,
                             .acc_dx = acc,
                             .dw = o->dw,
                             .db = o->db,
                             .scratch = scratch,
                             .heads = f->heads,
                             .unit = f->unit};
    (f->layer ? k->layernorm : k->rmsnorm)(pool, &n);
    (f->layer ? k->layernorm_bwd_input : k->rmsnorm_bwd_input)(pool, &g);
    (f->layer ? k->layernorm_bwd_weight : k->rmsnorm_bwd_weight)(pool, &g);
    mc_free(x), mc_free(w), mc_free(b), mc_free(dy), mc_free(scratch);
}

static void drop_result(struct result *o)
{
    mc_free(o->y), mc_free(o->rstd), mc_free(o->mean);
    mc_free(o->dx), mc_free(o->dw), mc_free(o->db);
}

static void check(const struct mc_kern_ops *k, int layer, int64_t m, int64_t c, int acc,
                  int64_t heads, int unit)
{
    struct norm f;
    make(&f, layer, m, c, layer && (m + c) % 2 == 0);
    f.heads = heads, f.unit = unit;
    double *y = zeros_new(m * c), *start = noise_new(m * c + 1, 9), *dx = zeros_new(m * c);
    double *dw = zeros_new(c), *db = zeros_new(c);
    void *kept_y = NULL, *kept_dx = NULL, *kept_dw = NULL, *kept_db = NULL;
    naive(&f, y);
    naive_bwd(&f, dx, dw, db);
    for (int64_t i = 0; acc && i < m * c; i++)
        dx[i] += start[i];
    for (int64_t j = 0; j < c; j++)
        dw[j] += start[j], db[j] = layer ? db[j] + start[j + 1] : start[j + 1];
    for (int t = 0; t < POOLS; t++) {
        struct result o;
        compute(k, pools[t], &f, acc, start, &o);
        close_to(k, "norm y", o.y, o.ld, y, m / heads, c * heads);
        if (c > 1 || acc) /* layernorm of one column: all 0 */
            close_to(k, "norm dx", o.dx, o.ld, dx, m / heads, c * heads);
        close_to(k, "norm dw", o.dw, c, dw, 1, c);
        close_to(k, "norm db", o.db, c, db, 1, c);
        same_bits(&kept_y, o.y, (size_t)(m / heads * o.ld) * elem(k));
        same_bits(&kept_dx, o.dx, (size_t)(m / heads * o.ld) * elem(k));
        same_bits(&kept_dw, o.dw, (size_t)c * elem(k));
        same_bits(&kept_db, o.db, (size_t)c * elem(k));
        drop_result(&o);
    }
    mc_free(kept_y), mc_free(kept_dx), mc_free(kept_dw), mc_free(kept_db);
    mc_free(y), mc_free(start), mc_free(dx), mc_free(dw), mc_free(db);
    drop(&f);
}

static void test_shapes(void **state)
{
    static const int64_t rows[] = {1, 7, 129, 1500}, cols[] = {1, 5, 257};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int layer = 0; layer < 2; layer++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 3; j++)
                    check(tables[d], layer, rows[i], cols[j], (i + j) % 2, 1, 0);
}

/* rmsnorm of heads side by side, and with 1 + w. */
static void test_heads_and_unit(void **state)
{
    static const int64_t rows[] = {3, 7, 129}, cols[] = {4, 5, 128};
    (void)state;
    for (int i = 0; i < 36; i++)
        for (int unit = 0; unit < 2; unit++) {
            int64_t heads = i / 18 ? 3 : 1;
            check(tables[i & 1], 0, rows[i / 2 % 3] * heads, cols[i / 6 % 3], (i + i / 2) % 2,
                  heads, unit);
        }
}

static double weighted(void *arg) /* sum dy y */
{
    struct norm *f = arg;
    struct result o;
    double s = 0;
    compute(tables[1], pools[0], f, 0, f->dy, &o);
    for (int64_t r = 0; r < f->m; r++)
        for (int64_t j = 0; j < f->c; j++)
            s += f->dy[r * f->c + j] *
                 ((double *)o.y)[r / f->heads * o.ld + r % f->heads * f->c + j];
    drop_result(&o);
    return s;
}

static void test_differences(void **state)
{
    (void)state;
    for (int layer = 0; layer < 3; layer++) /* 2: rms of three heads, unit */
        for (int shape = 0; shape < 2; shape++) {
            struct norm f;
            struct result o;
            int64_t m = shape ? 3 : layer == 2 ? 6 : 7, c = shape ? 65 : 5;
            make(&f, layer == 1, m, c, layer == 1);
            f.heads = layer == 2 ? 3 : 1, f.unit = layer == 2;
            double *zero = zeros_new(m * c + 1), *dx = zeros_new(m * c);
            compute(tables[1], pools[0], &f, 0, zero, &o);
            for (int64_t i = 0; i < m * c; i++)
                dx[i] = ((double *)o.dx)[i / (c * f.heads) * o.ld + i % (c * f.heads)];
            close_fd("norm dx", dx, differences(weighted, &f, f.x, m * c), m * c);
            close_fd("norm dw", o.dw, differences(weighted, &f, f.w, c), c);
            if (layer == 1)
                close_fd("norm db", o.db, differences(weighted, &f, f.b, c), c);
            drop_result(&o);
            drop(&f);
            mc_free(zero), mc_free(dx);
        }
}

static void test_bias(void **state)
{
    static const int64_t rows[] = {1, 7, 129, 2050}, cols[] = {1, 5, 257};
    (void)state;
    for (int i = 0; i < 24; i++) {
        const struct mc_kern_ops *k = tables[i & 1];
        int64_t m = rows[i / 2 % 4], n = cols[i / 8], ld = n + 2;
        double *dy = noise_new(m * n, 1), *start = noise_new(n, 2), *ref = zeros_new(n);
        for (int64_t j = 0; j < n; j++) {
            ref[j] = start[j];
            for (int64_t r = m - 1; r >= 0; r--)
                ref[j] += dy[r * n + j];
        }
        void *kdy = mat(k, dy, m, n, ld), *kept = NULL;
        void *scratch = mc_alloc(k->bias_scratch(m, n) + 64, "test");
        for (int t = 0; t < POOLS; t++) {
            void *db = vec(k, start, n);
            k->bias_bwd(pools[t], m, n, kdy, ld, db, scratch);
            close_to(k, "bias_bwd", db, n, ref, 1, n);
            same_bits(&kept, db, (size_t)n * elem(k));
            mc_free(db);
        }
        mc_free(kept), mc_free(kdy), mc_free(scratch);
        mc_free(dy), mc_free(start), mc_free(ref);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_heads_and_unit),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_bias),
    };
    return cmocka_run_group_tests(tests, kern_setup, kern_teardown);
}
