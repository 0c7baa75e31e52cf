/* flow.c - who feeds whom: the edges and the channels of a schedule. Floor 5 (pipe).
 *
 * I1  Edges: F(s, k) takes the output of F(s - 1, k); I or B (s, k) that of I or B (s + 1, k). The
 *     edge F -> I -> W of one stage stays on its rank and is kept by program order alone.
 * I2  A channel is (from, to, kind). Its messages are numbered twice, in the sender's order
 *     (out_nth) and in the receiver's (in_nth); the proof wants both to agree.
 *
 * Memory: handle life, O(records + stages x microbatches). Threads: any, one at a time. */
#include <string.h>
#include "../base/arena.h"
#include "sched_int.h"

static void index_records(const struct mc_sched *s, struct mc_flow *f)
{
    int64_t m = s->microbatches;
    for (int r = 0; r < s->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            int64_t at = s->place[r * s->chunks + x->chunk] * m + x->mb;
            if (x->op == MC_SCHED_F)
                f->forward[at] = k;
            if (x->op == MC_SCHED_B || x->op == MC_SCHED_I)
                f->grad[at] = k;
            if (x->op == MC_SCHED_B || x->op == MC_SCHED_W)
                f->weight[at] = k;
        }
}

/* Channel (from, to, kind); at most two neighbours a chunk and kind, so a short list a rank would
 * do; a hash of fixed size keeps it flat for any map. */
struct finder {
    struct mc_flow *f;
    int cap;
    int32_t *slot; /* [cap], -1 free */
};
static int channel(struct finder *h, int from, int to, int kind)
{
    uint64_t key = ((uint64_t)from * MC_SCHED_MAX_RANKS + (uint64_t)to) * 2 + (kind == MC_SCHED_I);
    uint64_t i = key * 0x9e3779b97f4a7c15u >> 32;
    for (;; i++) {
        int32_t *at = &h->slot[i % (uint64_t)h->cap];
        if (*at < 0) {
            struct mc_flow_channel *c = &h->f->channel[h->f->nchannels];
            *c = (struct mc_flow_channel){.from = from, .to = to, .kind = kind};
            *at = h->f->nchannels++;
        }
        const struct mc_flow_channel *c = &h->f->channel[*at];
        if (c->from == from && c->to == to && c->kind == kind)
            return *at;
    }
}

/* The record that takes the output of record k, or -1. */
static int64_t taker(const struct mc_sched *s, const struct mc_flow *f, int stage,
                     const struct mc_sched_rec *x)
{
    int64_t m = s->microbatches;
    if (x->op == MC_SCHED_F && stage + 1 < mc_sched_stages(s))
        return f->forward[(stage + 1) * m + x->mb];
    if ((x->op == MC_SCHED_B || x->op == MC_SCHED_I) && stage > 0)
        return f->grad[(stage - 1) * m + x->mb];
    return -1;
}

static void derive(const struct mc_sched *s, struct mc_flow *f, struct finder *h)
{
    for (int r = 0; r < s->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++)
            f->rec[k] = (struct mc_flow_rec){.needs = -1, .feeds = -1, .in = -1, .out = -1};
    for (int r = 0; r < s->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            int stage = s->place[r * s->chunks + x->chunk];
            int64_t to = taker(s, f, stage, x);
            if (to < 0)
                continue;
            int dest = f->rank_of[x->op == MC_SCHED_F ? stage + 1 : stage - 1];
            f->rec[k].feeds = to;
            f->rec[to].needs = k;
            if (dest == r)
                continue;
            int c = channel(h, r, dest, x->op == MC_SCHED_F ? MC_SCHED_F : MC_SCHED_I);
            f->rec[k].out = c;
            f->rec[k].out_nth = f->channel[c].sent++;
            f->rec[to].in = c;
        }
    int64_t base = 0;
    for (int c = 0; c < f->nchannels; c++) {
        f->channel[c].base = base;
        base += f->channel[c].sent;
    }
    for (int r = 0; r < s->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            struct mc_flow_rec *x = &f->rec[k];
            if (x->in >= 0)
                x->in_nth = f->channel[x->in].taken++; /* I2 */
            if (x->out >= 0)
                f->message[f->channel[x->out].base + x->out_nth] = x->feeds;
        }
}

mc_status mc_flow_create(const struct mc_sched *s, struct mc_flow *f, struct mc_err *err)
{
    size_t stages = (size_t)mc_sched_stages(s), n = (size_t)s->first[s->ranks];
    size_t pairs = stages * (size_t)s->microbatches;
    struct finder h = {.f = f, .cap = (int)(8 * stages + 16)};
    memset(f, 0, sizeof *f);
    f->rec = mc_alloc((n + 1) * sizeof *f->rec, "flow of a schedule");
    f->channel = mc_alloc((2 * stages + 1) * sizeof *f->channel, "channels of a schedule");
    f->message = mc_alloc((n + 1) * sizeof *f->message, "messages of a schedule");
    f->rank_of = mc_alloc(stages * sizeof *f->rank_of, "ranks of stages");
    f->chunk_of = mc_alloc(stages * sizeof *f->chunk_of, "chunks of stages");
    f->forward = mc_alloc(pairs * sizeof *f->forward, "forwards of a schedule");
    f->grad = mc_alloc(pairs * sizeof *f->grad, "gradients of a schedule");
    f->weight = mc_alloc(pairs * sizeof *f->weight, "weight gradients of a schedule");
    h.slot = mc_alloc((size_t)h.cap * sizeof *h.slot, "finder of channels");
    if (!f->rec || !f->channel || !f->message || !f->rank_of || !f->chunk_of || !f->forward ||
        !f->grad || !f->weight || !h.slot) {
        mc_free(h.slot);
        mc_flow_destroy(f);
        return mc_err_set(err, MC_E_NOMEM, "no memory to check a schedule of %zu records", n);
    }
    for (int i = 0; i < h.cap; i++)
        h.slot[i] = -1;
    for (size_t i = 0; i < pairs; i++)
        f->forward[i] = f->grad[i] = f->weight[i] = -1;
    for (int r = 0; r < s->ranks; r++)
        for (int c = 0; c < s->chunks; c++) {
            f->rank_of[s->place[r * s->chunks + c]] = r;
            f->chunk_of[s->place[r * s->chunks + c]] = c;
        }
    index_records(s, f);
    derive(s, f, &h); /* I1 */
    mc_free(h.slot);
    return MC_OK;
}

void mc_flow_destroy(struct mc_flow *f)
{
    mc_free(f->rec);
    mc_free(f->channel);
    mc_free(f->message);
    mc_free(f->rank_of);
    mc_free(f->chunk_of);
    mc_free(f->forward);
    mc_free(f->grad);
    mc_free(f->weight);
    memset(f, 0, sizeof *f);
}
