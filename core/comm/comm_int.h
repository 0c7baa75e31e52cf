/* comm_int.h - what the collectives (comm_coll.c), groups (comm_group.c) and the transport
 * (comm_ucx.c) share.
 *
 * A call is a request: up to four sets of *lanes*, one lane a peer in each. A lane is a stretch of
 * memory that goes to, or comes from, one peer, in slices; at most WINDOW of them are under way.
 * The transport moves slices and reports each; the collectives decide what may move next.
 *
 * All of it is touched with the net's lock held only. */
#pragma once
#include <stdio.h>
#include "../base/flight.h"
#include "comm.h"

enum { MC_LANE_WINDOW = 2 }; /* slices under way in a lane; also the slots of a stage */
enum mc_lane_set {
    MC_SEND_PART, /* inputs to whoever sums them, or the data itself */
    MC_RECV_PART,
    MC_SEND_SUM, /* what I hold now (a sum, a part of a broadcast) to everyone */
    MC_RECV_SUM,
    MC_NSETS
};
struct mc_lane {
    struct mc_comm_req *req;
    char *ptr;            /* staged: NULL, the slice goes to the group's stage */
    int64_t bytes, slice; /* slice: the step in which `next` goes on */
    int64_t next, limit; /* posted so far; may be posted up to here (a multiple of slice, or all) */
    int64_t done;        /* arrived, or gone */
    int peer;            /* member */
    int set, busy;
    void *op[MC_LANE_WINDOW];       /* the transport's handle of slice k at k % WINDOW */
    int64_t expect[MC_LANE_WINDOW]; /* its bytes */
};

enum mc_req_state { MC_REQ_FREE, MC_REQ_OPEN, MC_REQ_DONE, MC_REQ_FAILED };
struct mc_comm_req {
    struct mc_group *group;
    const char *what; /* "comm.all_reduce" */
    uint64_t seq;     /* calls of this member */
    uint64_t round;   /* collectives of the group: the same on all members, so it is in the tags */
    int64_t bytes;
    enum mc_req_state state;
    int waited;    /* somebody sleeps until it is done */
    int tag;       /* send and recv: the user's; else -1 */
    int open;      /* lanes that are not finished */
    char token[2]; /* what a barrier sends and receives */
    /* A sum of parts: own_in and the peers' slices, in member order, to own_out. */
    enum mc_dtype dtype;
    enum mc_reduce op;
    const char *own_in;
    char *own_out;
    int64_t own_bytes; /* 0: nothing to sum */
    int64_t summed;    /* bytes of it that are done */
    int staged;        /* it has the group's stage */
    int aliased;       /* own_out is sent as an input, too: sums wait for the sends */
    int got[MC_LANE_WINDOW];
    struct mc_comm_req *next; /* in the queue for the stage */
    struct mc_lane *lane;     /* [MC_NSETS][group size] */
};

struct mc_group {
    struct mc_comm base; /* first: a struct mc_comm * of ours is a struct mc_group * */
    struct mc_comm_net *net;
    char name[32];
    uint64_t id;
    int *ranks;
    int nested;      /* open group_begin calls */
    int aborted;     /* by abort() */
    uint64_t rounds; /* collectives begun */
    int failed;      /* for good; err says why */
    int left;        /* a member is gone */
    struct mc_err err;
    int64_t slice;                    /* bytes of a slice of what is summed */
    char *stage;                      /* [WINDOW][size - 1][slice] */
    int staging;                      /* mc_coll_run_stage is on the stack */
    const void **src;                 /* [size] what is summed */
    struct mc_comm_req *first, *last; /* queue for the stage */
    int nreq;
    struct mc_comm_req *req;
    struct mc_lane *lane;
    struct mc_group *sibling; /* the net's list */
};

static inline struct mc_lane *mc_lane_of(const struct mc_comm_req *r, enum mc_lane_set set,
                                         int peer)
{
    return &r->lane[(int)set * r->group->base.cfg.size + peer];
}

/* I1 of comm.h. */
static inline void mc_comm_note(const char *group, uint64_t seq, int64_t bytes, const char *what,
                                const char *end)
{
    char text[80];
    snprintf(text, sizeof text, "%s %.12s%s", what, group, end);
    mc_flight_note((int64_t)seq, bytes, text);
}

/* ---- comm_sum.c ---- */
int mc_sum_can(enum mc_dtype t);
/* out[i] = src[0][i] + src[1][i] + ..., in this order; out may be one of src. n in elements. */
void mc_sum_parts(enum mc_dtype t, enum mc_reduce op, void *out, const void *const *src, int parts,
                  int64_t n);

/* ---- comm_coll.c ---- */
/* Memory for the stage of a group of `size`: its slice, and the bytes in all. */
void mc_coll_stage(int size, int64_t *slice, size_t *bytes);
/* Lanes for each call; then mc_coll_go starts it. counts: checked by the caller. */
void mc_coll_all_reduce(struct mc_comm_req *r, const char *in, char *out, int64_t n);
void mc_coll_reduce_scatter(struct mc_comm_req *r, const char *in, char *out,
                            const int64_t *counts);
void mc_coll_all_gather(struct mc_comm_req *r, const char *in, char *out, const int64_t *counts);
void mc_coll_broadcast(struct mc_comm_req *r, char *buf, int root);
void mc_coll_all_to_all(struct mc_comm_req *r, const char *in, const int64_t *send, char *out,
                        const int64_t *recv);
void mc_coll_message(struct mc_comm_req *r, char *buf, int peer, enum mc_lane_set set);
void mc_coll_barrier(struct mc_comm_req *r);
void mc_coll_go(struct mc_comm_req *r);
/* The transport says: the slice in op[slot] has gone or come. */
void mc_coll_slice_done(struct mc_lane *l, int slot, int64_t bytes);
/* Who is waited for, as "rank 3 on node7, ..."; *sends: 1 when all has come, but was not taken. */
void mc_coll_missing(const struct mc_comm_req *r, char *text, size_t cap, int *sends);
/* 1 when the request still wants something of this member. */
int mc_coll_needs(const struct mc_comm_req *r, int member);

/* ---- comm_group.c ---- */
/* A slice has ended; what came is `bytes`, why NULL or what went wrong. */
void mc_group_slice(struct mc_lane *l, int slot, int64_t bytes, const char *why);
void mc_group_done(struct mc_comm_req *r); /* state is MC_REQ_DONE now */
void mc_group_fail_peer(struct mc_group *g, int member, const char *why);
/* An endpoint broke: fails what wants something of the member now. */
void mc_group_peer_left(struct mc_group *g, int member, const char *why);
void mc_group_abort(struct mc_group *g);
void mc_group_free(struct mc_group *g);

/* ---- comm_ucx.c ---- */
/* Moves `bytes` at ptr; 1: done at once, 0: will be reported, -1: the group has failed. */
int mc_ucx_post(struct mc_lane *l, int slot, char *ptr, int64_t bytes, uint64_t slice);
void mc_ucx_cancel(struct mc_lane *l); /* receives only; each is reported */
/* Adds to the progress page. */
void mc_ucx_counted(struct mc_comm_net *net, int64_t calls, int64_t bytes);
void mc_ucx_wake(struct mc_comm_net *net);             /* who sleeps in mc_ucx_await */
int mc_ucx_left(const struct mc_group *g, int member); /* 1: its rank is gone */
void mc_ucx_look(struct mc_comm_net *net);             /* now, who is gone; tells no group */
const char *mc_ucx_describe(const struct mc_group *g, int member);
void mc_ucx_lock(struct mc_comm_net *net);
void mc_ucx_unlock(struct mc_comm_net *net);
void mc_ucx_opened(struct mc_comm_net *net, int calls); /* -1: one has ended */
/* Makes progress and sleeps until the call has ended, or the time; lock held. 0: the time has come.
 */
int mc_ucx_await(struct mc_comm_net *net, const struct mc_comm_req *r, int64_t until_ns);
/* Before the lock is left with calls open that it was held for: somebody moves them on. */
void mc_ucx_settle(struct mc_comm_net *net);
int mc_ucx_world(const struct mc_comm_net *net);
/* Endpoints for its members, and its place in the net's list. */
mc_status mc_ucx_join(struct mc_comm_net *net, struct mc_group *g, struct mc_err *err);
/* Out of the list; `held`: UCX may still touch it, so it is freed at close. Takes the lock. */
void mc_ucx_leave(struct mc_group *g, int held);
