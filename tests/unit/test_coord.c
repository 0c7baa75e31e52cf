/* test_coord.c - the coordinator and the agents' state machine, event by event and all together
 * under a random simulation: several agents, ranks that die, fail, complain of each other or never
 * come, signals, lost connections, messages that take their time.
 * links: mc_agent */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/agent/agent.h"
#include "../../core/agent/coord.h"
#include "../../core/base/rng.h"

/* ---- the coordinator, event by event ---- */

static struct mc_coord_action g_out[MC_COORD_ACTIONS];
static struct mc_coord g_c;

static int feed(struct mc_coord_event ev, int64_t now)
{
    memset(g_out, 0x77, sizeof g_out);
    return mc_coord_step(&g_c, &ev, now, g_out);
}

static void begin(int nodes, int world, int64_t grace, int64_t wait)
{
    mc_coord_init(&g_c, nodes, world, grace, wait);
    for (int n = 0; n < nodes; n++)
        assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_JOINED,
                                                      .node = n,
                                                      .first = n * (world / nodes),
                                                      .count = world / nodes},
                              0),
                         0);
}

static void up(int world, int64_t grace)
{
    begin(1, world, grace, 1000000);
    assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_START}, 0), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_SPAWN);
    for (int i = 0; i < world; i++)
        assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_SPAWNED, .rank = i}, 0), 0);
    for (int i = 0; i < world; i++)
        assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_HELLO, .rank = i}, 0), 0);
    assert_int_equal(g_c.alive, world);
    assert_int_equal(g_c.wait, MC_WAIT_NONE);
}

static struct mc_coord_event exited(int rank, int code)
{
    return (struct mc_coord_event){.kind = MC_CEV_EXITED,
                                   .rank = rank,
                                   .wait_status = code << 8,
                                   .result_valid = 1,
                                   .exit_code = code};
}

static struct mc_coord_event failed(int rank, mc_status status)
{
    struct mc_coord_event ev = exited(rank, mc_status_exit_code(status));
    ev.has_message = 1;
    ev.status = status;
    return ev;
}

static struct mc_coord_event killed(int rank, int sig)
{
    return (struct mc_coord_event){.kind = MC_CEV_EXITED, .rank = rank, .wait_status = sig};
}

static const struct mc_coord_event term = {.kind = MC_CEV_SIGNAL, .sig = SIGTERM},
                                   tick = {.kind = MC_CEV_TICK};

static void all_well_ends_with_0(void **state)
{
    (void)state;
    up(2, 100);
    assert_int_equal(feed(exited(1, 0), 10), 0);
    assert_int_equal(g_c.phase, MC_COORD_STOPPING); /* the other has its grace, too */
    assert_int_equal(feed(exited(0, 0), 20), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_FINISH);
    assert_int_equal(g_out[0].exit_code, 0);
    assert_int_equal(g_c.phase, MC_COORD_DONE);
}

static void signal_is_forwarded_and_ends_with_75(void **state)
{
    (void)state;
    up(2, 100);
    assert_int_equal(feed(term, 10), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_SIGNAL);
    assert_int_equal(g_out[0].rank, -1);
    assert_int_equal(g_out[0].sig, SIGTERM);
    assert_int_equal(g_c.kill_at_ns, 110);
    assert_int_equal(feed(term, 50), 1); /* the second, too; the clock does not restart */
    assert_int_equal(g_c.kill_at_ns, 110);
    assert_int_equal(feed(tick, 109), 0);
    assert_int_equal(feed(exited(0, 75), 60), 0);
    assert_int_equal(feed(exited(1, 75), 61), 1);
    assert_int_equal(g_out[0].exit_code, 75);
}

/* Slurm signals every agent of a step: one request, not three. */
static void signal_of_several_agents_is_one(void **state)
{
    (void)state;
    begin(3, 3, 100, 1000);
    feed((struct mc_coord_event){.kind = MC_CEV_START}, 0);
    for (int i = 0; i < 3; i++)
        feed((struct mc_coord_event){.kind = MC_CEV_SPAWNED, .rank = i}, 0);
    for (int node = 0; node < 3; node++)
        assert_int_equal(
            feed((struct mc_coord_event){.kind = MC_CEV_SIGNAL, .node = node, .sig = SIGTERM}, 1),
            node == 0);
    assert_int_equal(g_c.signals, 1);
    feed((struct mc_coord_event){.kind = MC_CEV_SIGNAL, .node = 2, .sig = SIGTERM}, 2);
    assert_int_equal(g_c.signals, 2);
}

static void deaf_ranks_are_killed_after_grace(void **state)
{
    (void)state;
    up(3, 100);
    feed(term, 10);
    feed(exited(0, 75), 20);
    assert_int_equal(feed(tick, 110), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_KILL);
    assert_int_equal(g_out[0].rank, -1);
    assert_int_equal(feed(tick, 500), 0);
    assert_int_equal(feed(killed(2, SIGKILL), 501), 0);
    assert_int_equal(feed(killed(1, SIGKILL), 502), 2);
    assert_int_equal(g_out[0].kind, MC_CACT_INCIDENT);
    assert_string_equal(g_c.cause.cls, "stop_timeout");
    assert_int_equal(g_c.cause.rank, 1);
    assert_int_equal(g_out[1].exit_code, 76);
    up(1, 0); /* no grace given: never */
    feed(term, 10);
    assert_int_equal(feed(tick, INT64_MAX), 0);
}

static void third_signal_kills(void **state)
{
    (void)state;
    up(1, 100);
    feed(term, 1);
    feed(term, 2);
    assert_int_equal(feed(term, 3), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_KILL);
    assert_int_equal(feed(term, 4), 0);
    assert_int_equal(feed(killed(0, SIGKILL), 5), 2);
    assert_string_equal(g_c.cause.cls, "killed_by_user");
    assert_int_equal(g_out[1].exit_code, 76);
}

/* The second one means "now": ten seconds, then nobody is waited for. */
static void second_signal_hurries(void **state)
{
    (void)state;
    const int64_t s = INT64_C(1000000000);
    up(2, 600 * s);
    feed(term, s);
    feed(term, 5 * s);
    assert_int_equal(feed(exited(1, 75), 6 * s), 0);
    assert_int_equal(feed(tick, 15 * s - 1), 0);
    assert_int_equal(feed(tick, 15 * s), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_KILL);
    assert_int_equal(feed(killed(0, SIGKILL), 16 * s), 2);
    assert_string_equal(g_c.cause.cls, "stop_timeout");
    assert_int_equal(g_c.cause.rank, 0);
    assert_int_equal(g_out[1].exit_code, 76);
    up(1, 2 * s); /* what is sooner stays */
    feed(term, s);
    feed(term, s + 1);
    assert_int_equal(feed(tick, 3 * s), 1);
    up(1, 0); /* nor is there a grace without end */
    feed(term, s);
    feed(term, 2 * s);
    assert_int_equal(feed(tick, 12 * s), 1);
}

/* Its agent killed it after its last word: 76, unless the word itself was worse. */
static void rank_that_does_not_leave_is_the_cause(void **state)
{
    (void)state;
    static const struct {
        int said, message;
        const char *cls;
        int code;
    } rows[] = {{0, 0, "exit_timeout", 76}, {75, 0, "exit_timeout", 76}, {77, 1, "rank_error", 77}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mc_coord_event ev = {.kind = MC_CEV_EXITED,
                                    .rank = 1,
                                    .wait_status = SIGKILL,
                                    .result_valid = 1,
                                    .exit_code = rows[i].said,
                                    .has_message = rows[i].message,
                                    .late = 1};
        up(2, 100);
        feed(exited(0, rows[i].said), 10);
        assert_int_equal(feed(ev, 11), 2);
        assert_string_equal(g_c.cause.cls, rows[i].cls);
        assert_int_equal(g_c.cause.rank, rows[i].message ? 0 : 1);
        assert_int_equal(g_out[1].exit_code, rows[i].code);
    }
}

/* The agent: only who has said its last word is killed, once, and only when it is late. */
static void agent_ends_who_does_not_leave(void **state)
{
    (void)state;
    struct mc_agent a;
    struct mc_agent_action out[MC_AGENT_ACTIONS];
    const struct mc_agent_event said = {.kind = MC_AEV_SAID, .rank = 1}, t = {.kind = MC_AEV_TICK};
    mc_agent_init(&a, 3, 0);
    a.leave_ns = 100;
    mc_agent_step(&a, &(struct mc_agent_event){.kind = MC_AEV_SPAWN}, 0, out);
    for (int r = 0; r < 3; r++)
        mc_agent_step(&a, &(struct mc_agent_event){.kind = MC_AEV_SPAWNED, .rank = r}, 0, out);
    assert_int_equal(mc_agent_step(&a, &t, 1000, out), 0);
    assert_int_equal(mc_agent_step(&a, &said, 1000, out), 0);
    assert_int_equal(mc_agent_step(&a, &said, 1050, out), 0); /* counted from the first */
    assert_int_equal(mc_agent_step(&a, &t, 1099, out), 0);
    assert_int_equal(mc_agent_step(&a, &t, 1100, out), 1);
    assert_int_equal(out[0].kind, MC_AACT_KILL);
    assert_int_equal(out[0].rank, 1);
    assert_int_equal(out[0].sig, SIGKILL);
    assert_true(a.late[1] && !a.late[0] && !a.late[2]);
    assert_int_equal(mc_agent_step(&a, &t, 1101, out), 0);
}

static void one_death_kills_the_others(void **state)
{
    (void)state;
    static const struct {
        struct mc_coord_event ev;
        const char *cls;
        int code, at_once;
    } rows[] = {
        {{.wait_status = SIGKILL}, "rank_death", 76, 1},
        {{.wait_status = SIGSEGV | 0x80}, "crash", 1, 1},
        {{.wait_status = SIGABRT}, "assert", 1, 1},
        {{.wait_status = 75 << 8}, "rank_death", 76, 1}, /* 75 without a result is none */
        {{.wait_status = 0}, "rank_death", 76, 1},
        {{.wait_status = 77 << 8, .result_valid = 1, .exit_code = 77}, "rank_error", 77, 0},
        {{.wait_status = 3 << 8, .result_valid = 1, .exit_code = 3}, "rank_error", 3, 0},
        {{.wait_status = 76 << 8, .result_valid = 1, .exit_code = 76, .has_message = 1},
         "rank_error",
         76,
         0},
        {{.wait_status = 23 << 8, .result_valid = 1, .exit_code = 0}, "rank_exit", 1, 1},
        {{.wait_status = SIGKILL, .result_valid = 1, .exit_code = 0}, "rank_death", 76, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mc_coord_event ev = rows[i].ev;
        up(3, 100);
        ev.kind = MC_CEV_EXITED;
        ev.rank = 1;
        assert_int_equal(feed(ev, 10), rows[i].at_once);
        if (!rows[i].at_once) {
            assert_int_equal(feed(tick, 10 + INT64_C(249999999)), 0);
            assert_int_equal(feed(tick, 10 + INT64_C(250000000)), 1);
        }
        assert_int_equal(g_out[0].kind, MC_CACT_KILL);
        assert_int_equal(feed(killed(0, SIGKILL), 11), 0); /* ours: no cause */
        assert_int_equal(feed(killed(2, SIGKILL), 12), 2);
        assert_int_equal(g_out[0].kind, MC_CACT_INCIDENT);
        assert_int_equal(g_out[0].rank, 1);
        assert_string_equal(g_c.cause.cls, rows[i].cls);
        assert_int_equal(g_out[1].kind, MC_CACT_FINISH);
        assert_int_equal(g_out[1].exit_code, rows[i].code);
    }
}

/* Rank 3's error makes ranks 1 and 0 fail, and theirs are seen first. */
static void first_cause_is_kept_before_its_victims(void **state)
{
    (void)state;
    up(4, 100);
    assert_int_equal(feed(failed(1, MC_E_PEER), 10), 0);
    assert_int_equal(feed(failed(0, MC_E_TIMEOUT), 20), 0);
    assert_int_equal(feed(tick, 700000000), 0);
    assert_int_equal(feed(failed(3, MC_E_NOSPC), 700000001), 0);
    assert_int_equal(feed(tick, 750000010), 1);
    feed(killed(2, SIGKILL), 750000011);
    assert_int_equal(g_c.cause.rank, 3);
    assert_string_equal(g_c.cause.cls, "rank_error");
    up(4, 100); /* a death outweighs an error, and is final */
    feed(failed(1, MC_E_IO), 10);
    assert_int_equal(feed(killed(2, SIGKILL), 20), 1);
    assert_int_equal(g_c.cause.rank, 2);
    up(4, 100); /* of two errors the first */
    feed(failed(2, MC_E_IO), 10);
    feed(failed(1, MC_E_IO), 11);
    assert_int_equal(g_c.cause.rank, 2);
    up(2, 100); /* nobody else: the victim's word is all there is */
    feed(failed(1, MC_E_PEER), 10);
    assert_int_equal(feed(failed(0, MC_E_PEER), 11), 2);
    assert_string_equal(g_c.cause.cls, "peer");
    assert_int_equal(g_c.cause.rank, 1);
}

static void stop_before_progress_is_no_incident(void **state)
{
    (void)state;
    up(1, 100);
    feed(term, 1);
    assert_int_equal(feed(exited(0, 76), 2), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_FINISH);
    assert_int_equal(g_out[0].exit_code, 76);
    up(1, 100); /* a hook's wish to stop comes without a signal */
    assert_int_equal(feed(exited(0, 76), 2), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_FINISH);
    up(1, 100); /* but a failed last save, after a signal, is one */
    feed(term, 1);
    assert_int_equal(feed(failed(0, MC_E_NOSPC), 2), 2);
    assert_int_equal(g_out[0].kind, MC_CACT_INCIDENT);
    begin(1, 2, 100, 1000); /* a signal before the start */
    assert_int_equal(feed(term, 0), 0);
    assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_START}, 1), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_FINISH);
    assert_int_equal(g_out[0].exit_code, 76);
}

static void spawn_failure_and_late_ranks(void **state)
{
    (void)state;
    struct mc_coord_event ev = {.kind = MC_CEV_SPAWN_FAILED, .rank = 1, .exit_code = 3};
    begin(1, 3, 100, 1000);
    feed((struct mc_coord_event){.kind = MC_CEV_START}, 0);
    feed((struct mc_coord_event){.kind = MC_CEV_SPAWNED, .rank = 0}, 0);
    assert_int_equal(feed(ev, 0), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_KILL);
    assert_int_equal(feed(killed(0, SIGKILL), 1), 0); /* rank 2 is still to come */
    assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_SPAWNED, .rank = 2}, 2), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_KILL);
    assert_int_equal(g_out[0].rank, 2);
    assert_int_equal(feed(killed(2, SIGKILL), 3), 2);
    assert_string_equal(g_c.cause.cls, "spawn");
    assert_int_equal(g_out[1].exit_code, 3);
    begin(1, 1, 100, 1000); /* the signal that came while the rank was being started */
    feed((struct mc_coord_event){.kind = MC_CEV_START}, 0);
    feed(term, 1);
    assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_SPAWNED}, 2), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_SIGNAL);
}

static void waits_of_the_start_end(void **state)
{
    (void)state;
    mc_coord_init(&g_c, 2, 4, 100, 1000);
    feed((struct mc_coord_event){.kind = MC_CEV_JOINED, .node = 0, .first = 0, .count = 2}, 0);
    assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_START}, 5), 0);
    assert_int_equal(feed(tick, 1004), 0);
    assert_int_equal(feed(tick, 1005), 2); /* an agent */
    assert_string_equal(g_c.cause.cls, "rendezvous");
    assert_true(!mc_coord_misses_node(&g_c, 0) && mc_coord_misses_node(&g_c, 1));
    assert_int_equal(g_out[1].exit_code, 76);
    up(3, 100); /* a rank that says nothing */
    begin(1, 3, 100, 1000);
    feed((struct mc_coord_event){.kind = MC_CEV_START}, 0);
    for (int i = 0; i < 3; i++)
        feed((struct mc_coord_event){.kind = MC_CEV_SPAWNED, .rank = i}, 0);
    feed((struct mc_coord_event){.kind = MC_CEV_HELLO, .rank = 0}, 1);
    feed((struct mc_coord_event){.kind = MC_CEV_HELLO, .rank = 2}, 1);
    assert_int_equal(feed(tick, 1000), 1);
    assert_int_equal(g_c.cause.rank, 1);
    assert_true(mc_coord_misses_rank(&g_c, 1) && !mc_coord_misses_rank(&g_c, 2));
    feed(killed(1, SIGKILL), 1001);
    assert_true(mc_coord_misses_rank(&g_c, 1)); /* what was missing stays known */
    up(2, 100);                                 /* a rank that leaves an exchange alone */
    feed((struct mc_coord_event){.kind = MC_CEV_GATHER, .rank = 1, .seq = 1}, 50);
    assert_int_equal(feed(tick, 1000049), 0);
    assert_int_equal(feed(tick, 1000050), 1);
    assert_true(mc_coord_misses_rank(&g_c, 0) && !mc_coord_misses_rank(&g_c, 1));
}

static void exchanges_are_whole_and_in_order(void **state)
{
    (void)state;
    up(3, 100);
    struct mc_coord_event ev = {.kind = MC_CEV_GATHER, .seq = 1};
    for (ev.rank = 2; ev.rank > 0; ev.rank--)
        assert_int_equal(feed(ev, 1), 0);
    assert_int_equal(feed(ev, 2), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_GATHERED);
    assert_int_equal(g_out[0].seq, 1);
    assert_int_equal(g_c.wait, MC_WAIT_NONE);
    ev.seq = 2;
    assert_int_equal(feed(ev, 3), 0);
    ev.rank = 1;
    ev.seq = 1; /* again the first */
    feed(ev, 4);
    assert_string_equal(g_c.cause.cls, "protocol");
    assert_int_equal(g_c.cause.exit_code, 1);
}

static void lost_node_takes_its_ranks_along(void **state)
{
    (void)state;
    begin(2, 4, 100, 1000);
    feed((struct mc_coord_event){.kind = MC_CEV_START}, 0);
    for (int i = 0; i < 4; i++)
        feed((struct mc_coord_event){.kind = MC_CEV_SPAWNED, .rank = i}, 0);
    assert_int_equal(feed((struct mc_coord_event){.kind = MC_CEV_LOST, .node = 1}, 1), 1);
    assert_int_equal(g_out[0].kind, MC_CACT_KILL);
    assert_int_equal(g_c.alive, 2);
    feed(killed(0, SIGKILL), 2);
    assert_int_equal(feed(killed(1, SIGKILL), 3), 2);
    assert_string_equal(g_c.cause.cls, "node_lost");
    assert_int_equal(g_c.cause.rank, 2);
}

/* ---- all together ---- */

/* Messages between each agent and the coordinator arrive in order, each after a delay of its own;
 * ranks act by the dice. What must hold: the coordinator finishes once, every agent finishes, every
 * rank that was started is gone, only living ranks are signalled or killed, 0 and 75 only when
 * every rank said so, an incident exactly when something went wrong. */
enum { NODES = 4, PER = 3, QUEUE = 256 };
struct sim_msg {
    int64_t at;
    int down; /* to the agent */
    struct mc_coord_event up;
    struct mc_agent_event order;
};
struct sim_node {
    struct mc_agent a;
    struct sim_msg q[QUEUE];
    int head, tail, cut, done;
    int64_t last_up, last_down;
    int live[PER], starting[PER], doomed[PER], hello[PER], seq[PER], got;
};
struct sim {
    uint64_t seed, draw;
    int nodes, world, finished, incidents, exit_code, bad, kills_seen;
    int64_t now;
    struct mc_coord c;
    struct sim_node n[NODES];
};

static uint64_t roll(struct sim *s, uint64_t n)
{
    return mc_rng_u64(11, s->seed, s->draw++) % n;
}

static void post(struct sim *s, int node, struct sim_msg m)
{
    struct sim_node *n = &s->n[node];
    int64_t *last = m.down ? &n->last_down : &n->last_up;
    m.at = s->now + 1 + (int64_t)roll(s, 20);
    if (m.at < *last)
        m.at = *last; /* one connection keeps its order */
    *last = m.at;
    if (n->cut)
        return;
    assert_true(n->tail < QUEUE);
    n->q[n->tail++] = m;
}

static void tell(struct sim *s, int node, struct mc_coord_event ev)
{
    ev.node = node;
    ev.rank += node * PER;
    post(s, node, (struct sim_msg){.up = ev});
}

static void order(struct sim *s, int rank, struct mc_agent_event ev)
{
    for (int n = 0; n < s->nodes; n++)
        if (rank < 0 || rank / PER == n) {
            ev.rank = rank < 0 ? -1 : rank % PER;
            post(s, n, (struct sim_msg){.down = 1, .order = ev});
        }
}

static void to_coord(struct sim *s, struct mc_coord_event ev)
{
    struct mc_coord_action out[MC_COORD_ACTIONS];
    int n = mc_coord_step(&s->c, &ev, s->now, out);
    for (int i = 0; i < n; i++) {
        assert_int_equal(s->finished, 0);
        if (out[i].kind == MC_CACT_SPAWN)
            order(s, -1, (struct mc_agent_event){.kind = MC_AEV_SPAWN});
        if (out[i].kind == MC_CACT_SIGNAL)
            order(s, out[i].rank,
                  (struct mc_agent_event){.kind = MC_AEV_SIGNAL, .sig = out[i].sig});
        if (out[i].kind == MC_CACT_KILL)
            order(s, out[i].rank, (struct mc_agent_event){.kind = MC_AEV_KILL});
        if (out[i].kind == MC_CACT_GATHERED)
            for (int k = 0; k < s->nodes; k++)
                s->n[k].got = (int)out[i].seq;
        if (out[i].kind == MC_CACT_INCIDENT)
            assert_int_equal(++s->incidents, 1);
        if (out[i].kind == MC_CACT_FINISH) {
            s->finished = 1;
            s->exit_code = out[i].exit_code;
            order(s, -1, (struct mc_agent_event){.kind = MC_AEV_END, .exit_code = s->exit_code});
        }
    }
}

static void to_agent(struct sim *s, int node, struct mc_agent_event ev)
{
    struct sim_node *n = &s->n[node];
    struct mc_agent_action out[MC_AGENT_ACTIONS];
    int k = mc_agent_step(&n->a, &ev, s->now, out);
    for (int i = 0; i < k; i++) {
        int r = out[i].rank;
        assert_int_equal(n->done, 0);
        if (out[i].kind == MC_AACT_SPAWN)
            n->starting[r] = 1;
        else if (out[i].kind == MC_AACT_FINISH)
            n->done = 1;
        else
            assert_true(n->live[r]);
        if (out[i].kind == MC_AACT_KILL)
            n->doomed[r] = 1;
    }
    if (n->done)
        for (int r = 0; r < PER; r++)
            assert_false(n->live[r] || n->starting[r]);
}

static void end_rank(struct sim *s, int node, int r, struct mc_coord_event ev)
{
    s->n[node].live[r] = 0;
    to_agent(s, node, (struct mc_agent_event){.kind = MC_AEV_EXITED, .rank = r});
    ev.rank = r;
    tell(s, node, ev);
}

/* One turn of one rank. evil: out of 1000, how often something goes wrong. */
static void live_rank(struct sim *s, int node, int r, uint64_t evil)
{
    struct sim_node *n = &s->n[node];
    uint64_t what = roll(s, 1000);
    if (n->starting[r]) {
        int ok = roll(s, 1000) >= evil;
        n->starting[r] = 0;
        n->live[r] = ok;
        s->bad |= !ok;
        to_agent(
            s, node,
            (struct mc_agent_event){.kind = ok ? MC_AEV_SPAWNED : MC_AEV_SPAWN_FAILED, .rank = r});
        tell(s, node,
             (struct mc_coord_event){
                 .kind = ok ? MC_CEV_SPAWNED : MC_CEV_SPAWN_FAILED, .rank = r, .exit_code = 3});
    } else if (!n->live[r]) {
        return;
    } else if (n->doomed[r]) {
        end_rank(s, node, r, killed(0, SIGKILL));
    } else if (what < evil) {
        s->bad = 1;
        end_rank(s, node, r, what % 3 == 0 ? killed(0, SIGSEGV) : failed(0, MC_E_IO));
    } else if (what < 2 * evil) {
        s->bad = 1;
        end_rank(s, node, r, failed(0, MC_E_PEER));
    } else if (!n->hello[r]) {
        n->hello[r] = what < 500;
        if (n->hello[r])
            tell(s, node, (struct mc_coord_event){.kind = MC_CEV_HELLO, .rank = r});
    } else if (n->seq[r] < 3 && n->got == n->seq[r]) {
        n->seq[r]++;
        tell(s, node,
             (struct mc_coord_event){.kind = MC_CEV_GATHER, .rank = r, .seq = (uint32_t)n->seq[r]});
    } else if (n->got == 3 && what > 980) {
        end_rank(s, node, r, exited(0, s->c.signals ? 75 : 0));
    }
}

static void simulate(struct sim *s)
{
    uint64_t evil = roll(s, 3) == 0 ? 0 : 1 + roll(s, 4);
    int over = 0, lazy = roll(s, 8) == 0; /* one node that does not come */
    s->nodes = 1 + (int)roll(s, NODES);
    s->world = s->nodes * PER;
    mc_coord_init(&s->c, s->nodes, s->world, 4000, 3000);
    for (int n = 0; n < s->nodes; n++) {
        mc_agent_init(&s->n[n].a, PER, 8000);
        if (n == 0 || !lazy)
            post(s, n,
                 (struct sim_msg){
                     .up = {.kind = MC_CEV_JOINED, .node = n, .first = n * PER, .count = PER}});
    }
    s->bad |= lazy && s->nodes > 1;
    to_coord(s, (struct mc_coord_event){.kind = MC_CEV_START});
    for (; !over; s->now += 3) {
        over = s->finished;
        for (int i = 0; i < s->nodes; i++) {
            struct sim_node *n = &s->n[i];
            while (n->head < n->tail && n->q[n->head].at <= s->now) {
                struct sim_msg *m = &n->q[n->head++];
                if (m->down)
                    to_agent(s, i, m->order);
                else
                    to_coord(s, m->up);
            }
            for (int r = 0; r < PER; r++)
                live_rank(s, i, r, evil);
            if (i > 0 && !n->cut && !n->done && roll(s, 10000) < evil) { /* a cable is pulled */
                n->cut = 1;
                n->head = n->tail;
                to_agent(s, i, (struct mc_agent_event){.kind = MC_AEV_LOST});
                if (!s->finished)
                    to_coord(s, (struct mc_coord_event){.kind = MC_CEV_LOST, .node = i});
                s->bad |= !s->finished || s->incidents;
            }
            if (!n->done)
                to_agent(s, i, (struct mc_agent_event){.kind = MC_AEV_TICK});
            over &= n->done;
        }
        if (roll(s, 4000) == 0 && !s->finished)
            tell(s, 0, (struct mc_coord_event){.kind = MC_CEV_SIGNAL, .sig = SIGTERM});
        if (!s->finished)
            to_coord(s, tick);
        assert_true(s->now < 200000);
    }
    if (s->exit_code == 0 || s->exit_code == 75)
        assert_int_equal(s->incidents, 0);
    if (s->incidents == 0)
        assert_true(s->exit_code == 0 || s->exit_code == 75 || s->exit_code == 76);
}

static void random_histories_end_well(void **state)
{
    (void)state;
    static struct sim s;
    int good = 0, incidents = 0, orderly = 0;
    for (uint64_t h = 0; h < 6000; h++) {
        memset(&s, 0, sizeof s);
        s.seed = h;
        simulate(&s);
        good += s.exit_code == 0;
        orderly += s.exit_code == 75;
        incidents += s.incidents;
        if (!s.bad && s.c.signals < 3 && !s.incidents)
            assert_true(s.exit_code == 0 || s.exit_code == 75 || s.c.signals > 0);
        if (s.exit_code == 0)
            assert_int_equal(s.c.cause.weight, MC_CAUSE_NONE);
    }
    assert_true(good > 500 && orderly > 50 && incidents > 500); /* the dice reach all of it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_well_ends_with_0),
        cmocka_unit_test(signal_is_forwarded_and_ends_with_75),
        cmocka_unit_test(signal_of_several_agents_is_one),
        cmocka_unit_test(deaf_ranks_are_killed_after_grace),
        cmocka_unit_test(third_signal_kills),
        cmocka_unit_test(second_signal_hurries),
        cmocka_unit_test(rank_that_does_not_leave_is_the_cause),
        cmocka_unit_test(agent_ends_who_does_not_leave),
        cmocka_unit_test(one_death_kills_the_others),
        cmocka_unit_test(first_cause_is_kept_before_its_victims),
        cmocka_unit_test(stop_before_progress_is_no_incident),
        cmocka_unit_test(spawn_failure_and_late_ranks),
        cmocka_unit_test(waits_of_the_start_end),
        cmocka_unit_test(exchanges_are_whole_and_in_order),
        cmocka_unit_test(lost_node_takes_its_ranks_along),
        cmocka_unit_test(random_histories_end_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
