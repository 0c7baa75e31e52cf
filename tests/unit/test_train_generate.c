/* test_train_generate.c - the draw of one token against probabilities worked out another way.
 * links: mc_train */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/train/session_int.h"

enum { V = 7 };
static const double logit[V] = {0.5, 2.0, -1.0, 2.0, 0.0, 1.5, -3.0};

/* Probabilities kept by temperature, top_k and top_p: by rank of each id, never by sorting. */
static void expected(double temperature, int64_t top_k, double top_p, double p[V])
{
    double mass[V], all = 0, sum = 0;
    int rank[V], kept[V] = {0};
    for (int i = 0; i < V; i++) {
        mass[i] = exp(logit[i] / temperature);
        rank[i] = 0;
        for (int k = 0; k < V; k++)
            rank[i] += logit[k] > logit[i] || (logit[k] == logit[i] && k < i);
    }
    for (int i = 0; i < V; i++)
        if (top_k == 0 || rank[i] < top_k)
            all += mass[i];
    for (int r = 0; r < V; r++)
        for (int i = 0; i < V; i++)
            if (rank[i] == r && (top_k == 0 || r < top_k) && (r == 0 || sum < top_p * all)) {
                kept[i] = 1;
                sum += mass[i];
            }
    for (int i = 0; i < V; i++)
        p[i] = kept[i] ? mass[i] / sum : 0;
}

/* u on a fine grid: how often each id is drawn is its probability. */
static void measured(const struct mc_generate_cfg *cfg, double p[V])
{
    enum { N = 100000 };
    _Alignas(16) char scratch[V * 32];
    assert_true(mc_generate_scratch(V) <= sizeof scratch);
    memset(p, 0, V * sizeof *p);
    for (int i = 0; i < N; i++) {
        int32_t id = mc_generate_draw(logit, V, cfg, (i + 0.5) / N, scratch);
        assert_in_range(id, 0, V - 1);
        p[id] += 1.0 / N;
    }
}

static void draw_follows_the_probabilities(void **state)
{
    (void)state;
    static const struct mc_generate_cfg row[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.3, .top_p = 1},
        {.temperature = 5, .top_p = 1},
        {.temperature = 1, .top_k = 1, .top_p = 1},
        {.temperature = 1, .top_k = 3, .top_p = 1},
        {.temperature = 1, .top_k = 100, .top_p = 1},
        {.temperature = 1, .top_p = 0.5},
        {.temperature = 1, .top_p = 1e-9},
        {.temperature = 2, .top_k = 5, .top_p = 0.8},
    };
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        double want[V], got[V];
        expected(row[r].temperature, row[r].top_k, row[r].top_p, want);
        measured(&row[r], got);
        for (int i = 0; i < V; i++)
            assert_true(fabs(got[i] - want[i]) < 5e-5);
    }
}

static void draw_at_temperature_0_is_the_first_largest(void **state)
{
    (void)state;
    _Alignas(16) char scratch[V * 32];
    struct mc_generate_cfg cfg = {.temperature = 0, .top_p = 1};
    for (int i = 0; i < 10; i++)
        assert_int_equal(mc_generate_draw(logit, V, &cfg, i / 10.0, scratch), 1);
}

static void draw_survives_extreme_logits_and_u(void **state)
{
    (void)state;
    _Alignas(16) char scratch[V * 32];
    const double far[V] = {-1e300, 1e300, -1e300, 0, 1e300, 1e300, -1e300};
    struct mc_generate_cfg cfg = {.temperature = 1e-3, .top_p = 1};
    assert_int_equal(mc_generate_draw(far, V, &cfg, 0, scratch), 1);
    assert_int_equal(mc_generate_draw(far, V, &cfg, nextafter(1, 0), scratch), 5);
    assert_int_equal(mc_generate_draw(logit, 1, &cfg, 0.999, scratch), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draw_follows_the_probabilities),
        cmocka_unit_test(draw_at_temperature_0_is_the_first_largest),
        cmocka_unit_test(draw_survives_extreme_logits_and_u),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
