/* load.c - a recipe from the command line: load, check, tabulate, say what is wrong. Floor 8 (cli).
 *
 * I1  All problems of all stages that can be known are said in one run; a later stage runs only on
 *     what the earlier one made whole: the keys and the layout, the pipeline's schedules, memory,
 *     which depends on both, and data.
 * I2  With --json the problems are the answer: {"ok":false,"errors":[...]} on stdout.
 * I3  A stop signal (of commands that listen to them) ends it after the stage in hand: 76.
 *
 * Memory: struct mc_cli_recipe owns what was loaded. Threads: one; the Lua host has its watchdog
 * while it loads. */
#include "cli.h"
#include "../base/arena.h"
#include "../data/data.h"
#include "../optim/optim.h"
#include "../run/spawn.h"
#include "../train/train.h"
#include <stdio.h>
#include <string.h>

static int report(struct mc_cli_recipe *r, mc_status st, const struct mc_err *err)
{
    if (r->problems.n == 0) /* no key to blame: the file, the disk, memory */
        mc_problems_add(&r->problems, "", "", 0, NULL, "%s",
                        err->msg[0] ? err->msg : mc_status_name(st));
    if (r->json) { /* I2 */
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '{');
        mc_json_bool(&j, "ok", 0);
        mc_say_problems_json(&r->problems, &j);
        mc_json_close(&j, '}');
        mc_say_json(&j);
    } else {
        mc_say_problems(&r->problems);
    }
    return mc_status_exit_code(st);
}

static mc_status check(struct mc_cli_recipe *r, int memory, struct mc_err *err)
{
    struct mc_check_cfg cfg = {.ranks = (int)r->ranks,
                               .nodes = (int)r->nodes,
                               .per_node = (int)r->per_node,
                               .for_train = r->for_train,
                               .memory = mc_train_plan_fullest,
                               .line = r->line,
                               .planned = &r->memory,
                               .base_dir = r->loaded.base_dir};
    if (memory)
        return mc_check_memory(r->loaded.box, &cfg, &r->problems, &r->notes, err);
    r->notes.n = 0;
    return mc_check(r->loaded.box, &cfg, &r->problems, &r->notes, err);
}

/* Megatron's order is made for a number of samples: those up to the target, unless it was given. */
static void settle_samples(struct mc_cli_recipe *r)
{
    struct mc_recipe *recipe = mc_recipe_of(r->loaded.box);
    struct mc_counters zero = {0};
    if (recipe->data.order != MC_ORDER_MEGATRON || recipe->data.declared_tokens > 0)
        return;
    int64_t need = mc_samples_to_go(recipe, &zero);
    char file[256];
    int line;
    if (recipe->data.samples == 0 && need > 0) {
        recipe->data.samples = need;
        mc_recipe_set_origin(r->loaded.box, "data.samples", "default: the target of steps");
    } else if (recipe->data.samples < need || need < 0) {
        mc_recipe_where(r->loaded.box, "data.samples", file, &line);
        mc_problems_add(&r->problems, "data.samples", file, line, NULL,
                        "%lld, but the target of steps takes %lld samples",
                        (long long)recipe->data.samples, (long long)need);
    }
}

/* Data that cannot be read, or is shorter than one sample, is found before a run folder exists. */
static mc_status try_data(struct mc_cli_recipe *r, struct mc_err *err)
{
    const struct mc_recipe *recipe = mc_recipe_of(r->loaded.box);
    struct mc_data *data = NULL;
    if (recipe->data.required || recipe->data.declared_tokens > 0)
        return MC_OK;
    mc_status st = mc_data_open(recipe, r->loaded.base_dir, &data, err);
    mc_data_close(data);
    if (st != MC_OK) {
        char file[256];
        int line;
        mc_recipe_where(r->loaded.box, "data", file, &line);
        mc_problems_add(&r->problems, "data", file, line, NULL, "%s", err->msg);
        if (st == MC_E_CORRUPT) /* a retry would meet the same bytes */
            st = MC_E_RECIPE;
    }
    return st;
}

static int go_on(mc_status st)
{
    return st == MC_OK && !mc_signals_pending(); /* I3 */
}

int mc_cli_load(struct mc_cli_recipe *r)
{
    struct mc_err err = {0};
    char device[64];
    mc_status st = mc_home_find(r->home, &err);
    if (st != MC_OK)
        return report(r, st, &err);
    const char **set = mc_alloc(sizeof *set * (size_t)(r->set.n + 1), "--set list");
    if (!set)
        return 76;
    for (int i = 0; i < r->set.n; i++)
        set[i] = r->set.v[i];
    int nset = r->set.n;
    if (r->device) {
        snprintf(device, sizeof device, "device=%s", r->device);
        set[nset++] = device;
    }
    struct mc_load_cfg load = {.path = r->path, .home = r->home, .set = set, .nset = nset};
    st = mc_lua_load_recipe(&load, &r->problems, &r->loaded, &err);
    if (go_on(st))
        st = check(r, 0, &err);
    if (go_on(st))
        st = mc_lua_tabulate(&r->loaded, &r->problems, &err); /* I1 */
    if (go_on(st) && mc_recipe_of(r->loaded.box)->batch.function)
        st = check(r, 0, &err); /* the sizes are known only now */
    if (go_on(st) && r->problems.n == 0)
        st = mc_cli_schedule_check(r, &err);
    if (go_on(st) && r->problems.n == 0) {
        st = check(r, 1, &err);
        if (st == MC_E_RECIPE && r->problems.n > 0)
            st = mc_cli_schedule_memory(r, &err) == MC_OK ? MC_E_RECIPE : err.code;
    }
    if (st == MC_OK)
        settle_samples(r);
    if (go_on(st) && r->problems.n == 0)
        st = try_data(r, &err);
    mc_free(set);
    if (mc_signals_pending()) /* I3 */
        return 76;
    if (st == MC_OK && r->problems.n > 0)
        st = MC_E_RECIPE;
    if (st != MC_OK)
        return report(r, st, &err);
    r->recipe = mc_recipe_of(r->loaded.box);
    return 0;
}

void mc_cli_unload(struct mc_cli_recipe *r)
{
    mc_line_destroy(r->line);
    r->line = NULL;
    mc_lua_loaded_fini(&r->loaded);
    mc_problems_fini(&r->problems);
    memset(&r->loaded, 0, sizeof r->loaded);
    memset(&r->problems, 0, sizeof r->problems);
}
