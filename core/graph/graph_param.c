/* graph_param.c - parameters: found by name, laid out, cut for this rank's place on the mesh.
 *
 * I1  Parameters lie in the order in which calls name them, at offsets that are the same on all
 *     ranks of a mesh: what a part that runs short does not hold is padding.
 * I2  A name is one parameter; a call may be tied to an earlier one's, in the same place on the
 *     mesh.
 * I3  Of the ranks of a tp group that hold the same box exactly one owns it.
 * I4  A head tied to a parameter of the stem has a copy of it where the stem is another rank's: the
 *     same name and initial bits, owned by the stem's rank. Nothing else is shared between ranks of
 *     a pipeline.
 *
 * Handle life; the thread that builds. */
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"
#include "graph_int.h"

/* What an extent takes in memory, the same on all ranks; only padded ones need not divide. Rows of
 * values are in parts of ceil, since microbatches have any number of them. */
mc_status mc_graph_local_extent(const struct mc_graph *g, int64_t *n, int dim,
                                const struct mc_sharding *sh, const char *what, struct mc_err *err)
{
    for (int a = 0; a < MC_NAXES; a++)
        if (sh->on[a].kind == MC_SHARD && sh->on[a].dim == dim) {
            int size = g->cfg.axis_size[a], parts = mc_place_parts(&sh->on[a], size);
            if (what && sh->on[a].how != MC_PADDED && *n % parts != 0)
                return mc_err_set(err, MC_E_RECIPE, "%s %lld is not divided by %s = %d", what,
                                  (long long)*n, mc_axis_name((enum mc_axis)a), size);
            *n = (*n + parts - 1) / parts;
        }
    return MC_OK;
}

static unsigned hash_name(const char *name)
{
    return (unsigned)mc_hash64(name, strlen(name));
}

static int find_param(const struct mc_graph *g, const char *name)
{
    if (g->cap_param_at == 0)
        return -1;
    unsigned mask = (unsigned)g->cap_param_at - 1;
    for (unsigned at = hash_name(name) & mask; g->param_at[at] > 0; at = (at + 1) & mask)
        if (strcmp(g->param[g->param_at[at] - 1].name, name) == 0)
            return g->param_at[at] - 1;
    return -1;
}

/* Enters parameter i; at most half of the table is in use. 0, or -1: no memory. */
static int enter_param(struct mc_graph *g, int i)
{
    int first = i;
    if (2 * (i + 1) > g->cap_param_at) {
        int cap = g->cap_param_at ? 2 * g->cap_param_at : 64;
        int *room = mc_alloc((size_t)cap * sizeof *room, "graph: names"); /* zeroed */
        if (!room)
            return -1;
        mc_free(g->param_at);
        g->param_at = room;
        g->cap_param_at = cap;
        first = 0; /* all of them again */
    }
    unsigned mask = (unsigned)g->cap_param_at - 1;
    for (int k = first; k <= i; k++) {
        unsigned at = hash_name(g->param[k].name) & mask;
        while (g->param_at[at] > 0)
            at = (at + 1) & mask;
        g->param_at[at] = k + 1;
    }
    return 0;
}

/* The call of the stem that makes the parameter of this name; NULL: none does. */
static const struct mc_call *of_stem(const struct mc_graph *g, const char *param)
{
    const struct mc_func *f = &g->cfg.recipe->model.stem;
    for (int i = 0; i < f->ncalls; i++) {
        size_t n = strlen(f->call[i].name);
        if (n > 0 && strncmp(f->call[i].name, param, n) == 0 && param[n] == '.')
            return &f->call[i];
    }
    return NULL;
}

/* What follows is in a bucket of its own. */
static mc_status split_bucket(struct mc_graph *g, struct mc_err *err)
{
    const struct mc_bucket *b = &g->bucket[g->nbuckets - 1];
    return b->param < g->nparams ? mc_graph_open_bucket(g, b->part, err) : MC_OK;
}

static mc_status add_param(struct mc_graph *g, const char *name, int layer,
                           const struct mc_param_spec *s, int fused, int *index, struct mc_err *err)
{
    if (g->nparams > 0 && g->param[g->nparams - 1].elsewhere < 0)
        MC_TRY(split_bucket(g, err));
    struct mc_param *p = mc_graph_room(g->param, g->nparams, &g->cap_params, sizeof *p);
    int64_t align = fused ? 1 : MC_PARAM_ALIGN;
    if (!p)
        return mc_graph_nomem(err);
    g->param = p;
    p += g->nparams;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->shape = s->shape;
    p->sharding = s->sharding;
    mc_graph_normalise(g, &p->sharding);
    p->cls = s->cls;
    p->init = s->init;
    p->std = s->std;
    p->layer = layer;
    p->stored = 1;
    p->owned = 1;
    for (int d = 0; d < s->shape.nd; d++) {
        int64_t n = s->shape.dim[d];
        MC_TRY(mc_graph_local_extent(g, &n, d, &p->sharding, "a parameter's extent", err));
        if (__builtin_mul_overflow(p->stored, n, &p->stored) || p->stored > INT64_C(1) << 48)
            return mc_err_set(err, MC_E_RECIPE, "%s has more elements than 2^48", name);
    }
    if (!mc_box_of(&p->shape, &p->sharding, g->cfg.coord, g->cfg.axis_size, &p->box))
        return mc_err_set(err, MC_E_BUG, "%s has no box on this rank", name);
    p->count = mc_box_count(&p->box);
    for (int a = 0; a < MC_NAXES; a++) {
        const struct mc_place *at = &p->sharding.on[a];
        int same = at->kind == MC_SHARD ? at->copies + !at->copies : g->cfg.axis_size[a];
        int apart = a == MC_AXIS_DP || a == MC_AXIS_CP || a == MC_AXIS_PP; /* not copies of it */
        if (!apart && g->cfg.coord[a] % same != 0)
            p->owned = 0;
        if (at->kind == MC_SHARD && at->copies > 1)
            p->grad_sum_axes |= 1u << a; /* each copy has the gradient of its own readers */
    }
    p->offset = (g->flat + align - 1) / align * align;
    g->flat = p->offset + p->stored;
    if (enter_param(g, g->nparams) < 0)
        return mc_graph_nomem(err);
    *index = g->nparams++;
    return MC_OK;
}

static int is_whole(const struct mc_graph *g)
{
    int next = 0;
    for (int c = 0; c < g->cfg.nparts; c++) {
        if (g->cfg.part[c].first_layer != next)
            return 0;
        next = g->cfg.part[c].end_layer;
    }
    return g->cfg.part[0].has_stem && g->cfg.part[g->cfg.nparts - 1].has_head &&
           next == g->cfg.recipe->model.layers;
}

/* I4: this rank's copy, for its head, of a parameter of the stem of another rank. */
static mc_status copy_of_stem(struct mc_graph *g, int layer, const struct mc_param_spec *s,
                              int *index, struct mc_err *err)
{
    struct mc_param_spec copy = *s;
    const struct mc_call *c = of_stem(g, s->tied);
    if (!c || layer < g->cfg.recipe->model.layers)
        return mc_err_set(err, MC_E_RECIPE,
                          "tied to \"%s\", which is not of this rank; of stages on different ranks "
                          "only the head can share a parameter, and only one of the stem's",
                          s->tied);
    copy.cls = strcmp(c->op, "embedding") == 0   ? MC_PARAM_EMBEDDING
               : strcmp(c->op, "positions") == 0 ? MC_PARAM_POSITION
                                                 : s->cls;
    copy.std = mc_call_num(c, "std", g->cfg.recipe->model.init_std);
    MC_TRY(split_bucket(g, err)); /* replicas share the rest as they do without a copy */
    MC_TRY(add_param(g, s->tied, layer, &copy, 0, index, err));
    g->param[*index].elsewhere = -1;
    g->param[*index].owned = 0;
    return MC_OK;
}

/* I4: what the head of another rank has a copy of. */
void mc_graph_mark_shared(struct mc_graph *g)
{
    const struct mc_func *f = &g->cfg.recipe->model.head;
    for (int i = 0; i < f->ncalls && !g->cfg.part[g->cfg.nparts - 1].has_head; i++) {
        const char *tied = mc_call_str(&f->call[i], "tied", "");
        int p = tied[0] ? find_param(g, tied) : -1;
        if (p >= 0 && g->param[p].layer < 0)
            g->param[p].elsewhere = 1;
    }
}

/* Parameter k of a call: its own, or an earlier one's further use. */
mc_status mc_graph_bind_param(struct mc_graph *g, int node, const char *full, int layer,
                              const struct mc_param_spec *s, int fused, struct mc_err *err)
{
    char name[MC_NAME_MAX];
    int i;
    if (s->tied[0]) {
        i = find_param(g, s->tied);
        if (i < 0 && !is_whole(g)) {
            MC_TRY(copy_of_stem(g, layer, s, &i, err)); /* I4 */
        } else if (i < 0) {
            const char *near = NULL,
                       **names = mc_alloc((size_t)g->nparams * sizeof *names + 1, "graph");
            if (!names)
                return mc_graph_nomem(err);
            for (int k = 0; k < g->nparams; k++)
                names[k] = g->param[k].name;
            near = mc_nearest(s->tied, names, g->nparams);
            mc_err_set(err, MC_E_RECIPE, "tied to \"%s\", which does not exist%s%s%s", s->tied,
                       near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
            mc_free(names);
            return MC_E_RECIPE;
        } else if (!mc_shape_eq(&g->param[i].shape, &s->shape)) {
            return mc_err_set(
                err, MC_E_RECIPE, "tied to %s [%lld, %lld], but this linear needs [%lld, %lld]",
                s->tied, (long long)g->param[i].shape.dim[0], (long long)g->param[i].shape.dim[1],
                (long long)s->shape.dim[0], (long long)s->shape.dim[1]);
        } else {
            struct mc_sharding sh = s->sharding;
            mc_graph_normalise(g, &sh);
            if (memcmp(&sh, &g->param[i].sharding, sizeof sh) != 0)
                return mc_err_set(err, MC_E_RECIPE,
                                  "tied to %s, which lies otherwise on the mesh; a tied head needs "
                                  "shard = \"column\"",
                                  s->tied);
        }
    } else {
        if (snprintf(name, sizeof name, "%s.%s", full, s->suffix) >= (int)sizeof name)
            return mc_err_set(err, MC_E_RECIPE, "the parameter's name is longer than %d bytes",
                              MC_NAME_MAX - 1);
        if (find_param(g, name) >= 0)
            return mc_err_set(err, MC_E_RECIPE,
                              "a second parameter is called %s; give the calls different names",
                              name);
        MC_TRY(add_param(g, name, layer, s, fused, &i, err));
    }
    struct mc_gnode *n = &g->node[node];
    struct mc_param *p = &g->param[i];
    n->param[n->nparams] = i;
    n->use[n->nparams++] = p->nuses++;
    return MC_OK;
}

int mc_graph_nparams(const struct mc_graph *g)
{
    return g->nparams;
}
const struct mc_param *mc_graph_param(const struct mc_graph *g, int i)
{
    return i >= 0 && i < g->nparams ? &g->param[i] : NULL;
}
int64_t mc_graph_flat_count(const struct mc_graph *g)
{
    return g->flat;
}
int64_t mc_graph_param_count(const struct mc_graph *g)
{
    int64_t n = 0;
    for (int i = 0; i < g->nparams; i++)
        n += mc_shape_count(&g->param[i].shape);
    return n;
}
