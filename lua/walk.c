/* walk.c - plain data out of Lua tables, each value with the file and line it stands on.
 * Floor 7 (lua).
 *
 * I1  Data only: numbers, booleans, texts, tables without metatables, at most MC_WALK_DEPTH deep
 *     (so a table that holds itself ends there). Functions only where a recipe may have one.
 * I2  Keys are visited in the order of value trees (strcmp), so messages come in the same order
 *     everywhere.
 * I3  Everything made here lies in the caller's pool: a longjmp on the way loses nothing.
 *
 * A table of entries 1..n alone is a list; with named keys too, a map whose positional keys are
 * "1", "2" ...; an empty table is an empty map. Lines: the lexer's node of the constructor
 * (lines.c); a tagged table starts afresh at the line where its constructor was called, in whatever
 * file. Memory: the pool. Threads: the one in Lua. */
#include "walk.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <lauxlib.h>
#include "sandbox.h"

struct place { /* where the value being walked stands */
    int file, node, line;
    int depth;
    char path[128];
};

MC_LJMP static struct mc_value *walk_value(struct mc_walk *w, lua_State *L, int idx,
                                           const struct place *at);

static const char *file_path(const struct mc_walk *w, int file)
{
    return file >= 0 ? w->vm->file[file].path : w->origin;
}

static void problem(struct mc_walk *w, const struct place *at, const char *hint, const char *msg,
                    const char *word)
{
    const char *file = file_path(w, at->file);
    mc_problems_add(w->problems, at->path, file ? file : "", at->line, hint, msg, word);
}

static struct mc_value *new_value(struct mc_walk *w, enum mc_value_kind kind,
                                  const struct place *at)
{
    struct mc_value *v = mc_value_new(w->pool, kind);
    if (!v) {
        w->failed = 1;
        return NULL;
    }
    const char *file = file_path(w, at->file);
    v->file = file ? mc_value_strn(w->pool, file, strlen(file)) : NULL;
    v->line = at->line;
    return v;
}

/* Which tag a function gets at this path; NULL: none may stand here. */
static const char *function_tag(const char *path)
{
    static const char *const rows[][2] = {
        {"lr", "lr.table"},          {"batch.global", "batch.function"},
        {"model.block", "function"}, {"model.stem", "function"},
        {"model.head", "function"},  {"parallel.schedule", "schedule.function"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(path, rows[i][0]))
            return rows[i][1];
    return NULL;
}

MC_LJMP static struct mc_value *walk_function(struct mc_walk *w, lua_State *L, int idx,
                                              const struct place *at)
{
    const char *tag = function_tag(at->path);
    if (!tag || w->nfns == MC_WALK_MAX_FNS) {
        problem(w, at, "",
                "a function cannot stand here; functions are allowed for lr, batch.global, "
                "parallel.schedule and the model's stem, block and head%s",
                "");
        return NULL;
    }
    struct mc_value *v = new_value(w, MC_V_MAP, at);
    if (!v)
        return NULL;
    v->tag = tag;
    lua_pushvalue(L, idx);
    w->fn[w->nfns].ref = luaL_ref(L, LUA_REGISTRYINDEX);
    w->fn[w->nfns++].v = v;
    return v;
}

/* The place of an entry of the table at `at`. name NULL: the positional entry `position`. */
static struct place entry_place(struct mc_walk *w, const struct place *at, const char *name,
                                int position)
{
    struct place p = *at;
    const size_t n = strlen(p.path);
    const char *dot = n ? "." : "";
    if (name)
        snprintf(p.path + n, sizeof p.path - n, "%s%s", dot, name);
    else
        snprintf(p.path + n, sizeof p.path - n, "%s%d", dot, position);
    p.depth++;
    p.node = -1;
    if (at->node >= 0) {
        const struct mc_lines *l = mc_vm_lines(w->vm, at->file);
        const int i =
            name ? mc_lines_key(l, at->node, name) : mc_lines_position(l, at->node, position);
        if (i >= 0) {
            p.line = l->node[i].line;
            p.node = l->node[i].call_line ? i : -1;
        }
    }
    return p;
}

/* A tagged table stands where its constructor was called. */
static void retag_place(struct mc_walk *w, struct place *at, const char *tag, int file, int line)
{
    if (file < 0)
        return;
    const char *last = strrchr(tag, '.');
    const struct mc_lines *l = mc_vm_lines(w->vm, file);
    const int node = mc_lines_constructor(l, line, last ? last + 1 : tag);
    if (at->file == file && at->node >= 0 && l->node[at->node].call_line == line)
        return; /* the entry itself is that constructor */
    at->file = file;
    at->node = node;
    if (at->line == 0 || node >= 0)
        at->line = line;
}

static int key_order(const void *a, const void *b)
{
    const struct mc_value *const *x = a, *const *y = b;
    return strcmp((*x)->str, (*y)->str);
}

/* Collects the named keys as a sorted list of texts (in the pool, I3) and counts the others. */
MC_LJMP static struct mc_value *named_keys(struct mc_walk *w, lua_State *L, int idx,
                                           const struct place *at, int *positions)
{
    struct mc_value *keys = mc_value_new(w->pool, MC_V_LIST);
    const int n = (int)lua_objlen(L, idx);
    int numbers = 0;
    for (lua_pushnil(L); keys && lua_next(L, idx);) {
        lua_pop(L, 1);
        size_t len = 0;
        const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &len) : NULL;
        if (s && strlen(s) == len && len > 0 && len < 96) {
            struct mc_value *k = mc_value_new(w->pool, MC_V_STR);
            if (k)
                k->str = mc_value_strn(w->pool, s, len);
            if (!k || !k->str || mc_value_push(w->pool, keys, k, NULL) != MC_OK)
                keys = NULL;
        } else if (lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) >= 1 &&
                   lua_tonumber(L, -1) <= n && floor(lua_tonumber(L, -1)) == lua_tonumber(L, -1)) {
            numbers++;
        } else if (s) {
            problem(w, at, "", "a key must be a name of 1 to 95 bytes%s", "");
        } else {
            problem(w, at, "",
                    "a %s cannot be a key here: keys are names, or 1, 2, ... without gaps",
                    luaL_typename(L, -1));
        }
    }
    if (!keys) {
        w->failed = 1;
        return NULL;
    }
    if (numbers != n)
        problem(w, at, "", "a list has a gap (a nil among its entries)%s", "");
    if (keys->n)
        qsort(keys->item, (size_t)keys->n, sizeof *keys->item, key_order); /* I2 */
    *positions = n;
    return keys;
}

static void put(struct mc_walk *w, struct mc_value *v, const char *key, struct mc_value *item)
{
    const mc_status st = v->kind == MC_V_LIST ? mc_value_push(w->pool, v, item, NULL)
                                              : mc_value_put(w->pool, v, key, item, NULL);
    if (st != MC_OK)
        w->failed = 1;
}

MC_LJMP static struct mc_value *walk_map(struct mc_walk *w, lua_State *L, int idx,
                                         const struct place *outer)
{
    struct place at = *outer;
    int file, line, positions = 0;
    if (at.depth > MC_WALK_DEPTH) {
        problem(w, &at, "", "tables are nested too deeply (or a table holds itself)%s", "");
        return NULL;
    }
    if (lua_getmetatable(L, idx)) {
        lua_pop(L, 1);
        problem(w, &at, "", "a table with a metatable is no plain data%s", "");
        return NULL;
    }
    luaL_checkstack(L, 8, "walk");
    const char *tag = mc_api_tag(L, idx, &file, &line);
    if (tag)
        retag_place(w, &at, tag, file, line);
    const struct mc_value *keys = named_keys(w, L, idx, &at, &positions);
    struct mc_value *v =
        keys ? new_value(w, keys->n || tag || !positions ? MC_V_MAP : MC_V_LIST, outer) : NULL;
    if (!v)
        return NULL;
    if (tag)
        v->tag = mc_value_strn(w->pool, tag, strlen(tag));
    for (int i = 1; i <= positions; i++) {
        char key[16];
        const struct place p = entry_place(w, &at, NULL, i);
        snprintf(key, sizeof key, "%d", i);
        lua_rawgeti(L, idx, i);
        struct mc_value *item = walk_value(w, L, lua_gettop(L), &p);
        lua_pop(L, 1);
        if (item)
            put(w, v, key, item);
    }
    for (int i = 0; i < keys->n; i++) {
        const char *key = keys->item[i]->str;
        const struct place p = entry_place(w, &at, key, 0);
        lua_pushstring(L, key);
        lua_rawget(L, idx);
        struct mc_value *item = walk_value(w, L, lua_gettop(L), &p);
        lua_pop(L, 1);
        if (item)
            put(w, v, key, item);
    }
    return v;
}

MC_LJMP static struct mc_value *walk_value(struct mc_walk *w, lua_State *L, int idx,
                                           const struct place *at)
{
    struct mc_value *v;
    size_t len;
    switch (lua_type(L, idx)) {
    case LUA_TBOOLEAN:
        if ((v = new_value(w, MC_V_BOOL, at)))
            v->b = lua_toboolean(L, idx);
        return v;
    case LUA_TNUMBER:
        if (!isfinite(lua_tonumber(L, idx))) {
            problem(w, at, "", "the number is not finite%s", "");
            return NULL;
        }
        if ((v = new_value(w, MC_V_NUM, at)))
            v->num = lua_tonumber(L, idx);
        return v;
    case LUA_TSTRING: {
        const char *s = lua_tolstring(L, idx, &len);
        if (strlen(s) != len) {
            problem(w, at, "", "the text holds a zero byte%s", "");
            return NULL;
        }
        if ((v = new_value(w, MC_V_STR, at)) && !(v->str = mc_value_strn(w->pool, s, len)))
            w->failed = 1;
        return v;
    }
    case LUA_TTABLE:
        return walk_map(w, L, idx, at);
    case LUA_TFUNCTION:
        return walk_function(w, L, idx, at);
    default:
        problem(w, at, "", "a %s is no plain data", luaL_typename(L, idx));
        return NULL;
    }
}

struct mc_value *mc_walk_table(struct mc_walk *w, lua_State *L, int idx, int file, int node)
{
    struct place at = {.file = file, .node = node};
    if (node >= 0) {
        const struct mc_lines *l = mc_vm_lines(w->vm, file);
        at.line = l ? l->node[node].line : 0;
    }
    return walk_value(w, L, idx, &at);
}

int mc_walk_function(const struct mc_walk *w, const struct mc_value *v)
{
    for (int i = 0; v && i < w->nfns; i++)
        if (w->fn[i].v == v)
            return w->fn[i].ref;
    return LUA_NOREF;
}

MC_LJMP void mc_walk_push(lua_State *L, const struct mc_value *v)
{
    luaL_checkstack(L, 6, "data");
    switch (v->kind) {
    case MC_V_NIL:
        lua_pushnil(L);
        break;
    case MC_V_BOOL:
        lua_pushboolean(L, v->b);
        break;
    case MC_V_NUM:
        lua_pushnumber(L, v->num);
        break;
    case MC_V_STR:
        lua_pushstring(L, v->str);
        break;
    case MC_V_LIST:
    case MC_V_MAP:
        lua_createtable(L, v->kind == MC_V_LIST ? v->n : 0, v->kind == MC_V_MAP ? v->n : 0);
        for (int i = 0; i < v->n; i++) {
            mc_walk_push(L, v->item[i]);
            if (v->kind == MC_V_LIST)
                lua_rawseti(L, -2, i + 1);
            else
                lua_setfield(L, -2, v->key[i]);
        }
        break;
    }
}
