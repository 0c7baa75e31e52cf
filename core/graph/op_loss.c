/* op_loss.c - cross entropy of logits against the microbatch's targets; the graph appends it.
 *
 * Per row: loss = lse(logits) - logits[target]; rows with target < 0 are masked: loss 0, gradient
 * 0. A TRAIN graph adds what the model asks for, and its loss is the sum that is optimised:
 *   label_smoothing e   (1 - e) (lse - x_target) + e (lse - mean x), over the vocabulary
 *                       (Szegedy et al. 2016)
 *   z_loss z            + z lse^2 (PaLM, Chowdhery et al. 2022)
 * An EVAL graph reports the plain token loss always, so that it compares between recipes. Token
 * losses are wide (kern.h); their sum is fp64, in a fixed order, added to the caller's
 * sum. logits (M, V). Saved: lse (M). I1  backward writes dlogits over the logits themselves, so
 * V-wide memory exists once. I2  Rows must hold all V columns here. I3  Logits beyond model.vocab
 * are padding: outside the sum, with gradient 0. */
#include "graph_int.h"

enum { VOCAB, SMOOTHING, Z };

static mc_status xent_infer(struct mc_op_infer *io, struct mc_err *err)
{
    (void)err;
    io->attr[VOCAB] = (double)io->model->vocab;
    io->attr[SMOOTHING] = io->model->label_smoothing;
    io->attr[Z] = io->model->z_loss;
    io->want[0].sharding = (struct mc_sharding){0}; /* I2 */
    io->saved_elems[0] = io->bound.b * io->bound.t;
    io->nsaved = 1;
    return MC_OK;
}

static struct mc_xent xent_args(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    int64_t vocab = (int64_t)n->attr[VOCAB];
    return (struct mc_xent){.m = mc_op_rows(cx),
                            .v = vocab, /* I3 */
                            .pad = n->in[0].c - vocab,
                            .smoothing = cx->train ? n->attr[SMOOTHING] : 0,
                            .z = cx->train ? n->attr[Z] : 0,
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
    (void)n;
    (void)threads;
    return verb == MC_FORWARD ? (size_t)(bound.b * bound.t) * mc_dtype_size(k->wide->dtype) : 0;
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
