/* host.h - the Lua floor as the command line sees it: load a recipe, open hooks. The only folder
 * whose C includes lua.h. */
#pragma once
#include "../core/pipe/sched.h"
#include "../core/recipe/recipe.h"
#include "../core/train/hooks.h"

struct mc_load_cfg {
    const char *path; /* recipe file */
    const char *home; /* MASCON_HOME: holds lua/ hooks/ recipes/ */
    const char *const *set;
    int nset; /* "key=value", applied after inherit */
};
struct mc_vm;
struct mc_loaded {
    struct mc_recipe_box *box;
    char *text; /* recipe source, mc_free */
    char base_dir[1024];
    struct mc_vm *vm; /* kept for tabulate */
    /* functions given for lr, batch.global and parallel.schedule, in vm; LUA_NOREF: none */
    int lr_ref, batch_ref, schedule_ref;
};
/* Sandbox, budget (2 s CPU, 256 MiB), watchdog (exit 2); runs the chunk, applies inherit and --set,
 * traces the model, binds, loads the hook files to see that they would run. All problems at once.
 * MC_E_RECIPE when problems->n > 0; MC_E_NOTFOUND and the like when the file cannot be read. Paths
 * under data.* given by --set are sought in the current folder, then beside the recipe; those of an
 * inherited file are relative to that file. */
mc_status mc_lua_load_recipe(const struct mc_load_cfg *cfg, struct mc_problems *problems,
                             struct mc_loaded *out, struct mc_err *err);
void mc_lua_loaded_fini(struct mc_loaded *l);
/* Functions given for lr or batch.global: evaluated for every step up to the target (after mc_check
 * has fixed it), into lr.table and batch.ramp. f(s), s = { step, samples, tokens, global } ->
 * number. Nothing to do: MC_OK. More than 2^20 steps or 32 distinct batch pieces: MC_E_RECIPE with
 * what to use instead. */
mc_status mc_lua_tabulate(struct mc_loaded *l, struct mc_problems *problems, struct mc_err *err);

/* Is this value of parallel.schedule a file (not a bundled name, not a function)? */
int mc_lua_schedule_is_file(const char *name);
/* parallel.schedule for so many ranks, chunks a rank and microbatches, as data: its form is right,
 * whether it is sound is mc_sched_verify()'s to say. MC_E_RECIPE begins with file:line where the
 * function raised, took longer than 4 s, or returned what is no schedule. */
struct mc_sched_ask {
    int ranks, chunks, microbatches;
    const struct mc_sched_costs *costs; /* shown to the function; NULL: all 1 */
};
mc_status mc_lua_schedule(struct mc_loaded *l, const struct mc_sched_ask *ask, struct mc_sched **s,
                          struct mc_err *err);

struct mc_hooks_cfg {
    const struct mc_recipe *recipe; /* borrowed until destroy */
    const char *base_dir, *home;
    const char *run_dir; /* NULL: only load (check); nothing is written */
    /* errors, overruns and hooks' own log lines; may be NULL */
    /* kind: "hook_error", "hook_log", or "hook_stuck": nothing can interrupt the hook; the call
     * comes from the watchdog's thread while the caller's is in Lua, and the process ends with 77
     * when it returns: write the incident, take no lock that the trainer may hold in a hook call.
     */
    void (*report)(void *arg, const char *kind, const char *hook, const char *message);
    void *report_arg;
};
mc_status mc_lua_hooks_open(const struct mc_hooks_cfg *cfg, struct mc_hook_ops *ops,
                            struct mc_err *err);
