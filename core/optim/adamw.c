/* adamw.c - AdamW over the flat buffers of a graph; gradient norm; state and hash by name.
 * Floor 5 (optim). Includes: base tensor kern graph recipe.
 *
 * Per element, t the count of successful updates with this one, g the gradient times grad_scale:
 *   m <- b1 m + (1 - b1) g           v <- b2 v + (1 - b2) g^2
 *   w <- w - lr s ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + decay w )
 * lr s: the step's rate times the parameter's factor; decay and s are by rules.c.
 *
 * w is the master. In fp32 and fp64 it is the weight itself. At bf16 it is fp32, beside fp32
 * moments and gradients, and every update writes its rounding to nearest even as the weight.
 *
 * I1  Buffers are in the graph's layout; the gaps between parameters are zero in all and stay so
 *     (0 / (0 + eps) = 0, hence eps > 0), so an update may run over them.
 * I2  One kernel call per *run*: the longest row of parameters with the same decay and factor.
 * I3  The norm adds one fp64 partial per parameter in the order of their names (strcmp), so it does
 *     not depend on the storage order; NaN and Inf come through. A partial is over what this rank
 *     counts of the tensor: its range of rows (shard.h), on one of the ranks that hold the same
 *     box; several ranks add their partials tensor by tensor before they are combined.
 * I4  Norm, update and hash allocate nothing.
 * I5  At bf16 the weight always is its master, rounded: whoever sets masters calls
 *     mc_optim_round_weights().
 * I6  With a split shard, moments and masters lie as the shard says, and the update is of the owned
 *     rows alone.
 * I7  Rules, norm and hash are of the model's parameters, also where the graph has some of them (a
 *     pipeline's stage): what one rank lacks others add, and none is taken for a rule's mistake.
 * weights_hash: XXH3-64 of, for each parameter in name order: name and NUL, dimensions
 * (u64), each dimension (u64), the tensor's mc_hash_elems (u64); all little-endian. It knows
 * logical tensors only, so any storage layout gives the same.
 *
 * Memory: handle life; borrows graph,
 * kernels, pool and buffers, which must outlive it. Threads: one caller; kernels use the pool. */
#include "optim.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"
#include "optim_int.h"

struct run {
    int64_t first, n; /* elements of the flat buffer */
    int64_t state;    /* of its first element in the moments */
    double decay, lr_scale;
};
struct mc_optim {
    const struct mc_graph *graph; /* what is here: parameters, buffers */
    const struct mc_graph *model; /* all of the model (I7) */
    const struct mc_kern_ops *kern;
    struct mc_pool *pool;
    const struct mc_shard *shard;
    struct mc_shard *own_shard; /* when the caller has none */
    struct mc_optim_buffers buf;
    double beta1, beta2, eps;
    int nparams;              /* of the model */
    int *index;               /* [parameters of graph] of each in the model */
    double *decay, *lr_scale; /* [nparams] */
    int *by_name;             /* [nparams] parameters in name order */
    int layers;
    int nruns;
    struct run *run;
    struct mc_hasher *hash;
    double *parts;  /* [nparams] of the norm */
    uint64_t *sums; /* [nparams] of the hash */
};

struct mc_optim_memory mc_optim_memory(const struct mc_shard *shard, enum mc_dtype dtype)
{
    size_t bytes = (size_t)shard->state_count * mc_dtype_size(mc_optim_dtype(dtype));
    return (struct mc_optim_memory){
        .m = bytes, .v = bytes, .master = mc_optim_dtype(dtype) != dtype ? bytes : 0};
}

enum mc_dtype mc_optim_dtype(enum mc_dtype precision)
{
    return precision == MC_F64 ? MC_F64 : MC_F32;
}

static void *element(void *flat, enum mc_dtype dtype, int64_t i)
{
    return flat ? (char *)flat + (size_t)i * mc_dtype_size(dtype) : NULL;
}
/* Of the weights; of everything else. */
static void *weight_at(const struct mc_optim *o, int64_t i)
{
    return element(o->buf.params, o->kern->dtype, i);
}
static void *at(void *flat, const struct mc_optim *o, int64_t i)
{
    return element(flat, o->kern->wide->dtype, i);
}

/* ---- create ---- */

struct named {
    const char *name;
    int param;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static mc_status sort_names(struct mc_optim *o, struct mc_err *err)
{
    struct named *s = mc_alloc((size_t)o->nparams * sizeof *s, "names of parameters");
    if (!s)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %d names", o->nparams);
    for (int i = 0; i < o->nparams; i++)
        s[i] = (struct named){mc_graph_param(o->model, i)->name, i};
    qsort(s, (size_t)o->nparams, sizeof *s, by_name);
    for (int i = 0; i < o->nparams; i++) {
        MC_ASSERT(i == 0 || strcmp(s[i - 1].name, s[i].name) != 0);
        o->by_name[i] = s[i].param;
    }
    for (int i = 0; i < mc_graph_nparams(o->graph); i++) { /* I7 */
        struct named key = {mc_graph_param(o->graph, i)->name, 0};
        const struct named *found = bsearch(&key, s, (size_t)o->nparams, sizeof *s, by_name);
        MC_ASSERT(found);
        o->index[i] = found->param;
    }
    mc_free(s);
    return MC_OK;
}

/* decay, lr_scale: [parameters], in storage order. */
static mc_status resolve(const struct mc_optim_cfg *cfg, const struct mc_graph *g, double *decay,
                         double *lr_scale, struct mc_err *err)
{
    int n = mc_graph_nparams(g);
    struct mc_rule_param *p = mc_alloc((size_t)n * sizeof *p, "names of parameters");
    if (!p)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %d names", n);
    for (int i = 0; i < n; i++)
        p[i] = (struct mc_rule_param){mc_graph_param(g, i)->name, mc_graph_param(g, i)->cls};
    mc_status st = mc_rules_resolve(cfg, p, n, decay, lr_scale, err);
    mc_free(p);
    return st;
}

mc_status mc_optim_check(const struct mc_recipe *r, const struct mc_graph *model,
                         struct mc_err *err)
{
    int n = mc_graph_nparams(model);
    double *decay = mc_alloc(2 * (size_t)n * sizeof *decay, "rules");
    if (!decay)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %d rules", n);
    mc_status st = resolve(&r->optim, model, decay, decay + n, err);
    mc_free(decay);
    return st;
}

static void add_run(struct mc_optim *o, int param, int64_t first, int64_t count, int64_t state)
{
    struct run *r = o->nruns ? &o->run[o->nruns - 1] : NULL;
    double decay = o->decay[o->index[param]], lr_scale = o->lr_scale[o->index[param]];
    MC_ASSERT(count >= 0 && (!r || first >= r->first + r->n));
    if (r && r->decay == decay && r->lr_scale == lr_scale && state - r->state == first - r->first)
        r->n = first + count - r->first; /* I1: over the gap */
    else
        o->run[o->nruns++] = (struct run){first, count, state, decay, lr_scale};
}

static void make_runs(struct mc_optim *o) /* I2 */
{
    const struct mc_shard *s = o->shard;
    for (int k = 0; s->split && k < s->npieces; k++) /* I6 */
        add_run(o, s->piece[k].param, s->piece[k].flat, s->piece[k].count, s->piece[k].state);
    for (int i = 0; !s->split && i < mc_graph_nparams(o->graph); i++) {
        const struct mc_param *p = mc_graph_param(o->graph, i);
        add_run(o, i, p->offset, p->count, p->offset);
    }
}

mc_status mc_optim_create(const struct mc_recipe *r, const struct mc_graph *g,
                          const struct mc_graph *model, const struct mc_kern_ops *k,
                          struct mc_pool *pool, const struct mc_optim_buffers *buf,
                          const struct mc_shard *shard, struct mc_optim **o, struct mc_err *err)
{
    if (!(r->optim.eps > 0))
        return mc_err_set(err, MC_E_RECIPE, "optim.eps: %g; it must be above 0", r->optim.eps);
    MC_ASSERT(k->wide->dtype == mc_optim_dtype(k->dtype) &&
              (k->wide != k) == (buf->master != NULL));
    struct mc_optim *y = mc_alloc(sizeof *y, "optimizer");
    if (!y)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the optimizer");
    *y = (struct mc_optim){.graph = g,
                           .model = model,
                           .kern = k,
                           .pool = pool,
                           .shard = shard,
                           .buf = *buf,
                           .beta1 = r->optim.betas[0],
                           .beta2 = r->optim.betas[1],
                           .eps = r->optim.eps,
                           .nparams = mc_graph_nparams(model),
                           .layers = (int)r->model.layers};
    size_t n = (size_t)y->nparams + 1; /* a stage without parameters is legal */
    size_t here = (size_t)mc_graph_nparams(g) + 1;
    y->index = mc_alloc(here * sizeof *y->index, "places of parameters");
    y->decay = mc_alloc(n * sizeof *y->decay, "decay of parameters");
    y->lr_scale = mc_alloc(n * sizeof *y->lr_scale, "rate factor of parameters");
    y->by_name = mc_alloc(n * sizeof *y->by_name, "name order of parameters");
    y->run = mc_alloc(here * sizeof *y->run, "runs of parameters");
    y->parts = mc_alloc(n * sizeof *y->parts, "norms of parameters");
    y->sums = mc_alloc(n * sizeof *y->sums, "hashes of parameters");
    y->hash = mc_hasher_create();
    mc_status st = MC_OK;
    if (!y->index || !y->decay || !y->lr_scale || !y->by_name || !y->run || !y->hash || !y->parts ||
        !y->sums) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory for an optimizer of %d parameters", y->nparams);
        goto fail;
    }
    if (!shard) {
        MC_TRY_GOTO(st, mc_shard_create(g, 1, 0, 0, &y->own_shard, err), fail);
        y->shard = y->own_shard;
    }
    MC_TRY_GOTO(st, sort_names(y, err), fail);
    MC_TRY_GOTO(st, resolve(&r->optim, model, y->decay, y->lr_scale, err), fail);
    make_runs(y);
    *o = y;
    return MC_OK;
fail:
    mc_optim_destroy(y);
    return st;
}

void mc_optim_destroy(struct mc_optim *o)
{
    if (!o)
        return;
    mc_hasher_destroy(o->hash);
    mc_shard_destroy(o->own_shard);
    mc_free(o->parts);
    mc_free(o->sums);
    mc_free(o->run);
    mc_free(o->by_name);
    mc_free(o->index);
    mc_free(o->lr_scale);
    mc_free(o->decay);
    mc_free(o);
}

/* ---- the step ---- */

void mc_optim_norm_parts(const struct mc_optim *o, double *parts)
{
    memset(parts, 0, (size_t)o->nparams * sizeof *parts);
    for (int k = 0; k < o->shard->npieces; k++) { /* I3 */
        const struct mc_shard_piece *x = &o->shard->piece[k];
        if (mc_graph_param(o->graph, x->param)->owned)
            parts[o->index[x->param]] =
                o->kern->sum_squares(o->pool, at(o->buf.grads, o, x->flat), x->count);
    }
}

double mc_optim_norm_of(const struct mc_optim *o, const double *parts)
{
    double sum = 0;
    for (int i = 0; i < o->nparams; i++) /* I3 */
        sum += parts[o->by_name[i]];
    return sqrt(sum);
}

double mc_optim_grad_norm(struct mc_optim *o)
{
    mc_optim_norm_parts(o, o->parts);
    return mc_optim_norm_of(o, o->parts);
}

void mc_optim_layer_norms(const struct mc_optim *o, const double *parts, double *out)
{
    for (int l = 0; l < o->layers + 2; l++)
        out[l] = 0;
    for (int i = 0; i < o->nparams; i++)
        out[mc_graph_param(o->model, i)->layer + 1] += parts[i];
    for (int l = 0; l < o->layers + 2; l++)
        out[l] = sqrt(out[l]);
}

double mc_optim_clip(double limit, double norm)
{
    double scale = limit / (norm + 1e-6);
    return limit > 0 && scale < 1 ? scale : 1;
}

void mc_optim_update(struct mc_optim *o, int64_t t, double lr, double grad_scale)
{
    MC_ASSERT(t >= 1);
    for (int i = 0; i < o->nruns; i++) {
        const struct run *r = &o->run[i];
        struct mc_adamw a = {.n = r->n,
                             .w = o->buf.master ? at(o->buf.master, o, r->state)
                                                : weight_at(o, r->first),
                             .rounded = o->buf.master ? weight_at(o, r->first) : NULL,
                             .m = at(o->buf.m, o, r->state),
                             .v = at(o->buf.v, o, r->state),
                             .g = at(o->buf.grads, o, r->first),
                             .gscale = grad_scale,
                             .lr = lr * r->lr_scale,
                             .beta1 = o->beta1,
                             .beta2 = o->beta2,
                             .eps = o->eps,
                             .decay = r->decay,
                             .bias1 = 1 - pow(o->beta1, (double)t),
                             .bias2 = 1 - pow(o->beta2, (double)t)};
        o->kern->adamw(o->pool, &a);
    }
}

/* ---- what others see ---- */

double mc_optim_decay_of(const struct mc_optim *o, int param)
{
    return o->decay[param];
}

double mc_optim_lr_scale_of(const struct mc_optim *o, int param)
{
    return o->lr_scale[param];
}

/* The kinds of a parameter's tensors, weights first. */
static const struct kind {
    const char *name;
    int masters; /* only where the master is not the weight */
    int rounded; /* in the run's precision; else in mc_optim_dtype() */
} kinds[] = {{"model", 0, 1}, {"master", 1, 0}, {"adam_m", 0, 0}, {"adam_v", 0, 0}};
enum { NKINDS = sizeof kinds / sizeof *kinds };

int mc_optim_tensors(const struct mc_graph *g, enum mc_dtype precision, struct mc_state_tensor *t,
                     int cap)
{
    enum mc_dtype wide = mc_optim_dtype(precision);
    int n = 0;
    for (int k = 0; k < NKINDS; k++) {
        if (kinds[k].masters && wide == precision)
            continue;
        for (int i = 0; i < mc_graph_nparams(g); i++, n++) {
            const struct mc_param *p = mc_graph_param(g, i);
            if (n >= cap)
                continue;
            t[n] = (struct mc_state_tensor){.dtype = kinds[k].rounded ? precision : wide,
                                            .shape = p->shape,
                                            .box = mc_box_whole(&p->shape)};
            snprintf(t[n].name, sizeof t[n].name, "%s/%s", kinds[k].name, p->name);
        }
    }
    return n;
}

/* The buffer of a kind; NULL: not kept at this precision. */
static void *buffer(const struct mc_optim *o, int kind)
{
    void *const flat[NKINDS] = {o->buf.params, o->buf.master, o->buf.m, o->buf.v};
    return flat[kind];
}

/* Rows of parameter p, at element `i` of the buffer of a kind. */
static void add_tensor(const struct mc_optim *o, int kind, const struct mc_param *p,
                       struct mc_box box, int64_t i, struct mc_state_tensor *t)
{
    enum mc_dtype dtype = kinds[kind].rounded ? o->kern->dtype : o->kern->wide->dtype;
    *t = (struct mc_state_tensor){
        .dtype = dtype, .shape = p->shape, .box = box, .data = element(buffer(o, kind), dtype, i)};
    snprintf(t->name, sizeof t->name, "%s/%s", kinds[kind].name, p->name);
}

int mc_optim_state(const struct mc_optim *o, struct mc_state_tensor *t, int cap)
{
    const struct mc_shard *s = o->shard;
    int n = 0;
    for (int k = 0; k < NKINDS; k++) {
        int pieces = k > 0 && s->split; /* I6 */
        if (!buffer(o, k))
            continue;
        for (int i = 0; !pieces && i < mc_graph_nparams(o->graph); i++) {
            const struct mc_param *p = mc_graph_param(o->graph, i);
            if (p->count > 0 && n++ < cap)
                add_tensor(o, k, p, p->box, p->offset, &t[n - 1]);
        }
        for (int i = 0; pieces && i < s->npieces; i++) {
            const struct mc_shard_piece *x = &s->piece[i];
            const struct mc_param *p = mc_graph_param(o->graph, x->param);
            if (n++ < cap)
                add_tensor(o, k, p, mc_shard_box(p, x->row, x->rows), x->state, &t[n - 1]);
        }
    }
    return n;
}

int mc_optim_owned(const struct mc_optim *o, struct mc_state_tensor *t, int cap)
{
    int n = 0;
    for (int k = 0; k < NKINDS; k++)
        for (int i = 0; buffer(o, k) && i < o->shard->npieces; i++) {
            const struct mc_shard_piece *x = &o->shard->piece[i];
            const struct mc_param *p = mc_graph_param(o->graph, x->param);
            if (p->owned && n++ < cap)
                add_tensor(o, k, p, mc_shard_box(p, x->row, x->rows), k ? x->state : x->flat,
                           &t[n - 1]);
        }
    return n;
}

void mc_optim_round_weights(struct mc_optim *o) /* I5 */
{
    const struct mc_shard *s = o->shard;
    if (!o->buf.master)
        return;
    if (!s->split)
        o->kern->from_f32(o->buf.params, o->buf.master, mc_graph_flat_count(o->graph));
    for (int i = 0; s->split && i < s->npieces; i++)
        o->kern->from_f32(weight_at(o, s->piece[i].flat), at(o->buf.master, o, s->piece[i].state),
                          s->piece[i].count);
}

void mc_optim_set_masters(struct mc_optim *o, const void *flat) /* I5 */
{
    const struct mc_shard *s = o->shard;
    size_t size = mc_dtype_size(o->kern->wide->dtype);
    MC_ASSERT(o->buf.master);
    if (!s->split)
        memcpy(o->buf.master, flat, (size_t)mc_graph_flat_count(o->graph) * size);
    for (int i = 0; s->split && i < s->npieces; i++)
        memcpy(at(o->buf.master, o, s->piece[i].state),
               (const char *)flat + (size_t)s->piece[i].flat * size,
               (size_t)s->piece[i].count * size);
    o->kern->from_f32(o->buf.params, flat, mc_graph_flat_count(o->graph));
}

static void hash_u64(struct mc_hasher *h, uint64_t v)
{
    unsigned char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)(v >> 8 * i);
    mc_hasher_add(h, b, sizeof b);
}

/* Sum over the box b of a tensor of this shape, its elements at `data`, row-major. */
static uint64_t hash_box(const void *data, int size, const struct mc_shape *shape,
                         const struct mc_box *b)
{
    int last = b->nd - 1;
    int64_t width = b->nd > 0 ? b->n[last] : 1, lines = mc_box_count(b) / width;
    uint64_t sum = 0;
    for (int64_t k = 0; k < lines; k++) { /* a line along the last dimension */
        int64_t at[MC_MAX_DIMS] = {0}, rest = k;
        uint64_t index = 0;
        for (int d = last - 1; d >= 0; d--) {
            at[d] = b->lo[d] + rest % b->n[d];
            rest /= b->n[d];
        }
        if (b->nd > 0)
            at[last] = b->lo[last];
        for (int d = 0; d < b->nd; d++)
            index = index * (uint64_t)shape->dim[d] + (uint64_t)at[d];
        sum += mc_hash_elems((const char *)data + (size_t)(k * width) * (size_t)size, size, index,
                             (uint64_t)width);
    }
    return sum;
}

void mc_optim_hash_parts(const struct mc_optim *o, uint64_t *parts)
{
    memset(parts, 0, (size_t)o->nparams * sizeof *parts);
    for (int k = 0; k < o->shard->npieces; k++) {
        const struct mc_shard_piece *x = &o->shard->piece[k];
        const struct mc_param *p = mc_graph_param(o->graph, x->param);
        struct mc_box box = mc_shard_box(p, x->row, x->rows);
        if (p->owned)
            parts[o->index[x->param]] = hash_box(
                weight_at(o, x->flat), (int)mc_dtype_size(o->kern->dtype), &p->shape, &box);
    }
}

uint64_t mc_optim_hash_of(const struct mc_optim *o, const uint64_t *parts)
{
    mc_hasher_reset(o->hash);
    for (int i = 0; i < o->nparams; i++) {
        const struct mc_param *p = mc_graph_param(o->model, o->by_name[i]);
        mc_hasher_add(o->hash, p->name, strlen(p->name) + 1);
        hash_u64(o->hash, (uint64_t)p->shape.nd);
        for (int k = 0; k < p->shape.nd; k++)
            hash_u64(o->hash, (uint64_t)p->shape.dim[k]);
        hash_u64(o->hash, parts[o->by_name[i]]);
    }
    return mc_hasher_value(o->hash);
}

uint64_t mc_optim_weights_hash(const struct mc_optim *o)
{
    mc_optim_hash_parts(o, o->sums);
    return mc_optim_hash_of(o, o->sums);
}
