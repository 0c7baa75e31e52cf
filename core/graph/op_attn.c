/* op_attn.c - attention, and what a query may see.
 *
 * attention  q (M, H*D), k v (M, KV*D) -> o (M, H*D): softmax(scale q k^T) v; query head h reads
 * key head h / (H / KV). Saved: lse (B, H, T). Never stores T x T. A query at position p sees
 *   causal      0 .. p                      (else all of its sequence)
 *   window w    of these p - w + 1 .. p: itself and the w - 1 before it
 *   documents   of these its own document's: documents end after each token of id model.eos, and
 *               with the sample
 *   softcap c   all the same, by scores c tanh(score / c)
 * Positions do not begin again with a document: rope's scores depend on the distance of two
 * positions alone, so there it would change nothing; a table of learned positions stays by the
 * sample.
 *
 * I1  In an INFER graph attention keeps its keys and values in a cache, [bound.t, KV*D] each, and
 *     reads positions 0 .. pos0 + t - 1 from it.
 * I2  On a mesh heads lie over tp: q, k and v all apart, so that a coordinate has whole heads and
 *     the key heads that its query heads read; with fewer key heads than tp, tp / KV neighbours
 *     hold the same one, whose gradient is then the sum over them.
 * Memory: none. Threads: the one that runs the graph; kernels use the pool. */
#include <math.h>
#include "graph_int.h"

enum {
    HEAD_DIM,
    SCALE,
    CAUSAL = MC_ATTR_CAUSAL,
    DOCUMENTS = MC_ATTR_DOCUMENTS,
    WINDOW = MC_ATTR_WINDOW,
    SOFTCAP
};

/* -- attention -------------------------------------------------------------------------------- */

/* What a query sees beyond `causal`, from attributes. */
static mc_status mask_infer(struct mc_op_infer *io, struct mc_err *err)
{
    int64_t window;
    double cap = mc_call_num(io->call, "softcap", 0);
    MC_TRY(mc_op_whole_number(io, "window", 0, 0, INT64_C(1) << 40, &window, err));
    if (!(cap >= 0))
        return mc_err_set(err, MC_E_RECIPE, "softcap is %g; it must be above 0, or 0 for none",
                          cap);
    io->attr[CAUSAL] = mc_call_num(io->call, "causal", 1) != 0;
    io->attr[DOCUMENTS] = mc_call_num(io->call, "documents", 0) != 0;
    io->attr[WINDOW] = (double)window;
    io->attr[SOFTCAP] = cap;
    if (io->attr[CAUSAL] == 0 && (window > 0 || io->attr[DOCUMENTS] != 0))
        return mc_err_set(err, MC_E_RECIPE,
                          "%s narrows what a causal attention sees; this one is not causal",
                          window > 0 ? "window" : "documents");
    if (io->attr[DOCUMENTS] != 0 && io->model->eos < 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "documents end at the tokenizer's end-of-document token, whose id is "
                          "not known here; give model.eos");
    return MC_OK;
}

static mc_status attention_infer(struct mc_op_infer *io, struct mc_err *err)
{
    int64_t d, h, kv, vh;
    double scale;
    int apart = 0;
    MC_TRY(mc_op_whole_number(io, "head_dim", (double)io->model->head_dim, 1, 65536, &d, err));
    scale = mc_call_num(io->call, "scale", 1 / sqrt((double)d));
    for (int i = 0; i < 3; i++)
        apart |= io->in[i].sharding.on[MC_AXIS_TP].kind == MC_SHARD &&
                 io->in[i].sharding.on[MC_AXIS_TP].dim == 1;
    for (int i = 0; i < 3; i++) { /* all heads here, or all apart: a mix would pair wrong heads */
        int64_t n = io->in[i].cols / d, tp = io->axis_size[MC_AXIS_TP];
        io->want[i].sharding = (struct mc_sharding){0};
        if (apart)
            io->want[i].sharding.on[MC_AXIS_TP] = (struct mc_place){.kind = MC_SHARD, .dim = 1};
        if (apart && i > 0 && n > 0 && n < tp && tp % n == 0) /* I2 */
            io->want[i].sharding.on[MC_AXIS_TP].copies = (uint8_t)(tp / n);
    }
    MC_TRY(mc_op_heads(io, 0, d, "q", &h, err));
    MC_TRY(mc_op_heads(io, 1, d, "k", &kv, err));
    MC_TRY(mc_op_heads(io, 2, d, "v", &vh, err));
    if (kv != vh)
        return mc_err_set(err, MC_E_RECIPE, "k has %lld heads, v has %lld; they must agree",
                          (long long)kv, (long long)vh);
    if (h % kv != 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "%lld query heads cannot share %lld key heads evenly; heads must be a "
                          "multiple of kv_heads",
                          (long long)h, (long long)kv);
    io->out[0].cols = io->in[0].cols;
    io->out[0].sharding = io->want[0].sharding;
    io->saved_elems[0] = io->bound.b * io->bound.t * (mc_op_local_cols(io, &io->want[0]) / d);
    io->attr[HEAD_DIM] = (double)d;
    io->attr[SCALE] = scale;
    io->nout = io->nsaved = 1;
    return mask_infer(io, err);
}

static struct mc_attn attn_args(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    int64_t d = (int64_t)n->attr[HEAD_DIM];
    return (struct mc_attn){.b = cx->e.b,
                            .t = cx->e.t,
                            .heads = n->in[0].c / d,
                            .kv_heads = n->in[1].c / d,
                            .d = d,
                            .scale = n->attr[SCALE],
                            .causal = n->attr[CAUSAL] != 0,
                            .q = n->in[0].p,
                            .k = n->in[1].p,
                            .v = n->in[2].p,
                            .ldq = n->in[0].ld,
                            .ldk = n->in[1].ld,
                            .ldv = n->in[2].ld,
                            .o = n->out[0].p,
                            .ldo = n->out[0].ld,
                            .lse = n->saved[0],
                            .scratch = n->scratch,
                            .mask = {.window = (int64_t)n->attr[WINDOW],
                                     .start = n->attr[DOCUMENTS] != 0 ? cx->start : NULL,
                                     .cap = n->attr[SOFTCAP]}};
}

/* New rows of keys or values into their places in the cache: z = 1 x + 0 x. */
static void into_cache(const struct mc_node *n, const struct mc_op_ctx *cx, const struct mc_view *x,
                       void *cache)
{
    struct mc_add a = {.m = cx->e.t,
                       .c = x->c,
                       .x = x->p,
                       .ldx = x->ld,
                       .y = x->p,
                       .ldy = x->ld,
                       .z = (char *)cache + (size_t)(cx->e.pos0 * n->ldc) * n->elem,
                       .ldz = n->ldc,
                       .ax = 1};
    cx->kern->add(cx->pool, &a);
}

static void attention_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_attn a = attn_args(n, cx);
    if (!n->kc) {
        cx->kern->attn(cx->pool, &a);
        return;
    }
    into_cache(n, cx, &n->in[1], n->kc);
    into_cache(n, cx, &n->in[2], n->vc);
    cx->kern->attn_cached(cx->pool, &(struct mc_attn_cached){.t = cx->e.t,
                                                             .pos0 = cx->e.pos0,
                                                             .heads = a.heads,
                                                             .kv_heads = a.kv_heads,
                                                             .d = a.d,
                                                             .scale = a.scale,
                                                             .q = a.q,
                                                             .ldq = a.ldq,
                                                             .kc = n->kc,
                                                             .vc = n->vc,
                                                             .ldc = n->ldc,
                                                             .o = a.o,
                                                             .ldo = a.ldo,
                                                             .scratch = a.scratch,
                                                             .mask = a.mask});
}

static void attention_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    struct mc_attn_grad g = {.f = attn_args(n, cx),
                             .d_o = n->d_out[0].p,
                             .lddo = n->d_out[0].ld,
                             .dq = n->d_in[0].p,
                             .dk = n->d_in[1].p,
                             .dv = n->d_in[2].p,
                             .lddq = n->d_in[0].ld,
                             .lddk = n->d_in[1].ld,
                             .lddv = n->d_in[2].ld,
                             .scratch = n->scratch};
    cx->kern->attn_bwd(cx->pool, &g);
}

static size_t attention_scratch(const struct mc_node *n, enum mc_verb verb,
                                const struct mc_kern_ops *k, struct mc_extent bound, int threads)
{
    int64_t d = (int64_t)n->attr[HEAD_DIM];
    (void)verb;
    return k->attn_scratch(bound.b, bound.t, n->in[0].c / d, n->in[1].c / d, d, threads);
}

/* Two products of t x t x D a head, 2 operations a multiply-add; half of it when causal, of which a
 * window w leaves w t - w^2 / 2. What documents hide is not known here, and counted. */
static double attention_flops(const struct mc_node *n, struct mc_extent e)
{
    double full = 4.0 * (double)e.b * (double)e.t * (double)e.t * (double)n->in[0].c;
    double t = (double)e.t, w = n->attr[WINDOW];
    if (w > 0 && w < t)
        return full * (w * t - w * w / 2) / (t * t);
    return n->attr[CAUSAL] != 0 ? full / 2 : full;
}

static const struct mc_op attention_row = {
    .name = "attention",
    .doc = "softmax(scale q k^T) v per head; k and v may have fewer heads; window, documents: sees "
           "less",
    .nin_min = 3,
    .nin_max = 3,
    .flags = MC_OPF_NEEDS_KV | MC_OPF_DOCUMENTS | MC_OPF_TAKES_COLS,
    .keeps_in_for_input = 7,
    .keeps_out_for_input = 1,
    .infer = attention_infer,
    .forward = attention_forward,
    .backward_input = attention_backward,
    .scratch = attention_scratch,
    .flops = attention_flops,
    .attrs = {"causal", "head_dim", "scale", "window", "documents", "softcap"},
    .deterministic = 1};
const struct mc_op *const mc_ops_attn[] = {&attention_row, NULL};
