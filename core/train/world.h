/* world.h - what a rank's trainer needs of all the others: small sums, one word of the control rank
 * to all, votes, and bytes gathered for it. On one rank every call is the identity.
 *
 * I1  All ranks make the same calls in the same order: whatever decides about a call is the outcome
 *     of an earlier one, or a function of the recipe and the counters.
 * I2  A failure of one rank alone goes through mc_world_vote(), after which all have it. A failure
 *     of the way between them (MC_E_TIMEOUT, MC_E_PEER) is each rank's own: no vote is left. */
#pragma once
#include "../par/mesh.h"
#include "../pipe/line.h"
#include "../../ckpt/ckpt.h"

struct mc_world {
    const struct mc_mesh *mesh; /* NULL: one rank */
    int rank, size;             /* rank 0 is the control rank */
    int replica, replicas;      /* place on dp: whose samples */
    int counts;                 /* 1 on one rank of a replica: it counts what all of them know, and
                                   the loss, which a pipeline's last stage alone knows */
};
/* line: the pipelines'; NULL: none. */
struct mc_world mc_world_of(const struct mc_mesh *mesh, const struct mc_line *line);
/* v[i] becomes its sum over the ranks, added in rank order; u64 modulo 2^64. */
mc_status mc_world_sum(const struct mc_world *w, double *v, int64_t n, struct mc_err *err);
mc_status mc_world_sum_u64(const struct mc_world *w, uint64_t *v, int64_t n, struct mc_err *err);
/* The control rank's n bytes, to all. */
mc_status mc_world_tell(const struct mc_world *w, void *buf, int64_t n, struct mc_err *err);
/* MC_OK when `mine` is MC_OK everywhere; else, on all, code and message of the lowest rank that
 * says otherwise, and *sound as that rank has it (may be NULL). */
mc_status mc_world_vote(const struct mc_world *w, mc_status mine, int *sound, struct mc_err *err);
/* Everybody's n bytes to the control rank, in rank order; mc_free(*all), mc_free(*bytes). mine
 * NULL: nothing of this rank, which votes no next. */
mc_status mc_world_gather(const struct mc_world *w, const void *mine, int64_t n, void **all,
                          int64_t **bytes, struct mc_err *err);
/* The same two for the writers of a checkpoint; w must outlive it. */
struct mc_ckpt_group mc_world_writers(const struct mc_world *w);
