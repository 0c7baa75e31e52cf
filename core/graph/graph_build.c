/* graph_build.c - from call lists to nodes, values and parameters.
 *
 * Part by part, the stem's calls, then each layer's block, then the head's are written out in
 * order, as far as the part has them; a part without the stem begins with a value that comes from
 * outside. Each call is checked against its row, its shapes and states inferred, its inputs brought
 * into the wanted states, its parameters laid out.
 *
 * I1  Nothing is ignored: an unknown op or attribute, a value that nobody reads, a name used twice
 *     are errors that name call and line.
 * I2  Parameters lie in the order in which calls name them; a run of fused linears has its weights
 *     adjacent, then its biases.
 * I3  What is fused changes neither names, shapes nor initial values.
 * I4  Dropout exists in TRAIN graphs alone; elsewhere its call is the identity.
 * I5  On a mesh the gradient of a parameter that is whole on an axis over which its node's output
 *     lies in parts is a partial sum there; so is that of one held in copies, over the copies.
 *
 * Handle life: everything belongs to struct mc_graph; the recipe is borrowed and must outlive it.
 * Runs on the calling thread; builds are independent of each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/rng.h"
#include "graph_int.h"

/* -- Small things ----------------------------------------------------------------------------- */

mc_status mc_graph_nomem(struct mc_err *err)
{
    return mc_err_set(err, MC_E_NOMEM, "out of memory while the model's graph was built");
}

void *mc_graph_room(void *p, int n, int *cap, size_t each)
{
    if (n < *cap)
        return p;
    int more = *cap ? *cap * 2 : 64;
    void *q = mc_grow(p, (size_t)*cap * each, (size_t)more * each, "graph");
    if (!q)
        return NULL;
    memset((char *)q + (size_t)*cap * each, 0, (size_t)(more - *cap) * each);
    *cap = more;
    return q;
}

mc_status mc_graph_add_node(struct mc_graph *g, const struct mc_op *op, const char *name, int layer,
                            int line, int *node, struct mc_err *err)
{
    struct mc_gnode *n = mc_graph_room(g->node, g->nnodes, &g->cap_nodes, sizeof *n);
    if (!n)
        return mc_graph_nomem(err);
    g->node = n;
    n += g->nnodes;
    memset(n, 0, sizeof *n);
    n->op = op;
    n->layer = layer;
    n->line = line;
    n->table = -1;
    snprintf(n->name, sizeof n->name, "%s", name);
    *node = g->nnodes++;
    return MC_OK;
}

mc_status mc_graph_add_value(struct mc_graph *g, int64_t cols, const struct mc_sharding *sh,
                             int node, int one_row, int *value, struct mc_err *err)
{
    const struct mc_sharding state = *sh; /* sh may be that of a value, which moves */
    struct mc_gvalue *v = mc_graph_room(g->value, g->nvalues, &g->cap_values, sizeof *v);
    if (!v)
        return mc_graph_nomem(err);
    g->value = v;
    v += g->nvalues;
    memset(v, 0, sizeof *v);
    v->cols = v->lcols = cols;
    v->lrows = one_row ? 1 : g->cfg.bound.b * g->cfg.bound.t;
    v->sharding = state;
    v->node = node;
    MC_TRY(mc_graph_local_extent(g, &v->lcols, 1, &state, "a width of", err));
    if (!one_row)
        MC_TRY(mc_graph_local_extent(g, &v->lrows, 0, &state, NULL, err));
    *value = g->nvalues++;
    return MC_OK;
}

/* -- Faults ----------------------------------------------------------------------------------- */

/* "stem", "layers.3", "head" */
static void place_name(const struct mc_graph *g, int layer, char dst[32])
{
    if (layer < 0)
        snprintf(dst, 32, "stem");
    else if (layer >= g->cfg.recipe->model.layers)
        snprintf(dst, 32, "head");
    else
        snprintf(dst, 32, "layers.%d", layer);
}

static mc_status fault(const struct mc_graph *g, int layer, const struct mc_call *c,
                       struct mc_err *err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static mc_status fault(const struct mc_graph *g, int layer, const struct mc_call *c,
                       struct mc_err *err, const char *fmt, ...)
{
    char where[32], what[1100];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    place_name(g, layer, where);
    return mc_err_set(err, MC_E_RECIPE, "model: line %d: %s: %.24s%s%.64s%s: %s", c->line, where,
                      c->op, c->name[0] ? " \"" : "", c->name, c->name[0] ? "\"" : "", what);
}

/* -- One call, or a run of linears ------------------------------------------------------------ */

struct expand { /* one function being written out */
    struct mc_graph *g;
    const struct mc_func *f;
    int layer;
    int *val;          /* [ncalls + 1] value ids of this function -> graph values */
    int64_t *kv_width; /* [ncalls] > 0: its value becomes keys or values, in heads of this width */
};

/* The stream between functions: whole columns, rows over tp under sequence parallelism. */
static struct mc_sharding stream_state(const struct mc_graph *g)
{
    struct mc_sharding s = {0};
    if (g->cfg.recipe->parallel.sp && g->cfg.mode != MC_GRAPH_INFER)
        s.on[MC_AXIS_TP] = (struct mc_place){.kind = MC_SHARD, .dim = 0};
    mc_graph_normalise(g, &s);
    return s;
}

int64_t mc_graph_edge_count(const struct mc_graph *g, int64_t b, int64_t t)
{
    const struct mc_sharding stream = stream_state(g);
    int64_t lo, rows = b * t;
    if (stream.on[MC_AXIS_TP].kind == MC_SHARD)
        mc_part_of(b * t, g->cfg.axis_size[MC_AXIS_TP], g->cfg.coord[MC_AXIS_TP], &lo, &rows);
    return rows * g->cfg.recipe->model.hidden;
}

/* From a key or value of an attention back to the linears that make it. */
static void mark_kv(struct expand *x, int value, int64_t width)
{
    if (value <= 0 || x->kv_width[value - 1] == width)
        return;
    const struct mc_call *c = &x->f->call[value - 1];
    x->kv_width[value - 1] = width;
    for (int k = 0; k < c->nin && strcmp(c->op, "linear") != 0 && strcmp(c->op, "attention") != 0;
         k++)
        if (c->in[k] < value)
            mark_kv(x, c->in[k], width);
}

static void mark_attention(struct expand *x)
{
    for (int i = 0; i < x->f->ncalls; i++) {
        const struct mc_call *c = &x->f->call[i];
        double d = mc_call_num(c, "head_dim", (double)x->g->cfg.recipe->model.head_dim);
        if (strcmp(c->op, "attention") != 0 || c->nin != 3 || !(d >= 1 && d <= 65536))
            continue;
        for (int k = 1; k < 3; k++)
            if (c->in[k] <= i)
                mark_kv(x, c->in[k], (int64_t)d);
    }
}

/* Names of the ops that a recipe may call. */
static int callable(const char *names[128])
{
    int n, k = 0;
    const struct mc_op *const *all = mc_op_all(&n);
    for (int j = 0; j < n && k < 128; j++)
        if (!(all[j]->flags & MC_OPF_INTERNAL))
            names[k++] = all[j]->name;
    return k;
}

static mc_status check_call(const struct expand *x, int i, const struct mc_op **op,
                            struct mc_err *err)
{
    const struct mc_call *c = &x->f->call[i];
    struct mc_err e = {0};
    *op = mc_op_find(c->op);
    if (!*op) {
        const char *names[128];
        const char *near = mc_nearest(c->op, names, callable(names));
        return fault(x->g, x->layer, c, err, "unknown op%s%s%s", near ? "; did you mean \"" : "",
                     near ? near : "", near ? "\"?" : "");
    }
    if ((*op)->flags & MC_OPF_INTERNAL)
        return fault(x->g, x->layer, c, err, "the graph adds this op itself; remove the call");
    if (c->nin < (*op)->nin_min || c->nin > (*op)->nin_max)
        return fault(x->g, x->layer, c, err, "has %d inputs; it takes %d", c->nin, (*op)->nin_min);
    for (int k = 0; k < c->nin; k++)
        if (c->in[k] < 0 || c->in[k] > i)
            return fault(x->g, x->layer, c, err, "input %d is value %d, which is not made yet", k,
                         c->in[k]);
    if (mc_op_check_attrs(*op, c, &e) != MC_OK)
        return fault(x->g, x->layer, c, err, "%s", e.msg);
    if ((*op)->flags & MC_OPF_RANDOM && !c->name[0])
        return fault(x->g, x->layer, c, err, "needs a name: its random draws are keyed by it");
    return MC_OK;
}

/* How many calls from i on are linears that one GEMM can do. */
static int run_of_linears(const struct expand *x, int i)
{
    const struct mc_call *a = &x->f->call[i];
    int k = 1;
    if (x->g->opt.no_fuse || strcmp(a->op, "linear") != 0 || mc_call_str(a, "tied", "")[0])
        return 1;
    for (; k < MC_FUSE_MAX && i + k < x->f->ncalls; k++) {
        const struct mc_call *b = &x->f->call[i + k];
        if (strcmp(b->op, "linear") != 0 || b->nin != 1 || a->nin != 1 || b->in[0] != a->in[0] ||
            mc_call_str(b, "tied", "")[0] ||
            strcmp(mc_call_str(a, "shard", "none"), mc_call_str(b, "shard", "none")) != 0 ||
            (mc_call_num(a, "bias", 0) != 0) != (mc_call_num(b, "bias", 0) != 0))
            break;
    }
    return k;
}

static mc_status infer_call(const struct expand *x, int i, const struct mc_op *op,
                            struct mc_op_infer *io, struct mc_err *err)
{
    const struct mc_call *c = &x->f->call[i];
    struct mc_err e = {0};
    *io = (struct mc_op_infer){.op = op,
                               .call = c,
                               .model = &x->g->cfg.recipe->model,
                               .nin = c->nin,
                               .bound = x->g->cfg.bound,
                               .axis_size = x->g->cfg.axis_size,
                               .stream = stream_state(x->g).on[MC_AXIS_TP],
                               .is_head = x->layer >= x->g->cfg.recipe->model.layers,
                               .kv_width = x->kv_width[i]};
    for (int k = 0; k < c->nin; k++) {
        const struct mc_gvalue *v = &x->g->value[x->val[c->in[k]]];
        io->in[k] = (struct mc_value_info){.cols = v->cols, .sharding = v->sharding};
        if (v->cols == 0 && strcmp(op->name, "embedding") != 0)
            return fault(x->g, x->layer, c, err,
                         "input %d is the token ids; only embedding reads them", k);
    }
    mc_op_preset(io);
    if (op->infer(io, &e) != MC_OK || mc_op_check_states(io, &e) != MC_OK)
        return fault(x->g, x->layer, c, err, "%s", e.msg);
    if (io->nparams && !c->name[0])
        return fault(x->g, x->layer, c, err, "needs a name: its parameters are called by it");
    return MC_OK;
}

/* Inputs of a node into the states that io wants. */
static mc_status connect(const struct expand *x, const struct mc_call *c,
                         const struct mc_op_infer *io, int in[MC_OP_IN], struct mc_err *err)
{
    struct mc_graph *g = x->g;
    char who[64];
    struct mc_asks by = {.layer = x->layer, .line = c->line, .who = who};
    for (int a = 0; a < MC_NAXES; a++)
        for (int o = 0; o < io->nout; o++)
            if (io->out[o].sharding.on[a].kind != MC_REPLICATE)
                by.split |= 1u << a;
    for (int k = 0; k < io->nin; k++) {
        struct mc_err e = {0};
        in[k] = x->val[c->in[k]];
        if (g->value[in[k]].cols == 0)
            continue;
        snprintf(who, sizeof who, "input %d", k);
        mc_status st = mc_graph_reshard(g, in[k], &io->want[k].sharding, &by, &in[k], &e);
        if (st != MC_OK)
            return st == MC_E_NOMEM ? mc_graph_nomem(err) : fault(g, x->layer, c, err, "%s", e.msg);
    }
    return MC_OK;
}

static mc_status add_table(struct mc_graph *g, struct mc_gnode *n, struct mc_err *err)
{
    double key[MC_OP_ATTRS];
    int64_t half = (int64_t)n->attr[MC_ROPE_TURNED] / 2;
    memcpy(key, n->attr, sizeof key);
    key[MC_ROPE_HEAD_DIM] = key[MC_ROPE_PAIRS] = 0; /* one table serves all of these */
    for (n->table = 0; n->table < g->ntables; n->table++)
        if (memcmp(g->table[n->table].attr, key, sizeof key) == 0)
            return MC_OK;
    if (g->ntables == MC_MAX_TABLES)
        return mc_err_set(err, MC_E_RECIPE, "more than %d different (theta, head_dim) in one model",
                          MC_MAX_TABLES);
    g->table[g->ntables++] = (struct mc_table){.half = half, .offset = (size_t)g->table_elems};
    memcpy(g->table[n->table].attr, key, sizeof key);
    g->table_elems += g->cfg.bound.t * 2 * half; /* cos and sin */
    return MC_OK;
}

static void full_name(const struct expand *x, const char *name, char dst[MC_NAME_MAX])
{
    if (x->layer >= 0 && x->layer < x->g->cfg.recipe->model.layers && name[0])
        snprintf(dst, MC_NAME_MAX, "layers.%d.%s", x->layer, name);
    else
        snprintf(dst, MC_NAME_MAX, "%s", name);
}

/* I2: all weights of a run, then all its biases. */
static mc_status bind_params(const struct expand *x, int i, int k, int id,
                             const struct mc_op_infer *io, struct mc_err *err)
{
    struct mc_graph *g = x->g;
    char full[MC_NAME_MAX];
    for (int p = 0; p < io->nparams; p++)
        for (int j = 0; j < k; j++) {
            struct mc_err e = {0};
            full_name(x, x->f->call[i + j].name, full);
            if (mc_graph_bind_param(g, id, full, x->layer, &io[j].param[p], j > 0, &e) != MC_OK)
                return fault(g, x->layer, &x->f->call[i + j], err, "%s", e.msg);
            struct mc_param *q = &g->param[g->node[id].param[g->node[id].nparams - 1]];
            unsigned sum = 0, whole = 0;
            for (int a = 0; a < MC_NAXES; a++) {
                whole |= (unsigned)(q->sharding.on[a].kind == MC_REPLICATE) << a;
                sum |= (unsigned)(io[j].out[0].sharding.on[a].kind == MC_SHARD) << a;
            }
            sum &= whole; /* I5 */
            if (q->nuses > 1 && sum != (q->grad_sum_axes & whole))
                return fault(g, x->layer, &x->f->call[i + j], err,
                             "%s is used here on a part of the work, elsewhere on all of it; on a "
                             "mesh its gradient would be neither a sum nor whole",
                             q->name);
            q->grad_sum_axes |= sum;
        }
    return MC_OK;
}

/* Calls i .. i + k - 1, inferred in io[], as one node. */
static mc_status make_node(struct expand *x, int i, int k, const struct mc_op *op,
                           struct mc_op_infer *io, struct mc_err *err)
{
    struct mc_graph *g = x->g;
    const struct mc_call *c = &x->f->call[i];
    char full[MC_NAME_MAX];
    int in[MC_OP_IN], id;
    MC_TRY(connect(x, c, io, in, err));
    full_name(x, c->name, full);
    MC_TRY(mc_graph_add_node(g, op, full, x->layer, c->line, &id, err));
    struct mc_gnode *n = &g->node[id];
    n->nin = c->nin;
    n->nsaved = io->nsaved;
    memcpy(n->saved, io->saved_elems, sizeof n->saved);
    memcpy(n->attr, io->attr, sizeof n->attr);
    for (int j = 0; j < c->nin; j++) {
        n->in[j] = in[j];
        g->value[in[j]].uses++;
    }
    n->one_row = g->cfg.mode == MC_GRAPH_INFER && g->cfg.bound.t > 1 && g->value[in[0]].lrows == 1;
    if (op->flags & MC_OPF_RANDOM)
        n->key = mc_rng_key((uint64_t)g->cfg.recipe->seed, full);
    for (int j = 0; j < k; j++) {
        struct mc_err e = {0};
        int v;
        mc_graph_normalise(g, &io[j].out[0].sharding);
        if (mc_graph_add_value(g, io[j].out[0].cols, &io[j].out[0].sharding, id, n->one_row, &v,
                               &e))
            return fault(g, x->layer, &x->f->call[i + j], err, "%s", e.msg);
        n->out[n->nout++] = v;
        x->val[i + j + 1] = v;
    }
    MC_TRY(bind_params(x, i, k, id, io, err));
    n = &g->node[id];
    if (op->flags & MC_OPF_TABLE) {
        struct mc_err e = {0};
        if (add_table(g, n, &e) != MC_OK)
            return fault(g, x->layer, c, err, "%s", e.msg);
    }
    if (op->flags & MC_OPF_DOCUMENTS && n->attr[MC_ATTR_DOCUMENTS] != 0)
        g->documents = 1;
    if (op->flags & MC_OPF_NEEDS_KV && g->cfg.mode == MC_GRAPH_INFER) {
        if (n->attr[MC_ATTR_CAUSAL] == 0)
            return fault(g, x->layer, c, err,
                         "attention that is not causal cannot write text token by token");
        n->kv_cols = g->value[n->in[1]].lcols;
        n->kv_offset = g->kv_elems;
        g->kv_elems += 2 * ((g->cfg.bound.t * n->kv_cols + MC_PARAM_ALIGN - 1) / MC_PARAM_ALIGN *
                            MC_PARAM_ALIGN);
    }
    return MC_OK;
}

/* -- Functions -------------------------------------------------------------------------------- */

/* I1: every value is read. */
static mc_status check_uses(const struct expand *x, struct mc_err *err)
{
    const struct mc_func *f = x->f;
    for (int i = 0; i + 1 < f->ncalls; i++) {
        int used = 0;
        for (int j = i + 1; j < f->ncalls; j++)
            for (int k = 0; k < f->call[j].nin; k++)
                used |= f->call[j].in[k] == i + 1;
        if (!used)
            return fault(x->g, x->layer, &f->call[i], err,
                         "nobody reads what it makes; use the value or remove the call");
    }
    return MC_OK;
}

static mc_status write_out(struct expand *x, struct mc_err *err)
{
    struct mc_graph *g = x->g;
    struct mc_op_infer io[MC_FUSE_MAX];
    if (x->f->ncalls < 1) {
        char where[32];
        place_name(g, x->layer, where);
        return mc_err_set(err, MC_E_RECIPE, "model: %s: has no calls", where);
    }
    for (int i = 0; i < x->f->ncalls;) {
        const struct mc_op *op = NULL;
        int k = run_of_linears(x, i);
        for (int j = 0; j < k; j++) {
            const struct mc_op *opj;
            MC_TRY(check_call(x, i + j, &opj, err));
            MC_TRY(infer_call(x, i + j, opj, &io[j], err));
            op = opj;
        }
        if (op->flags & MC_OPF_RANDOM && (g->cfg.mode != MC_GRAPH_TRAIN || io[0].attr[0] == 0))
            x->val[i + 1] = x->val[x->f->call[i].in[0]]; /* I4 */
        else
            MC_TRY(make_node(x, i, k, op, io, err));
        i += k;
    }
    return check_uses(x, err);
}

static mc_status expand_func(struct mc_graph *g, const struct mc_func *f, int layer, int in,
                             int *out, struct mc_err *err)
{
    struct expand x = {.g = g, .f = f, .layer = layer};
    mc_status st;
    x.kv_width = mc_alloc((size_t)(f->ncalls + 1) * (sizeof *x.kv_width + sizeof *x.val), "graph");
    if (!x.kv_width)
        return mc_graph_nomem(err);
    x.val = (int *)(x.kv_width + f->ncalls);
    x.val[0] = in;
    mark_attention(&x);
    st = write_out(&x, err);
    if (st == MC_OK) {
        *out = x.val[f->ncalls];
        if (g->value[*out].node >= 0)
            g->node[g->value[*out].node].is_result = 1;
    }
    mc_free(x.kv_width);
    return st;
}

static mc_status settle_stream(struct mc_graph *g, int layer, int *v, struct mc_err *err)
{
    const struct mc_sharding want = stream_state(g);
    const struct mc_asks by = {.layer = layer, .who = "the model's stream"};
    MC_TRY(mc_graph_reshard(g, *v, &want, &by, v, err));
    if (g->value[*v].node >= 0)
        g->node[g->value[*v].node].is_result = 1;
    return MC_OK;
}

static mc_status append_internal(struct mc_graph *g, const char *name, int in, int layer,
                                 int has_out, int one_row, int *out, struct mc_err *err)
{
    const struct mc_op *op = mc_op_find(name);
    struct mc_call call = {.nin = 1};
    struct mc_op_infer io = {.op = op,
                             .call = &call,
                             .model = &g->cfg.recipe->model,
                             .nin = 1,
                             .bound = g->cfg.bound,
                             .axis_size = g->cfg.axis_size};
    int id;
    io.in[0] = (struct mc_value_info){.cols = g->value[in].cols, .sharding = g->value[in].sharding};
    mc_op_preset(&io);
    if (op->infer)
        MC_TRY(op->infer(&io, err));
    MC_TRY(mc_op_check_states(&io, err));
    MC_TRY(mc_graph_reshard(g, in, &io.want[0].sharding,
                            &(struct mc_asks){.layer = layer, .who = name}, &in, err));
    MC_TRY(mc_graph_add_node(g, op, name, layer, 0, &id, err));
    struct mc_gnode *n = &g->node[id];
    n->nin = 1;
    n->in[0] = in;
    n->nsaved = io.nsaved;
    memcpy(n->saved, io.saved_elems, sizeof n->saved);
    memcpy(n->attr, io.attr, sizeof n->attr);
    g->value[in].uses++;
    if (has_out) {
        MC_TRY(mc_graph_add_value(g, g->value[in].cols, &g->value[in].sharding, id, one_row, out,
                                  err));
        g->node[id].nout = 1;
        g->node[id].out[0] = *out;
    } else
        *out = in;
    return MC_OK;
}

static mc_status head(struct mc_graph *g, int *v, struct mc_err *err)
{
    const struct mc_model_cfg *m = &g->cfg.recipe->model;
    int layer = (int)m->layers, infer = g->cfg.mode == MC_GRAPH_INFER;
    if (infer && g->cfg.bound.t > 1) {
        MC_TRY(append_internal(g, "last_row", *v, layer, 1, 1, v, err));
        for (int i = 0; i < m->head.ncalls; i++)
            if (strcmp(m->head.call[i].op, "attention") == 0)
                return fault(g, layer, &m->head.call[i], err,
                             "attention in the head cannot write text: the head sees one row");
    }
    MC_TRY(expand_func(g, &m->head, layer, *v, v, err));
    const struct mc_gvalue *val = &g->value[*v];
    if (val->cols < m->vocab)
        return mc_err_set(err, MC_E_RECIPE,
                          "model: the head gives %lld logits a row, fewer than model.vocab %lld",
                          (long long)val->cols, (long long)m->vocab);
    if (!infer)
        return append_internal(g, "cross_entropy", *v, layer, 0, 0, v, err);
    const struct mc_sharding whole = {0};
    return mc_graph_reshard(g, *v, &whole, &(struct mc_asks){.layer = layer, .who = "the logits"},
                            v, err);
}

static mc_status blocks(struct mc_graph *g, int part, int *v, struct mc_err *err)
{
    const struct mc_model_cfg *m = &g->cfg.recipe->model;
    for (int l = g->cfg.part[part].first_layer; l < g->cfg.part[part].end_layer; l++) {
        int b = m->layer_block ? m->layer_block[l] : 0;
        int64_t before = g->value[*v].cols;
        if (b < 0 || b >= m->nblocks)
            return mc_err_set(err, MC_E_RECIPE, "model: layer %d uses block %d of %d", l, b,
                              m->nblocks);
        MC_TRY(mc_graph_open_bucket(g, part, err));
        MC_TRY(expand_func(g, &m->block[b], l, *v, v, err));
        if (g->value[*v].cols != before)
            return mc_err_set(err, MC_E_RECIPE,
                              "model: layers.%d: the block takes %lld columns and returns %lld; "
                              "they must agree",
                              l, (long long)before, (long long)g->value[*v].cols);
        MC_TRY(settle_stream(g, l, v, err));
        MC_TRY(mc_graph_gauge_add(g, l + 1, *v, err));
    }
    return MC_OK;
}

static mc_status build_part(struct mc_graph *g, int part, struct mc_err *err)
{
    const struct mc_model_cfg *m = &g->cfg.recipe->model;
    const struct mc_graph_part *has = &g->cfg.part[part];
    const struct mc_sharding ids = {0}, stream = stream_state(g);
    struct mc_gpart *p = &g->part[part];
    int v;
    p->node = g->nnodes;
    MC_TRY(mc_graph_add_value(g, has->has_stem ? 0 : m->hidden, has->has_stem ? &ids : &stream, -1,
                              0, &v, err));
    p->in_value = v;
    if (has->has_stem) {
        MC_TRY(mc_graph_open_bucket(g, part, err));
        MC_TRY(expand_func(g, &m->stem, -1, v, &v, err));
        if (g->value[v].cols == 0)
            return mc_err_set(err, MC_E_RECIPE,
                              "model: stem: returns the token ids; it needs an "
                              "embedding");
    }
    if (g->value[v].cols != m->hidden)
        return mc_err_set(err, MC_E_RECIPE,
                          "model: stem: returns %lld columns, model.hidden is %lld",
                          (long long)g->value[v].cols, (long long)m->hidden);
    MC_TRY(settle_stream(g, -1, &v, err));
    if (has->has_stem)
        MC_TRY(mc_graph_gauge_add(g, 0, v, err));
    MC_TRY(blocks(g, part, &v, err));
    if (has->has_head) {
        MC_TRY(mc_graph_open_bucket(g, part, err));
        MC_TRY(head(g, &v, err));
    }
    p->out_value = v;
    p->end_node = g->nnodes;
    return MC_OK;
}

static mc_status build_nodes(struct mc_graph *g, struct mc_err *err)
{
    for (int c = 0; c < g->cfg.nparts; c++)
        MC_TRY(build_part(g, c, err));
    mc_graph_close_bucket(g);
    mc_graph_mark_shared(g);
    for (int i = 0; i < g->nparams && g->cfg.mode == MC_GRAPH_TRAIN; i++)
        if (g->param[i].nuses > 1) {
            g->param[i].extra_offset = g->extra;
            g->extra += (g->param[i].nuses - 1) * g->param[i].stored;
            g->extra = (g->extra + MC_PARAM_ALIGN - 1) / MC_PARAM_ALIGN * MC_PARAM_ALIGN;
        }
    if (g->cfg.mode == MC_GRAPH_TRAIN)
        g->pack = mc_graph_pack_largest(g);
    return MC_OK;
}

/* -- Build ------------------------------------------------------------------------------------ */

/* Parts in the order of the model, each with something to run. */
static mc_status check_parts(const struct mc_graph_cfg *c, struct mc_err *err)
{
    int layers = (int)c->recipe->model.layers, last = 0;
    if (c->nparts < 1 || c->nparts > MC_GRAPH_PARTS)
        return mc_err_set(err, MC_E_RECIPE, "a rank has %d stages of the model; it has 1 to %d",
                          c->nparts, MC_GRAPH_PARTS);
    for (int i = 0; i < c->nparts; i++) {
        const struct mc_graph_part *p = &c->part[i];
        int empty = p->first_layer == p->end_layer && !p->has_stem && !p->has_head;
        if (p->first_layer < last || p->end_layer < p->first_layer || p->end_layer > layers ||
            (p->has_stem && (i > 0 || p->first_layer > 0)) ||
            (p->has_head && (i < c->nparts - 1 || p->end_layer < layers)))
            return mc_err_set(err, MC_E_RECIPE,
                              "stage %d of a rank has layers %d .. %d of %d%s%s; a rank's stages "
                              "are given in the order of the model",
                              i, p->first_layer, p->end_layer, layers,
                              p->has_stem ? ", the stem" : "", p->has_head ? ", the head" : "");
        if (empty || (c->mode == MC_GRAPH_TRAIN && p->slots < 1))
            return mc_err_set(err, MC_E_RECIPE, "stage %d of a rank has %s", i,
                              empty ? "no layer, nor the stem or the head"
                                    : "no slot for a microbatch");
        if (c->mode == MC_GRAPH_TRAIN && c->split && (p->pending < 1 || p->pending > p->slots))
            return mc_err_set(err, MC_E_RECIPE,
                              "stage %d of a rank has %d pending places and %d slots; of the first "
                              "at least 1, at most as many as of the second",
                              i, p->pending, p->slots);
        last = p->end_layer;
    }
    return MC_OK;
}

static mc_status check_cfg(const struct mc_graph_cfg *c, struct mc_err *err)
{
    const struct mc_recipe *r = c->recipe;
    if (c->bound.b < 1 || c->bound.t < 1 || c->bound.b > INT32_MAX / c->bound.t)
        return mc_err_set(err, MC_E_RECIPE,
                          "a microbatch of %lld sequences of %lld tokens; both must "
                          "be at least 1 and their product below 2^31",
                          (long long)c->bound.b, (long long)c->bound.t);
    if (c->mode == MC_GRAPH_INFER && c->bound.b != 1)
        return mc_err_set(err, MC_E_BUG, "an INFER graph runs one sequence, not %lld",
                          (long long)c->bound.b);
    for (int a = 0; a < MC_NAXES; a++)
        if (c->coord[a] < 0 || c->coord[a] >= c->axis_size[a] ||
            (a == MC_AXIS_TP && c->axis_size[a] > MC_GROUP_MAX))
            return mc_err_set(err, MC_E_RECIPE, "coordinate %d on %s = %d; tp is at most %d",
                              c->coord[a], mc_axis_name((enum mc_axis)a), c->axis_size[a],
                              MC_GROUP_MAX);
    MC_TRY(check_parts(c, err));
    if (c->threads < 1)
        return mc_err_set(err, MC_E_BUG, "graph: %d threads", c->threads);
    for (int i = 0; i < r->parallel.nrecompute_ops && r->parallel.recompute == MC_RECOMPUTE_OPS;
         i++) {
        const struct mc_op *op = mc_op_find(r->parallel.recompute_ops[i]);
        if (!op || (op->flags & MC_OPF_INTERNAL && strcmp(op->name, MC_RECOMPUTE_GATHER) != 0)) {
            const char *names[128];
            const char *near = mc_nearest(r->parallel.recompute_ops[i], names, callable(names));
            return mc_err_set(err, MC_E_RECIPE, "parallel.recompute: unknown op \"%s\"%s%s%s",
                              r->parallel.recompute_ops[i], near ? "; did you mean \"" : "",
                              near ? near : "", near ? "\"?" : "");
        }
    }
    return MC_OK;
}

mc_status mc_graph_build_opt(const struct mc_graph_cfg *cfg, const struct mc_graph_opt *opt,
                             struct mc_graph **out, struct mc_err *err)
{
    struct mc_graph_cfg c = *cfg;
    struct mc_graph *g;
    mc_status st;
    for (int a = 0; a < MC_NAXES; a++)
        if (c.axis_size[a] < 1)
            c.axis_size[a] = 1; /* not said: not there */
    MC_TRY(check_cfg(&c, err));
    g = mc_alloc(sizeof *g, "graph");
    if (!g)
        return mc_graph_nomem(err);
    g->cfg = c;
    g->cfg.split = c.split && c.mode == MC_GRAPH_TRAIN;
    if (opt)
        g->opt = *opt;
    g->elem = mc_dtype_size(c.recipe->precision);
    g->wide_elem = g->elem < 4 ? 4 : g->elem; /* bf16: fp32 */
    g->part = mc_alloc((size_t)c.nparts * sizeof *g->part, "graph");
    if (!g->part) {
        st = mc_graph_nomem(err);
        goto fail;
    }
    MC_TRY_GOTO(st, build_nodes(g, err), fail);
    MC_TRY_GOTO(st, mc_graph_plan(g, err), fail);
    MC_TRY_GOTO(st, mc_graph_moments(g, err), fail);
    mc_graph_gauge_locate(g);
    *out = g;
    return MC_OK;
fail:
    mc_graph_destroy(g);
    return st;
}

mc_status mc_graph_build(const struct mc_graph_cfg *cfg, struct mc_graph **g, struct mc_err *err)
{
    return mc_graph_build_opt(cfg, NULL, g, err);
}

void mc_graph_destroy(struct mc_graph *g)
{
    if (!g)
        return;
    mc_free(g->node);
    mc_free(g->value);
    mc_free(g->param);
    mc_free(g->param_at);
    mc_free(g->bucket);
    mc_free(g->part);
    mc_free(g->places);
    mc_free(g->need);
    mc_free(g->done);
    mc_free(g->step);
    mc_free(g->piece);
    mc_free(g->store);
    mc_free(g->group);
    mc_free(g->gauge);
    mc_free(g);
}

const struct mc_graph_memory *mc_graph_memory(const struct mc_graph *g)
{
    return &g->mem;
}
