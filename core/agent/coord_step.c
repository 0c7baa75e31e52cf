/* coord_step.c - the coordinator as a pure function of (state, event, now). Floor 6 (agent).
 *
 *   IDLE --START--> JOINING --the last node joins--> RUNNING
 *   RUNNING --SIGNAL, or the first orderly end--> STOPPING
 *   any of them --a cause is final--> KILLING;  the last rank is gone --> DONE
 *
 * I1  No system call, no clock, no allocation: the simulator and agent_coord.c run the same code.
 * I2  FINISH is issued exactly once, when no rank is alive and none is about to be; INCIDENT at
 *     most once, right before it, when how everybody ended is known.
 * I3  The first cause is kept. A failure opens a short time in which heavier ones may still arrive:
 *     the rank that made others fail is often seen after them. A death outweighs everything and is
 *     final at once. Ends of ranks that we killed are no cause.
 * I4  75 is only what a rank said itself: an end without a valid result never is an orderly stop.
 * I5  Every stop request is forwarded to every rank that is up. The second means "now": who is
 *     still there ten seconds later is killed; the third kills at once: a person has waited long
 *     enough, and a checkpoint is whole or absent anyway. A request that reaches several agents (as
 *     Slurm's do) is one: their counts are not added.
 * I6  Every wait of the start has a deadline; what was missing can be asked as long as c->wait
 *     stands.
 *
 * Threads: one. */
#include "coord.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

enum { SIGNALS_TO_KILL = 3 };
#define NOW_NS INT64_C(10000000000) /* I5 */
/* A peer's death takes this long at most to be reported by its own agent. */
#define SETTLE_VICTIM_NS INT64_C(750000000)
#define SETTLE_ERROR_NS  INT64_C(250000000)

struct out {
    struct mc_coord_action *list;
    int n;
};

static struct mc_coord_action *add(struct out *o, enum mc_coord_action_kind kind)
{
    MC_ASSERT(o->n < MC_COORD_ACTIONS);
    struct mc_coord_action *a = &o->list[o->n++];
    *a = (struct mc_coord_action){.kind = kind, .rank = -1};
    return a;
}

/* ---- waits (I6) ---- */

static void wait_for(struct mc_coord *c, enum mc_coord_wait what, int64_t now_ns)
{
    if (c->cause.weight != MC_CAUSE_NONE)
        return; /* what was missing when it failed */
    c->wait = what;
    c->wait_until_ns = what == MC_WAIT_NONE ? 0 : now_ns + c->wait_ns;
}

int mc_coord_misses_node(const struct mc_coord *c, int node)
{
    return c->wait == MC_WAIT_NODES && !c->node_joined[node];
}

int mc_coord_misses_rank(const struct mc_coord *c, int rank)
{
    return (c->wait == MC_WAIT_HELLO && !(c->rank[rank] & MC_COORD_RHELLO)) ||
           (c->wait == MC_WAIT_GATHER && !(c->rank[rank] & MC_COORD_RGATHERED));
}

/* ---- the end ---- */

static void finish_if_last(struct mc_coord *c, struct out *o)
{
    if (c->alive > 0 || c->spawning > 0 || c->phase == MC_COORD_DONE) /* I2 */
        return;
    c->phase = MC_COORD_DONE;
    if (c->cause.weight != MC_CAUSE_NONE) {
        c->exit_code = c->cause.exit_code;
        add(o, MC_CACT_INCIDENT)->rank = c->cause.rank;
    }
    add(o, MC_CACT_FINISH)->exit_code = c->exit_code;
}

static void kill_all(struct mc_coord *c, struct out *o)
{
    c->phase = MC_COORD_KILLING;
    if (c->alive > 0)
        add(o, MC_CACT_KILL);
}

static int is_over(const struct mc_coord *c)
{
    return c->phase == MC_COORD_KILLING || c->phase == MC_COORD_DONE;
}

/* I3 */
static void fail(struct mc_coord *c, struct out *o, const struct mc_coord_cause *cause,
                 int64_t now_ns)
{
    if (is_over(c))
        return;
    if (c->cause.weight == MC_CAUSE_NONE)
        c->settle_at_ns =
            now_ns + (cause->weight == MC_CAUSE_VICTIM ? SETTLE_VICTIM_NS : SETTLE_ERROR_NS);
    if (cause->weight > c->cause.weight)
        c->cause = *cause;
    if (cause->weight == MC_CAUSE_DEATH)
        kill_all(c, o);
}

static void fail_now(struct mc_coord *c, struct out *o, enum mc_cause_weight weight,
                     const char *cls, int rank, int node)
{
    if (is_over(c))
        return;
    if (weight > c->cause.weight)
        c->cause = (struct mc_coord_cause){weight, cls, rank, node, 76};
    kill_all(c, o);
}

static void start_stopping(struct mc_coord *c, int64_t now_ns)
{
    c->phase = MC_COORD_STOPPING;
    c->stop_ns = c->grace_ns;
    c->kill_at_ns = c->grace_ns > 0 ? now_ns + c->grace_ns : 0;
}

static void hurry(struct mc_coord *c, int64_t now_ns) /* I5 */
{
    if (c->kill_at_ns != 0 && c->kill_at_ns <= now_ns + NOW_NS)
        return;
    c->stop_ns = NOW_NS;
    c->kill_at_ns = now_ns + NOW_NS;
}

/* ---- events ---- */

static void spawn_if_complete(struct mc_coord *c, struct out *o, int64_t now_ns)
{
    if (c->joined < c->nodes)
        return;
    c->phase = MC_COORD_RUNNING;
    c->spawning = c->world;
    for (int r = 0; r < c->world; r++)
        c->rank[r] = MC_COORD_RSPAWNING;
    wait_for(c, MC_WAIT_HELLO, now_ns);
    add(o, MC_CACT_SPAWN);
}

static void on_start(struct mc_coord *c, struct out *o, int64_t now_ns)
{
    if (c->signals > 0) { /* stopped before anything began: no progress */
        c->exit_code = 76;
        finish_if_last(c, o);
        return;
    }
    c->phase = MC_COORD_JOINING;
    wait_for(c, MC_WAIT_NODES, now_ns);
    spawn_if_complete(c, o, now_ns);
}

static void on_joined(struct mc_coord *c, struct out *o, const struct mc_coord_event *ev,
                      int64_t now_ns)
{
    if (c->node_joined[ev->node])
        return;
    c->node_joined[ev->node] = 1;
    c->node_first[ev->node] = ev->first;
    c->node_count[ev->node] = ev->count;
    c->joined++;
    if (c->phase == MC_COORD_JOINING)
        spawn_if_complete(c, o, now_ns);
}

static void on_spawned(struct mc_coord *c, struct out *o, int rank)
{
    if (!(c->rank[rank] & MC_COORD_RSPAWNING))
        return;
    c->spawning--;
    c->alive++;
    c->rank[rank] = MC_COORD_RUP;
    if (c->phase == MC_COORD_KILLING)
        add(o, MC_CACT_KILL)->rank = rank;
    else if (c->phase == MC_COORD_STOPPING) /* it missed what came before it was up */
        for (int i = 0; i < c->signals; i++) {
            struct mc_coord_action *a = add(o, MC_CACT_SIGNAL);
            a->rank = rank;
            a->sig = c->last_sig;
        }
}

static void on_signal(struct mc_coord *c, struct out *o, int node, int sig, int64_t now_ns)
{
    if (++c->node_signals[node] <= c->signals) /* I5: another node said so already */
        return;
    c->signals = c->node_signals[node];
    c->last_sig = sig;
    if (c->phase == MC_COORD_JOINING) {
        c->exit_code = 76;
        finish_if_last(c, o);
    }
    if (c->phase != MC_COORD_RUNNING && c->phase != MC_COORD_STOPPING)
        return;
    if (c->signals >= SIGNALS_TO_KILL) {
        fail_now(c, o, MC_CAUSE_DEATH, "killed_by_user", -1, node);
        finish_if_last(c, o);
        return;
    }
    if (c->phase == MC_COORD_RUNNING)
        start_stopping(c, now_ns);
    if (c->signals > 1)
        hurry(c, now_ns);
    add(o, MC_CACT_SIGNAL)->sig = sig;
}

static void on_hello(struct mc_coord *c, int rank, int64_t now_ns)
{
    if (!(c->rank[rank] & MC_COORD_RUP) || c->rank[rank] & MC_COORD_RHELLO)
        return;
    c->rank[rank] |= MC_COORD_RHELLO;
    if (++c->hellos == c->world)
        wait_for(c, c->gathers > 0 ? MC_WAIT_GATHER : MC_WAIT_NONE, now_ns);
}

static void on_gather(struct mc_coord *c, struct out *o, const struct mc_coord_event *ev,
                      int64_t now_ns)
{
    if (!(c->rank[ev->rank] & MC_COORD_RUP))
        return;
    if (ev->seq != c->seq || c->rank[ev->rank] & MC_COORD_RGATHERED) {
        const struct mc_coord_cause bug = {MC_CAUSE_ERROR, "protocol", ev->rank, -1, 1};
        fail(c, o, &bug, now_ns);
        return;
    }
    c->rank[ev->rank] |= MC_COORD_RGATHERED;
    if (++c->gathers == 1 && c->hellos == c->world)
        wait_for(c, MC_WAIT_GATHER, now_ns);
    if (c->gathers < c->world)
        return;
    for (int r = 0; r < c->world; r++)
        c->rank[r] &= (uint8_t)~MC_COORD_RGATHERED;
    c->gathers = 0;
    wait_for(c, MC_WAIT_NONE, now_ns);
    add(o, MC_CACT_GATHERED)->seq = c->seq++;
}

/* What the end of one rank means. weight NONE: an orderly end with the rank's own code. */
static struct mc_coord_cause judge(const struct mc_coord_event *ev)
{
    struct mc_coord_cause k = {MC_CAUSE_DEATH, "rank_death", ev->rank, -1, 76};
    int st = ev->wait_status, late = ev->late && ev->result_valid;
    if (!WIFEXITED(st) && !late) {
        int sig = WTERMSIG(st);
        if (sig == SIGABRT) { /* an invariant of ours: mc_assert_fail */
            k.cls = "assert";
            k.exit_code = 1;
        } else if (sig == SIGSEGV || sig == SIGILL || sig == SIGFPE) {
            k.cls = "crash";
            k.exit_code = 1;
        }
        return k; /* I4 */
    }
    if (!ev->result_valid)
        return k; /* I4 */
    if (!late &&
        WEXITSTATUS(st) != ev->exit_code) { /* it came to harm after it had said its last word */
        k.cls = "rank_exit";
        k.exit_code = 1;
        return k;
    }
    k.exit_code = ev->exit_code;
    /* 76 with nothing to complain of is an orderly stop before the first update. */
    if (ev->exit_code == 0 || ev->exit_code == 75 || (ev->exit_code == 76 && !ev->has_message)) {
        k.weight = late ? MC_CAUSE_LATE : MC_CAUSE_NONE;
        if (late) {
            k.cls = "exit_timeout";
            k.exit_code = 76;
        }
    } else if (ev->status == MC_E_PEER || ev->status == MC_E_TIMEOUT) {
        k.weight = MC_CAUSE_VICTIM;
        k.cls = ev->status == MC_E_PEER ? "peer" : "timeout";
    } else {
        k.weight = MC_CAUSE_ERROR;
        k.cls = "rank_error";
    }
    return k;
}

static void on_exited(struct mc_coord *c, struct out *o, const struct mc_coord_event *ev,
                      int64_t now_ns)
{
    if (!(c->rank[ev->rank] & MC_COORD_RUP))
        return;
    c->rank[ev->rank] &= (uint8_t)~MC_COORD_RUP;
    c->alive--;
    if (c->phase != MC_COORD_KILLING) {
        struct mc_coord_cause k = judge(ev);
        if (k.weight != MC_CAUSE_NONE) {
            fail(c, o, &k, now_ns);
        } else {
            if (k.exit_code > c->exit_code) /* 0 < 75 < 76: the worst of the orderly ends */
                c->exit_code = k.exit_code;
            if (c->phase == MC_COORD_RUNNING && c->alive > 0)
                start_stopping(c, now_ns); /* the others have as long as after a signal */
        }
    }
    finish_if_last(c, o);
}

static void on_lost(struct mc_coord *c, struct out *o, int node, int64_t now_ns)
{
    const struct mc_coord_cause k = {MC_CAUSE_DEATH, "node_lost", c->node_first[node], node, 76};
    if (!c->node_joined[node] || c->phase == MC_COORD_DONE)
        return;
    c->node_joined[node] = 0;
    c->joined--;
    if (c->phase == MC_COORD_JOINING) /* it may come back */
        return;
    for (int r = c->node_first[node]; r < c->node_first[node] + c->node_count[node]; r++) {
        if (c->rank[r] & MC_COORD_RSPAWNING)
            c->spawning--;
        else if (c->rank[r] & MC_COORD_RUP)
            c->alive--;
        c->rank[r] = 0;
    }
    fail(c, o, &k, now_ns);
    finish_if_last(c, o);
}

static void on_tick(struct mc_coord *c, struct out *o, int64_t now_ns)
{
    if (is_over(c) || c->phase == MC_COORD_IDLE)
        return;
    if (c->cause.weight != MC_CAUSE_NONE) {
        if (now_ns >= c->settle_at_ns)
            kill_all(c, o);
        return;
    }
    if (c->wait != MC_WAIT_NONE && now_ns >= c->wait_until_ns) {
        int rank = -1, node = -1;
        for (int r = c->world - 1; r >= 0; r--)
            rank = mc_coord_misses_rank(c, r) ? r : rank;
        for (int n = c->nodes - 1; n >= 0; n--)
            node = mc_coord_misses_node(c, n) ? n : node;
        fail_now(c, o, MC_CAUSE_LATE, "rendezvous", rank, node);
        finish_if_last(c, o);
    } else if (c->phase == MC_COORD_STOPPING && c->kill_at_ns != 0 && now_ns >= c->kill_at_ns) {
        int late = 0;
        while (late < c->world - 1 && !(c->rank[late] & MC_COORD_RUP))
            late++;
        fail_now(c, o, MC_CAUSE_LATE, "stop_timeout", late, -1);
        finish_if_last(c, o);
    }
}

void mc_coord_init(struct mc_coord *c, int nodes, int world, int64_t grace_ns, int64_t wait_ns)
{
    MC_ASSERT(nodes >= 1 && nodes <= MC_COORD_NODES && world >= nodes && world <= MC_COORD_RANKS);
    memset(c, 0, sizeof *c);
    c->nodes = nodes;
    c->world = world;
    c->grace_ns = grace_ns;
    c->wait_ns = wait_ns;
    c->seq = 1;
    c->cause.rank = c->cause.node = -1;
}

int mc_coord_step(struct mc_coord *c, const struct mc_coord_event *ev, int64_t now_ns,
                  struct mc_coord_action out[MC_COORD_ACTIONS])
{
    struct out o = {out, 0};
    switch (ev->kind) {
    case MC_CEV_START:
        on_start(c, &o, now_ns);
        break;
    case MC_CEV_JOINED:
        on_joined(c, &o, ev, now_ns);
        break;
    case MC_CEV_SPAWNED:
        on_spawned(c, &o, ev->rank);
        break;
    case MC_CEV_SPAWN_FAILED: {
        const struct mc_coord_cause k = {MC_CAUSE_DEATH, "spawn", ev->rank, -1, ev->exit_code};
        if (!(c->rank[ev->rank] & MC_COORD_RSPAWNING))
            break;
        c->rank[ev->rank] = 0;
        c->spawning--;
        fail(c, &o, &k, now_ns);
        finish_if_last(c, &o);
        break;
    }
    case MC_CEV_HELLO:
        on_hello(c, ev->rank, now_ns);
        break;
    case MC_CEV_GATHER:
        on_gather(c, &o, ev, now_ns);
        break;
    case MC_CEV_PROTOCOL: {
        const struct mc_coord_cause k = {MC_CAUSE_ERROR, "protocol", ev->rank, -1, 1};
        fail(c, &o, &k, now_ns);
        break;
    }
    case MC_CEV_EXITED:
        on_exited(c, &o, ev, now_ns);
        break;
    case MC_CEV_SIGNAL:
        on_signal(c, &o, ev->node, ev->sig, now_ns);
        break;
    case MC_CEV_LOST:
        on_lost(c, &o, ev->node, now_ns);
        break;
    case MC_CEV_TICK:
        on_tick(c, &o, now_ns);
        break;
    }
    return o.n;
}
