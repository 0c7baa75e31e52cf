/* step.c - the parts of one step; trainer.c puts them in order. Floor 6 (train).
 *
 *     begin        batch size, draws, tokens and targets of this replica's part; N; stop?
 *     microbatch   forward and backward of samples [first, first + micro), gradients scaled by 1/N;
 *                  with a pipeline all of them at once (piped.c)
 *     judge        gradients are complete; norm, loss, verdict, skip or abort
 *     update       clip, AdamW with t = successful updates + 1; parameters on their way to all
 *     end          books, metrics line, log line, hooks
 *
 * Ranks exchange two short vectors a step. In begin: labels here, failures, stop signals seen, and
 * from the control rank the time limit and the hooks' answers in force. In judge: loss, the partial
 * norms, and from the control rank what is due after the step. So all take the same path; what the
 * control rank alone finds out after that (a hook that fails too often) waits for the next begin.
 *
 * I1  Loss = fp64 sum of token losses over the global batch / N, N the tokens that have a label,
 *     known before the first microbatch. N = 0: loss 0, no update, counted as skipped.
 * I2  The batch is cut into contiguous runs, one a replica, the first B mod replicas of them one
 *     longer; a replica without samples takes part with zeros. Microbatches run in ascending order;
 *     nothing depends on how the batch is cut but rounding.
 * I3  Until mc_step_end() the books are untouched but for cursor, pending answers and lr factor,
 *     and mc_step_abandon() puts those back: a checkpoint after an abandoned step is one of the
 *     last completed step.
 * I4  Nothing here allocates; begin and end count the allocator's calls, and hooks are left out.
 *
 * Memory: the trainer's arenas. Threads: the trainer's; kernels use the pool. */
#include "train_int.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "../run/spawn.h"

void mc_step_beat(struct mc_trainer *t)
{
    struct mc_page *p = t->cfg->page;
    if (!p)
        return;
    atomic_store_explicit(&p->beat_ns, mc_clock_ns(), memory_order_relaxed);
}

/* Why this rank would stop before the step; MC_STOP_NONE: no reason. */
static enum mc_stop stop_here(const struct mc_trainer *t)
{
    if (t->world.rank != 0 || t->recipe->time_limit.n <= 0)
        return MC_STOP_NONE;
    double used = (double)(mc_clock_ns() - t->start_ns) * 1e-9;
    double save = isnan(t->save_s) ? 0 : 1.5 * t->save_s; /* the save must fit too */
    return used + save >= (double)t->recipe->time_limit.n * 1e-9 ? MC_STOP_TIME : MC_STOP_NONE;
}

void mc_stop_set(struct mc_trainer *t, enum mc_stop why, int signal)
{
    char limit[48];
    if (t->stop != MC_STOP_NONE)
        return;
    t->stop = why;
    if (why == MC_STOP_SIGNAL) {
        snprintf(t->stop_why, sizeof t->stop_why, "signal %d (SIG%s)", signal,
                 sigabbrev_np(signal) ? sigabbrev_np(signal) : "?");
    } else if (why == MC_STOP_TIME) {
        mc_units_print(t->recipe->time_limit, limit);
        snprintf(t->stop_why, sizeof t->stop_why, "time limit of %s for one segment", limit);
    }
}

/* The first exchange of a step. mine: this rank's part is ready. */
static mc_status agree_begin(struct mc_trainer *t, int64_t labels, mc_status mine,
                             struct mc_err *err)
{
    enum { LABELS, FAILED, SIGNALLED, SIGNALS, TIME, STOP, CHECKPOINT, EVAL, SCALES, SCALE, N };
    struct mc_step *s = &t->step;
    struct mc_directive *d = &s->now;
    double *v = t->sum;
    int signal = mc_signals_pending();
    memset(v, 0, N * sizeof *v);
    v[LABELS] = t->world.counts ? (double)labels : 0;
    v[FAILED] = mine != MC_OK;
    v[SIGNALLED] = signal != 0;
    v[SIGNALS] = signal;
    if (t->world.rank == 0) {
        v[TIME] = stop_here(t) == MC_STOP_TIME;
        v[STOP] = d->stop;
        v[CHECKPOINT] = d->checkpoint;
        v[EVAL] = d->eval;
        v[SCALES] = !isnan(d->lr_scale);
        v[SCALE] = isnan(d->lr_scale) ? 0 : d->lr_scale;
    }
    MC_TRY(mc_world_sum(&t->world, v, N, err));
    if (v[FAILED] > 0) {
        mc_step_abandon(t);
        mc_status st = mc_world_vote(&t->world, mine, &t->sound, err);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    s->valid = (int64_t)v[LABELS];
    d->stop = v[STOP] > 0;
    d->checkpoint = v[CHECKPOINT] > 0;
    d->eval = v[EVAL] > 0;
    d->lr_scale = v[SCALES] > 0 ? v[SCALE] : (double)NAN;
    if (v[SIGNALLED] > 0)
        mc_stop_set(t, MC_STOP_SIGNAL, (int)(v[SIGNALS] / v[SIGNALLED]));
    else if (v[TIME] > 0)
        mc_stop_set(t, MC_STOP_TIME, 0);
    return MC_OK;
}

/* The sequence length, weights and batch of this step; a phase that begins with it is told. */
static void enter_phase(struct mc_trainer *t, const struct mc_phase_now *p)
{
    struct mc_event e;
    int64_t was = t->books.cursor.seq;
    if (!mc_cursor_phase(t->data, &t->books.cursor, p->seq, p->weight))
        return;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", t->books.at.steps + 1);
    mc_json_i64(&e.j, "phase", p->index);
    mc_json_i64(&e.j, "seq", p->seq);
    mc_json_i64(&e.j, "global", p->global);
    mc_json_open(&e.j, "weights", '[');
    for (int i = 0; i < t->books.cursor.nsources; i++)
        mc_json_f64(&e.j, NULL, t->books.cursor.weight[i]);
    mc_json_close(&e.j, ']');
    mc_event_end(t, &e, "phase");
    if (t->world.rank == 0 && !t->cfg->quiet)
        mc_log(MC_LOG_INFO, "from step %lld on: %lld samples of %lld tokens (before: of %lld)",
               (long long)t->books.at.steps + 1, (long long)p->global, (long long)p->seq,
               (long long)was);
}

mc_status mc_step_begin(struct mc_trainer *t, mc_status late, struct mc_err *err)
{
    struct mc_step *s = &t->step;
    struct mc_books *b = &t->books;
    struct mc_phase_now phase = mc_phase_at(t->recipe, &b->at);
    int64_t seq = phase.seq;
    s->begin_ns = mc_clock_ns();
    s->before = b->at;
    s->global = phase.global;
    MC_ASSERT(s->global >= 1 && s->global <= mc_batch_largest(t->recipe));
    s->cursor = b->cursor; /* I3 */
    enter_phase(t, &phase);
    s->allocs = mc_mem_stats().calls; /* I4 */
    s->seq = seq;
    s->phase = phase.index;
    s->after = (struct mc_counters){.steps = b->at.steps + 1,
                                    .samples = b->at.samples + s->global,
                                    .tokens = b->at.tokens + s->global * seq};
    s->now = b->pending; /* in force in this step */
    mc_page_phase(t->cfg->page, MC_PHASE_STEP, s->after.steps);
    s->lr_scale = b->lr_scale;
    mc_data_draw(t->data, &b->cursor, s->global, t->batch.sample);
    mc_batch_share(s->global, t->world.replicas, t->world.replica, &s->first, &s->own);
    mc_status st = late;
    if (st == MC_OK)
        st = mc_trainer_held(t, t->lost, err); /* trainer.c I5 */
    if (st == MC_OK) {
        st = mc_data_fetch(t->data, t->batch.sample + s->first, s->own, t->batch.tokens,
                           t->batch.targets, err);
        t->sound |= st != MC_OK;
    }
    int64_t labels = 0;
    for (int64_t i = 0; st == MC_OK && i < s->own * seq; i++)
        labels += t->batch.targets[i] >= 0;
    MC_TRY(agree_begin(t, labels, st, err));
    s->loss_sum = 0;
    mc_graph_zero_grads(t->graphs.train);
    mc_transfer_begin(t->transfer);
    mc_norms_begin(&t->norms, t->graphs.train, s->after.steps, s->valid);
    mc_record_begin(t);
    mc_step_beat(t);
    return MC_OK;
}

void mc_step_tokens(struct mc_trainer *t, int64_t first, int64_t b, int last,
                    struct mc_microbatch *mb)
{
    const struct mc_step *s = &t->step;
    int64_t seq = s->seq;
    for (int64_t i = 0; i < b; i++)
        for (int64_t p = 0; p < seq; p++)
            t->batch.row[i * seq + p] = (s->before.samples + s->first + first + i) * seq + p;
    *mb = (struct mc_microbatch){.b = b,
                                 .t = seq,
                                 .tokens = t->batch.tokens + first * seq,
                                 .targets = t->batch.targets + first * seq,
                                 .logical_row = t->batch.row,
                                 .watch = mc_transfer_watch(t->transfer, last)};
}

mc_status mc_step_microbatch(struct mc_trainer *t, int64_t first, struct mc_err *err)
{
    struct mc_step *s = &t->step;
    int64_t b = t->recipe->batch.micro;
    if (s->valid == 0) /* I1 */
        return MC_OK;
    if (b > s->own - first)
        b = s->own - first;
    int last = first + b == s->own;
    struct mc_microbatch mb;
    mc_step_tokens(t, first, b, last, &mb);
    mc_record_microbatch(t, first, &mb);
    MC_TRY(mc_graph_forward(t->graphs.train, 0, &mb, s->after.steps, &s->loss_sum, err));
    int64_t from = mc_clock_ns();
    MC_TRY(mc_graph_backward(t->graphs.train, 0, &mb, s->after.steps, 1.0 / (double)s->valid, err));
    if (last)
        mc_transfer_mark(t->transfer, MC_SPAN_BACKWARD, from, mc_clock_ns());
    mc_step_beat(t);
    return MC_OK;
}

void mc_step_abandon(struct mc_trainer *t)
{
    t->books.cursor = t->step.cursor;
    t->books.pending = t->step.now;
    t->books.lr_scale = t->step.lr_scale;
}

/* One line in events.jsonl for each thing that a hook's answer sets in motion. */
static void tell_directive(struct mc_trainer *t)
{
    struct mc_event e;
    const struct mc_directive *d = &t->step.now;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", t->step.after.steps);
    mc_json_bool(&e.j, "stop", d->stop);
    mc_json_bool(&e.j, "checkpoint", d->checkpoint);
    mc_json_bool(&e.j, "eval", d->eval);
    mc_json_f64(&e.j, "lr_scale", d->lr_scale);
    mc_json_str(&e.j, "why", d->why);
    mc_event_end(t, &e, "directive");
}

static void tell_anomaly(struct mc_trainer *t, enum mc_anomaly_action action, const char *why)
{
    struct mc_event e;
    const struct mc_step *s = &t->step;
    char loss[32], norm[32];
    mc_fmt_f64(s->loss, loss);
    mc_fmt_f64(s->norm, norm);
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", s->after.steps);
    mc_json_str(&e.j, "loss", loss); /* text: JSON has no nan */
    mc_json_str(&e.j, "grad_norm", norm);
    mc_json_f64(&e.j, "ratio", s->verdict.ratio);
    mc_json_str(&e.j, "action", action == MC_ANOMALY_SKIP ? "skip" : "abort");
    mc_json_str(&e.j, "why", why);
    mc_json_i64(&e.j, "first_sample", s->before.samples);
    mc_json_i64(&e.j, "samples", s->global);
    mc_event_end(t, &e, s->verdict.kind);
    if (t->world.rank != 0)
        return;
    mc_metrics_progress_clear(&t->metrics);
    mc_log(MC_LOG_WARN, "step %lld: %s (loss %s, gradient norm %s): %s", (long long)s->after.steps,
           s->verdict.kind, loss, norm, action == MC_ANOMALY_SKIP ? "update skipped" : "stopping");
}

static void event_of_step(const struct mc_trainer *t, enum mc_hook_kind kind,
                          struct mc_hook_event *ev)
{
    const struct mc_step *s = &t->step;
    mc_hook_event_fill(t, kind, ev);
    ev->step = s->after.steps;
    ev->samples = s->after.samples;
    ev->tokens = s->after.tokens;
    ev->loss = s->loss;
    ev->grad_norm = s->norm;
    ev->lr = s->lr;
    ev->anomaly = s->verdict.kind;
    ev->anomaly_ratio = s->verdict.ratio;
}

/* on_anomaly may overrule the recipe's rule; all other answers wait for the next step. */
static mc_status ask_about_step(struct mc_trainer *t, enum mc_anomaly_action *action,
                                struct mc_directive *pending, struct mc_err *err)
{
    struct mc_step *s = &t->step;
    struct mc_hook_event ev;
    struct mc_directive d;
    if (mc_hooks_want(t, MC_HOOK_GRAD)) {
        event_of_step(t, MC_HOOK_GRAD, &ev);
        mc_directive_clear(&d);
        MC_TRY(mc_hooks_ask(t, &ev, &d, err));
        mc_directive_keep(pending, &d);
    }
    if (s->verdict.kind && mc_hooks_want(t, MC_HOOK_ANOMALY)) {
        event_of_step(t, MC_HOOK_ANOMALY, &ev);
        mc_directive_clear(&d);
        MC_TRY(mc_hooks_ask(t, &ev, &d, err));
        mc_directive_keep(pending, &d);
        if (d.anomaly_action >= 0)
            *action = (enum mc_anomaly_action)d.anomaly_action;
    }
    return MC_OK;
}

/* The same by the control rank, for all. Exchanged only when there is something to ask. */
static mc_status ask_for_all(struct mc_trainer *t, enum mc_anomaly_action *action,
                             struct mc_err *err)
{
    int asked = t->asks >> MC_HOOK_GRAD & 1;
    asked |= t->step.verdict.kind && (t->asks >> MC_HOOK_ANOMALY & 1);
    if (!asked)
        return MC_OK;
    mc_status st = t->world.rank == 0 ? ask_about_step(t, action, &t->books.pending, err) : MC_OK;
    MC_TRY(mc_world_vote(&t->world, st, &t->sound, err));
    int32_t answer = *action;
    MC_TRY(mc_world_tell(&t->world, &answer, sizeof answer, err));
    *action = (enum mc_anomaly_action)answer;
    return MC_OK;
}

/* The second exchange of a step: loss, norm, what is due after it. */
static mc_status agree_judge(struct mc_trainer *t, struct mc_err *err)
{
    enum { LOSS, DUE_EVAL, DUE_SAVE };
    struct mc_step *s = &t->step;
    int n = mc_graph_nparams(t->graphs.whole), pipe = mc_piped_numbers(t);
    double *v = t->sum, *norm = v + MC_STEP_HEAD, *stages = norm + n;
    memset(v, 0, (size_t)(MC_STEP_HEAD + n + pipe) * sizeof *v);
    if (s->valid > 0) {
        if (s->own == 0) /* I2 */
            MC_TRY(mc_transfer_idle(t->transfer, err));
        MC_TRY(mc_transfer_finish(t->transfer, err));
        mc_record_grads(t);
        mc_optim_norm_parts(t->optim, norm);
    }
    v[LOSS] = t->world.counts ? s->loss_sum : 0;
    if (t->world.rank == 0) {
        v[DUE_EVAL] = mc_eval_due(t);
        v[DUE_SAVE] = mc_save_due(t);
    }
    mc_piped_tell(t, stages);
    MC_TRY(mc_world_sum(&t->world, v, MC_STEP_HEAD + n + pipe, err));
    mc_piped_judge(t, stages);
    s->due_eval = v[DUE_EVAL] > 0;
    s->due_save = v[DUE_SAVE] > 0;
    s->loss = s->valid > 0 ? v[LOSS] / (double)s->valid : 0; /* I1 */
    s->norm = s->valid > 0 ? mc_optim_norm_of(t->optim, norm) : 0;
    if (t->norms.due) /* on all ranks or none */
        MC_TRY(mc_world_sum(&t->world, t->norms.sum, t->norms.nlayers + 1, err));
    mc_norms_judge(&t->norms, t->optim, norm,
                   (s->after.tokens - s->before.tokens) * t->recipe->model.hidden);
    return MC_OK;
}

mc_status mc_step_judge(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_step *s = &t->step;
    struct mc_books *b = &t->books;
    const struct mc_anomaly_cfg *rule = &t->recipe->anomaly;
    MC_TRY(agree_judge(t, err));
    if (!isnan(s->now.lr_scale))
        b->lr_scale = s->now.lr_scale;
    s->lr = mc_lr_at(&t->recipe->lr, &s->after) * b->lr_scale;
    s->verdict = mc_anomaly_judge(rule, &b->spikes, s->loss, s->norm);
    t->step_allocs += mc_mem_stats().calls - s->allocs; /* I4: hooks and events are not counted */
    if (mc_directive_any(&s->now))
        tell_directive(t);
    mc_directive_clear(&b->pending);
    enum mc_anomaly_action action =
        s->verdict.kind && strcmp(s->verdict.kind, "spike") == 0 ? rule->spike : rule->nonfinite;
    mc_status st = ask_for_all(t, &action, err);
    if (st != MC_OK) {
        mc_step_abandon(t);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    s->update = s->valid > 0 && !s->verdict.kind;
    if (s->verdict.kind)
        tell_anomaly(t, action, b->pending.why);
    if (s->verdict.kind && action == MC_ANOMALY_ABORT) {
        char loss[32], norm[32];
        mc_fmt_f64(s->loss, loss);
        mc_fmt_f64(s->norm, norm);
        return mc_err_set(err, MC_E_GIVEUP,
                          "step %lld: %s (loss %s, gradient norm %s) and the rule is to abort; "
                          "weights are as the last checkpoint has them. Look at the data and the "
                          "learning rate, or set anomaly.%s = \"skip\"",
                          (long long)s->after.steps, s->verdict.kind, loss, norm,
                          strcmp(s->verdict.kind, "spike") == 0 ? "spike" : "nonfinite");
    }
    s->allocs = mc_mem_stats().calls;
    return MC_OK;
}

mc_status mc_step_update(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_step *s = &t->step;
    struct mc_books *b = &t->books;
    if (!s->update)
        return MC_OK;
    double limit = t->recipe->optim.clip, scale = 1;
    if (limit > 0 && limit / (s->norm + 1e-6) < 1)
        scale = limit / (s->norm + 1e-6);
    mc_optim_update(t->optim, b->successful + 1, s->lr, scale);
    return mc_transfer_gather(t->transfer, err);
}

/* The step is done: into the books. */
static void enter(struct mc_trainer *t)
{
    const struct mc_step *s = &t->step;
    struct mc_books *b = &t->books;
    b->at = s->after;
    b->loss = s->loss;
    b->grad_norm = s->norm;
    b->lr = s->lr;
    if (s->update) {
        b->successful++;
        b->skips_in_row = 0;
        mc_spikes_push(&b->spikes, s->norm);
    } else {
        b->skipped++;
        b->skips_in_row++;
    }
    t->segment_steps++;
    struct mc_page *p = t->cfg->page;
    if (p) {
        atomic_store_explicit(&p->step, b->at.steps, memory_order_relaxed);
        atomic_store_explicit(&p->samples, b->at.samples, memory_order_relaxed);
        atomic_store_explicit(&p->tokens, b->at.tokens, memory_order_relaxed);
    }
}

static mc_status too_many_skips(const struct mc_trainer *t, struct mc_err *err)
{
    const struct mc_books *b = &t->books;
    if (b->skips_in_row < t->recipe->anomaly.max_skips || t->recipe->anomaly.max_skips == 0)
        return MC_OK;
    return mc_err_set(err, MC_E_GIVEUP,
                      "%lld updates in a row were skipped (anomaly.max_skips), the last at step "
                      "%lld: the run does not recover by itself. Go back to an earlier "
                      "checkpoint with --resume STEP, or change the learning rate or the data",
                      (long long)b->skips_in_row, (long long)b->at.steps);
}

/* What was read of each source so far, where this step's line shows it. */
static int mixture_due(const struct mc_trainer *t)
{
    int64_t every = t->recipe->log_mixture;
    return every > 0 &&
           (t->books.at.steps % every == 0 || mc_target_reached(&t->recipe->steps, &t->books.at));
}

mc_status mc_step_end(struct mc_trainer *t, struct mc_err *err)
{
    const struct mc_step *s = &t->step;
    struct mc_books *b = &t->books;
    enter(t);
    mc_record_end(t);
    if (t->world.rank != 0) {
        t->step_allocs += mc_mem_stats().calls - s->allocs; /* I4 */
        return too_many_skips(t, err);
    }
    double seconds = (double)(mc_clock_ns() - s->begin_ns) * 1e-9;
    double speed = (double)(s->after.tokens - s->before.tokens) / seconds;
    struct mc_mixture mixture;
    if (mixture_due(t))
        mc_cursor_mixture(&b->cursor, &mixture);
    mc_norms_write(&t->norms, b->at.steps, t->cfg->rd->segment);
    struct mc_metric m = {
        .step = b->at.steps,
        .tokens = b->at.tokens,
        .samples = b->at.samples,
        .skipped = b->skipped,
        .loss = s->loss,
        .grad_norm = s->norm,
        .lr = s->lr,
        .step_ms = seconds * 1e3,
        .tokens_per_s = speed,
        .mfu = mc_flops_mfu(t->recipe, &t->flops[s->phase], speed, t->cfg->nranks),
        .segment = t->cfg->rd->segment,
        .ranks = t->world.size,
        .exposed_ms = (double)mc_transfer_exposed_ns(t->transfer) * 1e-6,
        .piped = t->pipe != NULL,
        .bubble_ms = t->piped.bubble_ms,
        .bubble = t->piped.bubble,
        .mixture = mixture_due(t) ? &mixture : NULL,
        .norms = &t->norms,
        .target_steps = t->target_steps,
        .global_batch = s->global,
        .was_skipped = !s->update,
    };
    MC_TRY(mc_metrics_add(&t->metrics, &m, err));
    mc_timeline_step(t);
    if (!t->cfg->quiet) {
        int64_t every = t->recipe->log_every;
        if (every > 0 && (b->at.steps % every == 0 || mc_target_reached(&t->recipe->steps, &b->at)))
            mc_metrics_log(&t->metrics, &m);
        if (t->cfg->progress)
            mc_metrics_progress(&t->metrics, &m);
    }
    t->step_allocs += mc_mem_stats().calls - s->allocs; /* I4 */
    if (mc_hooks_want(t, MC_HOOK_STEP_END)) {
        struct mc_hook_event ev;
        struct mc_directive d;
        mc_hook_event_fill(t, MC_HOOK_STEP_END, &ev);
        ev.step_ms = m.step_ms;
        ev.tokens_per_s = m.tokens_per_s;
        ev.mfu = m.mfu;
        mc_directive_clear(&d);
        MC_TRY(mc_hooks_ask(t, &ev, &d, err));
        mc_directive_keep(&b->pending, &d);
    }
    return too_many_skips(t, err);
}
