/* test_json.c - what the writer writes, read back by jansson: an independent reader.
 * links: mc_base dep_jansson */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/base/json.h"
#include "../../core/base/rng.h"

static void text_is_as_expected(void **state)
{
    (void)state;
    char buf[512];
    struct mc_json j;
    mc_json_init_fixed(&j, buf, sizeof buf);
    mc_json_open(&j, NULL, '{');
    mc_json_i64(&j, "i", INT64_MIN);
    mc_json_f64(&j, "f", 0.1);
    mc_json_f64(&j, "nan", NAN);
    mc_json_bool(&j, "b", 1);
    mc_json_null(&j, "n");
    mc_json_str(&j, "none", NULL);
    mc_json_open(&j, "a", '[');
    mc_json_str(&j, NULL, "x\"\\\n\x01");
    mc_json_open(&j, NULL, '[');
    mc_json_close(&j, ']');
    mc_json_raw(&j, NULL, "{\"r\":1}");
    mc_json_close(&j, ']');
    mc_json_close(&j, '}');
    assert_int_equal(j.failed, 0);
    assert_int_equal(j.len, strlen(buf));
    assert_string_equal(buf, "{\"i\":-9223372036854775808,\"f\":0.1,\"nan\":null,\"b\":true,"
                             "\"n\":null,\"none\":null,\"a\":[\"x\\\"\\\\\\n\\u0001\",[],"
                             "{\"r\":1}]}");
    mc_json_reset(&j);
    mc_json_i64(&j, NULL, 5);
    assert_string_equal(buf, "5");
}

static void pretty_text_has_one_member_a_line(void **state)
{
    (void)state;
    struct mc_json j;
    mc_json_init_grow(&j);
    j.pretty = 1;
    mc_json_open(&j, NULL, '{');
    mc_json_i64(&j, "a", 1);
    mc_json_open(&j, "b", '[');
    mc_json_i64(&j, NULL, 2);
    mc_json_close(&j, ']');
    mc_json_open(&j, "c", '{');
    mc_json_close(&j, '}');
    mc_json_close(&j, '}');
    assert_string_equal(j.buf, "{\n  \"a\": 1,\n  \"b\": [\n    2\n  ],\n  \"c\": {}\n}");
    mc_json_fini(&j);
}

static void same_bits(double a, double b)
{
    uint64_t x, y;
    memcpy(&x, &a, 8);
    memcpy(&y, &b, 8);
    if (x != y)
        fail_msg("%a came back as %a", a, b);
}

static int significant(const char *text)
{
    int n = 0;
    for (; *text && *text != 'e'; text++)
        n += *text >= (n ? '0' : '1') && *text <= '9';
    return n;
}

static void doubles_read_back_bit_for_bit(void **state)
{
    (void)state;
    static const double edge[] = {0.0,     -0.0,   1.0,     -1.5,    0.1,      1e22,
                                  1e23,    5e-324, DBL_MIN, DBL_MAX, -DBL_MAX, 123456789012345678.0,
                                  1.0 / 3, 2.5e-8};
    char text[32], want[400];
    for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) {
        mc_fmt_f64(edge[i], text);
        same_bits(edge[i], strtod(text, NULL));
    }
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t bits = mc_rng_u64(1, 0, i);
        double v;
        memcpy(&v, &bits, 8);
        if (!isfinite(v))
            continue;
        mc_fmt_f64(v, text);
        assert_true(strlen(text) < 26);
        same_bits(v, strtod(text, NULL));
        int digits = significant(text); /* one digit less does not read back */
        snprintf(want, sizeof want, "%.*g", digits - 1, v);
        if (digits > 15)
            assert_true(strtod(want, NULL) != v);
    }
    mc_fmt_f64(0.1, text);
    assert_string_equal(text, "0.1");
    mc_fmt_f64(NAN, text);
    assert_string_equal(text, "nan");
    mc_fmt_f64(-INFINITY, text);
    assert_string_equal(text, "-inf");
    mc_fmt_f64(INFINITY, text);
    assert_string_equal(text, "inf");
}

static void fixed_buffer_never_overruns_at_any_size(void **state)
{
    (void)state;
    for (size_t cap = 0; cap < 60; cap++) {
        char buf[80];
        struct mc_json j;
        uint64_t calls = mc_mem_stats().calls;
        memset(buf, '#', sizeof buf);
        mc_json_init_fixed(&j, buf, cap);
        mc_json_open(&j, NULL, '{');
        mc_json_str(&j, "key", "value \xff and more");
        mc_json_f64(&j, "f", 1.25);
        mc_json_close(&j, '}');
        assert_int_equal(mc_mem_stats().calls, calls);
        /* {"key":"value ? and more","f":1.25}: 36 bytes with the 3 of U+FFFD, and the NUL */
        assert_int_equal(j.failed, cap < 38);
        for (size_t i = cap; i < sizeof buf; i++)
            assert_int_equal(buf[i], '#');
        if (cap > 0)
            assert_true(strlen(buf) < cap);
    }
}

static void any_bytes_make_valid_json(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 3000; round++) {
        char raw[64];
        size_t n = mc_rng_u64(2, round, 99) % sizeof raw;
        for (size_t i = 0; i < n; i++) { /* half of them near the edges of UTF-8 */
            uint64_t r = mc_rng_u64(2, round, i);
            static const unsigned char hot[] = {0xc0, 0xc1, 0xc2, 0xe0, 0xed, 0xef, 0xf0, 0xf4,
                                                0xf5, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0};
            raw[i] = (char)(r & 1 ? r >> 8 : hot[(r >> 8) % sizeof hot]);
        }
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '[');
        mc_json_strn(&j, NULL, raw, n);
        mc_json_close(&j, ']');
        assert_int_equal(j.failed, 0);
        json_error_t e;
        json_t *t = json_loadb(j.buf, j.len, JSON_ALLOW_NUL, &e);
        if (!t)
            fail_msg("jansson refuses: %s: %s", j.buf, e.text);
        json_decref(t);
        mc_json_fini(&j);
    }
}

static void valid_utf8_passes_unchanged(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "\x7f",         "\xc2\x80",     "\xdf\xbf",         "\xe0\xa0\x80",     "\xed\x9f\xbf",
        "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "m\xc3\xa5ne"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char buf[64], want[64];
        struct mc_json j;
        mc_json_init_fixed(&j, buf, sizeof buf);
        mc_json_str(&j, NULL, texts[i]);
        snprintf(want, sizeof want, "\"%s\"", texts[i]);
        assert_string_equal(buf, want);
    }
}

static void long_texts_grow(void **state)
{
    (void)state;
    struct mc_json j;
    size_t before = mc_mem_stats().alloc_bytes;
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '[');
    for (int i = 0; i < 5000; i++)
        mc_json_i64(&j, NULL, i);
    mc_json_close(&j, ']');
    json_t *t = json_loadb(j.buf, j.len, 0, NULL);
    assert_int_equal(json_array_size(t), 5000);
    assert_int_equal(json_integer_value(json_array_get(t, 4999)), 4999);
    json_decref(t);
    mc_json_fini(&j);
    assert_int_equal(mc_mem_stats().alloc_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_as_expected),
        cmocka_unit_test(pretty_text_has_one_member_a_line),
        cmocka_unit_test(doubles_read_back_bit_for_bit),
        cmocka_unit_test(fixed_buffer_never_overruns_at_any_size),
        cmocka_unit_test(any_bytes_make_valid_json),
        cmocka_unit_test(valid_utf8_passes_unchanged),
        cmocka_unit_test(long_texts_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
