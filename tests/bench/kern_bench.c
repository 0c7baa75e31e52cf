/* kern_bench.c - how fast the kernels are on this machine: GFLOP/s of products against OpenBLAS
 * with its own threads, attention, and GB/s of what memory bounds. Not a test: `ninja bench_kern`,
 * then run it with the thread counts to measure (default 1 2). Best of several runs. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include "../../core/kern/kern.h"

static const struct mc_kern_ops *k;
static struct mc_pool *pool;
static float *buf[8];
#define FLOATS ((int64_t)6 << 20)

typedef void (*body_fn)(const int64_t *s);

static double best_ns(body_fn fn, const int64_t *s)
{
    double best = 1e18;
    for (int round = 0; round < 7; round++) {
        int reps = 0;
        int64_t t0 = mc_clock_ns(), t;
        do {
            fn(s);
            reps++;
            t = mc_clock_ns() - t0;
        } while (t < 30000000);
        if ((double)t / reps < best)
            best = (double)t / reps;
    }
    return best;
}

static void ours(const int64_t *s) /* m n k ta tb */
{
    k->gemm(pool, &(struct mc_gemm){.m = s[0],
                                    .n = s[1],
                                    .k = s[2],
                                    .ta = (int)s[3],
                                    .tb = (int)s[4],
                                    .a = buf[0],
                                    .lda = s[3] ? s[0] : s[2],
                                    .b = buf[1],
                                    .ldb = s[4] ? s[2] : s[1],
                                    .c = buf[2],
                                    .ldc = s[1],
                                    .alpha = 1});
}
static void theirs(const int64_t *s)
{
    cblas_sgemm(CblasRowMajor, s[3] ? CblasTrans : CblasNoTrans, s[4] ? CblasTrans : CblasNoTrans,
                (int)s[0], (int)s[1], (int)s[2], 1, buf[0], (int)(s[3] ? s[0] : s[2]), buf[1],
                (int)(s[4] ? s[2] : s[1]), 0, buf[2], (int)s[1]);
}

static struct mc_attn_grad attn_of(const int64_t *s) /* b t heads kv d */
{
    int64_t qw = s[2] * s[4], kw = s[3] * s[4], ld = qw + 2 * kw;
    return (struct mc_attn_grad){.f = {.b = s[0],
                                       .t = s[1],
                                       .heads = s[2],
                                       .kv_heads = s[3],
                                       .d = s[4],
                                       .scale = 0.125,
                                       .causal = 1,
                                       .q = buf[0],
                                       .k = buf[0] + qw,
                                       .v = buf[0] + qw + kw,
                                       .ldq = ld,
                                       .ldk = ld,
                                       .ldv = ld,
                                       .o = buf[1],
                                       .ldo = qw,
                                       .lse = buf[2],
                                       .scratch = buf[3]},
                                 .d_o = buf[4],
                                 .lddo = qw,
                                 .dq = buf[5],
                                 .dk = buf[5] + qw,
                                 .dv = buf[5] + qw + kw,
                                 .lddq = ld,
                                 .lddk = ld,
                                 .lddv = ld,
                                 .scratch = buf[3]};
}
static void attn_fwd(const int64_t *s)
{
    struct mc_attn_grad g = attn_of(s);
    k->attn(pool, &g.f);
}
static void attn_bwd(const int64_t *s)
{
    struct mc_attn_grad g = attn_of(s);
    k->attn_bwd(pool, &g);
}

static void rms(const int64_t *s)
{
    k->rmsnorm(pool, &(struct mc_norm){.m = s[0],
                                       .c = s[1],
                                       .eps = 1e-5,
                                       .x = buf[0],
                                       .ldx = s[1],
                                       .w = buf[3],
                                       .y = buf[1],
                                       .ldy = s[1],
                                       .rstd = buf[2]});
}
static struct mc_norm_grad rms_grad(const int64_t *s)
{
    return (struct mc_norm_grad){.m = s[0],
                                 .c = s[1],
                                 .x = buf[0],
                                 .ldx = s[1],
                                 .w = buf[3],
                                 .rstd = buf[2],
                                 .dy = buf[1],
                                 .lddy = s[1],
                                 .dx = buf[4],
                                 .lddx = s[1],
                                 .dw = buf[5],
                                 .scratch = buf[6]};
}
static void rms_bi(const int64_t *s)
{
    struct mc_norm_grad g = rms_grad(s);
    k->rmsnorm_bwd_input(pool, &g);
}
static void rms_bw(const int64_t *s)
{
    struct mc_norm_grad g = rms_grad(s);
    k->rmsnorm_bwd_weight(pool, &g);
}
static struct mc_unary unary_of(const int64_t *s, enum mc_unary_kind kind)
{
    return (struct mc_unary){.kind = kind,
                             .m = s[0],
                             .c = s[1],
                             .x = buf[0],
                             .ldx = s[1],
                             .y = buf[1],
                             .ldy = s[1],
                             .dy = buf[2],
                             .lddy = s[1],
                             .dx = buf[4],
                             .lddx = s[1]};
}
static void gelu(const int64_t *s)
{
    struct mc_unary o = unary_of(s, MC_UNARY_GELU);
    k->unary(pool, &o);
}
static void gelu_b(const int64_t *s)
{
    struct mc_unary o = unary_of(s, MC_UNARY_GELU);
    k->unary_bwd(pool, &o);
}
static void gelu_e(const int64_t *s)
{
    struct mc_unary o = unary_of(s, MC_UNARY_GELU_ERF);
    k->unary(pool, &o);
}
static struct mc_swiglu glu_of(const int64_t *s)
{
    return (struct mc_swiglu){.m = s[0],
                              .c = s[1],
                              .g = buf[0],
                              .u = buf[1],
                              .ldg = s[1],
                              .ldu = s[1],
                              .y = buf[2],
                              .ldy = s[1],
                              .dy = buf[4],
                              .lddy = s[1],
                              .dg = buf[5],
                              .du = buf[6],
                              .lddg = s[1],
                              .lddu = s[1]};
}
static void glu(const int64_t *s)
{
    struct mc_swiglu o = glu_of(s);
    k->swiglu(pool, &o);
}
static void glu_b(const int64_t *s)
{
    struct mc_swiglu o = glu_of(s);
    k->swiglu_bwd(pool, &o);
}
static void addition(const int64_t *s)
{
    k->add(pool, &(struct mc_add){.m = s[0],
                                  .c = s[1],
                                  .x = buf[0],
                                  .ldx = s[1],
                                  .y = buf[1],
                                  .ldy = s[1],
                                  .z = buf[2],
                                  .ldz = s[1],
                                  .ax = 1,
                                  .ay = 1});
}
static void drop(const int64_t *s)
{
    k->dropout(pool, &(struct mc_dropout){.m = s[0],
                                          .c = s[1],
                                          .x = buf[0],
                                          .ldx = s[1],
                                          .y = buf[1],
                                          .ldy = s[1],
                                          .p = 0.1,
                                          .key = 1});
}
static void rope(const int64_t *s)
{
    k->rope(pool, &(struct mc_rope){.b = 1,
                                    .t = s[0],
                                    .heads = s[1] / 64,
                                    .d = 64,
                                    .cos = buf[3],
                                    .sin = buf[4],
                                    .x = buf[0],
                                    .ldx = s[1],
                                    .y = buf[0],
                                    .ldy = s[1]});
}
static int32_t ids[1024];
static struct mc_xent xent_of(const int64_t *s)
{
    return (struct mc_xent){.m = s[0],
                            .v = s[1],
                            .targets = ids,
                            .logits = buf[0],
                            .ld = s[1],
                            .lse = buf[1],
                            .loss = buf[2],
                            .scale = 1e-3};
}
static void xent(const int64_t *s)
{
    struct mc_xent o = xent_of(s);
    k->xent(pool, &o);
}
static void xent_b(const int64_t *s)
{
    struct mc_xent o = xent_of(s);
    k->xent_bwd(pool, &o);
}
static void adam(const int64_t *s)
{
    k->adamw(pool, &(struct mc_adamw){.n = s[0] * s[1],
                                      .w = buf[0],
                                      .m = buf[1],
                                      .v = buf[2],
                                      .g = buf[4],
                                      .gscale = 1,
                                      .lr = 1e-9,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .decay = 0.1,
                                      .bias1 = 0.1,
                                      .bias2 = 0.1});
}
/* What AdamW moves, with next to nothing computed: the floor that memory sets. */
#define FLOOR_PART (1 << 16)
static void floor_task(void *arg, int task, int thread)
{
    int64_t n = *(const int64_t *)arg, i = (int64_t)task * FLOOR_PART;
    int64_t end = i + FLOOR_PART < n ? i + FLOOR_PART : n;
    float *restrict w = buf[0], *restrict m = buf[1], *restrict v = buf[2];
    const float *restrict g = buf[4];
    (void)thread;
    for (; i < end; i++) {
        m[i] = m[i] * 0.5f + g[i];
        v[i] = v[i] * 0.5f + g[i];
        w[i] = w[i] - m[i] * v[i];
    }
}
static void memory_floor(const int64_t *s)
{
    int64_t n = s[0] * s[1];
    mc_pool_run(pool, floor_task, &n, (int)((n + FLOOR_PART - 1) / FLOOR_PART));
}
static volatile double sink;
static void squares(const int64_t *s)
{
    sink = k->sum_squares(pool, buf[0], s[0] * s[1]);
}

struct memory_row {
    const char *name;
    body_fn fn;
    double bytes; /* moved per element, reads and writes */
};
static const struct memory_row memory_rows[] = {{"rmsnorm", rms, 8},
                                                {"rmsnorm bwd x", rms_bi, 12},
                                                {"rmsnorm bwd w", rms_bw, 8},
                                                {"gelu", gelu, 8},
                                                {"gelu bwd", gelu_b, 12},
                                                {"gelu erf", gelu_e, 8},
                                                {"swiglu", glu, 12},
                                                {"swiglu bwd", glu_b, 20},
                                                {"add", addition, 12},
                                                {"dropout", drop, 8},
                                                {"rope", rope, 8},
                                                {"xent", xent, 4},
                                                {"xent bwd", xent_b, 8},
                                                {"adamw", adam, 28},
                                                {"sum_squares", squares, 4}};

static void refill(void) /* in-place kernels drift; start each from the same */
{
    for (int b = 0; b < 8; b++)
        for (int64_t i = 0; i < FLOATS; i++)
            buf[b][i] = (float)((i * 37 + b) % 101) * 0.02f - 1;
}

static void measure(int threads)
{
    static const int64_t products[][5] = {{256, 768, 768, 0, 1},  {1024, 2304, 768, 0, 1},
                                          {768, 384, 128, 0, 1},  {768, 128, 384, 0, 0},
                                          {768, 768, 1024, 1, 0}, {384, 128, 768, 1, 0},
                                          {256, 128, 128, 0, 1},  {64, 128, 128, 0, 1}};
    static const int64_t attns[][5] = {
        {4, 256, 6, 6, 64}, {1, 1024, 12, 12, 64}, {1, 1024, 12, 4, 64}, {12, 64, 4, 4, 32}};
    static const int64_t rows[][2] = {{1024, 768}, {768, 128}};
    printf("-- %d thread%s\n", threads, threads > 1 ? "s" : "");
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const int64_t *s = products[i];
        double flop = 2.0 * (double)(s[0] * s[1] * s[2]);
        openblas_set_num_threads(1);
        double a = flop / best_ns(ours, s);
        openblas_set_num_threads(threads);
        double b = flop / best_ns(theirs, s);
        openblas_set_num_threads(1);
        printf("gemm %4d %4d %4d %c%c  ours %6.1f  OpenBLAS %6.1f GFLOP/s\n", (int)s[0], (int)s[1],
               (int)s[2], s[3] ? 't' : 'n', s[4] ? 't' : 'n', a, b);
    }
    for (size_t i = 0; i < sizeof attns / sizeof *attns; i++) {
        const int64_t *s = attns[i];
        double flop = 2.0 * (double)(s[0] * s[1] * s[1] * s[2] * s[4]); /* causal half of 4 */
        refill();
        double f = best_ns(attn_fwd, s), b = best_ns(attn_bwd, s);
        printf("attn b %2d t %4d h %2d/%2d d %2d  forward %6.3f ms %6.1f  backward %6.3f ms %6.1f "
               "GFLOP/s (causal count)\n",
               (int)s[0], (int)s[1], (int)s[2], (int)s[3], (int)s[4], f * 1e-6, flop / f, b * 1e-6,
               2.5 * flop / b);
    }
    static const int64_t all[2] = {FLOATS / 768, 768};
    refill();
    double a = best_ns(adam, all), f = best_ns(memory_floor, all);
    printf("adamw of %.1f million, beyond the caches: %.2f ms, %.2f GB/s; memory's floor %.2f ms, "
           "ratio %.2f\n",
           FLOATS * 1e-6, a * 1e-6, FLOATS * 28.0 / a, f * 1e-6, a / f);
    for (int r = 0; r < 2; r++)
        for (size_t i = 0; i < sizeof memory_rows / sizeof *memory_rows; i++) {
            refill();
            double t = best_ns(memory_rows[i].fn, rows[r]);
            double n = (double)(rows[r][0] * rows[r][1]);
            printf("%-14s %4d x %4d  %7.1f us  %6.2f GB/s\n", memory_rows[i].name, (int)rows[r][0],
                   (int)rows[r][1], t * 1e-3, n * memory_rows[i].bytes / t);
        }
}

int main(int argc, char **argv)
{
    struct mc_err err = {0};
    char text[128];
    if (mc_kern_get(MC_DEVICE_CPU, MC_F32, &k, &err) != MC_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    for (int b = 0; b < 8; b++)
        if (!(buf[b] = mc_alloc((size_t)FLOATS * sizeof(float), "bench")))
            return fprintf(stderr, "out of memory\n"), 1;
    mc_kern_fingerprint(text, sizeof text);
    printf("%s\n", text);
    for (int i = 1; i < (argc > 1 ? argc : 3); i++) {
        int threads = argc > 1 ? atoi(argv[i]) : i;
        if (mc_pool_create(threads, &pool, &err) != MC_OK || mc_kern_start(pool, &err) != MC_OK)
            return fprintf(stderr, "%s\n", err.msg), 1;
        measure(threads);
        mc_pool_destroy(pool);
    }
    return 0;
}
