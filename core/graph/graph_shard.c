/* graph_shard.c - states on the mesh: what a value is, what an op wants, and what joins the two.
 *
 * Per mesh axis a value is replicate, shard(0) by rows, shard(1) by columns, or partial (the value
 * is the sum over coordinates). From what an op has to what it wants there is exactly one way, or
 * none:
 *
 *   have \ want   replicate            shard(d)                        partial
 *   replicate     -                    rows: scatter; columns: refuse  refuse
 *   shard(d)      all_gather(d)        same d: -; else refuse          refuse
 *   partial       all_reduce           reduce_scatter(d)               -
 *
 * I1  No composition is silent: either states are equal, or a collective's record is in the node
 * list, or building fails and says op, call, tensor and both states. I2  On an axis of size 1 every
 * state is replicate, so nothing is ever inserted on one rank. I3  A value is converted once: a
 * second user of the same state reads the same record. A replicated value cut by columns is
 * refused, not cut: it means that the linear that made it should have been shard = "column", and
 * each coordinate would compute all of it for nothing. Gradients follow by duality: d(partial) is
 * replicate, d(shard) is shard, and where a replicated value enters work that is split, its
 * gradient is partial and all_reduce_grad marks the sum. */
#include <stdio.h>
#include <string.h>
#include "graph_int.h"

void mc_graph_normalise(const struct mc_graph *g, struct mc_sharding *sh)
{
    for (int a = 0; a < MC_NAXES; a++)
        if (g->cfg.axis_size[a] == 1)
            sh->on[a] = (struct mc_place){.kind = MC_REPLICATE}; /* I2 */
}

static int same(const struct mc_place *x, const struct mc_place *y)
{
    return x->kind == y->kind && (x->kind != MC_SHARD || (x->dim == y->dim && x->how == y->how));
}

/* The record that turns `have` into `want`; NULL: there is none. *dim: what it cuts or joins. */
static const char *way(const struct mc_place *have, const struct mc_place *want, int *dim)
{
    *dim = 0;
    if (have->kind == MC_PARTIAL && want->kind == MC_REPLICATE)
        return "all_reduce";
    if (have->kind == MC_PARTIAL && want->kind == MC_SHARD) {
        *dim = want->dim;
        return "reduce_scatter";
    }
    if (have->kind == MC_SHARD && want->kind == MC_REPLICATE) {
        *dim = have->dim;
        return "all_gather";
    }
    if (have->kind == MC_REPLICATE && want->kind == MC_SHARD && want->dim == 0)
        return "scatter";
    return NULL;
}

/* The value that an equal record already made in this function (I3), or -1. */
static int made(const struct mc_graph *g, const struct mc_op *op, int value, int layer, int axis,
                int dim)
{
    for (int i = g->nnodes - 1; i >= 0 && g->node[i].layer == layer; i--) {
        const struct mc_gnode *n = &g->node[i];
        if (n->op == op && n->in[0] == value && n->attr[0] == axis && n->attr[1] == dim)
            return n->out[0];
    }
    return -1;
}

static mc_status insert(struct mc_graph *g, const char *opname, int value, int axis, int dim,
                        const struct mc_sharding *after, int layer, int line, int *out,
                        struct mc_err *err)
{
    const struct mc_op *op = mc_op_find(opname);
    int i, one_row = g->value[value].lrows == 1 && g->cfg.mode == MC_GRAPH_INFER;
    *out = made(g, op, value, layer, axis, dim);
    if (*out >= 0)
        return MC_OK;
    MC_TRY(mc_graph_add_node(g, op, mc_axis_name((enum mc_axis)axis), layer, line, &i, err));
    MC_TRY(mc_graph_add_value(g, g->value[value].cols, after, i, one_row, out, err));
    struct mc_gnode *n = &g->node[i];
    n->nin = n->nout = 1;
    n->in[0] = value;
    n->out[0] = *out;
    n->attr[0] = axis;
    n->attr[1] = dim;
    g->value[value].uses++;
    return MC_OK;
}

mc_status mc_graph_reshard(struct mc_graph *g, int value, const struct mc_sharding *want_any,
                           int layer, int line, const char *who, int *out, struct mc_err *err)
{
    struct mc_sharding want = *want_any;
    mc_graph_normalise(g, &want);
    *out = value;
    for (int a = 0; a < MC_NAXES; a++) {
        struct mc_sharding after = g->value[*out].sharding;
        int dim, next;
        if (same(&after.on[a], &want.on[a]))
            continue;
        const char *op = way(&after.on[a], &want.on[a], &dim);
        if (!op) { /* I1 */
            char have_s[96], want_s[96], maker[MC_NAME_MAX] = "the stage before";
            int by = g->value[value].node;
            mc_sharding_print(&after, have_s, sizeof have_s);
            mc_sharding_print(&want, want_s, sizeof want_s);
            if (by >= 0)
                snprintf(maker, sizeof maker, "%.20s \"%.64s\"", g->node[by].op->name,
                         g->node[by].name);
            return mc_err_set(err, MC_E_RECIPE,
                              "%s, made by %s, is in state %s, wanted is %s, and no collective "
                              "turns one into the other%s",
                              who, maker, have_s, want_s,
                              after.on[a].kind == MC_REPLICATE && want.on[a].kind == MC_SHARD
                                  ? "; give the linear before it shard = \"column\""
                                  : "");
        }
        after.on[a] = want.on[a];
        MC_TRY(insert(g, op, *out, a, dim, &after, layer, line, &next, err));
        *out = next;
    }
    return MC_OK;
}

mc_status mc_graph_reshard_grad(struct mc_graph *g, int value, enum mc_axis axis, int layer,
                                int line, int *out, struct mc_err *err)
{
    struct mc_sharding after = g->value[value].sharding;
    return insert(g, "all_reduce_grad", value, (int)axis, 0, &after, layer, line, out, err);
}
