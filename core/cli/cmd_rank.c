/* cmd_rank.c - `mascon rank RUN N`: one rank, started by its agent and by nobody else. Floor 8.
 *
 * I1  What the agent must know is in the progress page before this process ends: exit code, step,
 *     loss, weights_hash, and the first error in one line.
 * I2  The rank reads the recipe of its segment from RUN, never the recipe file: what was checked
 *     and hashed at the start is what runs.
 * I3  The page says why this rank failed before anything that it shares with others is torn down:
 *     the agent must not see a victim's complaint first.
 * I4  A hook that nothing can interrupt ends the process from the watchdog's thread; the page is
 *     filled there, without a lock.
 *
 * Memory: the recipe's box and the hooks' VM, until the end. Threads: main; the pool's; the Lua
 * host's watchdog. */
#include "cli.h"
#include "../base/flight.h"
#include "../base/log.h"
#include "../base/pool.h"
#include "../par/mesh.h"
#include "../run/ctl.h"
#include "../run/page.h"
#include "../run/rundir.h"
#include "../run/spawn.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* How long a call among ranks waits for a member that does not come. */
#define COMM_WAIT_NS (INT64_C(600) * 1000000000)

struct rank {
    const char *run, *resume, *base_dir;
    int64_t number, world, page_fd, ctl_fd, lock_fd, threads, wait_s;
    int quiet, progress, profile;
    struct mc_rundir rd;
    struct mc_page *page;
    struct mc_recipe_box *box;
    struct mc_ctl *ctl;
    struct mc_comm_net *net;
    struct mc_mesh *mesh; /* NULL: one rank */
    struct mc_hook_ops hooks;
    int have_hooks;
    char home[1024];
};

static void fill_page(struct mc_page *p, const struct mc_train_result *res, int exit_code,
                      mc_status status, const char *message)
{
    if (!p)
        return;
    p->status = status;
    snprintf(p->message, sizeof p->message, "%.1000s", message);
    p->exit_code = exit_code;
    p->result_step = res->step;
    p->segment_steps = res->segment_steps;
    p->committed_step = res->committed_step;
    p->loss = res->loss;
    p->weights_hash = res->weights_hash;
    atomic_store_explicit(&p->result_valid, 1, memory_order_release); /* I1: last */
}

/* From the hooks' host: one event, and a line for people. */
static void report(void *arg, const char *kind, const char *hook, const char *message)
{
    struct rank *r = arg;
    char text[8192];
    struct mc_json j;
    if (strcmp(kind, "hook_stuck") == 0 && r->page) { /* I4 */
        char why[1000];
        struct mc_train_result res = {.committed_step = -1, .loss = NAN};
        res.step = atomic_load(&r->page->step);
        snprintf(why, sizeof why, "hook %.200s: %.700s", hook, message);
        fill_page(r->page, &res, 77, MC_E_GIVEUP, why);
    }
    mc_json_init_fixed(&j, text, sizeof text - 1);
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "hook", hook);
    mc_json_str(&j, "message", message);
    if (r->page)
        mc_json_i64(&j, "step", atomic_load(&r->page->step));
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

/* Hello to the agent; with others in the world: who they are, the net to them, groups on it. */
static mc_status join(struct rank *r, const struct mc_recipe *recipe, struct mc_err *err)
{
    int64_t span = r->wait_s * 1000000000;
    struct mc_layout layout;
    if (r->ctl_fd < 0)
        return r->world == 1 ? MC_OK
                             : mc_err_set(err, MC_E_USAGE, "rank: %lld ranks need a --ctl-fd each",
                                          (long long)r->world);
    const struct mc_ctl_cfg cfg = {.fd = (int)r->ctl_fd,
                                   .rank = (int)r->number,
                                   .world = (int)r->world,
                                   .recipe_hash = mc_recipe_hash(recipe),
                                   .build = mc_ctl_build_id(),
                                   .deadline_ns = span};
    MC_TRY(mc_check_layout(recipe, (int)r->world, &layout, err));
    MC_TRY(mc_ctl_open(&cfg, &r->ctl, err));
    if (r->world == 1)
        return MC_OK;
    static struct mc_comm_peers peers; /* the net borrows it */
    peers = (struct mc_comm_peers){
        .arg = r->ctl, .exchange = mc_ctl_exchange, .describe = mc_ctl_describe};
    const struct mc_comm_net_cfg net = {.world = (int)r->world,
                                        .me = (int)r->number,
                                        .peers = &peers,
                                        .deadline_ns = span,
                                        .collective_seq = r->page ? &r->page->collective_seq : NULL,
                                        .bytes_moved = r->page ? &r->page->bytes_moved : NULL};
    MC_TRY(mc_comm_net_open(&net, &r->net, err));
    return mc_mesh_create(&layout, (int)r->number, r->net, "", COMM_WAIT_NS, &r->mesh, err);
}

static mc_status run(struct rank *r, struct mc_train_result *res, struct mc_err *err)
{
    char path[1100];
    if (r->page_fd >= 0) {
        MC_TRY(mc_page_attach((int)r->page_fd, &r->page, err));
        mc_flight_use(&r->page->flight);
        mc_bus_page(r->page);
    }
    MC_TRY(mc_rundir_open(r->run, 0, &r->rd, err));
    r->rd.lock_fd = (int)r->lock_fd;
    MC_TRY(mc_rundir_held(&r->rd, err));
    MC_TRY(mc_rundir_segment_file(&r->rd, r->rd.segment, "resolved.json", path, err));
    MC_TRY(mc_recipe_read_json(path, &r->box, err)); /* I2 */
    const struct mc_recipe *recipe = mc_recipe_of(r->box);
    MC_TRY(join(r, recipe, err));
    struct mc_train_cfg cfg = {.recipe = recipe,
                               .rd = &r->rd,
                               .page = r->page,
                               .rank = (int)r->number,
                               .nranks = (int)r->world,
                               .mesh = r->mesh,
                               .threads = r->threads > 0 ? (int)r->threads
                                                         : mc_pool_default_threads((int)r->world),
                               .software = MC_SOFTWARE,
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
    r.page_fd = r.ctl_fd = r.lock_fd = -1;
    r.world = 1;
    r.wait_s = 120;
    r.resume = "auto";
    r.base_dir = ".";
    const struct mc_arg arg[] = {
        {"--page-fd", "FD", "the progress page", MC_ARG_I64, &r.page_fd, 0, 1 << 20},
        {"--ctl-fd", "FD", "the control socket", MC_ARG_I64, &r.ctl_fd, 0, 1 << 20},
        {"--world", "N", "ranks of the run", MC_ARG_I64, &r.world, 1, 1 << 20},
        {"--wait", "S", "seconds the start may wait for others", MC_ARG_I64, &r.wait_s, 1, 86400},
        {"--lock-fd", "FD", "the run's lock", MC_ARG_I64, &r.lock_fd, 0, 1 << 20},
        {"--resume", "HOW", "fresh, auto or a step", MC_ARG_STR, &r.resume, 0, 0},
        {"--base", "DIR", "where hooks are sought first", MC_ARG_STR, &r.base_dir, 0, 0},
        {"--threads", "N", "threads of this rank", MC_ARG_I64, &r.threads, 1, 4096},
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
    if (!mc_args_i64(pos[1], &r.number) || r.number < 0 || r.number >= r.world) {
        fprintf(stderr, "mascon: rank: N is 0 to --world - 1, not \"%.60s\"\n", pos[1]);
        return 2;
    }
    mc_signals_install();
    r.rd.lock_fd = -1;
    struct mc_train_result res = {.committed_step = -1, .loss = NAN};
    struct mc_err err = {0};
    mc_status st = run(&r, &res, &err);
    rc = st == MC_OK ? res.exit_code : mc_status_exit_code(st);
    fill_page(r.page, &res, rc, st, st == MC_OK ? "" : err.msg); /* I3 */
    if (st != MC_OK && (!r.page || st == MC_E_BUG))              /* else the agent says it, once */
        mc_say_error(&err, st);
    if (st != MC_OK && r.mesh)
        mc_mesh_abort(r.mesh);
    mc_mesh_destroy(r.mesh);
    mc_comm_net_close(r.net);
    mc_ctl_close(r.ctl);
    if (r.have_hooks)
        r.hooks.destroy(r.hooks.ctx);
    if (r.box)
        mc_recipe_destroy(r.box);
    mc_flight_use(NULL);
    mc_bus_page(NULL);
    mc_page_detach(r.page);
    return rc;
}
