/* sandbox.c - the allow-list: what a recipe, a hook, or a file of the Lua library may see.
 * Floor 7 (lua).
 *
 * I1  An allow-list, not a deny-list: a name that is not written in `names` below is not there. The
 *     real globals table is unreachable; every file of the user's runs in an environment of its own
 *     kind, with its own copies of string, table, math and bit.
 * I2  Loading is text only, and only through require(): "mascon", "mascon.*" from home/lua, else a
 *     plain name beside the recipe or hook. The name is checked before a path is made of it.
 * I3  pairs() visits numbers ascending, then strings by bytes, then false, true: the same order in
 *     every process. Keys that have no such order are an error. There is no next().
 * I4  Metatables that a chunk must not reach (strings', environments') answer false.
 *
 * Memory: Lua's, under the VM's cap. Threads: the one in Lua. */
#include "sandbox.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <lauxlib.h>
#include <lualib.h>
#include "../core/base/log.h"
#include "../core/base/sysio.h"
#include "../core/recipe/recipe.h"

/* -- pairs ----------------------------------------------------------------------------------- */

static int key_class(lua_State *L, int idx)
{
    switch (lua_type(L, idx)) {
    case LUA_TNUMBER:
        return 0;
    case LUA_TSTRING:
        return 1;
    case LUA_TBOOLEAN:
        return 2;
    default:
        return 3;
    }
}

/* sort's comparator: order of I3. */
static int l_key_less(lua_State *L)
{
    const int a = key_class(L, 1), b = key_class(L, 2);
    int less;
    if (a != b)
        less = a < b;
    else if (a == 2)
        less = lua_toboolean(L, 1) < lua_toboolean(L, 2);
    else if (a == 0)
        less = lua_tonumber(L, 1) < lua_tonumber(L, 2);
    else {
        size_t m, n;
        const char *x = lua_tolstring(L, 1, &m), *y = lua_tolstring(L, 2, &n);
        const int c = memcmp(x, y, m < n ? m : n);
        less = c ? c < 0 : m < n;
    }
    lua_pushboolean(L, less);
    return 1;
}

/* upvalues: sorted keys, their number, next index. Keys removed on the way are skipped. */
MC_LJMP static int l_pairs_next(lua_State *L)
{
    int i = (int)lua_tointeger(L, lua_upvalueindex(3));
    const int n = (int)lua_tointeger(L, lua_upvalueindex(2));
    while (i <= n) {
        lua_rawgeti(L, lua_upvalueindex(1), i++);
        lua_pushvalue(L, -1);
        lua_rawget(L, 1);
        if (!lua_isnil(L, -1)) {
            lua_pushinteger(L, i);
            lua_replace(L, lua_upvalueindex(3));
            return 2;
        }
        lua_pop(L, 2);
    }
    lua_pushinteger(L, i);
    lua_replace(L, lua_upvalueindex(3));
    return 0;
}

MC_LJMP int mc_sandbox_push_keys(lua_State *L, int idx)
{
    int n = 0;
    luaL_checkstack(L, 8, "keys");
    lua_newtable(L);
    const int keys = lua_gettop(L);
    for (lua_pushnil(L); lua_next(L, idx);) {
        lua_pop(L, 1);
        if (key_class(L, -1) == 3)
            return luaL_error(L, "a %s as a key has no order that every process shares",
                              luaL_typename(L, -1));
        lua_pushvalue(L, -1);
        lua_rawseti(L, keys, ++n);
    }
    lua_getfield(L, LUA_REGISTRYINDEX, "mc.sort");
    lua_pushvalue(L, keys);
    lua_pushcfunction(L, l_key_less);
    lua_call(L, 2, 0);
    return n;
}

MC_LJMP static int l_pairs(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_pushinteger(L, mc_sandbox_push_keys(L, 1));
    lua_pushinteger(L, 1);
    lua_pushcclosure(L, l_pairs_next, 3);
    lua_pushvalue(L, 1);
    return 2;
}

/* -- pcall ----------------------------------------------------------------------------------- */

/* pcall with a bound on nesting: deep in a nearly full stack LuaJIT cannot call the count hook, so
 * a recursion of pcalls would outlive its budget. */
MC_LJMP static int l_pcall(lua_State *L)
{
    enum { MAX_NESTED = 100 };
    struct mc_vm *vm = mc_vm_of(L);
    luaL_checkany(L, 1);
    if (vm->pcalls >= MAX_NESTED)
        return luaL_error(L, "pcall: nested more than %d deep", MAX_NESTED);
    vm->pcalls++;
    const int rc = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
    vm->pcalls--;
    lua_pushboolean(L, rc == 0);
    lua_insert(L, 1);
    return lua_gettop(L);
}

/* -- print ----------------------------------------------------------------------------------- */

MC_LJMP static int l_print(lua_State *L)
{
    struct mc_vm *vm = mc_vm_of(L);
    char line[1000] = "";
    size_t len = 0;
    for (int i = 1; i <= lua_gettop(L); i++) {
        const char *s;
        if (lua_isstring(L, i))
            s = lua_tostring(L, i);
        else if (lua_isboolean(L, i))
            s = lua_toboolean(L, i) ? "true" : "false";
        else
            s = luaL_typename(L, i);
        len += (size_t)snprintf(line + len, sizeof line - len, "%s%s", i > 1 ? "\t" : "", s);
        if (len >= sizeof line)
            break;
    }
    if (vm->cfg.print)
        vm->cfg.print(vm->cfg.print_arg, line);
    else
        mc_log(MC_LOG_INFO, "%s", line);
    return 0;
}

/* -- Unknown names --------------------------------------------------------------------------- */

/* __index of an environment. Names that Lua has elsewhere get the reason. */
MC_LJMP static int l_unknown(lua_State *L)
{
    static const char *const barred[] = {
        "io",        "os",         "debug",  "package", "ffi",     "jit",      "load",
        "loadfile",  "loadstring", "dofile", "getfenv", "setfenv", "newproxy", "collectgarbage",
        "coroutine", "next",       "xpcall", "module",  "gcinfo",  "_G"};
    static const char *const known[] = {
        "assert",       "bit",    "error",    "getmetatable", "ipairs",   "math",    "pairs",
        "pcall",        "print",  "rawequal", "rawget",       "rawset",   "require", "select",
        "setmetatable", "string", "table",    "tonumber",     "tostring", "type",    "unpack"};
    if (lua_type(L, 2) != LUA_TSTRING)
        return luaL_error(L, "a %s is no name", luaL_typename(L, 2));
    const char *name = lua_tostring(L, 2);
    for (size_t i = 0; i < sizeof barred / sizeof *barred; i++)
        if (!strcmp(name, barred[i]))
            return luaL_error(L,
                              "'%s' is not available: recipes and hooks are sandboxed (no files, "
                              "processes, debugger, code loading)",
                              name);
    const char *near = mc_nearest(name, known, (int)(sizeof known / sizeof *known));
    return near ? luaL_error(L, "unknown name '%s'; did you mean '%s'?", name, near)
                : luaL_error(L, "unknown name '%s'", name);
}

MC_LJMP static int l_unknown_member(lua_State *L)
{
    return luaL_error(L, "'%s.%s' is not available", lua_tostring(L, lua_upvalueindex(1)),
                      lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?");
}

/* -- require --------------------------------------------------------------------------------- */

static int name_ok(const char *s)
{
    int in_word = 0;
    for (; *s; s++) {
        if (isalnum((unsigned char)*s) || *s == '_' || *s == '-')
            in_word = 1;
        else if (*s == '.' && in_word)
            in_word = 0; /* no "..", no leading dot */
        else
            return 0;
    }
    return in_word;
}

/* dst = folder/a/b.lua of "a.b"; library names lie in home/lua. 1: fits. */
static int module_path(const struct mc_vm *vm, const char *name, int library, char *dst, size_t cap)
{
    char rel[256];
    if (strlen(name) >= sizeof rel)
        return 0;
    snprintf(rel, sizeof rel, "%s", name);
    for (char *p = rel; *p; p++)
        if (*p == '.')
            *p = '/';
    int n;
    if (!library && !strcmp(vm->dir, "."))
        n = snprintf(dst, cap, "%s.lua", rel);
    else if (!library)
        n = snprintf(dst, cap, "%s/%s.lua", vm->dir, rel);
    else if (!strcmp(name, "mascon"))
        n = snprintf(dst, cap, "%s/lua/mascon/init.lua", vm->home);
    else
        n = snprintf(dst, cap, "%s/lua/%s.lua", vm->home, rel);
    return n > 0 && (size_t)n < cap;
}

/* Compiles and runs a module; pushes its value. */
MC_LJMP static void run_module(lua_State *L, const char *name, const char *path, int library)
{
    struct mc_vm *vm = mc_vm_of(L);
    const int file = mc_vm_read_file(vm, path, library, NULL);
    if (file < 0)
        luaL_error(L,
                   library ? "module '%s' is not in the Mascon library (no readable file %s)"
                           : "module '%s' is not beside the recipe (no readable file %s); only "
                             "\"mascon\", \"mascon.*\" and files there can be required",
                   name, path);
    if (library) {
        lua_getfield(L, LUA_REGISTRYINDEX, "mc.library_env");
    } else {
        lua_rawgeti(L, LUA_REGISTRYINDEX, vm->env_ref);
    }
    mc_vm_push_chunk(L, file);
    lua_pushstring(L, name);
    lua_call(L, 1, 1);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_pushboolean(L, 1);
    }
}

MC_LJMP static void require_path(lua_State *L, const char *name, const char *path, int library)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "mc.loaded");
    lua_getfield(L, -1, path);
    if (lua_islightuserdata(L, -1))
        luaL_error(L, "module '%s' requires itself, by a circle", name);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_pushlightuserdata(L, NULL);
        lua_setfield(L, -2, path); /* being loaded */
        run_module(L, name, path, library);
        lua_pushvalue(L, -1);
        lua_setfield(L, -3, path);
    }
    lua_remove(L, -2);
}

MC_LJMP void mc_sandbox_require(lua_State *L, const char *name)
{
    char path[1400];
    const int library = !strcmp(name, "mascon") || !strncmp(name, "mascon.", 7);
    if (!name_ok(name))
        luaL_error(L,
                   "require: '%s' is no module name (letters, digits, _ and - between single dots; "
                   "no paths)",
                   name);
    if (!module_path(mc_vm_of(L), name, library, path, sizeof path))
        luaL_error(L, "require: '%s' is too long", name);
    require_path(L, name, path, library);
}

MC_LJMP static int l_require(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    if (lua_objlen(L, 1) != strlen(name))
        return luaL_error(L, "require: the name holds a zero byte");
    mc_sandbox_require(L, name);
    return 1;
}

/* -- Environments ---------------------------------------------------------------------------- */

static const char *const base_names[] = {
    "assert",   "error",  "getmetatable", "ipairs",       "rawequal",
    "rawget",   "rawset", "select",       "setmetatable", "tonumber",
    "tostring", "type",   "unpack",       "_VERSION",     NULL};
static const char *const string_names[] = {"byte",    "char", "find",  "format", "gmatch",
                                           "gsub",    "len",  "lower", "match",  "rep",
                                           "reverse", "sub",  "upper", NULL};
static const char *const table_names[] = {"concat", "insert", "maxn", "remove", "sort", NULL};
/* No random: a recipe means the same each time it is read. */
static const char *const math_names[] = {
    "abs",   "acos", "asin",  "atan", "atan2", "ceil", "cos",   "cosh", "deg", "exp",
    "floor", "fmod", "frexp", "huge", "ldexp", "log",  "log10", "max",  "min", "modf",
    "pi",    "pow",  "rad",   "sin",  "sinh",  "sqrt", "tan",   "tanh", NULL};
static const char *const bit_names[] = {"arshift", "band",   "bnot", "bor", "bswap",
                                        "bxor",    "lshift", "rol",  "ror", "rshift",
                                        "tobit",   "tohex",  NULL};

/* Table on top gets copies of the named members of the table below it. */
MC_LJMP static void copy_names(lua_State *L, const char *const *names)
{
    for (; *names; names++) {
        lua_getfield(L, -2, *names);
        lua_setfield(L, -2, *names);
    }
}

/* Sets a metatable on the table on top: unknown members raise, and it cannot be read back (I4). */
MC_LJMP static void make_strict(lua_State *L, const char *what)
{
    lua_createtable(L, 0, 2);
    if (what) {
        lua_pushstring(L, what);
        lua_pushcclosure(L, l_unknown_member, 1);
    } else {
        lua_pushcfunction(L, l_unknown);
    }
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
}

MC_LJMP void mc_sandbox_push_env(lua_State *L)
{
    static const struct {
        const char *lib;
        const char *const *names;
    } libs[] = {
        {"string", string_names}, {"table", table_names}, {"math", math_names}, {"bit", bit_names}};
    lua_pushvalue(L, LUA_GLOBALSINDEX);
    lua_newtable(L);
    copy_names(L, base_names);
    for (size_t i = 0; i < sizeof libs / sizeof *libs; i++) {
        lua_getfield(L, -2, libs[i].lib);
        lua_newtable(L);
        copy_names(L, libs[i].names);
        make_strict(L, libs[i].lib);
        lua_remove(L, -2);
        lua_setfield(L, -2, libs[i].lib);
    }
    lua_pushcfunction(L, l_pairs);
    lua_setfield(L, -2, "pairs");
    lua_pushcfunction(L, l_pcall);
    lua_setfield(L, -2, "pcall");
    lua_pushcfunction(L, l_print);
    lua_setfield(L, -2, "print");
    lua_pushcfunction(L, l_require);
    lua_setfield(L, -2, "require");
    make_strict(L, NULL);
    lua_remove(L, -2);
}

MC_LJMP void mc_sandbox_open(lua_State *L)
{
    static const struct {
        const char *name;
        lua_CFunction open;
    } libs[] = {{"", luaopen_base},
                {LUA_TABLIBNAME, luaopen_table},
                {LUA_STRLIBNAME, luaopen_string},
                {LUA_MATHLIBNAME, luaopen_math},
                {LUA_BITLIBNAME, luaopen_bit}};
    for (size_t i = 0; i < sizeof libs / sizeof *libs; i++) {
        lua_pushcfunction(L, libs[i].open);
        lua_pushstring(L, libs[i].name);
        lua_call(L, 1, 0);
    }
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "mc.loaded");
    lua_getglobal(L, "table");
    lua_getfield(L, -1, "sort");
    lua_setfield(L, LUA_REGISTRYINDEX, "mc.sort");
    lua_pop(L, 1);

    /* Methods of strings: a pristine copy that no chunk can reach to change (I4). */
    lua_getglobal(L, "string");
    lua_newtable(L);
    copy_names(L, string_names);
    lua_pushliteral(L, "");
    if (lua_getmetatable(L, -1)) {
        lua_pushvalue(L, -3);
        lua_setfield(L, -2, "__index");
        lua_pushboolean(L, 0);
        lua_setfield(L, -2, "__metatable");
        lua_pop(L, 1);
    }
    lua_pop(L, 3);

    mc_sandbox_push_env(L);
    mc_api_push_host(L);
    lua_setfield(L, -2, "host");
    lua_setfield(L, LUA_REGISTRYINDEX, "mc.library_env");
}
