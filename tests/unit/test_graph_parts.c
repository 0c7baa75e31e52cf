/* test_graph_parts.c - a model cut into stages, and backward split in two, change no bit.
 * links: test_threads mc_graph
 *
 * The reference is the whole model in one unsplit graph, microbatch after microbatch. Beside it the
 * same model is cut at every set of layer boundaries, its stages are dealt out to graphs (one each,
 * all in one, two that alternate, a V), and ops run in random orders that a schedule might have:
 * forwards, then backwards or inputs and, anywhere later but ascending, weights. Losses of each
 * microbatch, squares of the stream and every gradient must have the reference's bits. */
#include <stdlib.h>
#include "graph_line.h"

/* -- One rank --------------------------------------------------------------------------------- */

struct whole {
    struct graph_of g;
    struct run run;
    struct batch batch;
};

static void open_whole(struct whole *w, const struct model *m)
{
    struct job j = {.m = m, .slots = 1};
    struct mc_err err = {0};
    *w = (struct whole){.g.cfg = config(&j, MC_GRAPH_TRAIN)};
    make_batch(&w->batch, m);
    check_ok(open_graph(&w->g, NULL, &err), &err);
    check_ok(run_whole(&w->g.r, &w->batch, &w->run, &err), &err);
    assert_true(w->run.loss[0] > 0 && w->run.stream[0][0] > 0);
}

static const char *const deal_name[] = {"own", "one", "alternate", "vee"};
static void job_name(const struct job *j, char to[200])
{
    snprintf(to, 200, "recompute %d %s tp %d sp %d cuts %x %s%s slots %d pending %d seed %d",
             j->m->r.parallel.recompute, mc_dtype_name(j->m->r.precision), j->tp,
             j->m->r.parallel.sp, j->cuts, deal_name[j->deal], j->split ? " split" : "", j->slots,
             places(j), (int)j->seed);
}

/* Every parameter is owned once over the graphs. */
static int64_t owned(const struct line *l)
{
    int64_t n = 0;
    for (int g = 0; g < l->ngraphs; g++)
        for (int i = 0; i < mc_graph_nparams(l->graph[g].r.g); i++) {
            const struct mc_param *p = mc_graph_param(l->graph[g].r.g, i);
            n += p->owned ? p->count : 0;
        }
    return n;
}

static void one_job(const struct whole *w, const struct job *j, const char *model)
{
    struct line l;
    struct run run = {0};
    struct mc_err err = {0};
    char why[256], name[200];
    check_ok(open_line(&l, j, MC_GRAPH_TRAIN, NULL, &err), &err);
    check_ok(run_line(&l, &w->batch, &run, &err), &err);
    compare(&l, &run, &w->g.r, &w->run, why);
    job_name(j, name);
    if (why[0])
        fail_msg("%s %s: %s", model, name, why);
    assert_int_equal(owned(&l), mc_graph_param_count(w->g.r.g));
    close_line(&l);
}

static void set_recompute(struct model *m, int how)
{
    static const char *const ops[] = {"linear", "rmsnorm", "layernorm", "swiglu",
                                      "gelu",   "rope",    "attention", "all_gather"};
    m->r.parallel.recompute = (enum mc_recompute)how;
    m->r.parallel.nrecompute_ops = how == MC_RECOMPUTE_OPS ? 8 : 0;
    for (int k = 0; k < m->r.parallel.nrecompute_ops; k++)
        snprintf(m->r.parallel.recompute_ops[k], sizeof m->r.parallel.recompute_ops[k], "%s",
                 ops[k]);
}

/* Nothing runs around the block, and what it gives is made in place over a slice of two fused
 * outputs, its gradient over what comes in: edges must be dense all the same. */
static struct model *straight(void)
{
    const struct sizes s = {2, 12, 2, 2, 6, 12, 31, 7};
    struct model *m = model_new(&s);
    struct fn *f = &m->block;
    int a, b, h;
    call(&m->stem, "embedding", "embed", 1, 0, 0, 0);
    h = call(f, "layernorm", "n", 1, 0, 0, 0);
    a = linear(f, "a", h, 12, "none", 1);
    b = linear(f, "b", h, 12, "none", 1);
    a = call(f, "add", "", 2, a, b, 0);
    call(f, "scale", "", 1, a, 0, 0);
    num(f, "scale", 0.9);
    h = call(&m->head, "rmsnorm", "final_norm", 1, 0, 0, 0);
    linear(&m->head, "head", h, 31, "column", 0);
    seal(m);
    return m;
}

enum { MODELS = MESH_MODELS + 4 };
static struct model *one_of(int i, const char **name)
{
    static const struct sizes three = {3, 18, 3, 1, 6, 22, 31, 7};
    static const char *const names[] = {"modern", "straight", "gpt2 of 3", "llama of 3"};
    if (i < MESH_MODELS) {
        *name = mesh_names[i];
        return mesh_models[i]();
    }
    i -= MESH_MODELS;
    *name = names[i];
    return i == 0 ? modern(11) : i == 1 ? straight() : i == 2 ? gpt2(&three, 0.2) : llama(&three);
}

static void cut_at_every_boundary(int split)
{
    uint64_t jobs = 0;
    for (int i = 0; i < MODELS; i++)
        for (int recompute = 0; recompute <= MC_RECOMPUTE_OPS; recompute++)
            for (int dtype = 0; dtype < 3; dtype++) {
                static const enum mc_dtype dtypes[] = {MC_F32, MC_F64, MC_BF16};
                const char *name;
                struct model *m = one_of(i, &name);
                struct whole w;
                m->r.precision = dtypes[dtype];
                set_recompute(m, recompute);
                open_whole(&w, m);
                for (unsigned cuts = 0; cuts < 2u << m->r.model.layers; cuts++)
                    for (int deal = 0; deal < NDEALS; deal++) {
                        /* the other precisions see the cuts and deals in turn */
                        if (dtype > 0 && (cuts + (unsigned)deal + (unsigned)i) % 4 != 0)
                            continue;
                        struct job j = {.m = m,
                                        .cuts = cuts,
                                        .deal = (enum deal)deal,
                                        .split = split,
                                        .slots = 1 + (int)(jobs % 3),
                                        .pending = 1 + (int)(jobs / 3 % (1 + jobs % 3)),
                                        .tp = 1,
                                        .seed = 1000 + 37 * jobs};
                        one_job(&w, &j, name);
                        jobs++;
                    }
                rig_close(&w.g.r);
                mc_free(m);
            }
    print_message("%d jobs\n", (int)jobs);
}

static void stages_give_the_bits_of_the_whole(void **st)
{
    (void)st;
    cut_at_every_boundary(0);
}

static void a_split_backward_gives_the_bits_of_the_whole(void **st)
{
    (void)st;
    cut_at_every_boundary(1);
}

/* -- A mesh ----------------------------------------------------------------------------------- */

struct cell {
    struct model *m;
    int split, jobs[RANKS];
    char why[RANKS][1800];
};

static mc_status mesh_jobs(struct cell *c, struct mc_mesh *mesh, struct whole *w,
                           struct mc_err *err)
{
    struct job j = {.m = c->m, .slots = 1, .tp = RANKS};
    char why[256], name[200];
    w->g.cfg = config(&j, MC_GRAPH_TRAIN);
    make_batch(&w->batch, c->m);
    MC_TRY(open_graph(&w->g, mesh, err));
    MC_TRY(run_whole(&w->g.r, &w->batch, &w->run, err));
    for (unsigned cuts = 0; cuts < 2u << c->m->r.model.layers; cuts++) {
        struct line l;
        struct run run = {0};
        j.cuts = cuts;
        j.deal = (enum deal)(cuts % NDEALS);
        j.split = c->split;
        j.slots = 1 + (int)(cuts % 3);
        j.pending = 1 + (int)(cuts / 3) % j.slots;
        j.seed = 77 * cuts;
        mc_status st = open_line(&l, &j, MC_GRAPH_TRAIN, mesh, err);
        if (st == MC_OK)
            st = run_line(&l, &w->batch, &run, err);
        if (st == MC_OK)
            compare(&l, &run, &w->g.r, &w->run, why);
        close_line(&l);
        MC_TRY(st);
        job_name(&j, name);
        if (why[0])
            return mc_err_set(err, MC_E_BUG, "%s: %s", name, why);
        c->jobs[mesh->rank]++;
    }
    return MC_OK;
}

static void mesh_rank(struct mc_mesh *mesh, void *arg)
{
    struct cell *c = arg;
    struct mc_err err = {0};
    struct whole *w = mc_alloc(sizeof *w, "test");
    if (mesh_jobs(c, mesh, w, &err) != MC_OK) {
        snprintf(c->why[mesh->rank], sizeof c->why[0], "%s", err.msg);
        mesh->axis[MC_AXIS_TP]->ops->abort(mesh->axis[MC_AXIS_TP]);
    }
    if (w->g.r.pool)
        rig_close(&w->g.r);
    mc_free(w);
}

/* Two ranks of tp, with and without sequence parallelism: the same bits as the whole on that mesh.
 */
static void a_mesh_changes_nothing_about_it(void **st)
{
    const int size[MC_NAXES] = {RANKS, 1, 1, 1, 1};
    (void)st;
    for (int i = 0; i < MODELS; i++)
        for (int k = 0; k < 12; k++) {
            const char *name;
            struct cell c = {.m = one_of(i, &name), .split = k & 1};
            struct mc_layout l;
            struct mc_err err = {0};
            c.m->r.precision = k % 4 < 2 ? MC_F32 : MC_BF16;
            c.m->r.parallel.sp = k / 2 & 1;
            set_recompute(c.m, k / 4);
            if (c.m->r.model.heads % RANKS == 0) {
                check_ok(mc_layout_init(&l, MC_ORDER_DEFAULT, size, RANKS, &err), &err);
                check_ok(mc_test_mesh(&l, deadline, mesh_rank, &c, &err), &err);
                for (int r = 0; r < RANKS; r++)
                    if (c.why[r][0])
                        fail_msg("%s rank %d: %s", name, r, c.why[r]);
                assert_int_equal(c.jobs[0], 2 << c.m->r.model.layers);
            }
            mc_free(c.m);
        }
}

/* -- Forward alone ---------------------------------------------------------------------------- */

static void evaluation_in_stages_gives_the_same_bits(void **st)
{
    (void)st;
    for (int i = 0; i < MODELS; i++) {
        const char *name;
        struct model *m = one_of(i, &name);
        struct job j = {.m = m, .slots = 1, .tp = 1};
        struct whole w = {.g.cfg = config(&j, MC_GRAPH_EVAL)};
        struct mc_err err = {0};
        make_batch(&w.batch, m);
        check_ok(open_graph(&w.g, NULL, &err), &err);
        for (unsigned cuts = 0; cuts < 2u << m->r.model.layers; cuts++) {
            struct line l;
            struct run run = {0};
            j.cuts = cuts;
            j.deal = (enum deal)(cuts % NDEALS);
            check_ok(open_line(&l, &j, MC_GRAPH_EVAL, NULL, &err), &err);
            for (int k = 0; k < MB; k++) {
                struct mc_microbatch mb = piece_of(&w.batch, k);
                double loss = 0;
                check_ok(mc_graph_forward(w.g.r.g, 0, &mb, 0, &loss, &err), &err);
                for (int s = 0; s < l.nstages; s++)
                    check_ok(forward(&l, s, k, 0, &mb, &run, &err), &err);
                assert_memory_equal(&loss, &run.loss[k], sizeof loss);
            }
            for (int g = 0; g < l.ngraphs; g++)
                assert_int_equal(mc_graph_memory(l.graph[g].r.g)->slots, 0);
            close_line(&l);
        }
        rig_close(&w.g.r);
        mc_free(m);
    }
}

/* A prompt of three tokens, then one by one. */
static void text_in_stages_is_the_same(void **st)
{
    (void)st;
    for (int i = 0; i < MODELS; i++) {
        const char *name;
        struct model *m = one_of(i, &name);
        struct job j = {.m = m, .slots = 1, .tp = 1};
        struct whole w = {.g.cfg = config(&j, MC_GRAPH_INFER)};
        struct mc_err err = {0};
        make_batch(&w.batch, m);
        check_ok(open_graph(&w.g, NULL, &err), &err);
        for (unsigned cuts = 0; cuts < 2u << m->r.model.layers; cuts++) {
            struct line l;
            j.cuts = cuts;
            j.deal = (enum deal)(cuts % NDEALS);
            check_ok(open_line(&l, &j, MC_GRAPH_INFER, NULL, &err), &err);
            for (int64_t pos = 0, n = 3; pos + n <= w.batch.t; pos += n, n = 1) {
                const struct mc_microbatch mb = {.b = 1, .t = n};
                const int32_t *tokens = w.batch.tokens[0] + pos;
                const void *want = infer(w.g.r.g, tokens, n, pos), *got = NULL;
                for (int s = 0; s < l.nstages; s++) {
                    struct rig *r = rig_of(&l, s);
                    int part = l.stage[s].part, slot = mc_graph_slot(r->g, part, 0);
                    spoil_temp(r);
                    if (s > 0)
                        move_edge(&l, s, slot, MC_EDGE_IN, l.stage[s - 1].out[0], 1, &mb);
                    check_ok(mc_graph_infer_part(r->g, part, tokens, n, pos, &got, &err), &err);
                    if (s < l.nstages - 1)
                        move_edge(&l, s, slot, MC_EDGE_OUT, l.stage[s].out[0], 0, &mb);
                }
                assert_memory_equal(got, want, (size_t)m->r.model.vocab * w.g.r.elem);
            }
            close_line(&l);
        }
        rig_close(&w.g.r);
        mc_free(m);
    }
}

/* -- What a record tells ---------------------------------------------------------------------- */

enum { NOTES = 400 };
struct notes {
    int n;
    struct mc_graph_note note[NOTES];
};
static void keep_note(void *arg, const struct mc_graph_note *n)
{
    struct notes *to = arg;
    if (strcmp(n->op, "copy") == 0) /* a cut or a split may need one more */
        return;
    assert_true(to->n < NOTES);
    to->note[to->n++] = *n;
}
static int by_tick(const void *a, const void *b)
{
    return ((const struct mc_graph_note *)a)->tick - ((const struct mc_graph_note *)b)->tick;
}
/* The same call, and the same sketches of what it gave. (Of the gradient of an edge the stage's own
 * record tells more.) */
static int same_note(const struct mc_graph_note *whole, const struct mc_graph_note *b)
{
    int same = strcmp(whole->name, b->name) == 0 && strcmp(whole->op, b->op) == 0 &&
               strcmp(whole->verb, b->verb) == 0 && whole->layer == b->layer &&
               whole->nth == b->nth;
    for (int k = 0; k < whole->ntold && same; k++) {
        same = 0;
        for (int i = 0; i < b->ntold; i++)
            same |= strcmp(whole->told[k].what, b->told[i].what) == 0 &&
                    whole->told[k].k == b->told[i].k &&
                    memcmp(&whole->told[k].is, &b->told[i].is, sizeof b->told[i].is) == 0;
    }
    return same;
}

/* In the order of the model where backward is not split; split, the same calls. */
static void a_record_of_stages_is_that_of_the_whole(void **st)
{
    struct notes *want = mc_alloc(sizeof *want, "test"), *got = mc_alloc(sizeof *got, "test");
    (void)st;
    for (int i = 0; i < MODELS; i++) {
        const char *name;
        struct model *m = one_of(i, &name);
        struct whole w;
        struct mc_err err = {0};
        open_whole(&w, m);
        struct mc_graph_record record = {.arg = want, .sketch = 1, .step = keep_note};
        struct mc_microbatch mb = piece_of(&w.batch, 0);
        double loss = 0;
        want->n = 0;
        mc_graph_zero_grads(w.g.r.g);
        mc_graph_record(w.g.r.g, &record);
        check_ok(mc_graph_forward(w.g.r.g, 0, &mb, 7, &loss, &err), &err);
        check_ok(mc_graph_backward(w.g.r.g, 0, &mb, 7, 1, &err), &err);
        record.arg = got;
        for (unsigned cuts = 0; cuts < 4u << m->r.model.layers; cuts++) {
            struct job j = {.m = m, .cuts = cuts / 2, .deal = ONE, .split = cuts & 1, .slots = 1};
            struct line l;
            struct run run = {0};
            check_ok(open_line(&l, &j, MC_GRAPH_TRAIN, NULL, &err), &err);
            got->n = 0;
            mc_graph_record(l.graph[0].r.g, &record);
            for (int s = 0; s < l.nstages; s++)
                check_ok(forward(&l, s, 0, 0, &mb, &run, &err), &err);
            for (int s = l.nstages - 1; s >= 0; s--)
                check_ok(backward(&l, s, 0, 1, &mb, 1, &err), &err);
            assert_int_equal(got->n, want->n);
            qsort(got->note, (size_t)got->n, sizeof got->note[0], by_tick);
            for (int k = 0; k < want->n; k++) {
                int at = k;
                if (j.split && want->note[k].name[0])
                    for (at = 0; at < got->n - 1 && !same_note(&want->note[k], &got->note[at]);)
                        at++;
                if ((want->note[k].name[0] || !j.split) &&
                    !same_note(&want->note[k], &got->note[at]))
                    fail_msg("%s cuts %x split %d: %s %s of %s, note %d", name, j.cuts, j.split,
                             want->note[k].op, want->note[k].verb, want->note[k].name, k);
            }
            close_line(&l);
        }
        rig_close(&w.g.r);
        mc_free(m);
    }
    mc_free(want);
    mc_free(got);
}

/* -- What is there, and what is refused ------------------------------------------------------- */

static void the_stem_and_the_head_have_no_edges_there(void **st)
{
    struct model *m = gpt2_even();
    struct job j = {.m = m, .cuts = 2, .deal = OWN, .split = 1, .slots = 2, .tp = 1};
    struct line l;
    struct mc_err err = {0};
    (void)st;
    check_ok(open_line(&l, &j, MC_GRAPH_TRAIN, NULL, &err), &err);
    for (int e = MC_EDGE_IN; e <= MC_EDGE_D_IN; e++) {
        int first = e == MC_EDGE_OUT || e == MC_EDGE_D_OUT;
        assert_int_equal(mc_graph_edge(l.graph[0].r.g, 1, (enum mc_graph_edge)e) != NULL, first);
        assert_int_equal(mc_graph_edge(l.graph[1].r.g, 1, (enum mc_graph_edge)e) != NULL, !first);
    }
    assert_int_equal(mc_graph_edge_count(l.graph[0].r.g, 2, 5), 2 * 5 * 24);
    /* the table is the stem's; the head has a copy */
    const struct mc_param *own = named(l.graph[0].r.g, "embed.weight"),
                          *copy = named(l.graph[1].r.g, "embed.weight");
    assert_int_equal(own->elsewhere, 1);
    assert_int_equal(own->owned, 1);
    assert_int_equal(copy->elsewhere, -1);
    assert_int_equal(copy->owned, 0);
    assert_int_equal(copy->cls, own->cls);
    assert_memory_equal((char *)l.graph[0].r.b.params + (size_t)own->offset * 8,
                        (char *)l.graph[1].r.b.params + (size_t)copy->offset * 8,
                        (size_t)own->count * 8);
    assert_int_equal(named(l.graph[0].r.g, "pos.weight")->elsewhere, 0);
    close_line(&l);
    mc_free(m);
}

static void must_refuse(const struct mc_graph_cfg *cfg, const char *says)
{
    struct mc_graph *g;
    struct mc_err err = {0};
    assert_int_equal(mc_graph_build(cfg, &g, &err), MC_E_RECIPE);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

static void what_cannot_be_a_stage_is_refused(void **st)
{
    struct model *m = llama_gqa();
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, 8, 1, 1), c = cfg;
    (void)st;
    c.part[0].has_head = 0; /* the same stage twice */
    c.part[c.nparts++] = (struct mc_graph_part){.first_layer = 1, .end_layer = 2, .slots = 1};
    must_refuse(&c, "in the order of the model");
    c = cfg;
    c.part[0].first_layer = 1; /* a stem that does not adjoin its layers */
    must_refuse(&c, "in the order of the model");
    c = cfg;
    c.part[0] = (struct mc_graph_part){.first_layer = 1, .end_layer = 1, .slots = 1};
    must_refuse(&c, "no layer");
    c = cfg;
    c.part[0].slots = 0;
    must_refuse(&c, "no slot");
    c = cfg;
    c.split = 1;
    c.part[0].pending = 0;
    must_refuse(&c, "0 pending places");
    c.part[0].pending = 2;
    must_refuse(&c, "2 pending places and 1 slots");
    c = cfg;
    c.nparts = MC_GRAPH_PARTS + 1;
    must_refuse(&c, "1 to 64");
    mc_free(m);
    m = llama_gqa(); /* a block that shares the stem's table: one rank may, a pipeline may not */
    m->block.n = 0;
    int h = call(&m->block, "linear", "in", 1, 0, 0, 0);
    num(&m->block, "out", 64);
    str(&m->block, "tied", "embed.weight");
    linear(&m->block, "back", h, 32, "none", 0);
    seal(m);
    cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, 8, 1, 1);
    struct mc_graph *g;
    struct mc_err err = {0};
    check_ok(mc_graph_build(&cfg, &g, &err), &err);
    mc_graph_destroy(g);
    cfg.part[0].has_stem = 0;
    cfg.part[0].first_layer = 1;
    must_refuse(&cfg, "only the head can share");
    mc_free(m);
    m = gpt2_even(); /* a head that shares a layer's */
    m->block.call[5].attr[0].num = 24;
    for (int i = 0; i < m->head.n; i++)
        for (int k = 0; k < m->head.call[i].nattrs; k++)
            if (strcmp(m->head.call[i].attr[k].key, "tied") == 0)
                strcpy(m->head.call[i].attr[k].str, "layers.0.mlp.up.weight");
    cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, 8, 1, 1);
    cfg.part[0].has_stem = 0;
    cfg.part[0].first_layer = 1;
    must_refuse(&cfg, "only one of the stem's");
    mc_free(m);
}

/* A part's slot is as large as its own plan; slots are numbered over the parts. */
static void slots_are_of_their_parts(void **st)
{
    struct model *m = gpt2_even();
    struct mc_graph_cfg cfg = whole_cfg(m, MC_GRAPH_TRAIN, B, 8, 1, 3);
    struct mc_graph *g[3];
    struct mc_err err = {0};
    (void)st;
    cfg.part[0].end_layer = 1;
    cfg.part[0].has_head = 0;
    check_ok(mc_graph_build(&cfg, &g[0], &err), &err);
    cfg.part[0] =
        (struct mc_graph_part){.first_layer = 1, .end_layer = 2, .has_head = 1, .slots = 2};
    check_ok(mc_graph_build(&cfg, &g[1], &err), &err);
    cfg.part[1] = cfg.part[0];
    cfg.part[0] = (struct mc_graph_part){.end_layer = 1, .has_stem = 1, .slots = 3};
    cfg.nparts = 2;
    check_ok(mc_graph_build(&cfg, &g[2], &err), &err);
    const struct mc_graph_memory *a = mc_graph_memory(g[0]), *b = mc_graph_memory(g[1]),
                                 *both = mc_graph_memory(g[2]);
    assert_true(a->slot != b->slot);
    assert_int_equal(both->slots, 3 * a->slot + 2 * b->slot);
    assert_int_equal(both->slot, a->slot > b->slot ? a->slot : b->slot);
    assert_int_equal(both->temp, a->temp > b->temp ? a->temp : b->temp);
    assert_int_equal(mc_graph_slot(g[2], 0, 2), 2);
    assert_int_equal(mc_graph_slot(g[2], 1, 0), 3);
    assert_true(mc_graph_flops(g[2], 2, 8) ==
                mc_graph_flops(g[0], 2, 8) + mc_graph_flops(g[1], 2, 8));
    for (int i = 0; i < 3; i++)
        mc_graph_destroy(g[i]);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_bits_of_the_whole),
        cmocka_unit_test(a_split_backward_gives_the_bits_of_the_whole),
        cmocka_unit_test(a_mesh_changes_nothing_about_it),
        cmocka_unit_test(evaluation_in_stages_gives_the_same_bits),
        cmocka_unit_test(text_in_stages_is_the_same),
        cmocka_unit_test(a_record_of_stages_is_that_of_the_whole),
        cmocka_unit_test(the_stem_and_the_head_have_no_edges_there),
        cmocka_unit_test(what_cannot_be_a_stage_is_refused),
        cmocka_unit_test(slots_are_of_their_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
