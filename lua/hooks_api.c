/* hooks_api.c - the two tables that a hook function is given, and the reading of its answer.
 * Floor 7 (lua).
 *
 * I1  Nothing here writes but self.append(), which the recipe grants by allow = { "append:run" };
 *     it writes only RUN/hooks-NAME.jsonl, one whole line a call, at most 1 MiB a step.
 * I2  An answer is read into a record of fixed size; an unknown member is an error, never ignored.
 *
 * Memory: Lua's; the line buffer is the host's. Threads: the trainer's. */
#include "hooks_int.h"
#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <lauxlib.h>
#include "sandbox.h"
#include "../core/base/sysio.h"

enum { MAX_LOG_LINES = 20, MAX_LOG_BYTES = 1000 };
#define MAX_APPEND_BYTES (1LL << 30)

void mc_hooks_report(struct mc_hook_host *h, const char *kind, const struct mc_hook *hook,
                     const char *fmt, ...)
{
    char msg[1500];
    va_list ap;
    if (!h->cfg.report)
        return;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    h->cfg.report(h->cfg.report_arg, kind, hook ? hook->name : "", msg);
}

/* -- The event ------------------------------------------------------------------------------- */

static const char *const event_names[] = {
    "step",        "samples",   "tokens",    "skipped", "successful",      "target_steps",
    "loss",        "grad_norm", "lr",        "step_ms", "tokens_per_s",    "mfu",
    "time_left_s", "save_s",    "signal",    "anomaly", "anomaly_ratio",   "eval_loss",
    "eval_tokens", "ckpt_path", "ckpt_step", "segment", "layer_grad_norm", "layer_act_rms"};

/* __index of an event: a member without a value is nil, an unknown one an error. */
MC_LJMP static int l_event_index(lua_State *L)
{
    const int n = (int)(sizeof event_names / sizeof *event_names);
    const char *k = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";
    for (int i = 0; i < n; i++)
        if (!strcmp(k, event_names[i]))
            return 0;
    const char *near = mc_nearest(k, event_names, n);
    return near ? luaL_error(L, "an event has no '%s'; did you mean '%s'?", k, near)
                : luaL_error(L, "an event has no '%s'", k);
}

MC_LJMP static void put_num(lua_State *L, const char *key, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, key);
}
/* NaN: the member has no value. */
MC_LJMP static void put_opt(lua_State *L, const char *key, double v)
{
    if (!isnan(v))
        put_num(L, key, v);
}
MC_LJMP static void put_count(lua_State *L, const char *key, int64_t v)
{
    if (v >= 0)
        put_num(L, key, (double)v);
}
MC_LJMP static void put_str(lua_State *L, const char *key, const char *v)
{
    if (v) {
        lua_pushstring(L, v);
        lua_setfield(L, -2, key);
    }
}

/* t[l] of block l, from 1; t.stem, and t.head where it has one. NULL: no such member. */
MC_LJMP static void put_layers(lua_State *L, const char *key, const double *x, int layers, int head)
{
    if (!x)
        return;
    lua_createtable(L, layers, 2);
    for (int l = 1; l <= layers; l++) {
        lua_pushnumber(L, x[l]);
        lua_rawseti(L, -2, l);
    }
    put_num(L, "stem", x[0]);
    if (head)
        put_num(L, "head", x[layers + 1]);
    lua_setfield(L, -2, key);
}

MC_LJMP void mc_hooks_push_event(lua_State *L, const struct mc_hook_event *ev)
{
    lua_createtable(L, 0, 24);
    put_count(L, "step", ev->step);
    put_count(L, "samples", ev->samples);
    put_count(L, "tokens", ev->tokens);
    put_count(L, "skipped", ev->skipped);
    put_count(L, "successful", ev->successful);
    put_count(L, "target_steps", ev->target_steps);
    put_num(L, "loss", ev->loss); /* a NaN here is news, not absence */
    put_num(L, "grad_norm", ev->grad_norm);
    put_opt(L, "lr", ev->lr);
    put_opt(L, "step_ms", ev->step_ms);
    put_opt(L, "tokens_per_s", ev->tokens_per_s);
    put_opt(L, "mfu", ev->mfu);
    put_opt(L, "time_left_s", ev->time_left_s);
    put_opt(L, "save_s", ev->save_s);
    put_count(L, "signal", ev->signal);
    put_count(L, "segment", ev->segment);
    put_layers(L, "layer_grad_norm", ev->layer_grad, ev->nlayers, 1);
    put_layers(L, "layer_act_rms", ev->layer_act, ev->nlayers, 0);
    if (ev->kind == MC_HOOK_ANOMALY) {
        put_str(L, "anomaly", ev->anomaly);
        put_opt(L, "anomaly_ratio", ev->anomaly_ratio);
    }
    if (ev->kind == MC_HOOK_EVAL) {
        put_num(L, "eval_loss", ev->eval_loss);
        put_count(L, "eval_tokens", ev->eval_tokens);
    }
    if (ev->kind == MC_HOOK_CHECKPOINT) {
        put_str(L, "ckpt_path", ev->ckpt_path);
        put_count(L, "ckpt_step", ev->ckpt_step);
    }
    lua_createtable(L, 0, 2);
    lua_pushcfunction(L, l_event_index);
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
}

/* -- self ------------------------------------------------------------------------------------ */

MC_LJMP static struct mc_hook *upvalue_hook(lua_State *L)
{
    struct mc_hook *hook = lua_touserdata(L, lua_upvalueindex(1));
    if (hook->host->current != hook) /* kept by another file, or called while loading */
        luaL_error(L, "%s: self can be used only within a call of this hook", hook->name);
    return hook;
}

/* self.log(text): a line in events.jsonl. */
MC_LJMP static int l_self_log(lua_State *L)
{
    const char *s = luaL_checkstring(L, 1);
    struct mc_hook *hook = upvalue_hook(L);
    if (++hook->logged > MAX_LOG_LINES)
        return luaL_error(L, "self.log: more than %d lines in one call", MAX_LOG_LINES);
    mc_hooks_report(hook->host, "hook_log", hook, "%.*s", MAX_LOG_BYTES, s);
    return 0;
}

static int append_name_ok(const char *s)
{
    const size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != '-')
            return 0;
    return n >= 1 && n <= 32;
}

/* The open file of this name; opens it on first use. NULL with err set. */
static struct mc_hook_append *append_open(struct mc_hook *hook, const char *name,
                                          struct mc_err *err)
{
    for (int i = 0; i < hook->nappends; i++)
        if (!strcmp(hook->append[i].name, name))
            return &hook->append[i];
    if (hook->nappends == MC_HOOK_APPENDS) {
        mc_err_set(err, MC_E_RECIPE, "a hook may append to at most %d files", MC_HOOK_APPENDS);
        return NULL;
    }
    struct mc_hook_append *a = &hook->append[hook->nappends];
    snprintf(a->name, sizeof a->name, "%s", name);
    snprintf(a->path, sizeof a->path, "%s/hooks-%s.jsonl", hook->host->run_dir, name);
    if (mc_sys_open(a->path, O_WRONLY | O_CREAT | O_APPEND, 0644, &a->fd, err) != MC_OK)
        return NULL;
    if (mc_sys_file_size(a->path, &a->bytes, err) != MC_OK) {
        mc_sys_close(a->fd, a->path, NULL);
        return NULL;
    }
    hook->nappends++;
    return a;
}

/* self.append(name, line): one line at the end of RUN/hooks-NAME.jsonl. */
MC_LJMP static int l_self_append(lua_State *L)
{
    size_t n;
    const char *name = luaL_checkstring(L, 1);
    const char *line = luaL_checklstring(L, 2, &n);
    struct mc_hook *hook = upvalue_hook(L);
    struct mc_err err = {0};
    if (!append_name_ok(name))
        return luaL_error(L, "self.append: '%s' is no name (1 to 32 letters, digits, _ and -)",
                          name);
    if (n >= MC_HOOK_LINE_MAX || memchr(line, '\n', n) || memchr(line, 0, n))
        return luaL_error(L,
                          "self.append: a line holds no newline, no zero byte and at most 64 KiB");
    if (hook->append_step != hook->host->ev->step) {
        hook->append_step = hook->host->ev->step;
        hook->append_bytes = 0;
    }
    if (hook->append_bytes + (int64_t)n + 1 > MC_HOOK_STEP_MAX)
        return luaL_error(L, "self.append: more than 1 MiB at one step");
    hook->append_bytes += (int64_t)n + 1;
    struct mc_hook_append *a = append_open(hook, name, &err);
    if (a && a->bytes + (int64_t)n + 1 > MAX_APPEND_BYTES)
        return luaL_error(L, "self.append: %s has reached 1 GiB", a->path);
    memcpy(hook->host->text, line, n);
    hook->host->text[n] = '\n';
    if (!a || mc_sys_append(a->fd, hook->host->text, n + 1, a->path, &err) != MC_OK) { /* I1 */
        lua_pushfstring(L, "self.append: %s", err.msg);
        return lua_error(L);
    }
    a->bytes += (int64_t)n + 1;
    return 0;
}

MC_LJMP static int l_no_append(lua_State *L)
{
    const struct mc_hook *hook = lua_touserdata(L, lua_upvalueindex(1));
    return luaL_error(L,
                      "self.append: not granted; the recipe's entry must say "
                      "{ \"%s\", allow = { \"append:run\" } }",
                      hook->cfg->path);
}

MC_LJMP static void put_closure(lua_State *L, struct mc_hook *hook, const char *key,
                                lua_CFunction f)
{
    lua_pushlightuserdata(L, hook);
    lua_pushcclosure(L, f, 1);
    lua_setfield(L, -2, key);
}

MC_LJMP void mc_hooks_push_self(lua_State *L, struct mc_hook *hook, int state)
{
    const struct mc_hook_cfg *c = hook->cfg;
    lua_createtable(L, 0, 6);
    put_closure(L, hook, "log", l_self_log);
    put_closure(L, hook, "append", hook->may_append ? l_self_append : l_no_append);
    lua_pushboolean(L, hook->may_append);
    lua_setfield(L, -2, "may_append");
    put_str(L, "name", hook->name);
    if (state)
        lua_pushvalue(L, state);
    else
        lua_newtable(L);
    lua_setfield(L, -2, "state");
    lua_createtable(L, 0, c->noptions);
    for (int i = 0; i < c->noptions; i++) {
        const struct mc_attr *o = &c->option[i];
        if (o->kind == MC_V_BOOL)
            lua_pushboolean(L, o->num != 0);
        else if (o->kind == MC_V_NUM)
            lua_pushnumber(L, o->num);
        else
            lua_pushstring(L, o->str);
        lua_setfield(L, -2, o->key);
    }
    lua_setfield(L, -2, "options");
}

/* -- The answer ------------------------------------------------------------------------------ */

MC_LJMP static int answer_flag(lua_State *L, const char *key)
{
    if (!lua_isboolean(L, -1))
        luaL_error(L, "the answer's '%s' must be true or false, not a %s", key,
                   luaL_typename(L, -1));
    return lua_toboolean(L, -1);
}

MC_LJMP static void answer_member(lua_State *L, enum mc_hook_kind kind, const char *key,
                                  struct mc_directive *d)
{
    static const char *const known[] = {"stop", "checkpoint", "eval", "lr_scale", "action"};
    if (!strcmp(key, "stop")) {
        if (lua_type(L, -1) == LUA_TSTRING) {
            d->stop = 1;
            snprintf(d->why, sizeof d->why, "%s", lua_tostring(L, -1));
        } else {
            d->stop = answer_flag(L, key);
        }
    } else if (!strcmp(key, "checkpoint")) {
        d->checkpoint = answer_flag(L, key);
    } else if (!strcmp(key, "eval")) {
        d->eval = answer_flag(L, key);
    } else if (!strcmp(key, "lr_scale")) {
        d->lr_scale = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : -1;
        if (!(d->lr_scale > 0 && d->lr_scale <= 1e6))
            luaL_error(L, "the answer's 'lr_scale' must be a number above 0 and at most 1e6");
    } else if (!strcmp(key, "action")) {
        const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
        if (kind != MC_HOOK_ANOMALY)
            luaL_error(L, "only on_anomaly may answer with 'action'");
        if (strcmp(s, "skip") && strcmp(s, "abort"))
            luaL_error(L, "the answer's 'action' must be \"skip\" or \"abort\"");
        d->anomaly_action = strcmp(s, "skip") ? MC_ANOMALY_ABORT : MC_ANOMALY_SKIP;
    } else {
        const char *near = mc_nearest(key, known, 5);
        if (near)
            luaL_error(L, "unknown member '%s' in the answer; did you mean '%s'?", key, near);
        luaL_error(L, "unknown member '%s' in the answer (stop checkpoint eval lr_scale action)",
                   key);
    }
}

MC_LJMP void mc_hooks_read_answer(lua_State *L, enum mc_hook_kind kind, struct mc_directive *d)
{
    const int t = lua_gettop(L);
    if (lua_isnil(L, t))
        return;
    if (!lua_istable(L, t))
        luaL_error(L, "the answer must be nil or a table, not a %s", luaL_typename(L, t));
    if (lua_getmetatable(L, t)) /* its members by __index would not be seen */
        luaL_error(L, "the answer must be a plain table, without a metatable");
    for (lua_pushnil(L); lua_next(L, t); lua_pop(L, 1)) { /* I2 */
        if (lua_type(L, -2) != LUA_TSTRING)
            luaL_error(L, "the answer's members have names, such as checkpoint = true");
        answer_member(L, kind, lua_tostring(L, -2), d);
    }
}
