/* plan.c - what a recipe will ask of its ranks. Floor 6 (plan).
 *
 * The model's graph is built twice, as data: whole, for what a parameter is, and as one rank of the
 * tensor-parallel group sees it, for what it holds. The stem goes with the first stage, the head
 * with the last, with a copy of a table that it shares with the stem if that is on another rank.
 *
 * State of a parameter, bytes:          unsharded   sharded over dp x cp
 *     fp64  weight, gradient, m, v         32          16 + 16/n
 *     fp32  the weight is the master       16           8 +  8/n
 *     bf16  weight 2, gradient 4,          18           6 + 12/n
 *           master 4, m 4, v 4
 * A checkpoint holds weight, master and moments: 24, 12, 14 (12 when weights are rebuilt).
 *
 * Floating-point operations are the graph's: matrix products, 2 a multiply-add, backward twice the
 * forward, recomputation not counted. Its count at sequence length t is A t + B t^2 below any
 * window, from which "full" (nothing hidden by the causal mask) follows.
 *
 * Saves (Young, 1974; Daly, 2006): a save every T with stall C and failures M apart loses C/T +
 * T/(2M); least at T = sqrt(2 C M).
 *
 * Memory: the graphs, freed before return. Threads: any. */
#include "plan.h"
#include "check.h"
#include "stages.h"
#include "../graph/graph.h"
#include <math.h>
#include <string.h>

static mc_status build(const struct mc_recipe *r, int tp, struct mc_graph **g, struct mc_err *err)
{
    struct mc_graph_cfg cfg = {
        .recipe = r,
        .mode = MC_GRAPH_TRAIN,
        .bound = {.b = r->batch.micro, .t = mc_recipe_longest(r), .pos0 = 0},
        .nparts = 1,
        .part = {{.end_layer = (int)r->model.layers, .has_stem = 1, .has_head = 1, .slots = 1}},
        .threads = 1};
    for (int a = 0; a < MC_NAXES; a++)
        cfg.axis_size[a] = 1;
    cfg.axis_size[MC_AXIS_TP] = tp;
    return mc_graph_build(&cfg, g, err);
}

static int stage_of(const struct mc_plan *p, int layer)
{
    int s = 0;
    if (layer < 0)
        return 0;
    while (s < p->nstages - 1 && layer >= p->stage[s].end_layer)
        s++;
    return s;
}

static void count_stages(struct mc_plan *p, const struct mc_graph *g)
{
    const struct mc_plan_stage *last = &p->stage[p->nstages - 1];
    for (int i = 0; i < mc_graph_nparams(g); i++) {
        const struct mc_param *q = mc_graph_param(g, i);
        struct mc_plan_stage *s = &p->stage[stage_of(p, q->layer)];
        s->params += mc_shape_count(&q->shape);
        p->rank[s->rank].params += q->count;
        if (q->nuses > 1 && q->layer < 0 && last->rank != s->rank)
            p->rank[last->rank].params += q->count; /* the head's copy */
    }
}

/* cut NULL: one stage. */
static mc_status lay_out(struct mc_plan *p, const struct mc_recipe *r, const int *cut,
                         const int *place, struct mc_err *err)
{
    const int pp = p->layout.size[MC_AXIS_PP], n = mc_stages_count(r), chunks = n / pp;
    if (n > MC_PLAN_STAGES)
        return mc_err_set(err, MC_E_RECIPE, "parallel.pp x chunks: %d stages, a plan holds %d", n,
                          MC_PLAN_STAGES);
    p->nstages = n;
    for (int k = 0; k < n; k++)
        p->stage[place && n > 1 ? place[k] : k % chunks * pp + k / chunks].rank = k / chunks;
    for (int s = 0; s < n; s++) {
        p->stage[s].first_layer = n > 1 ? cut[s] : 0;
        p->stage[s].end_layer = n > 1 ? cut[s + 1] : (int)r->model.layers;
    }
    return MC_OK;
}

/* Bytes of a parameter on a rank. */
struct state_bytes {
    int weight, grad, optim, checkpoint;
};
static struct state_bytes state_bytes(const struct mc_recipe *r)
{
    if (r->precision == MC_F64)
        return (struct state_bytes){8, 8, 16, 24};
    if (r->precision == MC_F32)
        return (struct state_bytes){4, 4, 8, 12};
    return (struct state_bytes){2, 4, 12, r->checkpoint.weights == MC_WEIGHTS_REBUILD ? 12 : 14};
}

static void count_bytes(struct mc_plan *p, const struct mc_recipe *r)
{
    const struct state_bytes b = state_bytes(r);
    int64_t n = (int64_t)p->layout.size[MC_AXIS_DP] * p->layout.size[MC_AXIS_CP];
    const int pp = p->layout.size[MC_AXIS_PP];
    for (int k = 0; k < pp; k++) {
        struct mc_plan_rank *t = &p->rank[k];
        t->weights = t->params * b.weight;
        t->grads = t->params * b.grad;
        t->optim = t->params * b.optim;
        if (r->parallel.shard_optimizer)
            t->optim = (t->optim + n - 1) / n;
    }
    p->even.params = (double)p->params / pp / p->layout.size[MC_AXIS_TP];
    p->even.state_unsharded = p->even.params * (b.weight + b.grad + b.optim);
    p->even.state_sharded = p->even.params * (b.weight + b.grad + (double)b.optim / (double)n);
    p->checkpoint.bytes = p->params * b.checkpoint;
    if (r->checkpoint.every.unit == MC_UNIT_NS && r->checkpoint.every.n > 0)
        p->checkpoint.bytes_per_day =
            (double)p->checkpoint.bytes * 86400e9 / (double)r->checkpoint.every.n;
    p->checkpoint.stall_s = r->checkpoint.stall_s;
    p->checkpoint.mtbf_s = r->cluster.mtbf_h * 3600;
    p->checkpoint.optimum_minutes = sqrt(2 * p->checkpoint.stall_s * p->checkpoint.mtbf_s) / 60;
}

static void count_flops(struct mc_plan *p, const struct mc_recipe *r, const struct mc_graph *g)
{
    int64_t t = r->model.seq;
    p->flops_causal = mc_graph_flops(g, 1, t) / (double)t;
    p->flops_full = mc_graph_flops_full(g, 1, t) / (double)t;
}

mc_status mc_plan_make(const struct mc_recipe *r, int per_node, const int *cut, const int *place,
                       struct mc_plan *plan, struct mc_err *err)
{
    static const struct mc_plan zero;
    struct mc_graph *whole, *part;
    int64_t global = r->batch.global, dp;
    *plan = zero;
    MC_TRY(mc_check_layout(r, 0, &plan->layout, err));
    plan->per_node = per_node > 0 ? per_node : plan->layout.world;
    MC_TRY(lay_out(plan, r, cut, place, err));
    for (int i = 0; i < r->batch.nramp; i++)
        global = r->batch.ramp[i].global > global ? r->batch.ramp[i].global : global;
    dp = plan->layout.size[MC_AXIS_DP];
    plan->microbatches = ((global + dp - 1) / dp + r->batch.micro - 1) / r->batch.micro;
    plan->tokens_per_step = global * r->model.seq;
    MC_TRY(build(r, 1, &whole, err));
    plan->params = mc_graph_param_count(whole);
    count_flops(plan, r, whole);
    mc_graph_destroy(whole);
    MC_TRY(build(r, plan->layout.size[MC_AXIS_TP], &part, err));
    count_stages(plan, part);
    mc_graph_destroy(part);
    count_bytes(plan, r);
    return MC_OK;
}

void mc_plan_interval(const struct mc_plan *p, double minutes, double *save_pct,
                      double *rollback_pct)
{
    *save_pct = 100 * p->checkpoint.stall_s / (minutes * 60);
    *rollback_pct = 100 * minutes * 60 / (2 * p->checkpoint.mtbf_s);
}
