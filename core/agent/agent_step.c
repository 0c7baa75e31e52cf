/* agent_step.c - the node agent as a pure function of (state, event, now). Floor 6 (agent).
 *
 *   IDLE --SPAWN--> RUNNING --KILL of all, END, LOST--> KILLING --the last rank is gone--> DONE
 *
 * It carries out what the coordinator orders, for the ranks of one node.
 *
 * I1  No system call, no clock, no allocation: the simulator and agent_run.c run the same code.
 * I2  FINISH is issued exactly once, when no rank is alive, none is about to be, and the
 *     coordinator has said how it ended, or is gone.
 * I3  Only ranks that are up are signalled or killed; one that comes up late is killed then.
 * I4  Without its coordinator a node does not go on: its ranks are killed, 76.
 * I5  A coordinator that is silent when it must speak (before SPAWN; after the last rank's end) is
 *     gone.
 * I6  A rank that has said its last word ends soon, or is killed: what it does then is our own
 *     taking down, which must not keep a run for ever.
 *
 * Threads: one. */
#include "agent.h"
#include <signal.h>
#include <string.h>

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

static void to_ranks(const struct mc_agent *a, struct out *o, enum mc_agent_action_kind kind,
                     int rank, int sig)
{
    for (int r = 0; r < a->nranks; r++)
        if (a->up[r] && (rank < 0 || rank == r)) /* I3 */
            add(o, kind, r)->sig = sig;
}

static void kill_all(struct mc_agent *a, struct out *o)
{
    if (a->phase == MC_AGENT_DONE)
        return;
    if (a->phase != MC_AGENT_KILLING)
        to_ranks(a, o, MC_AACT_KILL, -1, SIGKILL);
    a->phase = MC_AGENT_KILLING;
}

static void expect(struct mc_agent *a, int64_t now_ns) /* I5 */
{
    a->wait_until_ns = a->wait_ns > 0 ? now_ns + a->wait_ns : 0;
}

static void finish_if_last(struct mc_agent *a, struct out *o, int64_t now_ns)
{
    if (a->alive > 0 || a->spawning > 0 || a->phase == MC_AGENT_DONE)
        return;
    if (!a->ended) {
        expect(a, now_ns);
        return;
    }
    a->phase = MC_AGENT_DONE; /* I2 */
    add(o, MC_AACT_FINISH, -1)->exit_code = a->exit_code;
}

static void kill_late(struct mc_agent *a, struct out *o, int64_t now_ns) /* I6 */
{
    for (int r = 0; r < a->nranks; r++)
        if (a->up[r] && a->leave_by_ns[r] != 0 && now_ns >= a->leave_by_ns[r]) {
            a->leave_by_ns[r] = 0;
            a->late[r] = a->phase != MC_AGENT_KILLING;
            add(o, MC_AACT_KILL, r)->sig = SIGKILL;
        }
}

static void end(struct mc_agent *a, struct out *o, int exit_code, int lost, int64_t now_ns)
{
    if (!a->ended) {
        a->ended = 1;
        a->lost = lost;
        a->exit_code = exit_code;
    }
    kill_all(a, o);
    finish_if_last(a, o, now_ns);
}

void mc_agent_init(struct mc_agent *a, int nranks, int64_t wait_ns)
{
    MC_ASSERT(nranks >= 1 && nranks <= MC_AGENT_RANKS);
    memset(a, 0, sizeof *a);
    a->nranks = nranks;
    a->wait_ns = wait_ns;
}

int mc_agent_step(struct mc_agent *a, const struct mc_agent_event *ev, int64_t now_ns,
                  struct mc_agent_action out[MC_AGENT_ACTIONS])
{
    struct out o = {out, 0};
    switch (ev->kind) {
    case MC_AEV_SPAWN:
        if (a->phase != MC_AGENT_IDLE)
            break;
        a->phase = MC_AGENT_RUNNING;
        a->wait_until_ns = 0;
        a->spawning = a->nranks;
        for (int r = 0; r < a->nranks; r++)
            add(&o, MC_AACT_SPAWN, r);
        break;
    case MC_AEV_SPAWNED:
        a->spawning--;
        a->up[ev->rank] = 1;
        a->alive++;
        if (a->phase == MC_AGENT_KILLING) /* I3 */
            add(&o, MC_AACT_KILL, ev->rank)->sig = SIGKILL;
        break;
    case MC_AEV_SPAWN_FAILED:
        a->spawning--;
        finish_if_last(a, &o, now_ns);
        break;
    case MC_AEV_SAID:
        if (a->leave_ns > 0 && a->up[ev->rank] && a->leave_by_ns[ev->rank] == 0)
            a->leave_by_ns[ev->rank] = now_ns + a->leave_ns;
        break;
    case MC_AEV_EXITED:
        a->up[ev->rank] = 0;
        a->alive--;
        finish_if_last(a, &o, now_ns);
        break;
    case MC_AEV_SIGNAL:
        to_ranks(a, &o, MC_AACT_SIGNAL, ev->rank, ev->sig);
        break;
    case MC_AEV_KILL:
        if (ev->rank < 0)
            kill_all(a, &o);
        else
            to_ranks(a, &o, MC_AACT_KILL, ev->rank, SIGKILL);
        break;
    case MC_AEV_END:
        end(a, &o, ev->exit_code, 0, now_ns);
        break;
    case MC_AEV_LOST: /* I4 */
        end(a, &o, 76, 1, now_ns);
        break;
    case MC_AEV_TICK:
        if (a->phase == MC_AGENT_IDLE && a->wait_until_ns == 0)
            expect(a, now_ns);
        if (a->wait_until_ns != 0 && now_ns >= a->wait_until_ns)
            end(a, &o, 76, 1, now_ns);
        kill_late(a, &o, now_ns);
        break;
    }
    return o.n;
}
