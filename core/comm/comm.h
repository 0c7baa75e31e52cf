/* comm.h - a communicator: collectives and point-to-point among the ranks of one group.
 *
 * I1  Every call has a name, a sequence number, its group and its bytes, noted in the flight
 *     recorder when it begins and ends.
 * I2  Every wait has a deadline; on expiry MC_E_TIMEOUT names who is missing and from which call.
 * I3  Results are bit-identical on every run of one layout: reductions add in rank order.
 * I4  abort() may be called from another thread: all calls in flight and later ones return
 *     MC_E_PEER.
 *
 * Counts are in elements of `dtype`. begin returns a handle; wait must follow exactly once. Buffers
 * may be registered once. `stream` is the device's queue (NULL on CPUs). Peers' addresses come
 * through mc_comm_peers, which core/run fills. */
#pragma once
#include <stdint.h>
#include "../base/status.h"
#include "../tensor/dtype.h"

struct mc_comm;
struct mc_comm_req;
enum mc_reduce { MC_SUM, MC_MAX };

struct mc_comm_peers { /* rendezvous, filled by core/run: exchange of opaque addresses within the
                          group */
    void *arg;
    mc_status (*exchange)(void *arg, const void *mine, size_t n, void *all /* size * n */,
                          int64_t deadline_ns, struct mc_err *err);
    const char *(*describe)(void *arg, int member); /* "rank 3 on node7" */
};
struct mc_comm_cfg {
    const char *name;
    int size, me;
    const int *ranks;
    const struct mc_comm_peers *peers;
    int64_t deadline_ns;
};

struct mc_comm_ops {
    const char *name; /* "self" */
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
    struct mc_comm_cfg cfg;
    uint64_t seq;
};
/* The group of one: collectives copy in to out; send/recv to oneself match in order of tag, else
 * MC_E_BUG. */
mc_status mc_comm_self_create(const struct mc_comm_cfg *cfg, struct mc_comm **c,
                              struct mc_err *err);
