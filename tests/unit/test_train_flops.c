/* test_train_flops.c - MFU and the work of a token, by hand.
 * links: mc_train */
#include "graph_help.h"
#include "../../core/train/flops.h"

static void mfu_is_work_over_time_and_peak(void **state)
{
    (void)state;
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    struct mc_flops f = {.causal = 5e8, .full = 6e8, .formula = 7e8};
    r->precision = MC_F32;
    assert_true(isnan(mc_flops_mfu(r, &f, 100, 1))); /* no peak is guessed */
    r->cluster.peak_fp32 = 0.15;                     /* TFLOP/s: 100 tokens/s are 6e10 of 1.5e11 */
    r->cluster.peak_fp64 = 0.3;
    assert_true(fabs(mc_flops_mfu(r, &f, 100, 1) - 0.4) < 1e-15);
    assert_true(fabs(mc_flops_mfu(r, &f, 100, 4) - 0.1) < 1e-15);
    r->precision = MC_F64;
    assert_true(fabs(mc_flops_mfu(r, &f, 100, 1) - 0.2) < 1e-15);
    r->precision = MC_BF16;
    assert_true(isnan(mc_flops_mfu(r, &f, 100, 1)));
    test_free(r);
}

/* GPT-2 of 2 layers, 18 wide, vocab 31, 9 positions, ffn 22, biases, tied: N leaves the positions
 * out, and counts the embedding, biases and norms. */
static void formula_counts_all_but_positions(void **state)
{
    (void)state;
    const struct sizes s = {2, 18, 3, 3, 6, 22, 31, 9};
    struct model *m = gpt2(&s, 0);
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, 1, 9, 1, 1, NULL);
    double block = 4 * (18 * 18 + 18) + 22 * 18 + 22 + 18 * 22 + 18 + 4 * 18;
    double n = 31 * 18 + 2 * block + 2 * 18;
    struct mc_flops f = mc_flops_of(&m->r, r.g, 9);
    assert_true(f.formula == 6 * n + 12.0 * 2 * 18 * 9);
    double weights = 2 * (4 * 18 * 18 + 2 * 22 * 18) + 31 * 18;
    assert_true(fabs(f.full / (6 * weights + 12.0 * 2 * 18 * 9) - 1) < 1e-15);
    rig_close(&r);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mfu_is_work_over_time_and_peak),
        cmocka_unit_test(formula_counts_all_but_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
