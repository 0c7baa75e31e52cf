/* stages.h - how the layers of a model are cut into a pipeline's stages, what the stages cost, and
 * with how many microbatches a replica meets them. */
#pragma once
#include <stdint.h>
#include "../par/layout.h"
#include "../recipe/recipe.h"

/* Times of one microbatch in the pieces of a model: the stem, each layer, the head; in any unit. */
struct mc_stages_work {
    int layers;
    double *f, *i, *w; /* [layers + 2]: forward, gradient of the input, of the weights */
};
/* Predicted: floating-point operations of the matrix products. A product costs each of the three
 * the same; attention has no weights, so its backward is all i, and what backward computes again is
 * there too. */
mc_status mc_stages_predict(const struct mc_recipe *r, struct mc_stages_work *work,
                            struct mc_err *err);
/* Zeroed. */
mc_status mc_stages_work_create(int layers, struct mc_stages_work *work, struct mc_err *err);
void mc_stages_work_drop(struct mc_stages_work *work);

/* Stages of the pipeline: pp x chunks; 1 without one. */
int mc_stages_count(const struct mc_recipe *r);
/* How parallel.stages cuts the layers: stage s has layers cut[s] .. cut[s + 1] - 1, the first has
 * the stem too, the last the head. cut: [mc_stages_count() + 1]. place: [pp * chunks], the stage of
 * (rank, chunk) as in struct mc_sched; NULL: chunk * pp + rank. Only "auto" looks at it, and at
 * `work`; NULL: as predicted. *proven: of "auto", there is none better (core/plan/balance.h); may
 * be NULL. */
mc_status mc_stages_cut_by(const struct mc_recipe *r, const struct mc_stages_work *work,
                           const int *place, int *cut, int *proven, struct mc_err *err);
mc_status mc_stages_cut(const struct mc_recipe *r, const int *place, int *cut, struct mc_err *err);
/* f, i, w: [n], of n stages so cut. */
void mc_stages_sum(const struct mc_stages_work *work, const int *cut, int n, double *f, double *i,
                   double *w);
/* The same, as predicted. */
mc_status mc_stages_cost(const struct mc_recipe *r, const int *cut, int n, double *f, double *i,
                         double *w, struct mc_err *err);

/* The distinct numbers of microbatches of a replica over the run, ascending; returns how many, at
 * most cap. Batches that dp does not divide give two. */
enum { MC_STAGES_COUNTS = 2 * (MC_MAX_RAMP + 1 + MC_MAX_PHASES) };
int mc_stages_microbatches(const struct mc_recipe *r, int64_t counts[MC_STAGES_COUNTS]);
