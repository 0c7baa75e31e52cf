/* op_loss.c - cross entropy of logits against the microbatch's targets; the graph appends it.
 *
 * Per row: loss = lse(logits) - logits[target]; rows with target < 0 are masked: loss 0, gradient
 * 0. A TRAIN graph adds what the model asks for, and its loss is the sum that is optimised:
 *   label_smoothing e   (1 - e) (lse - x_target) + e (lse - mean x), over the vocabulary
 *                       (Szegedy et al. 2016)
 *   z_loss z            + z lse^2 (PaLM, Chowdhery et al. 2022)
 * An EVAL graph reports the plain token loss always, so that it compares between recipes. Token
 * losses are wide (kern.h); their sum is fp64, in a fixed order, added to the caller's
 * sum. logits (M, V). Saved: lse (M).
 *
 * I1  backward writes dlogits over the logits themselves, so V-wide memory exists once.
 * I2  On a mesh a rank may hold some columns of all rows: each tells four numbers a row, and all
 *     ranks join them in the same order to the same loss; none of them ever sees all V columns.
 * I3  Logits beyond model.vocab are padding: outside the sum, with gradient 0.
 */
#include "../base/arena.h"
#include "graph_int.h"

enum { VOCAB, SMOOTHING, Z, PARTS };

static mc_status xent_infer(struct mc_op_infer *io, struct mc_err *err)
{
    (void)err;
    io->attr[VOCAB] = (double)io->model->vocab;
    io->attr[SMOOTHING] = io->model->label_smoothing;
    io->attr[Z] = io->model->z_loss;
    const struct mc_place *at = &io->in[0].sharding.on[MC_AXIS_TP];
    io->want[0].sharding = (struct mc_sharding){0};
    if (at->kind == MC_SHARD && at->dim == 1 && at->copies < 2) { /* I2 */
        io->want[0].sharding.on[MC_AXIS_TP] = *at;
        io->attr[PARTS] = io->axis_size[MC_AXIS_TP];
    }
    io->saved_elems[0] = io->bound.b * io->bound.t;
    io->nsaved = 1;
    return MC_OK;
}

static struct mc_xent xent_args(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    int64_t vocab = (int64_t)n->attr[VOCAB], width = n->in[0].c, first = 0;
    if (n->attr[PARTS] > 0)
        first = cx->coord[MC_AXIS_TP] * width;
    int64_t here = vocab - first < 0 ? 0 : vocab - first < width ? vocab - first : width;
    return (struct mc_xent){.m = mc_op_rows(cx),
                            .v = here, /* I3 */
                            .pad = width - here,
                            .first = first,
                            .all = vocab,
                            .smoothing = cx->train ? n->attr[SMOOTHING] : 0,
                            .z = cx->train ? n->attr[Z] : 0,
                            .targets = cx->targets,
                            .logits = n->in[0].p,
                            .ld = n->in[0].ld,
                            .lse = n->saved[0],
                            .loss = n->scratch,
                            .scale = cx->loss_scale};
}

/* I2. scratch: token losses [M] wide, then [parts][M][4] fp64. */
static void in_parts(const struct mc_node *n, const struct mc_op_ctx *cx, struct mc_xent *x)
{
    size_t losses =
        mc_align_up((size_t)x->m * mc_dtype_size(cx->kern->wide->dtype), sizeof(double));
    double *all = (double *)(void *)((char *)n->scratch + losses);
    x->part = all + 4 * x->m * cx->coord[MC_AXIS_TP];
    cx->kern->xent_part(cx->pool, x);
    mc_op_all_gather(cx, MC_AXIS_TP, x->part, all, 4 * x->m, MC_F64);
    x->part = all;
    x->parts = (int64_t)n->attr[PARTS];
    if (cx->err->code == MC_OK)
        cx->kern->xent_join(cx->pool, x);
}

static void xent_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_xent x = xent_args(n, cx);
    if (n->attr[PARTS] > 0)
        in_parts(n, cx, &x);
    else
        cx->kern->xent(cx->pool, &x);
    if (cx->err->code == MC_OK)
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
    (void)threads;
    size_t rows = (size_t)(bound.b * bound.t), parts = (size_t)n->attr[PARTS];
    if (verb != MC_FORWARD)
        return 0;
    return mc_align_up(rows * mc_dtype_size(k->wide->dtype), sizeof(double)) +
           parts * rows * 4 * sizeof(double);
}

static const struct mc_op xent_row = {.name = "cross_entropy",
                                      .doc =
                                          "sum of -log softmax(logits)[target] over unmasked rows",
                                      .nin_min = 1,
                                      .nin_max = 1,
                                      .flags = MC_OPF_DLOGITS | MC_OPF_INTERNAL | MC_OPF_TAKES_COLS,
                                      .keeps_in_for_input = 1,
                                      .infer = xent_infer,
                                      .forward = xent_forward,
                                      .backward_input = xent_backward,
                                      .scratch = xent_scratch,
                                      .deterministic = 1};
const struct mc_op *const mc_ops_loss[] = {&xent_row, NULL};
