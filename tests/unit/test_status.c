/* test_status.c - the error record, names and exit codes, the assert, the log line.
 * links: mc_base */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/base/clock.h"
#include "../../core/base/flight.h"
#include "../../core/base/log.h"
#include "../../core/base/status.h"

static void status_exit_codes_are_those_promised(void **state)
{
    (void)state;
    static const int want[MC_NCODES] = {0, 1, 2, 2, 3, 4, 2, 2, 76, 76, 76, 76, 76, 76, 75, 76, 77};
    for (int c = 0; c < MC_NCODES; c++) {
        assert_int_equal(mc_status_exit_code(c), want[c]);
        assert_true(strlen(mc_status_name(c)) > 0);
        for (int d = 0; d < c; d++)
            assert_string_not_equal(mc_status_name(c), mc_status_name(d));
    }
    assert_int_equal(mc_status_exit_code(9999), 1);
    assert_string_equal(mc_status_name(-5), "unknown");
}

static void err_first_cause_is_kept(void **state)
{
    (void)state;
    struct mc_err e = {0};
    assert_int_equal(mc_err_set(&e, MC_E_NOSPC, "disk %d", 7), MC_E_NOSPC);
    assert_int_equal(mc_err_set(&e, MC_E_BUG, "later"), MC_E_NOSPC);
    errno = EIO;
    assert_int_equal(mc_err_sys(&e, "later still"), MC_E_NOSPC);
    assert_string_equal(e.msg, "disk 7");
    assert_int_equal(e.code, MC_E_NOSPC);
    mc_err_clear(&e);
    assert_int_equal(mc_err_set(&e, MC_E_BUG, "new"), MC_E_BUG);
    assert_int_equal(mc_err_set(NULL, MC_E_USAGE, "nobody listens"), MC_E_USAGE);
}

static void err_message_is_one_line_and_bounded(void **state)
{
    (void)state;
    struct mc_err e = {0};
    char big[5000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    mc_err_set(&e, MC_E_FORMAT, "a\nb\x1b[2J\tc%s", big);
    assert_null(strpbrk(e.msg, "\n\t\x1b"));
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    mc_err_clear(&e);
    errno = ENOSPC;
    mc_err_sys(&e, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
}

static void err_sys_maps_errno(void **state)
{
    (void)state;
    static const int rows[][2] = {
        {ENOSPC, MC_E_NOSPC},
        {EDQUOT, MC_E_NOSPC},
        {ENOMEM, MC_E_NOMEM},
        {ENOENT, MC_E_NOTFOUND},
        {EACCES, MC_E_MACHINE},
        {EROFS, MC_E_MACHINE},
        {EISDIR, MC_E_FORMAT},
        {EIO, MC_E_IO},
        {EBADF, MC_E_IO},
        {ELOOP, MC_E_NOTFOUND},
        {ENAMETOOLONG, MC_E_NOTFOUND},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mc_err e = {0};
        errno = rows[i][0];
        assert_int_equal(mc_err_sys(&e, "open %s", "x"), rows[i][1]);
        assert_int_equal(e.sys_errno, rows[i][0]);
        assert_non_null(strstr(e.msg, strerror(rows[i][0])));
        assert_int_equal(strncmp(e.msg, "open x: ", 8), 0);
    }
}

static mc_status inner(struct mc_err *err)
{
    return mc_err_set(err, MC_E_IO, "cause");
}
static mc_status outer(struct mc_err *err)
{
    MC_TRY(inner(err));
    return MC_OK;
}
static mc_status outermost(struct mc_err *err)
{
    mc_status st;
    MC_TRY_GOTO(st, outer(err), out);
    return MC_OK;
out:
    return st;
}

static void err_trail_lists_innermost_first(void **state)
{
    (void)state;
    struct mc_err e = {0};
    int a, b, n = 0;
    assert_int_equal(outermost(&e), MC_E_IO);
    assert_int_equal(sscanf(e.trail, "test_status.c:%d < test_status.c:%d%n", &a, &b, &n), 2);
    assert_int_equal(e.trail[n], 0);
    assert_true(a < b);
    for (int i = 0; i < 100; i++)
        mc_err_trail(&e, MC_E_IO, "/long/path/to/some/file.c", 10000 + i);
    assert_true(strlen(e.trail) < sizeof e.trail);
    assert_null(strstr(e.trail, "/"));
    assert_int_equal(strlen(strrchr(e.trail, 'f')), strlen("file.c:10021")); /* a whole entry */
}

/* Runs f in a child with stderr in a pipe; returns the wait status, text in out. */
static int in_child(void (*f)(void), char *out, size_t cap)
{
    int p[2], st;
    size_t n = 0;
    ssize_t r;
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(p[1], STDERR_FILENO);
        f();
        _exit(0);
    }
    close(p[1]);
    while ((r = read(p[0], out + n, cap - 1 - n)) > 0)
        n += (size_t)r;
    out[n] = 0;
    close(p[0]);
    waitpid(pid, &st, 0);
    return st;
}

static void do_assert(void)
{
    mc_flight_note(12, 34, "phase.step");
    MC_ASSERT(1 + 1 == 3);
}

static void assert_dumps_the_flight_recorder_and_aborts(void **state)
{
    (void)state;
    char text[8192];
    int st = in_child(do_assert, text, sizeof text);
    assert_true(WIFSIGNALED(st) && WTERMSIG(st) == SIGABRT);
    assert_non_null(strstr(text, "test_status.c"));
    assert_non_null(strstr(text, "1 + 1 == 3"));
    assert_non_null(strstr(text, "step 12 bytes 34 phase.step\n"));
}

static void do_log(void)
{
    char big[4000];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = 0;
    mc_log_init(MC_LOG_WARN, 3);
    mc_log(MC_LOG_INFO, "hidden");
    mc_log(MC_LOG_WARN, "seen %d", 5);
    mc_log(MC_LOG_ERROR, "%s", big);
}

static void log_lines_have_level_and_rank_and_are_cut(void **state)
{
    (void)state;
    char text[8192];
    in_child(do_log, text, sizeof text);
    assert_null(strstr(text, "hidden"));
    assert_int_equal(strncmp(text, "mascon[3]: warning: seen 5\nmascon[3]: error: yyy", 47), 0);
    assert_string_equal(text + strlen(text) - 8, "..(cut)\n");
}

static void flight_keeps_the_last_events_in_order(void **state)
{
    (void)state;
    static struct mc_flight ring;
    char text[4096];
    int p[2];
    mc_flight_use(&ring);
    for (int i = 0; i < 3000; i++)
        mc_flight_note(i, -i, "a name that is longer than the thirty-one bytes there are");
    assert_int_equal(pipe(p), 0);
    mc_flight_dump(NULL, p[1], 3);
    close(p[1]);
    ssize_t n = read(p[0], text, sizeof text - 1);
    close(p[0]);
    assert_true(n > 0);
    text[n] = 0;
    long long seq, t, step, bytes;
    assert_int_equal(sscanf(text, " #%lld t_ns %lld step %lld bytes %lld", &seq, &t, &step, &bytes),
                     4);
    assert_int_equal(seq, 2998);
    assert_int_equal(step, 2997);
    assert_int_equal(bytes, -2997);
    assert_non_null(strstr(text, " a name that is longer than the \n"));
    int lines = 0;
    for (char *c = text; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 3);
    mc_flight_use(NULL);
    mc_flight_note(1, 1, "elsewhere");
    assert_int_equal(ring.next, 3000);
}

static void clocks_run_forward_and_print_iso(void **state)
{
    (void)state;
    char iso[40];
    int64_t a = mc_clock_ns(), c = mc_clock_thread_cpu_ns();
    volatile double x = 1;
    for (int i = 0; i < 1000000; i++)
        x = x * 1.0000001;
    assert_true(mc_clock_ns() > a);
    assert_true(mc_clock_thread_cpu_ns() > c);
    assert_true(mc_clock_unix() > 1.7e9);
    mc_clock_iso(iso, sizeof iso);
    int y, mo, d, h, mi, s, ms, n = 0;
    assert_int_equal(
        sscanf(iso, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &y, &mo, &d, &h, &mi, &s, &ms, &n), 7);
    assert_int_equal(n, 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_exit_codes_are_those_promised),
        cmocka_unit_test(err_first_cause_is_kept),
        cmocka_unit_test(err_message_is_one_line_and_bounded),
        cmocka_unit_test(err_sys_maps_errno),
        cmocka_unit_test(err_trail_lists_innermost_first),
        cmocka_unit_test(assert_dumps_the_flight_recorder_and_aborts),
        cmocka_unit_test(log_lines_have_level_and_rank_and_are_cut),
        cmocka_unit_test(flight_keeps_the_last_events_in_order),
        cmocka_unit_test(clocks_run_forward_and_print_iso),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
