/* bind_model.c - the traced model: lists of calls as plain data.
 * Floor 1 (recipe). Includes: base.
 *
 *   stem, head   list of calls
 *   blocks       list of lists of calls
 *   layer_block  [layers] numbers, each an index into blocks
 *   call         { op, name, in = { value ids }, attrs = { bool, number or text }, line }
 *
 * Value ids: 0 is the function's argument, i + 1 the result of call i (recipe.h).
 * I1  A call reads earlier values only, so that no list can hold a cycle.
 * I2  Counts are bounded before memory is taken: 1024 calls a function, 256 blocks, 8192 calls.
 * I3  What an op wants (arity, attributes, shapes) is not known here: the graph says it by line.
 * Memory: call arrays are the recipe's, mc_model_free(). Threads: one owner. */
#include "recipe_int.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"

enum { MAX_CALLS = 1024, MAX_BLOCKS = 256, MAX_ALL = 8192 };

void mc_model_free(struct mc_model_cfg *m)
{
    mc_free(m->stem.call);
    mc_free(m->head.call);
    for (int i = 0; m->block && i < m->nblocks; i++)
        mc_free(m->block[i].call);
    mc_free(m->block);
    mc_free(m->layer_block);
}

static void bind_attr(struct mc_binder *b, const char *key, const struct mc_value *v,
                      struct mc_call *c)
{
    struct mc_attr *a = &c->attr[c->nattrs];
    size_t mark = mc_bind_enter(b, ".attrs.%.40s", key);
    int ok = 0, t;

    if (c->nattrs == MC_MAX_ATTRS) {
        mc_bind_bad(b, v, "", "more than %d attributes", MC_MAX_ATTRS);
    } else if (key[0] == '\0' || strlen(key) >= sizeof a->key || !mc_text_ok(key, 0)) {
        mc_bind_bad(b, v, "", "an attribute's name has 1 to %zu bytes", sizeof a->key - 1);
    } else {
        memset(a, 0, sizeof *a);
        memcpy(a->key, key, strlen(key)); /* keys of a map come in order: sorted */
        a->kind = v->kind;
        if (v->kind == MC_V_BOOL) {
            ok = mc_bind_bool(b, v, &t) == 0;
            a->num = t;
        } else if (v->kind == MC_V_NUM) {
            ok = mc_bind_num(b, v, -INFINITY, INFINITY, 0, &a->num) == 0;
        } else if (v->kind == MC_V_STR) {
            ok = mc_bind_str(b, v, a->str, sizeof a->str, 1) == 0;
        } else {
            mc_bind_bad(b, v, "", "an attribute is true, false, a number or a string, not %s",
                        mc_bind_kind(v));
        }
        c->nattrs += ok;
    }
    mc_bind_leave(b, mark);
}

/* Call number `at` of its function. */
static void bind_call(struct mc_binder *b, const struct mc_value *v, int at, struct mc_call *c)
{
    static const char *const known[] = {"attrs", "in", "line", "name", "op", NULL};
    const struct mc_value *op = mc_bind_get(v, "op"), *name = mc_bind_get(v, "name"),
                          *in = mc_bind_get(v, "in"), *attrs = mc_bind_get(v, "attrs"),
                          *line = mc_bind_get(v, "line");
    int64_t n;

    if (v->kind != MC_V_MAP || v->tag) {
        mc_bind_bad(b, v, "", "a call is a table, not %s", mc_bind_kind(v));
        return;
    }
    mc_bind_only(b, v, known);
    if (!op || !in) {
        mc_bind_bad(b, v, "", "a call has an op and a list `in`");
        return;
    }
    mc_bind_str(b, op, c->op, sizeof c->op, 0);
    if (name && !(name->kind == MC_V_STR && name->str[0] == '\0'))
        mc_bind_str(b, name, c->name, sizeof c->name, 0);
    if (line && mc_bind_int(b, line, 0, 1 << 30, &n) == 0)
        c->line = (int)n;
    if (mc_bind_is_list(b, in, "a list of value ids", MC_MAX_CALL_IN)) {
        c->nin = in->n;
        for (int i = 0; i < in->n; i++)
            if (mc_bind_int(b, in->item[i], 0, at, &n) == 0) /* I1 */
                c->in[i] = (int)n;
    }
    if (attrs && attrs->kind != MC_V_MAP && !(attrs->kind == MC_V_LIST && attrs->n == 0))
        mc_bind_bad(b, attrs, "", "attributes are a table, not %s", mc_bind_kind(attrs));
    else if (attrs && attrs->kind == MC_V_MAP)
        for (int i = 0; i < attrs->n; i++)
            if (attrs->item[i]->kind != MC_V_NIL)
                bind_attr(b, attrs->key[i], attrs->item[i], c);
}

static void bind_func(struct mc_binder *b, const struct mc_value *v, struct mc_func *f)
{
    if (!mc_bind_is_list(b, v, "a list of calls", MAX_CALLS))
        return;
    if (v->n == 0) {
        mc_bind_bad(b, v, "", "has no calls");
        return;
    }
    if (b->ncalls + v->n > MAX_ALL) { /* I2 */
        mc_bind_bad(b, v, "", "the model has more than %d calls", MAX_ALL);
        return;
    }
    b->ncalls += v->n;
    f->call = mc_alloc((size_t)v->n * sizeof *f->call, "model calls");
    if (!f->call) {
        b->nomem = MC_E_NOMEM;
        return;
    }
    f->ncalls = v->n;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1);
        bind_call(b, v->item[i], i, &f->call[i]);
        mc_bind_leave(b, mark);
    }
}

void mc_bind_stem(struct mc_binder *b, const struct mc_value *v)
{
    bind_func(b, v, &b->box->r.model.stem);
}

void mc_bind_head(struct mc_binder *b, const struct mc_value *v)
{
    bind_func(b, v, &b->box->r.model.head);
}

void mc_bind_blocks(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_model_cfg *m = &b->box->r.model;

    if (!mc_bind_is_list(b, v, "a list of traced blocks", MAX_BLOCKS)) /* I2 */
        return;
    if (v->n == 0) {
        mc_bind_bad(b, v, "", "has no block");
        return;
    }
    m->block = mc_alloc((size_t)v->n * sizeof *m->block, "model blocks");
    if (!m->block) {
        b->nomem = MC_E_NOMEM;
        return;
    }
    m->nblocks = v->n;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1);
        bind_func(b, v->item[i], &m->block[i]);
        mc_bind_leave(b, mark);
    }
}

void mc_bind_layer_block(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_model_cfg *m = &b->box->r.model;

    if (!mc_bind_is_list(b, v, "a list of block indices", 4096))
        return;
    if (v->n == 0) {
        mc_bind_bad(b, v, "", "is empty");
        return;
    }
    m->layer_block = mc_alloc((size_t)v->n * sizeof *m->layer_block, "layer blocks");
    if (!m->layer_block) {
        b->nomem = MC_E_NOMEM;
        return;
    }
    b->nlayer_block = v->n;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1);
        int64_t n;
        if (mc_bind_int(b, v->item[i], 0, MAX_BLOCKS - 1, &n) == 0)
            m->layer_block[i] = (int)n;
        mc_bind_leave(b, mark);
    }
}

void mc_bind_model_end(struct mc_binder *b)
{
    struct mc_model_cfg *m = &b->box->r.model;
    const struct mc_value *model = mc_bind_get(b->root, "model");
    static const char *const traced[] = {"model.stem", "model.blocks", "model.layer_block",
                                         "model.head"};
    int absent = 0, bad = 0;

    if (b->untraced || !model || !mc_bind_is_table(model))
        return;
    for (int i = 0; i < 4; i++) {
        const struct mc_origin *o = &b->box->origin[mc_rows_find(traced[i])];
        absent += !o->text;
        bad += o->bad;
    }
    b->row = -1;
    snprintf(b->path, sizeof b->path, "model");
    if (absent > 0) {
        mc_bind_bad(b, model, "m.decoder { ... }, or a preset such as m.models.llama { ... }",
                    "has no traced stem, blocks and head: it must come from a model constructor");
        return;
    }
    if (bad > 0 || b->box->origin[mc_rows_find("model.layers")].bad)
        return;
    if (b->nlayer_block != m->layers)
        mc_bind_bad(b, model, "", "layer_block has %d entries for %lld layers", b->nlayer_block,
                    (long long)m->layers);
    for (int i = 0; i < b->nlayer_block; i++)
        if (m->layer_block[i] >= m->nblocks) {
            mc_bind_bad(b, model, "", "layer_block[%d] is %d, but there are %d blocks", i + 1,
                        m->layer_block[i], m->nblocks);
            break;
        }
}
