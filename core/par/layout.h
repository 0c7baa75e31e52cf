/* layout.h - rank <-> coordinates, pure arithmetic.  rank = sum(coord_i * stride_i); the leftmost
 * axis of the order string has stride 1; an axis of size 1 may be missing from the string. Default
 * order "tp-cp-ep-dp-pp", as Megatron. */
#pragma once
#include "../base/status.h"
#include "../tensor/tensor.h"

#define MC_ORDER_DEFAULT "tp-cp-ep-dp-pp"
struct mc_layout {
    int size[MC_NAXES], stride[MC_NAXES], world;
};
/* size[MC_AXIS_DP] 0: derived from world. Errors say which product met which world. */
mc_status mc_layout_init(struct mc_layout *l, const char *order, const int size[MC_NAXES],
                         int world, struct mc_err *err);
void mc_layout_coord(const struct mc_layout *l, int rank, int coord[MC_NAXES]);
int mc_layout_rank(const struct mc_layout *l, const int coord[MC_NAXES]);
/* Ranks of the group along `axis` through `rank`, ascending; returns size[axis]. */
int mc_layout_group(const struct mc_layout *l, int rank, enum mc_axis axis, int *ranks);
