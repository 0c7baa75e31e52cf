/* cmd_rank.c - `mascon rank RUN N`: one rank, started by its agent and by nobody else. Floor 8.
 *
 * I1  What the agent must know is in the progress page before this process ends: exit code, step,
 *     loss, weights_hash, and the first error in one line.
 * I2  The rank reads the recipe of its segment from RUN, never the recipe file, and the schedules
 *     of its pipelines beside it: what was checked, proven and hashed at the start is what runs.
 * I3  The page says why this rank failed before anything that it shares with others is torn down:
 *     the agent must not see a victim's complaint first.
 * I4  A hook that nothing can interrupt ends the process from the watchdog's thread; the page is
 *     filled there, without a lock.
 *
 * Memory: the recipe's box and the hooks' VM, until the end. Threads: main; the pool's; the Lua
 * host's watchdog. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/flight.h"
#include "../base/log.h"
#include "../base/pool.h"
#include "../base/sysio.h"
#include "../par/mesh.h"
#include "../run/ctl.h"
#include "../run/page.h"
#include "../run/rundir.h"
#include "../run/spawn.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define SCHEDULE_MAX ((size_t)1 << 30)

struct rank {
    const char *run, *resume, *base_dir;
    int64_t lock_fd, threads, record, trace;
    int quiet, progress, profile;
    struct mc_rundir rd;
    struct mc_cli_seat seat;
    struct mc_recipe_box *box;
    struct mc_line *line; /* NULL: no pipelines */
    struct mc_hook_ops hooks;
    int have_hooks;
    char home[1024];
};

/* From the hooks' host: one event, and a line for people. */
static void report(void *arg, const char *kind, const char *hook, const char *message)
{
    struct rank *r = arg;
    char text[8192];
    struct mc_json j;
    if (strcmp(kind, "hook_stuck") == 0 && r->seat.page) { /* I4 */
        char why[1000];
        struct mc_train_result res = {.committed_step = -1, .loss = NAN};
        res.step = atomic_load(&r->seat.page->step);
        snprintf(why, sizeof why, "hook %.200s: %.700s", hook, message);
        mc_cli_seat_result(&r->seat, &res, 77, MC_E_GIVEUP, why);
    }
    mc_json_init_fixed(&j, text, sizeof text - 1);
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "hook", hook);
    mc_json_str(&j, "message", message);
    if (r->seat.page)
        mc_json_i64(&j, "step", atomic_load(&r->seat.page->step));
    mc_json_close(&j, '}');
    if (!j.failed) {
        text[j.len - 1] = '\0'; /* members without braces */
        mc_rundir_event(&r->rd, kind, text + 1, NULL);
    }
    if (strcmp(kind, "hook_log") != 0)
        mc_log(MC_LOG_WARN, "hook %s: %s", hook, message);
    else if (!r->quiet)
        mc_log(MC_LOG_INFO, "%s: %s", hook, message);
}

static mc_status open_hooks(struct rank *r, const struct mc_recipe *recipe, struct mc_err *err)
{
    if (recipe->nhooks == 0)
        return MC_OK;
    struct mc_hooks_cfg cfg = {.recipe = recipe,
                               .base_dir = r->base_dir,
                               .home = r->home,
                               .run_dir = r->rd.path,
                               .report = report,
                               .report_arg = r};
    MC_TRY(mc_home_find(r->home, err));
    MC_TRY(mc_lua_hooks_open(&cfg, &r->hooks, err));
    r->have_hooks = 1;
    return MC_OK;
}

static mc_status read_resume(const struct rank *r, struct mc_train_cfg *cfg, struct mc_err *err)
{
    if (strcmp(r->resume, "fresh") == 0) {
        cfg->resume = MC_RESUME_FRESH;
    } else if (strcmp(r->resume, "auto") == 0) {
        cfg->resume = MC_RESUME_AUTO;
    } else {
        cfg->resume = MC_RESUME_STEP;
        if (!mc_args_i64(r->resume, &cfg->resume_step))
            return mc_err_set(err, MC_E_USAGE, "rank: --resume is fresh, auto or a step");
    }
    return MC_OK;
}

/* What the agent proved, and every rank proves again (I2). */
static mc_status read_schedule(struct rank *r, const struct mc_recipe *recipe, struct mc_err *err)
{
    char path[1100], *text;
    size_t n;
    const struct mc_parallel_cfg *p = &recipe->parallel;
    if (p->pp == 1)
        return MC_OK;
    MC_TRY(mc_rundir_segment_file(&r->rd, r->rd.segment, "schedule.txt", path, err));
    MC_TRY(mc_sys_read_file(path, SCHEDULE_MAX, &text, &n, err));
    mc_status st = mc_line_parse(text, n, &r->line, err);
    mc_free(text);
    if (st == MC_OK && (r->line->ranks != p->pp || r->line->chunks != p->chunks ||
                        r->line->cut[p->pp * p->chunks] != recipe->model.layers))
        st = mc_err_set(err, MC_E_FORMAT,
                        "%s: %d ranks of %d stages over %d layers, the recipe has pp %lld, chunks "
                        "%lld, layers %lld",
                        path, r->line->ranks, r->line->chunks,
                        r->line->cut[r->line->ranks * r->line->chunks], (long long)p->pp,
                        (long long)p->chunks, (long long)recipe->model.layers);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

static mc_status run(struct rank *r, struct mc_train_result *res, struct mc_err *err)
{
    char path[1100];
    MC_TRY(mc_cli_seat_page(&r->seat, err));
    MC_TRY(mc_rundir_open(r->run, 0, &r->rd, err));
    r->rd.lock_fd = (int)r->lock_fd;
    MC_TRY(mc_rundir_held(&r->rd, err));
    MC_TRY(mc_rundir_segment_file(&r->rd, r->rd.segment, "resolved.json", path, err));
    MC_TRY(mc_recipe_read_json(path, &r->box, err)); /* I2 */
    const struct mc_recipe *recipe = mc_recipe_of(r->box);
    struct mc_layout layout;
    MC_TRY(mc_check_layout(recipe, (int)r->seat.world, &layout, err));
    MC_TRY(read_schedule(r, recipe, err));
    MC_TRY(mc_cli_seat_join(&r->seat, recipe, r->line, &layout, err));
    struct mc_train_cfg cfg = {
        .recipe = recipe,
        .rd = &r->rd,
        .page = r->seat.page,
        .rank = (int)r->seat.number,
        .nranks = (int)r->seat.world,
        .mesh = r->seat.mesh,
        .line = r->line,
        .threads = r->threads > 0 ? (int)r->threads : mc_pool_default_threads((int)r->seat.world),
        .software = MC_SOFTWARE,
        .record_step = r->record,
        .trace_step = r->trace,
        .profile = r->profile,
        .quiet = r->quiet,
        .progress = r->progress};
    MC_TRY(read_resume(r, &cfg, err));
    MC_TRY(open_hooks(r, recipe, err));
    cfg.hooks = r->have_hooks ? &r->hooks : NULL;
    return mc_train(&cfg, res, err);
}

int mc_cmd_rank(int argc, char **argv)
{
    static struct rank r;
    const char *pos[2];
    mc_cli_seat_init(&r.seat);
    r.lock_fd = -1;
    r.resume = "auto";
    r.base_dir = ".";
    const struct mc_arg arg[] = {
        {"--page-fd", "FD", "the progress page", MC_ARG_I64, &r.seat.page_fd, 0, 1 << 20},
        {"--ctl-fd", "FD", "the control socket", MC_ARG_I64, &r.seat.ctl_fd, 0, 1 << 20},
        {"--world", "N", "ranks of the run", MC_ARG_I64, &r.seat.world, 1, 1 << 20},
        {"--wait", "S", "seconds the start may wait for others", MC_ARG_I64, &r.seat.wait_s, 1,
         86400},
        {"--stall", "S", "seconds a call among ranks may wait", MC_ARG_I64, &r.seat.stall_s, 1,
         86400},
        {"--lock-fd", "FD", "the run's lock", MC_ARG_I64, &r.lock_fd, 0, 1 << 20},
        {"--resume", "HOW", "fresh, auto or a step", MC_ARG_STR, &r.resume, 0, 0},
        {"--base", "DIR", "where hooks are sought first", MC_ARG_STR, &r.base_dir, 0, 0},
        {"--threads", "N", "threads of this rank", MC_ARG_I64, &r.threads, 1, 4096},
        {"--record", "STEP", "what ops gave in that step", MC_ARG_I64, &r.record, 1, 9e15},
        {"--trace", "STEP", "when ops ran in that step", MC_ARG_I64, &r.trace, 1, 9e15},
        {"--quiet", NULL, "no log lines", MC_ARG_FLAG, &r.quiet, 0, 0},
        {"--profile", NULL, "where steps' time goes", MC_ARG_FLAG, &r.profile, 0, 0},
        {"--progress", NULL, "a progress line", MC_ARG_FLAG, &r.progress, 0, 0},
    };
    struct mc_args a = {.usage = "mascon rank RUN N (started by mascon train)",
                        .about = "One rank of a run. The agent starts it; people use mascon train.",
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = pos,
                        .min_pos = 2,
                        .max_pos = 2};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    r.run = pos[0];
    if (!mc_args_i64(pos[1], &r.seat.number) || r.seat.number < 0 ||
        r.seat.number >= r.seat.world) {
        fprintf(stderr, "mascon: rank: N is 0 to --world - 1, not \"%.60s\"\n", pos[1]);
        return 2;
    }
    mc_signals_install();
    r.rd.lock_fd = -1;
    struct mc_train_result res = {.committed_step = -1, .loss = NAN};
    struct mc_err err = {0};
    mc_status st = run(&r, &res, &err);
    rc = st == MC_OK ? res.exit_code : mc_status_exit_code(st);
    mc_cli_seat_result(&r.seat, &res, rc, st, st == MC_OK ? "" : err.msg); /* I3 */
    if (st != MC_OK && (!r.seat.page || st == MC_E_BUG)) /* else the agent says it, once */
        mc_say_error(&err, st);
    mc_cli_seat_leave(&r.seat, st);
    if (r.have_hooks)
        r.hooks.destroy(r.hooks.ctx);
    mc_line_destroy(r.line);
    if (r.box)
        mc_recipe_destroy(r.box);
    mc_cli_seat_give_back(&r.seat);
    return rc;
}
