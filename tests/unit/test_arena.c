/* test_arena.c - alignment, zeroing, the books, growth, and what a lying plan meets.
 * links: mc_base */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/base/arena.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/* sanitizers otherwise end the program where calloc returns NULL */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}
#endif

static void alloc_is_aligned_zeroed_and_counted(void **state)
{
    (void)state;
    struct mc_mem_stats s0 = mc_mem_stats();
    for (size_t n = 0; n < 300; n += 7) {
        unsigned char *p = mc_alloc(n, "test");
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % MC_ALIGN, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xee, n);
        assert_int_equal(mc_mem_stats().alloc_bytes, s0.alloc_bytes + n);
        mc_free(p);
    }
    struct mc_mem_stats s1 = mc_mem_stats();
    assert_int_equal(s1.alloc_bytes, s0.alloc_bytes);
    assert_int_equal(s1.calls, s0.calls + 43);
    mc_free(NULL);
    assert_int_equal(mc_mem_stats().calls, s1.calls);
}

static void alloc_of_the_impossible_returns_null(void **state)
{
    (void)state;
    size_t before = mc_mem_stats().alloc_bytes;
    assert_null(mc_alloc(SIZE_MAX - 10, "a test that wants too much"));
    assert_null(mc_alloc((size_t)1 << 60, "a test that wants too much"));
    char *p = mc_strdup("kept");
    assert_null(mc_grow(p, 5, (size_t)1 << 60, "a test that wants too much"));
    assert_string_equal(p, "kept");
    mc_free(p);
    assert_int_equal(mc_mem_stats().alloc_bytes, before);
}

static void grow_keeps_the_content_and_zeroes_the_rest(void **state)
{
    (void)state;
    unsigned char *p = NULL;
    size_t n = 0;
    for (size_t m = 1; m < 5000; m = m * 3 + 1) {
        p = mc_grow(p, n, m, "test");
        assert_non_null(p);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], (i * 7) & 0xff);
        for (size_t i = n; i < m; i++) {
            assert_int_equal(p[i], 0);
            p[i] = (i * 7) & 0xff;
        }
        n = m;
    }
    mc_free(p);
}

static void strings_are_made(void **state)
{
    (void)state;
    char *a = mc_strdup(""), *b = mc_sprintf("%s-%05d", "x", 42), *c = mc_sprintf("%0999d", 1);
    assert_string_equal(a, "");
    assert_string_equal(b, "x-00042");
    assert_int_equal(strlen(c), 999);
    mc_free(a);
    mc_free(b);
    mc_free(c);
}

static void arena_gives_exactly_the_plan(void **state)
{
    (void)state;
    struct mc_arena a;
    struct mc_err e = {0};
    size_t bytes = 3 * 64 + 10, before = mc_mem_stats().arena_bytes;
    assert_int_equal(mc_arena_init(&a, "test", bytes, &e), MC_OK);
    assert_int_equal(mc_mem_stats().arena_bytes, before + bytes);
    unsigned char *p = mc_arena_take(&a, 1), *q = mc_arena_take(&a, 65), *r = mc_arena_take(&a, 10);
    assert_ptr_equal(q, p + 64);
    assert_ptr_equal(r, p + 192);
    assert_int_equal((uintptr_t)p % 4096, 0);
    assert_int_equal(a.used, bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(p[i], 0);
    mc_arena_fini(&a);
    assert_int_equal(mc_mem_stats().arena_bytes, before);
}

static void arena_of_nothing_is_legal(void **state)
{
    (void)state;
    struct mc_arena a;
    assert_int_equal(mc_arena_init(&a, "empty", 0, NULL), MC_OK);
    assert_null(a.base);
    assert_null(mc_arena_take(&a, 0));
    mc_arena_fini(&a);
}

static void arena_past_its_end_is_a_bug(void **state)
{
    (void)state;
    int st;
    pid_t pid = fork();
    if (pid == 0) {
        struct mc_arena a;
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        mc_arena_init(&a, "test", 128, NULL);
        mc_arena_take(&a, 65);
        mc_arena_take(&a, 1);
        _exit(0);
    }
    waitpid(pid, &st, 0);
    assert_true(WIFSIGNALED(st) && WTERMSIG(st) == SIGABRT);
}

static void arena_too_large_names_itself(void **state)
{
    (void)state;
    struct mc_arena a;
    struct mc_err e = {0};
    assert_int_equal(mc_arena_init(&a, "activations", (size_t)1 << 60, &e), MC_E_NOMEM);
    assert_non_null(strstr(e.msg, "activations"));
    assert_non_null(strstr(e.msg, "1152921504606846976"));
}

static void double_free_is_a_bug(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* the sanitizer reports it first */
#endif
    int st;
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        char *p = mc_alloc(1 << 10, "test");
        mc_free(p);
        mc_free(p);
        _exit(0);
    }
    waitpid(pid, &st, 0);
    assert_true(WIFSIGNALED(st));
}

static void rss_follows_touched_pages(void **state)
{
    (void)state;
    struct mc_arena a;
    size_t n = (size_t)32 << 20;
    assert_int_equal(mc_arena_init(&a, "test", n, NULL), MC_OK);
    size_t before = mc_mem_rss();
    assert_true(before > 0);
    memset(a.base, 1, n);
    size_t after = mc_mem_rss();
    assert_true(after >= before + n * 9 / 10);
    mc_arena_fini(&a);
    assert_true(mc_mem_rss() < after - n / 2);
    assert_true(mc_mem_rss_peak() + ((size_t)1 << 20) >= after); /* the kernel counts in batches */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alloc_is_aligned_zeroed_and_counted),
        cmocka_unit_test(alloc_of_the_impossible_returns_null),
        cmocka_unit_test(grow_keeps_the_content_and_zeroes_the_rest),
        cmocka_unit_test(strings_are_made),
        cmocka_unit_test(arena_gives_exactly_the_plan),
        cmocka_unit_test(arena_of_nothing_is_legal),
        cmocka_unit_test(arena_past_its_end_is_a_bug),
        cmocka_unit_test(arena_too_large_names_itself),
        cmocka_unit_test(double_free_is_a_bug),
        cmocka_unit_test(rss_follows_touched_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
