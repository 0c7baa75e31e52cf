/* test_hash.c - published vectors of XXH3 and SplitMix64; the tensor sum against a plain form of
 * it. links: mc_base */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include "../../core/base/hash.h"

static void xxh3_of_nothing_is_as_published(void **state)
{
    (void)state;
    assert_int_equal(mc_hash64("", 0), UINT64_C(0x2d06800538d394c2));
    assert_int_not_equal(mc_hash64_seed("", 0, 1), mc_hash64("", 0));
    assert_int_equal(mc_hash64_seed("abc", 3, 0), mc_hash64("abc", 3));
}

static void splitmix64_outputs_are_as_published(void **state)
{
    (void)state;
    const uint64_t gamma = UINT64_C(0x9e3779b97f4a7c15);
    /* the first outputs of the generator started at 0 */
    assert_int_equal(mc_mix64(0), UINT64_C(0xe220a8397b1dcdaf));
    assert_int_equal(mc_mix64(gamma), UINT64_C(0x6e789e6aa1b965f4));
    assert_int_equal(mc_mix64(2 * gamma), UINT64_C(0x06c45d188009454f));
}

static void streaming_equals_one_shot_however_cut(void **state)
{
    (void)state;
    unsigned char buf[5000];
    for (size_t i = 0; i < sizeof buf; i++)
        buf[i] = (unsigned char)(i * i >> 3);
    struct mc_hasher *h = mc_hasher_create();
    assert_non_null(h);
    for (size_t step = 1; step < sizeof buf; step = step * 2 + 1) {
        mc_hasher_reset(h);
        for (size_t at = 0; at < sizeof buf; at += step)
            mc_hasher_add(h, buf + at, at + step < sizeof buf ? step : sizeof buf - at);
        mc_hasher_add(h, NULL, 0);
        assert_int_equal(mc_hasher_value(h), mc_hash64(buf, sizeof buf));
    }
    mc_hasher_destroy(h);
}

static void hex_is_sixteen_digits(void **state)
{
    (void)state;
    char s[17];
    mc_hash_hex(UINT64_C(0x00fedcba98765432), s);
    assert_string_equal(s, "00fedcba98765432");
}

static void tensor_sum_does_not_depend_on_the_cut(void **state)
{
    (void)state;
    float v[1000];
    for (int i = 0; i < 1000; i++)
        v[i] = (float)i * 0.25f - 3.0f;
    uint64_t whole = mc_hash_elems(v, 4, 0, 1000);
    for (uint64_t cut = 0; cut <= 1000; cut += 37)
        assert_int_equal(mc_hash_elems(v, 4, 0, cut) + mc_hash_elems(v + cut, 4, cut, 1000 - cut),
                         whole);
    /* the definition, with the bits taken by a cast of values instead of bytes */
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        union {
            float f;
            uint32_t u;
        } b = {.f = v[i]};
        sum += mc_mix64(mc_mix64(i) ^ b.u);
    }
    assert_int_equal(whole, sum);
    /* every element and its place count */
    float t = v[3];
    v[3] = v[4];
    v[4] = t;
    assert_int_not_equal(mc_hash_elems(v, 4, 0, 1000), whole);
}

static void tensor_sum_takes_all_widths(void **state)
{
    (void)state;
    uint8_t a[3] = {1, 2, 255};
    uint16_t b[3] = {1, 2, 255};
    uint32_t c[3] = {1, 2, 255};
    uint64_t d[3] = {1, 2, 255};
    uint64_t h = mc_hash_elems(a, 1, 5, 3);
    assert_int_equal(mc_hash_elems(b, 2, 5, 3), h);
    assert_int_equal(mc_hash_elems(c, 4, 5, 3), h);
    assert_int_equal(mc_hash_elems(d, 8, 5, 3), h);
    d[2] |= (uint64_t)1 << 63;
    assert_int_not_equal(mc_hash_elems(d, 8, 5, 3), h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xxh3_of_nothing_is_as_published),
        cmocka_unit_test(splitmix64_outputs_are_as_published),
        cmocka_unit_test(streaming_equals_one_shot_however_cut),
        cmocka_unit_test(hex_is_sixteen_digits),
        cmocka_unit_test(tensor_sum_does_not_depend_on_the_cut),
        cmocka_unit_test(tensor_sum_takes_all_widths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
