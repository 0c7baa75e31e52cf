/* test_graph_model.c - whole gpt2 and llama against PyTorch: loss, every gradient, 20 AdamW steps.
 * links: mc_graph
 *
 * The reference is golden/model/reference.py, written in other terms (full softmax, complex numbers
 * for rope), in fp64. The metric is per tensor ||a-b|| / max(||ref||, 1e-3 ||all|| sqrt(n/N)). A
 * key bias without rope has an exactly zero gradient, and in a model this small the metric's floor
 * does not cover its rounding noise (PyTorch's own fp32 gradient of layers.0.attn.k.bias is 4.5e-5
 * away from its fp64 one, ours 6e-5): in fp32 it is held to 1e-7 of the whole gradient instead, by
 * name. AdamW here is the plain formula, so that the graph is judged apart from the optimizer's
 * kernel. */
#include "graph_golden.h"

/* Largest deviation of a gradient by the metric above. */
static double worst_gradient(const struct rig *r, const struct reference *ref)
{
    double all = 0, worst = 0;
    for (long i = 0; i < ref->n; i++)
        all += ref->g[i] * ref->g[i];
    assert_int_equal(ref->ngrad, mc_graph_nparams(r->g));
    assert_int_equal(ref->n, mc_graph_param_count(r->g));
    for (int i = 0; i < ref->ngrad; i++) {
        const struct mc_param *p = mc_graph_param(r->g, param_of(r, ref->grad[i].name));
        double diff = 0, size = 0, floor_, n = (double)ref->grad[i].count;
        assert_int_equal(p->count, ref->grad[i].count);
        for (int64_t k = 0; k < p->count; k++) {
            double want = ref->g[ref->grad[i].offset + k],
                   d = get(r, r->b.grads, p->offset + k) - want;
            diff += d * d;
            size += want * want;
        }
        floor_ = 1e-3 * sqrt(all) * sqrt(n / (double)ref->n);
        double e = sqrt(diff) / fmax(sqrt(size), floor_);
        if (is_key_bias(p->name) && r->elem == 4) {
            assert_true(sqrt(diff) <= 1e-7 * sqrt(all));
            continue;
        }
        if (!(e <= worst))
            worst = e;
    }
    return worst;
}

/* w <- w - lr (mhat / (sqrt(vhat) + eps) + decay w) */
static void naive_adamw(struct rig *r, double *m, double *v, int t, double clip)
{
    const double lr = 1e-3, b1 = 0.9, b2 = 0.95, eps = 1e-8;
    double sum = 0;
    for (int64_t i = 0; i < mc_graph_flat_count(r->g); i++)
        sum += pow(get(r, r->b.grads, i), 2);
    double scale = fmin(1, clip / (sqrt(sum) + 1e-6));
    for (int i = 0; i < mc_graph_nparams(r->g); i++) {
        const struct mc_param *p = mc_graph_param(r->g, i);
        double decay = p->shape.nd > 1 ? 0.1 : 0;
        for (int64_t k = p->offset; k < p->offset + p->count; k++) {
            double g = scale * get(r, r->b.grads, k), w = get(r, r->b.params, k);
            m[k] = b1 * m[k] + (1 - b1) * g;
            v[k] = b2 * v[k] + (1 - b2) * g * g;
            double mh = m[k] / (1 - pow(b1, t)), vh = v[k] / (1 - pow(b2, t));
            put(r, r->b.params, k, w - lr * (mh / (sqrt(vh) + eps) + decay * w));
        }
    }
}

static void compare(const char *name, struct model *m, enum mc_dtype dtype, double grad_tol,
                    double loss_tol, double final_tol)
{
    struct reference ref;
    int32_t tokens[B * T], targets[B * T];
    struct mc_microbatch mb = {.b = B, .t = T, .tokens = tokens, .targets = targets};
    m->r.precision = dtype;
    read_reference(name, &ref);
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, B, T, 2, 1, NULL);
    size_t flat = (size_t)mc_graph_flat_count(r.g);
    double *mom = mc_alloc(2 * flat * 8, "test");
    double worst_loss = 0, worst_final = 0, worst_grad = 0, all = 0;
    formula_weights(&r);
    for (int s = 1; s <= STEPS; s++) {
        int64_t n = formula_batch(s, B * T, m->r.model.vocab, tokens, targets);
        double loss = step_once(&r, &mb, n, s), norm = 0;
        for (size_t i = 0; i < flat; i++)
            norm += pow(get(&r, r.b.grads, (int64_t)i), 2);
        if (s == 1)
            worst_grad = worst_gradient(&r, &ref);
        worst_loss = fmax(worst_loss, fabs(loss - ref.loss[s]) / ref.loss[s]);
        worst_loss = fmax(worst_loss, fabs(sqrt(norm) - ref.norm[s]) / ref.norm[s] / 10);
        naive_adamw(&r, mom, mom + flat, s, 1.0);
    }
    assert_int_equal(ref.nfinal, mc_graph_nparams(r.g));
    for (int i = 0; i < ref.nfinal; i++)
        all += ref.final[i].norm * ref.final[i].norm;
    for (int i = 0; i < ref.nfinal; i++) {
        const struct mc_param *p = mc_graph_param(r.g, param_of(&r, ref.final[i].name));
        double sum = 0;
        for (int64_t k = 0; k < p->count; k++)
            sum += pow(get(&r, r.b.params, p->offset + k), 2);
        if (!is_key_bias(p->name))
            worst_final = fmax(worst_final, fabs(sqrt(sum) - ref.final[i].norm) /
                                                fmax(ref.final[i].norm, 1e-3 * sqrt(all)));
    }
    print_message("%s %s: gradients %.2e, loss and norm over 20 steps %.2e, weights %.2e\n", name,
                  mc_dtype_name(dtype), worst_grad, worst_loss, worst_final);
    assert_true(worst_grad <= grad_tol);
    assert_true(worst_loss <= loss_tol);
    assert_true(worst_final <= final_tol);
    mc_free(mom);
    mc_free(ref.g);
    rig_close(&r);
    mc_free(m);
}

static void gpt2_equals_pytorch_in_fp64(void **st)
{
    (void)st;
    compare("gpt2", gpt2(&gpt2_sizes, 0), MC_F64, 1e-11, 1e-10, 1e-9);
}
static void llama_equals_pytorch_in_fp64(void **st)
{
    (void)st;
    compare("llama", llama(&llama_sizes), MC_F64, 1e-11, 1e-10, 1e-9);
}
static void gpt2_equals_pytorch_in_fp32(void **st)
{
    (void)st;
    compare("gpt2", gpt2(&gpt2_sizes, 0), MC_F32, 1e-5, 2e-5, 1e-4);
}
static void llama_equals_pytorch_in_fp32(void **st)
{
    (void)st;
    compare("llama", llama(&llama_sizes), MC_F32, 1e-5, 2e-5, 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpt2_equals_pytorch_in_fp64),
                                       cmocka_unit_test(llama_equals_pytorch_in_fp64),
                                       cmocka_unit_test(gpt2_equals_pytorch_in_fp32),
                                       cmocka_unit_test(llama_equals_pytorch_in_fp32)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
