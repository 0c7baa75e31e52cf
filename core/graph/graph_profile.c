/* graph_profile.c - where a pass's time goes: calls, time, operations and bytes of each kind of op
 * and verb. Floor 4 (graph).
 *
 * Operations are what the rows count (a multiply-add is 2): a linear's backward does the forward's
 * once for the input and once for the weight, attention's twice. Bytes are those of a row's `bytes`
 * or, without one, of what its masks say that the verb touches, each operand once: what has to move
 * if nothing is in a cache.
 *
 * I1  Nothing is measured, and no clock is read, while no profile is set.
 * I2  Rows come in the order in which they first ran; what finds no room is counted in the last
 *     one, "other".
 *
 * Memory: the caller's. Threads: the one that runs the graph. */
#include <string.h>
#include "graph_int.h"

static const char *const verbs[] = {"forward", "backward weight", "backward input"};

static double cols(const struct mc_view *v, int n, unsigned mask)
{
    double c = 0;
    for (int i = 0; i < n; i++)
        c += mask >> i & 1 ? (double)v[i].c : 0;
    return c;
}

static double bytes_of(const struct mc_graph *g, const struct mc_step *s,
                       const struct mc_op_ctx *cx)
{
    const struct mc_node *n = &s->n;
    double rows = (double)cx->rows, elem = (double)g->elem;
    if (s->kind != MC_STEP_VERB)
        return rows * elem * (double)n->out[0].c * (s->kind == MC_STEP_SUM ? 3 : 2);
    if (n->op->bytes)
        return n->op->bytes(n, s->verb, rows);
    const struct mc_gnode *gn = &g->node[s->gnode];
    double params = 0, c;
    for (int k = 0; k < gn->nparams; k++)
        params += (double)g->param[gn->param[k]].count;
    if (s->verb == MC_FORWARD)
        c = cols(n->in, n->nin, ~0u) + cols(n->out, n->nout, ~0u);
    else if (s->verb == MC_BACKWARD_INPUT)
        c = cols(n->d_out, n->nout, ~0u) + cols(n->d_in, n->nin, ~0u) +
            cols(n->in, n->nin, n->op->keeps_in_for_input) +
            cols(n->out, n->nout, n->op->keeps_out_for_input);
    else
        c = cols(n->d_out, n->nout, ~0u) + cols(n->in, n->nin, n->op->keeps_in_for_weight) +
            cols(n->out, n->nout, n->op->keeps_out_for_weight);
    if (s->verb == MC_BACKWARD_WEIGHT) /* read, added to, written */
        return rows * elem * c + 2 * params * (double)g->wide_elem;
    return rows * elem * c + params * elem;
}

static double flops_of(const struct mc_step *s, const struct mc_op_ctx *cx)
{
    if (s->kind != MC_STEP_VERB || !s->n.op->flops)
        return 0;
    struct mc_extent e = cx->e;
    if (cx->rows != e.b * e.t)
        e = (struct mc_extent){.b = 1, .t = cx->rows};
    int both = s->verb == MC_BACKWARD_INPUT && !s->n.op->backward_weight;
    return s->n.op->flops(&s->n, e) * (both ? 2 : 1);
}

void mc_graph_profile_add(struct mc_graph *g, const struct mc_step *s, const struct mc_op_ctx *cx,
                          int64_t ns)
{
    struct mc_graph_profile *p = g->profile;
    const char *name = s->kind == MC_STEP_VERB  ? s->n.op->name
                       : s->kind == MC_STEP_SUM ? "sum of gradients"
                                                : "copy";
    const char *verb = s->kind == MC_STEP_VERB ? verbs[s->verb] : "";
    int i = 0;
    while (i < p->n && (strcmp(p->row[i].op, name) != 0 || strcmp(p->row[i].verb, verb) != 0))
        i++;
    if (i == MC_PROFILE_ROWS) /* I2 */
        p->row[--i].op = "other";
    struct mc_profile_row *r = &p->row[i];
    if (i == p->n)
        *r = (struct mc_profile_row){.op = name, .verb = verb}, p->n++;
    r->calls++;
    r->ns += ns;
    r->flops += flops_of(s, cx);
    r->bytes += bytes_of(g, s, cx);
}

void mc_graph_set_profile(struct mc_graph *g, struct mc_graph_profile *p)
{
    g->profile = p;
}
