/* op_norm.c - rmsnorm and layernorm over the columns of each row.
 *
 * rmsnorm    y = x * rstd * w,               rstd = 1 / sqrt(mean(x^2) + eps)
 *   head_dim      each head of a row is normed apart, with one w (head_dim) for all (query and key
 *                 norms); heads may lie over tp, and then the gradient of w is a partial sum
 *   unit_offset   y = x * rstd * (1 + w), w from 0: decay then pulls the factor to 1
 * layernorm  y = (x - mean) * rstd * w + b,  rstd = 1 / sqrt(var(x) + eps)
 * x, y (M, C); w, b (C); saved: rstd (M), mean (M). A row must be whole here; rows may be apart
 * (sequence parallel), and then the gradients of w and b are partial sums.
 *
 * I1  backward_input adds when the graph sums the residual stream here. */
#include "graph_int.h"

enum { EPS, HEADS, UNIT };

static mc_status norm_infer(struct mc_op_infer *io, struct mc_err *err)
{
    int layer = io->op->variant;
    int64_t width = io->in[0].cols, heads = 1;
    double eps = mc_call_num(io->call, "eps", io->model->eps);
    if (!(eps >= 0 && eps <= 1))
        return mc_err_set(err, MC_E_RECIPE, "eps is %g; it must be in 0 .. 1", eps);
    if (mc_call_attr(io->call, "head_dim")) {
        MC_TRY(mc_op_whole_number(io, "head_dim", 0, 1, 65536, &width, err));
        MC_TRY(mc_op_heads(io, 0, width, "its input", &heads, err));
        heads = mc_op_local_cols(io, &io->want[0]) / width;
    } else
        mc_op_want_cols(io, 0);
    io->attr[HEADS] = (double)heads;
    io->attr[UNIT] = mc_call_num(io->call, "unit_offset", 0) != 0;
    io->out[0] = io->want[0];
    io->param[0] =
        (struct mc_param_spec){.suffix = "weight",
                               .shape = mc_shape_1(width),
                               .cls = MC_PARAM_NORM,
                               .init = io->attr[UNIT] != 0 ? MC_INIT_ZEROS : MC_INIT_ONES};
    io->param[1] = (struct mc_param_spec){.suffix = "bias",
                                          .shape = mc_shape_1(io->in[0].cols),
                                          .cls = MC_PARAM_BIAS,
                                          .init = MC_INIT_ZEROS};
    io->saved_elems[0] = io->saved_elems[1] = mc_op_local_rows(io, &io->want[0]) * heads;
    io->attr[EPS] = eps;
    io->nout = 1;
    io->nparams = io->nsaved = 1 + layer;
    return MC_OK;
}

static void norm_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_norm a = {.m = mc_op_rows(cx),
                        .c = n->in[0].c / (int64_t)n->attr[HEADS],
                        .eps = n->attr[EPS],
                        .x = n->in[0].p,
                        .ldx = n->in[0].ld,
                        .w = n->param[0],
                        .b = n->param[1],
                        .y = n->out[0].p,
                        .ldy = n->out[0].ld,
                        .rstd = n->saved[0],
                        .mean = n->saved[1],
                        .heads = (int64_t)n->attr[HEADS],
                        .unit = n->attr[UNIT] != 0};
    (n->op->variant ? cx->kern->layernorm : cx->kern->rmsnorm)(cx->pool, &a);
}

static struct mc_norm_grad grad_args(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    return (struct mc_norm_grad){.m = mc_op_rows(cx),
                                 .c = n->in[0].c / (int64_t)n->attr[HEADS],
                                 .x = n->in[0].p,
                                 .ldx = n->in[0].ld,
                                 .w = n->param[0],
                                 .rstd = n->saved[0],
                                 .mean = n->saved[1],
                                 .dy = n->d_out[0].p,
                                 .lddy = n->d_out[0].ld,
                                 .heads = (int64_t)n->attr[HEADS],
                                 .unit = n->attr[UNIT] != 0};
}

static void norm_backward_input(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_norm_grad a = grad_args(n, cx);
    a.dx = n->d_in[0].p;
    a.lddx = n->d_in[0].ld;
    a.acc_dx = n->acc; /* I1 */
    (n->op->variant ? cx->kern->layernorm_bwd_input : cx->kern->rmsnorm_bwd_input)(cx->pool, &a);
}

static void norm_backward_weight(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_norm_grad a = grad_args(n, cx);
    a.dw = n->grad[0];
    a.db = n->grad[1];
    a.scratch = n->scratch;
    (n->op->variant ? cx->kern->layernorm_bwd_weight : cx->kern->rmsnorm_bwd_weight)(cx->pool, &a);
}

static size_t norm_scratch(const struct mc_node *n, enum mc_verb verb, const struct mc_kern_ops *k,
                           struct mc_extent bound, int threads)
{
    int64_t heads = (int64_t)n->attr[HEADS];
    (void)threads;
    return verb == MC_BACKWARD_WEIGHT
               ? k->norm_scratch(bound.b * bound.t * heads, n->in[0].c / heads)
               : 0;
}

static const struct mc_op rmsnorm_row = {
    .name = "rmsnorm",
    .doc = "y = x / sqrt(mean(x^2) + eps) * weight; "
           "head_dim: of each head; unit_offset: * (1 + weight)",
    .nin_min = 1,
    .nin_max = 1,
    .flags = MC_OPF_DACC | MC_OPF_TAKES_ROWS | MC_OPF_TAKES_COLS,
    .keeps_in_for_input = 1,
    .keeps_in_for_weight = 1,
    .infer = norm_infer,
    .forward = norm_forward,
    .backward_input = norm_backward_input,
    .backward_weight = norm_backward_weight,
    .scratch = norm_scratch,
    .attrs = {"eps", "head_dim", "unit_offset"},
    .deterministic = 1,
    .variant = 0};
static const struct mc_op layernorm_row = {
    .name = "layernorm",
    .doc = "y = (x - mean) / sqrt(var + eps) * weight + bias",
    .nin_min = 1,
    .nin_max = 1,
    .flags = MC_OPF_DACC | MC_OPF_TAKES_ROWS | MC_OPF_TAKES_COLS,
    .keeps_in_for_input = 1,
    .keeps_in_for_weight = 1,
    .infer = norm_infer,
    .forward = norm_forward,
    .backward_input = norm_backward_input,
    .backward_weight = norm_backward_weight,
    .scratch = norm_scratch,
    .attrs = {"eps"},
    .deterministic = 1,
    .variant = 1};
const struct mc_op *const mc_ops_norm[] = {&rmsnorm_row, &layernorm_row, NULL};
