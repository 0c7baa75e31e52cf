/* plan.c - the memory of one rank's training, known before any of it is taken. Floor 6 (train).
 *
 * The plan and the run read the same table: mc_graphs_build() states the bytes of each arena, the
 * trainer takes exactly those, and mc_train_plan() only adds them up for `check` and `explain`.
 *
 * I1  Sum of the arenas taken == total of the plan, to the byte (asserted in setup.c).
 * I2  Evaluation shares parameters and scratch with training: the two never overlap in time.
 * I3  One graph runs every phase of data.phases: planned for the longest sequence, run at the
 * length of the step in hand. Evaluation is of model.seq throughout, so that its losses compare.
 * I4  Ranks of one layout differ by their place on tp (padding, parameters that one of them holds)
 * and by their shard of the optimizer's state; batch buffers are the fullest replica's on all.
 *
 * Arena bytes:
 *     params         weights; fp32 and fp64: also the master
 *     master         bf16: the fp32 masters
 *     grads, extra   gradients; one more accumulator for each further use of a parameter
 *     adam m, v      moments, element for element as the masters
 *     slots          what forward leaves for backward, one slot a microbatch in flight
 *     temp           the larger of training's and evaluation's scratch
 *     tables         rope; evaluation has its own
 *     batch          samples, tokens, targets of the largest global batch; rows of one microbatch
 *
 * Memory: the graphs are handles of the caller. Threads: one. */
#include "train_int.h"
#include <string.h>

static const char *const arena_names[MC_NARENAS] = {"params", "grads",      "extra_grads", "master",
                                                    "adam_m", "adam_v",     "slots",       "temp",
                                                    "tables", "eval_slots", "eval_tables", "batch"};

const char *mc_arena_name(enum mc_arena_id id)
{
    return arena_names[id];
}

/* Of batch alone, without phases. */
static int64_t ramp_largest(const struct mc_recipe *r)
{
    int64_t most = r->batch.global;
    if (r->batch.nramp > 0) {
        most = 0;
        for (int i = 0; i < r->batch.nramp; i++)
            if (r->batch.ramp[i].global > most)
                most = r->batch.ramp[i].global;
        /* A ramp whose first point is past 0 starts from batch.global. */
        if (r->batch.ramp[0].at.n > 0 && r->batch.global > most)
            most = r->batch.global;
    }
    return most;
}

void mc_batch_share(int64_t all, int parts, int part, int64_t *first, int64_t *n)
{
    int64_t each = all / parts, more = all % parts;
    *first = part * each + (part < more ? part : more);
    *n = each + (part < more);
}

/* Samples of the largest global batch over all phases, and tokens of the largest part of one that a
 * replica has: the first's. At least one microbatch of each length fits. */
static void largest(const struct mc_recipe *r, int replicas, int64_t *samples, int64_t *tokens)
{
    int64_t micro = r->batch.micro, seq = r->model.seq, before = ramp_largest(r), n = before;
    struct mc_quantity batch = {0};
    *samples = *tokens = 0;
    for (int i = 0; i <= r->data.nphases; i++) {
        int64_t first, own;
        if (i > 0) {
            const struct mc_phase_cfg *p = &r->data.phase[i - 1];
            seq = p->seq > 0 ? p->seq : seq;
            batch = p->batch.n > 0 ? p->batch : batch;
            n = batch.n == 0 ? before : batch.unit == MC_UNIT_TOKENS ? batch.n / seq : batch.n;
        }
        n = n > micro ? n : micro;
        mc_batch_share(n, replicas, 0, &first, &own);
        own = own > micro ? own : micro;
        *samples = n > *samples ? n : *samples;
        *tokens = own * seq > *tokens ? own * seq : *tokens;
    }
}

int64_t mc_batch_largest(const struct mc_recipe *r)
{
    int64_t samples, tokens;
    largest(r, 1, &samples, &tokens);
    return samples;
}

struct batch_bytes {
    size_t sample, ids, row, total;
};
static struct batch_bytes batch_bytes(const struct mc_recipe *r, int replicas)
{
    struct batch_bytes b;
    int64_t samples, tokens, seq = mc_recipe_longest(r);
    largest(r, replicas, &samples, &tokens);
    b.sample = mc_align_up((size_t)samples * sizeof(struct mc_sample), MC_ALIGN);
    b.ids = mc_align_up((size_t)tokens * sizeof(int32_t), MC_ALIGN); /* tokens; targets alike */
    b.row = mc_align_up((size_t)(r->batch.micro * seq) * sizeof(int64_t), MC_ALIGN);
    b.total = b.sample + 2 * b.ids + b.row;
    return b;
}

void mc_batch_carve(const struct mc_recipe *r, int replicas, struct mc_arena *a,
                    struct mc_batch_buffers *b)
{
    struct batch_bytes n = batch_bytes(r, replicas);
    b->sample = mc_arena_take(a, n.sample);
    b->tokens = mc_arena_take(a, n.ids);
    b->targets = mc_arena_take(a, n.ids);
    b->row = mc_arena_take(a, n.row);
}

/* Dense parameters: their replicas are dp x cp, and member m of that group has place m of it. */
static mc_status build_shard(const struct mc_recipe *r, const struct mc_layout *l, int rank,
                             struct mc_graphs *g, struct mc_err *err)
{
    int parts = 1, me = 0, coord[MC_NAXES];
    if (l) {
        int dp = l->size[MC_AXIS_DP], cp = l->size[MC_AXIS_CP];
        mc_layout_coord(l, rank, coord);
        parts = dp * cp;
        me = l->stride[MC_AXIS_DP] > l->stride[MC_AXIS_CP]
                 ? coord[MC_AXIS_DP] * cp + coord[MC_AXIS_CP]
                 : coord[MC_AXIS_CP] * dp + coord[MC_AXIS_DP];
    }
    return mc_shard_create(g->train, parts, me, r->parallel.shard_optimizer && parts > 1, &g->shard,
                           err);
}

static void set_optim(struct mc_graphs *g, const struct mc_shard *shard, enum mc_dtype precision)
{
    struct mc_optim_memory m = mc_optim_memory(shard, precision);
    g->bytes[MC_ARENA_MASTER] = m.master;
    g->bytes[MC_ARENA_ADAM_M] = m.m;
    g->bytes[MC_ARENA_ADAM_V] = m.v;
}

mc_status mc_graphs_build(const struct mc_recipe *r, const struct mc_layout *layout, int rank,
                          int threads, struct mc_graphs *out, struct mc_err *err)
{
    struct mc_graphs g = {0};
    struct mc_graph_cfg cfg = {
        .recipe = r,
        .mode = MC_GRAPH_TRAIN,
        .bound = {.b = r->batch.micro, .t = mc_recipe_longest(r), .pos0 = 0}, /* I3 */
        .nparts = 1,
        .part = {{.end_layer = (int)r->model.layers,
                  .has_stem = 1,
                  .has_head = 1,
                  .slots = 1}}, /* one stage: backward follows its forward at once */
        .threads = threads,
    };
    for (int a = 0; a < MC_NAXES; a++)
        cfg.axis_size[a] = layout ? layout->size[a] : 1;
    if (layout)
        mc_layout_coord(layout, rank, cfg.coord);
    mc_status st;
    MC_TRY_GOTO(st, mc_graph_build(&cfg, &g.train, err), fail);
    g.whole = g.train;
    MC_TRY_GOTO(st, build_shard(r, layout, rank, &g, err), fail);
    const struct mc_graph_memory *m = mc_graph_memory(g.train);
    g.bytes[MC_ARENA_PARAMS] = m->params;
    g.bytes[MC_ARENA_GRADS] = m->grads;
    g.bytes[MC_ARENA_EXTRA_GRADS] = m->extra_grads;
    g.bytes[MC_ARENA_SLOTS] = m->slots;
    g.bytes[MC_ARENA_TEMP] = m->temp;
    g.bytes[MC_ARENA_TABLES] = m->tables;
    set_optim(&g, g.shard, r->precision);
    if (r->data.nvalid > 0 || r->data.holdout > 0 || r->data.split[1] > 0) {
        cfg.mode = MC_GRAPH_EVAL;
        cfg.bound.t = r->model.seq;
        MC_TRY_GOTO(st, mc_graph_build(&cfg, &g.eval, err), fail);
        const struct mc_graph_memory *e = mc_graph_memory(g.eval);
        g.bytes[MC_ARENA_EVAL_SLOTS] = e->slots;
        g.bytes[MC_ARENA_EVAL_TABLES] = e->tables;
        if (e->temp > g.bytes[MC_ARENA_TEMP]) /* I2 */
            g.bytes[MC_ARENA_TEMP] = e->temp;
    }
    g.bytes[MC_ARENA_BATCH] = batch_bytes(r, layout ? layout->size[MC_AXIS_DP] : 1).total;
    *out = g;
    return MC_OK;
fail:
    mc_graphs_destroy(&g);
    return st;
}

void mc_graphs_destroy(struct mc_graphs *g)
{
    if (g->whole && g->whole != g->train)
        mc_graph_destroy(g->whole);
    if (g->eval)
        mc_graph_destroy(g->eval);
    if (g->train)
        mc_graph_destroy(g->train);
    mc_shard_destroy(g->shard);
    memset(g, 0, sizeof *g);
}

/* Of the whole model: a rank's graph has its part of the work alone. */
static mc_status whole_flops(const struct mc_recipe *r, struct mc_flops *out, struct mc_err *err)
{
    struct mc_flops f[MC_MAX_PHASES + 1];
    int64_t longest = r->model.seq;
    MC_TRY(mc_flops_phases(r, f, err));
    *out = f[0];
    for (int i = 0; i < r->data.nphases; i++)
        if (r->data.phase[i].seq > longest) {
            longest = r->data.phase[i].seq;
            *out = f[i + 1];
        }
    return MC_OK;
}

/* fullest: of the data-parallel group, as the member with the largest shard. */
static mc_status plan(const struct mc_recipe *r, const struct mc_layout *layout, int rank,
                      int fullest, int threads, struct mc_train_memory *m, struct mc_err *err)
{
    struct mc_graphs g;
    struct mc_flops flops = {0};
    MC_TRY(mc_graphs_build(r, layout, rank, threads, &g, err));
    mc_status st = mc_optim_check(r, g.whole, err);
    if (st == MC_OK)
        st = whole_flops(r, &flops, err);
    if (st != MC_OK) {
        mc_graphs_destroy(&g);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    if (fullest) {
        struct mc_shard largest = *g.shard;
        largest.state_count = mc_shard_largest(g.shard);
        set_optim(&g, &largest, r->precision);
    }
    struct mc_train_memory out = {
        .params = g.bytes[MC_ARENA_PARAMS],
        .grads = g.bytes[MC_ARENA_GRADS],
        .extra_grads = g.bytes[MC_ARENA_EXTRA_GRADS],
        .master = g.bytes[MC_ARENA_MASTER],
        .optim = g.bytes[MC_ARENA_ADAM_M] + g.bytes[MC_ARENA_ADAM_V],
        .activations = g.bytes[MC_ARENA_SLOTS] + g.bytes[MC_ARENA_EVAL_SLOTS],
        .temp = g.bytes[MC_ARENA_TEMP],
        .tables = g.bytes[MC_ARENA_TABLES] + g.bytes[MC_ARENA_EVAL_TABLES],
        .batch = g.bytes[MC_ARENA_BATCH],
        .kv = 0,
        .parameters = mc_graph_param_count(g.whole),
        .flops_causal = flops.causal,
        .flops_full = flops.full,
        .flops_formula = flops.formula,
    };
    for (int i = 0; i < MC_NARENAS; i++)
        out.total += g.bytes[i];
    mc_graphs_destroy(&g);
    *m = out;
    return MC_OK;
}

mc_status mc_train_plan(const struct mc_recipe *r, int threads, struct mc_train_memory *m,
                        struct mc_err *err)
{
    return plan(r, NULL, 0, 0, threads, m, err);
}

mc_status mc_train_plan_rank(const struct mc_recipe *r, const struct mc_layout *layout, int rank,
                             int threads, struct mc_train_memory *m, struct mc_err *err)
{
    return plan(r, layout, rank, 0, threads, m, err);
}

/* I4 */
mc_status mc_train_plan_fullest(const struct mc_recipe *r, const struct mc_layout *layout,
                                int threads, struct mc_train_memory *m, struct mc_err *err)
{
    struct mc_train_memory most = {0}, one;
    for (int i = 0; i < layout->size[MC_AXIS_TP]; i++) {
        int coord[MC_NAXES] = {0};
        coord[MC_AXIS_TP] = i;
        MC_TRY(plan(r, layout, mc_layout_rank(layout, coord), 1, threads, &one, err));
        if (one.total > most.total)
            most = one;
    }
    *m = most;
    return MC_OK;
}
