/* plan.c - the memory of one rank's training, known before any of it is taken. Floor 6 (train).
 *
 * The plan and the run read the same table: mc_graphs_build() states the bytes of each arena, the
 * trainer takes exactly those, and mc_train_plan() only adds them up for `check` and `explain`.
 *
 * I1  Sum of the arenas taken == total of the plan, to the byte (asserted in setup.c).
 * I2  Evaluation shares parameters and scratch with training: the two never overlap in time.
 * I3  One graph runs every phase of data.phases: planned for the longest sequence, run at the
 *     length of the step in hand. Evaluation is of model.seq throughout, so that its losses
 *     compare.
 * I4  Ranks of one layout differ by their stages of the pipeline, by their place on tp (padding,
 *     parameters that one of them holds) and by their shard of the optimizer's state; batch buffers
 *     are the fullest replica's on all.
 * I5  A rank of a pipeline has some of the model's parameters. What is looked up by name, or summed
 *     over all of them, goes by a graph of the whole, which is never bound.
 *
 * Arena bytes:
 *     params         weights; fp32 and fp64: also the master
 *     master         bf16: the fp32 masters
 *     grads, extra   gradients; one more accumulator for each further use of a parameter
 *     adam m, v      moments, element for element as the masters
 *     slots          what forward leaves for backward, one slot a microbatch in flight; and what a
 *                    split backward leaves for its second pass, one place a microbatch between both
 *     temp           the larger of training's and evaluation's scratch
 *     tables         rope; evaluation has its own
 *     batch          samples, tokens, targets of the largest global batch; rows of one microbatch
 *     pipe           messages between stages, and slices of a tied table's gradient
 *
 * Memory: the graphs are handles of the caller. Threads: one. */
#include "train_int.h"
#include "../pipe/exec.h"
#include "../pipe/tied.h"
#include <string.h>

static const char *const arena_names[MC_NARENAS] = {
    "params", "grads",  "extra_grads", "master",      "adam_m", "adam_v", "slots",
    "temp",   "tables", "eval_slots",  "eval_tables", "batch",  "pipe"};

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

int64_t mc_batch_tokens(const struct mc_recipe *r, int replicas)
{
    int64_t samples, tokens;
    largest(r, replicas, &samples, &tokens);
    return tokens;
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
static mc_status build_shard(const struct mc_graphs_cfg *cfg, struct mc_graphs *g,
                             struct mc_err *err)
{
    const struct mc_layout *l = cfg->layout;
    int parts = 1, me = 0, coord[MC_NAXES];
    if (l) {
        int dp = l->size[MC_AXIS_DP], cp = l->size[MC_AXIS_CP];
        mc_layout_coord(l, cfg->rank, coord);
        parts = dp * cp;
        me = l->stride[MC_AXIS_DP] > l->stride[MC_AXIS_CP]
                 ? coord[MC_AXIS_DP] * cp + coord[MC_AXIS_CP]
                 : coord[MC_AXIS_CP] * dp + coord[MC_AXIS_DP];
    }
    return mc_shard_create(g->train, parts, me, cfg->recipe->parallel.shard_optimizer && parts > 1,
                           &g->shard, err);
}

static void set_optim(struct mc_graphs *g, const struct mc_shard *shard, enum mc_dtype precision)
{
    struct mc_optim_memory m = mc_optim_memory(shard, precision);
    g->bytes[MC_ARENA_MASTER] = m.master;
    g->bytes[MC_ARENA_ADAM_M] = m.m;
    g->bytes[MC_ARENA_ADAM_V] = m.v;
}

void mc_graph_cfg_parts(struct mc_graph_cfg *cfg, const struct mc_line *line, int rank)
{
    cfg->nparts = line ? line->chunks : 1;
    cfg->split = line ? mc_line_split(line) : 0;
    cfg->part[0] = (struct mc_graph_part){
        .end_layer = (int)cfg->recipe->model.layers, .has_stem = 1, .has_head = 1, .slots = 1};
    for (int k = 0; line && k < line->chunks; k++)
        mc_line_part(line, rank, k, &cfg->part[k]);
}

/* All parameters, by name (I5). */
static mc_status build_whole(const struct mc_recipe *r, struct mc_graph **whole, struct mc_err *err)
{
    struct mc_graph_cfg cfg = {.recipe = r,
                               .mode = MC_GRAPH_EVAL,
                               .bound = {.b = 1, .t = r->model.seq, .pos0 = 0},
                               .threads = 1};
    mc_graph_cfg_parts(&cfg, NULL, 0);
    for (int a = 0; a < MC_NAXES; a++)
        cfg.axis_size[a] = 1;
    return mc_graph_build(&cfg, whole, err);
}

static mc_status build_train(const struct mc_graphs_cfg *c, struct mc_graph_cfg *cfg,
                             struct mc_graphs *g, struct mc_err *err)
{
    MC_TRY(mc_graph_build(cfg, &g->train, err));
    const struct mc_graph_memory *m = mc_graph_memory(g->train);
    MC_TRY(build_shard(c, g, err));
    g->bytes[MC_ARENA_PARAMS] = m->params;
    g->bytes[MC_ARENA_GRADS] = m->grads;
    g->bytes[MC_ARENA_EXTRA_GRADS] = m->extra_grads;
    g->bytes[MC_ARENA_SLOTS] = m->slots;
    g->bytes[MC_ARENA_TEMP] = m->temp;
    g->bytes[MC_ARENA_TABLES] = m->tables;
    set_optim(g, g->shard, c->recipe->precision);
    if (!c->line) {
        g->whole = g->train;
        return MC_OK;
    }
    size_t message = (size_t)mc_graph_edge_count(g->train, cfg->bound.b, cfg->bound.t) *
                     mc_dtype_size(c->recipe->precision);
    g->bytes[MC_ARENA_PIPE] =
        mc_align_up(mc_pipe_bytes(c->line, cfg->coord[MC_AXIS_PP], message), MC_ALIGN) +
        mc_tied_bytes(g->train, mc_optim_dtype(c->recipe->precision));
    return c->memory ? MC_OK : build_whole(c->recipe, &g->whole, err);
}

static mc_status build_eval(const struct mc_graphs_cfg *c, struct mc_graph_cfg *cfg,
                            struct mc_graphs *g, struct mc_err *err)
{
    const struct mc_recipe *r = c->recipe;
    if (r->data.nvalid == 0 && !(r->data.holdout > 0) && !(r->data.split[1] > 0))
        return MC_OK;
    cfg->mode = MC_GRAPH_EVAL;
    cfg->bound.t = r->model.seq;
    cfg->split = 0;
    MC_TRY(mc_graph_build(cfg, &g->eval, err));
    const struct mc_graph_memory *e = mc_graph_memory(g->eval);
    g->bytes[MC_ARENA_EVAL_SLOTS] = e->slots;
    g->bytes[MC_ARENA_EVAL_TABLES] = e->tables;
    if (e->temp > g->bytes[MC_ARENA_TEMP]) /* I2 */
        g->bytes[MC_ARENA_TEMP] = e->temp;
    return MC_OK;
}

mc_status mc_graphs_build(const struct mc_graphs_cfg *c, struct mc_graphs *out, struct mc_err *err)
{
    const struct mc_recipe *r = c->recipe;
    const struct mc_layout *layout = c->layout;
    struct mc_graphs g = {0};
    struct mc_graph_cfg cfg = {
        .recipe = r,
        .mode = MC_GRAPH_TRAIN,
        .bound = {.b = r->batch.micro, .t = mc_recipe_longest(r), .pos0 = 0}, /* I3 */
        .threads = c->threads,
    };
    for (int a = 0; a < MC_NAXES; a++)
        cfg.axis_size[a] = layout ? layout->size[a] : 1;
    if (layout)
        mc_layout_coord(layout, c->rank, cfg.coord);
    mc_graph_cfg_parts(&cfg, c->line, cfg.coord[MC_AXIS_PP]);
    mc_status st = build_train(c, &cfg, &g, err);
    if (st == MC_OK)
        st = build_eval(c, &cfg, &g, err);
    if (st != MC_OK) {
        mc_graphs_destroy(&g);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    g.bytes[MC_ARENA_BATCH] = batch_bytes(r, layout ? layout->size[MC_AXIS_DP] : 1).total;
    *out = g;
    return MC_OK;
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

/* Of the model, whatever the rank: its size and work, and whether the optimizer's rules hold. */
static mc_status of_model(const struct mc_recipe *r, struct mc_train_memory *m, struct mc_err *err)
{
    struct mc_flops flops = {0};
    struct mc_graph *whole;
    MC_TRY(whole_flops(r, &flops, err));
    MC_TRY(build_whole(r, &whole, err));
    m->parameters = mc_graph_param_count(whole);
    m->flops_causal = flops.causal;
    m->flops_full = flops.full;
    m->flops_formula = flops.formula;
    mc_status st = mc_optim_check(r, whole, err);
    mc_graph_destroy(whole);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

/* fullest: of the data-parallel group, as the member with the largest shard. m: as of_model(). */
static mc_status of_rank(const struct mc_graphs_cfg *c, int fullest, struct mc_train_memory *m,
                         struct mc_err *err)
{
    struct mc_graphs g;
    MC_TRY(mc_graphs_build(c, &g, err));
    if (fullest) {
        struct mc_shard largest = *g.shard;
        largest.state_count = mc_shard_largest(g.shard);
        set_optim(&g, &largest, c->recipe->precision);
    }
    m->params = g.bytes[MC_ARENA_PARAMS];
    m->grads = g.bytes[MC_ARENA_GRADS];
    m->extra_grads = g.bytes[MC_ARENA_EXTRA_GRADS];
    m->master = g.bytes[MC_ARENA_MASTER];
    m->optim = g.bytes[MC_ARENA_ADAM_M] + g.bytes[MC_ARENA_ADAM_V];
    m->activations = g.bytes[MC_ARENA_SLOTS] + g.bytes[MC_ARENA_EVAL_SLOTS];
    m->temp = g.bytes[MC_ARENA_TEMP];
    m->tables = g.bytes[MC_ARENA_TABLES] + g.bytes[MC_ARENA_EVAL_TABLES];
    m->batch = g.bytes[MC_ARENA_BATCH];
    m->pipe = g.bytes[MC_ARENA_PIPE];
    m->total = 0;
    for (int i = 0; i < MC_NARENAS; i++)
        m->total += g.bytes[i];
    mc_graphs_destroy(&g);
    return MC_OK;
}

static mc_status plan(const struct mc_graphs_cfg *c, struct mc_train_memory *m, struct mc_err *err)
{
    struct mc_train_memory out = {0};
    MC_TRY(of_rank(c, 0, &out, err));
    MC_TRY(of_model(c->recipe, &out, err));
    *m = out;
    return MC_OK;
}

mc_status mc_train_plan(const struct mc_recipe *r, int threads, struct mc_train_memory *m,
                        struct mc_err *err)
{
    return plan(&(struct mc_graphs_cfg){.recipe = r, .threads = threads, .memory = 1}, m, err);
}

mc_status mc_train_plan_rank(const struct mc_recipe *r, const struct mc_layout *layout,
                             const struct mc_line *line, int rank, int threads,
                             struct mc_train_memory *m, struct mc_err *err)
{
    return plan(&(struct mc_graphs_cfg){.recipe = r,
                                        .layout = layout,
                                        .line = line,
                                        .rank = rank,
                                        .threads = threads,
                                        .memory = 1},
                m, err);
}

/* I4 */
mc_status mc_train_plan_fullest(const struct mc_recipe *r, const struct mc_layout *layout,
                                const struct mc_line *line, int threads, struct mc_train_memory *m,
                                struct mc_err *err)
{
    struct mc_train_memory most = {0}, one = {0};
    struct mc_graphs_cfg c = {
        .recipe = r, .layout = layout, .line = line, .threads = threads, .memory = 1};
    int tp = layout->size[MC_AXIS_TP];
    for (int i = 0; i < tp * layout->size[MC_AXIS_PP]; i++) {
        int coord[MC_NAXES] = {0};
        coord[MC_AXIS_TP] = i % tp;
        coord[MC_AXIS_PP] = i / tp;
        c.rank = mc_layout_rank(layout, coord);
        MC_TRY(of_rank(&c, 1, &one, err));
        if (one.total > most.total)
            most = one;
    }
    MC_TRY(of_model(r, &most, err));
    *m = most;
    return MC_OK;
}
