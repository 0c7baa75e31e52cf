/* test_kern_width.c - the same bits at every vector width: the kernels' body compiled here once
 * more, scalar and without the choice at start, against the library's. test_kern_width16.c: the
 * same in bf16. links: mc_kern
 */
#define HOT
#define real        float
#define REAL_IS_F32 1
#ifdef WIDTH_IN_BF16
#include <stdint.h>
#define stored         uint16_t
#define STORED_IS_REAL 0
#define REAL_DTYPE     MC_BF16
#define REAL_NAME      "cpu-bf16"
#define WIDE_TABLE     mc_cpu_f32_ops
#else
#define REAL_DTYPE MC_F32
#define REAL_NAME  "cpu-f32"
#endif
#define REAL_GEMM cblas_sgemm
#define REAL_GEMV cblas_sgemv
#define TABLE     plain_ops
extern const struct mc_kern_ops plain_ops;
#include "../../core/kern/cpu/table.inl"
#include "kern_test.h"

#define M 37
#define C 83
#define N (M * C)

/* [M, C] of fp32; at bf16 twice as many values, which as fp32 are numbers near every second one. */
static float *f32(uint64_t seed)
{
    double *x = noise_new(2 * N, seed);
    float *p = mc_alloc(N * sizeof *p, "test");
    for (int64_t i = 0; i < (STORED_IS_REAL ? N : 2 * N); i++)
        ((stored *)p)[i] = nearest((float)x[i]);
    mc_free(x);
    return p;
}

struct run {
    float *x, *w, *dy, *out[6], *aux, *scratch;
    int32_t ids[M];
};

static void begin(struct run *r)
{
    r->x = f32(1), r->w = f32(2), r->dy = f32(3), r->aux = f32(4);
    for (int i = 0; i < 6; i++)
        r->out[i] = f32((uint64_t)(5 + i));
    for (int i = 0; i < M; i++) {
        r->ids[i] = i * 7 % 30 - (i % 5 == 0);
        for (int j = 0; j < C; j++) {
            stored *at = (stored *)r->x + i * C + j;
            *at = nearest(val(*at) * (float)(1 + i % 9));
        }
    }
    r->scratch = mc_alloc((size_t)1 << 20, "test");
}

static void drop_run(struct run *r)
{
    mc_free(r->x), mc_free(r->w), mc_free(r->dy), mc_free(r->aux), mc_free(r->scratch);
    for (int i = 0; i < 6; i++)
        mc_free(r->out[i]);
}

static void norms(const struct mc_kern_ops *k, struct run *r)
{
    struct mc_norm n = {.m = M,
                        .c = C,
                        .eps = 1e-5,
                        .x = r->x,
                        .ldx = C,
                        .w = r->w,
                        .b = r->dy,
                        .y = r->out[0],
                        .ldy = C,
                        .rstd = r->out[1],
                        .mean = r->out[2]};
    struct mc_norm_grad g = {.m = M,
                             .c = C,
                             .x = r->x,
                             .ldx = C,
                             .w = r->w,
                             .rstd = n.rstd,
                             .mean = n.mean,
                             .dy = r->dy,
                             .lddy = C,
                             .dx = r->out[3],
                             .lddx = C,
                             .acc_dx = 1,
                             .dw = r->out[4],
                             .db = r->out[5],
                             .scratch = r->scratch};
    k->layernorm(pools[0], &n);
    k->layernorm_bwd_input(pools[0], &g);
    k->layernorm_bwd_weight(pools[0], &g);
    n.y = r->aux, n.rstd = r->out[2];
    k->rmsnorm(pools[0], &n);
    g.rstd = n.rstd;
    k->rmsnorm_bwd_input(pools[0], &g);
    k->rmsnorm_bwd_weight(pools[0], &g);
    k->bias_bwd(pools[0], M, C, r->dy, C, r->out[5], r->scratch);
}

static void element_wise(const struct mc_kern_ops *k, struct run *r)
{
    for (int i = 0; i < 6; i++) {
        struct mc_unary u = {.kind = (enum mc_unary_kind)i,
                             .m = M,
                             .c = C,
                             .x = r->x,
                             .ldx = C,
                             .y = r->out[i],
                             .ldy = C,
                             .dy = r->dy,
                             .lddy = C,
                             .dx = r->aux,
                             .lddx = C,
                             .cap = 2.5};
        k->unary(pools[0], &u);
        k->unary_bwd(pools[0], &u);
        k->add(pools[0], &(struct mc_add){.m = M,
                                          .c = C,
                                          .x = r->aux,
                                          .ldx = C,
                                          .y = r->out[i],
                                          .ldy = C,
                                          .z = r->out[i],
                                          .ldz = C,
                                          .ax = 0.3,
                                          .ay = 1.7});
    }
    struct mc_swiglu s = {.m = M,
                          .c = C,
                          .g = r->x,
                          .u = r->w,
                          .ldg = C,
                          .ldu = C,
                          .y = r->aux,
                          .ldy = C,
                          .dy = r->dy,
                          .lddy = C,
                          .dg = r->out[4],
                          .du = r->out[5],
                          .lddg = C,
                          .lddu = C};
    k->swiglu(pools[0], &s);
    k->swiglu_bwd(pools[0], &s);
    k->dropout(pools[0], &(struct mc_dropout){.m = M,
                                              .c = C,
                                              .x = r->aux,
                                              .ldx = C,
                                              .y = r->aux,
                                              .ldy = C,
                                              .p = 0.2,
                                              .key = 3,
                                              .first = 1});
    k->rope(pools[0], &(struct mc_rope){.b = 1,
                                        .t = M,
                                        .heads = 2,
                                        .d = 41,
                                        .cos = r->w,
                                        .sin = r->dy,
                                        .x = r->x,
                                        .ldx = C,
                                        .y = r->x,
                                        .ldy = C});
}

static void attention(const struct mc_kern_ops *k, struct run *r)
{
    struct mc_attn_grad g = {.f = {.b = 1,
                                   .t = M,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .d = 40,
                                   .scale = 0.3,
                                   .causal = 1,
                                   .q = r->x,
                                   .k = r->w,
                                   .v = r->dy,
                                   .ldq = C,
                                   .ldk = C,
                                   .ldv = C,
                                   .o = r->out[0],
                                   .ldo = C,
                                   .lse = r->out[1],
                                   .scratch = r->scratch},
                             .d_o = r->aux,
                             .lddo = C,
                             .dq = r->out[2],
                             .dk = r->out[3],
                             .dv = r->out[4],
                             .lddq = C,
                             .lddk = C,
                             .lddv = C,
                             .scratch = r->scratch};
    k->attn(pools[0], &g.f);
    k->attn_bwd(pools[0], &g);
}

static void loss_and_update(const struct mc_kern_ops *k, struct run *r)
{
    struct mc_xent x = {.m = M,
                        .v = C,
                        .targets = r->ids,
                        .logits = r->x,
                        .ld = C,
                        .lse = r->out[0],
                        .loss = r->out[1],
                        .scale = 0.1};
    struct mc_embed e = {.m = M,
                         .c = C,
                         .vocab = 30,
                         .ids = r->ids,
                         .t = M,
                         .x = r->w,
                         .ldx = C,
                         .w = r->dy,
                         .y = r->out[5],
                         .ldy = C,
                         .dy = r->dy,
                         .lddy = C,
                         .dw = r->out[2]};
    double sums[2];
    k->xent(pools[0], &x);
    k->xent_bwd(pools[0], &x);
    k->positions(pools[0], &e);
    k->embed_bwd(pools[0], &e);
    k->positions_bwd(pools[0], &e);
    for (int i = 0; i < N; i++)
        r->out[4][i] = fabsf(r->out[4][i]); /* v >= 0 */
    k->adamw(pools[0], &(struct mc_adamw){.n = N,
                                          .w = r->w,
                                          .m = r->out[3],
                                          .v = r->out[4],
                                          .g = r->x,
                                          .gscale = 0.9,
                                          .lr = 0.1,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .decay = 0.1,
                                          .bias1 = 0.3,
                                          .bias2 = 0.2});
    sums[0] = k->sum(pools[0], r->x, N), sums[1] = k->sum_squares(pools[0], r->w, N);
    memcpy(r->aux, sums, sizeof sums);
}

/* Options: norms of heads and of 1 + w, gelu gates, pairs, windows, starts, caps, smoothed targets.
 */
static void options(const struct mc_kern_ops *k, struct run *r)
{
    static int32_t start[M];
    struct mc_norm n = {.m = M, .c = 20, .eps = 1e-5, .heads = 4, .unit = 1};
    struct mc_norm_grad g = {.m = M, .c = 20, .heads = 4, .unit = 1};
    struct mc_swiglu s = {.m = M, .c = C, .g = r->x, .u = r->w, .ldg = C, .ldu = C};
    struct mc_attn_grad a = {.f = {.b = 1, .t = M, .heads = 2, .kv_heads = 1, .d = 40}};
    struct mc_xent x = {.m = M, .v = C - 2, .pad = 2, .smoothing = 0.1, .z = 1e-3, .scale = 0.1};
    for (int i = 0; i < M; i++)
        start[i] = i / 10 * 10;
    n.x = g.x = r->x, n.ldx = g.ldx = n.ldy = g.lddy = g.lddx = C, n.w = g.w = r->w;
    n.y = r->out[0], n.rstd = r->out[1], g.rstd = n.rstd, g.dy = r->dy, g.dx = r->out[2];
    g.dw = r->out[3], g.scratch = r->scratch;
    k->rmsnorm(pools[0], &n);
    k->rmsnorm_bwd_input(pools[0], &g);
    k->rmsnorm_bwd_weight(pools[0], &g);
    s.y = r->aux, s.ldy = s.lddy = s.lddg = s.lddu = C, s.dy = r->dy;
    s.dg = r->out[4], s.du = r->out[5];
    for (s.gate = MC_GATE_GELU; s.gate <= MC_GATE_GELU_ERF; s.gate++) {
        k->swiglu(pools[0], &s);
        k->swiglu_bwd(pools[0], &s);
        s.y = r->out[1], s.dg = r->out[2], s.du = r->out[3];
    }
    k->rope(pools[0], &(struct mc_rope){.b = 1,
                                        .t = M,
                                        .heads = 2,
                                        .d = 41,
                                        .turned = 38,
                                        .interleaved = 1,
                                        .cos = r->w,
                                        .sin = r->dy,
                                        .x = r->x,
                                        .ldx = C,
                                        .y = r->x,
                                        .ldy = C});
    a.f.scale = 0.3, a.f.causal = 1, a.f.ldq = a.f.ldk = a.f.ldv = a.f.ldo = C;
    a.f.q = r->x, a.f.k = r->w, a.f.v = r->dy, a.f.o = r->out[0], a.f.lse = r->out[1];
    a.f.scratch = a.scratch = r->scratch, a.d_o = r->aux, a.lddo = C;
    a.dq = r->out[2], a.dk = r->out[3], a.dv = r->out[4], a.lddq = a.lddk = a.lddv = C;
    a.f.mask = (struct mc_attn_mask){.window = 7, .start = start, .cap = 1.5};
    k->attn(pools[0], &a.f);
    k->attn_bwd(pools[0], &a);
    x.targets = r->ids, x.logits = r->x, x.ld = C, x.lse = r->out[5], x.loss = r->aux;
    k->xent(pools[0], &x);
    k->xent_bwd(pools[0], &x);
}

static void same(void (*body)(const struct mc_kern_ops *k, struct run *r))
{
    struct run a, b;
    const struct mc_kern_ops *k;
    assert_int_equal(mc_kern_get(MC_DEVICE_CPU, REAL_DTYPE, &k, NULL), MC_OK);
    begin(&a), begin(&b);
    body(k, &a), body(&plain_ops, &b);
    assert_memory_equal(a.x, b.x, N * sizeof(float));
    assert_memory_equal(a.w, b.w, N * sizeof(float));
    assert_memory_equal(a.aux, b.aux, N * sizeof(float));
    for (int i = 0; i < 6; i++)
        assert_memory_equal(a.out[i], b.out[i], N * sizeof(float));
    drop_run(&a), drop_run(&b);
}

static void test_norms(void **state)
{
    (void)state, same(norms);
}
static void test_element_wise(void **state)
{
    (void)state, same(element_wise);
}
static void test_options(void **state)
{
    (void)state, same(options);
}
static void test_attention(void **state)
{
    (void)state, same(attention);
}
static void test_loss_and_update(void **state)
{
    (void)state, same(loss_and_update);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),           cmocka_unit_test(test_element_wise),
        cmocka_unit_test(test_options),         cmocka_unit_test(test_attention),
        cmocka_unit_test(test_loss_and_update),
    };
    return cmocka_run_group_tests(tests, kern_setup, kern_teardown);
}
