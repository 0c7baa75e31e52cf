/* pool.c - this rank's worker threads. Floor 0 (base).
 *
 * One 64-bit word `claim` = generation << 32 | tasks not claimed yet. The caller of mc_pool_run
 * writes the job (fn, arg, tasks), then publishes claim = (generation + 1, tasks). Everybody, the
 * caller too, takes tasks by compare-and-swap on that word until it says 0.
 *
 * I1  A thread runs a task only after a swap of the word from (g, n > 0), g being the generation
 *     whose job it has read. The word alone says whether a task is left: the job's count may
 *     already be that of the next run when a late thread reads it. While a task of g is unclaimed,
 *     run g has not returned and its job stands; so the job that a successful swapper read is that
 *     of g, and a late thread's swap fails. Therefore mc_pool_run returns as soon as the last task
 *     is done and never waits for a thread that the system has not scheduled yet.
 * I2  Task results happen-before the return of mc_pool_run: each task ends with a release increment
 *     of `done`, which the caller acquires.
 * I3  No wake-up is lost: a sleeper raises its count, then looks again, then sleeps on a word that
 *     the waker has changed before it looks at the count; all four sequentially consistent.
 * I4  Waits spin for some microseconds, then sleep in the kernel: ranks may outnumber cores.
 * I5  Workers block all signals: handlers run on the main thread only.
 * I6  With one thread, or one task, nothing is shared and no atomic is touched.
 *
 * Memory: two blocks of mc_alloc, the second the threads' scratch, freed by destroy. Threads:
 * mc_pool_run from one thread at a time.
 */
#include "pool.h"
#include "arena.h"
#include "clock.h"
#include "log.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_THREADS = 1024 };
#define SPIN_NS                                                                                    \
    20000 /* from one product to the next are a few microseconds; a sleeper takes tens */

struct mc_pool {
    int threads, started;   /* started: worker threads that exist */
    unsigned char *scratch; /* [threads][MC_POOL_SCRATCH] */
    _Atomic uint64_t claim;
    _Atomic(mc_pool_fn) fn; /* the job: relaxed accesses, ordered by `claim` */
    _Atomic(void *) arg;
    _Atomic uint32_t tasks;
    _Atomic uint32_t done, waiting;        /* tasks finished; the caller sleeps on `done` */
    _Atomic uint32_t bell, sleepers, stop; /* workers sleep on `bell` */
    struct worker {
        struct mc_pool *pool;
        pthread_t id;
        int index;
    } worker[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* 1 as long as a wait that began at *begin (0: begins now) may spin. I4 */
static int may_spin(int64_t *begin)
{
    int64_t now = mc_clock_ns();
    if (*begin == 0)
        *begin = now;
    for (int i = 0; i < 8; i++)
        relax();
    return now - *begin < SPIN_NS;
}

/* Takes tasks of generation `gen` until none is left or another generation has begun (I1). */
static void work(struct mc_pool *p, uint32_t gen, int thread)
{
    uint64_t seen = atomic_load_explicit(&p->claim, memory_order_acquire);
    while ((uint32_t)(seen >> 32) == gen && (uint32_t)seen > 0) {
        mc_pool_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        uint32_t tasks = atomic_load_explicit(&p->tasks, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->claim, &seen, seen - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(arg, (int)(tasks - (uint32_t)seen), thread);
        if (atomic_fetch_add(&p->done, 1) + 1 == tasks && atomic_load(&p->waiting)) /* I2, I3 */
            futex_wake(&p->done, 1);
        seen = atomic_load_explicit(&p->claim, memory_order_acquire);
    }
}

static uint32_t generation(struct mc_pool *p)
{
    return (uint32_t)(atomic_load_explicit(&p->claim, memory_order_acquire) >> 32);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct mc_pool *p = w->pool;
    uint32_t last = 0;
    for (;;) {
        int64_t begin = 0;
        while (generation(p) == last && !atomic_load(&p->stop) && may_spin(&begin))
            ;
        while (generation(p) == last && !atomic_load(&p->stop)) { /* I4 */
            atomic_fetch_add(&p->sleepers, 1);                    /* I3 */
            uint32_t bell = atomic_load(&p->bell);
            if (generation(p) == last && !atomic_load(&p->stop))
                futex_wait(&p->bell, bell);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        if (atomic_load(&p->stop))
            return NULL;
        last = generation(p);
        work(p, last, w->index);
    }
}

static void ring(struct mc_pool *p, int n)
{
    atomic_fetch_add(&p->bell, 1);
    if (atomic_load(&p->sleepers) > 0) /* I3 */
        futex_wake(&p->bell, n);
}

void mc_pool_run(struct mc_pool *p, mc_pool_fn fn, void *arg, int tasks)
{
    if (p->threads == 1 || tasks <= 1) { /* I6 */
        for (int i = 0; i < tasks; i++)
            fn(arg, i, 0);
        return;
    }
    uint32_t gen = generation(p) + 1;
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->tasks, (uint32_t)tasks, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store(&p->claim, (uint64_t)gen << 32 | (uint32_t)tasks);
    ring(p, tasks - 1);
    work(p, gen, 0);
    int64_t begin = 0;
    while (atomic_load(&p->done) != (uint32_t)tasks && may_spin(&begin))
        ;
    if (atomic_load(&p->done) == (uint32_t)tasks)
        return;
    atomic_store(&p->waiting, 1); /* I3 */
    uint32_t done;
    while ((done = atomic_load(&p->done)) != (uint32_t)tasks)
        futex_wait(&p->done, done);
    atomic_store(&p->waiting, 0);
}

mc_status mc_pool_create(int threads, struct mc_pool **pool, struct mc_err *err)
{
    if (threads < 1 || threads > MAX_THREADS)
        return mc_err_set(err, MC_E_USAGE, "threads per rank: 1 to %d, not %d", MAX_THREADS,
                          threads);
    size_t bytes = sizeof(struct mc_pool) + (size_t)threads * sizeof(struct worker);
    struct mc_pool *p = mc_alloc(bytes, "thread pool");
    if (!p)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a pool of %d threads", threads);
    p->threads = threads;
    p->scratch = mc_alloc((size_t)threads * MC_POOL_SCRATCH, "scratch of threads");
    if (!p->scratch) {
        mc_free(p);
        return mc_err_set(err, MC_E_NOMEM, "no memory for the scratch of %d threads", threads);
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* I5: inherited by the workers */
    int e = 0;
    for (int i = 1; i < threads && e == 0; i++) {
        p->worker[i].pool = p;
        p->worker[i].index = i;
        e = pthread_create(&p->worker[i].id, NULL, worker_main, &p->worker[i]);
        if (e == 0)
            p->started = i;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e != 0) {
        int got = p->started + 1;
        mc_pool_destroy(p);
        return mc_err_set(err, MC_E_MACHINE,
                          "only %d of %d threads could be started: %s; lower OMP_NUM_THREADS or "
                          "raise the limit of processes (ulimit -u)",
                          got, threads, strerror(e));
    }
    *pool = p;
    return MC_OK;
}

void mc_pool_destroy(struct mc_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, 1);
    ring(p, INT_MAX);
    for (int i = 1; i <= p->started; i++)
        pthread_join(p->worker[i].id, NULL);
    mc_free(p->scratch);
    mc_free(p);
}

int mc_pool_threads(const struct mc_pool *p)
{
    return p->threads;
}

void *mc_pool_scratch(const struct mc_pool *p, int thread)
{
    return p->scratch + (size_t)thread * MC_POOL_SCRATCH;
}

/* A value that is not taken as it stands is told, once in a process. */
static int told(const char *s, int used, const char *what)
{
    static atomic_int said;
    if (!atomic_exchange(&said, 1))
        mc_log(MC_LOG_WARN, "OMP_NUM_THREADS=%.60s: %s; %d thread%s used", s, what, used,
               used == 1 ? " is" : "s are");
    return used;
}

static int cores_for(int ranks_on_host);

int mc_pool_default_threads(int ranks_on_host)
{
    const char *s = getenv("OMP_NUM_THREADS");
    if (!s || !*s)
        return cores_for(ranks_on_host);
    char *end;
    errno = 0;
    long v = strtol(s, &end, 10);
    int number = errno == 0 && end != s && v >= 1 && v <= MAX_THREADS;
    if (number && *end == 0)
        return (int)v;
    /* "4,2" is OpenMP's list of nesting levels: the first is ours */
    if (number && *end == ',')
        return told(s, (int)v, "a list for nested levels, of which the first counts here");
    return told(s, cores_for(ranks_on_host), "not a number of threads, so the cores count");
}

static int cores_for(int ranks_on_host)
{
    /* A mask of fixed size fails on hosts with more cores than it has bits: grow it. */
    int cores = 1;
    for (int bits = 1024; bits <= 1 << 18; bits *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)bits);
        size_t bytes = CPU_ALLOC_SIZE((size_t)bits);
        if (!set)
            break;
        int ok = sched_getaffinity(0, bytes, set) == 0;
        int e = errno;
        if (ok)
            cores = CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (ok || e != EINVAL)
            break;
    }
    int n = cores / (ranks_on_host > 0 ? ranks_on_host : 1);
    if (n > MAX_THREADS)
        n = MAX_THREADS;
    return n > 0 ? n : 1;
}
