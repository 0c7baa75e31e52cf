/* line.c - a run's pipelines as data: cut, schedules, and what follows from both. Floor 5 (pipe).
 *
 * I1  All schedules of a line have one stage map: which layers a rank holds cannot depend on the
 *     number of microbatches.
 * I2  Parts of a rank's graph are in the order of the model whatever the map says: storage, buckets
 *     and checkpoints follow them.
 * I3  What a rank can have under way at once (channels x room) fits into the calls that a group
 *     keeps open; a line that wants more is refused here, before any rank starts.
 *
 * Memory: a handle that owns its schedules. Threads: any, one at a time; read by many. */
#include "line.h"
#include <string.h>
#include "../base/arena.h"
#include "../comm/comm.h"
#include "../graph/graph.h"

/* ---- create ---- */

static mc_status check_cut(const struct mc_line *line, struct mc_err *err)
{
    int stages = line->ranks * line->chunks;
    if (line->cut[0] != 0)
        return mc_err_set(err, MC_E_RECIPE, "the cut begins with layer %d, not with layer 0",
                          line->cut[0]);
    for (int s = 0; s < stages; s++) {
        int n = line->cut[s + 1] - line->cut[s];
        if (n < 0 || (n == 0 && s > 0 && s + 1 < stages))
            return mc_err_set(err, MC_E_RECIPE,
                              "stage %d of %d would have %d layers; at least 1, or 0 where the "
                              "embedding or the head is",
                              s, stages, n);
    }
    return MC_OK;
}

/* The stage map turned round. The proof says it better when it is not one to one, but what follows
 * here relies on it. */
static mc_status turn_place(const struct mc_line *line, struct mc_err *err)
{
    int stages = line->ranks * line->chunks;
    for (int s = 0; s < stages; s++)
        line->at[s] = -1;
    for (int i = 0; i < stages; i++) {
        int s = line->sched[0]->place[i];
        if (s < 0 || s >= stages || line->at[s] >= 0)
            return mc_err_set(err, MC_E_RECIPE, "%s: its stage map is not one to one",
                              line->sched[0]->name);
        line->at[s] = i;
    }
    return MC_OK;
}

static mc_status check_schedules(const struct mc_line *line, struct mc_err *err)
{
    for (int k = 0; k < line->nsched; k++) {
        const struct mc_sched *s = line->sched[k];
        if (s->ranks != line->ranks || s->chunks != line->chunks)
            return mc_err_set(err, MC_E_RECIPE,
                              "%s: a schedule of %d ranks and %d chunks in a line of %d and %d",
                              s->name, s->ranks, s->chunks, line->ranks, line->chunks);
        if (k > 0 && s->microbatches <= line->sched[k - 1]->microbatches)
            return mc_err_set(err, MC_E_RECIPE,
                              "%s: the schedule of %d microbatches comes after that of %d; they "
                              "ascend",
                              s->name, s->microbatches, line->sched[k - 1]->microbatches);
        for (int i = 0; i < line->ranks * line->chunks; i++) /* I1 */
            if (s->place[i] != line->sched[0]->place[i])
                return mc_err_set(
                    err, MC_E_RECIPE,
                    "%s: rank %d chunk %d is stage %d with %d microbatches, but stage "
                    "%d with %d; a stage map must not depend on their number",
                    s->name, i / line->chunks, i % line->chunks, line->sched[0]->place[i],
                    line->sched[0]->microbatches, s->place[i], s->microbatches);
    }
    return turn_place(line, err);
}

int mc_line_messages(const struct mc_line *line)
{
    return mc_comm_calls(line->ranks) * 7 / 8;
}

static mc_status check_messages(const struct mc_line *line, struct mc_err *err) /* I3 */
{
    struct mc_line_channel channel[4 * MC_LINE_MAX_CHUNKS];
    for (int r = 0; r < line->ranks; r++) {
        int n = mc_line_channels(line, r, channel);
        int64_t all = 0;
        for (int i = 0; i < n; i++)
            all += channel[i].room;
        if (all > mc_line_messages(line))
            return mc_err_set(
                err, MC_E_RECIPE,
                "%s: rank %d has %d channels, those that it sends on hold %d messages "
                "each: %lld messages under way at once are more than %d. A schedule "
                "whose channels hold fewer (each rank takes what waits for it sooner) "
                "or fewer microbatches would do",
                line->sched[0]->name, r, n, line->depth, (long long)all, mc_line_messages(line));
    }
    return MC_OK;
}

mc_status mc_line_create(int ranks, int chunks, const int *cut, struct mc_sched **take_sched, int n,
                         int depth, struct mc_line **out, struct mc_err *err)
{
    size_t stages = (size_t)ranks * (size_t)chunks;
    mc_status st = MC_OK;
    struct mc_line *line = mc_alloc(sizeof *line, "pipeline");
    if (ranks < 1 || ranks > MC_SCHED_MAX_RANKS || chunks < 1 || chunks > MC_LINE_MAX_CHUNKS ||
        n < 1 || n > MC_LINE_MAX_SCHEDULES || depth < 1)
        st = mc_err_set(err, MC_E_RECIPE,
                        "a pipeline of %d ranks, %d chunks, %d schedules, depth %d: at least 1 of "
                        "each, at most %d ranks, %d chunks, %d schedules",
                        ranks, chunks, n, depth, MC_SCHED_MAX_RANKS, MC_LINE_MAX_CHUNKS,
                        MC_LINE_MAX_SCHEDULES);
    else if (line) {
        line->cut = mc_alloc((stages + 1) * sizeof *line->cut, "cut of a pipeline");
        line->at = mc_alloc(stages * sizeof *line->at, "stages of a pipeline");
        line->sched = mc_alloc((size_t)n * sizeof *line->sched, "schedules of a pipeline");
    }
    if (st == MC_OK && (!line || !line->cut || !line->at || !line->sched))
        st = mc_err_set(err, MC_E_NOMEM, "no memory for a pipeline of %zu stages", stages);
    if (st != MC_OK) {
        for (int k = 0; k < n; k++)
            mc_sched_destroy(take_sched[k]);
        mc_line_destroy(line);
        return st;
    }
    line->ranks = ranks;
    line->chunks = chunks;
    line->depth = depth;
    line->nsched = n;
    memcpy(line->cut, cut, (stages + 1) * sizeof *cut);
    memcpy(line->sched, take_sched, (size_t)n * sizeof(struct mc_sched *));
    MC_TRY_GOTO(st, check_schedules(line, err), bad);
    MC_TRY_GOTO(st, check_cut(line, err), bad);
    MC_TRY_GOTO(st, check_messages(line, err), bad);
    *out = line;
    return MC_OK;
bad:
    mc_line_destroy(line);
    return st;
}

void mc_line_destroy(struct mc_line *line)
{
    if (!line)
        return;
    for (int k = 0; k < line->nsched; k++)
        mc_sched_destroy(line->sched[k]);
    mc_free(line->sched);
    mc_free(line->at);
    mc_free(line->cut);
    mc_free(line);
}

mc_status mc_line_forward(int ranks, const int *cut, int m, struct mc_line **line,
                          struct mc_err *err)
{
    struct mc_sched *s = NULL;
    int64_t *counts = mc_alloc((size_t)ranks * sizeof *counts, "records of a schedule");
    if (!counts)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a pipeline of %d ranks", ranks);
    for (int r = 0; r < ranks; r++)
        counts[r] = m;
    mc_status st = mc_sched_create("forward", ranks, 1, m, counts, &s, err);
    mc_free(counts);
    if (st != MC_OK)
        return st;
    for (int r = 0; r < ranks; r++)
        for (int k = 0; k < m; k++)
            s->rec[s->first[r] + k] = (struct mc_sched_rec){.mb = k, .op = MC_SCHED_F};
    return mc_line_create(ranks, 1, cut, &s, 1, 2, line, err);
}

/* ---- what follows ---- */

static int has_op(const struct mc_sched *s, unsigned ops)
{
    for (int64_t k = 0; k < s->first[s->ranks]; k++)
        if (ops >> s->rec[k].op & 1)
            return 1;
    return 0;
}

int mc_line_split(const struct mc_line *line)
{
    for (int k = 0; k < line->nsched; k++)
        if (has_op(line->sched[k], 1u << MC_SCHED_I | 1u << MC_SCHED_W))
            return 1;
    return 0;
}

/* The most of any schedule. One that goes forward alone keeps nothing. */
static struct mc_sched_tally most_at_once(const struct mc_line *line, int rank, int chunk)
{
    struct mc_sched_tally most = {.most_alive = 1, .most_pending = 1};
    for (int n = 0; n < line->nsched; n++) {
        const struct mc_sched *s = line->sched[n];
        struct mc_sched_tally t = {0};
        for (int64_t k = s->first[rank]; k < s->first[rank + 1]; k++)
            if (s->rec[k].chunk == chunk)
                mc_sched_count(&t, s->rec[k].op);
        if (t.most_pending > 0 && t.most_alive > most.most_alive)
            most.most_alive = t.most_alive;
        if (t.most_pending > most.most_pending)
            most.most_pending = t.most_pending;
    }
    return most;
}

int mc_line_slots(const struct mc_line *line, int rank, int chunk)
{
    return (int)most_at_once(line, rank, chunk).most_alive;
}

int mc_line_pending(const struct mc_line *line, int rank, int chunk)
{
    return (int)most_at_once(line, rank, chunk).most_pending;
}

static int stage_of(const struct mc_line *line, int rank, int chunk)
{
    return line->sched[0]->place[rank * line->chunks + chunk];
}

int mc_line_chunk(const struct mc_line *line, int rank, int k)
{
    for (int c = 0; c < line->chunks; c++) {
        int before = 0;
        for (int other = 0; other < line->chunks; other++)
            before += stage_of(line, rank, other) < stage_of(line, rank, c);
        if (before == k)
            return c;
    }
    return -1; /* no such part */
}

void mc_line_part(const struct mc_line *line, int rank, int k, struct mc_graph_part *part)
{
    int c = mc_line_chunk(line, rank, k), s = stage_of(line, rank, c); /* I2 */
    *part = (struct mc_graph_part){.first_layer = line->cut[s],
                                   .end_layer = line->cut[s + 1],
                                   .has_stem = s == 0,
                                   .has_head = s + 1 == line->ranks * line->chunks,
                                   .slots = mc_line_slots(line, rank, c),
                                   .pending = mc_line_pending(line, rank, c)};
}

int mc_line_head(const struct mc_line *line)
{
    return line->at[line->ranks * line->chunks - 1] / line->chunks;
}

int mc_line_stem(const struct mc_line *line)
{
    return line->at[0] / line->chunks;
}

const struct mc_sched *mc_line_sched(const struct mc_line *line, int64_t m)
{
    for (int k = 0; k < line->nsched; k++)
        if (line->sched[k]->microbatches == m)
            return line->sched[k];
    return NULL;
}

static int add_channel(struct mc_line_channel *channel, int n, int peer, int kind, int sends)
{
    int i = 0;
    while (i < n &&
           (channel[i].peer != peer || channel[i].kind != kind || channel[i].sends != sends))
        i++;
    if (i == n)
        channel[n++] = (struct mc_line_channel){.peer = peer, .kind = kind, .sends = sends};
    channel[i].per_mb++;
    return n;
}

int mc_line_channels(const struct mc_line *line, int rank, struct mc_line_channel *channel)
{
    const struct mc_sched *largest = line->sched[line->nsched - 1];
    int stages = line->ranks * line->chunks, n = 0;
    int backward = has_op(largest, ~(1u << MC_SCHED_F));
    for (int c = 0; c < line->chunks; c++) {
        int s = stage_of(line, rank, c);
        for (int step = -1; step <= 1; step += 2) {
            int other = s + step, peer;
            if (other < 0 || other >= stages || (peer = line->at[other] / line->chunks) == rank)
                continue;
            n = add_channel(channel, n, peer, MC_SCHED_F, step > 0);
            if (backward)
                n = add_channel(channel, n, peer, MC_SCHED_I, step < 0);
        }
    }
    for (int i = 0; i < n; i++) {
        int64_t all = (int64_t)channel[i].per_mb * largest->microbatches;
        int room = channel[i].sends || line->depth < MC_LINE_POSTED ? line->depth : MC_LINE_POSTED;
        channel[i].room = all < room ? (int)all : room;
    }
    return n;
}
