/* transfer.h - gradients to their owners and parameters back to all, bucket by bucket, while the
 * passes run. One rank: every call is the identity. */
#pragma once
#include "../optim/shard.h"
#include "../par/mesh.h"
#include "../pipe/tied.h"

/* What happened in a step, for the trace: nanoseconds of mc_clock_ns(). */
enum mc_span_kind {
    MC_SPAN_REDUCE,
    MC_SPAN_GATHER,
    MC_SPAN_BACKWARD,
    MC_SPAN_TIED, /* the sum of a tied table's gradients over the pipeline */
    MC_SPAN_NKINDS
};
const char *mc_span_name(enum mc_span_kind k);
struct mc_span {
    enum mc_span_kind kind;
    int bucket;                        /* -1: none */
    int64_t begin_ns, wait_ns, end_ns; /* begun; first waited for (0: never); known to be done */
};
struct mc_transfer_cfg {
    struct mc_graph *graph;
    const struct mc_mesh *mesh; /* NULL: one rank */
    const struct mc_shard *shard;
    struct mc_tied *tied; /* NULL: no table is shared with another stage's rank */
    void *params, *grads; /* flat */
    enum mc_dtype param_dtype, grad_dtype;
    int overlap_grads, overlap_params;
    int piped; /* the passes are those of a pipeline */
};
struct mc_transfer;
mc_status mc_transfer_create(const struct mc_transfer_cfg *cfg, struct mc_transfer **r,
                             struct mc_err *err);
void mc_transfer_destroy(
    struct mc_transfer *r); /* after the communicators have failed or are idle */
/* Before the first microbatch of a step. */
void mc_transfer_begin(struct mc_transfer *r);
/* For the passes: `need` waits for a bucket's parameters, `done` sums its gradients over tp and
 * begins its reduction. last: what runs is the last addition of its part to gradients in this
 * step. */
const struct mc_graph_watch *mc_transfer_watch(struct mc_transfer *r, int last);
/* This replica has no samples in this step: its gradients are zero, and take part. */
mc_status mc_transfer_idle(struct mc_transfer *r, struct mc_err *err);
/* After the backward: the owned ranges (plain data parallel: all) hold the sums over replicas. */
mc_status mc_transfer_finish(struct mc_transfer *r, struct mc_err *err);
/* After the update of the owned ranges: parameters to all. Nothing in plain data parallel. */
mc_status mc_transfer_gather(struct mc_transfer *r, struct mc_err *err);
/* All parameters are here. */
mc_status mc_transfer_drain(struct mc_transfer *r, struct mc_err *err);
/* Time that the step has spent waiting for transfers, since mc_transfer_begin(). */
int64_t mc_transfer_exposed_ns(const struct mc_transfer *r);
void mc_transfer_mark(struct mc_transfer *r, enum mc_span_kind kind, int64_t begin_ns,
                      int64_t end_ns);
int mc_transfer_spans(const struct mc_transfer *r, const struct mc_span **span);
