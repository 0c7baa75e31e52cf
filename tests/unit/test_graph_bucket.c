/* test_graph_bucket.c - buckets: where they lie, and what a watch is told while a pass runs.
 * links: mc_graph
 *
 * The moments are checked against the program itself, step by step through the probe: a bucket's
 * parameters are read by no step before `need`, and no step after `done` adds to its gradients. */
#include "graph_help.h"

static const struct sizes small = {3, 24, 4, 2, 6, 32, 64, 8};

static int bucket_of(const struct mc_graph *g, int64_t offset)
{
    for (int b = 0; b < mc_graph_nbuckets(g); b++) {
        int64_t o, n;
        mc_graph_bucket(g, b, &o, &n);
        if (offset >= o && offset < o + n)
            return b;
    }
    fail_msg("no bucket holds element %lld", (long long)offset);
    return -1;
}

static void buckets_cover_the_flat_buffer(void **st)
{
    (void)st;
    for (int kind = 0; kind < 3; kind++) {
        struct model *m = kind == 0 ? gpt2(&small, 0) : llama(&small);
        struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 2, 8, 1, 1);
        struct mc_graph *g;
        struct mc_err err = {0};
        int64_t end = 0, o, n;
        if (kind == 2) { /* a middle stage: layers alone */
            cfg.part[0].has_stem = cfg.part[0].has_head = 0;
            cfg.part[0].first_layer = 1;
        }
        check_ok(mc_graph_build(&cfg, &g, &err), &err);
        assert_int_equal(mc_graph_nbuckets(g), kind == 2 ? 2 : 5);
        for (int b = 0; b < mc_graph_nbuckets(g); b++) {
            mc_graph_bucket(g, b, &o, &n);
            assert_int_equal(o, end);
            assert_int_equal(o % 32, 0);
            end = o + n;
        }
        assert_int_equal(end, mc_graph_flat_count(g));
        for (int i = 0; i < mc_graph_nparams(g); i++) {
            const struct mc_param *p = mc_graph_param(g, i);
            int first = kind == 2 ? 1 : -1;
            assert_int_equal(bucket_of(g, p->offset), p->layer - first);
            assert_int_equal(bucket_of(g, p->offset + p->count - 1), p->layer - first);
        }
        mc_graph_destroy(g);
        mc_free(m);
    }
}

struct log {
    struct mc_graph *g;
    int needed[8], done[8], tick, refuse, calls;
};
static mc_status need(void *arg, int b, struct mc_err *err)
{
    struct log *l = arg;
    l->needed[b]++;
    l->calls++;
    return l->refuse == b ? mc_err_set(err, MC_E_PEER, "bucket %d is lost", b) : MC_OK;
}
static mc_status done(void *arg, int b, struct mc_err *err)
{
    struct log *l = arg;
    (void)err;
    l->done[b]++;
    l->calls++;
    return l->refuse == b ? MC_E_TIMEOUT : MC_OK;
}
/* Before step t: what it touches must be needed already, and what it adds to not yet done. */
static void probe(void *arg, int tick)
{
    struct log *l = arg;
    const struct mc_step *s = &l->g->step[l->tick];
    if (tick > 0 && s->gnode >= 0 && s->kind == MC_STEP_VERB) { /* the step before has run */
        const struct mc_gnode *n = &l->g->node[s->gnode];
        for (int k = 0; k < n->nparams; k++)
            assert_int_equal(l->needed[bucket_of(l->g, l->g->param[n->param[k]].offset)], 1);
    }
    l->tick = tick;
    s = &l->g->step[tick];
    if (s->gnode >= 0 && s->verb == MC_BACKWARD_WEIGHT && s->kind == MC_STEP_VERB)
        for (int k = 0; k < l->g->node[s->gnode].nparams; k++)
            assert_int_equal(
                l->done[bucket_of(l->g, l->g->param[l->g->node[s->gnode].param[k]].offset)], 0);
}

static void a_watch_is_told_in_time_and_once(void **st)
{
    struct model *m = gpt2(&small, 0); /* tied: the stem's table is read by the head, too */
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, 2, 8, 1, 1, NULL);
    struct log l = {.g = r.g, .refuse = -1};
    const struct mc_graph_watch w = {.arg = &l, .need = need, .done = done};
    int32_t tokens[16], targets[16];
    struct mc_microbatch mb = {.b = 2, .t = 8, .tokens = tokens, .targets = targets, .watch = &w};
    double sum = 0;
    (void)st;
    formula_weights(&r);
    formula_batch(1, 16, 64, tokens, targets);
    mc_graph_zero_grads(r.g);
    r.g->probe = probe;
    r.g->probe_arg = &l;
    pass_ok(mc_graph_forward(r.g, 0, &mb, 1, &sum, NULL));
    for (int b = 0; b < 5; b++) {
        assert_int_equal(l.needed[b], 1);
        assert_int_equal(l.done[b], 0);
    }
    pass_ok(mc_graph_backward(r.g, 0, &mb, 1, 1, NULL));
    for (int b = 0; b < 5; b++) {
        assert_int_equal(l.needed[b], 1);
        assert_int_equal(l.done[b], 1);
    }
    /* layers come back from the last to the first, the shared table last of all */
    assert_int_equal(r.g->done[0].bucket, 4);
    assert_int_equal(r.g->done[4].bucket, 0);
    assert_int_equal(r.g->done[4].tick, r.g->nsteps - 1);
    rig_close(&r);
    mc_free(m);
}

static void an_error_ends_the_pass_and_stays(void **st)
{
    struct model *m = llama(&small);
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, 2, 8, 1, 1, NULL);
    struct log l = {.g = r.g, .refuse = 2};
    const struct mc_graph_watch w = {.arg = &l, .need = need, .done = done};
    int32_t tokens[16], targets[16];
    struct mc_microbatch mb = {.b = 2, .t = 8, .tokens = tokens, .targets = targets, .watch = &w};
    struct mc_err err = {0};
    double sum = 0;
    (void)st;
    formula_weights(&r);
    formula_batch(1, 16, 64, tokens, targets);
    assert_int_equal(mc_graph_forward(r.g, 0, &mb, 1, &sum, &err), MC_E_PEER);
    assert_string_equal(err.msg, "bucket 2 is lost");
    assert_int_equal(l.calls, 3);
    assert_true(sum == 0); /* the loss was not reached */
    mb.watch = NULL;
    err = (struct mc_err){0};
    assert_int_equal(mc_graph_backward(r.g, 0, &mb, 1, 1, &err), MC_E_PEER); /* the first error */
    assert_string_equal(err.msg, "bucket 2 is lost");
    assert_int_equal(mc_graph_finish_grads(r.g, 0, NULL), MC_E_PEER);
    check_ok(mc_graph_bind(r.g, r.k, r.pool, &r.b, NULL, &(struct mc_err){0}), &err);
    pass_ok(mc_graph_forward(r.g, 0, &mb, 1, &sum, NULL));
    mb.watch = &w; /* backward's end, too; a watch that gives no reason */
    mc_graph_zero_grads(r.g);
    assert_int_equal(mc_graph_backward(r.g, 0, &mb, 1, 1, NULL), MC_E_TIMEOUT);
    assert_int_equal(l.done[4] + l.done[3] + l.done[2], 3);
    assert_int_equal(l.done[1] + l.done[0], 0);
    rig_close(&r);
    mc_free(m);
}

/* Two stages in one graph, [stem, 0, 1] and [2, head], backward split: a moment of each kind for
 * each bucket that a stage reads or adds to, the shared table's in both; gradients are done in the
 * pass over weights alone. */
static void each_part_has_its_own_moments(void **st)
{
    struct model *m = gpt2(&small, 0);
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 2, 8, 1, 2);
    static const int reads[2][5] = {{1, 1, 1, 0, 0}, {1, 0, 0, 1, 1}};
    (void)st;
    cfg.split = 1;
    cfg.nparts = 2;
    cfg.part[1] = cfg.part[0];
    cfg.part[0].has_head = cfg.part[1].has_stem = 0;
    cfg.part[0].end_layer = cfg.part[1].first_layer = 2;
    struct rig r = rig_make(&cfg, NULL);
    int32_t tokens[16], targets[16];
    struct mc_microbatch mb = {.b = 2, .t = 8, .tokens = tokens, .targets = targets};
    double sum = 0;
    formula_weights(&r);
    formula_batch(1, 16, 64, tokens, targets);
    mc_graph_zero_grads(r.g);
    for (int part = 0; part < 2; part++) {
        struct log l = {.g = r.g, .refuse = -1, .tick = r.g->part[part].tick[0]};
        const struct mc_graph_watch w = {.arg = &l, .need = need, .done = done};
        static const int none[5] = {0};
        int slot = mc_graph_slot(r.g, part, 1);
        mb.watch = &w;
        pass_ok(mc_graph_forward(r.g, slot, &mb, 1, &sum, NULL));
        assert_memory_equal(l.needed, reads[part], sizeof none);
        pass_ok(mc_graph_backward_input(r.g, slot, &mb, 1, 1, NULL));
        assert_memory_equal(l.done, none, sizeof none);
        r.g->probe = probe;
        r.g->probe_arg = &l;
        pass_ok(mc_graph_backward_weight(r.g, slot, &mb, 1, 1, NULL));
        assert_memory_equal(l.needed, reads[part], sizeof none);
        assert_memory_equal(l.done, reads[part], sizeof none);
        r.g->probe = NULL;
    }
    for (int b = 0; b < 5; b++)
        assert_int_equal(mc_graph_bucket_parts(r.g, b), b == 0 ? 2 : 1);
    rig_close(&r);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(buckets_cover_the_flat_buffer),
                                       cmocka_unit_test(a_watch_is_told_in_time_and_once),
                                       cmocka_unit_test(each_part_has_its_own_moments),
                                       cmocka_unit_test(an_error_ends_the_pass_and_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
