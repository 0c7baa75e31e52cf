/* flops.h - the work of one token and the part of the peak that a step used: flops.c. */
#pragma once
#include "../graph/graph.h"
#include "../recipe/recipe.h"

struct mc_flops { /* operations of one token */
    double causal, full, formula;
};
/* Of every phase, [data.nphases + 1], before the first first: whatever the layout, of the whole
 * model. */
mc_status mc_flops_phases(const struct mc_recipe *r, struct mc_flops *f, struct mc_err *err);
/* At sequence length seq; `train` is a graph of the whole model. */
struct mc_flops mc_flops_of(const struct mc_recipe *r, const struct mc_graph *train, int64_t seq);
/* NaN: the recipe declares no peak. */
double mc_flops_mfu(const struct mc_recipe *r, const struct mc_flops *f, double tokens_per_s,
                    int ranks);
