/* cmd_train.c - `mascon train`: from a recipe to a run on this machine. Floor 8 (cli).
 *
 * load, check -> does it fit this machine -> run folder, lock -> where it goes on, and is it
 * finished already? -> what changed since -> would it load? -> new segment -> agent (forks the
 * rank, waits) -> last line.
 *
 * I1  Nothing is written before the recipe is sound; nothing but the folder and its lock before the
 *     run's history has been compared with the recipe: a start that cannot load what it goes on
 *     from leaves no segment, no event and no incident.
 * I2  An existing run is entered only with --resume; a finished one is left as it is: same last
 *     line, exit 0, no new segment.
 * I3  The exit code is the rank's when it left one, else the agent's judgement (76).
 * I4  Stop signals count from the first moment on: one that comes before the ranks are up is seen
 *     at the end of the stage in hand, and is 76 with a message; a second one kills.
 *
 * I5  `ckpt import` is the same way up to the new segment; it writes the first checkpoint itself
 *     and starts no rank. The segment comes after that checkpoint: an import that failed leaves
 *     no run, which --resume auto would begin with weights of its own.
 *
 * Memory: the loaded recipe, until the end. Threads: main; ranks are forked from it alone. */
#include "cli.h"
#include "../agent/agent.h"
#include "../base/arena.h"
#include "../base/hash.h"
#include "../base/log.h"
#include "../base/pool.h"
#include "../base/sysio.h"
#include "../device/device.h"
#include "../kern/kern.h"
#include "../optim/optim.h"
#include "../par/launch_map.h"
#include "../run/ctl.h"
#include "../run/rundir.h"
#include "../run/spawn.h"
#include "../train/import.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char about[] =
    "Trains RECIPE on this machine and keeps everything in a run folder (default ./runs/NAME).\n"
    "\n"
    "An existing run is refused without --resume:\n"
    "  --resume auto    go on from the newest whole checkpoint; start fresh when there is none\n"
    "  --resume never   the default\n"
    "  --resume STEP    go on from the checkpoint of that step\n"
    "Keys that may not change on resume (model, seed, tokenizer, precision, kind of optimizer) "
    "need\n"
    "--allow KEY. Ctrl-C stops cleanly with a checkpoint (exit code 75); a second one at once.\n"
    "\n"
    "Exit codes: 0 target reached and committed, 2 recipe or usage, 3 this machine cannot, 75 "
    "stopped\n"
    "in order (run me again with --resume auto), 76 failed or stopped without progress, 77 a "
    "retry\n"
    "will not help.";

enum { MAX_CHANGES = 64 };
struct train {
    struct mc_cli_recipe r;
    const char *run, *resume;
    struct mc_arg_list allow;
    int quiet, json, profile;
    char base[1024]; /* the recipe's folder, absolute */
    struct mc_rundir rd;
    size_t ckpt_bytes; /* of one checkpoint, about */
    struct mc_cli_past past;
    struct mc_recipe_change change[MAX_CHANGES]; /* told once the segment is open */
    int nchanges;
    int threads;                            /* of one rank */
    int64_t wait_s, stall_s, record, trace; /* steps; 0: none */
    struct mc_layout layout;
    struct mc_agent_result res;
    int finished;
    const char *import; /* NULL: train */
    struct mc_import *weights;
};

/* ---- paths ---- */

/* Data paths become absolute: the rank, and a run folder that is moved, know no recipe folder. A
 * trailing slash has a meaning (a folder) and is kept. */
static mc_status absolute(const char *base, struct mc_source_cfg *s, int n, struct mc_err *err)
{
    for (int i = 0; i < n; i++) {
        char path[MC_PATH];
        MC_TRY(mc_path_join(path, sizeof path, base, s[i].path, err));
        snprintf(s[i].path, sizeof s[i].path, "%s", path);
    }
    return MC_OK;
}

static mc_status settle_paths(struct train *t, struct mc_err *err)
{
    char *base = realpath(t->r.loaded.base_dir, NULL);
    if (!base)
        return mc_err_sys(err, "the recipe's folder %s", t->r.loaded.base_dir);
    int fits = snprintf(t->base, sizeof t->base, "%s", base) < (int)sizeof t->base;
    free(base); /* libc's */
    if (!fits)
        return mc_err_set(err, MC_E_USAGE, "the recipe's folder: path too long");
    struct mc_data_cfg *d = &t->r.recipe->data;
    MC_TRY(absolute(t->base, d->train, d->ntrain, err));
    MC_TRY(absolute(t->base, d->valid, d->nvalid, err));
    if (mc_tokenizer_is_file(d->tokenizer)) {
        char path[MC_PATH];
        MC_TRY(mc_path_join(path, sizeof path, t->base, d->tokenizer, err));
        snprintf(d->tokenizer, sizeof d->tokenizer, "%s", path);
    }
    return MC_OK;
}

/* ---- does it fit? ---- */

static int64_t number_in(const char *path, const char *key)
{
    char *text;
    size_t n;
    int64_t v = -1;
    if (mc_sys_read_file(path, 1 << 16, &text, &n, NULL) != MC_OK)
        return -1;
    const char *at = key ? strstr(text, key) : text;
    char *end;
    if (at) {
        at += key ? strlen(key) : 0;
        v = strtoll(at, &end, 10);
        if (end == at) /* "max" */
            v = -1;
    }
    mc_free(text);
    return v;
}

static mc_status check_memory(const struct train *t, struct mc_err *err)
{
    int64_t free_bytes = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    int64_t limit = number_in("/sys/fs/cgroup/memory.max", NULL);
    int64_t used = number_in("/sys/fs/cgroup/memory.current", NULL);
    int64_t cache = number_in("/sys/fs/cgroup/memory.stat", "\nfile ");
    if (limit > 0 && used >= 0) { /* page cache is given back when asked for */
        int64_t room = limit - used + (cache > 0 ? cache : 0);
        if (free_bytes < 0 || room < free_bytes)
            free_bytes = room;
    }
    size_t all = t->r.memory.total * (size_t)t->layout.world;
    if (free_bytes < 0 || all <= (size_t)free_bytes)
        return MC_OK;
    char need[32], have[32];
    mc_say_bytes((double)all, need);
    mc_say_bytes((double)free_bytes, have);
    return mc_err_set(
        err, MC_E_MACHINE,
        "this run needs %s of memory and %s are free here; take a smaller batch.micro "
        "or model (mascon explain shows what takes how much), or a larger machine",
        need, have);
}

static mc_status check_device(const struct train *t, struct mc_err *err)
{
    struct mc_device d;
    const struct mc_kern_ops *k;
    MC_TRY(mc_device_open(t->r.recipe->device, 0, &d, err));
    mc_device_close(&d);
    MC_TRY(mc_kern_get(t->r.recipe->device, t->r.recipe->precision, &k, err));
    return MC_OK;
}

static mc_status check_disk(const struct train *t, struct mc_err *err)
{
    struct statvfs v;
    size_t need = t->ckpt_bytes;
    if (statvfs(t->rd.path, &v) == -1) /* cannot be told: the save will */
        return MC_OK;
    double have = (double)v.f_bavail * (double)v.f_frsize;
    if (have >= (double)need)
        return MC_OK;
    char n[32], h[32];
    mc_say_bytes((double)need, n);
    mc_say_bytes(have, h);
    return mc_err_set(err, MC_E_MACHINE,
                      "%s: one checkpoint takes %s and the disk has %s free; make room or use "
                      "another --run",
                      t->rd.path, n, h);
}

/* ---- the run's history ---- */

static int resuming(const struct train *t)
{
    return t->resume && strcmp(t->resume, "never") != 0;
}

static mc_status enter_run(struct train *t, struct mc_err *err)
{
    int64_t step = -1;
    int by_step = resuming(t) && strcmp(t->resume, "auto") != 0;
    if (by_step && (!mc_args_i64(t->resume, &step) || step < 0))
        return mc_err_set(err, MC_E_USAGE, "--resume is auto, never or a step, not \"%.60s\"",
                          t->resume);
    MC_TRY(mc_rundir_open(t->run, !by_step, &t->rd, err));
    if (t->rd.segment > 0 && !resuming(t)) /* I2 */
        return mc_err_set(err, MC_E_USAGE,
                          "%s holds a run already: go on with --resume auto, or start another one "
                          "with --run DIR",
                          t->rd.path);
    MC_TRY(mc_rundir_lock(&t->rd, err));
    return check_disk(t, err);
}

static void tell_change(const struct train *t, const struct mc_recipe_change *c)
{
    struct mc_json j;
    char text[2048];
    mc_json_init_fixed(&j, text, sizeof text - 1);
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "path", c->path);
    mc_json_str(&j, "was", c->was);
    mc_json_str(&j, "now", c->now);
    mc_json_close(&j, '}');
    if (!j.failed) {
        text[j.len - 1] = '\0';
        mc_rundir_event(&t->rd, "changed", text + 1, NULL);
    }
    mc_log(MC_LOG_WARN, "%s changed: was %s, now %s", c->path, c->was, c->now);
}

/* Would the checkpoint load into this recipe (I1)? Damage is for the rank to meet, and to go round.
 */
static mc_status fits(const struct train *t, struct mc_err *err)
{
    struct mc_err why = {0};
    if (!t->past.ckpt[0])
        return MC_OK;
    mc_status st = mc_train_fits(t->r.recipe, t->base, t->threads, t->past.ckpt, &why);
    if (st == MC_OK || (st == MC_E_CORRUPT && strcmp(t->resume, "auto") == 0))
        return MC_OK;
    return mc_err_set(err, st == MC_E_CORRUPT ? MC_E_GIVEUP : st, "%s%s", why.msg,
                      st == MC_E_RECIPE ? "; that takes a new run: --run DIR" : "");
}

/* --allow is no help where the checkpoint would not load. */
static void mend_hints(struct train *t)
{
    struct mc_problems *ps = &t->r.problems;
    if (fits(t, NULL) != MC_E_RECIPE)
        return;
    for (int i = 0; i < ps->n; i++)
        snprintf(ps->p[i].hint, sizeof ps->p[i].hint,
                 "the run's checkpoint would not load then: start a new run with --run DIR");
}

static mc_status compare(struct train *t, struct mc_err *err)
{
    struct mc_recipe_box *was;
    if (t->rd.segment == 0 && !t->past.ckpt[0])
        return MC_OK;
    MC_TRY(mc_cli_past_recipe(&t->rd, &t->past, &was, err));
    mc_status st = mc_recipe_compare(mc_recipe_of(was), t->r.recipe, t->allow.v, t->allow.n,
                                     t->change, MAX_CHANGES, &t->nchanges, &t->r.problems, err);
    mc_recipe_destroy(was);
    if (t->r.problems.n > 0) {
        mend_hints(t);
        return MC_E_RECIPE;
    }
    return st;
}

static mc_status look_back(struct train *t, struct mc_err *err)
{
    int64_t step = -1;
    if (!resuming(t))
        return MC_OK;
    if (strcmp(t->resume, "auto") != 0)
        mc_args_i64(t->resume, &step);
    MC_TRY(mc_cli_past_find(&t->rd, step, &t->r.recipe->steps, &t->past, err));
    MC_TRY(compare(t, err));
    if (!t->past.finished)
        return fits(t, err);
    t->finished = 1; /* I2 */
    t->res = (struct mc_agent_result){.exit_code = 0,
                                      .step = t->past.step,
                                      .loss = t->past.loss,
                                      .weights_hash = t->past.weights_hash,
                                      .result_valid = 1};
    return MC_OK;
}

/* ---- start ---- */

static mc_status new_segment(struct train *t, struct mc_err *err)
{
    struct mc_json j;
    char host[200] = "localhost", *map, *schedule = NULL;
    const char *hosts[1] = {host};
    gethostname(host, sizeof host - 1);
    const struct mc_launch where = {.layout = &t->layout,
                                    .hosts = hosts,
                                    .per_node = t->layout.world,
                                    .device =
                                        t->r.recipe->device == MC_DEVICE_CUDA ? "cuda" : "cpu"};
    MC_TRY(mc_launch_map_text(&where, &map, err));
    mc_json_init_grow(&j);
    j.pretty = 1;
    mc_recipe_write_json(t->r.recipe, &j);
    mc_status st =
        j.failed ? mc_err_set(err, MC_E_NOMEM, "no memory for the recipe's text") : MC_OK;
    if (st == MC_OK && t->r.line)
        st = mc_line_text(t->r.line, &schedule, err);
    const struct mc_segment_text text = {t->r.loaded.text, j.buf, map, schedule};
    if (st == MC_OK)
        st = mc_rundir_new_segment(&t->rd, &text, err);
    mc_json_fini(&j);
    mc_free(map);
    mc_free(schedule);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

static mc_status keep_tokenizer(const struct train *t, struct mc_err *err)
{
    int allowed = 0;
    for (int i = 0; i < t->allow.n; i++)
        allowed |= !strcmp(t->allow.v[i], "data.tokenizer") || !strcmp(t->allow.v[i], "data");
    return mc_cli_tokenizer_keep(t->rd.path, t->r.recipe->data.tokenizer, allowed, err);
}

static mc_status start(struct train *t, struct mc_err *err)
{
    char exe[1024], threads[16], lock[16], world[16], wait[24], stall[24];
    const char *arg[32];
    char record[24], trace[24];
    int n = 0;
    MC_TRY(mc_exe_find(exe, err));
    MC_TRY(new_segment(t, err));
    for (int i = 0; i < t->nchanges; i++)
        tell_change(t, &t->change[i]);
    snprintf(threads, sizeof threads, "%d", t->threads);
    arg[n++] = "--resume";
    arg[n++] = resuming(t) ? t->resume : "fresh";
    arg[n++] = "--base";
    arg[n++] = t->base;
    arg[n++] = "--threads";
    arg[n++] = threads;
    snprintf(world, sizeof world, "%d", t->layout.world);
    arg[n++] = "--world";
    arg[n++] = world;
    snprintf(wait, sizeof wait, "%lld", (long long)t->wait_s);
    arg[n++] = "--wait";
    arg[n++] = wait;
    snprintf(stall, sizeof stall, "%lld", (long long)t->stall_s);
    arg[n++] = "--stall";
    arg[n++] = stall;
    snprintf(lock, sizeof lock, "%d", t->rd.lock_fd);
    arg[n++] = "--lock-fd";
    arg[n++] = lock;
    if (t->record > 0) {
        snprintf(record, sizeof record, "%lld", (long long)t->record);
        arg[n++] = "--record";
        arg[n++] = record;
    }
    if (t->trace > 0) {
        snprintf(trace, sizeof trace, "%lld", (long long)t->trace);
        arg[n++] = "--trace";
        arg[n++] = trace;
    }
    if (t->profile)
        arg[n++] = "--profile";
    if (t->quiet)
        arg[n++] = "--quiet";
    else if (isatty(STDERR_FILENO))
        arg[n++] = "--progress";
    arg[n] = NULL;
    if (!t->quiet)
        mc_log(MC_LOG_INFO, "%s: run %s, segment %d", t->r.recipe->name, t->rd.path, t->rd.segment);
    uint64_t hash;
    MC_TRY(mc_cli_seat_hash(t->r.recipe, t->r.line, &hash, err));
    struct mc_agent_run run = {.rd = &t->rd,
                               .nranks = t->layout.world,
                               .threads_per_rank = t->threads,
                               .exe = exe,
                               .rank_args = arg,
                               .wait_ns = t->wait_s * 1000000000,
                               .recipe_hash = hash,
                               .build = mc_ctl_build_id()};
    return mc_agent_run(&run, &t->res, err);
}

/* I5 */
static mc_status write_first(struct train *t, struct mc_err *err)
{
    struct mc_train_result res = {0};
    struct mc_train_cfg cfg = {.recipe = t->r.recipe,
                               .rd = &t->rd,
                               .nranks = 1,
                               .threads = t->threads,
                               .software = MC_SOFTWARE,
                               .quiet = 1};
    t->rd.segment = 1; /* the one to come: it is in the checkpoint's name */
    mc_status st = mc_import_save(t->weights, &cfg, &res, err);
    t->rd.segment = 0;
    MC_TRY(st);
    MC_TRY(new_segment(t, err));
    t->res =
        (struct mc_agent_result){.loss = NAN, .weights_hash = res.weights_hash, .result_valid = 1};
    return MC_OK;
}

static void no_line(void *arg, const char *line)
{
    (void)arg;
    (void)line;
}

/* A mistyped --allow would be found out only by the refusal of the key that was meant. */
static mc_status check_allow(const struct train *t, struct mc_err *err)
{
    struct mc_err why = {0};
    for (int i = 0; i < t->allow.n; i++)
        if (mc_recipe_doc(t->allow.v[i], no_line, NULL, &why) != MC_OK)
            return mc_err_set(err, why.code, "--allow %s", why.msg);
    return MC_OK;
}

/* I4 */
static mc_status go_on(struct mc_err *err)
{
    int sig = mc_signals_pending();
    if (sig == 0)
        return MC_OK;
    return mc_err_set(err, MC_E_FAILED, "stopped by SIG%s before the first update of this start",
                      sigabbrev_np(sig));
}

/* What one rank would keep of all parameters: a checkpoint has it once, whatever the layout. */
static mc_status size_checkpoint(struct train *t, struct mc_err *err)
{
    struct mc_train_memory m;
    MC_TRY(mc_train_plan(t->r.recipe, 1, &m, err));
    t->ckpt_bytes = m.params + m.master + m.optim;
    if (m.master > 0 && t->r.recipe->checkpoint.weights == MC_WEIGHTS_REBUILD)
        t->ckpt_bytes -= m.params;
    return MC_OK;
}

static mc_status run(struct train *t, struct mc_err *err)
{
    MC_TRY(check_allow(t, err));
    MC_TRY(settle_paths(t, err));
    MC_TRY(mc_check_layout(t->r.recipe, 0, &t->layout, err));
    t->threads = mc_pool_default_threads(t->layout.world);
    MC_TRY(size_checkpoint(t, err));
    MC_TRY(check_device(t, err));
    MC_TRY(check_memory(t, err));
    if (t->import) {
        MC_TRY(
            mc_import_open(t->r.recipe, t->threads, t->import, &t->r.problems, &t->weights, err));
        MC_TRY(mc_import_look(t->weights, err));
    }
    MC_TRY(go_on(err));
    MC_TRY(enter_run(t, err));
    MC_TRY(look_back(t, err));
    if (t->finished)
        return MC_OK;
    MC_TRY(go_on(err));
    MC_TRY(keep_tokenizer(t, err));
    if (t->import)
        return write_first(t, err);
    MC_TRY(start(t, err));
    struct mc_err why = {0};
    if (t->res.exit_code == 76 && !t->res.message[0] && go_on(&why) != MC_OK)
        snprintf(t->res.message, sizeof t->res.message, "%.1000s", why.msg);
    return MC_OK;
}

/* ---- the last line ---- */

static void add_profile(const struct train *t, struct mc_json *j)
{
    char path[1200], *text;
    size_t n;
    if (!t->profile || !t->rd.path[0] ||
        mc_rundir_segment_file(&t->rd, t->rd.segment, "profile.json", path, NULL) != MC_OK ||
        mc_sys_read_file(path, 1 << 20, &text, &n, NULL) != MC_OK)
        return;
    mc_json_raw(j, "profile", text);
    mc_free(text);
}

/* Also after a recipe that was refused: then with its errors. */
static void last_line_json(const struct train *t, int code)
{
    struct mc_json j;
    char hex[17];
    mc_hash_hex(t->res.weights_hash, hex);
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '{');
    mc_json_i64(&j, "exit", code);
    mc_json_i64(&j, "step", t->res.step);
    if (t->res.result_valid) {
        mc_json_f64(&j, "loss", t->res.loss);
        mc_json_str(&j, "weights_hash", t->res.weights_hash ? hex : NULL); /* 0: none loaded */
    } else {
        mc_json_null(&j, "loss");
        mc_json_null(&j, "weights_hash");
    }
    mc_json_str(&j, "run", t->rd.path[0] ? t->rd.path : t->run); /* null: no run */
    if (t->res.message[0])
        mc_json_str(&j, "message", t->res.message);
    if (t->r.problems.n > 0)
        mc_say_problems_json(&t->r.problems, &j);
    add_profile(t, &j);
    mc_json_close(&j, '}');
    mc_say_json(&j);
}

static void last_words(const struct train *t, int code)
{
    char hex[17];
    mc_hash_hex(t->res.weights_hash, hex);
    if (t->import) {
        printf("imported: %d tensors of %s (%s), weights %s, run %s; go on with --resume auto\n",
               mc_import_tensors(t->weights), t->import, mc_import_family(t->weights), hex,
               t->rd.path);
        return;
    }
    if (code == 0) {
        printf("%s: step %lld, loss %.6f, weights %s, run %s\n",
               t->finished ? "finished already" : "done", (long long)t->res.step, t->res.loss, hex,
               t->rd.path);
        return;
    }
    if (t->res.message[0])
        fprintf(stderr, "mascon: %s\n", t->res.message);
    printf("exit %d after step %lld, run %s%s\n", code, (long long)t->res.step, t->rd.path,
           code == 75   ? "; go on with --resume auto"
           : code == 76 ? "; a retry with --resume auto may help"
                        : "");
}

/* From the arguments to the exit code. */
static int go(struct train *t)
{
    char dir[256];
    t->r.for_train = 1;
    int rc = mc_cli_load(&t->r);
    struct mc_err err = {0};
    if (rc == 76 && go_on(&err) != MC_OK) {
        snprintf(t->res.message, sizeof t->res.message, "%.1000s", err.msg);
        fprintf(stderr, "mascon: %s\n", err.msg);
    } else if (rc == 0) {
        if (!t->quiet)
            mc_say_notes(&t->r.notes);
        if (!t->run) {
            snprintf(dir, sizeof dir, "runs/%s", t->r.recipe->name);
            t->run = dir;
        }
        mc_status st = run(t, &err);
        rc = st == MC_OK ? t->res.exit_code : mc_status_exit_code(st); /* I3 */
        if (st == MC_E_RECIPE && t->r.problems.n > 0)
            mc_say_problems(&t->r.problems);
        else if (st != MC_OK)
            snprintf(t->res.message, sizeof t->res.message, "%.1000s", err.msg);
        if (st == MC_OK && !t->json)
            last_words(t, rc);
        else if (rc != 0 && t->res.message[0])
            fprintf(stderr, "mascon: %s\n", t->res.message);
    }
    if (t->json)
        last_line_json(t, rc);
    mc_rundir_close(&t->rd);
    mc_import_close(t->weights);
    mc_cli_unload(&t->r);
    return rc;
}

int mc_cmd_train(int argc, char **argv)
{
    static struct train t;
    mc_signals_install(); /* I4 */
    mc_signals_second_kills(1);
    t.rd.lock_fd = -1;
    t.wait_s = 120;
    t.stall_s = 600;
    const struct mc_arg arg[] = {
        {"--run", "DIR", "the run folder (default ./runs/NAME)", MC_ARG_STR, &t.run, 0, 0},
        {"--resume", "HOW", "auto, never or a step", MC_ARG_STR, &t.resume, 0, 0},
        {"--allow", "KEY", "let a frozen key change on resume (repeatable)", MC_ARG_LIST, &t.allow,
         0, 0},
        {"--set", "KEY=VALUE", "change a key after loading (repeatable)", MC_ARG_LIST, &t.r.set, 0,
         0},
        {"--device", "D", "cpu or cuda", MC_ARG_STR, &t.r.device, 0, 0},
        {"--ranks", "N", "processes on this machine (default: what the recipe says)", MC_ARG_I64,
         &t.r.ranks, 1, 1 << 20},
        {"--wait", "S", "seconds the start, or the end, waits for a rank (default 120)", MC_ARG_I64,
         &t.wait_s, 1, 86400},
        {"--stall", "S", "seconds ranks wait for one that stands still (default 600)", MC_ARG_I64,
         &t.stall_s, 1, 86400},
        {"--profile", NULL, "tell at the end where the steps' time went", MC_ARG_FLAG, &t.profile,
         0, 0},
        {"--record", "STEP", "keep what each op gave in that step, for diff-run", MC_ARG_I64,
         &t.record, 1, 9e15},
        {"--trace", "STEP", "keep when each op and transfer of that step ran, for trace",
         MC_ARG_I64, &t.trace, 1, 9e15},
        {"--quiet", NULL, "no log lines", MC_ARG_FLAG, &t.quiet, 0, 0},
        {"--json", NULL, "the last line of stdout in JSON", MC_ARG_FLAG, &t.json, 0, 0},
    };
    struct mc_args a = {.usage = "mascon train RECIPE [--run DIR] [--resume auto|never|STEP] "
                                 "[options]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = &t.r.path,
                        .min_pos = 1,
                        .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    if (t.record > 0 && t.record == t.trace) {
        fprintf(stderr, "mascon: --record and --trace of the same step: recording takes time that "
                        "the trace would show; take another step for one of them\n");
        return 2;
    }
    return go(&t);
}

int mc_cli_import(const struct mc_cli_import *job)
{
    static struct train t;
    mc_signals_install(); /* I4 */
    mc_signals_second_kills(1);
    t.rd.lock_fd = -1;
    t.import = job->from;
    t.run = job->run;
    t.quiet = 1;
    t.json = job->json;
    t.r.path = job->recipe;
    t.r.device = job->device;
    t.r.set = job->set;
    return go(&t);
}
