/* gemm_big.inl - the large product for one instruction set; gemm_small.inl includes it.
 *
 * C[M,N] = alpha op(A) op(B) (+ C). A strip of op(B), KC deep and NC wide, is repacked as panels
 * [k][2 VL] that stay in the second cache; BIG_ROWS x 2 vectors of C stay in registers while k
 * runs. A is read where it lies, one number at a time: its BIG_ROWS rows stay in the first cache,
 * unless they crowd into few sets of it; then they are copied. While a tile runs, the next rows of
 * A and the next strip of B are asked for: weights come from memory, and packing would wait for
 * them.
 *
 * I1  An element of C is one chain of fused multiply-adds, k ascending, begun at 0 every KC, times
 *     alpha, plus C. Tiles and vector length do not enter: every instruction set gives the same
 *     bits, and so does every grid of tiles.
 * I2  o->pack holds the strip and the rows: PACK_BYTES, aligned to 64.
 * I3  Nothing is read beyond the operands; what is only asked for may lie anywhere.
 *
 * The includer defines BIG_GEMM and kin (names), BIG_ROWS, and what gemm_small.inl wants. */

/* c [r, n <= v VL] from rows of A, element (i, p) at a[i ars + p acs], and one panel of B. r, v,
 * ars and acs are constants where this is called. */
SMALL_ISA INL void BIG_TILE(int r, int v, struct strip *s, const real *a, int64_t ars, int64_t acs,
                            const real *b, const real *bias, real *c, int64_t n)
{
    VEC sum[BIG_ROWS][2];
    struct ahead rows = s->rows, next = s->next;
    int64_t ldc = s->ldc, k = s->k;
    _Pragma("GCC unroll 16") for (int i = 0; i < r; i++)
    {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + n - 1, 1);
        _Pragma("GCC unroll 2") for (int j = 0; j < v; j++) sum[i][j] = VZERO;
    }
    for (int64_t p = 0; p < k; p++) {
        VEC bv[2];
        if (p % AHEAD_EVERY == 0) {
            fetch(&rows);
            fetch(&next);
        }
        _Pragma("GCC unroll 2") for (int j = 0; j < v; j++) bv[j] = VLOAD(b + j * VL);
        _Pragma("GCC unroll 16") for (int i = 0; i < r; i++)
        {
            VEC x = VSPLAT(a[i * ars]);
            _Pragma("GCC unroll 2") for (int j = 0; j < v; j++) sum[i][j] =
                VFMA(x, bv[j], sum[i][j]);
        }
        a += acs;
        b += v * VL;
    }
    s->rows = rows;
    s->next = next;
    VEC alpha = VSPLAT(s->alpha);
    int64_t rest = n - (v - 1) * VL; /* of the last vector */
    int acc = s->acc;
    _Pragma("GCC unroll 16") for (int i = 0; i < r; i++)
    {
        real *at = c + i * ldc;
        if (v == 2) {
            VEC t = VMUL(alpha, sum[i][0]);
            t = acc ? VADD(VLOAD(at), t) : t;
            VSTORE(at, bias ? VADD(t, VLOAD(bias)) : t);
            at += VL;
        }
        VEC t = VMUL(alpha, sum[i][v - 1]);
        const real *add = bias ? bias + (v - 1) * VL : NULL;
        if (rest == VL) {
            t = acc ? VADD(VLOAD(at), t) : t;
            VSTORE(at, bias ? VADD(t, VLOAD(add)) : t);
        } else {
            t = acc ? VADD(VLOAD_N(at, rest), t) : t;
            VSTORE_N(at, rest, bias ? VADD(t, VLOAD_N(add, rest)) : t);
        }
    }
}

/* r rows of C against every panel of the strip. */
SMALL_ISA INL void BIG_PANELS(int r, struct strip *s, const real *a, int64_t ars, int64_t acs,
                              real *c)
{
    const real *b = s->b, *bias = s->bias;
    int64_t n = s->n;
    for (; n > VL; b += 2 * VL * s->k, c += 2 * VL, n -= 2 * VL) {
        BIG_TILE(r, 2, s, a, ars, acs, b, bias, c, min_i64(n, 2 * VL));
        bias = bias ? bias + 2 * VL : NULL;
    }
    if (n > 0)
        BIG_TILE(r, 1, s, a, ars, acs, b, bias, c, n);
}

/* r <= BIG_ROWS rows: those left at the end go by fours, twos and one. */
SMALL_ISA INL void BIG_BAND(int64_t r, struct strip *s, const real *a, int64_t ars, int64_t acs,
                            real *c)
{
    if (r == BIG_ROWS) {
        BIG_PANELS(BIG_ROWS, s, a, ars, acs, c);
        return;
    }
    for (; r >= 4; r -= 4, a += 4 * ars, c += 4 * s->ldc)
        BIG_PANELS(4, s, a, ars, acs, c);
    for (; r >= 2; r -= 2, a += 2 * ars, c += 2 * s->ldc)
        BIG_PANELS(2, s, a, ars, acs, c);
    if (r)
        BIG_PANELS(1, s, a, ars, acs, c);
}

/* Rows of op(B) as they lie: whole rows of the strip are read, each piece goes to its panel. */
SMALL_ISA static void BIG_PACK_ROWS(real *to, const real *b, int64_t ldb, int64_t k, int64_t n)
{
    int64_t wide = n / (2 * VL) * (2 * VL), rest = n - wide;
    int64_t v = rest > VL ? 2 : 1; /* vectors of the last panel */
    for (int64_t p = 0; p < k; p++, b += ldb) {
        real *at = to + p * 2 * VL;
        for (int64_t j = 0; j < wide; j += 2 * VL, at += 2 * VL * k) {
            VSTORE(at, VLOAD(b + j));
            VSTORE(at + VL, VLOAD(b + j + VL));
        }
        if (rest == 0)
            continue;
        at = to + wide * k + p * v * VL;
        if (v == 2) {
            VSTORE(at, VLOAD(b + wide));
            at += VL;
        }
        int64_t last = rest - (v - 1) * VL;
        VSTORE(at, VLOAD_N(b + wide + (v - 1) * VL, last)); /* I3 */
    }
}

SMALL_ISA static void BIG_PACK_B(real *to, int tb, const real *b, int64_t ldb, int64_t k, int64_t n)
{
    if (!tb) {
        BIG_PACK_ROWS(to, b, ldb, k, n);
        return;
    }
    for (; n > 0; n -= 2 * VL, to += 2 * VL * k, b += 2 * VL * ldb)
        SMALL_PACK(to, n > VL ? 2 * VL : VL, 1, b, ldb, k, min_i64(n, 2 * VL));
}

/* r rows of op(A) at `from` against the strip; what is copied goes to `to`. */
SMALL_ISA static void BIG_ROWS_OF(const struct product *o, struct strip *s, int64_t r,
                                  const real *from, real *to, real *c)
{
    if (o->acs != 1) {
        BIG_BAND(r, s, from, 1, o->acs, c);
        return;
    }
    int64_t ars = o->ars;
    if (ars * (int64_t)sizeof(real) % CROWDED == 0) {
        for (int64_t x = 0; x < r; x++)
            memcpy(to + x * KC_STEP, from + x * ars, (size_t)s->k * sizeof(real));
        from = to;
        ars = KC_STEP;
    }
    BIG_BAND(r, s, from, ars, 1, c);
}

SMALL_ISA static void BIG_GEMM(const struct product *o)
{
    real *strip = o->pack, *rows = o->pack + KC * NC; /* I2 */
    for (int64_t j = 0; j < o->n; j += NC) {
        struct strip s = {.n = min_i64(NC, o->n - j), .b = strip, .ldc = o->ldc, .alpha = o->alpha};
        int64_t p = 0;
        do { /* once even if K = 0 */
            s.k = min_i64(KC, o->k - p);
            s.acc = o->acc || p > 0;
            s.bias = o->bias && p + s.k == o->k ? o->bias + j : NULL;
            s.next = ahead_of_strip(o, p, j);
            BIG_PACK_B(strip, o->tb, o->b + (o->tb ? j * o->ldb + p : p * o->ldb + j), o->ldb, s.k,
                       s.n);
            for (int64_t i = 0; i < o->m; i += BIG_ROWS) {
                const real *from = o->a + i * o->ars + p * o->acs;
                int64_t r = min_i64(BIG_ROWS, o->m - i), more = min_i64(BIG_ROWS, o->m - i - r);
                s.rows = o->acs == 1 ? ahead_of(from + r * o->ars, more, s.k, o->ars)
                                     : ahead_of(from + r, s.k, more, o->acs);
                BIG_ROWS_OF(o, &s, r, from, rows, o->c + i * o->ldc + j);
            }
            p += s.k;
        } while (p < o->k);
    }
}

#undef BIG_GEMM
#undef BIG_TILE
#undef BIG_PANELS
#undef BIG_BAND
#undef BIG_PACK_ROWS
#undef BIG_PACK_B
#undef BIG_ROWS_OF
#undef BIG_ROWS
