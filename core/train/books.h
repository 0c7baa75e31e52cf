/* books.h - what a run knows about itself beside its tensors: counters, cursor, anomaly window,
 * pending directive. Written into every checkpoint as JSON ("books"), read back on resume.
 *
 * I1  read(write(b)) == b, bit for bit: a resumed run takes the path of the run never killed.
 * I2  Reading is bounded: sizes, ranges and types are checked; damage is MC_E_CORRUPT. */
#pragma once
#include "hooks.h"
#include "../base/json.h"
#include "../base/status.h"
#include "../data/data.h"
#include "../optim/optim.h"
#include "../par/layout.h"

enum { MC_SPIKES_MAX = 1024 };
/* The last `cap` gradient norms of successful updates, in order of time and in order of size. */
struct mc_spikes {
    int cap, n, head; /* head: index of the oldest in ring once n == cap */
    double ring[MC_SPIKES_MAX], sorted[MC_SPIKES_MAX];
};

struct mc_books {
    struct mc_counters at; /* attempted updates; samples and tokens read */
    int64_t skipped, successful, skips_in_row;
    double loss, grad_norm; /* of the last step; NaN before the first */
    double lr;              /* used in the last step; NaN before the first */
    double lr_scale;        /* hooks' factor, 1 from the start */
    uint64_t weights_hash;
    int segment;
    /* What is due after step at.steps and was not done when these books were written: its
     * evaluation; the call of on_checkpoint for the checkpoint that they lie in. */
    int eval_owed, call_owed;
    struct mc_directive pending; /* hooks' answers that take effect in the next step */
    struct mc_spikes spikes;
    struct mc_cursor cursor;
};
/* What surrounds the books of a live run. */
struct mc_books_run {
    const struct mc_recipe *recipe;
    const struct mc_data *data;
    const struct mc_hook_ops *hooks; /* may be NULL */
    const char *fingerprint, *software;
    const struct mc_layout *layout; /* NULL: one rank */
};
/* What a checkpoint said about the run that wrote it. */
struct mc_books_seen {
    char fingerprint[320], software[64];
    uint64_t data_hash, recipe_hash;
};
void mc_books_init(struct mc_books *b, const struct mc_recipe *r);
mc_status mc_books_write(const struct mc_books *b, const struct mc_books_run *run,
                         struct mc_json *j, struct mc_err *err);
/* run NULL: counters and results only (cursor and hooks' state are left alone), for commands that
 * look at a checkpoint. seen may be NULL. */
mc_status mc_books_read(const char *json, const struct mc_books_run *run, struct mc_books *b,
                        struct mc_books_seen *seen, struct mc_err *err);
/* What the run had read of each source of data.train: one call each; none for books of before. */
struct mc_books_source {
    const char *name;
    int64_t samples, tokens;
    double share, weight; /* of all tokens; in force, of 1 */
};
mc_status mc_books_sources(const char *json, void (*each)(void *, const struct mc_books_source *),
                           void *arg, struct mc_err *err);
/* The recipe kept in the books of a checkpoint; MC_E_CORRUPT when there is none. */
mc_status mc_books_recipe(const char *json, struct mc_recipe_box **box, struct mc_err *err);
