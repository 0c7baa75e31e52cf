/* shard.h - which rows of each parameter belong to which data-parallel rank.
 *
 * Every bucket of the graph's flat buffer is cut into one range per rank, about equal, at whole
 * rows of the tensors as this rank's tp group holds them. So what a rank owns of a tensor is one
 * axis-aligned box: it writes that to checkpoints, counts it in norm and hash, and, with the
 * sharded optimizer, keeps moments and masters for it alone.
 *
 * I1  The ranges of a bucket follow each other and cover it, gaps and padding included: they are
 *     the counts of its reduce_scatter and all_gather.
 * I2  The cut depends on the graph and on the number of parts alone: the same on every rank. */
#pragma once
#include "../base/status.h"
#include "../graph/graph.h"

struct mc_shard_piece { /* whole rows of one parameter, as this rank holds it */
    int param;
    int64_t row, rows;   /* of the parameter's box; a box without dimensions is one row */
    int64_t flat, count; /* elements: place in the flat buffer, number */
    int64_t state;       /* place in the buffers of moments and masters */
};
struct mc_shard {
    int parts, me;
    int split; /* 1: moments and masters are kept for what is owned only */
    int nbuckets;
    int64_t *cut;   /* [nbuckets][parts + 1], elements of the flat buffer */
    int64_t *count; /* [nbuckets][parts] */
    int npieces;
    struct mc_shard_piece *piece; /* owned, in storage order */
    int64_t state_count;          /* elements of the buffers of moments and masters */
};
mc_status mc_shard_create(const struct mc_graph *g, int parts, int me, int split,
                          struct mc_shard **s, struct mc_err *err);
/* state_count of the part that has most. */
int64_t mc_shard_largest(const struct mc_shard *s);
void mc_shard_destroy(struct mc_shard *s);
/* The box of the logical tensor that rows [row, row + rows) of p's box are. */
struct mc_box mc_shard_box(const struct mc_param *p, int64_t row, int64_t rows);
int64_t mc_shard_row(const struct mc_param *p); /* elements of a row; 0: an empty box */
