/* op_linear.c - y = x W^T + b, alone or several side by side as one GEMM.
 *
 * x (M, K), W (N, K) as PyTorch keeps it, b (N), y (M, N). Linears that read the same value are
 * fused by the graph into one node: their weights are adjacent rows of one [sum N, K] block, their
 * outputs adjacent columns of one [M, sum N] buffer, their gradients likewise; so one call computes
 * all: forward           Y  = X W^T (+ b) backward_weight   dW += dY^T X,  db += column sums of dY
 *   backward_input    dX  = dY W          (or += when the graph sums it here)
 * I1  params: all weights, then all biases; views [0 .. nout) are column slices with one ld.
 * I2  K of a product is never split, so bits do not depend on threads. On a mesh: "column" keeps
 *     rows of W (columns of y) apart, x must be whole; "row" keeps columns of W apart, x must be
 *     sharded by columns, y is partial; its bias is added on coordinate 0 alone, so that the sum
 *     adds it once, but all coordinates see the whole d(y) and compute its whole gradient. "none"
 *     computes the same on every coordinate, or some rows on each. A column linear whose heads
 *     become keys or values and are fewer than tp is held in copies: neighbours compute the same
 *     head, and the gradient of its weight is the sum over them. That of the head may be padded:
 *     its rows are the vocabulary's, which tp need not divide. */
#include <string.h>
#include "graph_int.h"

enum { HAS_BIAS = 0, IS_ROW = 1 }; /* attr */

/* How many neighbours on tp hold the same key or value heads. */
static uint8_t copies(const struct mc_op_infer *io, int64_t n)
{
    int tp = io->axis_size[MC_AXIS_TP];
    int64_t heads = io->kv_width > 0 ? n / io->kv_width : 0;
    if (heads == 0 || n % io->kv_width != 0 || heads >= tp || tp % heads != 0)
        return 0; /* each its own; what does not divide is refused where the heads are used */
    return (uint8_t)(tp / heads);
}

static mc_status linear_infer(struct mc_op_infer *io, struct mc_err *err)
{
    const char *shard = mc_call_str(io->call, "shard", "none");
    const char *tied = mc_call_str(io->call, "tied", "");
    const struct mc_place by_rows = {.kind = MC_SHARD, .dim = 0};
    const struct mc_place by_cols = {.kind = MC_SHARD, .dim = 1};
    struct mc_place *in = &io->want[0].sharding.on[MC_AXIS_TP];
    struct mc_place *w, *out = &io->out[0].sharding.on[MC_AXIS_TP];
    int bias = mc_call_num(io->call, "bias", 0) != 0;
    int64_t n, k = io->in[0].cols;
    /* a tied head without `out` gives one logit per row of the embedding, the model's vocabulary */
    MC_TRY(mc_op_whole_number(io, "out", tied[0] ? (double)io->model->vocab : 0, 1,
                              INT64_C(1) << 31, &n, err));
    struct mc_param_spec *p = &io->param[0];
    *p = (struct mc_param_spec){.suffix = "weight",
                                .shape = mc_shape_2(n, k),
                                .cls = MC_PARAM_MATRIX,
                                .init = MC_INIT_NORMAL,
                                .std = mc_call_num(io->call, "std", io->model->init_std)};
    if (strlen(tied) >= sizeof p->tied)
        return mc_err_set(err, MC_E_RECIPE, "tied: \"%s\" is too long for a parameter's name",
                          tied);
    memcpy(p->tied, tied, strlen(tied) + 1);
    if (bias)
        io->param[1] = (struct mc_param_spec){
            .suffix = "bias", .shape = mc_shape_1(n), .cls = MC_PARAM_BIAS, .init = MC_INIT_ZEROS};
    io->out[0].cols = n;
    io->out[0].sharding = io->in[0].sharding;
    w = &p->sharding.on[MC_AXIS_TP];
    if (strcmp(shard, "column") == 0) {
        *in = (struct mc_place){.kind = MC_REPLICATE};
        *w = by_rows;
        w->how = io->is_head || tied[0] ? MC_PADDED : MC_CONTIGUOUS;
        w->copies = copies(io, n);
        *out = *w;
        out->dim = 1;
        if (bias)
            io->param[1].sharding.on[MC_AXIS_TP] = *w;
    } else if (strcmp(shard, "row") == 0) {
        *in = by_cols;
        *w = by_cols;
        *out = (struct mc_place){.kind = MC_PARTIAL};
    } else if (strcmp(shard, "none") == 0) {
        mc_op_want_cols(io, 0);
        io->out[0].sharding = io->want[0].sharding;
    } else {
        static const char *const words[] = {"column", "row", "none"};
        const char *near = mc_nearest(shard, words, 3);
        return mc_err_set(err, MC_E_RECIPE, "shard is \"%s\"; %s\"%s\"", shard,
                          near ? "did you mean " : "it is \"column\", \"row\" or ",
                          near ? near : "none");
    }
    io->attr[HAS_BIAS] = bias;
    io->attr[IS_ROW] = strcmp(shard, "row") == 0;
    io->nout = 1;
    io->nparams = 1 + bias;
    return MC_OK;
}

static int64_t total(const struct mc_view *v, int n) /* columns of adjacent slices */
{
    int64_t c = 0;
    for (int i = 0; i < n; i++)
        c += v[i].c;
    return c;
}

static void linear_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_gemm g = {.m = mc_op_rows(cx),
                        .n = total(n->out, n->nout),
                        .k = n->in[0].c,
                        .tb = 1,
                        .a = n->in[0].p,
                        .lda = n->in[0].ld,
                        .b = n->param[0], /* I1 */
                        .ldb = n->in[0].c,
                        .c = n->out[0].p,
                        .ldc = n->out[0].ld,
                        .alpha = 1,
                        .bias = n->attr[HAS_BIAS] != 0 ? n->param[n->nout] : NULL};
    if (n->attr[IS_ROW] != 0 && cx->coord[MC_AXIS_TP] != 0)
        g.bias = NULL; /* the sum over tp adds coordinate 0's */
    cx->kern->gemm(cx->pool, &g);
}

static void linear_backward_weight(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    int64_t cols = total(n->d_out, n->nout);
    struct mc_gemm g = {.m = cols,
                        .n = n->in[0].c,
                        .k = mc_op_rows(cx),
                        .ta = 1,
                        .a = n->d_out[0].p,
                        .lda = n->d_out[0].ld,
                        .b = n->in[0].p,
                        .ldb = n->in[0].ld,
                        .c = n->grad[0],
                        .ldc = n->in[0].c,
                        .alpha = 1,
                        .acc = 1,
                        .wide = 1};
    cx->kern->gemm(cx->pool, &g);
    if (n->attr[HAS_BIAS] != 0)
        cx->kern->bias_bwd(cx->pool, g.k, cols, n->d_out[0].p, n->d_out[0].ld, n->grad[n->nout],
                           n->scratch);
}

static void linear_backward_input(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_gemm g = {.m = mc_op_rows(cx),
                        .n = n->d_in[0].c,
                        .k = total(n->d_out, n->nout),
                        .a = n->d_out[0].p,
                        .lda = n->d_out[0].ld,
                        .b = n->param[0],
                        .ldb = n->d_in[0].c,
                        .c = n->d_in[0].p,
                        .ldc = n->d_in[0].ld,
                        .alpha = 1,
                        .acc = n->acc};
    cx->kern->gemm(cx->pool, &g);
}

static size_t linear_scratch(const struct mc_node *n, enum mc_verb verb,
                             const struct mc_kern_ops *k, struct mc_extent bound, int threads)
{
    (void)threads;
    if (verb != MC_BACKWARD_WEIGHT || n->attr[HAS_BIAS] == 0)
        return 0;
    return k->bias_scratch(bound.b * bound.t, total(n->d_out, n->nout));
}

static double linear_flops(const struct mc_node *n, struct mc_extent e)
{
    return 2.0 * (double)(e.b * e.t) * (double)n->in[0].c * (double)total(n->out, n->nout);
}

static const struct mc_op linear_row = {.name = "linear",
                                        .doc = "y = x weight^T + bias, weight [out, in]",
                                        .nin_min = 1,
                                        .nin_max = 1,
                                        .flags =
                                            MC_OPF_DACC | MC_OPF_TAKES_ROWS | MC_OPF_TAKES_COLS,
                                        .keeps_in_for_weight = 1,
                                        .infer = linear_infer,
                                        .forward = linear_forward,
                                        .backward_input = linear_backward_input,
                                        .backward_weight = linear_backward_weight,
                                        .scratch = linear_scratch,
                                        .flops = linear_flops,
                                        .attrs = {"out", "bias", "shard", "std", "tied"},
                                        .deterministic = 1};
const struct mc_op *const mc_ops_linear[] = {&linear_row, NULL};
