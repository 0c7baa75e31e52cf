/* load.c - from a recipe's path to a bound recipe: run, inherit, --set, trace, bind, look at hooks.
 * Floor 7 (lua).
 *
 * I1  Every fault of a recipe becomes a problem with path, file and line; the steps go on as far as
 *     they can, so that one run shows all.
 * I2  inherit and --set work on value trees, after each file's own table was walked: a value keeps
 *     the file and line that said it.
 * I3  Maps merge key by key, where both came from the same constructor or the newer is plain;
 *     lists, functions and everything else replace.
 * I4  The model is traced after its scalars were bound, so its functions see defaults that stand in
 *     the field rows and nowhere else, and bad scalars give the binder's message.
 *
 * Memory: one pool for all trees, destroyed at the end; the box and the VM go to the caller.
 * Threads: the caller's, and the VM's watchdog. */
#include "host.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <lauxlib.h>
#include "hooks_int.h"
#include "sandbox.h"
#include "vocab.h"
#include "walk.h"
#include "../core/base/arena.h"
#include "../core/base/sysio.h"

#define RECIPE_BUDGET_NS 2000000000LL
#define RECIPE_GRACE_NS  1000000000LL
enum { RECIPE_MEM = 256 << 20, MAX_CHAIN = 8 };

struct loader {
    const struct mc_load_cfg *cfg;
    struct mc_problems *problems;
    struct mc_vm *vm;
    struct mc_walk walk;
    struct mc_value *root;
    char dir[MC_PATH]; /* of the recipe */
    /* arguments and results of the protected bodies */
    const char *text;
    struct mc_value *result;
    int file, chain[MAX_CHAIN], nchain;
    struct mc_model_cfg model;
    int fn_ref[3];
};

static void add_value_problem(struct loader *lo, const char *path, const struct mc_value *v,
                              const char *hint, const char *msg)
{
    mc_problems_add(lo->problems, path, v && v->file ? v->file : lo->cfg->path, v ? v->line : 0,
                    hint, "%s", msg);
}

/* A failed mc_vm_call as a problem. Where the library raised it, the place is the recipe's `at`. */
static void add_lua_problem(struct loader *lo, const char *path, const struct mc_value *at,
                            const char *file, const struct mc_err *err)
{
    int line = at ? at->line : 0, lib_line = 0;
    const char *found = NULL;
    const char *text = mc_vm_split_message(lo->vm, err->msg, &found, &lib_line);
    int library = 0;
    for (int i = 0; found && i < lo->vm->nfiles; i++)
        if (lo->vm->file[i].path == found)
            library = lo->vm->file[i].library;
    if (found && !library)
        mc_problems_add(lo->problems, path, found, lib_line, "", "%s", text);
    else if (found)
        mc_problems_add(lo->problems, path, file, line, "", "%s (%s)", text, found);
    else
        mc_problems_add(lo->problems, path, file, line, "", "%s", text);
}

/* -- Running files --------------------------------------------------------------------------- */

MC_LJMP static int body_open(lua_State *L)
{
    struct mc_vm *vm = mc_vm_of(L);
    mc_sandbox_open(L);
    mc_sandbox_push_env(L);
    vm->env_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

MC_LJMP static int body_run(lua_State *L)
{
    struct loader *lo = lua_touserdata(L, 1);
    lua_rawgeti(L, LUA_REGISTRYINDEX, lo->vm->env_ref);
    mc_vm_push_chunk(L, lo->file);
    lua_call(L, 0, LUA_MULTRET);
    const struct mc_vm_file *f = &lo->vm->file[lo->file];
    if (lua_gettop(L) != 2 || !lua_istable(L, 2)) {
        mc_problems_add(lo->problems, "", f->path, 0, "",
                        "a recipe must return one table, as in return m.recipe { ... }; this file "
                        "returned %s",
                        lua_gettop(L) == 1  ? "nothing"
                        : lua_gettop(L) > 2 ? "several values"
                                            : luaL_typename(L, 2));
        return 0;
    }
    int made_in, made_at;
    const char *tag = mc_api_tag(L, 2, &made_in, &made_at);
    if (tag && strcmp(tag, "recipe")) {
        mc_problems_add(
            lo->problems, "", f->path, made_at, "",
            "this file returned what belongs inside a recipe (a %s); a recipe is one table of "
            "named keys: return m.recipe { ... }",
            tag);
        return 0;
    }
    lo->result =
        mc_walk_table(&lo->walk, L, 2, lo->file, mc_lines_returned(mc_vm_lines(lo->vm, lo->file)));
    if (lo->result && lo->result->tag && !strcmp(lo->result->tag, "recipe"))
        lo->result->tag = NULL; /* m.recipe { } and a bare table mean the same */
    return 0;
}

static struct mc_value *new_map(struct loader *lo, const char *file)
{
    struct mc_value *v = mc_value_new(lo->walk.pool, MC_V_MAP);
    if (v)
        v->file = file;
    else
        lo->walk.failed = 1;
    return v;
}

static void put(struct loader *lo, struct mc_value *map, const char *key, struct mc_value *v)
{
    if (!v || mc_value_put(lo->walk.pool, map, key, v, NULL) != MC_OK)
        lo->walk.failed = 1;
}

/* -- Paths ----------------------------------------------------------------------------------- */

static void data_path_problem(struct loader *lo, const char *path, struct mc_value *v)
{
    char msg[400];
    snprintf(msg, sizeof msg,
             "\"%.150s\" is a file both in the current folder and beside the recipe; "
             "write ./%.100s or a whole path",
             v->str, v->str);
    add_value_problem(lo, path, v, "", msg);
}

/* A file or folder, or the common name of packed data (NAME.bin, NAME.idx). */
static int data_exists(const char *path)
{
    char idx[3 * MC_PATH];
    snprintf(idx, sizeof idx, "%s.idx", path);
    return mc_sys_exists(path) || mc_sys_exists(idx);
}

/* A relative path that --set gave: in the current folder, else beside the recipe. */
static void resolve_set_path(struct loader *lo, const char *path, struct mc_value *v)
{
    char cwd[MC_PATH], here[2 * MC_PATH], there[2 * MC_PATH];
    if (!v->file || strcmp(v->file, "--set") || v->str[0] == '/' || !strcmp(v->str, "bytes") ||
        strlen(v->str) >= MC_PATH || !getcwd(cwd, sizeof cwd) || !data_exists(v->str))
        return;
    snprintf(here, sizeof here, "%s/%s", cwd, v->str);
    snprintf(there, sizeof there, "%s/%s", lo->dir, v->str);
    if (v->str[0] != '.' && data_exists(there)) {
        char a[PATH_MAX], b[PATH_MAX];
        const int same = realpath(cwd, a) && realpath(lo->dir, b) && !strcmp(a, b);
        if (!same) {
            data_path_problem(lo, path, v);
            return;
        }
    }
    const char *s = mc_value_strn(lo->walk.pool, here, strlen(here));
    if (s)
        v->str = s;
    else
        lo->walk.failed = 1;
}

struct rebase {
    const char *dir;
    int only_if_there; /* hooks, schedules: may also lie in home */
};
static void rebase_path(struct loader *lo, const struct rebase *rb, struct mc_value *v)
{
    char dir[PATH_MAX], joined[PATH_MAX + MC_PATH];
    if (v->str[0] == '/' || !strcmp(v->str, "bytes") || strlen(v->str) >= MC_PATH)
        return;
    snprintf(joined, sizeof joined, "%s/%s", realpath(rb->dir, dir) ? dir : rb->dir, v->str);
    if (rb->only_if_there && !mc_sys_exists(joined))
        return;
    const char *s = mc_value_strn(lo->walk.pool, joined, strlen(joined));
    if (s)
        v->str = s;
    else
        lo->walk.failed = 1;
}

/* Every path text under v: itself, entries of a list, first entry of { path, weight = w }. */
static void each_path(struct loader *lo, const char *path, struct mc_value *v,
                      const struct rebase *rb)
{
    if (!v)
        return;
    if (v->kind == MC_V_STR && rb)
        rebase_path(lo, rb, v);
    else if (v->kind == MC_V_STR)
        resolve_set_path(lo, path, v);
    else if (v->kind == MC_V_LIST)
        for (int i = 0; i < v->n; i++)
            each_path(lo, path, v->item[i], rb);
    else if (v->kind == MC_V_MAP)
        each_path(lo, path, mc_value_get(v, "1"), rb);
}

static void each_data_path(struct loader *lo, struct mc_value *root, const struct rebase *rb)
{
    struct mc_value *data = mc_value_get(root, "data");
    each_path(lo, "data.train", mc_value_get(data, "train"), rb);
    each_path(lo, "data.valid", mc_value_get(data, "valid"), rb);
    each_path(lo, "data.tokenizer", mc_value_get(data, "tokenizer"), rb);
}

/* -- inherit --------------------------------------------------------------------------------- */

static int is_function_tag(const char *tag)
{
    return tag && (!strcmp(tag, "function") || !strcmp(tag, "lr.table") ||
                   !strcmp(tag, "batch.function") || !strcmp(tag, "schedule.function"));
}

static int mergeable(const struct mc_value *base, const struct mc_value *over)
{
    if (base->kind != MC_V_MAP || over->kind != MC_V_MAP)
        return 0;
    if (is_function_tag(base->tag) || is_function_tag(over->tag))
        return 0;
    if (base->tag && !strncmp(base->tag, "data.", 5))
        return over->tag && !strcmp(base->tag, over->tag);
    return !over->tag || (base->tag && !strcmp(base->tag, over->tag)); /* I3 */
}

static void remove_path(struct mc_value *root, const char *dotted)
{
    char head[160];
    const char *last = strrchr(dotted, '.');
    struct mc_value *map = root;
    const char *p = dotted;
    while (map && last && p <= last) {
        const size_t n = strcspn(p, ".");
        snprintf(head, sizeof head, "%.*s", (int)n, p);
        map = mc_value_get(map, head);
        p += n + 1;
    }
    if (map && map->kind == MC_V_MAP)
        mc_value_remove(map, last ? last + 1 : dotted);
}

static void remove_exclusive(struct mc_value *root, const char *dotted)
{
    const char *sib[4];
    const int n = mc_recipe_exclusive(dotted, sib);
    for (int i = 0; i < n; i++)
        remove_path(root, sib[i]);
}

/* Merges over into base (both maps), in place. */
static void merge(struct loader *lo, struct mc_value *root, struct mc_value *base,
                  const struct mc_value *over, const char *prefix)
{
    for (int i = 0; i < over->n; i++) {
        char path[200];
        snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", over->key[i]);
        struct mc_value *b = mc_value_get(base, over->key[i]);
        if (b && mergeable(b, over->item[i])) {
            merge(lo, root, b, over->item[i], path);
        } else {
            remove_exclusive(root, path);
            put(lo, base, over->key[i], over->item[i]);
        }
    }
    base->file = over->file;
    base->line = over->line;
}

static struct mc_value *load_chain(struct loader *lo, const char *path,
                                   const struct mc_value *from);

static struct mc_value *inherit(struct loader *lo, struct mc_value *own, const char *dir)
{
    struct mc_value *name = mc_value_get(own, "inherit");
    char path[2 * MC_PATH];
    if (!name)
        return own;
    mc_value_remove(own, "inherit");
    if (name->kind != MC_V_STR || !name->str[0]) {
        add_value_problem(lo, "inherit", name, "", "must be the path of a recipe, a text");
        return own;
    }
    if (name->str[0] == '/' || !strcmp(dir, "."))
        snprintf(path, sizeof path, "%s", name->str);
    else
        snprintf(path, sizeof path, "%s/%s", dir, name->str);
    struct mc_value *base = load_chain(lo, path, name);
    if (!base)
        return own;
    char base_dir[MC_PATH];
    mc_path_dir(base_dir, sizeof base_dir, path);
    if (strcmp(base_dir, dir)) {
        each_data_path(lo, base, &(struct rebase){base_dir, 0});
        each_path(lo, "hooks", mc_value_get(base, "hooks"), &(struct rebase){base_dir, 1});
        each_path(lo, "parallel.schedule", mc_value_get(mc_value_get(base, "parallel"), "schedule"),
                  &(struct rebase){base_dir, 1});
    }
    /* both siblings of an exclusive group in one file are for the binder to refuse */
    merge(lo, base, base, own, "");
    return base;
}

/* Runs a file and what it inherits from. from: the value that named it (NULL: the command). */
static struct mc_value *load_chain(struct loader *lo, const char *path, const struct mc_value *from)
{
    struct mc_err err = {0};
    const int file = mc_vm_read_file(lo->vm, path, 0, &err);
    if (file < 0) {
        add_value_problem(lo, "inherit", from, "", err.msg);
        return NULL;
    }
    for (int i = 0; i < lo->nchain; i++)
        if (lo->chain[i] == file) {
            add_value_problem(lo, "inherit", from, "",
                              "a recipe inherits from itself, by a circle");
            return NULL;
        }
    if (lo->nchain == MAX_CHAIN) {
        add_value_problem(lo, "inherit", from, "", "more than 8 recipes inherit from one another");
        return NULL;
    }
    lo->chain[lo->nchain++] = file;
    lo->file = file;
    lo->result = NULL;
    mc_path_dir(lo->vm->dir, sizeof lo->vm->dir, path);
    if (mc_vm_call(lo->vm, body_run, lo, RECIPE_BUDGET_NS, path, &err) != MC_OK) {
        add_lua_problem(lo, "", NULL, path, &err);
        return NULL;
    }
    struct mc_value *own = lo->result;
    if (!own || own->kind != MC_V_MAP) {
        if (own)
            mc_problems_add(
                lo->problems, "", path, own->line, "",
                "the recipe's table is a list; it must have keys such as name and model");
        return NULL;
    }
    char dir[MC_PATH];
    mc_path_dir(dir, sizeof dir, path);
    return inherit(lo, own, dir);
}

/* -- --set ----------------------------------------------------------------------------------- */

MC_LJMP static int body_literal(lua_State *L)
{
    struct loader *lo = lua_touserdata(L, 1);
    lua_pushfstring(L, "return %s", lo->text);
    size_t n;
    const char *s = lua_tolstring(L, -1, &n);
    if (luaL_loadbufferx(L, s, n, "=--set", "t"))
        return 0;    /* no literal after all */
    lua_newtable(L); /* sees nothing */
    lua_setfenv(L, -2);
    lua_call(L, 0, 1);
    lo->walk.origin = "--set";
    lo->result = mc_walk_table(&lo->walk, L, lua_gettop(L), -1, -1);
    return 0;
}

static struct mc_value *set_value(struct loader *lo, const char *text)
{
    struct mc_err err = {0};
    lo->result = NULL;
    lo->text = text;
    if (mc_lines_is_literal(text) &&
        mc_vm_call(lo->vm, body_literal, lo, RECIPE_BUDGET_NS, "--set", &err) == MC_OK &&
        lo->result)
        return lo->result;
    struct mc_value *v = mc_value_new(lo->walk.pool, MC_V_STR);
    if (v) {
        v->file = "--set";
        v->str = mc_value_strn(lo->walk.pool, text, strlen(text));
    }
    if (!v || !v->str)
        lo->walk.failed = 1;
    return v;
}

static void set_problem(struct loader *lo, const char *path, const char *msg)
{
    mc_problems_add(lo->problems, path, "--set", 0, "", "%s", msg);
}

/* One step into *at by `word`; creates a missing table. NULL: a problem was added. */
static struct mc_value *set_step(struct loader *lo, struct mc_value *at, const char *word,
                                 const char *key)
{
    struct mc_value *next = NULL;
    if (at->kind == MC_V_LIST) {
        const int i = atoi(word);
        if (i >= 1 && i <= at->n)
            next = at->item[i - 1];
    } else {
        next = mc_value_get(at, word);
        if (!next && (next = new_map(lo, "--set")))
            put(lo, at, word, next);
    }
    if (!next || (next->kind != MC_V_MAP && next->kind != MC_V_LIST)) {
        set_problem(lo, key,
                    next ? "a part of this path is no table in the recipe; set that part whole"
                         : "a part of this path names no entry of the recipe's list");
        return NULL;
    }
    if (is_function_tag(next->tag)) {
        set_problem(lo, key, "the recipe gives a function here; nothing inside it can be set");
        return NULL;
    }
    return next;
}

/* Is the value at a dotted key one that --set gave? */
static int was_set(const struct mc_value *at, const char *dotted)
{
    char word[128];
    for (const char *p = dotted; at; p++) {
        const size_t n = strcspn(p, ".");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        at = at->kind == MC_V_MAP ? mc_value_get(at, word) : NULL;
        if (!p[n])
            break;
        p += n;
    }
    return at && at->file && !strcmp(at->file, "--set");
}

/* A key of an exclusive group takes the place of what a file says, not of another --set. 0: said.
 */
static int replace_exclusive(struct loader *lo, const char *key)
{
    const char *sib[4];
    const int n = mc_recipe_exclusive(key, sib);
    for (int i = 0; i < n; i++)
        if (was_set(lo->root, sib[i])) {
            char msg[300];
            snprintf(msg, sizeof msg, "only one of %.100s and %.100s can be set", sib[i], key);
            set_problem(lo, key, msg);
            return 0;
        }
    remove_exclusive(lo->root, key);
    return 1;
}

static void apply_set(struct loader *lo, const char *arg)
{
    const char *eq = strchr(arg, '=');
    char key[128], word[128];
    if (!eq || eq == arg || (size_t)(eq - arg) >= sizeof key || arg[0] == '.' || eq[-1] == '.') {
        char msg[200];
        snprintf(msg, sizeof msg, "\"%.100s\" is not of the form key=value", arg);
        set_problem(lo, "", msg);
        return;
    }
    snprintf(key, sizeof key, "%.*s", (int)(eq - arg), arg);
    struct mc_value *v = set_value(lo, eq + 1), *at = lo->root;
    const char *p = key;
    for (const char *dot; at && (dot = strchr(p, '.')); p = dot + 1) {
        snprintf(word, sizeof word, "%.*s", (int)(dot - p), p);
        at = set_step(lo, at, word, key);
    }
    if (!at || !v)
        return;
    if (at->kind == MC_V_LIST) {
        const int i = atoi(p);
        if (i >= 1 && i <= at->n)
            at->item[i - 1] = v;
        else
            set_problem(lo, key, "names no entry of the recipe's list");
        return;
    }
    if (replace_exclusive(lo, key))
        put(lo, at, p, v);
}

/* -- Trace ----------------------------------------------------------------------------------- */

static const char *const fn_names[3] = {"stem", "block", "head"};

MC_LJMP static void push_scalars(lua_State *L, const struct mc_model_cfg *m)
{
    const struct {
        const char *key;
        double v;
    } nums[] = {{"layers", (double)m->layers},
                {"hidden", (double)m->hidden},
                {"heads", (double)m->heads},
                {"kv_heads", (double)m->kv_heads},
                {"head_dim", (double)m->head_dim},
                {"ffn", (double)m->ffn},
                {"vocab", (double)m->vocab},
                {"seq", (double)m->seq},
                {"theta", m->theta},
                {"eps", m->eps},
                {"dropout", m->dropout},
                {"init_std", m->init_std},
                {"window", (double)m->window},
                {"rope_factor", m->rope_factor},
                {"rope_original", (double)m->rope_original}};
    lua_newtable(L);
    for (size_t i = 0; i < sizeof nums / sizeof *nums; i++) {
        lua_pushnumber(L, nums[i].v);
        lua_setfield(L, -2, nums[i].key);
    }
    lua_pushboolean(L, m->tied);
    lua_setfield(L, -2, "tied");
    lua_pushboolean(L, m->bias);
    lua_setfield(L, -2, "bias");
    lua_pushboolean(L, m->documents);
    lua_setfield(L, -2, "documents");
    lua_pushstring(L, mc_rope_scaling_words[m->rope_scaling]);
    lua_setfield(L, -2, "rope_scaling");
    lua_pushstring(L, m->preset);
    lua_setfield(L, -2, "preset");
}

MC_LJMP static int body_trace(lua_State *L)
{
    struct loader *lo = lua_touserdata(L, 1);
    mc_sandbox_require(L, "mascon.trace");
    push_scalars(L, &lo->model);
    lua_newtable(L);
    for (int i = 0; i < 3; i++)
        if (lo->fn_ref[i] != LUA_NOREF) {
            lua_rawgeti(L, LUA_REGISTRYINDEX, lo->fn_ref[i]);
            lua_setfield(L, -2, fn_names[i]);
        }
    lua_call(L, 2, 1);
    lo->result = mc_walk_table(&lo->walk, L, lua_gettop(L), -1, -1);
    return 0;
}

/* Takes the model's functions out of its map. 0: something is wrong, and was said. */
static int take_functions(struct loader *lo, struct mc_value *model)
{
    int ok = 1;
    for (int i = 0; i < 3; i++) {
        char path[32];
        struct mc_value *v = mc_value_get(model, fn_names[i]);
        lo->fn_ref[i] = mc_walk_function(&lo->walk, v);
        snprintf(path, sizeof path, "model.%s", fn_names[i]);
        if (v)
            mc_value_remove(model, fn_names[i]);
        if (v && lo->fn_ref[i] == LUA_NOREF) {
            add_value_problem(lo, path, v, "", "must be a function");
            ok = 0;
        } else if (!v && i == 1) {
            add_value_problem(lo, path, model, "",
                              "required, not given: function(x, c, layer) that returns "
                              "the layer's output");
            ok = 0;
        }
    }
    static const char *const made[] = {"blocks", "layer_block", "untraced"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        char path[32];
        struct mc_value *v = mc_value_get(model, made[i]);
        snprintf(path, sizeof path, "model.%s", made[i]);
        if (v) {
            add_value_problem(lo, path, v, "",
                              "is made by tracing the model's functions; it cannot be given");
            mc_value_remove(model, made[i]);
            ok = 0;
        }
    }
    return ok;
}

static int trace_model(struct loader *lo, struct mc_value *model)
{
    struct mc_err err = {0};
    if (!model->tag || strcmp(model->tag, "decoder")) {
        add_value_problem(lo, "model", model, "",
                          "must be m.decoder { ... } or a preset such as "
                          "m.models.llama { ... }, not a plain table");
        take_functions(lo, model);
        return 0;
    }
    int ok = take_functions(lo, model);
    if (mc_recipe_bind_model(lo->root, lo->problems, &lo->model, &err) != MC_OK || !ok) /* I4 */
        return 0;
    lo->result = NULL;
    lo->walk.origin = model->file;
    lo->vm->follow = 1;
    const mc_status st =
        mc_vm_call(lo->vm, body_trace, lo, RECIPE_BUDGET_NS, "the model's functions", &err);
    lo->vm->follow = 0;
    if (st != MC_OK) {
        add_lua_problem(lo, "model", model, model->file, &err);
        return 0;
    }
    static const char *const parts[] = {"stem", "head", "blocks", "layer_block"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct mc_value *v = mc_value_get(lo->result, parts[i]);
        if (v)
            v->line = model->line;
        put(lo, model, parts[i], v);
    }
    return 1;
}

/* -- The whole ------------------------------------------------------------------------------- */

static void build_root(struct loader *lo)
{
    lo->root = load_chain(lo, lo->cfg->path, NULL);
    mc_path_dir(lo->vm->dir, sizeof lo->vm->dir, lo->cfg->path);
    if (!lo->root)
        return;
    for (int i = 0; i < lo->cfg->nset; i++)
        apply_set(lo, lo->cfg->set[i]);
    each_data_path(lo, lo->root, NULL);
    struct mc_value *schedule = mc_value_get(mc_value_get(lo->root, "parallel"), "schedule");
    if (schedule && schedule->kind == MC_V_STR && mc_lua_schedule_is_file(schedule->str))
        resolve_set_path(lo, "parallel.schedule", schedule);
    if (!mc_vocab_settle(lo->walk.pool, lo->root, lo->dir, lo->problems))
        lo->walk.failed = 1;
    struct mc_value *model = mc_value_get(lo->root, "model");
    if (model && model->kind == MC_V_MAP && !trace_model(lo, model)) {
        struct mc_value *mark = mc_value_new(lo->walk.pool, MC_V_BOOL);
        if (mark)
            mark->b = 1;
        put(lo, model, "untraced", mark);
    }
}

static int function_ref(const struct loader *lo, const struct mc_value *v)
{
    return mc_walk_function(&lo->walk, v);
}

static mc_status bind_root(struct loader *lo, struct mc_recipe_box **box, struct mc_err *err)
{
    if (lo->root) {
        const mc_status st = mc_recipe_bind(lo->root, lo->problems, box, err);
        if (st != MC_OK && st != MC_E_RECIPE)
            return st;
        if (st == MC_OK)
            mc_hooks_check(mc_recipe_of(*box), *box, lo->dir, lo->cfg->home, lo->problems);
    }
    if (lo->walk.failed)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the recipe's values");
    if (lo->problems->n > 0)
        return mc_err_set(err, MC_E_RECIPE, "%s: %d problem%s", lo->cfg->path, lo->problems->n,
                          lo->problems->n == 1 ? "" : "s");
    if (!*box)
        return mc_err_set(err, MC_E_BUG, "%s: no recipe and no problem", lo->cfg->path);
    return MC_OK;
}

static void print_line(void *arg, const char *text)
{
    fprintf(stderr, "%s: %s\n", (const char *)arg, text);
}

mc_status mc_lua_load_recipe(const struct mc_load_cfg *cfg, struct mc_problems *problems,
                             struct mc_loaded *out, struct mc_err *err)
{
    struct loader lo = {.cfg = cfg, .problems = problems};
    struct mc_recipe_box *box = NULL;
    char *text = NULL;
    const struct mc_vm_cfg vc = {.kind = MC_VM_RECIPE,
                                 .mem_cap = RECIPE_MEM,
                                 .home = cfg->home,
                                 .grace_ns = RECIPE_GRACE_NS,
                                 .exit_code = 2,
                                 .print = print_line};
    mc_path_dir(lo.dir, sizeof lo.dir, cfg->path);
    lo.walk = (struct mc_walk){.problems = problems, .pool = mc_values_create()};
    if (!lo.walk.pool)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the recipe's values");
    mc_status st = mc_vm_create(&vc, &lo.vm, err);
    if (st != MC_OK)
        goto out;
    lo.walk.vm = lo.vm;
    MC_TRY_GOTO(st, mc_vm_call(lo.vm, body_open, NULL, RECIPE_BUDGET_NS, cfg->path, err), out);
    const int file = mc_vm_read_file(lo.vm, cfg->path, 0, err);
    if (file < 0) {
        st = err && err->code ? err->code : MC_E_NOTFOUND;
        if (st == MC_E_IO) /* a loop of links, /proc/self/mem: it takes another path, no retry */
            st = MC_E_RECIPE;
        goto out;
    }
    lo.vm->cfg.print_arg = lo.vm->file[file].path; /* lives as long as the VM */
    text = mc_strdup(lo.vm->file[file].text);
    build_root(&lo);
    MC_TRY_GOTO(st, bind_root(&lo, &box, err), out);
    if (!text) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory for the recipe's text");
        goto out;
    }
    out->box = box;
    out->text = text;
    out->vm = lo.vm;
    out->lr_ref = function_ref(&lo, mc_value_get(lo.root, "lr"));
    out->batch_ref = function_ref(&lo, mc_value_get(mc_value_get(lo.root, "batch"), "global"));
    out->schedule_ref =
        function_ref(&lo, mc_value_get(mc_value_get(lo.root, "parallel"), "schedule"));
    snprintf(out->base_dir, sizeof out->base_dir, "%s", lo.dir);
    mc_values_destroy(lo.walk.pool);
    return MC_OK;
out:
    mc_recipe_destroy(box);
    mc_free(text);
    mc_vm_destroy(lo.vm);
    mc_values_destroy(lo.walk.pool);
    return st;
}

void mc_lua_loaded_fini(struct mc_loaded *l)
{
    mc_recipe_destroy(l->box);
    mc_free(l->text);
    mc_vm_destroy(l->vm);
    *l = (struct mc_loaded){0};
}
