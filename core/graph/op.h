/* op.h - the op table: one row an op, three verbs, and everything the engine must know to plan it.
 *
 * An op is added by writing one row (and its verbs) in one of the op_*.c files; the graph, the
 * memory plan, the backward order, recomputation and `mascon doc` follow from the row. Rows are
 * written for meshes: `infer` states shapes *and* sharding; where an input is not in the state the
 * op wants, the graph inserts the collective or refuses.
 *
 * I1  Verbs allocate nothing and keep nothing: all memory is in the node's views, scratch and saved
 *     buffers.
 * I2  forward may run again (recompute) and must give the same bits.
 * I3  backward_input writes d(input) views; a value used by several nodes is summed by the graph,
 *     in the fixed order of the backward list (last user first). A row with MC_OPF_DACC adds to
 *     d_in[0] instead when the node says `acc`.
 * I5  On a mesh all ranks run the same verbs in the same order; a verb may communicate. Every
 *     backward is linear in d(output): so a gradient that is a partial sum over ranks may be
 *     carried on, and summed where the graph says.
 * I4  backward_weight adds to the gradient accumulators of the node's parameter *uses*.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"
#include "../kern/kern.h"
#include "../recipe/recipe.h"
#include "../tensor/tensor.h"

enum { MC_OP_IN = 4, MC_OP_OUT = 4, MC_OP_PARAMS = 8, MC_OP_SAVED = 4, MC_OP_ATTRS = 16 };

enum mc_param_class {
    MC_PARAM_MATRIX,
    MC_PARAM_EMBEDDING,
    MC_PARAM_POSITION,
    MC_PARAM_NORM,
    MC_PARAM_BIAS
};
enum mc_init_kind { MC_INIT_ZEROS, MC_INIT_ONES, MC_INIT_NORMAL };

/* Extents of one microbatch: planned as bounds, given as actual values. rows = b * t. */
struct mc_extent {
    int64_t b, t, pos0;
};

/* A matrix view of a value: [rows, c] with row stride ld, element type of the run's precision. */
struct mc_view {
    void *p;
    int64_t c, ld;
};

struct mc_value_info { /* what infer sees and states for a value: rows x cols, rows = tokens of the
                          microbatch */
    int64_t cols;
    struct mc_sharding sharding; /* dims: 0 = rows (sequence), 1 = cols */
};
struct mc_param_spec {           /* what infer states for a parameter of this node */
    char suffix[32];             /* "weight", "bias": appended to the call's name */
    struct mc_shape shape;       /* logical */
    struct mc_sharding sharding; /* compute placement */
    enum mc_param_class cls;
    enum mc_init_kind init;
    double std;
    char tied[64]; /* not "": use that parameter (full name) instead of a new one */
};
struct mc_op;
struct mc_op_infer {
    /* in */
    const struct mc_op *op;
    const struct mc_call *call;
    const struct mc_model_cfg *model;
    int nin;
    struct mc_value_info in[MC_OP_IN];
    struct mc_extent bound; /* largest extents this graph runs */
    const int *axis_size;   /* [MC_NAXES] */
    struct mc_place
        stream;       /* on tp, of the model's stream: rows apart under sequence parallelism */
    int is_head;      /* the call is the head's: its width is the vocabulary, may be padded */
    int64_t kv_width; /* > 0: what it makes becomes keys or values of heads of this width, of which
                         there may be fewer than tp */
    /* out */
    struct mc_value_info want[MC_OP_IN]; /* state each input must be in; preset to in[], as far as
                                            the row takes it (MC_OPF_TAKES_...) */
    int nout;
    struct mc_value_info out[MC_OP_OUT];
    int nparams;
    struct mc_param_spec param[MC_OP_PARAMS];
    int nsaved;
    int64_t saved_elems[MC_OP_SAVED]; /* wide elements kept for backward (lse, rstd ...), at
                                         bound, on this rank */
    double attr[MC_OP_ATTRS];         /* numbers the verbs will want (node->attr) */
};

struct mc_node; /* graph_int.h: views in/out/d_in/d_out, params, grads, saved, scratch, attr, extent
                 */
struct mc_mesh;
struct mc_op_ctx { /* what a verb is given beside its node */
    const struct mc_kern_ops *kern;
    struct mc_pool *pool;
    struct mc_extent e;              /* actual */
    int64_t rows, row0;              /* rows of the node's values here; which row is the first */
    const int *coord, *axis_size;    /* [MC_NAXES]: this rank's place */
    const struct mc_mesh *mesh;      /* NULL: one rank */
    struct mc_err *err;              /* a verb that fails (a collective) fills it: the last verb */
    const int32_t *tokens, *targets; /* [rows] */
    const int64_t *logical_row;      /* [rows] global sample * seq + position: keys dropout */
    const int32_t *start; /* [rows] position at which the row's document begins; NULL when
                             no node asks */
    uint64_t seed;
    int64_t step;
    double loss_scale; /* 1/N */
    int train;         /* dropout on */
    double *loss_sum;  /* fp64: the cross entropy adds the sum of its token losses */
};

enum mc_verb { MC_FORWARD, MC_BACKWARD_WEIGHT, MC_BACKWARD_INPUT };
enum mc_op_flag {
    MC_OPF_INPLACE = 1,  /* output 0 may take the buffer of any input of its width that nobody else
                            needs */
    MC_OPF_DINPLACE = 2, /* d(input 0) may take the buffer of d(output 0) */
    MC_OPF_DLOGITS = 4,  /* d(input 0) is written over input 0 itself (cross entropy) */
    MC_OPF_NEEDS_KV = 8, /* in an INFER graph the node gets a KV cache */
    MC_OPF_DSHARE =
        16,           /* d(every input) *is* d(output 0): no verb runs, no buffer is taken (add) */
    MC_OPF_DACC = 32, /* backward_input can add to d_in[0] (node->acc) */
    MC_OPF_RANDOM = 64,    /* draws bits keyed by its full name: needs a name; off outside TRAIN */
    MC_OPF_TABLE = 128,    /* wants cos/sin tables of its attr (op_rope.c) */
    MC_OPF_INTERNAL = 256, /* made by the graph only; a recipe that calls it is refused */
    MC_OPF_COMM = 1024,    /* a collective: its operands are dense, rows without gaps */
    MC_OPF_ALIAS = 2048,   /* its output *is* its input: no verb runs forward */
    /* states in which the row takes inputs on a mesh; what it does not name is made whole before
       it, so that a row which names none is right on every mesh */
    MC_OPF_TAKES_PARTIAL = 4096, /* sums not yet summed: it is linear in them */
    MC_OPF_TAKES_ROWS = 8192,    /* some rows: each row is worked on alone */
    MC_OPF_TAKES_COLS = 16384,   /* some columns */
    MC_OPF_DOCUMENTS = 512       /* reads cx->start where attr[MC_ATTR_DOCUMENTS] is not 0 */
};
struct mc_op {
    const char *name; /* "rmsnorm" */
    const char *doc;  /* one line */
    int nin_min, nin_max;
    int flags;
    unsigned keeps_in_for_input,
        keeps_out_for_input; /* bit i: forward input / output i is read by backward_input */
    unsigned keeps_in_for_weight, keeps_out_for_weight; /* ... by backward_weight */
    mc_status (*infer)(struct mc_op_infer *io,
                       struct mc_err *err); /* checks attrs and shapes too */
    void (*forward)(const struct mc_node *n, const struct mc_op_ctx *cx);
    void (*backward_input)(const struct mc_node *n,
                           const struct mc_op_ctx *cx); /* NULL: no gradient flows back */
    void (*backward_weight)(const struct mc_node *n,
                            const struct mc_op_ctx *cx); /* NULL: no parameters */
    size_t (*scratch)(const struct mc_node *n, enum mc_verb verb, const struct mc_kern_ops *k,
                      struct mc_extent bound, int threads); /* bytes; NULL: 0 */
    double (*flops)(const struct mc_node *n,
                    struct mc_extent e); /* forward multiply-adds x 2; NULL: 0 */
    double (*bytes)(
        const struct mc_node *n, enum mc_verb verb,
        double rows); /* moved by a verb; NULL: what the masks say, and all parameters */
    const char *attrs[MC_OP_ATTRS]; /* attribute names it knows, NULL-ended: others are an error
                                       with the nearest name */
    int deterministic;              /* 1 */
    int variant; /* told to infer: several rows may share their functions (activations) */
};
const struct mc_op *mc_op_find(const char *name); /* NULL: no such row */
const struct mc_op *const *mc_op_all(int *n);
/* Attribute helpers for infer. */
const struct mc_attr *mc_call_attr(const struct mc_call *c, const char *key);
double mc_call_num(const struct mc_call *c, const char *key, double dfl);
const char *mc_call_str(const struct mc_call *c, const char *key, const char *dfl);
