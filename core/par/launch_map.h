/* launch_map.h - launch_map.tsv: who runs where, one line a rank. */
#pragma once
#include "layout.h"

/* Where rank r runs: node node_of[r] of hosts[]; NULL: node r / per_node. */
struct mc_launch {
    const struct mc_layout *layout;
    const char *const *hosts;
    const int *node_of;
    int per_node;
    const char *device; /* "cpu": devices are counted within a node, "cpu:3" */
};
/* Header `rank host device tp cp ep dp pp`, tabs between; mc_free(*text). */
mc_status mc_launch_map_text(const struct mc_launch *w, char **text, struct mc_err *err);
