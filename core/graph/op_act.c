/* op_act.c - activations: one row each, and swiglu.
 *
 * A one-input activation is y = f(x) per element; the kernel knows f and f' by enum mc_unary_kind,
 * so a row only says which. To add one, see docs/add_an_op.md: kind and formula in core/kern, one
 * ACTIVATION line here. swiglu(g, u) = silu(g) * u, geglu(g, u) = gelu(g) * u. Activations keep
 * their inputs for backward. On a mesh they work on whatever part is here, but not on partial sums:
 * f(a) + f(b) is not f(a + b).
 */
#include "graph_int.h"

enum { KIND, CAP };

static mc_status unary_infer(struct mc_op_infer *io, struct mc_err *err)
{
    int kind = io->op->variant;
    double cap = mc_call_num(io->call, "cap", 0);
    if (kind == MC_UNARY_SOFTCAP && !(cap > 0))
        return mc_err_set(err, MC_E_RECIPE, "needs its cap, a number above 0");
    io->attr[CAP] = cap;
    if (kind == MC_UNARY_GELU && mc_call_num(io->call, "erf", 0) != 0)
        kind = MC_UNARY_GELU_ERF;
    io->out[0] = io->want[0];
    io->attr[KIND] = kind;
    io->nout = 1;
    return MC_OK;
}

static void unary_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_unary u = {.kind = (enum mc_unary_kind)n->attr[KIND],
                         .m = mc_op_rows(cx),
                         .c = n->in[0].c,
                         .x = n->in[0].p,
                         .ldx = n->in[0].ld,
                         .y = n->out[0].p,
                         .ldy = n->out[0].ld,
                         .cap = n->attr[CAP]};
    cx->kern->unary(cx->pool, &u);
}

static void unary_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_unary u = {.kind = (enum mc_unary_kind)n->attr[KIND],
                         .m = mc_op_rows(cx),
                         .c = n->in[0].c,
                         .x = n->in[0].p,
                         .ldx = n->in[0].ld,
                         .dy = n->d_out[0].p,
                         .lddy = n->d_out[0].ld,
                         .dx = n->d_in[0].p,
                         .lddx = n->d_in[0].ld,
                         .cap = n->attr[CAP]};
    cx->kern->unary_bwd(cx->pool, &u);
}

static mc_status swiglu_infer(struct mc_op_infer *io, struct mc_err *err)
{
    if (io->in[0].cols != io->in[1].cols)
        return mc_err_set(err, MC_E_RECIPE, "gate has %lld columns, up has %lld; they must agree",
                          (long long)io->in[0].cols, (long long)io->in[1].cols);
    io->attr[KIND] = io->op->variant;
    if (io->op->variant == MC_GATE_GELU && mc_call_num(io->call, "erf", 0) != 0)
        io->attr[KIND] = MC_GATE_GELU_ERF;
    io->want[1].sharding = io->want[0].sharding;
    io->out[0] = io->want[0];
    io->nout = 1;
    return MC_OK;
}

static struct mc_swiglu swiglu_args(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    return (struct mc_swiglu){.m = mc_op_rows(cx),
                              .c = n->in[0].c,
                              .g = n->in[0].p,
                              .u = n->in[1].p,
                              .ldg = n->in[0].ld,
                              .ldu = n->in[1].ld,
                              .y = n->out[0].p,
                              .ldy = n->out[0].ld,
                              .gate = (enum mc_gate_kind)n->attr[KIND]};
}

static void swiglu_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_swiglu s = swiglu_args(n, cx);
    cx->kern->swiglu(cx->pool, &s);
}

static void swiglu_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_swiglu s = swiglu_args(n, cx);
    s.dy = n->d_out[0].p;
    s.lddy = n->d_out[0].ld;
    s.dg = n->d_in[0].p;
    s.du = n->d_in[1].p;
    s.lddg = n->d_in[0].ld;
    s.lddu = n->d_in[1].ld;
    cx->kern->swiglu_bwd(cx->pool, &s);
}

/* clang-format off */
#define ACTIVATION(name_, doc_, kind_, ...)                                                        \
    &(const struct mc_op){.name = name_, .doc = doc_, .variant = kind_, .attrs = {__VA_ARGS__},    \
                          .nin_min = 1, .nin_max = 1, .flags = MC_OPF_INPLACE | MC_OPF_DINPLACE |  \
                          MC_OPF_TAKES_ROWS | MC_OPF_TAKES_COLS,                                   \
                          .keeps_in_for_input = 1, .infer = unary_infer, .forward = unary_forward, \
                          .backward_input = unary_backward, .deterministic = 1}

#define GATE(name_, doc_, gate_, ...)                                                              \
    &(const struct mc_op){.name = name_, .doc = doc_, .variant = gate_, .attrs = {__VA_ARGS__},    \
                          .nin_min = 2, .nin_max = 2, .keeps_in_for_input = 3,                     \
                          .flags = MC_OPF_TAKES_ROWS | MC_OPF_TAKES_COLS,                          \
                          .infer = swiglu_infer, .forward = swiglu_forward,                        \
                          .backward_input = swiglu_backward, .deterministic = 1}

const struct mc_op *const mc_ops_act[] = {
    ACTIVATION("gelu", "x times the normal distribution's mass below x; tanh form, or erf = true",
               MC_UNARY_GELU, "erf"),
    ACTIVATION("silu", "y = x / (1 + exp(-x))", MC_UNARY_SILU, NULL),
    ACTIVATION("relu", "y = max(x, 0)", MC_UNARY_RELU, NULL),
    ACTIVATION("relu_squared", "y = max(x, 0)^2", MC_UNARY_RELU_SQUARED, NULL),
    ACTIVATION("softcap", "y = cap tanh(x / cap)", MC_UNARY_SOFTCAP, "cap"),
    GATE("swiglu", "y = silu(gate) * up", MC_GATE_SILU, NULL),
    GATE("geglu", "y = gelu(gate) * up; tanh form, or erf = true", MC_GATE_GELU, "erf"),
    NULL};
/* clang-format on */
