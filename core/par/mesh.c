/* mesh.c - groups of a layout. Floor 3 (par).
 *
 * I1  Members of a group are in ascending order of world rank; along one axis that is ascending
 *     coordinate, since strides are positive. So sums in member order mean the same everywhere.
 * I2  All ranks make their groups in the same order, and whether a group exists depends on sizes
 *     only, never on the rank: if one member makes it, all do.
 *
 * Memory: one handle and its communicators. Threads: create and destroy on one; abort from any. */
#include "mesh.h"
#include "../base/arena.h"
#include <stdio.h>
#include <string.h>

/* Ranks whose coordinates equal `rank`'s on every axis outside `mask` (bit a: axis a), ascending
 * (I1); returns how many, *me: where `rank` is. */
static int members(const struct mc_layout *l, int rank, unsigned mask, int *ranks, int *me)
{
    int mine[MC_NAXES], c[MC_NAXES], n = 0;
    mc_layout_coord(l, rank, mine);
    for (int r = 0; r < l->world; r++) {
        int same = 1;
        mc_layout_coord(l, r, c);
        for (int a = 0; a < MC_NAXES; a++)
            same &= (mask >> a & 1) || c[a] == mine[a];
        if (r == rank)
            *me = n;
        if (same)
            ranks[n++] = r;
    }
    return n;
}

static mc_status make_group(struct mc_mesh *m, unsigned mask, const char *prefix, const char *name,
                            int64_t deadline_ns, int *ranks, struct mc_comm **out,
                            struct mc_err *err)
{
    char full[32];
    struct mc_comm_cfg cfg = {.name = full, .ranks = ranks, .deadline_ns = deadline_ns};
    cfg.size = members(&m->layout, m->rank, mask, ranks, &cfg.me);
    if (cfg.size == 1)
        return MC_OK;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    MC_TRY(mc_comm_group_create(m->net, &cfg, out, err));
    return MC_OK;
}

static mc_status make_groups(struct mc_mesh *m, const char *prefix, int64_t deadline_ns, int *ranks,
                             struct mc_err *err)
{
    const unsigned grad = 1u << MC_AXIS_DP | 1u << MC_AXIS_CP, all = (1u << MC_NAXES) - 1;
    for (int a = 0; a < MC_NAXES; a++) /* I2 */
        MC_TRY(make_group(m, 1u << a, prefix, mc_axis_name((enum mc_axis)a), deadline_ns, ranks,
                          &m->axis[a], err));
    if (m->layout.size[MC_AXIS_CP] == 1)
        m->grad = m->axis[MC_AXIS_DP];
    else if (m->layout.size[MC_AXIS_DP] == 1)
        m->grad = m->axis[MC_AXIS_CP];
    else
        MC_TRY(make_group(m, grad, prefix, "grad", deadline_ns, ranks, &m->grad, err));
    return make_group(m, all, prefix, "world", deadline_ns, ranks, &m->world, err);
}

mc_status mc_mesh_create(const struct mc_layout *layout, int rank, struct mc_comm_net *net,
                         const char *prefix, int64_t deadline_ns, struct mc_mesh **mesh,
                         struct mc_err *err)
{
    if (rank < 0 || rank >= layout->world)
        return mc_err_set(err, MC_E_BUG, "rank %d of a world of %d", rank, layout->world);
    struct mc_mesh *m = mc_alloc(sizeof *m, "mesh");
    int *ranks = mc_alloc((size_t)layout->world * sizeof *ranks, "members of a group");
    mc_status st = MC_OK;
    if (!m || !ranks) {
        mc_free(m);
        mc_free(ranks);
        return mc_err_set(err, MC_E_NOMEM, "no memory for the mesh of %d ranks", layout->world);
    }
    m->layout = *layout;
    m->rank = rank;
    m->net = net;
    mc_layout_coord(layout, rank, m->coord);
    if (net)
        st = make_groups(m, prefix, deadline_ns, ranks, err);
    mc_free(ranks);
    if (st != MC_OK) {
        mc_mesh_destroy(m);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    *mesh = m;
    return MC_OK;
}

/* Each communicator of the mesh once. */
static int comms_of(const struct mc_mesh *m, struct mc_comm *out[MC_NAXES + 2])
{
    int n = 0, shared = 0;
    for (int a = 0; a < MC_NAXES; a++) {
        if (m->axis[a])
            out[n++] = m->axis[a];
        shared |= m->axis[a] == m->grad;
    }
    if (m->grad && !shared)
        out[n++] = m->grad;
    if (m->world)
        out[n++] = m->world;
    return n;
}

void mc_mesh_abort(struct mc_mesh *m)
{
    struct mc_comm *c[MC_NAXES + 2];
    for (int n = comms_of(m, c); n-- > 0;)
        c[n]->ops->abort(c[n]);
}

void mc_mesh_destroy(struct mc_mesh *m)
{
    struct mc_comm *c[MC_NAXES + 2];
    if (!m)
        return;
    for (int n = comms_of(m, c); n-- > 0;)
        c[n]->ops->destroy(c[n]);
    mc_free(m);
}
