/* setup.c - from a recipe to the state before a step, and back to nothing. Floor 6 (train).
 *
 * I1  What is taken in arenas is what the plan says, to the byte (asserted).
 * I2  The memory baseline is read when all that does not depend on the plan is up (libraries, BLAS
 *     threads, hooks' VM) and before the first arena.
 * I3  Resuming tries whole checkpoints from the newest down; one that turns out damaged is named in
 *     events.jsonl and the next older one is tried. When none holds, that is an error, not a fresh
 *     start, and no retry will help (77).
 * I4  mc_trainer_destroy() takes a trainer at any point of its making.
 * I5  After a transfer that failed, buffers stay mapped until the process ends: the system may
 *     write to them until the mesh is gone, which outlives the trainer.
 * I6  Which checkpoint is loaded is the control rank's choice, and all ranks load it or none does.
 *
 * Memory: struct mc_trainer owns all of it. Threads: one; the pool's begin here. */
#include "train_int.h"
#include "../base/hash.h"
#include "../../ckpt/ckpt.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What bits depend on: a pipeline is not among it. */
static void make_fingerprint(struct mc_trainer *t)
{
    char kern[128];
    mc_kern_fingerprint(kern, sizeof kern);
    int size[MC_NAXES] = {1, 1, 1, 1, 1};
    if (t->world.mesh)
        memcpy(size, t->world.mesh->layout.size, sizeof size);
    snprintf(t->fingerprint, sizeof t->fingerprint, "%s | %s | %s | tp%d cp%d ep%d dp%d%s",
             t->device.model, t->kern->name, kern, size[MC_AXIS_TP], size[MC_AXIS_CP],
             size[MC_AXIS_EP], size[MC_AXIS_DP],
             t->recipe->parallel.sp && size[MC_AXIS_TP] > 1 ? " sp" : "");
}

static mc_status open_machine(struct mc_trainer *t, struct mc_err *err)
{
    MC_TRY(mc_pool_create(t->cfg->threads, &t->pool, err));
    MC_TRY(mc_device_open(t->recipe->device, 0, &t->device, err));
    MC_TRY(mc_kern_get(t->recipe->device, t->recipe->precision, &t->kern, err));
    MC_TRY(mc_kern_start(t->pool, err));
    make_fingerprint(t);
    return MC_OK;
}

static void tell_memory(struct mc_trainer *t, size_t taken)
{
    struct mc_event e;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "planned", (int64_t)t->planned);
    mc_json_i64(&e.j, "allocated", (int64_t)taken);
    mc_json_i64(&e.j, "baseline_rss", (int64_t)t->baseline_rss);
    mc_json_open(&e.j, "arenas", '{');
    for (int i = 0; i < MC_NARENAS; i++)
        mc_json_i64(&e.j, mc_arena_name((enum mc_arena_id)i), (int64_t)t->graphs.bytes[i]);
    mc_json_close(&e.j, '}');
    mc_event_end(t, &e, "memory");
}

static mc_status take_arenas(struct mc_trainer *t, struct mc_err *err)
{
    t->baseline_rss = mc_mem_rss(); /* I2 */
    size_t before = mc_mem_stats().arena_bytes;
    t->planned = 0;
    for (int i = 0; i < MC_NARENAS; i++) {
        MC_TRY(t->device.ops->arena_init(
            &t->device, &t->arena[i], mc_arena_name((enum mc_arena_id)i), t->graphs.bytes[i], err));
        t->planned += t->graphs.bytes[i];
    }
    size_t taken = mc_mem_stats().arena_bytes - before;
    MC_ASSERT(taken == t->planned || !t->cfg->page); /* I1; rank threads share the count */
    mc_batch_carve(t->recipe, t->world.replicas, &t->arena[MC_ARENA_BATCH], &t->batch);
    tell_memory(t, taken);
    if (!t->cfg->quiet && t->world.rank == 0)
        mc_log(MC_LOG_INFO, "%lld parameters, %.1f MiB planned and taken, %d thread%s",
               (long long)mc_graph_param_count(t->graphs.whole), (double)t->planned / 1048576.0,
               t->cfg->threads, t->cfg->threads == 1 ? "" : "s");
    return MC_OK;
}

static mc_status bind_graphs(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_graph_buffers b = {
        .params = t->arena[MC_ARENA_PARAMS].base,
        .grads = t->arena[MC_ARENA_GRADS].base,
        .extra_grads = t->arena[MC_ARENA_EXTRA_GRADS].base,
        .slots = t->arena[MC_ARENA_SLOTS].base,
        .temp = t->arena[MC_ARENA_TEMP].base,
        .tables = t->arena[MC_ARENA_TABLES].base,
    };
    MC_TRY(mc_graph_bind(t->graphs.train, t->kern, t->pool, &b, t->world.mesh, err));
    if (t->graphs.eval) {
        b.grads = b.extra_grads = NULL;
        b.slots = t->arena[MC_ARENA_EVAL_SLOTS].base;
        b.tables = t->arena[MC_ARENA_EVAL_TABLES].base;
        MC_TRY(mc_graph_bind(t->graphs.eval, t->kern, t->pool, &b, t->world.mesh, err));
    }
    return MC_OK;
}

static mc_status make_optim(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_optim_buffers ob = {.params = t->arena[MC_ARENA_PARAMS].base,
                                  .grads = t->arena[MC_ARENA_GRADS].base,
                                  .master = t->arena[MC_ARENA_MASTER].base,
                                  .m = t->arena[MC_ARENA_ADAM_M].base,
                                  .v = t->arena[MC_ARENA_ADAM_V].base};
    MC_TRY(mc_optim_create(t->recipe, t->graphs.train, t->graphs.whole, t->kern, t->pool, &ob,
                           t->graphs.shard, &t->optim, err));
    t->nstate = mc_optim_state(t->optim, NULL, 0);
    t->nowned = mc_optim_owned(t->optim, NULL, 0);
    t->state = mc_alloc((size_t)(t->nstate + 1) * sizeof *t->state, "list of state tensors");
    t->owned = mc_alloc((size_t)(t->nowned + 1) * sizeof *t->owned, "list of state tensors");
    size_t n = (size_t)(mc_graph_nparams(t->graphs.whole) + MC_STEP_HEAD + mc_piped_numbers(t));
    t->sum = mc_alloc(n * sizeof *t->sum, "sums over ranks");
    t->hash_sum = mc_alloc(n * sizeof *t->hash_sum, "sums over ranks");
    if (!t->state || !t->owned || !t->sum || !t->hash_sum)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the list of %d state tensors", t->nstate);
    mc_optim_state(t->optim, t->state, t->nstate);
    mc_optim_owned(t->optim, t->owned, t->nowned);
    return MC_OK;
}

/* Of a rank of a pipeline: what runs its schedules, and the sum of a table shared with another. */
static mc_status make_pipe(struct mc_trainer *t, struct mc_err *err)
{
    const struct mc_line *line = t->cfg->line;
    unsigned char *buffer = t->arena[MC_ARENA_PIPE].base;
    if (!line)
        return MC_OK;
    size_t shared = mc_tied_bytes(t->graphs.train, t->kern->wide->dtype);
    size_t bytes = t->graphs.bytes[MC_ARENA_PIPE] - shared;
    struct mc_tied_cfg tied = {.graph = t->graphs.train,
                               .mesh = t->world.mesh,
                               .stem = mc_line_stem(line),
                               .head = mc_line_head(line),
                               .kern = t->kern,
                               .pool = t->pool,
                               .grads = t->arena[MC_ARENA_GRADS].base,
                               .buffer = buffer + bytes};
    struct mc_pipe_cfg pipe = {.line = line,
                               .mesh = t->world.mesh,
                               .buffer = buffer,
                               .bytes = bytes,
                               .dtype = t->kern->dtype};
    MC_TRY(mc_tied_create(&tied, &t->tied, err));
    MC_TRY(mc_pipe_create(&pipe, &t->pipe, err));
    return mc_piped_create(t, err);
}

static mc_status make_transfer(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_transfer_cfg cfg = {.graph = t->graphs.train,
                                  .mesh = t->world.mesh,
                                  .shard = t->graphs.shard,
                                  .tied = t->tied,
                                  .params = t->arena[MC_ARENA_PARAMS].base,
                                  .grads = t->arena[MC_ARENA_GRADS].base,
                                  .param_dtype = t->kern->dtype,
                                  .grad_dtype = t->kern->wide->dtype,
                                  .overlap_grads = t->recipe->parallel.overlap_grads,
                                  .overlap_params = t->recipe->parallel.overlap_params,
                                  .piped = t->pipe != NULL};
    return mc_transfer_create(&cfg, &t->transfer, err);
}

mc_status mc_trainer_create(const struct mc_train_cfg *cfg, struct mc_trainer **out,
                            struct mc_err *err)
{
    struct mc_trainer *t = mc_alloc(sizeof *t, "trainer");
    if (!t)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the trainer");
    char path[1100];
    mc_status st;
    t->cfg = cfg;
    t->recipe = cfg->recipe;
    t->hooks = cfg->hooks;
    t->world = mc_world_of(cfg->mesh, cfg->line);
    t->metrics.fd = t->timeline.fd = -1;
    t->committed_step = t->saved_step = -1;
    t->target_steps = -1;
    t->save_s = NAN;
    t->step.lr = NAN;
    t->start_ns = t->save_ns = t->eval_ns = mc_clock_ns();
    mc_books_init(&t->books, t->recipe);
    *out = t; /* I4: the caller destroys it, whatever follows */
    mc_page_phase(cfg->page, MC_PHASE_START, 0);
    MC_TRY_GOTO(st, mc_rundir_file(cfg->rd, "ckpt", t->ckpt_dir, err), fail);
    MC_TRY_GOTO(st, mc_rundir_file(cfg->rd, "metrics.jsonl", path, err), fail);
    MC_TRY_GOTO(st, open_machine(t, err), fail);
    MC_TRY_GOTO(st, mc_data_open(t->recipe, ".", &t->data, err), fail);
    const struct mc_graphs_cfg gc = {.recipe = t->recipe,
                                     .layout = t->world.mesh ? &t->world.mesh->layout : NULL,
                                     .line = cfg->line,
                                     .rank = t->world.rank,
                                     .threads = cfg->threads};
    MC_TRY_GOTO(st, mc_graphs_build(&gc, &t->graphs, err), fail);
    MC_TRY_GOTO(st, take_arenas(t, err), fail);
    MC_TRY_GOTO(st, bind_graphs(t, err), fail);
    MC_TRY_GOTO(st, make_optim(t, err), fail);
    MC_TRY_GOTO(st, make_pipe(t, err), fail);
    MC_TRY_GOTO(st, make_transfer(t, err), fail);
    if (t->world.rank == 0) {
        MC_TRY_GOTO(st, mc_metrics_open(&t->metrics, path, err), fail);
        MC_TRY_GOTO(st, mc_rundir_file(cfg->rd, "norms.jsonl", path, err), fail);
    }
    int most = cfg->line ? cfg->line->sched[cfg->line->nsched - 1]->microbatches : 0;
    const char *norms = t->world.rank == 0 ? path : NULL;
    MC_TRY_GOTO(st, mc_norms_open(&t->norms, t->recipe, most, norms, err), fail);
    MC_TRY_GOTO(st, mc_record_create(t, err), fail);
    MC_TRY_GOTO(st, mc_flops_phases(t->recipe, t->flops, err), fail);
    mc_timeline_open(t);
fail:
    return st;
}

void mc_trainer_destroy(struct mc_trainer *t)
{
    if (!t)
        return;
    mc_profile_destroy(t);
    mc_record_destroy(t);
    mc_metrics_close(&t->metrics);
    mc_timeline_close(t);
    mc_norms_close(&t->norms);
    mc_free(t->state);
    mc_free(t->owned);
    if (t->optim)
        mc_optim_destroy(t->optim);
    mc_transfer_destroy(t->transfer);
    mc_pipe_destroy(t->pipe);
    mc_free(t->piped.loss);
    mc_tied_destroy(t->tied);
    mc_graphs_destroy(&t->graphs);
    if (!t->torn) { /* I5 */
        mc_free(t->sum);
        mc_free(t->hash_sum);
    }
    for (int i = MC_NARENAS - 1; i >= 0; i--)
        if (t->arena[i].base && !t->torn)
            t->device.ops->arena_fini(&t->device, &t->arena[i]);
    if (t->data)
        mc_data_close(t->data);
    if (t->device.ops)
        mc_device_close(&t->device);
    if (t->pool)
        mc_pool_destroy(t->pool);
    mc_free(t);
}

/* ---- fresh or resumed ---- */

mc_status mc_trainer_fresh(struct mc_trainer *t)
{
    mc_books_init(&t->books, t->recipe);
    t->books.segment = t->cfg->rd->segment;
    mc_cursor_init(t->data, &t->books.cursor);
    enum mc_dtype precision = t->recipe->precision;
    int masters = mc_optim_dtype(precision) != precision;
    void *to = t->arena[masters ? MC_ARENA_GRADS : MC_ARENA_PARAMS].base;
    mc_graph_init_params(t->graphs.train, (uint64_t)t->recipe->seed, mc_optim_dtype(precision), to);
    if (masters) /* the gradients' buffer is as wide and as long; a step begins by clearing it */
        mc_optim_set_masters(t->optim, to);
    return MC_OK;
}

static void tell_changed(struct mc_trainer *t, const char *what, const char *was, const char *now)
{
    struct mc_event e;
    mc_event_begin(&e);
    mc_json_str(&e.j, "path", what);
    mc_json_str(&e.j, "was", was);
    mc_json_str(&e.j, "now", now);
    mc_event_end(t, &e, "changed");
    if (t->world.rank == 0)
        mc_log(MC_LOG_WARN, "%s changed: was %s, now %s", what, was, now);
}

static mc_status load(struct mc_trainer *t, const char *path, struct mc_err *err)
{
    struct mc_ckpt *c = NULL;
    struct mc_books_seen seen = {0};
    struct mc_books_run run = {.recipe = t->recipe,
                               .data = t->data,
                               .hooks = t->hooks,
                               .fingerprint = t->fingerprint,
                               .software = t->cfg->software};
    mc_status st = mc_ckpt_open(path, &c, err);
    if (st != MC_OK)
        c = NULL;
    MC_TRY_GOTO(st, mc_world_vote(&t->world, st, NULL, err), done); /* I6 */
    st = mc_books_read(mc_ckpt_books(c), &run, &t->books, &seen, err);
    if (st == MC_OK)
        st = mc_tensors_fit(t->recipe, t->graphs.whole, c, err); /* all of them are wanted */
    int skip =
        mc_weights_stored(c) ? 0 : mc_weights_lead(t->recipe->precision, t->state, t->nstate);
    if (st == MC_OK)
        st = mc_ckpt_load(c, t->state + skip, t->nstate - skip, 0, err);
    MC_TRY_GOTO(st, mc_world_vote(&t->world, st, NULL, err), done); /* I6 */
    if (!mc_weights_stored(c)) {
        mc_optim_round_weights(t->optim);
        MC_TRY_GOTO(st, mc_transfer_gather(t->transfer, err), done);
    }
    uint64_t now = 0;
    MC_TRY_GOTO(st, mc_trainer_hash(t, &now, err), done);
    if (now != t->books.weights_hash) {
        st = mc_err_set(err, MC_E_CORRUPT, "%s: the weights hash to %016llx, its books say %016llx",
                        path, (unsigned long long)now, (unsigned long long)t->books.weights_hash);
        goto done;
    }
    t->books.segment = t->cfg->rd->segment;
    if (seen.data_hash != mc_data_hash(t->data)) {
        char was[17], is[17];
        mc_hash_hex(seen.data_hash, was);
        mc_hash_hex(mc_data_hash(t->data), is);
        tell_changed(t, "data (content)", was, is);
    }
    if (strcmp(seen.fingerprint, t->fingerprint) != 0)
        tell_changed(t, "numerics fingerprint", seen.fingerprint, t->fingerprint);
    t->committed_step = t->books.at.steps;
    struct mc_event e;
    mc_event_begin(&e);
    mc_json_i64(&e.j, "step", t->books.at.steps);
    mc_json_i64(&e.j, "epoch", mc_ckpt_epoch(c));
    mc_event_end(t, &e, "resume");
    if (!t->cfg->quiet && t->world.rank == 0)
        mc_log(MC_LOG_INFO, "resumed after step %lld from %s", (long long)t->books.at.steps, path);
done:
    mc_ckpt_close(c);
    return st;
}

static void tell_damaged(struct mc_trainer *t, const char *path, const char *why)
{
    struct mc_event e;
    const char *base = strrchr(path, '/');
    mc_event_begin(&e);
    mc_json_str(&e.j, "checkpoint", base ? base + 1 : path);
    mc_json_str(&e.j, "message", why);
    mc_event_end(t, &e, "checkpoint_damaged");
    mc_log(MC_LOG_ERROR, "checkpoint not usable: %s", why);
}

/* The control rank looks through the folder; the others load what it says (I6). */
struct choice {
    int32_t what; /* 0 an end, 1 fresh, 2 load `path` */
    char path[1100];
};

static mc_status follow(struct mc_trainer *t, struct mc_err *err)
{
    mc_status st = MC_E_CORRUPT;
    while (st == MC_E_CORRUPT) {
        struct choice c;
        struct mc_err why = {0};
        MC_TRY(mc_world_tell(&t->world, &c, sizeof c, err));
        if (c.what == 0)
            return MC_OK; /* the vote at the end tells why */
        st = c.what == 1 ? mc_trainer_fresh(t) : load(t, c.path, &why);
        if (st != MC_OK && st != MC_E_CORRUPT && err)
            *err = why;
    }
    return st;
}

/* The control rank's part: what it does itself, and tells the others to do. */
static mc_status choose(struct mc_trainer *t, int what, const char *path, struct mc_err *err)
{
    struct choice c = {.what = what};
    snprintf(c.path, sizeof c.path, "%s", path);
    MC_TRY(mc_world_tell(&t->world, &c, sizeof c, err));
    return what == 0 ? MC_OK : what == 1 ? mc_trainer_fresh(t) : load(t, path, err);
}

static mc_status resume_auto(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_ckpt_info *list = NULL;
    char names[400] = "";
    int n = 0;
    mc_status st = mc_ckpt_list(t->ckpt_dir, &list, &n, err);
    if (st != MC_OK) {
        (void)choose(t, 0, "", NULL);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    for (int i = n - 1; i >= 0; i--) {
        const char *base = strrchr(list[i].path, '/');
        size_t len = strlen(names);
        snprintf(names + len, sizeof names - len, "%s%s", len ? ", " : "", base + 1);
    }
    st = n == 0 ? choose(t, 1, "", err) : MC_E_CORRUPT;
    for (int i = n - 1; i >= 0 && st == MC_E_CORRUPT; i--) { /* I3 */
        struct mc_err why = {0};
        if (!list[i].whole) {
            tell_damaged(t, list[i].path, list[i].why);
            continue;
        }
        st = choose(t, 2, list[i].path, &why);
        if (st == MC_E_CORRUPT)
            tell_damaged(t, list[i].path, why.msg);
        else if (st != MC_OK && err)
            *err = why;
    }
    mc_free(list);
    if (st == MC_E_CORRUPT) {
        MC_TRY(choose(t, 0, "", err));
        return mc_err_set(
            err, MC_E_GIVEUP,
            "%s: none of its %d checkpoints can be used (%s); restore one from a copy, or start "
            "a new run with another --run",
            t->ckpt_dir, n, names);
    }
    return st;
}

static mc_status resume_step(struct mc_trainer *t, struct mc_err *err)
{
    char path[1100];
    struct mc_err why = {0};
    mc_status st = mc_ckpt_resolve(t->ckpt_dir, t->cfg->resume_step, path, err);
    if (st != MC_OK) {
        (void)choose(t, 0, "", NULL);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    st = choose(t, 2, path, &why);
    if (st == MC_E_CORRUPT) { /* it will not be better at the next try */
        MC_TRY(choose(t, 0, "", err));
        return mc_err_set(err, MC_E_GIVEUP,
                          "%s; restore it from a copy, or go on from another step", why.msg);
    }
    if (st != MC_OK && err)
        *err = why;
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

/* Weights and books are in place on all ranks, or on none. */
static mc_status restore(struct mc_trainer *t, struct mc_err *err)
{
    if (t->cfg->resume == MC_RESUME_FRESH)
        return mc_trainer_fresh(t);
    mc_status st = t->world.rank != 0                 ? follow(t, err)
                   : t->cfg->resume == MC_RESUME_AUTO ? resume_auto(t, err)
                                                      : resume_step(t, err);
    return mc_world_vote(&t->world, st, NULL, err);
}

mc_status mc_trainer_start(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_event e;
    mc_page_phase(t->cfg->page, MC_PHASE_LOAD, 0);
    if (t->world.rank == 0)
        mc_time_check();
    MC_TRY(restore(t, err));
    t->started = 1;
    int64_t to_go = mc_steps_to_go(t->recipe, &t->books.at);
    t->target_steps = to_go < 0 ? -1 : t->books.at.steps + to_go;
    t->save_ns = t->eval_ns = mc_clock_ns();
    const struct mc_flops *now = &t->flops[mc_phase_at(t->recipe, &t->books.at).index];
    mc_event_begin(&e);
    mc_json_i64(&e.j, "segment", t->cfg->rd->segment);
    mc_json_i64(&e.j, "step", t->books.at.steps);
    mc_json_i64(&e.j, "target_steps", t->target_steps);
    mc_json_i64(&e.j, "ranks", t->world.size);
    mc_json_i64(&e.j, "threads", t->cfg->threads);
    mc_json_str(&e.j, "software", t->cfg->software);
    mc_json_str(&e.j, "fingerprint", t->fingerprint);
    mc_json_open(&e.j, "flops", '{');
    mc_json_f64(&e.j, "per_token_causal", now->causal);
    mc_json_f64(&e.j, "per_token_full", now->full);
    mc_json_f64(&e.j, "per_token_formula", now->formula);
    mc_json_close(&e.j, '}');
    mc_json_f64(&e.j, "setup_ms", (double)(mc_clock_ns() - t->start_ns) * 1e-6);
    mc_json_f64(&e.j, "unix", mc_clock_unix());
    mc_event_end(t, &e, "first_step"); /* the next thing is a step */
    return MC_OK;
}
