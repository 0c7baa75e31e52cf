/* op_embed.c - token embedding and learned positions.
 *
 * embedding   tokens (rows) -> y (rows, C): y[r] = w[token[r]], w (vocab, C)
 * positions   x (rows, C)   -> y (rows, C): y[r] = x[r] + w[position of r], w (max, C)
 * On a mesh the embedding's rows lie over tp, padded (each coordinate gives zeros for ids it does
 * not hold), so that its output is partial; positions may be added to some rows on each.
 *
 * I1  Neither passes a gradient to token ids; positions pass theirs through unchanged.
 *
 * Runs on the thread that calls the graph; kernels use the pool. */
#include "graph_int.h"

static mc_status embedding_infer(struct mc_op_infer *io, struct mc_err *err)
{
    int64_t vocab;
    if (io->in[0].cols != 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "reads a value of %lld columns; it reads token ids, "
                          "the argument of the stem",
                          (long long)io->in[0].cols);
    MC_TRY(mc_op_whole_number(io, "vocab", (double)io->model->vocab, 1, 1 << 24, &vocab, err));
    if (vocab < io->model->vocab)
        return mc_err_set(err, MC_E_RECIPE, "vocab is %lld, less than model.vocab %lld",
                          (long long)vocab, (long long)io->model->vocab);
    io->out[0].cols = io->model->hidden;
    io->out[0].sharding.on[MC_AXIS_TP] = (struct mc_place){.kind = MC_PARTIAL};
    io->param[0] = (struct mc_param_spec){.suffix = "weight",
                                          .shape = mc_shape_2(vocab, io->model->hidden),
                                          .cls = MC_PARAM_EMBEDDING,
                                          .init = MC_INIT_NORMAL,
                                          .std = mc_call_num(io->call, "std", io->model->init_std)};
    io->param[0].sharding.on[MC_AXIS_TP] =
        (struct mc_place){.kind = MC_SHARD, .dim = 0, .how = MC_PADDED};
    io->nout = io->nparams = 1;
    return MC_OK;
}

static struct mc_embed embed_args(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    return (struct mc_embed){.m = mc_op_rows(cx),
                             .vocab = n->param_rows[0],
                             .t = cx->e.t,
                             .pos0 = cx->e.pos0,
                             .row0 = cx->row0,
                             .ids = cx->tokens,
                             .w = n->param[0],
                             .first = n->param_first[0],
                             .end = n->param_end[0]};
}

static void embedding_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_embed e = embed_args(n, cx);
    e.c = n->out[0].c;
    e.y = n->out[0].p;
    e.ldy = n->out[0].ld;
    cx->kern->embed(cx->pool, &e);
}

static void embedding_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_embed e = embed_args(n, cx);
    e.c = n->d_out[0].c;
    e.dy = n->d_out[0].p;
    e.lddy = n->d_out[0].ld;
    e.dw = n->grad[0];
    cx->kern->embed_bwd(cx->pool, &e);
}

static mc_status positions_infer(struct mc_op_infer *io, struct mc_err *err)
{
    int64_t max;
    MC_TRY(mc_op_whole_number(io, "max", (double)io->model->seq, 1, INT64_C(1) << 24, &max, err));
    if (max < io->bound.t)
        return mc_err_set(err, MC_E_RECIPE, "max is %lld positions, sequences have up to %lld",
                          (long long)max, (long long)io->bound.t);
    io->out[0] = io->want[0];
    io->param[0] = (struct mc_param_spec){.suffix = "weight",
                                          .shape = mc_shape_2(max, io->in[0].cols),
                                          .cls = MC_PARAM_POSITION,
                                          .init = MC_INIT_NORMAL,
                                          .std = mc_call_num(io->call, "std", io->model->init_std)};
    io->nout = io->nparams = 1;
    return MC_OK;
}

static void positions_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_embed e = embed_args(n, cx);
    e.c = n->out[0].c;
    e.x = n->in[0].p;
    e.ldx = n->in[0].ld;
    e.y = n->out[0].p;
    e.ldy = n->out[0].ld;
    cx->kern->positions(cx->pool, &e);
}

static void positions_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_embed e = embed_args(n, cx);
    e.c = n->d_out[0].c;
    e.dy = n->d_out[0].p;
    e.lddy = n->d_out[0].ld;
    e.dw = n->grad[0];
    cx->kern->positions_bwd(cx->pool, &e);
}

/* Only the rows that tokens name: read and written, or a gradient read and added to a row of it. */
static double rows_bytes(const struct mc_node *n, enum mc_verb verb, double rows)
{
    return verb == MC_FORWARD ? 2 * rows * (double)n->out[0].c * (double)n->elem
                              : 3 * rows * (double)n->d_out[0].c * (double)n->elem;
}

static const struct mc_op embedding_row = {.name = "embedding",
                                           .doc = "y[r] = weight[token[r]]",
                                           .nin_min = 1,
                                           .nin_max = 1,
                                           .infer = embedding_infer,
                                           .forward = embedding_forward,
                                           .backward_weight = embedding_backward,
                                           .bytes = rows_bytes,
                                           .attrs = {"vocab", "std"},
                                           .deterministic = 1};
static const struct mc_op positions_row = {.name = "positions",
                                           .doc = "y[r] = x[r] + weight[position of r]",
                                           .nin_min = 1,
                                           .nin_max = 1,
                                           .flags = MC_OPF_DSHARE | MC_OPF_TAKES_ROWS, /* I1 */
                                           .infer = positions_infer,
                                           .forward = positions_forward,
                                           .backward_weight = positions_backward,
                                           .bytes = rows_bytes,
                                           .attrs = {"max", "std"},
                                           .deterministic = 1};
const struct mc_op *const mc_ops_embed[] = {&embedding_row, &positions_row, NULL};
