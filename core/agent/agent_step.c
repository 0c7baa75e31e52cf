/* agent_step.c - the node agent as a pure function of (state, event, now). Floor 6 (agent).
 *
 *   IDLE --START--> RUNNING --SIGNAL, or the first orderly end--> STOPPING
 *   RUNNING, STOPPING --a rank fails, or time is up--> KILLING
 *   any of them --the last rank is gone--> DONE
 *
 * I1  No system call, no clock, no allocation: the simulator and agent_run.c run the same code.
 * I2  FINISH is issued exactly once, when no rank is alive and none is about to be.
 * I3  The first failure decides exit code and incident; ends of ranks that we killed are no cause.
 * I4  75 is only what a rank said itself: an end without a valid result never is an orderly stop.
 * I5  Every stop signal is forwarded to every rank that is up (the second means "now"); the third
 *     kills: a person has waited long enough, and a checkpoint is whole or absent anyway.
 *
 * Threads: one. */
#include "agent.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

enum { SIGNALS_TO_KILL = 3 };

struct out {
    struct mc_agent_action *list;
    int n;
};

static struct mc_agent_action *add(struct out *o, enum mc_agent_action_kind kind, int rank)
{
    MC_ASSERT(o->n < MC_AGENT_ACTIONS);
    struct mc_agent_action *a = &o->list[o->n++];
    *a = (struct mc_agent_action){.kind = kind, .rank = rank};
    return a;
}

static void to_all(const struct mc_agent *a, struct out *o, enum mc_agent_action_kind kind, int sig)
{
    for (int r = 0; r < a->nranks; r++)
        if (a->up[r])
            add(o, kind, r)->sig = sig;
}

static void finish_if_last(struct mc_agent *a, struct out *o)
{
    if (a->alive > 0 || a->spawning > 0 || a->phase == MC_AGENT_DONE) /* I2 */
        return;
    a->phase = MC_AGENT_DONE;
    add(o, MC_AACT_FINISH, -1)->exit_code = a->exit_code;
}

/* The first failure: incident, then kill whoever is left (I3). */
static void fail(struct mc_agent *a, struct out *o, int rank, const char *cls, int exit_code)
{
    if (a->phase == MC_AGENT_KILLING)
        return;
    a->phase = MC_AGENT_KILLING;
    a->first_dead = rank;
    a->exit_code = exit_code;
    struct mc_agent_action *in = add(o, MC_AACT_INCIDENT, rank);
    in->cls = cls;
    in->exit_code = exit_code;
    to_all(a, o, MC_AACT_KILL, SIGKILL);
}

static void start_stopping(struct mc_agent *a, int64_t now_ns)
{
    a->phase = MC_AGENT_STOPPING;
    a->kill_at_ns = a->grace_ns > 0 ? now_ns + a->grace_ns : 0;
}

static void on_start(struct mc_agent *a, struct out *o)
{
    if (a->signals > 0) { /* stopped before anything began: no progress */
        a->exit_code = 76;
        finish_if_last(a, o);
        return;
    }
    a->phase = MC_AGENT_RUNNING;
    a->spawning = a->nranks;
    for (int r = 0; r < a->nranks; r++)
        add(o, MC_AACT_SPAWN, r);
}

static void on_spawned(struct mc_agent *a, struct out *o, int rank)
{
    a->spawning--;
    a->up[rank] = 1;
    a->alive++;
    if (a->phase == MC_AGENT_KILLING)
        add(o, MC_AACT_KILL, rank)->sig = SIGKILL;
    else if (a->phase == MC_AGENT_STOPPING) /* it missed what came before it was up */
        for (int i = 0; i < a->signals; i++)
            add(o, MC_AACT_SIGNAL, rank)->sig = a->last_sig;
}

static void on_signal(struct mc_agent *a, struct out *o, int sig, int64_t now_ns)
{
    a->signals++;
    a->last_sig = sig;
    if (a->phase != MC_AGENT_RUNNING && a->phase != MC_AGENT_STOPPING)
        return;
    if (a->signals >= SIGNALS_TO_KILL) { /* I5 */
        fail(a, o, -1, "killed_by_user", 76);
        return;
    }
    if (a->phase == MC_AGENT_RUNNING)
        start_stopping(a, now_ns);
    to_all(a, o, MC_AACT_SIGNAL, sig);
}

/* What the end of one rank means. *cls NULL: an orderly end with the rank's own code. */
static int judge(const struct mc_agent_event *ev, const char **cls)
{
    int st = ev->wait_status;
    *cls = "rank_death";
    if (!WIFEXITED(st)) {
        if (WTERMSIG(st) != SIGABRT)
            return 76;   /* I4 */
        *cls = "assert"; /* an invariant of ours: mc_assert_fail */
        return 1;
    }
    if (!ev->result_valid)
        return 76;                          /* I4 */
    if (WEXITSTATUS(st) != ev->exit_code) { /* it came to harm after it had said its last word */
        *cls = "rank_exit";
        return 1;
    }
    /* 76 with nothing to complain of is an orderly stop before the first update. */
    if (ev->exit_code == 0 || ev->exit_code == 75 || (ev->exit_code == 76 && !ev->has_message))
        *cls = NULL;
    else
        *cls = "rank_error";
    return ev->exit_code;
}

static void on_exited(struct mc_agent *a, struct out *o, const struct mc_agent_event *ev,
                      int64_t now_ns)
{
    const char *cls;
    a->up[ev->rank] = 0;
    a->alive--;
    if (a->phase != MC_AGENT_KILLING) {
        int code = judge(ev, &cls);
        if (cls) {
            fail(a, o, ev->rank, cls, code);
        } else {
            if (code > a->exit_code) /* 0 < 75 < 76: the worst of the orderly ends */
                a->exit_code = code;
            if (a->phase == MC_AGENT_RUNNING && a->alive > 0)
                start_stopping(a, now_ns); /* the others have as long as after a signal */
        }
    }
    finish_if_last(a, o);
}

void mc_agent_init(struct mc_agent *a, int nranks, int64_t grace_ns)
{
    MC_ASSERT(nranks >= 1 && nranks <= MC_AGENT_RANKS);
    memset(a, 0, sizeof *a);
    a->phase = MC_AGENT_IDLE;
    a->nranks = nranks;
    a->grace_ns = grace_ns;
    a->first_dead = -1;
}

int mc_agent_step(struct mc_agent *a, const struct mc_agent_event *ev, int64_t now_ns,
                  struct mc_agent_action out[MC_AGENT_ACTIONS])
{
    struct out o = {out, 0};
    switch (ev->kind) {
    case MC_AEV_START:
        on_start(a, &o);
        break;
    case MC_AEV_SPAWNED:
        on_spawned(a, &o, ev->rank);
        break;
    case MC_AEV_SPAWN_FAILED:
        a->spawning--;
        fail(a, &o, ev->rank, "spawn", ev->exit_code);
        finish_if_last(a, &o);
        break;
    case MC_AEV_EXITED:
        on_exited(a, &o, ev, now_ns);
        break;
    case MC_AEV_SIGNAL:
        on_signal(a, &o, ev->sig, now_ns);
        break;
    case MC_AEV_TICK:
        if (a->phase == MC_AGENT_STOPPING && a->kill_at_ns != 0 && now_ns >= a->kill_at_ns) {
            int late = 0;
            while (late < a->nranks - 1 && !a->up[late])
                late++;
            fail(a, &o, late, "stop_timeout", 76);
            finish_if_last(a, &o);
        }
        break;
    }
    return o.n;
}
