/* test_spawn.c - what a rank inherits, that it dies with its agent, and that no signal is lost on
 * the way. This program is its own child: `test_spawn child MODE FD`.
 * links: mc_run */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/base/arena.h"
#include "../../core/base/sysio.h"
#include "../../core/run/spawn.h"

/* ---- the child ---- */

static void say(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0)
        _exit(90);
}

static int child_main(const char *mode, int fd)
{
    char line[300];
    if (strcmp(mode, "env") == 0) {
        for (char **e = environ; *e; e++) {
            snprintf(line, sizeof line, "%.250s\n", *e);
            say(fd, line);
        }
        return 0;
    }
    if (strcmp(mode, "fds") == 0) { /* the open descriptors, and where stdin points */
        for (int i = 0; i < 200; i++)
            if (fcntl(i, F_GETFD) != -1) {
                snprintf(line, sizeof line, "%d ", i);
                say(fd, line);
            }
        ssize_t n = readlink("/proc/self/fd/0", line, sizeof line - 1);
        line[n > 0 ? n : 0] = 0;
        say(fd, line);
        return 0;
    }
    if (strcmp(mode, "group") == 0)
        return getpgrp() == getpid() ? 0 : 1;
    if (strcmp(mode, "late") == 0) { /* a slow start: signals come before the handlers */
        usleep(300000);
        mc_signals_install();
        return mc_signals_count() == 1 && mc_signals_pending() == SIGTERM ? 42 : 1;
    }
    if (strcmp(mode, "sleep") == 0) {
        snprintf(line, sizeof line, "%d", (int)getpid());
        say(fd, line);
        sleep(30);
        return 0;
    }
    return 91;
}

/* ---- helpers ---- */

static char g_exe[300];

static mc_status start(const char *mode, int fd, int threads, struct mc_child *c,
                       struct mc_err *err)
{
    char num[16];
    snprintf(num, sizeof num, "%d", fd);
    const char *argv[] = {g_exe, "child", mode, num, NULL};
    const struct mc_spawn s = {.argv = argv, .keep_fds = &fd, .nkeep = fd >= 0, .threads = threads};
    return mc_spawn(&s, c, err);
}

/* Everything a child of `mode` says, in text; its exit code. */
static int run(const char *mode, int threads, char *text, size_t cap)
{
    int p[2], st;
    size_t n = 0;
    ssize_t r;
    struct mc_child c;
    struct mc_err e = {0};
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    if (start(mode, p[1], threads, &c, &e) != MC_OK)
        fail_msg("%s", e.msg);
    close(p[1]);
    while (n < cap - 1 && (r = read(p[0], text + n, cap - 1 - n)) > 0)
        n += (size_t)r;
    text[n] = 0;
    close(p[0]);
    assert_int_equal(waitpid(c.pid, &st, 0), c.pid);
    if (c.pidfd != -1)
        close(c.pidfd);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 1000 + WTERMSIG(st);
}

static int has_line(const char *text, const char *line)
{
    size_t n = strlen(line);
    for (const char *at = text; (at = strstr(at, line)); at++)
        if ((at == text || at[-1] == '\n') && at[n] == '\n')
            return 1;
    return 0;
}

/* ---- tests ---- */

static void environment_is_fixed_before_exec(void **state)
{
    (void)state;
    static char text[1 << 16];
    static const char *const lua[] = {"LUA_INIT",  "LUA_INIT_5_1", "LUA_PATH",
                                      "LUA_CPATH", "LUA_PATH_5_1", "LUA_CPATH_5_1"};
    for (int i = 0; i < 6; i++)
        setenv(lua[i], "evil", 1);
    setenv("LUA_PATHOLOGY", "kept", 1);
    setenv("OMP_NUM_THREADS", "9", 1);
    setenv("OPENBLAS_NUM_THREADS", "9", 1);
    setenv("MASCON_HOME", "/somewhere", 1);
    size_t before = mc_mem_stats().alloc_bytes;
    assert_int_equal(run("env", 3, text, sizeof text), 0);
    assert_int_equal(mc_mem_stats().alloc_bytes, before);
    assert_true(has_line(text, "OPENBLAS_NUM_THREADS=1"));
    assert_true(has_line(text, "OMP_NUM_THREADS=3"));
    assert_true(has_line(text, "MASCON_HOME=/somewhere"));
    assert_true(has_line(text, "LUA_PATHOLOGY=kept"));
    assert_null(strstr(text, "evil"));
    assert_null(strstr(text, "NUM_THREADS=9"));
    assert_string_equal(getenv("OMP_NUM_THREADS"), "9"); /* ours is untouched */
    for (int i = 0; i < 6; i++)
        unsetenv(lua[i]);
    unsetenv("OMP_NUM_THREADS");
    unsetenv("OPENBLAS_NUM_THREADS");
}

static void only_kept_descriptors_survive(void **state)
{
    (void)state;
    char text[1000], want[100];
    int leak = open("/dev/null", O_RDONLY); /* no close-on-exec */
    int p[2];
    assert_int_equal(pipe(p), 0); /* nor these */
    assert_int_equal(run("fds", 1, text, sizeof text), 0);
    int kept = -1, n = 0;
    assert_int_equal(sscanf(text, "0 1 2 %d %n", &kept, &n), 1);
    snprintf(want, sizeof want, "/dev/null");
    assert_string_equal(text + n, want);
    assert_true(kept != leak && kept != p[0] && kept != p[1]);
    close(leak);
    close(p[0]);
    close(p[1]);
}

static void rank_leads_its_own_group(void **state)
{
    (void)state;
    char text[10];
    for (int i = 0; i < 20; i++)
        assert_int_equal(run("group", 1, text, sizeof text), 0);
}

static void failed_exec_is_an_error_here(void **state)
{
    (void)state;
    struct mc_child c = {.pid = -7};
    struct mc_err e = {0};
    const char *argv[] = {"/nowhere/mascon", "rank", NULL};
    struct mc_spawn s = {.argv = argv};
    assert_int_equal(mc_spawn(&s, &c, &e), MC_E_MACHINE);
    assert_non_null(strstr(e.msg, "/nowhere/mascon"));
    assert_non_null(strstr(e.msg, "No such file"));
    assert_int_equal(c.pid, -7);
    mc_err_clear(&e);
    argv[0] = "/dev/null";
    assert_int_equal(mc_spawn(&s, &c, &e), MC_E_MACHINE);
    int bad_fd = 555;
    argv[0] = g_exe;
    s.keep_fds = &bad_fd;
    s.nkeep = 1;
    mc_err_clear(&e);
    assert_int_equal(mc_spawn(&s, &c, &e), MC_E_MACHINE);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left behind */
    assert_int_equal(errno, ECHILD);
}

static void pidfd_tells_the_end(void **state)
{
    (void)state;
    struct mc_child c;
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(start("sleep", p[1], 1, &c, NULL), MC_OK);
    close(p[1]);
    if (c.pidfd == -1) {
        kill(c.pid, SIGKILL);
        waitpid(c.pid, NULL, 0);
        close(p[0]);
        skip(); /* a kernel before 5.3 */
    }
    struct pollfd f = {.fd = c.pidfd, .events = POLLIN};
    assert_int_equal(poll(&f, 1, 50), 0);
    kill(c.pid, SIGKILL);
    assert_int_equal(poll(&f, 1, 2000), 1);
    assert_int_equal(waitpid(c.pid, NULL, 0), c.pid);
    close(c.pidfd);
    close(p[0]);
}

static void rank_dies_with_a_killed_agent(void **state)
{
    (void)state;
    int p[2];
    char num[20] = {0};
    assert_int_equal(pipe(p), 0);
    pid_t agent = fork();
    if (agent == 0) {
        struct mc_child c;
        close(p[0]);
        if (start("sleep", p[1], 1, &c, NULL) != MC_OK)
            _exit(1);
        close(p[1]);
        pause();
    }
    close(p[1]);
    assert_true(read(p[0], num, sizeof num - 1) > 0); /* the rank runs */
    kill(agent, SIGKILL);
    waitpid(agent, NULL, 0);
    struct pollfd f = {.fd = p[0], .events = POLLIN};
    assert_int_equal(poll(&f, 1, 3000), 1); /* the rank held the last write end: it is gone */
    assert_int_equal(read(p[0], num, sizeof num), 0);
    close(p[0]);
}

static void *spawn_on_thread(void *arg)
{
    struct mc_child c;
    *(mc_status *)arg = start("group", -1, 1, &c, NULL);
    return NULL;
}

static void other_threads_may_not_fork_ranks(void **state)
{
    (void)state;
    pthread_t t;
    mc_status st = MC_OK;
    assert_int_equal(pthread_create(&t, NULL, spawn_on_thread, &st), 0);
    pthread_join(t, NULL);
    assert_int_equal(st, MC_E_BUG);
}

static void signal_before_the_handlers_is_not_lost(void **state)
{
    (void)state;
    struct mc_child c;
    int st;
    assert_int_equal(start("late", -1, 1, &c, NULL), MC_OK);
    kill(c.pid, SIGTERM);
    assert_int_equal(waitpid(c.pid, &st, 0), c.pid);
    assert_true(WIFEXITED(st));
    assert_int_equal(WEXITSTATUS(st), 42);
    if (c.pidfd != -1)
        close(c.pidfd);
}

static void signals_set_one_word(void **state)
{
    (void)state;
    int p[2];
    mc_signals_reset();
    mc_signals_install();
    mc_signals_install();
    assert_int_equal(mc_signals_pending(), 0);
    assert_int_equal(mc_signals_last(), 0);
    raise(SIGUSR1);
    assert_int_equal(mc_signals_pending(), SIGUSR1);
    raise(SIGINT);
    mc_signals_raise(SIGTERM);
    assert_int_equal(mc_signals_pending(), SIGUSR1);
    assert_int_equal(mc_signals_last(), SIGTERM);
    assert_int_equal(mc_signals_count(), 3);
    raise(SIGUSR1); /* the same request, sent twice at once */
    assert_int_equal(mc_signals_count(), 3);
    usleep(260000);
    raise(SIGUSR1); /* a request of its own */
    assert_int_equal(mc_signals_count(), 4);
    for (int i = 0; i < 100000; i++)
        mc_signals_raise(SIGINT);
    assert_int_equal(mc_signals_count(), 0xffff); /* sticks, never wraps to "none" */
    assert_int_equal(mc_signals_pending(), SIGUSR1);
    assert_int_equal(pipe(p), 0); /* SIGPIPE is an errno, not a death */
    close(p[0]);
    assert_int_equal(write(p[1], "x", 1), -1);
    assert_int_equal(errno, EPIPE);
    close(p[1]);
    mc_signals_reset();
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "child") == 0)
        return child_main(argv[2], atoi(argv[3]));
    ssize_t n = readlink("/proc/self/exe", g_exe, sizeof g_exe - 1);
    if (n < 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_is_fixed_before_exec),
        cmocka_unit_test(only_kept_descriptors_survive),
        cmocka_unit_test(rank_leads_its_own_group),
        cmocka_unit_test(failed_exec_is_an_error_here),
        cmocka_unit_test(pidfd_tells_the_end),
        cmocka_unit_test(rank_dies_with_a_killed_agent),
        cmocka_unit_test(other_threads_may_not_fork_ranks),
        cmocka_unit_test(signal_before_the_handlers_is_not_lost),
        cmocka_unit_test(signals_set_one_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
