/* launch_map.c - launch_map.tsv: who runs where. Floor 3 (par).
 *
 *   rank  host  device  tp  cp  ep  dp  pp        one line a rank, ascending, tabs between
 *
 * I1  A device is the how-manieth rank of its node, by rank.
 * Memory: the text, the caller's. Threads: any. */
#include "launch_map.h"
#include "../base/arena.h"
#include <stdio.h>
#include <string.h>

enum { NUMBERS = 7 * 12 + 16 }; /* bytes of a line without host and device */

mc_status mc_launch_map_text(const struct mc_launch *w, char **text, struct mc_err *err)
{
    static const char head[] = "rank\thost\tdevice\ttp\tcp\tep\tdp\tpp\n";
    int world = w->layout->world, nodes = 0;
    size_t cap = sizeof head, n = 0;
    for (int r = 0; r < world; r++) {
        int node = w->node_of ? w->node_of[r] : r / w->per_node;
        nodes = node >= nodes ? node + 1 : nodes;
        cap += strlen(w->hosts[node]) + strlen(w->device) + NUMBERS;
    }
    char *t = mc_alloc(cap, "launch map");
    int *used = mc_alloc((size_t)nodes * sizeof *used, "devices of the nodes");
    if (!t || !used) {
        mc_free(t);
        mc_free(used);
        return mc_err_set(err, MC_E_NOMEM, "no memory for the map of %d ranks", world);
    }
    n = (size_t)snprintf(t, cap, "%s", head);
    for (int r = 0; r < world; r++) {
        int node = w->node_of ? w->node_of[r] : r / w->per_node, c[MC_NAXES];
        mc_layout_coord(w->layout, r, c);
        n += (size_t)snprintf(t + n, cap - n, "%d\t%s\t%s:%d\t%d\t%d\t%d\t%d\t%d\n", r,
                              w->hosts[node], w->device, used[node]++ /* I1 */, c[MC_AXIS_TP],
                              c[MC_AXIS_CP], c[MC_AXIS_EP], c[MC_AXIS_DP], c[MC_AXIS_PP]);
    }
    mc_free(used);
    *text = t;
    return MC_OK;
}
