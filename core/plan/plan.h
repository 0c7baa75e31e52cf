/* plan.h - what a recipe will ask of its ranks, computed on one core in a second: nothing is taken,
 * nothing is measured, nothing is guessed. Bytes are what training keeps for parameters;
 * mc_train_plan_rank() has the rest. How long a step takes is not in it. */
#pragma once
#include "../par/layout.h"
#include "../recipe/recipe.h"

enum { MC_PLAN_STAGES = 1024 };
struct mc_plan_stage {
    int first_layer, end_layer;
    int rank;       /* of the pipeline */
    int64_t params; /* logical elements of the stage */
};
struct mc_plan_rank {              /* of a pipeline; of its tp group the fullest */
    int64_t params;                /* elements held, a copy of a tied table too */
    int64_t weights, grads, optim; /* bytes */
};
struct mc_plan {
    struct mc_layout layout;
    int per_node;
    int64_t microbatches;    /* of the fullest replica, at the largest batch */
    int64_t tokens_per_step; /* at the largest batch */
    int64_t params;          /* logical elements of the model, each once */
    int nstages;             /* pp x chunks */
    struct mc_plan_stage stage[MC_PLAN_STAGES];
    struct mc_plan_rank rank[MC_PLAN_STAGES]; /* [pp] */
    struct {
        double params, state_unsharded, state_sharded; /* of a rank, if all held the same */
    } even;
    struct {
        int64_t bytes;
        double bytes_per_day;   /* 0: not saved by time */
        double stall_s, mtbf_s; /* 0: not declared */
        double optimum_minutes; /* 0: needs both */
    } checkpoint;
    double flops_causal, flops_full; /* a token, forward + backward */
};
/* The recipe was checked. per_node 0: all on one node. cut, place: of the pipeline, as of
 * mc_stages_cut(); pp 1: not looked at. MC_E_RECIPE: the model's faults. */
mc_status mc_plan_make(const struct mc_recipe *r, int per_node, const int *cut, const int *place,
                       struct mc_plan *plan, struct mc_err *err);
/* Percent of time lost to saves and to work done again after a failure, at one save each
 * `minutes`. */
void mc_plan_interval(const struct mc_plan *p, double minutes, double *save_pct,
                      double *rollback_pct);
