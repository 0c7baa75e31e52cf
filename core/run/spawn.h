/* spawn.h - fork + exec of ranks, and signals turned into flags.
 *
 * I1  Ranks are direct children, PR_SET_PDEATHSIG(SIGKILL), getppid() compared after prctl; forked
 *     from the main thread only.
 * I2  A signal handler sets one word. SIGINT, SIGTERM, SIGHUP (a lost terminal; left
 *     ignored under nohup), SIGUSR1 and SIGUSR2 (Slurm's early warnings) count; SIGPIPE is ignored.
 */
#pragma once
#include <signal.h>
#include <sys/types.h>
#include "../base/status.h"

struct mc_spawn {
    const char *const *argv;
    const int *keep_fds;
    int nkeep;
    int threads; /* OPENBLAS/OMP thread environment of the child */
};
struct mc_child {
    pid_t pid;
    int pidfd; /* -1 where pidfd_open is missing */
};
/* argv[0] is a path; stdin becomes /dev/null; the child leads its own process group. A failed exec
 * is an error here. Main thread only. */
mc_status mc_spawn(const struct mc_spawn *s, struct mc_child *c, struct mc_err *err);

/* Handlers, SIGPIPE ignored, stop signals unblocked: mc_spawn's child has them blocked until it
 * calls this, so that none is lost. Idempotent. */
void mc_signals_install(void);
void mc_signals_set(sigset_t *set); /* the stop signals */
/* 1: the second stop signal ends this process as if there were no handler. For the time in which
 * there is nothing to lose and flags are looked at seldom. */
void mc_signals_second_kills(int yes);
int mc_signals_pending(void); /* 0, or the first stop signal received */
int mc_signals_count(
    void); /* how many stop signals so far: the second of a person at a terminal means "now" */
int mc_signals_last(void);      /* 0, or the latest */
void mc_signals_raise(int sig); /* tests: as if received */
void mc_signals_reset(void);    /* tests: as if none had been */
