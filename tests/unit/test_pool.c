/* test_pool.c - every task once, results visible, more threads than cores, many short runs.
 * links: mc_base */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include "../../core/base/pool.h"

enum { MOST = 1000 };
struct job {
    int count[MOST]; /* plain memory: a task run twice at once, or a result not visible, is a race
                      */
    int threads, bad;
    uint64_t stamp;
    uint64_t out[MOST];
};

static void task_once(void *arg, int task, int thread)
{
    struct job *j = arg;
    j->count[task]++;
    j->out[task] = j->stamp + (uint64_t)task;
    if (thread < 0 || thread >= j->threads)
        abort();
}

static void every_task_runs_once_and_is_seen(void **state)
{
    (void)state;
    static struct job j;
    static const int threads[] = {1, 2, 3, 4, 8, 17}, tasks[] = {0, 1, 2, 3, 7, 64, MOST};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct mc_pool *p;
        assert_int_equal(mc_pool_create(threads[t], &p, NULL), MC_OK);
        assert_int_equal(mc_pool_threads(p), threads[t]);
        j.threads = threads[t];
        for (int round = 0; round < 20; round++)
            for (size_t k = 0; k < sizeof tasks / sizeof *tasks; k++) {
                memset(j.count, 0, sizeof j.count);
                j.stamp = (uint64_t)round * 7919;
                mc_pool_run(p, task_once, &j, tasks[k]);
                for (int i = 0; i < MOST; i++) {
                    assert_int_equal(j.count[i], i < tasks[k]);
                    if (i < tasks[k])
                        assert_int_equal(j.out[i], j.stamp + (uint64_t)i);
                }
            }
        mc_pool_destroy(p);
    }
}

static void task_sum(void *arg, int task, int thread)
{
    (void)thread;
    uint64_t *v = arg;
    v[task] += (uint64_t)task + 1;
}

static void many_short_runs_lose_nothing(void **state)
{
    (void)state;
    struct mc_pool *p;
    uint64_t v[5] = {0};
    enum { RUNS = 30000 };
    assert_int_equal(mc_pool_create(4, &p, NULL), MC_OK);
    int64_t t0 = mc_clock_ns();
    for (int i = 0; i < RUNS; i++) {
        mc_pool_run(p, task_sum, v, 2 + i % 4);
        if (i % 1000 == 0)
            usleep(200); /* let them fall asleep */
    }
    print_message("%.2f us a run of 2 to 5 empty tasks, 4 threads\n",
                  (double)(mc_clock_ns() - t0) / RUNS / 1e3);
    mc_pool_destroy(p);
    for (uint64_t t = 0; t < 5; t++) {
        uint64_t runs = 0;
        for (int i = 0; i < RUNS; i++)
            runs += (uint64_t)(2 + i % 4) > t;
        assert_int_equal(v[t], runs * (t + 1));
    }
}

static _Atomic int g_seen[8];
static void task_meet(void *arg, int task, int thread)
{
    (void)task;
    _Atomic int *left = arg;
    atomic_fetch_add(&g_seen[thread], 1);
    atomic_fetch_sub(left, 1);
    while (atomic_load(left) > 0) /* ends only when four threads hold a task each */
        sched_yield();
}

static void tasks_run_at_the_same_time_on_all_threads(void **state)
{
    (void)state;
    struct mc_pool *p;
    _Atomic int left = 4;
    assert_int_equal(mc_pool_create(4, &p, NULL), MC_OK);
    usleep(20000); /* all asleep: each must be woken */
    mc_pool_run(p, task_meet, &left, 4);
    for (int t = 0; t < 4; t++)
        assert_int_equal(g_seen[t], 1);
    mc_pool_destroy(p);
}

static void idle_pool_uses_no_cpu(void **state)
{
    (void)state;
    struct mc_pool *p;
    uint64_t v[4] = {0};
    struct timespec a, b;
    assert_int_equal(mc_pool_create(4, &p, NULL), MC_OK);
    mc_pool_run(p, task_sum, v, 4);
    usleep(5000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    usleep(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    assert_true(used < 0.02);
    mc_pool_destroy(p);
}

static void task_mask(void *arg, int task, int thread)
{
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    ((int *)arg)[task] = thread == 0 || sigismember(&now, SIGTERM);
    usleep(1000);
}

static void workers_block_signals(void **state)
{
    (void)state;
    struct mc_pool *p;
    int ok[16] = {0};
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    assert_int_equal(mc_pool_create(3, &p, NULL), MC_OK);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
    mc_pool_run(p, task_mask, ok, 16);
    for (int i = 0; i < 16; i++)
        assert_true(ok[i]);
    mc_pool_destroy(p);
}

static void bad_counts_are_refused(void **state)
{
    (void)state;
    struct mc_pool *p = NULL;
    struct mc_err e = {0};
    assert_int_equal(mc_pool_create(0, &p, &e), MC_E_USAGE);
    assert_null(p);
    mc_err_clear(&e);
    assert_int_equal(mc_pool_create(100000, &p, &e), MC_E_USAGE);
    mc_pool_destroy(NULL);
}

static void default_threads_follow_environment_and_cores(void **state)
{
    (void)state;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    int cores = CPU_COUNT(&set);
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(mc_pool_default_threads(1), cores);
    assert_int_equal(mc_pool_default_threads(cores), 1);
    assert_int_equal(mc_pool_default_threads(10 * cores), 1);
    setenv("OMP_NUM_THREADS", "7", 1);
    assert_int_equal(mc_pool_default_threads(3), 7);
    setenv("OMP_NUM_THREADS", "5,2", 1);
    assert_int_equal(mc_pool_default_threads(1), 5);
    static const char *const bad[] = {"", "0", "-3", "many", "4x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("OMP_NUM_THREADS", bad[i], 1);
        assert_int_equal(mc_pool_default_threads(1), cores);
    }
    unsetenv("OMP_NUM_THREADS");
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &set)) {
            CPU_SET(c, &one);
            break;
        }
    sched_setaffinity(0, sizeof one, &one);
    assert_int_equal(mc_pool_default_threads(1), 1);
    sched_setaffinity(0, sizeof set, &set);
}

static void runs_allocate_nothing(void **state)
{
    (void)state;
    struct mc_pool *p;
    uint64_t v[4] = {0};
    assert_int_equal(mc_pool_create(3, &p, NULL), MC_OK);
    uint64_t calls = mc_mem_stats().calls;
    for (int i = 0; i < 100; i++)
        mc_pool_run(p, task_sum, v, 4);
    assert_int_equal(mc_mem_stats().calls, calls);
    mc_pool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_and_is_seen),
        cmocka_unit_test(many_short_runs_lose_nothing),
        cmocka_unit_test(tasks_run_at_the_same_time_on_all_threads),
        cmocka_unit_test(idle_pool_uses_no_cpu),
        cmocka_unit_test(workers_block_signals),
        cmocka_unit_test(bad_counts_are_refused),
        cmocka_unit_test(default_threads_follow_environment_and_cores),
        cmocka_unit_test(runs_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
