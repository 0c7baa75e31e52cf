/* trainer.c - one rank's training, in the order in which it happens. Floor 6 (train).
 *
 * I1  A step is either completed, and then in the books, the metrics and the hooks' hands, or it
 *     leaves no trace: signals are looked at between microbatches, and an abandoned step gives its
 *     samples back.
 * I2  Exit 0 means that the target is reached and the checkpoint of that step is committed.
 *     75 means an orderly stop: at least one step of this segment is in a committed checkpoint of
 *     it. Everything else that is no error is 76.
 * I3  A periodic save may fail without ending the run; the one that ends it may not.
 *     An evaluation that a stop cut short is a debt of the step it belongs to: the target is not
 *     reached before it is paid, and a resumed run pays first.
 * I4  What a hook answered after step k happens with step k + 1 (hooks.c).
 * I5  A run whose folder was deleted or replaced stops (76) and writes nothing more: looked up once
 *     a second, at each save and at the end.
 *
 * Memory: struct mc_trainer owns all (train_int.h). Threads: one, beside the pool's. */
#include "train_int.h"
#include "../run/spawn.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define HELD_EVERY_NS INT64_C(1000000000)

/* Is there a reason to stop before the next step? */
static enum mc_stop stop_wanted(struct mc_trainer *t)
{
    if (t->stop != MC_STOP_NONE)
        return t->stop;
    if (mc_signals_pending()) {
        t->stop = MC_STOP_SIGNAL;
        snprintf(t->stop_why, sizeof t->stop_why, "signal %d", mc_signals_pending());
    } else if (t->recipe->time_limit.n > 0) {
        double used = (double)(mc_clock_ns() - t->start_ns) * 1e-9;
        double save = isnan(t->save_s) ? 0 : 1.5 * t->save_s; /* the save must fit too */
        if (used + save >= (double)t->recipe->time_limit.n * 1e-9) {
            t->stop = MC_STOP_TIME;
            char limit[48];
            mc_units_print(t->recipe->time_limit, limit);
            snprintf(t->stop_why, sizeof t->stop_why, "time limit of %s for one segment", limit);
        }
    }
    return t->stop;
}

mc_status mc_trainer_held(struct mc_trainer *t, int at_once, struct mc_err *err)
{
    int64_t now = mc_clock_ns();
    if (!at_once && now - t->held_ns < HELD_EVERY_NS)
        return MC_OK;
    t->held_ns = now;
    mc_status st = mc_rundir_held(t->cfg->rd, err);
    t->lost |= st != MC_OK;
    return st;
}

/* The step loop. Returns at the target, at a reason to stop, or with an error. */
static mc_status loop(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_step *s = &t->step;
    while (!mc_target_reached(&t->recipe->steps, &t->books.at) && !stop_wanted(t)) {
        MC_TRY(mc_trainer_held(t, t->lost, err)); /* I5 */
        MC_TRY(mc_step_begin(t, err));
        for (int64_t first = 0; first < s->global; first += t->recipe->batch.micro) {
            if (mc_signals_pending()) { /* I1 */
                mc_step_abandon(t);
                (void)stop_wanted(t);
                return MC_OK;
            }
            MC_TRY(mc_step_microbatch(t, first, err));
        }
        MC_TRY(mc_step_judge(t, err));
        mc_step_update(t);
        MC_TRY(mc_step_end(t, err));

        if (s->now.stop && t->stop == MC_STOP_NONE) { /* I4 */
            t->stop = MC_STOP_HOOK;
            snprintf(t->stop_why, sizeof t->stop_why, "hook: %s",
                     s->now.why[0] ? s->now.why : "stop");
        }
        if (s->now.eval || mc_eval_due(t))
            MC_TRY(mc_eval_run(t, err));
        if (s->now.checkpoint || mc_save_due(t))
            MC_TRY(mc_save(t, 0, 1, err)); /* I3 */
    }
    return MC_OK;
}

/* What the checkpoint says is still to be done after its step, before the next one (I2). */
static mc_status pay(struct mc_trainer *t, struct mc_err *err)
{
    if (t->books.eval_owed) {
        MC_TRY(mc_eval_run(t, err));
        t->paid = !t->books.eval_owed;
    }
    if (t->books.call_owed && !t->books.eval_owed &&
        !mc_target_reached(&t->recipe->steps, &t->books.at))
        return mc_save_call(t, err);
    return MC_OK;
}

static void tell_stop(struct mc_trainer *t, int reached)
{
    struct mc_event e;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", t->books.at.steps);
    mc_json_str(&e.j, "why", reached ? "target reached" : t->stop_why);
    mc_event_end(t, &e, "stop");
    mc_metrics_progress_clear(&t->metrics);
    if (!t->cfg->quiet || !reached)
        mc_log(MC_LOG_INFO, "stopped after step %lld: %s", (long long)t->books.at.steps,
               reached ? "target reached" : t->stop_why);
}

/* After the loop: the save that is owed, and the exit code (I2). */
static mc_status finish(struct mc_trainer *t, int *exit_code, struct mc_err *err)
{
    int end = mc_target_reached(&t->recipe->steps, &t->books.at);
    int reached = end && !t->books.eval_owed;
    /* Due in a run with a later target, too? The step in hand is the last one: none was begun. */
    int due = end && t->segment_steps == 0
                  ? t->books.call_owed
                  : end && mc_crossed(&t->recipe->checkpoint.every, &t->step.before, &t->step.after,
                                      t->save_ns);
    MC_TRY(mc_trainer_held(t, 1, err)); /* I5 */
    (void)stop_wanted(t);               /* the reason, when the last evaluation was cut short */
    tell_stop(t, reached);
    if (!reached && t->segment_steps == 0) {
        mc_log(MC_LOG_WARN, "no step was completed in this segment; nothing new to save");
        *exit_code = 76;
        return MC_OK;
    }
    if (t->committed_step != t->books.at.steps || t->paid)
        MC_TRY(mc_save(t, 1, due, err));
    *exit_code = reached ? 0 : 75;
    return MC_OK;
}

/* Hooks that fail too often and data that cannot be read stop the run, but not at the price of its
 * work. Data at fault after progress is 77, not 2: something was started. */
static mc_status give_up(struct mc_trainer *t, mc_status st)
{
    struct mc_err why = {0};
    if (!t->sound || t->segment_steps == 0)
        return st;
    if (t->committed_step != t->books.at.steps && mc_save(t, 1, 0, &why) != MC_OK)
        mc_log(MC_LOG_ERROR, "no checkpoint of step %lld: %s", (long long)t->books.at.steps,
               why.msg);
    return mc_status_exit_code(st) == 2 || st == MC_E_CORRUPT ? MC_E_GIVEUP : st;
}

static void tell_memory_peak(struct mc_trainer *t)
{
    struct mc_event e;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "rss_peak", (int64_t)mc_mem_rss_peak());
    mc_json_i64(&e.j, "baseline", (int64_t)t->baseline_rss);
    mc_json_i64(&e.j, "planned", (int64_t)t->planned);
    mc_json_i64(&e.j, "step_allocations", (int64_t)t->step_allocs);
    mc_event_end(t, &e, "memory_peak");
}

mc_status mc_train(const struct mc_train_cfg *cfg, struct mc_train_result *res, struct mc_err *err)
{
    struct mc_trainer *t = NULL;
    struct mc_err own = {0};
    if (!err)
        err = &own;
    int exit_code = 0;
    mc_status st = mc_trainer_create(cfg, &t, err);
    if (st == MC_OK)
        st = mc_trainer_start(t, err);
    if (st == MC_OK) {
        st = pay(t, err);
        if (st == MC_OK)
            st = loop(t, err);
        st = st == MC_OK ? finish(t, &exit_code, err) : give_up(t, st);
    }
    *res = (struct mc_train_result){.exit_code = st == MC_OK ? exit_code : mc_status_exit_code(st),
                                    .committed_step = -1,
                                    .loss = NAN};
    if (t) {
        res->step = t->books.at.steps;
        res->segment_steps = t->segment_steps;
        res->committed_step = t->committed_step;
        res->loss = t->books.loss;
        if (t->optim && t->started)
            res->weights_hash = mc_optim_weights_hash(t->optim);
        tell_memory_peak(t);
    }
    mc_page_phase(cfg->page, MC_PHASE_EXIT, res->step);
    mc_trainer_destroy(t);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}
