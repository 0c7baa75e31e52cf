/* run.c - all ranks at once, each in its own order, under bounded channels. Floor 5 (pipe).
 *
 * The rule of the transport, as the executor keeps it: an op begins when its input is there, and
 * takes the message out of the channel as it begins; when it has ended, its own message is sent as
 * soon as fewer than `depth` messages of that channel are sent and not yet taken, and the rank does
 * nothing else before that. So a rank waits for an input or for room, and for nothing else.
 *
 * I1  The order in which ranks are looked at changes neither who can go on nor any time: each
 *     record's times follow from its predecessors' alone. More room never locks what runs with
 *     less.
 * I2  Work is O(records): a rank is looked at again only when a message came or room was made.
 *
 * Memory: handle life. Threads: one. */
#include <string.h>
#include "../base/arena.h"
#include "sched_int.h"

mc_status mc_run_create(const struct mc_sched *s, const struct mc_flow *f, int depth,
                        const struct mc_sched_costs *c, struct mc_run *r, struct mc_err *err)
{
    size_t n = (size_t)s->first[s->ranks], p = (size_t)s->ranks;
    *r = (struct mc_run){.s = s, .f = f, .depth = depth, .c = c};
    r->at = mc_alloc(p * sizeof *r->at, "places of ranks");
    r->full = mc_alloc(p, "waits of ranks");
    r->now = mc_alloc(p * sizeof *r->now, "times of ranks");
    r->start = mc_alloc((n + 1) * sizeof *r->start, "starts of records");
    r->sent = mc_alloc((n + 1) * sizeof *r->sent, "ends of records");
    if (!r->at || !r->full || !r->now || !r->start || !r->sent) {
        mc_run_destroy(r);
        return mc_err_set(err, MC_E_NOMEM, "no memory to run a schedule of %zu records", n);
    }
    for (size_t k = 0; k < n; k++)
        r->start[k] = r->sent[k] = -1;
    for (int i = 0; i < s->ranks; i++)
        r->at[i] = s->first[i];
    return MC_OK;
}

void mc_run_destroy(struct mc_run *r)
{
    mc_free(r->at);
    mc_free(r->full);
    mc_free(r->now);
    mc_free(r->start);
    mc_free(r->sent);
    memset(r, 0, sizeof *r);
}

static double cost(const struct mc_run *r, int rank, const struct mc_sched_rec *x)
{
    return r->c ? mc_sched_took(r->c, x->op, r->s->place[rank * r->s->chunks + x->chunk]) : 0;
}

/* The record that must have begun before the message of record k may be sent; -1: none. */
static int64_t room_after(const struct mc_run *r, int64_t k)
{
    const struct mc_flow_rec *x = &r->f->rec[k];
    if (x->out_nth < r->depth)
        return -1;
    return r->f->message[r->f->channel[x->out].base + x->out_nth - r->depth];
}

struct queue {
    int *rank, n;
    uint8_t *in;
};
static void look(struct queue *t, int rank)
{
    if (!t->in[rank]) {
        t->in[rank] = 1;
        t->rank[t->n++] = rank;
    }
}

static void advance(struct mc_run *r, int rank, struct queue *queue)
{
    const struct mc_sched *s = r->s;
    const struct mc_flow *f = r->f;
    for (;;) {
        if (r->full[rank]) {
            int64_t k = r->at[rank] - 1, before = room_after(r, k);
            if (before >= 0 && r->start[before] < 0)
                return;
            if (before >= 0 && r->start[before] > r->now[rank])
                r->now[rank] = r->start[before];
            r->sent[k] = r->now[rank];
            r->full[rank] = 0;
            look(queue, f->channel[f->rec[k].out].to); /* I2 */
        }
        int64_t k = r->at[rank];
        if (k == s->first[rank + 1])
            return;
        const struct mc_flow_rec *x = &f->rec[k];
        double begin = r->now[rank];
        if (x->needs >= 0) {
            double there = r->sent[x->needs];
            if (there < 0)
                return;
            if (x->in >= 0 && r->c)
                there += r->c->hop;
            if (there > begin)
                begin = there;
        }
        r->start[k] = begin;
        r->now[rank] = begin + cost(r, rank, &s->rec[k]);
        r->at[rank]++;
        if (x->in >= 0)
            look(queue, f->channel[x->in].from); /* room was made */
        if (x->out >= 0)
            r->full[rank] = 1;
        else
            r->sent[k] = r->now[rank];
    }
}

mc_status mc_run_all(struct mc_run *r, int *done, struct mc_err *err)
{
    const struct mc_sched *s = r->s;
    struct queue queue = {.rank = mc_alloc((size_t)s->ranks * sizeof(int), "ranks to look at"),
                          .in = mc_alloc((size_t)s->ranks, "ranks to look at")};
    mc_status st = MC_OK;
    if (queue.rank && queue.in) {
        for (int i = s->ranks - 1; i >= 0; i--)
            look(&queue, i);
        while (queue.n > 0) {
            int rank = queue.rank[--queue.n];
            queue.in[rank] = 0;
            advance(r, rank, &queue);
        }
        *done = 1;
        for (int i = 0; i < s->ranks; i++)
            *done &= r->at[i] == s->first[i + 1] && !r->full[i];
    } else {
        st = mc_err_set(err, MC_E_NOMEM, "no memory to run a schedule of %d ranks", s->ranks);
    }
    mc_free(queue.rank);
    mc_free(queue.in);
    return st;
}

struct mc_run_wait mc_run_waits(const struct mc_run *r, int rank)
{
    struct mc_run_wait w = {.rank = -1, .record = -1};
    if (r->full[rank]) {
        w.room = 1;
        w.record = room_after(r, r->at[rank] - 1);
    } else if (r->at[rank] < r->s->first[rank + 1]) {
        w.record = r->f->rec[r->at[rank]].needs;
    }
    if (w.record >= 0)
        w.rank = mc_flow_rank_of(r->s, w.record);
    return w;
}
