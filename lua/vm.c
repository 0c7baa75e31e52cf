/* vm.c - the Lua state: allocator cap, CPU budget, watchdog, and the one protected entry.
 * Floor 7 (lua). The JIT engine is off: compiled code would not call count hooks.
 *
 * I1  C enters Lua only through mc_vm_call(): every outcome becomes an mc_status there, and no
 *     longjmp passes a frame of ours that owns something.
 * I2  A spent budget is sticky: from then on every instruction raises, so pcall in a loop cannot
 *     swallow it. It is lifted only when the protected call has unwound to C.
 * I3  What no hook can interrupt (a backtracking string.find is one C call) is ended by the
 *     watchdog: it reads the CPU clock of the thread in Lua, so a loaded machine or a debugger's
 *     stop does not make a short call look long.
 * I4  The cap counts every byte that the state asks for; a request above it fails inside Lua as
 *     "not enough memory".
 *
 * Memory: LuaJIT's own allocator below the cap, so that hooks in the step loop do not disturb the
 * engine's books; texts and the struct are handle life. Threads: one at a time in Lua, and the
 * watchdog, which touches only what `lock` guards. */
#include "vm.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <lauxlib.h>
#include <luajit.h>
#include "../core/base/arena.h"
#include "../core/base/clock.h"
#include "../core/base/sysio.h"

/* Instructions between looks at the clock: some 40 us in the interpreter, against 0.3 us for the
 * system call that reads a thread's CPU time. */
enum { HOOK_EVERY = 10000 };

/* -- Memory ---------------------------------------------------------------------------------- */

static void *capped_alloc(void *ud, void *ptr, size_t osize, size_t nsize)
{
    struct mc_vm *vm = ud;
    if (nsize > osize && (nsize > vm->cfg.mem_cap || vm->used + (nsize - osize) > vm->cfg.mem_cap))
        return NULL; /* I4 */
    void *p = vm->base_alloc(vm->base_ud, ptr, osize, nsize);
    if (p || nsize == 0) {
        vm->used = vm->used + nsize - osize;
        if (vm->used > vm->peak)
            vm->peak = vm->used;
    }
    return p;
}

struct mc_vm *mc_vm_of(lua_State *L)
{
    void *ud = NULL;
    lua_getallocf(L, &ud);
    return ud;
}

/* -- Watchdog -------------------------------------------------------------------------------- */

static int64_t clock_ns(clockid_t c)
{
    struct timespec ts;
    return clock_gettime(c, &ts) ? 0 : (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void watchdog_fire(struct mc_vm *vm)
{
    char msg[640];
    const double s = (double)vm->budget_ns / 1e9;
    snprintf(msg, sizeof msg,
             "did not give control back within %.3g s of CPU time and cannot be interrupted (a "
             "backtracking string.find, for example); the process ends here",
             s);
    if (vm->cfg.stuck)
        vm->cfg.stuck(vm->cfg.stuck_arg, vm->doing, msg);
    else {
        char line[960];
        const int n = snprintf(line, sizeof line, "mascon: %s: %s\n", vm->doing, msg);
        if (write(STDERR_FILENO, line, (size_t)n) < 0)
            errno = 0; /* nobody is left to tell */
    }
    _exit(vm->cfg.exit_code);
}

static void *watchdog_main(void *arg)
{
    struct mc_vm *vm = arg;
    pthread_mutex_lock(&vm->lock);
    while (!vm->quit) {
        if (!vm->active) {
            pthread_cond_wait(&vm->wake, &vm->lock);
            continue;
        }
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        ts.tv_nsec += 50000000; /* 50 ms between looks */
        if (ts.tv_nsec >= 1000000000) {
            ts.tv_nsec -= 1000000000;
            ts.tv_sec++;
        }
        pthread_cond_timedwait(&vm->wake, &vm->lock, &ts);
        if (vm->active && !vm->quit && clock_ns(vm->clock) > vm->fire_ns) /* I3 */
            watchdog_fire(vm);
    }
    pthread_mutex_unlock(&vm->lock);
    return NULL;
}

static mc_status watchdog_start(struct mc_vm *vm, struct mc_err *err)
{
    pthread_condattr_t ca;
    pthread_mutex_init(&vm->lock, NULL);
    pthread_condattr_init(&ca);
    pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    pthread_cond_init(&vm->wake, &ca);
    pthread_condattr_destroy(&ca);
    const int rc = pthread_create(&vm->thread, NULL, watchdog_main, vm);
    if (rc)
        return mc_err_set(err, MC_E_MACHINE, "cannot start the Lua watchdog's thread: %s",
                          strerror(rc));
    vm->thread_ok = 1;
    return MC_OK;
}

static void watchdog_arm(struct mc_vm *vm, const char *doing)
{
    pthread_mutex_lock(&vm->lock);
    snprintf(vm->doing, sizeof vm->doing, "%s", doing);
    if (pthread_getcpuclockid(pthread_self(), &vm->clock) == 0) {
        vm->fire_ns = clock_ns(vm->clock) + vm->budget_ns + vm->cfg.grace_ns;
        vm->active = 1;
    }
    pthread_cond_signal(&vm->wake);
    pthread_mutex_unlock(&vm->lock);
}

static void watchdog_disarm(struct mc_vm *vm)
{
    pthread_mutex_lock(&vm->lock);
    vm->active = 0;
    pthread_mutex_unlock(&vm->lock);
}

/* -- Budget ---------------------------------------------------------------------------------- */

MC_LJMP static void on_hook(lua_State *L, lua_Debug *ar)
{
    struct mc_vm *vm = mc_vm_of(L);
    if (ar->event == LUA_HOOKLINE) {
        lua_getinfo(L, "S", ar);
        const int f = mc_vm_file_of_chunk(vm, ar->source);
        if (f >= 0 && (!vm->file[f].library || strstr(vm->file[f].chunk, "/models/"))) {
            vm->last_file = f;
            vm->last_line = ar->currentline;
        }
        return;
    }
    if (!vm->tripped) {
        if (mc_clock_thread_cpu_ns() < vm->deadline_ns)
            return;
        vm->tripped = 1;
        lua_sethook(L, on_hook, LUA_MASKCOUNT, 1); /* I2 */
    }
    lua_getinfo(L, "Sl", ar); /* a hook runs in no frame of its own: luaL_where would miss by one */
    const int f = ar->currentline > 0 ? mc_vm_file_of_chunk(vm, ar->source) : -1;
    if (f >= 0)
        lua_pushfstring(L, "%s:%d: ran longer than %d ms of CPU time", vm->file[f].chunk + 1,
                        ar->currentline, (int)(vm->budget_ns / 1000000));
    else
        lua_pushfstring(L, "ran longer than %d ms of CPU time", (int)(vm->budget_ns / 1000000));
    lua_error(L);
}

/* -- Life ------------------------------------------------------------------------------------ */

mc_status mc_vm_create(const struct mc_vm_cfg *cfg, struct mc_vm **out, struct mc_err *err)
{
    struct mc_vm *vm = mc_alloc(sizeof *vm, "lua vm");
    if (!vm)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a Lua state");
    vm->cfg = *cfg;
    vm->env_ref = LUA_NOREF;
    snprintf(vm->home, sizeof vm->home, "%s", cfg->home);
    vm->L = luaL_newstate();
    if (!vm->L) {
        mc_free(vm);
        return mc_err_set(err, MC_E_NOMEM, "no memory for a Lua state");
    }
    vm->used =
        ((size_t)lua_gc(vm->L, LUA_GCCOUNT, 0) << 10) + (size_t)lua_gc(vm->L, LUA_GCCOUNTB, 0);
    vm->base_alloc = lua_getallocf(vm->L, &vm->base_ud);
    lua_setallocf(vm->L, capped_alloc, vm);
    luaJIT_setmode(vm->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    const mc_status st = watchdog_start(vm, err);
    if (st != MC_OK) {
        mc_vm_destroy(vm);
        return st;
    }
    *out = vm;
    return MC_OK;
}

void mc_vm_destroy(struct mc_vm *vm)
{
    if (!vm)
        return;
    if (vm->thread_ok) {
        pthread_mutex_lock(&vm->lock);
        vm->quit = 1;
        pthread_cond_signal(&vm->wake);
        pthread_mutex_unlock(&vm->lock);
        pthread_join(vm->thread, NULL);
    }
    pthread_cond_destroy(&vm->wake);
    pthread_mutex_destroy(&vm->lock);
    lua_setallocf(vm->L, vm->base_alloc, vm->base_ud); /* lua_close frees its arenas through it */
    lua_close(vm->L);
    for (int i = 0; i < vm->nfiles; i++) {
        mc_free(vm->file[i].path);
        mc_free(vm->file[i].text);
        mc_lines_destroy(vm->file[i].lines);
    }
    mc_free(vm);
}

mc_status mc_vm_call(struct mc_vm *vm, lua_CFunction body, void *arg, int64_t budget_ns,
                     const char *doing, struct mc_err *err)
{
    lua_State *L = vm->L;
    vm->tripped = 0;
    vm->pcalls = 0;
    vm->last_file = -1;
    vm->budget_ns = budget_ns;
    watchdog_arm(vm, doing);
    vm->deadline_ns = mc_clock_thread_cpu_ns() + budget_ns;
    lua_sethook(L, on_hook, LUA_MASKCOUNT | (vm->follow ? LUA_MASKLINE : 0), HOOK_EVERY);
    const int rc = lua_cpcall(L, body, arg); /* I1 */
    lua_sethook(L, NULL, 0, 0);
    watchdog_disarm(vm);

    if (rc == 0) {
        vm->outcome = MC_VM_OK;
        return MC_OK;
    }
    vm->outcome = vm->tripped ? MC_VM_OVERRUN : rc == LUA_ERRMEM ? MC_VM_NOMEM : MC_VM_ERROR;
    const char *msg = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    mc_status st;
    if (vm->outcome == MC_VM_NOMEM ||
        (msg && vm->outcome == MC_VM_ERROR && !strcmp(msg, "not enough memory"))) {
        vm->outcome = MC_VM_NOMEM;
        st = mc_err_set(err, MC_E_RECIPE, "needs more than the %zu MiB that Lua may use",
                        vm->cfg.mem_cap >> 20);
    } else if (!msg)
        st = mc_err_set(err, MC_E_RECIPE, "raised an error that is not a text but a %s",
                        luaL_typename(L, -1));
    else
        st = mc_err_set(err, MC_E_RECIPE, "%.1300s", msg);
    lua_settop(L, 0);
    if (vm->outcome == MC_VM_NOMEM || vm->outcome == MC_VM_OVERRUN)
        lua_gc(L, LUA_GCCOLLECT, 0);
    return st;
}

/* -- Texts ----------------------------------------------------------------------------------- */

static void chunk_name(struct mc_vm_file *f)
{
    const char *name = f->path;
    const char *lib = f->library ? strstr(name, "/lua/mascon/") : NULL;
    for (const char *next = lib; next; next = strstr(next + 1, "/lua/mascon/"))
        lib = next;
    if (lib)
        name = lib + 5;
    if (strlen(name) >= sizeof f->chunk - 1) {
        const char *base = strrchr(name, '/');
        name = base ? base + 1 : name;
    }
    snprintf(f->chunk, sizeof f->chunk, "@%.54s", name);
}

int mc_vm_read_file(struct mc_vm *vm, const char *path, int library, struct mc_err *err)
{
    for (int i = 0; i < vm->nfiles; i++)
        if (!strcmp(vm->file[i].path, path))
            return i;
    if (vm->nfiles == MC_VM_MAX_FILES) {
        mc_err_set(err, MC_E_RECIPE, "%s: more than %d Lua files in one recipe", path,
                   MC_VM_MAX_FILES);
        return -1;
    }
    struct mc_vm_file f = {.library = library};
    if (mc_sys_is_dir(path)) {
        mc_err_set(err, MC_E_RECIPE, "%s is a folder, not a Lua file", path);
        return -1;
    }
    if (mc_sys_read_file(path, MC_VM_MAX_TEXT, &f.text, &f.bytes, err) != MC_OK)
        return -1;
    f.path = mc_strdup(path);
    if (!f.path) {
        mc_free(f.text);
        mc_err_set(err, MC_E_NOMEM, "no memory for %s", path);
        return -1;
    }
    chunk_name(&f);
    vm->file[vm->nfiles] = f;
    return vm->nfiles++;
}

int mc_vm_file_of_chunk(const struct mc_vm *vm, const char *source)
{
    for (int i = 0; i < vm->nfiles; i++)
        if (!strcmp(vm->file[i].chunk, source))
            return i;
    return -1;
}

const struct mc_lines *mc_vm_lines(struct mc_vm *vm, int file)
{
    struct mc_vm_file *f = &vm->file[file];
    if (!f->lines)
        f->lines = mc_lines_create(f->text, f->bytes);
    return f->lines;
}

const char *mc_vm_split_message(const struct mc_vm *vm, const char *msg, const char **path,
                                int *line)
{
    for (int i = 0; i < vm->nfiles; i++) {
        const char *chunk = vm->file[i].chunk + 1;
        const size_t n = strlen(chunk);
        int l = 0, used = 0;
        if (!strncmp(msg, chunk, n) && sscanf(msg + n, ":%d: %n", &l, &used) == 1 && used > 0) {
            *path = vm->file[i].path;
            *line = l;
            return msg + n + used;
        }
    }
    return msg;
}

MC_LJMP void mc_vm_push_chunk(lua_State *L, int file)
{
    const struct mc_vm_file *f = &mc_vm_of(L)->file[file];
    if (f->bytes && f->text[0] == '\033')
        luaL_error(L, "%s: compiled Lua is not accepted, only text", f->path);
    if (memchr(f->text, 0, f->bytes))
        luaL_error(L, "%s: not a text (it holds a zero byte)", f->path);
    if (luaL_loadbufferx(L, f->text, f->bytes, f->chunk, "t"))
        lua_error(L);
    lua_insert(L, -2);
    lua_setfenv(L, -2);
}
