/* train.h - one rank's training: owner of everything, and a step loop that fits on a screen. */
#pragma once
#include "hooks.h"
#include "../par/mesh.h"
#include "../pipe/line.h"
#include "../run/page.h"
#include "../run/rundir.h"

enum mc_resume { MC_RESUME_FRESH, MC_RESUME_AUTO, MC_RESUME_STEP };
struct mc_train_cfg {
    const struct mc_recipe *recipe;
    const struct mc_rundir *rd;      /* segment set */
    struct mc_page *page;            /* may be NULL (tests) */
    const struct mc_hook_ops *hooks; /* may be NULL; rank 0's */
    const struct mc_mesh *mesh; /* NULL: one rank. Aborted and destroyed by the caller, after */
    const struct mc_line *line; /* the pipelines; NULL: parallel.pp is 1 */
    int rank, nranks, threads;
    enum mc_resume resume;
    int64_t resume_step;
    const char *software; /* "mascon 0.1.0": kept in the books */
    int64_t record_step;  /* the step of which each op's output is kept; 0: none (record.c) */
    int64_t trace_step;   /* the step of which each op's time is kept; another one; 0: none */
    int profile;          /* measure where steps' time goes, tell it at the end */
    int quiet;            /* no log lines (a person still gets errors) */
    int progress;         /* stderr is a terminal: progress line with ETA */
};
struct mc_train_result {
    int exit_code;
    int64_t step, segment_steps, committed_step;
    double loss;
    uint64_t weights_hash;
};
/* Returns MC_OK with result.exit_code 0 or 75/76; errors otherwise. The result is filled in either
 * case. */
mc_status mc_train(const struct mc_train_cfg *cfg, struct mc_train_result *res, struct mc_err *err);

/* What the run needs, before anything is taken: bytes by category; used by check, explain and the
 * memory Shows. */
struct mc_train_memory {
    size_t params, grads, extra_grads, master, optim, activations, temp, tables, batch, kv, pipe,
        total;
    int64_t parameters; /* logical elements of the model, each once */
    /* Operations of one token, forward and backward, at the longest sequence: flops.c. */
    double flops_causal, flops_full, flops_formula;
};
mc_status mc_train_plan(const struct mc_recipe *r, int threads, struct mc_train_memory *m,
                        struct mc_err *err);
/* Of the rank of a layout without cp and ep that needs most. line: its pipelines; NULL: none. */
mc_status mc_train_plan_fullest(const struct mc_recipe *r, const struct mc_layout *layout,
                                const struct mc_line *line, int threads, struct mc_train_memory *m,
                                struct mc_err *err);
/* Of rank `rank` of a layout; NULL: one rank. */
mc_status mc_train_plan_rank(const struct mc_recipe *r, const struct mc_layout *layout,
                             const struct mc_line *line, int rank, int threads,
                             struct mc_train_memory *m, struct mc_err *err);

/* Would this checkpoint load into this run? Names, dtypes and shapes of all tensors and the data's
 * cursor, by the code that loads them; no data of the checkpoint is read, nothing is started.
 * MC_E_RECIPE: no, and why. MC_E_CORRUPT: it is damaged. Relative data paths start at base_dir. */
mc_status mc_train_fits(const struct mc_recipe *r, const char *base_dir, int threads,
                        const char *ckpt_path, struct mc_err *err);

/* ---- eval.c / generate.c: on a checkpoint, no run needed ---- */
struct mc_eval_result {
    double loss;
    int64_t tokens, samples;
    double bits_per_byte; /* over the bytes that the targets stand for; NaN: not known */
};
struct mc_session; /* a model loaded for inference */
struct mc_session_cfg {
    const struct mc_recipe *recipe;
    const struct mc_mesh *mesh; /* NULL: one rank; else all its ranks make the same calls and get
                                   the same answers */
    const struct mc_line *line; /* of a mesh with pp: mc_line_forward(); else NULL */
    const char *ckpt_path;
    int threads;
};
mc_status mc_session_open(const struct mc_session_cfg *cfg, struct mc_session **s,
                          struct mc_err *err);
void mc_session_close(struct mc_session *s);
mc_status mc_session_eval(struct mc_session *s, const char *base_dir, int64_t max_samples,
                          struct mc_eval_result *res, struct mc_err *err);
struct mc_generate_cfg {
    const int32_t *prompt;
    int64_t nprompt; /* may be 0: starts from EOS */
    int32_t eos;     /* of the tokenizer; -1: none */
    int64_t max_tokens;
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: off */
    double top_p;       /* 1: off */
    uint64_t seed;
    int stop_at_eos;
    int (*emit)(void *arg, int32_t token);
    void *arg; /* streaming; nonzero return stops. Called on rank 0 */
};
mc_status mc_session_generate(struct mc_session *s, const struct mc_generate_cfg *cfg,
                              int64_t *ntokens, struct mc_err *err);
