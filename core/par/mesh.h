/* mesh.h - this rank's place in a layout, with a communicator for each group that it is in.
 *
 * Groups are made in one order on all ranks (tp cp ep dp pp grad world), only those of more than
 * one member. A second grid over the same ranks is a second mesh with another prefix. */
#pragma once
#include "../comm/comm.h"
#include "layout.h"

struct mc_mesh {
    struct mc_layout layout;
    int rank, coord[MC_NAXES];
    struct mc_comm *axis[MC_NAXES]; /* NULL: size 1. Member m has coordinate m on the axis */
    struct mc_comm *grad;  /* dp x cp, ascending ranks: gradients of dense parameters. When only one
                              of the two has more than one rank it is that axis' */
    struct mc_comm *world; /* NULL: one rank */
    struct mc_comm_net *net;
};

/* net NULL: no groups are made; the caller puts ready communicators where there is more than one
 * member. deadline_ns: of the groups. prefix: before the names of the groups ("" or "expert."),
 * so that grids over the same ranks do not mix. */
mc_status mc_mesh_create(const struct mc_layout *layout, int rank, struct mc_comm_net *net,
                         const char *prefix, int64_t deadline_ns, struct mc_mesh **mesh,
                         struct mc_err *err);
/* Aborts every group; any thread. */
void mc_mesh_abort(struct mc_mesh *mesh);
/* Destroys the mesh and the communicators in it; not the net. NULL is fine. */
void mc_mesh_destroy(struct mc_mesh *mesh);
