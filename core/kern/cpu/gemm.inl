/* gemm.inl - C[M,N] = alpha op(A) op(B) (+ C) over the tiles of gemm_cpu.c's grid, by our own
 * kernels: gemm_big.inl repacks its operands, gemm_small.inl reads them where they lie. One row
 * goes to BLAS, and so does everything on a CPU that has no fused multiply-add. The bias is added
 * as C is written, or while the tile is still in the cache. What was measured: docs/performance.md.
 */
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

/* -- Our products ----------------------------------------------------------------------------- */

/* Small ones, ours instead of the library's for a reason of its own: OpenBLAS has kernels for small
 * products that take a packing buffer from malloc at every call, and the step loop may not
 * allocate. 0.3.21 with SkylakeX or Cooperlake kernels: neither operand transposed, M N K <= 10^6,
 * K >= 32 (fp64 16), N modulo 16 from 1 to 8 (fp64: modulo 8 from 1 to 4). Later versions on ARM
 * with SVE: other transposes too.
 *
 * Its chains of fused multiply-adds need the instruction: the C library's stand-in is thousands of
 * times slower. A CPU without it (x86 before 2013) has none of those kernels either and takes BLAS
 * for every size. */
#define SMALL_MNK 1048576.0                    /* a bound above all of the library's */
#define WIDE      (64 / (int64_t)sizeof(real)) /* elements of the longest vector */
#define SMALL_K   256                          /* rows of a panel: 32 KiB of stack at most */

/* Large ones: a strip of op(B) is KC deep and NC wide (590 KB: most of a second-level cache of 1
 * MiB; with 512 KiB the panel in use stays there), beside 16 rows of op(A). */
#define KC          (1536 / (int64_t)sizeof(real))
#define NC          ((int64_t)384)
#define KC_STEP     (KC + WIDE) /* from row to row: not all in one set of the first cache */
#define PACK_BYTES  ((size_t)(KC * NC + 16 * KC_STEP) * sizeof(real))
#define CROWDED     2048 /* bytes from row to row: 14 rows in two sets of 8 ways, or in one */
#define AHEAD_EVERY 8 /* steps of k, 28 multiply-adds each, from one line asked for to the next */
_Static_assert(PACK_BYTES <= MC_POOL_SCRATCH, "a thread's scratch holds what a product packs");

struct product { /* C[m,n] = alpha op(A) op(B) (+ C) */
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
    /* for large ones only */
    real *pack;       /* PACK_BYTES */
    const real *bias; /* [N] or NULL: added last */
    const real *then; /* op(B) of the tile that is likely to be next here; NULL: not known */
};

/* Memory that will be wanted soon, asked for a line at a time: rows of dense pieces. At the end it
 * stays where it is. */
#define LINE 64
struct ahead {
    const char *at;
    int64_t left, lines, rows; /* lines left of this row, of each row; rows left */
    int64_t step, skip;        /* bytes to the next line; from a row's end to the next row */
};
INL void fetch(struct ahead *f)
{
    __builtin_prefetch(f->at, 0, 2); /* into the second cache */
    f->at += f->step;
    if (--f->left == 0) {
        f->at += f->skip;
        f->left = f->lines;
        if (--f->rows == 0)
            f->step = f->skip = 0;
    }
}
INL struct ahead ahead_of(const real *at, int64_t rows, int64_t cols, int64_t ld)
{
    struct ahead f = {.at = (const char *)at, .left = 1, .lines = 1, .rows = rows};
    if (rows <= 0 || cols <= 0)
        return f;
    f.left = f.lines = (cols * (int64_t)sizeof(real) + LINE - 1) / LINE;
    f.step = LINE;
    f.skip = ld * (int64_t)sizeof(real) - f.lines * LINE;
    return f;
}
/* The strip after the one at row p and column j of op(B); after the last one the first of the tile
 * that this thread takes next, if nobody else does. */
static struct ahead ahead_of_strip(const struct product *o, int64_t p, int64_t j)
{
    p += KC;
    if (p >= o->k) {
        p = 0;
        j += NC;
    }
    const real *b = o->b;
    if (j >= o->n) {
        b = o->then;
        j = 0;
    }
    int64_t k = min_i64(KC, o->k - p), n = b ? min_i64(NC, o->n - j) : 0;
    return o->tb ? ahead_of(b + j * o->ldb + p, n, k, o->ldb)
                 : ahead_of(b + p * o->ldb + j, k, n, o->ldb);
}

struct strip {            /* of op(B), packed, and what the tiles against it share */
    const real *b, *bias; /* bias: of the last strip of a sum, or NULL */
    int64_t k, n, ldc;
    real alpha;
    int acc;
    struct ahead rows, next; /* rows of A and the strip of B that come next */
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

#define TRANSPOSE_8   transpose_8
#define SMALL_GEMM    small_avx512
#define SMALL_PANEL   small_panel_avx512
#define SMALL_TILE    small_tile_avx512
#define SMALL_PACK    small_pack_avx512
#define BIG_TILE      big_tile_avx512
#define BIG_PANELS    big_panels_avx512
#define BIG_BAND      big_band_avx512
#define BIG_PACK_ROWS big_pack_rows_avx512
#define BIG_PACK_B    big_pack_b_avx512
#define BIG_ROWS_OF   big_rows_of_avx512
#define BIG_GEMM      big_avx512
#define BIG_ROWS      14
#define SMALL_ISA     __attribute__((target("avx512f")))
#define ROWS          8
#define ROWS_1        8
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

#define TRANSPOSE_8   transpose_8
#define SMALL_GEMM    small_avx2
#define SMALL_PANEL   small_panel_avx2
#define SMALL_TILE    small_tile_avx2
#define SMALL_PACK    small_pack_avx2
#define BIG_TILE      big_tile_avx2
#define BIG_PANELS    big_panels_avx2
#define BIG_BAND      big_band_avx2
#define BIG_PACK_ROWS big_pack_rows_avx2
#define BIG_PACK_B    big_pack_b_avx2
#define BIG_ROWS_OF   big_rows_of_avx2
#define BIG_GEMM      big_avx2
#define BIG_ROWS      6
#define SMALL_ISA     __attribute__((target("avx2,fma")))
#define ROWS          6
#define ROWS_1        8
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
#define TRANSPOSE_8   small_transpose_plain
#define SMALL_GEMM    small_plain
#define SMALL_PANEL   small_panel_plain
#define SMALL_TILE    small_tile_plain
#define SMALL_PACK    small_pack_plain
#define BIG_TILE      big_tile_plain
#define BIG_PANELS    big_panels_plain
#define BIG_BAND      big_band_plain
#define BIG_PACK_ROWS big_pack_rows_plain
#define BIG_PACK_B    big_pack_b_plain
#define BIG_ROWS_OF   big_rows_of_plain
#define BIG_GEMM      big_plain
#define BIG_ROWS      6
#define SMALL_ISA     __attribute__((unused)) /* on x86 only the test calls it */
#define ROWS          6
#define ROWS_1        8
#define VEC           struct quad
#define VL            4
#define VZERO         quad_splat(0)
#define VLOAD         quad_load
#define VSTORE        quad_store
#define VSPLAT        quad_splat
#define VFMA          quad_fma
#define VMUL          quad_mul
#define VADD          quad_add
#define VLOAD_N       quad_load_n
#define VSTORE_N      quad_store_n
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
static int small_gemm(const struct product *s)
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
        struct product left = *s, right = *s;
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
static void one_row(const struct product *o)
{
    if (!o->acc)
        memset(o->c, 0, (size_t)o->n * sizeof(real));
    REAL_GEMV(CblasRowMajor, o->tb ? CblasNoTrans : CblasTrans, (int)(o->tb ? o->n : o->k),
              (int)(o->tb ? o->k : o->n), o->alpha, o->b, (int)o->ldb, o->a, (int)o->acs, 1, o->c,
              1);
}

/* Returns 0, nothing done, where BLAS is the better one: without a fused multiply-add, and on CPUs
 * that nobody measured. */
static int big_gemm(const struct product *o)
{
#if SMALL_X86
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    if (__builtin_cpu_supports("avx512f"))
        big_avx512(o);
    else
        big_avx2(o);
    return 1;
#else
    (void)o;
    return 0;
#endif
}

HOT static void bias_add(real *c, int64_t ldc, const real *bias, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++) {
        real *row = c + i * ldc;
        EACH for (int64_t j = 0; j < n; j++) row[j] += bias[j];
    }
}

static void blas_gemm(const struct product *o)
{
    REAL_GEMM(CblasRowMajor, o->acs == 1 ? CblasNoTrans : CblasTrans,
              o->tb ? CblasTrans : CblasNoTrans, (int)o->m, (int)o->n, (int)o->k, o->alpha, o->a,
              (int)(o->acs == 1 ? o->ars : o->acs), o->b, (int)o->ldb, o->acc ? 1 : 0, o->c,
              (int)o->ldc);
}

/* Edges in elements, within int by the assert of gemm(). The shape alone decides who computes; what
 * has no scratch to pack in counts as small. */
static void multiply(const struct product *o)
{
    int small = !o->pack || (double)o->m * (double)o->n * (double)o->k <= SMALL_MNK;
    if (o->m > 1 && !small && big_gemm(o))
        return;
    if (o->m == 1)
        one_row(o);
    else if (!small || !small_gemm(o))
        blas_gemm(o);
    if (o->bias)
        bias_add(o->c, o->ldc, o->bias, o->m, o->n);
}

/* A small product: a block of attention. */
static void gemm_block(int ta, int tb, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
                       int64_t lda, const real *b, int64_t ldb, int acc, real *c, int64_t ldc)
{
    struct product o = {.m = m, .n = n, .k = k, .a = a, .b = b, .ldb = ldb, .tb = tb, .c = c};
    o.ars = ta ? 1 : lda;
    o.acs = ta ? lda : 1;
    o.ldc = ldc;
    o.alpha = alpha;
    o.acc = acc;
    multiply(&o);
}

/* -- Products of any size --------------------------------------------------------------------- */

#if STORED_IS_REAL /* bf16: gemm_bf16.inl */
struct gemm_job {
    const struct mc_gemm *o;
    struct mc_gemm_grid g;
    struct mc_pool *pool;
};

/* op(A) and op(B) of a tile, and its place in C. */
static struct product tile_of(const struct gemm_job *job, int task)
{
    const struct mc_gemm *o = job->o;
    int64_t i = task / job->g.tiles_n * job->g.tile_m, j = task % job->g.tiles_n * job->g.tile_n;
    struct product p = {.k = o->k, .ldb = o->ldb, .tb = o->tb, .ldc = o->ldc, .acc = o->acc};
    p.m = min_i64(job->g.tile_m, o->m - i);
    p.n = min_i64(job->g.tile_n, o->n - j);
    p.alpha = (real)o->alpha;
    p.a = (const real *)o->a + (o->ta ? i : i * o->lda);
    p.ars = o->ta ? 1 : o->lda;
    p.acs = o->ta ? o->lda : 1;
    p.b = (const real *)o->b + (o->tb ? j * o->ldb : j);
    p.c = (real *)o->c + i * o->ldc + j;
    p.bias = o->bias ? (const real *)o->bias + j : NULL;
    return p;
}

static void gemm_task(void *arg, int task, int thread)
{
    const struct gemm_job *job = arg;
    struct product p = tile_of(job, task);
    int next = task + mc_pool_threads(job->pool); /* threads take tiles in turn */
    p.pack = mc_pool_scratch(job->pool, thread);
    if (next < (int)(job->g.tiles_m * job->g.tiles_n))
        p.then = tile_of(job, next).b;
    multiply(&p);
}

static void gemm(struct mc_pool *pool, const struct mc_gemm *o)
{
    MC_ASSERT(o->m <= INT_MAX && o->n <= INT_MAX && o->k <= INT_MAX && o->lda <= INT_MAX &&
              o->ldb <= INT_MAX && o->ldc <= INT_MAX);
    if (o->m == 0 || o->n == 0)
        return;
    struct gemm_job job = {o, mc_gemm_cpu_grid(o->m, o->n, o->k), pool};
    run(pool, gemm_task, &job, (int)(job.g.tiles_m * job.g.tiles_n));
}
#endif
