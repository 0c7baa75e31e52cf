/* comm_self.c - the group of one. Floor 2 (comm).
 *
 * It does what a group of one must do (collectives copy in to out, a message to oneself arrives)
 * and checks the protocol of comm.h, so that code that runs alone today is right among many
 * tomorrow.
 *
 * I1  Every begin makes one request, every request is waited for exactly once. Requests come from a
 *     fixed table: too many at once, or a wait for one that is not open, is MC_E_BUG.
 * I2  A send matches the oldest unmatched receive of the same tag, and the other way round; counts
 *     and dtypes must agree. Whichever of the two comes second copies the bytes. Buffers are
 *     borrowed until the wait.
 * I3  Nothing ever blocks: a wait for a message whose other half has not begun can never end in a
 *     group of one, and is MC_E_BUG at once instead of at the deadline.
 * I4  After abort every call returns MC_E_PEER; wait still gives its request back. abort may come
 *     from any thread, all else from one.
 * I5  Begin and end of each call are notes in the flight recorder: name, sequence number (in the
 *     step field), bytes.
 *
 * Memory: one handle of mc_alloc; no allocation after create. */
#include "comm.h"
#include "../base/arena.h"
#include "../base/flight.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { REQUESTS = 256 };
enum req_state { FREE, DONE, SEND_OPEN, RECV_OPEN };

struct mc_comm_req {
    enum req_state state;
    int tag;
    enum mc_dtype dtype;
    int64_t n;
    void *out;
    const void *in;
    uint64_t seq;
    const char *what;
};

struct self {
    struct mc_comm base; /* first: a struct mc_comm * of ours is a struct self * */
    char name[32];
    int rank, groups; /* groups: open group_begin calls */
    _Atomic int aborted;
    struct mc_comm_req req[REQUESTS];
};

static struct self *self_of(struct mc_comm *c)
{
    return (struct self *)c;
}

static void note(struct self *s, uint64_t seq, int64_t bytes, const char *what, const char *end)
{
    char text[80];
    snprintf(text, sizeof text, "%s %.12s%s", what, s->name, end);
    mc_flight_note((int64_t)seq, bytes, text); /* I5 */
}

static mc_status alive(struct self *s, const char *what, struct mc_err *err)
{
    if (atomic_load(&s->aborted)) /* I4 */
        return mc_err_set(err, MC_E_PEER, "%s in group %s: the group was aborted", what, s->name);
    return MC_OK;
}

/* The start of every call: checks for abort, takes a request. `what` is a static string. */
static mc_status begin(struct self *s, const char *what, int64_t n, enum mc_dtype t,
                       struct mc_comm_req **out, struct mc_err *err)
{
    MC_TRY(alive(s, what, err));
    if (n < 0 || (unsigned)t >= MC_NDTYPES)
        return mc_err_set(err, MC_E_BUG, "%s in group %s: count %lld, dtype %d", what, s->name,
                          (long long)n, (int)t);
    struct mc_comm_req *r = s->req;
    while (r < s->req + REQUESTS && r->state != FREE)
        r++;
    if (r == s->req + REQUESTS) /* I1 */
        return mc_err_set(err, MC_E_BUG, "%s in group %s: %d calls are open, none waited for", what,
                          s->name, REQUESTS);
    *r =
        (struct mc_comm_req){.state = DONE, .n = n, .dtype = t, .seq = ++s->base.seq, .what = what};
    note(s, r->seq, n * (int64_t)mc_dtype_size(t), what, "");
    *out = r;
    return MC_OK;
}

static void copy(void *out, const void *in, int64_t n, enum mc_dtype t)
{
    if (n > 0 && out != in)
        memmove(out, in, (size_t)n * mc_dtype_size(t));
}

static mc_status self_register(struct mc_comm *c, void *buf, size_t bytes, struct mc_err *err)
{
    (void)buf;
    (void)bytes;
    return alive(self_of(c), "register", err);
}

static mc_status self_group_begin(struct mc_comm *c, struct mc_err *err)
{
    struct self *s = self_of(c);
    MC_TRY(alive(s, "group_begin", err));
    s->groups++;
    return MC_OK;
}

static mc_status self_group_end(struct mc_comm *c, struct mc_err *err)
{
    struct self *s = self_of(c);
    if (s->groups == 0)
        return mc_err_set(err, MC_E_BUG, "group_end in group %s without group_begin", s->name);
    s->groups--;
    return alive(s, "group_end", err);
}

/* All collectives of one member: out = in. */
static mc_status collective(struct mc_comm *c, const char *what, const void *in, void *out,
                            int64_t n, enum mc_dtype t, struct mc_comm_req **req,
                            struct mc_err *err)
{
    MC_TRY(begin(self_of(c), what, n, t, req, err));
    copy(out, in, n, t);
    return MC_OK;
}

static mc_status self_all_reduce(struct mc_comm *c, const void *in, void *out, int64_t n,
                                 enum mc_dtype t, enum mc_reduce op, void *stream,
                                 struct mc_comm_req **req, struct mc_err *err)
{
    (void)op; /* the sum or maximum of one value is that value */
    (void)stream;
    return collective(c, "comm.all_reduce", in, out, n, t, req, err);
}

static mc_status self_reduce_scatter(struct mc_comm *c, const void *in, void *out,
                                     const int64_t *counts, enum mc_dtype t, enum mc_reduce op,
                                     void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    (void)op;
    (void)stream;
    return collective(c, "comm.reduce_scatter", in, out, counts[0], t, req, err);
}

static mc_status self_all_gather(struct mc_comm *c, const void *in, void *out,
                                 const int64_t *counts, enum mc_dtype t, void *stream,
                                 struct mc_comm_req **req, struct mc_err *err)
{
    (void)stream;
    return collective(c, "comm.all_gather", in, out, counts[0], t, req, err);
}

static mc_status self_broadcast(struct mc_comm *c, void *buf, int64_t n, enum mc_dtype t, int root,
                                void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    (void)stream;
    if (root != 0)
        return mc_err_set(err, MC_E_BUG, "broadcast in group %s: root %d in a group of one",
                          self_of(c)->name, root);
    return collective(c, "comm.broadcast", buf, buf, n, t, req, err);
}

static mc_status self_all_to_all(struct mc_comm *c, const void *in, const int64_t *send, void *out,
                                 const int64_t *recv, enum mc_dtype t, void *stream,
                                 struct mc_comm_req **req, struct mc_err *err)
{
    (void)stream;
    if (send[0] != recv[0])
        return mc_err_set(err, MC_E_BUG,
                          "all_to_all in group %s: %lld elements sent to oneself, %lld expected",
                          self_of(c)->name, (long long)send[0], (long long)recv[0]);
    return collective(c, "comm.all_to_all", in, out, send[0], t, req, err);
}

/* The oldest open half of the other kind with this tag; NULL when there is none (I2). */
static struct mc_comm_req *match(struct self *s, enum req_state kind, int tag)
{
    struct mc_comm_req *best = NULL;
    for (struct mc_comm_req *r = s->req; r < s->req + REQUESTS; r++)
        if (r->state == kind && r->tag == tag && (!best || r->seq < best->seq))
            best = r;
    return best;
}

/* One half of a message: joins with its other half, or stays open until that comes. */
static mc_status half(struct mc_comm *c, const struct mc_comm_req *mine, int peer,
                      struct mc_comm_req **req, struct mc_err *err)
{
    struct self *s = self_of(c);
    MC_TRY(alive(s, mine->what, err));
    if (peer != 0)
        return mc_err_set(err, MC_E_BUG, "%s in group %s: member %d in a group of one", mine->what,
                          s->name, peer);
    int is_send = mine->state == SEND_OPEN;
    struct mc_comm_req *other = match(s, is_send ? RECV_OPEN : SEND_OPEN, mine->tag);
    if (other && (other->n != mine->n || other->dtype != mine->dtype))
        return mc_err_set(
            err, MC_E_BUG, "%s in group %s, tag %d: %lld x %s meets %lld x %s of the other side",
            mine->what, s->name, mine->tag, (long long)mine->n, mc_dtype_name(mine->dtype),
            (long long)other->n, mc_dtype_name(other->dtype));
    struct mc_comm_req *r;
    MC_TRY(begin(s, mine->what, mine->n, mine->dtype, &r, err));
    r->tag = mine->tag;
    r->in = mine->in;
    r->out = mine->out;
    if (other) {
        copy(is_send ? other->out : r->out, is_send ? r->in : other->in, r->n, r->dtype);
        other->state = DONE;
    } else {
        r->state = mine->state;
    }
    *req = r;
    return MC_OK;
}

static mc_status self_send(struct mc_comm *c, const void *buf, int64_t n, enum mc_dtype t, int to,
                           int tag, void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    (void)stream;
    struct mc_comm_req r = {
        .state = SEND_OPEN, .tag = tag, .dtype = t, .n = n, .in = buf, .what = "comm.send"};
    return half(c, &r, to, req, err);
}

static mc_status self_recv(struct mc_comm *c, void *buf, int64_t n, enum mc_dtype t, int from,
                           int tag, void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    (void)stream;
    struct mc_comm_req r = {
        .state = RECV_OPEN, .tag = tag, .dtype = t, .n = n, .out = buf, .what = "comm.recv"};
    return half(c, &r, from, req, err);
}

static mc_status self_barrier(struct mc_comm *c, struct mc_comm_req **req, struct mc_err *err)
{
    return begin(self_of(c), "comm.barrier", 0, MC_U8, req, err);
}

static mc_status self_wait(struct mc_comm *c, struct mc_comm_req *r, int64_t deadline_ns,
                           struct mc_err *err)
{
    struct self *s = self_of(c);
    (void)deadline_ns;                                            /* I3 */
    if (r < s->req || r >= s->req + REQUESTS || r->state == FREE) /* I1 */
        return mc_err_set(err, MC_E_BUG, "wait in group %s: that call is not open", s->name);
    enum req_state was = r->state;
    r->state = FREE;
    if (atomic_load(&s->aborted)) /* I4 */
        return mc_err_set(err, MC_E_PEER, "%s #%llu in group %s: the group was aborted", r->what,
                          (unsigned long long)r->seq, s->name);
    if (was != DONE) /* I3 */
        return mc_err_set(err, MC_E_BUG,
                          "%s #%llu in group %s waits for tag %d, which this rank, the only "
                          "member, has not %s",
                          r->what, (unsigned long long)r->seq, s->name, r->tag,
                          was == SEND_OPEN ? "received" : "sent");
    note(s, r->seq, r->n * (int64_t)mc_dtype_size(r->dtype), r->what, " end");
    return MC_OK;
}

static void self_abort(struct mc_comm *c)
{
    atomic_store(&self_of(c)->aborted, 1);
}

static void self_destroy(struct mc_comm *c)
{
    mc_free(c);
}

static const struct mc_comm_ops self_ops = {
    .name = "self",
    .destroy = self_destroy,
    .abort = self_abort,
    .register_buffer = self_register,
    .group_begin = self_group_begin,
    .group_end = self_group_end,
    .all_reduce = self_all_reduce,
    .reduce_scatter = self_reduce_scatter,
    .all_gather = self_all_gather,
    .broadcast = self_broadcast,
    .all_to_all = self_all_to_all,
    .send = self_send,
    .recv = self_recv,
    .barrier = self_barrier,
    .wait = self_wait,
};

mc_status mc_comm_self_create(const struct mc_comm_cfg *cfg, struct mc_comm **c, struct mc_err *err)
{
    const char *name = cfg->name ? cfg->name : "self";
    if (cfg->size != 1 || cfg->me != 0)
        return mc_err_set(err, MC_E_BUG, "group %s: member %d of %d is not alone", name, cfg->me,
                          cfg->size);
    struct self *s = mc_alloc(sizeof *s, "communicator");
    if (!s)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the communicator of group %s", name);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->rank = cfg->ranks ? cfg->ranks[0] : 0;
    s->base.ops = &self_ops;
    s->base.cfg = *cfg;
    s->base.cfg.name = s->name;
    s->base.cfg.ranks = &s->rank;
    *c = &s->base;
    return MC_OK;
}
