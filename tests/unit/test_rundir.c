/* test_rundir.c - run folders: recognised, locked against the living, the dying and the copied;
 * segments, events, incidents; the progress page.
 * links: mc_run dep_jansson */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include "../../core/base/sysio.h"
#include "../../core/run/page.h"
#include "../../core/run/rundir.h"

static char g_dir[64];
static int g_next;

static const char *fresh(void)
{
    static char p[100];
    snprintf(p, sizeof p, "%s/run%d", g_dir, g_next++);
    return p;
}

static char *slurp(const struct mc_rundir *rd, const char *name)
{
    char path[1100], *text;
    size_t n;
    assert_int_equal(mc_rundir_file(rd, name, path, NULL), MC_OK);
    assert_int_equal(mc_sys_read_file(path, 1 << 20, &text, &n, NULL), MC_OK);
    return text;
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void open_makes_and_recognises(void **state)
{
    (void)state;
    struct mc_rundir rd;
    struct mc_err e = {0};
    char path[120], dirs[4][130];
    snprintf(path, sizeof path, "%s/deep/er", fresh());
    assert_int_equal(mc_rundir_open(path, 0, &rd, &e), MC_E_NOTFOUND);
    assert_non_null(strstr(e.msg, path));
    strcat(path, "//");
    assert_int_equal(mc_rundir_open(path, 1, &rd, NULL), MC_OK);
    path[strlen(path) - 2] = 0;
    assert_string_equal(rd.path, path);
    assert_int_equal(rd.segment, 0);
    assert_int_equal(rd.lock_fd, -1);
    static const char *const sub[] = {"segments", "incidents", "ckpt", "logs"};
    for (int i = 0; i < 4; i++) {
        snprintf(dirs[i], sizeof dirs[i], "%s/%s", path, sub[i]);
        assert_true(mc_sys_is_dir(dirs[i]));
    }
    assert_int_equal(mc_rundir_open(path, 0, &rd, NULL), MC_OK);
}

static void foreign_folders_are_not_touched(void **state)
{
    (void)state;
    struct mc_rundir rd;
    struct mc_err e = {0};
    char **names;
    int n;
    const char *dir = fresh();
    assert_int_equal(mc_sys_mkdirs(dir, NULL), MC_OK);
    assert_int_equal(mc_rundir_open(dir, 0, &rd, NULL), MC_E_NOTFOUND); /* empty */
    put(dir, "thesis.txt", "mine");
    assert_int_equal(mc_rundir_open(dir, 1, &rd, &e), MC_E_MACHINE);
    assert_non_null(strstr(e.msg, "--run"));
    assert_int_equal(mc_rundir_open(dir, 0, &rd, NULL), MC_E_MACHINE);
    assert_int_equal(mc_sys_list(dir, &names, &n, NULL), MC_OK);
    assert_int_equal(n, 1);
    mc_sys_list_free(names, n);
    char file[200];
    snprintf(file, sizeof file, "%s/thesis.txt", dir);
    assert_int_equal(mc_rundir_open(file, 1, &rd, NULL), MC_E_MACHINE);
    assert_int_equal(mc_rundir_open("", 1, &rd, NULL), MC_E_USAGE);
}

static void segments_count_up_and_are_whole(void **state)
{
    (void)state;
    struct mc_rundir rd, again;
    char path[1100], *text;
    assert_int_equal(mc_rundir_open(fresh(), 1, &rd, NULL), MC_OK);
    assert_int_equal(
        mc_rundir_new_segment(&rd, &(struct mc_segment_text){"return 1", "{}", "rank host\n", NULL},
                              NULL),
        MC_OK);
    assert_int_equal(rd.segment, 1);
    text = slurp(&rd, "segments/001/recipe.lua");
    assert_string_equal(text, "return 1");
    mc_free(text);
    /* what a crash leaves: a half segment, which is no segment */
    snprintf(path, sizeof path, "%s/segments/002.new", rd.path);
    assert_int_equal(mc_sys_mkdirs(path, NULL), MC_OK);
    put(path, "recipe.lua", "half");
    put(path, "launch_map.tsv", "half");
    assert_int_equal(mc_rundir_open(rd.path, 0, &again, NULL), MC_OK);
    assert_int_equal(again.segment, 1);
    assert_int_equal(
        mc_rundir_new_segment(
            &again, &(struct mc_segment_text){.recipe = "return 2", .resolved = "{\"a\":1}"}, NULL),
        MC_OK);
    assert_int_equal(again.segment, 2);
    assert_int_equal(mc_rundir_segment_file(&again, 2, "resolved.json", path, NULL), MC_OK);
    assert_string_equal(path + strlen(again.path), "/segments/002/resolved.json");
    snprintf(path, sizeof path, "%s/segments/002/launch_map.tsv", rd.path);
    assert_false(mc_sys_exists(path));
    text = slurp(&again, "segments/002/recipe.lua");
    assert_string_equal(text, "return 2");
    mc_free(text);
    /* a stale idea of the newest number never overwrites */
    assert_int_equal(
        mc_rundir_new_segment(
            &rd, &(struct mc_segment_text){.recipe = "return 3", .resolved = "{}"}, NULL),
        MC_OK);
    assert_int_equal(rd.segment, 3);
    /* past three digits; other names do not count */
    snprintf(path, sizeof path, "%s/segments/1000", rd.path);
    assert_int_equal(mc_sys_mkdirs(path, NULL), MC_OK);
    snprintf(path, sizeof path, "%s/segments/2000old", rd.path);
    assert_int_equal(mc_sys_mkdirs(path, NULL), MC_OK);
    assert_int_equal(mc_rundir_open(rd.path, 0, &again, NULL), MC_OK);
    assert_int_equal(again.segment, 1000);
}

/* ---- lock ---- */

static void lock_writes_who_holds_it(void **state)
{
    (void)state;
    struct mc_rundir rd;
    char host[256], *text;
    assert_int_equal(mc_rundir_open(fresh(), 1, &rd, NULL), MC_OK);
    assert_int_equal(mc_rundir_lock(&rd, NULL), MC_OK);
    assert_true(rd.lock_fd >= 0);
    text = slurp(&rd, "run.lock");
    json_t *j = json_loads(text, 0, NULL);
    gethostname(host, sizeof host);
    assert_int_equal(json_integer_value(json_object_get(j, "pid")), getpid());
    assert_string_equal(json_string_value(json_object_get(j, "host")), host);
    assert_true(json_integer_value(json_object_get(j, "start")) > 0);
    json_decref(j);
    mc_free(text);
    mc_rundir_close(&rd);
    assert_int_equal(rd.lock_fd, -1);
}

/* Forks an "agent" that locks the run and forks a "rank" which keeps the descriptor for rank_ms;
 * the agent lives for agent_ms. Returns the agent's pid when the lock is held. */
static pid_t holder(const char *path, int agent_ms, int rank_ms)
{
    int p[2];
    char c;
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct mc_rundir rd;
        if (mc_rundir_open(path, 1, &rd, NULL) || mc_rundir_lock(&rd, NULL))
            _exit(1);
        if (rank_ms > 0 && fork() == 0) {
            close(p[1]);
            usleep((useconds_t)rank_ms * 1000);
            _exit(0);
        }
        if (write(p[1], "x", 1) != 1)
            _exit(1);
        usleep((useconds_t)agent_ms * 1000);
        _exit(0);
    }
    close(p[1]);
    assert_int_equal(read(p[0], &c, 1), 1);
    close(p[0]);
    return pid;
}

static void second_start_is_refused_at_once_by_name(void **state)
{
    (void)state;
    struct mc_rundir rd;
    struct mc_err e = {0};
    char path[100], pid_text[32], host[256];
    snprintf(path, sizeof path, "%s", fresh());
    pid_t pid = holder(path, 3000, 0);
    assert_int_equal(mc_rundir_open(path, 1, &rd, NULL), MC_OK);
    int64_t t0 = mc_clock_ns();
    assert_int_equal(mc_rundir_lock(&rd, &e), MC_E_MACHINE);
    assert_true(mc_clock_ns() - t0 < INT64_C(500000000));
    snprintf(pid_text, sizeof pid_text, "pid %d ", (int)pid);
    gethostname(host, sizeof host);
    assert_non_null(strstr(e.msg, pid_text));
    assert_non_null(strstr(e.msg, host));
    assert_int_equal(rd.lock_fd, -1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(mc_rundir_lock(&rd, NULL), MC_OK); /* the kernel dropped it */
    mc_rundir_close(&rd);
}

static void dying_run_is_waited_for(void **state)
{
    (void)state;
    struct mc_rundir rd;
    char path[100];
    snprintf(path, sizeof path, "%s", fresh());
    pid_t pid = holder(path, 3000, 700); /* the rank outlives its agent by 0.7 s */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(mc_rundir_open(path, 1, &rd, NULL), MC_OK);
    int64_t t0 = mc_clock_ns();
    assert_int_equal(mc_rundir_lock(&rd, NULL), MC_OK);
    int64_t waited = mc_clock_ns() - t0;
    assert_true(waited > INT64_C(300000000) && waited < INT64_C(3000000000));
    mc_rundir_close(&rd);
}

static void zombie_agent_counts_as_dead(void **state)
{
    (void)state;
    struct mc_rundir rd;
    char path[100];
    snprintf(path, sizeof path, "%s", fresh());
    pid_t pid = holder(path, 3000, 500);
    kill(pid, SIGKILL); /* not reaped, and perhaps not dead yet */
    assert_int_equal(mc_rundir_open(path, 1, &rd, NULL), MC_OK);
    assert_int_equal(mc_rundir_lock(&rd, NULL), MC_OK);
    waitpid(pid, NULL, 0);
    mc_rundir_close(&rd);
}

static void ranks_that_stay_are_refused_after_five_seconds(void **state)
{
    (void)state;
    struct mc_rundir rd;
    struct mc_err e = {0};
    char path[100];
    snprintf(path, sizeof path, "%s", fresh());
    pid_t pid = holder(path, 3000, 7000);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(mc_rundir_open(path, 1, &rd, NULL), MC_OK);
    int64_t t0 = mc_clock_ns();
    assert_int_equal(mc_rundir_lock(&rd, &e), MC_E_MACHINE);
    int64_t waited = mc_clock_ns() - t0;
    assert_true(waited > INT64_C(4900000000) && waited < INT64_C(6500000000));
    assert_non_null(strstr(e.msg, "is dead"));
}

static void lock_of_another_host_is_not_waited_for(void **state)
{
    (void)state;
    struct mc_rundir rd;
    struct mc_err e = {0};
    char lock[1100];
    assert_int_equal(mc_rundir_open(fresh(), 1, &rd, NULL), MC_OK);
    put(rd.path, "run.lock", "{\"pid\":1,\"host\":\"node-elsewhere\",\"start\":5}\n");
    assert_int_equal(mc_rundir_file(&rd, "run.lock", lock, NULL), MC_OK);
    int fd = open(lock, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    int64_t t0 = mc_clock_ns();
    assert_int_equal(mc_rundir_lock(&rd, &e), MC_E_MACHINE);
    assert_true(mc_clock_ns() - t0 < INT64_C(500000000));
    assert_non_null(strstr(e.msg, "pid 1 on host node-elsewhere"));
    close(fd);
    /* a copied folder brings the text, not the lock */
    assert_int_equal(mc_rundir_lock(&rd, NULL), MC_OK);
    mc_rundir_close(&rd);
}

/* ---- events and incidents ---- */

static void events_are_lines_even_after_a_torn_one(void **state)
{
    (void)state;
    struct mc_rundir rd;
    static char big[20000];
    assert_int_equal(mc_rundir_open(fresh(), 1, &rd, NULL), MC_OK);
    assert_int_equal(mc_rundir_event(&rd, "launch", "\"ranks\":4", NULL), MC_OK);
    char path[1100];
    assert_int_equal(mc_rundir_file(&rd, "events.jsonl", path, NULL), MC_OK);
    FILE *f = fopen(path, "a");
    fputs("{\"time\":\"20", f); /* a crash in the middle of a line */
    fclose(f);
    uint64_t calls = mc_mem_stats().calls;
    assert_int_equal(mc_rundir_event(&rd, "skip", "", NULL), MC_OK);
    assert_int_equal(mc_mem_stats().calls, calls);
    memset(big, 'b', sizeof big - 1);
    big[0] = '"', big[1] = 'k', big[2] = '"', big[3] = ':', big[4] = big[sizeof big - 2] = '"';
    assert_int_equal(mc_rundir_event(&rd, "big", big, NULL), MC_OK);
    char *text = slurp(&rd, "events.jsonl"), *save;
    static const char *const kinds[] = {"launch", NULL, "skip", "big"};
    int n = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        json_t *j = json_loads(line, 0, NULL);
        if (!kinds[n]) {
            assert_null(j);
            continue;
        }
        assert_string_equal(json_string_value(json_object_get(j, "kind")), kinds[n]);
        assert_non_null(json_string_value(json_object_get(j, "time")));
        if (n == 0)
            assert_int_equal(json_integer_value(json_object_get(j, "ranks")), 4);
        json_decref(j);
    }
    assert_int_equal(n, 4);
    mc_free(text);
}

static void incidents_are_numbered_files(void **state)
{
    (void)state;
    struct mc_rundir rd;
    int n = 0;
    assert_int_equal(mc_rundir_open(fresh(), 1, &rd, NULL), MC_OK);
    struct mc_incident in = {.cls = "oom",
                             .rank = 3,
                             .pid = 77,
                             .node = "n1",
                             .message = "a \"b\"",
                             .step = 12,
                             .flight = "[{\"seq\":1}]"};
    assert_int_equal(mc_rundir_incident(&rd, &in, &n, NULL), MC_OK);
    assert_int_equal(n, 1);
    in.flight = NULL;
    assert_int_equal(mc_rundir_incident(&rd, &in, &n, NULL), MC_OK);
    assert_int_equal(n, 2);
    char *text = slurp(&rd, "incidents/001.json");
    json_t *j = json_loads(text, 0, NULL), *c = json_object_get(j, "cause");
    assert_string_equal(json_string_value(json_object_get(c, "class")), "oom");
    assert_string_equal(json_string_value(json_object_get(c, "message")), "a \"b\"");
    assert_string_equal(json_string_value(json_object_get(c, "node")), "n1");
    assert_int_equal(json_integer_value(json_object_get(c, "rank")), 3);
    assert_int_equal(json_integer_value(json_object_get(c, "pid")), 77);
    assert_int_equal(json_integer_value(json_object_get(j, "step")), 12);
    assert_int_equal(json_array_size(json_object_get(j, "flight")), 1);
    json_decref(j);
    mc_free(text);
}

/* ---- page ---- */

static void page_outlives_its_writer(void **state)
{
    (void)state;
    int fd = -1, st;
    struct mc_page *p;
    assert_int_equal(mc_page_create(&fd, &p, NULL), MC_OK);
    assert_int_equal(p->committed_step, -1);
    pid_t pid = fork();
    if (pid == 0) {
        struct mc_page *mine;
        if (mc_page_attach(fd, &mine, NULL))
            _exit(1);
        mc_flight_use(&mine->flight);
        mc_page_phase(mine, MC_PHASE_STEP, 41);
        raise(SIGKILL);
    }
    waitpid(pid, &st, 0);
    assert_true(WIFSIGNALED(st));
    assert_int_equal(atomic_load(&p->step), 41);
    assert_int_equal(atomic_load(&p->phase), MC_PHASE_STEP);
    assert_true(atomic_load(&p->beat_ns) > 0);
    assert_string_equal(p->flight.ev[0].what, "phase.step");
    mc_page_phase(NULL, MC_PHASE_EXIT, 1);
    mc_page_detach(p);
    close(fd);
}

static void page_attach_refuses_what_is_none(void **state)
{
    (void)state;
    struct mc_page *p = NULL, *q;
    struct mc_err e = {0};
    int fd;
    assert_int_equal(mc_page_attach(999, &p, &e), MC_E_USAGE);
    assert_non_null(strstr(e.msg, "999"));
    assert_int_equal(mc_page_attach(STDERR_FILENO, &p, NULL), MC_E_USAGE);
    int plain = open("/proc/self/exe", O_RDONLY);
    assert_int_equal(mc_page_attach(plain, &p, NULL), MC_E_USAGE);
    close(plain);
    int small = memfd_create("x", MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(small, 100), 0);
    assert_int_equal(mc_page_attach(small, &p, NULL), MC_E_USAGE);
    assert_int_equal(ftruncate(small, (off_t)sizeof *p), 0);
    assert_int_equal(mc_page_attach(small, &p, NULL), MC_E_USAGE); /* not sealed: could shrink */
    close(small);
    assert_int_equal(mc_page_create(&fd, &q, NULL), MC_OK);
    assert_int_not_equal(ftruncate(fd, 1), 0);
    q->version++;
    mc_err_clear(&e);
    assert_int_equal(mc_page_attach(fd, &p, &e), MC_E_USAGE);
    assert_non_null(strstr(e.msg, "version 3"));
    q->version--;
    q->magic ^= 1;
    assert_int_equal(mc_page_attach(fd, &p, NULL), MC_E_USAGE);
    assert_null(p);
    mc_page_detach(q);
    close(fd);
    assert_string_equal(mc_phase_name(MC_PHASE_SAVE), "save");
    assert_string_equal(mc_phase_name((enum mc_phase)99), "?");
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(g_dir, sizeof g_dir, "/tmp/mc_rundir.XXXXXX");
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
        cmocka_unit_test(open_makes_and_recognises),
        cmocka_unit_test(foreign_folders_are_not_touched),
        cmocka_unit_test(segments_count_up_and_are_whole),
        cmocka_unit_test(lock_writes_who_holds_it),
        cmocka_unit_test(second_start_is_refused_at_once_by_name),
        cmocka_unit_test(dying_run_is_waited_for),
        cmocka_unit_test(zombie_agent_counts_as_dead),
        cmocka_unit_test(ranks_that_stay_are_refused_after_five_seconds),
        cmocka_unit_test(lock_of_another_host_is_not_waited_for),
        cmocka_unit_test(events_are_lines_even_after_a_torn_one),
        cmocka_unit_test(incidents_are_numbered_files),
        cmocka_unit_test(page_outlives_its_writer),
        cmocka_unit_test(page_attach_refuses_what_is_none),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
