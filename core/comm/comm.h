/* comm.h - a communicator: collectives and point-to-point among the ranks of one group.
 *
 * I1  Every call has a name, a sequence number, its group and its bytes, noted in the flight
 *     recorder when it begins and ends; a message between two members only when it fails.
 * I2  Every wait has a deadline; on expiry MC_E_TIMEOUT names who is missing and from which call.
 * I3  Results are bit-identical on all members and on every run: reductions add in member order,
 *     ((x0 + x1) + x2) ..., whatever the slicing. BF16 is summed in fp32 and rounded once.
 * I4  abort() may be called from another thread: all calls in flight and later ones return
 *     MC_E_PEER. So they do when a member is gone.
 * I5  Members make the same collective calls in the same order in one group; groups are independent
 *     of each other, and many calls of many groups may be in flight at once.
 *
 * Counts are in elements of `dtype`, beyond 2^31 too; 0 is legal. The op begins a call and gives a
 * handle; wait must follow exactly once. Buffers are borrowed until then; after a call that failed,
 * until the group is destroyed and the net closed. They may be registered once. `stream` is the
 * device's queue (NULL on CPUs). A deadline_ns is a span from the call on; in wait, <= 0 means the
 * group's own.
 *
 *   all_reduce      in[n], out[n]; out may be in
 *   reduce_scatter  in[sum of counts], out[counts[me]]; out may be in's own part
 *   all_gather      in[counts[me]], out[sum of counts]; in may be out's own part
 *   broadcast       buf[n] of member `root` to all
 *   all_to_all      in: parts of send[m] for member m; out: parts of recv[m] from member m; apart
 *   send, recv      match by (group, from, tag >= 0), in order; counts must be the same
 *
 * Reductions: F32 F64 BF16 I32 I64 (sums of integers wrap, so I64 serves for u64, too), MC_MAX and
 * MC_SUM; the maximum of anything and a NaN is a NaN. All dtypes can be moved. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "../base/status.h"
#include "../tensor/dtype.h"

struct mc_comm;
struct mc_comm_req;
struct mc_comm_net;
enum mc_reduce { MC_SUM, MC_MAX };

struct mc_comm_cfg {
    const char *name; /* "tp", "dp", ...: copied. Groups that share members have different names */
    int size, me;     /* me: this rank's index in ranks */
    const int *ranks; /* world ranks of the members, in member order: copied */
    int64_t deadline_ns;
};

struct mc_comm_ops {
    const char *name; /* "self", "ucx" */
    void (*destroy)(struct mc_comm *);
    void (*abort)(struct mc_comm *);
    mc_status (*register_buffer)(struct mc_comm *, void *buf, size_t bytes, struct mc_err *);
    mc_status (*group_begin)(struct mc_comm *, struct mc_err *);
    mc_status (*group_end)(struct mc_comm *, struct mc_err *);
    mc_status (*all_reduce)(struct mc_comm *, const void *in, void *out, int64_t n, enum mc_dtype,
                            enum mc_reduce, void *stream, struct mc_comm_req **, struct mc_err *);
    mc_status (*reduce_scatter)(struct mc_comm *, const void *in, void *out, const int64_t *counts,
                                enum mc_dtype, enum mc_reduce, void *stream, struct mc_comm_req **,
                                struct mc_err *);
    mc_status (*all_gather)(struct mc_comm *, const void *in, void *out, const int64_t *counts,
                            enum mc_dtype, void *stream, struct mc_comm_req **, struct mc_err *);
    mc_status (*broadcast)(struct mc_comm *, void *buf, int64_t n, enum mc_dtype, int root,
                           void *stream, struct mc_comm_req **, struct mc_err *);
    mc_status (*all_to_all)(struct mc_comm *, const void *in, const int64_t *send, void *out,
                            const int64_t *recv, enum mc_dtype, void *stream, struct mc_comm_req **,
                            struct mc_err *); /* uneven counts */
    mc_status (*send)(struct mc_comm *, const void *buf, int64_t n, enum mc_dtype, int to, int tag,
                      void *stream, struct mc_comm_req **, struct mc_err *);
    mc_status (*recv)(struct mc_comm *, void *buf, int64_t n, enum mc_dtype, int from, int tag,
                      void *stream, struct mc_comm_req **, struct mc_err *);
    mc_status (*barrier)(struct mc_comm *, struct mc_comm_req **, struct mc_err *);
    mc_status (*wait)(struct mc_comm *, struct mc_comm_req *, int64_t deadline_ns, struct mc_err *);
};
struct mc_comm {
    const struct mc_comm_ops *ops;
    struct mc_comm_cfg cfg; /* name and ranks are the communicator's own */
    uint64_t seq;           /* calls begun */
};
/* Calls that a group of that size keeps open, begun and not yet waited for. */
static inline int mc_comm_calls(int size)
{
    int64_t n = (1 << 15) / (size > 0 ? size : 1); /* some 12 MiB of a group's memory at most */
    return n > 256 ? 256 : n < 16 ? 16 : (int)n;
}
/* The group of one: collectives copy in to out; send/recv to oneself match in order of tag, else
 * MC_E_BUG. ranks NULL: rank 0. */
mc_status mc_comm_self_create(const struct mc_comm_cfg *cfg, struct mc_comm **c,
                              struct mc_err *err);

/* ---- the net: what joins all ranks of a run. Groups are made on it. ---- */

struct mc_comm_peers { /* the rendezvous of the world, filled by core/run */
    void *arg;
    /* Gives every rank's n bytes (n the same on all) in rank order. `what` names the exchange in
     * errors. Called once, by mc_comm_net_open. */
    mc_status (*exchange)(void *arg, const char *what, const void *mine, size_t n,
                          void *all /* [n * world] */, int64_t deadline_ns, struct mc_err *err);
    const char *(*describe)(void *arg, int world_rank); /* "rank 3 on node7"; any thread */
};
struct mc_comm_net_cfg {
    int world, me;
    const struct mc_comm_peers *peers; /* borrowed until close */
    int64_t deadline_ns;               /* for the exchange */
    _Atomic int64_t *collective_seq;   /* NULL, or the progress page's: calls ended */
    _Atomic int64_t *bytes_moved;      /* NULL, or the progress page's: bytes sent and received */
};
/* "ucx 1.13.1", or NULL: this build has no transport, only one rank can run. */
const char *mc_comm_net_name(void);
mc_status mc_comm_net_open(const struct mc_comm_net_cfg *cfg, struct mc_comm_net **net,
                           struct mc_err *err);
/* As abort of every group; any thread. */
void mc_comm_net_abort(struct mc_comm_net *net);
/* After its groups are destroyed. Never hangs: what the others do not answer within a second is
 * dropped. NULL is fine. */
void mc_comm_net_close(struct mc_comm_net *net);
/* Members need no exchange; all of them make the group, each with its own `me`. Size 1 gives the
 * group of one. */
mc_status mc_comm_group_create(struct mc_comm_net *net, const struct mc_comm_cfg *cfg,
                               struct mc_comm **c, struct mc_err *err);
