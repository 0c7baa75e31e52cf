/* graph_init.c - initial weights and rope tables: numbers that depend on names and places alone.
 *
 * I1  Element i of parameter NAME is std * normal(key("init" NAME), step 0, i), i its logical
 *     index: the same bits whatever is fused, sharded or in what order parameters are made.
 * I2  The fp32 draw is the value: std * normal is formed in fp64 and rounded once to fp32; fp64
 *     runs widen that. bf16 rounds it to nearest even.
 * I3  Rope tables are computed in fp64 and rounded once to fp64, or fp32 in any other precision. */
#include <math.h>
#include <stdio.h>
#include "../base/rng.h"
#include "../tensor/bf16.h"
#include "graph_int.h"

static void store(void *params, enum mc_dtype dtype, int64_t at, float v)
{
    if (dtype == MC_F64) {
        ((double *)params)[at] = v;
    } else if (dtype == MC_BF16) {
        ((uint16_t *)params)[at] = mc_bf16_from_f32(v);
    } else {
        ((float *)params)[at] = v;
    }
}

/* I1: the rows of the box, each a run of logical indices. */
static void fill_box(const struct mc_param *p, uint64_t key, enum mc_dtype dtype, void *params)
{
    int nd = p->box.nd;
    int64_t cols = nd > 1 ? p->box.n[1] : 1, at = p->offset;
    for (int64_t r = 0; r < p->box.n[0]; r++) {
        int64_t i = p->box.lo[0] + r;
        if (nd > 1)
            i = i * p->shape.dim[1] + p->box.lo[1];
        for (int64_t k = 0; k < cols; k++) {
            float v = p->init == MC_INIT_ONES ? 1.0f : 0.0f;
            if (p->init == MC_INIT_NORMAL)
                v = (float)(p->std * (double)mc_rng_normal(key, 0, (uint64_t)(i + k))); /* I2 */
            store(params, dtype, at++, v);
        }
    }
}

void mc_graph_init_params(const struct mc_graph *g, uint64_t seed, enum mc_dtype dtype,
                          void *params)
{
    for (int i = 0; i < g->nparams; i++) {
        const struct mc_param *p = &g->param[i];
        char name[MC_NAME_MAX + 8];
        MC_ASSERT(p->shape.nd == 1 || p->shape.nd == 2);
        snprintf(name, sizeof name, "init%s", p->name); /* I1 */
        fill_box(p, mc_rng_key(seed, name), dtype, params);
    }
}

void mc_graph_fill_tables(const struct mc_graph *g)
{
    for (int i = 0; i < g->ntables; i++) {
        const struct mc_table *tb = &g->table[i];
        int64_t half = tb->half, n = g->cfg.bound.t * half;
        double amplitude = mc_rope_amplitude(tb->attr);
        for (int64_t k = 0; k < n; k++) { /* I3 */
            double angle = (double)(k / half) * mc_rope_frequency(tb->attr, k % half);
            double c = amplitude * cos(angle), s = amplitude * sin(angle);
            if (g->elem == 8) {
                double *t = (double *)g->buf.tables + tb->offset;
                t[k] = c;
                t[n + k] = s;
            } else {
                float *t = (float *)g->buf.tables + tb->offset;
                t[k] = (float)c;
                t[n + k] = (float)s;
            }
        }
    }
}
