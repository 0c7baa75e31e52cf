/* test_graph_gauge.c - sizes of the stream and norms of layers' gradients, by another way.
 * links: mc_optim
 *
 * What block l gives is read out of an INFER graph of l + 1 layers whose head is the identity: its
 * logits are the stream's rows, made token by token with caches. Gradients are summed by name. */
#include "graph_help.h"
#include "../../core/optim/optim.h"

enum { T = 9, H = 18, B = 3 };
static const struct sizes small = {3, H, 3, 1, 6, 22, H, T};

static struct model *model(int kind, int layers)
{
    struct sizes s = small;
    s.layers = layers;
    return kind ? llama(&s) : gpt2(&s, 0);
}

/* Sum of squares of the stream behind `layers` blocks. */
static double stream_squares(int kind, int layers, enum mc_dtype precision, const int32_t *tokens)
{
    struct model *m = model(kind, layers);
    m->r.precision = precision;
    m->head.n = 0;
    linear(&m->head, "id", 0, H, "none", 0);
    seal(m);
    struct rig r = rig_open(m, MC_GRAPH_INFER, 1, T, 1, 1, NULL);
    formula_weights(&r);
    for (int i = 0; i < mc_graph_nparams(r.g); i++) {
        const struct mc_param *p = mc_graph_param(r.g, i);
        for (int64_t k = 0; k < p->count && strcmp(p->name, "id.weight") == 0; k++)
            put(&r, r.b.params, p->offset + k, k % H == k / H);
    }
    double sum = 0;
    for (int b = 0; b < B; b++)
        for (int p = 0; p < T; p++) {
            const void *x = NULL;
            assert_int_equal(mc_graph_infer(r.g, tokens + b * T + p, 1, p, &x, NULL), MC_OK);
            for (int c = 0; c < H; c++)
                sum += get(&r, x, c) * get(&r, x, c);
        }
    rig_close(&r);
    mc_free(m);
    return sum;
}

static double relative(double a, double b)
{
    return fabs(a - b) / fabs(b);
}

static void gauge_is_the_stream(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct model *m = model(i & 1, 3);
        double sum[4] = {0}, tol = i & 2 ? 1e-12 : 1e-5;
        int32_t tokens[B * T], targets[B * T];
        int64_t n = formula_batch(2, B * T, H, tokens, targets);
        m->r.precision = i & 2 ? MC_F64 : MC_F32;
        m->r.parallel.recompute = i & 4 ? MC_RECOMPUTE_BLOCK : MC_RECOMPUTE_NONE;
        struct rig r = rig_open(m, MC_GRAPH_TRAIN, B, T, 2, 1, NULL);
        formula_weights(&r);
        for (int b = 0; b < B; b++) { /* one microbatch after the other adds up */
            struct mc_microbatch mb = {
                .b = 1, .t = T, .tokens = tokens + b * T, .targets = targets + b * T};
            mc_graph_gauge(r.g, sum);
            step_once(&r, &mb, n, 1);
        }
        mc_graph_gauge(r.g, NULL);
        double before = sum[3];
        struct mc_microbatch all = {.b = B, .t = T, .tokens = tokens, .targets = targets};
        step_once(&r, &all, n, 1);
        assert_true(sum[3] == before); /* nobody asks */
        for (int l = 0; l <= 3; l++) {
            double want;
            if (l == 0 && i & 1) { /* llama's stem is the embedding */
                want = 0;
                for (int p = 0; p < B * T; p++)
                    for (int c = 0; c < H; c++) {
                        double x = get(&r, r.b.params,
                                       mc_graph_param(r.g, 0)->offset + (int64_t)tokens[p] * H + c);
                        want += x * x;
                    }
            } else if (l == 0)
                continue;
            else
                want = stream_squares(i & 1, l, m->r.precision, tokens);
            if (!(relative(sum[l], want) <= tol))
                fail_msg("case %d, place %d: %.17g, by inference %.17g", i, l, sum[l], want);
        }
        rig_close(&r);
        mc_free(m);
    }
}

/* The same bits with any number of threads. */
static void gauge_does_not_depend_on_threads(void **state)
{
    (void)state;
    double sum[3][4] = {{0}};
    for (int threads = 1; threads <= 3; threads++) {
        struct model *m = model(1, 3);
        int32_t tokens[B * T], targets[B * T];
        struct mc_microbatch mb = {.b = B, .t = T, .tokens = tokens, .targets = targets};
        formula_batch(2, B * T, H, tokens, targets);
        struct rig r = rig_open(m, MC_GRAPH_EVAL, B, T, threads, 1, NULL);
        double loss = 0;
        formula_weights(&r);
        mc_graph_gauge(r.g, sum[threads - 1]);
        assert_int_equal(mc_graph_forward(r.g, 0, &mb, 0, &loss, NULL), MC_OK);
        rig_close(&r);
        mc_free(m);
    }
    assert_true(sum[0][3] > 0);
    assert_memory_equal(sum[0], sum[1], sizeof sum[0]);
    assert_memory_equal(sum[0], sum[2], sizeof sum[0]);
}

static void layer_norms_are_those_of_the_layers_names(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct model *m = model(i & 1, 3);
        struct mc_err err = {0};
        struct mc_optim *o;
        int32_t tokens[B * T], targets[B * T];
        struct mc_microbatch mb = {.b = B, .t = T, .tokens = tokens, .targets = targets};
        int64_t n = formula_batch(2, B * T, H, tokens, targets);
        double want[5] = {0}, got[5], whole = 0;
        m->r.precision = i & 2 ? MC_F64 : MC_F32;
        m->r.optim.eps = 1e-8;
        struct rig r = rig_open(m, MC_GRAPH_TRAIN, B, T, 2, 1, NULL);
        struct mc_optim_buffers ob = {
            .params = r.b.params, .grads = r.b.grads, .m = r.b.params, .v = r.b.params};
        formula_weights(&r);
        check_ok(mc_optim_create(&m->r, r.g, r.g, r.k, r.pool, &ob, NULL, &o, &err), &err);
        step_once(&r, &mb, n, 1);
        double norm = mc_optim_grad_norm(o);
        double parts[64];
        assert_true(mc_graph_nparams(r.g) <= 64);
        mc_optim_norm_parts(o, parts);
        mc_optim_layer_norms(o, parts, got);
        for (int k = 0; k < mc_graph_nparams(r.g); k++) {
            const struct mc_param *p = mc_graph_param(r.g, k);
            int layer, at = sscanf(p->name, "layers.%d.", &layer) == 1 ? layer + 1
                            : strncmp(p->name, "embed", 5) == 0 || strncmp(p->name, "pos", 3) == 0
                                ? 0
                                : 4;
            for (int64_t e = 0; e < p->count; e++) {
                double g = get(&r, r.b.grads, p->offset + e);
                want[at] += g * g;
            }
        }
        for (int l = 0; l < 5; l++) {
            whole += got[l] * got[l];
            if (!(relative(got[l], sqrt(want[l])) <= 1e-12))
                fail_msg("case %d, place %d: %.17g, by name %.17g", i, l, got[l], sqrt(want[l]));
        }
        assert_true(relative(sqrt(whole), norm) <= 1e-12);
        mc_optim_destroy(o);
        rig_close(&r);
        mc_free(m);
    }
}

/* By hand: llama of 3 layers, H = 18, q 18 x 18, k and v 6 x 18, o 18 x 18, three of 22 x 18, head
 * 18 x 18; attention of width 18 over T = 9, windows of none. */
static void flops_by_hand(void **state)
{
    (void)state;
    struct model *m = model(1, 3);
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, B, T, 1, 1, NULL);
    double weights = 3 * (18 * 18 + 2 * 6 * 18 + 18 * 18 + 3 * 22 * 18) + 18 * 18;
    double full = 6 * weights + 12.0 * 3 * 18 * 9, causal = 6 * weights + 6.0 * 3 * 18 * 9;
    assert_true(relative(mc_graph_flops_full(r.g, 2, T) / (2 * T), full) < 1e-15);
    assert_true(relative(mc_graph_flops(r.g, 2, T) / (2 * T), causal) < 1e-15);
    rig_close(&r);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gauge_is_the_stream),
        cmocka_unit_test(gauge_does_not_depend_on_threads),
        cmocka_unit_test(layer_norms_are_those_of_the_layers_names),
        cmocka_unit_test(flops_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
