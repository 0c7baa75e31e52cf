/* sched.c - making a schedule, and naming its records. Floor 5 (pipe).
 *
 * Memory: handle life. Threads: any, one at a time. */
#include "sched_int.h"
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"

const char *mc_sched_op_name(int op)
{
    static const char *const names[MC_SCHED_NOPS] = {"F", "B", "I", "W"};
    return op >= 0 && op < MC_SCHED_NOPS ? names[op] : "?";
}

mc_status mc_sched_create(const char *name, int ranks, int chunks, int microbatches,
                          const int64_t *counts, struct mc_sched **out, struct mc_err *err)
{
    if (ranks < 1 || ranks > MC_SCHED_MAX_RANKS || chunks < 1 || chunks > MC_SCHED_MAX_CHUNKS ||
        microbatches < 1)
        return mc_err_set(
            err, MC_E_RECIPE,
            "%s: %d ranks, %d chunks, %d microbatches: at least 1 of each, at most %d "
            "ranks and %d chunks",
            name, ranks, chunks, microbatches, MC_SCHED_MAX_RANKS, MC_SCHED_MAX_CHUNKS);
    int64_t all = 0;
    for (int r = 0; r < ranks; r++) {
        if (counts[r] < 0 || counts[r] > MC_SCHED_MAX_RECORDS - all)
            return mc_err_set(err, MC_E_RECIPE, "%s: more than %d records", name,
                              MC_SCHED_MAX_RECORDS);
        all += counts[r];
    }
    struct mc_sched *s = mc_alloc(sizeof *s, "schedule");
    if (!s)
        goto nomem;
    snprintf(s->name, sizeof s->name, "%s", name);
    s->ranks = ranks;
    s->chunks = chunks;
    s->microbatches = microbatches;
    s->place = mc_alloc((size_t)(ranks * chunks) * sizeof *s->place, "stages of a schedule");
    s->first = mc_alloc((size_t)(ranks + 1) * sizeof *s->first, "ranks of a schedule");
    s->rec = mc_alloc((size_t)(all ? all : 1) * sizeof *s->rec, "records of a schedule");
    if (!s->place || !s->first || !s->rec)
        goto nomem;
    for (int r = 0; r < ranks; r++) {
        s->first[r + 1] = s->first[r] + counts[r];
        for (int c = 0; c < chunks; c++)
            s->place[r * chunks + c] = c * ranks + r;
    }
    *out = s;
    return MC_OK;
nomem:
    mc_sched_destroy(s);
    return mc_err_set(err, MC_E_NOMEM, "no memory for a schedule of %lld records", (long long)all);
}

void mc_sched_destroy(struct mc_sched *s)
{
    if (!s)
        return;
    mc_free(s->place);
    mc_free(s->first);
    mc_free(s->rec);
    mc_free(s);
}

int mc_flow_rank_of(const struct mc_sched *s, int64_t record)
{
    int lo = 0, hi = s->ranks - 1;
    while (lo < hi) { /* the first rank that ends behind it */
        int mid = (lo + hi) / 2;
        if (s->first[mid + 1] > record)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

void mc_sched_say(const struct mc_sched *s, int64_t record, char out[96])
{
    int r = mc_flow_rank_of(s, record);
    const struct mc_sched_rec *x = &s->rec[record];
    char chunk[24] = "";
    if (s->chunks > 1)
        snprintf(chunk, sizeof chunk, ", chunk %d", x->chunk);
    snprintf(out, 96, "rank %d slot %lld (%s of microbatch %d%s)", r,
             (long long)(record - s->first[r]), mc_sched_op_name(x->op), x->mb, chunk);
}

double mc_sched_took(const struct mc_sched_costs *c, int op, int stage)
{
    return op == MC_SCHED_F   ? c->f[stage]
           : op == MC_SCHED_I ? c->i[stage]
           : op == MC_SCHED_W ? c->w[stage]
                              : c->i[stage] + c->w[stage];
}
