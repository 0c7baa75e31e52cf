/* stages.c - the cut of a pipeline, costs of its stages, counts of microbatches. Floor 6 (plan).
 *
 * The graph counts forward + backward as three times the forward. Attention is told apart by its
 * growth: at lengths 1 and 2 a piece costs A + B and 2 A + 4 B (whatever a window hides later, A is
 * the products with weights), so A = (4 c(1) - c(2)) / 2.
 *
 * I1  A graph is built for the stem, for the head, and for each distinct block: their number does
 *     not grow with layers or stages.
 * I2  Where layers are cut is said here and nowhere else.
 *
 * Memory: one graph at a time; the caller's arrays. Threads: any. */
#include "stages.h"
#include "balance.h"
#include <string.h>
#include "../base/arena.h"
#include "../graph/graph.h"

mc_status mc_stages_work_create(int layers, struct mc_stages_work *work, struct mc_err *err)
{
    size_t n = (size_t)layers + 2;
    double *at = mc_alloc(3 * n * sizeof *at, "work of layers");
    if (!at)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the work of %d layers", layers);
    *work = (struct mc_stages_work){layers, at, at + n, at + 2 * n};
    return MC_OK;
}

void mc_stages_work_drop(struct mc_stages_work *work)
{
    mc_free(work->f);
    memset(work, 0, sizeof *work);
}

/* Piece k: 0 the stem, k the layer k - 1, layers + 1 the head. */
static mc_status operations(const struct mc_recipe *r, int k, struct mc_stages_work *work,
                            struct mc_err *err)
{
    int layers = (int)r->model.layers;
    struct mc_graph *g;
    struct mc_graph_cfg cfg = {.recipe = r,
                               .mode = MC_GRAPH_TRAIN,
                               .bound = {.b = r->batch.micro, .t = r->model.seq, .pos0 = 0},
                               .nparts = 1,
                               .part = {{.first_layer = k == 0 ? 0 : k - 1,
                                         .end_layer = k <= layers ? k : layers,
                                         .has_stem = k == 0,
                                         .has_head = k == layers + 1,
                                         .slots = 1}},
                               .threads = 1};
    for (int a = 0; a < MC_NAXES; a++)
        cfg.axis_size[a] = 1;
    MC_TRY(mc_graph_build(&cfg, &g, err));
    double rows = (double)(r->batch.micro * r->model.seq);
    double all = mc_graph_flops(g, r->batch.micro, r->model.seq);
    double weights = rows * (4 * mc_graph_flops(g, 1, 1) - mc_graph_flops(g, 1, 2)) / 2;
    work->f[k] = all / 3;
    work->w[k] = weights / 3;
    work->i[k] =
        all - work->f[k] - work->w[k] + mc_graph_flops_again(g, r->batch.micro, r->model.seq);
    mc_graph_destroy(g);
    return MC_OK;
}

mc_status mc_stages_predict(const struct mc_recipe *r, struct mc_stages_work *work,
                            struct mc_err *err)
{
    const struct mc_model_cfg *m = &r->model;
    int layers = (int)m->layers;
    MC_TRY(mc_stages_work_create(layers, work, err));
    mc_status st = operations(r, 0, work, err);
    if (st == MC_OK)
        st = operations(r, layers + 1, work, err);
    for (int l = 0; l < layers && st == MC_OK; l++) { /* I1 */
        int same = 0;
        while (same < l && m->layer_block[same] != m->layer_block[l])
            same++;
        if (same == l)
            st = operations(r, l + 1, work, err);
        work->f[l + 1] = work->f[same + 1];
        work->i[l + 1] = work->i[same + 1];
        work->w[l + 1] = work->w[same + 1];
    }
    if (st != MC_OK)
        mc_stages_work_drop(work);
    return st;
}

int mc_stages_count(const struct mc_recipe *r)
{
    return r->parallel.pp > 1 ? (int)(r->parallel.pp * r->parallel.chunks) : 1;
}

static mc_status balance(const struct mc_recipe *r, const struct mc_stages_work *work,
                         const int *place, int *cut, int *proven, struct mc_err *err)
{
    struct mc_balance b = {.layers = (int)r->model.layers,
                           .ranks = (int)r->parallel.pp,
                           .chunks = (int)r->parallel.chunks,
                           .place = place};
    double *sum = mc_alloc(((size_t)b.layers + 2) * sizeof *sum, "work of layers");
    if (!sum)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the work of %d layers", b.layers);
    for (int k = 0; k < b.layers + 2; k++)
        sum[k] = work->f[k] + work->i[k] + work->w[k];
    b.work = sum;
    mc_status st = mc_balance_cut(&b, cut, proven, err);
    mc_free(sum);
    return st;
}

/* "even" or a list. */
static mc_status given(const struct mc_recipe *r, int n, int *cut, struct mc_err *err)
{
    const int layers = (int)r->model.layers;
    int list[MC_MAX_STAGES], k = mc_recipe_stages(&r->parallel, list);
    if (k == 0 && layers % n)
        return mc_err_set(err, MC_E_RECIPE,
                          "model.layers: %d is not a multiple of parallel.pp x chunks %d: give "
                          "parallel.stages = \"auto\", or a list",
                          layers, n);
    if (k != 0 && k != n)
        return mc_err_set(err, MC_E_RECIPE, "parallel.stages has %d entries for %d stages", k, n);
    cut[0] = 0;
    for (int s = 0; s < n; s++)
        cut[s + 1] = cut[s] + (k ? list[s] : layers / n);
    if (cut[n] != layers)
        return mc_err_set(err, MC_E_RECIPE, "parallel.stages has %d layers, the model %d", cut[n],
                          layers);
    return MC_OK;
}

mc_status mc_stages_cut_by(const struct mc_recipe *r, const struct mc_stages_work *work,
                           const int *place, int *cut, int *proven, struct mc_err *err)
{
    struct mc_stages_work predicted;
    if (proven)
        *proven = 1;
    if (mc_stages_count(r) == 1) {
        cut[0] = 0;
        cut[1] = (int)r->model.layers;
        return MC_OK;
    }
    if (strcmp(r->parallel.stages, "auto") != 0)
        return given(r, mc_stages_count(r), cut, err);
    if (work)
        return balance(r, work, place, cut, proven, err);
    MC_TRY(mc_stages_predict(r, &predicted, err));
    mc_status st = balance(r, &predicted, place, cut, proven, err);
    mc_stages_work_drop(&predicted);
    return st;
}

mc_status mc_stages_cut(const struct mc_recipe *r, const int *place, int *cut, struct mc_err *err)
{
    return mc_stages_cut_by(r, NULL, place, cut, NULL, err);
}

static double sum(const double *piece, const int *cut, int n, int s)
{
    int from = s == 0 ? 0 : cut[s] + 1, to = cut[s + 1] + (s == n - 1 ? 2 : 1);
    double t = 0;
    for (int k = from; k < to; k++)
        t += piece[k];
    return t;
}

void mc_stages_sum(const struct mc_stages_work *work, const int *cut, int n, double *f, double *i,
                   double *w)
{
    for (int s = 0; s < n; s++) {
        f[s] = sum(work->f, cut, n, s);
        i[s] = sum(work->i, cut, n, s);
        w[s] = sum(work->w, cut, n, s);
    }
}

mc_status mc_stages_cost(const struct mc_recipe *r, const int *cut, int n, double *f, double *i,
                         double *w, struct mc_err *err)
{
    struct mc_stages_work work;
    MC_TRY(mc_stages_predict(r, &work, err));
    mc_stages_sum(&work, cut, n, f, i, w);
    mc_stages_work_drop(&work);
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

/* The microbatches of a batch of `global` samples. */
static int add_batch(const struct mc_recipe *r, int64_t *counts, int n, int64_t global)
{
    int64_t dp = r->parallel.dp > 0 ? r->parallel.dp : 1, micro = r->batch.micro;
    int64_t least = (global / dp + micro - 1) / micro;
    int64_t most = ((global + dp - 1) / dp + micro - 1) / micro;
    if (least > 0) /* a replica without samples has no pipeline to run */
        n = add(counts, n, least);
    return most > 0 ? add(counts, n, most) : n;
}

int mc_stages_microbatches(const struct mc_recipe *r, int64_t counts[MC_STAGES_COUNTS])
{
    int64_t seq = r->model.seq;
    struct mc_quantity batch = {0};
    int n = add_batch(r, counts, 0, r->batch.global);
    for (int i = 0; i < r->batch.nramp; i++)
        n = add_batch(r, counts, n, r->batch.ramp[i].global);
    for (int i = 0; i < r->data.nphases; i++) { /* as mc_phase_at() has it */
        const struct mc_phase_cfg *p = &r->data.phase[i];
        seq = p->seq > 0 ? p->seq : seq;
        batch = p->batch.n > 0 ? p->batch : batch;
        if (batch.n > 0)
            n = add_batch(r, counts, n, batch.unit == MC_UNIT_TOKENS ? batch.n / seq : batch.n);
    }
    return n;
}
