/* trainer.c - one rank's training, in the order in which it happens. Floor 6 (train).
 *
 * I1  A step is either completed, and then in the books, the metrics and the hooks' hands, or it
 *     leaves no trace: signals are looked at before a step, on one rank between microbatches too,
 *     and an abandoned step gives its samples back.
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
 * I6  With several ranks all run this file, in step: each branch is taken on what they have agreed
 *     on (step.c, world.h). Metrics, events, hooks and log are the control rank's.
 *
 * Memory: struct mc_trainer owns all (train_int.h). Threads: one, beside the pool's. */
#include "train_int.h"
#include "../run/spawn.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define HELD_EVERY_NS INT64_C(1000000000)

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

mc_status mc_trainer_hash(struct mc_trainer *t, uint64_t *hash, struct mc_err *err)
{
    mc_optim_hash_parts(t->optim, t->hash_sum);
    MC_TRY(mc_world_sum_u64(&t->world, t->hash_sum, mc_graph_nparams(t->graphs.whole), err));
    *hash = mc_optim_hash_of(t->optim, t->hash_sum);
    return MC_OK;
}

/* This replica's microbatches. *stopped: a signal came between them (I1). */
static mc_status microbatches(struct mc_trainer *t, int *stopped, struct mc_err *err)
{
    mc_record_data(t);
    if (t->pipe)
        return mc_piped_step(t, err);
    for (int64_t first = 0; first < t->step.own; first += t->recipe->batch.micro) {
        *stopped = t->world.size == 1 && mc_signals_pending();
        if (*stopped)
            return MC_OK;
        MC_TRY(mc_step_microbatch(t, first, err));
    }
    return MC_OK;
}

/* The step loop. Returns at the target, at a reason to stop, or with an error. */
static mc_status loop(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_step *s = &t->step;
    mc_status late = MC_OK; /* of the control rank, after its step was judged */
    int stopped = 0;
    while (!mc_target_reached(&t->recipe->steps, &t->books.at) && t->stop == MC_STOP_NONE) {
        int64_t at = mc_profile_part(t, MC_NPARTS, 0);
        MC_TRY(mc_step_begin(t, late, err));
        at = mc_profile_part(t, MC_PART_BEGIN, at);
        if (t->stop == MC_STOP_NONE)
            MC_TRY(microbatches(t, &stopped, err));
        at = mc_profile_part(t, MC_PART_MICROBATCHES, at);
        if (stopped)
            mc_stop_set(t, MC_STOP_SIGNAL, mc_signals_pending());
        if (t->stop != MC_STOP_NONE) { /* I1 */
            mc_step_abandon(t);
            return MC_OK;
        }
        MC_TRY(mc_step_judge(t, err));
        at = mc_profile_part(t, MC_PART_JUDGE, at);
        MC_TRY(mc_step_update(t, err));
        at = mc_profile_part(t, MC_PART_OPTIMIZER, at);
        late = mc_step_end(t, err);
        at = mc_profile_part(t, MC_PART_METRICS, at);

        if (s->now.stop && t->stop == MC_STOP_NONE) { /* I4 */
            t->stop = MC_STOP_HOOK;
            snprintf(t->stop_why, sizeof t->stop_why, "hook: %s",
                     s->now.why[0] ? s->now.why : "stop");
        }
        int eval = s->now.eval || s->due_eval, save = s->now.checkpoint || s->due_save;
        if (!eval && !save)
            continue;
        MC_TRY(mc_world_vote(&t->world, late, &t->sound, err));
        if (eval) {
            MC_TRY(mc_eval_run(t, err));
            at = mc_profile_part(t, MC_PART_EVAL, at);
        }
        if (save) {
            MC_TRY(mc_save(t, 0, 1, err)); /* I3 */
            mc_profile_part(t, MC_PART_SAVE, at);
        }
    }
    return mc_world_vote(&t->world, late, &t->sound, err);
}

/* What the checkpoint says is still to be done after its step, before the next one (I2). */
static mc_status pay(struct mc_trainer *t, struct mc_err *err)
{
    if (t->books.eval_owed) {
        MC_TRY(mc_eval_run(t, err));
        t->paid = !t->books.eval_owed;
    }
    if (t->books.call_owed && !t->books.eval_owed &&
        !mc_target_reached(&t->recipe->steps, &t->books.at)) {
        mc_status called = mc_save_call(t, err);
        return mc_world_vote(&t->world, called, &t->sound, err);
    }
    return MC_OK;
}

/* What was read of each source, for the log's end. */
static void tell_mixture(const struct mc_trainer *t)
{
    struct mc_mixture x;
    mc_cursor_mixture(&t->books.cursor, &x);
    for (int s = 0; s < x.n; s++)
        mc_log(MC_LOG_INFO,
               "read of %s: %lld samples, %lld tokens, %.2f %% of all (weight in force: %.2f %%)",
               mc_data_source_name(t->data, s), (long long)x.of[s].samples,
               (long long)x.of[s].tokens, 100 * x.of[s].share, 100 * x.of[s].weight);
}

static void tell_stop(struct mc_trainer *t, int reached)
{
    struct mc_event e;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", t->books.at.steps);
    mc_json_str(&e.j, "why", reached ? "target reached" : t->stop_why);
    mc_event_end(t, &e, "stop");
    if (t->world.rank != 0)
        return;
    mc_metrics_progress_clear(&t->metrics);
    if (!t->cfg->quiet || !reached)
        mc_log(MC_LOG_INFO, "stopped after step %lld: %s", (long long)t->books.at.steps,
               reached ? "target reached" : t->stop_why);
    if (!t->cfg->quiet)
        tell_mixture(t);
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
    mc_status held = mc_trainer_held(t, 1, err); /* I5 */
    MC_TRY(mc_world_vote(&t->world, held, NULL, err));
    tell_stop(t, reached);
    if (!reached && t->segment_steps == 0) {
        if (t->world.rank == 0)
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

/* Ready to step, on all ranks or on none. */
static mc_status prepare(struct mc_trainer *t, mc_status created, struct mc_err *err)
{
    int32_t asks = 0;
    MC_TRY(mc_world_vote(&t->world, created, NULL, err));
    for (int k = 0; k < MC_HOOK_NKINDS; k++)
        asks |= mc_hooks_want(t, (enum mc_hook_kind)k) << k;
    MC_TRY(mc_world_tell(&t->world, &asks, sizeof asks, err));
    t->asks = asks;
    return mc_trainer_start(t, err);
}

mc_status mc_train(const struct mc_train_cfg *cfg, struct mc_train_result *res, struct mc_err *err)
{
    struct mc_trainer *t = NULL;
    struct mc_err own = {0};
    if (!err)
        err = &own;
    int exit_code = 0;
    uint64_t hash = 0;
    mc_status st = mc_trainer_create(cfg, &t, err);
    if (t)
        st = prepare(t, st, err);
    if (st == MC_OK) {
        st = pay(t, err);
        if (st == MC_OK)
            st = mc_profile_begin(t, err);
        if (st == MC_OK)
            st = loop(t, err);
        st = st == MC_OK ? finish(t, &exit_code, err) : give_up(t, st);
        if (st == MC_OK)
            st = mc_profile_end(t, err);
    }
    if (t && t->started && (st == MC_OK || t->world.size == 1)) {
        mc_status last = mc_transfer_drain(t->transfer, err);
        if (last == MC_OK)
            last = mc_trainer_hash(t, &hash, err);
        st = st == MC_OK ? last : st;
    }
    *res = (struct mc_train_result){.exit_code = st == MC_OK ? exit_code : mc_status_exit_code(st),
                                    .committed_step = -1,
                                    .loss = NAN};
    if (t) {
        res->step = t->books.at.steps;
        res->segment_steps = t->segment_steps;
        res->committed_step = t->committed_step;
        res->loss = t->books.loss;
        res->weights_hash = hash;
        t->torn = st != MC_OK && t->world.size > 1;
        tell_memory_peak(t);
    }
    mc_page_phase(cfg->page, MC_PHASE_EXIT, res->step);
    mc_trainer_destroy(t);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}
