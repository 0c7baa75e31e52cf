/* graph_int.h - what the files of this folder share: nodes, values, and the static program.
 *
 * Three levels, each made from the one before and never changed after:
 *   node     one op applied to values; fused linears are one node (graph_build.c, graph_shard.c)
 *   step     one verb of one node: the program is, part by part, the steps of each *phase*:
 *            forward, backward (where it is split, of inputs alone), weights; steps name *pieces*
 *            (graph_plan.c)
 *   piece    one value, gradient, saved tensor or scratch, written by exactly one step (SSA);
 * pieces share a *store* only where the planner proved it safe; a store is an offset in the slot,
 * in a pending place or in temp. A step's index is its tick; lifetimes are intervals of ticks. All
 * arrays are handle life, owned by struct mc_graph. */
#pragma once
#include "graph.h"

enum { MC_TOKENS = -1, MC_FUSE_MAX = MC_OP_OUT, MC_MAX_TABLES = 8, MC_PARAM_ALIGN = 32 };
/* Numbers of a node that the graph itself reads. */
enum { MC_ATTR_CAUSAL = 2, MC_ATTR_DOCUMENTS = 3, MC_ATTR_WINDOW = 4 };             /* attention */
enum { MC_ROPE_THETA, MC_ROPE_HEAD_DIM, MC_ROPE_TURNED, MC_ROPE_PAIRS, MC_ROPE_N }; /* rope */

/* What a verb is given: the operands of one step, resolved to pointers. rows = cx->e.b * cx->e.t.
 */
struct mc_node {
    const struct mc_op *op;
    const char *name;
    int nin, nout, nparams, nsaved;
    struct mc_view in[MC_OP_IN], out[MC_OP_OUT], d_in[MC_OP_IN], d_out[MC_OP_OUT];
    const void *param[MC_OP_PARAMS];  /* fused linears: all weights, then all biases */
    void *grad[MC_OP_PARAMS];         /* accumulators of this node's uses */
    int64_t param_rows[MC_OP_PARAMS]; /* logical */
    int64_t param_first[MC_OP_PARAMS], param_end[MC_OP_PARAMS]; /* of them, rows held here */
    void *saved[MC_OP_SAVED];
    void *scratch;
    double attr[MC_OP_ATTRS];
    int acc;      /* MC_OPF_DACC: d_in[0] += instead of = */
    uint64_t key; /* MC_OPF_RANDOM */
    void *kc, *vc;
    int64_t ldc;           /* MC_OPF_NEEDS_KV: caches [bound.t, ldc] */
    const void *cos, *sin; /* MC_OPF_TABLE */
    size_t elem;           /* bytes of a real */
};

struct mc_gvalue {
    int64_t cols;         /* logical; 0: the token ids */
    int64_t lrows, lcols; /* on this rank, at bound */
    struct mc_sharding sharding;
    int node; /* producer; -1: comes from outside */
    int uses;
};
struct mc_gnode {
    const struct mc_op *op;
    char name[MC_NAME_MAX]; /* full: "layers.3.attn.q" ("+" joins fused ones in prints only) */
    int layer;              /* -1 stem, 0 .., layers: head */
    int line;
    int nin, in[MC_OP_IN], nout, out[MC_OP_OUT];
    int nparams, param[MC_OP_PARAMS], use[MC_OP_PARAMS];
    int nsaved;
    int64_t saved[MC_OP_SAVED]; /* elements */
    double attr[MC_OP_ATTRS];
    uint64_t key;
    int is_result;              /* of its function: kept under block recomputation */
    int one_row;                /* INFER: works on the last row alone */
    int table;                  /* -1: none */
    int64_t kv_offset, kv_cols; /* elements; kv_cols 0: no cache */
};
struct mc_piece {
    int64_t rows, cols;
    int def, last;     /* ticks; last >= def */
    int store;         /* -1 until placed */
    int64_t col0;      /* column of the store where it begins */
    int group;         /* -1, or the group whose store it must be a slice of */
    int64_t group_col; /* where in the group */
    int split;         /* its rows lie over tp */
    int holders;       /* gradients: values that call this piece theirs (planning only) */
    int for_weights;   /* gradients: the phase of the weights will read it (planning only) */
    int pinned;        /* an edge; lies over a forward value or over the sum it continues, or is a
                          collective's        operand: never moved into a group */
    int next;          /* in its store's list */
};
struct mc_group {
    int64_t rows, cols;
    int store;
};
enum mc_region { MC_IN_TEMP, MC_IN_SLOT, MC_IN_PENDING };
struct mc_store {
    int64_t rows, cols; /* cols is the leading dimension */
    size_t bytes, offset;
    int birth, death;
    enum mc_region where;
    int first; /* list of pieces; -1: merged away */
};
enum mc_step_kind { MC_STEP_VERB, MC_STEP_SUM /* out[0] = in[0] + in[1] */, MC_STEP_COPY };
struct mc_step {
    enum mc_step_kind kind;
    enum mc_verb verb;
    int gnode; /* -1 for sums and copies */
    int again; /* forward run in backward: recomputation */
    int split; /* rows of its operands lie over tp */
    int in[MC_OP_IN], out[MC_OP_OUT], d_in[MC_OP_IN], d_out[MC_OP_OUT], saved[MC_OP_SAVED], scratch,
        adds_to; /* pieces, -1: none; adds_to: the sum that d_in[0] continues (n.acc) */
    struct mc_node n;
};
struct mc_table {
    double attr[MC_OP_ATTRS]; /* of the first rope that asked, less what tables do not depend on */
    int64_t half;
    size_t offset; /* elements: cos, then sin, [bound.t, half] each */
};
struct mc_bucket {
    int64_t offset, count; /* elements of the flat buffer */
    int param, nparams;    /* its parameters: a run of the storage order */
    int part;              /* which made it */
    int adders;            /* parts that add to its gradients */
    int joined;            /* its uses are added in this step */
};
enum mc_phase { MC_PHASE_FORWARD, MC_PHASE_BACKWARD, MC_PHASE_WEIGHTS, MC_NPHASES };
struct mc_run {
    int first, n;
};
struct mc_gpart { /* a part as it was built */
    int node, end_node;
    int in_value, out_value; /* edge or tokens; stream, logits or loss's logits */
    int edge[4];             /* pieces, by enum mc_graph_edge; -1: none */
    int out_piece;           /* of out_value */
    int tick[MC_NPHASES +
             1]; /* where each phase begins, and the end. Not split: weights have none */
    int at[MC_NPHASES], at_place[MC_NPHASES]; /* which slot and pending place the pointers of its
                                                 steps are of */
    int slot, slots;                          /* the first of them; how many */
    size_t slot_bytes, slots_offset;
    int pending; /* places; 0: not split */
    size_t pending_bytes, pending_offset;
    int *place;               /* [slots] the pending place that its backward took last */
    int *taken;               /* [pending] by which slot; -1: free */
    struct mc_run need, done; /* of g->need, g->done */
};
struct mc_moment { /* when a bucket is needed, or done */
    int tick, bucket;
};
struct mc_gauge { /* a place of the stream: output `out` of the step at `tick` */
    int at, value, tick, out;
};
struct mc_graph_opt { /* for tests: what changes speed and memory but may not change numbers */
    int no_fuse, no_inplace;
};
struct mc_graph {
    struct mc_graph_cfg cfg;
    struct mc_graph_opt opt;
    size_t elem, wide_elem;          /* bytes: of a value or weight; of what is wide (kern.h) */
    const struct mc_kern_ops *sizes; /* the table whose _scratch functions sized the plan */
    struct mc_graph_memory mem;

    struct mc_gnode *node;
    int nnodes, cap_nodes;
    struct mc_gvalue *value;
    int nvalues, cap_values;
    struct mc_param *param;
    int nparams, cap_params;
    int *param_at, cap_param_at; /* [power of 2] by hash of the name: index + 1, 0 free */
    int64_t flat, extra, kv_elems, table_elems;
    int64_t
        pack; /* elements at the end of extra_grads where a bucket's partial gradients are summed */
    struct mc_bucket *bucket;      /* [nbuckets] */
    struct mc_moment *need, *done; /* part by part, ticks ascending; done: TRAIN */
    int nneed, ndone, cap_need, cap_done;
    int nbuckets, cap_buckets;
    struct mc_table table[MC_MAX_TABLES];
    int ntables;
    int documents;         /* some node reads cx->start */
    size_t starts_offset;  /* bytes from `tables`: int32 starts. TRAIN, EVAL [b, t]; INFER [t + 1]:
                              of position p, known once the tokens before p are */
    struct mc_gpart *part; /* [cfg.nparts] */
    int *places;           /* of all parts */

    struct mc_step *step;
    int nsteps, cap_steps;
    struct mc_piece *piece;
    int npieces, cap_pieces;
    struct mc_store *store;
    int nstores, cap_stores;
    struct mc_group *group;
    int ngroups, cap_groups;
    struct mc_gauge *gauge;
    int ngauge, cap_gauge;
    double *gauge_sum; /* the caller's; NULL: nobody asks */

    /* set by bind */
    const struct mc_kern_ops *kern;
    struct mc_pool *pool;
    struct mc_graph_buffers buf;
    const struct mc_mesh *mesh;
    struct mc_err failed;                 /* the first error of a pass; code 0: none */
    struct mc_graph_profile *profile;     /* NULL: nothing is measured */
    const struct mc_graph_record *record; /* NULL: nobody is told */
    /* tests: called before each step with its tick; NULL in use */
    void (*probe)(void *arg, int tick);
    void *probe_arg;
};

/* p grown so that element n exists, zeroed; NULL when memory is out (p still valid). */
void *mc_graph_room(void *p, int n, int *cap, size_t each);
mc_status mc_graph_nomem(struct mc_err *err);
mc_status mc_graph_build_opt(const struct mc_graph_cfg *cfg, const struct mc_graph_opt *opt,
                             struct mc_graph **g, struct mc_err *err);
mc_status mc_graph_add_value(struct mc_graph *g, int64_t cols, const struct mc_sharding *sh,
                             int node, int one_row, int *value, struct mc_err *err);
mc_status mc_graph_add_node(struct mc_graph *g, const struct mc_op *op, const char *name, int layer,
                            int line, int *node, struct mc_err *err);
/* ---- graph_param.c ---- */
mc_status mc_graph_local_extent(const struct mc_graph *g, int64_t *n, int dim,
                                const struct mc_sharding *sh, const char *what, struct mc_err *err);
/* Parameter of a call of this full name for the node: its own, or an earlier one's further use. */
mc_status mc_graph_bind_param(struct mc_graph *g, int node, const char *full, int layer,
                              const struct mc_param_spec *s, int fused, struct mc_err *err);
void mc_graph_mark_shared(struct mc_graph *g);
/* ---- graph_shard.c ---- */
/* Axes of size 1 hold everything: any state on them is replicate. */
void mc_graph_normalise(const struct mc_graph *g, struct mc_sharding *sh);
struct mc_asks { /* who asks for a value in another state */
    int layer, line;
    const char *who; /* opens refusals: "input 0" */
    unsigned split;  /* bit a: it splits its work over axis a, so that its gradient of a value that
                        is  replicated there is a partial sum */
};
/* value -> a value in state `want`: itself, or the output of inserted collectives. */
mc_status mc_graph_reshard(struct mc_graph *g, int value, const struct mc_sharding *want,
                           const struct mc_asks *by, int *out, struct mc_err *err);
mc_status mc_graph_plan(struct mc_graph *g, struct mc_err *err);
/* The part that has tick t. */
const struct mc_gpart *mc_graph_part_at(const struct mc_graph *g, int t);
/* The phase that tick t of part p belongs to. */
enum mc_phase mc_graph_phase_at(const struct mc_gpart *p, int t);
void mc_graph_profile_add(struct mc_graph *g, const struct mc_step *s, const struct mc_op_ctx *cx,
                          int64_t ns);
void mc_graph_record_begin(const struct mc_graph *g, int t, const struct mc_op_ctx *cx,
                           struct mc_graph_note *n);
void mc_graph_record_end(const struct mc_graph *g, int t, const struct mc_op_ctx *cx,
                         struct mc_graph_note *n);
mc_status mc_graph_place(struct mc_graph *g, struct mc_err *err); /* stores and offsets */
void mc_graph_fill_tables(const struct mc_graph *g);
/* Points the steps of a phase into slot k of the part, and into its pending place. */
void mc_graph_resolve(struct mc_graph *g, int part, enum mc_phase phase, int k);
mc_status mc_graph_gauge_add(struct mc_graph *g, int at, int value, struct mc_err *err);
void mc_graph_gauge_locate(struct mc_graph *g);
void mc_graph_gauge_step(struct mc_graph *g, int tick, const struct mc_op_ctx *cx);

/* ---- graph_bucket.c, graph_exec.c ---- */
/* Parameters made from here on belong to a new bucket; close ends the last one. */
mc_status mc_graph_open_bucket(struct mc_graph *g, int part, struct mc_err *err);
void mc_graph_close_bucket(struct mc_graph *g);
int64_t mc_graph_pack_largest(const struct mc_graph *g);                 /* elements */
mc_status mc_graph_moments(struct mc_graph *g, struct mc_err *err);      /* need, done */
mc_status mc_graph_failed(const struct mc_graph *g, struct mc_err *err); /* its kept error */

/* ---- op_table.c, for graph_build.c and the rows ---- */
mc_status mc_op_check_attrs(const struct mc_op *op, const struct mc_call *c, struct mc_err *err);
extern const struct mc_op *const mc_ops_embed[],
    *const mc_ops_linear[], *const mc_ops_norm[], *const mc_ops_attn[],
                                                      *const mc_ops_rope[],
                                                          *const mc_ops_act[],
                                                              *const mc_ops_misc[],
                                                                  *const mc_ops_comm[],
                                                                      *const mc_ops_loss[];
/* A value's columns as heads of width d, whole ones on each rank; `what` names it in refusals. */
mc_status mc_op_heads(const struct mc_op_infer *io, int in, int64_t d, const char *what,
                      int64_t *heads, struct mc_err *err);
double mc_rope_frequency(const double *attr, int64_t pair);
double mc_rope_amplitude(const double *attr);
int64_t mc_op_local_cols(const struct mc_op_infer *io, const struct mc_value_info *v);
int64_t mc_op_local_rows(const struct mc_op_infer *io, const struct mc_value_info *v);
/* want[] = in[], less the states that the row does not say it takes: those are made whole first. */
void mc_op_preset(struct mc_op_infer *io);
void mc_op_want_cols(struct mc_op_infer *io, int k); /* all columns of input k must be here */
/* After infer: no input is asked for in a state that the row does not take. */
mc_status mc_op_check_states(const struct mc_op_infer *io, struct mc_err *err);
mc_status mc_op_whole_number(const struct mc_op_infer *io, const char *key, double dfl, int64_t lo,
                             int64_t hi, int64_t *out, struct mc_err *err);
static inline int64_t mc_op_rows(const struct mc_op_ctx *cx)
{
    return cx->rows;
}
/* y = scale x, rows of both. */
void mc_op_scale(const struct mc_op_ctx *cx, int64_t rows, double scale, const struct mc_view *x,
                 const struct mc_view *y);
/* ---- op_comm.c ---- */
enum { /* attrs of collectives: axis, what is cut or joined, whether the gradient that comes back is
          a partial sum, neighbours that hold the same part, parts */
       MC_COMM_AXIS,
       MC_COMM_DIM,
       MC_COMM_SPLIT,
       MC_COMM_COPIES,
       MC_COMM_PARTS
};
enum { MC_GROUP_MAX = 255 }; /* members of an axis; copies fit struct mc_place */
/* all_gather of `n` elements a member, in member order, for ops that exchange what is no value. */
void mc_op_all_gather(const struct mc_op_ctx *cx, enum mc_axis axis, const void *mine, void *all,
                      int64_t n, enum mc_dtype dtype);
void mc_op_all_reduce(const struct mc_op_ctx *cx, enum mc_axis axis, const void *in, void *out,
                      int64_t n, enum mc_dtype dtype);
