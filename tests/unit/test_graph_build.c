/* test_graph_build.c - call lists to parameters: names, order, fusion, ties, counts; and every way
 * in which a model can be wrong, with the words that say so. links: mc_graph
 */
#include "graph_help.h"

static const struct sizes small = {2, 24, 3, 1, 8, 40, 67, 9};

static struct mc_graph *build(struct model *m, enum mc_graph_mode mode)
{
    struct mc_graph_cfg cfg = whole_cfg(m, mode, mode == MC_GRAPH_INFER ? 1 : 2, 9, 2, 1);
    struct mc_graph *g;
    struct mc_err err = {0};
    check_ok(mc_graph_build(&cfg, &g, &err), &err);
    return g;
}
static const struct mc_param *param(const struct mc_graph *g, const char *name)
{
    for (int i = 0; i < mc_graph_nparams(g); i++)
        if (strcmp(mc_graph_param(g, i)->name, name) == 0)
            return mc_graph_param(g, i);
    fail_msg("no parameter %s", name);
    return NULL;
}

/* -- What is built ---------------------------------------------------------------------------- */

static void parameters_are_named_and_ordered_by_layer(void **st)
{
    static const char *const names[] = {"embed.weight",
                                        "layers.0.attn_norm.weight",
                                        "layers.0.attn.q.weight",
                                        "layers.0.attn.k.weight",
                                        "layers.0.attn.v.weight",
                                        "layers.0.attn.o.weight",
                                        "layers.0.mlp_norm.weight",
                                        "layers.0.mlp.gate.weight",
                                        "layers.0.mlp.up.weight",
                                        "layers.0.mlp.down.weight",
                                        "layers.1.attn_norm.weight"};
    struct model *m = llama(&small);
    struct mc_graph *g = build(m, MC_GRAPH_TRAIN);
    int64_t end = 0;
    (void)st;
    assert_int_equal(mc_graph_nparams(g), 1 + 2 * 9 + 2);
    for (int i = 0; i < 11; i++)
        assert_string_equal(mc_graph_param(g, i)->name, names[i]);
    for (int i = 0; i < mc_graph_nparams(g); i++) {
        const struct mc_param *p = mc_graph_param(g, i);
        assert_true(p->offset >= end);
        assert_int_equal(p->nuses, 1);
        end = p->offset + p->count;
    }
    assert_true(mc_graph_flat_count(g) >= end);
    assert_int_equal(mc_graph_param(g, 0)->layer, -1);
    assert_int_equal(param(g, "layers.1.mlp.up.weight")->layer, 1);
    assert_int_equal(param(g, "head.weight")->layer, 2);
    /* vocab h, 2 h, and a layer: q o (h^2 each), k v (h d each), three of ffn h, two norms */
    assert_int_equal(mc_graph_param_count(g),
                     2 * 67 * 24 + 24 + 2 * (2 * 24 * 24 + 2 * 24 * 8 + 3 * 40 * 24 + 2 * 24));
    mc_graph_destroy(g);
    mc_free(m);
}

static void fused_weights_are_adjacent_rows_and_biases_follow(void **st)
{
    struct model *m = gpt2(&small, 0);
    struct mc_graph *g = build(m, MC_GRAPH_TRAIN);
    const struct mc_param *q = param(g, "layers.1.attn.q.weight");
    const struct mc_param *k = param(g, "layers.1.attn.k.weight");
    const struct mc_param *v = param(g, "layers.1.attn.v.weight");
    const struct mc_param *qb = param(g, "layers.1.attn.q.bias");
    const struct mc_param *kb = param(g, "layers.1.attn.k.bias");
    int linears = 0;
    (void)st;
    assert_int_equal(k->offset, q->offset + q->count);
    assert_int_equal(v->offset, k->offset + k->count);
    assert_int_equal(kb->offset, qb->offset + qb->count);
    assert_int_equal(q->offset % MC_PARAM_ALIGN, 0);
    assert_int_equal(qb->offset % MC_PARAM_ALIGN, 0);
    assert_int_equal(q->shape.dim[0], 24);
    assert_int_equal(k->shape.dim[0], 8);
    for (int i = 0; i < g->nnodes; i++)
        linears += strcmp(g->node[i].op->name, "linear") == 0 && g->node[i].layer == 0;
    assert_int_equal(linears, 4); /* qkv, o, up, down */
    mc_graph_destroy(g);
    mc_free(m);
}

static void linears_that_differ_are_not_fused(void **st)
{
    struct model *m = gpt2(&small, 0);
    struct mc_graph *g;
    int linears = 0;
    (void)st;
    m->block.call[2].attr[0].num = 0; /* attn.k without bias: neither q-k nor k-v */
    g = build(m, MC_GRAPH_TRAIN);
    for (int i = 0; i < g->nnodes; i++)
        linears += strcmp(g->node[i].op->name, "linear") == 0 && g->node[i].layer == 0;
    assert_int_equal(linears, 6);
    mc_graph_destroy(g);
    m->block.call[2].attr[0].num = 1;
    for (int i = 0; i < m->block.call[2].nattrs; i++)
        if (strcmp(m->block.call[2].attr[i].key, "shard") == 0)
            strcpy(m->block.call[2].attr[i].str, "none"); /* shared otherwise on a mesh */
    g = build(m, MC_GRAPH_TRAIN);
    linears = 0;
    for (int i = 0; i < g->nnodes; i++)
        linears += strcmp(g->node[i].op->name, "linear") == 0 && g->node[i].layer == 0;
    assert_int_equal(linears, 6);
    mc_graph_destroy(g);
    mc_free(m);
}

static void a_tied_head_is_a_second_use(void **st)
{
    struct model *m = gpt2(&small, 0);
    struct mc_graph *g = build(m, MC_GRAPH_TRAIN);
    (void)st;
    assert_int_equal(param(g, "embed.weight")->nuses, 2);
    assert_true(mc_graph_memory(g)->extra_grads >= 67 * 24 * 8);
    assert_true(mc_graph_memory(g)->extra_grads < 67 * 24 * 8 + 512);
    mc_graph_destroy(g);
    mc_free(m);
}

static void dropout_is_in_training_graphs_alone(void **st)
{
    struct model *m = gpt2(&small, 0.5);
    (void)st;
    for (int mode = MC_GRAPH_TRAIN; mode <= MC_GRAPH_INFER; mode++) {
        struct mc_graph *g = build(m, (enum mc_graph_mode)mode);
        int n = 0;
        for (int i = 0; i < g->nnodes; i++)
            n += strcmp(g->node[i].op->name, "dropout") == 0;
        assert_int_equal(n, mode == MC_GRAPH_TRAIN ? 1 + 2 * 2 : 0);
        mc_graph_destroy(g);
    }
    mc_free(m);
}

/* Counted by hand: per token 2 x weights of products, plus causal attention 2 T (H D) a token, x 3.
 */
static void flops_follow_the_formula(void **st)
{
    struct model *m = llama(&small);
    struct mc_graph *g = build(m, MC_GRAPH_TRAIN);
    double weights = 2.0 * (24 * 24 + 2 * 8 * 24 + 24 * 24 + 3 * 40 * 24) + 67 * 24;
    double want = 3 * (2 * weights * 2 * 9 + 2 * (2.0 * 2 * 9 * 9 * 24));
    (void)st;
    assert_true(mc_graph_flops(g, 2, 9) == want);
    mc_graph_destroy(g);
    mc_free(m);
}

struct text {
    int lines, longest;
    int saw_param, saw_attention, saw_backward;
};
static void on_line(void *arg, const char *s)
{
    struct text *t = arg;
    t->lines++;
    t->saw_param |= strstr(s, "layers.0.attn.q.weight") != NULL;
    t->saw_attention |= strstr(s, "forward  attention") != NULL;
    t->saw_backward |= strstr(s, "input    attention") != NULL;
    assert_null(strchr(s, '\n'));
}
static void the_table_has_a_line_a_step(void **st)
{
    struct model *m = llama(&small);
    struct mc_graph *g = build(m, MC_GRAPH_TRAIN);
    struct text t = {0};
    (void)st;
    mc_graph_print(g, on_line, &t);
    assert_int_equal(t.lines, mc_graph_nparams(g) + g->nsteps + 2);
    assert_true(t.saw_param && t.saw_attention && t.saw_backward);
    mc_graph_destroy(g);
    mc_free(m);
}

static void every_row_is_complete(void **st)
{
    int n;
    const struct mc_op *const *all = mc_op_all(&n);
    (void)st;
    assert_true(n >= 15);
    for (int i = 0; i < n; i++) {
        assert_non_null(all[i]->doc);
        assert_ptr_equal(mc_op_find(all[i]->name), all[i]);
        assert_int_equal(all[i]->deterministic, 1);
        if (!(all[i]->flags & MC_OPF_INTERNAL)) {
            assert_non_null(all[i]->infer);
            assert_non_null(all[i]->forward);
        }
        /* a gradient flows: by a verb, by sharing, or not at all into token ids */
        if (!(all[i]->flags & (MC_OPF_INTERNAL | MC_OPF_DSHARE)) &&
            strcmp(all[i]->name, "embedding") != 0)
            assert_non_null(all[i]->backward_input);
    }
    assert_null(mc_op_find("nothing"));
}

/* -- What is refused -------------------------------------------------------------------------- */

static struct model *g_m;
static void refused(const char *const *parts)
{
    struct mc_graph_cfg cfg = whole_cfg(g_m, MC_GRAPH_TRAIN, 2, 9, 2, 1);
    struct mc_graph *g = NULL;
    struct mc_err err = {0};
    seal(g_m);
    assert_int_equal(mc_graph_build(&cfg, &g, &err), MC_E_RECIPE);
    assert_null(g);
    for (; *parts; parts++)
        if (!strstr(err.msg, *parts))
            fail_msg("\"%s\" does not say \"%s\"", err.msg, *parts);
    mc_free(g_m);
}
#define REFUSED(...) refused((const char *const[]){__VA_ARGS__, NULL})
static struct mc_attr *attr_of(struct fn *f, int c, const char *key)
{
    for (int i = 0; i < f->call[c].nattrs; i++)
        if (strcmp(f->call[c].attr[i].key, key) == 0)
            return &f->call[c].attr[i];
    fail_msg("no attribute %s", key);
    return NULL;
}

static void unknown_ops_and_attributes(void **st)
{
    (void)st;
    g_m = llama(&small);
    strcpy(g_m->block.call[0].op, "rmsnrom");
    REFUSED("line 101", "layers.0", "attn_norm", "unknown op", "did you mean \"rmsnorm\"");
    g_m = llama(&small);
    strcpy(g_m->block.call[0].op, "zzzzzzzz");
    REFUSED("line 101", "unknown op");
    g_m = llama(&small);
    strcpy(g_m->block.call[0].op, "cross_entropy");
    REFUSED("adds this op itself");
    g_m = llama(&small);
    strcpy(attr_of(&g_m->block, 1, "shard")->key, "shrad");
    REFUSED("line 102", "attn.q", "unknown attribute \"shrad\"", "did you mean \"shard\"");
    g_m = llama(&small);
    strcpy(attr_of(&g_m->block, 1, "shard")->str, "colum");
    REFUSED("shard is \"colum\"", "did you mean \"column\"");
    g_m = llama(&small);
    attr_of(&g_m->block, 1, "shard")->kind = MC_V_NUM;
    REFUSED("\"shard\" must be a string");
    g_m = llama(&small);
    attr_of(&g_m->block, 1, "out")->num = 24.5;
    REFUSED("\"out\" is 24.5", "whole number");
    g_m = llama(&small);
    attr_of(&g_m->block, 1, "out")->num = INFINITY;
    REFUSED("not a finite number");
    g_m = llama(&small);
    g_m->r.parallel.recompute = MC_RECOMPUTE_OPS;
    g_m->r.parallel.nrecompute_ops = 1;
    strcpy(g_m->r.parallel.recompute_ops[0], "atention");
    REFUSED("parallel.recompute", "did you mean \"attention\"");
}

static void shapes_that_do_not_meet(void **st)
{
    (void)st;
    g_m = llama(&small);
    attr_of(&g_m->block, 1, "out")->num = 25;
    REFUSED("rope", "25 columns", "head_dim 8");
    g_m = llama(&small);
    attr_of(&g_m->block, 2, "out")->num = 16; /* 3 query heads, 2 key heads; v has 1 */
    REFUSED("attention", "k has 2 heads, v has 1");
    g_m = llama(&small);
    attr_of(&g_m->block, 2, "out")->num = 16;
    attr_of(&g_m->block, 3, "out")->num = 16;
    REFUSED("3 query heads cannot share 2 key heads");
    g_m = llama(&small);
    attr_of(&g_m->block, 7, "out")->num = 23;
    REFUSED("add", "24 columns to 23");
    g_m = llama(&small);
    attr_of(&g_m->block, 11, "out")->num = 41;
    REFUSED("swiglu", "gate has 40 columns, up has 41");
    g_m = llama(&small);
    g_m->r.model.head_dim = 3;
    REFUSED("rope", "head_dim is 3", "even");
    g_m = llama(&small);
    attr_of(&g_m->head, 1, "out")->num = 66;
    REFUSED("66 logits", "model.vocab 67");
    g_m = gpt2(&small, 0);
    call(&g_m->stem, "positions", "pos2", 1, 2, 0, 0);
    num(&g_m->stem, "max", 8);
    REFUSED("max is 8 positions", "up to 9");
    g_m = llama(&small);
    g_m->block.n = 2; /* norm, q: 24 -> 24; then cut */
    attr_of(&g_m->block, 1, "out")->num = 48;
    REFUSED("layers.0", "takes 24 columns and returns 48");
    g_m = llama(&small);
    g_m->r.model.hidden = 32;
    REFUSED("add");
}

static void broken_call_lists(void **st)
{
    (void)st;
    g_m = llama(&small);
    linear(&g_m->head, "extra", 1, 67, "none", 0);
    REFUSED("head", "nobody reads what it makes");
    g_m = llama(&small);
    g_m->block.call[5].in[0] = 17;
    REFUSED("is value 17, which is not made yet");
    g_m = llama(&small);
    g_m->block.call[12].nin = 1;
    REFUSED("swiglu", "has 1 inputs; it takes 2");
    g_m = llama(&small);
    strcpy(g_m->block.call[2].name, "attn.q");
    REFUSED("line 103", "a second parameter is called layers.0.attn.q.weight");
    g_m = llama(&small);
    g_m->block.call[1].name[0] = 0;
    REFUSED("line 102", "needs a name");
    g_m = gpt2(&small, 0.1);
    g_m->stem.call[2].name[0] = 0;
    REFUSED("dropout", "needs a name");
    g_m = llama(&small);
    g_m->head.n = 0;
    REFUSED("head: has no calls");
    g_m = llama(&small);
    strcpy(g_m->stem.call[0].op, "rmsnorm");
    REFUSED("stem", "token ids; only embedding reads them");
    g_m = llama(&small);
    call(&g_m->stem, "embedding", "again", 1, 1, 0, 0);
    REFUSED("reads a value of 24 columns; it reads token ids");
    struct sizes deep = small;
    deep.layers = 16; /* the name is found among more than a hundred */
    g_m = llama(&deep);
    strcpy(g_m->head.call[0].name, "embed");
    REFUSED("a second parameter is called embed.weight");
    g_m = gpt2(&small, 0);
    strcpy(attr_of(&g_m->head, 1, "tied")->str, "embde.weight");
    REFUSED("tied to \"embde.weight\"", "did you mean \"embed.weight\"");
    g_m = gpt2(&small, 0);
    strcpy(attr_of(&g_m->head, 1, "tied")->str, "pos.weight");
    REFUSED("tied to pos.weight [9, 24]", "needs [67, 24]");
    g_m = gpt2(&small, 0.1);
    attr_of(&g_m->stem, 2, "p")->num = 1;
    REFUSED("p is 1;");
    g_m = gpt2(&small, 0);
    call(&g_m->stem, "scale", "", 1, 2, 0, 0);
    REFUSED("scale", "needs its factor");
    g_m = llama(&small);
    memset(g_m->block.call[1].name, 'x', 63);
    strcpy(attr_of(&g_m->block, 1, "shard")->str, "none");
    g_m->block.call[1].name[63] = 0;
    {
        struct mc_graph_cfg cfg = whole_cfg(g_m, MC_GRAPH_TRAIN, 2, 9, 2, 1);
        struct mc_graph *g;
        struct mc_err err = {0};
        seal(g_m);
        check_ok(mc_graph_build(&cfg, &g, &err), &err); /* the longest name fits */
        mc_graph_destroy(g);
        mc_free(g_m);
    }
}

static void attention_that_looks_ahead_cannot_write(void **st)
{
    struct model *m = llama(&small);
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_INFER, 1, 9, 1, 1);
    struct mc_graph *g = NULL;
    struct mc_err err = {0};
    (void)st;
    struct mc_call *c = &m->block.call[6];
    assert_string_equal(c->op, "attention");
    c->nattrs = 1;
    c->attr[0] = (struct mc_attr){.key = "causal", .kind = MC_V_BOOL, .num = 0};
    assert_int_equal(mc_graph_build(&cfg, &g, &err), MC_E_RECIPE);
    assert_non_null(strstr(err.msg, "not causal"));
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_named_and_ordered_by_layer),
        cmocka_unit_test(fused_weights_are_adjacent_rows_and_biases_follow),
        cmocka_unit_test(linears_that_differ_are_not_fused),
        cmocka_unit_test(a_tied_head_is_a_second_use),
        cmocka_unit_test(dropout_is_in_training_graphs_alone),
        cmocka_unit_test(flops_follow_the_formula),
        cmocka_unit_test(the_table_has_a_line_a_step),
        cmocka_unit_test(every_row_is_complete),
        cmocka_unit_test(unknown_ops_and_attributes),
        cmocka_unit_test(shapes_that_do_not_meet),
        cmocka_unit_test(broken_call_lists),
        cmocka_unit_test(attention_that_looks_ahead_cannot_write)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
