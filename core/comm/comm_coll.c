/* comm_coll.c - the collectives, as lanes of slices. Floor 2 (comm).
 *
 * All of them are direct: a member sends to every other one and hears from every other one, in one
 * step or two.
 *
 *   call               step one (PART lanes)              step two (SUM lanes)
 *   all_gather         own part to all
 *   all_to_all         part m to m
 *   barrier            one byte to all
 *   send, recv         one lane
 *   broadcast, short   root to all
 *   broadcast, long    root: part m to m                  part m, when m has it, to all but root
 *   reduce_scatter     part m to m, who sums
 *   all_reduce, short  everything to all, who all sum
 *   all_reduce, long   part m to m, who sums              each slice summed, to all
 *
 * That moves the fewest bytes there can be for the long ones (2 (g-1)/g n a member, as a ring), in
 * two steps instead of 2 (g-1), and sums in member order by itself. Every member sends g-1 messages
 * a slice: right for the tens of members that ranks on CPUs make.
 *
 * I1  What is summed comes in slices to a stage of the group's own, of two slots: slice k of every
 *     peer goes to slot k % 2, and k + 2 is received when k is summed. One request a group has the
 *     stage at a time, in call order.
 * I2  Nobody's sends wait for his own stage. So whoever has a stage gets his slices whatever the
 *     others are summing, and queues for stages cannot form a circle over groups and members.
 * I3  A sum that overwrites what is still being sent (a short all_reduce in place) waits for these
 *     sends. In a long one, what comes to a place was summed from what had been sent from there.
 * I4  Empty lanes do not exist: no message is sent for them, and none expected.
 * I5  Slices are a function of the size of the group alone, so both ends cut alike; a sum's bits do
 *     not depend on the cut (comm_sum.c).
 *
 * Memory: the group's. Threads: whoever holds the net's lock. */
#include "comm_int.h"
#include <string.h>

enum {
    STAGE = 4 << 20,  /* bytes of both slots, unless that leaves less than SLICE_MIN a slice */
    SLICE_MIN = 4096, /* also: what an all_reduce of at most so many bytes sends to all */
    BROADCAST_LONG = 65536
};

void mc_coll_stage(int size, int64_t *slice, size_t *bytes)
{
    int64_t s = STAGE / (MC_LANE_WINDOW * (size - 1)) / 64 * 64; /* whole elements of any dtype */
    *slice = s < SLICE_MIN ? SLICE_MIN : s;
    *bytes = (size_t)*slice * MC_LANE_WINDOW * (size_t)(size - 1);
}

/* ---- lanes ---- */

static struct mc_lane *add_lane(struct mc_comm_req *r, enum mc_lane_set set, int peer,
                                const char *ptr, int64_t bytes, int64_t slice, int64_t limit)
{
    struct mc_lane *l = mc_lane_of(r, set, peer);
    if (bytes == 0) /* I4 */
        return l;
    *l = (struct mc_lane){.req = r,
                          .ptr = (char *)(uintptr_t)ptr, /* sends only read it */
                          .bytes = bytes,
                          .slice = slice,
                          .limit = limit,
                          .peer = peer,
                          .set = (int)set};
    r->open++;
    return l;
}

static void whole_lane(struct mc_comm_req *r, enum mc_lane_set set, int peer, const char *ptr,
                       int64_t bytes)
{
    add_lane(r, set, peer, ptr, bytes, bytes, bytes);
}

static int64_t raise(const struct mc_lane *l, int64_t to)
{
    return to < l->bytes ? to : l->bytes;
}

/* The place of a peer's slice: in the stage (I1) or in the lane's own memory. */
static char *place(const struct mc_lane *l, int slot)
{
    const struct mc_group *g = l->req->group;
    if (l->ptr)
        return l->ptr + l->next;
    int row = l->peer < g->base.cfg.me ? l->peer : l->peer - 1;
    return g->stage + (slot * (g->base.cfg.size - 1) + row) * g->slice;
}

static void slice_over(struct mc_lane *l, int slot, int64_t bytes);

/* Posts what may be posted. */
static void pump(struct mc_lane *l)
{
    while (l->busy < MC_LANE_WINDOW && l->next < l->limit && !l->req->group->failed) {
        int64_t k = l->next / l->slice, len = raise(l, l->next + l->slice) - l->next;
        int slot = (int)(k % MC_LANE_WINDOW);
        if (l->op[slot])
            return; /* slices ended out of order; this slot's comes back here */
        char *at = place(l, slot);
        l->next += len;
        l->expect[slot] = len;
        l->busy++;
        int st = mc_ucx_post(l, slot, at, len, (uint64_t)k);
        if (st < 0)
            return;
        if (st == 1)
            slice_over(l, slot, len);
    }
}

static void pump_set(struct mc_comm_req *r, enum mc_lane_set set, int64_t limit)
{
    for (int p = 0; p < r->group->base.cfg.size; p++) {
        struct mc_lane *l = mc_lane_of(r, set, p);
        if (limit > 0 && l->bytes > 0)
            l->limit = raise(l, limit);
        pump(l);
    }
}

static void check_done(struct mc_comm_req *r)
{
    if (r->state != MC_REQ_OPEN || r->open > 0 || r->summed < r->own_bytes)
        return;
    r->state = MC_REQ_DONE;
    mc_group_done(r);
}

/* ---- sums ---- */

static int sends_pending(const struct mc_comm_req *r)
{
    for (int p = 0; p < r->group->base.cfg.size; p++) {
        const struct mc_lane *l = mc_lane_of(r, MC_SEND_PART, p);
        if (l->done < l->bytes)
            return 1;
    }
    return 0;
}

/* Sums the slice that is whole in its slot, and sends the sum on where the call has a second step.
 */
static void sum_slice(struct mc_comm_req *r, int slot)
{
    struct mc_group *g = r->group;
    int size = g->base.cfg.size, me = g->base.cfg.me;
    int64_t len = r->own_bytes - r->summed < g->slice ? r->own_bytes - r->summed : g->slice;
    const char *row = g->stage + slot * (size - 1) * g->slice;
    for (int p = 0; p < size; p++) {
        g->src[p] = p == me ? r->own_in + r->summed : row;
        row += p == me ? 0 : g->slice;
    }
    mc_sum_parts(r->dtype, r->op, r->own_out + r->summed, g->src, size,
                 len / (int64_t)mc_dtype_size(r->dtype));
    r->got[slot] = 0;
    r->summed += len;
    pump_set(r, MC_RECV_PART, r->summed + MC_LANE_WINDOW * g->slice);
    pump_set(r, MC_SEND_SUM, r->summed);
}

/* Lets the first in the queue sum what has come, and the next one after it (I1). */
static void run_stage(struct mc_group *g)
{
    if (g->staging) /* we are called from below ourselves: the loop up there goes on */
        return;
    g->staging = 1;
    while (g->first && !g->failed) {
        struct mc_comm_req *r = g->first;
        if (!r->staged) {
            r->staged = 1;
            pump_set(r, MC_RECV_PART, MC_LANE_WINDOW * g->slice);
        }
        int slot = (int)(r->summed / g->slice % MC_LANE_WINDOW);
        if (r->got[slot] < g->base.cfg.size - 1 || (r->aliased && sends_pending(r))) /* I3 */
            break;
        sum_slice(r, slot);
        if (r->summed == r->own_bytes) {
            g->first = r->next;
            check_done(r);
        }
    }
    g->staging = 0;
}

/* Own part of a sum, and a staged lane from every peer. */
static void add_sum(struct mc_comm_req *r, const char *in, char *out, int64_t bytes)
{
    struct mc_group *g = r->group;
    r->own_in = in;
    r->own_out = out;
    r->own_bytes = bytes;
    if (bytes == 0)
        return;
    for (int p = 0; p < g->base.cfg.size; p++)
        if (p != g->base.cfg.me)
            add_lane(r, MC_RECV_PART, p, NULL, bytes, g->slice, 0);
    if (g->first)
        g->last->next = r;
    else
        g->first = r;
    g->last = r;
}

/* ---- events ---- */

/* Books of a slice that has gone or come; posts nothing on this lane. */
static void slice_over(struct mc_lane *l, int slot, int64_t bytes)
{
    struct mc_comm_req *r = l->req;
    struct mc_group *g = r->group;
    l->busy--;
    l->done += bytes;
    mc_ucx_counted(g->net, 0, bytes);
    if (l->done == l->bytes)
        r->open--;
    if (l->set == MC_RECV_PART && !l->ptr)
        r->got[slot]++;
    if ((l->set == MC_RECV_PART && !l->ptr) || r->aliased)
        run_stage(g);
    else if (l->set == MC_RECV_PART && l->done == l->bytes)
        pump_set(r, MC_SEND_SUM, INT64_MAX); /* a long broadcast's second step; else no lanes */
}

void mc_coll_slice_done(struct mc_lane *l, int slot, int64_t bytes)
{
    struct mc_comm_req *r = l->req;
    slice_over(l, slot, bytes);
    pump(l);
    check_done(r);
}

void mc_coll_go(struct mc_comm_req *r)
{
    r->open++; /* not done before all is posted */
    pump_set(r, MC_RECV_PART, 0);
    pump_set(r, MC_RECV_SUM, 0);
    pump_set(r, MC_SEND_PART, 0);
    pump_set(r, MC_SEND_SUM, 0);
    run_stage(r->group);
    r->open--;
    check_done(r);
}

/* ---- calls ---- */

/* Element where part p of n begins: sizes differ by one at most. */
static int64_t part(int64_t n, int size, int p)
{
    return n / size * p + (p < n % size ? p : n % size);
}

void mc_coll_all_reduce(struct mc_comm_req *r, const char *in, char *out, int64_t n)
{
    struct mc_group *g = r->group;
    int size = g->base.cfg.size, me = g->base.cfg.me;
    int64_t es = (int64_t)mc_dtype_size(r->dtype);
    if (n * es <= SLICE_MIN) {
        r->aliased = in == out;
        add_sum(r, in, out, n * es);
        for (int p = 0; p < size; p++)
            if (p != me)
                whole_lane(r, MC_SEND_PART, p, in, n * es);
        return;
    }
    int64_t mine = part(n, size, me) * es, mine_bytes = part(n, size, me + 1) * es - mine;
    add_sum(r, in + mine, out + mine, mine_bytes);
    for (int p = 0; p < size; p++) {
        int64_t at = part(n, size, p) * es, bytes = part(n, size, p + 1) * es - at;
        if (p == me)
            continue;
        add_lane(r, MC_SEND_PART, p, in + at, bytes, g->slice, bytes);
        add_lane(r, MC_RECV_SUM, p, out + at, bytes, g->slice, bytes);
        add_lane(r, MC_SEND_SUM, p, out + mine, mine_bytes, g->slice, 0);
    }
}

void mc_coll_reduce_scatter(struct mc_comm_req *r, const char *in, char *out, const int64_t *counts)
{
    struct mc_group *g = r->group;
    int64_t es = (int64_t)mc_dtype_size(r->dtype), at = 0;
    for (int p = 0; p < g->base.cfg.size; at += counts[p++] * es) {
        if (p == g->base.cfg.me)
            add_sum(r, in + at, out, counts[p] * es);
        else
            add_lane(r, MC_SEND_PART, p, in + at, counts[p] * es, g->slice, counts[p] * es);
    }
}

void mc_coll_all_gather(struct mc_comm_req *r, const char *in, char *out, const int64_t *counts)
{
    int size = r->group->base.cfg.size, me = r->group->base.cfg.me;
    int64_t es = (int64_t)mc_dtype_size(r->dtype), at = 0;
    for (int p = 0; p < size; at += counts[p++] * es) {
        if (p != me) {
            whole_lane(r, MC_SEND_PART, p, in, counts[me] * es);
            whole_lane(r, MC_RECV_PART, p, out + at, counts[p] * es);
        } else if (out + at != in && counts[me] > 0) {
            memcpy(out + at, in, (size_t)(counts[me] * es));
        }
    }
}

void mc_coll_broadcast(struct mc_comm_req *r, char *buf, int root)
{
    int size = r->group->base.cfg.size, me = r->group->base.cfg.me;
    int64_t n = r->bytes, mine = part(n, size, me), mine_bytes = part(n, size, me + 1) - mine;
    int lengthy = n >= BROADCAST_LONG && size > 2;
    for (int p = 0; p < size; p++) {
        int64_t at = part(n, size, p), bytes = part(n, size, p + 1) - at;
        if (p == me)
            continue;
        if (!lengthy) {
            if (me == root || p == root)
                whole_lane(r, me == root ? MC_SEND_PART : MC_RECV_PART, p, buf, n);
            continue;
        }
        if (me == root)
            whole_lane(r, MC_SEND_PART, p, buf + at, bytes);
        else
            whole_lane(r, MC_RECV_SUM, p, buf + at, bytes);
        if (p == root)
            whole_lane(r, MC_RECV_PART, p, buf + mine, mine_bytes);
        else /* root has its own part to begin with, the others when it has come */
            add_lane(r, MC_SEND_SUM, p, buf + mine, mine_bytes, mine_bytes,
                     me == root ? mine_bytes : 0);
    }
}

void mc_coll_all_to_all(struct mc_comm_req *r, const char *in, const int64_t *send, char *out,
                        const int64_t *recv)
{
    int64_t es = (int64_t)mc_dtype_size(r->dtype), from = 0, to = 0;
    for (int p = 0; p < r->group->base.cfg.size; p++) {
        if (p == r->group->base.cfg.me) {
            if (send[p] > 0)
                memcpy(out + to, in + from, (size_t)(send[p] * es));
        } else {
            whole_lane(r, MC_SEND_PART, p, in + from, send[p] * es);
            whole_lane(r, MC_RECV_PART, p, out + to, recv[p] * es);
        }
        from += send[p] * es;
        to += recv[p] * es;
    }
}

void mc_coll_message(struct mc_comm_req *r, char *buf, int peer, enum mc_lane_set set)
{
    whole_lane(r, set, peer, buf, r->bytes);
}

void mc_coll_barrier(struct mc_comm_req *r)
{
    for (int p = 0; p < r->group->base.cfg.size; p++) {
        if (p == r->group->base.cfg.me)
            continue;
        whole_lane(r, MC_SEND_PART, p, &r->token[0], 1);
        whole_lane(r, MC_RECV_PART, p, &r->token[1], 1);
    }
}

/* ---- who is missing ---- */

static int lane_open(const struct mc_comm_req *r, enum mc_lane_set set, int member)
{
    const struct mc_lane *l = mc_lane_of(r, set, member);
    return l->done < l->bytes;
}

int mc_coll_needs(const struct mc_comm_req *r, int member)
{
    for (int s = 0; s < MC_NSETS; s++)
        if (lane_open(r, (enum mc_lane_set)s, member))
            return 1;
    return 0;
}

/* 1: of what this member owes in this step, nothing has come. */
static int silent(const struct mc_comm_req *r, enum mc_lane_set set, int member)
{
    const struct mc_lane *l = mc_lane_of(r, set, member);
    return l->bytes > 0 && l->done == 0;
}

void mc_coll_missing(const struct mc_comm_req *r, char *text, size_t cap, int *sends)
{
    const struct mc_group *g = r->group;
    int size = g->base.cfg.size, found = 0;
    enum { SILENT, SILENT_SUM, SLOW, TAKES, NLOOKS } look;
    text[0] = 0;
    if (r->own_bytes > 0 && !r->staged && g->first)
        r = g->first; /* it received nothing yet since this one has the stage */
    /* Those from whom nothing came; else those who owe something; else who does not take. */
    for (look = SILENT; look < NLOOKS && found == 0; look++) {
        size_t at = 0;
        for (int p = 0; p < size; p++) {
            int it = look == SILENT       ? silent(r, MC_RECV_PART, p)
                     : look == SILENT_SUM ? silent(r, MC_RECV_SUM, p)
                     : look == SLOW ? lane_open(r, MC_RECV_PART, p) || lane_open(r, MC_RECV_SUM, p)
                                    : mc_coll_needs(r, p);
            if (p == g->base.cfg.me || !it)
                continue;
            if (found++ < 8 && at < cap)
                at += (size_t)snprintf(text + at, cap - at, "%s%s", found > 1 ? ", " : "",
                                       mc_ucx_describe(g, p));
        }
        if (found > 8 && at < cap)
            snprintf(text + at, cap - at, " and %d more", found - 8);
        *sends = look == TAKES;
    }
}
