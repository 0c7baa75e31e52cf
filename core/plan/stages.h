/* stages.h - what a pipeline's stages cost, and with how many microbatches a replica meets them. */
#pragma once
#include <stdint.h>
#include "../par/layout.h"
#include "../recipe/recipe.h"

/* Time of each of n stages in floating-point operations of the matrix products of one microbatch,
 * embedding and head as the work they are: f forward, i for the inputs, w for the weights. A matrix
 * product costs each of the three the same; attention has no weights, so its backward is all i.
 * f, i, w: [n]. */
mc_status mc_stages_cost(const struct mc_recipe *r, int n, double *f, double *i, double *w,
                         struct mc_err *err);
/* The distinct numbers of microbatches of a replica over the run, ascending; returns how many, at
 * most cap. Batches that dp does not divide give two. */
enum { MC_STAGES_COUNTS = 2 * (MC_MAX_RAMP + 1) };
int mc_stages_microbatches(const struct mc_recipe *r, int64_t counts[MC_STAGES_COUNTS]);
