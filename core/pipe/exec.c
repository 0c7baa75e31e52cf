/* exec.c - a rank runs its records: waits for input, computes, hands on. Floor 5 (pipe).
 *
 * I1  The rule of the transport is that of the proof (run.c): an op takes its message as it begins
 *     and the message's buffer is free at once; after an op its message is sent as soon as one of
 *     the channel's buffers is free, and the rank does nothing else before that. A sender has as
 *     many buffers as the proof's channel holds messages, so what arrives early or late on the
 *     other side cannot lock what was proven.
 * I2  Receives are posted as far ahead as there are buffers, in the order in which the program
 *     takes them: the transport moves what comes while the rank computes.
 * I3  When a job ends every message has been taken and every send has ended.
 * I4  A job decides nothing and allocates nothing: ops, slots and buffers are numbers (compile.c).
 *     Going forward alone runs a subset of what was proven: it only takes messages away.
 * I5  The sums of losses are stored by microbatch, so that their order does not depend on the
 *     schedule; gradients of weights are added in ascending microbatches by the proof.
 * I6  The first error ends the pipe; it names rank, slot and record. One event a op, at its begin,
 *     is in the flight recorder.
 *
 * Memory: a handle; messages in the caller's buffer. Threads: one. */
#include "exec_int.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/flight.h"

/* ---- create ---- */

static int buffers_of(const struct mc_line *line, int rank)
{
    struct mc_line_channel channel[4 * MC_LINE_MAX_CHUNKS];
    int all = mc_compile_locals(line, rank), n = mc_line_channels(line, rank, channel);
    for (int i = 0; i < n; i++)
        all += channel[i].room;
    return all;
}

size_t mc_pipe_bytes(const struct mc_line *line, int rank, size_t message)
{
    return (size_t)buffers_of(line, rank) * mc_align_up(message, MC_ALIGN);
}

/* Cuts the buffer into messages. */
static mc_status lay_out(struct mc_pipe *p, const struct mc_pipe_cfg *cfg, struct mc_err *err)
{
    struct mc_line_channel channel[4 * MC_LINE_MAX_CHUNKS];
    int all = buffers_of(p->line, p->rank);
    char *at = cfg->buffer;
    p->nlocal = mc_compile_locals(p->line, p->rank);
    p->nchannels = mc_line_channels(p->line, p->rank, channel);
    p->message = all ? cfg->bytes / (size_t)all / MC_ALIGN * MC_ALIGN : 0;
    p->channel =
        mc_alloc((size_t)(p->nchannels + 1) * sizeof *p->channel, "channels of a pipeline");
    p->reqs = mc_alloc((size_t)(all + 1) * sizeof(struct mc_comm_req *), "calls of a pipeline");
    if (!p->channel || !p->reqs)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %d channels", p->nchannels);
    struct mc_comm_req **req = p->reqs;
    for (int c = 0; c < p->nchannels; c++) {
        p->channel[c] = (struct mc_pipe_channel){.is = channel[c], .buf = at, .req = req};
        at += (size_t)channel[c].room * p->message;
        req += channel[c].room;
    }
    p->local = at;
    return MC_OK;
}

mc_status mc_pipe_create(const struct mc_pipe_cfg *cfg, struct mc_pipe **out, struct mc_err *err)
{
    const struct mc_line *line = cfg->line;
    mc_status st = MC_OK;
    struct mc_pipe *p = mc_alloc(sizeof *p, "pipeline");
    if (!p)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a pipeline");
    p->line = line;
    p->comm = cfg->mesh->axis[MC_AXIS_PP];
    p->rank = cfg->mesh->coord[MC_AXIS_PP];
    p->dtype = cfg->dtype;
    p->elem = mc_dtype_size(cfg->dtype);
    p->vocab = cfg->vocab;
    if ((p->comm ? p->comm->cfg.size : 1) != line->ranks) {
        st = mc_err_set(err, MC_E_BUG, "a pipeline of %d ranks in a mesh with pp %d", line->ranks,
                        p->comm ? p->comm->cfg.size : 1);
        goto bad;
    }
    MC_TRY_GOTO(st, lay_out(p, cfg, err), bad);
    p->prog = mc_alloc((size_t)line->nsched * sizeof *p->prog, "programs of a pipeline");
    p->logits = mc_alloc((size_t)(cfg->vocab + 1) * p->elem, "logits from another rank");
    if (!p->prog || !p->logits) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory for a pipeline");
        goto bad;
    }
    for (; p->nprog < line->nsched; p->nprog++)
        MC_TRY_GOTO(st, mc_compile(p, line->sched[p->nprog], &p->prog[p->nprog], err), bad);
    *out = p;
    return MC_OK;
bad:
    mc_pipe_destroy(p);
    return st;
}

void mc_pipe_destroy(struct mc_pipe *p)
{
    if (!p)
        return;
    for (int k = 0; k < p->nprog; k++)
        mc_compile_free(&p->prog[k]);
    mc_free(p->prog);
    mc_free(p->logits);
    mc_free(p->channel);
    mc_free(p->reqs);
    mc_free(p);
}

/* ---- a job ---- */

struct run {
    struct mc_pipe *p;
    const struct mc_pipe_job *job;
    const struct mc_pipe_prog *prog;
    int forward;           /* F alone */
    int64_t count, rounds; /* microbatches; of prog->microbatches each */
    int64_t waited_ns;     /* in the op at hand */
};

static int64_t samples_of(const struct run *r, int64_t mb)
{
    int64_t left = r->job->own - mb * r->job->micro;
    return left < r->job->micro ? left : r->job->micro;
}

static int64_t elements_of(const struct run *r, int64_t mb)
{
    return mc_graph_edge_count(r->job->graph, samples_of(r, mb), r->job->seq);
}

static int is_open(const struct run *r, const struct mc_pipe_channel *c)
{
    return !r->forward || c->is.kind == MC_SCHED_F;
}

static mc_status wait_for(struct run *r, struct mc_comm_req **req, struct mc_err *err)
{
    struct mc_comm *comm = r->p->comm;
    int64_t from = mc_clock_ns();
    struct mc_comm_req *q = *req;
    *req = NULL;
    mc_status st = comm->ops->wait(comm, q, 0, err);
    r->waited_ns += mc_clock_ns() - from;
    return st;
}

/* Asks for the channel's next message, if there is one (I2). */
static mc_status post(struct run *r, struct mc_pipe_channel *c, struct mc_err *err)
{
    const struct mc_pipe_prog *g = r->prog;
    struct mc_comm *comm = r->p->comm;
    int64_t *first = &g->first[c - r->p->channel], n = first[1] - first[0], mb = 0, found = 0;
    /* of gradients none when going forward; microbatches of the last round that are not there are
     * left out */
    while (c->round < r->rounds && !found) {
        if (c->next < n) {
            mb = c->round * g->microbatches + g->taken[first[0] + c->next++];
            found = mb < r->count;
        } else {
            c->next = 0;
            c->round += n > 0 ? 1 : r->rounds;
        }
    }
    if (!found)
        return MC_OK;
    int64_t k = c->begun++ % c->is.room;
    return comm->ops->recv(comm, c->buf + (size_t)k * r->p->message, elements_of(r, mb),
                           r->p->dtype, c->is.peer, c->is.kind, NULL, &c->req[k], err);
}

static mc_status open_channels(struct run *r, struct mc_err *err)
{
    for (int i = 0; i < r->p->nchannels; i++) {
        struct mc_pipe_channel *c = &r->p->channel[i];
        c->begun = c->ended = c->round = c->next = 0;
        for (int k = 0; k < c->is.room && !c->is.sends && is_open(r, c); k++)
            MC_TRY(post(r, c, err));
    }
    return MC_OK;
}

/* I3. */
static mc_status close_channels(struct run *r, struct mc_err *err)
{
    for (int i = 0; i < r->p->nchannels; i++) {
        struct mc_pipe_channel *c = &r->p->channel[i];
        for (; c->is.sends && c->ended < c->begun; c->ended++)
            MC_TRY(wait_for(r, &c->req[c->ended % c->is.room], err));
        MC_ASSERT(c->ended == c->begun);
    }
    return MC_OK;
}

static mc_status take_input(struct run *r, const struct mc_pipe_op *o, int64_t mb, int slot,
                            struct mc_err *err)
{
    struct mc_pipe *p = r->p;
    int edge = o->op == MC_SCHED_F ? MC_EDGE_IN : MC_EDGE_D_OUT;
    size_t bytes = (size_t)elements_of(r, mb) * p->elem;
    void *to = mc_graph_edge(r->job->graph, slot, (enum mc_graph_edge)edge);
    if (o->local_in >= 0)
        memcpy(to, p->local + (size_t)o->local_in * p->message, bytes);
    if (o->in < 0)
        return MC_OK;
    struct mc_pipe_channel *c = &p->channel[o->in];
    int64_t k = c->ended++ % c->is.room;
    MC_TRY(wait_for(r, &c->req[k], err));
    memcpy(to, c->buf + (size_t)k * p->message, bytes);
    return post(r, c, err); /* I1: its buffer is free */
}

static mc_status hand_on(struct run *r, const struct mc_pipe_op *o, int64_t mb, int slot,
                         struct mc_err *err)
{
    struct mc_pipe *p = r->p;
    int edge = o->op == MC_SCHED_F ? MC_EDGE_OUT : MC_EDGE_D_IN;
    int64_t n = elements_of(r, mb);
    const void *from = mc_graph_edge(r->job->graph, slot, (enum mc_graph_edge)edge);
    if (o->local_out >= 0)
        memcpy(p->local + (size_t)o->local_out * p->message, from, (size_t)n * p->elem);
    if (o->out < 0)
        return MC_OK;
    struct mc_pipe_channel *c = &p->channel[o->out];
    int64_t k = c->begun % c->is.room;
    if (c->begun - c->ended == c->is.room) { /* I1 */
        MC_TRY(wait_for(r, &c->req[k], err));
        c->ended++;
    }
    char *buf = c->buf + (size_t)k * p->message;
    memcpy(buf, from, (size_t)n * p->elem);
    c->begun++;
    return p->comm->ops->send(p->comm, buf, n, p->dtype, c->is.peer, c->is.kind, NULL, &c->req[k],
                              err);
}

static mc_status compute(struct run *r, const struct mc_pipe_op *o, int64_t mb, int slot,
                         const struct mc_microbatch *x, struct mc_err *err)
{
    const struct mc_pipe_job *j = r->job;
    switch (o->op) {
    case MC_SCHED_F:
        return mc_graph_forward(j->graph, slot, x, j->step, &j->loss[mb], err); /* I5 */
    case MC_SCHED_B:
        return mc_graph_backward(j->graph, slot, x, j->step, j->scale, err);
    case MC_SCHED_I:
        return mc_graph_backward_input(j->graph, slot, x, j->step, j->scale, err);
    default:
        return mc_graph_backward_weight(j->graph, slot, x, j->step, j->scale, err);
    }
}

/* Sleeps until `seconds` after from. */
static void pad(int64_t from_ns, double seconds)
{
    int64_t until = from_ns + (int64_t)(seconds * 1e9);
    struct timespec t = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = until % 1000000000};
    if (seconds > 0)
        while (mc_clock_ns() < until)
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static mc_status run_op(struct run *r, const struct mc_pipe_op *o, int64_t mb, struct mc_err *err)
{
    const struct mc_pipe_job *j = r->job;
    struct mc_microbatch x = {0};
    struct mc_pipe_note n = {
        .op = o->op, .chunk = o->chunk, .stage = o->stage, .mb = mb, .begin_ns = mc_clock_ns()};
    int slot = mc_graph_slot(j->graph, o->part, r->forward ? 0 : o->slot);
    char text[64];
    snprintf(text, sizeof text, "pipe %s %lld stage %d", mc_sched_op_name(o->op), (long long)mb,
             o->stage);
    mc_flight_note(j->step, 0, text); /* I6 */
    r->waited_ns = 0;
    MC_TRY(j->microbatch(j->arg, mb * j->micro, samples_of(r, mb), o->op, o->last, &x, err));
    MC_TRY(take_input(r, o, mb, slot, err));
    n.input_ns = r->waited_ns;
    int64_t from = mc_clock_ns();
    MC_TRY(compute(r, o, mb, slot, &x, err));
    pad(from, j->pad_s[o->op]);
    MC_TRY(hand_on(r, o, mb, slot, err));
    n.wait_ns = r->waited_ns;
    n.end_ns = mc_clock_ns();
    if (j->ran)
        j->ran(j->arg, &n);
    return MC_OK;
}

static mc_status run_ops(struct run *r, int64_t *round, int64_t *k, struct mc_err *err)
{
    MC_TRY(open_channels(r, err));
    for (*round = 0; *round < r->rounds; ++*round)
        for (*k = 0; *k < r->prog->nops; ++*k) {
            const struct mc_pipe_op *o = &r->prog->op[*k];
            int64_t mb = *round * r->prog->microbatches + o->mb;
            if (mb < r->count && (!r->forward || o->op == MC_SCHED_F))
                MC_TRY(run_op(r, o, mb, err));
        }
    return close_channels(r, err);
}

static mc_status dead(const struct mc_pipe *p, struct mc_err *err)
{
    return mc_err_set(err, p->err.code, "%s", p->err.msg);
}

static mc_status run(struct run *r, struct mc_err *err)
{
    struct mc_pipe *p = r->p;
    struct mc_err own = {0};
    int64_t round = 0, k = 0;
    for (int64_t mb = 0; mb < r->count; mb++)
        r->job->loss[mb] = 0;
    mc_status st = run_ops(r, &round, &k, &own);
    if (st == MC_OK)
        return MC_OK;
    if (round == r->rounds) {
        mc_err_set(&p->err, st, "pipeline rank %d, at the end: %s", p->rank, own.msg);
    } else { /* I6 */
        const struct mc_pipe_op *o = &r->prog->op[k];
        mc_err_set(&p->err, st, "pipeline rank %d, slot %lld (%s of microbatch %lld, chunk %d): %s",
                   p->rank, (long long)k, mc_sched_op_name(o->op),
                   (long long)(round * r->prog->microbatches + o->mb), o->chunk, own.msg);
    }
    mc_err_set(err, st, "%s", p->err.msg);
    if (err)
        snprintf(err->trail, sizeof err->trail, "%s", own.trail);
    return st;
}

/* What is common to jobs; *count microbatches. */
static mc_status begin(struct mc_pipe *p, const struct mc_pipe_job *job, int64_t *count,
                       struct mc_err *err)
{
    if (p->err.code != MC_OK)
        return dead(p, err);
    if (job->own < 0 || job->micro < 1)
        return mc_err_set(err, MC_E_BUG, "%lld samples in microbatches of %lld",
                          (long long)job->own, (long long)job->micro);
    int64_t b = job->own < job->micro ? job->own : job->micro;
    size_t bytes = (size_t)mc_graph_edge_count(job->graph, b, job->seq) * p->elem;
    if ((p->nchannels > 0 || p->nlocal > 0) && bytes > p->message)
        return mc_err_set(err, MC_E_BUG,
                          "a message of %lld x %lld tokens has %zu bytes; the pipeline's have room "
                          "for %zu",
                          (long long)b, (long long)job->seq, bytes, p->message);
    *count = (job->own + job->micro - 1) / job->micro;
    return MC_OK;
}

mc_status mc_pipe_train(struct mc_pipe *p, const struct mc_pipe_job *job, struct mc_err *err)
{
    struct run r = {.p = p, .job = job, .rounds = 1};
    MC_TRY(begin(p, job, &r.count, err));
    if (r.count == 0)
        return MC_OK;
    for (int k = 0; k < p->nprog; k++)
        if (p->prog[k].microbatches == r.count)
            r.prog = &p->prog[k];
    if (!r.prog)
        return mc_err_set(err, MC_E_BUG, "the pipeline has no schedule of %lld microbatches",
                          (long long)r.count);
    return run(&r, err);
}

mc_status mc_pipe_forward(struct mc_pipe *p, const struct mc_pipe_job *job, struct mc_err *err)
{
    struct run r = {.p = p, .job = job, .forward = 1, .prog = &p->prog[p->nprog - 1]};
    MC_TRY(begin(p, job, &r.count, err));
    r.rounds = (r.count + r.prog->microbatches - 1) / r.prog->microbatches;
    return run(&r, err);
}

/* ---- text ---- */

/* Moves n elements of an edge between this rank and another, and waits: there is one message at a
 * time in the whole pipeline. */
static mc_status pass_on(struct mc_pipe *p, int sends, void *edge, int64_t n, int peer,
                         struct mc_err *err)
{
    struct mc_comm *c = p->comm;
    struct mc_comm_req *q;
    if (sends)
        MC_TRY(c->ops->send(c, edge, n, p->dtype, peer, MC_SCHED_F, NULL, &q, err));
    else
        MC_TRY(c->ops->recv(c, edge, n, p->dtype, peer, MC_SCHED_F, NULL, &q, err));
    return c->ops->wait(c, q, 0, err);
}

static mc_status infer_part(struct mc_pipe *p, struct mc_graph *g, int k, const int32_t *tokens,
                            int64_t t, int64_t pos0, const void **logits, struct mc_err *err)
{
    const struct mc_line *line = p->line;
    int stages = line->ranks * line->chunks, slot = mc_graph_slot(g, k, 0);
    int stage = line->sched[0]->place[p->rank * line->chunks + mc_line_chunk(line, p->rank, k)];
    int64_t n = mc_graph_edge_count(g, 1, t);
    if (stage > 0) {
        int from = line->at[stage - 1] / line->chunks;
        void *in = mc_graph_edge(g, slot, MC_EDGE_IN);
        if (from != p->rank)
            MC_TRY(pass_on(p, 0, in, n, from, err));
        else /* the part before it is the one that ran last */
            memcpy(in, mc_graph_edge(g, mc_graph_slot(g, k - 1, 0), MC_EDGE_OUT),
                   (size_t)n * p->elem);
    }
    MC_TRY(mc_graph_infer_part(g, k, tokens, t, pos0, logits, err));
    int to = stage + 1 < stages ? line->at[stage + 1] / line->chunks : p->rank;
    if (to != p->rank)
        MC_TRY(pass_on(p, 1, mc_graph_edge(g, slot, MC_EDGE_OUT), n, to, err));
    return MC_OK;
}

mc_status mc_pipe_infer(struct mc_pipe *p, struct mc_graph *infer, const int32_t *tokens, int64_t t,
                        int64_t pos0, const void **logits, struct mc_err *err)
{
    struct mc_comm *c = p->comm;
    struct mc_comm_req *q;
    const void *own = NULL;
    int head = mc_line_head(p->line);
    if (p->err.code != MC_OK)
        return dead(p, err);
    for (int k = 0; k < p->line->chunks; k++)
        MC_TRY(infer_part(p, infer, k, tokens, t, pos0, &own, err));
    if (c) {
        void *all = p->rank == head ? (void *)(uintptr_t)own : p->logits;
        MC_TRY(c->ops->broadcast(c, all, p->vocab, p->dtype, head, NULL, &q, err));
        MC_TRY(c->ops->wait(c, q, 0, err));
        own = all;
    }
    *logits = own;
    return MC_OK;
}
