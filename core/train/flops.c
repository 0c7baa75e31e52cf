/* flops.c - how much work a token is, and which part of the machine's peak a step used.
 *
 * Operations of training one token (a multiply-add is 2; forward + backward = 3 x forward;
 * recomputation is not counted), at sequence length T:
 *     causal   the products of the op table: 6 x (weights that multiply) + attention's two products
 *              over the keys that a query may see (half of T x T when causal, less in a window)
 *     full     the same, as if every query saw all T keys: the count that published MFU figures use
 *     formula  6 N + 12 L C T,  N parameters without tables of learned positions, L layers, C
 *              heads x head_dim: known without a graph. It counts an embedding that is not tied to
 *              the head as if it multiplied, and norms and biases; else it is `full`.
 *
 * MFU = full x tokens/s / (ranks x peak), the peak that of cluster.peak for the run's precision.
 * I1  A peak that is not declared is not guessed: mfu is NaN then, null in files.
 *
 * Memory: none. Threads: any one. */
#include "flops.h"
#include <math.h>

struct mc_flops mc_flops_of(const struct mc_recipe *r, const struct mc_graph *train, int64_t seq)
{
    const struct mc_model_cfg *m = &r->model;
    double n = 0;
    for (int i = 0; i < mc_graph_nparams(train); i++) {
        const struct mc_param *p = mc_graph_param(train, i);
        if (p->cls != MC_PARAM_POSITION)
            n += (double)mc_shape_count(&p->shape);
    }
    return (struct mc_flops){
        .causal = mc_graph_flops(train, 1, seq) / (double)seq,
        .full = mc_graph_flops_full(train, 1, seq) / (double)seq,
        .formula = 6 * n + 12.0 * (double)(m->layers * m->heads * m->head_dim) * (double)seq};
}

mc_status mc_flops_phases(const struct mc_recipe *r, struct mc_flops *f, struct mc_err *err)
{
    struct mc_graph_cfg cfg = {
        .recipe = r,
        .mode = MC_GRAPH_TRAIN,
        .bound = {.b = 1, .t = mc_recipe_longest(r)},
        .nparts = 1,
        .part = {{.end_layer = (int)r->model.layers, .has_stem = 1, .has_head = 1, .slots = 1}},
        .threads = 1};
    struct mc_graph *g;
    int64_t seq = r->model.seq;
    MC_TRY(mc_graph_build(&cfg, &g, err)); /* all axes 1; nothing is bound */
    f[0] = mc_flops_of(r, g, seq);
    for (int i = 0; i < r->data.nphases; i++) {
        seq = r->data.phase[i].seq > 0 ? r->data.phase[i].seq : seq;
        f[i + 1] = mc_flops_of(r, g, seq);
    }
    mc_graph_destroy(g);
    return MC_OK;
}

double mc_flops_mfu(const struct mc_recipe *r, const struct mc_flops *f, double tokens_per_s,
                    int ranks)
{
    const struct mc_cluster_cfg *c = &r->cluster;
    double peak = r->precision == MC_BF16  ? c->peak_bf16
                  : r->precision == MC_F64 ? c->peak_fp64
                                           : c->peak_fp32;
    return peak > 0 ? f->full * tokens_per_s / ((double)ranks * peak * 1e12) : NAN; /* I1 */
}
