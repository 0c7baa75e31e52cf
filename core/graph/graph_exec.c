/* graph_exec.c - runs the static program: pointers once, then verbs one after the other.
 *
 * I1  Nothing is allocated or decided here (but I6): a step's operands were fixed by the plan. bind
 *     turns offsets into pointers; another slot or pending place turns those of the phase that runs
 *     again (a loop over its steps, no allocation).
 * I2  bind refuses what this version cannot run, and another mesh than the graph was built for.
 * I3  Gradient accumulators are only added to; mc_graph_zero_grads() starts a step.
 * I4  What a pass's watch is told comes at ticks that the plan fixed.
 * I5  A step that fails (a collective, or the watch) is the last: the error is kept and given until
 *     the next bind.
 * I6  A slot has a pending place from the begin of its gradients of inputs to the end of those of
 *     weights: the first that is free, so that all ranks of a tp group take the same. Who fills
 *     D_OUT before is given the one that comes next. The schedule's count of them is the caller's
 *     word: one too few is asserted.
 *
 * Buffers belong to the caller and are as large as mc_graph_memory() says. One thread drives a
 * graph; kernels use the pool. */
#include <string.h>
#include "../base/clock.h"
#include "../par/mesh.h"
#include "graph_int.h"

/* -- Bind ------------------------------------------------------------------------------------- */

static void *at(const void *base, size_t elems, size_t elem)
{
    return (char *)(uintptr_t)base + elems * elem;
}

/* Where slot k of a part begins, and the pending place that goes with it. */
struct bases {
    char *slot, *pending;
};

static void view(const struct mc_graph *g, const struct bases *b, int piece, struct mc_view *v,
                 void **p)
{
    if (piece < 0)
        return;
    const struct mc_piece *x = &g->piece[piece];
    const struct mc_store *s = &g->store[x->store];
    char *base = s->where == MC_IN_SLOT      ? b->slot
                 : s->where == MC_IN_PENDING ? b->pending
                                             : g->buf.temp;
    void *to = base + s->offset + (size_t)x->col0 * g->elem;
    if (p)
        *p = to;
    else
        *v = (struct mc_view){.p = to, .c = x->cols, .ld = s->cols};
}

static struct bases bases_of(const struct mc_graph *g, const struct mc_gpart *p, int k, int place)
{
    char *slots = g->buf.slots;
    return (struct bases){slots + p->slots_offset + (size_t)k * p->slot_bytes,
                          slots + p->pending_offset + (size_t)place * p->pending_bytes};
}

/* I6: the place that slot k has, or else is given next. */
static int next_place(const struct mc_gpart *p, int k)
{
    int i = 0;
    if (p->pending == 0 || p->taken[p->place[k]] == k)
        return p->place[k];
    while (i < p->pending && p->taken[i] >= 0)
        i++;
    MC_ASSERT(i < p->pending);
    return i;
}

void mc_graph_resolve(struct mc_graph *g, int part, enum mc_phase phase, int k)
{
    struct mc_gpart *p = &g->part[part];
    struct bases b = bases_of(g, p, k, p->place[k]);
    for (int t = p->tick[phase]; t < p->tick[phase + 1]; t++) {
        struct mc_step *s = &g->step[t];
        struct mc_node *n = &s->n;
        for (int i = 0; i < MC_OP_IN; i++)
            view(g, &b, s->in[i], &n->in[i], NULL);
        for (int i = 0; i < MC_OP_IN; i++)
            view(g, &b, s->d_in[i], &n->d_in[i], NULL);
        for (int i = 0; i < MC_OP_OUT; i++)
            view(g, &b, s->out[i], &n->out[i], NULL);
        for (int i = 0; i < MC_OP_OUT; i++)
            view(g, &b, s->d_out[i], &n->d_out[i], NULL);
        for (int i = 0; i < MC_OP_SAVED; i++)
            view(g, &b, s->saved[i], NULL, &n->saved[i]);
        view(g, &b, s->scratch, NULL, &n->scratch);
    }
    p->at[phase] = k;
    p->at_place[phase] = p->place[k];
}

int mc_graph_slot(const struct mc_graph *g, int part, int k)
{
    MC_ASSERT(part >= 0 && part < g->cfg.nparts && k >= 0 && k < g->part[part].slots);
    return g->part[part].slot + k;
}

/* Of which part the slot is; *k: which of them. */
static int part_of(const struct mc_graph *g, int slot, int *k)
{
    int c = g->cfg.nparts - 1;
    while (c > 0 && slot < g->part[c].slot)
        c--;
    *k = slot - g->part[c].slot;
    MC_ASSERT(*k >= 0 && *k < g->part[c].slots);
    return c;
}

void *mc_graph_edge(struct mc_graph *g, int slot, enum mc_graph_edge edge)
{
    int k, c = part_of(g, slot, &k);
    const struct mc_gpart *p = &g->part[c];
    struct bases b = bases_of(g, p, k, edge == MC_EDGE_D_OUT ? next_place(p, k) : p->place[k]);
    void *to = NULL;
    view(g, &b, p->edge[edge], NULL, &to);
    return to;
}

static void point_params(struct mc_graph *g)
{
    for (int t = 0; t < g->nsteps; t++) {
        struct mc_node *n = &g->step[t].n;
        if (g->step[t].gnode < 0)
            continue;
        const struct mc_gnode *gn = &g->node[g->step[t].gnode];
        for (int k = 0; k < gn->nparams; k++) {
            const struct mc_param *p = &g->param[gn->param[k]];
            n->param[k] = at(g->buf.params, (size_t)p->offset, g->elem);
            if (g->cfg.mode != MC_GRAPH_TRAIN)
                continue;
            n->grad[k] =
                gn->use[k] == 0
                    ? at(g->buf.grads, (size_t)p->offset, g->wide_elem)
                    : at(g->buf.extra_grads,
                         (size_t)(p->extra_offset + (gn->use[k] - 1) * p->stored), g->wide_elem);
        }
        if (gn->table >= 0) {
            const struct mc_table *tb = &g->table[gn->table];
            n->cos = at(g->buf.tables, tb->offset, g->wide_elem);
            n->sin = at(n->cos, (size_t)(g->cfg.bound.t * tb->half), g->wide_elem);
        }
        if (gn->kv_cols > 0) {
            size_t half = (size_t)((g->cfg.bound.t * gn->kv_cols + MC_PARAM_ALIGN - 1) /
                                   MC_PARAM_ALIGN * MC_PARAM_ALIGN);
            n->kc = at(g->buf.kv, (size_t)gn->kv_offset, g->elem);
            n->vc = at(n->kc, half, g->elem);
        }
    }
}

/* The graph was built for this place on this mesh (I2). dp is none of its business. */
static mc_status check_mesh(const struct mc_graph *g, const struct mc_mesh *mesh,
                            struct mc_err *err)
{
    const struct mc_graph_cfg *c = &g->cfg;
    for (int a = MC_AXIS_CP; a <= MC_AXIS_EP; a++)
        if (c->axis_size[a] > 1)
            return mc_err_set(err, MC_E_MACHINE,
                              "this graph is laid out for %s = %d, which this version does not "
                              "run; it can be planned",
                              mc_axis_name((enum mc_axis)a), c->axis_size[a]);
    int size = c->axis_size[MC_AXIS_TP], there = mesh ? mesh->layout.size[MC_AXIS_TP] : 1;
    int coord = c->coord[MC_AXIS_TP], here = mesh ? mesh->coord[MC_AXIS_TP] : 0;
    if (size != there || coord != here || (size > 1 && !mesh->axis[MC_AXIS_TP]))
        return mc_err_set(err, MC_E_BUG,
                          "this graph is laid out for place %d of tp = %d and bound to place %d of "
                          "tp = %d%s",
                          coord, size, here, there,
                          there > 1 && !mesh->axis[MC_AXIS_TP] ? " without a communicator" : "");
    return MC_OK;
}

mc_status mc_graph_bind(struct mc_graph *g, const struct mc_kern_ops *kern, struct mc_pool *pool,
                        const struct mc_graph_buffers *buf, const struct mc_mesh *mesh,
                        struct mc_err *err)
{
    MC_TRY(check_mesh(g, mesh, err));
    if (kern->dtype != g->cfg.recipe->precision)
        return mc_err_set(err, MC_E_MACHINE, "the recipe computes in %s, the kernels \"%s\" in %s",
                          mc_dtype_name(g->cfg.recipe->precision), kern->name,
                          mc_dtype_name(kern->dtype));
    if (mc_pool_threads(pool) > g->cfg.threads)
        return mc_err_set(err, MC_E_BUG, "graph planned for %d threads, bound to a pool of %d",
                          g->cfg.threads, mc_pool_threads(pool));
    g->kern = kern;
    g->pool = pool;
    g->buf = *buf;
    g->mesh = mesh;
    mc_err_clear(&g->failed);
    mc_graph_fill_tables(g);
    point_params(g);
    for (int c = 0; c < g->cfg.nparts; c++) {
        struct mc_gpart *p = &g->part[c];
        memset(p->place, 0, (size_t)p->slots * sizeof *p->place);
        memset(p->taken, -1, (size_t)p->pending * sizeof *p->taken);
        for (int phase = 0; phase < MC_NPHASES; phase++)
            mc_graph_resolve(g, c, (enum mc_phase)phase, 0);
    }
    return MC_OK;
}

/* -- Run -------------------------------------------------------------------------------------- */

static void sum_or_copy(const struct mc_step *s, const struct mc_op_ctx *cx)
{
    const struct mc_view *y = s->kind == MC_STEP_SUM ? &s->n.in[1] : &s->n.in[0];
    struct mc_add a = {.m = cx->rows,
                       .c = s->n.out[0].c,
                       .x = s->n.in[0].p,
                       .ldx = s->n.in[0].ld,
                       .y = y->p,
                       .ldy = y->ld,
                       .z = s->n.out[0].p,
                       .ldz = s->n.out[0].ld,
                       .ax = 1,
                       .ay = s->kind == MC_STEP_SUM ? 1 : 0};
    cx->kern->add(cx->pool, &a);
}

/* What is told when step t is about to run (need) or has run (done); *k walks the run of moments.
 */
static void tell(struct mc_graph *g, mc_status (*fn)(void *, int, struct mc_err *), void *arg,
                 const struct mc_moment *m, const struct mc_run *run, int *k, int t)
{
    m += run->first;
    for (; *k < run->n && m[*k].tick <= t && g->failed.code == MC_OK; ++*k) {
        mc_status st = fn ? fn(arg, m[*k].bucket, &g->failed) : MC_OK;
        if (st != MC_OK && g->failed.code == MC_OK) /* it said no more than that */
            mc_err_set(&g->failed, st, "a pass over the graph was ended by its watch");
    }
}

mc_status mc_graph_failed(const struct mc_graph *g, struct mc_err *err)
{
    if (err && err->code == MC_OK)
        *err = g->failed;
    return g->failed.code;
}

static void run_step(struct mc_graph *g, const struct mc_step *s, const struct mc_op_ctx *all)
{
    struct mc_op_ctx cx = *all;
    if (s->gnode >= 0 && g->node[s->gnode].one_row) {
        cx.e = (struct mc_extent){.b = 1, .t = 1, .pos0 = all->e.pos0 + all->e.t - 1};
        cx.rows = 1;
    }
    if (s->split)
        mc_part_of(all->rows, g->cfg.axis_size[MC_AXIS_TP], g->cfg.coord[MC_AXIS_TP], &cx.row0,
                   &cx.rows);
    int64_t t0 = g->profile ? mc_clock_ns() : 0;
    if (cx.rows == 0) /* a short microbatch has none for this rank */
        return;
    if (s->kind != MC_STEP_VERB)
        sum_or_copy(s, &cx);
    else if (s->verb == MC_FORWARD)
        s->n.op->forward(&s->n, &cx);
    else if (s->verb == MC_BACKWARD_WEIGHT)
        s->n.op->backward_weight(&s->n, &cx);
    else
        s->n.op->backward_input(&s->n, &cx);
    if (g->profile)
        mc_graph_profile_add(g, s, &cx, mc_clock_ns() - t0);
}

static void run_told(struct mc_graph *g, int t, const struct mc_op_ctx *cx)
{
    struct mc_graph_note note;
    mc_graph_record_begin(g, t, cx, &note);
    run_step(g, &g->step[t], cx);
    if (g->failed.code == MC_OK)
        mc_graph_record_end(g, t, cx, &note);
}

/* A phase of part c in its slot k (I1, I4, I5). */
static mc_status run(struct mc_graph *g, int c, int k, enum mc_phase phase, struct mc_op_ctx *cx,
                     const struct mc_graph_watch *w, struct mc_err *err)
{
    const struct mc_gpart *p = &g->part[c];
    int end = p->tick[phase + 1], needed = 0, done = 0;
    int adds = phase == (g->cfg.split ? MC_PHASE_WEIGHTS : MC_PHASE_BACKWARD);
    if (p->at[phase] != k || p->at_place[phase] != p->place[k])
        mc_graph_resolve(g, c, phase, k);
    for (int t = p->tick[phase]; t < end && g->failed.code == MC_OK; t++) {
        if (g->probe)
            g->probe(g->probe_arg, t);
        if (w && phase == MC_PHASE_FORWARD)
            tell(g, w->need, w->arg, g->need, &p->need, &needed, t);
        if (g->failed.code == MC_OK && !g->record)
            run_step(g, &g->step[t], cx);
        else if (g->failed.code == MC_OK)
            run_told(g, t, cx);
        if (g->gauge_sum && phase == MC_PHASE_FORWARD && g->failed.code == MC_OK)
            mc_graph_gauge_step(g, t, cx);
        if (w && adds)
            tell(g, w->done, w->arg, g->done, &p->done, &done, t);
    }
    if (w && adds) /* of a part without weights */
        tell(g, w->done, w->arg, g->done, &p->done, &done, end);
    return mc_graph_failed(g, err);
}

/* Where each row's document begins, for nodes that ask: after an EOS, and with the sample. Forward
 * and backward compute it again from the same tokens, since another microbatch may have come
 * between. INFER: entry pos0 is known from the tokens fed before. */
static const int32_t *starts(const struct mc_graph *g, const struct mc_microbatch *mb, int64_t pos0)
{
    int32_t *s = (int32_t *)(void *)((char *)g->buf.tables + g->starts_offset);
    int64_t eos = g->cfg.recipe->model.eos;
    if (!g->documents)
        return NULL;
    if (g->cfg.mode == MC_GRAPH_INFER) {
        if (pos0 == 0)
            s[0] = 0;
        for (int64_t p = pos0; p < pos0 + mb->t; p++)
            s[p + 1] = mb->tokens[p - pos0] == eos ? (int32_t)(p + 1) : s[p];
        return s + pos0;
    }
    for (int64_t r = 0; r < mb->b * mb->t; r++) {
        int64_t p = r % mb->t;
        s[r] = p == 0 ? 0 : mb->tokens[r - 1] == eos ? (int32_t)p : s[r - 1];
    }
    return s;
}

static struct mc_op_ctx context(struct mc_graph *g, const struct mc_microbatch *mb, int64_t step,
                                int64_t pos0)
{
    MC_ASSERT(g->kern && mb->b >= 1 && mb->t >= 1 && mb->b <= g->cfg.bound.b &&
              mb->t <= g->cfg.bound.t);
    return (struct mc_op_ctx){.kern = g->kern,
                              .pool = g->pool,
                              .e = {.b = mb->b, .t = mb->t, .pos0 = pos0},
                              .rows = mb->b * mb->t,
                              .coord = g->cfg.coord,
                              .axis_size = g->cfg.axis_size,
                              .mesh = g->mesh,
                              .err = &g->failed,
                              .tokens = mb->tokens,
                              .targets = mb->targets,
                              .logical_row = mb->logical_row,
                              .start = starts(g, mb, pos0),
                              .seed = (uint64_t)g->cfg.recipe->seed,
                              .step = step,
                              .train = g->cfg.mode == MC_GRAPH_TRAIN};
}

mc_status mc_graph_forward(struct mc_graph *g, int slot, const struct mc_microbatch *mb,
                           int64_t step, double *loss_sum, struct mc_err *err)
{
    struct mc_op_ctx cx = context(g, mb, step, 0);
    int k, c = part_of(g, slot, &k);
    MC_ASSERT(g->cfg.mode != MC_GRAPH_INFER);
    cx.loss_sum = loss_sum;
    return run(g, c, k, MC_PHASE_FORWARD, &cx, mb->watch, err);
}

static mc_status backward(struct mc_graph *g, int slot, enum mc_phase first, enum mc_phase last,
                          const struct mc_microbatch *mb, int64_t step, double scale,
                          struct mc_err *err)
{
    struct mc_op_ctx cx = context(g, mb, step, 0);
    int k, c = part_of(g, slot, &k);
    struct mc_gpart *p = &g->part[c];
    MC_ASSERT(g->cfg.mode == MC_GRAPH_TRAIN);
    cx.loss_scale = scale;
    if (g->cfg.split && first == MC_PHASE_BACKWARD) { /* I6 */
        p->place[k] = next_place(p, k);
        p->taken[p->place[k]] = k;
    }
    MC_ASSERT(!g->cfg.split || p->taken[p->place[k]] == k);
    for (int phase = first; phase <= (int)last; phase++)
        MC_TRY(run(g, c, k, (enum mc_phase)phase, &cx, mb->watch, err));
    if (g->cfg.split && last == MC_PHASE_WEIGHTS)
        p->taken[p->place[k]] = -1;
    return MC_OK;
}

mc_status mc_graph_backward(struct mc_graph *g, int slot, const struct mc_microbatch *mb,
                            int64_t step, double scale, struct mc_err *err)
{
    enum mc_phase last = g->cfg.split ? MC_PHASE_WEIGHTS : MC_PHASE_BACKWARD;
    return backward(g, slot, MC_PHASE_BACKWARD, last, mb, step, scale, err);
}

mc_status mc_graph_backward_input(struct mc_graph *g, int slot, const struct mc_microbatch *mb,
                                  int64_t step, double scale, struct mc_err *err)
{
    MC_ASSERT(g->cfg.split);
    return backward(g, slot, MC_PHASE_BACKWARD, MC_PHASE_BACKWARD, mb, step, scale, err);
}

mc_status mc_graph_backward_weight(struct mc_graph *g, int slot, const struct mc_microbatch *mb,
                                   int64_t step, double scale, struct mc_err *err)
{
    MC_ASSERT(g->cfg.split);
    return backward(g, slot, MC_PHASE_WEIGHTS, MC_PHASE_WEIGHTS, mb, step, scale, err);
}

mc_status mc_graph_infer_part(struct mc_graph *g, int part, const int32_t *tokens, int64_t t,
                              int64_t pos0, const void **logits, struct mc_err *err)
{
    struct mc_microbatch mb = {.b = 1, .t = t, .tokens = tokens};
    MC_ASSERT(g->cfg.mode == MC_GRAPH_INFER && pos0 >= 0 && pos0 + t <= g->cfg.bound.t);
    MC_ASSERT(part >= 0 && part < g->cfg.nparts);
    struct mc_op_ctx cx = context(g, &mb, 0, pos0);
    MC_TRY(run(g, part, 0, MC_PHASE_FORWARD, &cx, NULL, err));
    if (g->cfg.part[part].has_head && logits) {
        struct mc_view out;
        struct bases b = bases_of(g, &g->part[part], 0, 0);
        view(g, &b, g->part[part].out_piece, &out, NULL);
        *logits = out.p;
    }
    return MC_OK;
}

mc_status mc_graph_infer(struct mc_graph *g, const int32_t *tokens, int64_t t, int64_t pos0,
                         const void **logits, struct mc_err *err)
{
    MC_ASSERT(g->cfg.nparts == 1 && g->cfg.part[0].has_stem && g->cfg.part[0].has_head);
    return mc_graph_infer_part(g, 0, tokens, t, pos0, logits, err);
}

/* -- Work ------------------------------------------------------------------------------------- */

/* Operations of the products alone (a multiply-add is 2): per linear 2 M K N; per attention
 * 4 B T^2 (H D), half of it when causal. Backward does each product twice, for the input and for
 * the weight (attention: for its two operands), so forward + backward = 3 x forward; recomputation
 * is not counted. EVAL and INFER graphs: forward alone. */
static double forward_flops(const struct mc_graph *g, int64_t b, int64_t t, int full, int again)
{
    double sum = 0;
    int tp = g->cfg.axis_size[MC_AXIS_TP];
    for (int i = 0; i < g->nsteps; i++) {
        const struct mc_step *s = &g->step[i];
        struct mc_extent e = {.b = b, .t = t};
        if (s->kind != MC_STEP_VERB || s->verb != MC_FORWARD || s->again != again ||
            !s->n.op->flops)
            continue;
        if (g->node[s->gnode].one_row)
            e.b = e.t = 1;
        else if (s->split)
            e = (struct mc_extent){.b = 1, .t = (b * t + tp - 1) / tp};
        struct mc_node n = s->n;
        if (full && n.op->flags & MC_OPF_NEEDS_KV) /* attention */
            n.attr[MC_ATTR_CAUSAL] = n.attr[MC_ATTR_WINDOW] = 0;
        sum += n.op->flops(&n, e);
    }
    return sum;
}

static double flops(const struct mc_graph *g, int64_t b, int64_t t, int full)
{
    double forward = forward_flops(g, b, t, full, 0);
    return g->cfg.mode == MC_GRAPH_TRAIN ? 3 * forward : forward;
}

double mc_graph_flops_again(const struct mc_graph *g, int64_t b, int64_t t)
{
    return forward_flops(g, b, t, 0, 1);
}

double mc_graph_flops(const struct mc_graph *g, int64_t b, int64_t t)
{
    return flops(g, b, t, 0);
}

double mc_graph_flops_full(const struct mc_graph *g, int64_t b, int64_t t)
{
    return flops(g, b, t, 1);
}
