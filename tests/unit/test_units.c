/* test_units.c - values with units, exact.
 * links: mc_recipe */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/recipe/units.h"

static void units_parse_gives_exact_values(void **state)
{
    static const struct {
        const char *s;
        int64_t n;
        enum mc_unit u;
    } row[] = {
        {"200M tokens", 200000000, MC_UNIT_TOKENS},
        {"2B", 2000000000, MC_UNIT_NONE},
        {"2G tokens", 2000000000, MC_UNIT_TOKENS},
        {"10k samples", 10000, MC_UNIT_SAMPLES},
        {"7 steps", 7, MC_UNIT_STEPS},
        {"1 step", 1, MC_UNIT_STEPS},
        {"60 min", INT64_C(3600000000000), MC_UNIT_NS},
        {"60min", INT64_C(3600000000000), MC_UNIT_NS},
        {"1.5 h", INT64_C(5400000000000), MC_UNIT_NS},
        {"7.9 h", INT64_C(28440000000000), MC_UNIT_NS},
        {"90 s", INT64_C(90000000000), MC_UNIT_NS},
        {"0.0015 ms", 1500, MC_UNIT_NS},
        {"1.5 d", INT64_C(129600000000000), MC_UNIT_NS},
        {"500", 500, MC_UNIT_NONE},
        {"1e3 steps", 1000, MC_UNIT_STEPS},
        {"1.25e2", 125, MC_UNIT_NONE},
        {"250e-1k", 25000, MC_UNIT_NONE},
        {"1.50", 0, (enum mc_unit) - 1}, /* not whole */
        {"  12   tokens  ", 12, MC_UNIT_TOKENS},
        {"0", 0, MC_UNIT_NONE},
        {"0.000 s", 0, MC_UNIT_NS},
        {"00012", 12, MC_UNIT_NONE},
        {"4.5T tokens", INT64_C(4500000000000), MC_UNIT_TOKENS},
        {"4611686018427387903 tokens", -1, (enum mc_unit) - 1}, /* 19 digits */
        {"461168601842738790e1 tokens", INT64_C(4611686018427387900), MC_UNIT_TOKENS},
        {"9007199254740991 samples", INT64_C(9007199254740991), MC_UNIT_SAMPLES},
        {"9007199254740992 samples", 0, (enum mc_unit) - 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct mc_quantity q = {-7, MC_UNIT_NONE};
        char why[128] = "";
        int r = mc_units_parse(row[i].s, &q, why);
        if ((int)row[i].u < 0) {
            if (r == 0 || q.n != -7 || why[0] == '\0')
                fail_msg("\"%s\" should be refused", row[i].s);
            continue;
        }
        if (r || q.n != row[i].n || q.unit != row[i].u)
            fail_msg("\"%s\": %d %lld %d %s", row[i].s, r, (long long)q.n, q.unit, why);
    }
}

static void units_parse_refuses_with_a_reason(void **state)
{
    static const char *const row[][2] = {
        {"", "number"},
        {"min", "number"},
        {"-1 steps", "negative"},
        {"1.5 steps", "whole"},
        {"10 lightyears", "unknown unit \"lightyears\""},
        {"10 K", "unknown unit"},
        {"10 tokens tokens", "follows"},
        {"1 2", "follows"},
        {"0x10", "unknown unit"},
        {"1e999 steps", "too large"},
        {"1e99999999999 s", "too large"},
        {"0.1 ms x", "follows"},
        {"1e-7 ms", "whole"},
        {"200 d", "too large"},
        {".", "number"},
        {"1..2", "follows"},
        {"1234567890123456789", "18 digits"},
        {"nan", "number"},
        {"inf s", "number"},
        {"1e-999999", "whole"},
        {"5 m", "unknown unit \"m\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct mc_quantity q;
        char why[128] = "";
        if (mc_units_parse(row[i][0], &q, why) == 0 || !strstr(why, row[i][1]))
            fail_msg("\"%s\": \"%s\" lacks \"%s\"", row[i][0], why, row[i][1]);
    }
}

static void units_print_reads_back(void **state)
{
    static const struct {
        struct mc_quantity q;
        const char *s;
    } row[] = {{{200000000, MC_UNIT_TOKENS}, "200000000 tokens"},
               {{INT64_C(3600000000000), MC_UNIT_NS}, "60 min"},
               {{INT64_C(1800000000000), MC_UNIT_NS}, "30 min"},
               {{90000000000, MC_UNIT_NS}, "90 s"},
               {{1500, MC_UNIT_NS}, "0.001500 ms"},
               {{0, MC_UNIT_NS}, "0 s"},
               {{1, MC_UNIT_STEPS}, "1 step"},
               {{500, MC_UNIT_NONE}, "500"}};
    uint64_t x = 88172645463325252u;
    char s[48], why[128];
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        mc_units_print(row[i].q, s);
        assert_string_equal(s, row[i].s);
    }
    for (int i = 0; i < 200000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17; /* xorshift: any spread will do */
        struct mc_quantity q = {(int64_t)(x >> (11 + x % 53)), (enum mc_unit)(i % 5)}, back;
        mc_units_print(q, s);
        if (mc_units_parse(s, &back, why) || back.n != q.n || back.unit != q.unit)
            fail_msg("\"%s\" does not read back: %s", s, why);
    }
}

static void units_parse_survives_any_bytes(void **state)
{
    static const char alphabet[] = "0123456789.eE+-kMBGT stepmnhd tokens\t\x80\xff\x01";
    char s[40], why[128];
    struct mc_quantity q;
    int64_t b;
    (void)state;
    srand(7);
    for (int i = 0; i < 200000; i++) {
        int n = rand() % 39;
        for (int k = 0; k < n; k++)
            s[k] = alphabet[(size_t)rand() % (sizeof alphabet - 1)];
        s[n] = '\0';
        if (mc_units_parse(s, &q, why) == 0)
            assert_true(q.n >= 0 && q.n >> 62 == 0);
        if (mc_units_parse_bytes(s, &b, why) == 0)
            assert_true(b >= 0 && b >> 53 == 0);
    }
}

static void units_bytes_are_exact(void **state)
{
    static const struct {
        const char *s;
        int64_t n;
    } row[] = {{"24 GiB", INT64_C(25769803776)},
               {"1.5 GiB", 1610612736},
               {"80GB", 80000000000},
               {"512", 512},
               {"512 B", 512},
               {"3 TiB", INT64_C(3298534883328)},
               {"2 kB", 2000},
               {"0.5 KiB", 512},
               {"0", 0},
               {"0 GiB", 0},
               {"1.1 KiB", -1},
               {"1 gib", -1},
               {"1 GiBs", -1},
               {"-1", -1},
               {"9e9 TiB", -1},
               {"1 K", -1}};
    char why[128], s[32];
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int64_t n = -1;
        int r = mc_units_parse_bytes(row[i].s, &n, why);
        if ((r != 0) != (row[i].n < 0) || n != row[i].n)
            fail_msg("\"%s\": %d %lld", row[i].s, r, (long long)n);
    }
    mc_units_print_bytes(1610612736, s);
    assert_string_equal(s, "1.5 GiB");
    mc_units_print_bytes(1000, s);
    assert_string_equal(s, "1000 B");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_parse_gives_exact_values),
        cmocka_unit_test(units_parse_refuses_with_a_reason),
        cmocka_unit_test(units_print_reads_back),
        cmocka_unit_test(units_parse_survives_any_bytes),
        cmocka_unit_test(units_bytes_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
