/* session.c - a checkpoint's weights, ready to be evaluated or to write text. Floor 6 (train).
 *
 * I1  Only model/ tensors are read; moments stay on the disk. A bf16 checkpoint without them
 *     (weights.c) gives its masters, which are rounded as an update rounds them.
 * I2  Weights lie once, in one arena that the evaluation and the inference graph share: the flat
 *     parameter layout is the same in every mode (graph.h I2).
 * I3  Graphs are made when first wanted: evaluating takes no KV cache, generating no batch.
 *
 * I4  On several ranks, weights are this rank's boxes of them, with a pipeline those of its stages;
 *     all make the same calls.
 *
 * Memory: struct mc_session owns all; the recipe is borrowed. Threads: one, beside the pool's. */
#include "session_int.h"
#include "../../ckpt/ckpt.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include "../data/tokenizer.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct mc_graph_cfg config(const struct mc_session *s, enum mc_graph_mode mode)
{
    struct mc_graph_cfg cfg = {
        .recipe = s->recipe,
        .mode = mode,
        .bound = {.b = mode == MC_GRAPH_INFER ? 1 : s->recipe->batch.micro,
                  .t = mode == MC_GRAPH_INFER ? mc_recipe_longest(s->recipe) : s->recipe->model.seq,
                  .pos0 = 0},
        .threads = mc_pool_threads(s->pool),
    };
    const struct mc_mesh *mesh = s->world.mesh;
    for (int a = 0; a < MC_NAXES; a++) {
        cfg.axis_size[a] = mesh ? mesh->layout.size[a] : 1;
        cfg.coord[a] = mesh ? mesh->coord[a] : 0;
    }
    mc_graph_cfg_parts(&cfg, s->line, cfg.coord[MC_AXIS_PP]);
    return cfg;
}

static mc_status take(struct mc_session *s, struct mc_arena *a, const char *name, size_t bytes,
                      struct mc_err *err)
{
    return s->device.ops->arena_init(&s->device, a, name, bytes, err);
}

mc_status mc_session_graph(struct mc_session *s, enum mc_graph_mode mode, struct mc_graph **out,
                           struct mc_err *err)
{
    if (!s->graph[mode]) { /* I3 */
        struct mc_graph_cfg cfg = config(s, mode);
        struct mc_arena *a = s->arena[mode];
        struct mc_graph *g;
        MC_TRY(mc_graph_build(&cfg, &g, err));
        s->graph[mode] = g;
        const struct mc_graph_memory *m = mc_graph_memory(g);
        MC_TRY(take(s, &a[MC_SESSION_SLOTS], "slots", m->slots, err));
        MC_TRY(take(s, &a[MC_SESSION_TEMP], "temp", m->temp, err));
        MC_TRY(take(s, &a[MC_SESSION_TABLES], "tables", m->tables, err));
        MC_TRY(take(s, &a[MC_SESSION_KV], "kv", m->kv, err));
        if (!s->params.base)
            MC_TRY(take(s, &s->params, "params", m->params, err));
        MC_ASSERT(s->params.bytes == m->params); /* I2 */
        struct mc_graph_buffers b = {.params = s->params.base,
                                     .slots = a[MC_SESSION_SLOTS].base,
                                     .temp = a[MC_SESSION_TEMP].base,
                                     .tables = a[MC_SESSION_TABLES].base,
                                     .kv = a[MC_SESSION_KV].base};
        MC_TRY(mc_graph_bind(g, s->kern, s->pool, &b, s->world.mesh, err));
    }
    *out = s->graph[mode];
    return MC_OK;
}

static mc_status load_weights(struct mc_session *s, const struct mc_graph *g, const char *path,
                              struct mc_err *err)
{
    int n = mc_graph_nparams(g);
    struct mc_ckpt *c;
    MC_TRY(mc_ckpt_open(path, &c, err));
    int rebuild = !mc_weights_stored(c) && mc_weights_rebuilt(g, s->kern->dtype);
    enum mc_dtype dtype = rebuild ? mc_optim_dtype(s->kern->dtype) : s->kern->dtype;
    size_t size = mc_dtype_size(dtype), bytes = (size_t)mc_graph_flat_count(g) * size;
    unsigned char *masters = rebuild ? mc_alloc(bytes, "masters") : NULL;
    struct mc_state_tensor *t = mc_alloc((size_t)n * sizeof *t, "list of tensors");
    mc_status st = t && (masters || !rebuild)
                       ? MC_OK
                       : mc_err_set(err, MC_E_NOMEM, "no memory for %d tensors", n);
    int here = 0; /* a padded vocabulary may leave a rank without a part */
    for (int i = 0; i < n && st == MC_OK; i++) {
        const struct mc_param *p = mc_graph_param(g, i);
        if (p->count == 0)
            continue;
        snprintf(t[here].name, sizeof t[here].name, "%s/%s", rebuild ? "master" : "model", p->name);
        t[here].dtype = dtype;
        t[here].shape = p->shape;
        t[here].box = p->box;
        t[here++].data = (rebuild ? masters : s->params.base) + (size_t)p->offset * size;
    }
    if (st == MC_OK)
        st = mc_ckpt_load(c, t, here, 0, err); /* I1 */
    if (st == MC_OK && rebuild)
        s->kern->from_f32(s->params.base, (const float *)(void *)masters, mc_graph_flat_count(g));
    mc_free(masters);
    mc_free(t);
    mc_ckpt_close(c);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

/* Messages of the longest text and of a microbatch of the evaluation. */
static mc_status make_pipe(struct mc_session *s, const struct mc_graph *g, struct mc_err *err)
{
    const struct mc_recipe *r = s->recipe;
    if (!s->line)
        return MC_OK;
    int64_t text = mc_graph_edge_count(g, 1, mc_recipe_longest(r));
    int64_t eval = mc_graph_edge_count(g, r->batch.micro, r->model.seq);
    size_t message = (size_t)(text > eval ? text : eval) * mc_dtype_size(s->kern->dtype);
    size_t bytes = mc_pipe_bytes(s->line, s->world.mesh->coord[MC_AXIS_PP], message);
    MC_TRY(take(s, &s->messages, "messages", bytes, err));
    const struct mc_pipe_cfg cfg = {.line = s->line,
                                    .mesh = s->world.mesh,
                                    .buffer = s->messages.base,
                                    .bytes = bytes,
                                    .dtype = s->kern->dtype,
                                    .vocab = r->model.vocab};
    return mc_pipe_create(&cfg, &s->pipe, err);
}

mc_status mc_session_open(const struct mc_session_cfg *cfg, struct mc_session **out,
                          struct mc_err *err)
{
    const struct mc_recipe *r = cfg->recipe;
    struct mc_session *s = mc_alloc(sizeof *s, "session");
    struct mc_graph *g;
    if (!s)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a session");
    mc_status st;
    s->recipe = r;
    s->line = cfg->line;
    s->world = mc_world_of(cfg->mesh, cfg->line);
    MC_TRY_GOTO(st, mc_pool_create(cfg->threads, &s->pool, err), fail);
    MC_TRY_GOTO(st, mc_device_open(r->device, 0, &s->device, err), fail);
    MC_TRY_GOTO(st, mc_kern_get(r->device, r->precision, &s->kern, err), fail);
    MC_TRY_GOTO(st, mc_kern_start(s->pool, err), fail);
    MC_TRY_GOTO(st, mc_session_graph(s, MC_GRAPH_INFER, &g, err), fail);
    MC_TRY_GOTO(st, make_pipe(s, g, err), fail);
    MC_TRY_GOTO(st, load_weights(s, g, cfg->ckpt_path, err), fail);
fail:
    st = mc_world_vote(&s->world, st, NULL, err);
    if (st == MC_OK) {
        *out = s;
        return MC_OK;
    }
    mc_session_close(s);
    return st;
}

void mc_session_close(struct mc_session *s)
{
    if (!s)
        return;
    for (int m = 0; m < 3; m++) {
        if (s->graph[m])
            mc_graph_destroy(s->graph[m]);
        for (int i = 0; i < MC_SESSION_NARENAS; i++)
            if (s->arena[m][i].base)
                s->device.ops->arena_fini(&s->device, &s->arena[m][i]);
    }
    mc_pipe_destroy(s->pipe);
    if (s->messages.base)
        s->device.ops->arena_fini(&s->device, &s->messages);
    if (s->params.base)
        s->device.ops->arena_fini(&s->device, &s->params);
    if (s->device.ops)
        mc_device_close(&s->device);
    if (s->pool)
        mc_pool_destroy(s->pool);
    mc_free(s);
}

/* Training sources are opened only where validation is held out of them. */
static mc_status open_valid(const struct mc_recipe *r, const char *base_dir, struct mc_data **d,
                            struct mc_err *err)
{
    struct mc_recipe *only = mc_alloc(sizeof *only, "recipe");
    if (!only)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a recipe");
    *only = *r;
    if (only->data.nvalid > 0) {
        only->data.ntrain = 0;
        only->data.required = 0;
    }
    mc_status st = MC_OK;
    if (only->data.nvalid == 0 && !(only->data.holdout > 0) && !(only->data.split[1] > 0))
        st = mc_err_set(err, MC_E_USAGE,
                        "the recipe has no validation data (data.valid, data.holdout or "
                        "data.split): name a text with --data FILE");
    else
        st = mc_data_open(only, base_dir, d, err);
    mc_free(only);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

/* Bytes of text behind every id, when the tokenizer is a file; else *out stays NULL. */
static mc_status bytes_of_ids(const struct mc_recipe *r, const char *base_dir, uint32_t **out,
                              struct mc_err *err)
{
    char path[MC_PATH];
    struct mc_tokenizer *t;
    if (!mc_tokenizer_is_file(r->data.tokenizer))
        return MC_OK;
    MC_TRY(mc_path_join(path, sizeof path, base_dir, r->data.tokenizer, err));
    MC_TRY(mc_tokenizer_open(path, &t, err));
    *out = mc_alloc((size_t)r->model.vocab * sizeof **out, "bytes of ids");
    for (int32_t id = 0; *out && id < r->model.vocab; id++) {
        size_t n;
        mc_tokenizer_piece(t, id, &n);
        (*out)[id] = mc_tokenizer_is_special(t, id) ? 0 : (uint32_t)n; /* EOS is no text */
    }
    mc_tokenizer_close(t);
    return *out ? MC_OK : mc_err_set(err, MC_E_NOMEM, "no memory for the vocabulary");
}

/* Bytes: a token is one, EOS too. */
static double bits_per_byte(const struct mc_data *d, const struct mc_eval_sum *sum)
{
    const double ln2 = 0.69314718055994530942;
    int64_t bytes = mc_data_bytes_like(d) ? sum->tokens : sum->bytes;
    return bytes > 0 ? sum->loss_sum / (double)bytes / ln2 : NAN;
}

struct eval_parts { /* what an evaluation needs beside the session */
    struct mc_data *data;
    struct mc_graph *graph;
    int64_t round;      /* samples at once */
    int32_t *ids;       /* tokens, then targets, of a round */
    double *loss;       /* of its microbatches */
    uint32_t *id_bytes; /* NULL: a token is a byte, or not known */
};

static mc_status eval_open(struct mc_session *s, const char *base_dir, struct eval_parts *p,
                           struct mc_err *err)
{
    int64_t micro = s->recipe->batch.micro;
    int rounds = s->line ? s->line->sched[s->line->nsched - 1]->microbatches : 1;
    size_t n = (size_t)(rounds * micro) * (size_t)s->recipe->model.seq;
    p->round = rounds * micro;
    MC_TRY(open_valid(s->recipe, base_dir, &p->data, err));
    MC_TRY(bytes_of_ids(s->recipe, base_dir, &p->id_bytes, err));
    MC_TRY(mc_session_graph(s, MC_GRAPH_EVAL, &p->graph, err));
    p->ids = mc_alloc(2 * n * sizeof *p->ids, "batch of the evaluation");
    p->loss = mc_alloc((size_t)rounds * sizeof *p->loss, "losses of the evaluation");
    return p->ids && p->loss
               ? MC_OK
               : mc_err_set(err, MC_E_NOMEM, "no memory for a batch of %zu tokens", n);
}

static mc_status eval_all(struct mc_session *s, const struct eval_parts *p, int64_t max_samples,
                          struct mc_eval_result *res, struct mc_err *err)
{
    const struct mc_recipe *r = s->recipe;
    int64_t all = mc_data_valid_samples(p->data);
    struct mc_eval_sum sum;
    struct mc_eval_job job = {.world = &s->world,
                              .graph = p->graph,
                              .pipe = s->pipe,
                              .loss = p->loss,
                              .data = p->data,
                              .samples = max_samples > 0 && max_samples < all ? max_samples : all,
                              .micro = r->batch.micro,
                              .seq = r->model.seq,
                              .round = p->round,
                              .tokens = p->ids,
                              .targets = p->ids + p->round * r->model.seq,
                              .id_bytes = p->id_bytes,
                              .poll = 1};
    MC_TRY(mc_eval_sum(&job, &sum, err));
    if (sum.stopped)
        return mc_err_set(err, MC_E_FAILED, "stopped by a signal after %lld of %lld samples",
                          (long long)sum.samples, (long long)job.samples);
    double loss = sum.tokens > 0 ? sum.loss_sum / (double)sum.tokens : 0;
    *res = (struct mc_eval_result){.loss = loss,
                                   .tokens = sum.tokens,
                                   .samples = sum.samples,
                                   .bits_per_byte = bits_per_byte(p->data, &sum)};
    return MC_OK;
}

mc_status mc_session_eval(struct mc_session *s, const char *base_dir, int64_t max_samples,
                          struct mc_eval_result *res, struct mc_err *err)
{
    struct eval_parts p = {0};
    mc_status st = eval_open(s, base_dir, &p, err);
    st = mc_world_vote(&s->world, st, NULL, err); /* nobody sums alone */
    if (st == MC_OK)
        st = eval_all(s, &p, max_samples, res, err);
    mc_free(p.ids);
    mc_free(p.loss);
    mc_free(p.id_bytes);
    mc_data_close(p.data);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}
