/* test_train_anomaly.c - the window of gradient norms against sorting it anew, and the verdicts.
 * links: mc_train */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include "../../core/train/train_int.h"

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The definition: sort the last cap values, take the middle. */
static double median_by_sorting(const double *all, int n, int cap)
{
    double w[MC_SPIKES_MAX];
    if (n < cap)
        return NAN;
    for (int i = 0; i < cap; i++)
        w[i] = all[n - cap + i];
    qsort(w, (size_t)cap, sizeof *w, cmp);
    return cap % 2 ? w[cap / 2] : (w[cap / 2 - 1] + w[cap / 2]) / 2;
}

static void spikes_median_is_that_of_the_last_cap_values(void **state)
{
    (void)state;
    static const int caps[] = {1, 2, 8, 9, 101, 1024};
    static struct mc_spikes s;
    static double all[3000];
    for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
        uint64_t x = 12345 + c;
        mc_spikes_init(&s, caps[c]);
        for (int i = 0; i < 3000; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            all[i] = (double)(x >> 60); /* 16 values: many ties */
            if (i % 3 == 0)
                all[i] = (double)(x >> 11) * 0x1p-53;
            mc_spikes_push(&s, all[i]);
            double want = median_by_sorting(all, i + 1, caps[c]), got = mc_spikes_median(&s);
            if (isnan(want))
                assert_true(isnan(got));
            else
                assert_true(got == want);
        }
    }
}

static struct mc_anomaly_cfg rule(double factor)
{
    return (struct mc_anomaly_cfg){.spike_factor = factor, .spike_window = 8, .max_skips = 3};
}

static void anomaly_judges_nonfinite_before_all_else(void **state)
{
    (void)state;
    static struct mc_spikes s;
    struct mc_anomaly_cfg off = rule(0);
    mc_spikes_init(&s, 8);
    assert_string_equal(mc_anomaly_judge(&off, &s, NAN, 1).kind, "nonfinite_loss");
    assert_string_equal(mc_anomaly_judge(&off, &s, INFINITY, NAN).kind, "nonfinite_loss");
    assert_string_equal(mc_anomaly_judge(&off, &s, 1, INFINITY).kind, "nonfinite_grad");
    assert_string_equal(mc_anomaly_judge(&off, &s, 1, NAN).kind, "nonfinite_grad");
    assert_null(mc_anomaly_judge(&off, &s, 1, 1e300).kind);
}

static void anomaly_spike_needs_a_full_window_and_more_than_the_factor(void **state)
{
    (void)state;
    static struct mc_spikes s;
    struct mc_anomaly_cfg on = rule(4);
    mc_spikes_init(&s, 8);
    for (int i = 0; i < 7; i++)
        mc_spikes_push(&s, 1 + i % 2); /* 1 2 1 2 1 2 1 */
    assert_null(mc_anomaly_judge(&on, &s, 1, 1000).kind);
    mc_spikes_push(&s, 2);
    assert_null(mc_anomaly_judge(&on, &s, 1, 6).kind); /* median 1.5; 6 is not above 4 * 1.5 */
    struct mc_verdict v = mc_anomaly_judge(&on, &s, 1, 6.5);
    assert_string_equal(v.kind, "spike");
    assert_true(v.ratio == 6.5 / 1.5);
    struct mc_anomaly_cfg off = rule(0);
    assert_null(mc_anomaly_judge(&off, &s, 1, 6.5).kind);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spikes_median_is_that_of_the_last_cap_values),
        cmocka_unit_test(anomaly_judges_nonfinite_before_all_else),
        cmocka_unit_test(anomaly_spike_needs_a_full_window_and_more_than_the_factor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
