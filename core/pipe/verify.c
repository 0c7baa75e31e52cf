/* verify.c - a schedule is proven before any device is taken. Floor 5 (pipe).
 *
 * Checked in this order; the first that fails is told, by its first record:
 *   P1  stage map: every stage on exactly one (rank, chunk)
 *   P2  known ops, chunks and microbatches
 *   P3  each (stage, microbatch) has exactly one F and exactly one B, or one I and one W
 *   P4  on its rank: F before I or B; I before W
 *   P5  weight gradients of a stage in ascending microbatches: the order of a sum is its value, so
 *       every accepted schedule gives the same bits
 *   P6  channels: the k-th message sent is the k-th taken
 *   P7  progress: all ranks reach their end under channels that hold `depth` messages
 *   P8  memory: pairs alive at once on a rank within the limit; each is freed exactly once (by P3)
 * What crosses stages (F after the F before, I after the I behind) is P7's: an order that breaks it
 * stands still. Ops with other meanings (gather and free weights, recompute, overlapped pairs) are
 * reserved and refused by P2.
 *
 * P7's counter-example is a shortest circle of waits: each rank that stands waits for one record of
 * one rank, so the waits form a graph with one edge a rank, whose circles are found by walking it.
 *
 * Memory: handle life, O(records). Threads: any, one at a time. */
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"
#include "sched_int.h"

static mc_status check_place(const struct mc_sched *s, struct mc_err *err) /* P1 */
{
    int stages = mc_sched_stages(s);
    int *at = mc_alloc((size_t)stages * sizeof *at, "stages of a schedule");
    mc_status st = MC_OK;
    if (!at)
        return mc_err_set(err, MC_E_NOMEM, "no memory to check a schedule of %d stages", stages);
    for (int i = 0; i < stages && st == MC_OK; i++) {
        int stage = s->place[i];
        if (stage < 0 || stage >= stages)
            st = mc_err_set(err, MC_E_RECIPE,
                            "%s: place puts stage %d on rank %d; stages are 0 to %d", s->name,
                            stage, i / s->chunks, stages - 1);
        else if (at[stage])
            st = mc_err_set(err, MC_E_RECIPE,
                            "%s: place puts stage %d on rank %d (chunk %d) and on rank %d (chunk "
                            "%d)",
                            s->name, stage, (at[stage] - 1) / s->chunks,
                            (at[stage] - 1) % s->chunks, i / s->chunks, i % s->chunks);
        else
            at[stage] = i + 1;
    }
    mc_free(at);
    return st;
}

static mc_status check_ids(const struct mc_sched *s, struct mc_err *err) /* P2 */
{
    for (int r = 0; r < s->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            char slot[96];
            snprintf(slot, sizeof slot, "rank %d slot %lld", r, (long long)(k - s->first[r]));
            if (x->op < 0 || x->op >= MC_SCHED_NOPS)
                return mc_err_set(err, MC_E_RECIPE, "%s: %s: op %d is none of F, B, I, W", s->name,
                                  slot, x->op);
            if (x->chunk < 0 || x->chunk >= s->chunks)
                return mc_err_set(err, MC_E_RECIPE, "%s: %s: chunk %d; chunks are 0 to %d", s->name,
                                  slot, x->chunk, s->chunks - 1);
            if (x->mb < 0 || x->mb >= s->microbatches)
                return mc_err_set(err, MC_E_RECIPE,
                                  "%s: %s: microbatch %d; microbatches are 0 to %d", s->name, slot,
                                  x->mb, s->microbatches - 1);
        }
    return MC_OK;
}

/* The one slot of a (stage, microbatch, what) must be free. */
static mc_status once(const struct mc_sched *s, int64_t *at, int64_t k, struct mc_err *err)
{
    char a[96], b[96];
    if (*at < 0) {
        *at = k;
        return MC_OK;
    }
    mc_sched_say(s, *at, a);
    mc_sched_say(s, k, b);
    return mc_err_set(err, MC_E_RECIPE, "%s: %s does again what %s did", s->name, b, a);
}

/* f: its three tables are filled here, record by record, so that a second one is seen. */
static mc_status check_complete(const struct mc_sched *s, struct mc_flow *f,
                                struct mc_err *err) /* P3 */
{
    int64_t m = s->microbatches, pairs = mc_sched_stages(s) * m;
    for (int64_t i = 0; i < pairs; i++)
        f->forward[i] = f->grad[i] = f->weight[i] = -1;
    for (int r = 0; r < s->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            int64_t at = s->place[r * s->chunks + x->chunk] * m + x->mb;
            if (x->op == MC_SCHED_F)
                MC_TRY(once(s, &f->forward[at], k, err));
            if (x->op == MC_SCHED_B || x->op == MC_SCHED_I)
                MC_TRY(once(s, &f->grad[at], k, err));
            if (x->op == MC_SCHED_B || x->op == MC_SCHED_W)
                MC_TRY(once(s, &f->weight[at], k, err));
        }
    for (int64_t i = 0; i < pairs; i++) {
        const char *none = f->forward[i] < 0                    ? "F"
                           : f->grad[i] < 0 && f->weight[i] < 0 ? "B (or I and W)"
                           : f->grad[i] < 0                     ? "I"
                           : f->weight[i] < 0                   ? "W"
                                                                : NULL;
        int stage = (int)(i / m);
        if (none)
            return mc_err_set(err, MC_E_RECIPE,
                              "%s: rank %d never does %s of microbatch %lld, chunk %d (stage %d)",
                              s->name, f->rank_of[stage], none, (long long)(i % m),
                              f->chunk_of[stage], stage);
    }
    return MC_OK;
}

static mc_status check_local(const struct mc_sched *s, const struct mc_flow *f,
                             struct mc_err *err) /* P4, P5 */
{
    int64_t m = s->microbatches, pairs = mc_sched_stages(s) * m;
    char a[96], b[96];
    for (int64_t i = 0; i < pairs; i++) {
        if (f->grad[i] < f->forward[i]) {
            mc_sched_say(s, f->grad[i], a);
            mc_sched_say(s, f->forward[i], b);
            return mc_err_set(err, MC_E_RECIPE, "%s: %s comes before its forward, %s", s->name, a,
                              b);
        }
        if (f->weight[i] < f->grad[i]) {
            mc_sched_say(s, f->weight[i], a);
            mc_sched_say(s, f->grad[i], b);
            return mc_err_set(err, MC_E_RECIPE,
                              "%s: %s comes before the gradient that it needs, "
                              "%s",
                              s->name, a, b);
        }
        if (i % m > 0 && f->weight[i] < f->weight[i - 1]) {
            mc_sched_say(s, f->weight[i], a);
            mc_sched_say(s, f->weight[i - 1], b);
            return mc_err_set(err, MC_E_RECIPE,
                              "%s: %s comes before %s: weight gradients are added in ascending "
                              "microbatches, so that every schedule gives the same numbers",
                              s->name, a, b);
        }
    }
    return MC_OK;
}

static mc_status check_channels(const struct mc_sched *s, const struct mc_flow *f,
                                struct mc_err *err) /* P6 */
{
    char a[96], b[96], c[96];
    for (int64_t k = 0; k < s->first[s->ranks]; k++) {
        const struct mc_flow_rec *x = &f->rec[k];
        if (x->out < 0 || f->rec[x->feeds].in_nth == x->out_nth)
            continue;
        const struct mc_flow_channel *ch = &f->channel[x->out];
        int64_t other = -1; /* who takes the receiver's out_nth message */
        for (int64_t j = s->first[ch->to]; j < s->first[ch->to + 1]; j++)
            if (f->rec[j].in == x->out && f->rec[j].in_nth == x->out_nth)
                other = j;
        mc_sched_say(s, k, a);
        mc_sched_say(s, x->feeds, b);
        mc_sched_say(s, other, c);
        return mc_err_set(err, MC_E_RECIPE,
                          "%s: message %d from rank %d to rank %d is sent by %s for %s, but the "
                          "receiver's message %d is for %s: both must go in one order",
                          s->name, x->out_nth, ch->from, ch->to, a, b, x->out_nth, c);
    }
    return MC_OK;
}

/* -- P7 --------------------------------------------------------------------------------------- */

/* A shortest circle of waits; or, when a rank waits for what has no end of its own (cannot be: P3),
 * nothing. Returns its length, ranks in circle[]. */
static int shortest_circle(const struct mc_run *r, int *mark, int *circle)
{
    int best = 0, p = r->s->ranks;
    for (int i = 0; i < p; i++)
        mark[i] = 0;
    for (int i = 0, walk = 1; i < p; i++, walk++) {
        int at = i;
        while (at >= 0 && mark[at] == 0) {
            mark[at] = walk;
            at = mc_run_waits(r, at).rank;
        }
        if (at < 0 || mark[at] != walk)
            continue;
        int n = 0, b = at;
        do {
            n++;
            b = mc_run_waits(r, b).rank;
        } while (b != at);
        if (best && n >= best)
            continue;
        best = n;
        for (int k = 0; k < n; k++, b = mc_run_waits(r, b).rank)
            circle[k] = b;
    }
    return best;
}

static mc_status tell_circle(const struct mc_run *r, const int *circle, int n, struct mc_err *err)
{
    const struct mc_sched *s = r->s;
    char text[1200], a[96], b[96];
    size_t len = (size_t)snprintf(text, sizeof text, "%s: the ranks lock: ", s->name);
    for (int k = 0; k < n && k < 6 && len < sizeof text; k++) {
        struct mc_run_wait w = mc_run_waits(r, circle[k]);
        int64_t stands = r->at[circle[k]] - (r->full[circle[k]] ? 1 : 0);
        mc_sched_say(s, stands, a);
        mc_sched_say(s, w.record, b);
        if (w.room)
            len += (size_t)snprintf(text + len, sizeof text - len,
                                    "%s%s cannot send (%d message%s wait in the channel) before "
                                    "%s has begun",
                                    k ? "; " : "", a, r->depth, r->depth == 1 ? "" : "s", b);
        else
            len += (size_t)snprintf(text + len, sizeof text - len, "%s%s waits for %s",
                                    k ? "; " : "", a, b);
    }
    if (n > 6 && len < sizeof text)
        snprintf(text + len, sizeof text - len, "; and so on over %d ranks", n);
    return mc_err_set(err, MC_E_RECIPE, "%s", text);
}

/* The state in which all stand: what is done, and after '|' what would come next. */
static void draw_stuck(const struct mc_run *r, void (*line)(void *, const char *), void *arg)
{
    const struct mc_sched *s = r->s;
    for (int i = 0; i < s->ranks && i < 64; i++) {
        char text[200];
        int64_t from = r->at[i] - 12 < s->first[i] ? s->first[i] : r->at[i] - 12;
        size_t n =
            (size_t)snprintf(text, sizeof text, "rank %-3d %s", i, from > s->first[i] ? ".. " : "");
        for (int64_t k = from; k < s->first[i + 1] && k < r->at[i] + 3 && n < 150; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            char chunk[16] = "";
            if (s->chunks > 1)
                snprintf(chunk, sizeof chunk, "'%d", x->chunk);
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s%d%s ",
                                  k == r->at[i] ? (r->full[i] ? ">| " : "| ") : "",
                                  mc_sched_op_name(x->op), x->mb, chunk);
        }
        if (r->at[i] == s->first[i + 1])
            snprintf(text + n, sizeof text - n, "%s", r->full[i] ? ">|" : "| end");
        line(arg, text);
    }
}

static mc_status check_progress(const struct mc_sched *s, const struct mc_flow *f, int depth,
                                void (*picture)(void *, const char *), void *arg,
                                struct mc_err *err)
{
    struct mc_run r;
    int done = 0, *room = NULL;
    MC_TRY(mc_run_create(s, f, depth, NULL, &r, err));
    mc_status st = mc_run_all(&r, &done, err);
    if (st == MC_OK && !done) {
        room = mc_alloc(2 * (size_t)s->ranks * sizeof *room, "circles of waits");
        if (!room) {
            st = mc_err_set(err, MC_E_NOMEM, "no memory to name the circle of a schedule");
        } else {
            int n = shortest_circle(&r, room, room + s->ranks);
            MC_ASSERT(n >
                      0); /* who stands waits for one that stands: every walk ends in a circle */
            st = tell_circle(&r, room + s->ranks, n, err);
            if (picture)
                draw_stuck(&r, picture, arg);
        }
    }
    mc_free(room);
    mc_run_destroy(&r);
    return st;
}

static mc_status check_memory(const struct mc_sched *s, const int64_t *limit, struct mc_err *err)
{
    for (int r = 0; r < s->ranks; r++) {
        int64_t alive = 0;
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            int op = s->rec[k].op;
            char at[96];
            alive += op == MC_SCHED_F;
            if (alive > limit[r]) {
                mc_sched_say(s, k, at);
                return mc_err_set(err, MC_E_RECIPE,
                                  "%s: with %s, %lld microbatches of a chunk are kept at once; "
                                  "memory allows %lld",
                                  s->name, at, (long long)alive, (long long)limit[r]);
            }
            alive -= op == MC_SCHED_B || op == MC_SCHED_W;
        }
    }
    return MC_OK;
}

mc_status mc_sched_verify(const struct mc_sched *s, const struct mc_sched_limits *lim,
                          void (*picture)(void *, const char *), void *arg, struct mc_err *err)
{
    struct mc_flow f;
    MC_ASSERT(lim->depth >= 1);
    MC_TRY(check_place(s, err));
    MC_TRY(check_ids(s, err));
    MC_TRY(mc_flow_create(s, &f, err));
    mc_status st = check_complete(s, &f, err);
    if (st == MC_OK)
        st = check_local(s, &f, err);
    if (st == MC_OK)
        st = check_channels(s, &f, err);
    if (st == MC_OK)
        st = check_progress(s, &f, lim->depth, picture, arg, err);
    if (st == MC_OK && lim->alive)
        st = check_memory(s, lim->alive, err);
    mc_flow_destroy(&f);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

static mc_status runs(const struct mc_sched *s, const struct mc_flow *f, int depth, int *done,
                      struct mc_err *err)
{
    struct mc_run r;
    MC_TRY(mc_run_create(s, f, depth, NULL, &r, err));
    mc_status st = mc_run_all(&r, done, err);
    mc_run_destroy(&r);
    return st;
}

mc_status mc_sched_least_depth(const struct mc_sched *s, int most, int *depth, struct mc_err *err)
{
    struct mc_flow f;
    int lo = 0, hi = 1, done = 0; /* lo locks, hi is tried */
    MC_TRY(mc_flow_create(s, &f, err));
    mc_status st = runs(s, &f, hi, &done, err);
    while (st == MC_OK && !done && hi < most) {
        lo = hi;
        hi = hi > most / 2 ? most : 2 * hi;
        st = runs(s, &f, hi, &done, err);
    }
    int found = done;
    while (st == MC_OK && found && hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        st = runs(s, &f, mid, &done, err);
        *(done ? &hi : &lo) = mid;
    }
    mc_flow_destroy(&f);
    if (st == MC_OK)
        *depth = found ? hi : 0;
    return st;
}
