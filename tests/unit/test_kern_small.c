/* test_kern_small.c - the small and the large product of every instruction set that this CPU has,
 * and the plain one, against each element's chain of fused multiply-adds written down: the same
 * bits. Operands end where a page ends and the next one may not be touched. test_kern_small64.c:
 * the same in fp64. links: mc_kern
 */
#ifdef SMALL_IN_F64
#define real        double
#define REAL_IS_F32 0
#define REAL_DTYPE  MC_F64
#define REAL_NAME   "cpu-f64"
#define REAL_GEMM   cblas_dgemm
#define REAL_GEMV   cblas_dgemv
#else
#define real        float
#define REAL_IS_F32 1
#define REAL_DTYPE  MC_F32
#define REAL_NAME   "cpu-f32"
#define REAL_GEMM   cblas_sgemm
#define REAL_GEMV   cblas_sgemv
#endif
#define TABLE small_ops
extern const struct mc_kern_ops small_ops;
#include <sys/mman.h>
#include "../../core/kern/cpu/table.inl"
#include "kern_test.h"

#define ROOM ((size_t)1 << 20) /* bytes of an operand, at most */
#define GAP  ((size_t)1 << 16) /* before and after: no access */

static unsigned char *room[3];

static int setup(void **state)
{
    for (int i = 0; i < 3; i++) {
        unsigned char *p =
            mmap(NULL, ROOM + 2 * GAP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + GAP, ROOM, PROT_READ | PROT_WRITE) != 0)
            return -1;
        room[i] = p + GAP;
    }
    return kern_setup(state);
}

/* [rows, cols] with row stride ld, whose last element is the last of the room. */
static real *operand(int i, int64_t rows, int64_t cols, int64_t ld, uint64_t seed)
{
    size_t n = (size_t)(rows > 0 ? (rows - 1) * ld + cols : 0);
    assert_true(n * sizeof(real) <= ROOM);
    real *p = (real *)(void *)(room[i] + ROOM) - n;
    for (size_t j = 0; j < n; j++)
        p[j] = (real)((int64_t)j % ld < cols ? noise(&seed) : PAD);
    return p;
}

static int64_t chain = SMALL_K;
static real pack[PACK_BYTES / sizeof(real)] __attribute__((aligned(64)));

/* One element: fused multiply-adds, k ascending, begun anew every `chain`. */
static real element(const struct product *s, int64_t i, int64_t j, real c)
{
    int64_t p = 0;
    int acc = s->acc;
    do {
        real sum = 0;
        for (int64_t end = p + chain; p < s->k && p < end; p++) {
            real x = s->a[i * s->ars + p * s->acs];
            real y = s->tb ? s->b[j * s->ldb + p] : s->b[p * s->ldb + j];
            sum = REAL_IS_F32 ? (real)fmaf((float)x, (float)y, (float)sum)
                              : (real)fma((double)x, (double)y, (double)sum);
        }
        real t = s->alpha * sum;
        c = acc ? c + t : t;
        acc = 1;
    } while (p < s->k);
    return c;
}

typedef void (*small_fn)(const struct product *s);

static void check(small_fn f, int64_t m, int64_t n, int64_t k, int op, int acc, int64_t pad)
{
    int ta = op & 1, tb = op >> 1;
    int64_t am = ta ? k : m, an = ta ? m : k, bm = tb ? n : k, bn = tb ? k : n;
    struct product s = {.m = m, .n = n, .k = k, .tb = tb, .acc = acc, .pack = pack};
    s.alpha = pad ? (real)0.7 : (real)1;
    s.a = operand(0, am, an, an + pad, 1);
    s.b = operand(1, bm, bn, bn + pad, 2);
    s.c = operand(2, m, n, n + pad, 3);
    s.ars = ta ? 1 : an + pad, s.acs = ta ? an + pad : 1;
    s.ldb = bn + pad, s.ldc = n + pad;
    real *want = mc_alloc((size_t)(m * n + 1) * sizeof *want, "test");
    assert_non_null(want);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            want[i * n + j] = element(&s, i, j, s.c[i * s.ldc + j]);
            if (!acc)
                s.c[i * s.ldc + j] = (real)NAN; /* is not read */
        }
    f(&s);
    for (int64_t i = 0; i < m; i++) {
        assert_memory_equal(s.c + i * s.ldc, want + i * n, (size_t)n * sizeof(real));
        for (int64_t j = n; j < s.ldc && i + 1 < m; j++)
            assert_true(s.c[i * s.ldc + j] == (real)PAD);
    }
    mc_free(want);
}

static void sweep(small_fn f)
{
    static const int64_t edge_m[] = {1, 2, 3, 5, 8, 14, 19},
                         edge_n[] = {1, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 40, 53},
                         edge_k[] = {0, 1, 7, 8, 13};
    int turn = 0;
    for (int op = 0; op < 4; op++) {
        for (int i = 0; i < 7; i++)
            for (int j = 0; j < 16; j++)
                for (int p = 0; p < 5; p++, turn++)
                    check(f, edge_m[i], edge_n[j], edge_k[p], op, turn & 1, turn % 3);
        check(f, 9, 21, 255, op, 0, 0);
        check(f, 9, 21, 256, op, 1, 1);
        check(f, 9, 37, 529, op, 0, 1);
        check(f, 64, 96, 40, op, 1, 0);
    }
}

/* Past one strip in depth and in width, rows of every kind left over. */
static void sweep_large(small_fn f)
{
    chain = KC;
    sweep(f);
    for (int op = 0; op < 4; op++) {
        check(f, 31, 45, KC, op, 0, 0);
        check(f, 19, 33, KC + 1, op, 1, 1);
        check(f, 15, 21, 2 * KC + 5, op, 0, 1);
        check(f, 29, NC + 17, 40, op, 1, 0);
        check(f, 5, 2 * NC + 40, 16, op, 0, 1);
    }
    chain = SMALL_K;
}
static void test_large_plain(void **state)
{
    (void)state, sweep_large(big_plain);
}

static void test_plain(void **state)
{
    (void)state, sweep(small_plain);
}
static void chosen(const struct product *s)
{
    assert_int_equal(small_gemm(s), 1);
}
static void test_chosen(void **state)
{
    static const real zero[1];
    real c[1];
    struct product s = {.m = 1, .n = 1, .k = 1, .a = zero, .b = zero, .c = c, .alpha = 1};
    (void)state;
    if (!small_gemm(&s)) /* no fused multiply-add here */
        skip();
    sweep(chosen);
}
#if SMALL_X86
static void test_avx2(void **state)
{
    (void)state;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        skip();
    sweep(small_avx2);
}
static void test_large_avx2(void **state)
{
    (void)state;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        skip();
    sweep_large(big_avx2);
}
static void test_large_avx512(void **state)
{
    (void)state;
    if (!__builtin_cpu_supports("avx512f"))
        skip();
    sweep_large(big_avx512);
}
static void test_avx512(void **state)
{
    (void)state;
    if (!__builtin_cpu_supports("avx512f"))
        skip();
    sweep(small_avx512);
}
#endif

/* A product's bits are those of its rows and columns alone: tiles do not enter. */
static void test_tiles_do_not_enter(void **state)
{
    static real whole[50 * 70], part[1];
    struct product none = {.k = 0, .a = part, .b = part, .c = part};
    (void)state;
    if (!small_gemm(&none))
        skip();
    for (int op = 0; op < 4; op++) {
        int ta = op & 1, tb = op >> 1;
        const real *a = operand(0, ta ? 90 : 50, ta ? 50 : 90, ta ? 50 : 90, 5);
        const real *b = operand(1, tb ? 70 : 90, tb ? 90 : 70, tb ? 90 : 70, 6);
        gemm_block(ta, tb, 50, 70, 90, 1, a, ta ? 50 : 90, b, tb ? 90 : 70, 0, whole, 70);
        for (int i = 0; i < 50; i++)
            for (int j = 0; j < 70; j++) {
                struct product s = {.m = 1, .n = 1, .k = 90, .tb = tb, .alpha = 1, .ldc = 1};
                s.a = a + (ta ? i : i * 90), s.ars = 1, s.acs = ta ? 50 : 1;
                s.b = b + (tb ? j * 90 : j), s.ldb = tb ? 90 : 70;
                s.c = part;
                small_gemm(&s);
                assert_memory_equal(part, whole + i * 70 + j, sizeof(real));
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_large_plain),
        cmocka_unit_test(test_chosen),
#if SMALL_X86
        cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),
        cmocka_unit_test(test_large_avx2),
        cmocka_unit_test(test_large_avx512),
#endif
        cmocka_unit_test(test_tiles_do_not_enter),
    };
    return cmocka_run_group_tests(tests, setup, kern_teardown);
}
