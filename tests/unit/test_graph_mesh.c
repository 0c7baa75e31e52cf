/* test_graph_mesh.c - any layout, one meaning: threads as ranks against one rank.
 * links: test_threads mc_graph
 *
 * Each cell builds a model for one rank and for a mesh of threads, gives both the same weights and
 * batch, and compares loss, logits and every parameter's gradient, each rank's box with the same
 * box of the one rank's, by ||a - b|| / max(||ref||, 1e-3 ||all grads|| sqrt(n / N)) over the
 * tensor. Scratch begins as NaN, so that what nobody wrote cannot pass for a zero. The batch has
 * masked tokens, one sequence with none left, and, where the microbatch does not divide it, a short
 * last microbatch. Ranks note what they find; the main thread asserts. */
#include "../support/comm_threads.h"
#include "mesh_models.h"

enum { SAMPLES = 4, MAX_ROWS = SAMPLES * 8, RANKS = 4 };
static const int64_t deadline = INT64_C(60) * 1000000000;

struct batch {
    int64_t t, n; /* n: valid tokens */
    int32_t tokens[MAX_ROWS], targets[MAX_ROWS];
    int64_t row[MAX_ROWS];
};
static void make_batch(struct batch *b, int64_t t, int64_t vocab)
{
    b->t = t;
    formula_batch(11, SAMPLES * t, vocab, b->tokens, b->targets);
    b->n = 0;
    for (int64_t i = 0; i < SAMPLES * t; i++) {
        if (i / t == 2) /* nothing of this sequence counts */
            b->targets[i] = -1;
        b->row[i] = 1000 + i;
        b->n += b->targets[i] >= 0;
    }
}
static struct mc_microbatch piece_of(const struct batch *b, int64_t first, int64_t count)
{
    return (struct mc_microbatch){.b = count,
                                  .t = b->t,
                                  .tokens = b->tokens + first * b->t,
                                  .targets = b->targets + first * b->t,
                                  .logical_row = b->row + first * b->t};
}

/* -- What a rank does ------------------------------------------------------------------------- */

struct cell {
    const struct model *m;
    const struct batch *b;
    int64_t micro;
    int tp, dp, threads;
    struct rig ref; /* one rank: weights, and after its step gradients */
    double ref_loss, *ref_logits, *init;
    double all;                             /* ||all grads|| */
    double ref_stream[4], stream[RANKS][4]; /* squares of the stem's and the blocks' outputs */
    /* found */
    double loss[RANKS], gradient[RANKS], logits[RANKS];
    char worst[RANKS][MC_NAME_MAX], failed[RANKS][1500];
    int64_t owned[RANKS];
    int init_differs[RANKS], padding[RANKS];
};

static void note(struct cell *c, int rank, const char *what, const struct mc_err *err)
{
    if (!c->failed[rank][0])
        snprintf(c->failed[rank], sizeof c->failed[rank], "%s: %s", what, err->msg);
}

static double at(const void *flat, int64_t i, size_t elem)
{
    return elem == 8 ? ((const double *)flat)[i] : (double)((const float *)flat)[i];
}

/* Element k of a box as an index of the whole tensor. */
static int64_t logical(const struct mc_param *p, int64_t k)
{
    if (p->box.nd == 1)
        return p->box.lo[0] + k;
    return (p->box.lo[0] + k / p->box.n[1]) * p->shape.dim[1] + p->box.lo[1] + k % p->box.n[1];
}

static mc_status rank_open(const struct cell *c, const struct mc_mesh *mesh,
                           enum mc_graph_mode mode, struct rig *r, struct mc_err *err)
{
    int64_t micro = mode == MC_GRAPH_INFER ? 1 : c->micro;
    struct mc_graph_cfg cfg = whole_cfg(c->m, mode, micro, c->b->t, c->threads, 1);
    cfg.axis_size[MC_AXIS_TP] = c->tp;
    cfg.coord[MC_AXIS_TP] = mesh->coord[MC_AXIS_TP];
    MC_TRY(rig_take(&cfg, NULL, r, err));
    const struct mc_graph_memory *mem = mc_graph_memory(r->g);
    if (mem->temp)
        memset(r->b.temp, 0xff, mem->temp);
    if (mem->slots)
        memset(r->b.slots, 0xff, mem->slots);
    if (mem->extra_grads)
        memset(r->b.extra_grads, 0xff, mem->extra_grads);
    return mc_graph_bind(r->g, r->k, r->pool, &r->b, mesh, err);
}

/* Initial weights are compared, then the one rank's weights are taken over, box by box. */
static void take_weights(struct cell *c, int rank, struct rig *r)
{
    mc_graph_init_params(r->g, 77, c->m->r.precision, r->b.params);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < mc_graph_nparams(r->g); i++) {
            const struct mc_param *p = mc_graph_param(r->g, i), *q = mc_graph_param(c->ref.g, i);
            for (int64_t k = 0; k < p->count; k++) {
                int64_t j = q->offset + logical(p, k);
                if (pass == 0)
                    c->init_differs[rank] |=
                        at(r->b.params, p->offset + k, r->elem) != at(c->init, j, r->elem);
                else
                    put(r, r->b.params, p->offset + k, at(c->ref.b.params, j, r->elem));
            }
            for (int64_t k = p->count; k < p->stored; k++)
                c->padding[rank] |= at(r->b.params, p->offset + k, r->elem) != 0;
            if (pass == 0)
                c->owned[rank] += p->owned ? p->count : 0;
        }
}

struct finish {
    struct mc_graph *g;
    const struct mc_mesh *mesh;
};
/* As a trainer does: a bucket is finished when it is done, then summed over replicas. */
static mc_status done(void *arg, int bucket, struct mc_err *err)
{
    struct finish *f = arg;
    int64_t offset, count;
    struct mc_comm *c = f->mesh->grad;
    struct mc_comm_req *req;
    MC_TRY(mc_graph_finish_grads(f->g, bucket, err));
    if (!c)
        return MC_OK;
    mc_graph_bucket(f->g, bucket, &offset, &count);
    char *p = (char *)f->g->buf.grads + (size_t)offset * f->g->wide_elem;
    MC_TRY(c->ops->all_reduce(c, p, p, count, f->g->kern->wide->dtype, MC_SUM, NULL, &req, err));
    return c->ops->wait(c, req, 0, err);
}

/* Columns of the logits that are here against the one rank's. */
static double logits_differ(const struct cell *c, const struct rig *r, int coord, int64_t first,
                            int64_t rows)
{
    const struct mc_piece *p = &r->g->piece[r->g->part[0].out_piece];
    const struct mc_store *s = &r->g->store[p->store];
    const char *base = s->where == MC_IN_SLOT ? (const char *)r->b.slots : (const char *)r->b.temp;
    int64_t all = r->g->value[r->g->part[0].out_value].cols,
            lo = p->cols < all ? coord * p->cols : 0;
    double worst = 0;
    base += s->offset + (size_t)p->col0 * r->elem;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < p->cols && lo + j < all; j++) {
            double want = c->ref_logits[(first * c->b->t + i) * all + lo + j];
            double d = fabs(at(base, i * s->cols + j, r->elem) - want);
            if (!(d <= worst))
                worst = d;
        }
    return worst;
}

static mc_status step(struct cell *c, const struct mc_mesh *mesh, struct rig *r, double *loss,
                      double *logits, struct mc_err *err)
{
    struct finish f = {r->g, mesh};
    const struct mc_graph_watch watch = {.arg = &f, .done = done};
    /* replicas have contiguous runs of the samples */
    int64_t each = SAMPLES / c->dp, first = mesh->coord[MC_AXIS_DP] * each, end = first + each;
    double sum = 0;
    *logits = 0;
    memset(c->stream[mesh->rank], 0, sizeof c->stream[0]);
    mc_graph_gauge(r->g, c->stream[mesh->rank]);
    mc_graph_zero_grads(r->g);
    for (; first < end; first += c->micro) {
        int64_t n = end - first < c->micro ? end - first : c->micro;
        struct mc_microbatch mb = piece_of(c->b, first, n);
        MC_TRY(mc_graph_forward(r->g, 0, &mb, 7, &sum, err));
        *logits = fmax(*logits, logits_differ(c, r, mesh->coord[MC_AXIS_TP], first, n * c->b->t));
        if (first + n == end)
            mb.watch = &watch;
        MC_TRY(mc_graph_backward(r->g, 0, &mb, 7, 1.0 / (double)c->b->n, err));
    }
    *loss = sum;
    return MC_OK;
}

static void compare_gradients(struct cell *c, int rank, const struct rig *r)
{
    double total = (double)mc_graph_param_count(r->g);
    for (int i = 0; i < mc_graph_nparams(r->g); i++) {
        const struct mc_param *p = mc_graph_param(r->g, i), *q = mc_graph_param(c->ref.g, i);
        double diff = 0, size = 0;
        for (int64_t k = 0; k < q->count; k++)
            size += pow(at(c->ref.b.grads, q->offset + k, r->elem), 2);
        for (int64_t k = 0; k < p->count; k++)
            diff += pow(at(r->b.grads, p->offset + k, r->elem) -
                            at(c->ref.b.grads, q->offset + logical(p, k), r->elem),
                        2);
        for (int64_t k = p->count; k < p->stored; k++)
            c->padding[rank] |= at(r->b.grads, p->offset + k, r->elem) != 0;
        double e = sqrt(diff) / fmax(sqrt(size), 1e-3 * c->all * sqrt((double)q->count / total));
        /* exactly zero without rope (a softmax does not see a shift of all keys): noise */
        if (strstr(p->name, "attn.k.bias") && r->elem == 4 && sqrt(diff) <= 1e-6 * c->all)
            continue;
        if (!(e <= c->gradient[rank])) {
            c->gradient[rank] = e;
            snprintf(c->worst[rank], sizeof c->worst[rank], "%s", p->name);
        }
    }
}

static void train_rank(struct mc_mesh *mesh, void *arg)
{
    struct cell *c = arg;
    struct rig r = {0};
    struct mc_err err = {0};
    int rank = mesh->rank;
    mc_status st = rank_open(c, mesh, MC_GRAPH_TRAIN, &r, &err);
    if (st == MC_OK) {
        take_weights(c, rank, &r);
        st = step(c, mesh, &r, &c->loss[rank], &c->logits[rank], &err);
    }
    if (st == MC_OK)
        compare_gradients(c, rank, &r);
    else {
        note(c, rank, "step", &err);
        if (mesh->world)
            mesh->world->ops->abort(mesh->world);
        for (int a = 0; a < MC_NAXES; a++)
            if (mesh->axis[a])
                mesh->axis[a]->ops->abort(mesh->axis[a]);
    }
    if (r.pool)
        rig_close(&r);
}

/* -- Cells ------------------------------------------------------------------------------------ */

static void reference(struct cell *c, struct model *m, struct batch *b)
{
    make_batch(b, m->r.model.seq, m->r.model.vocab);
    m->r.parallel.sp = 0;
    m->r.parallel.recompute = MC_RECOMPUTE_NONE;
    c->m = m;
    c->b = b;
    c->ref = rig_open(m, MC_GRAPH_TRAIN, SAMPLES, b->t, 1, 1, NULL);
    struct rig *r = &c->ref;
    struct mc_microbatch mb = piece_of(b, 0, SAMPLES);
    c->init = mc_alloc(mc_graph_memory(r->g)->params, "test");
    mc_graph_init_params(r->g, 77, m->r.precision, c->init);
    formula_weights(r);
    c->ref_loss = 0;
    memset(c->ref_stream, 0, sizeof c->ref_stream);
    mc_graph_gauge(r->g, c->ref_stream);
    mc_graph_zero_grads(r->g);
    pass_ok(mc_graph_forward(r->g, 0, &mb, 7, &c->ref_loss, NULL));
    const struct mc_piece *p = &r->g->piece[r->g->part[0].out_piece];
    const struct mc_store *s = &r->g->store[p->store];
    const char *base = (const char *)(s->where == MC_IN_SLOT ? r->b.slots : r->b.temp) + s->offset;
    c->ref_logits = mc_alloc((size_t)(SAMPLES * b->t * p->cols) * 8, "test");
    for (int64_t i = 0; i < SAMPLES * b->t * p->cols; i++)
        c->ref_logits[i] = at(base, i / p->cols * s->cols + p->col0 + i % p->cols, r->elem);
    pass_ok(mc_graph_backward(r->g, 0, &mb, 7, 1.0 / (double)b->n, NULL));
    finish_all(r->g);
    c->all = 0;
    for (int64_t k = 0; k < mc_graph_flat_count(r->g); k++)
        c->all += pow(at(r->b.grads, k, r->elem), 2);
    c->all = sqrt(c->all);
    assert_true(c->all > 0 && c->ref_loss > 0);
}

static void forget(struct cell *c)
{
    rig_close(&c->ref);
    mc_free(c->ref_logits);
    mc_free(c->init);
}

static double run_cell(struct cell *c, const char *name, int tp, int dp, int64_t micro)
{
    struct mc_layout l;
    struct mc_err err = {0};
    const int size[MC_NAXES] = {tp, 1, 1, dp, 1};
    int fp32 = c->m->r.precision == MC_F32;
    double worst = 0, sum = 0;
    int64_t owned = 0;
    c->tp = tp;
    c->dp = dp;
    c->micro = micro;
    memset(c->gradient, 0, sizeof c->gradient);
    memset(c->failed, 0, sizeof c->failed);
    memset(c->owned, 0, sizeof c->owned);
    memset(c->init_differs, 0, sizeof c->init_differs);
    memset(c->padding, 0, sizeof c->padding);
    check_ok(mc_layout_init(&l, MC_ORDER_DEFAULT, size, tp * dp, &err), &err);
    check_ok(mc_test_mesh(&l, deadline, train_rank, c, &err), &err);
    for (int r = 0; r < tp * dp; r++) {
        const char *why = c->failed[r][0]                              ? c->failed[r]
                          : c->init_differs[r]                         ? "initial weights differ"
                          : c->padding[r]                              ? "padding is not zero"
                          : !(c->gradient[r] <= (fp32 ? 1e-5 : 1e-11)) ? "a gradient differs"
                          : !(c->logits[r] <= (fp32 ? 3e-5 : 1e-12))   ? "logits differ"
                          : c->loss[r] != c->loss[r / tp * tp] ? "ranks of tp differ in loss"
                                                               : NULL;
        if (why)
            fail_msg("%s tp %d dp %d sp %d recompute %d micro %d, rank %d: %s (gradient %.2e of "
                     "%s, logits %.2e)",
                     name, tp, dp, c->m->r.parallel.sp, c->m->r.parallel.recompute, (int)micro, r,
                     why, c->gradient[r], c->worst[r], c->logits[r]);
        worst = fmax(worst, c->gradient[r]);
        if (r % tp == 0)
            sum += c->loss[r];
        if (r < tp)
            owned += c->owned[r];
    }
    if (!(fabs(sum - c->ref_loss) <= (fp32 ? 1e-6 : 1e-13) * c->ref_loss))
        fail_msg("%s tp %d dp %d: loss %.17g, one rank %.17g", name, tp, dp, sum, c->ref_loss);
    for (int k = 0; k <= c->m->r.model.layers; k++) {
        double squares = 0;
        for (int r = 0; r < tp * dp; r++)
            squares += c->stream[r][k];
        if (!(fabs(squares - c->ref_stream[k]) <= (fp32 ? 1e-5 : 1e-12) * c->ref_stream[k]))
            fail_msg("%s tp %d dp %d: the stream at %d, %.17g, one rank %.17g", name, tp, dp, k,
                     squares, c->ref_stream[k]);
    }
    if (owned != mc_graph_param_count(c->ref.g))
        fail_msg("%s tp %d: %lld elements owned of %lld", name, tp, (long long)owned,
                 (long long)mc_graph_param_count(c->ref.g));
    return worst;
}

static void matrix(enum mc_dtype dtype, const int *model, int nmodels, int threads)
{
    static const int tps[] = {1, 2, 4};
    static const int64_t micros[] = {1, 2, 3};
    double worst = 0;
    int cells = 0;
    for (int i = 0; i < nmodels; i++) {
        struct model *m = mesh_models[model[i]]();
        struct cell c = {.threads = threads};
        struct batch b;
        m->r.precision = dtype;
        reference(&c, m, &b);
        for (int k = 0; k < 36; k++) {
            int tp = tps[k % 3];
            int64_t micro = micros[k / 12];
            m->r.parallel.sp = k / 3 % 2;
            m->r.parallel.recompute = k / 6 % 2 ? MC_RECOMPUTE_BLOCK : MC_RECOMPUTE_NONE;
            worst = fmax(worst, run_cell(&c, mesh_names[model[i]], tp, 1, micro));
            cells++;
        }
        forget(&c);
        mc_free(m);
    }
    print_message("%d cells in %s, gradients within %.2e\n", cells, mc_dtype_name(dtype), worst);
}

static void any_layout_equals_one_rank_in_fp64(void **st)
{
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    (void)st;
    matrix(MC_F64, all, MESH_MODELS, 1);
}

static void any_layout_equals_one_rank_in_fp32(void **st)
{
    static const int some[] = {1, 5, 6, 7};
    (void)st;
    matrix(MC_F32, some, 4, 1);
}

/* Two replicas of a tp pair, each with half of the samples. */
static void replicas_add_up(void **st)
{
    (void)st;
    for (int i = 0; i < MESH_MODELS; i++) {
        struct model *m = mesh_models[i]();
        struct cell c = {.threads = 1};
        struct batch b;
        reference(&c, m, &b);
        m->r.parallel.sp = 1;
        run_cell(&c, mesh_names[i], 2, 2, 1);
        run_cell(&c, mesh_names[i], 1, 4, 1);
        forget(&c);
        mc_free(m);
    }
}

/* Ops recomputed by name, and threads within ranks. */
static void recomputed_ops_and_threads_change_nothing(void **st)
{
    static const char *const ops[] = {"linear", "rmsnorm",   "layernorm",
                                      "swiglu", "attention", "all_gather"};
    (void)st;
    for (int i = 0; i < MESH_MODELS; i++) {
        struct model *m = mesh_models[i]();
        struct cell c = {.threads = 2};
        struct batch b;
        reference(&c, m, &b);
        m->r.parallel.recompute = MC_RECOMPUTE_OPS;
        for (int k = 0; k < 6; k++)
            snprintf(m->r.parallel.recompute_ops[k], sizeof m->r.parallel.recompute_ops[k], "%s",
                     ops[k]);
        m->r.parallel.nrecompute_ops = 6;
        for (int sp = 0; sp < 2; sp++) {
            m->r.parallel.sp = sp;
            run_cell(&c, mesh_names[i], 4, 1, 2);
        }
        forget(&c);
        mc_free(m);
    }
}

/* -- Text ------------------------------------------------------------------------------------- */

struct text {
    struct cell c;
    int32_t want[8];
    double logits[8][300]; /* the one rank's */
    int32_t got[RANKS][8];
    double differs[RANKS];
};

static int32_t largest(const void *logits, int64_t n, size_t elem)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (at(logits, i, elem) > at(logits, best, elem))
            best = i;
    return (int32_t)best;
}

static void write_rank(struct mc_mesh *mesh, void *arg)
{
    struct text *x = arg;
    struct rig r = {0};
    struct mc_err err = {0};
    const int64_t v = x->c.m->r.model.vocab;
    const void *logits;
    int rank = mesh->rank;
    mc_status st = rank_open(&x->c, mesh, MC_GRAPH_INFER, &r, &err);
    if (st == MC_OK)
        take_weights(&x->c, rank, &r);
    for (int64_t pos = 0, n = 3; st == MC_OK && pos + n <= x->c.b->t; pos += n, n = 1) {
        int64_t i = pos == 0 ? 0 : pos - 2;
        const int32_t *in = pos == 0 ? x->c.b->tokens : &x->got[rank][i - 1];
        st = mc_graph_infer(r.g, in, n, pos, &logits, &err);
        if (st != MC_OK)
            break;
        for (int64_t k = 0; k < v; k++) {
            double d = fabs(at(logits, k, r.elem) - x->logits[i][k]);
            if (!(d <= x->differs[rank]))
                x->differs[rank] = d;
        }
        x->got[rank][i] = largest(logits, v, r.elem);
    }
    if (st != MC_OK)
        note(&x->c, rank, "text", &err);
    if (r.pool)
        rig_close(&r);
}

static void text_is_the_same_on_any_layout(void **st)
{
    (void)st;
    for (int i = 0; i < MESH_MODELS; i++)
        for (int tp = 2; tp <= 4; tp += 2) {
            struct model *m = mesh_models[i]();
            struct text x = {.c = {.threads = 1, .tp = tp, .dp = 1}};
            struct batch b;
            struct mc_layout l;
            struct mc_err err = {0};
            const int size[MC_NAXES] = {tp, 1, 1, 1, 1};
            reference(&x.c, m, &b);
            struct rig r = rig_open(m, MC_GRAPH_INFER, 1, b.t, 1, 1, NULL);
            formula_weights(&r);
            for (int64_t pos = 0, n = 3; pos + n <= b.t; pos += n, n = 1) {
                int64_t k = pos == 0 ? 0 : pos - 2;
                const void *logits = infer(r.g, pos == 0 ? b.tokens : &x.want[k - 1], n, pos);
                memcpy(x.logits[k], logits, (size_t)m->r.model.vocab * 8);
                x.want[k] = largest(logits, m->r.model.vocab, 8);
            }
            rig_close(&r);
            m->r.parallel.sp = 1; /* says nothing of text */
            check_ok(mc_layout_init(&l, MC_ORDER_DEFAULT, size, tp, &err), &err);
            check_ok(mc_test_mesh(&l, deadline, write_rank, &x, &err), &err);
            for (int k = 0; k < tp; k++) {
                if (x.c.failed[k][0] || !(x.differs[k] <= 1e-12))
                    fail_msg("%s tp %d rank %d: %s, logits %.2e", mesh_names[i], tp, k,
                             x.c.failed[k], x.differs[k]);
                assert_memory_equal(x.got[k], x.want, sizeof x.want);
            }
            forget(&x.c);
            mc_free(m);
        }
}

/* -- Failures and memory ---------------------------------------------------------------------- */

struct broken {
    struct cell c;
    mc_status st[RANKS], again[RANKS];
    char msg[RANKS][1400];
};

/* Rank 1 never comes: the other's first collective ends at its deadline, and so does every later
 * call, with the same words. */
static void lonely_rank(struct mc_mesh *mesh, void *arg)
{
    struct broken *x = arg;
    struct rig r = {0};
    struct mc_err err = {0}, later = {0};
    double sum = 0;
    if (mesh->rank == 1)
        return;
    struct mc_microbatch mb = piece_of(x->c.b, 0, 1);
    if (rank_open(&x->c, mesh, MC_GRAPH_TRAIN, &r, &err) == MC_OK) {
        take_weights(&x->c, 0, &r);
        x->st[0] = mc_graph_forward(r.g, 0, &mb, 1, &sum, &err);
        snprintf(x->msg[0], sizeof x->msg[0], "%s", err.msg);
        x->again[0] = mc_graph_backward(r.g, 0, &mb, 1, 1, &later);
        x->st[1] = mc_graph_finish_grads(r.g, 0, NULL);
        x->c.init_differs[0] = strcmp(err.msg, later.msg) != 0 || sum != 0;
    }
    if (r.pool)
        rig_close(&r);
}

static void a_missing_rank_ends_the_pass(void **st)
{
    struct model *m = llama_gqa();
    struct broken x = {.c = {.threads = 1, .tp = 2, .dp = 1, .micro = 1}};
    struct batch b;
    struct mc_layout l;
    struct mc_err err = {0};
    const int size[MC_NAXES] = {2, 1, 1, 1, 1};
    (void)st;
    reference(&x.c, m, &b);
    check_ok(mc_layout_init(&l, MC_ORDER_DEFAULT, size, 2, &err), &err);
    check_ok(mc_test_mesh(&l, 50000000, lonely_rank, &x, &err), &err);
    assert_int_equal(x.st[0], MC_E_TIMEOUT);
    assert_non_null(strstr(x.msg[0], "group tp: nothing came from member 1"));
    assert_int_equal(x.again[0], MC_E_TIMEOUT);
    assert_int_equal(x.st[1], MC_E_TIMEOUT);
    assert_false(x.c.init_differs[0]);
    forget(&x.c);
    mc_free(m);
}

static void barrier(const struct mc_mesh *mesh)
{
    struct mc_comm_req *req;
    struct mc_comm *c = mesh->world;
    if (c->ops->barrier(c, &req, NULL) == MC_OK)
        c->ops->wait(c, req, 0, NULL);
}

/* The last pass of all ranks together calls the allocator not once. (The threads' copies of what
 * they exchange grow before that.) */
static void counting_rank(struct mc_mesh *mesh, void *arg)
{
    struct cell *c = arg;
    struct rig r = {0};
    struct mc_err err = {0};
    double loss, logits;
    mc_status st = rank_open(c, mesh, MC_GRAPH_TRAIN, &r, &err);
    take_weights(c, mesh->rank, &r);
    for (int i = 0; i < 6 && st == MC_OK; i++) {
        barrier(mesh);
        uint64_t calls = mc_mem_stats().calls;
        barrier(mesh);
        st = step(c, mesh, &r, &loss, &logits, &err);
        barrier(mesh);
        c->loss[mesh->rank] = (double)(mc_mem_stats().calls - calls);
        barrier(mesh);
    }
    if (st != MC_OK)
        note(c, mesh->rank, "step", &err);
    rig_close(&r);
}

static void a_pass_allocates_nothing(void **st)
{
    struct model *m = qwen();
    struct cell c = {.threads = 1, .tp = 4, .dp = 1, .micro = 2};
    struct batch b;
    struct mc_layout l;
    struct mc_err err = {0};
    const int size[MC_NAXES] = {4, 1, 1, 1, 1};
    (void)st;
    reference(&c, m, &b);
    m->r.parallel.sp = 1;
    m->r.parallel.recompute = MC_RECOMPUTE_BLOCK;
    check_ok(mc_layout_init(&l, MC_ORDER_DEFAULT, size, 4, &err), &err);
    check_ok(mc_test_mesh(&l, deadline, counting_rank, &c, &err), &err);
    for (int r = 0; r < 4; r++) {
        assert_string_equal(c.failed[r], "");
        if (c.loss[r] != 0)
            fail_msg("rank %d: %g calls", r, c.loss[r]);
    }
    forget(&c);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_layout_equals_one_rank_in_fp64),
                                       cmocka_unit_test(any_layout_equals_one_rank_in_fp32),
                                       cmocka_unit_test(replicas_add_up),
                                       cmocka_unit_test(recomputed_ops_and_threads_change_nothing),
                                       cmocka_unit_test(text_is_the_same_on_any_layout),
                                       cmocka_unit_test(a_missing_rank_ends_the_pass),
                                       cmocka_unit_test(a_pass_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
