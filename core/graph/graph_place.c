/* graph_place.c - from pieces to memory: who shares a store, and where each store lies.
 *
 * Pass 1 walks the program by tick and gives each piece that a step writes a store: that of one of
 * the step's inputs where the row allows writing over it (in place), else a new one.
 *
 * I1  A piece is written over only when every piece on the same columns of its store is dead after
 *     this tick: whoever still has to read keeps its bits.
 * I2  Slices of a group lie in the group's store; a chain of in-place steps that ends in a slice is
 *     moved there whole.
 * I3  d(logits) over logits, and sums continued by their contributor, must share; that they can is
 *     the planner's promise, asserted.
 *
 * Pass 2: a store that lives within one phase lies in temp, which all parts share; one that forward
 * leaves for later, in the slot of its part; one that the gradients of inputs leave for those of
 * weights, in a pending place, of which a part has only as many as microbatches ever are between
 * the two. (With recomputation that is most of it: all that was made again.) In each, two stores
 * may overlap only if their lifetimes do not: largest first, each into the smallest hole that holds
 * it among those it meets. (A slot's stores all meet where forward ends: one after the other.)
 * Offsets are multiples of 64 bytes.
 *
 * I4  The plan is a function of the program alone, and of how many slots and places there are.
 * I5  What a collective reads or writes never lies in a slice.
 * I6  Where almost all slots are pending at once a place of its own may cost more than it saves,
 *     for in the slot it can lie over what the gradients of inputs read last: then a part keeps all
 *     in its slots, and its places are empty. */
#include <stdlib.h>
#include "../base/arena.h"
#include "graph_int.h"

/* -- Pass 1: stores --------------------------------------------------------------------------- */

static int new_store(struct mc_graph *g, int64_t rows, int64_t cols)
{
    struct mc_store *s = mc_graph_room(g->store, g->nstores, &g->cap_stores, sizeof *s);
    if (!s)
        return -1;
    g->store = s;
    g->store[g->nstores] = (struct mc_store){.rows = rows, .cols = cols, .first = -1};
    return g->nstores++;
}

static void put(struct mc_graph *g, int piece, int store, int64_t col0)
{
    g->piece[piece].store = store;
    g->piece[piece].col0 = col0;
    g->piece[piece].next = g->store[store].first;
    g->store[store].first = piece;
}

static int group_store(struct mc_graph *g, int group)
{
    struct mc_group *x = &g->group[group];
    if (x->store < 0)
        x->store = new_store(g, x->rows, x->cols);
    return x->store;
}

/* I1: no piece on src's columns of its store is read after tick t. */
static int dead_after(const struct mc_graph *g, int src, int t)
{
    const struct mc_piece *s = &g->piece[src];
    for (int i = g->store[s->store].first; i >= 0; i = g->piece[i].next) {
        const struct mc_piece *p = &g->piece[i];
        if (p->col0 < s->col0 + s->cols && s->col0 < p->col0 + p->cols && p->last > t)
            return 0;
    }
    return 1;
}

/* All pieces of src's store become slices of the group's store at col0 (I2). */
static int move_into_group(struct mc_graph *g, int src, int group, int64_t col0)
{
    int from = g->piece[src].store, to = group_store(g, group);
    if (to < 0)
        return -1;
    for (int i = g->store[from].first, next; i >= 0; i = next) {
        next = g->piece[i].next;
        put(g, i, to, col0);
    }
    g->store[from].first = -1;
    return 0;
}

static int movable(const struct mc_graph *g, int src)
{
    for (int i = g->store[g->piece[src].store].first; i >= 0; i = g->piece[i].next)
        if (g->piece[i].group >= 0 || g->piece[i].pinned)
            return 0;
    return 1;
}

/* Piece w, written at tick t, over src. 1: done. 0: not allowed. -1: no memory. */
static int over(struct mc_graph *g, int w, int src, int t, int must)
{
    struct mc_piece *p = &g->piece[w], *s = &g->piece[src];
    if (s->store < 0 || p->cols != s->cols || p->rows != s->rows || !dead_after(g, src, t))
        return 0;
    if (p->pinned && !must && g->store[s->store].cols != p->cols) /* I5 */
        return 0;
    if (p->group >= 0) {
        if (!movable(g, src))
            return 0;
        if (move_into_group(g, src, p->group, p->group_col) < 0)
            return -1;
    }
    put(g, w, g->piece[src].store, g->piece[src].col0);
    return 1;
}

/* Inputs of step s that its first output may be written over, in order of preference. */
static int candidates(const struct mc_graph *g, const struct mc_step *s, int cand[MC_OP_IN],
                      int *must)
{
    int n = 0, flags = s->gnode >= 0 ? g->node[s->gnode].op->flags : MC_OPF_INPLACE;
    *must = 0;
    if (s->kind == MC_STEP_COPY)
        return 0;
    if (s->adds_to >= 0) {
        *must = 1;
        cand[n++] = s->adds_to;
    } else if (s->verb == MC_FORWARD && flags & MC_OPF_INPLACE) {
        for (int k = 0; k < s->n.nin; k++)
            if (s->in[k] >= 0)
                cand[n++] = s->in[k];
    } else if (s->verb == MC_BACKWARD_INPUT && flags & MC_OPF_DLOGITS) {
        *must = 1;
        cand[n++] = s->in[0];
    } else if (s->verb == MC_BACKWARD_INPUT && flags & MC_OPF_DINPLACE)
        cand[n++] = s->d_out[0];
    return g->opt.no_inplace && !*must ? 0 : n;
}

static int place_new(struct mc_graph *g, int w)
{
    const struct mc_piece *p = &g->piece[w];
    int st = p->group >= 0 ? group_store(g, p->group) : new_store(g, p->rows, p->cols);
    if (st < 0)
        return -1;
    put(g, w, st, g->piece[w].group >= 0 ? g->piece[w].group_col : 0);
    return 0;
}

static int place_step(struct mc_graph *g, int t)
{
    const struct mc_step *s = &g->step[t];
    int cand[MC_OP_IN], must, n = candidates(g, s, cand, &must);
    int in_backward = s->verb == MC_BACKWARD_INPUT;
    for (int k = 0; k < MC_OP_OUT; k++) {
        int w = in_backward ? s->d_in[k] : s->verb == MC_FORWARD ? s->out[k] : -1, done = 0;
        if (w < 0)
            continue;
        for (int c = 0; k == 0 && c < n && !done; c++) {
            done = over(g, w, cand[c], t, must);
            if (done < 0)
                return -1;
        }
        MC_ASSERT(done || !must); /* I3 */
        if (!done && place_new(g, w) < 0)
            return -1;
    }
    for (int k = 0; k < MC_OP_SAVED && s->verb == MC_FORWARD; k++)
        if (s->saved[k] >= 0 && place_new(g, s->saved[k]) < 0)
            return -1;
    return s->scratch >= 0 ? place_new(g, s->scratch) : 0;
}

/* Pieces that no step writes: the stage's boundary. */
static int place_outside(struct mc_graph *g)
{
    for (int i = 0; i < g->npieces; i++)
        if (g->piece[i].store < 0 && g->piece[i].def >= 0) {
            const struct mc_piece *p = &g->piece[i];
            int written = p->def < g->nsteps;
            const struct mc_step *s = written ? &g->step[p->def] : NULL;
            for (int k = 0; s && k < MC_OP_OUT; k++)
                if (s->out[k] == i || s->d_in[k] == i || s->saved[k] == i || s->scratch == i)
                    written = 2;
            if (written != 2 && place_new(g, i) < 0)
                return -1;
        }
    return 0;
}

/* -- Pass 2: offsets -------------------------------------------------------------------------- */

static void lifetimes(struct mc_graph *g)
{
    for (int i = 0; i < g->nstores; i++) {
        struct mc_store *s = &g->store[i];
        s->birth = g->nsteps;
        s->death = -1;
        for (int p = s->first; p >= 0; p = g->piece[p].next) {
            if (g->piece[p].def < s->birth)
                s->birth = g->piece[p].def;
            if (g->piece[p].last > s->death)
                s->death = g->piece[p].last;
        }
        s->bytes = mc_align_up((size_t)(s->rows * s->cols) * g->elem, MC_ALIGN);
        const struct mc_gpart *p = mc_graph_part_at(g, s->birth);
        s->where = s->first >= 0 && mc_graph_phase_at(p, s->birth) != mc_graph_phase_at(p, s->death)
                       ? MC_IN_SLOT
                       : MC_IN_TEMP;
    }
    for (int c = 0; c < g->cfg.nparts; c++) {
        /* given away after backward, which may have run the weights, too; else at once: this alone
           is no reason to be in the slot */
        int d_in = g->part[c].edge[MC_EDGE_D_IN], end = g->part[c].tick[MC_NPHASES] - 1;
        if (d_in >= 0 && g->store[g->piece[d_in].store].death < end)
            g->store[g->piece[d_in].store].death = end;
    }
}

struct order {
    size_t bytes;
    int store;
};

static int larger_first(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->store - y->store; /* I4 */
}

/* The offset for store s among those placed (in ascending offset) that it meets in time. */
static size_t best_hole(const struct mc_graph *g, const struct mc_store *s, const int *by_offset,
                        int n)
{
    size_t end = 0, best = SIZE_MAX, best_size = SIZE_MAX;
    for (int i = 0; i < n; i++) {
        const struct mc_store *o = &g->store[by_offset[i]];
        if (o->birth > s->death || s->birth > o->death)
            continue;
        if (o->offset > end && o->offset - end >= s->bytes && o->offset - end < best_size) {
            best = end;
            best_size = o->offset - end;
        }
        if (o->offset + o->bytes > end)
            end = o->offset + o->bytes;
    }
    return best != SIZE_MAX ? best : end;
}

static size_t *region_bytes(struct mc_graph *g, struct mc_gpart *p, enum mc_region where)
{
    return where == MC_IN_SLOT      ? &p->slot_bytes
           : where == MC_IN_PENDING ? &p->pending_bytes
                                    : &g->mem.temp;
}

/* The stores of one region. Those of different parts never meet, so that each part's slot begins
 * at 0. */
static void lay(struct mc_graph *g, enum mc_region where, struct order *order, int *by_offset)
{
    int n = 0, placed = 0;
    for (int c = 0; c < g->cfg.nparts; c++)
        *region_bytes(g, &g->part[c], where) = 0;
    for (int i = 0; i < g->nstores; i++)
        if (g->store[i].first >= 0 && g->store[i].where == where)
            order[n++] =
                (struct order){/* where all meet, what is made together may lie together */
                               where == MC_IN_SLOT && !g->cfg.split ? 0 : g->store[i].bytes, i};
    qsort(order, (size_t)n, sizeof *order, larger_first);
    for (int i = 0; i < n; i++) {
        struct mc_store *s = &g->store[order[i].store];
        s->offset = best_hole(g, s, by_offset, placed);
        struct mc_gpart *p = &g->part[mc_graph_part_at(g, s->birth) - g->part];
        size_t *size = region_bytes(g, p, where);
        if (s->offset + s->bytes > *size)
            *size = s->offset + s->bytes;
        int at = placed++;
        for (; at > 0 && g->store[by_offset[at - 1]].offset > s->offset; at--)
            by_offset[at] = by_offset[at - 1];
        by_offset[at] = order[i].store;
    }
}

/* What only lives from the gradients of inputs to those of weights. */
static void set_pending(struct mc_graph *g, const struct mc_gpart *p, enum mc_region where)
{
    for (int i = 0; i < g->nstores; i++) {
        struct mc_store *s = &g->store[i];
        if (s->where != MC_IN_TEMP && mc_graph_part_at(g, s->birth) == p &&
            mc_graph_phase_at(p, s->birth) == MC_PHASE_BACKWARD)
            s->where = where;
    }
}

/* I6: together, then apart, then again with the parts that were smaller together. */
static void lay_split(struct mc_graph *g, struct order *order, int *by_offset)
{
    size_t together[MC_GRAPH_PARTS];
    lay(g, MC_IN_SLOT, order, by_offset);
    for (int c = 0; c < g->cfg.nparts; c++) {
        together[c] = g->part[c].slot_bytes * (size_t)g->cfg.part[c].slots;
        set_pending(g, &g->part[c], MC_IN_PENDING);
    }
    for (int round = 0; round < 2; round++) {
        lay(g, MC_IN_SLOT, order, by_offset);
        lay(g, MC_IN_PENDING, order, by_offset);
        for (int c = 0; c < g->cfg.nparts; c++) {
            const struct mc_gpart *p = &g->part[c];
            if (p->slot_bytes * (size_t)g->cfg.part[c].slots +
                    p->pending_bytes * (size_t)g->cfg.part[c].pending >
                together[c])
                set_pending(g, p, MC_IN_SLOT);
        }
    }
}

static mc_status offsets(struct mc_graph *g, struct mc_err *err)
{
    size_t bytes = (size_t)g->nstores * (sizeof(struct order) + sizeof(int));
    struct order *order = mc_alloc(bytes + 1, "graph plan");
    if (!order)
        return mc_graph_nomem(err);
    lay(g, MC_IN_TEMP, order, (int *)(order + g->nstores));
    if (g->cfg.split)
        lay_split(g, order, (int *)(order + g->nstores));
    else
        lay(g, MC_IN_SLOT, order, (int *)(order + g->nstores));
    mc_free(order);
    return MC_OK;
}

/* Each part's slots, then its pending places. */
static mc_status count_slots(struct mc_graph *g, struct mc_err *err)
{
    int n = 0, ints = 0;
    for (int c = 0; c < g->cfg.nparts; c++) {
        struct mc_gpart *p = &g->part[c];
        p->slot = n;
        p->slots = g->cfg.mode == MC_GRAPH_TRAIN ? g->cfg.part[c].slots : 1;
        p->slots_offset = g->mem.slots;
        p->pending = g->cfg.split ? g->cfg.part[c].pending : 0;
        p->pending_offset = p->slots_offset + p->slot_bytes * (size_t)p->slots;
        g->mem.slots = p->pending_offset + p->pending_bytes * (size_t)p->pending;
        if (p->slot_bytes > g->mem.slot)
            g->mem.slot = p->slot_bytes;
        if (p->pending_bytes > g->mem.pending)
            g->mem.pending = p->pending_bytes;
        n += p->slots;
        ints += p->slots + p->pending;
    }
    int *places = g->places = mc_alloc((size_t)ints * sizeof *places, "graph plan");
    if (!places)
        return mc_graph_nomem(err);
    for (int c = 0; c < g->cfg.nparts; c++) {
        struct mc_gpart *p = &g->part[c];
        p->place = places;
        p->taken = places + p->slots;
        places += p->slots + p->pending;
    }
    return MC_OK;
}

static mc_status count_memory(struct mc_graph *g, struct mc_err *err)
{
    struct mc_graph_memory *m = &g->mem;
    int train = g->cfg.mode == MC_GRAPH_TRAIN;
    m->params = mc_align_up((size_t)g->flat * g->elem, MC_ALIGN);
    m->grads = train ? mc_align_up((size_t)g->flat * g->wide_elem, MC_ALIGN) : 0;
    m->extra_grads = train ? mc_align_up((size_t)(g->extra + g->pack) * g->wide_elem, MC_ALIGN) : 0;
    MC_TRY(count_slots(g, err));
    g->starts_offset = mc_align_up((size_t)g->table_elems * g->wide_elem, MC_ALIGN);
    m->tables = g->starts_offset;
    if (g->documents)
        m->tables +=
            mc_align_up((size_t)(g->cfg.bound.b * g->cfg.bound.t + 1) * sizeof(int32_t), MC_ALIGN);
    m->kv = mc_align_up((size_t)g->kv_elems * g->elem, MC_ALIGN);
    m->total = m->params + m->grads + m->extra_grads + m->slots + m->temp + m->tables + m->kv;
    return MC_OK;
}

mc_status mc_graph_place(struct mc_graph *g, struct mc_err *err)
{
    for (int t = 0; t < g->nsteps; t++) {
        if (t == 0 && place_outside(g) < 0)
            return mc_graph_nomem(err);
        if (place_step(g, t) < 0)
            return mc_graph_nomem(err);
    }
    lifetimes(g);
    MC_TRY(offsets(g, err));
    return count_memory(g, err);
}
