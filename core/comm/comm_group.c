/* comm_group.c - groups of a net and their calls: begin, wait, deadlines, failure. Floor 2 (comm).
 *
 * I1  Requests come from a ring of the group's; every begin takes one, every wait gives it back.
 *     Nothing is allocated after create.
 * I2  A group fails once and for good, with the first cause; calls in flight end with it, later
 *     ones are refused. Its receives are cancelled; sends that UCX still holds keep the memory of
 *     the group until the net is closed.
 * I3  A member that is gone fails the calls that want something of it, at once, and with them
 *     their group. One that has done its part and left harms nobody, not even who comes later.
 * I4  A deadline is a failure of the group, too: its members can no longer know which call they are
 *     in. What is told is who is missing.
 * I5  The flight recorder has begin and end of each collective, and what was open when a group
 *     failed. Messages that arrive leave no note: a pipeline makes thousands a step, and notes its
 *     ops instead.
 *
 * Memory: a handle with its requests, 4 lanes a request and member, and the stage. Threads: any,
 * under the net's lock; group_begin and group_end change nothing here, since calls start at once.
 */
#include "comm_int.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/hash.h"
#include <string.h>

enum {
    MEMBERS = 8192, /* bits of the sender in a tag */
};

static struct mc_group *group_of(struct mc_comm *c)
{
    return (struct mc_group *)c;
}

/* ---- failure (I2) ---- */

/* The message is complete in g->err. */
static void fail(struct mc_group *g)
{
    g->failed = 1;
    for (struct mc_comm_req *r = g->req; r < g->req + g->nreq; r++) {
        if (r->state != MC_REQ_OPEN)
            continue;
        r->state = MC_REQ_FAILED;
        mc_ucx_opened(g->net, -1);
        mc_comm_note(g->name, r->seq, r->bytes, r->what, " failed");
        for (int i = 0; i < MC_NSETS * g->base.cfg.size; i++)
            if (r->lane[i].busy > 0)
                mc_ucx_cancel(&r->lane[i]);
    }
    mc_ucx_wake(g->net);
}

void mc_group_fail_peer(struct mc_group *g, int member, const char *why)
{
    char others[500] = "";
    size_t at = 0;
    if (g->failed)
        return;
    mc_ucx_look(g->net); /* who ended because another one died is not to be named alone */
    for (int m = 0; m < g->base.cfg.size && at < sizeof others; m++)
        if (m != member && mc_ucx_left(g, m))
            at += (size_t)snprintf(others + at, sizeof others - at, ", so is %s",
                                   mc_ucx_describe(g, m));
    mc_err_set(&g->err, MC_E_PEER, "%s is gone (%s)%s", mc_ucx_describe(g, member), why, others);
    fail(g);
}

void mc_group_peer_left(struct mc_group *g, int member, const char *why)
{
    g->left = 1;
    for (struct mc_comm_req *r = g->req; r < g->req + g->nreq && !g->failed; r++)
        if (r->state == MC_REQ_OPEN && mc_coll_needs(r, member)) /* I3 */
            mc_group_fail_peer(g, member, why);
}

void mc_group_abort(struct mc_group *g)
{
    g->aborted = 1;
    if (g->failed)
        return;
    mc_err_set(&g->err, MC_E_PEER, "the group was aborted");
    fail(g);
}

void mc_group_slice(struct mc_lane *l, int slot, int64_t bytes, const char *why)
{
    struct mc_comm_req *r = l->req;
    struct mc_group *g = r->group;
    if (!g->failed && !why && bytes == l->expect[slot]) {
        mc_coll_slice_done(l, slot, bytes);
        return;
    }
    l->busy--;
    if (g->failed)
        return;
    if (why) {
        mc_group_fail_peer(g, l->peer, why);
        return;
    }
    mc_err_set(&g->err, MC_E_PEER,
               "%s sent another number of bytes than the %lld that %s #%llu expects; members must "
               "make the same calls in the same order, with the same counts",
               mc_ucx_describe(g, l->peer), (long long)l->expect[slot], r->what,
               (unsigned long long)r->seq);
    fail(g);
}

void mc_group_done(struct mc_comm_req *r)
{
    if (r->tag < 0) /* I5 */
        mc_comm_note(r->group->name, r->seq, r->bytes, r->what, " end");
    mc_ucx_counted(r->group->net, 1, 0);
    mc_ucx_opened(r->group->net, -1);
    if (r->waited)
        mc_ucx_wake(r->group->net);
}

/* ---- begin ---- */

/* The error of a call in a group that has failed. */
static mc_status dead(const struct mc_group *g, const char *what, uint64_t seq, struct mc_err *err)
{
    return mc_err_set(err, g->err.code == MC_E_TIMEOUT ? MC_E_PEER : g->err.code,
                      "%s #%llu in group %s: %s", what, (unsigned long long)seq, g->name,
                      g->err.msg);
}

/* Takes the lock and a request; on an error the lock is free again. */
static mc_status begin(struct mc_comm *c, const char *what, int64_t n, enum mc_dtype t,
                       struct mc_comm_req **out, struct mc_err *err)
{
    struct mc_group *g = group_of(c);
    struct mc_comm_req *r = NULL;
    mc_status st;
    int64_t bytes;
    if (n < 0 || (unsigned)t >= MC_NDTYPES ||
        __builtin_mul_overflow(n, (int64_t)mc_dtype_size(t), &bytes))
        return mc_err_set(err, MC_E_BUG, "%s in group %s: count %lld, dtype %d", what, g->name,
                          (long long)n, (int)t);
    mc_ucx_lock(g->net);
    if (g->failed) {
        st = dead(g, what, c->seq + 1, err);
        goto err_unlock;
    }
    for (int i = 0; i < g->nreq && !r; i++) {
        struct mc_comm_req *q = &g->req[(c->seq + (uint64_t)i) % (uint64_t)g->nreq];
        r = q->state == MC_REQ_FREE ? q : NULL;
    }
    if (!r) {
        st = mc_err_set(err, MC_E_BUG, "%s in group %s: %d calls are open, none waited for", what,
                        g->name, g->nreq);
        goto err_unlock;
    }
    struct mc_lane *lane = r->lane;
    memset(lane, 0, MC_NSETS * (size_t)c->cfg.size * sizeof *lane);
    *r = (struct mc_comm_req){.group = g,
                              .what = what,
                              .seq = ++c->seq,
                              .round = ++g->rounds,
                              .bytes = bytes,
                              .state = MC_REQ_OPEN,
                              .tag = -1,
                              .dtype = t,
                              .lane = lane};
    mc_ucx_opened(g->net, 1);
    *out = r;
    return MC_OK;
err_unlock:
    mc_ucx_unlock(g->net);
    return st;
}

static mc_status go(struct mc_comm_req *r, struct mc_comm_req **out)
{
    struct mc_comm_net *net = r->group->net;
    if (r->tag < 0) /* I5 */
        mc_comm_note(r->group->name, r->seq, r->bytes, r->what, "");
    mc_coll_go(r);
    if (r->state == MC_REQ_OPEN)
        mc_ucx_settle(net);
    /* What a member sent before it left is here by now (I3). */
    for (int m = 0; r->group->left && r->state == MC_REQ_OPEN && m < r->group->base.cfg.size; m++)
        if (mc_ucx_left(r->group, m) && mc_coll_needs(r, m))
            mc_group_fail_peer(r->group, m, "it left before this call");
    mc_ucx_unlock(net);
    *out = r;
    return MC_OK;
}

/* The sum of counts, in *total; MC_E_BUG for a negative one. */
static mc_status total_of(const struct mc_comm *c, const char *what, const int64_t *counts,
                          int64_t *total, struct mc_err *err)
{
    int64_t sum = 0;
    for (int p = 0; p < c->cfg.size; p++)
        if (counts[p] < 0 || __builtin_add_overflow(sum, counts[p], &sum))
            return mc_err_set(err, MC_E_BUG, "%s in group %s: count %lld for member %d", what,
                              c->cfg.name, (long long)counts[p], p);
    *total = sum;
    return MC_OK;
}

static mc_status can_reduce(const struct mc_comm *c, const char *what, enum mc_dtype t,
                            struct mc_err *err)
{
    if (!mc_sum_can(t))
        return mc_err_set(err, MC_E_BUG, "%s in group %s: no sums of %s", what, c->cfg.name,
                          mc_dtype_name(t));
    return MC_OK;
}

static mc_status group_all_reduce(struct mc_comm *c, const void *in, void *out, int64_t n,
                                  enum mc_dtype t, enum mc_reduce op, void *stream,
                                  struct mc_comm_req **req, struct mc_err *err)
{
    struct mc_comm_req *r;
    (void)stream;
    MC_TRY(can_reduce(c, "comm.all_reduce", t, err));
    MC_TRY(begin(c, "comm.all_reduce", n, t, &r, err));
    r->op = op;
    mc_coll_all_reduce(r, in, out, n);
    return go(r, req);
}

static mc_status group_reduce_scatter(struct mc_comm *c, const void *in, void *out,
                                      const int64_t *counts, enum mc_dtype t, enum mc_reduce op,
                                      void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    struct mc_comm_req *r;
    int64_t n = 0;
    (void)stream;
    MC_TRY(can_reduce(c, "comm.reduce_scatter", t, err));
    MC_TRY(total_of(c, "comm.reduce_scatter", counts, &n, err));
    MC_TRY(begin(c, "comm.reduce_scatter", n, t, &r, err));
    r->op = op;
    mc_coll_reduce_scatter(r, in, out, counts);
    return go(r, req);
}

static mc_status group_all_gather(struct mc_comm *c, const void *in, void *out,
                                  const int64_t *counts, enum mc_dtype t, void *stream,
                                  struct mc_comm_req **req, struct mc_err *err)
{
    struct mc_comm_req *r;
    int64_t n = 0;
    (void)stream;
    MC_TRY(total_of(c, "comm.all_gather", counts, &n, err));
    MC_TRY(begin(c, "comm.all_gather", n, t, &r, err));
    mc_coll_all_gather(r, in, out, counts);
    return go(r, req);
}

static mc_status is_member(const struct mc_comm *c, const char *what, int member,
                           struct mc_err *err)
{
    if (member < 0 || member >= c->cfg.size)
        return mc_err_set(err, MC_E_BUG, "%s in group %s: member %d of %d", what, c->cfg.name,
                          member, c->cfg.size);
    return MC_OK;
}

static mc_status group_broadcast(struct mc_comm *c, void *buf, int64_t n, enum mc_dtype t, int root,
                                 void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    struct mc_comm_req *r;
    (void)stream;
    MC_TRY(is_member(c, "comm.broadcast", root, err));
    MC_TRY(begin(c, "comm.broadcast", n, t, &r, err));
    mc_coll_broadcast(r, buf, root);
    return go(r, req);
}

static mc_status group_all_to_all(struct mc_comm *c, const void *in, const int64_t *send, void *out,
                                  const int64_t *recv, enum mc_dtype t, void *stream,
                                  struct mc_comm_req **req, struct mc_err *err)
{
    struct mc_comm_req *r;
    int64_t n = 0, m = 0;
    (void)stream;
    MC_TRY(total_of(c, "comm.all_to_all", send, &n, err));
    MC_TRY(total_of(c, "comm.all_to_all", recv, &m, err));
    if (send[c->cfg.me] != recv[c->cfg.me])
        return mc_err_set(err, MC_E_BUG,
                          "comm.all_to_all in group %s: %lld elements sent to oneself, %lld "
                          "expected",
                          c->cfg.name, (long long)send[c->cfg.me], (long long)recv[c->cfg.me]);
    MC_TRY(begin(c, "comm.all_to_all", n > m ? n : m, t, &r, err));
    mc_coll_all_to_all(r, in, send, out, recv);
    return go(r, req);
}

static mc_status message(struct mc_comm *c, const char *what, void *buf, int64_t n, enum mc_dtype t,
                         int peer, int tag, enum mc_lane_set set, struct mc_comm_req **req,
                         struct mc_err *err)
{
    struct mc_comm_req *r;
    MC_TRY(is_member(c, what, peer, err));
    if (peer == c->cfg.me || tag < 0)
        return mc_err_set(err, MC_E_BUG, "%s in group %s: tag %d, member %d, which is %s", what,
                          c->cfg.name, tag, peer, peer == c->cfg.me ? "oneself" : "another");
    MC_TRY(begin(c, what, n, t, &r, err));
    r->tag = tag;
    r->group->rounds--; /* a message is no round: the members may make different numbers of them */
    mc_coll_message(r, buf, peer, set);
    return go(r, req);
}

static mc_status group_send(struct mc_comm *c, const void *buf, int64_t n, enum mc_dtype t, int to,
                            int tag, void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    (void)stream;
    return message(c, "comm.send", (void *)(uintptr_t)buf, n, t, to, tag, MC_SEND_PART, req, err);
}

static mc_status group_recv(struct mc_comm *c, void *buf, int64_t n, enum mc_dtype t, int from,
                            int tag, void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    (void)stream;
    return message(c, "comm.recv", buf, n, t, from, tag, MC_RECV_PART, req, err);
}

static mc_status group_barrier(struct mc_comm *c, struct mc_comm_req **req, struct mc_err *err)
{
    struct mc_comm_req *r;
    MC_TRY(begin(c, "comm.barrier", 0, MC_U8, &r, err));
    mc_coll_barrier(r);
    return go(r, req);
}

/* ---- wait ---- */

/* I4. */
static mc_status expire(struct mc_comm_req *r, int64_t waited_ns, struct mc_err *err)
{
    struct mc_group *g = r->group;
    char who[700];
    int sends;
    mc_coll_missing(r, who, sizeof who, &sends);
    mc_err_set(&g->err, MC_E_TIMEOUT, "%s #%llu in group %s: after %.1f s %s %s", r->what,
               (unsigned long long)r->seq, g->name, (double)waited_ns * 1e-9,
               sends ? "what was sent is not taken by" : "nothing has come from", who);
    mc_status st = mc_err_set(err, MC_E_TIMEOUT, "%s", g->err.msg);
    fail(g);
    return st;
}

static mc_status group_wait(struct mc_comm *c, struct mc_comm_req *r, int64_t deadline_ns,
                            struct mc_err *err)
{
    struct mc_group *g = group_of(c);
    int64_t span = deadline_ns > 0 ? deadline_ns : c->cfg.deadline_ns;
    mc_status st = MC_OK;
    mc_ucx_lock(g->net);
    if (r < g->req || r >= g->req + g->nreq || r->state == MC_REQ_FREE) {
        mc_ucx_unlock(g->net);
        return mc_err_set(err, MC_E_BUG, "wait in group %s: that call is not open", g->name);
    }
    int64_t start = mc_clock_ns();
    r->waited = 1;
    if (!mc_ucx_await(g->net, r, start + span))
        st = expire(r, mc_clock_ns() - start, err);
    if (st == MC_OK && (r->state == MC_REQ_FAILED || g->aborted))
        st = dead(g, r->what, r->seq, err);
    r->state = MC_REQ_FREE; /* I1; in a failed group nothing is begun any more */
    mc_ucx_settle(g->net);
    mc_ucx_unlock(g->net);
    return st;
}

/* ---- the rest of the operations ---- */

static mc_status alive(struct mc_comm *c, const char *what, struct mc_err *err)
{
    struct mc_group *g = group_of(c);
    mc_ucx_lock(g->net);
    mc_status st = g->failed ? dead(g, what, c->seq, err) : MC_OK;
    mc_ucx_unlock(g->net);
    return st;
}

/* UCX registers by itself where a network needs it. */
static mc_status group_register(struct mc_comm *c, void *buf, size_t bytes, struct mc_err *err)
{
    (void)buf;
    (void)bytes;
    return alive(c, "register", err);
}

static mc_status group_group_begin(struct mc_comm *c, struct mc_err *err)
{
    MC_TRY(alive(c, "group_begin", err));
    group_of(c)->nested++;
    return MC_OK;
}

static mc_status group_group_end(struct mc_comm *c, struct mc_err *err)
{
    if (group_of(c)->nested == 0)
        return mc_err_set(err, MC_E_BUG, "group_end in group %s without group_begin", c->cfg.name);
    group_of(c)->nested--;
    return alive(c, "group_end", err);
}

static void group_abort(struct mc_comm *c)
{
    struct mc_group *g = group_of(c);
    mc_ucx_lock(g->net);
    mc_group_abort(g);
    mc_ucx_unlock(g->net);
}

/* ---- create, destroy ---- */

void mc_group_free(struct mc_group *g)
{
    mc_free(g->ranks);
    mc_free(g->stage);
    mc_free(g->src);
    mc_free(g->req);
    mc_free(g->lane);
    mc_free(g);
}

static void group_destroy(struct mc_comm *c)
{
    struct mc_group *g = group_of(c);
    int held = 0;
    mc_ucx_lock(g->net);
    for (struct mc_comm_req *r = g->req; r < g->req + g->nreq; r++)
        if (r->state == MC_REQ_OPEN)
            mc_group_abort(g);
    for (int64_t i = 0; i < (int64_t)g->nreq * MC_NSETS * c->cfg.size; i++)
        held |= g->lane[i].busy > 0;
    mc_ucx_leave(g, held);
    mc_ucx_unlock(g->net);
    if (!held)
        mc_group_free(g);
}

static const struct mc_comm_ops group_ops = {
    .name = "ucx",
    .destroy = group_destroy,
    .abort = group_abort,
    .register_buffer = group_register,
    .group_begin = group_group_begin,
    .group_end = group_group_end,
    .all_reduce = group_all_reduce,
    .reduce_scatter = group_reduce_scatter,
    .all_gather = group_all_gather,
    .broadcast = group_broadcast,
    .all_to_all = group_all_to_all,
    .send = group_send,
    .recv = group_recv,
    .barrier = group_barrier,
    .wait = group_wait,
};

static mc_status check_cfg(const struct mc_comm_cfg *cfg, int world, struct mc_err *err)
{
    int ok = cfg->size <= MEMBERS && cfg->size <= world && cfg->me >= 0 && cfg->me < cfg->size &&
             cfg->deadline_ns > 0;
    for (int m = 0; ok && m < cfg->size; m++)
        ok = cfg->ranks[m] >= 0 && cfg->ranks[m] < world;
    if (!ok)
        return mc_err_set(err, MC_E_BUG,
                          "group %s: member %d of %d, deadline %lld ns, in a world of %d ranks",
                          cfg->name, cfg->me, cfg->size, (long long)cfg->deadline_ns, world);
    return MC_OK;
}

mc_status mc_comm_group_create(struct mc_comm_net *net, const struct mc_comm_cfg *cfg,
                               struct mc_comm **c, struct mc_err *err)
{
    if (cfg->size == 1)
        return mc_comm_self_create(cfg, c, err);
    MC_TRY(check_cfg(cfg, mc_ucx_world(net), err));
    size_t size = (size_t)cfg->size, stage;
    int nreq = mc_comm_calls(cfg->size);
    struct mc_group *g = mc_alloc(sizeof *g, "communicator");
    if (!g)
        return mc_err_set(err, MC_E_NOMEM, "no memory for group %s", cfg->name);
    mc_coll_stage(cfg->size, &g->slice, &stage);
    g->ranks = mc_alloc(size * sizeof *g->ranks, "members");
    g->stage = mc_alloc(stage, "communicator's stage");
    g->src = mc_alloc(size * sizeof *g->src, "communicator");
    g->req = mc_alloc((size_t)nreq * sizeof *g->req, "communicator's requests");
    g->lane = mc_alloc((size_t)nreq * MC_NSETS * size * sizeof *g->lane, "communicator's lanes");
    if (!g->ranks || !g->stage || !g->src || !g->req || !g->lane) {
        mc_group_free(g);
        return mc_err_set(err, MC_E_NOMEM, "no memory for group %s of %d members", cfg->name,
                          cfg->size);
    }
    memcpy(g->ranks, cfg->ranks, size * sizeof *g->ranks);
    snprintf(g->name, sizeof g->name, "%s", cfg->name);
    g->id = mc_hash64(cfg->name, strlen(cfg->name)) & 0xffff;
    g->base.ops = &group_ops;
    g->base.cfg = *cfg;
    g->base.cfg.name = g->name;
    g->base.cfg.ranks = g->ranks;
    g->net = net;
    g->nreq = nreq;
    for (int i = 0; i < nreq; i++)
        g->req[i].lane = g->lane + (size_t)i * MC_NSETS * size;
    mc_ucx_lock(net);
    mc_status st = mc_ucx_join(net, g, err);
    mc_ucx_unlock(net);
    if (st != MC_OK) {
        mc_group_free(g);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    *c = &g->base;
    return MC_OK;
}
