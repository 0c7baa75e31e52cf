/* test_agent.c - the agent's state machine event by event and under a random simulation, then the
 * real loop with ranks that behave and misbehave. This program is its own rank:
 * `test_agent rank RUN N MODE --page-fd F`.
 * links: mc_agent dep_jansson */
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

static int rank_main(int argc, char **argv)
{
    struct mc_page *p;
    struct mc_err e = {0};
    if (argc != 7 || strcmp(argv[5], "--page-fd") != 0 ||
        mc_page_attach(atoi(argv[6]), &p, &e) != MC_OK)
        return 90;
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

/* ---- the state machine ---- */

static struct mc_agent_action g_out[MC_AGENT_ACTIONS];

static int feed(struct mc_agent *a, struct mc_agent_event ev, int64_t now)
{
    memset(g_out, 0x77, sizeof g_out);
    return mc_agent_step(a, &ev, now, g_out);
}

static void up(struct mc_agent *a, int n, int64_t grace)
{
    mc_agent_init(a, n, grace);
    assert_int_equal(feed(a, (struct mc_agent_event){.kind = MC_AEV_START}, 0), n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(g_out[i].kind, MC_AACT_SPAWN);
        assert_int_equal(g_out[i].rank, i);
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(feed(a, (struct mc_agent_event){.kind = MC_AEV_SPAWNED, .rank = i}, 0), 0);
    assert_int_equal(a->alive, n);
}

static struct mc_agent_event exited(int rank, int code)
{
    return (struct mc_agent_event){.kind = MC_AEV_EXITED,
                                   .rank = rank,
                                   .wait_status = code << 8,
                                   .result_valid = 1,
                                   .exit_code = code};
}

static struct mc_agent_event killed(int rank, int sig)
{
    return (struct mc_agent_event){.kind = MC_AEV_EXITED, .rank = rank, .wait_status = sig};
}

static const struct mc_agent_event term = {.kind = MC_AEV_SIGNAL, .sig = SIGTERM},
                                   tick = {.kind = MC_AEV_TICK};

static void step_all_well_ends_with_0(void **state)
{
    (void)state;
    struct mc_agent a;
    up(&a, 2, 100);
    assert_int_equal(feed(&a, exited(1, 0), 10), 0);
    assert_int_equal(a.phase, MC_AGENT_STOPPING); /* the other has its grace, too */
    assert_int_equal(feed(&a, exited(0, 0), 20), 1);
    assert_int_equal(g_out[0].kind, MC_AACT_FINISH);
    assert_int_equal(g_out[0].exit_code, 0);
    assert_int_equal(a.phase, MC_AGENT_DONE);
}

static void step_signal_is_forwarded_and_ends_with_75(void **state)
{
    (void)state;
    struct mc_agent a;
    up(&a, 2, 100);
    assert_int_equal(feed(&a, term, 10), 2);
    assert_int_equal(g_out[0].kind, MC_AACT_SIGNAL);
    assert_int_equal(g_out[1].sig, SIGTERM);
    assert_int_equal(g_out[1].rank, 1);
    assert_int_equal(a.kill_at_ns, 110);
    assert_int_equal(feed(&a, term, 50), 2); /* the second, too; the clock does not restart */
    assert_int_equal(a.kill_at_ns, 110);
    assert_int_equal(feed(&a, tick, 109), 0);
    assert_int_equal(feed(&a, exited(0, 75), 60), 0);
    assert_int_equal(feed(&a, exited(1, 75), 61), 1);
    assert_int_equal(g_out[0].exit_code, 75);
}

static void step_deaf_ranks_are_killed_after_grace(void **state)
{
    (void)state;
    struct mc_agent a;
    up(&a, 3, 100);
    feed(&a, term, 10);
    feed(&a, exited(0, 75), 20);
    assert_int_equal(feed(&a, tick, 110), 3);
    assert_int_equal(g_out[0].kind, MC_AACT_INCIDENT);
    assert_string_equal(g_out[0].cls, "stop_timeout");
    assert_int_equal(g_out[0].rank, 1);
    assert_int_equal(g_out[1].kind, MC_AACT_KILL);
    assert_int_equal(g_out[2].rank, 2);
    assert_int_equal(feed(&a, tick, 500), 0);
    assert_int_equal(feed(&a, killed(2, SIGKILL), 501), 0);
    assert_int_equal(feed(&a, killed(1, SIGKILL), 502), 1);
    assert_int_equal(g_out[0].exit_code, 76);
    up(&a, 1, 0); /* no grace given: never */
    feed(&a, term, 10);
    assert_int_equal(feed(&a, tick, INT64_MAX), 0);
}

static void step_third_signal_kills(void **state)
{
    (void)state;
    struct mc_agent a;
    up(&a, 1, 100);
    feed(&a, term, 1);
    feed(&a, term, 2);
    assert_int_equal(feed(&a, term, 3), 2);
    assert_string_equal(g_out[0].cls, "killed_by_user");
    assert_int_equal(g_out[1].kind, MC_AACT_KILL);
    assert_int_equal(feed(&a, term, 4), 0);
    feed(&a, killed(0, SIGKILL), 5);
    assert_int_equal(g_out[0].exit_code, 76);
}

static void step_one_death_kills_the_others(void **state)
{
    (void)state;
    static const struct {
        struct mc_agent_event ev;
        const char *cls;
        int code;
    } rows[] = {
        {{.wait_status = SIGKILL}, "rank_death", 76},
        {{.wait_status = SIGSEGV | 0x80}, "rank_death", 76},
        {{.wait_status = SIGABRT}, "assert", 1},
        {{.wait_status = 75 << 8}, "rank_death", 76}, /* 75 without a result is none */
        {{.wait_status = 0}, "rank_death", 76},
        {{.wait_status = 77 << 8, .result_valid = 1, .exit_code = 77}, "rank_error", 77},
        {{.wait_status = 3 << 8, .result_valid = 1, .exit_code = 3}, "rank_error", 3},
        {{.wait_status = 76 << 8, .result_valid = 1, .exit_code = 76, .has_message = 1},
         "rank_error",
         76},
        {{.wait_status = 23 << 8, .result_valid = 1, .exit_code = 0}, "rank_exit", 1},
        {{.wait_status = SIGKILL, .result_valid = 1, .exit_code = 0}, "rank_death", 76},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mc_agent a;
        struct mc_agent_event ev = rows[i].ev;
        up(&a, 3, 100);
        ev.kind = MC_AEV_EXITED;
        ev.rank = 1;
        assert_int_equal(feed(&a, ev, 10), 3);
        assert_int_equal(g_out[0].kind, MC_AACT_INCIDENT);
        assert_string_equal(g_out[0].cls, rows[i].cls);
        assert_int_equal(g_out[0].rank, 1);
        assert_int_equal(g_out[1].kind, MC_AACT_KILL);
        assert_int_equal(g_out[1].rank, 0);
        assert_int_equal(g_out[1].sig, SIGKILL);
        assert_int_equal(g_out[2].rank, 2);
        assert_int_equal(a.first_dead, 1);
        assert_int_equal(feed(&a, killed(0, SIGKILL), 11), 0); /* ours: no second incident */
        assert_int_equal(feed(&a, killed(2, SIGKILL), 12), 1);
        assert_int_equal(g_out[0].kind, MC_AACT_FINISH);
        assert_int_equal(g_out[0].exit_code, rows[i].code);
    }
}

static void step_stop_before_progress_is_no_incident(void **state)
{
    (void)state;
    struct mc_agent a;
    up(&a, 1, 100);
    feed(&a, term, 1);
    assert_int_equal(feed(&a, exited(0, 76), 2), 1);
    assert_int_equal(g_out[0].kind, MC_AACT_FINISH);
    assert_int_equal(g_out[0].exit_code, 76);
    up(&a, 1, 100); /* a hook's wish to stop comes without a signal */
    assert_int_equal(feed(&a, exited(0, 76), 2), 1);
    assert_int_equal(g_out[0].kind, MC_AACT_FINISH);
    up(&a, 1, 100); /* but a failed last save, after a signal, is one */
    feed(&a, term, 1);
    struct mc_agent_event ev = exited(0, 76);
    ev.has_message = 1;
    assert_int_equal(feed(&a, ev, 2), 2);
    assert_int_equal(g_out[0].kind, MC_AACT_INCIDENT);
    mc_agent_init(&a, 2, 100); /* a signal before the start */
    assert_int_equal(feed(&a, term, 0), 0);
    assert_int_equal(feed(&a, (struct mc_agent_event){.kind = MC_AEV_START}, 1), 1);
    assert_int_equal(g_out[0].kind, MC_AACT_FINISH);
    assert_int_equal(g_out[0].exit_code, 76);
}

static void step_spawn_failure_and_late_ranks(void **state)
{
    (void)state;
    struct mc_agent a;
    struct mc_agent_event ev = {.kind = MC_AEV_SPAWN_FAILED, .rank = 1, .exit_code = 3};
    mc_agent_init(&a, 3, 100);
    feed(&a, (struct mc_agent_event){.kind = MC_AEV_START}, 0);
    feed(&a, (struct mc_agent_event){.kind = MC_AEV_SPAWNED, .rank = 0}, 0);
    assert_int_equal(feed(&a, ev, 0), 2);
    assert_string_equal(g_out[0].cls, "spawn");
    assert_int_equal(g_out[1].kind, MC_AACT_KILL);
    assert_int_equal(feed(&a, killed(0, SIGKILL), 1), 0); /* rank 2 is still to come */
    assert_int_equal(feed(&a, (struct mc_agent_event){.kind = MC_AEV_SPAWNED, .rank = 2}, 2), 1);
    assert_int_equal(g_out[0].kind, MC_AACT_KILL);
    assert_int_equal(feed(&a, killed(2, SIGKILL), 3), 1);
    assert_int_equal(g_out[0].kind, MC_AACT_FINISH);
    assert_int_equal(g_out[0].exit_code, 3);
    mc_agent_init(&a, 1, 100); /* the signal that came while the rank was being started */
    feed(&a, (struct mc_agent_event){.kind = MC_AEV_START}, 0);
    assert_int_equal(feed(&a, term, 1), 0);
    assert_int_equal(feed(&a, (struct mc_agent_event){.kind = MC_AEV_SPAWNED}, 2), 1);
    assert_int_equal(g_out[0].kind, MC_AACT_SIGNAL);
}

/* Random events that could happen: FINISH comes exactly once, when nobody is left; at most one
 * incident; only living ranks are signalled or killed; 75 only when every rank said 75 or 0. */
static void step_holds_its_promises_in_random_histories(void **state)
{
    (void)state;
    for (uint64_t h = 0; h < 20000; h++) {
        struct mc_agent a;
        uint64_t draw = 0;
        int n = 1 + (int)(mc_rng_u64(9, h, 1000) % 5), finished = 0, incidents = 0, bad = 0;
        int live[8] = {0}, starting[8] = {0}, doomed[8] = {0};
        mc_agent_init(&a, n, 50);
        for (int64_t now = 0; !finished; now += 7) {
            struct mc_agent_event ev = {.kind = MC_AEV_TICK};
            uint64_t r = mc_rng_u64(9, h, draw++);
            int rank = (int)(r % (uint64_t)n), what = (int)(r >> 16) % 100;
            if (now == 0)
                ev.kind = MC_AEV_START;
            else if (starting[rank]) {
                ev.kind = what < 95 ? MC_AEV_SPAWNED : MC_AEV_SPAWN_FAILED;
                ev.exit_code = 3;
                starting[rank] = 0;
                live[rank] = ev.kind == MC_AEV_SPAWNED;
                bad |= !live[rank];
            } else if (what < 5) {
                ev = term;
            } else if (live[rank] && (what < 15 || doomed[rank])) {
                static const int codes[] = {0, 75, 75, 76, 3};
                int code = codes[(r >> 32) % 5];
                ev = doomed[rank] || what < 7 ? killed(rank, SIGKILL) : exited(rank, code);
                bad |= ev.result_valid == 0 || code == 3 || code == 76; /* not 0 or 75 */
                live[rank] = 0;
            }
            ev.rank = rank;
            int na = feed(&a, ev, now);
            for (int i = 0; i < na; i++) {
                const struct mc_agent_action *x = &g_out[i];
                assert_int_equal(finished, 0);
                if (x->kind == MC_AACT_SPAWN)
                    starting[x->rank] = 1;
                if (x->kind == MC_AACT_SIGNAL || x->kind == MC_AACT_KILL)
                    assert_true(live[x->rank]);
                if (x->kind == MC_AACT_KILL)
                    doomed[x->rank] = 1;
                if (x->kind == MC_AACT_INCIDENT)
                    assert_int_equal(++incidents, 1);
                if (x->kind == MC_AACT_FINISH) {
                    finished = 1;
                    for (int k = 0; k < n; k++)
                        assert_false(live[k] || starting[k]);
                    if (x->exit_code == 75 || x->exit_code == 0)
                        assert_false(bad);
                    if (incidents)
                        assert_true(x->exit_code != 0 && x->exit_code != 75);
                }
            }
            assert_true(now < 100000);
        }
    }
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
        const struct mc_agent_run cfg = {.rd = &mine,
                                         .nranks = nranks,
                                         .threads_per_rank = 1,
                                         .exe = g_exe,
                                         .rank_args = args,
                                         .grace_ns = grace_ms * 1000000};
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
    assert_true(mc_clock_ns() - t0 < INT64_C(3000000000));
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
        assert_int_equal(run_agent(rows[i].mode, rows[i].ranks, 5000, NULL, 0, &r, &rd),
                         rows[i].code);
        assert_true(mc_clock_ns() - t0 < INT64_C(3000000000)); /* others do not wait for grace */
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
        cmocka_unit_test(step_all_well_ends_with_0),
        cmocka_unit_test(step_signal_is_forwarded_and_ends_with_75),
        cmocka_unit_test(step_deaf_ranks_are_killed_after_grace),
        cmocka_unit_test(step_third_signal_kills),
        cmocka_unit_test(step_one_death_kills_the_others),
        cmocka_unit_test(step_stop_before_progress_is_no_incident),
        cmocka_unit_test(step_spawn_failure_and_late_ranks),
        cmocka_unit_test(step_holds_its_promises_in_random_histories),
        cmocka_unit_test(loop_brings_rank_0s_result),
        cmocka_unit_test(loop_forwards_a_signal),
        cmocka_unit_test(loop_forwards_the_second_signal),
        cmocka_unit_test(loop_kills_the_deaf),
        cmocka_unit_test(loop_writes_the_first_cause),
        cmocka_unit_test(loop_tells_when_nothing_can_start),
        cmocka_unit_test(killed_agent_takes_its_ranks_along),
        cmocka_unit_test(loop_events_are_in_the_file),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
