/* simulate.c - time and memory of a proven schedule. Floor 5 (pipe).
 *
 * Times follow from the run of run.c with costs: an op begins when its rank is free and its input
 * is there, `hop` after it was sent. Memory needs no times: on one rank ops follow program order,
 * so what is alive is counted along it.
 *
 * The activation unit of the literature, one microbatch through all layers of a rank, is
 * alive / chunks here.
 *
 * Memory: handle life. Threads: any, one at a time. */
#include <string.h>
#include "../base/arena.h"
#include "sched_int.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void mc_sched_count(struct mc_sched_tally *t, int op)
{
    int ends = op == MC_SCHED_B || op == MC_SCHED_W;
    t->alive += op == MC_SCHED_F;
    t->pending += op == MC_SCHED_B || op == MC_SCHED_I;
    t->most_alive = most(t->most_alive, t->alive);
    t->most_pending = most(t->most_pending, t->pending);
    t->alive -= ends;
    t->pending -= ends;
}

/* chunk: [chunks], zeroed and used here. */
static void count_memory(const struct mc_sched *s, int rank, struct mc_sched_tally *chunk,
                         struct mc_sched_rank_report *out)
{
    struct mc_sched_tally all = {0};
    memset(chunk, 0, (size_t)s->chunks * sizeof *chunk);
    for (int64_t k = s->first[rank]; k < s->first[rank + 1]; k++) {
        const struct mc_sched_rec *x = &s->rec[k];
        mc_sched_count(&all, x->op);
        mc_sched_count(&chunk[x->chunk], x->op);
        out->alive_chunk_max = most(out->alive_chunk_max, chunk[x->chunk].most_alive);
    }
    out->alive = all.most_alive;
    out->pending = all.most_pending;
}

mc_status mc_sched_simulate(const struct mc_sched *s, const struct mc_sched_costs *c,
                            struct mc_sched_report *out, struct mc_err *err)
{
    struct mc_flow f;
    struct mc_run r;
    int done = 0;
    struct mc_sched_tally *chunk = mc_alloc((size_t)s->chunks * sizeof *chunk, "chunks alive");
    if (!chunk)
        return mc_err_set(err, MC_E_NOMEM, "no memory to simulate a schedule");
    mc_status st = mc_flow_create(s, &f, err);
    if (st != MC_OK)
        goto no_flow;
    MC_TRY_GOTO(st, mc_run_create(s, &f, c->depth, c, &r, err), no_run);
    MC_TRY_GOTO(st, mc_run_all(&r, &done, err), end);
    MC_ASSERT(done);
    double first = 0, last = 0, busy = 0;
    for (int i = 0; i < s->ranks; i++) {
        struct mc_sched_rank_report rank = {0};
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            double t = mc_sched_took(c, x->op, s->place[i * s->chunks + x->chunk]);
            if (k == s->first[i])
                rank.first = r.start[k];
            rank.busy += t;
            rank.last = r.start[k] + t;
        }
        count_memory(s, i, chunk, &rank);
        first = i == 0 || rank.first < first ? rank.first : first;
        last = rank.last > last ? rank.last : last;
        busy += rank.busy;
        if (out->rank)
            out->rank[i] = rank;
    }
    if (out->start)
        memcpy(out->start, r.start, (size_t)s->first[s->ranks] * sizeof *out->start);
    out->makespan = last - first;
    out->bubble = out->makespan > 0 ? 1 - busy / (s->ranks * out->makespan) : 0;
end:
    mc_run_destroy(&r);
no_run:
    mc_flow_destroy(&f);
no_flow:
    mc_free(chunk);
    return st;
}
