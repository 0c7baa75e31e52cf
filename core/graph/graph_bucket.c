/* graph_bucket.c - buckets of the flat buffers: where they lie, when a pass needs them and is done
 * with them, and how their gradients are finished.
 *
 * I1  Buckets are the stem, each layer and the head, as far as the rank has them, and a table that
 *     is a copy of another rank's; in storage order they cover the flat buffer without overlap.
 * I2  A parameter belongs to the bucket of the function that made it, whoever else uses it; so a
 *     tied table's bucket is done when its last use is, in backward that of the embedding. A part
 *     that uses a parameter of another part of this rank has moments of its own for that bucket.
 * I3  Extra uses of a parameter are added from the last to the first: those of a head are one sum
 *     before the stem's joins, as where the head is another rank's. Then the sum over the ranks
 *     that share it is taken: one collective for all such gradients of a bucket, packed side by
 *     side. What is held in copies (keys and values of fewer heads than ranks) has a place in the
 *     pack for each part; a rank fills its own and leaves zeros in the others, which changes no
 *     sum.
 *
 * Handle life; the thread that runs the graph. */
#include <string.h>
#include "../base/arena.h"
#include "graph_int.h"

/* -- Where ------------------------------------------------------------------------------------ */

int mc_graph_nbuckets(const struct mc_graph *g)
{
    return g->nbuckets;
}

void mc_graph_bucket(const struct mc_graph *g, int bucket, int64_t *offset, int64_t *count)
{
    MC_ASSERT(bucket >= 0 && bucket < g->nbuckets);
    *offset = g->bucket[bucket].offset;
    *count = g->bucket[bucket].count;
}

mc_status mc_graph_open_bucket(struct mc_graph *g, int part, struct mc_err *err)
{
    struct mc_bucket *b = mc_graph_room(g->bucket, g->nbuckets, &g->cap_buckets, sizeof *b);
    if (!b)
        return mc_graph_nomem(err);
    g->bucket = b;
    mc_graph_close_bucket(g);
    g->bucket[g->nbuckets++] =
        (struct mc_bucket){.offset = g->flat, .param = g->nparams, .part = part};
    return MC_OK;
}

void mc_graph_close_bucket(struct mc_graph *g)
{
    g->flat = (g->flat + MC_PARAM_ALIGN - 1) / MC_PARAM_ALIGN * MC_PARAM_ALIGN;
    if (g->nbuckets == 0)
        return;
    struct mc_bucket *b = &g->bucket[g->nbuckets - 1];
    b->count = g->flat - b->offset;
    b->nparams = g->nparams - b->param;
}

/* -- When ------------------------------------------------------------------------------------- */

/* A moment for each bucket whose tick[] is not -1, after those that are there, in order of ticks;
 * buckets in storage order where they are equal. */
static mc_status append(struct mc_moment **all, int *n, int *cap, const int *tick, int nbuckets,
                        struct mc_run *run, struct mc_err *err)
{
    run->first = *n;
    for (int b = 0; b < nbuckets; b++) {
        struct mc_moment *m = mc_graph_room(*all, *n, cap, sizeof *m);
        if (!m)
            return mc_graph_nomem(err);
        *all = m;
        if (tick[b] < 0)
            continue;
        int at = (*n)++;
        for (; at > run->first && m[at - 1].tick > tick[b]; at--)
            m[at] = m[at - 1];
        m[at] = (struct mc_moment){.tick = tick[b], .bucket = b};
    }
    run->n = *n - run->first;
    return MC_OK;
}

/* of: bucket of each parameter. need, done: [nbuckets], to be filled. */
static mc_status part_moments(struct mc_graph *g, struct mc_gpart *p, const int *of, int *need,
                              int *done, struct mc_err *err)
{
    enum mc_phase adds = g->cfg.split ? MC_PHASE_WEIGHTS : MC_PHASE_BACKWARD;
    for (int b = 0; b < g->nbuckets; b++) {
        int own = &g->part[g->bucket[b].part] == p; /* also when it has no parameters */
        need[b] = own ? p->tick[MC_PHASE_FORWARD] : -1;
        done[b] = own && g->cfg.mode == MC_GRAPH_TRAIN ? p->tick[adds] : -1;
    }
    for (int t = p->tick[MC_NPHASES] - 1; t >= p->tick[0]; t--) {
        const struct mc_step *s = &g->step[t];
        const struct mc_gnode *gn = s->gnode >= 0 ? &g->node[s->gnode] : NULL;
        for (int k = 0; gn && k < gn->nparams; k++) {
            int b = of[gn->param[k]];
            if (t < p->tick[MC_PHASE_BACKWARD])
                need[b] = t;
            else if (s->verb == MC_BACKWARD_WEIGHT && t > done[b])
                done[b] = t; /* I2 */
        }
    }
    for (int b = 0; b < g->nbuckets; b++)
        g->bucket[b].adders += done[b] >= 0;
    MC_TRY(append(&g->need, &g->nneed, &g->cap_need, need, g->nbuckets, &p->need, err));
    return append(&g->done, &g->ndone, &g->cap_done, done, g->nbuckets, &p->done, err);
}

mc_status mc_graph_moments(struct mc_graph *g, struct mc_err *err)
{
    int n = g->nbuckets, *of = mc_alloc((size_t)(g->nparams + 2 * n) * sizeof *of + 1, "graph");
    mc_status st = MC_OK;
    if (!of)
        return mc_graph_nomem(err);
    for (int b = 0; b < n; b++)
        for (int i = 0; i < g->bucket[b].nparams; i++)
            of[g->bucket[b].param + i] = b;
    for (int c = 0; c < g->cfg.nparts && st == MC_OK; c++)
        st = part_moments(g, &g->part[c], of, of + g->nparams, of + g->nparams + n, err);
    mc_free(of);
    return st;
}

int mc_graph_bucket_parts(const struct mc_graph *g, int bucket)
{
    MC_ASSERT(bucket >= 0 && bucket < g->nbuckets);
    return g->bucket[bucket].adders;
}

/* -- Gradients -------------------------------------------------------------------------------- */

#define CLEAR_PART ((size_t)4 << 20) /* bytes a task */

struct clear {
    char *at;
    size_t bytes;
};

static void clear_task(void *arg, int task, int thread)
{
    const struct clear *c = arg;
    size_t from = (size_t)task * CLEAR_PART, left = c->bytes - from;
    (void)thread;
    memset(c->at + from, 0, left < CLEAR_PART ? left : CLEAR_PART);
}

static void clear(struct mc_pool *pool, void *at, size_t bytes)
{
    struct clear c = {at, bytes};
    mc_pool_run(pool, clear_task, &c, (int)((bytes + CLEAR_PART - 1) / CLEAR_PART));
}

void mc_graph_zero_grads(struct mc_graph *g)
{
    clear(g->pool, g->buf.grads, g->mem.grads);
    clear(g->pool, g->buf.extra_grads, (size_t)g->extra * g->wide_elem);
    for (int b = 0; b < g->nbuckets; b++)
        g->bucket[b].joined = 0;
}

static void add_uses(struct mc_graph *g, const struct mc_param *p)
{
    char *first = (char *)g->buf.grads + (size_t)p->offset * g->wide_elem;
    char *extra = (char *)g->buf.extra_grads + (size_t)p->extra_offset * g->wide_elem;
    /* one row of a matrix each, so that the pool has rows to share */
    int64_t c = p->box.nd > 1 ? p->box.n[p->box.nd - 1] : p->count;
    for (int u = p->nuses - 1; u > 0 && p->count > 0; u--) { /* I3 */
        const char *use = extra + (size_t)((u - 1) * p->stored) * g->wide_elem;
        char *sum = u > 1 ? extra + (size_t)((u - 2) * p->stored) * g->wide_elem : first;
        struct mc_add a = {.m = p->count / c,
                           .c = c,
                           .x = sum,
                           .ldx = c,
                           .y = use,
                           .ldy = c,
                           .z = sum,
                           .ldz = c,
                           .ax = 1,
                           .ay = 1};
        g->kern->wide->add(g->pool, &a);
    }
}

/* Places of p in the pack: its parts, or one where it is whole; 0: its gradient is no partial sum.
 */
static int places(const struct mc_graph *g, const struct mc_param *p)
{
    const struct mc_place *at = &p->sharding.on[MC_AXIS_TP];
    if (!(p->grad_sum_axes >> MC_AXIS_TP & 1))
        return 0;
    return at->kind == MC_SHARD ? mc_place_parts(at, g->cfg.axis_size[MC_AXIS_TP]) : 1;
}

/* Elements of bucket b's pack. */
static int64_t pack_count(const struct mc_graph *g, const struct mc_bucket *b)
{
    int64_t n = 0;
    for (int i = b->param; i < b->param + b->nparams; i++)
        n += places(g, &g->param[i]) * g->param[i].stored;
    return n;
}

int64_t mc_graph_pack_largest(const struct mc_graph *g)
{
    int64_t most = 0;
    for (int b = 0; b < g->nbuckets; b++) {
        int64_t n = pack_count(g, &g->bucket[b]);
        most = n > most ? n : most;
    }
    return most;
}

/* Between gradients and the pack, one way or the other. */
static void pack(const struct mc_graph *g, const struct mc_bucket *b, char *to, int back)
{
    for (int i = b->param; i < b->param + b->nparams; i++) {
        const struct mc_param *p = &g->param[i];
        int n = places(g, p), mine = 0;
        size_t bytes = (size_t)p->stored * g->wide_elem;
        char *grad = (char *)g->buf.grads + (size_t)p->offset * g->wide_elem;
        if (n > 1)
            mine = mc_place_part(&p->sharding.on[MC_AXIS_TP], g->cfg.coord[MC_AXIS_TP]);
        for (int k = 0; k < n; k++, to += bytes)
            if (back && k == mine)
                memcpy(grad, to, bytes);
            else if (!back && k == mine)
                memcpy(to, grad, bytes);
            else if (!back)
                memset(to, 0, bytes);
    }
}

static mc_status sum_over_ranks(struct mc_graph *g, const struct mc_bucket *b, struct mc_err *err)
{
    int64_t n = pack_count(g, b);
    char *to = (char *)g->buf.extra_grads + (size_t)g->extra * g->wide_elem;
    const struct mc_op_ctx cx = {.mesh = g->mesh, .err = &g->failed};
    if (n == 0)
        return MC_OK;
    pack(g, b, to, 0);
    mc_op_all_reduce(&cx, MC_AXIS_TP, to, to, n, g->kern->wide->dtype);
    if (g->failed.code == MC_OK)
        pack(g, b, to, 1);
    return mc_graph_failed(g, err);
}

void mc_graph_join_uses(struct mc_graph *g, int bucket)
{
    MC_ASSERT(bucket >= 0 && bucket < g->nbuckets);
    struct mc_bucket *b = &g->bucket[bucket];
    for (int i = b->param; i < b->param + b->nparams && !b->joined; i++)
        add_uses(g, &g->param[i]);
    b->joined = 1;
}

mc_status mc_graph_finish_grads(struct mc_graph *g, int bucket, struct mc_err *err)
{
    MC_ASSERT(bucket >= 0 && bucket < g->nbuckets);
    if (g->failed.code != MC_OK)
        return mc_graph_failed(g, err);
    mc_graph_join_uses(g, bucket);
    return sum_over_ranks(g, &g->bucket[bucket], err);
}
