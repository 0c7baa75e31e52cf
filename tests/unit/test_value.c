/* test_value.c - value trees and JSON.
 * links: mc_recipe */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/recipe/value.h"

/* Against the plainest map there is: an array of flags. */
static void value_map_equals_a_naive_map_under_random_operations(void **state)
{
    enum { KEYS = 97 };
    struct mc_values *p = mc_values_create();
    struct mc_value *map = mc_value_new(p, MC_V_MAP);
    double naive[KEYS];
    int has[KEYS] = {0}, count = 0;
    char key[16];
    (void)state;
    srand(3);
    for (int i = 0; i < 20000; i++) {
        int k = rand() % KEYS;
        snprintf(key, sizeof key, "k%d", k * 7919 % 1000);
        if (rand() % 3) {
            struct mc_value *v = mc_value_new(p, MC_V_NUM);
            v->num = i;
            assert_int_equal(mc_value_put(p, map, key, v, NULL), MC_OK);
            count += !has[k];
            has[k] = 1;
            naive[k] = i;
        } else {
            assert_int_equal(mc_value_remove(map, key), has[k]);
            count -= has[k];
            has[k] = 0;
        }
        assert_int_equal(map->n, count);
        for (int n = 1; n < map->n; n++)
            assert_true(strcmp(map->key[n - 1], map->key[n]) < 0);
    }
    for (int k = 0; k < KEYS; k++) {
        snprintf(key, sizeof key, "k%d", k * 7919 % 1000);
        struct mc_value *v = mc_value_get(map, key);
        assert_int_equal(v != NULL, has[k]);
        if (v)
            assert_true(v->num == naive[k]);
    }
    mc_values_destroy(p);
}

static struct mc_value *read_json(struct mc_values *p, const char *s, struct mc_err *err)
{
    struct mc_value *v = NULL;

    memset(err, 0, sizeof *err);
    mc_status st = mc_value_from_json(p, s, strlen(s), "x.json", &v, err);
    assert_int_equal(st == MC_OK, v != NULL);
    assert_int_equal(st, err->code);
    return v;
}

/* Arrays that JSON made exactly as long as needed must grow like the others. */
static void value_lists_from_json_grow_at_every_length(void **state)
{
    (void)state;
    for (int n = 0; n < 70; n++) {
        struct mc_values *p = mc_values_create();
        struct mc_err err;
        char text[512] = "[", map[1024] = "{";
        for (int i = 0; i < n; i++) {
            sprintf(text + strlen(text), "%s%d", i ? "," : "", i);
            sprintf(map + strlen(map), "%s\"k%02d\":%d", i ? "," : "", i, i);
        }
        struct mc_value *v = read_json(p, strcat(text, "]"), &err),
                        *m = read_json(p, strcat(map, "}"), &err);
        for (int i = n; i < n + 70; i++) {
            struct mc_value *x = mc_value_new(p, MC_V_NUM);
            char key[16];
            x->num = i;
            snprintf(key, sizeof key, "k%02d", i);
            assert_int_equal(mc_value_push(p, v, x, NULL), MC_OK);
            assert_int_equal(mc_value_put(p, m, key, x, NULL), MC_OK);
        }
        for (int i = 0; i < n + 70; i++) {
            assert_true(v->item[i]->num == i);
            char key[16];
            snprintf(key, sizeof key, "k%02d", i);
            assert_true(mc_value_get(m, key)->num == i);
        }
        mc_values_destroy(p);
    }
}

static void value_json_gives_kinds_and_exact_numbers(void **state)
{
    struct mc_values *p = mc_values_create();
    struct mc_err err;
    struct mc_value *v =
        read_json(p,
                  "{\"b\":[null,true,false,\"x\\u00e9\",-0.1,1e300,9007199254740993.0,"
                  "4611686018427387904,12345678901234568]}",
                  &err);
    (void)state;
    v = mc_value_get(v, "b");
    assert_int_equal(v->n, 9);
    assert_int_equal(v->item[0]->kind, MC_V_NIL);
    assert_true(v->item[1]->b && !v->item[2]->b && v->item[2]->kind == MC_V_BOOL);
    assert_string_equal(v->item[3]->str, "x\xc3\xa9");
    assert_true(v->item[4]->num == -0.1 && v->item[5]->num == 1e300);
    assert_true(v->item[7]->num == 4611686018427387904.0);
    assert_true(v->item[8]->num == 12345678901234568.0);
    assert_string_equal(v->item[8]->file, "x.json");
    mc_values_destroy(p);
}

static void value_json_refuses_foreign_bytes(void **state)
{
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "[1,]",
        "{\"a\":1,\"a\":2}",
        "{\"a\":{\"b\":1,\"b\":1}}",
        "[1] x",
        "nul",
        "[9007199254740993]",
        "[-9007199254740993]",
        "[9223372036854775807]",
        "[92233720368547758080]",
        "[1e999]",
        "[\"\\u0000\"]",
        "[\"\xff\"]",
        "[\"\xed\xa0\x80\"]",
        "[NaN]",
        "[01]",
        "3",
        "\"s\"",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct mc_values *p = mc_values_create();
        struct mc_err err;
        if (read_json(p, bad[i], &err) || err.code != MC_E_FORMAT || !strstr(err.msg, "x.json"))
            fail_msg("%s: %d %s", bad[i], err.code, err.msg);
        mc_values_destroy(p);
    }
}

static void value_json_is_bounded(void **state)
{
    size_t n = (size_t)5 << 20;
    struct mc_values *p = mc_values_create();
    struct mc_value *v = NULL;
    struct mc_err err = {0};
    char *text = malloc(n);
    (void)state;
    memset(text, '[', n);
    assert_int_equal(mc_value_from_json(p, text, n, "deep", &v, &err), MC_E_FORMAT);
    assert_non_null(strstr(err.msg, "deeper"));
    memset(text, ',', n);
    text[0] = '[';
    mc_err_clear(&err);
    assert_int_equal(mc_value_from_json(p, text, n, "wide", &v, &err), MC_E_FORMAT);
    assert_non_null(strstr(err.msg, "more than"));
    mc_err_clear(&err);
    assert_int_equal(mc_value_from_json(p, text, ((size_t)64 << 20) + 1, "long", &v, &err),
                     MC_E_FORMAT);
    free(text);
    /* a bracket inside a string is text */
    mc_err_clear(&err);
    assert_int_equal(mc_value_from_json(p, "[\"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"]", 46,
                                        "s", &v, &err),
                     MC_OK);
    mc_values_destroy(p);
}

static void value_pool_returns_all_memory(void **state)
{
    size_t before = mc_mem_stats().alloc_bytes;
    struct mc_values *p = mc_values_create();
    (void)state;
    for (int i = 0; i < 10000; i++)
        assert_non_null(mc_value_strn(p, "abcdefghijklmnopqrstuvwxyz", (size_t)i % 27));
    assert_non_null(mc_value_strn(p, (char[70000]){0}, 69999));
    assert_true(mc_mem_stats().alloc_bytes > before);
    mc_values_destroy(p);
    assert_int_equal(mc_mem_stats().alloc_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(value_map_equals_a_naive_map_under_random_operations),
        cmocka_unit_test(value_lists_from_json_grow_at_every_length),
        cmocka_unit_test(value_json_gives_kinds_and_exact_numbers),
        cmocka_unit_test(value_json_refuses_foreign_bytes),
        cmocka_unit_test(value_json_is_bounded),
        cmocka_unit_test(value_pool_returns_all_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
