/* op_comm.c - the collectives that the graph inserts on a mesh, forward and back.
 *
 *                    forward                            backward
 *   all_reduce       y = sum over ranks of x            dx = dy
 *   all_reduce_grad  y = x                              dx = sum over ranks of dy
 *   all_gather       y = the parts x, joined            dx = own part of dy, or of its sum (SPLIT)
 *   reduce_scatter   y = own part of the sum of x       dx = the parts dy, joined
 *   scatter          y = own rows of x                  dx = the parts dy, joined
 * Parts are rows (dim 0) or columns (dim 1) of a matrix; rows in parts of ceil(rows / ranks), so
 * the last parts may be short or empty, columns the same where they are padded.
 *
 * I1  Operands are dense ([rows, c], ld = c): the planner copies what is not.
 * I2  All ranks of the axis run the same collectives in the same order, recomputed ones included.
 * I3  Sums are in rank order, so results that are replicated have the same bits on all ranks.
 * I4  What is held in copies is gathered from the first of them; back, the first gets the gradient
 *     and the others zero, since the gradient of a copied part is the sum over its copies.
 * I5  An error is kept in the context and ends the pass.
 *
 * Memory: scratch of the plan. Threads: the one that runs the graph; it waits. */
#include <string.h>
#include "../base/arena.h"
#include "../par/mesh.h"
#include "graph_int.h"

/* -- Waiting ---------------------------------------------------------------------------------- */

static struct mc_comm *group(const struct mc_op_ctx *cx, enum mc_axis axis)
{
    return cx->mesh->axis[axis]; /* bind saw to it */
}

static void wait_for(const struct mc_op_ctx *cx, struct mc_comm *c, mc_status st,
                     struct mc_comm_req *req)
{
    if (st == MC_OK)
        st = c->ops->wait(c, req, 0, cx->err);
    if (st != MC_OK && cx->err->code == MC_OK) /* I5 */
        mc_err_set(cx->err, st, "a collective of group %s failed", c->cfg.name);
}

void mc_op_all_reduce(const struct mc_op_ctx *cx, enum mc_axis axis, const void *in, void *out,
                      int64_t n, enum mc_dtype dtype)
{
    struct mc_comm *c = group(cx, axis);
    struct mc_comm_req *req = NULL;
    mc_status st = c->ops->all_reduce(c, in, out, n, dtype, MC_SUM, NULL, &req, cx->err);
    wait_for(cx, c, st, req);
}

static void all_gather_v(const struct mc_op_ctx *cx, enum mc_axis axis, const void *mine, void *all,
                         const int64_t *counts, enum mc_dtype dtype)
{
    struct mc_comm *c = group(cx, axis);
    struct mc_comm_req *req = NULL;
    mc_status st = c->ops->all_gather(c, mine, all, counts, dtype, NULL, &req, cx->err);
    wait_for(cx, c, st, req);
}

void mc_op_all_gather(const struct mc_op_ctx *cx, enum mc_axis axis, const void *mine, void *all,
                      int64_t n, enum mc_dtype dtype)
{
    int64_t counts[MC_GROUP_MAX];
    for (int m = 0; m < cx->axis_size[axis]; m++)
        counts[m] = n;
    all_gather_v(cx, axis, mine, all, counts, dtype);
}

/* -- Rows ------------------------------------------------------------------------------------- */

static enum mc_axis axis_of(const struct mc_node *n)
{
    return (enum mc_axis)n->attr[MC_COMM_AXIS];
}

static void row_counts(const struct mc_node *n, const struct mc_op_ctx *cx, int64_t c,
                       int64_t *counts)
{
    int64_t lo, rows;
    int size = cx->axis_size[axis_of(n)];
    for (int m = 0; m < size; m++) {
        mc_part_of(cx->rows, size, m, &lo, &rows);
        counts[m] = rows * c;
    }
}

static void gather_rows(const struct mc_node *n, const struct mc_op_ctx *cx,
                        const struct mc_view *part, const struct mc_view *whole)
{
    int64_t counts[MC_GROUP_MAX];
    row_counts(n, cx, whole->c, counts);
    all_gather_v(cx, axis_of(n), part->p, whole->p, counts, cx->kern->dtype);
}

static void reduce_rows(const struct mc_node *n, const struct mc_op_ctx *cx,
                        const struct mc_view *whole, const struct mc_view *part)
{
    int64_t counts[MC_GROUP_MAX];
    struct mc_comm *c = group(cx, axis_of(n));
    struct mc_comm_req *req = NULL;
    row_counts(n, cx, whole->c, counts);
    mc_status st = c->ops->reduce_scatter(c, whole->p, part->p, counts, cx->kern->dtype, MC_SUM,
                                          NULL, &req, cx->err);
    wait_for(cx, c, st, req);
}

static void own_rows(const struct mc_node *n, const struct mc_op_ctx *cx,
                     const struct mc_view *whole, const struct mc_view *part)
{
    int64_t lo, rows;
    struct mc_view from = *whole;
    mc_part_of(cx->rows, cx->axis_size[axis_of(n)], cx->coord[axis_of(n)], &lo, &rows);
    from.p = (char *)from.p + (size_t)(lo * from.ld) * n->elem;
    if (rows > 0)
        mc_op_scale(cx, rows, 1, &from, part);
}

/* -- Columns ---------------------------------------------------------------------------------- */

static struct mc_view columns(const struct mc_node *n, const struct mc_view *v, int64_t lo,
                              int64_t cols)
{
    return (struct mc_view){.p = (char *)v->p + (size_t)lo * n->elem, .c = cols, .ld = v->ld};
}

static int copies_of(const struct mc_node *n)
{
    return (int)n->attr[MC_COMM_COPIES];
}

/* scratch: [parts][rows, c of a part] */
static void gather_cols(const struct mc_node *n, const struct mc_op_ctx *cx,
                        const struct mc_view *part, const struct mc_view *whole)
{
    int64_t counts[MC_GROUP_MAX], each = cx->rows * part->c, lo = 0;
    int size = cx->axis_size[axis_of(n)], copies = copies_of(n);
    for (int m = 0; m < size; m++)
        counts[m] = m % copies == 0 ? each : 0; /* I4 */
    all_gather_v(cx, axis_of(n), part->p, n->scratch, counts, cx->kern->dtype);
    for (int p = 0; p < n->attr[MC_COMM_PARTS] && cx->err->code == MC_OK; p++, lo += part->c) {
        struct mc_view from = {
            .p = (char *)n->scratch + (size_t)(p * each) * n->elem, .c = part->c, .ld = part->c};
        if (lo + from.c > whole->c) /* the rest is padding */
            from.c = whole->c > lo ? whole->c - lo : 0;
        struct mc_view to = columns(n, whole, lo, from.c);
        if (from.c > 0)
            mc_op_scale(cx, cx->rows, 1, &from, &to);
    }
}

static void own_cols(const struct mc_node *n, const struct mc_op_ctx *cx,
                     const struct mc_view *whole, const struct mc_view *part)
{
    int copies = copies_of(n), me = cx->coord[axis_of(n)];
    int64_t lo = me / copies * part->c, have = whole->c - lo < part->c ? whole->c - lo : part->c;
    if (have < 0 || me % copies != 0)
        have = 0;
    struct mc_view from = columns(n, whole, lo, have), to = columns(n, part, 0, have);
    if (have < part->c) /* padding, or not the first copy */
        memset(part->p, 0, (size_t)(cx->rows * part->c) * n->elem);
    if (have > 0)
        mc_op_scale(cx, cx->rows, 1, &from, &to);
}

/* scratch: [rows, c of the whole] */
static void reduce_cols(const struct mc_node *n, const struct mc_op_ctx *cx,
                        const struct mc_view *whole, const struct mc_view *part)
{
    struct mc_view sum = {.p = n->scratch, .c = whole->c, .ld = whole->c};
    mc_op_all_reduce(cx, axis_of(n), whole->p, sum.p, cx->rows * whole->c, cx->kern->dtype);
    if (cx->err->code == MC_OK)
        own_cols(n, cx, &sum, part);
}

/* -- Verbs ------------------------------------------------------------------------------------ */

static void check(const struct mc_view *part, const struct mc_view *whole)
{
    MC_ASSERT(part->ld == part->c && whole->ld == whole->c); /* I1 */
}

static void join(const struct mc_node *n, const struct mc_op_ctx *cx, const struct mc_view *part,
                 const struct mc_view *whole)
{
    check(part, whole);
    (n->attr[MC_COMM_DIM] == 0 ? gather_rows : gather_cols)(n, cx, part, whole);
}

static void sum_part(const struct mc_node *n, const struct mc_op_ctx *cx,
                     const struct mc_view *whole, const struct mc_view *part)
{
    check(part, whole);
    (n->attr[MC_COMM_DIM] == 0 ? reduce_rows : reduce_cols)(n, cx, whole, part);
}

static void own_part(const struct mc_node *n, const struct mc_op_ctx *cx,
                     const struct mc_view *whole, const struct mc_view *part)
{
    check(part, whole);
    (n->attr[MC_COMM_DIM] == 0 ? own_rows : own_cols)(n, cx, whole, part);
}

static void reduce_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    check(&n->in[0], &n->out[0]);
    mc_op_all_reduce(cx, axis_of(n), n->in[0].p, n->out[0].p, cx->rows * n->in[0].c,
                     cx->kern->dtype);
}

static void reduce_grad_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    check(&n->d_in[0], &n->d_out[0]);
    mc_op_all_reduce(cx, axis_of(n), n->d_out[0].p, n->d_in[0].p, cx->rows * n->d_in[0].c,
                     cx->kern->dtype);
}

static void gather_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    join(n, cx, &n->in[0], &n->out[0]);
}

static void gather_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    (n->attr[MC_COMM_SPLIT] != 0 ? sum_part : own_part)(n, cx, &n->d_out[0], &n->d_in[0]);
}

static void reduce_scatter_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    sum_part(n, cx, &n->in[0], &n->out[0]);
}

static void scatter_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    own_part(n, cx, &n->in[0], &n->out[0]);
}

static void scatter_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    join(n, cx, &n->d_out[0], &n->d_in[0]);
}

/* Columns only; what verb needs which is said above. in is the part of an all_gather, the whole of
 * a reduce_scatter. */
static size_t scratch(const struct mc_node *n, enum mc_verb verb, const struct mc_kern_ops *k,
                      struct mc_extent bound, int threads)
{
    int gathers = strcmp(n->op->name, "all_gather") == 0, joins = gathers == (verb == MC_FORWARD);
    int64_t part = gathers ? n->in[0].c : n->out[0].c, whole = gathers ? n->out[0].c : n->in[0].c;
    int64_t parts = (int64_t)n->attr[MC_COMM_PARTS];
    (void)k;
    (void)threads;
    if (n->attr[MC_COMM_DIM] == 0)
        return 0;
    return (size_t)(bound.b * bound.t * (joins ? parts * part : whole)) * n->elem;
}

/* clang-format off */
#define COLLECTIVE(name_, doc_, ...)                                                               \
    &(const struct mc_op){.name = name_, .doc = doc_, .nin_min = 1, .nin_max = 1,                  \
                          .deterministic = 1, __VA_ARGS__}

const struct mc_op *const mc_ops_comm[] = {
    COLLECTIVE("all_reduce", "sums partial values over an axis; its gradient passes unchanged",
               .flags = MC_OPF_INTERNAL | MC_OPF_COMM | MC_OPF_INPLACE | MC_OPF_DSHARE,
               .forward = reduce_forward),
    COLLECTIVE("all_gather", "joins parts along dim over an axis; its gradient is scattered back",
               .flags = MC_OPF_INTERNAL | MC_OPF_COMM, .forward = gather_forward,
               .backward_input = gather_backward, .scratch = scratch),
    COLLECTIVE("reduce_scatter",
               "sums partial values and keeps one's part; its gradient is gathered",
               .flags = MC_OPF_INTERNAL | MC_OPF_COMM, .forward = reduce_scatter_forward,
               .backward_input = scatter_backward, .scratch = scratch),
    COLLECTIVE("scatter", "keeps one's own rows of a replicated value; its gradient is gathered",
               .flags = MC_OPF_INTERNAL | MC_OPF_COMM, .forward = scatter_forward,
               .backward_input = scatter_backward, .scratch = scratch),
    COLLECTIVE("all_reduce_grad", "passes unchanged; its gradient is summed over an axis",
               .flags = MC_OPF_INTERNAL | MC_OPF_COMM | MC_OPF_ALIAS | MC_OPF_DINPLACE,
               .backward_input = reduce_grad_backward),
    NULL};
/* clang-format on */
