/* test_graph_grad.c - gradients of whole models by finite differences, in fp64, at odd sizes.
 * links: mc_graph
 *
 * Central differences of the loss in sampled elements of every parameter, h = 1e-5: truncation ~
 * h^2, cancellation ~ 1e-16 / h, so 1e-7 (of the largest gradient of the tensor, or 1e-2 of the
 * largest of all) is a test of the formulas alone. Shapes: T 1, 7, 129; heads 1, 3; head sizes 5
 * (without rope), 6; vocabulary 257; a model of every op. */
#include "graph_modern.h"

enum { MAX_ROWS = 512, SAMPLES = 6 };

struct batch {
    struct mc_microbatch mb;
    int32_t tokens[MAX_ROWS], targets[MAX_ROWS];
    int64_t row[MAX_ROWS], n;
};
static void make_batch(struct batch *x, int64_t b, int64_t t, int64_t vocab)
{
    assert_true(b * t <= MAX_ROWS);
    x->n = formula_batch(3, b * t, vocab, x->tokens, x->targets);
    for (int64_t i = 0; i < b * t; i++)
        x->row[i] = 1000 + i;
    if (x->n == 0) {
        x->targets[0] = 1;
        x->n = 1;
    }
    x->mb = (struct mc_microbatch){
        .b = b, .t = t, .tokens = x->tokens, .targets = x->targets, .logical_row = x->row};
}

static double loss_of(struct rig *r, const struct batch *x)
{
    double sum = 0;
    pass_ok(mc_graph_forward(r->g, 0, &x->mb, 5, &sum, NULL));
    return sum / (double)x->n;
}

/* Element i of p near its largest gradient first, then spread. */
static int64_t sample(const struct rig *r, const struct mc_param *p, int s)
{
    int64_t best = 0;
    if (s > 0)
        return (int64_t)(mix(name_hash(p->name) + (uint64_t)s) % (uint64_t)p->count);
    for (int64_t k = 1; k < p->count; k++)
        if (fabs(get(r, r->b.grads, p->offset + k)) > fabs(get(r, r->b.grads, p->offset + best)))
            best = k;
    return best;
}

static void check_model(struct model *m, int64_t b, int64_t t, const struct mc_graph_opt *opt)
{
    static struct batch x;
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, b, t, 2, 1, opt);
    double top = 0, worst = 0;
    make_batch(&x, b, t, m->r.model.vocab);
    formula_weights(&r);
    step_once(&r, &x.mb, x.n, 5);
    for (int64_t i = 0; i < mc_graph_flat_count(r.g); i++)
        top = fmax(top, fabs(get(&r, r.b.grads, i)));
    assert_true(top > 1e-3);
    for (int i = 0; i < mc_graph_nparams(r.g); i++) {
        const struct mc_param *p = mc_graph_param(r.g, i);
        double scale = 1e-2 * top;
        for (int64_t k = 0; k < p->count; k++)
            scale = fmax(scale, fabs(get(&r, r.b.grads, p->offset + k)));
        for (int s = 0; s < SAMPLES; s++) {
            int64_t at = p->offset + sample(&r, p, s);
            const double h = 1e-5, w = get(&r, r.b.params, at);
            put(&r, r.b.params, at, w + h);
            double up = loss_of(&r, &x);
            put(&r, r.b.params, at, w - h);
            double down = loss_of(&r, &x);
            put(&r, r.b.params, at, w);
            double e = fabs((up - down) / (2 * h) - get(&r, r.b.grads, at)) / scale;
            if (!(e <= 1e-7))
                fail_msg("%s[%lld]: differs by %g", p->name, (long long)(at - p->offset), e);
            worst = fmax(worst, e);
        }
    }
    print_message("  b %lld t %lld: worst %.1e\n", (long long)b, (long long)t, worst);
    rig_close(&r);
}

static void gpt2_gradients_at_odd_sizes(void **st)
{
    static const struct sizes s[] = {
        {1, 5, 1, 1, 5, 7, 257, 1}, {2, 15, 3, 3, 5, 11, 31, 7}, {1, 15, 3, 1, 5, 9, 257, 129}};
    (void)st;
    for (int i = 0; i < 3; i++) {
        struct model *m = gpt2(&s[i], 0);
        check_model(m, i == 2 ? 1 : 3, s[i].seq, NULL);
        mc_free(m);
    }
}

static void llama_gradients_at_odd_sizes(void **st)
{
    static const struct sizes s[] = {
        {1, 6, 1, 1, 6, 7, 257, 1}, {2, 18, 3, 1, 6, 11, 31, 7}, {1, 7, 3, 3, 6, 9, 257, 129}};
    (void)st;
    for (int i = 0; i < 3; i++) {
        struct model *m = llama(&s[i]);
        check_model(m, i == 2 ? 1 : 2, s[i].seq, NULL);
        mc_free(m);
    }
}

static void gradients_with_dropout(void **st)
{
    const struct sizes s = {2, 15, 3, 3, 5, 11, 31, 7};
    struct model *m = gpt2(&s, 0.3);
    (void)st;
    check_model(m, 3, 7, NULL);
    mc_free(m);
}

/* A head whose logits attention wrote: backward reads them again, so the loss may not write over
 * them. */
static void check_loss_of_shared_logits(void)
{
    const struct sizes s = {1, 6, 1, 1, 6, 7, 6, 7};
    struct model *m = gpt2(&s, 0);
    m->head.n = 1;
    call(&m->head, "attention", "", 3, 1, 1, 1);
    seal(m);
    check_model(m, 2, 7, NULL);
    /* and logits that are the sum of two fused outputs: their gradient lies over one of them */
    m->head.n = 1;
    linear(&m->head, "one", 1, 6, "none", 0);
    linear(&m->head, "two", 1, 6, "none", 0);
    call(&m->head, "add", "", 2, 2, 3, 0);
    seal(m);
    check_model(m, 2, 7, NULL);
    mc_free(m);
}

static void gradients_of_every_op_and_of_values_used_often(void **st)
{
    static const struct mc_graph_opt opts[] = {{0, 0}, {1, 0}, {0, 1}};
    struct model *m = odd_model();
    (void)st;
    for (int i = 0; i < 3; i++)
        check_model(m, 2, 7, &opts[i]);
    check_loss_of_shared_logits();
    for (int i = MC_RECOMPUTE_BLOCK; i <= MC_RECOMPUTE_OPS; i++) {
        m->r.parallel.recompute = (enum mc_recompute)i;
        m->r.parallel.nrecompute_ops = 3;
        strcpy(m->r.parallel.recompute_ops[0], "swiglu");
        strcpy(m->r.parallel.recompute_ops[1], "linear");
        strcpy(m->r.parallel.recompute_ops[2], "layernorm");
        check_model(m, 2, 7, NULL);
    }
    mc_free(m);
}

static void gradients_of_modern_models(void **st)
{
    static const struct mc_graph_opt opts[] = {{0, 0}, {1, 0}, {0, 1}};
    struct model *m = modern(11);
    (void)st;
    for (int i = 0; i < 3; i++)
        check_model(m, 3, 11, &opts[i]);
    m->r.parallel.recompute = MC_RECOMPUTE_BLOCK;
    check_model(m, 2, 7, NULL);
    check_model(m, 1, 1, NULL);
    mc_free(m);
}

static void all_targets_masked_gives_zero_loss_and_gradients(void **st)
{
    static struct batch x;
    const struct sizes s = {2, 15, 3, 3, 5, 11, 31, 7};
    struct model *m = gpt2(&s, 0);
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, 2, 7, 2, 1, NULL);
    (void)st;
    make_batch(&x, 2, 7, 31);
    for (int i = 0; i < 14; i++)
        x.targets[i] = -1;
    formula_weights(&r);
    double sum = 0;
    pass_ok(mc_graph_forward(r.g, 0, &x.mb, 1, &sum, NULL));
    mc_graph_zero_grads(r.g);
    pass_ok(mc_graph_backward(r.g, 0, &x.mb, 1, 1.0, NULL));
    finish_all(r.g);
    assert_true(sum == 0);
    for (int64_t i = 0; i < mc_graph_flat_count(r.g); i++)
        assert_true(get(&r, r.b.grads, i) == 0);
    rig_close(&r);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_gradients_at_odd_sizes),
        cmocka_unit_test(llama_gradients_at_odd_sizes),
        cmocka_unit_test(gradients_with_dropout),
        cmocka_unit_test(gradients_of_every_op_and_of_values_used_often),
        cmocka_unit_test(gradients_of_modern_models),
        cmocka_unit_test(all_targets_masked_gives_zero_loss_and_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
