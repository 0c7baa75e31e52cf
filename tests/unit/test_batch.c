/* test_batch.c - the batch ramp and the way to the target, against a walk step by step.
 * links: mc_optim */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/optim/optim.h"

static struct mc_quantity q(int64_t n, enum mc_unit u)
{
    return (struct mc_quantity){n, u};
}

static int64_t rnd(uint64_t *s, int64_t n) /* xorshift: the tests' own numbers */
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (int64_t)(*s % (uint64_t)n);
}

static void batch_is_constant_without_ramp(void **state)
{
    (void)state;
    struct mc_batch_cfg b = {.global = 512};
    struct mc_counters c = {5, 6, 7};
    assert_int_equal(mc_batch_at(&b, &c), 512);
}

static void batch_changes_at_the_point_itself(void **state)
{
    (void)state;
    struct mc_batch_cfg b = {.global = 512, .nramp = 3};
    b.ramp[0] = (struct mc_ramp_point){q(0, MC_UNIT_TOKENS), 128};
    b.ramp[1] = (struct mc_ramp_point){q(1000, MC_UNIT_TOKENS), 256};
    b.ramp[2] = (struct mc_ramp_point){q(5000, MC_UNIT_TOKENS), 512};
    static const int64_t at[][2] = {{0, 128},    {999, 128},  {1000, 256},
                                    {4999, 256}, {5000, 512}, {1 << 30, 512}};
    for (int i = 0; i < 6; i++) {
        struct mc_counters c = {9999, 9999, at[i][0]};
        assert_int_equal(mc_batch_at(&b, &c), at[i][1]);
    }
}

/* Random ramps, targets and starts: the closed form is the walk. */
static void batch_steps_to_go_equals_a_walk(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252ull;
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    for (int round = 0; round < 3000; round++) {
        r->model.seq = 1 + rnd(&seed, 16);
        r->batch.global = 1 + rnd(&seed, 20);
        r->batch.nramp = (int)rnd(&seed, 5);
        enum mc_unit unit = (enum mc_unit)(MC_UNIT_STEPS + rnd(&seed, 3));
        int64_t at = 0;
        for (int i = 0; i < r->batch.nramp; i++) {
            r->batch.ramp[i] = (struct mc_ramp_point){q(at, unit), 1 + rnd(&seed, 20)};
            at += 1 + rnd(&seed, 300);
        }
        r->steps = q(1 + rnd(&seed, 4000), (enum mc_unit)(MC_UNIT_STEPS + rnd(&seed, 3)));
        struct mc_counters c = {0};
        int64_t skip = rnd(&seed, 40), n = 0;
        for (int64_t i = 0; i < skip; i++) {
            int64_t b = mc_batch_at(&r->batch, &c);
            c = (struct mc_counters){c.steps + 1, c.samples + b, c.tokens + b * r->model.seq};
        }
        struct mc_counters w = c;
        for (; !mc_target_reached(&r->steps, &w); n++) {
            int64_t b = mc_batch_at(&r->batch, &w);
            w = (struct mc_counters){w.steps + 1, w.samples + b, w.tokens + b * r->model.seq};
        }
        assert_int_equal(mc_steps_to_go(r, &c), n);
        assert_int_equal(mc_samples_to_go(r, &c), w.samples - c.samples);
    }
    test_free(r);
}

static void batch_phases_hold_from_their_point(void **state)
{
    (void)state;
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    r->model.seq = 1024;
    r->batch.global = 64;
    r->data.nphases = 3;
    r->data.phase[0] = (struct mc_phase_cfg){.from = q(1000000, MC_UNIT_TOKENS), .seq = 4096};
    r->data.phase[1] = (struct mc_phase_cfg){.from = q(2000000, MC_UNIT_TOKENS),
                                             .batch = q(65536, MC_UNIT_TOKENS)};
    r->data.phase[2] = (struct mc_phase_cfg){
        .from = q(3000000, MC_UNIT_TOKENS), .seq = 8192, .nweights = 1, .weight = {1}};
    static const int64_t at[][4] = {{0, 0, 1024, 64},       {999999, 0, 1024, 64},
                                    {1000000, 1, 4096, 64}, {1999999, 1, 4096, 64},
                                    {2000000, 2, 4096, 16}, {3000000, 3, 8192, 8}};
    for (int i = 0; i < 6; i++) {
        struct mc_counters c = {7, 7, at[i][0]};
        struct mc_phase_now p = mc_phase_at(r, &c);
        assert_int_equal(p.index, at[i][1]);
        assert_int_equal(p.seq, at[i][2]);
        assert_int_equal(p.global, at[i][3]);
        assert_true(p.weight == (i == 5 ? r->data.phase[2].weight : NULL));
    }
    test_free(r);
}

/* The same walk with phases over the ramp. */
static void batch_steps_to_go_with_phases_equals_a_walk(void **state)
{
    (void)state;
    uint64_t seed = 42;
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    for (int round = 0; round < 3000; round++) {
        enum mc_unit unit = (enum mc_unit)(MC_UNIT_STEPS + rnd(&seed, 3));
        int64_t at = 0;
        r->model.seq = 1 + rnd(&seed, 16);
        r->batch.global = 1 + rnd(&seed, 20);
        r->batch.nramp = 2;
        r->batch.ramp[0] = (struct mc_ramp_point){q(0, MC_UNIT_SAMPLES), 1 + rnd(&seed, 20)};
        r->batch.ramp[1] = (struct mc_ramp_point){q(1 + rnd(&seed, 500), MC_UNIT_SAMPLES), 5};
        r->data.nphases = (int)rnd(&seed, 5);
        for (int i = 0; i < r->data.nphases; i++) {
            struct mc_phase_cfg *p = &r->data.phase[i];
            *p = (struct mc_phase_cfg){.from = q(at, unit)};
            p->seq = rnd(&seed, 2) ? 1 + rnd(&seed, 16) : 0;
            p->batch = q(rnd(&seed, 2) ? 1 + rnd(&seed, 20) : 0, MC_UNIT_SAMPLES);
            at += 1 + rnd(&seed, 300);
        }
        r->steps = q(1 + rnd(&seed, 4000), (enum mc_unit)(MC_UNIT_STEPS + rnd(&seed, 3)));
        struct mc_counters w = {0}, zero = {0};
        for (; !mc_target_reached(&r->steps, &w);) {
            int64_t seq = r->model.seq, b = mc_batch_at(&r->batch, &w);
            for (int i = 0; i < r->data.nphases; i++) {
                const struct mc_phase_cfg *p = &r->data.phase[i];
                int64_t done = unit == MC_UNIT_STEPS     ? w.steps
                               : unit == MC_UNIT_SAMPLES ? w.samples
                                                         : w.tokens;
                if (p->from.n <= done) {
                    seq = p->seq ? p->seq : seq;
                    b = p->batch.n ? p->batch.n : b;
                }
            }
            w = (struct mc_counters){w.steps + 1, w.samples + b, w.tokens + b * seq};
        }
        assert_int_equal(mc_steps_to_go(r, &zero), w.steps);
        assert_int_equal(mc_samples_to_go(r, &zero), w.samples);
    }
    test_free(r);
}

static void batch_steps_to_go_says_too_many(void **state)
{
    (void)state;
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    struct mc_counters c = {0};
    r->model.seq = 1;
    r->batch.global = 1;
    r->steps = q(((int64_t)1 << 40) + 1, MC_UNIT_TOKENS);
    assert_int_equal(mc_steps_to_go(r, &c), -1);
    assert_int_equal(mc_samples_to_go(r, &c), -1);
    r->steps.n--;
    assert_int_equal(mc_steps_to_go(r, &c), (int64_t)1 << 40);
    r->model.seq = 1 << 20; /* counters would leave int64: no wrong number */
    r->batch.global = 1 << 20;
    r->steps = q((int64_t)1 << 39, MC_UNIT_STEPS);
    assert_int_equal(mc_steps_to_go(r, &c), -1);
    test_free(r);
}

static void batch_target_is_reached_at_equality(void **state)
{
    (void)state;
    struct mc_counters c = {10, 20, 30};
    struct mc_quantity t[3] = {q(10, MC_UNIT_STEPS), q(20, MC_UNIT_SAMPLES), q(30, MC_UNIT_TOKENS)};
    for (int i = 0; i < 3; i++) {
        assert_true(mc_target_reached(&t[i], &c));
        t[i].n++;
        assert_false(mc_target_reached(&t[i], &c));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_is_constant_without_ramp),
        cmocka_unit_test(batch_changes_at_the_point_itself),
        cmocka_unit_test(batch_steps_to_go_equals_a_walk),
        cmocka_unit_test(batch_phases_hold_from_their_point),
        cmocka_unit_test(batch_steps_to_go_with_phases_equals_a_walk),
        cmocka_unit_test(batch_steps_to_go_says_too_many),
        cmocka_unit_test(batch_target_is_reached_at_equality),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
