/* eval.c - the mean token loss over the validation set. Floor 6 (train).
 *
 * I1  The same meaning as in training: fp64 sum of token losses over tokens that have a label / N,
 *     in stream order, so it does not depend on the microbatch but for rounding.
 * I2  Evaluation changes no state of training: it has its own graph over the same parameters, and
 *     uses scratch and batch buffers between steps.
 *     Several replicas evaluate a part each; their sums are added.
 * I3  A stop signal ends it between microbatches, with a pipeline between its rounds of several; a
 *     part of a mean is never reported. The books then say that it is owed, and the resumed run
 *     begins with it.
 *
 * Memory: the trainer's arenas, or the session's (session.c). Threads: the trainer's. */
#include "train_int.h"
#include "../run/spawn.h"
#include <math.h>
#include <string.h>

int mc_eval_due(const struct mc_trainer *t)
{
    return mc_crossed(&t->recipe->eval.every, &t->step.before, &t->step.after, t->eval_ns);
}

/* Before each round: has a rank failed, or a stop signal? Then all of them end here. *signal: this
 * rank's, then one that any rank has. */
static mc_status agree(const struct mc_world *w, mc_status mine, int *signal, struct mc_err *err)
{
    double v[3] = {mine != MC_OK, *signal != 0, *signal};
    MC_TRY(mc_world_sum(w, v, 3, err));
    if (v[0] > 0)
        return mc_world_vote(w, mine, NULL, err);
    *signal = v[1] > 0 ? (int)(v[2] / v[1]) : 0;
    return MC_OK;
}

/* ---- a round of b samples, whose tokens are there ---- */

struct round {
    const struct mc_eval_job *job;
    struct mc_eval_sum *sum;
};

static mc_status before_op(void *arg, int64_t first, int64_t b, int op, int last,
                           struct mc_microbatch *mb, struct mc_err *err)
{
    const struct mc_eval_job *job = ((const struct round *)arg)->job;
    (void)op;
    (void)last;
    (void)err;
    *mb = (struct mc_microbatch){.b = b,
                                 .t = job->seq,
                                 .tokens = job->tokens + first * job->seq,
                                 .targets = job->targets + first * job->seq,
                                 .watch = job->watch};
    return MC_OK;
}

static void after_op(void *arg, const struct mc_pipe_note *n)
{
    const struct round *r = arg;
    (void)n;
    if (r->job->each)
        r->job->each(r->job->arg, r->sum->samples);
}

static mc_status through_pipe(const struct mc_eval_job *job, int64_t b, struct mc_eval_sum *s,
                              struct mc_err *err)
{
    struct round r = {job, s};
    struct mc_pipe_job p = {.graph = job->graph,
                            .own = b,
                            .micro = job->micro,
                            .seq = job->seq,
                            .loss = job->loss,
                            .arg = &r,
                            .microbatch = before_op,
                            .ran = after_op};
    memcpy(p.pad_s, job->pad_s, sizeof p.pad_s);
    MC_TRY(mc_pipe_forward(job->pipe, &p, err));
    for (int64_t k = 0; k * job->micro < b; k++) /* in stream order (I1) */
        s->loss_sum += job->loss[k];
    return MC_OK;
}

static mc_status through_graph(const struct mc_eval_job *job, int64_t b, struct mc_eval_sum *s,
                               struct mc_err *err)
{
    struct mc_microbatch mb = {
        .b = b, .t = job->seq, .tokens = job->tokens, .targets = job->targets, .watch = job->watch};
    return mc_graph_forward(job->graph, 0, &mb, 0, &s->loss_sum, err);
}

/* This replica's samples; all replicas go as many rounds as the one with most. */
static mc_status eval_part(const struct mc_eval_job *job, struct mc_eval_sum *s, struct mc_err *err)
{
    const struct mc_world *w = job->world;
    int64_t first, own, zero, most;
    mc_batch_share(job->samples, w->replicas, 0, &zero, &most);
    mc_batch_share(job->samples, w->replicas, w->replica, &first, &own);
    for (int64_t at = 0; at < most; at += job->round) {
        int64_t b = own - at < job->round ? own - at : job->round;
        int signal = job->poll ? mc_signals_pending() : 0;
        mc_status st = MC_OK;
        if (b > 0 && !signal)
            st = mc_data_fetch_valid(job->data, first + at, b, job->tokens, job->targets, err);
        MC_TRY(agree(w, st, &signal, err));
        if (signal) { /* I3 */
            s->stopped = signal;
            return MC_OK;
        }
        if (b <= 0)
            continue;
        for (int64_t i = 0; i < b * job->seq; i++) {
            s->tokens += job->targets[i] >= 0;
            if (job->id_bytes && job->targets[i] >= 0)
                s->bytes += job->id_bytes[job->targets[i]];
        }
        MC_TRY(job->pipe ? through_pipe(job, b, s, err) : through_graph(job, b, s, err));
        s->samples += b;
        if (job->each)
            job->each(job->arg, s->samples);
    }
    return MC_OK;
}

mc_status mc_eval_sum(const struct mc_eval_job *job, struct mc_eval_sum *sum, struct mc_err *err)
{
    struct mc_eval_sum s = {0};
    MC_TRY(eval_part(job, &s, err));
    int counts = job->world->counts; /* counts below 2^53, exact */
    double v[4] = {counts ? s.loss_sum : 0, counts ? (double)s.tokens : 0,
                   counts ? (double)s.samples : 0, counts ? (double)s.bytes : 0};
    MC_TRY(mc_world_sum(job->world, v, 4, err));
    *sum = (struct mc_eval_sum){.loss_sum = v[0],
                                .tokens = (int64_t)v[1],
                                .samples = (int64_t)v[2],
                                .bytes = (int64_t)v[3],
                                .stopped = s.stopped};
    return MC_OK;
}

static void each(void *arg, int64_t samples)
{
    struct mc_trainer *t = arg;
    (void)samples;
    mc_step_beat(t);
}

/* The control rank's: event, log, hook. */
static mc_status tell(struct mc_trainer *t, const struct mc_eval_sum *sum, int64_t begin,
                      struct mc_err *err)
{
    struct mc_event e;
    double loss = sum->tokens > 0 ? sum->loss_sum / (double)sum->tokens : 0;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", t->books.at.steps);
    mc_json_f64(&e.j, "loss", loss);
    mc_json_i64(&e.j, "tokens", sum->tokens);
    mc_json_i64(&e.j, "samples", sum->samples);
    mc_json_f64(&e.j, "seconds", (double)(t->eval_ns - begin) * 1e-9);
    mc_event_end(t, &e, "eval");
    if (!t->cfg->quiet) {
        char line[200];
        mc_metrics_eval_format(t->books.at.steps, loss, line, sizeof line);
        mc_metrics_say(&t->metrics, line);
    }
    if (!mc_hooks_want(t, MC_HOOK_EVAL))
        return MC_OK;
    struct mc_hook_event ev;
    struct mc_directive d;
    mc_hook_event_fill(t, MC_HOOK_EVAL, &ev);
    ev.eval_loss = loss;
    ev.eval_tokens = sum->tokens;
    mc_directive_clear(&d);
    MC_TRY(mc_hooks_ask(t, &ev, &d, err));
    mc_directive_keep(&t->books.pending, &d);
    return MC_OK;
}

/* Samples of a round: with a pipe as many whole microbatches as the step's have room for. */
static int64_t samples_of_round(const struct mc_trainer *t)
{
    int64_t micro = t->recipe->batch.micro, tokens = mc_batch_tokens(t->recipe, t->world.replicas);
    const struct mc_line *line = t->cfg->line;
    if (!line)
        return micro;
    int64_t n = tokens / (micro * t->recipe->model.seq),
            most = line->sched[line->nsched - 1]->microbatches;
    return micro * (n < most ? n : most);
}

mc_status mc_eval_run(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_eval_sum sum;
    t->books.eval_owed = 0;
    if (!t->graphs.eval || mc_data_valid_samples(t->data) == 0) {
        if (t->world.rank == 0)
            mc_log(MC_LOG_WARN,
                   "step %lld: a hook asked for an evaluation, but the recipe has no "
                   "validation data (data.valid, data.holdout or data.split)",
                   (long long)t->books.at.steps);
        return MC_OK;
    }
    mc_page_phase(t->cfg->page, MC_PHASE_EVAL, t->books.at.steps);
    int64_t all = mc_data_valid_samples(t->data), want = t->recipe->eval.samples;
    int64_t begin = mc_clock_ns();
    struct mc_eval_job job = {.world = &t->world,
                              .watch = mc_transfer_watch(t->transfer, 0),
                              .graph = t->graphs.eval,
                              .pipe = t->pipe,
                              .loss = t->piped.loss,
                              .data = t->data,
                              .samples = want > 0 && want < all ? want : all,
                              .micro = t->recipe->batch.micro,
                              .seq = t->recipe->model.seq,
                              .round = samples_of_round(t),
                              .tokens = t->batch.tokens,
                              .targets = t->batch.targets,
                              .poll = 1,
                              .each = each,
                              .arg = t};
    if (t->pipe)
        mc_piped_pads(t->recipe, job.pad_s);
    mc_status st = mc_eval_sum(&job, &sum, err);
    t->books.eval_owed = st != MC_OK || sum.stopped; /* I3 */
    if (st != MC_OK) {
        t->sound = 1; /* I2 */
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    t->eval_ns = mc_clock_ns();
    if (sum.stopped) {
        mc_stop_set(t, MC_STOP_SIGNAL, sum.stopped);
        return MC_OK;
    }
    mc_status told = t->world.rank == 0 ? tell(t, &sum, begin, err) : MC_OK;
    return mc_world_vote(&t->world, told, &t->sound, err);
}
