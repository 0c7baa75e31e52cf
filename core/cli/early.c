/* early.c - what must be settled before any library of this process runs. Floor 8 (cli).
 *
 * OpenBLAS starts a thread a core when it is loaded, before main(). We never use them (kern brings
 * its own split), they cost a stack and a packing buffer each, and where memory is limited (ulimit
 * -v) one of them tries again for ever, and the end of the process waits for it. The one thing that
 * keeps it from starting them is its environment variable, read in its constructor. So the program
 * executes itself once more with that variable set.
 *
 * UCX, when it is loaded, takes SIGSEGV, SIGBUS and their like for stack traces of its own, and
 * from then on refuses other handlers (ours, bus.c; the sanitizers'): what it reads in its
 * constructor, UCX_HANDLE_ERRORS, is set on the same occasion, unless the user has set it.
 *
 * I1  .preinit_array of an executable runs before the constructors of all libraries: no thread, no
 *     lock, no open file is lost by the execve. The C library is not initialised either: system
 *     calls only, the environment is the third argument.
 * I2  Once: the second image finds the variables set and goes on. Where the execve fails the first
 *     image goes on, slower but sound.
 * I3  What SIGHUP's disposition was when the process was started is seen here: UCX, when it is
 *     loaded, takes that signal for a debugging aid of its own, and `nohup` would be undone.
 *
 * Ranks inherit both from their agent and pay nothing.
 * Memory: one mapping for the new environment, gone with the execve. Threads: none yet. */
#include "cli.h"
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLAS_THREADS "OPENBLAS_NUM_THREADS="
#define UCX_ERRORS   "UCX_HANDLE_ERRORS="

/* The sanitizers' own start comes after this. */
#define BEFORE_SANITIZERS __attribute__((no_sanitize("address"), no_sanitize("thread")))

BEFORE_SANITIZERS static int begins(const char *var, const char *want)
{
    while (*want && *var == *want) {
        var++;
        want++;
    }
    return *want == '\0';
}

static int g_hup_ignored;

/* The kernel's record begins with the handler (x86-64, aarch64); sigaction() is not the sanitizers'
 * to watch over yet. */
BEFORE_SANITIZERS static void look_at_hup(void) /* I3 */
{
    union {
        void (*handler)(int);
        char room[256];
    } now;
    if (syscall(SYS_rt_sigaction, SIGHUP, NULL, &now, (size_t)8) == 0)
        g_hup_ignored = now.handler == SIG_IGN;
}

void mc_early_signals(void)
{
    if (g_hup_ignored)
        signal(SIGHUP, SIG_IGN);
}

BEFORE_SANITIZERS static void before_all(int argc, char **argv, char **env)
{
    static char one[] = BLAS_THREADS "1", none[] = UCX_ERRORS "none";
    static char exe[PATH_MAX]; /* its own path, not /proc/self/exe: `ps` shows the last component */
    size_t n = 0, k = 0;
    int blas = 0, ucx = 0;
    (void)argc;
    look_at_hup();
    for (; env[n]; n++) {
        blas |= begins(env[n], one) && env[n][sizeof one - 1] == '\0';
        ucx |= begins(env[n], UCX_ERRORS);
    }
    if (blas && ucx)
        return; /* I2 */
    char **own = mmap(NULL, (n + 3) * sizeof *own, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (own == MAP_FAILED || len <= 0)
        return;
    exe[len] = '\0';
    for (size_t i = 0; i < n; i++)
        if (!begins(env[i], BLAS_THREADS))
            own[k++] = env[i];
    own[k++] = one;
    if (!ucx)
        own[k++] = none;
    own[k] = NULL;
    execve(exe, argv, own);
    munmap(own, (n + 3) * sizeof *own);
}

/* I1 */
__attribute__((section(".preinit_array"), used)) static void (*const early)(int, char **,
                                                                            char **) = before_all;
