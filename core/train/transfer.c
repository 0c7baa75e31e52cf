/* transfer.c - data parallel's transfers. Floor 6 (train).
 *
 * Per bucket: plain data parallel adds gradients by all_reduce; with the sharded optimizer
 * reduce_scatter brings each rank the sum of its range (optim/shard.h), it updates that, and
 * all_gather brings all ranges back. With overlap a transfer begins as soon as its bucket is ready
 * and is waited for when its result is wanted; without, it is waited for where it begins.
 *
 * I1  Reductions begin in descending order of buckets, gathers in ascending order, on every rank,
 *     whatever the order in which buckets become ready: a group's calls must match.
 *     A bucket that several parts of the graph add to is ready when the last of them is done. In a
 *     pipeline nothing is waited for before finish, with overlap or without: replicas may run
 *     different schedules, and a rank that waited for its like in another one could keep from its
 *     neighbours what that one's neighbours wait for. The proof of a schedule knows no such waits.
 * I2  Sums are in rank order (comm.h I3), so overlap changes no bit, and plain and sharded agree.
 * I3  Nobody touches a bucket's gradients between the begin of its reduction and the wait in
 *     finish, nor its parameters between the begin of its gather and the wait in need.
 * I4  A step allocates nothing: handles and spans are made once.
 * I5  Buckets with a table that another rank's stage uses too (tied.h) come last of all, in finish:
 *     the other stage is done much later, and may wait for what this rank's last op sends. They are
 *     summed over a stage's own uses as they become ready, then over the two stages, over tp, over
 *     replicas: as on one stage.
 * I6  No more transfers are under way than the group keeps calls open; for a further one the oldest
 *     is waited for. In a pipeline before finish it is left for finish instead (I1).
 *
 * Memory: handle life; borrows graph, mesh, shard and buffers. Threads: the trainer's; transfers
 * are driven by the communicator's own. */
#include "transfer.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include <string.h>

struct bucket {
    int64_t offset, count;            /* elements of the flat buffer */
    int parts;                        /* of the graph, that add to it */
    int left;                         /* of them, in this step; 0: gradients are complete here */
    int elsewhere;                    /* another rank's stage adds to it, too (I5) */
    struct mc_comm_req *grad, *param; /* in flight; NULL: none */
    int64_t grad_begin, param_begin;
};
struct mc_transfer {
    struct mc_transfer_cfg cfg;
    struct mc_comm *comm; /* dp x cp; NULL: one replica */
    int nbuckets;
    int open, most; /* transfers under way; how many may be (I6) */
    struct bucket *bucket;
    int *order;      /* [nbuckets] in which reductions begin: first those that are ready alone */
    int alone, next; /* how many are; next: place in the order */
    struct mc_graph_watch watch[2]; /* [last] */
    int64_t exposed_ns;
    int nspans, cap;
    struct mc_span *span;
};

const char *mc_span_name(enum mc_span_kind k)
{
    static const char *const name[MC_SPAN_NKINDS] = {"reduce", "gather", "backward", "tied"};
    return name[k];
}

static void note(struct mc_transfer *r, enum mc_span_kind kind, int bucket, int64_t begin,
                 int64_t wait, int64_t end)
{
    if (r->nspans < r->cap)
        r->span[r->nspans++] = (struct mc_span){kind, bucket, begin, wait, end};
}

void mc_transfer_mark(struct mc_transfer *r, enum mc_span_kind kind, int64_t begin_ns,
                      int64_t end_ns)
{
    note(r, kind, -1, begin_ns, 0, end_ns);
}

int mc_transfer_spans(const struct mc_transfer *r, const struct mc_span **span)
{
    *span = r->span;
    return r->nspans;
}

int64_t mc_transfer_exposed_ns(const struct mc_transfer *r)
{
    return r->exposed_ns;
}

static unsigned char *element(void *flat, int64_t i, enum mc_dtype dtype)
{
    return (unsigned char *)flat + (size_t)i * mc_dtype_size(dtype);
}

/* Where this rank's range of bucket b begins. */
static int64_t own(const struct mc_transfer *r, int b)
{
    const struct mc_shard *s = r->cfg.shard;
    return s->cut[b * (s->parts + 1) + s->me];
}

/* ---- gradients ---- */

static mc_status wait_grad(struct mc_transfer *r, int b, struct mc_err *err)
{
    struct bucket *x = &r->bucket[b];
    struct mc_comm_req *req = x->grad;
    if (!req)
        return MC_OK;
    x->grad = NULL;
    r->open--;
    int64_t from = mc_clock_ns();
    MC_TRY(r->comm->ops->wait(r->comm, req, 0, err));
    int64_t end = mc_clock_ns();
    r->exposed_ns += end - from;
    note(r, MC_SPAN_REDUCE, b, x->grad_begin, from, end);
    return MC_OK;
}

static mc_status need(void *arg, int b, struct mc_err *err);

/* Room for one transfer more (I6). */
static mc_status make_room(struct mc_transfer *r, struct mc_err *err)
{
    for (int b = 0; b < r->nbuckets && r->open >= r->most;
         b++) /* gathers began before reductions */
        MC_TRY(need(r, b, err));
    for (int k = 0; k < r->nbuckets && r->open >= r->most; k++)
        MC_TRY(wait_grad(r, r->order[k], err));
    r->open++;
    return MC_OK;
}

static mc_status begin_grad(struct mc_transfer *r, int b, struct mc_err *err)
{
    MC_TRY(make_room(r, err));
    struct bucket *x = &r->bucket[b];
    const struct mc_shard *s = r->cfg.shard;
    enum mc_dtype t = r->cfg.grad_dtype;
    unsigned char *g = element(r->cfg.grads, x->offset, t);
    x->grad_begin = mc_clock_ns();
    if (s->split)
        MC_TRY(r->comm->ops->reduce_scatter(r->comm, g, element(r->cfg.grads, own(r, b), t),
                                            s->count + b * s->parts, t, MC_SUM, NULL, &x->grad,
                                            err));
    else
        MC_TRY(r->comm->ops->all_reduce(r->comm, g, g, x->count, t, MC_SUM, NULL, &x->grad, err));
    return r->cfg.overlap_grads ? MC_OK : wait_grad(r, b, err);
}

/* may_wait: for room (I6). */
static mc_status begin_ready(struct mc_transfer *r, int may_wait, struct mc_err *err)
{
    for (; r->next < r->alone && r->bucket[r->order[r->next]].left == 0; r->next++) { /* I1 */
        if (!may_wait && r->open >= r->most)
            break;
        if (r->comm)
            MC_TRY(begin_grad(r, r->order[r->next], err));
    }
    return MC_OK;
}

static mc_status done(void *arg, int b, struct mc_err *err)
{
    struct mc_transfer *r = arg;
    struct bucket *x = &r->bucket[b];
    MC_ASSERT(x->left > 0);
    if (--x->left > 0)
        return MC_OK;
    if (x->elsewhere) { /* I5 */
        mc_graph_join_uses(r->cfg.graph, b);
        return MC_OK;
    }
    MC_TRY(mc_graph_finish_grads(r->cfg.graph, b, err));
    return r->cfg.piped && !r->cfg.overlap_grads ? MC_OK
                                                 : begin_ready(r, !r->cfg.piped, err); /* I1 */
}

static mc_status sum_tied(struct mc_transfer *r, struct mc_err *err) /* I5 */
{
    if (r->alone == r->nbuckets)
        return MC_OK;
    int64_t from = mc_clock_ns();
    MC_TRY(mc_tied_sum(r->cfg.tied, err));
    int64_t end = mc_clock_ns();
    r->exposed_ns += end - from;
    note(r, MC_SPAN_TIED, r->order[r->alone], from, from, end);
    for (; r->next < r->nbuckets; r->next++) {
        MC_TRY(mc_graph_finish_grads(r->cfg.graph, r->order[r->next], err));
        if (r->comm)
            MC_TRY(begin_grad(r, r->order[r->next], err));
    }
    return MC_OK;
}

void mc_transfer_begin(struct mc_transfer *r)
{
    for (int b = 0; b < r->nbuckets; b++)
        r->bucket[b].left = r->bucket[b].parts;
    r->next = 0;
    r->exposed_ns = 0;
    r->nspans = 0;
}

mc_status mc_transfer_idle(struct mc_transfer *r, struct mc_err *err)
{
    for (int k = 0; k < r->nbuckets; k++) {
        r->bucket[r->order[k]].left = 1;
        MC_TRY(done(r, r->order[k], err));
    }
    return MC_OK;
}

mc_status mc_transfer_finish(struct mc_transfer *r, struct mc_err *err)
{
    MC_TRY(begin_ready(r, 1, err));
    MC_ASSERT(r->next == r->alone);
    MC_TRY(sum_tied(r, err));
    for (int k = 0; k < r->nbuckets; k++)
        MC_TRY(wait_grad(r, r->order[k], err));
    return MC_OK;
}

/* ---- parameters ---- */

static mc_status need(void *arg, int b, struct mc_err *err)
{
    struct mc_transfer *r = arg;
    struct bucket *x = &r->bucket[b];
    struct mc_comm_req *req = x->param;
    if (!req)
        return MC_OK;
    x->param = NULL;
    r->open--;
    int64_t from = mc_clock_ns();
    MC_TRY(r->comm->ops->wait(r->comm, req, 0, err));
    int64_t end = mc_clock_ns();
    r->exposed_ns += end - from;
    note(r, MC_SPAN_GATHER, b, x->param_begin, from, end);
    return MC_OK;
}

mc_status mc_transfer_gather(struct mc_transfer *r, struct mc_err *err)
{
    const struct mc_shard *s = r->cfg.shard;
    enum mc_dtype t = r->cfg.param_dtype;
    if (!r->comm || !s->split)
        return MC_OK;
    for (int b = 0; b < r->nbuckets; b++) { /* I1: the order in which forward wants them */
        struct bucket *x = &r->bucket[b];
        MC_TRY(make_room(r, err));
        x->param_begin = mc_clock_ns();
        MC_TRY(r->comm->ops->all_gather(r->comm, element(r->cfg.params, own(r, b), t),
                                        element(r->cfg.params, x->offset, t),
                                        s->count + b * s->parts, t, NULL, &x->param, err));
        if (!r->cfg.overlap_params)
            MC_TRY(need(r, b, err));
    }
    return MC_OK;
}

mc_status mc_transfer_drain(struct mc_transfer *r, struct mc_err *err)
{
    for (int b = 0; b < r->nbuckets; b++)
        MC_TRY(need(r, b, err));
    return MC_OK;
}

/* ---- life ---- */

static int shared(const struct mc_transfer *r, const struct bucket *x)
{
    const struct mc_graph *g = r->cfg.graph;
    for (int i = 0; i < mc_graph_nparams(g); i++) {
        const struct mc_param *p = mc_graph_param(g, i);
        if (p->elsewhere != 0 && p->offset >= x->offset && p->offset < x->offset + x->count)
            return 1;
    }
    return 0;
}

static void make_buckets(struct mc_transfer *r)
{
    for (int b = 0; b < r->nbuckets; b++) {
        struct bucket *x = &r->bucket[b];
        mc_graph_bucket(r->cfg.graph, b, &x->offset, &x->count);
        x->parts = mc_graph_bucket_parts(r->cfg.graph, b);
        x->elsewhere = shared(r, x);
    }
    int n = 0;
    for (int b = r->nbuckets - 1; b >= 0; b--) /* I1 */
        if (!r->bucket[b].elsewhere)
            r->order[n++] = b;
    r->alone = n;
    for (int b = r->nbuckets - 1; b >= 0; b--) /* I5 */
        if (r->bucket[b].elsewhere)
            r->order[n++] = b;
}

const struct mc_graph_watch *mc_transfer_watch(struct mc_transfer *r, int last)
{
    return &r->watch[last];
}

mc_status mc_transfer_create(const struct mc_transfer_cfg *cfg, struct mc_transfer **out,
                             struct mc_err *err)
{
    struct mc_transfer *r = mc_alloc(sizeof *r, "data-parallel transfers");
    if (!r)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the data-parallel transfers");
    r->cfg = *cfg;
    r->comm = cfg->mesh ? cfg->mesh->grad : NULL;
    MC_ASSERT(!r->comm ||
              (r->comm->cfg.size == cfg->shard->parts && r->comm->cfg.me == cfg->shard->me));
    r->nbuckets = mc_graph_nbuckets(cfg->graph);
    r->most = r->comm ? mc_comm_calls(r->comm->cfg.size) : 0;
    r->cap = 2 * r->nbuckets + 64;
    r->order = mc_alloc((size_t)r->nbuckets * sizeof *r->order + 8, "order of buckets");
    r->bucket = mc_alloc((size_t)r->nbuckets * sizeof *r->bucket + 8, "buckets");
    r->span = mc_alloc((size_t)r->cap * sizeof *r->span, "spans of a step");
    if (!r->order || !r->bucket || !r->span) {
        mc_transfer_destroy(r);
        return mc_err_set(err, MC_E_NOMEM, "no memory for %d buckets", r->nbuckets);
    }
    make_buckets(r);
    for (int last = 0; last < 2; last++)
        r->watch[last] = (struct mc_graph_watch){r, need, last ? done : NULL};
    *out = r;
    return MC_OK;
}

void mc_transfer_destroy(struct mc_transfer *r)
{
    if (!r)
        return;
    mc_free(r->order);
    mc_free(r->bucket);
    mc_free(r->span);
    mc_free(r);
}
