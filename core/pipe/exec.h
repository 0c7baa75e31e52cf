/* exec.h - a rank's part in its pipeline: the records of its schedules, compiled, and run.
 *
 * Messages go over the mesh's pp axis with tags below MC_PIPE_TAGS, all of them waited for when a
 * job ends; other calls of that group between jobs are the caller's. After a job that failed the
 * buffer is borrowed until the group is destroyed, and every later job returns the same error. */
#pragma once
#include "../graph/graph.h"
#include "line.h"

enum { MC_PIPE_TAGS = 8 };
struct mc_pipe;

/* Bytes of a rank's messages: the room of each channel that it sends or takes on, and what waits
 * between chunks of its own. message: bytes of the largest. */
size_t mc_pipe_bytes(const struct mc_line *line, int rank, size_t message);

struct mc_pipe_cfg {
    const struct mc_line *line; /* proven; borrowed, as all here */
    const struct mc_mesh *mesh;
    void *buffer; /* mc_pipe_bytes() of it, at MC_ALIGN */
    size_t bytes;
    enum mc_dtype dtype; /* of the graphs */
    int64_t vocab;       /* logits of a row, for mc_pipe_infer(); 0: it is not called */
};
/* Compiles every schedule of the line for this rank. */
mc_status mc_pipe_create(const struct mc_pipe_cfg *cfg, struct mc_pipe **p, struct mc_err *err);
void mc_pipe_destroy(struct mc_pipe *p); /* NULL is fine */

struct mc_pipe_note {
    int op, chunk, stage;
    int64_t mb;
    /* begin to end: the wait for input (and before it `microbatch`), the op and its padding, the
       wait for room. wait_ns is both waits, input_ns the first */
    int64_t begin_ns, wait_ns, input_ns, end_ns;
};
struct mc_pipe_job {
    struct mc_graph *graph;  /* its parts are those of the line; TRAIN, or EVAL to go forward */
    int64_t own, micro, seq; /* samples of this replica, in microbatches of micro; the last may
                                be short. The same on all ranks of the pipeline */
    int64_t step;
    double scale;
    double *loss;                /* [microbatches] sums of token losses where the head is, else 0 */
    double pad_s[MC_SCHED_NOPS]; /* seconds that an op of one chunk takes at least, by sleeping */
    void *arg;
    /* Before every op: the microbatch of b samples from `first` on. last: with this op its chunk
     * adds to gradients for the last time in this job. */
    mc_status (*microbatch)(void *arg, int64_t first, int64_t b, int op, int last,
                            struct mc_microbatch *mb, struct mc_err *err);
    void (*ran)(void *arg, const struct mc_pipe_note *n); /* NULL: nobody looks */
};
/* By the schedule of the job's number of microbatches; MC_E_BUG: the line has none. own 0: nothing
 * runs. */
mc_status mc_pipe_train(struct mc_pipe *p, const struct mc_pipe_job *job, struct mc_err *err);
/* Forwards alone, any number of microbatches: those of the largest schedule, in rounds. */
mc_status mc_pipe_forward(struct mc_pipe *p, const struct mc_pipe_job *job, struct mc_err *err);
/* One pass of an INFER graph through all stages; logits of the last row on every rank, valid until
 * the next call. */
mc_status mc_pipe_infer(struct mc_pipe *p, struct mc_graph *infer, const int32_t *tokens, int64_t t,
                        int64_t pos0, const void **logits, struct mc_err *err);
