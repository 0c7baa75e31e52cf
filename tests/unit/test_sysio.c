/* test_sysio.c - files against the kernel: interrupted and short calls, a full device, atomicity.
 * links: mc_base */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/base/arena.h"
#include "../../core/base/sysio.h"

static char g_dir[64];

static char *in_dir(const char *name)
{
    static char path[4][200];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, 200, "%s/%s", g_dir, name);
    return p;
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void assert_content(const char *path, const char *want)
{
    char *text;
    size_t n;
    struct mc_err e = {0};
    assert_int_equal(mc_sys_read_file(path, 1 << 20, &text, &n, &e), MC_OK);
    assert_int_equal(n, strlen(want));
    assert_string_equal(text, want);
    mc_free(text);
}

static volatile int g_ticks;
static void on_tick(int sig)
{
    (void)sig;
    g_ticks++;
}

static void write_all_survives_signals_and_short_writes(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    int p[2], st;
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) { /* a slow reader that checks every byte */
        unsigned char buf[777];
        size_t at = 0;
        ssize_t r;
        close(p[1]);
        while ((r = read(p[0], buf, sizeof buf)) > 0) {
            for (ssize_t i = 0; i < r; i++, at++)
                if (buf[i] != (unsigned char)(at * 31 >> 4))
                    _exit(1);
            if (at % 5 == 0)
                usleep(300);
        }
        _exit(at == N ? 0 : 2);
    }
    close(p[0]);
    struct sigaction a = {.sa_handler = on_tick}; /* no SA_RESTART: writes are interrupted */
    sigaction(SIGALRM, &a, NULL);
    struct itimerval every = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    unsigned char *buf = malloc(N);
    for (size_t i = 0; i < N; i++)
        buf[i] = (unsigned char)(i * 31 >> 4);
    setitimer(ITIMER_REAL, &every, NULL);
    struct mc_err e = {0};
    mc_status rc = mc_sys_write_all(p[1], buf, N, "pipe", &e);
    setitimer(ITIMER_REAL, &never, NULL);
    close(p[1]);
    free(buf);
    assert_int_equal(rc, MC_OK);
    assert_true(g_ticks > 10);
    waitpid(pid, &st, 0);
    assert_true(WIFEXITED(st));
    assert_int_equal(WEXITSTATUS(st), 0);
}

static void full_device_is_nospc(void **state)
{
    (void)state;
    int fd;
    struct mc_err e = {0};
    assert_int_equal(mc_sys_open("/dev/full", O_WRONLY, 0, &fd, &e), MC_OK);
    assert_int_equal(mc_sys_write_all(fd, "x", 1, "/dev/full", &e), MC_E_NOSPC);
    assert_int_equal(e.sys_errno, ENOSPC);
    assert_non_null(strstr(e.msg, "/dev/full"));
    mc_err_clear(&e);
    assert_int_equal(mc_sys_append(fd, "x", 1, "/dev/full", &e), MC_E_NOSPC);
    close(fd);
}

static void open_sets_cloexec_and_names_the_path(void **state)
{
    (void)state;
    int fd = -7;
    struct mc_err e = {0};
    put(in_dir("a"), "x");
    assert_int_equal(mc_sys_open(in_dir("a"), O_RDONLY, 0, &fd, &e), MC_OK);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(mc_sys_close(fd, "a", &e), MC_OK);
    int kept = fd;
    assert_int_equal(mc_sys_open(in_dir("missing"), O_RDONLY, 0, &fd, &e), MC_E_NOTFOUND);
    assert_int_equal(fd, kept);
    assert_non_null(strstr(e.msg, "missing"));
    mc_err_clear(&e);
    assert_int_equal(mc_sys_close(fd, "a", &e), MC_E_IO); /* EBADF is told */
}

static void pread_past_the_end_is_corrupt(void **state)
{
    (void)state;
    int fd;
    char buf[16];
    struct mc_err e = {0};
    put(in_dir("ten"), "0123456789");
    assert_int_equal(mc_sys_open(in_dir("ten"), O_RDONLY, 0, &fd, &e), MC_OK);
    assert_int_equal(mc_sys_pread_all(fd, buf, 4, 6, "ten", &e), MC_OK);
    assert_memory_equal(buf, "6789", 4);
    assert_int_equal(mc_sys_pread_all(fd, buf, 5, 6, "ten", &e), MC_E_CORRUPT);
    assert_non_null(strstr(e.msg, "byte 10"));
    close(fd);
}

static void failed_syncs_are_told(void **state)
{
    (void)state;
    int p[2];
    struct mc_err e = {0};
    assert_int_equal(pipe(p), 0);
    assert_int_equal(mc_sys_fsync(p[1], "a pipe", &e), MC_E_IO); /* EINVAL */
    mc_err_clear(&e);
    assert_int_equal(mc_sys_fsync_dir(in_dir("nowhere"), &e), MC_E_NOTFOUND);
    assert_int_equal(mc_sys_fsync_dir(g_dir, NULL), MC_OK);
    close(p[0]);
    close(p[1]);
}

static void folders_are_made_with_parents(void **state)
{
    (void)state;
    int made = -1;
    struct mc_err e = {0};
    assert_int_equal(mc_sys_mkdirs(in_dir("p/q//r/"), &e), MC_OK);
    assert_true(mc_sys_is_dir(in_dir("p/q/r")));
    assert_int_equal(mc_sys_mkdirs(in_dir("p/q/r"), &e), MC_OK);
    assert_int_equal(mc_sys_mkdir(in_dir("p"), &made, &e), MC_OK);
    assert_int_equal(made, 0);
    assert_int_equal(mc_sys_mkdir(in_dir("p2"), &made, &e), MC_OK);
    assert_int_equal(made, 1);
    put(in_dir("file"), "");
    assert_int_equal(mc_sys_mkdirs(in_dir("file/x"), &e), MC_E_NOTFOUND);
    mc_err_clear(&e);
    assert_int_equal(mc_sys_mkdir(in_dir("file"), NULL, &e), MC_E_NOTFOUND);
    assert_non_null(strstr(e.msg, "something else"));
    mc_err_clear(&e);
    assert_int_equal(mc_sys_rmdir(in_dir("p/q"), &e), MC_E_IO); /* not empty */
    assert_int_equal(mc_sys_rmdir(in_dir("p/q/r"), NULL), MC_OK);
    mc_err_clear(&e);
    assert_int_equal(mc_sys_mkdirs("", &e), MC_E_USAGE);
}

static void unlink_and_rename(void **state)
{
    (void)state;
    struct mc_err e = {0};
    put(in_dir("u"), "1");
    assert_int_equal(mc_sys_rename(in_dir("u"), in_dir("v"), &e), MC_OK);
    assert_int_equal(mc_sys_exists(in_dir("u")), 0);
    assert_int_equal(mc_sys_unlink(in_dir("v"), &e), MC_OK);
    assert_int_equal(mc_sys_unlink(in_dir("v"), &e), MC_OK);
    assert_int_equal(mc_sys_rename(in_dir("v"), in_dir("w"), &e), MC_E_NOTFOUND);
    mc_err_clear(&e);
    assert_int_equal(mc_sys_unlink(g_dir, &e), MC_E_FORMAT); /* a folder */
}

static void sizes_are_set_and_read(void **state)
{
    (void)state;
    int fd;
    int64_t size = -1;
    struct mc_err e = {0};
    assert_int_equal(mc_sys_open(in_dir("s"), O_RDWR | O_CREAT, 0666, &fd, &e), MC_OK);
    assert_int_equal(mc_sys_fallocate(fd, 0, "s", &e), MC_OK);
    assert_int_equal(mc_sys_fallocate(fd, 10000, "s", &e), MC_OK);
    assert_int_equal(mc_sys_ftruncate(fd, (int64_t)5 << 32, "s", &e), MC_OK);
    assert_int_equal(mc_sys_file_size(in_dir("s"), &size, &e), MC_OK);
    assert_true(size == (int64_t)5 << 32);
    char c = 'x';
    assert_int_equal(mc_sys_pread_all(fd, &c, 1, ((int64_t)5 << 32) - 1, "s", &e), MC_OK);
    assert_int_equal(c, 0);
    assert_int_equal(mc_sys_ftruncate(fd, -1, "s", &e), MC_E_IO);
    close(fd);
    mc_err_clear(&e);
    assert_int_equal(mc_sys_file_size(in_dir("none"), &size, &e), MC_E_NOTFOUND);
}

static void read_file_is_bounded(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 99;
    struct mc_err e = {0};
    put(in_dir("r"), "hello");
    assert_int_equal(mc_sys_read_file(in_dir("r"), 5, &text, &n, &e), MC_OK);
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    mc_free(text);
    text = NULL;
    assert_int_equal(mc_sys_read_file(in_dir("r"), 4, &text, &n, &e), MC_E_FORMAT);
    assert_null(text);
    assert_int_equal(n, 5);
    mc_err_clear(&e);
    assert_int_equal(mc_sys_read_file(g_dir, 100, &text, &n, &e), MC_E_FORMAT);
    put(in_dir("empty"), "");
    assert_content(in_dir("empty"), "");
    /* a file that says it has no size, longer than the first buffer */
    size_t before = mc_mem_stats().alloc_bytes;
    assert_int_equal(mc_sys_read_file("/proc/kallsyms", (size_t)1 << 26, &text, &n, NULL), MC_OK);
    assert_int_equal(strlen(text), n);
    mc_free(text);
    assert_int_equal(mc_sys_read_file("/dev/zero", 1 << 20, &text, &n, NULL), MC_E_FORMAT);
    /* a pipe that nobody writes: once waited for ever, as /dev/tty would */
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    alarm(10);
    mc_err_clear(&e);
    assert_int_equal(mc_sys_read_file(in_dir("pipe"), 100, &text, &n, &e), MC_E_FORMAT);
    assert_non_null(strstr(e.msg, "a pipe or device, not a file"));
    alarm(0);
    assert_int_equal(mc_mem_stats().alloc_bytes, before);
}

static void replace_file_is_whole_or_absent(void **state)
{
    (void)state;
    struct mc_err e = {0};
    assert_int_equal(mc_sys_replace_file(in_dir("m"), "one", 3, &e), MC_OK);
    assert_content(in_dir("m"), "one");
    assert_int_equal(mc_sys_replace_file(in_dir("m"), "second", 6, &e), MC_OK);
    assert_content(in_dir("m"), "second");
    assert_int_equal(mc_sys_exists(in_dir("m.tmp")), 0);
    /* it cannot be renamed over a folder: the old thing stays, the .tmp goes */
    assert_int_equal(mc_sys_mkdirs(in_dir("d/e"), &e), MC_OK);
    assert_int_not_equal(mc_sys_replace_file(in_dir("d"), "x", 1, &e), MC_OK);
    assert_true(mc_sys_is_dir(in_dir("d/e")));
    assert_int_equal(mc_sys_exists(in_dir("d.tmp")), 0);
}

static void appended_lines_do_not_mix(void **state)
{
    (void)state;
    enum { WRITERS = 4, LINES = 500 };
    struct mc_err e = {0};
    for (int w = 0; w < WRITERS; w++)
        if (fork() == 0) {
            int fd, bad = 0;
            char line[200];
            bad |= mc_sys_open(in_dir("log"), O_WRONLY | O_APPEND | O_CREAT, 0666, &fd, NULL);
            memset(line, 'a' + w, 150);
            line[149] = '\n';
            for (int i = 0; i < LINES && !bad; i++)
                bad |= mc_sys_append(fd, line, 150, "log", NULL);
            _exit(bad);
        }
    for (int w = 0, st; w < WRITERS; w++) {
        wait(&st);
        assert_int_equal(st, 0);
    }
    char *text;
    size_t n;
    assert_int_equal(mc_sys_read_file(in_dir("log"), 1 << 24, &text, &n, &e), MC_OK);
    assert_int_equal(n, WRITERS * LINES * 150);
    for (size_t i = 0; i < n; i++)
        assert_true(i % 150 == 149 ? text[i] == '\n' : text[i] == text[i - i % 150]);
    mc_free(text);
}

static void map_shows_the_file(void **state)
{
    (void)state;
    struct mc_map m = {NULL, 7};
    struct mc_err e = {0};
    put(in_dir("map"), "mapped");
    assert_int_equal(mc_sys_map_ro(in_dir("map"), &m, &e), MC_OK);
    assert_int_equal(m.bytes, 6);
    assert_memory_equal(m.data, "mapped", 6);
    const unsigned char *was = m.data;
    assert_string_equal(mc_sys_mapped(was), in_dir("map"));
    assert_string_equal(mc_sys_mapped(was + 5), in_dir("map"));
    assert_null(mc_sys_mapped(was + 6));
    assert_null(mc_sys_mapped(&m));
    mc_sys_unmap(&m);
    assert_null(mc_sys_mapped(was));
    struct mc_map many[300]; /* more than names are kept for: 256 */
    int named = 0;
    for (int i = 0; i < 300; i++)
        assert_int_equal(mc_sys_map_ro(in_dir("map"), &many[i], &e), MC_OK);
    for (int i = 0; i < 300; i++)
        named += strcmp(mc_sys_mapped(many[i].data), in_dir("map")) == 0;
    assert_int_equal(named, 256);
    for (int i = 299; i >= 0; i--)
        mc_sys_unmap(&many[i]);
    assert_null(mc_sys_mapped(was));
    put(in_dir("map0"), "");
    assert_int_equal(mc_sys_map_ro(in_dir("map0"), &m, &e), MC_OK);
    assert_null(m.data);
    assert_int_equal(m.bytes, 0);
    mc_sys_unmap(&m);
    assert_int_equal(mc_sys_map_ro(g_dir, &m, &e), MC_E_FORMAT);
    mc_err_clear(&e);
    assert_int_equal(mc_sys_map_ro("/dev/zero", &m, &e), MC_E_FORMAT);
}

static void list_is_sorted(void **state)
{
    (void)state;
    static const char *const names[] = {"b", "a", "B", "10", "9", "ab", ".hidden"};
    static const char *const want[] = {".hidden", "10", "9", "B", "a", "ab", "b"};
    char **got;
    int n;
    struct mc_err e = {0};
    assert_int_equal(mc_sys_mkdirs(in_dir("list"), &e), MC_OK);
    assert_int_equal(mc_sys_list(in_dir("list"), &got, &n, &e), MC_OK);
    assert_int_equal(n, 0);
    mc_sys_list_free(got, n);
    for (int i = 0; i < 7; i++) {
        char p[64];
        snprintf(p, sizeof p, "list/%s", names[i]);
        put(in_dir(p), "");
    }
    assert_int_equal(mc_sys_list(in_dir("list"), &got, &n, &e), MC_OK);
    assert_int_equal(n, 7);
    for (int i = 0; i < 7; i++)
        assert_string_equal(got[i], want[i]);
    mc_sys_list_free(got, n);
    assert_int_equal(mc_sys_list(in_dir("nolist"), &got, &n, &e), MC_E_NOTFOUND);
}

static void paths_are_joined_and_cut(void **state)
{
    (void)state;
    static const char *const dirs[][2] = {{"a/b/c", "a/b"}, {"c", "."},    {"/c", "/"},
                                          {"/", "/"},       {"a/b/", "a"}, {"a//b", "a"},
                                          {"", "."},        {"//x", "/"}};
    char p[16];
    struct mc_err e = {0};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        mc_path_dir(p, sizeof p, dirs[i][0]);
        assert_string_equal(p, dirs[i][1]);
    }
    assert_int_equal(mc_path_join(p, sizeof p, "a/", "b", &e), MC_OK);
    assert_string_equal(p, "a/b");
    assert_int_equal(mc_path_join(p, sizeof p, "a", "/b", &e), MC_OK);
    assert_string_equal(p, "/b");
    assert_int_equal(mc_path_join(p, sizeof p, "", "b", &e), MC_OK);
    assert_string_equal(p, "b");
    assert_int_equal(mc_path_join(p, sizeof p, "1234567", "89abcdef", &e), MC_E_USAGE);
    mc_err_clear(&e);
    assert_int_equal(mc_path_join(p, sizeof p, "1234567", "89abcde", &e), MC_OK);
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(g_dir, sizeof g_dir, "/tmp/mc_sysio.XXXXXX");
    return mkdtemp(g_dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -rf %s", g_dir);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_all_survives_signals_and_short_writes),
        cmocka_unit_test(full_device_is_nospc),
        cmocka_unit_test(open_sets_cloexec_and_names_the_path),
        cmocka_unit_test(pread_past_the_end_is_corrupt),
        cmocka_unit_test(failed_syncs_are_told),
        cmocka_unit_test(folders_are_made_with_parents),
        cmocka_unit_test(unlink_and_rename),
        cmocka_unit_test(sizes_are_set_and_read),
        cmocka_unit_test(read_file_is_bounded),
        cmocka_unit_test(replace_file_is_whole_or_absent),
        cmocka_unit_test(appended_lines_do_not_mix),
        cmocka_unit_test(map_shows_the_file),
        cmocka_unit_test(list_is_sorted),
        cmocka_unit_test(paths_are_joined_and_cut),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
