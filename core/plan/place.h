/* place.h - does a layout fit the nodes that its ranks stand on? */
#pragma once
#include "../par/layout.h"

struct mc_place_counts {
    int nodes_of_pipeline; /* most nodes that one pipeline (tp x pp ranks) touches */
    int pipelines_of_node; /* most pipelines that have ranks on one node */
};
/* node_of[r]: the node of rank r, 0 .. nodes-1 (a real host list); NULL: r / per_node. MC_E_RECIPE:
 * a tensor-parallel group leaves its node, or a pipeline whose tensor-parallel groups fill nodes
 * does not cover exactly its nodes. */
mc_status mc_place_check(const struct mc_layout *l, const int *node_of, int per_node,
                         struct mc_place_counts *place, struct mc_err *err);
