/* gemm.inl - C[M,N] = alpha op(A) op(B) (+ C) over the tiles of gemm_cpu.c's grid: one BLAS call a
 * tile, or the small product below; the bias is added while the tile is still in the cache. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

/* -- Small products --------------------------------------------------------------------------- */

/* Ours instead of the library's: OpenBLAS has kernels for small products that take a packing buffer
 * from malloc at every call, and the step loop may not allocate. 0.3.21 with SkylakeX or Cooperlake
 * kernels: neither operand transposed, M N K <= 10^6, K >= 32 (fp64 16), N modulo 16 from 1 to 8
 * (fp64: modulo 8 from 1 to 4). Later versions on ARM with SVE: other transposes too.
 *
 * Its chains of fused multiply-adds need the instruction: the C library's stand-in is thousands of
 * times slower. A CPU without it (x86 before 2013) has none of those kernels either and takes BLAS
 * for every size. */
#define SMALL_MNK 1048576.0                    /* a bound above all of the library's */
#define WIDE      (64 / (int64_t)sizeof(real)) /* elements of the longest vector */
#define SMALL_K   256                          /* rows of a panel: 32 KiB of stack at most */

struct small { /* C[m,n] = alpha op(A) op(B) (+ C) */
    int64_t m, n, k;
    const real *a;
    int64_t ars, acs; /* op(A): from a row to the next, from a column to the next */
    const real *b;
    int64_t ldb;
    int tb;
    real *c;
    int64_t ldc;
    real alpha;
    int acc;
};

#if REAL_IS_F32
#define FMA_R __builtin_fmaf
#else
#define FMA_R __builtin_fma
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define SMALL_X86 1

/* 8 x 8 elements: to[j][i] = from[i][j]. */
__attribute__((target("avx2"))) INL void transpose_8(real *to, int64_t ldt, const real *from,
                                                     int64_t ldf)
{
#if REAL_IS_F32
    __m256 r[8], t[8];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) /* rows i and i + 4 side by side */
    {
        const float *x = from + i * ldf, *y = from + (i + 4) * ldf;
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), _mm_loadu_ps(y), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + 4)),
                                        _mm_loadu_ps(y + 4), 1);
    }
    _Pragma("GCC unroll 2") for (int h = 0; h < 8; h += 4)
    {
        t[h] = _mm256_unpacklo_ps(r[h], r[h + 1]);
        t[h + 1] = _mm256_unpackhi_ps(r[h], r[h + 1]);
        t[h + 2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]);
        t[h + 3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
        _mm256_storeu_ps(to + h * ldt, _mm256_shuffle_ps(t[h], t[h + 2], 0x44));
        _mm256_storeu_ps(to + (h + 1) * ldt, _mm256_shuffle_ps(t[h], t[h + 2], 0xee));
        _mm256_storeu_ps(to + (h + 2) * ldt, _mm256_shuffle_ps(t[h + 1], t[h + 3], 0x44));
        _mm256_storeu_ps(to + (h + 3) * ldt, _mm256_shuffle_ps(t[h + 1], t[h + 3], 0xee));
    }
#else
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4)
        _Pragma("GCC unroll 4") for (int j = 0; j < 8; j += 2)
    {
        __m256d x = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(from + i * ldf + j)),
                                         _mm_loadu_pd(from + (i + 2) * ldf + j), 1);
        __m256d y =
            _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(from + (i + 1) * ldf + j)),
                                 _mm_loadu_pd(from + (i + 3) * ldf + j), 1);
        _mm256_storeu_pd(to + j * ldt + i, _mm256_unpacklo_pd(x, y));
        _mm256_storeu_pd(to + (j + 1) * ldt + i, _mm256_unpackhi_pd(x, y));
    }
#endif
}

#define TRANSPOSE_8 transpose_8
#define SMALL_GEMM  small_avx512
#define SMALL_PANEL small_panel_avx512
#define SMALL_TILE  small_tile_avx512
#define SMALL_PACK  small_pack_avx512
#define SMALL_ISA   __attribute__((target("avx512f")))
#define ROWS        8
#define ROWS_1      8
#if REAL_IS_F32
#define VEC               __m512
#define VL                16
#define VZERO             _mm512_setzero_ps()
#define VLOAD             _mm512_loadu_ps
#define VSTORE            _mm512_storeu_ps
#define VSPLAT            _mm512_set1_ps
#define VFMA              _mm512_fmadd_ps
#define VMUL              _mm512_mul_ps
#define VADD              _mm512_add_ps
#define FIRST(n)          ((__mmask16)((1u << (n)) - 1))
#define VLOAD_N(p, n)     _mm512_maskz_loadu_ps(FIRST(n), p)
#define VSTORE_N(p, n, x) _mm512_mask_storeu_ps(p, FIRST(n), x)
#else
#define VEC               __m512d
#define VL                8
#define VZERO             _mm512_setzero_pd()
#define VLOAD             _mm512_loadu_pd
#define VSTORE            _mm512_storeu_pd
#define VSPLAT            _mm512_set1_pd
#define VFMA              _mm512_fmadd_pd
#define VMUL              _mm512_mul_pd
#define VADD              _mm512_add_pd
#define FIRST(n)          ((__mmask8)((1u << (n)) - 1))
#define VLOAD_N(p, n)     _mm512_maskz_loadu_pd(FIRST(n), p)
#define VSTORE_N(p, n, x) _mm512_mask_storeu_pd(p, FIRST(n), x)
#endif
#include "gemm_small.inl"
#undef FIRST

#define TRANSPOSE_8 transpose_8
#define SMALL_GEMM  small_avx2
#define SMALL_PANEL small_panel_avx2
#define SMALL_TILE  small_tile_avx2
#define SMALL_PACK  small_pack_avx2
#define SMALL_ISA   __attribute__((target("avx2,fma")))
#define ROWS        6
#define ROWS_1      8
#if REAL_IS_F32
#define VEC    __m256
#define VL     8
#define VZERO  _mm256_setzero_ps()
#define VLOAD  _mm256_loadu_ps
#define VSTORE _mm256_storeu_ps
#define VSPLAT _mm256_set1_ps
#define VFMA   _mm256_fmadd_ps
#define VMUL   _mm256_mul_ps
#define VADD   _mm256_add_ps
#define FIRST(n)                                                                                   \
    _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define VLOAD_N(p, n)     _mm256_maskload_ps(p, FIRST(n))
#define VSTORE_N(p, n, x) _mm256_maskstore_ps(p, FIRST(n), x)
#else
#define VEC               __m256d
#define VL                4
#define VZERO             _mm256_setzero_pd()
#define VLOAD             _mm256_loadu_pd
#define VSTORE            _mm256_storeu_pd
#define VSPLAT            _mm256_set1_pd
#define VFMA              _mm256_fmadd_pd
#define VMUL              _mm256_mul_pd
#define VADD              _mm256_add_pd
#define FIRST(n)          _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3))
#define VLOAD_N(p, n)     _mm256_maskload_pd(p, FIRST(n))
#define VSTORE_N(p, n, x) _mm256_maskstore_pd(p, FIRST(n), x)
#endif
#include "gemm_small.inl"
#undef FIRST
#else
#define SMALL_X86 0
#endif

/* Anywhere else: four elements at a time, a vector of them where the compiler sees one. */
#define TRANSPOSE_8 small_transpose_plain
#define SMALL_GEMM  small_plain
#define SMALL_PANEL small_panel_plain
#define SMALL_TILE  small_tile_plain
#define SMALL_PACK  small_pack_plain
#define SMALL_ISA   __attribute__((unused)) /* on x86 only the test calls it */
#define ROWS        6
#define ROWS_1      8
#define VEC         struct quad
#define VL          4
#define VZERO       quad_splat(0)
#define VLOAD       quad_load
#define VSTORE      quad_store
#define VSPLAT      quad_splat
#define VFMA        quad_fma
#define VMUL        quad_mul
#define VADD        quad_add
#define VLOAD_N     quad_load_n
#define VSTORE_N    quad_store_n
struct quad {
    real e[VL];
};
INL struct quad quad_splat(real x)
{
    return (struct quad){{x, x, x, x}};
}
INL struct quad quad_load(const real *p)
{
    return (struct quad){{p[0], p[1], p[2], p[3]}};
}
INL void quad_store(real *p, struct quad x)
{
    memcpy(p, x.e, sizeof x.e);
}
INL struct quad quad_load_n(const real *p, int64_t n)
{
    struct quad x = {{0}};
    for (int64_t i = 0; i < n; i++)
        x.e[i] = p[i];
    return x;
}
INL void quad_store_n(real *p, int64_t n, struct quad x)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = x.e[i];
}
INL struct quad quad_fma(struct quad x, struct quad y, struct quad z)
{
    for (int i = 0; i < VL; i++)
        z.e[i] = FMA_R(x.e[i], y.e[i], z.e[i]);
    return z;
}
INL struct quad quad_mul(struct quad x, struct quad y)
{
    for (int i = 0; i < VL; i++)
        x.e[i] *= y.e[i];
    return x;
}
INL struct quad quad_add(struct quad x, struct quad y)
{
    for (int i = 0; i < VL; i++)
        x.e[i] += y.e[i];
    return x;
}
INL void small_transpose_plain(real *to, int64_t ldt, const real *from, int64_t ldf)
{
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            to[j * ldt + i] = from[i * ldf + j];
}
#include "gemm_small.inl"

/* Returns 0, nothing done, where there is no fused multiply-add. */
static int small_gemm(const struct small *s)
{
#if SMALL_X86
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    int64_t wide = s->n / WIDE * WIDE, rest = s->n - wide;
    if (!__builtin_cpu_supports("avx512f")) {
        small_avx2(s);
    } else if (rest == 0 || rest > WIDE / 2) {
        small_avx512(s);
    } else { /* the last columns fill no more than a short vector */
        struct small left = *s, right = *s;
        left.n = wide;
        right.n = rest;
        right.b += s->tb ? wide * s->ldb : wide;
        right.c += wide;
        if (wide > 0)
            small_avx512(&left);
        small_avx2(&right);
    }
    return 1;
#elif defined(__FP_FAST_FMA) && defined(__FP_FAST_FMAF)
    small_plain(s);
    return 1;
#else
    (void)s;
    return 0;
#endif
}

/* One row of C, what decoding asks for: a product packs all of B, ten times the work of the
 * matrix-vector call. c is cleared here: BLAS versions differ on 0 times a NaN that is there. */
static void one_row(int ta, int tb, int64_t n, int64_t k, real alpha, const real *a, int64_t lda,
                    const real *b, int64_t ldb, int acc, real *c)
{
    if (!acc)
        memset(c, 0, (size_t)n * sizeof(real));
    REAL_GEMV(CblasRowMajor, tb ? CblasNoTrans : CblasTrans, (int)(tb ? n : k), (int)(tb ? k : n),
              alpha, b, (int)ldb, a, ta ? (int)lda : 1, 1, c, 1);
}

/* Edges in elements, within int by the assert of gemm(). The shape alone decides who computes. */
static void gemm_block(int ta, int tb, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
                       int64_t lda, const real *b, int64_t ldb, int acc, real *c, int64_t ldc)
{
    if (m == 1) {
        one_row(ta, tb, n, k, alpha, a, lda, b, ldb, acc, c);
        return;
    }
    if ((double)m * (double)n * (double)k <= SMALL_MNK) {
        struct small s = {.m = m, .n = n, .k = k, .a = a, .b = b, .ldb = ldb, .tb = tb, .c = c};
        s.ars = ta ? 1 : lda;
        s.acs = ta ? lda : 1;
        s.ldc = ldc;
        s.alpha = alpha;
        s.acc = acc;
        if (small_gemm(&s))
            return;
    }
    REAL_GEMM(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)m,
              (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, acc ? 1 : 0, c, (int)ldc);
}

/* -- Products of any size --------------------------------------------------------------------- */

#if STORED_IS_REAL /* bf16: gemm_bf16.inl */
struct gemm_job {
    const struct mc_gemm *o;
    struct mc_gemm_grid g;
};

HOT static void bias_add(real *c, int64_t ldc, const real *bias, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++) {
        real *row = c + i * ldc;
        EACH for (int64_t j = 0; j < n; j++) row[j] += bias[j];
    }
}

static void gemm_task(void *arg, int task, int thread)
{
    const struct gemm_job *job = arg;
    const struct mc_gemm *o = job->o;
    int64_t i0 = task / job->g.tiles_n * job->g.tile_m, j0 = task % job->g.tiles_n * job->g.tile_n;
    int64_t m = min_i64(job->g.tile_m, o->m - i0), n = min_i64(job->g.tile_n, o->n - j0);
    const real *a = (const real *)o->a + (o->ta ? i0 : i0 * o->lda);
    const real *b = (const real *)o->b + (o->tb ? j0 * o->ldb : j0);
    real *c = (real *)o->c + i0 * o->ldc + j0;
    (void)thread;
    gemm_block(o->ta, o->tb, m, n, o->k, (real)o->alpha, a, o->lda, b, o->ldb, o->acc, c, o->ldc);
    if (o->bias)
        bias_add(c, o->ldc, (const real *)o->bias + j0, m, n);
}

static void gemm(struct mc_pool *pool, const struct mc_gemm *o)
{
    MC_ASSERT(o->m <= INT_MAX && o->n <= INT_MAX && o->k <= INT_MAX && o->lda <= INT_MAX &&
              o->ldb <= INT_MAX && o->ldc <= INT_MAX);
    if (o->m == 0 || o->n == 0)
        return;
    struct gemm_job job = {o, mc_gemm_cpu_grid(o->m, o->n, o->k)};
    run(pool, gemm_task, &job, (int)(job.g.tiles_m * job.g.tiles_n));
}
#endif
