/* pool.h - this rank's worker threads. Tasks of one run are claimed in any order by any thread, so
 * a task must write only its own output and its bits must not depend on who runs it: the number of
 * tasks depends on the shape, never on the threads. Waits are passive (short spin, then futex):
 * ranks may outnumber cores. */
#pragma once
#include "status.h"

struct mc_pool;
typedef void (*mc_pool_fn)(void *arg, int task,
                           int thread); /* thread: 0 .. threads-1, for per-thread scratch */
/* threads >= 1, the caller counts as one. */
mc_status mc_pool_create(int threads, struct mc_pool **pool, struct mc_err *err);
void mc_pool_destroy(struct mc_pool *pool);
int mc_pool_threads(const struct mc_pool *pool);
/* A thread's own scratch, for what a kernel packs inside one task: aligned to a cache line, not
 * zeroed between tasks. */
#define MC_POOL_SCRATCH ((size_t)640 << 10) /* bytes */
void *mc_pool_scratch(const struct mc_pool *pool, int thread);
/* Runs fn(arg, 0..tasks-1, .) and returns when all are done. Called from one thread only; not
 * re-entrant. */
void mc_pool_run(struct mc_pool *pool, mc_pool_fn fn, void *arg, int tasks);
/* Cores this process may use: sched_getaffinity. OMP_NUM_THREADS, if set and sane, wins. At
 * least 1. */
int mc_pool_default_threads(int ranks_on_host);
