/* tied.h - the gradient of a table that the first stage and the last one share, when they are of
 * different ranks: each has a copy of it, and both end with the sum. */
#pragma once
#include "../graph/graph.h"
#include "../par/mesh.h"

struct mc_tied_cfg {
    const struct mc_graph *graph; /* its parameters with `elsewhere` */
    const struct mc_mesh *mesh;
    int stem, head; /* the pipeline ranks that have the first and the last stage */
    const struct mc_kern_ops *kern;
    struct mc_pool *pool;
    void *grads;  /* flat */
    void *buffer; /* of bytes mc_tied_bytes(); NULL when that is 0 */
};
struct mc_tied;
/* dtype: of gradients. 0: this rank shares nothing. */
size_t mc_tied_bytes(const struct mc_graph *g, enum mc_dtype dtype);
mc_status mc_tied_create(const struct mc_tied_cfg *cfg, struct mc_tied **t, struct mc_err *err);
void mc_tied_destroy(struct mc_tied *t); /* NULL is fine */
/* Once a step, when both stages' gradients are complete and before they are summed over anything
 * else. Both ranks call it. */
mc_status mc_tied_sum(struct mc_tied *t, struct mc_err *err);
