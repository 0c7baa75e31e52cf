/* api.c - the few C functions that the Lua library (home/lua/mascon) calls: tags, places, errors.
 * Floor 7 (lua). User code never sees this table.
 *
 *   host.tag(t, "adamw")      marks t as made by a constructor, with the place of the user's call
 *   host.fail(msg)            raises msg at the innermost place outside the library
 *   host.line()               line of the innermost function outside the core library (presets
 * count) host.nearest(word, list)  nearest word of a list, or nil
 *
 * I1  Tags live in a table with weak keys beside the tagged ones, so a constructor's result is
 *     plain data to whoever made it. */
#include "sandbox.h"
#include <stdlib.h>
#include <string.h>
#include <lauxlib.h>
#include "../core/recipe/recipe.h"

/* -- Places ---------------------------------------------------------------------------------- */

int mc_api_where(lua_State *L, int models, int *line)
{
    struct mc_vm *vm = mc_vm_of(L);
    lua_Debug ar;
    for (int level = 0; lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Sl", &ar);
        const int f = ar.currentline > 0 ? mc_vm_file_of_chunk(vm, ar.source) : -1;
        if (f < 0)
            continue;
        if (vm->file[f].library && !(models && strstr(vm->file[f].chunk, "/models/")))
            continue;
        *line = ar.currentline;
        return f;
    }
    const int last = vm->follow ? vm->last_file : -1;
    const int fits = last >= 0 && (models || !vm->file[last].library);
    *line = fits ? vm->last_line : 0;
    return fits ? last : -1;
}

int mc_api_fail(lua_State *L, const char *msg)
{
    int line;
    int f = mc_api_where(L, 0, &line);
    if (f < 0)
        f = mc_api_where(L, 1, &line);
    if (f >= 0)
        lua_pushfstring(L, "%s:%d: %s", mc_vm_of(L)->file[f].chunk + 1, line, msg);
    else
        lua_pushstring(L, msg);
    return lua_error(L);
}

MC_LJMP static int l_host_fail(lua_State *L)
{
    return mc_api_fail(L, luaL_checkstring(L, 1));
}

MC_LJMP static int l_host_line(lua_State *L)
{
    int line;
    mc_api_where(L, 1, &line);
    lua_pushinteger(L, line);
    return 1;
}

/* -- Tags ------------------------------------------------------------------------------------ */

MC_LJMP static int l_host_tag(lua_State *L)
{
    int line;
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checkstring(L, 2);
    const int f = mc_api_where(L, 0, &line);
    lua_getfield(L, LUA_REGISTRYINDEX, "mc.tags");
    lua_pushvalue(L, 1);
    lua_createtable(L, 3, 0);
    lua_pushvalue(L, 2);
    lua_rawseti(L, -2, 1);
    lua_pushinteger(L, f);
    lua_rawseti(L, -2, 2);
    lua_pushinteger(L, line);
    lua_rawseti(L, -2, 3);
    lua_rawset(L, -3);
    lua_pushvalue(L, 1);
    return 1;
}

const char *mc_api_tag(lua_State *L, int idx, int *file, int *line)
{
    const char *tag = NULL;
    *file = -1;
    *line = 0;
    lua_pushvalue(L, idx);
    lua_getfield(L, LUA_REGISTRYINDEX, "mc.tags");
    lua_insert(L, -2);
    lua_rawget(L, -2);
    if (lua_istable(L, -1)) {
        lua_rawgeti(L, -1, 1);
        tag = lua_tostring(L, -1); /* stays alive: the tags table holds it */
        lua_rawgeti(L, -2, 2);
        *file = (int)lua_tointeger(L, -1);
        lua_rawgeti(L, -3, 3);
        *line = (int)lua_tointeger(L, -1);
        lua_pop(L, 3);
    }
    lua_pop(L, 2);
    return tag;
}

/* -- Words ----------------------------------------------------------------------------------- */

MC_LJMP static int l_host_nearest(lua_State *L)
{
    enum { MAX = 64 };
    const char *known[MAX];
    const char *word = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    int n = (int)lua_objlen(L, 2);
    n = n < MAX ? n : MAX;
    lua_settop(L, 2);
    luaL_checkstack(L, n, "words");
    int k = 0;
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, 2, i);
        if (lua_type(L, -1) == LUA_TSTRING)
            known[k++] = lua_tostring(L, -1); /* held by the stack */
    }
    const char *near = mc_nearest(word, known, k);
    if (near)
        lua_pushstring(L, near);
    else
        lua_pushnil(L);
    return 1;
}

MC_LJMP void mc_api_push_host(lua_State *L)
{
    static const luaL_Reg fns[] = {{"fail", l_host_fail},
                                   {"line", l_host_line},
                                   {"tag", l_host_tag},
                                   {"nearest", l_host_nearest},
                                   {NULL, NULL}};
    lua_newtable(L); /* mc.tags, weak keys (I1) */
    lua_createtable(L, 0, 1);
    lua_pushliteral(L, "k");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_setfield(L, LUA_REGISTRYINDEX, "mc.tags");
    lua_newtable(L);
    for (const luaL_Reg *r = fns; r->name; r++) {
        lua_pushcfunction(L, r->func);
        lua_setfield(L, -2, r->name);
    }
}
