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
 *     list, or building fails and says op, call, tensor and both states.
 * I2  On an axis of size 1 every state is replicate, so nothing is ever inserted on one rank.
 * I3  A value is converted once: a second user of the same state reads the same record. A
 *     replicated value cut by columns is refused, not cut: it means that the linear that made it
 *     should have been shard = "column", and each coordinate would compute all of it for nothing.
 *
 * Gradients follow by duality, whatever the ops are: d(replicate) is replicate, d(shard) is shard,
 * d(partial) is replicate; that of a part held in copies is the sum over its copies. I4  Where a
 * replicated value enters work that is split, each coordinate has only its share of the gradient:
 * it is summed there, by the dual of the all_gather that joined the value (reduce_scatter), or by
 * all_reduce_grad; so what lies before sees whole gradients. Parameters: graph_build.c. */
#include <stdio.h>
#include <string.h>
#include "graph_int.h"

void mc_graph_normalise(const struct mc_graph *g, struct mc_sharding *sh)
{
    for (int a = 0; a < MC_NAXES; a++)
        if (g->cfg.axis_size[a] == 1)
            sh->on[a] = (struct mc_place){.kind = MC_REPLICATE}; /* I2 */
}

/* The record that turns `have` into `want`; NULL: there is none. */
static const char *way(const struct mc_place *have, const struct mc_place *want)
{
    if (have->kind == MC_PARTIAL && want->kind == MC_REPLICATE)
        return "all_reduce";
    if (have->kind == MC_PARTIAL && want->kind == MC_SHARD && want->copies < 2)
        return "reduce_scatter";
    if (have->kind == MC_SHARD && want->kind == MC_REPLICATE)
        return "all_gather";
    if (have->kind == MC_REPLICATE && want->kind == MC_SHARD && want->dim == 0)
        return "scatter";
    return NULL;
}

/* The value that an equal record already made in this function (I3), or -1. */
static int made(const struct mc_graph *g, const struct mc_gnode *like)
{
    for (int i = g->nnodes - 1; i >= 0 && g->node[i].layer == like->layer; i--) {
        const struct mc_gnode *n = &g->node[i];
        if (n->op == like->op && n->in[0] == like->in[0] &&
            memcmp(n->attr, like->attr, sizeof n->attr) == 0)
            return n->out[0];
    }
    return -1;
}

/* Appends the record, or finds the equal one. place: of the part, where one is cut or joined. */
static mc_status insert(struct mc_graph *g, const char *opname, int value, int axis,
                        const struct mc_place *place, int split, const struct mc_sharding *after,
                        const struct mc_asks *by, int *out, struct mc_err *err)
{
    int i, one_row = g->value[value].lrows == 1 && g->cfg.mode == MC_GRAPH_INFER;
    struct mc_gnode like = {.op = mc_op_find(opname), .layer = by->layer, .in = {value}};
    like.attr[MC_COMM_AXIS] = axis;
    like.attr[MC_COMM_DIM] = place->dim;
    like.attr[MC_COMM_SPLIT] = split;
    like.attr[MC_COMM_COPIES] = place->copies + !place->copies;
    like.attr[MC_COMM_PARTS] = mc_place_parts(place, g->cfg.axis_size[axis]);
    *out = made(g, &like);
    if (*out >= 0)
        return MC_OK;
    MC_TRY(mc_graph_add_node(g, like.op, mc_axis_name((enum mc_axis)axis), by->layer, by->line, &i,
                             err));
    MC_TRY(mc_graph_add_value(g, g->value[value].cols, after, i, one_row, out, err));
    struct mc_gnode *n = &g->node[i];
    n->nin = n->nout = 1;
    n->in[0] = value;
    n->out[0] = *out;
    n->one_row = one_row && g->cfg.bound.t > 1;
    memcpy(n->attr, like.attr, sizeof n->attr);
    g->value[value].uses++;
    return MC_OK;
}

static mc_status refuse(const struct mc_graph *g, int value, int now,
                        const struct mc_sharding *want, int axis, const struct mc_asks *by,
                        struct mc_err *err)
{
    const struct mc_sharding *have = &g->value[now].sharding;
    char have_s[96], want_s[96], maker[MC_NAME_MAX] = "the stage before";
    int node = g->value[value].node;
    mc_sharding_print(have, have_s, sizeof have_s);
    mc_sharding_print(want, want_s, sizeof want_s);
    if (node >= 0)
        snprintf(maker, sizeof maker, "%.20s \"%.64s\"", g->node[node].op->name,
                 g->node[node].name);
    return mc_err_set(err, MC_E_RECIPE,
                      "%s, made by %s, is in state %s, wanted is %s, and no collective turns one "
                      "into the other%s",
                      by->who, maker, have_s, want_s,
                      have->on[axis].kind == MC_REPLICATE && want->on[axis].kind == MC_SHARD
                          ? "; give the linear before it shard = \"column\""
                          : "");
}

/* I4: did the record that made the value say that it sums its gradient? */
static int sums_gradient(const struct mc_graph *g, int value, int axis)
{
    int by = g->value[value].node;
    return by >= 0 && g->node[by].op->flags & MC_OPF_COMM &&
           g->node[by].attr[MC_COMM_AXIS] == axis && g->node[by].attr[MC_COMM_SPLIT] != 0;
}

mc_status mc_graph_reshard(struct mc_graph *g, int value, const struct mc_sharding *want_any,
                           const struct mc_asks *by, int *out, struct mc_err *err)
{
    struct mc_sharding want = *want_any;
    unsigned split = g->cfg.mode == MC_GRAPH_TRAIN ? by->split : 0;
    mc_graph_normalise(g, &want);
    *out = value;
    for (int a = 0; a < MC_NAXES; a++) {
        struct mc_sharding after = g->value[*out].sharding;
        const struct mc_place have = after.on[a];
        int next;
        if (mc_place_same(&have, &want.on[a]))
            continue;
        const char *op = way(&have, &want.on[a]);
        if (!op) /* I1 */
            return refuse(g, value, *out, &want, a, by, err);
        int joins = have.kind == MC_SHARD && split >> a & 1;
        after.on[a] = want.on[a];
        MC_TRY(insert(g, op, *out, a, have.kind == MC_SHARD ? &have : &want.on[a], joins, &after,
                      by, &next, err));
        *out = next;
    }
    for (int a = 0; a < MC_NAXES; a++) {
        const struct mc_sharding now = g->value[*out].sharding;
        int next;
        if (g->cfg.axis_size[a] > 1 && split >> a & 1 && now.on[a].kind == MC_REPLICATE &&
            !sums_gradient(g, *out, a)) {
            MC_TRY(insert(g, "all_reduce_grad", *out, a, &now.on[a], 1, &now, by, &next, err));
            *out = next;
        }
    }
    return MC_OK;
}
