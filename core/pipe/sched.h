/* sched.h - a pipeline schedule as plain data, its proof, and its cost by simulation.
 *
 * A schedule says, for each pipeline rank, in which order it runs the work of its stages: records
 * {op, microbatch, chunk}. Sends and receives are derived, never written. It comes from a Lua
 * function (lua/schedule.c) and is nothing but numbers from then on: what follows knows no Lua and
 * no schedule by name.
 *
 * Terms. p ranks, v chunks a rank, S = p v stages, m microbatches. F forward, I gradient of the
 * input, W gradient of the weights, B = I then W at once. Stage s feeds stage s + 1; stage S - 1
 * computes the loss. A *channel* is what goes from one rank to another in one direction of the
 * model: activations (F to F) or gradients (I or B to the I or B before). Between stages of one
 * rank nothing is sent. */
#pragma once
#include <stdint.h>
#include "../base/status.h"

enum mc_sched_op { MC_SCHED_F, MC_SCHED_B, MC_SCHED_I, MC_SCHED_W };
enum { MC_SCHED_NOPS = 4, MC_SCHED_MAX_RANKS = 4096, MC_SCHED_MAX_CHUNKS = 1024 };
enum { MC_SCHED_MAX_RECORDS = 1 << 26 };
struct mc_sched_rec {
    int32_t mb;
    int16_t chunk;
    int8_t op;
};
struct mc_sched {
    char name[96]; /* "one_f_one_b", "my.lua:3": for messages */
    int ranks, chunks, microbatches;
    int *place;     /* [ranks * chunks]: stage of (rank, chunk) */
    int64_t *first; /* [ranks + 1]: rank r has rec[first[r]] .. rec[first[r + 1] - 1] */
    struct mc_sched_rec *rec;
};
const char *mc_sched_op_name(int op); /* "F" */
static inline int mc_sched_stages(const struct mc_sched *s)
{
    return s->ranks * s->chunks;
}
/* Room for counts[r] records of rank r; place is "loop" (stage = chunk * ranks + rank). The caller
 * fills rec and, if it must, place. MC_E_RECIPE: sizes out of range. */
mc_status mc_sched_create(const char *name, int ranks, int chunks, int microbatches,
                          const int64_t *counts, struct mc_sched **s, struct mc_err *err);
void mc_sched_destroy(struct mc_sched *s);

/* ---- verify.c: the proof ---- */
struct mc_sched_limits {
    int depth;            /* messages a channel holds, sent and not yet taken; >= 1 */
    const int64_t *alive; /* [ranks] most (chunk, microbatch) pairs whose forward has begun and
                             whose weight gradient has not ended; NULL: no limit */
};
/* MC_E_RECIPE: refused; the message is the smallest counter-example in terms of rank, slot, record.
 * `picture` (may be NULL) gets, for a schedule that locks, its state then: one line a rank. */
mc_status mc_sched_verify(const struct mc_sched *s, const struct mc_sched_limits *lim,
                          void (*picture)(void *, const char *), void *arg, struct mc_err *err);
/* The least depth under which a schedule that passes all other points reaches its end, up to
 * `most`; *depth 0: it locks even then (verify with `most` says how). More depth never locks what
 * runs with less. */
mc_status mc_sched_least_depth(const struct mc_sched *s, int most, int *depth, struct mc_err *err);

/* ---- simulate.c: what it costs ---- */
/* Microbatches at once, counted along records of one rank (of one chunk, or of all of them). */
struct mc_sched_tally {
    int64_t alive, pending;           /* now; as in the report */
    int64_t most_alive, most_pending; /* so far */
};
void mc_sched_count(struct mc_sched_tally *t, int op);

struct mc_sched_costs {      /* seconds, or any unit */
    const double *f, *i, *w; /* [stages] */
    double hop;              /* from the end of an op to its message being there */
    int depth;               /* as above */
};
struct mc_sched_rank_report {
    double busy, first, last; /* busy time, start of the first op, end of the last */
    int64_t alive;            /* most pairs alive, as in limits */
    int64_t pending;          /* most pairs between the begin of I or B and the end of W or B */
    int64_t alive_chunk_max;  /* most microbatches alive of one chunk: slots of its graph */
};
struct mc_sched_report {
    double makespan;                   /* first start to last end over all ranks */
    double bubble;                     /* share of ranks x makespan in which ranks are idle */
    struct mc_sched_rank_report *rank; /* [ranks] given by the caller, or NULL */
    double *start;                     /* [records] given by the caller, or NULL */
};
/* Only for a schedule that mc_sched_verify() accepted with this depth. MC_E_NOMEM. */
mc_status mc_sched_simulate(const struct mc_sched *s, const struct mc_sched_costs *c,
                            struct mc_sched_report *out, struct mc_err *err);

/* ---- draw.c: pictures of a simulated schedule ---- */
/* One line a rank, `width` columns at most; each op is its letter and microbatch, as wide as its
 * time; what does not fit is cut, and the last line says so. */
void mc_sched_draw_text(const struct mc_sched *s, const struct mc_sched_costs *c,
                        const struct mc_sched_report *r, int width,
                        void (*line)(void *, const char *), void *arg);
void mc_sched_draw_svg(const struct mc_sched *s, const struct mc_sched_costs *c,
                       const struct mc_sched_report *r, void (*line)(void *, const char *),
                       void *arg);
