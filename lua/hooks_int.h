/* hooks_int.h - hook files, within lua/. */
#pragma once
#include "host.h"
#include "vm.h"

enum {
    MC_HOOK_STATE_MAX = 64 << 10, /* bytes of JSON */
    MC_HOOK_LINE_MAX = 64 << 10,
    MC_HOOK_STEP_MAX = 1 << 20, /* bytes a hook may append at one step */
    MC_HOOK_APPENDS = 4,        /* files a hook may append to */
    MC_HOOK_STRIKES = 3
};

struct mc_hook_append {
    char name[40];
    char path[MC_PATH + 64];
    int fd;
    int64_t bytes;
};
struct mc_hook {
    struct mc_hook_host *host;
    const struct mc_hook_cfg *cfg;
    char name[MC_WORD + 8]; /* for people and as the key of its state; "#2" for a second entry */
    char path[2 * MC_PATH], dir[2 * MC_PATH];
    int env_ref, self_ref;
    int fn_ref[MC_HOOK_NKINDS]; /* LUA_NOREF: the file has no such function */
    int strikes[MC_HOOK_NKINDS];
    int may_append;
    int logged;                        /* lines in the present call */
    int64_t append_step, append_bytes; /* of its lines at that step */
    int nappends;
    struct mc_hook_append append[MC_HOOK_APPENDS];
    char *good_state; /* last text that could be written; mc_free */
};
struct mc_hook_host {
    struct mc_vm *vm;
    struct mc_hooks_cfg cfg;
    char run_dir[MC_PATH], base_dir[MC_PATH], home[MC_PATH];
    int n;
    struct mc_hook hook[MC_MAX_HOOKS];
    /* of the present call */
    struct mc_hook *current;
    const struct mc_hook_event *ev;
    enum mc_hook_kind kind;
    struct mc_directive answer;
    const struct mc_value *value;
    char text[MC_HOOK_STATE_MAX + 1]; /* JSON of a state, or a line to append */
};

void mc_hooks_report(struct mc_hook_host *h, const char *kind, const struct mc_hook *hook,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* -- hooks_api.c: what a hook is given, and its answer --------------------------------------------
 */
MC_LJMP void mc_hooks_push_event(lua_State *L, const struct mc_hook_event *ev);
/* Pushes hook's `self`, with the state table at slot `state` (0: a new one). */
MC_LJMP void mc_hooks_push_self(lua_State *L, struct mc_hook *hook, int state);
/* The answer at the top of the stack into *d; raises on anything else. */
MC_LJMP void mc_hooks_read_answer(lua_State *L, enum mc_hook_kind kind, struct mc_directive *d);

/* -- hooks_state.c --------------------------------------------------------------------------------
 */
/* The table at idx as JSON into host->text; raises when it is no plain data or too large. */
MC_LJMP void mc_hooks_encode_state(lua_State *L, struct mc_hook_host *h, int idx);
mc_status mc_hooks_save_state(void *ctx, struct mc_json *j, const char *key, struct mc_err *err);
mc_status mc_hooks_load_state(void *ctx, const char *json, struct mc_err *err);

/* Loads every hook file of the recipe as a run would, and adds what is wrong to problems. */
void mc_hooks_check(const struct mc_recipe *r, const struct mc_recipe_box *box,
                    const char *base_dir, const char *home, struct mc_problems *problems);
