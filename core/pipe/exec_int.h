/* exec_int.h - a compiled pipeline. For this folder only. */
#pragma once
#include "../par/mesh.h"
#include "exec.h"

struct mc_pipe_op {
    int8_t op, last; /* last: as in struct mc_pipe_job */
    int16_t chunk, part;
    int16_t in, out;             /* channels of the pipe, or -1 */
    int32_t local_in, local_out; /* buffers between chunks of this rank, or -1 */
    int32_t mb, stage, slot;     /* slot: of the part's, from 0 */
};
struct mc_pipe_prog { /* one schedule, this rank's records */
    int microbatches;
    int64_t nops;
    struct mc_pipe_op *op;
    int32_t *taken; /* microbatches of messages, channel after channel, as they are taken */
    int64_t *first; /* [nchannels + 1]: channel c's are taken[first[c]] .. */
};
struct mc_pipe_channel {
    struct mc_line_channel is;
    char *buf;                /* [is.room] messages */
    struct mc_comm_req **req; /* [is.room]; NULL: not under way */
    /* in a job */
    int64_t begun, ended; /* messages; number k is at k % room */
    int64_t round, next;  /* of a receiver: the message that is asked for next */
};
struct mc_pipe {
    const struct mc_line *line;
    struct mc_comm *comm; /* NULL: one rank */
    int rank;             /* pipeline rank */
    enum mc_dtype dtype;
    size_t elem, message; /* bytes */
    int nchannels, nlocal;
    struct mc_pipe_channel *channel;
    char *local; /* [nlocal] messages */
    struct mc_comm_req **reqs;
    int nprog;
    struct mc_pipe_prog *prog; /* as the line's schedules */
    int64_t vocab;
    void *logits;      /* [vocab] */
    struct mc_err err; /* what ended the pipe */
};

/* ---- compile.c ---- */
/* Most messages that wait between chunks of the rank at once. */
int mc_compile_locals(const struct mc_line *line, int rank);
/* p->channel is there. */
mc_status mc_compile(const struct mc_pipe *p, const struct mc_sched *s, struct mc_pipe_prog *prog,
                     struct mc_err *err);
void mc_compile_free(struct mc_pipe_prog *prog);
