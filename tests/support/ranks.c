/* ranks.c - processes of this machine as the ranks of a net. */
#include "ranks.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../../core/base/clock.h"

enum { RANKS_MAX = 64, MESSAGE_MAX = 4096 };
struct test_world {
    _Atomic int exchanged[RANKS_MAX], met[RANKS_MAX];
    char message[RANKS_MAX][MESSAGE_MAX];
    char name[RANKS_MAX][32];
};

/* Leaks of a child, since _exit skips the check at exit. */
extern void __lsan_do_leak_check(void) __attribute__((weak));

static void nap(void)
{
    const struct timespec t = {.tv_nsec = 500000};
    nanosleep(&t, NULL);
}

static int wait_for(const _Atomic int *flags, int n, int at_least, int64_t until_ns)
{
    for (int i = 0; i < n; i++)
        while (atomic_load(&flags[i]) < at_least) {
            if (mc_clock_ns() > until_ns)
                return i;
            nap();
        }
    return -1;
}

static mc_status exchange(void *arg, const char *what, const void *mine, size_t n, void *all,
                          int64_t deadline_ns, struct mc_err *err)
{
    struct test_rank *r = arg;
    if (n > MESSAGE_MAX)
        return mc_err_set(err, MC_E_BUG, "%s: %zu bytes", what, n);
    memcpy(r->shared->message[r->me], mine, n);
    int turn = atomic_fetch_add(&r->shared->exchanged[r->me], 1) + 1;
    int missing = wait_for(r->shared->exchanged, r->world, turn, mc_clock_ns() + deadline_ns);
    if (missing >= 0)
        return mc_err_set(err, MC_E_TIMEOUT, "%s: rank %d is missing", what, missing);
    for (int i = 0; i < r->world; i++)
        memcpy((char *)all + (size_t)i * n, r->shared->message[i], n);
    return MC_OK;
}

static const char *name_of(void *arg, int rank)
{
    return ((struct test_rank *)arg)->shared->name[rank];
}

void test_rank_meet(struct test_rank *r)
{
    int turn = atomic_fetch_add(&r->shared->met[r->me], 1) + 1;
    RANK_CHECK(r, wait_for(r->shared->met, r->world, turn, mc_clock_ns() + 60000000000) < 0);
}

void test_rank_fail(const struct test_rank *r, const char *file, int line, const char *what)
{
    fprintf(stderr, "rank %d: %s:%d: not so: %s\n", r->me, file, line, what);
    _exit(1);
}

struct mc_comm_net *test_rank_net(struct test_rank *r, _Atomic int64_t *calls,
                                  _Atomic int64_t *bytes)
{
    struct mc_err err = {0};
    struct mc_comm_net *net = NULL;
    const struct mc_comm_net_cfg cfg = {.world = r->world,
                                        .me = r->me,
                                        .peers = &r->peers,
                                        .deadline_ns = 30000000000,
                                        .collective_seq = calls,
                                        .bytes_moved = bytes};
    if (mc_comm_net_open(&cfg, &net, &err) != MC_OK)
        test_rank_fail(r, __FILE__, __LINE__, err.msg);
    return net;
}

struct mc_comm *test_rank_group(struct test_rank *r, struct mc_comm_net *net, const char *name,
                                const int *ranks, int n, double deadline_s)
{
    struct mc_err err = {0};
    int all[RANKS_MAX];
    struct mc_comm *c = NULL;
    struct mc_comm_cfg cfg = {.name = name,
                              .size = n,
                              .ranks = ranks,
                              .me = -1,
                              .deadline_ns = (int64_t)(deadline_s * 1e9)};
    for (int i = 0; i < r->world; i++)
        all[i] = i;
    if (!ranks) {
        cfg.ranks = all;
        cfg.size = r->world;
    }
    for (int i = 0; i < cfg.size; i++)
        if (cfg.ranks[i] == r->me)
            cfg.me = i;
    if (mc_comm_group_create(net, &cfg, &c, &err) != MC_OK)
        test_rank_fail(r, __FILE__, __LINE__, err.msg);
    return c;
}

static void child(struct test_world *shared, int n, int me, test_rank_fn fn, void *arg,
                  pid_t parent)
{
    struct test_rank r = {.world = n, .me = me, .shared = shared};
    r.peers = (struct mc_comm_peers){.arg = &r, .exchange = exchange, .describe = name_of};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    fn(&r, arg);
    fflush(NULL);
    if (__lsan_do_leak_check)
        __lsan_do_leak_check();
    _exit(0);
}

int test_ranks_run(int n, test_rank_fn fn, void *arg, int timeout_s, int *status)
{
    pid_t pid[RANKS_MAX];
    int done[RANKS_MAX] = {0}, st[RANKS_MAX] = {0}, bad = 0, left = n;
    int64_t until = mc_clock_ns() + timeout_s * 1000000000LL;
    struct test_world *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || n > RANKS_MAX)
        return n;
    for (int i = 0; i < n; i++)
        snprintf(shared->name[i], sizeof shared->name[i], "rank %d on node%d", i, i / 4);
    fflush(NULL);
    pid_t self = getpid();
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        if (pid[i] == 0)
            child(shared, n, i, fn, arg, self);
    }
    while (left > 0) {
        int late = mc_clock_ns() > until;
        for (int i = 0; i < n; i++) {
            if (!done[i] && late) {
                fprintf(stderr, "rank %d still runs after %d s\n", i, timeout_s);
                kill(pid[i], SIGKILL);
            }
            if (!done[i] && waitpid(pid[i], &st[i], late ? 0 : WNOHANG) == pid[i]) {
                done[i] = 1;
                left--;
                bad += st[i] != 0;
                if (WIFSIGNALED(st[i]) && WTERMSIG(st[i]) != SIGKILL)
                    fprintf(stderr, "rank %d: signal %d\n", i, WTERMSIG(st[i]));
            }
        }
        nap();
    }
    if (status)
        memcpy(status, st, (size_t)n * sizeof *status);
    munmap(shared, sizeof *shared);
    return bad;
}
