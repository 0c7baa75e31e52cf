/* check.h - what `check` finds: everything across fields that would fail or not fit, all in one
 * run, nothing started. */
#pragma once
#include "../par/layout.h"
#include "../recipe/recipe.h"

struct mc_train_memory;
struct mc_line;
struct mc_check_cfg {
    int ranks; /* 0: nodes x per_node, else from cluster, else dp = 1 (a note says so) */
    int nodes, per_node;
    const int *node_of; /* [ranks] the real host list, where there is one; NULL: per_node */
    int for_train; /* 1: refuse what this version cannot train: declared/required data, more than
                      one rank, ... */
    int threads;   /* of one rank, for the memory plan; 0: the cores here over a node's ranks */
    const char *base_dir; /* relative data paths start here; NULL: paths are not looked at */
    /* Of mc_check_memory() alone: mc_train_plan_fullest(), */
    mc_status (*memory)(const struct mc_recipe *r, const struct mc_layout *layout,
                        const struct mc_line *line, int threads, struct mc_train_memory *m,
                        struct mc_err *err);
    const struct mc_line *line;      /* the proven pipelines; NULL: none */
    struct mc_train_memory *planned; /* what it said of the fullest rank; may be NULL */
};
enum { MC_CHECK_NOTES = 24 };
struct mc_check_notes {
    int n;
    char note[MC_CHECK_NOTES][240];
};
/* Adds to problems; also resolves what depends on several keys (lr units to one, lr.stop from
 * steps, dp auto) in place and records origins. May be called again, after a function-valued batch
 * was tabulated or a key changed. MC_E_RECIPE when it added problems. */
mc_status mc_check(struct mc_recipe_box *box, const struct mc_check_cfg *cfg,
                   struct mc_problems *problems, struct mc_check_notes *notes, struct mc_err *err);
/* Of a recipe that mc_check() finds sound, with its pipelines proven: builds the graphs of its
 * ranks and asks whether they fit. MC_E_RECIPE when it added problems; MC_E_MACHINE when the only
 * one is that this machine (for_train) has too little memory. */
mc_status mc_check_memory(struct mc_recipe_box *box, const struct mc_check_cfg *cfg,
                          struct mc_problems *problems, struct mc_check_notes *notes,
                          struct mc_err *err);
/* The layout of a recipe. world 0: the product of its axes, once dp "auto" is resolved. */
mc_status mc_check_layout(const struct mc_recipe *r, int world, struct mc_layout *l,
                          struct mc_err *err);
