/* graph_print.c - the program as a table for people: one line a step, then totals.
 *
 *   tick  verb  node  operands            each operand: [rows, columns] @ place + offset
 * (first..last) Pure; lines go to the caller one by one. */
#include <stdio.h>
#include "graph_int.h"

struct line {
    char s[1024];
    int n;
};

static void add(struct line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct line *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(l->s + l->n, sizeof l->s - (size_t)l->n, fmt, ap);
    va_end(ap);
    l->n += n;
    if (l->n > (int)sizeof l->s - 1)
        l->n = (int)sizeof l->s - 1;
}

static const char *const regions[] = {"temp", "slot", "pending"};

static void operand(const struct mc_graph *g, struct line *l, const char *what, int piece)
{
    if (piece < 0)
        return;
    const struct mc_piece *p = &g->piece[piece];
    const struct mc_store *s = &g->store[p->store];
    add(l, "  %s [%lld, %lld]@%s+%zu", what, (long long)p->rows, (long long)p->cols,
        regions[s->where], s->offset + (size_t)p->col0 * g->elem);
    add(l, "(%d..%d)", p->def, p->last);
}

static void one_step(const struct mc_graph *g, int t, struct line *l)
{
    static const char *const verbs[] = {"forward", "weight", "input"};
    const struct mc_step *s = &g->step[t];
    l->n = 0;
    if (s->kind != MC_STEP_VERB) {
        add(l, "%5d  %-8s %-14s %-28s", t, "grad", s->kind == MC_STEP_SUM ? "sum" : "copy", "");
    } else {
        const struct mc_gnode *n = &g->node[s->gnode];
        add(l, "%5d  %-8s %-14s %-28s", t, s->again ? "again" : verbs[s->verb], n->op->name,
            n->name);
    }
    for (int k = 0; k < MC_OP_IN; k++)
        operand(g, l, "in", s->in[k]);
    for (int k = 0; k < MC_OP_OUT; k++)
        operand(g, l, "out", s->out[k]);
    for (int k = 0; k < MC_OP_OUT; k++)
        operand(g, l, "d_out", s->d_out[k]);
    for (int k = 0; k < MC_OP_IN; k++)
        operand(g, l, "d_in", s->d_in[k]);
    for (int k = 0; k < MC_OP_SAVED; k++)
        operand(g, l, "saved", s->saved[k]);
    operand(g, l, "scratch", s->scratch);
}

static void one_part(const struct mc_graph *g, int c, void (*line)(void *, const char *), void *arg)
{
    static const char *const phases[] = {"forward", "backward", "weights"};
    const struct mc_gpart *p = &g->part[c];
    struct line l = {.n = 0};
    if (g->cfg.nparts > 1) {
        add(&l, "part %d  slots %d of %zu bytes", c, p->slots, p->slot_bytes);
        if (g->cfg.split)
            add(&l, "  pending %d of %zu bytes", p->pending, p->pending_bytes);
        line(arg, l.s);
    }
    for (int phase = 0; phase < MC_NPHASES; phase++) {
        if (phase > 0 && p->tick[phase] < p->tick[MC_NPHASES])
            line(arg, phases[phase]);
        for (int t = p->tick[phase]; t < p->tick[phase + 1]; t++) {
            one_step(g, t, &l);
            line(arg, l.s);
        }
    }
}

void mc_graph_print(const struct mc_graph *g, void (*line)(void *, const char *), void *arg)
{
    struct line l = {.n = 0};
    for (int i = 0; i < g->nparams; i++) {
        const struct mc_param *p = &g->param[i];
        char sh[96];
        l.n = 0;
        mc_sharding_print(&p->sharding, sh, sizeof sh);
        add(&l, "param  %-36s [%lld", p->name, (long long)p->shape.dim[0]);
        for (int d = 1; d < p->shape.nd; d++)
            add(&l, ", %lld", (long long)p->shape.dim[d]);
        add(&l, "]  @%lld  uses %d  %s", (long long)p->offset, p->nuses, sh);
        line(arg, l.s);
    }
    for (int c = 0; c < g->cfg.nparts; c++)
        one_part(g, c, line, arg);
    l.n = 0;
    add(&l,
        "bytes  params %zu  grads %zu  extra %zu  slot %zu  temp %zu  tables %zu  kv %zu  total "
        "%zu",
        g->mem.params, g->mem.grads, g->mem.extra_grads, g->mem.slot, g->mem.temp, g->mem.tables,
        g->mem.kv, g->mem.total);
    line(arg, l.s);
}
