/* hooks.h - what the control rank asks its hooks, and the little that they may answer. Core never
 * includes lua.h: lua/ fills the ops. */
#pragma once
#include <stdint.h>
#include "../base/json.h"
#include "../base/status.h"
#include "../recipe/recipe.h"

enum mc_hook_kind {
    MC_HOOK_STEP_END,
    MC_HOOK_GRAD,
    MC_HOOK_ANOMALY,
    MC_HOOK_EVAL,
    MC_HOOK_CHECKPOINT,
    MC_HOOK_NKINDS
};
const char *mc_hook_name(enum mc_hook_kind k); /* "on_step_end" ... */
struct mc_hook_event {                         /* NaN or -1 where a member has no meaning */
    enum mc_hook_kind kind;
    int64_t step, samples, tokens, skipped, successful,
        target_steps; /* target_steps: steps to go + step; -1 unknown */
    double loss, grad_norm, lr, step_ms, tokens_per_s, mfu;
    double time_left_s;   /* of this segment: recipe time_limit or SLURM_JOB_END_TIME; NaN: no limit
                             known */
    double save_s;        /* duration of the last checkpoint, NaN: none yet */
    int signal;           /* first stop signal received, 0 none */
    const char *anomaly;  /* ANOMALY: "nonfinite_loss", "nonfinite_grad", "spike" */
    double anomaly_ratio; /* spike: norm / median */
    double eval_loss;
    int64_t eval_tokens; /* EVAL */
    const char *ckpt_path;
    int64_t ckpt_step; /* CHECKPOINT */
    int segment;
    /* STEP_END, GRAD, ANOMALY of a step that logs norms; else NULL. Stem first, then the layers;
     * gradients: then the head. */
    const double *layer_grad, *layer_act;
    int nlayers;
};
/* Rides on the next step's reduction as a small fixed record, logged, kept in the checkpoint. */
struct mc_directive {
    int stop, checkpoint, eval;
    int anomaly_action; /* -1 none, else enum mc_anomaly_action */
    double lr_scale;    /* NaN: unchanged; else the factor from the next step on */
    char why[160];
};
struct mc_hook_ops {
    void *ctx; /* NULL ops pointer: no hooks */
    /* Merges the answers of all hook files that have this function into *d (stop/checkpoint/eval:
     * or; later files win else). MC_E_GIVEUP after three errors or overruns in a row of one hook.
     * Other errors are reported through `report` and are MC_OK. */
    mc_status (*call)(void *ctx, const struct mc_hook_event *ev, struct mc_directive *d,
                      struct mc_err *err);
    int (*wants)(void *ctx,
                 enum mc_hook_kind k); /* 0: no file has it; the caller skips building the event */
    mc_status (*save_state)(void *ctx, struct mc_json *j, const char *key,
                            struct mc_err *err); /* {"file":{...}} <= 64 KiB each */
    mc_status (*load_state)(void *ctx, const char *json, struct mc_err *err);
    void (*destroy)(void *ctx);
};
void mc_directive_clear(struct mc_directive *d);
