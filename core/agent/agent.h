/* agent.h - the node agent: a pure state machine, and the loop that feeds it.
 *
 * agent_step.c:  mc_agent_step(state, event, now) -> actions. No system call, no clock, no
 *                allocation: a simulator runs this code.
 * agent_run.c:   waits for pidfds, control sockets, signals and timers, turns them into events,
 *                carries the actions out, and tells the coordinator (coord.h), which decides. */
#pragma once
#include <stdint.h>
#include "../base/status.h"
#include "../run/page.h"
#include "../run/rundir.h"

enum { MC_AGENT_RANKS = 64, MC_AGENT_ACTIONS = 2 + MC_AGENT_RANKS };

enum mc_agent_event_kind {
    MC_AEV_SPAWN,  /* order: start the ranks */
    MC_AEV_SIGNAL, /* order: rank (-1: all), sig */
    MC_AEV_KILL,   /* order: rank (-1: all) */
    MC_AEV_END,    /* order: the run is over, exit_code */
    MC_AEV_LOST,   /* the coordinator is gone */
    MC_AEV_SPAWNED,
    MC_AEV_SPAWN_FAILED,
    MC_AEV_SAID, /* the rank's page holds its last word: it is about to leave */
    MC_AEV_EXITED,
    MC_AEV_TICK
};
struct mc_agent_event { /* ranks are counted within the node */
    enum mc_agent_event_kind kind;
    int rank, sig, exit_code;
};
enum mc_agent_action_kind { MC_AACT_SPAWN, MC_AACT_SIGNAL, MC_AACT_KILL, MC_AACT_FINISH };
struct mc_agent_action {
    enum mc_agent_action_kind kind;
    int rank, sig, exit_code;
};
enum mc_agent_phase { MC_AGENT_IDLE, MC_AGENT_RUNNING, MC_AGENT_KILLING, MC_AGENT_DONE };
struct mc_agent {
    enum mc_agent_phase phase;
    int nranks, alive, spawning, exit_code;
    int ended;             /* END or LOST came */
    int lost;              /* ... LOST, or silence */
    int64_t wait_ns;       /* how long the coordinator may say nothing when it must; 0: for ever */
    int64_t wait_until_ns; /* 0: it need not say anything now */
    int64_t leave_ns;      /* how long a rank may take to end after its last word; 0: for ever */
    int64_t leave_by_ns[MC_AGENT_RANKS]; /* 0: it has said nothing */
    uint8_t up[MC_AGENT_RANKS];
    uint8_t late[MC_AGENT_RANKS]; /* killed because it did not leave */
};
void mc_agent_init(struct mc_agent *a, int nranks, int64_t wait_ns);
/* Returns the number of actions written. */
int mc_agent_step(struct mc_agent *a, const struct mc_agent_event *ev, int64_t now_ns,
                  struct mc_agent_action out[MC_AGENT_ACTIONS]);

/* Several nodes. Node 0's agent is the coordinator, too; the folder of the run is one for all. */
struct mc_agent_nodes {
    int nodes, node;
    int first, world;        /* this node has ranks first .. first + nranks - 1 of world */
    const char *coordinator; /* node > 0: host of node 0 */
    int port;                /* node 0: to listen on, 0: the system chooses, and an event
                                "listening" says which. node > 0: the coordinator's */
    unsigned char key[32];   /* of the run: who has it may join */
    const char *run_id;
};
struct mc_agent_run {
    struct mc_rundir *rd; /* node > 0: without a lock. NULL: no run, nothing is kept */
    const char *command;  /* without a run, what a rank is:
                             exe COMMAND --rank N --page-fd F --ctl-fd C rank_args... */
    const struct mc_agent_nodes *nodes; /* NULL: one node */
    int nranks, threads_per_rank;       /* ranks of this node */
    const char *exe;                    /* this program, as a path */
    const char *const *rank_args;       /* NULL-ended, may be NULL:
                                           exe rank RUN N rank_args... --page-fd F --ctl-fd C */
    int64_t grace_ns;                   /* between a stop signal and the kill; 0: 10 minutes */
    int64_t wait_ns; /* how long the start waits for agents and ranks, and the end for a rank that
                        has said its last word; 0: 2 minutes */
    uint64_t recipe_hash, build; /* what every rank and every agent must agree on; the first one
                                    of the recipe and its pipeline */
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
