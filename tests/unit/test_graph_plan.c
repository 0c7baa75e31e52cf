/* test_graph_plan.c - the memory plan and the executor: nothing is overwritten before its last
 * reader, and nothing but rounding depends on how the work is laid out. links: mc_graph
 *
 * The brute force knows nothing of lifetimes: it walks the steps, writes each piece's number into
 * every element that the step writes, and at each read demands that all elements still bear the
 * piece's number. A phase begins with nothing in temp, since others may have run before it. The
 * poisoned run fills, before each step, every element of temp that no later
 * step reads with NaN. */
#include "graph_modern.h"

enum { MAX_ROWS = 64, B = 2, T = 7 };
static const struct sizes small = {3, 18, 3, 1, 6, 22, 31, T};

/* -- Models in all their variants ------------------------------------------------------------- */

enum { VARIANTS = 12 };
static struct model *variant(int i)
{
    struct model *m = i >= 10  ? modern(11)
                      : i >= 8 ? odd_model()
                      : i & 1  ? llama(&small)
                               : gpt2(&small, i & 4 ? 0.2 : 0);
    m->r.parallel.recompute = i & 2 ? MC_RECOMPUTE_BLOCK : MC_RECOMPUTE_NONE;
    if (i == 9 || i == 11)
        m->r.parallel.recompute = MC_RECOMPUTE_BLOCK;
    if ((i & 6) == 4) {
        m->r.parallel.recompute = MC_RECOMPUTE_OPS;
        m->r.parallel.nrecompute_ops = 4;
        strcpy(m->r.parallel.recompute_ops[0], "attention");
        strcpy(m->r.parallel.recompute_ops[1], i & 1 ? "swiglu" : "gelu");
        strcpy(m->r.parallel.recompute_ops[2], i & 1 ? "rope" : "layernorm");
        strcpy(m->r.parallel.recompute_ops[3], "linear");
    }
    return m;
}

struct batch {
    int32_t tokens[MAX_ROWS], targets[MAX_ROWS];
    int64_t row[MAX_ROWS], n;
};
static struct mc_microbatch make_batch(struct batch *x, int64_t b, int64_t t)
{
    x->n = formula_batch(9, b * t, 31, x->tokens, x->targets);
    for (int64_t i = 0; i < b * t; i++)
        x->row[i] = 70 + i;
    return (struct mc_microbatch){
        .b = b, .t = t, .tokens = x->tokens, .targets = x->targets, .logical_row = x->row};
}

/* -- Brute force ------------------------------------------------------------------------------ */

struct memory {
    int *of[3]; /* by enum mc_region: owner of each element; of one slot and place of one part */
};
static struct memory new_memory(const struct mc_graph *g)
{
    const size_t n[] = {g->mem.temp, g->mem.slot, g->mem.pending};
    struct memory mem;
    for (int k = 0; k < 3; k++)
        mem.of[k] = mc_alloc(n[k] * sizeof(int) + 1, "test");
    return mem;
}
static void free_memory(struct memory *mem)
{
    for (int k = 0; k < 3; k++)
        mc_free(mem->of[k]);
}
typedef void (*each_fn)(int *owner, int piece, void *arg);

static void each_element(const struct mc_graph *g, const struct memory *mem, int piece, each_fn fn,
                         void *arg)
{
    const struct mc_piece *p = &g->piece[piece];
    const struct mc_store *s = &g->store[p->store];
    const struct mc_gpart *part = mc_graph_part_at(g, s->birth);
    const size_t end[] = {g->mem.temp, part->slot_bytes, part->pending_bytes};
    int *base = mem->of[s->where] + s->offset / g->elem;
    assert_true(s->offset % 64 == 0);
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = 0; c < p->cols; c++) {
            int64_t i = r * s->cols + p->col0 + c;
            assert_true(s->offset + (size_t)(i + 1) * g->elem <= end[s->where]);
            fn(base + i, piece, arg);
        }
}
static void must_own(int *owner, int piece, void *arg)
{
    if (*owner != piece)
        fail_msg("step %d reads piece %d, whose memory holds piece %d", *(int *)arg, piece, *owner);
}
static void take(int *owner, int piece, void *arg)
{
    (void)arg;
    *owner = piece;
}
struct clash {
    int reads[32], nreads, allowed[MC_OP_IN], nallowed, tick;
};
/* A step may write over what it reads only where its row says so. */
static void no_clash(int *owner, int piece, void *arg)
{
    const struct clash *c = arg;
    for (int i = 0; i < c->nallowed; i++)
        if (*owner == c->allowed[i])
            return;
    for (int i = 0; i < c->nreads; i++)
        if (*owner == c->reads[i])
            fail_msg("step %d writes piece %d over piece %d, which it reads", c->tick, piece,
                     *owner);
}

static int reads_of(const struct mc_step *s, int *r)
{
    int n = 0;
    const int *lists[] = {s->in, s->d_out, s->verb == MC_FORWARD ? NULL : s->out,
                          s->verb == MC_FORWARD ? NULL : s->saved};
    for (int l = 0; l < 4; l++)
        for (int k = 0; lists[l] && k < 4; k++)
            if (lists[l][k] >= 0)
                r[n++] = lists[l][k];
    if (s->adds_to >= 0)
        r[n++] = s->adds_to;
    return n;
}
static int writes_of(const struct mc_step *s, int *w)
{
    int n = 0;
    const int *lists[] = {s->d_in, s->verb == MC_FORWARD ? s->out : NULL,
                          s->verb == MC_FORWARD ? s->saved : NULL};
    for (int l = 0; l < 3; l++)
        for (int k = 0; lists[l] && k < 4; k++)
            if (lists[l][k] >= 0)
                w[n++] = lists[l][k];
    if (s->scratch >= 0)
        w[n++] = s->scratch;
    return n;
}

static void allow(const struct mc_step *s, struct clash *c)
{
    int flags = s->kind == MC_STEP_VERB ? s->n.op->flags : MC_OPF_INPLACE;
    c->nallowed = 0;
    if (s->adds_to >= 0)
        c->allowed[c->nallowed++] = s->adds_to;
    for (int k = 0; k < 2; k++)
        if (s->in[k] >= 0 && ((s->verb == MC_FORWARD && flags & MC_OPF_INPLACE) ||
                              (s->verb == MC_BACKWARD_INPUT && flags & MC_OPF_DLOGITS)))
            c->allowed[c->nallowed++] = s->in[k];
    if (s->verb == MC_BACKWARD_INPUT && flags & MC_OPF_DINPLACE)
        c->allowed[c->nallowed++] = s->d_out[0];
}

static void one_step(const struct mc_graph *g, struct memory *mem, int t)
{
    struct clash c = {.tick = t};
    int w[32], nw = writes_of(&g->step[t], w);
    c.nreads = reads_of(&g->step[t], c.reads);
    allow(&g->step[t], &c);
    for (int k = 0; k < c.nreads; k++)
        each_element(g, mem, c.reads[k], must_own, &t);
    for (int k = 0; k < nw; k++) {
        each_element(g, mem, w[k], no_clash, &c);
        each_element(g, mem, w[k], take, NULL);
    }
    for (int k = 0; k < nw; k++) /* nor over each other */
        each_element(g, mem, w[k], must_own, &t);
}

/* One microbatch through one part. apart: something else runs between the two passes of backward;
 * else what the stage before is given is there till the end. */
static void one_microbatch(const struct mc_graph *g, int part, int apart, struct memory *mem)
{
    static const enum mc_graph_edge from[] = {MC_EDGE_IN, MC_EDGE_D_OUT},
                                    to[] = {MC_EDGE_OUT, MC_EDGE_D_IN, MC_EDGE_D_IN};
    const struct mc_gpart *p = &g->part[part];
    memset(mem->of[MC_IN_SLOT], -1, g->mem.slot);
    for (int phase = 0; phase < MC_NPHASES; phase++) {
        int end = p->tick[phase + 1];
        if (phase != MC_PHASE_WEIGHTS || apart)
            memset(mem->of[MC_IN_TEMP], -1, g->mem.temp);
        if (phase != MC_PHASE_WEIGHTS) /* no place before I */
            memset(mem->of[MC_IN_PENDING], -1, g->mem.pending);
        if (phase != MC_PHASE_WEIGHTS && p->edge[from[phase]] >= 0)
            each_element(g, mem, p->edge[from[phase]], take, NULL);
        for (int t = p->tick[phase]; t < end; t++)
            one_step(g, mem, t);
        if (p->edge[to[phase]] >= 0 && !(phase == MC_PHASE_WEIGHTS && apart))
            each_element(g, mem, p->edge[to[phase]], must_own, &end);
    }
}

static void brute_force(const struct mc_graph *g)
{
    struct memory mem = new_memory(g);
    for (int c = 0; c < g->cfg.nparts; c++)
        for (int apart = 0; apart < 2; apart++)
            one_microbatch(g, c, apart, &mem);
    free_memory(&mem);
}

static void try_plan(const struct mc_graph_cfg *cfg, const struct mc_graph_opt *opt)
{
    struct mc_graph *g;
    struct mc_err err = {0};
    check_ok(mc_graph_build_opt(cfg, opt, &g, &err), &err);
    brute_force(g);
    mc_graph_destroy(g);
}

static void no_step_reads_what_another_overwrote(void **st)
{
    static const struct mc_graph_opt opts[] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
    (void)st;
    for (int i = 0; i < VARIANTS; i++)
        for (int mode = MC_GRAPH_TRAIN; mode <= MC_GRAPH_INFER; mode++)
            for (int o = 0; o < 12; o++) {
                struct model *m = variant(i);
                struct mc_graph_cfg cfg =
                    whole_cfg(m, (enum mc_graph_mode)mode, mode == MC_GRAPH_INFER ? 1 : B, T, 2, 1);
                cfg.split = o > 3;
                if (o / 4 == 2) /* places are worth while */
                    cfg.part[0].slots = 9;
                try_plan(&cfg, &opts[o % 4]);
                mc_free(m);
            }
}

/* A stage alone, and all stages in one graph, whatever ends they have. */
static void stages_of_a_pipeline_keep_their_edges(void **st)
{
    (void)st;
    for (int i = 0; i < VARIANTS; i++)
        for (int ends = 0; ends < 4; ends++)
            for (int split = 0; split < 2; split++) {
                struct model *m = variant(i);
                struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, T, 2, 3);
                int layers = (int)m->r.model.layers;
                cfg.split = split;
                cfg.part[0].pending = 1;
                cfg.part[0].has_stem = ends & 1;
                cfg.part[0].has_head = ends >> 1;
                cfg.part[0].first_layer = ends & 1 ? 0 : 1;
                try_plan(&cfg, NULL);
                cfg.nparts = 0;
                if (ends & 1)
                    cfg.part[cfg.nparts++] =
                        (struct mc_graph_part){.has_stem = 1, .slots = 2, .pending = 1};
                for (int l = 0; l < layers; l++)
                    cfg.part[cfg.nparts++] = (struct mc_graph_part){
                        .first_layer = l, .end_layer = l + 1, .slots = 5, .pending = 1 + l};
                if (ends >> 1)
                    cfg.part[cfg.nparts++] = (struct mc_graph_part){.first_layer = layers,
                                                                    .end_layer = layers,
                                                                    .has_head = 1,
                                                                    .slots = 1,
                                                                    .pending = 1};
                try_plan(&cfg, NULL);
                mc_free(m);
            }
}

/* -- Poison ----------------------------------------------------------------------------------- */

static void mark(int *owner, int piece, void *arg)
{
    (void)piece;
    (void)arg;
    *owner = 1;
}
/* Before step t: NaN wherever no step from t on reads what is there now. */
static void poison_temp(void *arg, int t)
{
    const struct rig *r = arg;
    const struct mc_graph *g = r->g;
    size_t n = g->mem.temp / g->elem;
    struct memory mem = new_memory(g);
    const struct mc_gpart *p = &g->part[0];
    int end = p->tick[mc_graph_phase_at(p, t) + 1];
    for (int u = t; u < end; u++) {
        int reads[32], k = reads_of(&g->step[u], reads);
        for (int i = 0; i < k; i++)
            if (g->piece[reads[i]].def < t)
                each_element(g, &mem, reads[i], mark, NULL);
    }
    for (size_t i = 0; i < n; i++)
        if (!mem.of[MC_IN_TEMP][i])
            put(r, r->b.temp, (int64_t)i, NAN);
    free_memory(&mem);
}

static void poisoned_temp_gives_the_same_bits(void **st)
{
    (void)st;
    for (int i = 0; i < VARIANTS; i++) {
        struct model *m = variant(i);
        struct batch x;
        struct mc_microbatch mb = make_batch(&x, B, T);
        struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, T, 1, 1);
        struct rig a = rig_make(&cfg, NULL);
        formula_weights(&a);
        double la = step_once(&a, &mb, x.n, 3);
        for (cfg.split = 0; cfg.split < 2; cfg.split++) {
            struct rig b = rig_make(&cfg, NULL);
            formula_weights(&b);
            b.g->probe = poison_temp;
            b.g->probe_arg = &b;
            double lb = step_once(&b, &mb, x.n, 3);
            assert_memory_equal(&la, &lb, sizeof la);
            assert_memory_equal(a.b.grads, b.b.grads, mc_graph_memory(a.g)->grads);
            rig_close(&b);
        }
        rig_close(&a);
        mc_free(m);
    }
}

/* -- Same numbers, other layouts -------------------------------------------------------------- */

/* Loss and gradients of parameter `i` by name, so that layouts with other offsets compare. */
static double apart(const struct rig *a, const struct rig *b)
{
    double worst = 0;
    for (int i = 0; i < mc_graph_nparams(a->g); i++) {
        const struct mc_param *p = mc_graph_param(a->g, i), *q = NULL;
        double diff = 0, size = 0;
        for (int j = 0; j < mc_graph_nparams(b->g); j++)
            if (strcmp(mc_graph_param(b->g, j)->name, p->name) == 0)
                q = mc_graph_param(b->g, j);
        assert_non_null(q);
        for (int64_t k = 0; k < p->count; k++) {
            double x = get(a, a->b.grads, p->offset + k), y = get(b, b->b.grads, q->offset + k);
            diff += (x - y) * (x - y);
            size += x * x;
        }
        worst = fmax(worst, sqrt(diff) / fmax(sqrt(size), 1e-2));
    }
    return worst;
}

static void recomputation_does_not_change_a_bit(void **st)
{
    (void)st;
    for (int i = 0; i < 2; i++)
        for (int how = MC_RECOMPUTE_BLOCK; how <= MC_RECOMPUTE_OPS; how++)
            for (int dtype = MC_F32; dtype <= MC_F64; dtype++) {
                struct model *m = i ? llama(&small) : gpt2(&small, 0.2), *n = variant(i ? 5 : 4);
                struct batch x;
                struct mc_microbatch mb = make_batch(&x, B, T);
                m->r.precision = n->r.precision = (enum mc_dtype)dtype;
                n->r.parallel.recompute = (enum mc_recompute)how;
                struct rig a = rig_open(m, MC_GRAPH_TRAIN, B, T, 2, 1, NULL);
                struct rig b = rig_open(n, MC_GRAPH_TRAIN, B, T, 2, 1, NULL);
                formula_weights(&a);
                formula_weights(&b);
                double la = step_once(&a, &mb, x.n, 3), lb = step_once(&b, &mb, x.n, 3);
                assert_memory_equal(&la, &lb, sizeof la);
                assert_memory_equal(a.b.grads, b.b.grads, mc_graph_memory(a.g)->grads);
                assert_true(mc_graph_memory(b.g)->slot < mc_graph_memory(a.g)->slot);
                rig_close(&a);
                rig_close(&b);
                mc_free(m);
                mc_free(n);
            }
}

static void threads_do_not_change_a_bit(void **st)
{
    (void)st;
    for (int i = 0; i < 2; i++) {
        struct model *m = i ? llama(&small) : gpt2(&small, 0.2);
        struct batch x;
        struct mc_microbatch mb = make_batch(&x, B, T);
        m->r.precision = MC_F32;
        struct rig one = rig_open(m, MC_GRAPH_TRAIN, B, T, 1, 1, NULL);
        formula_weights(&one);
        double l1 = step_once(&one, &mb, x.n, 3);
        for (int threads = 2; threads <= 3; threads++) {
            struct rig r = rig_open(m, MC_GRAPH_TRAIN, B, T, threads, 1, NULL);
            formula_weights(&r);
            double l = step_once(&r, &mb, x.n, 3);
            assert_memory_equal(&l1, &l, sizeof l);
            assert_memory_equal(one.b.grads, r.b.grads, mc_graph_memory(one.g)->grads);
            rig_close(&r);
        }
        rig_close(&one);
        mc_free(m);
    }
}

static void fusion_and_in_place_change_rounding_at_most(void **st)
{
    static const struct mc_graph_opt opts[] = {{1, 0}, {0, 1}, {1, 1}};
    (void)st;
    for (int i = 0; i < 2; i++)
        for (int o = 0; o < 3; o++) {
            struct model *m = i ? llama(&small) : gpt2(&small, 0.2);
            struct batch x;
            struct mc_microbatch mb = make_batch(&x, B, T);
            struct rig a = rig_open(m, MC_GRAPH_TRAIN, B, T, 1, 1, NULL);
            struct rig b = rig_open(m, MC_GRAPH_TRAIN, B, T, 1, 1, &opts[o]);
            formula_weights(&a);
            formula_weights(&b);
            double la = step_once(&a, &mb, x.n, 3), lb = step_once(&b, &mb, x.n, 3);
            assert_true(fabs(la - lb) < 1e-13);
            assert_true(apart(&a, &b) < 1e-12);
            if (opts[o].no_fuse)
                assert_true(b.g->part[0].tick[MC_PHASE_BACKWARD] >
                            a.g->part[0].tick[MC_PHASE_BACKWARD]);
            else if (i == 1) /* rope over q and k in place: kept once */
                assert_true(mc_graph_memory(b.g)->slot > mc_graph_memory(a.g)->slot);
            rig_close(&a);
            rig_close(&b);
            mc_free(m);
        }
}

/* One batch of 4, as 4 x 1 one after the other and as 2 x 2 with both forwards first. */
static void micro_batches_add_up(void **st)
{
    (void)st;
    for (int i = 0; i < 2; i++) {
        struct model *m = i ? llama(&small) : gpt2(&small, 0.2);
        struct batch x;
        struct mc_microbatch mb = make_batch(&x, 4, T);
        struct rig a = rig_open(m, MC_GRAPH_TRAIN, 4, T, 1, 1, NULL);
        struct rig b = rig_open(m, MC_GRAPH_TRAIN, 1, T, 1, 1, NULL);
        struct rig c = rig_open(m, MC_GRAPH_TRAIN, 2, T, 1, 2, NULL);
        double sum_b = 0, sum_c = 0, scale = 1.0 / (double)x.n;
        formula_weights(&a);
        formula_weights(&b);
        formula_weights(&c);
        double la = step_once(&a, &mb, x.n, 3);
        for (int k = 0; k < 4; k++) {
            struct mc_microbatch p = {1,   T, x.tokens + k * T, x.targets + k * T, x.row + k * T,
                                      NULL};
            pass_ok(mc_graph_forward(b.g, 0, &p, 3, &sum_b, NULL));
            pass_ok(mc_graph_backward(b.g, 0, &p, 3, scale, NULL));
        }
        finish_all(b.g);
        struct mc_microbatch p[2];
        for (int k = 0; k < 2; k++) {
            p[k] = (struct mc_microbatch){
                2, T, x.tokens + k * 2 * T, x.targets + k * 2 * T, x.row + k * 2 * T, NULL};
            pass_ok(mc_graph_forward(c.g, k, &p[k], 3, &sum_c, NULL));
        }
        for (int k = 0; k < 2; k++)
            pass_ok(mc_graph_backward(c.g, k, &p[k], 3, scale, NULL));
        finish_all(c.g);
        assert_true(fabs(la - sum_b * scale) < 1e-13);
        assert_true(fabs(la - sum_c * scale) < 1e-13);
        assert_true(apart(&a, &b) < 1e-12);
        assert_true(apart(&a, &c) < 1e-12);
        rig_close(&a);
        rig_close(&b);
        rig_close(&c);
        mc_free(m);
    }
}

static void smaller_extents_run_in_a_larger_plan(void **st)
{
    (void)st;
    for (int i = 0; i < 2; i++) {
        struct model *m = i ? llama(&small) : gpt2(&small, 0.2);
        struct batch x;
        struct mc_microbatch mb = make_batch(&x, 2, 5);
        struct rig a = rig_open(m, MC_GRAPH_TRAIN, 2, 5, 1, 1, NULL);
        struct rig b = rig_open(m, MC_GRAPH_TRAIN, 3, T, 1, 1, NULL);
        formula_weights(&a);
        formula_weights(&b);
        double la = step_once(&a, &mb, x.n, 3), lb = step_once(&b, &mb, x.n, 3);
        assert_true(fabs(la - lb) < 1e-13);
        assert_true(apart(&a, &b) < 1e-12);
        rig_close(&a);
        rig_close(&b);
        mc_free(m);
    }
}

/* Under block recomputation each block is run again once, just before its own backward: layers
 * never rise again along the backward list, and the slot holds the streams and little else. */
static void blocks_are_run_again_one_by_one(void **st)
{
    (void)st;
    for (int i = 2; i < 4; i++) {
        struct model *m = variant(i);
        struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, T, 2, 1);
        struct mc_graph *g;
        struct mc_err err = {0};
        int layer = 99, again = 0;
        check_ok(mc_graph_build(&cfg, &g, &err), &err);
        for (int t = g->part[0].tick[MC_PHASE_BACKWARD]; t < g->nsteps; t++) {
            if (g->step[t].kind != MC_STEP_VERB)
                continue;
            assert_true(g->node[g->step[t].gnode].layer <= layer);
            layer = g->node[g->step[t].gnode].layer;
            again += g->step[t].again;
        }
        assert_in_range(again, 3 * 6, 3 * (i & 1 ? 10 : 8));
        mc_graph_destroy(g);
        mc_free(m);
    }
}

/* -- Memory ----------------------------------------------------------------------------------- */

static void planned_bytes_are_used_and_no_others(void **st)
{
    enum { GUARD = 4096 };
    (void)st;
    for (int i = 0; i < VARIANTS; i++) {
        struct model *m = variant(i);
        struct batch x;
        struct mc_microbatch mb = make_batch(&x, B, T);
        struct rig r = rig_open(m, MC_GRAPH_TRAIN, B, T, 2, 2, NULL);
        const struct mc_graph_memory *mem = mc_graph_memory(r.g);
        void **p[] = {&r.b.params, &r.b.grads,  &r.b.extra_grads, &r.b.slots,
                      &r.b.temp,   &r.b.tables, &r.b.kv};
        size_t n[] = {mem->params, mem->grads,  mem->extra_grads, mem->slots,
                      mem->temp,   mem->tables, mem->kv},
               total = 0;
        struct mc_err err = {0};
        assert_int_equal(mem->slots, 2 * mem->slot);
        for (int k = 0; k < 7; k++) {
            total += n[k];
            assert_int_equal(n[k] % 64, 0);
            mc_free(*p[k]);
            *p[k] = mc_alloc(n[k] + GUARD, "test");
            memset((char *)*p[k] + n[k], 0xa5, GUARD);
        }
        assert_int_equal(total, mem->total);
        check_ok(mc_graph_bind(r.g, r.k, r.pool, &r.b, NULL, &err), &err);
        formula_weights(&r);
        double sum = 0;
        struct mc_mem_stats before = mc_mem_stats();
        for (int s = 0; s < 5; s++) {
            mc_graph_zero_grads(r.g);
            pass_ok(mc_graph_forward(r.g, 0, &mb, s, &sum, NULL));
            pass_ok(mc_graph_forward(r.g, 1, &mb, s, &sum, NULL));
            pass_ok(mc_graph_backward(r.g, 0, &mb, s, 1, NULL));
            pass_ok(mc_graph_backward(r.g, 1, &mb, s, 1, NULL));
            finish_all(r.g);
        }
        assert_int_equal(mc_mem_stats().calls, before.calls); /* no allocation */
        for (int k = 0; k < 7; k++)
            for (int j = 0; j < GUARD; j++)
                assert_int_equal(((unsigned char *)*p[k])[n[k] + (size_t)j], 0xa5);
        rig_close(&r);
        mc_free(m);
    }
}

/* The most bytes of stores alive at once. */
static size_t alive_at_most(const struct mc_graph *g, enum mc_region where)
{
    size_t most = 0;
    for (int t = 0; t < g->nsteps; t++) {
        size_t sum = 0;
        for (int s = 0; s < g->nstores; s++)
            if (g->store[s].first >= 0 && g->store[s].where == where && g->store[s].birth <= t &&
                t <= g->store[s].death)
                sum += g->store[s].bytes;
        most = sum > most ? sum : most;
    }
    return most;
}

/* temp is no larger than the largest set of pieces alive at once plus a third: best fit works. So
 * are a split graph's slot and pending place, whose stores need not all meet; an unsplit one's do.
 */
static void memory_is_near_its_lower_bound(void **st)
{
    (void)st;
    for (int i = 0; i < 3 * VARIANTS; i++) {
        struct model *m = variant(i / 3);
        struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, T, 2, 1);
        struct mc_graph *g;
        struct mc_err err = {0};
        cfg.split = i % 3 > 0;
        cfg.part[0].slots = i % 3 > 1 ? 9 : 1;
        check_ok(mc_graph_build(&cfg, &g, &err), &err);
        size_t temp = alive_at_most(g, MC_IN_TEMP), slot = alive_at_most(g, MC_IN_SLOT),
               pending = alive_at_most(g, MC_IN_PENDING);
        assert_in_range(g->mem.temp, temp, temp + temp / 3);
        assert_in_range(g->mem.slot, slot, cfg.split ? slot + slot / 3 : slot);
        assert_in_range(g->mem.pending, pending, pending + pending / 3);
        mc_graph_destroy(g);
        mc_free(m);
    }
}

/* Blocks that run again: a split graph's slots are those of the unsplit one, and what was made
 * again is kept for as many microbatches as wait for their gradients of weights. Where all wait no
 * layout is larger than with all of it in the slots. */
static void what_was_made_again_is_kept_while_it_is_pending(void **st)
{
    enum { ALIVE = 4 };
    (void)st;
    for (int i = 0; i < 2; i++)
        for (int ends = 0; ends < 2; ends++) {
            struct model *m = i ? llama(&small) : gpt2(&small, 0.2);
            struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, T, 2, ALIVE);
            struct mc_graph *whole, *g[ALIVE + 1];
            struct mc_err err = {0};
            m->r.parallel.recompute = MC_RECOMPUTE_BLOCK;
            cfg.part[0].has_stem = cfg.part[0].has_head = ends;
            cfg.part[0].first_layer = !ends;
            check_ok(mc_graph_build(&cfg, &whole, &err), &err);
            const struct mc_graph_memory *w = mc_graph_memory(whole), *most = NULL;
            assert_int_equal(w->pending, 0);
            cfg.split = 1;
            for (int n = ALIVE; n >= 1; n--) {
                cfg.part[0].pending = n;
                check_ok(mc_graph_build(&cfg, &g[n], &err), &err);
                const struct mc_graph_memory *mem = mc_graph_memory(g[n]);
                most = n == ALIVE ? mem : most;
                assert_true(mem->slots <= most->slots);
            }
            const struct mc_graph_memory *one = mc_graph_memory(g[1]);
            assert_int_equal(one->slot, w->slot);
            assert_true(one->pending > 3 * w->slot);
            assert_int_equal(one->slots, w->slots + one->pending);
            for (int n = 1; n <= ALIVE; n++)
                mc_graph_destroy(g[n]);
            mc_graph_destroy(whole);
            mc_free(m);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_reads_what_another_overwrote),
        cmocka_unit_test(stages_of_a_pipeline_keep_their_edges),
        cmocka_unit_test(poisoned_temp_gives_the_same_bits),
        cmocka_unit_test(recomputation_does_not_change_a_bit),
        cmocka_unit_test(blocks_are_run_again_one_by_one),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(fusion_and_in_place_change_rounding_at_most),
        cmocka_unit_test(micro_batches_add_up),
        cmocka_unit_test(smaller_extents_run_in_a_larger_plan),
        cmocka_unit_test(planned_bytes_are_used_and_no_others),
        cmocka_unit_test(memory_is_near_its_lower_bound),
        cmocka_unit_test(what_was_made_again_is_kept_while_it_is_pending)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
