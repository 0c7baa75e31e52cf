/* op_misc.c - add, scale, dropout, and the last row.
 *
 * add      z = x + y; both in the same state. Its backward runs nothing: the gradient of either
 * input *is* the gradient of the output (MC_OPF_DSHARE); the planner makes that safe. scale    y =
 * scale x.   dropout  y = x keep / (1 - p), keep drawn by integer compare from Philox keyed by
 * (seed, full name), indexed by logical row and column: the same on every layout, and the same
 * again when it is run again or backward. last_row INFER: the one row whose logits are wanted. On a
 * mesh two partial sums are added as they are, and summed once, later. */
#include "graph_int.h"

/* -- add, scale ------------------------------------------------------------------------------- */

static mc_status add_infer(struct mc_op_infer *io, struct mc_err *err)
{
    if (io->in[0].cols != io->in[1].cols)
        return mc_err_set(err, MC_E_RECIPE, "adds %lld columns to %lld; they must agree",
                          (long long)io->in[0].cols, (long long)io->in[1].cols);
    for (int a = 0; a < MC_NAXES; a++) {
        const struct mc_place *x = &io->in[0].sharding.on[a], *y = &io->in[1].sharding.on[a];
        struct mc_place want = {.kind = MC_REPLICATE};
        if (x->kind == MC_SHARD) /* a part stays a part; a partial sum is scattered to match it */
            want = *x;
        else if (y->kind == MC_SHARD)
            want = *y;
        else if (x->kind == MC_PARTIAL && y->kind == MC_PARTIAL)
            want = *x;
        io->want[0].sharding.on[a] = io->want[1].sharding.on[a] = want;
    }
    io->out[0] = io->want[0];
    io->nout = 1;
    return MC_OK;
}

static void add_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_add a = {.m = mc_op_rows(cx),
                       .c = n->out[0].c,
                       .x = n->in[0].p,
                       .ldx = n->in[0].ld,
                       .y = n->in[1].p,
                       .ldy = n->in[1].ld,
                       .z = n->out[0].p,
                       .ldz = n->out[0].ld,
                       .ax = 1,
                       .ay = 1};
    cx->kern->add(cx->pool, &a);
}

static mc_status scale_infer(struct mc_op_infer *io, struct mc_err *err)
{
    if (!mc_call_attr(io->call, "scale"))
        return mc_err_set(err, MC_E_RECIPE, "needs its factor, scale");
    io->out[0] = io->in[0]; /* linear: partial sums may stay partial */
    io->attr[0] = mc_call_num(io->call, "scale", 1);
    io->nout = 1;
    return MC_OK;
}

void mc_op_scale(const struct mc_op_ctx *cx, int64_t rows, double s, const struct mc_view *x,
                 const struct mc_view *y)
{
    struct mc_add a = {.m = rows,
                       .c = x->c,
                       .x = x->p,
                       .ldx = x->ld,
                       .y = x->p,
                       .ldy = x->ld,
                       .z = y->p,
                       .ldz = y->ld,
                       .ax = s};
    cx->kern->add(cx->pool, &a);
}

static void scale_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    mc_op_scale(cx, mc_op_rows(cx), n->attr[0], &n->in[0], &n->out[0]);
}

static void scale_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    mc_op_scale(cx, mc_op_rows(cx), n->attr[0], &n->d_out[0], &n->d_in[0]);
}

/* -- dropout ---------------------------------------------------------------------------------- */

enum { P, WIDTH, COPIES }; /* logical columns; copies of a part, 0: all columns are here */

static mc_status dropout_infer(struct mc_op_infer *io, struct mc_err *err)
{
    double p = mc_call_num(io->call, "p", io->model->dropout);
    if (!(p >= 0 && p < 1))
        return mc_err_set(err, MC_E_RECIPE, "p is %g; it must be at least 0 and below 1", p);
    const struct mc_place *at = &io->want[0].sharding.on[MC_AXIS_TP];
    io->out[0] = io->want[0];
    io->attr[P] = p;
    io->attr[WIDTH] = (double)io->in[0].cols;
    if (at->kind == MC_SHARD && at->dim == 1)
        io->attr[COPIES] = at->copies + !at->copies;
    io->nout = 1;
    return MC_OK;
}

static void dropout_run(const struct mc_node *n, const struct mc_op_ctx *cx,
                        const struct mc_view *x, const struct mc_view *y)
{
    int copies = (int)n->attr[COPIES];
    struct mc_dropout d = {.m = mc_op_rows(cx),
                           .c = x->c,
                           .x = x->p,
                           .ldx = x->ld,
                           .y = y->p,
                           .ldy = y->ld,
                           .p = n->attr[P],
                           .key = n->key,
                           .step = (uint64_t)cx->step,
                           .width = (int64_t)n->attr[WIDTH],
                           .col0 = copies ? cx->coord[MC_AXIS_TP] / copies * x->c : 0};
    if (cx->logical_row)
        d.row = cx->logical_row + cx->row0;
    else
        d.first = (uint64_t)(cx->row0 * d.width);
    cx->kern->dropout(cx->pool, &d);
}

static void dropout_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    dropout_run(n, cx, &n->in[0], &n->out[0]);
}

static void dropout_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    dropout_run(n, cx, &n->d_out[0], &n->d_in[0]);
}

/* -- last_row --------------------------------------------------------------------------------- */

static void last_row_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    /* the graph gives the whole extent here: rows t, of which the last is wanted */
    struct mc_view last = n->in[0];
    last.p = (char *)last.p + (size_t)((mc_op_rows(cx) - 1) * last.ld) * n->elem;
    mc_op_scale(cx, 1, 1, &last, &n->out[0]);
}

/* clang-format off */
const struct mc_op *const mc_ops_misc[] = {
    &(const struct mc_op){.name = "add", .doc = "z = x + y", .nin_min = 2, .nin_max = 2,
                          .flags = MC_OPF_INPLACE | MC_OPF_DSHARE | MC_OPF_TAKES_PARTIAL |
                                   MC_OPF_TAKES_ROWS | MC_OPF_TAKES_COLS,
                          .infer = add_infer,
                          .forward = add_forward, .deterministic = 1},
    &(const struct mc_op){.name = "scale", .doc = "y = scale x", .nin_min = 1, .nin_max = 1,
                          .flags = MC_OPF_INPLACE | MC_OPF_DINPLACE | MC_OPF_TAKES_PARTIAL |
                                   MC_OPF_TAKES_ROWS | MC_OPF_TAKES_COLS,
                          .infer = scale_infer,
                          .forward = scale_forward, .backward_input = scale_backward,
                          .attrs = {"scale"}, .deterministic = 1},
    &(const struct mc_op){.name = "dropout",
                          .doc = "each element 0 with probability p, else x / (1 - p); TRAIN only",
                          .nin_min = 1, .nin_max = 1,
                          .flags = MC_OPF_INPLACE | MC_OPF_DINPLACE | MC_OPF_RANDOM |
                                   MC_OPF_TAKES_ROWS | MC_OPF_TAKES_COLS,
                          .infer = dropout_infer, .forward = dropout_forward,
                          .backward_input = dropout_backward, .attrs = {"p"}, .deterministic = 1},
    &(const struct mc_op){.name = "last_row", .doc = "the last row alone", .nin_min = 1,
                          .nin_max = 1, .flags = MC_OPF_INTERNAL, .forward = last_row_forward,
                          .deterministic = 1},
    NULL};
/* clang-format on */
