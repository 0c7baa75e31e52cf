/* test_agent.c - the agent's real loop with ranks that behave and misbehave. This program is its
 * own rank: `test_agent rank RUN N MODE --page-fd F --ctl-fd C`. The pure machines have
 * test_coord.c. links: mc_agent dep_jansson */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/agent/agent.h"
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include "../../core/base/rng.h"
#include "../../core/base/sysio.h"
#include "../../core/run/ctl.h"
#include "../../core/run/spawn.h"

/* ---- the rank ---- */

static int leave(struct mc_page *p, int code, int64_t step, const char *message)
{
    p->exit_code = code;
    p->result_step = step;
    p->segment_steps = step;
    p->loss = 1.5;
    p->weights_hash = UINT64_C(0xabcdef0123456789);
    snprintf(p->message, sizeof p->message, "%s", message);
    atomic_store(&p->result_valid, 1);
    return code;
}

static int g_ctl_fd;
enum { RECIPE = 77, BUILD = 88, MEET = 4 };

/* The start of a real rank among MEET: hello, who is there, one exchange more. */
static int meet(struct mc_page *p, int rank, const char *mode)
{
    struct mc_ctl *c = NULL;
    struct mc_err e = {0};
    char all[MEET][5000], mine[5000];
    struct mc_ctl_cfg cfg = {.fd = g_ctl_fd,
                             .rank = rank,
                             .world = MEET,
                             .recipe_hash = RECIPE,
                             .build = BUILD,
                             .deadline_ns = INT64_C(5000000000)};
    if (strcmp(mode, "meet_other_recipe") == 0 && rank == 3)
        cfg.recipe_hash++;
    if (strcmp(mode, "meet_other_build") == 0 && rank == 3)
        cfg.build++;
    if (strcmp(mode, "meet_never") == 0 && rank == 2)
        raise(SIGSTOP);
    if (strcmp(mode, "meet_dies") == 0 && rank == 2) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would make an exit of it */
        raise(SIGSEGV);
    }
    mc_status st = mc_ctl_open(&cfg, &c, &e);
    if (st == MC_OK) {
        const char *me = mc_ctl_describe(c, rank);
        char want[40];
        snprintf(want, sizeof want, "rank %d (pid %d on ", rank, (int)getpid());
        if (strncmp(me, want, strlen(want)) != 0 || strstr(mc_ctl_describe(c, 0), "(pid 0"))
            return 95;
        if (strcmp(mode, "meet_stuck") == 0 && rank == 1)
            raise(SIGSTOP);
        memset(mine, 'a' + rank, sizeof mine);
        size_t n = strcmp(mode, "meet_sizes") == 0 && rank == 1 ? 4999 : sizeof mine;
        if (n != sizeof mine)
            usleep(100000); /* the others set the size */
        st = mc_ctl_exchange(c, "net", mine, n, all, INT64_C(5000000000), &e);
    }
    for (int r = 0; st == MC_OK && r < MEET; r++)
        for (size_t i = 0; i < sizeof mine; i++)
            if (all[r][i] != 'a' + r)
                return 96;
    mc_ctl_close(c);
    p->status = st;
    return leave(p, mc_status_exit_code(st), 20 + rank, st == MC_OK ? "" : e.msg);
}

static int rank_main(int argc, char **argv)
{
    struct mc_page *p;
    struct mc_err e = {0};
    if (argc != 9 || strcmp(argv[5], "--page-fd") != 0 || strcmp(argv[7], "--ctl-fd") != 0 ||
        mc_page_attach(atoi(argv[6]), &p, &e) != MC_OK)
        return 90;
    g_ctl_fd = atoi(argv[8]);
    const char *mode = argv[4];
    int rank = atoi(argv[3]);
    char here[200];
    snprintf(here, sizeof here, "%s/logs/up%d", argv[2], rank);
    if (mc_sys_replace_file(here, "", 0, &e) != MC_OK)
        return 92;
    mc_flight_use(&p->flight);
    mc_page_phase(p, MC_PHASE_STEP, 7);
    if (strcmp(mode, "late") == 0) {
        usleep(400000);
        mode = "stop";
    }
    mc_signals_install();
    if (strncmp(mode, "meet", 4) == 0)
        return meet(p, rank, mode);
    if (strcmp(mode, "victim_first") == 0) { /* rank 1 complains of rank 3 before it says why */
        if (rank == 1) {
            p->status = MC_E_PEER;
            return leave(p, 76, 7, "rank 3 closed the connection");
        }
        usleep(300000);
        if (rank == 3) {
            p->status = MC_E_NOSPC;
            return leave(p, 76, 7, "the disk is full");
        }
        mode = "stop";
    }
    if (strcmp(mode, "one_dies") == 0)
        mode = rank == 1 ? "kill9" : "stop";
    if (strcmp(mode, "one_fails") == 0) {
        if (rank == 2)
            usleep(100000);
        mode = rank == 2 ? "fail3" : "stop";
    }
    if (strcmp(mode, "ok") == 0)
        return leave(p, 0, 20 + rank, "");
    if (strcmp(mode, "stop") == 0) {
        while (!mc_signals_pending())
            usleep(1000);
        return leave(p, 75, 9, "");
    }
    if (strcmp(mode, "early") == 0) { /* stopped before its first update */
        while (!mc_signals_pending())
            usleep(1000);
        return leave(p, 76, 0, "");
    }
    if (strcmp(mode, "count2") == 0) { /* a long save, given up at the second signal */
        while (mc_signals_count() < 2)
            usleep(1000);
        usleep(50000);
        return leave(p, mc_signals_count() == 2 ? 76 : 91, 0, "");
    }
    if (strcmp(mode, "deaf") == 0)
        for (;;)
            usleep(1000);
    if (strcmp(mode, "kill9") == 0)
        raise(SIGKILL);
    if (strcmp(mode, "assert") == 0) {
        close(STDERR_FILENO);
        MC_ASSERT(rank < 0);
    }
    if (strcmp(mode, "silent") == 0)
        return 75; /* claims an orderly stop, left no result */
    if (strcmp(mode, "fail3") == 0)
        return leave(p, 3, 7, "the disk has 3 bytes left");
    if (strcmp(mode, "liar") == 0) {
        leave(p, 0, 7, "");
        return 23;
    }
    return 91;
}

/* ---- the loop ---- */

static char g_dir[64], g_exe[300];
static int g_next;

static void wait_for_ranks(const char *run, int nranks)
{
    char path[200];
    for (int r = 0; r < nranks; r++) {
        snprintf(path, sizeof path, "%s/logs/up%d", run, r);
        for (int i = 0; i < 20000 && !mc_sys_exists(path); i++)
            usleep(1000);
    }
}

/* Runs the agent in a child with signals `sigs` sent after_ms apart, once all ranks are up; its
 * result. */
static int run_agent(const char *mode, int nranks, int64_t grace_ms, const int *sigs, int after_ms,
                     struct mc_agent_result *res, struct mc_rundir *rd)
{
    int p[2], st;
    char path[100];
    snprintf(path, sizeof path, "%s/run%d", g_dir, g_next++);
    assert_int_equal(mc_rundir_open(path, 1, rd, NULL), MC_OK);
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct mc_err e = {0};
        const char *args[] = {mode, NULL};
        struct mc_rundir mine = *rd;
        struct mc_agent_result r;
        mc_signals_reset();
        if (mc_rundir_lock(&mine, NULL))
            _exit(91);
        struct mc_agent_run cfg = {.rd = &mine,
                                   .nranks = nranks,
                                   .threads_per_rank = 1,
                                   .exe = g_exe,
                                   .rank_args = args,
                                   .grace_ns = grace_ms * 1000000,
                                   .wait_ns = INT64_C(60000000000),
                                   .recipe_hash = RECIPE,
                                   .build = BUILD};
        if (strcmp(mode, "stop") == 0 || strcmp(mode, "deaf") == 0)
            cfg.wait_ns = 0; /* they never say hello */
        if (strcmp(mode, "meet_never") == 0 || strcmp(mode, "meet_stuck") == 0)
            cfg.wait_ns = INT64_C(4000000000); /* waited for in vain; the others must make it */
        if (mc_agent_run(&cfg, &r, &e) != MC_OK)
            _exit(92);
        if (waitpid(-1, NULL, WNOHANG) != -1) /* every rank is reaped */
            _exit(93);
        if (write(p[1], &r, sizeof r) != sizeof r)
            _exit(94);
        _exit(r.exit_code);
    }
    close(p[1]);
    if (sigs)
        wait_for_ranks(path, nranks);
    for (int i = 0; sigs && sigs[i]; i++) {
        usleep((useconds_t)after_ms * 1000);
        kill(pid, sigs[i]);
    }
    assert_int_equal(read(p[0], res, sizeof *res), sizeof *res);
    close(p[0]);
    waitpid(pid, &st, 0);
    assert_true(WIFEXITED(st));
    assert_int_equal(WEXITSTATUS(st), res->exit_code);
    return res->exit_code;
}

static json_t *incident(const struct mc_rundir *rd, int n)
{
    char path[1100], name[40], *text;
    size_t len;
    snprintf(name, sizeof name, "incidents/%03d.json", n);
    assert_int_equal(mc_rundir_file(rd, name, path, NULL), MC_OK);
    if (mc_sys_read_file(path, 1 << 20, &text, &len, NULL) != MC_OK)
        return NULL;
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    mc_free(text);
    return j;
}

static const char *cause(json_t *j, const char *key)
{
    return json_string_value(json_object_get(json_object_get(j, "cause"), key));
}

static void loop_brings_rank_0s_result(void **state)
{
    (void)state;
    struct mc_agent_result r;
    struct mc_rundir rd;
    assert_int_equal(run_agent("ok", 3, 5000, NULL, 0, &r, &rd), 0);
    assert_int_equal(r.result_valid, 1);
    assert_int_equal(r.step, 20);
    assert_true(r.loss == 1.5);
    assert_int_equal(r.weights_hash, UINT64_C(0xabcdef0123456789));
    assert_string_equal(r.message, "");
    assert_null(incident(&rd, 1));
}

static void loop_forwards_a_signal(void **state)
{
    (void)state;
    struct mc_agent_result r;
    struct mc_rundir rd;
    static const int sigs[] = {SIGINT, 0};
    assert_int_equal(run_agent("stop", 2, 5000, sigs, 200, &r, &rd), 75);
    assert_int_equal(r.step, 9);
    assert_null(incident(&rd, 1));
    /* while the ranks are still starting */
    assert_int_equal(run_agent("late", 2, 5000, sigs, 100, &r, &rd), 75);
    assert_int_equal(run_agent("early", 1, 5000, sigs, 100, &r, &rd), 76);
    assert_null(incident(&rd, 1));
}

static void loop_forwards_the_second_signal(void **state)
{
    (void)state;
    struct mc_agent_result r;
    struct mc_rundir rd;
    static const int sigs[] = {SIGTERM, SIGINT, 0};
    assert_int_equal(run_agent("count2", 2, 5000, sigs, 150, &r, &rd), 76);
    assert_null(incident(&rd, 1));
}

static void loop_kills_the_deaf(void **state)
{
    (void)state;
    struct mc_agent_result r;
    struct mc_rundir rd;
    static const int one[] = {SIGTERM, 0}, three[] = {SIGTERM, SIGTERM, SIGTERM, 0};
    int64_t t0 = mc_clock_ns();
    assert_int_equal(run_agent("deaf", 2, 400, one, 100, &r, &rd), 76);
    assert_true(mc_clock_ns() - t0 < INT64_C(20000000000));
    json_t *j = incident(&rd, 1);
    assert_string_equal(cause(j, "class"), "stop_timeout");
    json_decref(j);
    assert_int_equal(run_agent("deaf", 1, 60000, three, 400, &r, &rd), 76);
    j = incident(&rd, 1);
    assert_string_equal(cause(j, "class"), "killed_by_user");
    json_decref(j);
}

static void loop_writes_the_first_cause(void **state)
{
    (void)state;
    static const struct {
        const char *mode;
        int ranks, code;
        const char *cls;
        int rank;
        const char *says;
    } rows[] = {
        {"victim_first", 4, 76, "rank_error", 3, "the disk is full"},
        {"kill9", 1, 76, "rank_death", 0, "was killed by signal 9"},
        {"one_dies", 3, 76, "rank_death", 1, "in phase step of step 7"},
        {"one_fails", 3, 3, "rank_error", 2, "the disk has 3 bytes left"},
        {"assert", 1, 1, "assert", 0, "signal 6"},
        {"silent", 1, 76, "rank_death", 0, "exit code 75 and left no result"},
        {"liar", 1, 1, "rank_exit", 0, "exit code 23"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mc_agent_result r;
        struct mc_rundir rd;
        int64_t t0 = mc_clock_ns();
        assert_int_equal(run_agent(rows[i].mode, rows[i].ranks, 40000, NULL, 0, &r, &rd),
                         rows[i].code);
        assert_true(mc_clock_ns() - t0 < INT64_C(20000000000)); /* others do not wait for grace */
        json_t *j = incident(&rd, 1), *c = json_object_get(j, "cause");
        assert_non_null(j);
        assert_null(incident(&rd, 2));
        assert_string_equal(cause(j, "class"), rows[i].cls);
        assert_int_equal(json_integer_value(json_object_get(c, "rank")), rows[i].rank);
        assert_true(json_integer_value(json_object_get(c, "pid")) > 1);
        if (!strstr(cause(j, "message"), rows[i].says) || !strstr(r.message, rows[i].says))
            fail_msg("%s: %s | %s", rows[i].mode, cause(j, "message"), r.message);
        assert_int_equal(json_integer_value(json_object_get(j, "step")), 7);
        json_t *f = json_object_get(j, "flight"); /* the dead rank's last words */
        assert_true(json_array_size(f) >= 1);
        assert_string_equal(json_string_value(json_object_get(json_array_get(f, 0), "what")),
                            "phase.step");
        json_decref(j);
    }
}

static void loop_brings_ranks_together(void **state)
{
    (void)state;
    struct mc_agent_result r;
    struct mc_rundir rd;
    assert_int_equal(run_agent("meet", MEET, 5000, NULL, 0, &r, &rd), 0);
    assert_null(incident(&rd, 1));
}

/* Each ends in time, in one message that names who, with nobody left (run_agent). */
static void loop_names_who_spoils_the_start(void **state)
{
    (void)state;
    static const struct {
        const char *mode;
        int code;
        const char *cls;
        int rank;
        const char *says, *too;
    } rows[] = {
        {"meet_never", 76, "rendezvous", 2, "rank 2 (pid", "1 of 4 ranks did not say hello"},
        {"meet_stuck", 76, "rendezvous", 1, "rank 1 (pid", "did not take part in \"net\""},
        {"meet_dies", 1, "crash", 2, "was killed by signal 11", "in phase step of step 7"},
        {"meet_sizes", 1, "protocol", 1, "with 4999 bytes", "5000"},
        {"meet_other_recipe", 3, "rank_error", 3, "rank 3 was refused", "recipe 00000000"},
        {"meet_other_build", 3, "rank_error", 3, "rank 3 was refused", "build 00000000"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mc_agent_result r;
        struct mc_rundir rd;
        int64_t t0 = mc_clock_ns();
        int code = run_agent(rows[i].mode, MEET, 40000, NULL, 0, &r, &rd);
        if (code != rows[i].code || !strstr(r.message, rows[i].says) ||
            !strstr(r.message, rows[i].too))
            fail_msg("%s: %d, %s", rows[i].mode, code, r.message);
        assert_true(mc_clock_ns() - t0 < INT64_C(30000000000));
        json_t *j = incident(&rd, 1), *others = json_object_get(j, "others");
        assert_string_equal(cause(j, "class"), rows[i].cls);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "cause"), "rank")),
                         rows[i].rank);
        assert_int_equal(json_array_size(others), MEET - 1);
        for (size_t k = 0; k < MEET - 1; k++) /* their flight recorders are collected */
            assert_true(strcmp(rows[i].mode, "meet_dies") ==
                            0 || /* others may not have begun by then */
                        json_array_size(json_object_get(json_array_get(others, k), "flight")) > 0);
        json_decref(j);
    }
}

static void loop_tells_when_nothing_can_start(void **state)
{
    (void)state;
    struct mc_agent_result r;
    struct mc_rundir rd;
    char keep[300];
    snprintf(keep, sizeof keep, "%s", g_exe);
    snprintf(g_exe, sizeof g_exe, "/nowhere/mascon");
    assert_int_equal(run_agent("ok", 3, 5000, NULL, 0, &r, &rd), 3);
    snprintf(g_exe, sizeof g_exe, "%s", keep);
    assert_non_null(strstr(r.message, "/nowhere/mascon"));
    json_t *j = incident(&rd, 1);
    assert_string_equal(cause(j, "class"), "spawn");
    json_decref(j);
}

/* kill -9 of the agent: the ranks die, and the run's lock, which they hold too, is free again. */
static void killed_agent_takes_its_ranks_along(void **state)
{
    (void)state;
    struct mc_rundir rd;
    char path[100];
    snprintf(path, sizeof path, "%s/killed", g_dir);
    assert_int_equal(mc_rundir_open(path, 1, &rd, NULL), MC_OK);
    pid_t pid = fork();
    if (pid == 0) {
        const char *args[] = {"deaf", NULL};
        struct mc_agent_result r;
        struct mc_agent_run cfg = {
            .rd = &rd, .nranks = 3, .threads_per_rank = 1, .exe = g_exe, .rank_args = args};
        if (mc_rundir_lock(&rd, NULL) == MC_OK)
            mc_agent_run(&cfg, &r, NULL);
        _exit(1);
    }
    wait_for_ranks(path, 3);
    struct mc_rundir second;
    assert_int_equal(mc_rundir_open(path, 1, &second, NULL), MC_OK);
    assert_int_equal(mc_rundir_lock(&second, NULL), MC_E_MACHINE);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    int64_t t0 = mc_clock_ns();
    assert_int_equal(mc_rundir_lock(&second, NULL), MC_OK);
    assert_true(mc_clock_ns() - t0 < INT64_C(2000000000));
    mc_rundir_close(&second);
}

static void loop_events_are_in_the_file(void **state)
{
    (void)state;
    struct mc_agent_result r;
    struct mc_rundir rd;
    char path[1100], *text, *save;
    size_t n;
    static const int sigs[] = {SIGUSR1, 0};
    static const char *const kinds[] = {"launch", "signal", "end"};
    assert_int_equal(run_agent("stop", 1, 5000, sigs, 200, &r, &rd), 75);
    assert_int_equal(mc_rundir_file(&rd, "events.jsonl", path, NULL), MC_OK);
    assert_int_equal(mc_sys_read_file(path, 1 << 20, &text, &n, NULL), MC_OK);
    int i = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), i++) {
        json_t *j = json_loads(line, 0, NULL);
        assert_true(i < 3);
        assert_string_equal(json_string_value(json_object_get(j, "kind")), kinds[i]);
        if (i == 1)
            assert_string_equal(json_string_value(json_object_get(j, "signal")), "USR1");
        if (i == 2)
            assert_int_equal(json_integer_value(json_object_get(j, "exit")), 75);
        json_decref(j);
    }
    assert_int_equal(i, 3);
    mc_free(text);
}

static int make_dir(void **state)
{
    (void)state;
    ssize_t n = readlink("/proc/self/exe", g_exe, sizeof g_exe - 1);
    snprintf(g_dir, sizeof g_dir, "/tmp/mc_agent.XXXXXX");
    return n > 0 && mkdtemp(g_dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -rf %s", g_dir);
    return system(cmd);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "rank") == 0)
        return rank_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_brings_rank_0s_result),
        cmocka_unit_test(loop_forwards_a_signal),
        cmocka_unit_test(loop_forwards_the_second_signal),
        cmocka_unit_test(loop_kills_the_deaf),
        cmocka_unit_test(loop_writes_the_first_cause),
        cmocka_unit_test(loop_brings_ranks_together),
        cmocka_unit_test(loop_names_who_spoils_the_start),
        cmocka_unit_test(loop_tells_when_nothing_can_start),
        cmocka_unit_test(killed_agent_takes_its_ranks_along),
        cmocka_unit_test(loop_events_are_in_the_file),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
