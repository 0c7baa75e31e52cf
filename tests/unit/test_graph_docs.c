/* test_graph_docs.c - attention within documents, in a whole model: what one document holds moves
 * no other one's outputs, and each gives what it gives alone. links: mc_graph
 *
 * The outputs are token losses of an EVAL graph, one unmasked target at a time. */
#include "graph_help.h"

enum { T = 300, V = 31, EOS = 9 };
static const struct sizes small = {2, 12, 2, 1, 6, 14, V, T};
static const int lengths[] = {70, 1, 5, 130, 1, 1, 60, 32}; /* of documents, their EOS included */
enum { DOCS = 8 };

static struct model *within(int64_t window)
{
    struct model *m = llama(&small);
    m->r.model.eos = EOS;
    for (int i = 0; i < m->block.n; i++)
        if (strcmp(m->block.call[i].op, "attention") == 0) {
            struct mc_call *c = &m->block.call[i];
            c->attr[c->nattrs++] =
                (struct mc_attr){.key = "documents", .kind = MC_V_BOOL, .num = 1};
            if (window > 0)
                c->attr[c->nattrs++] =
                    (struct mc_attr){.key = "window", .kind = MC_V_NUM, .num = (double)window};
        }
    seal(m);
    return m;
}

static void make_tokens(int32_t *tokens)
{
    int32_t targets[T];
    formula_batch(8, T, V, tokens, targets);
    for (int d = 0, p = 0; d < DOCS; d++, p++) {
        for (int i = 0; i + 1 < lengths[d]; i++, p++)
            tokens[p] = tokens[p] == EOS ? EOS + 1 : tokens[p];
        tokens[p] = EOS; /* the last document's too: it ends with the sample as well */
    }
}

/* Loss of target 7 at every position. */
static void losses(struct rig *r, const int32_t *tokens, int64_t t, double *loss)
{
    int32_t targets[T];
    struct mc_microbatch mb = {.b = 1, .t = t, .tokens = tokens, .targets = targets};
    memset(targets, -1, sizeof targets);
    for (int64_t p = 0; p < t; p++) {
        targets[p] = 7;
        loss[p] = 0;
        pass_ok(mc_graph_forward(r->g, 0, &mb, 0, &loss[p], NULL));
        targets[p] = -1;
    }
}

static void a_document_moves_no_other(void **st)
{
    (void)st;
    for (int w = 0; w < 2; w++) {
        struct model *m = within(w ? 20 : 0);
        struct rig r = rig_open(m, MC_GRAPH_EVAL, 1, T, 1, 1, NULL);
        static double before[T], after[T];
        int32_t tokens[T];
        formula_weights(&r);
        make_tokens(tokens);
        losses(&r, tokens, T, before);
        for (int d = 0, from = 0; d < DOCS; from += lengths[d++]) {
            int32_t kept = tokens[from], moved = 0;
            if (lengths[d] == 1)
                continue; /* its EOS is all it has */
            tokens[from] = (kept + 1) % V == EOS ? (kept + 2) % V : (kept + 1) % V;
            losses(&r, tokens, T, after);
            for (int p = 0; p < T; p++)
                if (p < from || p >= from + lengths[d])
                    assert_memory_equal(&before[p], &after[p], sizeof before[p]);
                else
                    moved += before[p] != after[p];
            /* a window of 20 in two layers reaches 38 tokens back */
            assert_int_equal(moved, w && lengths[d] > 39 ? 39 : lengths[d]);
            tokens[from] = kept;
        }
        rig_close(&r);
        mc_free(m);
    }
}

/* Positions go on through the sample; rope sees their differences alone, so a document gives what
 * it gives by itself from position 0. */
static void a_document_gives_what_it_gives_alone(void **st)
{
    struct model *m = within(0), *plain = llama(&small);
    struct rig r = rig_open(m, MC_GRAPH_EVAL, 1, T, 1, 1, NULL);
    struct rig one = rig_open(plain, MC_GRAPH_EVAL, 1, T, 1, 1, NULL);
    static double all[T], alone[T];
    int32_t tokens[T];
    double worst = 0;
    (void)st;
    formula_weights(&r);
    formula_weights(&one);
    make_tokens(tokens);
    losses(&r, tokens, T, all);
    for (int d = 0, from = 0; d < DOCS; from += lengths[d++]) {
        losses(&one, tokens + from, lengths[d], alone);
        for (int p = 0; p < lengths[d]; p++)
            worst = fmax(worst, fabs(alone[p] - all[from + p]));
    }
    print_message("  worst %.1e\n", worst);
    assert_true(worst <= 1e-11);
    rig_close(&r);
    rig_close(&one);
    mc_free(m);
    mc_free(plain);
}

/* Two sequences of a microbatch: the second begins a document of its own, whatever ended the first;
 * gradients of forward and backward with another microbatch between them stay right. */
static void sequences_and_slots_do_not_mix(void **st)
{
    struct model *m = within(0);
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, 2, 40, 1, 2, NULL);
    int32_t a[80], b[80], ta[80], tb[80];
    double sum = 0, *kept;
    size_t flat = (size_t)mc_graph_flat_count(r.g) * sizeof(double);
    (void)st;
    formula_weights(&r);
    formula_batch(1, 80, V, a, ta);
    formula_batch(2, 80, V, b, tb);
    a[39] = 2; /* no EOS at the end of the first sequence */
    a[12] = a[60] = b[5] = b[70] = EOS;
    struct mc_microbatch ma = {.b = 2, .t = 40, .tokens = a, .targets = ta};
    struct mc_microbatch mb = {.b = 2, .t = 40, .tokens = b, .targets = tb};
    mc_graph_zero_grads(r.g);
    pass_ok(mc_graph_forward(r.g, 0, &ma, 0, &sum, NULL));
    pass_ok(mc_graph_backward(r.g, 0, &ma, 0, 1, NULL));
    kept = mc_alloc(flat, "test");
    memcpy(kept, r.b.grads, flat);
    mc_graph_zero_grads(r.g);
    pass_ok(mc_graph_forward(r.g, 0, &ma, 0, &sum, NULL));
    pass_ok(mc_graph_forward(r.g, 1, &mb, 0, &sum, NULL));
    pass_ok(mc_graph_backward(r.g, 0, &ma, 0, 1, NULL));
    assert_memory_equal(kept, r.b.grads, flat);
    for (int i = 0; i < 40; i++) /* the second sequence's losses alone, before and after */
        ta[i] = -1;
    double one = 0, two = 0;
    pass_ok(mc_graph_forward(r.g, 0, &ma, 0, &one, NULL));
    a[39] = EOS;
    a[38] = 1;
    pass_ok(mc_graph_forward(r.g, 0, &ma, 0, &two, NULL));
    assert_true(one == two && one > 0);
    mc_free(kept);
    rig_close(&r);
    mc_free(m);
}

static void documents_need_an_eos(void **st)
{
    struct model *m = within(0);
    struct mc_err err = {0};
    struct mc_graph *g = NULL;
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, 1, T, 1, 1);
    (void)st;
    m->r.model.eos = -1;
    assert_int_equal(mc_graph_build(&cfg, &g, &err), MC_E_RECIPE);
    assert_non_null(strstr(err.msg, "model.eos"));
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_document_moves_no_other),
                                       cmocka_unit_test(a_document_gives_what_it_gives_alone),
                                       cmocka_unit_test(sequences_and_slots_do_not_mix),
                                       cmocka_unit_test(documents_need_an_eos)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
