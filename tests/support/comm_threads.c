/* comm_threads.c - a group of threads that exchange through memory.
 *
 * A collective is one *round*: each member copies its input into the round when it begins, and
 * makes its own output from all inputs when it waits. So outputs may lie over inputs, and nobody
 * waits for a slower reader. Messages between two members are copies in a list.
 *
 * I1  Members' call n meets in round n mod ROUNDS; a member may run ahead by that many calls.
 * I2  What members say of one call (op, dtype, counts) must agree: else MC_E_BUG on all.
 * I3  Sums are taken in member order; bf16 in fp32, rounded once.
 * I4  All shared state is under the group's mutex; a round's inputs are read without it, between
 *     "all have begun" and "I am done", when nobody writes them.
 * I5  A wait ends at its deadline with MC_E_TIMEOUT and the members that have not come; after abort
 *     every call is MC_E_PEER.
 *
 * Memory: an input's copy has room for the member's largest so far and is kept, so that calls that
 * repeat allocate nothing after one turn of the rounds; a message's, once taken, serves the next
 * one that fits. The last member destroyed frees the group. */
#include "comm_threads.h"
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 64, REQUESTS = 256 };
enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, BARRIER, SEND, RECV };
static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                    "all_to_all", "barrier",        "send",       "recv"};

static _Atomic int64_t g_calls; /* of the allocator */
int64_t mc_comm_threads_calls(void)
{
    return g_calls;
}

struct call { /* what one member says */
    enum kind kind;
    enum mc_dtype dtype;
    enum mc_reduce reduce;
    int root;
    int64_t n, counts[MC_THREADS_MAX]; /* n: elements of its input; counts: as given */
};
struct input {
    struct call call;
    void *data;
    size_t room;
    int here;
};
struct round {
    uint64_t seq;
    int begun, done;
    struct input in[MC_THREADS_MAX];
};
struct message {
    struct message *next;
    int from, to, tag;
    enum mc_dtype dtype;
    int64_t n;
    size_t room; /* bytes of data */
    unsigned char data[];
};
struct group {
    pthread_mutex_t lock;
    pthread_cond_t change;
    char name[32];
    int size, users, aborted;
    int rank[MC_THREADS_MAX];
    struct message *mail; /* oldest first */
    struct message *spare;
    struct round round[ROUNDS];
};
struct mc_comm_req {
    int open;
    enum kind kind;
    uint64_t seq;
    void *out;
    int from, tag;
    int64_t n, recv[MC_THREADS_MAX];
    enum mc_dtype dtype;
};
struct member {
    struct mc_comm base; /* first */
    struct group *g;
    uint64_t rounds; /* collectives begun */
    size_t largest;  /* input so far, bytes */
    struct mc_comm_req req[REQUESTS];
};

static struct member *member_of(struct mc_comm *c)
{
    return (struct member *)c;
}

/* -- Waiting ---------------------------------------------------------------------------------- */

static struct timespec until(const struct member *m, int64_t deadline_ns)
{
    struct timespec t;
    if (deadline_ns <= 0)
        deadline_ns = m->base.cfg.deadline_ns;
    clock_gettime(CLOCK_MONOTONIC, &t);
    deadline_ns += t.tv_nsec;
    t.tv_sec += (time_t)(deadline_ns / 1000000000);
    t.tv_nsec = (long)(deadline_ns % 1000000000);
    return t;
}

static mc_status aborted(const struct group *g, const char *what, struct mc_err *err)
{
    return mc_err_set(err, MC_E_PEER, "%s in group %s: the group was aborted", what, g->name);
}

static mc_status late(const struct group *g, const struct round *r, const char *what, uint64_t seq,
                      struct mc_err *err)
{
    char who[128] = "";
    size_t n = 0;
    for (int m = 0; r && m < g->size; m++)
        if (!r->in[m].here && n + 8 < sizeof who)
            n += (size_t)snprintf(who + n, sizeof who - n, " %d", m);
    return mc_err_set(err, MC_E_TIMEOUT, "%s #%llu in group %s: nothing came from member%s", what,
                      (unsigned long long)seq, g->name, who);
}

/* -- Begin ------------------------------------------------------------------------------------ */

static mc_status take_request(struct member *m, enum kind kind, struct mc_comm_req **out,
                              struct mc_err *err)
{
    for (int i = 0; i < REQUESTS; i++)
        if (!m->req[i].open) {
            m->req[i] = (struct mc_comm_req){.open = 1, .kind = kind};
            *out = &m->req[i];
            m->base.seq++;
            return MC_OK;
        }
    return mc_err_set(err, MC_E_BUG, "%s in group %s: %d calls are open", names[kind], m->g->name,
                      REQUESTS);
}

static mc_status begin(struct mc_comm *c, const struct call *call, const void *in, void *out,
                       const int64_t *recv, struct mc_comm_req **req, struct mc_err *err)
{
    struct member *m = member_of(c);
    struct group *g = m->g;
    struct mc_comm_req *q;
    MC_TRY(take_request(m, call->kind, &q, err));
    q->seq = m->rounds++;
    q->out = out;
    if (recv)
        memcpy(q->recv, recv, (size_t)g->size * sizeof *recv);
    struct round *r = &g->round[q->seq % ROUNDS];
    struct input *i = &r->in[c->cfg.me];
    struct timespec t = until(m, 0);
    pthread_mutex_lock(&g->lock);
    int late_ = 0;
    while (r->seq != q->seq && !g->aborted && !late_) /* I1 */
        late_ = pthread_cond_timedwait(&g->change, &g->lock, &t) != 0;
    int gone = g->aborted;
    pthread_mutex_unlock(&g->lock);
    if (gone || late_) {
        q->open = 0;
        return gone ? aborted(g, names[call->kind], err)
                    : late(g, NULL, names[call->kind], q->seq, err);
    }
    size_t bytes = (size_t)call->n * mc_dtype_size(call->dtype);
    if (bytes > m->largest)
        m->largest = bytes;
    if (m->largest > i->room) {
        mc_free(i->data);
        g_calls++;
        i->data = mc_alloc(m->largest, "test: inputs of a call");
        i->room = i->data ? m->largest : 0;
        if (!i->data)
            return mc_err_set(err, MC_E_NOMEM, "no memory for a copy of %zu bytes", bytes);
    }
    if (bytes)
        memcpy(i->data, in, bytes);
    i->call = *call;
    pthread_mutex_lock(&g->lock);
    i->here = 1;
    r->begun++;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
    *req = q;
    return MC_OK;
}

static mc_status all_reduce(struct mc_comm *c, const void *in, void *out, int64_t n,
                            enum mc_dtype t, enum mc_reduce op, void *stream,
                            struct mc_comm_req **req, struct mc_err *err)
{
    struct call call = {.kind = ALL_REDUCE, .dtype = t, .reduce = op, .n = n};
    (void)stream;
    return begin(c, &call, in, out, NULL, req, err);
}

static int64_t with_counts(struct call *call, const int64_t *counts, int size)
{
    int64_t all = 0;
    for (int m = 0; m < size; m++) {
        call->counts[m] = counts[m];
        all += counts[m];
    }
    return all;
}

static mc_status reduce_scatter(struct mc_comm *c, const void *in, void *out, const int64_t *counts,
                                enum mc_dtype t, enum mc_reduce op, void *stream,
                                struct mc_comm_req **req, struct mc_err *err)
{
    struct call call = {.kind = REDUCE_SCATTER, .dtype = t, .reduce = op};
    (void)stream;
    call.n = with_counts(&call, counts, c->cfg.size);
    return begin(c, &call, in, out, NULL, req, err);
}

static mc_status all_gather(struct mc_comm *c, const void *in, void *out, const int64_t *counts,
                            enum mc_dtype t, void *stream, struct mc_comm_req **req,
                            struct mc_err *err)
{
    struct call call = {.kind = ALL_GATHER, .dtype = t};
    (void)stream;
    (void)with_counts(&call, counts, c->cfg.size);
    call.n = counts[c->cfg.me];
    return begin(c, &call, in, out, NULL, req, err);
}

static mc_status broadcast(struct mc_comm *c, void *buf, int64_t n, enum mc_dtype t, int root,
                           void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    struct call call = {.kind = BROADCAST, .dtype = t, .root = root, .n = n};
    (void)stream;
    return begin(c, &call, buf, buf, NULL, req, err);
}

static mc_status all_to_all(struct mc_comm *c, const void *in, const int64_t *send, void *out,
                            const int64_t *recv, enum mc_dtype t, void *stream,
                            struct mc_comm_req **req, struct mc_err *err)
{
    struct call call = {.kind = ALL_TO_ALL, .dtype = t};
    (void)stream;
    call.n = with_counts(&call, send, c->cfg.size);
    return begin(c, &call, in, out, recv, req, err);
}

static mc_status barrier(struct mc_comm *c, struct mc_comm_req **req, struct mc_err *err)
{
    struct call call = {.kind = BARRIER, .dtype = MC_U8};
    return begin(c, &call, NULL, NULL, NULL, req, err);
}

/* -- Sums ------------------------------------------------------------------------------------- */

static float from_bf16(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (f != f)
        return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* One element of all members' inputs, in member order (I3). */
#define FOLD(type, acc_type, get, give)                                                            \
    do {                                                                                           \
        acc_type a = get(((const type *)r->in[0].data)[i]);                                        \
        for (int m = 1; m < size; m++) {                                                           \
            acc_type b = get(((const type *)r->in[m].data)[i]);                                    \
            a = op == MC_SUM ? (acc_type)(a + b) : a != a || a > b ? a : b;                        \
        }                                                                                          \
        ((type *)out)[i - first] = give(a);                                                        \
    } while (0)
#define AS_IS(x) (x)

static mc_status fold(const struct round *r, int size, enum mc_dtype t, enum mc_reduce op,
                      int64_t first, int64_t n, void *out, struct mc_err *err)
{
    for (int64_t i = first; i < first + n; i++)
        switch (t) {
        case MC_F64:
            FOLD(double, double, AS_IS, AS_IS);
            break;
        case MC_F32:
            FOLD(float, float, AS_IS, AS_IS);
            break;
        case MC_BF16:
            FOLD(uint16_t, float, from_bf16, to_bf16);
            break;
        case MC_I32:
            FOLD(uint32_t, uint32_t, AS_IS, AS_IS);
            break;
        case MC_I64:
            FOLD(uint64_t, uint64_t, AS_IS, AS_IS);
            break;
        default:
            return mc_err_set(err, MC_E_BUG, "no sums of %s", mc_dtype_name(t));
        }
    return MC_OK;
}

/* -- Wait ------------------------------------------------------------------------------------- */

static int agree(const struct round *r, int size)
{
    const struct call *a = &r->in[0].call;
    for (int m = 1; m < size; m++) {
        const struct call *b = &r->in[m].call;
        int counts = memcmp(a->counts, b->counts, sizeof a->counts) == 0;
        if (a->kind != b->kind || a->dtype != b->dtype || a->reduce != b->reduce ||
            a->root != b->root || (a->kind != ALL_TO_ALL && !counts) ||
            (a->kind != ALL_GATHER && a->kind != ALL_TO_ALL && a->n != b->n))
            return 0;
    }
    return 1;
}

static void *part(const struct round *r, int m, int64_t first, size_t size)
{
    return (char *)r->in[m].data + (size_t)first * size;
}

static void join(const struct round *r, int size, const struct mc_comm_req *q, int me)
{
    size_t each = mc_dtype_size(r->in[0].call.dtype);
    char *out = q->out;
    for (int m = 0; m < size; m++) {
        int64_t n = r->in[m].call.n, at = 0;
        if (r->in[m].call.kind == ALL_TO_ALL) {
            n = q->recv[m];
            for (int k = 0; k < me; k++)
                at += r->in[m].call.counts[k];
        }
        if (n > 0)
            memcpy(out, part(r, m, at, each), (size_t)n * each);
        out += (size_t)n * each;
    }
}

static mc_status output(const struct group *g, const struct round *r, const struct mc_comm_req *q,
                        int me, struct mc_err *err)
{
    const struct call *c = &r->in[me].call;
    int64_t at = 0;
    if (!agree(r, g->size)) /* I2 */
        return mc_err_set(err, MC_E_BUG, "call #%llu of group %s: members %s and others differ",
                          (unsigned long long)q->seq, g->name, names[r->in[0].call.kind]);
    switch (c->kind) {
    case ALL_REDUCE:
        return fold(r, g->size, c->dtype, c->reduce, 0, c->n, q->out, err);
    case REDUCE_SCATTER:
        for (int m = 0; m < me; m++)
            at += c->counts[m];
        return fold(r, g->size, c->dtype, c->reduce, at, c->counts[me], q->out, err);
    case BROADCAST:
        if (c->n > 0)
            memcpy(q->out, r->in[c->root].data, (size_t)c->n * mc_dtype_size(c->dtype));
        return MC_OK;
    case ALL_GATHER:
        for (int m = 0; m < g->size; m++)
            if (r->in[m].call.n != c->counts[m])
                return mc_err_set(err, MC_E_BUG, "all_gather in group %s: member %d", g->name, m);
        join(r, g->size, q, me);
        return MC_OK;
    case ALL_TO_ALL:
        for (int m = 0; m < g->size; m++)
            if (r->in[m].call.counts[me] != q->recv[m])
                return mc_err_set(err, MC_E_BUG, "all_to_all in group %s: member %d", g->name, m);
        join(r, g->size, q, me);
        return MC_OK;
    default:
        return MC_OK;
    }
}

static mc_status wait_round(struct member *m, struct mc_comm_req *q, const struct timespec *t,
                            struct mc_err *err)
{
    struct group *g = m->g;
    struct round *r = &g->round[q->seq % ROUNDS];
    int late_ = 0;
    mc_status st = MC_OK;
    pthread_mutex_lock(&g->lock);
    while (r->begun < g->size && !g->aborted && !late_)
        late_ = pthread_cond_timedwait(&g->change, &g->lock, t) != 0;
    if (g->aborted)
        st = aborted(g, names[q->kind], err);
    else if (late_)
        st = late(g, r, names[q->kind], q->seq, err); /* I5 */
    pthread_mutex_unlock(&g->lock);
    if (st != MC_OK)
        return st;
    st = output(g, r, q, m->base.cfg.me, err); /* I4 */
    pthread_mutex_lock(&g->lock);
    if (++r->done == g->size) {
        r->begun = r->done = 0;
        for (int k = 0; k < g->size; k++)
            r->in[k].here = 0;
        r->seq += ROUNDS;
        pthread_cond_broadcast(&g->change);
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

static void keep(struct group *g, struct message *x)
{
    pthread_mutex_lock(&g->lock);
    x->next = g->spare;
    g->spare = x;
    pthread_mutex_unlock(&g->lock);
}

/* A message with that much room, its other fields for the caller to set; NULL: no memory. */
static struct message *fresh(struct group *g, size_t bytes)
{
    struct message **at, *x;
    pthread_mutex_lock(&g->lock);
    for (at = &g->spare; (x = *at) && x->room < bytes; at = &x->next)
        ;
    if (x)
        *at = x->next;
    pthread_mutex_unlock(&g->lock);
    if (x)
        return x;
    g_calls++;
    x = mc_alloc(sizeof *x + bytes, "test: message");
    if (x)
        x->room = bytes;
    return x;
}

static mc_status wait_message(struct member *m, struct mc_comm_req *q, const struct timespec *t,
                              struct mc_err *err)
{
    struct group *g = m->g;
    struct message **at, *x = NULL;
    int late_ = 0;
    mc_status st = MC_OK;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        for (at = &g->mail; (x = *at); at = &x->next)
            if (x->to == m->base.cfg.me && x->from == q->from && x->tag == q->tag)
                break;
        if (x || g->aborted || late_)
            break;
        late_ = pthread_cond_timedwait(&g->change, &g->lock, t) != 0;
    }
    if (g->aborted)
        st = aborted(g, names[q->kind], err);
    else if (!x)
        st = mc_err_set(err, MC_E_TIMEOUT, "recv in group %s: nothing came from member %d", g->name,
                        q->from);
    else
        *at = x->next;
    pthread_mutex_unlock(&g->lock);
    if (st != MC_OK)
        return st;
    if (x->n != q->n || x->dtype != q->dtype)
        st = mc_err_set(err, MC_E_BUG, "recv in group %s: %lld sent, %lld awaited", g->name,
                        (long long)x->n, (long long)q->n);
    else if (x->n > 0)
        memcpy(q->out, x->data, (size_t)x->n * mc_dtype_size(x->dtype));
    keep(g, x);
    return st;
}

static mc_status wait_(struct mc_comm *c, struct mc_comm_req *q, int64_t deadline_ns,
                       struct mc_err *err)
{
    struct member *m = member_of(c);
    struct timespec t = until(m, deadline_ns);
    if (q < m->req || q >= m->req + REQUESTS || !q->open)
        return mc_err_set(err, MC_E_BUG, "wait in group %s: that call is not open", m->g->name);
    q->open = 0;
    if (q->kind == SEND)
        return MC_OK; /* a copy left when it began */
    return q->kind == RECV ? wait_message(m, q, &t, err) : wait_round(m, q, &t, err);
}

/* -- Messages --------------------------------------------------------------------------------- */

static mc_status send_(struct mc_comm *c, const void *buf, int64_t n, enum mc_dtype t, int to,
                       int tag, void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    struct member *m = member_of(c);
    struct group *g = m->g;
    size_t bytes = (size_t)n * mc_dtype_size(t);
    (void)stream;
    struct message *x = fresh(g, bytes), **at;
    if (!x)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a message of %zu bytes", bytes);
    *x = (struct message){
        .from = c->cfg.me, .to = to, .tag = tag, .dtype = t, .n = n, .room = x->room};
    if (bytes)
        memcpy(x->data, buf, bytes);
    mc_status st = take_request(m, SEND, req, err);
    if (st != MC_OK) {
        keep(g, x);
        return st;
    }
    pthread_mutex_lock(&g->lock);
    for (at = &g->mail; *at; at = &(*at)->next)
        ;
    *at = x;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
    return MC_OK;
}

static mc_status recv_(struct mc_comm *c, void *buf, int64_t n, enum mc_dtype t, int from, int tag,
                       void *stream, struct mc_comm_req **req, struct mc_err *err)
{
    (void)stream;
    MC_TRY(take_request(member_of(c), RECV, req, err));
    (*req)->out = buf;
    (*req)->n = n;
    (*req)->dtype = t;
    (*req)->from = from;
    (*req)->tag = tag;
    return MC_OK;
}

/* -- Life ------------------------------------------------------------------------------------- */

static mc_status nothing(struct mc_comm *c, struct mc_err *err)
{
    (void)c;
    (void)err;
    return MC_OK;
}

static mc_status register_buffer(struct mc_comm *c, void *buf, size_t bytes, struct mc_err *err)
{
    (void)buf;
    (void)bytes;
    return nothing(c, err);
}

static void abort_(struct mc_comm *c)
{
    struct group *g = member_of(c)->g;
    pthread_mutex_lock(&g->lock);
    g->aborted = 1;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
}

static void free_group(struct group *g)
{
    struct message *lists[] = {g->mail, g->spare};
    for (int i = 0; i < 2; i++)
        for (struct message *x = lists[i], *next; x; x = next) {
            next = x->next;
            mc_free(x);
        }
    for (int i = 0; i < ROUNDS; i++)
        for (int m = 0; m < g->size; m++)
            mc_free(g->round[i].in[m].data);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->change);
    mc_free(g);
}

static void destroy(struct mc_comm *c)
{
    struct group *g = member_of(c)->g;
    pthread_mutex_lock(&g->lock);
    int left = --g->users;
    pthread_mutex_unlock(&g->lock);
    if (left == 0)
        free_group(g);
    mc_free(c);
}

static const struct mc_comm_ops ops = {.name = "threads",
                                       .destroy = destroy,
                                       .abort = abort_,
                                       .register_buffer = register_buffer,
                                       .group_begin = nothing,
                                       .group_end = nothing,
                                       .all_reduce = all_reduce,
                                       .reduce_scatter = reduce_scatter,
                                       .all_gather = all_gather,
                                       .broadcast = broadcast,
                                       .all_to_all = all_to_all,
                                       .send = send_,
                                       .recv = recv_,
                                       .barrier = barrier,
                                       .wait = wait_};

mc_status mc_comm_threads_create(const char *name, int size, int64_t deadline_ns,
                                 struct mc_comm *comm[], struct mc_err *err)
{
    pthread_condattr_t attr;
    MC_ASSERT(size >= 1 && size <= MC_THREADS_MAX);
    struct group *g = mc_alloc(sizeof *g, "test: group of threads");
    if (!g)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a group");
    snprintf(g->name, sizeof g->name, "%s", name);
    g->size = size;
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->change, &attr);
    pthread_condattr_destroy(&attr);
    for (int i = 0; i < ROUNDS; i++)
        g->round[i].seq = (uint64_t)i;
    for (int m = 0; m < size; m++) {
        struct member *x = mc_alloc(sizeof *x, "test: member of a group");
        if (!x) {
            for (int k = 0; k < m; k++)
                mc_free(comm[k]);
            free_group(g);
            return mc_err_set(err, MC_E_NOMEM, "no memory for a group");
        }
        g->rank[m] = m;
        x->g = g;
        x->base = (struct mc_comm){.ops = &ops,
                                   .cfg = {.name = g->name,
                                           .size = size,
                                           .me = m,
                                           .ranks = g->rank,
                                           .deadline_ns = deadline_ns}};
        comm[m] = &x->base;
    }
    g->users = size;
    return MC_OK;
}

/* -- A mesh of threads ------------------------------------------------------------------------ */

struct one {
    struct mc_mesh mesh;
    void (*fn)(struct mc_mesh *, void *);
    void *arg;
    pthread_t thread;
};

static void *body(void *p)
{
    struct one *o = p;
    o->fn(&o->mesh, o->arg);
    return NULL;
}

/* Ranks that agree with `rank` on all axes but those in the mask, ascending. */
static int alike(const struct mc_layout *l, int rank, unsigned mask, int *ranks)
{
    int mine[MC_NAXES], its[MC_NAXES], n = 0;
    mc_layout_coord(l, rank, mine);
    for (int r = 0; r < l->world; r++) {
        int same = 1;
        mc_layout_coord(l, r, its);
        for (int a = 0; a < MC_NAXES; a++)
            same &= mask >> a & 1 || mine[a] == its[a];
        if (same)
            ranks[n++] = r;
    }
    return n;
}

/* Gives every rank its communicator over the axes of the mask: axis >= 0, grad (-1), world (-2). */
static mc_status connect(struct one *all, const struct mc_layout *l, unsigned mask, int which,
                         int64_t deadline_ns, struct mc_err *err)
{
    static const char *const other[] = {"world", "grad"};
    for (int r = 0; r < l->world; r++) {
        int ranks[MC_THREADS_MAX], n = alike(l, r, mask, ranks);
        struct mc_comm *comm[MC_THREADS_MAX];
        if (n == 1 || ranks[0] != r)
            continue;
        MC_TRY(mc_comm_threads_create(which >= 0 ? mc_axis_name((enum mc_axis)which)
                                                 : other[which + 2],
                                      n, deadline_ns, comm, err));
        for (int m = 0; m < n; m++) {
            struct mc_mesh *x = &all[ranks[m]].mesh;
            *(which >= 0 ? &x->axis[which] : which == -1 ? &x->grad : &x->world) = comm[m];
        }
    }
    return MC_OK;
}

mc_status mc_test_mesh(const struct mc_layout *l, int64_t deadline_ns,
                       void (*fn)(struct mc_mesh *mesh, void *arg), void *arg, struct mc_err *err)
{
    MC_ASSERT(l->world >= 1 && l->world <= MC_THREADS_MAX);
    struct one *all = mc_alloc((size_t)l->world * sizeof *all, "test: mesh");
    mc_status st = MC_OK;
    int started = 0, both = l->size[MC_AXIS_DP] > 1 && l->size[MC_AXIS_CP] > 1;
    if (!all)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a mesh");
    for (int r = 0; r < l->world; r++) {
        all[r] = (struct one){.mesh = {.layout = *l, .rank = r}, .fn = fn, .arg = arg};
        mc_layout_coord(l, r, all[r].mesh.coord);
    }
    for (int a = 0; a < MC_NAXES && st == MC_OK; a++)
        st = connect(all, l, 1u << a, a, deadline_ns, err);
    if (st == MC_OK && both)
        st = connect(all, l, 1u << MC_AXIS_DP | 1u << MC_AXIS_CP, -1, deadline_ns, err);
    if (st == MC_OK)
        st = connect(all, l, ~0u, -2, deadline_ns, err);
    for (int r = 0; r < l->world && !both; r++) {
        struct mc_mesh *m = &all[r].mesh;
        m->grad = m->axis[l->size[MC_AXIS_CP] > 1 ? MC_AXIS_CP : MC_AXIS_DP];
    }
    for (; started < l->world && st == MC_OK; started++)
        if (pthread_create(&all[started].thread, NULL, body, &all[started]) != 0)
            st = mc_err_set(err, MC_E_MACHINE, "thread %d cannot be started", started);
    if (st != MC_OK)
        for (int r = 0; r < l->world; r++)
            if (all[r].mesh.world)
                all[r].mesh.world->ops->abort(all[r].mesh.world);
    for (int r = 0; r < started; r++)
        pthread_join(all[r].thread, NULL);
    for (int r = 0; r < l->world; r++) {
        struct mc_mesh *m = &all[r].mesh;
        for (int a = 0; a < MC_NAXES; a++)
            if (m->axis[a])
                m->axis[a]->ops->destroy(m->axis[a]);
        if (both && m->grad)
            m->grad->ops->destroy(m->grad);
        if (m->world)
            m->world->ops->destroy(m->world);
    }
    mc_free(all);
    return st;
}
