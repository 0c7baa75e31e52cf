/* test_graph_infer.c - text token by token against whole sequences, and initial weights.
 * links: mc_graph
 *
 * EVAL gives no logits, so the reference is read out of its loss: with one unmasked target at
 * position p and token y, loss = -log softmax(logits_p)[y]; done for every y it gives the log
 * probabilities of the row, which must be those of INFER's logits. */
#include "graph_modern.h"
#include "../../core/base/rng.h"

enum { T = 11, V = 29 };
static const struct sizes small = {2, 18, 3, 1, 6, 22, V, T};

/* log softmax of row p, from T x V losses. */
static void eval_row(struct rig *r, int32_t *tokens, int p, double *logp)
{
    int32_t targets[T];
    struct mc_microbatch mb = {.b = 1, .t = T, .tokens = tokens, .targets = targets};
    for (int y = 0; y < V; y++) {
        double sum = 0;
        memset(targets, -1, sizeof targets);
        targets[p] = y;
        pass_ok(mc_graph_forward(r->g, 0, &mb, 0, &sum, NULL));
        logp[y] = -sum;
    }
}
static double row_differs(const struct rig *r, const void *logits, const double *logp)
{
    double top = -INFINITY, sum = 0, worst = 0;
    for (int y = 0; y < V; y++)
        top = fmax(top, get(r, logits, y));
    for (int y = 0; y < V; y++)
        sum += exp(get(r, logits, y) - top);
    for (int y = 0; y < V; y++) {
        double e = fabs(get(r, logits, y) - top - log(sum) - logp[y]);
        if (!(e <= worst)) /* NaN counts */
            worst = e;
    }
    return isnan(worst) ? INFINITY : worst;
}

static void infer_equals_eval_at_every_position(void **st)
{
    (void)st;
    for (int i = 0; i < 7; i++) {
        struct model *m = i > 4 ? modern(T) : i & 1 ? llama(&small) : gpt2(&small, 0.3);
        if (i == 4) { /* the head sees one row, and must know which */
            m->head.n = 0;
            call(&m->head, "positions", "pos2", 1, 0, 0, 0);
            linear(&m->head, "own", 1, V, "none", 0);
            seal(m);
        }
        m->r.precision = i & 2 ? MC_F64 : MC_F32; /* 5: fp32, 6: fp64 */
        struct rig e = rig_open(m, MC_GRAPH_EVAL, 1, T, 2, 1, NULL);
        struct rig f = rig_open(m, MC_GRAPH_INFER, 1, T, 2, 1, NULL);
        int32_t tokens[T], targets[T];
        double logp[T][V], worst = 0, tol = i & 2 ? 1e-12 : 1e-5;
        formula_batch(4, T, V, tokens, targets);
        tokens[2] = tokens[3] = tokens[7] = MODERN_EOS; /* documents of 3, 1, 4 and 3 tokens */
        formula_weights(&e);
        formula_weights(&f);
        for (int p = 0; p < T; p++)
            eval_row(&e, tokens, p, logp[p]);
        for (int p = 0; p < T; p++) /* one by one */
            worst = fmax(worst, row_differs(&f, infer(f.g, tokens + p, 1, p), logp[p]));
        for (int n = 1; n <= T; n++) { /* a prompt of n, then one by one; old caches overwritten */
            memset(f.b.kv, 0x7f, mc_graph_memory(f.g)->kv);
            worst = fmax(worst, row_differs(&f, infer(f.g, tokens, n, 0), logp[n - 1]));
            for (int p = n; p < T; p++)
                worst = fmax(worst, row_differs(&f, infer(f.g, tokens + p, 1, p), logp[p]));
        }
        memset(f.b.kv, 0x7f, mc_graph_memory(f.g)->kv);
        infer(f.g, tokens, 4, 0); /* and in pieces: 4 + 5 + 2 */
        infer(f.g, tokens + 4, 5, 4);
        worst = fmax(worst, row_differs(&f, infer(f.g, tokens + 9, 2, 9), logp[10]));
        print_message("  %s: worst %.1e\n", mc_dtype_name(m->r.precision), worst);
        assert_true(worst <= tol);
        assert_int_equal(mc_graph_memory(f.g)->grads, 0);
        assert_int_equal(mc_graph_memory(e.g)->slot, 0);
        rig_close(&e);
        rig_close(&f);
        mc_free(m);
    }
}

/* Training without dropout and evaluation are the same forward. */
static void eval_loss_is_training_loss(void **st)
{
    (void)st;
    for (int i = 0; i < 2; i++) {
        struct model *m = i ? llama(&small) : gpt2(&small, 0);
        struct rig a = rig_open(m, MC_GRAPH_TRAIN, 2, T, 2, 1, NULL);
        struct rig b = rig_open(m, MC_GRAPH_EVAL, 2, T, 2, 1, NULL);
        int32_t tokens[2 * T], targets[2 * T];
        struct mc_microbatch mb = {.b = 2, .t = T, .tokens = tokens, .targets = targets};
        int64_t n = formula_batch(4, 2 * T, V, tokens, targets);
        formula_weights(&a);
        formula_weights(&b);
        double la = step_once(&a, &mb, n, 1), lb = step_once(&b, &mb, n, 1);
        assert_memory_equal(&la, &lb, sizeof la);
        rig_close(&a);
        rig_close(&b);
        mc_free(m);
    }
}

/* Dropout: another step, another draw; the same step, the same; off in EVAL. */
static void dropout_is_keyed_by_step_and_row(void **st)
{
    struct model *m = gpt2(&small, 0.5);
    struct rig a = rig_open(m, MC_GRAPH_TRAIN, 1, T, 2, 1, NULL);
    int32_t tokens[T], targets[T];
    int64_t row[T];
    struct mc_microbatch mb = {
        .b = 1, .t = T, .tokens = tokens, .targets = targets, .logical_row = row};
    int64_t n = formula_batch(4, T, V, tokens, targets);
    (void)st;
    for (int i = 0; i < T; i++)
        row[i] = 500 + i;
    formula_weights(&a);
    double l1 = step_once(&a, &mb, n, 1), l2 = step_once(&a, &mb, n, 2),
           again = step_once(&a, &mb, n, 1);
    assert_true(l1 == again);
    assert_true(l1 != l2);
    for (int i = 0; i < T; i++)
        row[i] = 511 + i;
    assert_true(step_once(&a, &mb, n, 1) != l1);
    rig_close(&a);
    mc_free(m);
}

/* -- Initial weights -------------------------------------------------------------------------- */

static void initial_weights_depend_on_seed_and_name_alone(void **st)
{
    const struct mc_graph_opt apart = {.no_fuse = 1};
    struct model *m = gpt2(&small, 0);
    (void)st;
    m->r.precision = MC_F32;
    struct rig a = rig_open(m, MC_GRAPH_TRAIN, 1, T, 1, 1, NULL);
    struct rig b = rig_open(m, MC_GRAPH_EVAL, 2, 3, 2, 1, &apart);
    float *fa = a.b.params, *fb = b.b.params;
    double *wide = mc_alloc((size_t)mc_graph_flat_count(a.g) * 8, "test");
    mc_graph_init_params(a.g, 77, MC_F32, fa);
    mc_graph_init_params(b.g, 77, MC_F32, fb);
    mc_graph_init_params(a.g, 77, MC_F64, wide);
    for (int i = 0; i < mc_graph_nparams(a.g); i++) {
        const struct mc_param *p = mc_graph_param(a.g, i), *q = NULL;
        char key[128];
        double sum = 0, sq = 0;
        for (int j = 0; j < mc_graph_nparams(b.g); j++)
            if (strcmp(mc_graph_param(b.g, j)->name, p->name) == 0)
                q = mc_graph_param(b.g, j);
        assert_non_null(q);
        snprintf(key, sizeof key, "init%s", p->name);
        for (int64_t k = 0; k < p->count; k++) {
            float v = fa[p->offset + k];
            assert_true(v == fb[q->offset + k]);
            assert_true((double)v == wide[p->offset + k]);
            if (p->init == MC_INIT_ONES)
                assert_true(v == 1);
            else if (p->init == MC_INIT_ZEROS)
                assert_true(v == 0);
            else
                assert_true(v == (float)(0.02 * (double)mc_rng_normal(mc_rng_key(77, key), 0,
                                                                      (uint64_t)k)));
            sum += v;
            sq += (double)v * v;
        }
        if (p->init == MC_INIT_NORMAL) { /* mean within 5 sigma, deviation within 20 % */
            double n = (double)p->count;
            assert_true(fabs(sum / n) < 5 * 0.02 / sqrt(n));
            assert_true(fabs(sqrt(sq / n) / 0.02 - 1) < 0.2);
        }
    }
    assert_true(fa[mc_graph_param(a.g, 0)->offset] != fa[mc_graph_param(a.g, 1)->offset]);
    mc_free(wide);
    rig_close(&a);
    rig_close(&b);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(infer_equals_eval_at_every_position),
        cmocka_unit_test(eval_loss_is_training_loss),
        cmocka_unit_test(dropout_is_keyed_by_step_and_row),
        cmocka_unit_test(initial_weights_depend_on_seed_and_name_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
