/* test_graph_rope.c - options of rope, norms and attention as the graph sees them: what equals
 * what, what shares a table, what is refused, what a mesh makes of it. links: mc_graph
 */
#include <stdlib.h>
#include "graph_modern.h"

enum { T = 13, V = 31 };
static const struct sizes small = {2, 18, 3, 1, 6, 14, V, T};

static struct mc_call *call_of(struct fn *f, const char *op, int which)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->call[i].op, op) == 0 && which-- == 0)
            return &f->call[i];
    fail_msg("no call %s", op);
    return NULL;
}
static void give(struct mc_call *c, const char *key, double v)
{
    struct mc_attr *a = &c->attr[c->nattrs++];
    memset(a, 0, sizeof *a);
    snprintf(a->key, sizeof a->key, "%s", key);
    a->kind = MC_V_NUM;
    a->num = v;
}
static void give_word(struct mc_call *c, const char *key, const char *word)
{
    give(c, key, 0);
    c->attr[c->nattrs - 1].kind = MC_V_STR;
    snprintf(c->attr[c->nattrs - 1].str, sizeof c->attr[0].str, "%s", word);
}

/* Rows of a head's first r outputs from pairs (i, i + r/2) to pairs (2i, 2i + 1). */
static void interleave_rows(struct rig *r, const char *name, int64_t d, int64_t turned)
{
    for (int i = 0; i < mc_graph_nparams(r->g); i++) {
        const struct mc_param *p = mc_graph_param(r->g, i);
        int64_t c = p->shape.dim[1], rows = p->shape.dim[0];
        if (!strstr(p->name, name))
            continue;
        double *w = (double *)r->b.params + p->offset,
               *old = mc_alloc((size_t)p->count * 8, "test");
        memcpy(old, w, (size_t)p->count * 8);
        for (int64_t o = 0; o < rows; o++) {
            int64_t at = o % d, from = at;
            if (at < turned)
                from = at % 2 ? at / 2 + turned / 2 : at / 2;
            memcpy(w + o * c, old + (o - at + from) * c, (size_t)c * 8);
        }
        mc_free(old);
    }
}

/* The layout is a matter of the weights' order alone: checkpoints of either kind mean the same. */
static void interleaved_is_half_of_other_rows(void **st)
{
    int32_t tokens[2 * T], targets[2 * T];
    struct mc_microbatch mb = {.b = 2, .t = T, .tokens = tokens, .targets = targets};
    int64_t n = formula_batch(4, 2 * T, V, tokens, targets);
    (void)st;
    for (int64_t turned = 4; turned <= 6; turned += 2) {
        struct model *half = llama(&small), *pairs = llama(&small);
        for (int k = 0; k < 2; k++) {
            give(call_of(&half->block, "rope", k), "rotary_dim", (double)turned);
            give_word(call_of(&pairs->block, "rope", k), "layout", "interleaved");
            give(call_of(&pairs->block, "rope", k), "rotary_dim", (double)turned);
        }
        struct rig a = rig_open(half, MC_GRAPH_TRAIN, 2, T, 1, 1, NULL);
        struct rig b = rig_open(pairs, MC_GRAPH_TRAIN, 2, T, 1, 1, NULL);
        formula_weights(&a);
        formula_weights(&b);
        double want = step_once(&a, &mb, n, 1), other = step_once(&b, &mb, n, 1);
        assert_true(fabs(want - other) > 1e-6); /* the same rows mean something else */
        interleave_rows(&b, "attn.q.weight", 6, turned);
        interleave_rows(&b, "attn.k.weight", 6, turned);
        assert_true(fabs(step_once(&b, &mb, n, 1) - want) <= 1e-12);
        rig_close(&a);
        rig_close(&b);
        mc_free(half);
        mc_free(pairs);
    }
}

static int tables_of(struct model *m, size_t *bytes_)
{
    struct mc_graph *g = NULL;
    struct mc_err err = {0};
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 2, T, 1, 1);
    check_ok(mc_graph_build(&cfg, &g, &err), &err);
    int n = g->ntables;
    *bytes_ = mc_graph_memory(g)->tables;
    mc_graph_destroy(g);
    return n;
}
static void ropes_share_a_table_where_frequencies_are_equal(void **st)
{
    static const struct {
        const char *key;
        double v;
        const char *word;
        int tables;
    } other[] = {{"layout", 0, "interleaved", 1}, {"theta", 500, NULL, 2},
                 {"rotary_dim", 4, NULL, 2},      {"rotary_dim", 6, NULL, 1},
                 {"theta", 10000, NULL, 1},       {"factor", 3, "linear", 2}};
    (void)st;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct model *m = llama(&small);
        struct mc_call *c = call_of(&m->block, "rope", 1);
        size_t b;
        if (other[i].v > 0)
            give(c, other[i].key, other[i].v);
        if (other[i].word)
            give_word(c, other[i].v > 0 ? "scaling" : other[i].key, other[i].word);
        assert_int_equal(tables_of(m, &b), other[i].tables);
        mc_free(m);
    }
    for (int i = 0; i < 3; i++) { /* the same kind of scaling with other numbers */
        struct model *m = llama(&small);
        size_t b;
        for (int k = 0; k < 2; k++) {
            struct mc_call *c = call_of(&m->block, "rope", k);
            give_word(c, "scaling", "yarn");
            give(c, "factor", i == 1 && k ? 3 : 2);
            give(c, "original_max", 64);
            give(c, "attention_factor", i == 2 && k ? 1.5 : 1.25);
        }
        assert_int_equal(tables_of(m, &b), i ? 2 : 1);
        mc_free(m);
    }
}

/* Starts of documents are planned memory, and only where a node reads them. */
static void documents_take_their_place_in_the_plan(void **st)
{
    struct model *m = llama(&small);
    size_t without, with;
    (void)st;
    tables_of(m, &without);
    m->r.model.eos = 3;
    give(call_of(&m->block, "attention", 0), "documents", 1);
    tables_of(m, &with);
    assert_true(with - without >= (2 * T + 1) * sizeof(int32_t) && with - without < 256);
    mc_free(m);
}

static void refused(struct fn *(*part)(struct model *), const char *op, const char *attrs,
                    const char *expect)
{
    struct model *m = llama(&small);
    struct mc_call *c = call_of(part(m), op, 0);
    struct mc_graph *g = NULL;
    struct mc_err err = {0};
    char key[24], word[24];
    int used;
    for (const char *p = attrs; sscanf(p, " %23[a-z_]=%23s%n", key, word, &used) == 2; p += used) {
        char *end;
        double v = strtod(word, &end);
        if (*end)
            give_word(c, key, word);
        else
            give(c, key, v);
    }
    seal(m);
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 2, T, 1, 1);
    assert_int_equal(mc_graph_build(&cfg, &g, &err), MC_E_RECIPE);
    if (!strstr(err.msg, expect) || !strstr(err.msg, op))
        fail_msg("%s: said \"%s\"", attrs, err.msg);
    mc_free(m);
}
static struct fn *in_block(struct model *m)
{
    return &m->block;
}
static struct fn *after_head(struct model *m)
{
    call(&m->head, "softcap", "", 1, 2, 0, 0);
    return &m->head;
}
static void options_that_cannot_be(void **st)
{
    (void)st;
    refused(in_block, "rope", "rotary_dim=3", "rotary_dim is 3; rope turns pairs");
    refused(in_block, "rope", "rotary_dim=8", "a whole number, 2 to 6");
    refused(in_block, "rope", "layout=thirds", "\"half\" or \"interleaved\"");
    refused(in_block, "rope", "scaling=ntk", "\"llama3\" or \"yarn\"");
    refused(in_block, "rope", "scaling=linear", "needs factor");
    refused(in_block, "rope", "scaling=yarn factor=2", "needs original_max");
    refused(in_block, "rope", "factor=2", "\"none\" does not use factor");
    refused(in_block, "rope", "scaling=llama3 factor=2 original_max=9 beta_fast=3",
            "does not use beta_fast");
    refused(in_block, "rope", "scaling=linear factor=0.5", "must be at least 1");
    refused(in_block, "rope", "scaling=llama3 factor=2 original_max=9 low_freq_factor=4",
            "0 < the first < the second");
    refused(in_block, "rope", "scaling=yarn factor=2 original_max=9 attention_factor=0",
            "must be above 0");
    refused(in_block, "attention", "causal=0 window=3", "not causal");
    refused(in_block, "attention", "causal=0 documents=1", "not causal");
    refused(in_block, "attention", "window=2.5", "a whole number");
    refused(in_block, "attention", "softcap=-1", "softcap is -1");
    refused(in_block, "attention", "documents=1", "model.eos");
    refused(in_block, "rmsnorm", "head_dim=7", "not whole heads of head_dim 7");
    refused(after_head, "softcap", "", "needs its cap");
    refused(after_head, "softcap", "cap=0", "needs its cap");
}

static void a_window_leaves_fewer_operations(void **st)
{
    double f[4];
    static const int64_t window[] = {0, 5, T, 100};
    (void)st;
    for (int i = 0; i < 4; i++) {
        struct model *m = llama(&small);
        struct mc_graph *g = NULL;
        struct mc_err err = {0};
        struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_EVAL, 2, T, 1, 1);
        if (window[i] > 0)
            give(call_of(&m->block, "attention", 0), "window", (double)window[i]);
        check_ok(mc_graph_build(&cfg, &g, &err), &err);
        f[i] = mc_graph_flops(g, 2, T);
        mc_graph_destroy(g);
        mc_free(m);
    }
    /* two layers, two products, 2 operations, 2 sequences, 18 columns: all pairs are t^2 / 2 */
    assert_true(fabs(f[0] - f[1] - 2 * 2 * 2 * 2 * 18 * (T * T / 2.0 - (5 * T - 12.5))) < 1e-6);
    assert_true(f[2] == f[0] && f[3] == f[0]);
}

/* Norms of 1 + w begin at w = 0; a norm of heads has one weight for all, whose gradient is a part
 * where heads lie over tp. */
static void norms_begin_at_one_and_sum_over_heads(void **st)
{
    struct model *m = modern(T);
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, 1, T, 1, 1, NULL);
    struct mc_graph *g = NULL;
    struct mc_err err = {0};
    int units = 0, heads = 0;
    (void)st;
    mc_graph_init_params(r.g, 5, MC_F64, r.b.params);
    for (int i = 0; i < mc_graph_nparams(r.g); i++) {
        const struct mc_param *p = mc_graph_param(r.g, i);
        int unit_offset = strstr(p->name, "q_norm") == NULL; /* the one norm without */
        if (p->cls != MC_PARAM_NORM)
            continue;
        units += unit_offset;
        for (int64_t k = 0; k < p->count; k++)
            assert_true(get(&r, r.b.params, p->offset + k) == (unit_offset ? 0 : 1));
    }
    assert_int_equal(units, 2 * 4 + 1);
    rig_close(&r);
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 1, T, 1, 1);
    cfg.axis_size[MC_AXIS_TP] = 2;
    struct mc_call *out = call_of(&m->head, "linear", 0);
    for (int i = 0; i < out->nattrs; i++)
        if (strcmp(out->attr[i].key, "out") == 0)
            out->attr[i].num = 32; /* what tp divides */
    m->r.model.vocab = 32;
    check_ok(mc_graph_build(&cfg, &g, &err), &err);
    for (int i = 0; i < mc_graph_nparams(g); i++) {
        const struct mc_param *p = mc_graph_param(g, i);
        if (strstr(p->name, "q_norm") || strstr(p->name, "k_norm")) {
            heads++;
            assert_int_equal(p->count, 6);
            assert_int_equal(p->grad_sum_axes, 1u << MC_AXIS_TP);
        }
    }
    assert_int_equal(heads, 4);
    mc_graph_destroy(g);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleaved_is_half_of_other_rows),
        cmocka_unit_test(ropes_share_a_table_where_frequencies_are_equal),
        cmocka_unit_test(documents_take_their_place_in_the_plan),
        cmocka_unit_test(options_that_cannot_be),
        cmocka_unit_test(a_window_leaves_fewer_operations),
        cmocka_unit_test(norms_begin_at_one_and_sum_over_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
