/* agent.h - the node agent: a pure state machine, and the loop that feeds it.
 *
 * agent_step.c:  mc_agent_step(state, event, now) -> actions. No system call, no clock, no
 *                allocation: a simulator runs this code.
 * agent_run.c:   waits for pidfds, signals and timers, turns them into events, carries the actions
 *                out. */
#pragma once
#include <stdint.h>
#include "../base/status.h"
#include "../run/page.h"
#include "../run/rundir.h"

enum { MC_AGENT_RANKS = 64, MC_AGENT_ACTIONS = 8 + 2 * MC_AGENT_RANKS };

enum mc_agent_event_kind {
    MC_AEV_START,
    MC_AEV_SPAWNED,
    MC_AEV_SPAWN_FAILED,
    MC_AEV_EXITED,
    MC_AEV_SIGNAL,
    MC_AEV_TICK
};
struct mc_agent_event {
    enum mc_agent_event_kind kind;
    int rank;
    int wait_status;             /* EXITED: as from waitpid */
    int result_valid, exit_code; /* EXITED: what the page said; SPAWN_FAILED: exit_code */
    int has_message; /* EXITED: the page holds an error: 76 without is an orderly stop */
    int64_t segment_steps;
    int sig; /* SIGNAL */
};
enum mc_agent_action_kind {
    MC_AACT_SPAWN,
    MC_AACT_SIGNAL,
    MC_AACT_KILL,
    MC_AACT_INCIDENT,
    MC_AACT_FINISH
};
struct mc_agent_action {
    enum mc_agent_action_kind kind;
    int rank;
    int sig;
    const char *cls;
    int exit_code;
};
enum mc_agent_phase {
    MC_AGENT_IDLE,
    MC_AGENT_RUNNING,
    MC_AGENT_STOPPING,
    MC_AGENT_KILLING,
    MC_AGENT_DONE
};
struct mc_agent {
    enum mc_agent_phase phase;
    int nranks, alive, exit_code, signals, last_sig;
    int spawning;       /* SPAWN actions without an answer yet */
    int64_t kill_at_ns; /* STOPPING: after this the ranks are killed; 0: never */
    int64_t grace_ns;   /* between a stop request to the ranks and the kill: long enough for a
                           checkpoint */
    uint8_t up[MC_AGENT_RANKS];
    int first_dead; /* -1; the rank whose end began the failure */
};
void mc_agent_init(struct mc_agent *a, int nranks, int64_t grace_ns);
/* Returns the number of actions written. */
int mc_agent_step(struct mc_agent *a, const struct mc_agent_event *ev, int64_t now_ns,
                  struct mc_agent_action out[MC_AGENT_ACTIONS]);

struct mc_agent_run {
    struct mc_rundir *rd;
    int nranks, threads_per_rank;
    const char *exe; /* this program, as a path */
    const char *const
        *rank_args;   /* NULL-ended, may be NULL: exe rank RUN N rank_args... --page-fd F */
    int64_t grace_ns; /* between a stop signal and the kill; 0: 10 minutes */
};
struct mc_agent_result {
    int exit_code;
    int64_t step;
    double loss;
    uint64_t weights_hash;
    int result_valid;
    char message[1024];
};
/* Runs the ranks until the last is gone. MC_OK whatever became of them: res->exit_code says it, and
 * res->message names the first cause, if there was a failure. Errors: nothing was started. The main
 * thread only; rd's lock is held by the caller and inherited by the ranks. */
mc_status mc_agent_run(const struct mc_agent_run *cfg, struct mc_agent_result *res,
                       struct mc_err *err);
