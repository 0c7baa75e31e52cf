/* test_kern_golden.c - the kernels against PyTorch (tests/golden/kern/make.py): outputs and
 * gradients, fp32 to 1e-5 by norm; fp64 to 1e-6, which is the references' own rounding.
 * links: mc_kern
 */
#include "kern_test.h"
#include "../../core/base/sysio.h"

static char *file;
static size_t file_bytes;
static const struct mc_kern_ops *k; /* the table under test */

static int load(void **state)
{
    if (kern_setup(state) || mc_sys_read_file(MC_SOURCE_HOME "/tests/golden/kern/refs.bin", 1 << 22,
                                              &file, &file_bytes, NULL) != MC_OK)
        return -1;
    return memcmp(file, "mckern1\n", 8);
}
static int unload(void **state)
{
    mc_free(file);
    return kern_teardown(state);
}

/* The values of a record as fp64; *n their count. */
static double *find(const char *op, const char *part, int64_t *n)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", op, part);
    for (size_t at = 8; at + 32 <= file_bytes;) {
        int64_t count;
        memcpy(&count, file + at + 24, sizeof count);
        if (strcmp(file + at, name) == 0) {
            double *x = zeros_new(*n = count);
            for (int64_t i = 0; i < count; i++) {
                float f;
                memcpy(&f, file + at + 32 + i * 4, sizeof f);
                x[i] = (double)f;
            }
            return x;
        }
        at += 32 + (size_t)count * 4;
    }
    fail_msg("refs.bin has no %s", name);
    return NULL;
}

static void *in(const char *op, const char *part) /* as an operand of k */
{
    int64_t n;
    double *x = find(op, part, &n);
    void *p = vec(k, x, n);
    mc_free(x);
    return p;
}
static void *like(const char *op, const char *part, double with) /* an output of that size */
{
    int64_t n;
    double *x = find(op, part, &n);
    for (int64_t i = 0; i < n; i++)
        x[i] = with;
    void *p = vec(k, x, n);
    mc_free(x);
    return p;
}
static void check(const char *op, const char *part, void *got)
{
    int64_t n;
    double *ref = find(op, part, &n), e = gap(k, got, n, ref, 1, n);
    double allowed = k->dtype == MC_F32 ? TOL_32 : 1e-6;
    if (!(e <= allowed))
        fail_msg("%s %s.%s: off by %.3g, allowed %.3g", k->name, op, part, e, allowed);
    mc_free(ref), mc_free(got);
}

#define POOL pools[1]

static void both(void (*body)(void))
{
    for (int d = 0; d < 2; d++) {
        k = tables[d];
        body();
    }
}

static void linear(void)
{
    int64_t m = 29, ci = 31, co = 37;
    void *x = in("linear", "x"), *w = in("linear", "w"), *b = in("linear", "b");
    void *dy = in("linear", "dy"), *y = like("linear", "out", NAN), *dx = like("linear", "x", NAN);
    void *dw = like("linear", "w", 0), *db = like("linear", "b", 0);
    void *scratch = mc_alloc(k->bias_scratch(m, co), "test");
    k->gemm(POOL, &(struct mc_gemm){.m = m,
                                    .n = co,
                                    .k = ci,
                                    .tb = 1,
                                    .a = x,
                                    .lda = ci,
                                    .b = w,
                                    .ldb = ci,
                                    .c = y,
                                    .ldc = co,
                                    .alpha = 1,
                                    .bias = b});
    k->gemm(POOL, &(struct mc_gemm){.m = m,
                                    .n = ci,
                                    .k = co,
                                    .a = dy,
                                    .lda = co,
                                    .b = w,
                                    .ldb = ci,
                                    .c = dx,
                                    .ldc = ci,
                                    .alpha = 1});
    k->gemm(POOL, &(struct mc_gemm){.m = co,
                                    .n = ci,
                                    .k = m,
                                    .ta = 1,
                                    .a = dy,
                                    .lda = co,
                                    .b = x,
                                    .ldb = ci,
                                    .c = dw,
                                    .ldc = ci,
                                    .alpha = 1,
                                    .acc = 1});
    k->bias_bwd(POOL, m, co, dy, co, db, scratch);
    check("linear", "out", y), check("linear", "dx", dx);
    check("linear", "dw", dw), check("linear", "db", db);
    mc_free(x), mc_free(w), mc_free(b), mc_free(dy), mc_free(scratch);
}

static void norm(const char *op, int layer)
{
    int64_t m = 13, c = 67;
    void *x = in(op, "x"), *w = in(op, "w"), *b = layer ? in(op, "b") : NULL, *dy = in(op, "dy");
    void *y = like(op, "out", NAN), *dx = like(op, "x", NAN), *dw = like(op, "w", 0);
    void *db = like(op, "w", 0), *rstd = vec(k, NULL, m), *mean = vec(k, NULL, m);
    void *scratch = mc_alloc(k->norm_scratch(m, c), "test");
    struct mc_norm f = {.m = m,
                        .c = c,
                        .eps = 1e-5,
                        .x = x,
                        .ldx = c,
                        .w = w,
                        .b = b,
                        .y = y,
                        .ldy = c,
                        .rstd = rstd,
                        .mean = mean};
    struct mc_norm_grad g = {.m = m,
                             .c = c,
                             .x = x,
                             .ldx = c,
                             .w = w,
                             .rstd = rstd,
                             .mean = mean,
                             .dy = dy,
                             .lddy = c,
                             .dx = dx,
                             .lddx = c,
                             .dw = dw,
                             .db = db,
                             .scratch = scratch};
    (layer ? k->layernorm : k->rmsnorm)(POOL, &f);
    (layer ? k->layernorm_bwd_input : k->rmsnorm_bwd_input)(POOL, &g);
    (layer ? k->layernorm_bwd_weight : k->rmsnorm_bwd_weight)(POOL, &g);
    check(op, "out", y), check(op, "dx", dx), check(op, "dw", dw);
    if (layer)
        check(op, "db", db);
    else
        mc_free(db);
    mc_free(x), mc_free(w), mc_free(b), mc_free(dy), mc_free(rstd), mc_free(mean), mc_free(scratch);
}
static void norms(void)
{
    norm("ln", 1);
    norm("rms", 0);
}

static void activations(void)
{
    static const char *const name[] = {"gelu", "gelu_erf", "silu", "relu"};
    int64_t m = 9, c = 53;
    for (int i = 0; i < 4; i++) {
        void *x = in(name[i], "x"), *dy = in(name[i], "dy"), *y = like(name[i], "out", NAN);
        struct mc_unary o = {.kind = (enum mc_unary_kind)i,
                             .m = m,
                             .c = c,
                             .x = x,
                             .ldx = c,
                             .y = y,
                             .ldy = c,
                             .dy = dy,
                             .lddy = c,
                             .dx = dy,
                             .lddx = c};
        k->unary(POOL, &o);
        k->unary_bwd(POOL, &o);
        check(name[i], "out", y), check(name[i], "dx", dy);
        mc_free(x);
    }
    void *g = in("swiglu", "g"), *u = in("swiglu", "u"), *dy = in("swiglu", "dy");
    void *y = like("swiglu", "out", NAN), *dg = like("swiglu", "g", NAN);
    void *du = like("swiglu", "u", NAN);
    struct mc_swiglu o = {.m = m,
                          .c = c,
                          .g = g,
                          .u = u,
                          .ldg = c,
                          .ldu = c,
                          .y = y,
                          .ldy = c,
                          .dy = dy,
                          .lddy = c,
                          .dg = dg,
                          .du = du,
                          .lddg = c,
                          .lddu = c};
    k->swiglu(POOL, &o);
    k->swiglu_bwd(POOL, &o);
    check("swiglu", "out", y), check("swiglu", "dg", dg), check("swiglu", "du", du);
    mc_free(g), mc_free(u), mc_free(dy);
}

static void rope(void)
{
    void *x = in("rope", "x"), *dy = in("rope", "dy"), *co = in("rope", "cos");
    void *si = in("rope", "sin");
    struct mc_rope o = {.b = 2,
                        .t = 11,
                        .heads = 3,
                        .d = 16,
                        .cos = co,
                        .sin = si,
                        .x = x,
                        .ldx = 48,
                        .y = x,
                        .ldy = 48};
    k->rope(POOL, &o);
    o.x = o.y = dy, o.inverse = 1;
    k->rope(POOL, &o);
    check("rope", "out", x), check("rope", "dx", dy);
    mc_free(co), mc_free(si);
}

static void attention(const char *op, const int64_t s[5], int causal) /* b t heads kv d */
{
    int64_t ldq = s[2] * s[4], ldk = s[3] * s[4];
    int threads = mc_pool_threads(POOL);
    void *q = in(op, "q"), *key = in(op, "k"), *v = in(op, "v"), *dy = in(op, "dy");
    void *o = like(op, "out", NAN), *dq = like(op, "q", NAN), *dk = like(op, "k", NAN);
    void *dv = like(op, "v", NAN), *lse = vec(k, NULL, s[0] * s[2] * s[1]);
    void *scratch = mc_alloc(k->attn_scratch(s[0], s[1], s[2], s[3], s[4], threads), "test");
    struct mc_attn_grad g = {.f = {.b = s[0],
                                   .t = s[1],
                                   .heads = s[2],
                                   .kv_heads = s[3],
                                   .d = s[4],
                                   .scale = 1 / sqrt((double)s[4]),
                                   .causal = causal,
                                   .q = q,
                                   .k = key,
                                   .v = v,
                                   .ldq = ldq,
                                   .ldk = ldk,
                                   .ldv = ldk,
                                   .o = o,
                                   .ldo = ldq,
                                   .lse = lse,
                                   .scratch = scratch},
                             .d_o = dy,
                             .lddo = ldq,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv,
                             .lddq = ldq,
                             .lddk = ldk,
                             .lddv = ldk,
                             .scratch = scratch};
    k->attn(POOL, &g.f);
    k->attn_bwd(POOL, &g);
    check(op, "out", o), check(op, "dq", dq), check(op, "dk", dk), check(op, "dv", dv);
    mc_free(q), mc_free(key), mc_free(v), mc_free(dy), mc_free(lse), mc_free(scratch);
}
static void attentions(void)
{
    attention("mha", (int64_t[]){2, 33, 2, 2, 16}, 1);
    attention("gqa", (int64_t[]){1, 70, 4, 2, 8}, 1);
    attention("mqa", (int64_t[]){1, 17, 3, 1, 5}, 0);
}

static int32_t *integers(const char *op, const char *part, int64_t *n)
{
    double *x = find(op, part, n);
    int32_t *i = mc_alloc((size_t)*n * sizeof *i, "test");
    for (int64_t j = 0; j < *n; j++)
        i[j] = (int32_t)x[j];
    mc_free(x);
    return i;
}

static void loss(void)
{
    int64_t m, valid = 0;
    int32_t *target = integers("xent", "target", &m);
    for (int64_t r = 0; r < m; r++)
        valid += target[r] >= 0;
    void *x = in("xent", "x"), *l = like("xent", "loss", NAN), *lse = vec(k, NULL, m);
    struct mc_xent o = {.m = m,
                        .v = 257,
                        .targets = target,
                        .logits = x,
                        .ld = 257,
                        .lse = lse,
                        .loss = l,
                        .scale = 1 / (double)valid};
    k->xent(POOL, &o);
    k->xent_bwd(POOL, &o);
    check("xent", "loss", l), check("xent", "dx", x);
    mc_free(target), mc_free(lse);
}

static void embedding(void)
{
    int64_t m;
    int32_t *ids = integers("embed", "ids", &m);
    void *w = in("embed", "w"), *dy = in("embed", "dy"), *y = like("embed", "out", NAN);
    void *dw = like("embed", "w", 0);
    struct mc_embed o = {.m = m,
                         .c = 9,
                         .vocab = 23,
                         .ids = ids,
                         .w = w,
                         .y = y,
                         .ldy = 9,
                         .dy = dy,
                         .lddy = 9,
                         .dw = dw};
    k->embed(POOL, &o);
    k->embed_bwd(POOL, &o);
    check("embed", "out", y), check("embed", "dw", dw);
    mc_free(ids), mc_free(w), mc_free(dy);
}

static void adamw(void)
{
    void *w = in("adamw", "w"), *m = like("adamw", "w", 0), *v = like("adamw", "w", 0);
    for (int s = 0; s < 6; s++) {
        char part[8];
        snprintf(part, sizeof part, "g%d", s);
        void *g = in("adamw", part);
        k->adamw(POOL, &(struct mc_adamw){.n = 101,
                                          .w = w,
                                          .m = m,
                                          .v = v,
                                          .g = g,
                                          .gscale = 1,
                                          .lr = 3e-2,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .decay = 0.1,
                                          .bias1 = 1 - pow(0.9, s + 1),
                                          .bias2 = 1 - pow(0.95, s + 1)});
        mc_free(g);
    }
    check("adamw", "out", w);
    mc_free(m), mc_free(v);
}

static void test_linear(void **state)
{
    (void)state, both(linear);
}
static void test_norms(void **state)
{
    (void)state, both(norms);
}
static void test_activations(void **state)
{
    (void)state, both(activations);
}
static void test_rope(void **state)
{
    (void)state, both(rope);
}
static void test_attention(void **state)
{
    (void)state, both(attentions);
}
static void test_loss(void **state)
{
    (void)state, both(loss);
}
static void test_embedding(void **state)
{
    (void)state, both(embedding);
}
static void test_adamw(void **state)
{
    (void)state, both(adamw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),      cmocka_unit_test(test_norms),
        cmocka_unit_test(test_activations), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_attention),   cmocka_unit_test(test_loss),
        cmocka_unit_test(test_embedding),   cmocka_unit_test(test_adamw),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
