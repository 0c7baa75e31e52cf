/* test_shard.c - the cut of parameters over data-parallel ranks: whole rows, each once, near even.
 * links: mc_optim
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/optim/shard.h"

/* ---- a graph that is only its parameters, in buckets ---- */

enum { MAXP = 24, MAXB = 8 };
struct mc_graph {
    int n, nbuckets;
    struct mc_param p[MAXP];
    int64_t begin[MAXB + 1];
};

int mc_graph_nparams(const struct mc_graph *g)
{
    return g->n;
}

const struct mc_param *mc_graph_param(const struct mc_graph *g, int i)
{
    return &g->p[i];
}

int64_t mc_graph_flat_count(const struct mc_graph *g)
{
    return g->begin[g->nbuckets];
}

int mc_graph_nbuckets(const struct mc_graph *g)
{
    return g->nbuckets;
}

void mc_graph_bucket(const struct mc_graph *g, int bucket, int64_t *offset, int64_t *count)
{
    *offset = g->begin[bucket];
    *count = g->begin[bucket + 1] - g->begin[bucket];
}

static uint64_t g_seed;
static int64_t draw(int64_t n)
{
    g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((g_seed >> 33) % (uint64_t)n);
}

/* Vectors and matrices, some the part of a larger tensor, some padded, some empty, with gaps. */
static void make(struct mc_graph *g, uint64_t seed)
{
    g_seed = seed;
    memset(g, 0, sizeof *g);
    g->nbuckets = 1 + (int)draw(MAXB);
    for (int b = 0; b < g->nbuckets; b++) {
        int64_t at = g->begin[b];
        for (int k = 0; k < 3; k++) {
            struct mc_param *p = &g->p[g->n++];
            int64_t rows = 1 + draw(40), cols = draw(3) ? 1 + draw(20) : 0;
            snprintf(p->name, sizeof p->name, "p%d", g->n);
            p->shape = cols ? mc_shape_2(rows * 2, cols) : mc_shape_1(rows * 2);
            p->box = mc_box_whole(&p->shape);
            p->box.lo[0] = rows;
            p->box.n[0] = rows;
            p->count = rows * (cols ? cols : 1);
            p->stored = p->count + (draw(4) ? 0 : draw(30));
            if (draw(9) == 0) {
                p->stored = p->count;
                p->count = 0;
                p->box.n[0] = 0;
            }
            at += draw(2) ? 0 : draw(16);
            p->offset = at;
            at += p->stored;
        }
        g->begin[b + 1] = at + draw(8);
    }
}

static void cuts_are_whole_rows_in_order(const struct mc_graph *g, const struct mc_shard *s)
{
    for (int b = 0; b < g->nbuckets; b++) {
        const int64_t *cut = s->cut + b * (s->parts + 1);
        int64_t largest = 0, sum = 0;
        for (int i = 0; i < g->n; i++)
            if (g->p[i].offset >= g->begin[b] && g->p[i].offset < g->begin[b + 1]) {
                int64_t span = mc_shard_row(&g->p[i]) + g->p[i].stored - g->p[i].count + 16;
                largest = span > largest ? span : largest;
            }
        assert_int_equal(cut[0], g->begin[b]);
        assert_int_equal(cut[s->parts], g->begin[b + 1]);
        for (int k = 0; k < s->parts; k++) {
            int64_t n = s->count[b * s->parts + k], even = (cut[s->parts] - cut[0]) / s->parts;
            assert_true(cut[k] <= cut[k + 1] && n == cut[k + 1] - cut[k]);
            assert_true(n <= even + 2 * largest + 1); /* near even */
            sum += n;
        }
        assert_int_equal(sum, g->begin[b + 1] - g->begin[b]);
    }
}

/* owner[e]: how many ranks own element e. */
static void own(const struct mc_graph *g, const struct mc_shard *s, unsigned char *owner)
{
    int64_t end = 0; /* of the state so far */
    for (int i = 0; i < s->npieces; i++) {
        const struct mc_shard_piece *x = &s->piece[i];
        const struct mc_param *p = &g->p[x->param];
        struct mc_box box = mc_shard_box(p, x->row, x->rows);
        assert_true(x->rows >= 1 && x->count == x->rows * mc_shard_row(p));
        assert_int_equal(x->flat, p->offset + x->row * mc_shard_row(p));
        assert_int_equal(mc_box_count(&box), x->count);
        assert_true(box.lo[0] >= p->box.lo[0] &&
                    box.lo[0] + box.n[0] <= p->box.lo[0] + p->box.n[0]);
        assert_true(x->state >= end && x->state + x->count <= s->state_count);
        if (!s->split)
            assert_int_equal(x->state, x->flat);
        end = x->state + x->count;
        for (int64_t e = x->flat; e < x->flat + x->count; e++)
            owner[e]++;
    }
}

static void every_row_has_one_owner(void **state)
{
    static struct mc_graph g;
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++)
        for (int parts = 1; parts <= 7; parts++)
            for (int split = 0; split < 2; split++) {
                make(&g, seed);
                int64_t flat = mc_graph_flat_count(&g), kept = 0;
                unsigned char *owner = mc_alloc((size_t)flat + 1, "test");
                for (int me = 0; me < parts; me++) {
                    struct mc_shard *s;
                    assert_int_equal(mc_shard_create(&g, parts, me, split, &s, NULL), MC_OK);
                    cuts_are_whole_rows_in_order(&g, s);
                    own(&g, s, owner);
                    kept += s->state_count;
                    if (!split)
                        assert_int_equal(s->state_count, flat);
                    mc_shard_destroy(s);
                }
                if (split) /* the flat buffer once, and at most the alignment of every range */
                    assert_true(kept >= flat && kept <= flat + 16 * parts * g.nbuckets);
                for (int i = 0; i < g.n; i++)
                    for (int64_t e = g.p[i].offset; e < g.p[i].offset + g.p[i].stored; e++)
                        assert_int_equal(owner[e], e < g.p[i].offset + g.p[i].count);
                mc_free(owner);
            }
}

static void cuts_of_a_small_bucket(void **state)
{
    /* one matrix [5, 4] at 0 and a vector of 3 at 24, in a bucket of 32: ideals 8, 16, 24 */
    static struct mc_graph g;
    struct mc_shard *s;
    (void)state;
    memset(&g, 0, sizeof g);
    g.n = 2;
    g.nbuckets = 1;
    g.begin[1] = 32;
    g.p[0] = (struct mc_param){.shape = mc_shape_2(5, 4), .count = 20, .stored = 20};
    g.p[0].box = mc_box_whole(&g.p[0].shape);
    g.p[1] = (struct mc_param){.shape = mc_shape_1(3), .count = 3, .stored = 3, .offset = 24};
    g.p[1].box = mc_box_whole(&g.p[1].shape);
    assert_int_equal(mc_shard_create(&g, 4, 1, 1, &s, NULL), MC_OK);
    const int64_t want[5] = {0, 8, 16, 24, 32};
    assert_memory_equal(s->cut, want, sizeof want);
    assert_int_equal(s->npieces, 1);
    assert_int_equal(s->piece[0].row, 2);
    assert_int_equal(s->piece[0].rows, 2);
    assert_int_equal(s->piece[0].state, 0);
    assert_int_equal(s->state_count, 8);
    mc_shard_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_of_a_small_bucket),
        cmocka_unit_test(every_row_has_one_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
