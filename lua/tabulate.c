/* tabulate.c - functions of progress (lr, batch.global) as plain numbers, before the start.
 * Floor 7 (lua).
 *
 * f(s) -> number, s = { step, samples, tokens, global }: step is the number of the step asked for,
 * from 1. For lr, global is its batch, and samples and tokens are totals read with it, as the
 * built-in schedules count (core/optim/lr.c); for the batch, they are totals read before it, and
 * there is no global.
 *
 * I1  The batch comes first: how many steps a target in tokens or samples takes follows from it.
 * I2  Equal neighbours are one piece of the ramp, in samples read; at most MC_MAX_RAMP pieces and
 *     2^20 steps, else a problem that says what to write instead.
 *
 * Memory: a growing table, copied into the box. Threads: the caller's. */
#include "host.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <lauxlib.h>
#include "vm.h"
#include "../core/base/arena.h"
#include "../core/optim/optim.h"

#define TABULATE_BUDGET_NS 10000000000LL
enum { MAX_STEPS = 1 << 20 };

struct tab {
    struct mc_recipe *r;
    int lr_ref, batch_ref;
    int nramp;
    struct mc_ramp_point ramp[MC_MAX_RAMP];
    double *lr; /* [MAX_STEPS] when lr_ref is there */
    int64_t steps;
    const char *path; /* key of the function being called, for a message */
};

MC_LJMP static void set_num(lua_State *L, int t, const char *key, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, t, key);
}

/* Calls function `fn` with table `s` (stack slots); the result must be a finite number. */
MC_LJMP static double ask(lua_State *L, int fn, int s, int64_t step)
{
    lua_pushvalue(L, fn);
    lua_pushvalue(L, s);
    lua_call(L, 1, 1);
    if (lua_type(L, -1) != LUA_TNUMBER || !isfinite(lua_tonumber(L, -1)))
        luaL_error(L, "the function returned %s at step %d, not a finite number",
                   lua_type(L, -1) == LUA_TNUMBER ? "a number that is not finite"
                                                  : luaL_typename(L, -1),
                   (int)step);
    const double v = lua_tonumber(L, -1);
    lua_pop(L, 1);
    return v;
}

static int target_reached(const struct mc_recipe *r, int64_t done, int64_t samples, int64_t tokens)
{
    switch (r->steps.unit) {
    case MC_UNIT_SAMPLES:
        return samples >= r->steps.n;
    case MC_UNIT_TOKENS:
        return tokens >= r->steps.n;
    default:
        return done >= r->steps.n;
    }
}

MC_LJMP static int64_t ask_batch(lua_State *L, struct tab *t, int64_t step, int64_t samples)
{
    t->path = "batch.global";
    lua_pushnil(L);
    lua_setfield(L, 4, "global");
    const double g = ask(L, 3, 4, step);
    if (g < 1 || g > 2147483648.0 || g != floor(g))
        luaL_error(L, "the function returned %f at step %d, not a whole number from 1 to 2^31", g,
                   (int)step);
    if (t->nramp == 0 || t->ramp[t->nramp - 1].global != (int64_t)g) { /* I2 */
        if (t->nramp == MC_MAX_RAMP)
            luaL_error(L,
                       "the function has more than %d pieces; use a batch.ramp, or a function that "
                       "changes less often",
                       MC_MAX_RAMP);
        t->ramp[t->nramp++] = (struct mc_ramp_point){{samples, MC_UNIT_SAMPLES}, (int64_t)g};
    }
    return (int64_t)g;
}

/* stack: 1 tab, 2 lr function, 3 batch function, 4 s */
MC_LJMP static int body_tabulate(lua_State *L)
{
    struct tab *t = lua_touserdata(L, 1);
    const struct mc_recipe *r = t->r;
    int64_t samples = 0, tokens = 0;
    lua_rawgeti(L, LUA_REGISTRYINDEX, t->lr_ref);
    lua_rawgeti(L, LUA_REGISTRYINDEX, t->batch_ref);
    lua_newtable(L);
    for (int64_t step = 1; !target_reached(r, step - 1, samples, tokens); step++) {
        if (step > MAX_STEPS) {
            t->path = t->lr_ref != LUA_NOREF ? "lr" : "batch.global";
            luaL_error(L,
                       "a function is asked for at most 2^20 steps and this run is longer; use a "
                       "schedule of m.lr (or a batch.ramp)");
        }
        set_num(L, 4, "step", (double)step);
        set_num(L, 4, "samples", (double)samples);
        set_num(L, 4, "tokens", (double)tokens);
        const struct mc_phase_now p =
            mc_phase_at(r, &(struct mc_counters){step - 1, samples, tokens});
        const int64_t g = t->batch_ref != LUA_NOREF ? ask_batch(L, t, step, samples) : p.global;
        if (g < 1)
            luaL_error(L, "no global batch");
        if (t->lr_ref != LUA_NOREF) {
            set_num(L, 4, "global", (double)g);
            set_num(L, 4, "samples", (double)(samples + g));
            set_num(L, 4, "tokens", (double)(tokens + g * p.seq));
            t->path = "lr";
            const double v = ask(L, 2, 4, step);
            if (v < 0 || v > 1e3)
                luaL_error(L, "the function returned %f at step %d, not a rate from 0 to 1000", v,
                           (int)step);
            t->lr[step - 1] = v;
        }
        samples += g;
        tokens += g * p.seq;
        t->steps = step;
    }
    return 0;
}

mc_status mc_lua_tabulate(struct mc_loaded *l, struct mc_problems *problems, struct mc_err *err)
{
    struct tab t = {
        .r = mc_recipe_of(l->box), .lr_ref = l->lr_ref, .batch_ref = l->batch_ref, .path = ""};
    struct mc_err why = {0};
    mc_status st = MC_OK;
    if (t.r->lr.kind != MC_LR_TABLE || t.r->lr.ntable > 0)
        t.lr_ref = LUA_NOREF;
    if (t.lr_ref == LUA_NOREF && t.batch_ref == LUA_NOREF)
        return MC_OK;
    if (t.lr_ref != LUA_NOREF && !(t.lr = mc_alloc(MAX_STEPS * sizeof *t.lr, "lr table")))
        return mc_err_set(err, MC_E_NOMEM, "no memory for the table of learning rates");
    if (mc_vm_call(l->vm, body_tabulate, &t, TABULATE_BUDGET_NS, "lr and batch functions", &why) !=
        MC_OK) {
        char file[256] = "";
        int line = 0;
        const char *path = t.path[0] ? t.path : t.lr_ref != LUA_NOREF ? "lr" : "batch.global";
        mc_recipe_where(l->box, !strcmp(path, "lr") ? "lr.kind" : path, file, &line);
        const char *at = file;
        const char *text = mc_vm_split_message(l->vm, why.msg, &at, &line);
        mc_problems_add(problems, path, at, line, "", "%s", text);
        st = mc_err_set(err, MC_E_RECIPE, "%s: %s", path, text);
    } else {
        if (t.batch_ref != LUA_NOREF && t.nramp > 0) {
            memcpy(t.r->batch.ramp, t.ramp, sizeof t.ramp);
            t.r->batch.nramp = t.nramp;
            t.r->batch.global = t.ramp[t.nramp - 1].global;
            mc_recipe_set_origin(l->box, "batch.ramp", mc_recipe_origin(l->box, "batch.global"));
        }
        if (t.lr_ref != LUA_NOREF)
            st = mc_recipe_set_lr_table(l->box, t.steps, t.lr, err);
    }
    mc_free(t.lr);
    return st;
}
