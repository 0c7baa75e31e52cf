/* balance.h - a row of layers cut into a pipeline's stages, so that the busiest rank has least. */
#pragma once
#include <stdint.h>
#include "../base/status.h"

struct mc_balance {
    int layers, ranks, chunks; /* ranks * chunks >= 2 stages */
    const int *place;   /* [ranks * chunks]: stage of (rank, chunk); NULL: chunk * ranks + rank */
    const double *work; /* [layers + 2]: time of the stem, of each layer, of the head; >= 0 */
};
/* cut: [ranks * chunks + 1]; stage s has layers cut[s] .. cut[s + 1] - 1, one at least but for the
 * first and the last. The largest rank (the sum over its chunks) is as small as it can be or, with
 * several chunks, at most a fiftieth larger where that makes the largest stage smaller: ranks with
 * even shares of a step wait for a large stage all the same. So: the least largest stage of the
 * cuts within the fiftieth; with such a one the least largest rank; of those the cut whose stages
 * end nearest to even shares of the work, from the first stage on; of two as near, the earlier. (A
 * head, or a stem, that is more than its share of all is left out of what is shared, with its
 * stage.) *proven 0: layers that differ, several chunks, and too many cuts to see that there is no
 * better one (may be NULL). MC_E_RECIPE: too few layers. */
mc_status mc_balance_cut(const struct mc_balance *b, int *cut, int *proven, struct mc_err *err);
