/* tied.c - the sum of a tied table's two gradients over the pipeline. Floor 5 (pipe).
 *
 * The stem's use is use 0, the head's use 1, and their sum is what one rank with both would have.
 * The two ranks exchange their gradients slice by slice: while a slice is added the next one is on
 * its way.
 *
 *     both   send slice k of my gradients, receive the other's into buffer k % 2
 *     both   mine = mine + the other's
 *
 * I1  a + b and b + a are the same bits in floating point, so both ranks, and one rank with both
 *     uses (graph_bucket.c), end with the same bits. A third use would have an order; a table has
 *     no more than these two across ranks.
 * I2  A slice is changed only when it has been sent and its partner is here.
 * I3  Both ranks see the same tables, in the order of their names, with boxes of the same size: the
 *     ranks of a pipeline have the same place on all other axes.
 * I4  Nothing is allocated here but in create.
 *
 * Memory: handle life; the buffer and the gradients are borrowed. Threads: one; kernels use the
 * pool. */
#include "tied.h"
#include <string.h>
#include "../base/arena.h"

enum { SLICE = 1 << 16 }; /* elements */
/* Apart from the tags of the pipeline's channels, which count from 0. */
enum { TAG = 0x7fff0000 };

struct table {
    const char *name;
    int64_t offset, count; /* elements */
};
struct slice {
    int64_t offset, count; /* elements of the flat buffer */
    struct mc_comm_req *sent, *got;
};
struct mc_tied {
    struct mc_tied_cfg cfg;
    struct mc_comm *comm;
    int peer;     /* member */
    int64_t room; /* elements of one of the two buffers */
    int64_t nslices;
    struct slice *slice;
};

/* Elements of a slice buffer: the largest table's, at most SLICE. */
static int64_t room_of(const struct mc_graph *g)
{
    int64_t most = 0;
    for (int i = 0; i < mc_graph_nparams(g); i++) {
        const struct mc_param *p = mc_graph_param(g, i);
        if (p->elsewhere != 0 && p->count > most)
            most = p->count;
    }
    return most < SLICE ? most : SLICE;
}

size_t mc_tied_bytes(const struct mc_graph *g, enum mc_dtype dtype)
{
    return 2 * mc_align_up((size_t)room_of(g) * mc_dtype_size(dtype), MC_ALIGN);
}

/* table: [parameters]. In the order of names (I3). */
static int find_tables(const struct mc_graph *g, struct table *table)
{
    int n = 0;
    for (int i = 0; i < mc_graph_nparams(g); i++) {
        const struct mc_param *p = mc_graph_param(g, i);
        int at = n;
        if (p->elsewhere == 0 || p->count == 0)
            continue;
        for (; at > 0 && strcmp(table[at - 1].name, p->name) > 0; at--)
            table[at] = table[at - 1];
        table[at] = (struct table){p->name, p->offset, p->count};
        n++;
    }
    return n;
}

static void cut(struct mc_tied *t, const struct table *table, int n)
{
    for (int i = 0; i < n; i++)
        for (int64_t at = 0; at < table[i].count; at += t->room) {
            int64_t left = table[i].count - at;
            t->slice[t->nslices++] = (struct slice){.offset = table[i].offset + at,
                                                    .count = left < t->room ? left : t->room};
        }
}

mc_status mc_tied_create(const struct mc_tied_cfg *cfg, struct mc_tied **out, struct mc_err *err)
{
    int nparams = mc_graph_nparams(cfg->graph), n = 0;
    int64_t slices = 0;
    struct table *table = mc_alloc((size_t)nparams * sizeof *table + 8, "tied tables");
    struct mc_tied *t = mc_alloc(sizeof *t, "tied tables");
    mc_status st = MC_OK;
    if (table && t) {
        *t = (struct mc_tied){.cfg = *cfg,
                              .comm = cfg->mesh ? cfg->mesh->axis[MC_AXIS_PP] : NULL,
                              .room = room_of(cfg->graph)};
        n = find_tables(cfg->graph, table);
        for (int i = 0; i < n; i++)
            slices += (table[i].count + t->room - 1) / t->room;
        t->slice = mc_alloc((size_t)slices * sizeof *t->slice + 8, "slices of tied tables");
    }
    if (!table || !t || !t->slice) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory for tied tables");
    } else {
        cut(t, table, n);
        MC_ASSERT(n == 0 || t->comm);
        t->peer = t->comm && t->comm->cfg.me == cfg->stem ? cfg->head : cfg->stem;
    }
    mc_free(table);
    if (st != MC_OK)
        mc_tied_destroy(t);
    else
        *out = t;
    return st;
}

void mc_tied_destroy(struct mc_tied *t)
{
    if (!t)
        return;
    mc_free(t->slice);
    mc_free(t);
}

static void *element(void *flat, int64_t i, enum mc_dtype dtype)
{
    return (char *)flat + (size_t)i * mc_dtype_size(dtype);
}

/* Where slice k of the other rank goes. */
static void *buffer(const struct mc_tied *t, int64_t k)
{
    size_t one = mc_align_up((size_t)t->room * mc_dtype_size(t->cfg.kern->wide->dtype), MC_ALIGN);
    return (char *)t->cfg.buffer + (size_t)(k % 2) * one;
}

static mc_status begin(struct mc_tied *t, int64_t k, struct mc_err *err)
{
    struct slice *s = &t->slice[k];
    enum mc_dtype dtype = t->cfg.kern->wide->dtype;
    struct mc_comm *c = t->comm;
    MC_TRY(c->ops->recv(c, buffer(t, k), s->count, dtype, t->peer, TAG, NULL, &s->got, err));
    return c->ops->send(c, element(t->cfg.grads, s->offset, dtype), s->count, dtype, t->peer, TAG,
                        NULL, &s->sent, err);
}

static mc_status finish(struct mc_tied *t, int64_t k, struct mc_err *err)
{
    struct slice *s = &t->slice[k];
    struct mc_comm *c = t->comm;
    void *mine = element(t->cfg.grads, s->offset, t->cfg.kern->wide->dtype);
    struct mc_add a = {.m = 1,
                       .c = s->count,
                       .x = mine,
                       .ldx = s->count,
                       .y = buffer(t, k),
                       .ldy = s->count,
                       .z = mine,
                       .ldz = s->count,
                       .ax = 1,
                       .ay = 1};
    MC_TRY(c->ops->wait(c, s->got, 0, err)); /* I2 */
    MC_TRY(c->ops->wait(c, s->sent, 0, err));
    t->cfg.kern->wide->add(t->cfg.pool, &a);
    return MC_OK;
}

mc_status mc_tied_sum(struct mc_tied *t, struct mc_err *err)
{
    if (t->nslices > 0)
        MC_TRY(begin(t, 0, err));
    for (int64_t k = 0; k < t->nslices; k++) {
        if (k + 1 < t->nslices)
            MC_TRY(begin(t, k + 1, err));
        MC_TRY(finish(t, k, err));
    }
    return MC_OK;
}
