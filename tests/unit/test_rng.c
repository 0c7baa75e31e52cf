/* test_rng.c - Philox against its published known answers; normals against quantiles computed with
 * 60 digits, against moments, and against a pinned hash; permutations against the definition.
 * links: mc_base */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/base/hash.h"
#include "../../core/base/rng.h"

static void philox_known_answers(void **state)
{
    (void)state;
    /* counter, key, answer: from the Random123 distribution, philox4x32 10 */
    static const uint32_t kat[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        mc_philox4x32(kat[i], kat[i] + 4, out);
        assert_memory_equal(out, kat[i] + 6, sizeof out);
    }
}

static void u64_counter_is_index_then_step(void **state)
{
    (void)state;
    /* the third known answer again, through the draw's interface */
    uint64_t key = UINT64_C(0x299f31d0a4093822);
    uint64_t index = UINT64_C(0x85a308d3243f6a88), step = UINT64_C(0x0370734413198a2e);
    assert_int_equal(mc_rng_u64(key, step, index), UINT64_C(0x94fdccebd16cfe09));
    assert_true(mc_rng_uniform(key, step, index) ==
                (double)(UINT64_C(0x94fdccebd16cfe09) >> 11) / 9007199254740992.0);
}

static void keys_differ_by_seed_and_name(void **state)
{
    (void)state;
    uint64_t k[400];
    int n = 0;
    for (uint64_t seed = 0; seed < 20; seed++)
        for (int i = 0; i < 20; i++) {
            char name[32];
            snprintf(name, sizeof name, "layers.%d.attn.q.weight", i);
            k[n++] = mc_rng_key(seed, name);
        }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(k[i], k[j]);
    assert_int_equal(mc_rng_key(7, "x"), mc_rng_key(7, "x"));
}

/* {p, quantile}: Newton on log erfc with 60 digits */
static const double quantiles[][2] = {
    {0x1.0000000000000p-53, -8.2095361516013868556},
    {0x1.8000000000000p-52, -8.0765710041301246502},
    {0x1.0000020000000p-30, -6.00935354620247217},
    {0x1.56e1fc2f8f359p-997, -37.047096299361199237},
    {0x1.bff2ee48e0530p-333, -21.273453560965324294},
    {0x1.cd2b297d889bcp-54, -8.2220822161304356152},
    {0x1.19799812dea11p-40, -7.0344838253011319326},
    {0x1.12e0be826d695p-30, -5.9978070150076868614},
    {0x1.0c6f7a0b5ed8dp-20, -4.7534243088228989573},
    {0x1.61de1f985b5f0p-10, -2.9999999999999987654},
    {0x1.8d4fdf3b645a2p-6, -1.9729610513118848376},
    {0x1.3333185b40987p-4, -1.4395321773759005864},
    {0x1.3333333333333p-4, -1.4395314709384559349},
    {0x1.33334e0b25cdfp-4, -1.4395307645017296865},
    {0x1.0000000000000p-2, -0.6744897501960817432},
    {0x1.0000000000000p-1, 0.0},
    {0x1.3333333333333p-1, 0.25334710313579974132},
    {0x1.8000000000000p-1, 0.6744897501960817432},
    {0x1.d999963e9b464p-1, 1.4395307645017295885},
    {0x1.d99999999999ap-1, 1.4395314709384562291},
    {0x1.e666666666666p-1, 1.6448536269514722843},
    {0x1.f333333333333p-1, 1.9599639845400538556},
    {0x1.fae147ae147aep-1, 2.3263478740408407676},
    {0x1.ff7ced916872bp-1, 3.0902323061678132778},
    {0x1.ffffde7210be9p-1, 4.7534243088170877657},
    {0x1.fffffffffffffp-1, 8.2095361516013868556},
    {0x1.ffffffffffffdp-1, 8.0765710041301246502},
    {0x1.e8a37a45fc32ep-37, -6.6579046435011035837},
    {0x1.e8a37a4e2ee2cp-37, -6.657904643354087637},
    {0x1.0000000000002p-1, 5.5658328493435338445e-16},
    {0x1.fffffffffc000p-2, -2.2797651350911114627e-12},
    {0x1.e54e8a5cd6871p-1, 1.6244944806286286265},
    {0x1.944c89a7834dep-2, -0.26676976302813060674},
    {0x1.8b8f4d4748a10p-5, -1.6617036437673650518},
    {0x1.a47e025165e67p-1, 0.92023062364308952071},
    {0x1.818e892f902b8p-4, -1.3157435050999893594},
    {0x1.2a632bb3b93f1p-1, 0.20903069716137189277},
    {0x1.d1c4a1db208ebp-1, 1.3389302525057191003},
    {0x1.b7b3c0f3a77acp-3, -0.79022454579712265212},
    {0x1.600a099950d88p-4, -1.3661428057559035725},
    {0x1.ac355bc0d9d6ap-2, -0.20657140717929483661},
    {0x1.ece088f105c7cp-3, -0.70417261534804883224},
    {0x1.1a22c2e71efb3p-1, 0.12830566257640418858},
    {0x1.e43ad95a944d0p-5, -1.5622878825654856311},
    {0x1.21833a759295fp-1, 0.16481275514089793676},
    {0x1.e51823f62f847p-1, 1.6206142434821940265},
    {0x1.42e16724c60b3p-1, 0.33351161330446305728},
    {0x1.2a7e9413eed6bp-1, 0.20956645091122300497},
    {0x1.fac7e53a1b530p-5, -1.5393216487186491692},
    {0x1.2bcc1277a099fp-1, 0.21609030549930899073},
    {0x1.963ccb19b4290p-5, -1.6488465733784945418},
    {0x1.c4c6fcf5ed664p-3, -0.76854186339682573754},
    {0x1.1d03217d9af61p-1, 0.14251785454071938565},
    {0x1.10bdede24b65cp-3, -1.1115085252121342969},
    {0x1.ad32d288f565ap-2, -0.20409614195568478495},
    {0x1.14d4c49dbcd49p-1, 0.10216158678389913118},
    {0x1.244ec3c4f4381p-1, 0.17870015726754973367},
    {0x1.1eda09df15471p-1, 0.15162147377386368021},
    {0x1.5d2f7a1db505fp-1, 0.47330680448983387115},
    {0x1.a61d2e44158b8p-4, -1.2643335141534286239},
    {0x1.2474f29c77f23p-1, 0.17944217270379657731},
    {0x1.7c6030a18b000p-13, -3.5657952021117804476},
    {0x1.1a00000000000p-46, -7.5927928330318348524},
    {0x1.20f0809781bc0p-7, -2.3731842288503866826},
    {0x1.3000000000000p-49, -7.8482493589341128522},
    {0x1.fc58000000000p-40, -6.9515868382181361217},
    {0x1.b5e207b458a00p-10, -2.9345068648809452748},
    {0x1.dcc6506bf2ef8p-4, -1.1931768240904768921},
    {0x1.dec66a7878000p-16, -4.0245909441337911286},
    {0x1.32f61e0000000p-30, -5.9798495459130139009},
    {0x1.96b9000000000p-37, -6.6848286081148586044},
    {0x1.65f0000000000p-41, -7.097357355252347856},
    {0x1.4f44f9f46fee0p-6, -2.0442744161520404161},
    {0x1.04cdd20558000p-16, -4.1653299585392165494},
    {0x1.c012058f00000p-21, -4.7898341353077685454},
    {0x1.7579dc0000000p-31, -6.06029776803828617},
};

static void quantile_is_right_to_1e_15(void **state)
{
    (void)state;
    double worst = 0;
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        double p = quantiles[i][0], want = quantiles[i][1], got = mc_rng_normal_quantile(p);
        double e = want == 0 ? fabs(got) : fabs(got - want) / fabs(want);
        if (e > worst)
            worst = e;
        if (e > 1e-15)
            fail_msg("p %a: %.20g, not %.20g", p, got, want);
    }
    print_message("largest relative error of the quantile: %.3g\n", worst);
    assert_true(worst > 0); /* the comparison compares */
}

static void quantile_is_monotone_and_odd(void **state)
{
    (void)state;
    double last = -100;
    for (int i = 1; i < 20000; i++) {
        double p = i / 20000.0, x = mc_rng_normal_quantile(p);
        assert_true(x > last);
        last = x;
    }
    for (int i = 0; i < 1000; i++) { /* p and 1-p, both exact */
        double p = ((double)(i * 4398046511ull) + 0.5) * 0x1p-52;
        assert_true(mc_rng_normal_quantile(p) == -mc_rng_normal_quantile(1.0 - p));
    }
}

static void normals_have_the_right_moments(void **state)
{
    (void)state;
    enum { N = 1000000 };
    uint64_t key = mc_rng_key(1, "moments");
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag = 0, last = 0, most = 0;
    int above[4] = {0};
    for (int i = 0; i < N; i++) {
        double x = mc_rng_normal(key, 0, (uint64_t)i);
        m1 += x;
        m2 += x * x;
        m3 += x * x * x;
        m4 += x * x * x * x;
        lag += x * last;
        last = x;
        most = fabs(x) > most ? fabs(x) : most;
        for (int s = 0; s < 4; s++)
            above[s] += x > s;
    }
    /* five standard errors: 1, sqrt 2, sqrt 15, sqrt 96 over sqrt N */
    assert_true(fabs(m1 / N) < 5e-3);
    assert_true(fabs(m2 / N - 1) < 7.1e-3);
    assert_true(fabs(m3 / N) < 19.4e-3);
    assert_true(fabs(m4 / N - 3) < 49e-3);
    assert_true(fabs(lag / N) < 5e-3);
    assert_true(most > 4 && most < 9);
    static const double tail[4] = {0.5, 0.15865525393145705, 0.022750131948179207,
                                   0.0013498980316300946};
    for (int s = 0; s < 4; s++)
        assert_true(fabs(above[s] - N * tail[s]) < 5 * sqrt(N * tail[s] * (1 - tail[s])));
}

static void uniforms_fill_the_interval(void **state)
{
    (void)state;
    enum { N = 200000, BINS = 50 };
    int count[BINS] = {0};
    uint64_t key = mc_rng_key(3, "uniform");
    for (int i = 0; i < N; i++) {
        double u = mc_rng_uniform(key, 9, (uint64_t)i);
        assert_true(u >= 0 && u < 1);
        count[(int)(u * BINS)]++;
    }
    double chi2 = 0;
    for (int b = 0; b < BINS; b++)
        chi2 += (count[b] - (double)N / BINS) * (count[b] - (double)N / BINS) / ((double)N / BINS);
    assert_true(chi2 < 100); /* 49 degrees of freedom: 99 has probability 3e-5 */
}

static void normals_have_pinned_bits(void **state)
{
    (void)state;
    /* Made once; any change of these bits changes every initial weight ever drawn. */
    enum { N = 1000000 };
    static float x[N];
    uint64_t key = mc_rng_key(1234, "layers.0.attn.q.weight");
    for (int i = 0; i < N; i++)
        x[i] = mc_rng_normal(key, 0, (uint64_t)i);
    assert_int_equal(mc_hash64(x, sizeof x), UINT64_C(0xf45cdca46d6dfbe0));
}

static void permute_is_a_bijection_for_small_n(void **state)
{
    (void)state;
    uint8_t seen[1024];
    for (uint64_t n = 1; n <= 1000; n++) {
        uint64_t key = mc_rng_key(n, "perm");
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = mc_rng_permute(key, n, i);
            assert_true(p < n);
            assert_int_equal(seen[p], 0);
            seen[p] = 1;
        }
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void permute_spot_checks_for_huge_n(void **state)
{
    (void)state;
    static const uint64_t ns[] = {UINT64_C(1) << 32,       (UINT64_C(1) << 32) + 1,
                                  UINT64_C(1) << 48,       UINT64_C(999999999999),
                                  (UINT64_C(1) << 63) + 5, UINT64_MAX};
    enum { K = 20000 };
    static uint64_t got[K];
    for (size_t j = 0; j < sizeof ns / sizeof *ns; j++) {
        double mean = 0;
        for (uint64_t i = 0; i < K; i++) {
            uint64_t at = i % 2 ? ns[j] - 1 - i : i;
            got[i] = mc_rng_permute(77, ns[j], at);
            assert_true(got[i] < ns[j]);
            mean += (double)got[i] / (double)ns[j] / K;
        }
        assert_true(fabs(mean - 0.5) < 5 * 0.2887 / sqrt(K));
        qsort(got, K, sizeof *got, by_value);
        for (int i = 1; i < K; i++)
            assert_true(got[i] != got[i - 1]);
    }
}

static void permute_mixes_and_depends_on_the_key(void **state)
{
    (void)state;
    enum { N = 6, KEYS = 60000 };
    int count[N][N] = {{0}}; /* count[i][p]: how often i goes to p over the keys */
    for (uint64_t k = 0; k < KEYS; k++)
        for (uint64_t i = 0; i < N; i++)
            count[i][mc_rng_permute(mc_rng_key(k, "mix"), N, i)]++;
    for (int i = 0; i < N; i++)
        for (int p = 0; p < N; p++) /* expected 10,000, standard deviation 91 */
            assert_true(abs(count[i][p] - KEYS / N) < 500);
    int fixed = 0, next = 0;
    for (uint64_t i = 0; i + 1 < 10000; i++) {
        uint64_t p = mc_rng_permute(5, 10000, i);
        fixed += p == i;
        next += mc_rng_permute(5, 10000, i + 1) == p + 1;
    }
    assert_true(fixed < 10 && next < 10); /* about 1 each is expected */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(u64_counter_is_index_then_step),
        cmocka_unit_test(keys_differ_by_seed_and_name),
        cmocka_unit_test(quantile_is_right_to_1e_15),
        cmocka_unit_test(quantile_is_monotone_and_odd),
        cmocka_unit_test(normals_have_the_right_moments),
        cmocka_unit_test(uniforms_fill_the_interval),
        cmocka_unit_test(normals_have_pinned_bits),
        cmocka_unit_test(permute_is_a_bijection_for_small_n),
        cmocka_unit_test(permute_spot_checks_for_huge_n),
        cmocka_unit_test(permute_mixes_and_depends_on_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
