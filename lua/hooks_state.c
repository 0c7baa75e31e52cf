/* hooks_state.c - hooks' `state` tables as JSON in checkpoints, and back.
 * Floor 7 (lua).
 *
 * I1  What is written reads back equal: numbers bit for bit, texts byte for byte; so a value that
 *     JSON cannot hold (a function, NaN, a text that is no UTF-8, a number as a key beside gaps) is
 *     an error of the hook when it is saved, never a silent change.
 * I2  A state that cannot be written does not lose the checkpoint: the last one that could is
 *     written in its place, and the error is reported.
 *
 * Text: { "hooks/a.lua": { ... }, "hooks/a.lua#2": { ... } }, keys sorted within each state.
 * Memory: the host's buffer; the last good text is handle life. Threads: the trainer's. */
#include "hooks_int.h"
#include <math.h>
#include <string.h>
#include <lauxlib.h>
#include "sandbox.h"
#include "walk.h"
#include "../core/base/arena.h"
#include "../core/base/json.h"

enum { MAX_DEPTH = 16 };
#define STATE_BUDGET_NS 500000000LL

static int utf8_ok(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + n;
    while (p < end) {
        const int more = *p < 0x80                 ? 0
                         : *p >= 0xc2 && *p < 0xe0 ? 1
                         : (*p & 0xf0) == 0xe0     ? 2
                         : *p >= 0xf0 && *p < 0xf5 ? 3
                                                   : -1;
        if (more < 0 || end - p <= more || *p == 0)
            return 0;
        for (int i = 1; i <= more; i++)
            if ((p[i] & 0xc0) != 0x80)
                return 0;
        if ((more == 2 && ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] >= 0xa0))) ||
            (more == 3 && ((*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] >= 0x90))))
            return 0;
        p += more + 1;
    }
    return 1;
}

MC_LJMP static void encode(lua_State *L, struct mc_json *j, const char *key, int idx, int depth);

MC_LJMP static void encode_table(lua_State *L, struct mc_json *j, const char *key, int idx,
                                 int depth)
{
    const int n = (int)lua_objlen(L, idx);
    if (depth > MAX_DEPTH)
        luaL_error(L, "state: nested too deeply (or a table holds itself)");
    if (lua_getmetatable(L, idx))
        luaL_error(L, "state: a table with a metatable is no plain data");
    const int total = mc_sandbox_push_keys(L, idx), keys = lua_gettop(L);
    const int list = n > 0 && total == n;
    mc_json_open(j, key, list ? '[' : '{');
    for (int i = 1; i <= total; i++) {
        lua_rawgeti(L, keys, i);
        size_t len;
        const char *k = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &len) : NULL;
        if (!list && (!k || !utf8_ok(k, len)))
            luaL_error(L, "state: keys must be texts, or 1, 2, ... without gaps");
        lua_pushvalue(L, -1);
        lua_rawget(L, idx);
        encode(L, j, list ? NULL : k, lua_gettop(L), depth + 1);
        lua_pop(L, 2);
    }
    mc_json_close(j, list ? ']' : '}');
    lua_settop(L, keys - 1);
}

MC_LJMP static void encode(lua_State *L, struct mc_json *j, const char *key, int idx, int depth)
{
    size_t n;
    luaL_checkstack(L, 10, "state");
    switch (lua_type(L, idx)) {
    case LUA_TBOOLEAN:
        mc_json_bool(j, key, lua_toboolean(L, idx));
        break;
    case LUA_TNUMBER:
        if (!isfinite(lua_tonumber(L, idx)))
            luaL_error(L, "state: '%s' is not a finite number", key ? key : "an entry of a list");
        mc_json_f64(j, key, lua_tonumber(L, idx));
        break;
    case LUA_TSTRING: {
        const char *s = lua_tolstring(L, idx, &n);
        if (!utf8_ok(s, n))
            luaL_error(L, "state: '%s' is no UTF-8 text", key ? key : "an entry of a list");
        mc_json_strn(j, key, s, n);
        break;
    }
    case LUA_TTABLE:
        encode_table(L, j, key, idx, depth);
        break;
    default:
        luaL_error(L, "state: '%s' is a %s, no plain data", key ? key : "an entry of a list",
                   luaL_typename(L, idx));
    }
    if (j->failed)
        luaL_error(L, "state: larger than 64 KiB as JSON");
}

MC_LJMP void mc_hooks_encode_state(lua_State *L, struct mc_hook_host *h, int idx)
{
    struct mc_json j;
    if (!lua_istable(L, idx))
        luaL_error(L, "state: must be a table, not a %s", luaL_typename(L, idx));
    mc_json_init_fixed(&j, h->text, sizeof h->text);
    encode(L, &j, NULL, idx, 0); /* a fixed buffer: nothing to free when this raises */
    h->text[j.len] = 0;
}

/* -- Saving ---------------------------------------------------------------------------------- */

MC_LJMP static int body_encode(lua_State *L)
{
    struct mc_hook_host *h = lua_touserdata(L, 1);
    lua_rawgeti(L, LUA_REGISTRYINDEX, h->current->self_ref);
    lua_getfield(L, -1, "state");
    mc_hooks_encode_state(L, h, lua_gettop(L));
    return 0;
}

mc_status mc_hooks_save_state(void *ctx, struct mc_json *j, const char *key, struct mc_err *err)
{
    struct mc_hook_host *h = ctx;
    (void)err;
    mc_json_open(j, key, '{');
    for (int i = 0; i < h->n; i++) {
        struct mc_hook *hook = &h->hook[i];
        struct mc_err why = {0};
        h->current = hook;
        if (mc_vm_call(h->vm, body_encode, h, STATE_BUDGET_NS, hook->name, &why) == MC_OK) {
            if (!hook->good_state || strcmp(hook->good_state, h->text)) {
                char *copy = mc_strdup(h->text);
                if (copy) {
                    mc_free(hook->good_state);
                    hook->good_state = copy;
                }
            }
            mc_json_raw(j, hook->name, h->text);
        } else { /* I2 */
            mc_hooks_report(h, "hook_error", hook,
                            "%s; the last state that could be written is saved", why.msg);
            mc_json_raw(j, hook->name, hook->good_state ? hook->good_state : "{}");
        }
        h->current = NULL;
    }
    mc_json_close(j, '}');
    return MC_OK;
}

/* -- Loading --------------------------------------------------------------------------------- */

MC_LJMP static int body_restore(lua_State *L)
{
    struct mc_hook_host *h = lua_touserdata(L, 1);
    lua_rawgeti(L, LUA_REGISTRYINDEX, h->current->self_ref);
    mc_walk_push(L, h->value);
    lua_setfield(L, -2, "state");
    return 0;
}

static mc_status restore_one(struct mc_hook_host *h, struct mc_hook *hook,
                             const struct mc_value *state, struct mc_err *err)
{
    struct mc_err why = {0};
    if (state->kind != MC_V_MAP && state->kind != MC_V_LIST)
        return mc_err_set(err, MC_E_CORRUPT, "the checkpoint's state of hook %s is no table",
                          hook->name);
    h->current = hook;
    h->value = state;
    const mc_status st = mc_vm_call(h->vm, body_restore, h, STATE_BUDGET_NS, hook->name, &why);
    h->current = NULL;
    if (st != MC_OK)
        return mc_err_set(err, MC_E_CORRUPT, "the checkpoint's state of hook %s: %s", hook->name,
                          why.msg);
    return MC_OK;
}

mc_status mc_hooks_load_state(void *ctx, const char *json, struct mc_err *err)
{
    struct mc_hook_host *h = ctx;
    struct mc_values *pool = mc_values_create();
    struct mc_value *root = NULL;
    mc_status st;
    if (!pool)
        return mc_err_set(err, MC_E_NOMEM, "no memory for hooks' states");
    struct mc_err why = {0};
    if (mc_value_from_json(pool, json, strlen(json), "checkpoint", &root, &why) != MC_OK) {
        st = mc_err_set(err, MC_E_CORRUPT, "the checkpoint's hooks' states: %s", why.msg);
        goto out;
    }
    st = MC_OK;
    if (root->kind != MC_V_MAP && !(root->kind == MC_V_LIST && root->n == 0)) {
        st = mc_err_set(err, MC_E_CORRUPT, "the checkpoint's hooks' states are no JSON object");
        goto out;
    }
    for (int i = 0; i < h->n; i++) {
        const struct mc_value *v = mc_value_get(root, h->hook[i].name);
        if (v)
            MC_TRY_GOTO(st, restore_one(h, &h->hook[i], v, err), out);
    }
    for (int i = 0; root->kind == MC_V_MAP && i < root->n; i++) {
        int known = 0;
        for (int k = 0; k < h->n; k++)
            known |= !strcmp(root->key[i], h->hook[k].name);
        if (!known)
            mc_hooks_report(
                h, "hook_log", NULL,
                "the checkpoint holds a state of %s, which the recipe no longer lists; it "
                "is dropped",
                root->key[i]);
    }
out:
    mc_values_destroy(pool);
    return st;
}
