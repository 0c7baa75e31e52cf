/* sched_int.h - the flow of a schedule, derived once for the proof and for the simulation. For this
 * folder only. */
#pragma once
#include "sched.h"

struct mc_flow_rec {
    int64_t needs;           /* record whose output it takes; -1: none */
    int64_t feeds;           /* record that takes its output; -1: none */
    int32_t in, out;         /* channels, -1: none, or both ends on one rank */
    int32_t in_nth, out_nth; /* which message of that channel, from 0 */
};
struct mc_flow_channel {
    int from, to, kind;  /* kind: MC_SCHED_F activations, MC_SCHED_I gradients */
    int32_t sent, taken; /* messages in all, by the sender's and by the receiver's count */
    int64_t base;        /* its messages lie at message[base] .. */
};
struct mc_flow {
    struct mc_flow_rec *rec;         /* [records] */
    struct mc_flow_channel *channel; /* [nchannels] */
    int nchannels;
    int64_t *message; /* [sum of sent]: the record that takes message k of a channel */
    int *rank_of;     /* [stages] */
    int *chunk_of;    /* [stages] */
    int64_t *forward, *grad, *weight; /* [stages * microbatches]: records of F, of I or B, of W or
                                         B; -1: none */
};
/* Wants a stage map that is one to one, and ids in range. A record that stands twice, or has no
 * partner, is left as found: the proof names it. */
mc_status mc_flow_create(const struct mc_sched *s, struct mc_flow *f, struct mc_err *err);
void mc_flow_destroy(struct mc_flow *f);

/* Runs all ranks under bounded channels. */
struct mc_run {
    const struct mc_sched *s;
    const struct mc_flow *f;
    int depth;
    const struct mc_sched_costs *c; /* NULL: every op takes no time */
    int64_t *at;                    /* [ranks] next record */
    uint8_t *full;                  /* [ranks] the last op has ended, its message waits for room */
    double *now;                    /* [ranks] */
    double *start,
        *sent; /* [records] when it began; when its output was on its way. sent < 0: not yet */
};
mc_status mc_run_create(const struct mc_sched *s, const struct mc_flow *f, int depth,
                        const struct mc_sched_costs *c, struct mc_run *r, struct mc_err *err);
void mc_run_destroy(struct mc_run *r);
/* Until nobody can go on; *done: all records ran. */
mc_status mc_run_all(struct mc_run *r, int *done, struct mc_err *err);
/* For a rank that stands: what it waits for. Returns the rank that must move first. */
struct mc_run_wait {
    int rank;       /* who must move */
    int64_t record; /* and which of its records must begin (room) or end (input) */
    int room;       /* 1: waits for room in a channel, 0: for an input */
};
struct mc_run_wait mc_run_waits(const struct mc_run *r, int rank);
int mc_flow_rank_of(const struct mc_sched *s, int64_t record);
/* Time of one op of a stage; B is I and W. */
double mc_sched_took(const struct mc_sched_costs *c, int op, int stage);
/* "rank 2 slot 7 (F of microbatch 3, chunk 0)" */
void mc_sched_say(const struct mc_sched *s, int64_t record, char out[96]);
