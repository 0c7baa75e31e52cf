/* line.h - what all ranks know of a run's pipelines: the cut of the layers into stages, and a
 * proven schedule for every number of microbatches that a replica meets. Plain data.
 *
 * A rank's stages are its graph's *parts*, in the order of the model; a schedule names them by
 * *chunk*. The bundled stage maps give a rank its chunks in that order, a user's may not. */
#pragma once
#include <stddef.h>
#include "sched.h"

struct mc_graph_part; /* core/graph/graph.h */

enum {
    MC_LINE_MAX_CHUNKS = 64, /* of a rank: parts of its graph */
    MC_LINE_MAX_SCHEDULES = 4096,
    MC_LINE_POSTED = 2 /* receives of a channel that wait for messages, at most */
};
struct mc_line {
    int ranks, chunks;       /* p, v */
    int *cut;                /* [ranks * chunks + 1]: stage s has layers cut[s] .. cut[s + 1] - 1 */
    int nsched;              /* ascending, distinct numbers of microbatches */
    struct mc_sched **sched; /* the stage map (place) is the same in all: else refused */
    int depth;               /* messages a channel holds; the most that any of them needs */
    int *at;                 /* [ranks * chunks]: rank * chunks + chunk of each stage */
};
/* Takes the n schedules over: they are destroyed with the line, also when this fails. Proves
 * nothing. cut is copied. MC_E_RECIPE: stage maps that differ, a stage with nothing in it, ... */
mc_status mc_line_create(int ranks, int chunks, const int *cut, struct mc_sched **take_sched, int n,
                         int depth, struct mc_line **line, struct mc_err *err);
/* For passes without backward: one chunk a rank, m forwards. */
mc_status mc_line_forward(int ranks, const int *cut, int m, struct mc_line **line,
                          struct mc_err *err);
void mc_line_destroy(struct mc_line *line); /* NULL is fine */
/* Some record is I or W: graphs are built with their backward split. */
int mc_line_split(const struct mc_line *line);
/* Most microbatches of that chunk between the begin of F and the end of B or W, over all schedules;
 * at least 1. */
int mc_line_slots(const struct mc_line *line, int rank, int chunk);
/* Of these, between the begin of I or B and the end of W or B; at least 1. */
int mc_line_pending(const struct mc_line *line, int rank, int chunk);
/* The chunk that is the rank's part k, from 0. */
int mc_line_chunk(const struct mc_line *line, int rank, int k);
/* Part k of the rank's graph. */
void mc_line_part(const struct mc_line *line, int rank, int k, struct mc_graph_part *part);
int mc_line_head(const struct mc_line *line); /* the pipeline rank that has the last stage */
int mc_line_stem(const struct mc_line *line); /* and the first */
/* The schedule of m microbatches, or NULL. */
const struct mc_sched *mc_line_sched(const struct mc_line *line, int64_t m);

/* Messages that a rank may have under way: most of the calls that a group keeps open. */
int mc_line_messages(const struct mc_line *line);
/* What a rank sends to, or takes from, one other rank in one direction of the model. */
struct mc_line_channel {
    int peer, kind; /* kind: MC_SCHED_F activations, MC_SCHED_I gradients */
    int sends;
    int per_mb; /* messages of one microbatch */
    int room;   /* buffers of this side: of a sender the whole depth, so that it alone keeps the
                   rule of the proof; of a receiver those it can post ahead */
};
/* channel: [4 * MC_LINE_MAX_CHUNKS]. Returns how many; channels of gradients only if some schedule
 * goes backward. */
int mc_line_channels(const struct mc_line *line, int rank, struct mc_line_channel *channel);

/* ---- line_file.c: segments/NNN/schedule.txt ---- */
/* mc_free() it. */
mc_status mc_line_text(const struct mc_line *line, char **text, struct mc_err *err);
/* Every schedule is proven again. MC_E_FORMAT: not such a file; MC_E_RECIPE: the proof fails. */
mc_status mc_line_parse(const char *text, size_t n, struct mc_line **line, struct mc_err *err);
