/* schedule.c - a Lua function's list of work becomes a schedule of plain numbers. Floor 7 (lua).
 *
 * parallel.schedule is a bundled name (home/lua/mascon/schedules/NAME.lua), a file (beside the
 * recipe, then in home) or a function of the recipe. A file returns the function. It is called with
 *   p = { ranks, chunks, stages = ranks x chunks, microbatches, costs = { F, I, W, hop } }
 * costs.F[s + 1] being the time of a forward of stage s, and so on, and returns a list s: s[i] the
 * records of pipeline rank i - 1, { op = "F" | "B" | "I" | "W", mb =, chunk = }, mb and chunk
 * counted from 0, chunk 0 where it is left out; s.place = "loop" (or nothing) | "v" |
 * place[rank + 1][chunk + 1] = stage.
 *
 * I1  Here only the form is checked; whether the schedule is sound is core/pipe's to say.
 * I2  Messages begin with file:line: of the error, or of the function where the result is wrong.
 * I3  A list with far more records than there is work is refused before it is copied: what the
 *     proof takes is bounded by the run, not by the function.
 * I3  Nothing that is returned is passed over: a member that nobody reads is refused by its name.
 *
 * Memory: the schedule is the caller's. Threads: the caller's. */
#include "host.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <lauxlib.h>
#include "sandbox.h"
#include "vm.h"
#include "../core/base/arena.h"
#include "../core/base/sysio.h"

#define SCHEDULE_BUDGET_NS 4000000000LL
#define SPARE_RECORDS      4096 /* of a rank, that a proof still names one by one */

struct job {
    int file, fn_ref; /* the file that returns the function (-1: none), or the function */
    int ranks, chunks, microbatches;
    const struct mc_sched_costs *costs;
    int result_ref;
    char where[300]; /* "my.lua:3" */
    int64_t *counts; /* [ranks] */
    struct mc_sched *s;
};

MC_LJMP static void set_int(lua_State *L, const char *key, int v)
{
    lua_pushinteger(L, v);
    lua_setfield(L, -2, key);
}

MC_LJMP static void set_times(lua_State *L, const char *key, const double *t, int n)
{
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushnumber(L, t ? t[i] : 1);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, key);
}

MC_LJMP static void push_p(lua_State *L, const struct job *j)
{
    const struct mc_sched_costs *c = j->costs;
    int stages = j->ranks * j->chunks;
    lua_newtable(L);
    set_int(L, "ranks", j->ranks);
    set_int(L, "chunks", j->chunks);
    set_int(L, "stages", stages);
    set_int(L, "microbatches", j->microbatches);
    lua_newtable(L);
    set_times(L, "F", c ? c->f : NULL, stages);
    set_times(L, "I", c ? c->i : NULL, stages);
    set_times(L, "W", c ? c->w : NULL, stages);
    lua_pushnumber(L, c ? c->hop : 0);
    lua_setfield(L, -2, "hop");
    lua_setfield(L, -2, "costs");
}

/* Where the function on top of the stack stands (I2). */
MC_LJMP static void note_where(lua_State *L, struct job *j)
{
    lua_Debug d;
    struct mc_vm *vm = mc_vm_of(L);
    lua_pushvalue(L, -1);
    lua_getinfo(L, ">S", &d);
    const int file = mc_vm_file_of_chunk(vm, d.source);
    snprintf(j->where, sizeof j->where, "%.250s:%d", file >= 0 ? vm->file[file].path : d.short_src,
             d.linedefined);
}

/* Calls the function, keeps its result, counts each rank's records. */
MC_LJMP static int body_call(lua_State *L)
{
    struct job *j = lua_touserdata(L, 1);
    if (j->file >= 0) {
        struct mc_vm *vm = mc_vm_of(L);
        mc_sandbox_push_env(L);
        mc_vm_push_chunk(L, j->file);
        lua_call(L, 0, 1);
        if (!lua_isfunction(L, -1))
            return luaL_error(L,
                              "%s: a schedule's file returns a function(p), this one returned %s",
                              vm->file[j->file].path, luaL_typename(L, -1));
    } else {
        lua_rawgeti(L, LUA_REGISTRYINDEX, j->fn_ref);
    }
    note_where(L, j);
    push_p(L, j);
    lua_call(L, 1, 1);
    if (!lua_istable(L, -1))
        return luaL_error(L, "%s: the schedule returned %s, not a list of lists", j->where,
                          luaL_typename(L, -1));
    if ((int)lua_objlen(L, -1) != j->ranks)
        return luaL_error(L, "%s: the schedule has %d lists; there are %d ranks", j->where,
                          (int)lua_objlen(L, -1), j->ranks);
    const int64_t work = 3 * (int64_t)j->chunks * j->microbatches;
    for (int r = 0; r < j->ranks; r++) {
        lua_rawgeti(L, -1, r + 1);
        if (!lua_istable(L, -1))
            return luaL_error(L, "%s: rank %d has %s, not a list of records", j->where, r,
                              luaL_typename(L, -1));
        j->counts[r] = (int64_t)lua_objlen(L, -1);
        if (j->counts[r] > SPARE_RECORDS + work) /* I3 */
            return luaL_error(L,
                              "%s: rank %d has %d records; F, I and W of %d microbatches through "
                              "%d chunks are %d",
                              j->where, r, (int)j->counts[r], j->microbatches, j->chunks,
                              (int)work);
        lua_pop(L, 1);
    }
    j->result_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

/* I3: a record is op, mb and chunk; the list of ranks has nothing besides but place. */
MC_LJMP static void known_members(lua_State *L, const struct job *j, int r, int slot)
{
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : NULL;
        if (!key)
            luaL_error(L, "%s: rank %d slot %d: a record is { op =, mb =, chunk = }, not a list",
                       j->where, r, slot);
        if (strcmp(key, "op") && strcmp(key, "mb") && strcmp(key, "chunk"))
            luaL_error(
                L, "%s: rank %d slot %d has a member \"%s\"; a record is { op =, mb =, chunk = }",
                j->where, r, slot, key);
    }
}

/* stack: result at 2 */
MC_LJMP static void known_lists(lua_State *L, const struct job *j)
{
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        if (lua_type(L, -2) == LUA_TSTRING && strcmp(lua_tostring(L, -2), "place"))
            luaL_error(
                L, "%s: the schedule has a member \"%s\"; besides a list a rank it has only place",
                j->where, lua_tostring(L, -2));
    }
}

/* A whole number under key of the record on top of the stack; what does not fit 16 bits becomes -1,
 * which the proof refuses by name. */
MC_LJMP static int32_t whole(lua_State *L, const struct job *j, int r, int slot, const char *key,
                             int dfl, int most)
{
    lua_getfield(L, -1, key);
    if (lua_isnil(L, -1) && dfl >= 0) {
        lua_pop(L, 1);
        return dfl;
    }
    const double v = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : NAN;
    if (!(v == floor(v)))
        luaL_error(L, "%s: rank %d slot %d: %s is %s, not a whole number", j->where, r, slot, key,
                   lua_type(L, -1) == LUA_TNUMBER ? "a fraction" : luaL_typename(L, -1));
    if (v < 0 || v > most)
        luaL_error(L, "%s: rank %d slot %d: %s is %f; it goes from 0 to %d", j->where, r, slot, key,
                   v, most);
    lua_pop(L, 1);
    return (int32_t)v;
}

MC_LJMP static int8_t op_of(lua_State *L, const struct job *j, int r, int slot)
{
    lua_getfield(L, -1, "op");
    size_t n = 0;
    const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : NULL;
    for (int op = 0; s && n == 1 && op < MC_SCHED_NOPS; op++)
        if (s[0] == mc_sched_op_name(op)[0]) {
            lua_pop(L, 1);
            return (int8_t)op;
        }
    if (s && strchr("URGC", s[0]) && s[0] && !s[1])
        luaL_error(L, "%s: rank %d slot %d: op \"%s\" is reserved and not yet understood", j->where,
                   r, slot, s);
    luaL_error(L, "%s: rank %d slot %d: op is %s%s%s; it is \"F\", \"B\", \"I\" or \"W\"", j->where,
               r, slot, s ? "\"" : "", s ? s : luaL_typename(L, -1), s ? "\"" : "");
    return -1;
}

/* stack: result at 2 */
MC_LJMP static void read_place(lua_State *L, struct job *j)
{
    struct mc_sched *s = j->s;
    lua_getfield(L, 2, "place");
    const char *word = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    if (lua_isnil(L, -1) || (word && !strcmp(word, "loop")))
        return;
    if (word && !strcmp(word, "v")) {
        for (int r = 0; r < s->ranks; r++)
            for (int c = 0; c < s->chunks; c++)
                s->place[r * s->chunks + c] = c * s->ranks + (c % 2 ? s->ranks - 1 - r : r);
        return;
    }
    if (!lua_istable(L, -1))
        luaL_error(L,
                   "%s: place is %s%s; it is \"loop\", \"v\" or place[rank + 1][chunk + 1] = stage",
                   j->where, word ? "the text " : "", word ? word : luaL_typename(L, -1));
    for (int r = 0; r < s->ranks; r++) {
        lua_rawgeti(L, -1, r + 1);
        if (!lua_istable(L, -1) || (int)lua_objlen(L, -1) != s->chunks)
            luaL_error(L, "%s: place[%d] must be a list of %d stages, one a chunk", j->where, r + 1,
                       s->chunks);
        for (int c = 0; c < s->chunks; c++) {
            lua_rawgeti(L, -1, c + 1);
            const double v = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : NAN;
            if (!(v == floor(v) && fabs(v) < 1e9))
                luaL_error(L, "%s: place[%d][%d] is no stage number", j->where, r + 1, c + 1);
            s->place[r * s->chunks + c] = (int)v;
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
}

MC_LJMP static int body_fill(lua_State *L)
{
    struct job *j = lua_touserdata(L, 1);
    struct mc_sched *s = j->s;
    lua_rawgeti(L, LUA_REGISTRYINDEX, j->result_ref);
    luaL_unref(L, LUA_REGISTRYINDEX, j->result_ref);
    known_lists(L, j);
    read_place(L, j);
    for (int r = 0; r < s->ranks; r++) {
        lua_settop(L, 2);
        lua_rawgeti(L, 2, r + 1);
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            const int slot = (int)(k - s->first[r]);
            lua_rawgeti(L, 3, slot + 1);
            if (!lua_istable(L, -1))
                luaL_error(L, "%s: rank %d slot %d is %s, not a record { op =, mb =, chunk = }",
                           j->where, r, slot, luaL_typename(L, -1));
            known_members(L, j, r, slot);
            s->rec[k].op = op_of(L, j, r, slot);
            s->rec[k].mb = whole(L, j, r, slot, "mb", -1, j->microbatches - 1);
            s->rec[k].chunk = (int16_t)whole(L, j, r, slot, "chunk", 0, j->chunks - 1);
            lua_pop(L, 1);
        }
    }
    return 0;
}

int mc_lua_schedule_is_file(const char *name)
{
    const size_t n = strlen(name);
    return n > 4 && !strcmp(name + n - 4, ".lua");
}

/* The file of a schedule that is no function of the recipe. */
static int find_file(const struct mc_loaded *l, const char *name, struct mc_err *err)
{
    char path[2300];
    const int bundled = !mc_lua_schedule_is_file(name);
    if (bundled)
        snprintf(path, sizeof path, "%s/lua/mascon/schedules/%.200s.lua", l->vm->home, name);
    else if (name[0] == '/')
        snprintf(path, sizeof path, "%s", name);
    else
        snprintf(path, sizeof path, "%s/%.1000s", l->base_dir, name);
    if (!bundled && name[0] != '/' && !mc_sys_exists(path))
        snprintf(path, sizeof path, "%s/%.1000s", l->vm->home, name);
    if (!bundled && !mc_sys_exists(path)) {
        mc_err_set(err, MC_E_RECIPE,
                   "schedule %.300s: no such file beside the recipe (%.300s) nor in %.300s", name,
                   l->base_dir, l->vm->home);
        return -1;
    }
    return mc_vm_read_file(l->vm, path, bundled, err);
}

mc_status mc_lua_schedule(struct mc_loaded *l, const struct mc_sched_ask *ask,
                          struct mc_sched **out, struct mc_err *err)
{
    const char *name = mc_recipe_of(l->box)->parallel.schedule;
    struct job j = {.file = -1,
                    .fn_ref = l->schedule_ref,
                    .ranks = ask->ranks,
                    .chunks = ask->chunks,
                    .microbatches = ask->microbatches,
                    .costs = ask->costs,
                    .result_ref = LUA_NOREF};
    struct mc_err why = {0};
    mc_status st;
    if (strcmp(name, "function") && (j.file = find_file(l, name, err)) < 0)
        return err && err->code ? err->code : MC_E_RECIPE;
    j.counts = mc_alloc((size_t)j.ranks * sizeof *j.counts, "records of ranks");
    if (!j.counts)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a schedule of %d ranks", j.ranks);
    st = mc_vm_call(l->vm, body_call, &j, SCHEDULE_BUDGET_NS, "the schedule function", &why);
    if (st == MC_OK) {
        MC_TRY_GOTO(st,
                    mc_sched_create(strcmp(name, "function") ? name : j.where, j.ranks, j.chunks,
                                    j.microbatches, j.counts, &j.s, err),
                    out);
        st = mc_vm_call(l->vm, body_fill, &j, SCHEDULE_BUDGET_NS, "the schedule's records", &why);
    }
    if (st != MC_OK) {
        const char *file = "";
        int line = 0;
        const char *text = mc_vm_split_message(l->vm, why.msg, &file, &line);
        st = line > 0 ? mc_err_set(err, MC_E_RECIPE, "%s:%d: %s", file, line, text)
                      : mc_err_set(err, MC_E_RECIPE, "%s", text);
        goto out;
    }
    if (strcmp(name, "function") && j.where[0] && strchr(name, '.'))
        snprintf(j.s->name, sizeof j.s->name, "%.95s", j.where);
    *out = j.s;
    j.s = NULL;
out:
    mc_sched_destroy(j.s);
    mc_free(j.counts);
    return st;
}
