/* graph_plan.c - from nodes to the static program: which verb runs when, on which pieces.
 *
 * A *piece* is one value, gradient, saved tensor or scratch, written by exactly one step and read
 * by later ones; the step's index is its tick, so lifetimes are known when the program is. The
 * order is, part by part,
 *     forward    nodes in order
 *     backward   nodes in reverse: backward_weight, then backward_input (so that a gradient may be
 *                overwritten by what is computed from it)
 * or, where backward is split, two phases that may be far apart:
 *     backward   nodes in reverse: backward_input
 *     weights    nodes in reverse: backward_weight
 * I1  Backward reads forward pieces only where a row says so (keeps_*); they are what the slot
 *     holds.
 * I2  A recomputed node is run again in backward, once, just before its first reader in either
 *     phase; results of functions (the stream between blocks) are never recomputed under `block`.
 * I3  The gradient of a value used several times is summed in the order of the backward list: by
 *     the last contributor itself where its row can add (MC_OPF_DACC) and nobody else calls the sum
 *     so far theirs, else by a sum step.
 * I4  A gradient that is shared (add: both inputs' is the output's) has as many *holders* as
 *     values; only a sole holder may write over it.
 * I5  Gradients of fused outputs are slices of one buffer (a *group*), so that one GEMM reads them;
 *     one that cannot move there is copied.
 * I6  What a collective reads and writes is dense: no slice of a group.
 * I7  Where an output is its input (all_reduce_grad) the two are one piece.
 * I8  The program is the same on all ranks of a mesh.
 * I9  A split backward adds the same numbers in the same order: what may be added to or written
 *     over (I3, I4) is decided as if weights came first. A gradient that weights will read is
 *     copied before the sum goes on over it; an accumulator of one use has one addition a
 *     microbatch, so their order is free.
 * I10  Edges are dense and have memory of their own: no slice of a group.
 * I11  A part has a step: one whose calls are all the identity (dropout when it evaluates) copies.
 *
 * graph_place.c then lays pieces into memory. Handle life; the calling thread. */
#include <string.h>
#include "../base/arena.h"
#include "graph_int.h"

struct plan {
    struct mc_graph *g;
    int *fwd;                 /* [values] piece of the forward pass */
    int *again;               /* [values] recomputed piece, -1 */
    int *grad;                /* [values] gradient so far, -1 */
    int *saved, *saved_again; /* [nodes * MC_OP_SAVED] */
    int *ran_again;           /* [nodes] */
};

/* -- Pieces and steps ------------------------------------------------------------------------- */

static int new_piece(struct mc_graph *g, int64_t rows, int64_t cols)
{
    struct mc_piece *p = mc_graph_room(g->piece, g->npieces, &g->cap_pieces, sizeof *p);
    if (!p)
        return -1;
    g->piece = p;
    p += g->npieces;
    *p = (struct mc_piece){
        .rows = rows, .cols = cols, .def = -1, .store = -1, .group = -1, .next = -1};
    return g->npieces++;
}

static int rows_split(const struct mc_gvalue *v)
{
    const struct mc_place *p = &v->sharding.on[MC_AXIS_TP];
    return p->kind == MC_SHARD && p->dim == 0;
}

static int value_piece(struct mc_graph *g, int v)
{
    int p = new_piece(g, g->value[v].lrows, g->value[v].lcols);
    if (p >= 0)
        g->piece[p].split = rows_split(&g->value[v]);
    return p;
}

static int new_group(struct mc_graph *g, int64_t rows)
{
    struct mc_group *x = mc_graph_room(g->group, g->ngroups, &g->cap_groups, sizeof *x);
    if (!x)
        return -1;
    g->group = x;
    g->group[g->ngroups] = (struct mc_group){.rows = rows, .store = -1};
    return g->ngroups++;
}

static void join_group(struct mc_graph *g, int piece, int group)
{
    g->piece[piece].group = group;
    g->piece[piece].group_col = g->group[group].cols;
    g->group[group].cols += g->piece[piece].cols;
}

static struct mc_step *new_step(struct mc_graph *g, enum mc_step_kind kind, enum mc_verb verb,
                                int node)
{
    struct mc_step *s = mc_graph_room(g->step, g->nsteps, &g->cap_steps, sizeof *s);
    if (!s)
        return NULL;
    g->step = s;
    s += g->nsteps++;
    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->verb = verb;
    s->gnode = node;
    memset(s->in, -1, sizeof s->in);
    memset(s->out, -1, sizeof s->out);
    memset(s->d_in, -1, sizeof s->d_in);
    memset(s->d_out, -1, sizeof s->d_out);
    memset(s->saved, -1, sizeof s->saved);
    s->scratch = s->adds_to = -1;
    if (node >= 0) {
        const struct mc_gnode *n = &g->node[node];
        s->n.op = n->op;
        s->n.name = n->name;
        s->n.nin = n->nin;
        s->n.nout = n->nout;
        s->n.nparams = n->nparams;
        s->n.nsaved = n->nsaved;
        s->n.key = n->key;
        s->n.ldc = n->kv_cols;
        memcpy(s->n.attr, n->attr, sizeof n->attr);
        for (int i = 0; i < n->nparams; i++) {
            const struct mc_param *p = &g->param[n->param[i]];
            s->n.param_rows[i] = p->shape.dim[0];
            s->n.param_first[i] = p->box.lo[0];
            s->n.param_end[i] = p->box.lo[0] + p->box.n[0];
        }
        /* a collective knows rows and parts itself */
        s->split = !(n->op->flags & MC_OPF_COMM) &&
                   rows_split(&g->value[n->nout > 0 ? n->out[0] : n->in[0]]);
    }
    s->n.elem = g->elem;
    return s;
}

static int last_tick(const struct mc_graph *g)
{
    return g->nsteps - 1;
}

static int reads(struct mc_graph *g, int *operand, int piece)
{
    *operand = piece;
    if (piece >= 0 && g->piece[piece].last < last_tick(g))
        g->piece[piece].last = last_tick(g);
    return piece;
}

static int writes(struct mc_graph *g, int *operand, int piece)
{
    *operand = piece;
    if (piece >= 0)
        g->piece[piece].def = g->piece[piece].last = last_tick(g);
    return piece;
}

/* Widths of the views are known now; the row's scratch function may ask for them. */
static mc_status give_scratch(struct mc_graph *g, struct mc_step *s, struct mc_err *err)
{
    const struct mc_gnode *n = &g->node[s->gnode];
    struct mc_extent bound = g->cfg.bound;
    size_t bytes;
    for (int i = 0; i < n->nin; i++)
        s->n.in[i].c = s->n.d_in[i].c = g->value[n->in[i]].lcols;
    for (int i = 0; i < n->nout; i++)
        s->n.out[i].c = s->n.d_out[i].c = g->value[n->out[i]].lcols;
    if (!n->op->scratch)
        return MC_OK;
    if (n->one_row)
        bound.b = bound.t = 1;
    else if (s->split)
        bound = (struct mc_extent){.b = 1, .t = g->value[n->out[0]].lrows};
    bytes = n->op->scratch(&s->n, s->verb, g->sizes, bound, g->cfg.threads);
    if (bytes == 0)
        return MC_OK;
    int p = new_piece(g, 1, (int64_t)((bytes + g->elem - 1) / g->elem));
    if (p < 0)
        return mc_graph_nomem(err);
    writes(g, &s->scratch, p);
    return MC_OK;
}

static mc_status emit_two(struct mc_graph *g, enum mc_step_kind kind, int a, int b, int *out,
                          struct mc_err *err)
{
    struct mc_step *s = new_step(g, kind, MC_FORWARD, -1);
    *out = new_piece(g, g->piece[a].rows, g->piece[a].cols);
    if (!s || *out < 0)
        return mc_graph_nomem(err);
    s->split = g->piece[*out].split = g->piece[a].split;
    reads(g, &s->in[0], a);
    if (kind == MC_STEP_SUM)
        reads(g, &s->in[1], b);
    s->n.nin = kind == MC_STEP_SUM ? 2 : 1;
    s->n.nout = 1;
    writes(g, &s->out[0], *out);
    return MC_OK;
}

/* I6: the piece itself, from now on bound to stay dense, or a copy of it. */
static mc_status dense(struct mc_graph *g, int *piece, struct mc_err *err)
{
    if (g->piece[*piece].group >= 0)
        MC_TRY(emit_two(g, MC_STEP_COPY, *piece, -1, piece, err));
    g->piece[*piece].pinned = 1;
    return MC_OK;
}

const struct mc_gpart *mc_graph_part_at(const struct mc_graph *g, int t)
{
    const struct mc_gpart *p = g->part;
    while (t >= p->tick[MC_NPHASES] && p < &g->part[g->cfg.nparts - 1])
        p++;
    return p;
}

enum mc_phase mc_graph_phase_at(const struct mc_gpart *p, int t)
{
    return t < p->tick[MC_PHASE_BACKWARD]  ? MC_PHASE_FORWARD
           : t < p->tick[MC_PHASE_WEIGHTS] ? MC_PHASE_BACKWARD
                                           : MC_PHASE_WEIGHTS;
}

/* -- Forward, and forward again --------------------------------------------------------------- */

static mc_status emit_forward(struct plan *pl, int i, int again, struct mc_err *err)
{
    struct mc_graph *g = pl->g;
    const struct mc_gnode *n = &g->node[i];
    int in[MC_OP_IN], group = -1;
    for (int k = 0; k < n->nin; k++) {
        in[k] = pl->fwd[n->in[k]];
        if (again && in[k] != MC_TOKENS && pl->again[n->in[k]] >= 0)
            in[k] = pl->again[n->in[k]];
        if (n->op->flags & MC_OPF_COMM && !(n->op->flags & MC_OPF_ALIAS))
            MC_TRY(dense(g, &in[k], err));
    }
    if (n->op->flags & MC_OPF_ALIAS) { /* I7 */
        (again ? pl->again : pl->fwd)[n->out[0]] = again ? pl->again[n->in[0]] : in[0];
        return MC_OK;
    }
    struct mc_step *s = new_step(g, MC_STEP_VERB, MC_FORWARD, i);
    if (!s)
        return mc_graph_nomem(err);
    s->again = again;
    for (int k = 0; k < n->nin; k++)
        reads(g, &s->in[k], in[k]);
    if (n->nout > 1) {
        group = new_group(g, g->value[n->out[0]].lrows);
        if (group < 0)
            return mc_graph_nomem(err);
    }
    for (int k = 0; k < n->nout; k++) {
        int p = value_piece(g, n->out[k]);
        if (p < 0)
            return mc_graph_nomem(err);
        if (group >= 0)
            join_group(g, p, group);
        g->piece[p].pinned = (n->op->flags & MC_OPF_COMM) != 0;
        writes(g, &s->out[k], p);
        (again ? pl->again : pl->fwd)[n->out[k]] = p;
    }
    for (int k = 0; k < n->nsaved; k++) {
        int p = new_piece(g, 1, n->saved[k] * (int64_t)(g->wide_elem / g->elem));
        if (p < 0)
            return mc_graph_nomem(err);
        writes(g, &s->saved[k], p);
        (again ? pl->saved_again : pl->saved)[i * MC_OP_SAVED + k] = p;
    }
    return give_scratch(g, s, err);
}

static int recomputed(const struct mc_graph *g, int i)
{
    const struct mc_parallel_cfg *p = &g->cfg.recipe->parallel;
    const struct mc_gnode *n = &g->node[i];
    if (n->op->flags & MC_OPF_INTERNAL && n->nout == 0)
        return 0; /* the loss is summed once */
    if (p->recompute == MC_RECOMPUTE_BLOCK)
        return n->layer >= 0 && n->layer < g->cfg.recipe->model.layers && !n->is_result; /* I2 */
    if (p->recompute == MC_RECOMPUTE_OPS)
        for (int k = 0; k < p->nrecompute_ops; k++)
            if (strcmp(p->recompute_ops[k], n->op->name) == 0)
                return 1;
    return 0;
}

/* Makes sure that what node i made is there in backward: its inputs first. */
static mc_status run_again(struct plan *pl, int i, struct mc_err *err)
{
    struct mc_graph *g = pl->g;
    if (i < 0 || !recomputed(g, i) || pl->ran_again[i])
        return MC_OK;
    pl->ran_again[i] = 1;
    for (int k = 0; k < g->node[i].nin; k++)
        MC_TRY(run_again(pl, g->value[g->node[i].in[k]].node, err));
    return emit_forward(pl, i, 1, err);
}

static int kept_value(const struct plan *pl, int v)
{
    return pl->again[v] >= 0 ? pl->again[v] : pl->fwd[v];
}

/* -- Backward --------------------------------------------------------------------------------- */

/* value v's gradient is now `piece`. */
static void hold(struct plan *pl, int v, int piece)
{
    if (pl->grad[v] >= 0)
        pl->g->piece[pl->grad[v]].holders--;
    pl->grad[v] = piece;
    if (piece >= 0)
        pl->g->piece[piece].holders++;
}

/* A further contribution to the gradient of v (I3). */
static mc_status contribute(struct plan *pl, int v, int piece, struct mc_err *err)
{
    int sum = piece;
    if (pl->grad[v] >= 0)
        MC_TRY(emit_two(pl->g, MC_STEP_SUM, pl->grad[v], piece, &sum, err));
    hold(pl, v, sum);
    return MC_OK;
}

/* I5: gradients of fused outputs side by side. */
static mc_status gather_grads(struct plan *pl, const struct mc_gnode *n, struct mc_err *err)
{
    struct mc_graph *g = pl->g;
    int group = new_group(g, g->value[n->out[0]].lrows);
    if (group < 0)
        return mc_graph_nomem(err);
    for (int k = 0; k < n->nout; k++) {
        int p = pl->grad[n->out[k]];
        if (g->piece[p].group >= 0 || g->piece[p].pinned) {
            MC_TRY(emit_two(g, MC_STEP_COPY, p, -1, &p, err));
            hold(pl, n->out[k], p);
        }
        join_group(g, p, group);
    }
    return MC_OK;
}

/* Reads of a backward verb that its row declares (I1). */
static void read_kept(struct plan *pl, struct mc_step *s, int i, unsigned ins, unsigned outs)
{
    struct mc_graph *g = pl->g;
    const struct mc_gnode *n = &g->node[i];
    for (int k = 0; k < n->nin; k++)
        if (ins >> k & 1 && pl->fwd[n->in[k]] != MC_TOKENS)
            reads(g, &s->in[k], kept_value(pl, n->in[k]));
    for (int k = 0; k < n->nout; k++) {
        if (outs >> k & 1)
            reads(g, &s->out[k], kept_value(pl, n->out[k]));
        reads(g, &s->d_out[k], pl->grad[n->out[k]]);
    }
    for (int k = 0; k < n->nsaved; k++)
        reads(g, &s->saved[k],
              (pl->ran_again[i] ? pl->saved_again : pl->saved)[i * MC_OP_SAVED + k]);
}

static mc_status recompute_for(struct plan *pl, int i, unsigned ins, unsigned outs,
                               struct mc_err *err)
{
    const struct mc_gnode *n = &pl->g->node[i];
    for (int k = 0; k < n->nin; k++)
        if (ins >> k & 1)
            MC_TRY(run_again(pl, pl->g->value[n->in[k]].node, err));
    if (outs || n->nsaved)
        MC_TRY(run_again(pl, i, err));
    return MC_OK;
}

static mc_status backward_weight(struct plan *pl, int i, struct mc_err *err)
{
    const struct mc_op *op = pl->g->node[i].op;
    MC_TRY(recompute_for(pl, i, op->keeps_in_for_weight, op->keeps_out_for_weight, err));
    struct mc_step *s = new_step(pl->g, MC_STEP_VERB, MC_BACKWARD_WEIGHT, i);
    if (!s)
        return mc_graph_nomem(err);
    read_kept(pl, s, i, op->keeps_in_for_weight, op->keeps_out_for_weight);
    return give_scratch(pl->g, s, err);
}

/* Logits that anyone but the loss reads in backward must not be written over. */
static int read_elsewhere(const struct mc_graph *g, int v)
{
    int by = g->value[v].node;
    return g->value[v].uses > 1 || by < 0 || g->node[by].op->keeps_out_for_input ||
           g->node[by].op->keeps_out_for_weight;
}

/* I3, I4: may node i add to the gradient of its input? Such rows have one input. I9: a gradient
 * that weights will still read is left to them. */
static mc_status may_add(struct plan *pl, int i, int *acc, struct mc_err *err)
{
    struct mc_graph *g = pl->g;
    const struct mc_gnode *n = &g->node[i];
    int so_far = pl->grad[n->in[0]];
    *acc = n->op->flags & MC_OPF_DACC && so_far >= 0 && g->piece[so_far].holders == 1 &&
           g->piece[so_far].group < 0;
    if (*acc && g->piece[so_far].for_weights) {
        MC_TRY(emit_two(g, MC_STEP_COPY, so_far, -1, &so_far, err));
        hold(pl, n->in[0], so_far);
    }
    return MC_OK;
}

static mc_status backward_input(struct plan *pl, int i, struct mc_err *err)
{
    struct mc_graph *g = pl->g;
    const struct mc_gnode *n = &g->node[i];
    const struct mc_op *op = n->op;
    int made[MC_OP_IN], was = -1, copied = 0, acc;
    MC_TRY(recompute_for(pl, i, op->keeps_in_for_input, op->keeps_out_for_input, err));
    if (op->flags & MC_OPF_DLOGITS && read_elsewhere(g, n->in[0])) {
        int copy;
        MC_TRY(emit_two(g, MC_STEP_COPY, kept_value(pl, n->in[0]), -1, &copy, err));
        was = pl->again[n->in[0]];
        pl->again[n->in[0]] = copy;
        copied = 1;
    }
    if (op->flags & MC_OPF_COMM) { /* I6 */
        int p = pl->grad[n->out[0]];
        MC_TRY(dense(g, &p, err));
        hold(pl, n->out[0], p);
    }
    MC_TRY(may_add(pl, i, &acc, err));
    struct mc_step *s = new_step(g, MC_STEP_VERB, MC_BACKWARD_INPUT, i);
    if (!s)
        return mc_graph_nomem(err);
    read_kept(pl, s, i, op->keeps_in_for_input, op->keeps_out_for_input);
    if (copied)
        pl->again[n->in[0]] = was; /* others read the original */
    for (int k = 0; k < n->nin; k++) {
        made[k] = value_piece(g, n->in[k]);
        if (made[k] < 0)
            return mc_graph_nomem(err);
        if (op->flags & (MC_OPF_DLOGITS | MC_OPF_COMM))
            g->piece[made[k]].pinned = 1;
        if (acc) {
            reads(g, &s->adds_to, pl->grad[n->in[k]]);
            s->n.acc = 1;
            g->piece[made[k]].pinned = 1;
        }
        writes(g, &s->d_in[k], made[k]);
    }
    MC_TRY(give_scratch(g, s, err));
    for (int k = 0; k < n->nin; k++) { /* s may move from here on */
        if (acc)
            hold(pl, n->in[k], made[k]);
        else
            MC_TRY(contribute(pl, n->in[k], made[k], err));
    }
    return MC_OK;
}

static int has_weights(const struct mc_gnode *n)
{
    return n->op->backward_weight && n->nparams > 0;
}

static mc_status backward_node(struct plan *pl, int i, struct mc_err *err)
{
    struct mc_graph *g = pl->g;
    const struct mc_gnode *n = &g->node[i];
    int flows = n->nin > 0 && pl->fwd[n->in[0]] != MC_TOKENS;
    if (n->nout > 1)
        MC_TRY(gather_grads(pl, n, err));
    if (has_weights(n) && !g->cfg.split)
        MC_TRY(backward_weight(pl, i, err));
    for (int k = 0; k < n->nout && has_weights(n); k++)
        g->piece[pl->grad[n->out[k]]].for_weights = g->cfg.split; /* I9 */
    if (n->op->flags & MC_OPF_DSHARE && flows) {                  /* I4 */
        for (int k = 0; k < n->nin; k++)
            MC_TRY(contribute(pl, n->in[k], pl->grad[n->out[0]], err));
    } else if (flows && n->op->backward_input)
        MC_TRY(backward_input(pl, i, err));
    for (int k = 0; k < n->nout; k++) /* done with them */
        if (pl->grad[n->out[k]] >= 0)
            g->piece[pl->grad[n->out[k]]].holders--;
    return MC_OK;
}

/* -- The whole -------------------------------------------------------------------------------- */

/* I10: a piece that the caller fills before tick `def`; no step writes it. */
static mc_status edge_from(struct mc_graph *g, int value, int def, int *piece, struct mc_err *err)
{
    *piece = value_piece(g, value);
    if (*piece < 0)
        return mc_graph_nomem(err);
    g->piece[*piece].def = g->piece[*piece].last = def;
    g->piece[*piece].pinned = 1;
    return MC_OK;
}

/* I10: a piece that the caller reads after the last step so far. */
static mc_status edge_to(struct mc_graph *g, int *piece, struct mc_err *err)
{
    MC_TRY(dense(g, piece, err));
    if (g->piece[*piece].last < last_tick(g))
        g->piece[*piece].last = last_tick(g);
    return MC_OK;
}

static mc_status emit_backward(struct plan *pl, int c, struct mc_err *err)
{
    struct mc_graph *g = pl->g;
    struct mc_gpart *p = &g->part[c];
    int d_out = -1;
    if (!g->cfg.part[c].has_head) {
        MC_TRY(edge_from(g, p->out_value, g->nsteps, &d_out, err));
        hold(pl, p->out_value, d_out);
    }
    for (int i = p->end_node - 1; i >= p->node; i--)
        MC_TRY(backward_node(pl, i, err));
    if (!g->cfg.part[c].has_stem)
        MC_TRY(edge_to(g, &pl->grad[p->in_value], err));
    p->edge[MC_EDGE_D_OUT] = d_out;
    p->edge[MC_EDGE_D_IN] = g->cfg.part[c].has_stem ? -1 : pl->grad[p->in_value];
    p->tick[MC_PHASE_WEIGHTS] = g->nsteps;
    if (d_out >= 0 && g->nsteps == p->tick[MC_PHASE_BACKWARD])
        g->piece[d_out].def--; /* a phase without steps: it was there before that of the weights */
    for (int i = p->end_node - 1; i >= p->node && g->cfg.split; i--)
        if (has_weights(&g->node[i]))
            MC_TRY(backward_weight(pl, i, err));
    return MC_OK;
}

static mc_status emit(struct plan *pl, int c, struct mc_err *err)
{
    struct mc_graph *g = pl->g;
    struct mc_gpart *p = &g->part[c];
    const struct mc_graph_part *has = &g->cfg.part[c];
    memset(p->edge, -1, sizeof p->edge);
    p->tick[MC_PHASE_FORWARD] = g->nsteps;
    if (has->has_stem)
        pl->fwd[p->in_value] = MC_TOKENS;
    else {
        MC_TRY(edge_from(g, p->in_value, g->nsteps, &p->edge[MC_EDGE_IN], err));
        pl->fwd[p->in_value] = p->edge[MC_EDGE_IN];
    }
    for (int i = p->node; i < p->end_node; i++)
        MC_TRY(emit_forward(pl, i, 0, err));
    if (g->nsteps == p->tick[MC_PHASE_FORWARD] && !has->has_stem) /* I11 */
        MC_TRY(emit_two(g, MC_STEP_COPY, pl->fwd[p->in_value], -1, &pl->fwd[p->out_value], err));
    p->out_piece = pl->fwd[p->out_value];
    if (!has->has_head) {
        MC_TRY(edge_to(g, &p->out_piece, err));
        p->edge[MC_EDGE_OUT] = p->out_piece;
    } else if (g->cfg.mode == MC_GRAPH_INFER)
        g->piece[p->out_piece].last = last_tick(g); /* the caller reads it */
    p->tick[MC_PHASE_BACKWARD] = p->tick[MC_PHASE_WEIGHTS] = g->nsteps;
    if (g->cfg.mode == MC_GRAPH_TRAIN)
        MC_TRY(emit_backward(pl, c, err));
    p->tick[MC_NPHASES] = g->nsteps;
    return MC_OK;
}

static mc_status find_sizes(struct mc_graph *g, struct mc_err *err)
{
    const struct mc_recipe *r = g->cfg.recipe;
    /* scratch of devices that this build cannot run is planned by the CPU's table */
    if (mc_kern_get(r->device, r->precision, &g->sizes, NULL) == MC_OK)
        return MC_OK;
    return mc_kern_get(MC_DEVICE_CPU, r->precision, &g->sizes, err);
}

mc_status mc_graph_plan(struct mc_graph *g, struct mc_err *err)
{
    size_t nv = (size_t)g->nvalues, nn = (size_t)g->nnodes;
    size_t ints = 3 * nv + (2 * MC_OP_SAVED + 1) * nn;
    struct plan pl = {.g = g};
    mc_status st;
    MC_TRY(find_sizes(g, err));
    int *all = mc_alloc(ints * sizeof *all, "graph plan");
    if (!all)
        return mc_graph_nomem(err);
    memset(all, -1, ints * sizeof *all);
    pl.fwd = all;
    pl.again = pl.fwd + nv;
    pl.grad = pl.again + nv;
    pl.saved = pl.grad + nv;
    pl.saved_again = pl.saved + nn * MC_OP_SAVED;
    pl.ran_again = pl.saved_again + nn * MC_OP_SAVED;
    memset(pl.ran_again, 0, nn * sizeof *all);
    st = MC_OK;
    for (int c = 0; c < g->cfg.nparts && st == MC_OK; c++)
        st = emit(&pl, c, err);
    mc_free(all);
    MC_TRY(st);
    return mc_graph_place(g, err);
}
