/* place.c - a layout against the nodes that its ranks stand on. Floor 6 (plan).
 *
 * I1  A tensor-parallel group talks inside every layer: its ranks are on one node.
 * I2  Where a tensor-parallel group fills a node, a pipeline covers exactly pp whole nodes: what
 *     fails together is one pipeline, and a spare node replaces one stage of it. Where groups are
 *     smaller, nodes are shared by pipelines, which is counted, not refused.
 * I3  Both are counted over the ranks as they stand, not derived from the order: a host list may be
 *     uneven, or dealt in turns.
 *
 * Memory: counts for the ranks and nodes, freed before return. Threads: any. */
#include "place.h"
#include "../base/arena.h"
#include <string.h>

struct placing {
    const struct mc_layout *l;
    const int *node_of;
    int per_node, nodes;
    int *ranks_on; /* [nodes] */
    int *seen;     /* [nodes] marks of the pipeline being looked at */
    int *shared;   /* [nodes] pipelines that have ranks there */
};

static int node_of(const struct placing *p, int rank)
{
    return p->node_of ? p->node_of[rank] : rank / p->per_node;
}

/* I1 */
static mc_status check_tp(const struct placing *p, struct mc_err *err)
{
    int tp = p->l->size[MC_AXIS_TP], stride = p->l->stride[MC_AXIS_TP], c[MC_NAXES];
    if (!p->node_of && tp > p->per_node)
        return mc_err_set(err, MC_E_RECIPE,
                          "%d is more than the %d ranks of a node: a tensor-parallel group lies "
                          "inside one node",
                          tp, p->per_node);
    for (int r = 0; r < p->l->world; r++) {
        mc_layout_coord(p->l, r, c);
        for (int i = 1; c[MC_AXIS_TP] == 0 && i < tp; i++)
            if (node_of(p, r + i * stride) != node_of(p, r))
                return mc_err_set(
                    err, MC_E_RECIPE,
                    "tp %d: the tensor-parallel group of rank %d leaves its node: rank %d is on "
                    "node %d (%d ranks), rank %d on node %d",
                    tp, r, r, node_of(p, r), p->ranks_on[node_of(p, r)], r + i * stride,
                    node_of(p, r + i * stride));
    }
    return MC_OK;
}

/* I2, for the pipeline of which `first` is the rank with tp = pp = 0. mark: not used before. */
static mc_status check_pipeline(const struct placing *p, int first, int mark,
                                struct mc_place_counts *place, struct mc_err *err)
{
    int tp = p->l->size[MC_AXIS_TP], pp = p->l->size[MC_AXIS_PP], touched = 0, on_them = 0;
    int filled = 1;
    for (int s = 0; s < pp; s++)
        for (int t = 0; t < tp; t++) {
            int r = first + s * p->l->stride[MC_AXIS_PP] + t * p->l->stride[MC_AXIS_TP];
            int n = node_of(p, r);
            if (p->seen[n] == mark)
                continue;
            p->seen[n] = mark;
            touched++;
            on_them += p->ranks_on[n];
            filled &= p->ranks_on[n] <= tp;
            if (++p->shared[n] > place->pipelines_of_node)
                place->pipelines_of_node = p->shared[n];
        }
    if (touched > place->nodes_of_pipeline)
        place->nodes_of_pipeline = touched;
    if (tp > 1 && (filled || tp == p->per_node) && (touched != pp || on_them != tp * pp))
        return mc_err_set(err, MC_E_RECIPE,
                          "tp %d x pp %d: the pipeline of rank %d should cover exactly %d nodes of "
                          "%d ranks; it covers %d nodes, on which %d ranks stand",
                          tp, pp, first, pp, tp, touched, on_them);
    return MC_OK;
}

mc_status mc_place_check(const struct mc_layout *l, const int *nodes, int per_node,
                         struct mc_place_counts *place, struct mc_err *err)
{
    struct placing p = {.l = l, .node_of = nodes, .per_node = per_node};
    struct mc_place_counts out = {0};
    mc_status st = MC_OK;
    int c[MC_NAXES], mark = 0;
    for (int r = 0; r < l->world; r++)
        p.nodes = node_of(&p, r) >= p.nodes ? node_of(&p, r) + 1 : p.nodes;
    int *block = mc_alloc((size_t)p.nodes * 3 * sizeof *block, "nodes of a layout");
    if (!block)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %d nodes", p.nodes);
    p.ranks_on = block;
    p.seen = block + p.nodes;
    p.shared = block + 2 * (size_t)p.nodes;
    for (int r = 0; r < l->world; r++) /* I3 */
        p.ranks_on[node_of(&p, r)]++;
    if (l->size[MC_AXIS_TP] > 1)
        st = check_tp(&p, err);
    for (int r = 0; r < l->world && st == MC_OK; r++) {
        mc_layout_coord(l, r, c);
        if (c[MC_AXIS_TP] == 0 && c[MC_AXIS_PP] == 0)
            st = check_pipeline(&p, r, ++mark, &out, err);
    }
    mc_free(block);
    if (st == MC_OK)
        *place = out;
    return st;
}
