/* diff.c - two checkpoints compared tensor by tensor, whatever layouts wrote them. Floor 5 (ckpt).
 *
 * Per tensor ||a - b|| / max(||a||, 1e-3 ||all|| sqrt(n / N)), a of the first checkpoint, `all` its
 * tensors of the same kind (model/, adam_m/ ...), N their elements: never element by element, since
 * what is zero but for rounding has no relative error. Sums in fp64.
 *
 * I1  Blocks of logical tensors stream through two buffers of a fixed size: what a checkpoint takes
 *     on the disk does not matter.
 * I2  bitwise is of bits: -0 and 0 differ, a NaN equals itself. Other dtypes: compared by value,
 *     never bitwise.
 * I3  A non-finite element that is not the same on both sides is an infinite deviation.
 * Memory: handle life of a call; the rows are the caller's. Threads: one. */
#include "ckpt_int.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../core/base/arena.h"

#define BLOCK       ((int64_t)1 << 21) /* elements at a time: 16 MiB of fp64 */
#define MIN_OF_NORM 1e-3

static double value(const unsigned char *p, enum mc_dtype t, int64_t i)
{
    uint32_t bits = 0;
    float f;
    double d;
    if (t == MC_F64) {
        memcpy(&d, p + 8 * i, 8);
        return d;
    }
    if (t == MC_BF16) { /* the upper half of an fp32 */
        memcpy((unsigned char *)&bits + 2, p + 2 * i, 2);
        memcpy(&f, &bits, 4);
        return f;
    }
    memcpy(&f, p + 4 * i, 4);
    return f;
}

static void add_block(struct mc_ckpt_diff *r, const unsigned char *a, const unsigned char *b,
                      int64_t n)
{
    size_t elem = mc_dtype_size(r->dtype[0]);
    int alike = r->dtype[0] == r->dtype[1] && memcmp(a, b, (size_t)n * elem) == 0;
    r->bitwise &= alike; /* I2 */
    for (int64_t i = 0; i < n; i++) {
        double x = value(a, r->dtype[0], i), y = value(b, r->dtype[1], i);
        double d = alike ? 0 : x - y;
        if (isfinite(x))
            r->norm += x * x;
        if (!alike && !isfinite(d)) { /* I3 */
            int same = (isnan(x) && isnan(y)) || x == y;
            d = same ? 0 : INFINITY;
        }
        r->apart += d * d;
        if (fabs(d) > r->largest)
            r->largest = fabs(d);
    }
}

static mc_status load_block(struct mc_ckpt *c, struct mc_state_tensor *t, const struct mc_box *box,
                            void *to, struct mc_err *err)
{
    t->box = *box;
    t->data = to;
    return mc_ckpt_load(c, t, 1, 0, err);
}

/* Boxes of at most BLOCK elements, row-major: one index of each outer dimension, some of dim d. */
static mc_status stream(struct mc_ckpt *a, struct mc_ckpt *b, struct mc_state_tensor *x,
                        struct mc_state_tensor *y, unsigned char *buf, struct mc_ckpt_diff *r,
                        struct mc_err *err)
{
    const struct mc_shape *s = &x->shape;
    unsigned char *other = buf + BLOCK * 8;
    int64_t inner = mc_shape_count(s);
    int d = 0;
    struct mc_box box = mc_box_whole(s);
    if (inner == 0)
        return MC_OK;
    for (; d < s->nd; d++) {
        inner /= s->dim[d];
        if (inner <= BLOCK)
            break;
        box.n[d] = 1;
    }
    for (int more = 1; more;) {
        int64_t left = s->nd > 0 ? s->dim[d] - box.lo[d] : 1;
        if (s->nd > 0)
            box.n[d] = left < BLOCK / inner ? left : BLOCK / inner;
        MC_TRY(load_block(a, x, &box, buf, err));
        MC_TRY(load_block(b, y, &box, other, err));
        add_block(r, buf, other, mc_box_count(&box));
        more = 0;
        for (int k = s->nd > 0 ? d : -1; k >= 0 && !more; k--) {
            box.lo[k] += box.n[k];
            more = box.lo[k] < s->dim[k];
            if (!more)
                box.lo[k] = 0;
        }
    }
    return MC_OK;
}

static int kind_length(const char *name)
{
    const char *s = strchr(name, '/');
    return s ? (int)(s - name) : 0;
}

/* Sums become norms and deviations. */
static void judge(struct mc_ckpt_diff *row, int n)
{
    for (int i = 0, end; i < n; i = end) { /* names ascend: a kind is a run of rows */
        double squares = 0;
        int64_t count = 0;
        int len = kind_length(row[i].name);
        for (end = i; end < n && kind_length(row[end].name) == len &&
                      strncmp(row[end].name, row[i].name, (size_t)len) == 0;
             end++) {
            squares += row[end].norm;
            count += row[end].count;
        }
        for (int k = i; k < end; k++) {
            struct mc_ckpt_diff *r = &row[k];
            double least =
                count > 0 ? MIN_OF_NORM * sqrt(squares * (double)r->count / (double)count) : 0;
            r->norm = sqrt(r->norm);
            r->apart = sqrt(r->apart);
            double ref = r->norm > least ? r->norm : least;
            r->deviation = r->apart == 0 ? 0 : ref > 0 ? r->apart / ref : INFINITY;
            if (!r->in_a || !r->in_b)
                r->deviation = INFINITY;
        }
    }
}

static mc_status compare(struct mc_ckpt *a, struct mc_ckpt *b, int64_t i, int64_t k,
                         unsigned char *buf, struct mc_ckpt_diff *r, struct mc_err *err)
{
    struct mc_state_tensor x, y;
    char sa[128], sb[128];
    MC_TRY(mc_ckpt_tensor(a, (int)i, &x));
    MC_TRY(mc_ckpt_tensor(b, (int)k, &y));
    if (!mc_shape_eq(&x.shape, &y.shape)) {
        mc_shape_print(&x.shape, sa, sizeof sa);
        mc_shape_print(&y.shape, sb, sizeof sb);
        return mc_err_set(err, MC_E_USAGE,
                          "tensor %s has shape %s in one checkpoint and %s in the other: they are "
                          "of different models",
                          x.name, sa, sb);
    }
    r->dtype[0] = x.dtype;
    r->dtype[1] = y.dtype;
    r->bitwise = x.dtype == y.dtype;
    return stream(a, b, &x, &y, buf, r, err);
}

mc_status mc_ckpt_diff(struct mc_ckpt *a, struct mc_ckpt *b, struct mc_ckpt_diff **rows, int *n,
                       struct mc_err *err)
{
    int na = mc_ckpt_ntensors(a), nb = mc_ckpt_ntensors(b), both = 0, count = 0;
    struct mc_ckpt_diff *row = mc_alloc((size_t)(na + nb + 1) * sizeof *row, "diff of checkpoints");
    unsigned char *buf = mc_alloc((size_t)BLOCK * 16, "blocks of two checkpoints"); /* I1 */
    mc_status st =
        row && buf ? MC_OK : mc_err_set(err, MC_E_NOMEM, "no memory to compare %d tensors", na);
    for (int i = 0, k = 0; st == MC_OK && (i < na || k < nb);) {
        struct mc_state_tensor x = {.name = ""}, y = {.name = ""};
        if (i < na)
            (void)mc_ckpt_tensor(a, i, &x);
        if (k < nb)
            (void)mc_ckpt_tensor(b, k, &y);
        int c = i == na ? 1 : k == nb ? -1 : strcmp(x.name, y.name);
        struct mc_ckpt_diff *r = &row[count++];
        const struct mc_state_tensor *t = c <= 0 ? &x : &y;
        memcpy(r->name, t->name, sizeof r->name);
        r->shape = t->shape;
        r->count = mc_shape_count(&t->shape);
        r->in_a = c <= 0;
        r->in_b = c >= 0;
        if (c == 0) {
            both++;
            st = compare(a, b, i, k, buf, r, err);
        }
        i += c <= 0;
        k += c >= 0;
    }
    if (st == MC_OK && both == 0)
        st = mc_err_set(err, MC_E_USAGE,
                        "the checkpoints have no tensor in common: they are of different models");
    mc_free(buf);
    if (st != MC_OK) {
        mc_free(row);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    judge(row, count);
    *rows = row;
    *n = count;
    return MC_OK;
}
