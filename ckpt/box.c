/* box.c - arithmetic on axis-aligned boxes of logical tensors: inside, exactly-once cover,
 * intersection, and the copy of a run of one box into another.
 *
 * Floor 5 (ckpt). Pure functions: no memory of their own, any thread.
 * I1  No sum or product here can overflow for boxes that mc_box_valid() accepted in a shape whose
 *     mc_shape_count() is not -1.
 * I2  Cover exactly once = no two boxes overlap, and the counts add up to the tensor's. */
#include "ckpt_int.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mc_shape_print(const struct mc_shape *s, char *dst, size_t cap)
{
    size_t at = (size_t)snprintf(dst, cap, "[");
    for (int d = 0; d < s->nd && at < cap; d++)
        at += (size_t)snprintf(dst + at, cap - at, "%s%lld", d ? ", " : "", (long long)s->dim[d]);
    if (at < cap)
        snprintf(dst + at, cap - at, "]");
}

void mc_box_print(const struct mc_box *b, char *dst, size_t cap)
{
    size_t at = (size_t)snprintf(dst, cap, "[");
    for (int d = 0; d < b->nd && at < cap; d++)
        at += (size_t)snprintf(dst + at, cap - at, "%s%lld:%lld", d ? ", " : "",
                               (long long)b->lo[d], (long long)(b->lo[d] + b->n[d]));
    if (at < cap)
        snprintf(dst + at, cap - at, "]");
}

int mc_box_valid(const struct mc_box *b, const struct mc_shape *s)
{
    if (b->nd != s->nd || s->nd < 0 || s->nd > MC_MAX_DIMS)
        return 0;
    for (int d = 0; d < s->nd; d++)
        if (s->dim[d] < 1 || b->lo[d] < 0 || b->n[d] < 1 || b->n[d] > s->dim[d] ||
            b->lo[d] > s->dim[d] - b->n[d]) /* I1 */
            return 0;
    return 1;
}

int mc_box_meet(const struct mc_box *a, const struct mc_box *b, struct mc_box *out)
{
    struct mc_box r = {.nd = a->nd};
    for (int d = 0; d < a->nd; d++) {
        int64_t a1 = a->lo[d] + a->n[d], b1 = b->lo[d] + b->n[d];
        int64_t lo = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
        int64_t hi = a1 < b1 ? a1 : b1;
        if (lo >= hi)
            return 0;
        r.lo[d] = lo;
        r.n[d] = hi - lo;
    }
    *out = r;
    return 1;
}

static int by_first_row(const void *pa, const void *pb)
{
    const struct mc_box *a = pa, *b = pb;
    for (int d = 0; d < a->nd; d++)
        if (a->lo[d] != b->lo[d])
            return a->lo[d] < b->lo[d] ? -1 : 1;
    return 0;
}

mc_status mc_box_cover(struct mc_box *b, int64_t n, const struct mc_shape *s, const char *where,
                       const char *name, struct mc_err *err)
{
    char t1[128], t2[128], t3[128];
    int64_t all = mc_shape_count(s), have = 0;
    qsort(b, (size_t)n, sizeof *b, by_first_row);
    for (int64_t i = 0; i < n; i++) {
        struct mc_box x;
        /* Sorted by first row: only boxes that begin above this one's end can meet it. */
        for (int64_t k = i + 1; k < n; k++) {
            if (s->nd > 0 && b[k].lo[0] >= b[i].lo[0] + b[i].n[0])
                break;
            if (!mc_box_meet(&b[i], &b[k], &x))
                continue;
            mc_box_print(&b[i], t1, sizeof t1);
            mc_box_print(&b[k], t2, sizeof t2);
            mc_box_print(&x, t3, sizeof t3);
            return mc_err_set(err, MC_E_CORRUPT,
                              "%s: tensor %s: parts %s and %s overlap in %s; each element must be "
                              "there exactly once",
                              where, name, t1, t2, t3);
        }
        have += mc_box_count(&b[i]); /* disjoint so far, so at most `all` */
    }
    if (have != all) {
        mc_shape_print(s, t1, sizeof t1);
        return mc_err_set(err, MC_E_CORRUPT,
                          "%s: tensor %s: its parts hold %lld of the %lld elements of %s; each "
                          "element must be there exactly once",
                          where, name, (long long)have, (long long)all, t1);
    }
    return MC_OK;
}

/* Index of the element at `at` (logical coordinates, last one = lo of a run) in box b. */
static int64_t index_in(const struct mc_box *b, const int64_t at[MC_MAX_DIMS])
{
    int64_t i = 0;
    for (int d = 0; d < b->nd; d++)
        i = i * b->n[d] + (at[d] - b->lo[d]);
    return i;
}

static int same_box(const struct mc_box *a, const struct mc_box *b)
{
    for (int d = 0; d < a->nd; d++)
        if (a->lo[d] != b->lo[d] || a->n[d] != b->n[d])
            return 0;
    return 1;
}

void mc_box_copy(void *dst, const struct mc_box *to, const void *src, const struct mc_box *from,
                 int64_t first, int64_t count, size_t elem_bytes)
{
    unsigned char *out = dst;
    const unsigned char *in = src;
    int last = from->nd - 1;
    if (same_box(to, from)) { /* the common case, and every scalar */
        memcpy(out + (size_t)first * elem_bytes, in, (size_t)count * elem_bytes);
        return;
    }
    /* One innermost line of `from` at a time. */
    int64_t width = from->n[last];
    int64_t to_lo = to->lo[last], to_hi = to_lo + to->n[last];
    for (int64_t i = first; i < first + count;) {
        int64_t line = i / width, col = i % width;
        int64_t end = width < col + (first + count - i) ? width : col + (first + count - i);
        int64_t at[MC_MAX_DIMS] = {0}, rest = line;
        int inside = 1;
        for (int d = last - 1; d >= 0; d--) {
            at[d] = from->lo[d] + rest % from->n[d];
            rest /= from->n[d];
            inside &= at[d] >= to->lo[d] && at[d] < to->lo[d] + to->n[d];
        }
        int64_t lo = from->lo[last] + col, hi = from->lo[last] + end;
        int64_t a = lo > to_lo ? lo : to_lo, z = hi < to_hi ? hi : to_hi;
        if (inside && a < z) {
            at[last] = a;
            memcpy(out + (size_t)index_in(to, at) * elem_bytes,
                   in + (size_t)(i - first + (a - lo)) * elem_bytes, (size_t)(z - a) * elem_bytes);
        }
        i += end - col;
    }
}
