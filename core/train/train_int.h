/* train_int.h - the inside of core/train: one trainer, its step, its books, its files.
 *
 * struct mc_trainer is the root of the tree of owners: everything a rank holds hangs from it and
 * is freed by mc_trainer_destroy() in reverse order. One thread runs it; the pool's threads see
 * only what a kernel hands them. */
#pragma once
#include "books.h"
#include "flops.h"
#include "transfer.h"
#include "train.h"
#include "world.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/log.h"
#include "../base/pool.h"
#include "../data/data.h"
#include "../device/device.h"
#include "../graph/graph.h"
#include "../kern/kern.h"
#include "../optim/optim.h"
#include "../pipe/exec.h"

struct mc_ckpt;

/* ---- plan.c: one truth about memory, for the plan and for the run ---- */
enum mc_arena_id {
    MC_ARENA_PARAMS,
    MC_ARENA_GRADS,
    MC_ARENA_EXTRA_GRADS,
    MC_ARENA_MASTER,
    MC_ARENA_ADAM_M,
    MC_ARENA_ADAM_V,
    MC_ARENA_SLOTS,
    MC_ARENA_TEMP, /* shared by training and evaluation, which never overlap */
    MC_ARENA_TABLES,
    MC_ARENA_EVAL_SLOTS,
    MC_ARENA_EVAL_TABLES,
    MC_ARENA_BATCH,
    MC_ARENA_PIPE, /* what passes between stages */
    MC_NARENAS
};
struct mc_batch_buffers {      /* this replica's part of a batch, and the keys of one microbatch */
    struct mc_sample *sample;  /* [global]: all draws, of which a part is fetched */
    int32_t *tokens, *targets; /* [part * seq] of the phase that has most */
    int64_t *row;              /* [micro * longest seq] logical rows, key of dropout */
};
struct mc_graphs {
    struct mc_graph *train, *eval; /* eval NULL: no validation set */
    struct mc_graph *whole;        /* of all parameters of the model: train itself, unless it has
                                      some of them */
    struct mc_shard *shard;
    size_t bytes[MC_NARENAS];
};
const char *mc_arena_name(enum mc_arena_id id);
struct mc_graphs_cfg {
    const struct mc_recipe *recipe;
    const struct mc_layout *layout; /* NULL: one rank */
    const struct mc_line *line;     /* NULL: no pipelines */
    int rank, threads;
    int memory; /* 1: the bytes are all that is wanted: `whole` is not made */
};
mc_status mc_graphs_build(const struct mc_graphs_cfg *cfg, struct mc_graphs *g, struct mc_err *err);

void mc_graphs_destroy(struct mc_graphs *g);
/* Sets parts and split: those of a pipeline's rank; line NULL: the whole model. */
void mc_graph_cfg_parts(struct mc_graph_cfg *cfg, const struct mc_line *line, int rank);
int64_t mc_batch_largest(const struct mc_recipe *r); /* samples of the largest global batch */
/* Tokens of the largest part of a batch that a replica has; at least one microbatch of each length.
 */
int64_t mc_batch_tokens(const struct mc_recipe *r, int replicas);
void mc_batch_carve(const struct mc_recipe *r, int replicas, struct mc_arena *a,
                    struct mc_batch_buffers *b);
/* Part `part` of `all` samples cut into runs: the first all % parts ones have one more. */
void mc_batch_share(int64_t all, int parts, int part, int64_t *first, int64_t *n);

/* ---- anomaly.c ---- */
struct mc_verdict {
    const char *kind; /* NULL: sound; "nonfinite_loss", "nonfinite_grad", "spike" */
    double ratio;     /* spike: norm / median; else NaN */
};
void mc_spikes_init(struct mc_spikes *s, int cap);
void mc_spikes_push(struct mc_spikes *s, double norm);
double mc_spikes_median(const struct mc_spikes *s); /* NaN until the window is full */
struct mc_verdict mc_anomaly_judge(const struct mc_anomaly_cfg *cfg, const struct mc_spikes *s,
                                   double loss, double norm);

/* ---- norms.c ---- */
struct mc_norms {
    int64_t every; /* 0: never; all else is empty then */
    int nlayers;
    int due;                  /* in the step in hand */
    double *sum, *act, *grad; /* [layers + 1], [layers + 1], [layers + 2]; stem first */
    double *of;               /* [microbatches][layers + 1], of a pipeline's step; else NULL */
    int fd, warned;
    int64_t size;
    char path[1100], *line;
    size_t cap;
};
/* path NULL: the numbers alone, for another rank to write. microbatches: most of a step in a
 * pipeline; 0: there is none. */
mc_status mc_norms_open(struct mc_norms *n, const struct mc_recipe *r, int microbatches,
                        const char *path, struct mc_err *err);
void mc_norms_close(struct mc_norms *n);
/* Before the first microbatch; after the last, elements of the stream of the whole step. */
void mc_norms_begin(struct mc_norms *n, struct mc_graph *g, int64_t step, int64_t valid);
/* In a pipeline: before each op of microbatch mb, and after the last op of `count` of them. */
void mc_norms_microbatch(struct mc_norms *n, struct mc_graph *g, int64_t mb);
void mc_norms_microbatches(struct mc_norms *n, int64_t count);
void mc_norms_judge(struct mc_norms *n, const struct mc_optim *o, const double *parts,
                    int64_t elements);
void mc_norms_write(struct mc_norms *n, int64_t step, int segment);
void mc_norms_short(const struct mc_norms *n, char *dst, size_t cap); /* for the log line */

/* ---- metrics.c ---- */
struct mc_metric { /* one line of metrics.jsonl */
    int64_t step, tokens, samples, skipped;
    double loss, grad_norm, lr, step_ms, tokens_per_s, mfu;
    int segment;
    int ranks;                        /* above 1: exposed_ms is in the line */
    double exposed_ms;                /* that the control rank waited for transfers of gradients and
                                         parameters */
    int piped;                        /* 1: bubble_ms and bubble are in the line */
    double bubble_ms, bubble;         /* mean idle time of ranks in the pipeline, and its share */
    const struct mc_mixture *mixture; /* NULL: not in this line */
    /* for the log line only */
    int64_t target_steps, global_batch;
    int was_skipped;
    const struct mc_norms *norms; /* may be NULL */
};
/* A line without its mixture, with the largest mixture, and what may wait for the disk. */
enum { MC_METRIC_LINE = 640, MC_METRIC_LONG = 16 * 1024, MC_METRIC_BACKLOG = 64 * 1024 };
struct mc_metrics {
    int fd;
    int broken;   /* an fsync failed: no later one may claim that the lines are on disk */
    int warned;   /* the disk refused a line; said once */
    int64_t size; /* bytes of whole lines in the file */
    char path[1100];
    size_t nback;
    char back[MC_METRIC_BACKLOG]; /* lines that the disk has not taken yet */
    /* since the last log line */
    int64_t n, nfinite, nskipped, nnan;
    double sum_loss, sum_ms;
    /* progress line */
    int shown;
    int64_t shown_ns;
    double ms_smooth;
};
int mc_metrics_format(const struct mc_metric *m, char *dst, size_t cap); /* bytes; -1: no room */
mc_status mc_metrics_open(struct mc_metrics *ms, const char *path, struct mc_err *err);
void mc_metrics_close(struct mc_metrics *ms);
mc_status mc_metrics_add(struct mc_metrics *ms, const struct mc_metric *m, struct mc_err *err);
mc_status mc_metrics_sync(struct mc_metrics *ms, struct mc_err *err);
void mc_metrics_log_format(const struct mc_metrics *ms, const struct mc_metric *m,
                           const char *stamp, char *dst, size_t cap);
void mc_metrics_eval_format(int64_t step, double loss, char *dst, size_t cap);
void mc_metrics_log(struct mc_metrics *ms, const struct mc_metric *m);
void mc_metrics_say(struct mc_metrics *ms, const char *line); /* clears the progress line first */
void mc_metrics_progress(struct mc_metrics *ms, const struct mc_metric *m);
void mc_metrics_progress_clear(struct mc_metrics *ms);

/* ---- the trainer ---- */
enum mc_stop { MC_STOP_NONE, MC_STOP_SIGNAL, MC_STOP_TIME, MC_STOP_HOOK };
struct mc_step { /* the step in hand */
    struct mc_counters before, after;
    int64_t first, own;    /* of them, those of this replica */
    int64_t global, seq;   /* samples of this step, and their length */
    int phase;             /* 0: before the first of data.phases */
    int64_t valid;         /* N: tokens with a label in the global batch */
    double loss_sum;       /* fp64 sum of token losses */
    double loss, norm, lr; /* loss and norm before the update */
    struct mc_verdict verdict;
    int update;             /* 0: skipped */
    int due_eval, due_save; /* after this step, by the control rank's clock and the counters */
    int64_t begin_ns;
    uint64_t allocs;         /* mc_mem_stats().calls at the begin */
    struct mc_directive now; /* answers given after the last step, in force in this one */
    struct mc_cursor cursor; /* as before the draw: an abandoned step gives its samples back */
    double lr_scale;         /* as before the step */
};
enum { MC_TIMELINE_STEPS = 16 };
struct mc_timeline {
    int fd; /* -1: not written, or done */
    char path[1100], line[64 * 1024];
};
enum { MC_STEP_HEAD = 16 }; /* numbers of the step's exchanges beside one a parameter */
struct mc_piped {           /* of a step in a pipeline */
    double *loss;           /* [microbatches], the most */
    int last;               /* the op in hand is its part's last addition to gradients */
    int64_t busy_ns, all_ns;
    int64_t ops, waited_ns;   /* of the segment, for the profile */
    double bubble_ms, bubble; /* over all ranks: what they stood idle, and its share */
};
struct mc_trainer {
    const struct mc_train_cfg *cfg;
    const struct mc_recipe *recipe;
    const struct mc_hook_ops *hooks; /* NULL: none */
    struct mc_world world;
    struct mc_transfer *transfer;
    struct mc_pipe *pipe; /* NULL: no pipeline, as the next */
    struct mc_tied *tied;
    struct mc_piped piped;
    struct mc_timeline timeline;
    double *sum;        /* [MC_STEP_HEAD + parameters of the model + mc_piped_numbers()] of the
                           step's exchanges */
    uint64_t *hash_sum; /* [parameters of the model] */
    int asks;           /* hooks that the control rank asks while a step is judged: bits of kinds */
    int torn;           /* a transfer failed: the system may still write into our buffers */
    struct mc_pool *pool;
    struct mc_device device;
    const struct mc_kern_ops *kern;
    struct mc_data *data;
    struct mc_graphs graphs;
    struct mc_arena arena[MC_NARENAS];
    struct mc_batch_buffers batch;
    struct mc_optim *optim;
    struct mc_state_tensor *state; /* model, adam_m, adam_v: what this rank loads */
    struct mc_state_tensor *owned; /* what it saves */
    int nstate, nowned;
    struct mc_metrics metrics;
    struct mc_norms norms;
    struct mc_flops flops[MC_MAX_PHASES + 1]; /* of a token, by phase */
    struct mc_books books;
    struct mc_step step;
    char fingerprint[320];
    char ckpt_dir[1100];
    int64_t target_steps;               /* steps of the whole run, -1 unknown */
    int64_t segment_steps;              /* done in this segment */
    int64_t committed_step;             /* newest checkpoint committed or loaded; -1: none */
    int64_t saved_step;                 /* newest checkpoint committed by this segment; -1 */
    int64_t start_ns, save_ns, eval_ns; /* segment start, last save, last eval */
    double save_s;                      /* duration of the last save, NaN */
    volatile int cancel_save;
    enum mc_stop stop;
    char stop_why[200];
    int paid; /* a debt of the checkpoint loaded was paid: the one on the disk still has it */
    int64_t held_ns; /* when the run folder was last found to be ours */
    int lost;        /* it is not any more: no event is written */
    int started;     /* weights are in place */
    int sound;       /* after an error: the state is that of the last completed step */
    size_t planned, baseline_rss;
    uint64_t step_allocs;         /* allocations made inside steps: 0, or the plan is broken */
    struct mc_profile *profile;   /* NULL: not asked for */
    struct mc_recorder *recorder; /* NULL: not asked for */
};

/* ---- profile.c ---- */
enum mc_part { /* of a step, in order; NPARTS: none, only the time is asked */
               MC_PART_BEGIN,
               MC_PART_MICROBATCHES,
               MC_PART_JUDGE,
               MC_PART_OPTIMIZER,
               MC_PART_METRICS,
               MC_PART_EVAL,
               MC_PART_SAVE,
               MC_NPARTS
};
mc_status mc_profile_begin(struct mc_trainer *t, struct mc_err *err);
/* The time since `since` was spent on `part`; returns now. 0 when there is no profile. */
int64_t mc_profile_part(struct mc_trainer *t, enum mc_part part, int64_t since);
/* Tells, and writes segments/NNN/profile.json. */
mc_status mc_profile_end(struct mc_trainer *t, struct mc_err *err);
void mc_profile_destroy(struct mc_trainer *t);

/* ---- record.c: each does nothing in a step that is not asked for ---- */
struct mc_microbatch;
mc_status mc_record_create(struct mc_trainer *t, struct mc_err *err);
void mc_record_begin(struct mc_trainer *t); /* the batch is there, on all ranks */
/* What follows is of this microbatch. */
void mc_record_microbatch(struct mc_trainer *t, int64_t first, const struct mc_microbatch *mb);
void mc_record_data(struct mc_trainer *t); /* tokens and targets of all microbatches */
void mc_record_pipe(struct mc_trainer *t, const struct mc_pipe_note *n);
void mc_record_grads(struct mc_trainer *t); /* they are complete, the update is to come */
void mc_record_end(struct mc_trainer *t);
void mc_record_destroy(struct mc_trainer *t);

/* ---- fits.c ---- */
/* Has the checkpoint all tensors of the run, whole, and no others? model: a graph of all of it. */
mc_status mc_tensors_fit(const struct mc_recipe *r, const struct mc_graph *model,
                         const struct mc_ckpt *c, struct mc_err *err);

/* ---- setup.c: from nothing to the state before a step, and back ---- */
mc_status mc_trainer_create(const struct mc_train_cfg *cfg, struct mc_trainer **out,
                            struct mc_err *err);
void mc_trainer_destroy(struct mc_trainer *t);
mc_status mc_trainer_fresh(struct mc_trainer *t); /* weights, books and cursor of a new run */
/* Fresh weights, or those of the checkpoint that cfg->resume names. */
mc_status mc_trainer_start(struct mc_trainer *t, struct mc_err *err);

/* ---- weights.c: a checkpoint at bf16 may hold the masters alone ---- */
/* Are there weights in it? */
int mc_weights_stored(const struct mc_ckpt *c);
/* How many tensors, the first of mc_optim_tensors(), can be made from the masters: 0 or all
 * weights. */
int mc_weights_rebuilt(const struct mc_graph *model, enum mc_dtype precision);
/* The same of what one rank holds or owns of them: mc_optim_state(), mc_optim_owned(). */
int mc_weights_lead(enum mc_dtype precision, const struct mc_state_tensor *t, int n);

/* ---- trainer.c ---- */
/* Over all ranks; collective. */
mc_status mc_trainer_hash(struct mc_trainer *t, uint64_t *hash, struct mc_err *err);
/* Is the run folder still ours? Looked up once a second, or at once. */
mc_status mc_trainer_held(struct mc_trainer *t, int at_once, struct mc_err *err);

/* ---- step.c ---- */
/* late: what this rank has to say of the step before. Sets t->stop when it is time; the step is
 * then abandoned. */
mc_status mc_step_begin(struct mc_trainer *t, mc_status late, struct mc_err *err);
mc_status mc_step_microbatch(struct mc_trainer *t, int64_t first, struct mc_err *err);
/* Of b samples of this replica from `first` on. last: this part's last addition to gradients. */
void mc_step_tokens(struct mc_trainer *t, int64_t first, int64_t b, int last,
                    struct mc_microbatch *mb);
void mc_step_beat(struct mc_trainer *t);
void mc_step_abandon(struct mc_trainer *t);
void mc_stop_set(struct mc_trainer *t, enum mc_stop why, int signal); /* the first reason stays */
mc_status mc_step_judge(struct mc_trainer *t, struct mc_err *err);
mc_status mc_step_update(struct mc_trainer *t, struct mc_err *err);
mc_status mc_step_end(struct mc_trainer *t, struct mc_err *err);

/* ---- piped.c: with a pipeline ---- */
mc_status mc_piped_create(struct mc_trainer *t, struct mc_err *err);
/* All microbatches of the step. */
mc_status mc_piped_step(struct mc_trainer *t, struct mc_err *err);
/* Numbers of the exchange that tells the bubble: this rank's part, and what the sum over all ranks
 * says. */
int mc_piped_numbers(const struct mc_trainer *t);
void mc_piped_tell(const struct mc_trainer *t, double *v);
void mc_piped_judge(struct mc_trainer *t, const double *v);
void mc_piped_pads(const struct mc_recipe *r, double pad[MC_SCHED_NOPS]);

/* ---- timeline.c ---- */
void mc_timeline_open(struct mc_trainer *t);
void mc_timeline_step(struct mc_trainer *t); /* of the step that has just been entered */
void mc_timeline_close(struct mc_trainer *t);

/* ---- save.c ---- */
int mc_save_due(const struct mc_trainer *t);
/* Saves the state after the last completed step. due: a run that does not stop here saves it, too.
 * must = 0: a failure is told and training goes
 * on. */
mc_status mc_save(struct mc_trainer *t, int must, int due, struct mc_err *err);
/* on_checkpoint of the checkpoint of the books' step, which is on the disk. */
mc_status mc_save_call(struct mc_trainer *t, struct mc_err *err);

/* ---- eval.c ---- */
int mc_eval_due(const struct mc_trainer *t);
mc_status mc_eval_run(struct mc_trainer *t, struct mc_err *err);
struct mc_eval_job { /* of all ranks; each evaluates its replica's part */
    const struct mc_world *world;
    const struct mc_graph_watch *watch; /* may be NULL */
    struct mc_graph *graph;             /* EVAL, bound */
    struct mc_pipe *pipe;               /* NULL: the graph is of the whole model */
    double pad_s[MC_SCHED_NOPS];        /* of the pipe's ops */
    double *loss;                       /* [round / micro] of a round's microbatches */
    const struct mc_data *data;
    int64_t samples, micro, seq;
    int64_t round;             /* samples at once: micro; with a pipe a multiple of it */
    int32_t *tokens, *targets; /* [round * seq] */
    const uint32_t *id_bytes;  /* [vocab] bytes of text that each id stands for; may be NULL */
    int poll;                  /* 1: a stop signal ends it */
    void (*each)(void *arg, int64_t samples);
    void *arg; /* after each microbatch, with a pipe each op; may be NULL */
};
struct mc_eval_sum {
    double loss_sum;
    int64_t tokens, samples, bytes; /* bytes: of the targets, by id_bytes */
    int stopped; /* 0, or the stop signal that ended it */
};
mc_status mc_eval_sum(const struct mc_eval_job *job, struct mc_eval_sum *sum, struct mc_err *err);

/* ---- hooks.c ---- */
void mc_hook_event_fill(const struct mc_trainer *t, enum mc_hook_kind kind,
                        struct mc_hook_event *ev);
/* Asks and merges into d. MC_E_GIVEUP: a hook failed too often. */
mc_status mc_hooks_ask(struct mc_trainer *t, const struct mc_hook_event *ev, struct mc_directive *d,
                       struct mc_err *err);
int mc_hooks_want(const struct mc_trainer *t, enum mc_hook_kind kind);
/* Answers that are not about the step being judged wait for the next one. */
void mc_directive_keep(struct mc_directive *pending, const struct mc_directive *d);
int mc_directive_any(const struct mc_directive *d);
double mc_time_left(const struct mc_trainer *t); /* seconds; NaN: no limit known */
void mc_time_check(void); /* warns of a SLURM_JOB_END_TIME that says nothing */
/* 1 when `every` was crossed between two states of the counters; time: since last_ns. */
int mc_crossed(const struct mc_quantity *every, const struct mc_counters *was,
               const struct mc_counters *now, int64_t last_ns);

/* ---- events: a member list in a fixed buffer, one line in events.jsonl, of the control rank
 * alone. Failing to write one is told, never fatal. ---- */
struct mc_event {
    struct mc_json j;
    char buf[16384];
};
void mc_event_begin(struct mc_event *e);
void mc_event_end(struct mc_trainer *t, struct mc_event *e, const char *kind);
