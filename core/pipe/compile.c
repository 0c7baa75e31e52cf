/* compile.c - a rank's records of a schedule as ops that need no thought: slots, channels and
 * buffers are numbers. Floor 5 (pipe).
 *
 * I1  A slot is taken by F and given back by B or W, a buffer between two chunks of the rank by the
 *     op that makes the message and the op that takes it; which one is free is known by walking the
 *     program once. Never more are in use than mc_line_slots() and mc_compile_locals() counted by
 *     the same walk.
 * I2  An op takes its input before it makes its output: a buffer may serve both.
 * I3  Messages of a channel are asked for in the order in which the program takes them; the proof
 *     says that they are sent in that order.
 *
 * Memory: handles. Threads: one. */
#include <string.h>
#include "../base/arena.h"
#include "exec_int.h"

struct link { /* where an op's message comes from, or goes to */
    int stage, rank, kind;
};

static int moves(int op)
{
    return op == MC_SCHED_F ? MC_SCHED_F : op == MC_SCHED_W ? -1 : MC_SCHED_I;
}

/* The other end of op's input (out 0) or output (out 1); 0: there is none. */
static int link_of(const struct mc_line *line, int stage, int op, int out, struct link *l)
{
    int kind = moves(op), step = (kind == MC_SCHED_F) == out ? 1 : -1;
    *l = (struct link){.stage = stage + step, .kind = kind};
    if (kind < 0 || l->stage < 0 || l->stage >= line->ranks * line->chunks)
        return 0;
    l->rank = line->at[l->stage] / line->chunks;
    return 1;
}

int mc_compile_locals(const struct mc_line *line, int rank)
{
    int most = 0;
    for (int n = 0; n < line->nsched; n++) {
        const struct mc_sched *s = line->sched[n];
        int waiting = 0;
        for (int64_t k = s->first[rank]; k < s->first[rank + 1]; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            int stage = s->place[rank * s->chunks + x->chunk];
            struct link l;
            waiting -= link_of(line, stage, x->op, 0, &l) && l.rank == rank; /* I2 */
            waiting += link_of(line, stage, x->op, 1, &l) && l.rank == rank;
            most = waiting > most ? waiting : most;
        }
    }
    return most;
}

static int find_channel(const struct mc_pipe *p, const struct link *l, int sends)
{
    int c = 0;
    while (c < p->nchannels &&
           (p->channel[c].is.peer != l->rank || p->channel[c].is.kind != l->kind ||
            p->channel[c].is.sends != sends))
        c++;
    MC_ASSERT(c < p->nchannels); /* from the same stage map */
    return c;
}

/* What is in use while the program is walked. */
struct walk {
    const struct mc_pipe *p;
    const struct mc_sched *s;
    int32_t *slot;    /* [chunk][microbatch] */
    int32_t *waiting; /* [F or I][chunk that takes it][microbatch]: buffer */
    int32_t *spare;   /* buffers that are free, a stack */
    int nspare;
    uint8_t *busy;                    /* [chunk][slots]: slots in use */
    int nslots;                       /* a chunk's at most */
    int keeps;                        /* 0: all goes forward, every microbatch in slot 0 */
    int16_t part[MC_LINE_MAX_CHUNKS]; /* of a chunk */
};

static int32_t take_slot(struct walk *w, int chunk)
{
    uint8_t *busy = w->busy + (size_t)chunk * (size_t)w->nslots;
    int k = 0;
    while (k < w->nslots && busy[k])
        k++;
    MC_ASSERT(k < w->nslots); /* I1 */
    busy[k] = 1;
    return k;
}

static int32_t *waiting_at(const struct walk *w, int kind, int stage, int mb)
{
    const struct mc_line *line = w->p->line;
    size_t chunk = (size_t)(line->at[stage] % line->chunks);
    size_t row = (kind == MC_SCHED_I ? (size_t)line->chunks : 0) + chunk;
    return &w->waiting[row * (size_t)w->s->microbatches + (size_t)mb];
}

/* Sets every number of one op. */
static void walk_op(struct walk *w, const struct mc_sched_rec *x, struct mc_pipe_op *o)
{
    const struct mc_pipe *p = w->p;
    int32_t *slot = &w->slot[(size_t)x->chunk * (size_t)w->s->microbatches + (size_t)x->mb];
    struct link l;
    *o = (struct mc_pipe_op){.op = x->op,
                             .chunk = x->chunk,
                             .part = w->part[x->chunk],
                             .mb = x->mb,
                             .stage = w->s->place[p->rank * w->s->chunks + x->chunk],
                             .in = -1,
                             .out = -1,
                             .local_in = -1,
                             .local_out = -1};
    if (x->op == MC_SCHED_F && w->keeps)
        *slot = take_slot(w, x->chunk);
    o->slot = *slot;
    if (x->op == MC_SCHED_B || x->op == MC_SCHED_W)
        w->busy[(size_t)x->chunk * (size_t)w->nslots + (size_t)*slot] = 0;
    if (link_of(p->line, o->stage, x->op, 0, &l)) {
        if (l.rank != p->rank)
            o->in = (int16_t)find_channel(p, &l, 0);
        else
            w->spare[w->nspare++] = o->local_in = *waiting_at(w, l.kind, o->stage, x->mb);
    }
    if (link_of(p->line, o->stage, x->op, 1, &l)) {
        if (l.rank != p->rank) {
            o->out = (int16_t)find_channel(p, &l, 1);
        } else {
            MC_ASSERT(w->nspare > 0); /* I1 */
            *waiting_at(w, l.kind, l.stage, x->mb) = o->local_out = w->spare[--w->nspare];
        }
    }
}

/* The last op of each chunk that adds to gradients; and I3. */
static void look_back(const struct mc_pipe *p, struct mc_pipe_prog *g)
{
    uint8_t seen[MC_LINE_MAX_CHUNKS] = {0};
    for (int64_t k = g->nops - 1; k >= 0; k--) {
        struct mc_pipe_op *o = &g->op[k];
        if (o->op == MC_SCHED_B || o->op == MC_SCHED_W)
            o->last = !seen[o->chunk]++;
    }
    int64_t n = 0;
    for (int c = 0; c < p->nchannels; c++) {
        g->first[c] = n;
        for (int64_t k = 0; k < g->nops; k++)
            if (g->op[k].in == c)
                g->taken[n++] = g->op[k].mb;
    }
    g->first[p->nchannels] = n;
}

mc_status mc_compile(const struct mc_pipe *p, const struct mc_sched *s, struct mc_pipe_prog *prog,
                     struct mc_err *err)
{
    const struct mc_line *line = p->line;
    size_t n = (size_t)(s->first[p->rank + 1] - s->first[p->rank]);
    size_t pairs = (size_t)s->chunks * (size_t)s->microbatches;
    struct walk w = {.p = p, .s = s, .nslots = 1};
    for (int c = 0; c < s->chunks; c++) {
        int slots = mc_line_slots(line, p->rank, c);
        w.nslots = slots > w.nslots ? slots : w.nslots;
        w.part[mc_line_chunk(line, p->rank, c)] = (int16_t)c;
    }
    for (int64_t k = s->first[p->rank]; k < s->first[p->rank + 1]; k++)
        w.keeps |= s->rec[k].op != MC_SCHED_F;
    *prog = (struct mc_pipe_prog){.microbatches = s->microbatches, .nops = (int64_t)n};
    prog->op = mc_alloc((n + 1) * sizeof *prog->op, "ops of a pipeline");
    prog->taken = mc_alloc((n + 1) * sizeof *prog->taken, "messages of a pipeline");
    prog->first = mc_alloc((size_t)(p->nchannels + 1) * sizeof *prog->first, "channels");
    w.slot = mc_alloc(pairs * sizeof *w.slot, "slots of a pipeline");
    w.waiting = mc_alloc(2 * pairs * sizeof *w.waiting, "messages of a pipeline");
    w.spare = mc_alloc((size_t)(p->nlocal + 1) * sizeof *w.spare, "buffers of a pipeline");
    w.busy = mc_alloc((size_t)s->chunks * (size_t)w.nslots, "slots of a pipeline");
    mc_status st = MC_OK;
    if (!prog->op || !prog->taken || !prog->first || !w.slot || !w.waiting || !w.spare || !w.busy) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory for a pipeline's program of %zu ops", n);
        mc_compile_free(prog);
    } else {
        while (w.nspare < p->nlocal) {
            w.spare[w.nspare] = p->nlocal - 1 - w.nspare;
            w.nspare++;
        }
        for (size_t k = 0; k < n; k++)
            walk_op(&w, &s->rec[s->first[p->rank] + (int64_t)k], &prog->op[k]);
        look_back(p, prog);
    }
    mc_free(w.slot);
    mc_free(w.waiting);
    mc_free(w.spare);
    mc_free(w.busy);
    return st;
}

void mc_compile_free(struct mc_pipe_prog *prog)
{
    mc_free(prog->op);
    mc_free(prog->taken);
    mc_free(prog->first);
    memset(prog, 0, sizeof *prog);
}
