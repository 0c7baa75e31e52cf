/* test_agent_nodes.c - several agents on one machine, with TCP and the run's key between them: they
 * come together, they are refused, they die. This program is its own rank:
 * `test_agent_nodes rank RUN N MODE --page-fd F --ctl-fd C`.
 * links: mc_agent dep_jansson */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/agent/agent.h"
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include "../../core/base/sysio.h"
#include "../../core/run/ctl.h"
#include "../../core/run/link.h"
#include "../../core/run/spawn.h"

enum { NODES = 3, PER = 2, WORLD = NODES * PER, RECIPE = 77, BUILD = 88 };

/* ---- the rank ---- */

static int rank_main(int argc, char **argv)
{
    struct mc_page *p;
    struct mc_err e = {0};
    struct mc_ctl *c = NULL;
    int all[WORLD], rank;
    char here[200];
    if (argc != 9 || mc_page_attach(atoi(argv[6]), &p, &e) != MC_OK)
        return 90;
    rank = atoi(argv[3]);
    mc_flight_use(&p->flight);
    mc_page_phase(p, MC_PHASE_START, 0);
    mc_signals_install();
    const struct mc_ctl_cfg cfg = {.fd = atoi(argv[8]),
                                   .rank = rank,
                                   .world = WORLD,
                                   .recipe_hash = RECIPE,
                                   .build = BUILD,
                                   .deadline_ns = INT64_C(20000000000)};
    mc_status st = mc_ctl_open(&cfg, &c, &e);
    for (int turn = 0; st == MC_OK && turn < 3; turn++) {
        int mine = 100 * turn + rank;
        st = mc_ctl_exchange(c, "numbers", &mine, sizeof mine, all, INT64_C(20000000000), &e);
        for (int r = 0; st == MC_OK && r < WORLD; r++)
            if (all[r] != 100 * turn + r)
                return 91;
    }
    mc_page_phase(p, MC_PHASE_STEP, 7);
    snprintf(here, sizeof here, "%s/logs/up%d", argv[2], rank);
    if (mc_sys_replace_file(here, "", 0, NULL) != MC_OK)
        return 92;
    while (st == MC_OK && strcmp(argv[4], "stay") == 0 && !mc_signals_pending())
        usleep(2000);
    mc_ctl_close(c);
    p->status = st;
    p->exit_code = st != MC_OK ? mc_status_exit_code(st) : mc_signals_pending() ? 75 : 0;
    snprintf(p->message, sizeof p->message, "%.1000s", e.msg);
    p->result_step = 20 + rank;
    p->loss = 2.5;
    p->weights_hash = 99;
    atomic_store(&p->result_valid, 1);
    return p->exit_code;
}

/* ---- agents ---- */

static char g_dir[64], g_exe[300];
static int g_next;

struct job {
    char run[100];
    int port;
    pid_t pid[NODES];
    int pipe[NODES][2];
    struct mc_agent_result res[NODES];
    mc_status status[NODES];
    int code[NODES];
};
struct odd { /* what one node has otherwise */
    int node, key, port;
    const char *run_id, *mode;
    uint64_t recipe, build;
    int64_t wait_ms;
};

static void agent(struct job *j, int node, const struct odd *o)
{
    struct mc_rundir rd;
    struct mc_err e = {0};
    struct mc_agent_result r;
    const char *args[] = {o->mode ? o->mode : "go", NULL};
    int odd = o->node == node;
    memset(&r, 0, sizeof r);
    prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL);
    mc_signals_reset();
    if (mc_rundir_open(j->run, 0, &rd, NULL) != MC_OK ||
        (node == 0 && mc_rundir_lock(&rd, NULL) != MC_OK))
        _exit(91);
    struct mc_agent_nodes nodes = {.nodes = NODES,
                                   .node = node,
                                   .first = node * PER,
                                   .world = WORLD,
                                   .coordinator = "127.0.0.1",
                                   .port = j->port,
                                   .run_id = odd && o->run_id ? o->run_id : "run 1"};
    memset(nodes.key, odd && o->key ? o->key : 7, sizeof nodes.key);
    const struct mc_agent_run cfg = {.rd = &rd,
                                     .nodes = &nodes,
                                     .nranks = PER,
                                     .threads_per_rank = 1,
                                     .exe = g_exe,
                                     .rank_args = args,
                                     .grace_ns = INT64_C(5000000000),
                                     .wait_ns = (o->wait_ms ? o->wait_ms : 20000) * 1000000,
                                     .recipe_hash = odd && o->recipe ? o->recipe : RECIPE,
                                     .build = odd && o->build ? o->build : BUILD};
    mc_status st = mc_agent_run(&cfg, &r, &e);
    if (st != MC_OK) {
        r.exit_code = mc_status_exit_code(st);
        snprintf(r.message, sizeof r.message, "%.1000s", e.msg);
    }
    if (waitpid(-1, NULL, WNOHANG) != -1) /* every rank is reaped */
        _exit(93);
    if (write(j->pipe[node][1], &r, sizeof r) != sizeof r)
        _exit(94);
    _exit(r.exit_code);
}

static void start(struct job *j, int node, const struct odd *o)
{
    assert_int_equal(pipe(j->pipe[node]), 0);
    j->pid[node] = fork();
    if (j->pid[node] == 0)
        agent(j, node, o);
    close(j->pipe[node][1]);
}

/* The port that node 0's agent wrote down. */
static int read_port(const char *run)
{
    char path[200], *text;
    size_t n;
    int port = 0;
    snprintf(path, sizeof path, "%s/events.jsonl", run);
    for (int i = 0; i < 20000 && !port; i++) {
        usleep(1000);
        if (mc_sys_read_file(path, 1 << 20, &text, &n, NULL) != MC_OK)
            continue;
        const char *at = strstr(text, "\"port\":");
        port = at ? atoi(at + 7) : 0;
        mc_free(text);
    }
    return port;
}

static void start_all(struct job *j, const struct odd *o)
{
    struct mc_rundir rd;
    memset(j, 0, sizeof *j);
    snprintf(j->run, sizeof j->run, "%s/run%d", g_dir, g_next++);
    assert_int_equal(mc_rundir_open(j->run, 1, &rd, NULL), MC_OK);
    mc_rundir_close(&rd);
    start(j, 0, o);
    j->port = read_port(j->run);
    assert_true(j->port > 0);
    for (int n = 1; n < NODES; n++)
        start(j, n, o);
}

static void wait_for_ranks(const struct job *j)
{
    char path[200];
    for (int r = 0; r < WORLD; r++) {
        snprintf(path, sizeof path, "%s/logs/up%d", j->run, r);
        for (int i = 0; i < 20000 && !mc_sys_exists(path); i++)
            usleep(1000);
        assert_true(mc_sys_exists(path));
    }
}

/* Waits for all agents; returns how long, ns. */
static int64_t end_all(struct job *j)
{
    int64_t t0 = mc_clock_ns();
    for (int n = 0; n < NODES; n++) {
        int st;
        if (read(j->pipe[n][0], &j->res[n], sizeof j->res[n]) != sizeof j->res[n])
            memset(&j->res[n], 0, sizeof j->res[n]);
        close(j->pipe[n][0]);
        assert_int_equal(waitpid(j->pid[n], &st, 0), j->pid[n]);
        j->code[n] = WIFEXITED(st) ? WEXITSTATUS(st) : 256 + WTERMSIG(st);
    }
    return mc_clock_ns() - t0;
}

static json_t *incident(const struct job *j, int n)
{
    char path[200];
    snprintf(path, sizeof path, "%s/incidents/%03d.json", j->run, n);
    return json_load_file(path, 0, NULL);
}

static const char *cause(json_t *j, const char *key)
{
    return json_string_value(json_object_get(json_object_get(j, "cause"), key));
}

static int64_t cause_number(json_t *j, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(j, "cause"), key));
}

static void says(const char *text, const char *what)
{
    if (!strstr(text, what))
        fail_msg("nothing says \"%s\": %s", what, text);
}

/* ---- tests ---- */

static void nodes_meet_and_end_together(void **state)
{
    (void)state;
    static struct job j;
    start_all(&j, &(struct odd){.node = -1});
    end_all(&j);
    for (int n = 0; n < NODES; n++) {
        assert_int_equal(j.code[n], 0);
        assert_int_equal(j.res[n].step, 20); /* rank 0's, on every node */
        assert_true(j.res[n].loss == 2.5);
    }
    assert_null(incident(&j, 1));
}

static void a_signal_to_one_agent_stops_all(void **state)
{
    (void)state;
    static struct job j;
    start_all(&j, &(struct odd){.node = -1, .mode = "stay"});
    wait_for_ranks(&j);
    kill(j.pid[2], SIGTERM);
    end_all(&j);
    for (int n = 0; n < NODES; n++)
        assert_int_equal(j.code[n], 75);
    assert_null(incident(&j, 1));
}

/* The pid of a direct child of `parent`. */
static pid_t child_of(pid_t parent)
{
    char path[64], *text;
    size_t n;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    assert_int_equal(mc_sys_read_file(path, 65536, &text, &n, NULL), MC_OK);
    pid_t pid = (pid_t)atoi(text);
    mc_free(text);
    assert_true(pid > 1);
    return pid;
}

static void a_killed_rank_ends_all_nodes(void **state)
{
    (void)state;
    static struct job j;
    start_all(&j, &(struct odd){.node = -1, .mode = "stay"});
    wait_for_ranks(&j);
    pid_t pid = child_of(j.pid[1]);
    kill(pid, SIGKILL);
    assert_true(end_all(&j) < INT64_C(2000000000));
    for (int n = 0; n < NODES; n++) {
        assert_int_equal(j.code[n], 76);
        says(j.res[n].message, "was killed by signal 9");
    }
    json_t *i = incident(&j, 1);
    assert_string_equal(cause(i, "class"), "rank_death");
    assert_int_equal(cause_number(i, "pid"), pid);
    assert_in_range(cause_number(i, "rank"), PER, 2 * PER - 1);
    assert_int_equal(json_integer_value(json_object_get(i, "step")), 7);
    json_t *others = json_object_get(i, "others"), *o;
    size_t k;
    assert_int_equal(json_array_size(others), WORLD - 1);
    json_array_foreach(others, k, o) /* of all nodes */
        assert_true(json_array_size(json_object_get(o, "flight")) > 0);
    json_decref(i);
}

static void a_lost_node_ends_all(void **state)
{
    (void)state;
    static struct job j;
    for (int victim = 0; victim < 2; victim++) {
        start_all(&j, &(struct odd){.node = -1, .mode = "stay"});
        wait_for_ranks(&j);
        kill(j.pid[victim], SIGKILL);
        assert_true(end_all(&j) < INT64_C(2000000000));
        assert_int_equal(j.code[victim], 256 + SIGKILL);
        assert_int_equal(j.code[2], 76);
        if (victim == 0) { /* the coordinator's: there is nobody to write it down */
            says(j.res[2].message, "the coordinator is gone");
            continue;
        }
        says(j.res[0].message, "agent of node 1");
        json_t *i = incident(&j, 1);
        assert_string_equal(cause(i, "class"), "node_lost");
        assert_int_equal(cause_number(i, "rank"), PER);
        json_decref(i);
    }
}

/* One node that does not belong: it is told why and ends at once with 3; the others wait for the
 * right one until their deadline, which names it. */
static void who_does_not_belong_is_refused(void **state)
{
    (void)state;
    static const struct {
        struct odd odd;
        const char *says;
    } rows[] = {
        {{.node = 1, .key = 8}, "holds another key"},
        {{.node = 1, .run_id = "run 2"}, "it belongs to run \"run 2\", the coordinator to run"},
        {{.node = 1, .recipe = 5}, "its recipe is 0000000000000005"},
        {{.node = 1, .build = 5}, "its program is build 0000000000000005"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct job j;
        struct odd o = rows[i].odd;
        o.wait_ms = 1000;
        start_all(&j, &o);
        assert_true(end_all(&j) < INT64_C(6000000000));
        assert_int_equal(j.code[1], 3);
        says(j.res[1].message, rows[i].says);
        for (int n = 0; n < NODES; n += 2) {
            assert_int_equal(j.code[n], 76);
            says(j.res[n].message, "node 1: 1 of 3 agents did not come within 1 s");
        }
        json_t *in = incident(&j, 1);
        assert_string_equal(cause(in, "class"), "rendezvous");
        json_decref(in);
    }
}

static void two_runs_on_one_port_are_told(void **state)
{
    (void)state;
    int fd, port, second, other;
    char by[60];
    struct mc_err e = {0};
    assert_int_equal(mc_link_listen(0, &fd, &port, &e), MC_OK);
    assert_int_equal(mc_link_listen(port, &second, &other, &e), MC_E_MACHINE);
    snprintf(by, sizeof by, "port %d is in use, by pid %d (", port, (int)getpid());
    says(e.msg, by);
    close(fd);
    /* through the agent: nothing was started, exit 3 */
    static struct job j;
    struct odd o = {.node = -1};
    assert_int_equal(mc_link_listen(0, &fd, &port, NULL), MC_OK);
    struct mc_rundir rd;
    snprintf(j.run, sizeof j.run, "%s/port", g_dir);
    assert_int_equal(mc_rundir_open(j.run, 1, &rd, NULL), MC_OK);
    j.port = port;
    start(&j, 0, &o);
    for (int n = 1; n < NODES; n++) { /* and agents that meet a port where no coordinator answers */
        o.wait_ms = 500;
        start(&j, n, &o);
    }
    end_all(&j);
    close(fd);
    assert_int_equal(j.code[0], 3);
    says(j.res[0].message, "is in use, by pid");
    assert_int_equal(j.code[1], 76);
    says(j.res[1].message, "took the connection and said nothing");
}

static int make_dir(void **state)
{
    (void)state;
    ssize_t n = readlink("/proc/self/exe", g_exe, sizeof g_exe - 1);
    snprintf(g_dir, sizeof g_dir, "/tmp/mc_nodes.XXXXXX");
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
        cmocka_unit_test(nodes_meet_and_end_together),
        cmocka_unit_test(a_signal_to_one_agent_stops_all),
        cmocka_unit_test(a_killed_rank_ends_all_nodes),
        cmocka_unit_test(a_lost_node_ends_all),
        cmocka_unit_test(who_does_not_belong_is_refused),
        cmocka_unit_test(two_runs_on_one_port_are_told),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
