/* recipe.h - the frozen recipe: everything that a run means, as plain data.
 *
 * Made by mc_recipe_bind() from values (Lua or resolved.json) by the field rows of rows.c: one
 * row a key gives name, type, range, default, doc and what a resume may do with it. The same
 * rows bind, validate, explain, document and write it back.
 * I1  After freeze nothing in it changes; ranks compare mc_recipe_hash().
 * I2  bind(write(r)) == r: resolved.json reads back to the same bytes and hash. Owned by struct
 *     mc_recipe_box (handle life). */
#pragma once
#include <stdint.h>
#include "units.h"
#include "value.h"
#include "../base/json.h"
#include "../base/status.h"
#include "../tensor/dtype.h"
#include "../tensor/tensor.h"
#include "../device/device.h"

enum {
    MC_MAX_SOURCES = 64,
    MC_MAX_RAMP = 32,
    MC_MAX_PHASES = 16,
    MC_MAX_PIECES = 64,
    MC_MAX_HOOKS = 16,
    MC_MAX_ALLOW = 8,
    MC_MAX_RULES = 32,
    MC_MAX_WORDS = 32,
    MC_MAX_CALL_IN = 4,
    MC_MAX_ATTRS = 12,
    MC_PATH = 1024,
    MC_WORD = 96
};

/* ---- The model's traced call list
 * ------------------------------------------------------------------------------ One call = one op
 * applied to earlier values of the same function. Value ids: 0 is the function's argument (stem:
 * the token ids; block, head: the residual stream); call i (from 0) of a function produces value i
 * + 1. The last call's value is the result. Names are local ("attn.q"); the graph prefixes blocks
 * with "layers.N.". Parameterless ops have name "". */
struct mc_attr {
    char key[24];
    enum mc_value_kind kind; /* MC_V_BOOL, MC_V_NUM or MC_V_STR */
    double num;              /* also 0/1 for BOOL */
    char str[MC_WORD];
};
struct mc_call {
    char op[24]; /* a row of the op table */
    char name[64];
    int nin, in[MC_MAX_CALL_IN];
    int nattrs;
    struct mc_attr attr[MC_MAX_ATTRS]; /* sorted by key */
    int line;                          /* in the model's Lua file, for messages; not hashed */
};
struct mc_func {
    int ncalls;
    struct mc_call *call;
};

enum mc_rope_scaling { MC_ROPE_NONE, MC_ROPE_LINEAR, MC_ROPE_LLAMA3, MC_ROPE_YARN };
extern const char *const mc_rope_scaling_words[];
struct mc_model_cfg {
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, seq;
    double theta, eps, dropout, init_std;
    int tied, bias;
    int64_t window, eos; /* 0: no window; -1: the id that ends a document is not known */
    int documents;       /* attention stays within documents */
    enum mc_rope_scaling rope_scaling;
    double rope_factor;
    int64_t rope_original;
    double label_smoothing, z_loss;
    char preset[MC_WORD];      /* "llama", "gpt2" or "" */
    struct mc_func stem, head; /* tokens -> stream; stream -> logits */
    int nblocks;               /* distinct block traces */
    struct mc_func *block;
    int *layer_block; /* [layers] -> index into block */
};

struct mc_source_cfg {
    char path[MC_PATH];
    double weight;
};
/* From the first step that begins at or after `from` on; what a phase does not give goes on. */
struct mc_phase_cfg {
    struct mc_quantity from;  /* steps, samples or tokens */
    int64_t seq;              /* 0: as before */
    struct mc_quantity batch; /* of one step, in samples or tokens; n = 0: as before */
    int nweights;             /* 0: as before; else as many as data.train */
    double weight[MC_MAX_SOURCES];
};
enum mc_data_order { MC_ORDER_MASCON, MC_ORDER_MEGATRON };
struct mc_data_cfg {
    char tokenizer[MC_PATH]; /* "bytes" */
    int ntrain, nvalid;
    struct mc_source_cfg train[MC_MAX_SOURCES],
        valid[MC_MAX_SOURCES]; /* absolute or relative to the recipe; resolved: absolute */
    double holdout; /* last fraction of every training source held out for validation; 0: none */
    int required;   /* train = m.data.required: the user must bring the text */
    int64_t declared_tokens, declared_vocab; /* m.data.declared{}: plan-only; 0: not declared */
    int mask_eod;                            /* 1: no loss where the input token is EOS */
    enum mc_data_order order;
    int64_t samples; /* Megatron's order is built for so many; 0: not resolved yet (load) */
    int64_t block;   /* 0: the longest sequence */
    int nphases;
    struct mc_phase_cfg phase[MC_MAX_PHASES];
    double split[3]; /* Megatron's: train, validation, rest; all 0: train on everything */
};
/* The longest sequence of the run, in tokens; the blocks that sources are read in (data.block). */
struct mc_recipe;
int64_t mc_recipe_longest(const struct mc_recipe *r);
int64_t mc_recipe_block(const struct mc_recipe *r);
struct mc_ramp_point {
    struct mc_quantity at;
    int64_t global;
};
struct mc_batch_cfg {
    int64_t global, micro; /* global 0: `function` not tabulated yet */
    int function; /* batch.global was given as a function: the caller fills ramp + global */
    int nramp;
    struct mc_ramp_point ramp[MC_MAX_RAMP];
};

enum mc_lr_kind {
    MC_LR_CONSTANT,
    MC_LR_LINEAR,
    MC_LR_COSINE,
    MC_LR_WSD,
    MC_LR_INVERSE_SQRT,
    MC_LR_POWER,
    MC_LR_PIECES,
    MC_LR_TABLE
};
enum mc_lr_shape {
    MC_SHAPE_LINEAR,
    MC_SHAPE_COSINE,
    MC_SHAPE_SQRT,
    MC_SHAPE_EXPONENTIAL,
    MC_SHAPE_CONSTANT
};
struct mc_lr_piece {
    struct mc_quantity until;
    double from, to;
    enum mc_lr_shape shape;
};
struct mc_lr_cfg {
    enum mc_lr_kind kind;
    double peak, init, floor, power;
    struct mc_quantity warmup, end,
        decay; /* one unit each after check; end 0: the target of `steps` */
    enum mc_lr_shape tail;
    int npieces;
    struct mc_lr_piece piece[MC_MAX_PIECES];
    int64_t
        ntable; /* MC_LR_TABLE: a Lua function evaluated for steps 1 .. ntable before the start */
    double *table;
};

struct mc_optim_rule {
    char match[MC_WORD];
    double weight_decay, lr_scale;
};                                            /* NaN: not set */
struct mc_optim_cfg {                         /* kind of optimizer: adamw */
    double betas[2], eps, weight_decay, clip; /* clip 0: off */
    int nno_decay, nrules;
    char no_decay[MC_MAX_WORDS][MC_WORD]; /* the classes "norm" "bias" "embedding", else a glob over
                                             parameter names */
    struct mc_optim_rule rule[MC_MAX_RULES];
};

#define MC_RECOMPUTE_GATHER "all_gather" /* what tp joins, which no call names */
enum mc_recompute { MC_RECOMPUTE_NONE, MC_RECOMPUTE_BLOCK, MC_RECOMPUTE_OPS };
struct mc_parallel_cfg {
    int64_t tp, pp, cp, ep, dp; /* dp 0: "auto" */
    int64_t chunks;
    int sp, shard_optimizer, overlap_grads, overlap_params;
    char order[64], schedule[MC_PATH];
    char stages[MC_PATH];       /* "even", "auto" or "3,2,2,1": layers of each stage */
    double pad_f, pad_i, pad_w; /* seconds, at least, of one microbatch's forward, input and weight
                                   gradient through all chunks of a rank; 0: as long as it takes */
    enum mc_recompute recompute;
    int nrecompute_ops;
    char recompute_ops[MC_MAX_WORDS][MC_WORD]; /* MC_RECOMPUTE_OPS: op names of the model's calls,
                                                  and MC_RECOMPUTE_GATHER */
};
enum { MC_MAX_STAGES = MC_PATH / 2 };
/* The entries of parallel.stages where it is a list: how many, layers[] filled; 0: "even" or
 * "auto". */
int mc_recipe_stages(const struct mc_parallel_cfg *p, int layers[MC_MAX_STAGES]);
enum mc_weights_policy { MC_WEIGHTS_STORE, MC_WEIGHTS_REBUILD };
struct mc_checkpoint_cfg {
    struct mc_quantity every;
    int64_t keep;
    int async;
    enum mc_weights_policy weights;
    double stall_s;
};
struct mc_restart_cfg {
    int64_t max;
    int confirm;
}; /* mode auto | confirm; max -1: default of the command */
struct mc_eval_cfg {
    struct mc_quantity every;
    int64_t samples;
}; /* samples 0: the whole validation set; every 0: never */
enum mc_anomaly_action { MC_ANOMALY_ABORT, MC_ANOMALY_SKIP };
struct mc_anomaly_cfg {
    enum mc_anomaly_action nonfinite, spike; /* spike: used when spike_factor > 0 */
    double spike_factor;  /* fires when grad_norm > factor * median of the window; 0: off */
    int64_t spike_window; /* successful steps, 8 .. 1024 */
    int64_t max_skips;    /* this many skipped updates in a row stop the run (77) */
};
struct mc_hook_cfg {
    char path[MC_PATH];
    int nallow;
    char allow[MC_MAX_ALLOW][MC_WORD];
    int noptions;
    struct mc_attr option[MC_MAX_ATTRS]; /* other keys of the entry: the hook's `options` table */
};
struct mc_cluster_cfg {
    int64_t nodes, per_node;
    double mtbf_h;
    int64_t mem_bytes;
    double peak_bf16, peak_fp32, peak_fp64; /* TFLOP/s of one device */
};                                          /* 0: not declared */

struct mc_recipe {
    char name[MC_WORD];
    int64_t seed;
    struct mc_model_cfg model;
    struct mc_data_cfg data;
    struct mc_batch_cfg batch;
    struct mc_quantity steps; /* target: steps, tokens or samples */
    struct mc_quantity
        time_limit; /* of one segment; 0: none (SLURM_JOB_END_TIME is always heeded by hooks) */
    struct mc_lr_cfg lr;
    struct mc_optim_cfg optim;
    enum mc_dtype precision; /* MC_F32, MC_F64, MC_BF16 */
    enum mc_device_kind device;
    struct mc_parallel_cfg parallel;
    struct mc_checkpoint_cfg checkpoint;
    struct mc_restart_cfg restart;
    struct mc_eval_cfg eval;
    struct mc_anomaly_cfg anomaly;
    struct mc_cluster_cfg cluster;
    int64_t log_norms, log_mixture; /* steps between; 0: never */
    int64_t log_every; /* steps between log lines; metrics.jsonl always has every step */
    int nhooks;
    struct mc_hook_cfg hook[MC_MAX_HOOKS];
};

/* One problem of a recipe. hint may be "". */
struct mc_problem {
    char path[128];
    char file[256];
    int line;
    char message[512];
    char hint[160];
};
struct mc_problems {
    int n, cap, dropped;
    int said; /* all that were added, repetitions too: whether a step found any is told by this */
    struct mc_problem *p;
}; /* mc_problems_fini frees */
/* Control characters become '?'. The same problem said again is dropped silently; past 200 they are
 * only counted in `dropped`. */
void mc_problems_add(struct mc_problems *ps, const char *path, const char *file, int line,
                     const char *hint, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
void mc_problems_fini(struct mc_problems *ps);

struct mc_recipe_box; /* owns a recipe and what it points to */
/* Values (a map of the recipe's keys; `model` holds stem/block/head as traced lists, see bind.c) ->
 * recipe with defaults. All problems are reported, not only the first. MC_E_RECIPE when any. */
mc_status mc_recipe_bind(const struct mc_value *root, struct mc_problems *problems,
                         struct mc_recipe_box **box, struct mc_err *err);
/* The model's scalar keys alone, by the same rows and with the same defaults (vocab from
 * root.data.tokenizer when not given): what the tracer shows to the model's functions as `c`.
 * Problems of these keys only are added; MC_E_RECIPE when any, *out untouched. stem, block and head
 * in *out stay empty. When the tracer could not run, `root.model` reaches mc_recipe_bind() with
 * `untraced = true`: it then asks for no trace (a problem was reported already). */
mc_status mc_recipe_bind_model(const struct mc_value *root, struct mc_problems *problems,
                               struct mc_model_cfg *out, struct mc_err *err);
void mc_recipe_destroy(struct mc_recipe_box *box);
/* What must hold between keys of one recipe, whatever machine it meets. Adds to problems; checks
 * that stand on a key already found wrong are left out. mc_recipe_bind() runs it when it found
 * problems itself, so that all come in one run; else mc_check() does. */
void mc_recipe_cross(const struct mc_recipe_box *box, struct mc_problems *problems);
/* Brings the lr's quantities to one unit and its end to the target of `steps`. Only after
 * mc_recipe_cross() found nothing; done twice it changes nothing. */
void mc_recipe_resolve_lr(struct mc_recipe_box *box);
/* A function-valued lr, evaluated for steps 1 .. n: values are copied, the box owns the copy. */
mc_status mc_recipe_set_lr_table(struct mc_recipe_box *box, int64_t n, const double *values,
                                 struct mc_err *err);
struct mc_recipe *mc_recipe_of(struct mc_recipe_box *box);
/* Origin of a bound key: "default", "recipe.lua:12", "--set", ...; NULL for no such key. */
const char *mc_recipe_origin(const struct mc_recipe_box *box, const char *dotted);
/* For messages about a key found wrong later: its file and line; a group has those of its first
 * key, a default the recipe's file and 0. */
void mc_recipe_where(const struct mc_recipe_box *box, const char *dotted, char file[256],
                     int *line);
/* The caller changed a bound value (device default, dp auto, data paths): note it. */
void mc_recipe_set_origin(struct mc_recipe_box *box, const char *dotted, const char *origin);

void mc_recipe_write_json(const struct mc_recipe *r,
                          struct mc_json *j); /* canonical: sorted keys, every key */
mc_status mc_recipe_read_json(const char *path, struct mc_recipe_box **box,
                              struct mc_err *err);  /* resolved.json; MC_E_CORRUPT */
uint64_t mc_recipe_hash(const struct mc_recipe *r); /* XXH3 of the canonical text, lines of calls
                                                       left out; 0: no memory */

/* Resume rules. For each key that differs: free -> nothing; logged -> a change record; frozen -> a
 * problem unless allow[] names the key or a group that holds it. *n <= cap; where more than cap
 * differ, the last record says how many were left out. */
struct mc_recipe_change {
    char path[128];
    char was[256], now[256];
};
mc_status mc_recipe_compare(const struct mc_recipe *was, const struct mc_recipe *now,
                            const char *const *allow, int nallow, struct mc_recipe_change *changes,
                            int cap, int *n, struct mc_problems *problems, struct mc_err *err);

/* Text for people. explain: "model.layers = 12   recipe.lua:14" a line each; with json, instead,
 * one array of {"path","value","origin","unit","resume"} written as one whole value. doc: key NULL:
 * all rows, as Markdown; an unknown key is MC_E_USAGE with the nearest. */
mc_status mc_recipe_explain(const struct mc_recipe_box *box, struct mc_json *json_or_null,
                            void (*line)(void *, const char *), void *arg);
mc_status mc_recipe_doc(const char *key_or_null, void (*line)(void *, const char *), void *arg,
                        struct mc_err *err);
/* Nearest known key to an unknown one, or NULL when none is near (edit distance <= 1/3 of the
 * length). */
const char *mc_nearest(const char *word, const char *const *known, int n);
/* For --set: is this dotted key known, and its exclusive siblings (steps: steps|tokens|samples)? */
int mc_recipe_key_known(const char *dotted);
int mc_recipe_exclusive(const char *dotted, const char *siblings[4]);
