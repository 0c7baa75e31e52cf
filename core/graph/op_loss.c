/* op_loss.c - cross entropy of logits against the microbatch's targets; the graph appends it.
 *
 * Per row: loss = lse(logits) - logits[target]; rows with target < 0 are masked: loss 0, gradient
 * 0. Token losses are in the run's precision; their sum is fp64, in a fixed order, added to the
 * caller's sum. logits (M, V). Saved: lse (M). I1  backward writes dlogits over the logits
 * themselves, so V-wide memory exists once. I2  Rows must hold all V columns here. */
#include "graph_int.h"

static mc_status xent_infer(struct mc_op_infer *io, struct mc_err *err)
{
    (void)err;
    io->want[0].sharding = (struct mc_sharding){0}; /* I2 */
    io->saved_elems[0] = io->bound.b * io->bound.t;
    io->nsaved = 1;
    return MC_OK;
}

static struct mc_xent xent_args(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    return (struct mc_xent){.m = mc_op_rows(cx),
                            .v = n->in[0].c,
                            .targets = cx->targets,
                            .logits = n->in[0].p,
                            .ld = n->in[0].ld,
                            .lse = n->saved[0],
                            .loss = n->scratch,
                            .scale = cx->loss_scale};
}

static void xent_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_xent x = xent_args(n, cx);
    cx->kern->xent(cx->pool, &x);
    *cx->loss_sum += cx->kern->sum(cx->pool, n->scratch, x.m);
}

static void xent_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_xent x = xent_args(n, cx);
    cx->kern->xent_bwd(cx->pool, &x);
}

static size_t xent_scratch(const struct mc_node *n, enum mc_verb verb, const struct mc_kern_ops *k,
                           struct mc_extent bound, int threads)
{
    (void)k;
    (void)threads;
    return verb == MC_FORWARD ? (size_t)(bound.b * bound.t) * n->elem : 0;
}

static const struct mc_op xent_row = {.name = "cross_entropy",
                                      .doc =
                                          "sum of -log softmax(logits)[target] over unmasked rows",
                                      .nin_min = 1,
                                      .nin_max = 1,
                                      .flags = MC_OPF_DLOGITS | MC_OPF_INTERNAL,
                                      .keeps_in_for_input = 1,
                                      .infer = xent_infer,
                                      .forward = xent_forward,
                                      .backward_input = xent_backward,
                                      .scratch = xent_scratch,
                                      .deterministic = 1};
const struct mc_op *const mc_ops_loss[] = {&xent_row, NULL};
