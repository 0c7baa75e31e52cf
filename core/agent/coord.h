/* coord.h - the coordinator: one a run, in the process of node 0's agent. It decides; agents carry
 * out. A pure state machine:
 *
 *     mc_coord_step(state, event, now) -> actions.  No system call, no clock, no allocation.
 *
 * What ranks say and how they ended is kept by its driver (agent_coord.c); here are only numbers.
 */
#pragma once
#include <stdint.h>
#include "../base/status.h"

enum { MC_COORD_RANKS = 8192, MC_COORD_NODES = 1024, MC_COORD_ACTIONS = 16 };

enum mc_coord_event_kind {
    MC_CEV_START,        /* begin to wait for the nodes */
    MC_CEV_JOINED,       /* node, first, count: its agent was accepted */
    MC_CEV_SPAWNED,      /* rank */
    MC_CEV_SPAWN_FAILED, /* rank, exit_code */
    MC_CEV_HELLO,        /* rank: it found its agent */
    MC_CEV_GATHER,       /* rank, seq: its part of exchange seq is here */
    MC_CEV_PROTOCOL,     /* rank: what it sent does not fit what the others sent */
    MC_CEV_EXITED,       /* rank, and how */
    MC_CEV_SIGNAL,       /* node, sig: its agent was asked to stop */
    MC_CEV_LOST,         /* node: the connection to its agent broke */
    MC_CEV_TICK
};
struct mc_coord_event {
    enum mc_coord_event_kind kind;
    int node, first, count, rank;
    uint32_t seq;
    int wait_status;             /* EXITED: as from waitpid */
    int result_valid, exit_code; /* EXITED: what the rank's page said */
    int has_message;  /* EXITED: the page holds an error: 76 without is an orderly stop */
    mc_status status; /* EXITED: of that error */
    int late; /* EXITED: its agent killed it, because it did not leave after its last word */
    int sig;
};
enum mc_coord_action_kind {
    MC_CACT_SPAWN,    /* all nodes start their ranks */
    MC_CACT_SIGNAL,   /* rank (-1: all), sig */
    MC_CACT_KILL,     /* rank (-1: all) */
    MC_CACT_GATHERED, /* seq: everybody's part is here, give it to all */
    MC_CACT_INCIDENT, /* cause */
    MC_CACT_FINISH    /* exit_code; the last action of all */
};
struct mc_coord_action {
    enum mc_coord_action_kind kind;
    int rank, sig, exit_code;
    uint32_t seq;
};
/* Heavier causes come first, among equals the earliest: what kills is the cause, who complains of a
 * peer is its victim. */
enum mc_cause_weight {
    MC_CAUSE_NONE,
    MC_CAUSE_VICTIM, /* a rank that failed because another one did: MC_E_PEER, MC_E_TIMEOUT */
    MC_CAUSE_LATE,   /* a deadline of the start passed */
    MC_CAUSE_ERROR,  /* a rank that said what was wrong */
    MC_CAUSE_DEATH   /* a rank that could not, a node that is gone, a rank that did not start */
};
struct mc_coord_cause {
    enum mc_cause_weight weight;
    const char *cls;
    int rank, node, exit_code; /* -1: none */
};
enum mc_coord_phase {
    MC_COORD_IDLE,
    MC_COORD_JOINING,  /* waits for agents */
    MC_COORD_RUNNING,  /* ranks were ordered */
    MC_COORD_STOPPING, /* a stop was asked for, or a rank ended in order */
    MC_COORD_KILLING,
    MC_COORD_DONE
};
enum mc_coord_wait { MC_WAIT_NONE, MC_WAIT_NODES, MC_WAIT_HELLO, MC_WAIT_GATHER };
struct mc_coord {
    enum mc_coord_phase phase;
    int nodes, world;
    int joined, hellos, gathers; /* how many so far; gathers: of exchange seq */
    int alive, spawning;
    uint32_t seq; /* the exchange under way, or the next */
    int exit_code, signals, last_sig;
    int64_t grace_ns;   /* between a stop and the kill: long enough for a checkpoint; 0: for ever */
    int64_t kill_at_ns; /* 0: never */
    int64_t stop_ns;    /* the span of it */
    enum mc_coord_wait wait; /* what wait_until_ns is for */
    int64_t wait_ns, wait_until_ns;
    struct mc_coord_cause cause;
    int64_t settle_at_ns; /* when the cause is final */
    uint16_t node_signals[MC_COORD_NODES];
    uint8_t node_joined[MC_COORD_NODES];
    int node_first[MC_COORD_NODES], node_count[MC_COORD_NODES];
    uint8_t rank[MC_COORD_RANKS]; /* MC_COORD_R* bits */
};
enum { MC_COORD_RSPAWNING = 1, MC_COORD_RUP = 2, MC_COORD_RHELLO = 4, MC_COORD_RGATHERED = 8 };

/* grace_ns: 0 none. wait_ns: how long agents, ranks and exchanges of the start are waited for. */
void mc_coord_init(struct mc_coord *c, int nodes, int world, int64_t grace_ns, int64_t wait_ns);
/* Returns the number of actions written. */
int mc_coord_step(struct mc_coord *c, const struct mc_coord_event *ev, int64_t now_ns,
                  struct mc_coord_action out[MC_COORD_ACTIONS]);
/* 1 while the thing waited for (c->wait) has not come from this node or rank. */
int mc_coord_misses_node(const struct mc_coord *c, int node);
int mc_coord_misses_rank(const struct mc_coord *c, int rank);
