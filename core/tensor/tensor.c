/* tensor.c - logical shapes, shardings and boxes. Floor 1 (tensor).
 *
 * I1  Pure arithmetic on extents; a shape that does not divide is refused, never rounded.
 * I2  When several mesh axes cut one dimension, they cut in the order of enum mc_axis: tp first
 *     (outermost part), then cp, ep, dp, pp inside it. So the parts of a tp rank are contiguous and
 *     an optimizer shard over dp is a piece of the tp-local tensor.
 * I3  The boxes of all coordinates of the axes that shard are disjoint and cover the tensor.
 *
 * Memory: none. Threads: any. */
#include "tensor.h"
#include <stdio.h>
#include <string.h>

int64_t mc_shape_count(const struct mc_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->nd; i++)
        if (s->dim[i] < 0 || __builtin_mul_overflow(n, s->dim[i], &n))
            return -1;
    return n;
}

struct mc_shape mc_shape_1(int64_t a)
{
    return (struct mc_shape){.nd = 1, .dim = {a}};
}

struct mc_shape mc_shape_2(int64_t a, int64_t b)
{
    return (struct mc_shape){.nd = 2, .dim = {a, b}};
}

int mc_shape_eq(const struct mc_shape *a, const struct mc_shape *b)
{
    if (a->nd != b->nd)
        return 0;
    for (int i = 0; i < a->nd; i++)
        if (a->dim[i] != b->dim[i])
            return 0;
    return 1;
}

struct mc_box mc_box_whole(const struct mc_shape *s)
{
    struct mc_box b = {.nd = s->nd};
    for (int i = 0; i < s->nd; i++)
        b.n[i] = s->dim[i];
    return b;
}

int64_t mc_box_count(const struct mc_box *b)
{
    int64_t n = 1;
    for (int i = 0; i < b->nd; i++)
        n *= b->n[i];
    return n;
}

int mc_box_of(const struct mc_shape *s, const struct mc_sharding *sh, const int coord[MC_NAXES],
              const int size[MC_NAXES], struct mc_box *box)
{
    struct mc_box b = mc_box_whole(s);
    for (int a = 0; a < MC_NAXES; a++) { /* I2 */
        const struct mc_place *p = &sh->on[a];
        if (p->kind != MC_SHARD || size[a] == 1)
            continue;
        if (p->how == MC_ZIGZAG) /* two pieces: no single box */
            return 0;
        if (p->dim >= s->nd || size[a] < 1 || coord[a] < 0 || coord[a] >= size[a] ||
            b.n[p->dim] % size[a] != 0) /* I1 */
            return 0;
        b.n[p->dim] /= size[a];
        b.lo[p->dim] += coord[a] * b.n[p->dim];
    }
    *box = b;
    return 1;
}

const char *mc_axis_name(enum mc_axis a)
{
    static const char *const names[MC_NAXES] = {"tp", "cp", "ep", "dp", "pp"};
    return (unsigned)a < MC_NAXES ? names[a] : "?";
}

void mc_sharding_print(const struct mc_sharding *sh, char *dst, int cap)
{
    static const char *const how[] = {"", ",zigzag", ",expert"};
    int n = 0;
    if (cap < 1)
        return;
    dst[0] = 0;
    for (int a = 0; a < MC_NAXES; a++) {
        const struct mc_place *p = &sh->on[a];
        char part[32];
        if (p->kind == MC_SHARD)
            snprintf(part, sizeof part, "%s:shard(%d%s)", mc_axis_name((enum mc_axis)a), p->dim,
                     p->how <= MC_EXPERT ? how[p->how] : ",?");
        else if (p->kind == MC_PARTIAL)
            snprintf(part, sizeof part, "%s:partial", mc_axis_name((enum mc_axis)a));
        else
            continue;
        int w = snprintf(dst + n, (size_t)(cap - n), "%s%s", n ? " " : "", part);
        n = w < cap - n ? n + w : cap - 1;
    }
    if (n == 0)
        snprintf(dst, (size_t)cap, "replicate");
}
