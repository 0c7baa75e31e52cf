/* graph.h - a stage's work on one microbatch: a straight list of ops, its parameters, and a static
 * memory plan.
 *
 * Built from the recipe's call lists; pure until mc_graph_bind(). Backward order, sums of gradients
 * of values used twice, fused projections (linears that read the same value with the same sharding
 * become one GEMM over adjacent weights: q/k/v, gate/up), recomputation and lifetimes are derived
 * here and nowhere else. I1  The plan is static: mc_graph_memory() is known before any device is
 * taken and bind uses exactly those bytes. I2  Parameters lie in one flat buffer in order stem,
 * layer 0, 1, ..., head: a layer is one contiguous bucket. The gradient buffer has the same layout.
 * A parameter used twice has one accumulator per use; extra ones live in `extra_grads`. I3  A value
 * that crosses from forward to backward is in a *slot* (one per microbatch in flight); all else is
 * in `temp`. I4  Any parameter, plan or name is a function of the recipe and the mode, never of
 * ranks' order or time. */
#pragma once
#include "op.h"

enum mc_graph_mode {
    MC_GRAPH_TRAIN, /* forward + backward */
    MC_GRAPH_EVAL,  /* forward with loss, no dropout, nothing saved */
    MC_GRAPH_INFER  /* forward to logits with KV caches, b = 1; no loss */
};
struct mc_graph_cfg {
    const struct mc_recipe *recipe;
    enum mc_graph_mode mode;
    struct mc_extent bound;     /* b = micro, t = seq */
    int first_layer, end_layer; /* this stage: [first, end) */
    int has_stem, has_head;
    int slots;               /* microbatches in flight, TRAIN: >= 1 */
    int threads;             /* of the pool: attention scratch */
    int axis_size[MC_NAXES]; /* mesh sizes; 1 everywhere on one rank */
};
struct mc_param {
    char name[MC_NAME_MAX]; /* "layers.3.attn.q.weight" */
    struct mc_shape shape;  /* logical */
    struct mc_sharding sharding;
    enum mc_param_class cls;
    enum mc_init_kind init;
    double std;
    int64_t count;  /* elements here */
    int64_t offset; /* elements from the start of the flat buffer; 64-byte aligned unless fused with
                       its predecessor */
    int layer;      /* -1 stem, layers: head */
    int nuses;
    unsigned grad_sum_axes; /* bit a: on a mesh the gradient here is a partial sum over axis a */
    int64_t extra_offset;   /* elements in extra_grads of use 1, 2 ... (nuses - 1 consecutive blocks
                               of count) */
};
struct mc_graph_memory { /* bytes; each becomes one arena of exactly that size */
    size_t params, grads, extra_grads, slot /* one */, slots /* all */, temp, tables, kv;
    size_t total;
};
struct mc_graph;
mc_status mc_graph_build(const struct mc_graph_cfg *cfg, struct mc_graph **g,
                         struct mc_err *err); /* MC_E_RECIPE: model faults, named call and line */
void mc_graph_destroy(struct mc_graph *g);
const struct mc_graph_memory *mc_graph_memory(const struct mc_graph *g);
int mc_graph_nparams(const struct mc_graph *g);
const struct mc_param *mc_graph_param(const struct mc_graph *g, int i); /* in storage order */
int64_t mc_graph_flat_count(
    const struct mc_graph *g); /* elements of the flat buffer, gaps included (gaps are zero) */
int64_t mc_graph_param_count(const struct mc_graph *g); /* logical elements, each once */
double mc_graph_flops(const struct mc_graph *g, int64_t b,
                      int64_t t); /* forward + backward of one microbatch, recompute not counted */
/* A table for people: node, op, shapes, buffer, lifetime; one line per node. */
void mc_graph_print(const struct mc_graph *g, void (*line)(void *, const char *), void *arg);

struct mc_graph_buffers {
    void *params, *grads, *extra_grads, *slots, *temp, *tables, *kv;
};
/* Points every view into the buffers and fills `tables` (rope). dtype of everything: kern->dtype.
 */
mc_status mc_graph_bind(struct mc_graph *g, const struct mc_kern_ops *kern, struct mc_pool *pool,
                        const struct mc_graph_buffers *buf, struct mc_err *err);
/* Initial weights of all parameters: Philox keyed by (seed, name), identical bits on every layout.
 * `params`: flat host buffer. */
void mc_graph_init_params(const struct mc_graph *g, uint64_t seed, enum mc_dtype dtype,
                          void *params);

struct mc_microbatch {
    int64_t b, t;               /* <= bound */
    const int32_t *tokens;      /* [b*t] */
    const int32_t *targets;     /* [b*t]; -1: masked. NULL in INFER */
    const int64_t *logical_row; /* [b*t]; NULL when no dropout */
};
/* TRAIN and EVAL: adds the sum of token losses (fp64) to *loss_sum. */
void mc_graph_forward(struct mc_graph *g, int slot, const struct mc_microbatch *mb, int64_t step,
                      double *loss_sum);
/* Adds to grads / extra_grads. scale = 1/N. Same slot, same mb. */
void mc_graph_backward(struct mc_graph *g, int slot, const struct mc_microbatch *mb, int64_t step,
                       double scale);
/* INFER: feeds t tokens at positions pos0..; returns logits of the last row, [vocab] real, valid
 * until the next call. */
const void *mc_graph_infer(struct mc_graph *g, const int32_t *tokens, int64_t t, int64_t pos0);
void mc_graph_zero_grads(struct mc_graph *g);
/* After the last microbatch: grads += extra uses, in use order. Once per step. */
void mc_graph_finish_grads(struct mc_graph *g);
