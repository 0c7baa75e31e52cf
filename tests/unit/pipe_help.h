/* pipe_help.h - pipelines of threads for test_pipe*.c: a model, its batch, what one whole graph
 * makes of both, a rank that runs its stages, lines of proven schedules. Ranks note what they find;
 * the main thread asserts. */
#pragma once
#include "../support/comm_threads.h"
#include "lua_util.h"
#include "mesh_models.h"
#include "../../core/pipe/exec.h"

enum { LAYERS = 8, MICRO = 2, MOST = 24, ROWS = MOST * MICRO * 8, RANKS = 8, TPS = 2 };
static const int64_t deadline = INT64_C(60) * 1000000000;
static const int64_t STEP = 7;

/* -- A model, its batch, and what one whole graph makes of it --------------------------------- */

struct batch {
    int64_t t, n;
    int32_t tokens[ROWS], targets[ROWS];
    int64_t row[ROWS];
};
struct ref {
    struct model *m;
    int tp;
    int64_t own;
    struct rig rig[TPS]; /* of each tp rank, gradients in it */
    double loss[MOST];
};
static struct batch g_batch;

MAYBE struct model *model_of(int tied, enum mc_dtype t)
{
    static const struct sizes s = {LAYERS, 12, 2, 2, 6, 16, 30, 6};
    struct model *m = tied ? gpt2(&s, 0.1) : llama(&s);
    m->r.precision = t;
    return m;
}

MAYBE void make_batch(const struct model *m)
{
    g_batch.t = m->r.model.seq;
    g_batch.n = formula_batch(3, MOST * MICRO * g_batch.t, m->r.model.vocab, g_batch.tokens,
                              g_batch.targets);
    for (int64_t i = 0; i < MOST * MICRO * g_batch.t; i++)
        g_batch.row[i] = 700 + i;
}

MAYBE mc_status piece(void *arg, int64_t first, int64_t b, int op, int last,
                      struct mc_microbatch *mb, struct mc_err *err)
{
    (void)arg, (void)op, (void)last, (void)err;
    *mb = (struct mc_microbatch){.b = b,
                                 .t = g_batch.t,
                                 .tokens = g_batch.tokens + first * g_batch.t,
                                 .targets = g_batch.targets + first * g_batch.t,
                                 .logical_row = g_batch.row + first * g_batch.t};
    return MC_OK;
}

MAYBE mc_status open_graph(const struct model *m, const struct mc_graph_cfg *cfg,
                           const struct mc_mesh *mesh, struct rig *r, struct mc_err *err)
{
    MC_TRY(rig_take(cfg, NULL, r, err));
    const struct mc_graph_memory *mem = mc_graph_memory(r->g);
    if (mem->temp)
        memset(r->b.temp, 0xff, mem->temp);
    if (mem->slots)
        memset(r->b.slots, 0xff, mem->slots);
    MC_TRY(mc_graph_bind(r->g, r->k, r->pool, &r->b, mesh, err));
    mc_graph_init_params(r->g, 77, m->r.precision, r->b.params);
    return MC_OK;
}

MAYBE struct mc_graph_cfg cfg_of(const struct model *m, enum mc_graph_mode mode,
                                 const struct mc_mesh *mesh, int64_t micro)
{
    struct mc_graph_cfg cfg = whole_cfg(m, mode, micro, m->r.model.seq, 1, 1);
    cfg.axis_size[MC_AXIS_TP] = mesh->layout.size[MC_AXIS_TP];
    cfg.coord[MC_AXIS_TP] = mesh->coord[MC_AXIS_TP];
    return cfg;
}

static char g_failed[RANKS][1500];
MAYBE void note(int rank, const char *what, const struct mc_err *err)
{
    if (!g_failed[rank][0])
        snprintf(g_failed[rank], sizeof g_failed[rank], "%s: %s", what, err->msg);
}
MAYBE void give_up(struct mc_mesh *mesh)
{
    for (int a = 0; a < MC_NAXES; a++)
        if (mesh->axis[a])
            mesh->axis[a]->ops->abort(mesh->axis[a]);
}

MAYBE void whole_rank(struct mc_mesh *mesh, void *arg)
{
    struct ref *x = arg;
    struct mc_err err = {0};
    struct rig *r = &x->rig[mesh->rank];
    struct mc_graph_cfg cfg = cfg_of(x->m, MC_GRAPH_TRAIN, mesh, MICRO);
    mc_status st = open_graph(x->m, &cfg, mesh, r, &err);
    if (st == MC_OK)
        mc_graph_zero_grads(r->g);
    for (int64_t first = 0, k = 0; st == MC_OK && first < x->own; first += MICRO, k++) {
        struct mc_microbatch mb;
        double loss = 0;
        piece(NULL, first, x->own - first < MICRO ? x->own - first : MICRO, 0, 0, &mb, NULL);
        st = mc_graph_forward(r->g, 0, &mb, STEP, &loss, &err);
        if (st == MC_OK)
            st = mc_graph_backward(r->g, 0, &mb, STEP, 1.0 / (double)g_batch.n, &err);
        if (mesh->rank == 0)
            x->loss[k] = loss;
    }
    if (st != MC_OK)
        note(mesh->rank, "whole", &err);
}

MAYBE void run_mesh(int tp, int dp, int pp, void (*fn)(struct mc_mesh *, void *), void *arg)
{
    struct mc_layout l;
    struct mc_err err = {0};
    const int size[MC_NAXES] = {tp, 1, 1, dp, pp};
    memset(g_failed, 0, sizeof g_failed);
    check_ok(mc_layout_init(&l, MC_ORDER_DEFAULT, size, tp * dp * pp, &err), &err);
    check_ok(mc_test_mesh(&l, deadline, fn, arg, &err), &err);
}

MAYBE void ref_open(struct ref *x, struct model *m, int tp, int64_t own)
{
    memset(x, 0, sizeof *x);
    x->m = m;
    x->tp = tp;
    x->own = own;
    run_mesh(tp, 1, 1, whole_rank, x);
    for (int r = 0; r < tp; r++)
        assert_string_equal(g_failed[r], "");
    assert_true(x->loss[0] > 0);
}
MAYBE void ref_close(struct ref *x)
{
    for (int r = 0; r < x->tp; r++)
        rig_close(&x->rig[r]);
}

/* -- A pipeline's rank ------------------------------------------------------------------------ */

struct cell {
    const struct ref *ref;   /* of dp coordinate 0 */
    const struct ref *other; /* of dp coordinate 1, NULL: none */
    const struct mc_line *line;
    int tp, dp;
    int repeat; /* jobs, the last is compared */
    /* found */
    double loss[RANKS][MOST];
    int64_t calls[RANKS];
    int params[RANKS];
};
struct stage {
    struct rig r;
    void *buffer;
    struct mc_pipe *pipe;
    int rank; /* of the pipeline */
};

MAYBE struct mc_graph_cfg part_cfg(const struct model *m, const struct mc_line *line,
                                   enum mc_graph_mode mode, const struct mc_mesh *mesh,
                                   int64_t micro)
{
    struct mc_graph_cfg cfg = cfg_of(m, mode, mesh, micro);
    cfg.nparts = line->chunks;
    cfg.split = mode == MC_GRAPH_TRAIN && mc_line_split(line);
    for (int k = 0; k < line->chunks; k++)
        mc_line_part(line, mesh->coord[MC_AXIS_PP], k, &cfg.part[k]);
    return cfg;
}

MAYBE mc_status stage_open(const struct model *m, const struct mc_line *line,
                           enum mc_graph_mode mode, const struct mc_mesh *mesh, struct stage *s,
                           struct mc_err *err)
{
    struct mc_graph_cfg cfg = part_cfg(m, line, mode, mesh, MICRO);
    s->rank = mesh->coord[MC_AXIS_PP];
    MC_TRY(open_graph(m, &cfg, mesh, &s->r, err));
    size_t message =
        (size_t)mc_graph_edge_count(s->r.g, MICRO, m->r.model.seq) * mc_dtype_size(m->r.precision);
    size_t n = mc_pipe_bytes(line, s->rank, message);
    s->buffer = bytes(n);
    if (n)
        memset(s->buffer, 0xff, n);
    const struct mc_pipe_cfg pc = {.line = line,
                                   .mesh = mesh,
                                   .buffer = s->buffer,
                                   .bytes = n,
                                   .dtype = m->r.precision,
                                   .vocab = m->r.model.vocab};
    return mc_pipe_create(&pc, &s->pipe, err);
}
MAYBE void stage_close(struct stage *s)
{
    mc_pipe_destroy(s->pipe);
    rig_close(&s->r);
    mc_free(s->buffer);
}

MAYBE const char *at_use(const struct rig *r, const struct mc_param *p, int use)
{
    int64_t first = use == 0 ? p->offset : p->extra_offset + (use - 1) * p->stored;
    return (const char *)(use == 0 ? r->b.grads : r->b.extra_grads) + (size_t)first * r->elem;
}

/* Every use of every parameter here against the same use in the whole model. */
MAYBE int same_gradients(const struct rig *r, const struct rig *whole, char *why, size_t cap)
{
    for (int i = 0; i < mc_graph_nparams(r->g); i++) {
        const struct mc_param *p = mc_graph_param(r->g, i), *q = NULL;
        for (int k = 0; k < mc_graph_nparams(whole->g); k++)
            if (strcmp(mc_graph_param(whole->g, k)->name, p->name) == 0)
                q = mc_graph_param(whole->g, k);
        int base = q && p->elsewhere < 0 ? q->nuses - p->nuses : 0;
        for (int u = 0; q && u < p->nuses; u++)
            if (p->count != q->count || memcmp(at_use(r, p, u), at_use(whole, q, u + base),
                                               (size_t)p->count * r->elem) != 0) {
                snprintf(why, cap, "gradient of %s, use %d, differs", p->name, u);
                return 0;
            }
        if (!q) {
            snprintf(why, cap, "%s is not in the whole model", p->name);
            return 0;
        }
    }
    return mc_graph_nparams(r->g);
}

MAYBE void barrier(const struct mc_mesh *mesh)
{
    struct mc_comm_req *req;
    struct mc_comm *c = mesh->world;
    if (c && c->ops->barrier(c, &req, NULL) == MC_OK)
        c->ops->wait(c, req, 0, NULL);
}

MAYBE void pipe_rank(struct mc_mesh *mesh, void *arg)
{
    struct cell *c = arg;
    const struct ref *ref = mesh->coord[MC_AXIS_DP] ? c->other : c->ref;
    struct stage s = {0};
    struct mc_err err = {0};
    int rank = mesh->rank;
    char why[200] = "";
    mc_status st = stage_open(ref->m, c->line, MC_GRAPH_TRAIN, mesh, &s, &err);
    struct mc_pipe_job job = {.graph = s.r.g,
                              .own = ref->own,
                              .micro = MICRO,
                              .seq = g_batch.t,
                              .step = STEP,
                              .scale = 1.0 / (double)g_batch.n,
                              .loss = c->loss[rank],
                              .microbatch = piece};
    for (int k = 0; k < (c->repeat ? c->repeat : 1) && st == MC_OK; k++) {
        mc_graph_zero_grads(s.r.g);
        memset(c->loss[rank], 0xff, sizeof c->loss[rank]);
        barrier(mesh);
        int64_t calls = (int64_t)mc_mem_stats().calls - mc_comm_threads_calls();
        barrier(mesh);
        st = mc_pipe_train(s.pipe, &job, &err);
        barrier(mesh);
        c->calls[rank] = (int64_t)mc_mem_stats().calls - mc_comm_threads_calls() - calls;
        barrier(mesh);
    }
    if (st == MC_OK) {
        c->params[rank] = same_gradients(&s.r, &ref->rig[mesh->coord[MC_AXIS_TP]], why, sizeof why);
        if (!c->params[rank] && s.r.g && mc_graph_nparams(s.r.g) > 0) {
            snprintf(err.msg, sizeof err.msg, "%s", why);
            note(rank, "bits", &err);
        }
    } else {
        note(rank, "train", &err);
        give_up(mesh);
    }
    stage_close(&s);
}

/* NULL: what the rank found is right. */
MAYBE const char *check_cell(const struct cell *c, int r)
{
    static char why[1600];
    const struct ref *ref = r / c->tp % c->dp ? c->other : c->ref;
    int stage = r / c->tp / c->dp, m = (int)((ref->own + MICRO - 1) / MICRO);
    if (g_failed[r][0]) {
        snprintf(why, sizeof why, "rank %d: %.1500s", r, g_failed[r]);
        return why;
    }
    for (int k = 0; k < m; k++) {
        double want = stage == mc_line_head(c->line) ? ref->loss[k] : 0;
        if (memcmp(&c->loss[r][k], &want, sizeof want) != 0) {
            snprintf(why, sizeof why, "rank %d: loss of microbatch %d is %.17g, not %.17g", r, k,
                     c->loss[r][k], want);
            return why;
        }
    }
    return NULL;
}
MAYBE const char *check_cells(const struct cell *c)
{
    const char *why = NULL;
    for (int r = 0; r < c->tp * c->dp * c->line->ranks && !why; r++)
        why = check_cell(c, r);
    return why;
}

/* -- Lines ------------------------------------------------------------------------------------ */

MAYBE struct mc_sched *bundled(const char *name, int p, int v, int m)
{
    static struct loaded x;
    char set[300];
    const char *sets[1] = {set};
    struct mc_sched *s = NULL;
    struct mc_err err = {0};
    snprintf(set, sizeof set, "parallel.schedule=%s", name);
    load_file(&x, MC_SOURCE_HOME "/recipes/tiny_llama.lua", sets, 1);
    assert_int_equal(x.st, MC_OK);
    const struct mc_sched_ask ask = {.ranks = p, .chunks = v, .microbatches = m};
    check_ok(mc_lua_schedule(&x.l, &ask, &s, &err), &err);
    mc_lua_loaded_fini(&x.l);
    mc_problems_fini(&x.problems);
    return s;
}

/* Proven at the least depth, or at that many more. how 0: as even as can be; 1: the first and the
 * last stage have embedding and head only, where there are other stages to take the layers. */
MAYBE struct mc_line *line_with(struct mc_sched **s, int n, int more, int how)
{
    struct mc_err err = {0};
    struct mc_line *line = NULL;
    int stages = mc_sched_stages(s[0]), cut[LAYERS + 2], depth = 1;
    for (int k = 0; k < n; k++) {
        int need = 0;
        check_ok(mc_sched_least_depth(s[k], 1000, &need, &err), &err);
        depth = need > depth ? need : depth;
    }
    depth += more;
    for (int k = 0; k < n; k++) {
        const struct mc_sched_limits lim = {.depth = depth};
        check_ok(mc_sched_verify(s[k], &lim, NULL, NULL, &err), &err);
    }
    for (int k = 0; k <= stages; k++)
        cut[k] = how == 0 || stages < 3 ? k * LAYERS / stages
                 : k == 0 || k == 1     ? 0
                 : k >= stages - 1      ? LAYERS
                                        : (k - 1) * LAYERS / (stages - 2);
    check_ok(mc_line_create(s[0]->ranks, s[0]->chunks, cut, s, n, depth, &line, &err), &err);
    return line;
}

static const struct {
    const char *name;
    int v, groups; /* groups: m is a multiple of p */
} all[] = {{"gpipe", 1, 0},       {"gpipe", 2, 0}, {"one_f_one_b", 1, 0}, {"interleaved", 1, 1},
           {"interleaved", 2, 1}, {"zb_h1", 1, 0}, {"zb_v", 2, 0}};

MAYBE int run_cell(const struct ref *ref, struct mc_line *line, const char *name, int tp)
{
    static struct cell c;
    c = (struct cell){.ref = ref, .line = line, .tp = tp, .dp = 1};
    run_mesh(tp, 1, line->ranks, pipe_rank, &c);
    const char *why = check_cells(&c);
    if (why)
        fail_msg("%s, p %d, v %d, %lld samples, depth %d, tp %d, %s: %s", name, line->ranks,
                 line->chunks, (long long)ref->own, line->depth, tp,
                 mc_dtype_name(ref->m->r.precision), why);
    return 1;
}
