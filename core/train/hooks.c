/* hooks.c - what the trainer tells its hooks, and how their answers are kept. Floor 6 (train).
 *
 * Core knows hooks only as struct mc_hook_ops, which lua/ fills.
 *
 * I1  An answer given after step k is in force from step k + 1: it rides on that step, is logged
 *     when it takes effect and lies in the checkpoint until then, so a replay takes the same path.
 *     One exception: skip or abort, the answer of on_anomaly, is about the very step being judged.
 *     With several ranks, the control rank asks, and tells the others (step.c).
 * I2  The event struct is filled from the books alone; hooks see what a checkpoint would hold.
 *
 * Memory: none kept. Threads: the trainer's. */
#include "train_int.h"
#include "../run/spawn.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const hook_names[MC_HOOK_NKINDS] = {"on_step_end", "on_grad", "on_anomaly",
                                                       "on_eval", "on_checkpoint"};

const char *mc_hook_name(enum mc_hook_kind k)
{
    return k >= 0 && k < MC_HOOK_NKINDS ? hook_names[k] : "?";
}

void mc_directive_clear(struct mc_directive *d)
{
    memset(d, 0, sizeof *d);
    d->anomaly_action = -1;
    d->lr_scale = NAN;
}

int mc_directive_any(const struct mc_directive *d)
{
    return d->stop || d->checkpoint || d->eval || d->anomaly_action >= 0 || !isnan(d->lr_scale);
}

void mc_directive_keep(struct mc_directive *pending, const struct mc_directive *d)
{
    pending->stop |= d->stop;
    pending->checkpoint |= d->checkpoint;
    pending->eval |= d->eval;
    if (!isnan(d->lr_scale))
        pending->lr_scale = d->lr_scale;
    if (d->why[0])
        memcpy(pending->why, d->why, sizeof pending->why);
}

int mc_crossed(const struct mc_quantity *every, const struct mc_counters *was,
               const struct mc_counters *now, int64_t last_ns)
{
    if (every->n <= 0)
        return 0;
    switch (every->unit) {
    case MC_UNIT_NS:
        return mc_clock_ns() - last_ns >= every->n;
    case MC_UNIT_SAMPLES:
        return now->samples / every->n > was->samples / every->n;
    case MC_UNIT_TOKENS:
        return now->tokens / every->n > was->tokens / every->n;
    default: /* steps */
        return now->steps / every->n > was->steps / every->n;
    }
}

/* Seconds since the epoch at which Slurm ends the job; NaN: not known. */
static double job_end(const char *text)
{
    char *rest;
    if (!text || !*text)
        return NAN;
    errno = 0;
    long long at = strtoll(text, &rest, 10);
    return *rest == '\0' && errno == 0 && at > 0 ? (double)at : NAN;
}

void mc_time_check(void)
{
    const char *text = getenv("SLURM_JOB_END_TIME");
    if (text && *text && isnan(job_end(text)))
        mc_log(MC_LOG_WARN,
               "SLURM_JOB_END_TIME=%.60s: not seconds since 1970; the run takes the end of its job "
               "for unknown",
               text);
}

double mc_time_left(const struct mc_trainer *t)
{
    double left = NAN;
    const struct mc_quantity *limit = &t->recipe->time_limit;
    if (limit->n > 0)
        left = (double)(limit->n - (mc_clock_ns() - t->start_ns)) * 1e-9;
    double job = job_end(getenv("SLURM_JOB_END_TIME")) - mc_clock_unix();
    if (!isnan(job) && !(left < job))
        left = job;
    return left;
}

void mc_hook_event_fill(const struct mc_trainer *t, enum mc_hook_kind kind,
                        struct mc_hook_event *ev)
{
    const struct mc_books *b = &t->books;
    *ev = (struct mc_hook_event){
        .kind = kind,
        .step = b->at.steps,
        .samples = b->at.samples,
        .tokens = b->at.tokens,
        .skipped = b->skipped,
        .successful = b->successful,
        .target_steps = t->target_steps,
        .loss = b->loss,
        .grad_norm = b->grad_norm,
        .lr = b->lr,
        .step_ms = NAN,
        .tokens_per_s = NAN,
        .mfu = NAN,
        .time_left_s = mc_time_left(t),
        .save_s = t->save_s,
        .signal = mc_signals_pending(),
        .anomaly_ratio = NAN,
        .eval_loss = NAN,
        .eval_tokens = -1,
        .ckpt_step = -1,
        .segment = t->cfg->rd->segment,
    };
    if (t->norms.due && kind <= MC_HOOK_ANOMALY) {
        ev->layer_grad = t->norms.grad;
        ev->layer_act = t->norms.act;
        ev->nlayers = t->norms.nlayers;
    }
}

int mc_hooks_want(const struct mc_trainer *t, enum mc_hook_kind kind)
{
    return t->hooks && t->hooks->wants(t->hooks->ctx, kind);
}

mc_status mc_hooks_ask(struct mc_trainer *t, const struct mc_hook_event *ev, struct mc_directive *d,
                       struct mc_err *err)
{
    mc_status st = t->hooks->call(t->hooks->ctx, ev, d, err);
    t->sound |= st == MC_E_GIVEUP; /* the run is well; its hook is not */
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

/* ---- events ---- */

void mc_event_begin(struct mc_event *e)
{
    mc_json_init_fixed(&e->j, e->buf, sizeof e->buf - 1);
    mc_json_open(&e->j, NULL, '{');
}

void mc_event_end(struct mc_trainer *t, struct mc_event *e, const char *kind)
{
    struct mc_err err = {0};
    if (t->world.rank != 0)
        return;
    mc_json_close(&e->j, '}');
    const char *members = "\"truncated\":true";
    if (!e->j.failed) {
        e->buf[e->j.len - 1] = '\0'; /* without the braces */
        members = e->buf + 1;
    }
    if (t->lost || mc_rundir_event(t->cfg->rd, kind, members, &err) == MC_OK)
        return;
    if (mc_trainer_held(t, 1, NULL) == MC_OK) /* else the step loop ends, and says why */
        mc_log(MC_LOG_ERROR, "event \"%s\" not written: %s", kind, err.msg);
}
