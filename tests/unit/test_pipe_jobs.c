/* test_pipe_jobs.c - jobs of a pipeline beside the bits of one: replicas of two sizes, what a job
 * allocates, forward alone, text, padding, failures.
 * links: test_threads mc_lua mc_pipe */
#include "pipe_help.h"

/* Two replicas, one with a microbatch less; and one line for both. Jobs repeat and allocate
 * nothing. */
static void replicas_of_two_sizes_and_no_allocation(void **state)
{
    (void)state;
    struct model *m = model_of(1, MC_F32);
    static struct ref five, four;
    make_batch(m);
    ref_open(&five, m, 1, 5 * MICRO);
    ref_open(&four, m, 1, 4 * MICRO - 1);
    for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
        static struct cell c;
        if (all[a].groups)
            continue;
        struct mc_sched *s[2] = {bundled(all[a].name, 4, all[a].v, 4),
                                 bundled(all[a].name, 4, all[a].v, 5)};
        struct mc_line *line = line_with(s, 2, 0, 0);
        memset(&c, 0, sizeof c);
        c.ref = &five;
        c.other = &four;
        c.line = line;
        c.repeat = 2;
        c.tp = 1;
        c.dp = 2;
        run_mesh(1, 2, 4, pipe_rank, &c);
        const char *why = check_cells(&c);
        if (why)
            fail_msg("%s: %s", all[a].name, why);
        for (int r = 0; r < 8; r++)
            if (c.calls[r] != 0)
                fail_msg("%s: %lld calls of the allocator in a job", all[a].name,
                         (long long)c.calls[r]);
        mc_line_destroy(line);
    }
    ref_close(&five);
    ref_close(&four);
    mc_free(m);
}

/* -- Forward alone, text ---------------------------------------------------------------------- */

struct eval {
    struct model *m;
    const struct mc_line *line;
    int64_t own;
    double want[MOST], loss[RANKS][MOST];
    int32_t text[8];
    double logits[RANKS][8][64], want_logits[8][64];
};

static void eval_rank(struct mc_mesh *mesh, void *arg)
{
    struct eval *x = arg;
    struct stage s = {0};
    struct rig infer = {0};
    struct mc_err err = {0};
    int rank = mesh->rank;
    mc_status st = stage_open(x->m, x->line, MC_GRAPH_EVAL, mesh, &s, &err);
    struct mc_graph_cfg cfg = part_cfg(x->m, x->line, MC_GRAPH_INFER, mesh, 1);
    struct mc_pipe_job job = {.graph = s.r.g,
                              .own = x->own,
                              .micro = MICRO,
                              .seq = g_batch.t,
                              .step = STEP,
                              .loss = x->loss[rank],
                              .microbatch = piece};
    memset(x->loss[rank], 0xff, sizeof x->loss[rank]);
    if (st == MC_OK)
        st = mc_pipe_forward(s.pipe, &job, &err);
    if (st == MC_OK)
        st = open_graph(x->m, &cfg, mesh, &infer, &err);
    for (int64_t pos = 0, n = 3; st == MC_OK && pos + n <= g_batch.t; pos += n, n = 1) {
        const void *logits = NULL;
        st = mc_pipe_infer(s.pipe, infer.g, x->text + pos, n, pos, &logits, &err);
        for (int64_t k = 0; st == MC_OK && k < x->m->r.model.vocab; k++)
            x->logits[rank][pos][k] = get(&infer, logits, k);
    }
    if (st == MC_OK && x->own > MICRO) { /* and again, after text */
        job.own = MICRO + 1;
        st = mc_pipe_forward(s.pipe, &job, &err);
        job.own = 0;
        if (st == MC_OK)
            st = mc_pipe_train(s.pipe, &job, &err); /* nothing runs */
    }
    if (st != MC_OK) {
        note(rank, "forward", &err);
        give_up(mesh);
    }
    if (infer.pool)
        rig_close(&infer);
    stage_close(&s);
}

static void want_eval(struct eval *x)
{
    struct rig e = rig_open(x->m, MC_GRAPH_EVAL, MICRO, g_batch.t, 1, 1, NULL);
    struct rig i = rig_open(x->m, MC_GRAPH_INFER, 1, g_batch.t, 1, 1, NULL);
    mc_graph_init_params(e.g, 77, x->m->r.precision, e.b.params);
    mc_graph_init_params(i.g, 77, x->m->r.precision, i.b.params);
    memset(x->want, 0, sizeof x->want);
    for (int64_t first = 0; first < x->own; first += MICRO) {
        struct mc_microbatch mb;
        piece(NULL, first, x->own - first < MICRO ? x->own - first : MICRO, 0, 0, &mb, NULL);
        pass_ok(mc_graph_forward(e.g, 0, &mb, STEP, &x->want[first / MICRO], NULL));
    }
    for (int64_t pos = 0, n = 3; pos + n <= g_batch.t; pos += n, n = 1) {
        const void *logits = infer(i.g, x->text + pos, n, pos);
        for (int64_t k = 0; k < x->m->r.model.vocab; k++)
            x->want_logits[pos][k] = get(&i, logits, k);
    }
    rig_close(&e);
    rig_close(&i);
}

static void forward_alone_and_text(void **state)
{
    (void)state;
    static struct eval x;
    static const int64_t owns[] = {1, MICRO, 3 * MICRO, 3 * MICRO + 1, 11 * MICRO - 1};
    for (int tied = 0; tied < 2; tied++) {
        x.m = model_of(tied, tied ? MC_F64 : MC_F32);
        make_batch(x.m);
        for (int k = 0; k < 8; k++)
            x.text[k] = (int32_t)(k * 7 % x.m->r.model.vocab);
        for (size_t o = 0; o < sizeof owns / sizeof *owns; o++)
            for (int a = -1; a < (int)(sizeof all / sizeof *all); a++)
                for (int p = 1; p <= 4; p += p == 1 ? 1 : 2) {
                    static const int cut[5] = {0, 2, 5, 6, 8}, one[3] = {0, 8}, two[3] = {0, 5, 8};
                    struct mc_line *line;
                    struct mc_sched *s;
                    struct mc_err err = {0};
                    if (a < 0) {
                        check_ok(mc_line_forward(p,
                                                 p == 1   ? one
                                                 : p == 2 ? two
                                                          : cut,
                                                 3, &line, &err),
                                 &err);
                    } else {
                        s = bundled(all[a].name, p, all[a].v, 4);
                        line = line_with(&s, 1, 0, 0);
                    }
                    x.line = line;
                    x.own = owns[o];
                    want_eval(&x);
                    run_mesh(1, 1, p, eval_rank, &x);
                    for (int r = 0; r < p; r++) {
                        int m = (int)((x.own + MICRO - 1) / MICRO);
                        const char *name = a < 0 ? "forward" : all[a].name;
                        if (g_failed[r][0])
                            fail_msg("%s p %d own %d: %s", name, p, (int)x.own, g_failed[r]);
                        for (int k = m > 1 ? 2 : 0; k < m; k++) /* two ran again */
                            if (x.loss[r][k] != (r == mc_line_head(line) ? x.want[k] : 0))
                                fail_msg("%s p %d own %d: loss %d", name, p, (int)x.own, k);
                        assert_memory_equal(x.logits[r], x.want_logits, sizeof x.want_logits);
                    }
                    mc_line_destroy(line);
                }
        mc_free(x.m);
    }
}

/* -- Time, notes, refusals -------------------------------------------------------------------- */

struct told {
    const struct ref *ref;
    const struct mc_line *line;
    double pad;
    int n[RANKS], last[RANKS], wrong[RANKS];
    struct mc_pipe_note note[RANKS][4 * MOST];
    int fails_at; /* the call of rank 1's callback that fails; 0: none */
    int called[RANKS];
    mc_status st[RANKS], again[RANKS];
    char msg[RANKS][1400];
};
struct listener {
    struct told *x;
    int rank;
};
static mc_status told_piece(void *arg, int64_t first, int64_t b, int op, int last,
                            struct mc_microbatch *mb, struct mc_err *err)
{
    struct listener *l = arg;
    l->x->last[l->rank] += last;
    l->x->wrong[l->rank] += last && op != MC_SCHED_B && op != MC_SCHED_W;
    if (l->rank == 1 && ++l->x->called[1] == l->x->fails_at)
        return mc_err_set(err, MC_E_CORRUPT, "no such luck");
    return piece(NULL, first, b, op, last, mb, err);
}
static void told_ran(void *arg, const struct mc_pipe_note *n)
{
    struct listener *l = arg;
    l->x->note[l->rank][l->x->n[l->rank]++] = *n;
}
static void told_rank(struct mc_mesh *mesh, void *arg)
{
    struct told *x = arg;
    struct listener l = {x, mesh->rank};
    struct stage s = {0};
    struct mc_err err = {0};
    static double losses[RANKS][MOST];
    mc_status st = stage_open(x->ref->m, x->line, MC_GRAPH_TRAIN, mesh, &s, &err);
    struct mc_pipe_job job = {.graph = s.r.g,
                              .own = x->ref->own,
                              .micro = MICRO,
                              .seq = g_batch.t,
                              .step = STEP,
                              .scale = 1,
                              .loss = losses[l.rank],
                              .pad_s = {x->pad, 2 * x->pad, x->pad, x->pad},
                              .arg = &l,
                              .microbatch = told_piece,
                              .ran = told_ran};
    barrier(mesh);
    if (st == MC_OK)
        st = mc_pipe_train(s.pipe, &job, &err);
    x->st[l.rank] = st;
    snprintf(x->msg[l.rank], sizeof x->msg[0], "%s", err.msg);
    if (st != MC_OK) {
        struct mc_err later = {0};
        give_up(mesh);
        x->again[l.rank] = mc_pipe_train(s.pipe, &job, &later);
        x->wrong[l.rank] += strcmp(later.msg, err.msg) != 0;
    }
    stage_close(&s);
}

/* Ops that sleep: what a cluster's times would give, on this machine. */
static void padded_ops_take_their_time(void **state)
{
    (void)state;
    static struct told x;
    static struct ref ref;
    struct model *m = model_of(0, MC_F32);
    make_batch(m);
    ref_open(&ref, m, 1, 6 * MICRO);
    static const char *const names[] = {"one_f_one_b", "zb_h1"};
    double span[2] = {0}, pad = 0.02;
    for (int k = 0; k < 2; k++) {
        struct mc_sched *s = bundled(names[k], 4, 1, 6);
        struct mc_line *line = line_with(&s, 1, 1, 0);
        double t[4] = {pad, pad, pad, pad};
        struct mc_sched_report want = {0};
        const struct mc_sched_costs costs = {.f = t, .i = t, .w = t, .depth = line->depth};
        check_ok(mc_sched_simulate(line->sched[0], &costs, &want, NULL), NULL);
        memset(&x, 0, sizeof x);
        x.ref = &ref;
        x.line = line;
        x.pad = pad;
        run_mesh(1, 1, 4, told_rank, &x);
        int64_t first = INT64_MAX, last = 0;
        for (int r = 0; r < 4; r++) {
            const struct mc_sched *sc = line->sched[0];
            assert_int_equal(x.st[r], MC_OK);
            assert_int_equal(x.last[r], 1);
            assert_int_equal(x.wrong[r], 0);
            assert_int_equal(x.n[r], sc->first[r + 1] - sc->first[r]);
            for (int i = 0; i < x.n[r]; i++) {
                const struct mc_pipe_note *n = &x.note[r][i];
                const struct mc_sched_rec *rec = &sc->rec[sc->first[r] + i];
                double took = (double)(n->end_ns - n->begin_ns - n->wait_ns) * 1e-9;
                assert_true(n->op == rec->op && n->mb == rec->mb && n->stage == r);
                assert_true(n->input_ns >= 0 && n->wait_ns >= n->input_ns);
                assert_true(took >= (rec->op == MC_SCHED_B ? 2 : 1) * pad);
                assert_true(i == 0 || n->begin_ns >= x.note[r][i - 1].end_ns);
                first = n->begin_ns < first ? n->begin_ns : first;
                last = n->end_ns > last ? n->end_ns : last;
            }
        }
        span[k] = (double)(last - first) * 1e-9;
        print_message("%s: %.3f s, simulated %.3f s\n", names[k], span[k], want.makespan);
        assert_true(span[k] >= want.makespan);
        assert_true(span[k] <= 2 * want.makespan);
        mc_line_destroy(line);
    }
    ref_close(&ref);
    mc_free(m);
}

static void what_fails_says_where(void **state)
{
    (void)state;
    static struct told x;
    static struct ref ref;
    struct model *m = model_of(0, MC_F32);
    struct mc_sched *s = bundled("one_f_one_b", 2, 1, 4);
    struct mc_line *line = line_with(&s, 1, 0, 0);
    make_batch(m);
    ref_open(&ref, m, 1, 4 * MICRO);
    x.ref = &ref;
    x.line = line;
    x.fails_at = 4;
    run_mesh(1, 1, 2, told_rank, &x);
    assert_int_equal(x.st[1], MC_E_CORRUPT);
    assert_string_equal(x.msg[1],
                        "pipeline rank 1, slot 3 (B of microbatch 1, chunk 0): no such luck");
    assert_int_equal(x.st[0], MC_E_PEER);
    assert_non_null(strstr(x.msg[0], "pipeline rank 0, slot "));
    assert_non_null(strstr(x.msg[0], "aborted"));
    for (int r = 0; r < 2; r++) {
        assert_int_equal(x.again[r], x.st[r]);
        assert_int_equal(x.wrong[r], 0);
    }
    ref_close(&ref);
    /* a number of microbatches that nobody proved */
    ref_open(&ref, m, 1, 5 * MICRO);
    memset(&x, 0, sizeof x);
    x.ref = &ref;
    x.line = line;
    run_mesh(1, 1, 2, told_rank, &x);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(x.st[r], MC_E_BUG);
        assert_non_null(strstr(x.msg[r], "no schedule of 5 microbatches"));
        assert_int_equal(x.called[r], 0);
    }
    ref_close(&ref);
    mc_line_destroy(line);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_of_two_sizes_and_no_allocation),
        cmocka_unit_test(forward_alone_and_text),
        cmocka_unit_test(padded_ops_take_their_time),
        cmocka_unit_test(what_fails_says_where),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
