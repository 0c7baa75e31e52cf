/* graph_record.c - one step of training told op by op: when each verb ran, and a sketch of what it
 * gave. Floor 4 (graph).
 *
 * What is told is logical, so that two layouts can be compared: an element is known by its row of
 * the global batch and its column of the whole tensor (mc_microbatch.logical_row), and each rank
 * tells what it has to add. Of a value, forward:
 *     shard      its own part, once of each set of copies       partial    all of it
 *     replicate  all of it on coordinate 0 of the axis, which `counts`; the others tell it, too
 * Of a gradient, backward, by the duals (graph_shard.c): a shard's own part, on every copy; that of
 * a partial value as a replicated one; that of a replicated value is partial where the collective
 * that made it says that it sums it. Of a weight's gradient, what the accumulator holds so far.
 *
 * I1  Without a record there is one comparison a step; nothing else.
 * I2  What is told changes no bit: only reads, between verbs.
 * I3  `hash` of a partial thing is of this rank's share, and equal only on the same layout.
 * I4  Padding of a vocabulary is left out. d(output) is told before the verb that may overwrite it.
 * Memory: the caller's. Threads: the one that runs the graph. */
#include <string.h>
#include "../base/clock.h"
#include "graph_int.h"

void mc_graph_record(struct mc_graph *g, const struct mc_graph_record *r)
{
    g->record = r;
}

/* How many calls of this op and name the place had before: with them a key. */
static int nth_of(const struct mc_graph *g, int node)
{
    const struct mc_gnode *n = &g->node[node];
    int nth = 0;
    for (int i = node - 1; i >= 0 && g->node[i].layer == n->layer; i--)
        nth += g->node[i].op == n->op && strcmp(g->node[i].name, n->name) == 0;
    return nth;
}

/* The part of `extent` that this rank holds along dim. */
static void part(const struct mc_graph *g, const struct mc_sharding *sh, int dim, int64_t extent,
                 int64_t *lo, int64_t *n)
{
    *lo = 0;
    *n = extent;
    for (int a = 0; a < MC_NAXES; a++)
        if (sh->on[a].kind == MC_SHARD && sh->on[a].dim == dim)
            mc_part_of(extent, mc_place_parts(&sh->on[a], g->cfg.axis_size[a]),
                       mc_place_part(&sh->on[a], g->cfg.coord[a]), lo, n);
}

enum share { ONE_OF_ALL, ADDS, PARTIAL };
/* What this rank's view of the value is on axis a. */
static enum share share_on(const struct mc_graph *g, const struct mc_gvalue *v, int a, int grad)
{
    const struct mc_place *at = &v->sharding.on[a];
    /* replicas have rows of their own, stages layers */
    if (g->cfg.axis_size[a] == 1 || a == MC_AXIS_DP || a == MC_AXIS_PP)
        return ADDS;
    if (at->kind == MC_SHARD)
        return at->copies > 1 ? (grad ? PARTIAL : ONE_OF_ALL) : ADDS;
    if (at->kind == MC_PARTIAL)
        return grad ? ONE_OF_ALL : PARTIAL;
    const struct mc_gnode *by = v->node >= 0 ? &g->node[v->node] : NULL;
    int sums = by && by->op->flags & MC_OPF_COMM && by->attr[MC_COMM_AXIS] == a &&
               by->attr[MC_COMM_SPLIT] != 0;
    return grad && sums ? PARTIAL : ONE_OF_ALL;
}

/* elements: those of a partial thing are counted once. */
static void shares(const struct mc_graph *g, const struct mc_gvalue *v, int grad,
                   struct mc_graph_told *to, int *elements)
{
    *elements = 1;
    to->counts = 1;
    to->partial = 0;
    for (int a = 0; a < MC_NAXES; a++) {
        enum share s = share_on(g, v, a, grad);
        int copies = v->sharding.on[a].kind == MC_SHARD && v->sharding.on[a].copies > 1
                         ? v->sharding.on[a].copies
                         : g->cfg.axis_size[a];
        to->partial |= s == PARTIAL;
        if (s == ONE_OF_ALL && g->cfg.coord[a] % copies != 0)
            to->counts = 0;
        if (s == PARTIAL && g->cfg.coord[a] % copies != 0)
            *elements = 0;
    }
}

static void tell_value(const struct mc_graph *g, const struct mc_op_ctx *cx, int value, int grad,
                       const struct mc_view *view, struct mc_graph_told *to)
{
    const struct mc_gvalue *v = &g->value[value];
    int64_t row0, rows, col0, cols;
    int elements;
    part(g, &v->sharding, 0, cx->e.b * cx->e.t, &row0, &rows);
    part(g, &v->sharding, 1, v->cols, &col0, &cols); /* I4 */
    shares(g, v, grad, to, &elements);
    for (int64_t r = 0; r < rows && view->p; r++) {
        int64_t row = cx->logical_row ? cx->logical_row[row0 + r] : row0 + r;
        mc_sketch_add(&to->is, (const char *)view->p + (size_t)(r * view->ld) * g->elem,
                      g->kern->dtype, row * v->cols + col0, cols);
    }
    to->is.count = elements ? to->is.count : 0;
}

/* The box is cut along one dimension at most, or two; rows of it are runs of the whole. */
void mc_graph_sketch_box(const struct mc_shape *shape, const struct mc_box *box, const void *data,
                         enum mc_dtype dtype, struct mc_sketch *s)
{
    int64_t n = box->nd > 0 ? box->n[box->nd - 1] : 1, all = mc_box_count(box);
    int64_t at[MC_MAX_DIMS] = {0};
    if (all == 0 || n == 0)
        return;
    for (int64_t run = 0; run < all / n; run++) {
        int64_t first = 0;
        for (int d = 0; d < box->nd; d++)
            first = first * shape->dim[d] + box->lo[d] + (d < box->nd - 1 ? at[d] : 0);
        mc_sketch_add(s, (const char *)data + (size_t)(run * n) * mc_dtype_size(dtype), dtype,
                      first, n);
        for (int d = box->nd - 2; d >= 0 && ++at[d] == box->n[d]; d--)
            at[d] = 0;
    }
}

static void tell_weight(const struct mc_graph *g, const struct mc_gnode *gn, int k,
                        const void *grad, struct mc_graph_told *to)
{
    const struct mc_param *p = &g->param[gn->param[k]];
    to->what = p->name;
    to->partial = p->grad_sum_axes != 0;
    to->counts = p->owned || to->partial;
    mc_graph_sketch_box(&p->shape, &p->box, grad, g->kern->wide->dtype, &to->is);
    to->is.count = p->owned ? to->is.count : 0;
}

static struct mc_graph_told *next(struct mc_graph_note *n, const char *what, int k)
{
    MC_ASSERT(n->ntold < MC_GRAPH_TOLD);
    struct mc_graph_told *to = &n->told[n->ntold++];
    memset(to, 0, sizeof *to);
    to->what = what;
    to->k = k;
    return to;
}

/* Tick t's place among all steps of a microbatch, as the model runs them: forward of all parts,
 * then backward from the last part to the first, a part's weights after its inputs. */
static int place_in_model(const struct mc_graph *g, int t)
{
    const struct mc_gpart *at = mc_graph_part_at(g, t);
    int n = 0, forward = mc_graph_phase_at(at, t) == MC_PHASE_FORWARD;
    for (int c = 0; c < g->cfg.nparts; c++) {
        const struct mc_gpart *p = &g->part[c];
        if (!forward || p < at)
            n += p->tick[MC_PHASE_BACKWARD] - p->tick[MC_PHASE_FORWARD];
        if (!forward && p > at)
            n += p->tick[MC_NPHASES] - p->tick[MC_PHASE_BACKWARD];
    }
    return n + t - at->tick[forward ? MC_PHASE_FORWARD : MC_PHASE_BACKWARD];
}

void mc_graph_record_begin(const struct mc_graph *g, int t, const struct mc_op_ctx *cx,
                           struct mc_graph_note *n)
{
    static const char *const verbs[] = {"forward", "backward weight", "backward input"};
    const struct mc_step *s = &g->step[t];
    n->ntold = 0;
    n->tick = place_in_model(g, t);
    n->layer = -1;
    n->nth = 0;
    n->comm = 0;
    n->name = "";
    n->op = s->kind == MC_STEP_SUM ? "sum of gradients" : "copy";
    n->verb =
        mc_graph_phase_at(mc_graph_part_at(g, t), t) == MC_PHASE_FORWARD ? "forward" : "backward";
    if (s->gnode >= 0) {
        const struct mc_gnode *gn = &g->node[s->gnode];
        n->name = gn->name;
        n->op = gn->op->name;
        n->verb = s->again ? "again" : verbs[s->verb];
        n->layer = gn->layer;
        n->comm = (gn->op->flags & MC_OPF_COMM) != 0;
        if (g->record->sketch) {
            n->nth = nth_of(g, s->gnode);
            for (int k = 0; k < gn->nout && s->kind == MC_STEP_VERB; k++) /* I4 */
                if (s->verb == MC_BACKWARD_INPUT && s->d_out[k] >= 0 &&
                    g->value[gn->out[k]].uses != 1) /* several, or the next stage's */
                    tell_value(g, cx, gn->out[k], 1, &s->n.d_out[k], next(n, "d_out", k));
        }
    }
    n->begin_ns = mc_clock_ns();
}

void mc_graph_record_end(const struct mc_graph *g, int t, const struct mc_op_ctx *cx,
                         struct mc_graph_note *n)
{
    const struct mc_step *s = &g->step[t];
    const struct mc_gnode *gn = s->gnode >= 0 ? &g->node[s->gnode] : NULL;
    n->end_ns = mc_clock_ns();
    if (g->record->sketch && gn && s->kind == MC_STEP_VERB && !s->again) {
        if (s->verb == MC_FORWARD)
            for (int k = 0; k < gn->nout; k++)
                tell_value(g, cx, gn->out[k], 0, &s->n.out[k], next(n, "out", k));
        else if (s->verb == MC_BACKWARD_INPUT)
            for (int k = 0; k < gn->nin; k++) {
                if (s->d_in[k] >= 0 && gn->in[k] >= 0)
                    tell_value(g, cx, gn->in[k], 1, &s->n.d_in[k],
                               next(n, k == 0 && s->n.acc ? "d_in+" : "d_in", k));
            }
        else
            for (int k = 0; k < gn->nparams; k++)
                tell_weight(g, gn, k, s->n.grad[k], next(n, "", gn->use[k]));
    }
    g->record->step(g->record->arg, n);
}
