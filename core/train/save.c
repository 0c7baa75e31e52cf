/* save.c - when a checkpoint is due, and what is told around it. Floor 6 (train).
 *
 * How a checkpoint becomes durable is ckpt/'s; here is what must hold before and after.
 *
 * I1  The metrics line of the step that a checkpoint holds is on the disk before it commits.
 * I2  A failed save changes nothing but the books of events: older checkpoints stand, and the next
 *     one is tried when due.
 * I3  A second stop signal gives up a save in hand; what was committed stays.
 * I4  on_checkpoint is called after the commit, so what it changes is not in that checkpoint. The
 *     books in it say that the call is owed, and a resumed run makes it first: hooks' state is then
 *     that of the run never stopped. Owed is only what that run does too: a save due by the rules
 *     or asked for by a hook, not one made because the run stops.
 * I5  Older checkpoints are deleted only after a commit, and by ckpt/'s rule.
 * I6  With several ranks each saves what it owns; books, retention and hooks are the control
 *     rank's, and a failure of one fails the save on all.
 *
 * Memory: the text of the books, for the duration of a save. Threads: the trainer's. */
#include "train_int.h"
#include "../run/spawn.h"
#include "../../ckpt/ckpt.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

int mc_save_due(const struct mc_trainer *t)
{
    const struct mc_step *s = &t->step;
    if (mc_target_reached(&t->recipe->steps, &s->after))
        return 0; /* the one at the end is owed anyway */
    return mc_crossed(&t->recipe->checkpoint.every, &s->before, &s->after, t->save_ns);
}

static void on_progress(void *arg, int64_t done, int64_t all)
{
    struct mc_trainer *t = arg;
    (void)all;
    if (mc_signals_count() >= 2) /* I3 */
        t->cancel_save = 1;
    if (t->cfg->page) {
        atomic_store_explicit(&t->cfg->page->bytes_moved, done, memory_order_relaxed);
        atomic_store_explicit(&t->cfg->page->beat_ns, mc_clock_ns(), memory_order_relaxed);
    }
}

/* The control rank's: metrics on the disk, the text of the books. */
static mc_status write_books(struct mc_trainer *t, struct mc_json *j, struct mc_err *err)
{
    struct mc_books_run run = {.recipe = t->recipe,
                               .data = t->data,
                               .hooks = t->hooks,
                               .fingerprint = t->fingerprint,
                               .software = t->cfg->software,
                               .layout = t->world.mesh ? &t->world.mesh->layout : NULL};
    MC_TRY(mc_metrics_sync(&t->metrics, err)); /* I1 */
    return mc_books_write(&t->books, &run, j, err);
}

static mc_status write_checkpoint(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_ckpt_group group = mc_world_writers(&t->world);
    struct mc_json j;
    MC_TRY(mc_trainer_hash(t, &t->books.weights_hash, err));
    mc_json_init_grow(&j);
    mc_status st = t->world.rank == 0 ? write_books(t, &j, err) : MC_OK;
    st = mc_world_vote(&t->world, st, NULL, err); /* I6 */
    int skip = t->recipe->checkpoint.weights == MC_WEIGHTS_REBUILD
                   ? mc_weights_lead(t->recipe->precision, t->owned, t->nowned)
                   : 0;
    if (st == MC_OK) {
        struct mc_ckpt_save s = {.ckpt_dir = t->ckpt_dir,
                                 .step = t->books.at.steps,
                                 .epoch = t->cfg->rd->segment,
                                 .tensor = t->owned + skip,
                                 .ntensors = t->nowned - skip,
                                 .books = t->world.rank == 0 ? j.buf : NULL,
                                 .group = t->world.mesh ? &group : NULL,
                                 .compress = 1,
                                 .cancel = &t->cancel_save,
                                 .progress = on_progress,
                                 .arg = t};
        t->cancel_save = mc_signals_count() >= 2;
        st = mc_ckpt_save(&s, err);
    }
    mc_json_fini(&j);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

static void tell_failed(struct mc_trainer *t, const struct mc_err *why)
{
    struct mc_event e;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", t->books.at.steps);
    mc_json_str(&e.j, "error", mc_status_name(why->code));
    mc_json_str(&e.j, "message", why->msg);
    mc_event_end(t, &e, "checkpoint_failed");
    if (t->world.rank != 0)
        return;
    mc_metrics_progress_clear(&t->metrics);
    char newest[64] = "the run has no checkpoint yet";
    if (t->committed_step >= 0)
        snprintf(newest, sizeof newest, "the newest whole one is of step %lld",
                 (long long)t->committed_step);
    mc_log(MC_LOG_ERROR, "CHECKPOINT OF STEP %lld FAILED: %s; %s", (long long)t->books.at.steps,
           why->msg, newest);
}

static void tell_committed(struct mc_trainer *t, const char *path)
{
    struct mc_event e;
    const char *base = strrchr(path, '/');
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", t->books.at.steps);
    mc_json_str(&e.j, "checkpoint", base ? base + 1 : path);
    mc_json_f64(&e.j, "seconds", t->save_s);
    mc_event_end(t, &e, "checkpoint");
}

mc_status mc_save_call(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_err why = {0};
    struct mc_hook_event ev;
    struct mc_directive d;
    char path[1100] = "";
    t->books.call_owed = 0;
    if (!mc_hooks_want(t, MC_HOOK_CHECKPOINT))
        return MC_OK;
    (void)mc_ckpt_resolve(t->ckpt_dir, t->books.at.steps, path, &why); /* told by mc_save */
    mc_hook_event_fill(t, MC_HOOK_CHECKPOINT, &ev);
    ev.ckpt_path = path;
    ev.ckpt_step = t->books.at.steps;
    mc_directive_clear(&d);
    MC_TRY(mc_hooks_ask(t, &ev, &d, err));
    mc_directive_keep(&t->books.pending, &d);
    return MC_OK;
}

/* The control rank's: tell it, delete older ones, call the hook. */
static mc_status after_commit(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_err why = {0};
    char path[1100] = "";
    if (mc_ckpt_resolve(t->ckpt_dir, t->books.at.steps, path, &why) != MC_OK)
        mc_log(MC_LOG_WARN, "committed, but not found again: %s", why.msg);
    tell_committed(t, path);
    mc_err_clear(&why);
    if (mc_ckpt_retain(t->ckpt_dir, (int)t->recipe->checkpoint.keep, t->cfg->rd->segment, &why) !=
        MC_OK) /* I5 */
        mc_log(MC_LOG_WARN, "older checkpoints were kept: %s", why.msg);
    return mc_save_call(t, err);
}

mc_status mc_save(struct mc_trainer *t, int must, int due, struct mc_err *err)
{
    struct mc_err why = {0};
    int64_t begin = mc_clock_ns();
    if (t->saved_step == t->books.at.steps) /* this state is safe already */
        return MC_OK;
    mc_status mine = mc_trainer_held(t, 1, err);
    MC_TRY(mc_world_vote(&t->world, mine, NULL, err));
    mc_page_phase(t->cfg->page, MC_PHASE_SAVE, t->books.at.steps);
    t->books.call_owed = due && mc_hooks_want(t, MC_HOOK_CHECKPOINT); /* I4 */
    mc_status st = write_checkpoint(t, &why);
    t->books.call_owed = 0;
    t->save_ns = mc_clock_ns();
    if (st == MC_E_TIMEOUT || st == MC_E_PEER) { /* no other rank knows */
        *err = why;
        return st;
    }
    if (st != MC_OK) { /* I2 */
        mc_status held = mc_trainer_held(t, 1, err);
        MC_TRY(mc_world_vote(&t->world, held, NULL, err));
        tell_failed(t, &why);
        if (!must)
            return MC_OK;
        return mc_err_set(err, mc_status_exit_code(st) == 1 ? st : MC_E_FAILED,
                          "the last save failed (%s); nothing committed was lost, go on with "
                          "--resume auto",
                          why.msg);
    }
    t->save_s = (double)(t->save_ns - begin) * 1e-9;
    t->committed_step = t->saved_step = t->books.at.steps;
    if (t->cfg->page)
        t->cfg->page->committed_step = t->committed_step;
    mine = t->world.rank == 0 ? after_commit(t, err) : MC_OK;
    return mc_world_vote(&t->world, mine, &t->sound, err);
}
