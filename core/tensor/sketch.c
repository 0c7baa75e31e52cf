/* sketch.c - random signs and sums. Floor 1 (tensor).
 *
 * I1  A sign depends on the logical index alone: not on layout, name or order.
 * I2  Sums are in fp64, in the order of the calls: of one layout always the same bits.
 * I3  A non-finite element is counted, and enters the hash, but no sum.
 * Memory: the caller's. Threads: any, one a sketch. */
#include "sketch.h"
#include <math.h>
#include <string.h>
#include "../base/hash.h"
#include "../base/status.h"

static double element(const unsigned char *p, enum mc_dtype t, int64_t i)
{
    if (t == MC_F64) {
        double x;
        memcpy(&x, p + 8 * i, 8);
        return x;
    }
    if (t == MC_BF16) { /* the upper half of an fp32 */
        uint16_t half;
        memcpy(&half, p + 2 * i, 2);
        uint32_t bits = (uint32_t)half << 16;
        float x;
        memcpy(&x, &bits, 4);
        return x;
    }
    if (t == MC_I32) {
        int32_t x;
        memcpy(&x, p + 4 * i, 4);
        return x;
    }
    MC_ASSERT(t == MC_F32);
    float x;
    memcpy(&x, p + 4 * i, 4);
    return x;
}

void mc_sketch_add(struct mc_sketch *s, const void *p, enum mc_dtype t, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = element(p, t, i);
        if (!isfinite(x)) { /* I3 */
            s->nonfinite++;
            continue;
        }
        s->sum += x;
        s->squares += x * x;
        if (fabs(x) > s->max)
            s->max = fabs(x);
        uint64_t signs = mc_mix64((uint64_t)(first + i)); /* I1 */
        for (int k = 0; k < MC_SKETCH; k++)
            s->p[k] += signs >> k & 1 ? x : -x;
    }
    s->count += n;
    if (n > 0)
        s->hash += mc_hash_elems(p, (int)mc_dtype_size(t), (uint64_t)first, (uint64_t)n);
}

void mc_sketch_join(struct mc_sketch *s, const struct mc_sketch *part)
{
    s->count += part->count;
    s->nonfinite += part->nonfinite;
    s->sum += part->sum;
    s->squares += part->squares;
    s->max = part->max > s->max ? part->max : s->max;
    for (int k = 0; k < MC_SKETCH; k++)
        s->p[k] += part->p[k];
    s->hash += part->hash;
}

double mc_sketch_norm(const struct mc_sketch *s)
{
    double sum = 0;
    for (int k = 0; k < MC_SKETCH; k++)
        sum += s->p[k] * s->p[k];
    return sqrt(sum / MC_SKETCH);
}

double mc_sketch_apart(const struct mc_sketch *a, const struct mc_sketch *b)
{
    double sum = 0;
    if (a->nonfinite != b->nonfinite)
        return INFINITY;
    for (int k = 0; k < MC_SKETCH; k++)
        sum += (a->p[k] - b->p[k]) * (a->p[k] - b->p[k]);
    return sqrt(sum / MC_SKETCH);
}
