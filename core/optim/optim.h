/* optim.h - AdamW on flat buffers, the gradient norm, the rules by name, and the pure schedules of
 * lr and batch.
 *
 * Gradient norm: fp64 partial per (parameter, shard), combined in name order; every logical element
 * once. clip = min(1, c / (norm + 1e-6)).
 * AdamW: decoupled decay on the master, bias-corrected by the count of successful updates, eps
 * outside the root:   w <- w - lr * ( mhat / (sqrt(vhat) + eps) + decay * w )
 *
 * I1  Shard boundaries are whole parameters or rows of them, so that any file slice is one
 *     axis-aligned box. */
#pragma once
#include "../base/status.h"
#include "../graph/graph.h"
#include "../recipe/recipe.h"
#include "shard.h"

struct mc_counters {
    int64_t steps, samples, tokens;
}; /* attempted updates, data read */

/* ---- lr.c: formulas documented there ---- */
/* Rate for the update that brings the counters to c (c.steps >= 1): never 0 by accident in the
 * first step. Its units are one, its end known: mc_recipe_resolve_lr(). */
double mc_lr_at(const struct mc_lr_cfg *lr, const struct mc_counters *c);
/* Global batch of the step that starts at counters c. */
int64_t mc_batch_at(const struct mc_batch_cfg *b, const struct mc_counters *c);
/* What holds in the step that starts at counters c: data.phases over batch, model.seq and
 * data.train. */
struct mc_phase_now {
    int index; /* 0: before the first phase */
    int64_t seq, global;
    const double *weight; /* [data.ntrain]; NULL: data.train's */
};
struct mc_phase_now mc_phase_at(const struct mc_recipe *r, const struct mc_counters *c);
/* Has the target been reached? Steps to go from c under the ramp (-1: more than 2^40). */
int mc_target_reached(const struct mc_quantity *target, const struct mc_counters *c);
int64_t mc_steps_to_go(const struct mc_recipe *r, const struct mc_counters *c);
/* The samples that those steps read, the last batch whole; -1 as above. */
int64_t mc_samples_to_go(const struct mc_recipe *r, const struct mc_counters *c);

/* ---- adamw.c ---- */
/* Of masters, moments and gradients: fp64 beside fp64 weights, else fp32. */
enum mc_dtype mc_optim_dtype(enum mc_dtype precision);
struct mc_optim_memory {
    size_t m, v, master;
}; /* bytes; master 0 in fp32 and fp64: the weight is the master */
struct mc_optim_memory mc_optim_memory(const struct mc_shard *shard, enum mc_dtype dtype);
struct mc_optim;
struct mc_optim_buffers {
    void *params, *grads; /* flat, graph layout */
    void *m, *v;          /* as the shard says */
    void *master;         /* so, too. NULL: the weights are the masters */
};
/* Rules: first match wins; a glob that matches nothing is an error that names it. model: a graph of
 * all of the model, g itself unless g is a stage of it; rules, norms and hashes are of its
 * parameters, and what follows calls their number [parameters]. shard: borrowed; NULL: one rank. */
mc_status mc_optim_create(const struct mc_recipe *r, const struct mc_graph *g,
                          const struct mc_graph *model, const struct mc_kern_ops *k,
                          struct mc_pool *pool, const struct mc_optim_buffers *buf,
                          const struct mc_shard *shard, struct mc_optim **o, struct mc_err *err);
/* The rules alone, before anything is taken: MC_E_RECIPE as create would say it. */
mc_status mc_optim_check(const struct mc_recipe *r, const struct mc_graph *model,
                         struct mc_err *err);
void mc_optim_destroy(struct mc_optim *o);
/* The norm of one rank; of several: each one's parts [parameters], added over the ranks, combined.
 */
double mc_optim_grad_norm(struct mc_optim *o);
void mc_optim_norm_parts(const struct mc_optim *o, double *parts);
double mc_optim_norm_of(const struct mc_optim *o, const double *parts);
/* The same by place, from all ranks' parts: out[0] the stem's parameters, out[1 + l] layer l's,
 * out[layers + 1] the head's. */
void mc_optim_layer_norms(const struct mc_optim *o, const double *parts, double *out);
/* One successful update; t counts from 1. */
void mc_optim_update(struct mc_optim *o, int64_t t, double lr, double grad_scale);
/* min(1, limit / (norm + 1e-6)); limit 0: 1. */
double mc_optim_clip(double limit, double norm);
double mc_optim_decay_of(const struct mc_optim *o, int param); /* of the model; for tests */
double mc_optim_lr_scale_of(const struct mc_optim *o, int param);
/* The tensors of a run's state, whole: model/NAME of every parameter, then at bf16 master/NAME,
 * then adam_m/NAME and adam_v/NAME. Returns the count; fills up to cap, data NULL. */
int mc_optim_tensors(const struct mc_graph *g, enum mc_dtype precision, struct mc_state_tensor *t,
                     int cap);
/* In the same order: all that this rank holds, so what it loads; and what it owns of it, which the
 * owned of all ranks make whole, each element once: so what it saves. */
int mc_optim_state(const struct mc_optim *o, struct mc_state_tensor *t, int cap);
int mc_optim_owned(const struct mc_optim *o, struct mc_state_tensor *t, int cap);
/* At bf16: weights from the masters kept here, rounded to nearest even; else nothing. */
void mc_optim_round_weights(struct mc_optim *o);
/* At bf16: masters from a flat fp32 buffer in the graph's layout, and all weights from it. */
void mc_optim_set_masters(struct mc_optim *o, const void *flat);
/* weights_hash of the parameters, of the bits that the model computes with: of one rank; of
 * several: parts [parameters] added mod 2^64. */
uint64_t mc_optim_weights_hash(const struct mc_optim *o);
void mc_optim_hash_parts(const struct mc_optim *o, uint64_t *parts);
uint64_t mc_optim_hash_of(const struct mc_optim *o, const uint64_t *parts);
