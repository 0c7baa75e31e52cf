/* record.h - the records of two runs at a step, compared op by op (record.c writes them). */
#pragma once
#include <stdint.h>
#include "../base/status.h"

struct mc_record_place {
    char name[128]; /* of the op's call, or "layers.3 (2)": the second of its kind there; of a
                       tensor the parameter, or "adam_m/NAME" */
    char op[48];    /* "attention"; "" where no op is meant */
    char verb[24]; /* "forward", "backward input", "backward weight", "gradient", "state", "data" */
    char what[128]; /* "out", "d_in", a parameter, "tokens" */
    int k;
    int64_t mb, n; /* its first sample, counted over the run, and samples; mb -1: the whole step */
    int rank_lo, rank_hi; /* who held it in run B */
    int bitwise;          /* all bits are equal: then the deviation is 0 */
    double deviation;     /* ||a - b|| / max(||a||, 1e-3 of the norm usual for so many elements) */
};
enum { MC_RECORD_WORST = 10 };
struct mc_record_diff {
    int same_layout;  /* rank by rank; else by logical tensors, added up over ranks */
    int same_batches; /* microbatch by microbatch */
    int64_t compared, differ, unequal, only_a, only_b; /* unequal: not bit by bit */
    struct mc_record_place first;                      /* in program order; valid if differ > 0 */
    struct mc_record_place worst[MC_RECORD_WORST];     /* by deviation, largest first */
    int nworst;
    /* Ranks of one run that hold the same and do not agree on it: A's, then B's. */
    int torn[2];
    struct mc_record_place torn_first[2];
    double tolerance;
};
/* Is the record of `step` in this segment folder? Its ranks, 0: no. */
int mc_record_ranks(const char *segment_dir, int64_t step);
/* tolerance < 0: 0 (bit by bit) on the same layout, else by precision. MC_E_NOTFOUND: a record is
 * missing; MC_E_FORMAT: it is not whole; MC_E_USAGE: they are of different models. */
mc_status mc_record_compare(const char *dir_a, const char *dir_b, int64_t step, double tolerance,
                            struct mc_record_diff *d, struct mc_err *err);
