/* hooks_host.c - the control rank's hook VM: loads the recipe's hook files, calls them, merges what
 * they answer. Floor 7 (lua).
 *
 * I1  A hook that fails changes nothing: its answer is dropped, the error reported, training goes
 *     on; the third failure of one function in a row is MC_E_GIVEUP.
 * I2  100 ms of thread CPU time a call; what cannot be interrupted is ended by the watchdog with 77
 *     after the report callback has written its incident.
 * I3  Files share one VM but no environment; what a file keeps between calls and wants back after a
 *     resume is its `state`.
 *
 * Memory: the host is handle life; a call allocates only inside Lua, under its cap. Threads: the
 * trainer's; the watchdog calls only `stuck`. */
#include "hooks_int.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <lauxlib.h>
#include "sandbox.h"
#include "../core/base/arena.h"
#include "../core/base/sysio.h"

#define LOAD_BUDGET_NS 2000000000LL
#define CALL_BUDGET_NS 100000000LL
#define GRACE_NS       900000000LL
enum { HOOKS_MEM = 64 << 20 };

/* -- Loading --------------------------------------------------------------------------------- */

MC_LJMP static int body_open(lua_State *L)
{
    mc_sandbox_open(L);
    return 0;
}

/* A member of the file's table that is no state: a function of this VM, of the coordinator, or a
 * mistake. stack: key at -2, value at -1. */
MC_LJMP static void take_function(lua_State *L, struct mc_hook *hook)
{
    static const char *const later[] = {"on_start",  "on_signal",   "on_time_left",
                                        "on_resume", "on_incident", "on_exit"};
    enum { NLATER = sizeof later / sizeof *later };
    const char *known[MC_HOOK_NKINDS + NLATER + 2];
    const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : NULL;
    int found = -1, n = 0;
    if (!key)
        luaL_error(L, "a hook file returns a table of named functions; this one has an entry [%s]",
                   lua_type(L, -2) == LUA_TNUMBER ? "number" : luaL_typename(L, -2));
    for (int k = 0; k < MC_HOOK_NKINDS; k++) {
        known[n++] = mc_hook_name((enum mc_hook_kind)k);
        if (!strcmp(key, known[k]))
            found = k;
    }
    for (int k = 0; k < NLATER; k++) {
        known[n++] = later[k];
        if (!strcmp(key, later[k]))
            found = MC_HOOK_NKINDS + k;
    }
    known[n++] = "state";
    known[n++] = "options";
    if (found < 0) {
        const char *near = mc_nearest(key, known, n);
        if (near)
            luaL_error(L, "unknown member '%s'; did you mean '%s'?", key, near);
        luaL_error(L, "unknown member '%s' (functions on_..., options and state)", key);
    }
    if (!lua_isfunction(L, -1))
        luaL_error(L, "'%s' must be a function, not a %s", key, luaL_typename(L, -1));
    if (found >= MC_HOOK_NKINDS) {
        mc_hooks_report(hook->host, "hook_log", hook,
                        "%s belongs to the coordinator; this version does not call it", key);
    } else {
        lua_pushvalue(L, -1);
        hook->fn_ref[found] = luaL_ref(L, LUA_REGISTRYINDEX);
    }
}

/* Is the value of an option what the file declared it to be? */
static int is_of(const struct mc_attr *o, const char *type, size_t n)
{
    const char *is = o->kind == MC_V_NUM ? "number" : o->kind == MC_V_STR ? "string" : "boolean";
    return strlen(is) == n && memcmp(is, type, n) == 0;
}

static int known_type(const char *type, size_t n)
{
    static const char *const types[] = {"number", "string", "boolean"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i]) == n && memcmp(types[i], type, n) == 0)
            return 1;
    return 0;
}

static const struct mc_attr *option_of(const struct mc_hook_cfg *c, const char *key)
{
    for (int i = 0; i < c->noptions; i++)
        if (!strcmp(c->option[i].key, key))
            return &c->option[i];
    return NULL;
}

/* The options that the file declares (stack: their table at idx) against those of its entry. A
 * misspelt name is told before the required one that is then missing. */
MC_LJMP static void check_options(lua_State *L, const struct mc_hook_cfg *c, int idx)
{
    enum { MOST = 32 };
    const char *name[MOST], *type[MOST];
    if (!lua_istable(L, idx))
        luaL_error(L, "'options' must be a table such as { steps = \"number\" }, not a %s",
                   luaL_typename(L, idx));
    const int n = mc_sandbox_push_keys(L, idx), keys = lua_gettop(L);
    if (n > MOST)
        luaL_error(L, "more than %d declared options", MOST);
    luaL_checkstack(L, n + 4, "declared options");
    for (int i = 0; i < n; i++) { /* the texts are held by the file's table */
        lua_rawgeti(L, keys, i + 1);
        if (lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "'options' has an entry without a name");
        name[i] = lua_tostring(L, -1);
        lua_rawget(L, idx);
        type[i] = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
        lua_pop(L, 1);
        const size_t len = strcspn(type[i], "?");
        if (!known_type(type[i], len) || (type[i][len] && type[i][len + 1]))
            luaL_error(L,
                       "options.%s must be \"number\", \"string\" or \"boolean\", with a ? where "
                       "it may be left out",
                       name[i]);
    }
    for (int k = 0; k < c->noptions; k++) {
        const char *key = c->option[k].key;
        int at = 0;
        while (at < n && strcmp(name[at], key))
            at++;
        if (at < n && is_of(&c->option[k], type[at], strcspn(type[at], "?")))
            continue;
        if (at < n) {
            lua_pushlstring(L, type[at], strcspn(type[at], "?"));
            luaL_error(L, "option '%s' must be a %s", key, lua_tostring(L, -1));
        }
        const char *near = mc_nearest(key, name, n);
        if (near)
            luaL_error(L, "no option '%s'; did you mean '%s'?", key, near);
        luaL_error(L, "no option '%s'", key);
    }
    for (int i = 0; i < n; i++)
        if (!strchr(type[i], '?') && !option_of(c, name[i]))
            luaL_error(L, "option '%s' is required: a %s", name[i], type[i]);
    lua_settop(L, keys - 1);
}

MC_LJMP static int body_load(lua_State *L)
{
    struct mc_hook_host *h = lua_touserdata(L, 1);
    struct mc_hook *hook = h->current;
    struct mc_vm *vm = h->vm;
    const int file = mc_vm_read_file(vm, hook->path, 0, NULL);
    if (file < 0)
        return luaL_error(L, "cannot read %s", hook->path);
    mc_sandbox_push_env(L); /* I3 */
    lua_pushvalue(L, -1);
    hook->env_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    vm->env_ref = hook->env_ref;
    mc_vm_push_chunk(L, file);
    lua_call(L, 0, 1);
    if (!lua_istable(L, -1))
        return luaL_error(L, "a hook file must return a table of functions, not %s",
                          lua_isnil(L, -1) ? "nothing" : luaL_typename(L, -1));
    const int t = lua_gettop(L);
    const int n = mc_sandbox_push_keys(L, t), keys = lua_gettop(L);
    int state = 0;
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, keys, i);
        lua_pushvalue(L, -1);
        lua_rawget(L, t);
        if (lua_type(L, -2) == LUA_TSTRING && !strcmp(lua_tostring(L, -2), "state"))
            state = 1;
        else if (lua_type(L, -2) == LUA_TSTRING && !strcmp(lua_tostring(L, -2), "options"))
            check_options(L, hook->cfg, lua_gettop(L));
        else
            take_function(L, hook);
        lua_pop(L, 2);
    }
    lua_pushliteral(L, "state");
    lua_rawget(L, t);
    const int at = lua_gettop(L);
    if (state)
        mc_hooks_encode_state(L, h, at);
    mc_hooks_push_self(L, hook, state ? at : 0);
    hook->self_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

/* Beside the recipe, else in home. */
static mc_status find_file(struct mc_hook_host *h, struct mc_hook *hook, struct mc_err *err)
{
    const char *p = hook->cfg->path;
    if (p[0] == '/')
        snprintf(hook->path, sizeof hook->path, "%s", p);
    else {
        snprintf(hook->path, sizeof hook->path, "%s/%s", h->base_dir, p);
        if (!mc_sys_exists(hook->path))
            snprintf(hook->path, sizeof hook->path, "%s/%s", h->home, p);
    }
    if (!mc_sys_exists(hook->path))
        return mc_err_set(err, MC_E_RECIPE,
                          "hook %s: no such file beside the recipe (%s) nor in %s", p, h->base_dir,
                          h->home);
    mc_path_dir(hook->dir, sizeof hook->dir, hook->path);
    return MC_OK;
}

static mc_status check_allow(struct mc_hook *hook, struct mc_err *err)
{
    for (int i = 0; i < hook->cfg->nallow; i++) {
        const char *a = hook->cfg->allow[i];
        if (strcmp(a, "append:run"))
            return mc_err_set(err, MC_E_RECIPE,
                              "hook %s: allow \"%s\" cannot be granted; this version grants only "
                              "\"append:run\"",
                              hook->cfg->path, a);
        hook->may_append = 1;
    }
    return MC_OK;
}

static void enter_hook(struct mc_hook_host *h, struct mc_hook *hook)
{
    h->current = hook;
    hook->logged = 0;
    h->vm->env_ref = hook->env_ref;
    snprintf(h->vm->dir, sizeof h->vm->dir, "%s", hook->dir);
}

static mc_status load_one(struct mc_hook_host *h, int i, struct mc_err *err)
{
    struct mc_hook *hook = &h->hook[i];
    struct mc_err why = {0};
    int twin = 1;
    hook->host = h;
    hook->cfg = &h->cfg.recipe->hook[i];
    hook->env_ref = hook->self_ref = LUA_NOREF;
    for (int k = 0; k < MC_HOOK_NKINDS; k++)
        hook->fn_ref[k] = LUA_NOREF;
    for (int k = 0; k < i; k++)
        twin += !strcmp(h->cfg.recipe->hook[k].path, hook->cfg->path);
    if (twin > 1)
        snprintf(hook->name, sizeof hook->name, "%.90s#%d", hook->cfg->path, twin);
    else
        snprintf(hook->name, sizeof hook->name, "%.100s", hook->cfg->path);
    MC_TRY(find_file(h, hook, err));
    MC_TRY(check_allow(hook, err));
    enter_hook(h, hook);
    const mc_status st = mc_vm_call(h->vm, body_load, h, LOAD_BUDGET_NS, hook->name, &why);
    h->current = NULL;
    return st == MC_OK ? MC_OK
                       : mc_err_set(err, MC_E_RECIPE, "hook %s: %s", hook->cfg->path, why.msg);
}

/* -- Calling --------------------------------------------------------------------------------- */

MC_LJMP static int body_call(lua_State *L)
{
    struct mc_hook_host *h = lua_touserdata(L, 1);
    lua_rawgeti(L, LUA_REGISTRYINDEX, h->current->fn_ref[h->kind]);
    mc_hooks_push_event(L, h->ev);
    lua_rawgeti(L, LUA_REGISTRYINDEX, h->current->self_ref);
    lua_call(L, 2, 1);
    mc_hooks_read_answer(L, h->kind, &h->answer);
    return 0;
}

static void merge_answer(const struct mc_directive *a, const struct mc_hook *hook,
                         struct mc_directive *d)
{
    if (a->stop) {
        d->stop = 1;
        if (a->why[0])
            snprintf(d->why, sizeof d->why, "%s", a->why);
        else
            snprintf(d->why, sizeof d->why, "%.120s", hook->name);
    }
    d->checkpoint |= a->checkpoint;
    d->eval |= a->eval;
    if (a->anomaly_action >= 0)
        d->anomaly_action = a->anomaly_action;
    if (!isnan(a->lr_scale))
        d->lr_scale = a->lr_scale;
}

static mc_status call_one(struct mc_hook_host *h, struct mc_hook *hook, struct mc_directive *d,
                          struct mc_err *err)
{
    struct mc_err why = {0};
    char doing[256];
    snprintf(doing, sizeof doing, "%.150s: %s", hook->name, mc_hook_name(h->kind));
    mc_directive_clear(&h->answer);
    enter_hook(h, hook);
    const mc_status st = mc_vm_call(h->vm, body_call, h, CALL_BUDGET_NS, doing, &why);
    h->current = NULL;
    if (st == MC_OK) {
        hook->strikes[h->kind] = 0;
        merge_answer(&h->answer, hook, d);
        return MC_OK;
    }
    hook->strikes[h->kind]++;
    mc_hooks_report(h, "hook_error", hook, "%s: %s", mc_hook_name(h->kind), why.msg);
    if (hook->strikes[h->kind] >= MC_HOOK_STRIKES) /* I1 */
        return mc_err_set(err, MC_E_GIVEUP,
                          "hook %s failed %d times in a row in %s; the last time: %s", hook->name,
                          MC_HOOK_STRIKES, mc_hook_name(h->kind), why.msg);
    return MC_OK;
}

static mc_status op_call(void *ctx, const struct mc_hook_event *ev, struct mc_directive *d,
                         struct mc_err *err)
{
    struct mc_hook_host *h = ctx;
    mc_status st = MC_OK;
    h->ev = ev;
    h->kind = ev->kind;
    for (int i = 0; i < h->n; i++)
        if (h->hook[i].fn_ref[ev->kind] != LUA_NOREF) {
            const mc_status one = call_one(h, &h->hook[i], d, err);
            if (st == MC_OK)
                st = one; /* the others are still asked: their answers may save a checkpoint */
        }
    return st;
}

static int op_wants(void *ctx, enum mc_hook_kind k)
{
    const struct mc_hook_host *h = ctx;
    for (int i = 0; i < h->n; i++)
        if (h->hook[i].fn_ref[k] != LUA_NOREF)
            return 1;
    return 0;
}

/* -- Life ------------------------------------------------------------------------------------ */

static void stuck(void *arg, const char *what, const char *message)
{
    struct mc_hook_host *h = arg;
    char line[960];
    const int n = snprintf(line, sizeof line, "mascon: hook %s: %s\n", what, message);
    const ssize_t wrote = write(STDERR_FILENO, line, (size_t)n);
    (void)wrote; /* a closed stderr must not cost the incident */
    if (h->cfg.report)
        h->cfg.report(h->cfg.report_arg, "hook_stuck", what, message); /* I2 */
}

static void print_line(void *arg, const char *text)
{
    struct mc_hook_host *h = arg;
    if (h->current && ++h->current->logged <= 20)
        mc_hooks_report(h, "hook_log", h->current, "%s", text);
}

static void op_destroy(void *ctx)
{
    struct mc_hook_host *h = ctx;
    if (!h)
        return;
    for (int i = 0; i < MC_MAX_HOOKS; i++) {
        for (int k = 0; k < h->hook[i].nappends; k++)
            mc_sys_close(h->hook[i].append[k].fd, h->hook[i].append[k].path, NULL);
        mc_free(h->hook[i].good_state);
    }
    mc_vm_destroy(h->vm);
    mc_free(h);
}

static mc_status host_create(const struct mc_hooks_cfg *cfg, struct mc_hook_host **out,
                             struct mc_err *err)
{
    struct mc_hook_host *h = mc_alloc(sizeof *h, "hooks host");
    if (!h)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the hooks host");
    h->cfg = *cfg;
    snprintf(h->base_dir, sizeof h->base_dir, "%s", cfg->base_dir);
    snprintf(h->home, sizeof h->home, "%s", cfg->home);
    snprintf(h->run_dir, sizeof h->run_dir, "%s", cfg->run_dir ? cfg->run_dir : "");
    const struct mc_vm_cfg vc = {.kind = MC_VM_HOOKS,
                                 .mem_cap = HOOKS_MEM,
                                 .home = h->home,
                                 .grace_ns = GRACE_NS,
                                 .stuck = stuck,
                                 .stuck_arg = h,
                                 .exit_code = cfg->run_dir ? 77 : 2,
                                 .print = print_line,
                                 .print_arg = h};
    mc_status st = mc_vm_create(&vc, &h->vm, err);
    if (st == MC_OK)
        st = mc_vm_call(h->vm, body_open, h, LOAD_BUDGET_NS, "hooks", err);
    if (st != MC_OK) {
        op_destroy(h);
        return st;
    }
    *out = h;
    return MC_OK;
}

mc_status mc_lua_hooks_open(const struct mc_hooks_cfg *cfg, struct mc_hook_ops *ops,
                            struct mc_err *err)
{
    struct mc_hook_host *h = NULL;
    MC_TRY(host_create(cfg, &h, err));
    for (int i = 0; i < cfg->recipe->nhooks; i++) {
        const mc_status st = load_one(h, i, err);
        if (st != MC_OK) {
            op_destroy(h);
            return st;
        }
        h->n++;
    }
    *ops = (struct mc_hook_ops){.ctx = h,
                                .call = op_call,
                                .wants = op_wants,
                                .save_state = mc_hooks_save_state,
                                .load_state = mc_hooks_load_state,
                                .destroy = op_destroy};
    return MC_OK;
}

void mc_hooks_check(const struct mc_recipe *r, const struct mc_recipe_box *box,
                    const char *base_dir, const char *home, struct mc_problems *problems)
{
    const struct mc_hooks_cfg cfg = {.recipe = r, .base_dir = base_dir, .home = home};
    struct mc_hook_host *h = NULL;
    struct mc_err err = {0};
    char file[256] = "";
    int line = 0;
    if (r->nhooks == 0)
        return;
    mc_recipe_where(box, "hooks", file, &line);
    if (host_create(&cfg, &h, &err) != MC_OK) {
        mc_problems_add(problems, "hooks", file, line, "", "%s", err.msg);
        return;
    }
    for (int i = 0; i < r->nhooks; i++) {
        char path[32];
        snprintf(path, sizeof path, "hooks[%d]", i + 1);
        mc_err_clear(&err);
        if (load_one(h, i, &err) != MC_OK)
            mc_problems_add(problems, path, file, line, "", "%s", err.msg);
        h->n++;
    }
    op_destroy(h);
}
