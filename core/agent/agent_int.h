/* agent_int.h - the inside of core/agent: what drives the two pure machines. */
#pragma once
#include <signal.h>
#include "agent.h"
#include "coord.h"
#include "../run/spawn.h"
#include "../run/wire.h"

/* One exchange among all ranks: what its members gave, as far as it is here. */
struct mc_agent_table {
    char what[32];
    uint32_t seq;       /* 0: none yet */
    int64_t n;          /* bytes of a member */
    int have;           /* an agent's: members 0 .. have-1 are here */
    size_t cap;         /* bytes of all */
    unsigned char *all; /* [world * n] */
};
/* Makes room for exchange seq. */
mc_status mc_agent_table_begin(struct mc_agent_table *t, uint32_t seq, const char *what,
                               size_t nwhat, int64_t n, int world, struct mc_err *err);

/* ---- agent_coord.c: drives the coordinator ---- */
struct mc_coord_rank; /* what is known of a rank */
struct mc_coord_run {
    struct mc_coord coord;
    struct mc_rundir *rd;        /* NULL: no run */
    struct mc_coord_rank *rank;  /* [world] */
    struct mc_agent_table table; /* of the exchange under way: handed out the moment it is whole */
    char (*host)[64];            /* [nodes] */
    char message[1024];          /* the first cause, once it is known */
    /* To one node's agent (-1: to all). The message is borrowed. */
    void (*to_node)(void *arg, int node, const struct mc_msg *m);
    void *arg;
};
struct mc_coord_cfg {
    int nodes, world;
    int64_t grace_ns, wait_ns;
    struct mc_rundir *rd;
    void (*to_node)(void *arg, int node, const struct mc_msg *m);
    void *arg;
};
mc_status mc_coord_create(const struct mc_coord_cfg *cfg, struct mc_coord_run **c,
                          struct mc_err *err);
void mc_coord_destroy(struct mc_coord_run *c);
void mc_coord_event(struct mc_coord_run *c, const struct mc_coord_event *ev);
/* An event into events.jsonl. */
void mc_coord_note(const struct mc_coord_run *c, const char *kind, const char *fields);
void mc_coord_join(struct mc_coord_run *c, int node, int first, int count, const char *host);
/* A message of a node that has joined. MC_E_PEER: it breaks the protocol; the node is dropped. */
mc_status mc_coord_hear(struct mc_coord_run *c, int node, const struct mc_msg *m,
                        struct mc_err *err);

/* ---- agent_exit.c ---- */
/* EXITED's values; see wire.c. */
struct mc_agent_exit {
    int wait_status, result_valid, exit_code, oom, late;
    mc_status status;
    int64_t segment_steps, step, result_step;
    enum mc_phase phase;
    double loss;
    uint64_t weights_hash;
};
void mc_agent_exit_pack(const struct mc_agent_exit *x, int64_t v[MC_MSG_VALUES]);
void mc_agent_exit_unpack(const int64_t v[MC_MSG_VALUES], struct mc_agent_exit *x);
/* Kills of the kernel's out-of-memory killer so far that concern this process; -1: unknown. */
int64_t mc_agent_oom_kills(void);

/* ---- agent_net.c: the links between agents and the coordinator ---- */
struct pollfd;
struct mc_agent_net;
struct mc_agent_net_ops { /* called from mc_agent_net_turn */
    void *arg;
    struct mc_coord_run *coord;                      /* node 0 */
    void (*hear)(void *arg, const struct mc_msg *m); /* node > 0: the coordinator speaks */
    void (*lost)(void *arg, const char *why);        /* node > 0: ... or is gone */
};
enum { MC_AGENT_NET_FDS = MC_COORD_NODES + 65 };
/* Node 0 listens; others find the coordinator and say hello. */
mc_status mc_agent_net_open(const struct mc_agent_run *cfg, int64_t wait_ns,
                            const struct mc_agent_net_ops *ops, struct mc_agent_net **net,
                            struct mc_err *err);
/* Sends what still waits, for two seconds at most. */
void mc_agent_net_close(struct mc_agent_net *net);
int mc_agent_net_port(const struct mc_agent_net *net);
int mc_agent_net_fds(const struct mc_agent_net *net, struct pollfd *fds); /* how many */
void mc_agent_net_turn(struct mc_agent_net *net);
void mc_agent_net_to_node(struct mc_agent_net *net, int node, const struct mc_msg *m); /* -1: all */
void mc_agent_net_to_coordinator(struct mc_agent_net *net, const struct mc_msg *m);
