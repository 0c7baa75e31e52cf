/* tensor.c - logical shapes, shardings and boxes. Floor 1 (tensor).
 *
 * I1  Pure arithmetic on extents; a shape that does not divide is refused, never rounded, unless
 *     the sharding says that its parts are padded.
 * I2  When several mesh axes cut one dimension, they cut in the order of enum mc_axis: tp first
 *     (outermost part), then cp, ep, dp, pp inside it. So the parts of a tp rank are contiguous and
 *     an optimizer shard over dp is a piece of the tp-local tensor.
 * I3  The boxes of all coordinates of the axes that shard are disjoint (copies: the same) and cover
 *     the tensor.
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

int mc_place_same(const struct mc_place *a, const struct mc_place *b)
{
    if (a->kind != b->kind)
        return 0;
    return a->kind != MC_SHARD || (a->dim == b->dim && a->how == b->how &&
                                   a->copies + !a->copies == b->copies + !b->copies);
}

int mc_place_parts(const struct mc_place *p, int size)
{
    return size / (p->copies + !p->copies);
}

int mc_place_part(const struct mc_place *p, int coord)
{
    return coord / (p->copies + !p->copies);
}

void mc_part_of(int64_t extent, int parts, int part, int64_t *lo, int64_t *n)
{
    int64_t each = (extent + parts - 1) / parts;
    *lo = part * each < extent ? part * each : extent;
    *n = extent - *lo < each ? extent - *lo : each;
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
        int64_t lo, n;
        int parts = mc_place_parts(p, size[a]);
        if (p->dim >= s->nd || coord[a] < 0 || coord[a] >= size[a] || parts < 1 ||
            (p->copies > 1 && size[a] % p->copies != 0) ||
            (p->how != MC_PADDED && b.n[p->dim] % parts != 0)) /* I1 */
            return 0;
        mc_part_of(b.n[p->dim], parts, mc_place_part(p, coord[a]), &lo, &n);
        b.lo[p->dim] += lo;
        b.n[p->dim] = n;
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
    static const char *const how[] = {"", ",zigzag", ",expert", ",padded"};
    int n = 0;
    if (cap < 1)
        return;
    dst[0] = 0;
    for (int a = 0; a < MC_NAXES; a++) {
        const struct mc_place *p = &sh->on[a];
        char part[32];
        if (p->kind == MC_SHARD)
            snprintf(part, sizeof part, p->copies > 1 ? "%s:shard(%d%s,x%d)" : "%s:shard(%d%s)",
                     mc_axis_name((enum mc_axis)a), p->dim,
                     p->how <= MC_PADDED ? how[p->how] : ",?", p->copies);
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
