/* test_stages.c - the cut of a pipeline against all cuts there are; costs of stages against graphs
 * of whole stages. links: mc_plan */
#include "graph_help.h"
#include "../../core/base/clock.h"
#include "../../core/plan/balance.h"
#include "../../core/plan/stages.h"

static uint64_t g_x = 88172645463325252u;
static int dice(int n)
{
    g_x ^= g_x << 13, g_x ^= g_x >> 7, g_x ^= g_x << 17;
    return (int)(g_x % (uint64_t)n);
}

/* -- All cuts, one after the other --------------------------------------------------------------
 */

struct brute {
    const struct mc_balance *b;
    int S, cut[16], best[16];
    double stage, most; /* the largest of best */
    double least;       /* the least largest rank of all cuts, from a first look; 0: this is it */
    double share[16];   /* distances from even shares, of best */
    int seen;
};

static void weigh(struct brute *x)
{
    const struct mc_balance *b = x->b;
    double rank[16] = {0}, all = 0, most = 0, stage = 0, at = b->work[0], share[16];
    int later = 0;
    for (int k = 0; k < b->layers + 2; k++)
        all += b->work[k];
    for (int r = 0; r < b->ranks; r++)
        for (int c = 0; c < b->chunks; c++) {
            int s = b->place ? b->place[r * b->chunks + c] : c * b->ranks + r;
            double own = s == 0 ? b->work[0] : 0;
            own += s == x->S - 1 ? b->work[b->layers + 1] : 0;
            for (int l = x->cut[s]; l < x->cut[s + 1]; l++)
                own += b->work[l + 1];
            rank[r] += own;
            stage = fmax(stage, own);
        }
    for (int r = 0; r < b->ranks; r++)
        most = fmax(most, rank[r]);
    if (x->least == 0) {
        x->most = x->seen++ && x->most < most ? x->most : most;
        return;
    }
    if (most * 50 > x->least * 51)
        return;
    double stem = b->work[0], head = b->work[b->layers + 1];
    int n = x->S, skip = 0;
    if (head * n > all)
        all -= head, n--;
    if (stem * n > all)
        all -= stem, n--, skip = 1, at = 0;
    for (int s = 0; s < x->S - 1; s++) {
        for (int l = x->cut[s]; l < x->cut[s + 1]; l++)
            at += b->work[l + 1];
        share[s] = fabs(at * n - (s + 1 - skip) * all);
    }
    if (x->seen++) {
        int same = stage == x->stage && most == x->most;
        if (stage > x->stage || (stage == x->stage && most > x->most))
            return;
        for (int s = 0; same && s < x->S - 1 && later == 0; s++)
            later = share[s] != x->share[s] ? (share[s] < x->share[s] ? -1 : 1)
                                            : x->cut[s + 1] - x->best[s + 1];
        if (same && later >= 0)
            return;
    }
    x->stage = stage;
    x->most = most;
    memcpy(x->best, x->cut, sizeof x->best);
    memcpy(x->share, share, sizeof share);
}

static void all_cuts(struct brute *x, int s)
{
    if (s == x->S - 1) {
        x->cut[x->S] = x->b->layers;
        weigh(x);
        return;
    }
    int end = x->b->layers - (x->S - 2 - s); /* the inner stages after it have one each */
    for (x->cut[s + 1] = x->cut[s] + (s > 0); x->cut[s + 1] <= end; x->cut[s + 1]++) {
        all_cuts(x, s + 1);
    }
}

static void against_all_cuts(void **state)
{
    (void)state;
    static const int shape[][2] = {{2, 1}, {3, 1}, {5, 1}, {2, 2}, {3, 2}, {2, 3}, {4, 2}, {1, 3}};
    int turned = 0;
    for (int round = 0; round < 1600; round++) {
        const int *at = shape[round % 8], p = at[0], v = at[1], S = p * v;
        int place[16], L = S - 2 + dice(10 - S / 2), kind = round / 8 % 4, cut[17], proven;
        double work[32];
        for (int r = 0; r < p; r++) /* loop, v, anything */
            for (int c = 0; c < v; c++)
                place[r * v + c] = c * p + (round % 3 && c % 2 ? p - 1 - r : r);
        for (int k = S - 1; k > 0 && round % 3 == 2; k--) {
            int j = dice(k + 1), t = place[k];
            place[k] = place[j], place[j] = t;
        }
        for (int k = 0; k < L + 2; k++) /* alike, two kinds, many kinds */
            work[k] = kind == 0 ? 3 : kind == 1 ? 2 + 3 * (k % 2) : 1 + dice(kind == 2 ? 4 : 1000);
        work[0] = dice(4);
        work[L + 1] = dice(3) ? dice(20) : 0;
        struct mc_balance b = {L, p, v, round % 3 ? place : NULL, work};
        struct brute x = {.b = &b, .S = S};
        all_cuts(&x, 0);
        x.least = x.most;
        x.seen = 0;
        all_cuts(&x, 0);
        assert_int_equal(mc_balance_cut(&b, cut, &proven, NULL), MC_OK);
        assert_true(proven);
        for (int s = 0; s <= S; s++)
            if (cut[s] != x.best[s])
                fail_msg("round %d, %d layers, %d x %d: stage %d begins at %d, should at %d", round,
                         L, p, v, s, cut[s], x.best[s]);
        turned += v > 1 && kind > 1;
    }
    assert_true(turned > 300);
}

static void large_ones_are_quick(void **state)
{
    (void)state;
    double work[514];
    int cut[513], proven;
    for (int k = 0; k < 514; k++)
        work[k] = k == 0 ? 0 : 16;
    work[119] = 37;
    int64_t begun = mc_clock_ns();
    struct mc_balance b = {118, 64, 1, NULL, work};
    assert_int_equal(mc_balance_cut(&b, cut, &proven, NULL), MC_OK);
    assert_true(proven && cut[64] == 118);
    /* 118 x 16 + 37 over 64: no rank can have less than two layers; the head goes alone */
    for (int s = 0; s < 64; s++)
        assert_true(cut[s + 1] - cut[s] <= 2);
    assert_int_equal(cut[64] - cut[63], 0);
    b = (struct mc_balance){510, 64, 4, NULL, work};
    for (int k = 1; k < 512; k++) /* measured: no two alike */
        work[k] = 1000 + dice(100);
    assert_int_equal(mc_balance_cut(&b, cut, NULL, NULL), MC_OK);
    double rank[64] = {0}, mean = 0, most = 0;
    for (int s = 0; s < 256; s++) {
        assert_true(cut[s + 1] > cut[s] || s == 0 || s == 255);
        for (int l = cut[s]; l < cut[s + 1]; l++)
            rank[s % 64] += work[l + 1];
    }
    rank[63] += work[511];
    for (int r = 0; r < 64; r++)
        mean += rank[r] / 64, most = fmax(most, rank[r]);
    assert_true(most < 1.13 * mean); /* 8 layers a rank, one more or less is an eighth */
    assert_true(mc_clock_ns() - begun < INT64_C(20000000000)); /* with a sanitizer, too */
    struct mc_err err = {0};
    b = (struct mc_balance){5, 4, 2, NULL, work};
    assert_int_equal(mc_balance_cut(&b, cut, NULL, &err), MC_E_RECIPE);
    assert_non_null(strstr(err.msg, "5 are too few for 8 stages"));
}

/* -- A model ------------------------------------------------------------------------------------
 */

static double flops_of(struct mc_recipe *r, int from, int to, int stem, int head, int64_t t)
{
    struct mc_graph *g;
    struct mc_graph_cfg cfg = {.recipe = r,
                               .mode = MC_GRAPH_TRAIN,
                               .bound = {.b = r->batch.micro, .t = r->model.seq, .pos0 = 0},
                               .nparts = 1,
                               .part = {{from, to, stem, head, 1}},
                               .threads = 1};
    assert_int_equal(mc_graph_build(&cfg, &g, NULL), MC_OK);
    double n = mc_graph_flops(g, t == r->model.seq ? r->batch.micro : 1, t);
    mc_graph_destroy(g);
    return n;
}

static void costs_are_those_of_whole_stages(void **state)
{
    (void)state;
    const struct sizes s = {6, 16, 4, 2, 4, 24, 40, 8};
    struct model *m = llama(&s);
    struct mc_recipe *r = &m->r;
    double f[4], i[4], w[4];
    int cut[5];
    /* a second kind of block, with a window and a narrower ffn */
    const struct sizes thin = {6, 16, 4, 2, 4, 8, 40, 8};
    struct model *other = llama(&thin);
    for (int k = 0; k < other->block.n; k++)
        if (strcmp(other->block.call[k].op, "attention") == 0) {
            struct mc_call *c = &other->block.call[k];
            snprintf(c->attr[c->nattrs].key, sizeof c->attr[0].key, "window");
            c->attr[c->nattrs].kind = MC_V_NUM;
            c->attr[c->nattrs++].num = 3;
        }
    m->blocks[1] = (struct mc_func){other->block.n, other->block.call};
    r->model.nblocks = 2;
    m->layer_block[1] = m->layer_block[2] = m->layer_block[5] = 1;
    r->batch.micro = 3;
    r->parallel.pp = 2;
    r->parallel.chunks = 2;
    snprintf(r->parallel.stages, sizeof r->parallel.stages, "0,4,1,1");
    assert_int_equal(mc_stages_cut(r, NULL, cut, NULL), MC_OK);
    static const int want[5] = {0, 0, 4, 5, 6};
    assert_memory_equal(cut, want, sizeof want);
    assert_int_equal(mc_stages_cost(r, cut, 4, f, i, w, NULL), MC_OK);
    assert_true(f[0] == 0 && i[0] == 0 && w[0] == 0); /* an embedding multiplies nothing */
    for (int k = 1; k < 4; k++) {
        double all = flops_of(r, cut[k], cut[k + 1], 0, k == 3, 8);
        assert_true(fabs(f[k] + i[k] + w[k] - all) < 1e-9 * all);
        assert_true(fabs(3 * f[k] - all) < 1e-9 * all);
        /* by hand: q, o, k and v, the three of the ffn, the head; and attention, twice 2 T T/2 */
        double rows = 3 * 8, weights = k == 3 ? 2 * rows * 16 * 40 : 0;
        for (int l = cut[k]; l < cut[k + 1]; l++)
            weights +=
                2 * rows * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * (m->layer_block[l] ? 8 : 24));
        assert_true(fabs(w[k] - weights) < 1e-9 * weights);
    }
    /* recomputed: of a block all products but the last, whose result nobody reads again */
    double i2[4], f2[4];
    r->parallel.recompute = MC_RECOMPUTE_BLOCK;
    assert_int_equal(mc_stages_cost(r, cut, 4, f2, i2, w, NULL), MC_OK);
    for (int k = 0; k < 4; k++) {
        double again = f[k] - (k == 3 ? 2 * 3 * 8 * 16 * 40 : 0);
        for (int l = cut[k]; l < cut[k + 1]; l++)
            again -= 2 * 3 * 8 * 16 * (m->layer_block[l] ? 8 : 24);
        assert_true(f2[k] == f[k] && fabs(i2[k] - i[k] - again) < 1e-9 * (1 + f[k]));
    }
    r->parallel.recompute = MC_RECOMPUTE_NONE;
    snprintf(r->parallel.stages, sizeof r->parallel.stages, "even");
    struct mc_err err = {0};
    assert_int_equal(mc_stages_cut(r, NULL, cut, &err), MC_E_RECIPE);
    assert_non_null(strstr(err.msg, "parallel.stages = \"auto\", or a list"));
    r->parallel.chunks = 1;
    assert_int_equal(mc_stages_cut(r, NULL, cut, NULL), MC_OK);
    assert_true(cut[1] == 3 && cut[2] == 6);
    mc_free(other);
    mc_free(m);
    /* auto: the head is 2.7 layers, so the last rank has less of them; the first has 4 of 8.7 */
    const struct sizes wide = {6, 16, 4, 2, 4, 24, 40 * 8, 8};
    m = llama(&wide);
    r = &m->r;
    r->batch.micro = 1;
    r->parallel.pp = 2;
    r->parallel.chunks = 1;
    snprintf(r->parallel.stages, sizeof r->parallel.stages, "auto");
    assert_int_equal(mc_stages_cut(r, NULL, cut, NULL), MC_OK);
    assert_true(cut[0] == 0 && cut[1] == 4 && cut[2] == 6);
    mc_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_all_cuts),
        cmocka_unit_test(large_ones_are_quick),
        cmocka_unit_test(costs_are_those_of_whole_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
