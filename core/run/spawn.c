/* spawn.c - fork + exec of ranks; stop signals turned into flags. Floor 3 (run).
 *
 * I1  A rank cannot outlive its agent: PR_SET_PDEATHSIG(SIGKILL) before exec, then getppid() is
 *     compared, because the agent may have died before the prctl. The kernel sends it when the
 *     *thread* that forked ends: only the main thread may fork.
 * I2  The handler changes lock-free words, and nothing else. The same signal within 250 ms of one
 *     that counted is the same request: `timeout` sends it to the process and to its group, Slurm
 *     to every process of a step, and the agent forwards it too; a second one means "now" only when
 *     a person or a script could have seen that the first was not enough. One handler at a time:
 *     the others wait for its end, so that signals count in the order of their delivery.
 * I3  No stop signal is lost on the way to a rank: the child keeps the stop signals blocked
 *     from the fork until its mc_signals_install, which unblocks them; until then they are
 *     pending.
 * I4  A rank is the leader of its own process group: the terminal's ctrl-C reaches the agent alone,
 *     which forwards it, so that a rank counts each signal once.
 * I5  Of the agent's descriptors a rank receives stdout, stderr and keep_fds; stdin is /dev/null.
 * I6  Between fork and exec only async-signal-safe calls; a failed exec reports its errno through a
 *     pipe, so that mc_spawn returns the error.
 * I7  The environment of a rank fixes the BLAS threads at 1 before the library is loaded, sets
 *     OMP_NUM_THREADS to the threads of the rank, and holds none of LuaJIT's own variables.
 *
 * Memory: the environment's pointer array, freed before return. Threads: the main thread. */
#include "spawn.h"
#include "../base/arena.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define CLOSE_RANGE_CLOEXEC_BIT 4u

/* ---- signals ---- */

static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
enum { NSTOP = sizeof stop_signals / sizeof *stop_signals };

/* bits 0-7: the first stop signal; 8-15: the latest; 16-31: how many */
static _Atomic uint32_t g_signals;

static _Atomic int g_second_kills;

static _Atomic int64_t g_counted_ns[NSTOP]; /* when that signal last counted; 0: never */
#define SAME_REQUEST_NS INT64_C(250000000)

static void count_signal(int sig)
{
    uint32_t old = atomic_load(&g_signals), new;
    do {
        uint32_t count = old >> 16, first = old & 0xff;
        new = (count < 0xffff ? count + 1 : count) << 16 | (uint32_t)sig << 8 |
              (first ? first : (uint32_t)sig);
    } while (!atomic_compare_exchange_weak(&g_signals, &old, new));
}

static void on_signal(int sig) /* I2 */
{
    int keep = errno, i = 0;
    struct timespec t;
    while (i < NSTOP - 1 && stop_signals[i] != sig)
        i++;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec, last = atomic_load(&g_counted_ns[i]);
    errno = keep;
    if (last != 0 && now - last < SAME_REQUEST_NS)
        return;
    atomic_store(&g_counted_ns[i], now);
    count_signal(sig);
    if (atomic_load(&g_second_kills) && mc_signals_count() >= 2) {
        signal(sig, SIG_DFL);
        raise(sig); /* delivered when this handler returns */
    }
}

void mc_signals_set(sigset_t *set)
{
    sigemptyset(set);
    for (int i = 0; i < NSTOP; i++)
        sigaddset(set, stop_signals[i]);
}

static int is_ignored(int sig)
{
    struct sigaction a;
    return sigaction(sig, NULL, &a) == 0 && a.sa_handler == SIG_IGN;
}

void mc_signals_install(void)
{
    struct sigaction a;
    sigset_t set;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    mc_signals_set(&a.sa_mask); /* I2 */
    a.sa_flags = SA_RESTART;    /* waits that must notice use ppoll, which no flag restarts */
    for (int i = 0; i < NSTOP; i++)
        if (stop_signals[i] != SIGHUP || !is_ignored(SIGHUP)) /* nohup's wish */
            sigaction(stop_signals[i], &a, NULL);
    signal(SIGPIPE, SIG_IGN);
    mc_signals_set(&set);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* I3 */
}

void mc_signals_second_kills(int yes)
{
    atomic_store(&g_second_kills, yes);
}

int mc_signals_pending(void)
{
    return (int)(atomic_load(&g_signals) & 0xff);
}

int mc_signals_last(void)
{
    return (int)(atomic_load(&g_signals) >> 8 & 0xff);
}

int mc_signals_count(void)
{
    return (int)(atomic_load(&g_signals) >> 16);
}

void mc_signals_raise(int sig)
{
    count_signal(sig);
}

void mc_signals_reset(void)
{
    atomic_store(&g_signals, 0);
    for (int i = 0; i < NSTOP; i++)
        atomic_store(&g_counted_ns[i], 0);
}

/* ---- the child's environment (I7) ---- */

static int is_dropped(const char *var)
{
    static const char *const exact[] = {
        "OPENBLAS_NUM_THREADS=", "GOTO_NUM_THREADS=", "OMP_NUM_THREADS="};
    static const char *const prefix[] = {"LUA_INIT", "LUA_PATH", "LUA_CPATH"};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (strncmp(var, exact[i], strlen(exact[i])) == 0)
            return 1;
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++) {
        size_t n = strlen(prefix[i]); /* LUA_PATH=, LUA_PATH_5_1= */
        if (strncmp(var, prefix[i], n) == 0 && (var[n] == '=' || var[n] == '_'))
            return 1;
    }
    return 0;
}

static char **child_env(char *omp)
{
    static char blas[] = "OPENBLAS_NUM_THREADS=1";
    int n = 0, k = 0;
    while (environ && environ[n])
        n++;
    char **env = mc_alloc((size_t)(n + 3) * sizeof *env, "environment of a rank");
    if (!env)
        return NULL;
    for (int i = 0; i < n; i++)
        if (!is_dropped(environ[i]))
            env[k++] = environ[i];
    env[k++] = blas;
    env[k++] = omp;
    env[k] = NULL;
    return env;
}

/* ---- fork and exec ---- */

/* In the child, after fork: never returns. parent: the agent; report: where an errno goes (I6). */
_Noreturn static void child(const struct mc_spawn *s, char **env, pid_t parent, int null_fd,
                            int report, int max_fd)
{
    int e = 0;
    setpgid(0, 0);                                             /* I4 */
    if (prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL) == -1) /* I1 */
        e = errno;
    if (getppid() != parent)
        _exit(76);
    if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC_BIT) == -1) /* I5 */
        for (int fd = 3; fd < max_fd; fd++)
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (int i = 0; i < s->nkeep && e == 0; i++)
        if (fcntl(s->keep_fds[i], F_SETFD, 0) == -1)
            e = errno;
    if (e == 0 && dup2(null_fd, STDIN_FILENO) == -1)
        e = errno;
    if (e == 0) {
        execve(s->argv[0], (char *const *)(uintptr_t)s->argv, env);
        e = errno;
    }
    while (write(report, &e, sizeof e) == -1 && errno == EINTR)
        ;
    _exit(127);
}

/* errno of the child's failed exec, 0 when it succeeded (the pipe closed on exec). */
static int read_report(int fd)
{
    int e = 0;
    ssize_t r;
    do
        r = read(fd, &e, sizeof e);
    while (r == -1 && errno == EINTR);
    return r == (ssize_t)sizeof e ? e : 0;
}

static int highest_fd(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < 65536)
        return (int)l.rlim_cur;
    return 65536;
}

mc_status mc_spawn(const struct mc_spawn *s, struct mc_child *c, struct mc_err *err)
{
    char omp[48];
    int pipe_fd[2];
    if (syscall(SYS_gettid) != getpid()) /* I1 */
        return mc_err_set(err, MC_E_BUG, "a rank may be forked from the main thread only");
    snprintf(omp, sizeof omp, "OMP_NUM_THREADS=%d", s->threads > 0 ? s->threads : 1);
    char **env = child_env(omp);
    if (!env)
        return mc_err_set(err, MC_E_NOMEM, "no memory to start %s", s->argv[0]);
    mc_status st = MC_OK;
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd == -1) {
        st = mc_err_sys(err, "cannot open /dev/null");
        goto out_env;
    }
    if (pipe2(pipe_fd, O_CLOEXEC) == -1) {
        st = mc_err_sys(err, "cannot start %s: pipe", s->argv[0]);
        goto out_null;
    }
    sigset_t stop, old;
    mc_signals_set(&stop);
    pthread_sigmask(SIG_BLOCK, &stop, &old); /* I3 */
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        child(s, env, parent, null_fd, pipe_fd[1], highest_fd());
    int fork_errno = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    close(pipe_fd[1]);
    if (pid == -1) {
        errno = fork_errno;
        st = mc_err_set(err, MC_E_MACHINE,
                        "cannot start %s: fork: %s; raise the limit of "
                        "processes (ulimit -u) or free memory",
                        s->argv[0], strerror(fork_errno));
        goto out_pipe;
    }
    (void)setpgid(pid, pid); /* I4: also here, whoever comes first; EACCES after exec is fine */
    int e = read_report(pipe_fd[0]);
    if (e != 0) {
        while (waitpid(pid, NULL, 0) == -1 && errno == EINTR)
            ;
        st = mc_err_set(err, MC_E_MACHINE, "cannot start %s: %s", s->argv[0], strerror(e));
        goto out_pipe;
    }
    c->pid = pid;
    c->pidfd = (int)syscall(SYS_pidfd_open, pid, 0u); /* close-on-exec by itself; -1 is legal */
out_pipe:
    close(pipe_fd[0]);
out_null:
    close(null_fd);
out_env:
    mc_free(env);
    return st;
}
