/* gemm_small.inl - the small product for one instruction set; gemm.inl includes it once for each.
 *
 * C[M,N] = alpha op(A) op(B) (+ C) by tiles of ROWS x 2 or ROWS_1 x 1 vectors of C that stay in
 * registers while k runs. op(B) is read as panels [K][2 VL]: where B lies already so, in place;
 * else from a copy on the stack (transposed, or the last columns filled up with zeros).
 *
 * I1  An element of C is one chain of fused multiply-adds, k ascending, begun at 0 every SMALL_K,
 *     times alpha, plus C. Tiles and vector length do not enter: every instruction set gives the
 *     same bits.
 * I2  The stack holds one panel: 2 SMALL_K VL elements, 32 KiB with the longest vectors.
 *
 * The includer defines SMALL_GEMM and kin (names), SMALL_ISA (attribute), VEC, VL, ROWS, ROWS_1
 * and VZERO VLOAD VSTORE VSPLAT VFMA VMUL VADD; VLOAD_N and VSTORE_N touch the first n elements. */

/* c [r, n <= 2 VL] from a (rows ars, columns acs apart) and b [k][.], rows ldb apart, v vectors of
 * it. r and v are constants where this is called. */
SMALL_ISA INL void SMALL_TILE(int r, int v, const struct product *s, int64_t k, const real *a,
                              const real *b, int64_t ldb, real *c, int64_t n, int acc)
{
    VEC sum[ROWS_1][2]; /* ROWS <= ROWS_1 */
    int64_t ars = s->ars, acs = s->acs, ldc = s->ldc;
    _Pragma("GCC unroll 16") for (int i = 0; i < r; i++)
        _Pragma("GCC unroll 2") for (int j = 0; j < v; j++) sum[i][j] = VZERO;
    for (int64_t p = 0; p < k; p++) {
        VEC bv[2];
        _Pragma("GCC unroll 2") for (int j = 0; j < v; j++) bv[j] = VLOAD(b + j * VL);
        _Pragma("GCC unroll 16") for (int i = 0; i < r; i++)
        {
            VEC x = VSPLAT(a[i * ars]);
            _Pragma("GCC unroll 2") for (int j = 0; j < v; j++) sum[i][j] =
                VFMA(x, bv[j], sum[i][j]);
        }
        a += acs;
        b += ldb;
    }
    VEC alpha = VSPLAT(s->alpha);
    if (n == v * VL) {
        _Pragma("GCC unroll 16") for (int i = 0; i < r; i++)
            _Pragma("GCC unroll 2") for (int j = 0; j < v; j++)
        {
            real *at = c + i * ldc + j * VL;
            VEC t = VMUL(alpha, sum[i][j]);
            VSTORE(at, acc ? VADD(VLOAD(at), t) : t);
        }
        return;
    }
    int64_t rest = n - (v - 1) * VL; /* of the last vector */
    _Pragma("GCC unroll 16") for (int i = 0; i < r; i++)
    {
        real *at = c + i * ldc;
        if (v == 2) {
            VEC t = VMUL(alpha, sum[i][0]);
            VSTORE(at, acc ? VADD(VLOAD(at), t) : t);
            at += VL;
        }
        VEC t = VMUL(alpha, sum[i][v - 1]);
        VSTORE_N(at, rest, acc ? VADD(VLOAD_N(at, rest), t) : t);
    }
}

/* All rows of one panel. */
SMALL_ISA INL void SMALL_PANEL(int v, const struct product *s, int64_t k, const real *a,
                               const real *b, int64_t ldb, real *c, int64_t n, int acc)
{
    int64_t i = 0;
    if (v == 1)
        for (; i + ROWS_1 <= s->m; i += ROWS_1)
            SMALL_TILE(ROWS_1, v, s, k, a + i * s->ars, b, ldb, c + i * s->ldc, n, acc);
    for (; i + ROWS <= s->m; i += ROWS)
        SMALL_TILE(ROWS, v, s, k, a + i * s->ars, b, ldb, c + i * s->ldc, n, acc);
    if (i + 4 <= s->m) {
        SMALL_TILE(4, v, s, k, a + i * s->ars, b, ldb, c + i * s->ldc, n, acc);
        i += 4;
    }
    if (i + 2 <= s->m) {
        SMALL_TILE(2, v, s, k, a + i * s->ars, b, ldb, c + i * s->ldc, n, acc);
        i += 2;
    }
    if (i < s->m)
        SMALL_TILE(1, v, s, k, a + i * s->ars, b, ldb, c + i * s->ldc, n, acc);
}

/* to [k][w]: n columns of op(B), the others 0. */
SMALL_ISA INL void SMALL_PACK(real *to, int64_t w, int tb, const real *b, int64_t ldb, int64_t k,
                              int64_t n)
{
    if (!tb) {
        int64_t full = n / VL * VL;
        for (int64_t p = 0; p < k; p++, to += w, b += ldb) {
            for (int64_t j = 0; j < full; j += VL)
                VSTORE(to + j, VLOAD(b + j));
            if (full < n)
                VSTORE(to + full, VLOAD_N(b + full, n - full));
        }
        return;
    }
    if (n < w)
        memset(to, 0, (size_t)(k * w) * sizeof(real));
    int64_t j = 0;
    for (; j + 8 <= n; j += 8) {
        int64_t p = 0;
        for (; p + 8 <= k; p += 8)
            TRANSPOSE_8(to + p * w + j, w, b + j * ldb + p, ldb);
        for (; p < k; p++)
            for (int i = 0; i < 8; i++)
                to[p * w + j + i] = b[(j + i) * ldb + p];
    }
    for (; j < n; j++)
        for (int64_t p = 0; p < k; p++)
            to[p * w + j] = b[j * ldb + p];
}

SMALL_ISA static void SMALL_GEMM(const struct product *s)
{
    real panel[SMALL_K * 2 * VL] __attribute__((aligned(64))); /* I2 */
    int64_t p = 0;
    do { /* once even if K = 0 */
        int64_t k = min_i64(SMALL_K, s->k - p);
        int acc = s->acc || p > 0;
        for (int64_t j = 0; j < s->n; j += 2 * VL) {
            int64_t n = min_i64(2 * VL, s->n - j), v = n > VL ? 2 : 1;
            const real *a = s->a + p * s->acs;
            const real *b = s->b + (s->tb ? j * s->ldb + p : p * s->ldb + j);
            int64_t ldb = s->ldb;
            if (s->tb || n < v * VL) {
                SMALL_PACK(panel, v * VL, s->tb, b, ldb, k, n);
                b = panel;
                ldb = v * VL;
            }
            if (v == 2)
                SMALL_PANEL(2, s, k, a, b, ldb, s->c + j, n, acc);
            else
                SMALL_PANEL(1, s, k, a, b, ldb, s->c + j, n, acc);
        }
        p += k;
    } while (p < s->k);
}

#include "gemm_big.inl"

#undef TRANSPOSE_8
#undef SMALL_GEMM
#undef SMALL_PANEL
#undef SMALL_TILE
#undef SMALL_PACK
#undef SMALL_ISA
#undef ROWS
#undef ROWS_1
#undef VEC
#undef VL
#undef VZERO
#undef VLOAD
#undef VSTORE
#undef VLOAD_N
#undef VSTORE_N
#undef VSPLAT
#undef VFMA
#undef VMUL
#undef VADD
