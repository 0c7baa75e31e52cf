/* check.h - what `check` finds: everything across fields that would fail or not fit, all in one
 * run, nothing started. */
#pragma once
#include "../recipe/recipe.h"

struct mc_check_cfg {
    int ranks; /* 0: from cluster, else dp = 1 (a note says so) */
    int nodes, per_node;
    int for_train; /* 1: refuse declared/required data */
    const char *base_dir;
};
struct mc_check_notes {
    int n;
    char note[16][240];
};
/* Adds to problems; also resolves what depends on several keys (lr units to one, lr.end from steps,
 * dp auto, vocab from the tokenizer) in place and records origins. */
mc_status mc_check(struct mc_recipe_box *box, const struct mc_check_cfg *cfg,
                   struct mc_problems *problems, struct mc_check_notes *notes, struct mc_err *err);
