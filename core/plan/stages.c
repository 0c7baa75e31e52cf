/* stages.c - costs of stages and counts of microbatches, for the proof of a schedule. Floor 6
 * (plan).
 *
 * The graph counts forward + backward as three times the forward. Attention is told apart by its
 * growth: at lengths 1 and 2 a stage costs A + B and 2 A + 4 B (whatever a window hides later, A is
 * the products with weights), so A = (4 c(1) - c(2)) / 2.
 *
 * Memory: one graph at a time. Threads: any. */
#include "stages.h"
#include "../graph/graph.h"

static mc_status operations(const struct mc_recipe *r, int s, int n, double *all, double *weights,
                            struct mc_err *err)
{
    struct mc_graph *g;
    struct mc_graph_cfg cfg = {.recipe = r,
                               .mode = MC_GRAPH_TRAIN,
                               .bound = {.b = r->batch.micro, .t = r->model.seq, .pos0 = 0},
                               .nparts = 1,
                               .part = {{.first_layer = (int)(r->model.layers * s / n),
                                         .end_layer = (int)(r->model.layers * (s + 1) / n),
                                         .has_stem = s == 0,
                                         .has_head = s == n - 1,
                                         .slots = 1}},
                               .threads = 1};
    for (int a = 0; a < MC_NAXES; a++)
        cfg.axis_size[a] = 1;
    MC_TRY(mc_graph_build(&cfg, &g, err));
    double rows = (double)(r->batch.micro * r->model.seq);
    *all = mc_graph_flops(g, r->batch.micro, r->model.seq);
    *weights = rows * (4 * mc_graph_flops(g, 1, 1) - mc_graph_flops(g, 1, 2)) / 2;
    mc_graph_destroy(g);
    return MC_OK;
}

mc_status mc_stages_cost(const struct mc_recipe *r, int n, double *f, double *i, double *w,
                         struct mc_err *err)
{
    for (int s = 0; s < n; s++) {
        double all = 0, weights = 0;
        MC_TRY(operations(r, s, n, &all, &weights, err));
        f[s] = all / 3;
        w[s] = weights / 3;
        i[s] = all - f[s] - w[s];
    }
    return MC_OK;
}

static int add(int64_t *counts, int n, int64_t v)
{
    int at = 0;
    while (at < n && counts[at] < v)
        at++;
    if (at < n && counts[at] == v)
        return n;
    for (int k = n; k > at; k--)
        counts[k] = counts[k - 1];
    counts[at] = v;
    return n + 1;
}

int mc_stages_microbatches(const struct mc_recipe *r, int64_t counts[MC_STAGES_COUNTS])
{
    int n = 0;
    int64_t dp = r->parallel.dp > 0 ? r->parallel.dp : 1, micro = r->batch.micro;
    for (int i = -1; i < r->batch.nramp; i++) {
        int64_t global = i < 0 ? r->batch.global : r->batch.ramp[i].global;
        int64_t least = (global / dp + micro - 1) / micro;
        int64_t most = ((global + dp - 1) / dp + micro - 1) / micro;
        if (least > 0) /* a replica without samples has no pipeline to run */
            n = add(counts, n, least);
        if (most > 0)
            n = add(counts, n, most);
    }
    return n;
}
