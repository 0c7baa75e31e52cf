/* test_lr.c - learning-rate formulas against numbers published for Megatron's scheduler (init 0,
 * peak 1e-3, floor 1e-4, W 100, D 1000, A 200), to all printed digits.
 * links: mc_optim */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/optim/optim.h"

static struct mc_quantity q(int64_t n, enum mc_unit u)
{
    return (struct mc_quantity){n, u};
}

static struct mc_lr_cfg oracle(enum mc_lr_kind kind, enum mc_unit u)
{
    return (struct mc_lr_cfg){.kind = kind,
                              .peak = 1e-3,
                              .floor = 1e-4,
                              .power = 0.5,
                              .warmup = q(100, u),
                              .end = q(1000, u),
                              .decay = q(200, u)};
}

/* All counters but the one of `u` hold another value: reading the wrong one shows. */
static double lr_at(const struct mc_lr_cfg *lr, enum mc_unit u, int64_t n)
{
    struct mc_counters c = {7, 7, 7};
    *(u == MC_UNIT_TOKENS ? &c.tokens : u == MC_UNIT_SAMPLES ? &c.samples : &c.steps) = n;
    return mc_lr_at(lr, &c);
}

static void expect(const struct mc_lr_cfg *lr, enum mc_unit u, int64_t n, const char *digits)
{
    char got[32], want[32];
    snprintf(got, sizeof got, "%.9e", lr_at(lr, u, n));
    snprintf(want, sizeof want, "%.9e", atof(digits));
    if (strcmp(got, want) != 0)
        fail_msg("kind %d tail %d n %lld: %s, expected %s", lr->kind, lr->tail, (long long)n, got,
                 want);
}

static void lr_gives_published_numbers(void **state)
{
    (void)state;
    static const int64_t at[5] = {550, 850, 900, 1000, 1001};
    static const struct {
        enum mc_lr_kind kind;
        enum mc_lr_shape tail;
        const char *v[5];
    } rows[] = {
        {MC_LR_LINEAR, 0, {"5.5e-4", "2.5e-4", "2.0e-4", "1e-4", "1e-4"}},
        {MC_LR_COSINE, 0, {"5.5e-4", "1.602885683e-4", "1.271383206e-4", "1e-4", "1e-4"}},
        {MC_LR_INVERSE_SQRT,
         0,
         {"4.264014327e-4", "3.429971703e-4", "3.333333333e-4", "3.162277660e-4", "1e-4"}},
        {MC_LR_WSD,
         MC_SHAPE_EXPONENTIAL,
         {"1e-3", "7.136135475e-4", "4.727922061e-4", "1e-4", "1e-4"}},
        {MC_LR_WSD, MC_SHAPE_LINEAR, {"1e-3", "7.75e-4", "5.5e-4", "1e-4", "1e-4"}},
        {MC_LR_WSD, MC_SHAPE_COSINE, {"1e-3", "8.681980515e-4", "5.5e-4", "1e-4", "1e-4"}},
        {MC_LR_WSD, MC_SHAPE_SQRT, {"1e-3", "5.5e-4", "3.636038969e-4", "1e-4", "1e-4"}},
        {MC_LR_CONSTANT, 0, {"1e-3", "1e-3", "1e-3", "1e-3", "1e-3"}},
        /* with p = 1/2 the power law is the inverse square root */
        {MC_LR_POWER,
         0,
         {"4.264014327e-4", "3.429971703e-4", "3.333333333e-4", "3.162277660e-4", "1e-4"}},
    };
    static const enum mc_unit units[3] = {MC_UNIT_STEPS, MC_UNIT_SAMPLES, MC_UNIT_TOKENS};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (int u = 0; u < 3; u++) {
            struct mc_lr_cfg lr = oracle(rows[r].kind, units[u]);
            lr.tail = rows[r].tail;
            expect(&lr, units[u], 50, "5e-4");
            expect(&lr, units[u], 100, "1e-3");
            for (int i = 0; i < 5; i++)
                expect(&lr, units[u], at[i], rows[r].v[i]);
        }
}

/* Published for weight decay 0.01 -> 0.1 over 1000: the same shapes as pieces. */
static void lr_pieces_give_published_decay(void **state)
{
    (void)state;
    struct mc_lr_cfg lr = {.kind = MC_LR_PIECES, .npieces = 1};
    lr.piece[0] = (struct mc_lr_piece){q(1000, MC_UNIT_SAMPLES), 0.01, 0.1, MC_SHAPE_LINEAR};
    expect(&lr, MC_UNIT_SAMPLES, 250, "0.0325");
    expect(&lr, MC_UNIT_SAMPLES, 500, "0.055");
    expect(&lr, MC_UNIT_SAMPLES, 750, "0.0775");
    expect(&lr, MC_UNIT_SAMPLES, 2000, "0.1");
    lr.piece[0].shape = MC_SHAPE_COSINE;
    expect(&lr, MC_UNIT_SAMPLES, 250, "0.02318019485");
    expect(&lr, MC_UNIT_SAMPLES, 500, "0.055");
    expect(&lr, MC_UNIT_SAMPLES, 750, "0.08681980515");
}

/* A wsd schedule written as pieces is the same function. */
static void lr_pieces_equal_wsd(void **state)
{
    (void)state;
    static const enum mc_lr_shape tails[] = {MC_SHAPE_LINEAR, MC_SHAPE_COSINE, MC_SHAPE_SQRT,
                                             MC_SHAPE_EXPONENTIAL};
    for (int t = 0; t < 4; t++) {
        struct mc_lr_cfg a = oracle(MC_LR_WSD, MC_UNIT_STEPS), b = {.kind = MC_LR_PIECES};
        a.tail = tails[t];
        b.npieces = 3;
        b.piece[0] = (struct mc_lr_piece){q(100, MC_UNIT_STEPS), 0, 1e-3, MC_SHAPE_LINEAR};
        b.piece[1] = (struct mc_lr_piece){q(800, MC_UNIT_STEPS), 1e-3, 1e-3, MC_SHAPE_CONSTANT};
        b.piece[2] = (struct mc_lr_piece){q(1000, MC_UNIT_STEPS), 1e-3, 1e-4, tails[t]};
        for (int64_t n = 1; n <= 1010; n++) {
            double x = lr_at(&a, MC_UNIT_STEPS, n), y = lr_at(&b, MC_UNIT_STEPS, n);
            assert_true(fabs(x - y) <= 1e-15);
        }
        b.npieces = 2;
        assert_true(lr_at(&b, MC_UNIT_STEPS, 5000) == 1e-3);
    }
}

static void lr_first_step_is_not_zero(void **state)
{
    (void)state;
    struct mc_counters first = {1, 12, 768};
    for (int kind = MC_LR_CONSTANT; kind <= MC_LR_POWER; kind++) {
        struct mc_lr_cfg lr = oracle((enum mc_lr_kind)kind, MC_UNIT_TOKENS);
        lr.warmup.n = 76800;
        lr.end.n = 768000;
        assert_true(fabs(mc_lr_at(&lr, &first) - 1e-5) < 1e-19);
        lr.init = 4e-4;
        assert_true(fabs(mc_lr_at(&lr, &first) - (4e-4 + 6e-6)) < 1e-18);
        lr.warmup.n = 0;
        assert_true(mc_lr_at(&lr, &first) > 0);
    }
}

static void lr_without_end_keeps_its_tail(void **state)
{
    (void)state;
    struct mc_lr_cfg lr = oracle(MC_LR_INVERSE_SQRT, MC_UNIT_STEPS);
    lr.end.n = 0;
    expect(&lr, MC_UNIT_STEPS, 2500, "2e-4");
    expect(&lr, MC_UNIT_STEPS, 1000000, "1e-4"); /* the floor */
    lr.kind = MC_LR_POWER;
    lr.power = 1;
    expect(&lr, MC_UNIT_STEPS, 400, "2.5e-4");
}

static void lr_table_holds_its_last_value(void **state)
{
    (void)state;
    double v[3] = {3, 2, 1};
    struct mc_lr_cfg lr = {.kind = MC_LR_TABLE, .ntable = 3, .table = v};
    assert_true(lr_at(&lr, MC_UNIT_STEPS, 1) == 3);
    assert_true(lr_at(&lr, MC_UNIT_STEPS, 3) == 1);
    assert_true(lr_at(&lr, MC_UNIT_STEPS, 99) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lr_gives_published_numbers),
        cmocka_unit_test(lr_pieces_give_published_decay),
        cmocka_unit_test(lr_pieces_equal_wsd),
        cmocka_unit_test(lr_first_step_is_not_zero),
        cmocka_unit_test(lr_without_end_keeps_its_tail),
        cmocka_unit_test(lr_table_holds_its_last_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
