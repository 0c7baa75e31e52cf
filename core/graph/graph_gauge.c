/* graph_gauge.c - how large the residual stream is after the stem and after each block.
 *
 * While a gauge is set, forward adds the sum of squares of what the stem and each block give, just
 * after the step that makes it: it is still in the caches, and no other pass over the activations
 * is made. Without one the cost is one comparison a step.
 *
 * I1  Recomputation in backward is not counted: each row of a microbatch once.
 * I2  Chunks of rows are fixed by the shape and summed in order, in fp64: bits do not depend on the
 *     number of threads.
 * I3  A block that gives the very value it was given (or that another gave) is counted under each.
 * I4  On a mesh each row is counted on one rank of a tp group: its own rows under sequence
 *     parallelism, all of them on the first rank otherwise. The sum over ranks is the whole.
 * I5  A microbatch adds one number to each place: sums of single microbatches, added by whoever
 *     keeps them apart, are the sum of all.
 * Memory: the list of places is the graph's; the sums are the caller's. Threads: the one that runs
 * the graph; chunks use the pool. */
#include <string.h>
#include "../base/arena.h"
#include "../base/pool.h"
#include "graph_int.h"

enum { CHUNKS = 32 };

mc_status mc_graph_gauge_add(struct mc_graph *g, int at, int value, struct mc_err *err)
{
    struct mc_gauge *w = mc_graph_room(g->gauge, g->ngauge, &g->cap_gauge, sizeof *w);
    if (!w)
        return mc_graph_nomem(err);
    g->gauge = w;
    g->gauge[g->ngauge++] = (struct mc_gauge){.at = at, .value = value, .tick = -1};
    return MC_OK;
}

void mc_graph_gauge_locate(struct mc_graph *g)
{
    for (int i = 0; i < g->ngauge; i++)
        for (int t = 0; t < g->nsteps; t++) {
            const struct mc_step *s = &g->step[t];
            if (s->gnode < 0 || s->gnode != g->value[g->gauge[i].value].node ||
                s->verb != MC_FORWARD || s->again) /* I1 */
                continue;
            for (int k = 0; k < g->node[s->gnode].nout; k++)
                if (g->node[s->gnode].out[k] == g->gauge[i].value) {
                    g->gauge[i].tick = t;
                    g->gauge[i].out = k;
                }
        }
}

struct squares {
    const struct mc_view *v;
    int64_t rows;
    size_t elem;
    double part[CHUNKS];
};

static double row_squares(const char *p, int64_t n, size_t elem)
{
    double sum = 0;
    for (int64_t i = 0; i < n && elem == 8; i++) {
        double x = ((const double *)(const void *)p)[i];
        sum += x * x;
    }
    for (int64_t i = 0; i < n && elem == 4; i++) {
        double x = ((const float *)(const void *)p)[i];
        sum += x * x;
    }
    for (int64_t i = 0; i < n && elem == 2; i++) { /* bf16: the upper half of an fp32 */
        uint32_t bits = (uint32_t)((const uint16_t *)(const void *)p)[i] << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        sum += (double)x * x;
    }
    return sum;
}

static void chunk(void *arg, int task, int thread)
{
    struct squares *q = arg;
    double sum = 0;
    (void)thread;
    for (int64_t r = q->rows * task / CHUNKS; r < q->rows * (task + 1) / CHUNKS; r++)
        sum +=
            row_squares((const char *)q->v->p + (size_t)(r * q->v->ld) * q->elem, q->v->c, q->elem);
    q->part[task] = sum;
}

void mc_graph_gauge_step(struct mc_graph *g, int tick, const struct mc_op_ctx *cx)
{
    for (int i = 0; i < g->ngauge; i++) { /* I3 */
        if (g->gauge[i].tick != tick)
            continue;
        const struct mc_step *s = &g->step[tick];
        int out = g->gauge[i].out, tp = g->cfg.axis_size[MC_AXIS_TP];
        struct squares q = {.v = &s->n.out[out], .rows = cx->rows, .elem = g->elem};
        if (g->piece[s->out[out]].split) { /* I4 */
            int64_t first;
            mc_part_of(cx->rows, tp, g->cfg.coord[MC_AXIS_TP], &first, &q.rows);
        } else if (g->cfg.coord[MC_AXIS_TP] > 0)
            q.rows = 0;
        mc_pool_run(g->pool, chunk, &q, CHUNKS);
        double all = 0;
        for (int k = 0; k < CHUNKS; k++) /* I2 */
            all += q.part[k];
        g->gauge_sum[g->gauge[i].at] += all; /* I5 */
    }
}

void mc_graph_gauge(struct mc_graph *g, double *sum)
{
    g->gauge_sum = sum;
}
