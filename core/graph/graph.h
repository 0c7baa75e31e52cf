/* graph.h - a rank's work on one microbatch: straight lists of ops, their parameters, and a static
 * memory plan.
 *
 * A graph has one *part* for each stage of the model that the rank has: without a pipeline one, the
 * whole. A part runs forward and backward by itself; what it takes from the stage before and hands
 * to the stage after lies at its *edges*. All parts share one flat buffer of parameters and `temp`.
 * With `split`, backward is two passes, of inputs and of weights, that may be far apart.
 *
 * Built from the recipe's call lists; pure until mc_graph_bind(). Backward order, sums of gradients
 * of values used twice, fused projections (linears that read the same value with the same sharding
 * become one GEMM over adjacent weights: q/k/v, gate/up), recomputation and lifetimes are derived
 * here and nowhere else.
 *
 * I1  The plan is static: mc_graph_memory() is known before any device is taken and bind uses
 *     exactly those bytes.
 * I2  Parameters lie in one flat buffer in order stem, layer 0, 1, ..., head: a layer is one
 *     contiguous bucket. The gradient buffer has the same layout. A parameter used twice has one
 *     accumulator per use; extra ones live in `extra_grads`.
 * I3  What crosses from one pass of a part to another is in a *slot* (one per microbatch in flight)
 *     or, if it only lives between the two passes of a split backward, in a *pending place*, which
 *     the graph gives to a slot for that time; all else is in `temp`.
 * I4  Any parameter, plan or name is a function of the recipe, the mode and the sizes of the mesh,
 *     never of ranks' order or time; offsets and bytes are the same on all its ranks.
 * I5  On a mesh a rank holds a *box* of each parameter; what is meant is the logical tensor,
 *     always.
 * I6  A pass allocates nothing. A collective that fails ends the pass; its error is kept, and every
 *     later call returns it until the graph is bound anew.
 * I7  Neither cutting the model into parts nor splitting backward changes a bit of any result. */
#pragma once
#include "../tensor/sketch.h"
#include "op.h"

struct mc_mesh; /* core/par/mesh.h */

enum mc_graph_mode {
    MC_GRAPH_TRAIN, /* forward + backward */
    MC_GRAPH_EVAL,  /* forward with loss, no dropout, nothing saved */
    MC_GRAPH_INFER  /* forward to logits with KV caches, b = 1; no loss */
};
enum { MC_GRAPH_PARTS = 64 };
struct mc_graph_part {          /* a stretch of the model that runs as one: a pipeline's stage */
    int first_layer, end_layer; /* [first, end) */
    int has_stem, has_head;
    int slots;   /* microbatches of it in flight, TRAIN: >= 1 */
    int pending; /* split: of these, between the begin of the gradients of inputs and the end of
                    those of weights; >= 1 */
};
struct mc_graph_cfg {
    const struct mc_recipe *recipe;
    enum mc_graph_mode mode;
    struct mc_extent bound; /* b = micro, t = seq */
    int nparts;
    struct mc_graph_part part[MC_GRAPH_PARTS]; /* in the order of the model; need not adjoin */
    int split;               /* TRAIN: gradients of inputs and of weights are two passes */
    int threads;             /* of the pool: attention scratch */
    int axis_size[MC_NAXES]; /* mesh sizes; 0 or 1: the axis is not there */
    int coord[MC_NAXES];     /* this rank's place on each axis */
};
struct mc_param {
    char name[MC_NAME_MAX]; /* "layers.3.attn.q.weight" */
    struct mc_shape shape;  /* logical */
    struct mc_sharding sharding;
    enum mc_param_class cls;
    enum mc_init_kind init;
    double std;
    struct mc_box box; /* what this rank holds, row-major; empty where a padded vocabulary ended */
    int64_t count;     /* elements of the box */
    int64_t stored; /* elements taken in the flat buffer: count, then padding. Padding is zero and
                       its gradient is zero: it may be updated, it is never counted */
    int64_t offset; /* elements from the start of the flat buffer; 64-byte aligned unless fused
                       with its predecessor */
    int owned; /* 1 on exactly one of the ranks of a tp group that hold the same box: it counts it
                  in norms, hashes and checkpoints. Replicas over dp and cp are not told apart */
    int elsewhere; /* 1: a later stage, of another rank, uses it too (tied head); -1: this is the
                      copy of an earlier stage's: owned = 0. 0: neither */
    int layer;     /* -1 stem, layers: head */
    int nuses;
    unsigned
        grad_sum_axes;    /* bit a: after backward the gradient here is a partial sum over those
                             ranks of axis a that hold the same box; mc_graph_finish_grads() adds */
    int64_t extra_offset; /* elements in extra_grads of use 1, 2 ... (nuses - 1 consecutive blocks
                             of stored) */
};
struct mc_graph_memory { /* bytes; each becomes one arena of exactly that size */
    size_t params, grads, extra_grads, slot /* one of the largest part */,
        pending /* one place of the largest */, slots /* all of both */, temp, tables, kv;
    size_t total;
};
struct mc_graph;
mc_status mc_graph_build(const struct mc_graph_cfg *cfg, struct mc_graph **g,
                         struct mc_err *err); /* MC_E_RECIPE: model faults, named call and line */
void mc_graph_destroy(struct mc_graph *g);
const struct mc_graph_memory *mc_graph_memory(const struct mc_graph *g);
int mc_graph_nparams(const struct mc_graph *g);
const struct mc_param *mc_graph_param(const struct mc_graph *g, int i); /* in storage order */
/* Elements of the flat buffer, gaps included (gaps are zero). */
int64_t mc_graph_flat_count(const struct mc_graph *g);
/* Logical elements, each once. */
int64_t mc_graph_param_count(const struct mc_graph *g);
/* Buckets: the stem, each layer, the head, as far as this rank has them; in storage order, next to
 * each other, they cover the flat buffer. A tied head's weight is in the stem's. */
int mc_graph_nbuckets(const struct mc_graph *g);
void mc_graph_bucket(const struct mc_graph *g, int bucket, int64_t *offset, int64_t *count);
int mc_graph_bucket_parts(const struct mc_graph *g, int bucket); /* how many parts add to it */
/* Slots are numbered over the parts, part 0's first. EVAL, INFER: each part has one. */
int mc_graph_slot(const struct mc_graph *g, int part, int k);
/* Operations of one microbatch of b sequences of t tokens, this rank's part of them: forward +
 * backward (TRAIN), recomputation not counted. */
double mc_graph_flops(const struct mc_graph *g, int64_t b, int64_t t);
/* What recomputation adds to it. */
double mc_graph_flops_again(const struct mc_graph *g, int64_t b, int64_t t);
/* mc_graph_flops() with nothing masked: as if every query saw every key. */
double mc_graph_flops_full(const struct mc_graph *g, int64_t b, int64_t t);
/* Where a pass's time goes: one row an op and verb, added to while it is set (graph_profile.c). */
enum { MC_PROFILE_ROWS = 96 };
struct mc_profile_row {
    const char *op, *verb;
    int64_t calls, ns;
    double flops, bytes;
};
struct mc_graph_profile {
    int n;
    struct mc_profile_row row[MC_PROFILE_ROWS];
};
void mc_graph_set_profile(struct mc_graph *g, struct mc_graph_profile *p); /* NULL: off */
/* One step told op by op, while it is set (graph_record.c): begin and end of each verb, and with
 * `sketch` what it gave. Pointers of a note are good during the call. */
enum { MC_GRAPH_TOLD = MC_OP_OUT + MC_OP_PARAMS };
struct mc_graph_told {
    const char *what; /* "out", "d_out", "d_in", "d_in+" (with what it is added to), or the name of
                         a parameter: its gradient so far */
    int k;            /* which of them; of a parameter: which use */
    int counts;       /* 0: another rank of this replica tells the same */
    int partial;      /* the whole is the sum over the ranks of this replica */
    struct mc_sketch is;
};
struct mc_graph_note {
    const char *name, *op, *verb; /* verb: "forward", "backward input", "backward weight", "again":
                                     recomputed; of a sum or copy "forward", "backward" */
    int tick;       /* place among this rank's steps of a microbatch, in the order of the model */
    int layer, nth; /* nth: of the calls of this name and op in this place */
    int comm;       /* a collective */
    int64_t begin_ns, end_ns;
    int ntold;
    struct mc_graph_told told[MC_GRAPH_TOLD];
};
struct mc_graph_record {
    void *arg;
    int sketch;
    void (*step)(void *arg, const struct mc_graph_note *n);
};
void mc_graph_record(struct mc_graph *g, const struct mc_graph_record *r); /* NULL: off */
/* data: the elements of the box, row-major. */
void mc_graph_sketch_box(const struct mc_shape *shape, const struct mc_box *box, const void *data,
                         enum mc_dtype dtype, struct mc_sketch *s);
/* A table for people: node, op, shapes, buffer, lifetime; one line per node. */
void mc_graph_print(const struct mc_graph *g, void (*line)(void *, const char *), void *arg);

struct mc_graph_buffers {
    void *params, *grads, *extra_grads, *slots, *temp, *tables, *kv;
};
/* Points every view into the buffers and fills `tables` (rope). dtype of everything: kern->dtype.
 * mesh: its axes have the sizes and this rank the place that the graph was built for; borrowed.
 * NULL: one rank. */
mc_status mc_graph_bind(struct mc_graph *g, const struct mc_kern_ops *kern, struct mc_pool *pool,
                        const struct mc_graph_buffers *buf, const struct mc_mesh *mesh,
                        struct mc_err *err);
/* Initial weights of this rank's boxes: Philox keyed by (seed, name, logical index), identical bits
 * on every layout. `params`: flat host buffer. */
void mc_graph_init_params(const struct mc_graph *g, uint64_t seed, enum mc_dtype dtype,
                          void *params);

/* Told of buckets while a pass runs, by the thread that runs it. Either may be NULL. */
struct mc_graph_watch {
    void *arg;
    /* a part's forward: the bucket's parameters are about to be read for the first time; once for
       each bucket that the part reads */
    mc_status (*need)(void *arg, int bucket, struct mc_err *err);
    /* a part's backward, the pass over weights where it is split: the part's last addition to the
       bucket's gradients is done; once for each bucket that the part adds to */
    mc_status (*done)(void *arg, int bucket, struct mc_err *err);
};
struct mc_microbatch {
    int64_t b, t;                       /* <= bound */
    const int32_t *tokens;              /* [b*t] */
    const int32_t *targets;             /* [b*t]; -1: masked. NULL in INFER */
    const int64_t *logical_row;         /* [b*t]; NULL when no dropout */
    const struct mc_graph_watch *watch; /* NULL: nobody */
};
/* TRAIN and EVAL, the part whose slot it is: adds the sum of token losses (fp64) to *loss_sum where
 * the head is. All ranks of a tp group are given the same microbatch and get the same sum, each the
 * whole of it. */
mc_status mc_graph_forward(struct mc_graph *g, int slot, const struct mc_microbatch *mb,
                           int64_t step, double *loss_sum, struct mc_err *err);
/* Adds to grads / extra_grads. scale = 1/N. Same slot, same mb. */
mc_status mc_graph_backward(struct mc_graph *g, int slot, const struct mc_microbatch *mb,
                            int64_t step, double scale, struct mc_err *err);
/* The two passes of a split graph's backward; mc_graph_backward() runs one after the other. */
mc_status mc_graph_backward_input(struct mc_graph *g, int slot, const struct mc_microbatch *mb,
                                  int64_t step, double scale, struct mc_err *err);
mc_status mc_graph_backward_weight(struct mc_graph *g, int slot, const struct mc_microbatch *mb,
                                   int64_t step, double scale, struct mc_err *err);
/* What a part takes and hands on, dense, [rows of this rank, hidden] in the run's precision. */
enum mc_graph_edge { MC_EDGE_IN, MC_EDGE_OUT, MC_EDGE_D_OUT, MC_EDGE_D_IN };
/* Where it lies. IN is filled before forward, OUT read after it; D_OUT is filled before backward
 * (backward_input), D_IN read after it; before the next call on the graph. NULL: no such edge
 * (stem, head). */
void *mc_graph_edge(struct mc_graph *g, int slot, enum mc_graph_edge edge);
/* Elements of an edge, this rank's. */
int64_t mc_graph_edge_count(const struct mc_graph *g, int64_t b, int64_t t);
/* INFER, one part with stem and head: feeds t tokens at positions pos0..; gives logits of the last
 * row, real, of the whole vocabulary on every rank, valid until the next call. */
mc_status mc_graph_infer(struct mc_graph *g, const int32_t *tokens, int64_t t, int64_t pos0,
                         const void **logits, struct mc_err *err);
/* INFER, one of several parts. logits: the head's; else it may be NULL. */
mc_status mc_graph_infer_part(struct mc_graph *g, int part, const int32_t *tokens, int64_t t,
                              int64_t pos0, const void **logits, struct mc_err *err);
void mc_graph_zero_grads(struct mc_graph *g);
/* Until set to NULL, forward adds to sum[0] the squares of what the stem gives and to sum[1 + l]
 * those of block l's output (graph_gauge.c). [layers + 1]. On a mesh a rank adds its part; all
 * ranks' together have each row once. */
void mc_graph_gauge(struct mc_graph *g, double *sum);
/* After bucket's last addition, once a step: extra uses are added, the last to the one before it
 * and so on, the first to grads (so that a tied head's are one sum); then the sums over
 * grad_sum_axes. All ranks of a tp group finish their buckets in the same order. */
mc_status mc_graph_finish_grads(struct mc_graph *g, int bucket, struct mc_err *err);
/* The first part of that alone, for a bucket whose gradients another rank's stage adds to before
 * the rest. */
void mc_graph_join_uses(struct mc_graph *g, int bucket);
