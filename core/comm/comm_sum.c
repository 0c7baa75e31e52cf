/* comm_sum.c - sums (and maxima) of the parts of several members. Floor 2 (comm).
 *
 * I1  Every element is ((x0 + x1) + x2) ... over members, whatever the slicing, the member that
 *     adds, or the length: so its bits are the same everywhere. Blocks only keep the accumulator in
 *     the first-level cache.
 * I2  BF16 is added in fp32 and rounded once, to nearest even.
 * I3  Integers wrap (they are added unsigned). The maximum of anything and a NaN is a NaN.
 *
 * Memory: a block on the stack. Threads: any. */
#include "comm_int.h"
#include <string.h>

enum { BLOCK = 1024 };

int mc_sum_can(enum mc_dtype t)
{
    return t == MC_F32 || t == MC_F64 || t == MC_BF16 || t == MC_I32 || t == MC_I64;
}

static void sum_f32(float *restrict acc, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] += x[i];
}

static void sum_f64(double *restrict acc, const double *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] += x[i];
}

static void sum_i32(uint32_t *restrict acc, const uint32_t *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] += x[i];
}

static void sum_i64(uint64_t *restrict acc, const uint64_t *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] += x[i];
}

/* x != x: a NaN. One that is there stays, since no comparison with it holds. (I3) */
static void max_f32(float *restrict acc, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] = x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i];
}

static void max_f64(double *restrict acc, const double *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] = x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i];
}

static void max_i32(int32_t *restrict acc, const int32_t *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] = x[i] > acc[i] ? x[i] : acc[i];
}

static void max_i64(int64_t *restrict acc, const int64_t *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] = x[i] > acc[i] ? x[i] : acc[i];
}

/* BF16 is the upper half of an fp32. */
static void widen(float *restrict to, const uint16_t *restrict x, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t u = (uint32_t)x[i] << 16;
        memcpy(&to[i], &u, 4);
    }
}

/* Nearest even (I2): add half of the last place kept, less one where that place is even. A NaN
 * stays one. */
static void narrow(uint16_t *restrict to, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        uint32_t up = (u + 0x7fff + (u >> 16 & 1)) >> 16;
        to[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : up);
    }
}

static void add_block(enum mc_dtype t, enum mc_reduce op, void *acc, const void *x, int n)
{
    switch (t) {
    case MC_F32:
        (op == MC_SUM ? sum_f32 : max_f32)(acc, x, n);
        break;
    case MC_F64:
        (op == MC_SUM ? sum_f64 : max_f64)(acc, x, n);
        break;
    case MC_I32:
        op == MC_SUM ? sum_i32(acc, x, n) : max_i32(acc, x, n);
        break;
    case MC_I64:
        op == MC_SUM ? sum_i64(acc, x, n) : max_i64(acc, x, n);
        break;
    default:
        MC_ASSERT(!"a dtype that mc_sum_can refuses");
    }
}

void mc_sum_parts(enum mc_dtype t, enum mc_reduce op, void *out, const void *const *src, int parts,
                  int64_t n)
{
    _Alignas(64) unsigned char acc[BLOCK * 8]; /* the widest dtype has 8 bytes */
    _Alignas(64) float wide[BLOCK];
    size_t es = mc_dtype_size(t);
    for (int64_t at = 0; at < n; at += BLOCK) {
        int len = (int)(n - at < BLOCK ? n - at : BLOCK);
        for (int p = 0; p < parts; p++) {
            const char *x = (const char *)src[p] + (size_t)at * es;
            if (t == MC_BF16) {
                widen(p == 0 ? (void *)acc : (void *)wide, (const void *)x, len);
                if (p > 0)
                    add_block(MC_F32, op, acc, wide, len);
            } else if (p == 0) {
                memcpy(acc, x, (size_t)len * es);
            } else {
                add_block(t, op, acc, x, len);
            }
        }
        if (t == MC_BF16)
            narrow((uint16_t *)out + at, (const float *)(const void *)acc, len);
        else
            memcpy((char *)out + (size_t)at * es, acc, (size_t)len * es);
    }
}
