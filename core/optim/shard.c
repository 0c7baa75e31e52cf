/* shard.c - the cut of the flat buffer over data-parallel ranks. Floor 5 (optim).
 *
 * The ideal cut k of a bucket of n elements is at k n / parts; it is moved to the nearest row of
 * the tensor that it falls in, or, from a gap or padding, to the end of that tensor. A row of a
 * matrix is a row of it; of a vector, one element.
 *
 * I1  Cuts never go down; a range may be empty (more ranks than rows).
 * I2  With `split`, the state of a bucket's range lies at the same distances as in the flat buffer,
 *     and each bucket's range starts at a multiple of 64 bytes of fp32.
 * Memory: handle life. Threads: pure. */
#include "shard.h"
#include <string.h>
#include "../base/arena.h"

enum { ALIGN = 16 }; /* elements */

int64_t mc_shard_row(const struct mc_param *p)
{
    if (p->count == 0)
        return 0;
    return p->box.nd > 0 ? p->count / p->box.n[0] : p->count;
}

struct mc_box mc_shard_box(const struct mc_param *p, int64_t row, int64_t rows)
{
    struct mc_box b = p->box;
    if (b.nd > 0) {
        b.lo[0] += row;
        b.n[0] = rows;
    }
    return b;
}

static int64_t move_to_row(const struct mc_graph *g, int64_t ideal, int64_t end)
{
    for (int i = 0; i < mc_graph_nparams(g); i++) {
        const struct mc_param *p = mc_graph_param(g, i);
        int64_t row = mc_shard_row(p);
        if (ideal >= p->offset + p->stored)
            continue;
        if (ideal <= p->offset)
            return p->offset < end ? p->offset : end;
        int64_t k = row > 0 ? (ideal - p->offset + row / 2) / row : 1;
        return row > 0 && k * row < p->count ? p->offset + k * row : p->offset + p->stored;
    }
    return end;
}

static void cut_bucket(const struct mc_graph *g, struct mc_shard *s, int bucket)
{
    int64_t offset, count, *cut = s->cut + bucket * (s->parts + 1);
    mc_graph_bucket(g, bucket, &offset, &count);
    cut[0] = offset;
    for (int k = 1; k < s->parts; k++) {
        int64_t ideal = offset + (int64_t)((__int128)count * k / s->parts);
        cut[k] = move_to_row(g, ideal, offset + count);
        if (cut[k] < cut[k - 1]) /* I1 */
            cut[k] = cut[k - 1];
    }
    cut[s->parts] = offset + count;
    for (int k = 0; k < s->parts; k++)
        s->count[bucket * s->parts + k] = cut[k + 1] - cut[k];
}

/* What of parameter i lies in [from, end); state: what is added to a flat place. */
static void add_piece(const struct mc_graph *g, struct mc_shard *s, int i, int64_t from,
                      int64_t end, int64_t state)
{
    const struct mc_param *p = mc_graph_param(g, i);
    int64_t row = mc_shard_row(p);
    int64_t lo = p->offset > from ? p->offset : from;
    int64_t hi = p->offset + p->count < end ? p->offset + p->count : end;
    if (lo >= hi)
        return;
    MC_ASSERT((lo - p->offset) % row == 0 && (hi - p->offset) % row == 0);
    s->piece[s->npieces++] = (struct mc_shard_piece){.param = i,
                                                     .row = (lo - p->offset) / row,
                                                     .rows = (hi - lo) / row,
                                                     .flat = lo,
                                                     .count = hi - lo,
                                                     .state = lo + state};
}

mc_status mc_shard_create(const struct mc_graph *g, int parts, int me, int split,
                          struct mc_shard **out, struct mc_err *err)
{
    struct mc_shard *s = mc_alloc(sizeof *s, "optimizer shard");
    if (!s)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the optimizer's shard");
    *s = (struct mc_shard){
        .parts = parts, .me = me, .split = split, .nbuckets = mc_graph_nbuckets(g)};
    int n = mc_graph_nparams(g);
    s->cut = mc_alloc((size_t)s->nbuckets * (size_t)(parts + 1) * sizeof *s->cut + 8, "cuts");
    s->count = mc_alloc((size_t)s->nbuckets * (size_t)parts * sizeof *s->count + 8, "cuts");
    s->piece = mc_alloc((size_t)(n + 1) * sizeof *s->piece, "pieces of parameters");
    if (!s->cut || !s->count || !s->piece) {
        mc_shard_destroy(s);
        return mc_err_set(err, MC_E_NOMEM, "no memory for the optimizer's shard");
    }
    int i = 0;
    for (int b = 0; b < s->nbuckets; b++) {
        int64_t offset, count, next = (s->state_count + ALIGN - 1) / ALIGN * ALIGN; /* I2 */
        cut_bucket(g, s, b);
        const int64_t *own = s->cut + b * (parts + 1) + me;
        int64_t state = split ? next - own[0] : 0;
        mc_graph_bucket(g, b, &offset, &count);
        for (; i < n && mc_graph_param(g, i)->offset < offset + count; i++)
            add_piece(g, s, i, own[0], own[1], state);
        s->state_count = split ? next + own[1] - own[0] : mc_graph_flat_count(g);
    }
    *out = s;
    return MC_OK;
}

int64_t mc_shard_largest(const struct mc_shard *s)
{
    int64_t most = s->state_count;
    for (int k = 0; k < s->parts && s->split; k++) {
        int64_t n = 0;
        for (int b = 0; b < s->nbuckets; b++) /* I2 */
            n = (n + ALIGN - 1) / ALIGN * ALIGN + s->count[b * s->parts + k];
        most = n > most ? n : most;
    }
    return most;
}

void mc_shard_destroy(struct mc_shard *s)
{
    if (!s)
        return;
    mc_free(s->cut);
    mc_free(s->count);
    mc_free(s->piece);
    mc_free(s);
}
