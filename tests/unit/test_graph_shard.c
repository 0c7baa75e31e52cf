/* test_graph_shard.c - the rules of states on a mesh, with tp = 2 in symbols.
 * links: mc_graph
 *
 * Nothing runs here: what is checked is which records stand in the node list, what they read and
 * write, and that what cannot be joined is refused in words that name op, call, tensor and both
 * states. */
#include "graph_help.h"

static const struct sizes small = {2, 24, 4, 2, 6, 32, 64, 8};

static mc_status build(struct model *m, enum mc_graph_mode mode, int tp, struct mc_graph **g,
                       struct mc_err *err)
{
    struct mc_graph_cfg cfg = whole_cfg(m, mode, 2, 8, 2, 1);
    cfg.axis_size[MC_AXIS_TP] = tp;
    return mc_graph_build(&cfg, g, err);
}
static int count(const struct mc_graph *g, const char *op, int layer)
{
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        n += g->node[i].layer == layer && strcmp(g->node[i].op->name, op) == 0;
    return n;
}
static int records(const struct mc_graph *g)
{
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        n += g->node[i].op->flags & MC_OPF_INTERNAL && g->node[i].nout > 0;
    return n;
}
static const struct mc_param *param(const struct mc_graph *g, const char *name)
{
    for (int i = 0; i < mc_graph_nparams(g); i++)
        if (strcmp(mc_graph_param(g, i)->name, name) == 0)
            return mc_graph_param(g, i);
    fail_msg("no parameter %s", name);
    return NULL;
}
static void has(const char *message, const char *part)
{
    if (!strstr(message, part))
        fail_msg("\"%s\" does not say \"%s\"", message, part);
}

/* A model whose block is column, activation, row, add: one all_reduce, between row and add. */
static struct model *column_row(const char *first, const char *second)
{
    struct model *m = model_new(&small);
    struct fn *f = &m->stem;
    int x;
    call(f, "embedding", "embed", 1, 0, 0, 0);
    f = &m->block;
    x = linear(f, "up", 0, 32, first, 0);
    x = call(f, "gelu", "", 1, x, 0, 0);
    x = linear(f, "down", x, 24, second, 0);
    call(f, "add", "", 2, 0, x, 0);
    f = &m->head;
    x = call(f, "rmsnorm", "final_norm", 1, 0, 0, 0);
    linear(f, "head", x, 64, "column", 0);
    seal(m);
    return m;
}

static void row_after_column_gives_one_all_reduce(void **st)
{
    struct model *m = column_row("column", "row");
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    check_ok(build(m, MC_GRAPH_EVAL, 2, &g, &err), &err);
    assert_int_equal(count(g, "all_reduce", 0), 1);
    assert_int_equal(count(g, "all_gather", 0) + count(g, "reduce_scatter", 0), 0);
    for (int i = 0; i < g->nnodes; i++)
        if (strcmp(g->node[i].op->name, "all_reduce") == 0 && g->node[i].layer == 0) {
            assert_string_equal(g->node[i - 1].name, "layers.0.down");
            assert_int_equal(g->value[g->node[i].in[0]].sharding.on[MC_AXIS_TP].kind, MC_PARTIAL);
            assert_int_equal(g->value[g->node[i].out[0]].sharding.on[MC_AXIS_TP].kind,
                             MC_REPLICATE);
            assert_string_equal(g->node[i + 1].op->name, "add");
        }
    mc_graph_destroy(g);
    /* training: the dual, one sum of the gradient that enters the column linear */
    check_ok(build(m, MC_GRAPH_TRAIN, 2, &g, &err), &err);
    assert_int_equal(count(g, "all_reduce", 0), 1);
    assert_int_equal(count(g, "all_reduce_grad", 0), 1);
    mc_graph_destroy(g);
    mc_free(m);
}

static void one_rank_needs_no_records(void **st)
{
    (void)st;
    for (int i = 0; i < 3; i++) {
        struct model *m = i == 0   ? gpt2(&small, 0.1)
                          : i == 1 ? llama(&small)
                                   : column_row("row", "row");
        struct mc_graph *g;
        struct mc_err err = {0};
        m->r.parallel.sp = 1;
        check_ok(build(m, MC_GRAPH_TRAIN, 1, &g, &err), &err);
        assert_int_equal(records(g), 0);
        mc_graph_destroy(g);
        mc_free(m);
    }
}

static void column_after_column_is_gathered(void **st)
{
    struct model *m = column_row("column", "column");
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    /* gelu's columns are apart: gathered for the second linear; its own output for the add is cut,
     * and the stream is not: refused */
    assert_int_equal(build(m, MC_GRAPH_EVAL, 2, &g, &err), MC_E_RECIPE);
    has(err.msg, "add");
    has(err.msg, "replicate");
    has(err.msg, "tp:shard(1)");
    m->block.n -= 1; /* without the add the stream itself is gathered */
    seal(m);
    check_ok(build(m, MC_GRAPH_EVAL, 2, &g, &(struct mc_err){0}), &err);
    assert_int_equal(count(g, "all_gather", 0), 2);
    assert_int_equal(count(g, "all_reduce", 0), 0);
    mc_graph_destroy(g);
    mc_free(m);
}

static void row_of_a_whole_value_is_refused(void **st)
{
    struct model *m = column_row("row", "row");
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    assert_int_equal(build(m, MC_GRAPH_TRAIN, 2, &g, &err), MC_E_RECIPE);
    has(err.msg, "layers.0");
    has(err.msg, "linear \"up\"");
    has(err.msg, "input 0");
    has(err.msg, "state replicate, wanted is tp:shard(1)");
    has(err.msg, "shard = \"column\"");
    has(err.msg, "line 101");
    mc_free(m);
}

static void activation_of_a_partial_sum_is_summed_first(void **st)
{
    struct model *m = column_row("column", "row");
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    m->block.n -= 1;
    call(&m->block, "silu", "", 1, 3, 0, 0);
    seal(m);
    check_ok(build(m, MC_GRAPH_EVAL, 2, &g, &err), &err);
    for (int i = 0; i < g->nnodes; i++)
        if (strcmp(g->node[i].op->name, "silu") == 0)
            assert_string_equal(g->node[i - 1].op->name, "all_reduce");
    mc_graph_destroy(g);
    mc_free(m);
}

static void attention_heads_lie_apart(void **st)
{
    struct model *m = llama(&small);
    struct mc_graph *one, *two;
    struct mc_err err = {0};
    (void)st;
    check_ok(build(m, MC_GRAPH_TRAIN, 1, &one, &err), &err);
    check_ok(build(m, MC_GRAPH_TRAIN, 2, &two, &err), &err);
    assert_int_equal(count(two, "all_reduce", 0), 2); /* attention, mlp */
    assert_int_equal(count(two, "all_reduce_grad", 0), 2);
    assert_int_equal(count(two, "all_reduce", -1), 1); /* the embedding's vocabulary */
    assert_int_equal(count(two, "all_gather", 2), 0);  /* the logits stay apart */
    assert_int_equal(param(two, "layers.0.attn.q.weight")->count, 24 * 24 / 2);
    assert_int_equal(param(two, "layers.0.attn.o.weight")->count, 24 * 24 / 2);
    assert_int_equal(param(two, "layers.0.attn.o.weight")->sharding.on[MC_AXIS_TP].dim, 1);
    assert_int_equal(param(two, "embed.weight")->count, 64 * 24 / 2);
    assert_int_equal(param(two, "layers.0.attn_norm.weight")->count, 24);
    assert_int_equal(mc_graph_param_count(two), mc_graph_param_count(one)); /* logical */
    assert_true(mc_graph_memory(two)->params < mc_graph_memory(one)->params * 6 / 10);
    assert_true(mc_graph_memory(two)->slot < mc_graph_memory(one)->slot);
    for (int i = 0; i < two->nnodes; i++)
        if (strcmp(two->node[i].op->name, "attention") == 0)
            assert_int_equal(two->value[two->node[i].in[1]].lcols, 6); /* one kv head of 6 */
    mc_graph_destroy(one);
    mc_graph_destroy(two);
    mc_free(m);
}

static void heads_that_tp_does_not_divide_are_refused(void **st)
{
    const struct sizes odd = {1, 36, 6, 3, 6, 36, 64, 8};
    struct model *m = llama(&odd);
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    assert_int_equal(build(m, MC_GRAPH_TRAIN, 2, &g, &err), MC_E_RECIPE);
    has(err.msg, "tp = 2 does not divide");
    has(err.msg, "3 heads");
    err = (struct mc_err){0};
    assert_int_equal(build(m, MC_GRAPH_TRAIN, 5, &g, &err), MC_E_RECIPE);
    has(err.msg, "not divided by tp = 5");
    mc_free(m);
}

static void sequence_parallel_scatters_the_stream(void **st)
{
    struct model *m = llama(&small);
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    m->r.parallel.sp = 1;
    check_ok(build(m, MC_GRAPH_TRAIN, 2, &g, &err), &err);
    assert_int_equal(count(g, "reduce_scatter", -1), 1); /* embedding: partial -> rows apart */
    assert_int_equal(count(g, "all_gather", 0), 2);      /* before q/k/v and gate/up */
    assert_int_equal(count(g, "reduce_scatter", 0), 2);  /* after o and down */
    assert_int_equal(count(g, "all_reduce", 0), 0);
    assert_true(param(g, "layers.0.attn_norm.weight")->grad_sum_axes == 1u << MC_AXIS_TP);
    assert_true(param(g, "layers.0.attn.q.weight")->grad_sum_axes == 0);
    mc_graph_destroy(g);
    mc_free(m);
}

/* Linears that read a sum directly: their gradients of it are partial, and summed, although a
 * collective already stands before them. */
static void split_work_after_a_sum_sums_its_gradient(void **st)
{
    struct model *m = column_row("column", "row");
    struct fn *f = &m->block;
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    f->n -= 1;
    int x = linear(f, "up2", 3, 32, "column", 0);
    x = linear(f, "down2", x, 24, "row", 0);
    call(f, "add", "", 2, 0, x, 0);
    seal(m);
    check_ok(build(m, MC_GRAPH_TRAIN, 2, &g, &err), &err);
    assert_int_equal(count(g, "all_reduce", 0), 2);
    assert_int_equal(count(g, "all_reduce_grad", 0), 2);
    mc_graph_destroy(g);
    mc_free(m);
}

/* Two partial sums are one partial sum: one collective for both. */
static void partial_sums_are_added_first(void **st)
{
    struct model *m = column_row("column", "row");
    struct fn *f = &m->block;
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    f->n -= 1;
    int y = linear(f, "up2", 0, 32, "column", 0);
    y = linear(f, "down2", y, 24, "row", 0);
    y = call(f, "add", "", 2, 3, y, 0);
    call(f, "add", "", 2, 0, y, 0);
    seal(m);
    check_ok(build(m, MC_GRAPH_TRAIN, 2, &g, &err), &err);
    assert_int_equal(count(g, "all_reduce", 0), 1);
    assert_int_equal(count(g, "all_reduce_grad", 0), 1); /* of the stream, for both */
    mc_graph_destroy(g);
    mc_free(m);
}

/* A value gathered for a column linear and for an uncut one: two records, since what comes back is
 * a partial sum from the one and whole from the other. */
static void gathers_differ_by_what_comes_back(void **st)
{
    struct model *m = column_row("column", "row");
    struct fn *f = &m->block;
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    f->n = 0;
    int h = call(f, "rmsnorm", "n", 1, 0, 0, 0);
    int x = linear(f, "up", h, 32, "column", 0);
    x = linear(f, "down", x, 24, "row", 0);
    int y = call(f, "rope", "", 1, h, 0, 0); /* positions: all rows of a sequence */
    num(f, "head_dim", 6);
    x = call(f, "add", "", 2, x, y, 0);
    call(f, "add", "", 2, 0, x, 0);
    seal(m);
    m->r.parallel.sp = 1;
    check_ok(build(m, MC_GRAPH_TRAIN, 2, &g, &err), &err);
    assert_int_equal(count(g, "all_gather", 0), 2);
    mc_graph_destroy(g);
    check_ok(build(m, MC_GRAPH_EVAL, 2, &g, &err), &err);
    assert_int_equal(count(g, "all_gather", 0), 1); /* nothing comes back */
    mc_graph_destroy(g);
    mc_free(m);
}

/* Key heads 1 and 2 on 4 ranks: each rank has one; the rank's own is the one its queries read. */
static void fewer_key_heads_than_ranks_are_copied(void **st)
{
    (void)st;
    for (int64_t kv = 1; kv <= 2; kv++) {
        const struct sizes s = {1, 24, 4, kv, 6, 32, 64, 8};
        struct model *m = llama(&s);
        struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 2, 8, 1, 1);
        struct mc_graph *g;
        struct mc_err err = {0};
        int owners = 0;
        cfg.axis_size[MC_AXIS_TP] = 4;
        for (int c = 0; c < 4; c++) {
            cfg.coord[MC_AXIS_TP] = c;
            check_ok(mc_graph_build(&cfg, &g, &err), &err);
            const struct mc_param *k = param(g, "layers.0.attn.k.weight");
            assert_int_equal(k->box.lo[0], c * kv / 4 * 6);
            assert_int_equal(k->box.n[0], 6);
            assert_true(k->grad_sum_axes == 1u << MC_AXIS_TP);
            assert_true(param(g, "layers.0.attn.q.weight")->grad_sum_axes == 0);
            owners += k->owned;
            mc_graph_destroy(g);
        }
        assert_int_equal(owners, kv);
        mc_free(m);
    }
}

/* 257 rows over 4: memory for 65 on each, the last has 62; logits beyond are no one's. */
static void a_vocabulary_that_tp_does_not_divide_is_padded(void **st)
{
    const struct sizes s = {1, 24, 4, 4, 6, 32, 257, 8};
    struct model *m = gpt2(&s, 0);
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 2, 8, 1, 1);
    struct mc_graph *g;
    struct mc_err err = {0};
    int64_t rows = 0, flat = 0;
    (void)st;
    cfg.axis_size[MC_AXIS_TP] = 4;
    for (int c = 0; c < 4; c++) {
        cfg.coord[MC_AXIS_TP] = c;
        check_ok(mc_graph_build(&cfg, &g, &err), &err);
        const struct mc_param *w = param(g, "embed.weight");
        assert_int_equal(w->stored, 65 * 24);
        assert_int_equal(w->box.n[0], c < 3 ? 65 : 62);
        assert_int_equal(w->count, w->box.n[0] * 24);
        rows += w->box.n[0];
        assert_true(c == 0 || flat == mc_graph_flat_count(g));
        flat = mc_graph_flat_count(g);
        mc_graph_destroy(g);
    }
    assert_int_equal(rows, 257);
    /* nothing else may be padded */
    struct model *odd = column_row("column", "row");
    for (int i = 0; i < 2; i++)
        odd->block.call[i ? 2 : 0].attr[0].num = i ? 24 : 33;
    assert_int_equal(build(odd, MC_GRAPH_TRAIN, 2, &g, &err), MC_E_RECIPE);
    has(err.msg, "33 is not divided by tp = 2");
    mc_free(odd);
    mc_free(m);
}

/* A parameter that one call uses on a part of the rows and another on all of them. */
static void uses_on_part_and_whole_are_refused(void **st)
{
    struct model *m = column_row("column", "row");
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    m->stem.n = m->block.n = m->head.n = 0;
    int x = call(&m->stem, "embedding", "embed", 1, 0, 0, 0);
    call(&m->stem, "positions", "pos", 1, x, 0, 0);
    x = call(&m->block, "rmsnorm", "n", 1, 0, 0, 0);
    call(&m->block, "add", "", 2, 0, x, 0);
    x = call(&m->head, "rope", "", 1, 0, 0, 0); /* whole rows from here on */
    num(&m->head, "head_dim", 6);
    x = linear(&m->head, "fit", x, 8, "none", 0);
    x = call(&m->head, "linear", "again", 1, 0, 0, 0); /* a part of the rows */
    str(&m->head, "tied", "fit.weight");
    num(&m->head, "out", 8);
    m->head.call[2].in[0] = 0;
    x = call(&m->head, "add", "", 2, 2, 3, 0);
    linear(&m->head, "head", x, 64, "column", 0);
    seal(m);
    m->r.parallel.sp = 1;
    check_ok(build(m, MC_GRAPH_TRAIN, 1, &g, &err), &err);
    mc_graph_destroy(g);
    assert_int_equal(build(m, MC_GRAPH_TRAIN, 2, &g, &err), MC_E_RECIPE);
    has(err.msg, "fit.weight is used here on a part of the work, elsewhere on all of it");
    mc_free(m);
}

static void a_value_is_converted_once(void **st)
{
    struct model *m = llama(&small);
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 2, 8, 2, 1);
    const struct mc_graph_opt apart = {.no_fuse = 1};
    struct mc_graph *g;
    struct mc_err err = {0};
    (void)st;
    cfg.axis_size[MC_AXIS_TP] = 2;
    m->r.parallel.sp = 1;
    check_ok(mc_graph_build_opt(&cfg, &apart, &g, &err), &err);
    assert_int_equal(count(g, "linear", 0), 7);
    assert_int_equal(count(g, "all_gather", 0), 2); /* not five */
    mc_graph_destroy(g);
    mc_free(m);
}

static void a_mesh_graph_is_bound_to_its_mesh_alone(void **st)
{
    struct model *m = llama(&small);
    struct mc_graph *g;
    struct mc_err err = {0};
    struct mc_pool *pool;
    const struct mc_kern_ops *k;
    struct mc_graph_buffers b = {0};
    (void)st;
    check_ok(build(m, MC_GRAPH_TRAIN, 2, &g, &err), &err);
    check_ok(mc_pool_create(1, &pool, &err), &err);
    check_ok(mc_kern_get(MC_DEVICE_CPU, MC_F64, &k, &err), &err);
    assert_int_equal(mc_graph_bind(g, k, pool, &b, NULL, &err), MC_E_BUG);
    has(err.msg, "place 0 of tp = 2 and bound to place 0 of tp = 1");
    mc_graph_destroy(g);
    mc_pool_destroy(pool);
    mc_free(m);
}

/* Stages: parameters of first and last together are those of the whole; a tied head brings its own
 * copy of the embedding. */
static void stages_split_the_parameters(void **st)
{
    struct model *m = gpt2(&small, 0);
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 2, 8, 2, 2);
    struct mc_graph *whole, *a, *b;
    struct mc_err err = {0};
    (void)st;
    check_ok(mc_graph_build(&cfg, &whole, &err), &err);
    cfg.part[0].end_layer = 1;
    cfg.part[0].has_head = 0;
    check_ok(mc_graph_build(&cfg, &a, &err), &err);
    cfg.part[0].first_layer = 1;
    cfg.part[0].end_layer = 2;
    cfg.part[0].has_stem = 0;
    cfg.part[0].has_head = 1;
    check_ok(mc_graph_build(&cfg, &b, &err), &err);
    assert_int_equal(mc_graph_nparams(a) + mc_graph_nparams(b), mc_graph_nparams(whole) + 1);
    assert_int_equal(param(b, "embed.weight")->count, 64 * 24);
    assert_true(param(b, "embed.weight")->std == param(whole, "embed.weight")->std);
    assert_true(param(b, "layers.1.attn.q.weight")->layer == 1);
    assert_int_equal(param(whole, "embed.weight")->nuses, 2);
    mc_graph_destroy(whole);
    mc_graph_destroy(a);
    mc_graph_destroy(b);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_after_column_gives_one_all_reduce),
        cmocka_unit_test(one_rank_needs_no_records),
        cmocka_unit_test(column_after_column_is_gathered),
        cmocka_unit_test(row_of_a_whole_value_is_refused),
        cmocka_unit_test(activation_of_a_partial_sum_is_summed_first),
        cmocka_unit_test(attention_heads_lie_apart),
        cmocka_unit_test(heads_that_tp_does_not_divide_are_refused),
        cmocka_unit_test(sequence_parallel_scatters_the_stream),
        cmocka_unit_test(a_value_is_converted_once),
        cmocka_unit_test(split_work_after_a_sum_sums_its_gradient),
        cmocka_unit_test(partial_sums_are_added_first),
        cmocka_unit_test(gathers_differ_by_what_comes_back),
        cmocka_unit_test(fewer_key_heads_than_ranks_are_copied),
        cmocka_unit_test(a_vocabulary_that_tp_does_not_divide_is_padded),
        cmocka_unit_test(uses_on_part_and_whole_are_refused),
        cmocka_unit_test(a_mesh_graph_is_bound_to_its_mesh_alone),
        cmocka_unit_test(stages_split_the_parameters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
