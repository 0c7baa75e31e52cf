/* graph_line.h - a model cut into stages that are run by hand, in a schedule drawn at random.
 *
 * Stages are dealt out to graphs; what passes between them is copied by the host. Before every call
 * all of temp is NaN, and so is a slot when its microbatch is done, so that nothing can be read
 * that the plan did not keep. For programs that also link test_threads. */
#pragma once
#include "../support/comm_threads.h"
#include "mesh_models.h"

enum { MB = 3, RANKS = 2, B = 2, STAGES = 6, MAX_ROWS = 8 * 11 };

MAYBE const int64_t deadline = INT64_C(60) * 1000000000;

enum deal { OWN, ONE, ALTERNATE, VEE, NDEALS };
struct job {
    const struct model *m;
    unsigned
        cuts; /* bit l: between layer l - 1 and l; 0: behind the stem; layers: before the head */
    enum deal deal;
    int split, slots, pending, tp; /* pending 0: as many as slots */
    uint64_t seed;                 /* of the order */
};
struct run {
    double loss[MB], stream[MB][8];
};
struct graph_of {
    struct mc_graph_cfg cfg;
    struct rig r;
};
struct stage {
    int graph, part, k[MB]; /* k: slot of a microbatch, -1 */
    char *out[MB], *d_in[MB];
    int f[MB], i[MB], w[MB]; /* done */
};
struct line {
    const struct job *job;
    struct graph_of graph[STAGES];
    struct stage stage[STAGES];
    int ngraphs, nstages;
};

/* -- A microbatch ----------------------------------------------------------------------------- */

struct batch {
    int64_t t, n;
    int32_t tokens[MB][MAX_ROWS], targets[MB][MAX_ROWS];
    int64_t row[MB][MAX_ROWS];
};
MAYBE void make_batch(struct batch *x, const struct model *m)
{
    x->t = m->r.model.seq;
    x->n = 0;
    for (int k = 0; k < MB; k++) {
        x->n += formula_batch(5 + k, B * x->t, m->r.model.vocab, x->tokens[k], x->targets[k]);
        for (int64_t i = 0; i < B * x->t; i++)
            x->row[k][i] = (k * B + 40) * x->t + i;
    }
}
MAYBE struct mc_microbatch piece_of(const struct batch *x, int k) /* the last is short */
{
    return (struct mc_microbatch){.b = k == MB - 1 ? 1 : B,
                                  .t = x->t,
                                  .tokens = x->tokens[k],
                                  .targets = x->targets[k],
                                  .logical_row = x->row[k]};
}

/* -- Graphs ----------------------------------------------------------------------------------- */

MAYBE mc_status open_graph(struct graph_of *x, const struct mc_mesh *mesh, struct mc_err *err)
{
    enum mc_dtype precision = x->cfg.recipe->precision;
    struct rig *r = &x->r;
    x->cfg.axis_size[MC_AXIS_TP] = mesh ? mesh->layout.size[MC_AXIS_TP] : 1;
    x->cfg.coord[MC_AXIS_TP] = mesh ? mesh->coord[MC_AXIS_TP] : 0;
    MC_TRY(rig_take(&x->cfg, NULL, r, err));
    const struct mc_graph_memory *mem = mc_graph_memory(r->g);
    if (mem->slots)
        memset(r->b.slots, 0xff, mem->slots);
    MC_TRY(mc_graph_bind(r->g, r->k, r->pool, &r->b, mesh, err));
    mc_graph_init_params(r->g, 31, precision, r->b.params);
    mc_graph_zero_grads(r->g);
    return MC_OK;
}

MAYBE struct mc_graph_cfg config(const struct job *j, enum mc_graph_mode mode)
{
    struct mc_graph_cfg cfg =
        whole_cfg(j->m, mode, mode == MC_GRAPH_INFER ? 1 : B, j->m->r.model.seq, 1, j->slots);
    cfg.split = j->split;
    return cfg;
}

MAYBE int places(const struct job *j)
{
    return j->pending ? j->pending : j->slots;
}

/* Cuts the model and deals its stages out. */
MAYBE mc_status open_line(struct line *l, const struct job *j, enum mc_graph_mode mode,
                          const struct mc_mesh *mesh, struct mc_err *err)
{
    int layers = (int)j->m->r.model.layers, first = 0;
    *l = (struct line){.job = j};
    struct mc_graph_part part[STAGES];
    for (int at = 0; at <= layers + 1; at++) {
        int end = at > layers ? layers : at, head = at > layers;
        if (!head && !(j->cuts >> at & 1))
            continue;
        part[l->nstages] = (struct mc_graph_part){.first_layer = first,
                                                  .end_layer = end,
                                                  .has_stem = l->nstages == 0,
                                                  .has_head = head,
                                                  .slots = j->slots,
                                                  .pending = places(j)};
        l->nstages++;
        first = end;
    }
    for (int s = 0; s < l->nstages; s++) {
        int half = (l->nstages + 1) / 2;
        int g = j->deal == OWN         ? s
                : j->deal == ONE       ? 0
                : j->deal == ALTERNATE ? s % 2
                : s < half             ? s
                                       : l->nstages - 1 - s;
        struct mc_graph_cfg *c = &l->graph[g].cfg;
        if (c->nparts == 0) {
            *c = config(j, mode);
            c->nparts = 0;
        }
        l->stage[s].graph = g;
        l->stage[s].part = c->nparts;
        c->part[c->nparts++] = part[s];
        l->ngraphs = g >= l->ngraphs ? g + 1 : l->ngraphs;
        memset(l->stage[s].k, -1, sizeof l->stage[s].k);
    }
    for (int g = 0; g < l->ngraphs; g++)
        MC_TRY(open_graph(&l->graph[g], mesh, err));
    for (int s = 0; s < l->nstages; s++)
        for (int k = 0; k < MB; k++) {
            size_t n = (size_t)(B * j->m->r.model.seq * j->m->r.model.hidden) * 8;
            l->stage[s].out[k] = mc_alloc(n, "test");
            l->stage[s].d_in[k] = mc_alloc(n, "test");
        }
    return MC_OK;
}

MAYBE void close_line(struct line *l)
{
    for (int g = 0; g < l->ngraphs; g++)
        if (l->graph[g].r.pool)
            rig_close(&l->graph[g].r);
    for (int s = 0; s < l->nstages; s++)
        for (int k = 0; k < MB; k++) {
            mc_free(l->stage[s].out[k]);
            mc_free(l->stage[s].d_in[k]);
        }
}

/* -- Ops of a schedule ------------------------------------------------------------------------ */

MAYBE struct rig *rig_of(struct line *l, int s)
{
    return &l->graph[l->stage[s].graph].r;
}

/* Between two ops: temp, and the pending places that no slot has. */
MAYBE void spoil_temp(struct rig *r)
{
    if (mc_graph_memory(r->g)->temp)
        memset(r->b.temp, 0xff, mc_graph_memory(r->g)->temp);
    for (int c = 0; c < r->g->cfg.nparts; c++) {
        const struct mc_gpart *p = &r->g->part[c];
        for (int i = 0; i < p->pending; i++)
            if (p->taken[i] < 0)
                memset((char *)r->b.slots + p->pending_offset + (size_t)i * p->pending_bytes, 0xff,
                       p->pending_bytes);
    }
}

/* An edge of the stage is filled from, or told to, host memory. */
MAYBE void move_edge(struct line *l, int s, int slot, enum mc_graph_edge e, char *host, int fills,
                     const struct mc_microbatch *mb)
{
    struct rig *r = rig_of(l, s);
    char *at = mc_graph_edge(r->g, slot, e);
    size_t n = (size_t)mc_graph_edge_count(r->g, mb->b, mb->t) * r->elem;
    if (n > 0)
        memcpy(fills ? at : host, fills ? host : at, n);
}

MAYBE mc_status forward(struct line *l, int s, int k, int free_slot, const struct mc_microbatch *mb,
                        struct run *out, struct mc_err *err)
{
    struct stage *x = &l->stage[s];
    struct rig *r = rig_of(l, s);
    int slot = mc_graph_slot(r->g, x->part, free_slot);
    double loss = 0;
    x->k[k] = free_slot;
    x->f[k] = 1;
    spoil_temp(r);
    if (s > 0)
        move_edge(l, s, slot, MC_EDGE_IN, l->stage[s - 1].out[k], 1, mb);
    mc_graph_gauge(r->g, out->stream[k]);
    MC_TRY(mc_graph_forward(r->g, slot, mb, 7, &loss, err));
    if (s < l->nstages - 1)
        move_edge(l, s, slot, MC_EDGE_OUT, x->out[k], 0, mb);
    else
        out->loss[k] = loss;
    return MC_OK;
}

MAYBE void leave_slot(struct line *l, int s, int k)
{
    struct rig *r = rig_of(l, s);
    struct mc_gpart *p = &r->g->part[l->stage[s].part];
    if (p->slot_bytes)
        memset((char *)r->b.slots + p->slots_offset + (size_t)l->stage[s].k[k] * p->slot_bytes,
               0xff, p->slot_bytes);
    l->stage[s].k[k] = -1;
}

/* both: inputs and weights in one call. */
MAYBE mc_status backward(struct line *l, int s, int k, int both, const struct mc_microbatch *mb,
                         double scale, struct mc_err *err)
{
    struct stage *x = &l->stage[s];
    struct rig *r = rig_of(l, s);
    int slot = mc_graph_slot(r->g, x->part, x->k[k]);
    spoil_temp(r);
    if (s < l->nstages - 1)
        move_edge(l, s, slot, MC_EDGE_D_OUT, l->stage[s + 1].d_in[k], 1, mb);
    MC_TRY((both ? mc_graph_backward : mc_graph_backward_input)(r->g, slot, mb, 7, scale, err));
    if (s > 0)
        move_edge(l, s, slot, MC_EDGE_D_IN, x->d_in[k], 0, mb);
    x->i[k] = 1;
    x->w[k] = both;
    if (both)
        leave_slot(l, s, k);
    return MC_OK;
}

MAYBE mc_status weights(struct line *l, int s, int k, const struct mc_microbatch *mb, double scale,
                        struct mc_err *err)
{
    struct rig *r = rig_of(l, s);
    spoil_temp(r);
    MC_TRY(mc_graph_backward_weight(r->g, mc_graph_slot(r->g, l->stage[s].part, l->stage[s].k[k]),
                                    mb, 7, scale, err));
    l->stage[s].w[k] = 1;
    leave_slot(l, s, k);
    return MC_OK;
}

MAYBE int free_slot(const struct line *l, int s)
{
    for (int k = 0; k < l->job->slots; k++) {
        int taken = 0;
        for (int m = 0; m < MB; m++)
            taken |= l->stage[s].k[m] == k;
        if (!taken)
            return k;
    }
    return -1;
}

MAYBE int free_place(const struct line *l, int s)
{
    int taken = 0;
    for (int m = 0; m < MB; m++)
        taken += l->stage[s].i[m] && !l->stage[s].w[m];
    return taken < places(l->job);
}

/* What could run now: op 0 F, 1 B or I, 2 W. Accumulation ascends; forwards do where slots are
 * few, lest all wait. */
MAYBE int ready(const struct line *l, int s, int k, int op)
{
    const struct stage *x = &l->stage[s];
    if (op == 0)
        return !x->f[k] && (s == 0 || l->stage[s - 1].f[k]) && free_slot(l, s) >= 0 &&
               (l->job->slots >= MB || k == 0 || x->f[k - 1]);
    if (op == 1)
        return x->f[k] && !x->i[k] && (s == l->nstages - 1 || l->stage[s + 1].i[k]) &&
               free_place(l, s) &&
               (k == 0 || (l->job->split && places(l->job) >= MB) || x->i[k - 1]);
    return x->i[k] && !x->w[k] && (k == 0 || x->w[k - 1]);
}

/* All ops in an order drawn from the job's seed. On a mesh every rank draws the same. */
MAYBE mc_status run_line(struct line *l, const struct batch *x, struct run *out, struct mc_err *err)
{
    uint64_t draw = l->job->seed;
    int left = l->nstages * MB * 2;
    while (left > 0) {
        int can[STAGES * MB * 3], n = 0;
        for (int i = 0; i < l->nstages * MB * 3; i++)
            if (ready(l, i / 3 / MB, i / 3 % MB, i % 3))
                can[n++] = i;
        MC_ASSERT(n > 0);
        int i = can[mix(draw++) % (uint64_t)n], s = i / 3 / MB, k = i / 3 % MB;
        struct mc_microbatch mb = piece_of(x, k);
        /* a split graph runs both at once now and then, where that ascends */
        int both = !l->job->split || (mix(draw++) % 4 == 0 && (k == 0 || l->stage[s].w[k - 1]));
        if (i % 3 == 0)
            MC_TRY(forward(l, s, k, free_slot(l, s), &mb, out, err));
        else if (i % 3 == 1)
            MC_TRY(backward(l, s, k, both, &mb, 1.0 / (double)x->n, err));
        else
            MC_TRY(weights(l, s, k, &mb, 1.0 / (double)x->n, err));
        left -= i % 3 == 0 || l->stage[s].w[k];
    }
    for (int g = 0; g < l->ngraphs; g++)
        for (int b = 0; b < mc_graph_nbuckets(l->graph[g].r.g); b++)
            MC_TRY(mc_graph_finish_grads(l->graph[g].r.g, b, err));
    return MC_OK;
}

MAYBE mc_status run_whole(struct rig *r, const struct batch *x, struct run *out, struct mc_err *err)
{
    for (int k = 0; k < MB; k++) {
        struct mc_microbatch mb = piece_of(x, k);
        mc_graph_gauge(r->g, out->stream[k]);
        MC_TRY(mc_graph_forward(r->g, 0, &mb, 7, &out->loss[k], err));
        MC_TRY(mc_graph_backward(r->g, 0, &mb, 7, 1.0 / (double)x->n, err));
    }
    for (int b = 0; b < mc_graph_nbuckets(r->g); b++)
        MC_TRY(mc_graph_finish_grads(r->g, b, err));
    return MC_OK;
}

/* -- Comparison ------------------------------------------------------------------------------- */

MAYBE const struct mc_param *named(const struct mc_graph *g, const char *name)
{
    for (int i = 0; i < mc_graph_nparams(g); i++)
        if (strcmp(mc_graph_param(g, i)->name, name) == 0)
            return mc_graph_param(g, i);
    return NULL;
}

/* The gradient of p: the stem's, plus that of the head's copy where it has one. */
MAYBE void gradient(const struct line *l, const char *name, size_t wide, char *to)
{
    for (int copy = 0; copy < 2; copy++)
        for (int g = 0; g < l->ngraphs; g++) {
            const struct mc_param *p = named(l->graph[g].r.g, name);
            if (!p || (p->elsewhere < 0) != copy)
                continue;
            const char *from = (const char *)l->graph[g].r.b.grads + (size_t)p->offset * wide;
            for (int64_t i = 0; i < p->count && copy; i++)
                if (wide == 8)
                    ((double *)(void *)to)[i] += ((const double *)(const void *)from)[i];
                else
                    ((float *)(void *)to)[i] += ((const float *)(const void *)from)[i];
            if (!copy)
                memcpy(to, from, (size_t)p->count * wide);
        }
}

/* "": all bits agree. */
MAYBE void compare(const struct line *l, const struct run *got, const struct rig *ref,
                   const struct run *want, char why[256])
{
    size_t wide = ref->elem < 4 ? 4 : ref->elem;
    why[0] = 0;
    for (int k = 0; k < MB; k++) {
        if (memcmp(&got->loss[k], &want->loss[k], sizeof(double)) != 0)
            snprintf(why, 256, "loss %d: %.17g, whole %.17g", k, got->loss[k], want->loss[k]);
        for (int i = 0; i <= l->job->m->r.model.layers; i++)
            if (memcmp(&got->stream[k][i], &want->stream[k][i], sizeof(double)) != 0)
                snprintf(why, 256, "stream %d at %d: %.17g, whole %.17g", k, i, got->stream[k][i],
                         want->stream[k][i]);
    }
    for (int i = 0; i < mc_graph_nparams(ref->g) && !why[0]; i++) {
        const struct mc_param *p = mc_graph_param(ref->g, i);
        char *sum = mc_alloc((size_t)p->count * wide + 1, "test");
        gradient(l, p->name, wide, sum);
        if (memcmp(sum, (const char *)ref->b.grads + (size_t)p->offset * wide,
                   (size_t)p->count * wide) != 0)
            snprintf(why, 256, "the gradient of %s", p->name);
        mc_free(sum);
    }
}
