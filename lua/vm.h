/* vm.h - one Lua state with its cap, its clock and its watchdog; the only door into Lua. */
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <lua.h>
#include "lines.h"
#include "../core/base/status.h"

/* Marks a function that may leave by longjmp: it owns nothing while it can. */
#define MC_LJMP

enum mc_vm_kind { MC_VM_RECIPE, MC_VM_HOOKS };
enum mc_vm_outcome { MC_VM_OK, MC_VM_ERROR, MC_VM_OVERRUN, MC_VM_NOMEM };

enum { MC_VM_MAX_FILES = 64, MC_VM_MAX_TEXT = 1 << 20 };

/* A text that was loaded into the state. The state knows it by `chunk`, which is short enough that
 * Lua never cuts it in a message; people know it by `path`. */
struct mc_vm_file {
    char *path; /* as the user named it */
    char chunk[56];
    char *text;
    size_t bytes;
    int library;            /* of home/lua */
    struct mc_lines *lines; /* made on first use */
};

struct mc_vm_cfg {
    enum mc_vm_kind kind;
    size_t mem_cap;   /* bytes */
    const char *home; /* holds lua/mascon */
    int64_t grace_ns; /* CPU beyond a call's budget after which the watchdog ends the process */
    /* Called on the watchdog's thread just before _exit(): may write an incident, must not touch
     * the VM. `what` names the text that was running ("" unknown). May be NULL. */
    void (*stuck)(void *arg, const char *what, const char *message);
    void *stuck_arg;
    int exit_code;                              /* of the watchdog */
    void (*print)(void *arg, const char *text); /* the sandbox's print */
    void *print_arg;
};

struct mc_vm {
    lua_State *L;
    struct mc_vm_cfg cfg;
    char home[1024];
    lua_Alloc base_alloc;
    void *base_ud;
    size_t used, peak;
    int64_t budget_ns, deadline_ns; /* of the present call, thread CPU time */
    int tripped;                    /* the budget is spent; stays until the call has unwound */
    int follow; /* note lines as they run: a tail call leaves no frame to find them by */
    int last_file, last_line;   /* newest one outside the core library; file -1: none */
    int pcalls;                 /* nested calls of the sandbox's pcall */
    enum mc_vm_outcome outcome; /* of the last call */
    char doing[256];            /* what the present call is, for the watchdog */
    char dir[2048];             /* `require` looks here for modules of the user's own */
    int env_ref;                /* environment that those modules get */
    int nfiles;
    struct mc_vm_file file[MC_VM_MAX_FILES];
    /* watchdog */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int thread_ok, active, quit;
    clockid_t clock; /* CPU clock of the thread that is in Lua */
    int64_t fire_ns; /* on that clock */
};

/* The state is heap life: mc_vm_destroy. MC_E_NOMEM, MC_E_MACHINE (no thread). */
mc_status mc_vm_create(const struct mc_vm_cfg *cfg, struct mc_vm **vm, struct mc_err *err);
void mc_vm_destroy(struct mc_vm *vm);

/* Runs body(L) with `arg` as light userdata in slot 1, protected, within budget_ns of this thread's
 * CPU time. On failure err->msg is the Lua message alone ("file:line: text"), code MC_E_RECIPE
 * (MC_E_NOMEM never: a full cap is the recipe's fault), and vm->outcome says which kind. `doing`
 * names the call for the watchdog. */
mc_status mc_vm_call(struct mc_vm *vm, lua_CFunction body, void *arg, int64_t budget_ns,
                     const char *doing, struct mc_err *err);

struct mc_vm *mc_vm_of(lua_State *L);
/* Reads a text and keeps it; the same path twice gives the same index. -1 with err set. */
int mc_vm_read_file(struct mc_vm *vm, const char *path, int library, struct mc_err *err);
/* -1: not a text of ours. chunk as in lua_Debug.source, with its '@'. */
int mc_vm_file_of_chunk(const struct mc_vm *vm, const char *source);
const struct mc_lines *mc_vm_lines(struct mc_vm *vm, int file);
/* Splits "chunk:12: text" into file and line where the chunk is ours; returns the text. */
const char *mc_vm_split_message(const struct mc_vm *vm, const char *msg, const char **path,
                                int *line);
/* Pushes file's chunk, compiled as text only, with the environment on top of the stack (popped). */
MC_LJMP void mc_vm_push_chunk(lua_State *L, int file);
