/* graph_help.h - models written as call lists by hand, and a rig that runs them, for
 * test_graph_*.c.
 *
 * gpt2 and llama here are small, with every size free. Weights come from a formula over (name,
 * index) that golden/model/reference.py writes down too, so that no weights need to be stored. */
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/base/pool.h"
#include "../../core/graph/graph_int.h"

#define MAYBE __attribute__((unused)) static

/* -- Call lists ------------------------------------------------------------------------------- */

struct fn {
    struct mc_call call[48];
    int n;
};
MAYBE struct mc_attr *attr(struct fn *f, const char *key)
{
    struct mc_call *c = &f->call[f->n - 1];
    struct mc_attr *a = &c->attr[c->nattrs++];
    snprintf(a->key, sizeof a->key, "%s", key);
    return a;
}
MAYBE void num(struct fn *f, const char *key, double v)
{
    struct mc_attr *a = attr(f, key);
    a->kind = MC_V_NUM;
    a->num = v;
}
MAYBE void str(struct fn *f, const char *key, const char *v)
{
    struct mc_attr *a = attr(f, key);
    a->kind = MC_V_STR;
    snprintf(a->str, sizeof a->str, "%s", v);
}
/* Adds a call; returns its value id. Attributes follow by num() and str(). */
MAYBE int call(struct fn *f, const char *op, const char *name, int nin, int a, int b, int c)
{
    struct mc_call *x = &f->call[f->n++];
    memset(x, 0, sizeof *x);
    snprintf(x->op, sizeof x->op, "%s", op);
    snprintf(x->name, sizeof x->name, "%s", name);
    x->nin = nin;
    x->in[0] = a;
    x->in[1] = b;
    x->in[2] = c;
    x->line = 100 + f->n;
    return f->n;
}
MAYBE int linear(struct fn *f, const char *name, int in, int64_t out, const char *shard, int bias)
{
    int v = call(f, "linear", name, 1, in, 0, 0);
    if (bias)
        num(f, "bias", 1);
    num(f, "out", (double)out);
    str(f, "shard", shard);
    return v;
}

struct model {
    struct mc_recipe r;
    struct fn stem, block, head;
    struct mc_func blocks[2];
    int layer_block[16];
};
struct sizes {
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, seq;
};
/* Points the recipe at the lists; call after any change to them. */
MAYBE void seal(struct model *m)
{
    struct mc_model_cfg *c = &m->r.model;
    c->stem = (struct mc_func){m->stem.n, m->stem.call};
    c->head = (struct mc_func){m->head.n, m->head.call};
    m->blocks[0] = (struct mc_func){m->block.n, m->block.call};
    c->block = m->blocks;
    c->nblocks = 1;
    c->layer_block = m->layer_block;
}
MAYBE struct model *model_new(const struct sizes *s)
{
    struct model *m = mc_alloc(sizeof *m, "test");
    struct mc_model_cfg *c = &m->r.model;
    c->layers = s->layers;
    c->hidden = s->hidden;
    c->heads = s->heads;
    c->kv_heads = s->kv_heads;
    c->head_dim = s->head_dim;
    c->ffn = s->ffn;
    c->vocab = s->vocab;
    c->seq = s->seq;
    c->theta = 10000;
    c->eps = 1e-5;
    c->init_std = 0.02;
    c->eos = -1;
    m->r.seed = 1234;
    m->r.precision = MC_F64;
    return m;
}
/* dropout > 0 puts one after the embedding and after each branch. */
MAYBE struct model *gpt2(const struct sizes *s, double dropout)
{
    struct model *m = model_new(s);
    struct fn *f = &m->stem;
    int64_t c = s->heads * s->head_dim;
    int x, h, q, k, v, o, g;
    x = call(f, "embedding", "embed", 1, 0, 0, 0);
    x = call(f, "positions", "pos", 1, x, 0, 0);
    if (dropout > 0) {
        x = call(f, "dropout", "drop", 1, x, 0, 0);
        num(f, "p", dropout);
    }
    f = &m->block;
    h = call(f, "layernorm", "attn_norm", 1, 0, 0, 0);
    q = linear(f, "attn.q", h, c, "column", 1);
    k = linear(f, "attn.k", h, s->kv_heads * s->head_dim, "column", 1);
    v = linear(f, "attn.v", h, s->kv_heads * s->head_dim, "column", 1);
    o = call(f, "attention", "", 3, q, k, v);
    o = linear(f, "attn.o", o, s->hidden, "row", 1);
    if (dropout > 0) {
        o = call(f, "dropout", "attn.drop", 1, o, 0, 0);
        num(f, "p", dropout);
    }
    x = call(f, "add", "", 2, 0, o, 0);
    g = call(f, "layernorm", "mlp_norm", 1, x, 0, 0);
    g = linear(f, "mlp.up", g, s->ffn, "column", 1);
    g = call(f, "gelu", "", 1, g, 0, 0);
    g = linear(f, "mlp.down", g, s->hidden, "row", 1);
    if (dropout > 0) {
        g = call(f, "dropout", "mlp.drop", 1, g, 0, 0);
        num(f, "p", dropout);
    }
    call(f, "add", "", 2, x, g, 0);
    f = &m->head;
    h = call(f, "layernorm", "final_norm", 1, 0, 0, 0);
    call(f, "linear", "head", 1, h, 0, 0);
    str(f, "shard", "column");
    str(f, "tied", "embed.weight");
    seal(m);
    return m;
}
MAYBE struct model *llama(const struct sizes *s)
{
    struct model *m = model_new(s);
    struct fn *f = &m->stem;
    int64_t c = s->heads * s->head_dim;
    int x, h, q, k, v, g, u;
    call(f, "embedding", "embed", 1, 0, 0, 0);
    f = &m->block;
    h = call(f, "rmsnorm", "attn_norm", 1, 0, 0, 0);
    q = linear(f, "attn.q", h, c, "column", 0);
    k = linear(f, "attn.k", h, s->kv_heads * s->head_dim, "column", 0);
    v = linear(f, "attn.v", h, s->kv_heads * s->head_dim, "column", 0);
    q = call(f, "rope", "", 1, q, 0, 0);
    k = call(f, "rope", "", 1, k, 0, 0);
    h = call(f, "attention", "", 3, q, k, v);
    h = linear(f, "attn.o", h, s->hidden, "row", 0);
    x = call(f, "add", "", 2, 0, h, 0);
    h = call(f, "rmsnorm", "mlp_norm", 1, x, 0, 0);
    g = linear(f, "mlp.gate", h, s->ffn, "column", 0);
    u = linear(f, "mlp.up", h, s->ffn, "column", 0);
    g = call(f, "swiglu", "", 2, g, u, 0);
    g = linear(f, "mlp.down", g, s->hidden, "row", 0);
    call(f, "add", "", 2, x, g, 0);
    f = &m->head;
    h = call(f, "rmsnorm", "final_norm", 1, 0, 0, 0);
    linear(f, "head", h, s->vocab, "column", 0);
    seal(m);
    return m;
}

/* -- Rig: a graph with memory, weights and a pool --------------------------------------------- */

struct rig {
    struct mc_graph *g;
    struct mc_pool *pool;
    const struct mc_kern_ops *k;
    struct mc_graph_buffers b;
    size_t elem;
};
MAYBE void *bytes(size_t n)
{
    return n ? mc_alloc(n, "test") : NULL;
}
MAYBE void check_ok(mc_status st, const struct mc_err *err)
{
    if (st != MC_OK)
        fail_msg("%s: %s", mc_status_name(st), err->msg);
}
MAYBE struct mc_graph_cfg whole_cfg(const struct model *m, enum mc_graph_mode mode, int64_t b,
                                    int64_t t, int threads, int slots)
{
    const struct mc_graph_part all = {0, (int)m->r.model.layers, 1, 1, slots, slots};
    return (struct mc_graph_cfg){.recipe = &m->r,
                                 .mode = mode,
                                 .bound = {.b = b, .t = t},
                                 .nparts = 1,
                                 .part = {all},
                                 .threads = threads};
}
/* All but bind: what lies in the buffers before is the caller's. */
MAYBE mc_status rig_take(const struct mc_graph_cfg *cfg, const struct mc_graph_opt *opt,
                         struct rig *r, struct mc_err *err)
{
    MC_TRY(mc_pool_create(cfg->threads, &r->pool, err));
    MC_TRY(mc_kern_get(MC_DEVICE_CPU, cfg->recipe->precision, &r->k, err));
    MC_TRY(mc_graph_build_opt(cfg, opt, &r->g, err));
    const struct mc_graph_memory *mem = mc_graph_memory(r->g);
    r->b = (struct mc_graph_buffers){.params = bytes(mem->params),
                                     .grads = bytes(mem->grads),
                                     .extra_grads = bytes(mem->extra_grads),
                                     .slots = bytes(mem->slots),
                                     .temp = bytes(mem->temp),
                                     .tables = bytes(mem->tables),
                                     .kv = bytes(mem->kv)};
    r->elem = mc_dtype_size(cfg->recipe->precision);
    return MC_OK;
}
MAYBE struct rig rig_make(const struct mc_graph_cfg *cfg, const struct mc_graph_opt *opt)
{
    struct rig r = {0};
    struct mc_err err = {0};
    check_ok(rig_take(cfg, opt, &r, &err), &err);
    check_ok(mc_kern_start(r.pool, &err), &err);
    check_ok(mc_graph_bind(r.g, r.k, r.pool, &r.b, NULL, &err), &err);
    return r;
}
MAYBE struct rig rig_open(const struct model *m, enum mc_graph_mode mode, int64_t b, int64_t t,
                          int threads, int slots, const struct mc_graph_opt *opt)
{
    struct mc_graph_cfg cfg = whole_cfg(m, mode, b, t, threads, slots);
    return rig_make(&cfg, opt);
}
MAYBE void rig_close(struct rig *r)
{
    mc_graph_destroy(r->g);
    mc_pool_destroy(r->pool);
    mc_free(r->b.params);
    mc_free(r->b.grads);
    mc_free(r->b.extra_grads);
    mc_free(r->b.slots);
    mc_free(r->b.temp);
    mc_free(r->b.tables);
    mc_free(r->b.kv);
}
MAYBE double get(const struct rig *r, const void *flat, int64_t i)
{
    return r->elem == 8 ? ((const double *)flat)[i] : (double)((const float *)flat)[i];
}
MAYBE void put(const struct rig *r, void *flat, int64_t i, double v)
{
    if (r->elem == 8)
        ((double *)flat)[i] = v;
    else
        ((float *)flat)[i] = (float)v;
}

/* -- Numbers from a formula (reference.py has the same) --------------------------------------- */

MAYBE uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
MAYBE uint64_t name_hash(const char *s) /* FNV-1a */
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
    return h;
}
MAYBE double unit(uint64_t h, uint64_t i) /* [-1, 1) in 2^-23 steps */
{
    return (double)(mix(h + i) >> 40) / 8388608.0 - 1.0;
}
MAYBE void formula_weights(struct rig *r)
{
    for (int i = 0; i < mc_graph_nparams(r->g); i++) {
        const struct mc_param *p = mc_graph_param(r->g, i);
        uint64_t h = name_hash(p->name);
        for (int64_t k = 0; k < p->count; k++) {
            double u = unit(h, (uint64_t)k), v = u;
            if (p->cls == MC_PARAM_MATRIX)
                v = u / sqrt((double)p->shape.dim[1]);
            else if (p->cls == MC_PARAM_EMBEDDING)
                v = 0.5 * u;
            else if (p->cls == MC_PARAM_POSITION)
                v = 0.25 * u;
            else if (p->cls == MC_PARAM_NORM)
                v = 1 + 0.25 * u;
            else
                v = 0.125 * u;
            put(r, r->b.params, p->offset + k, (double)(float)v);
        }
    }
}
/* Tokens and targets of step s; every seventh target or so is masked. */
MAYBE int64_t formula_batch(int64_t s, int64_t rows, int64_t vocab, int32_t *tokens,
                            int32_t *targets)
{
    int64_t n = 0;
    for (int64_t i = 0; i < rows; i++) {
        uint64_t a = mix((uint64_t)(s * 1000003 + 2 * i)),
                 b = mix((uint64_t)(s * 1000003 + 2 * i + 1));
        tokens[i] = (int32_t)(a % (uint64_t)vocab);
        targets[i] = b % 7 == 0 ? -1 : (int32_t)(b / 7 % (uint64_t)vocab);
        n += targets[i] >= 0;
    }
    return n;
}
/* On one rank nothing can fail in a pass. */
MAYBE void pass_ok(mc_status st)
{
    assert_int_equal(st, MC_OK);
}
MAYBE void finish_all(struct mc_graph *g)
{
    for (int b = 0; b < mc_graph_nbuckets(g); b++)
        pass_ok(mc_graph_finish_grads(g, b, NULL));
}
MAYBE const void *infer(struct mc_graph *g, const int32_t *tokens, int64_t t, int64_t pos0)
{
    const void *logits = NULL;
    pass_ok(mc_graph_infer(g, tokens, t, pos0, &logits, NULL));
    return logits;
}
/* Loss (sum / N); TRAIN: gradients too, finished. */
MAYBE double step_once(struct rig *r, const struct mc_microbatch *mb, int64_t n, int64_t step)
{
    double sum = 0, scale = n > 0 ? 1.0 / (double)n : 0;
    pass_ok(mc_graph_forward(r->g, 0, mb, step, &sum, NULL));
    if (r->b.grads) {
        mc_graph_zero_grads(r->g);
        pass_ok(mc_graph_backward(r->g, 0, mb, step, scale, NULL));
        finish_all(r->g);
    }
    return sum * scale;
}
