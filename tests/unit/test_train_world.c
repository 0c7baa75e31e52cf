/* test_train_world.c - votes, sums, words and gathered bytes among ranks, which are threads here.
 * links: mc_train test_threads
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/par/layout.h"
#include "../../core/train/world.h"
#include "../support/comm_threads.h"

enum { WORLD = 6 };
struct seen {
    int calls; /* made wrong */
    mc_status st[WORLD];
    int sound[WORLD];
    char msg[WORLD][200];
    int failing; /* bits of ranks that vote no */
};

static void run(int tp, int dp, void (*fn)(struct mc_mesh *, void *), void *arg)
{
    int size[MC_NAXES] = {tp, 1, 1, dp, 1};
    struct mc_layout l;
    struct mc_err e = {0};
    assert_int_equal(mc_layout_init(&l, MC_ORDER_DEFAULT, size, tp * dp, &e), MC_OK);
    if (mc_test_mesh(&l, INT64_C(20000000000), fn, arg, &e) != MC_OK)
        fail_msg("%s", e.msg);
}

static void one_vote(struct mc_mesh *mesh, void *arg)
{
    struct seen *s = arg;
    struct mc_world w = mc_world_of(mesh, NULL);
    struct mc_err e = {0};
    mc_status mine = MC_OK;
    int no = s->failing >> w.rank & 1, sound = no && w.rank % 2;
    if (no)
        mine = mc_err_set(&e, w.rank == 4 ? MC_E_NOSPC : MC_E_IO, "disk of %d", w.rank);
    s->st[w.rank] = mc_world_vote(&w, mine, &sound, &e);
    s->sound[w.rank] = sound;
    snprintf(s->msg[w.rank], sizeof s->msg[0], "%.199s", e.msg);
}

static void the_lowest_no_is_everybodys(void **state)
{
    static struct seen s;
    (void)state;
    for (int failing = 0; failing < 1 << WORLD; failing++) {
        memset(&s, 0, sizeof s);
        s.failing = failing;
        run(2, 3, one_vote, &s);
        int who = 0;
        while (failing && !(failing >> who & 1))
            who++;
        for (int r = 0; r < WORLD; r++) {
            mc_status want = !failing ? MC_OK : who == 4 ? MC_E_NOSPC : MC_E_IO;
            char text[64] = "";
            assert_int_equal(s.st[r], want);
            assert_int_equal(s.sound[r], failing ? who % 2 : 0);
            if (failing)
                snprintf(text, sizeof text, r == who ? "disk of %d" : "rank %d: disk of %d", who,
                         who);
            assert_string_equal(s.msg[r], text);
        }
    }
}

static void exchange(struct mc_mesh *mesh, void *arg)
{
    struct seen *s = arg;
    struct mc_world w = mc_world_of(mesh, NULL);
    struct mc_err e = {0};
    int me = w.rank, bad = 0;
    double v[3] = {me + 1, 0.5, me == 2 ? 7 : 0};
    uint64_t u[1] = {UINT64_MAX - (uint64_t)me};
    int64_t word[2] = {me * 100 + 5, me};
    bad |= mc_world_sum(&w, v, 3, &e) != MC_OK || v[0] != 21 || v[1] != 3 || v[2] != 7;
    bad |= mc_world_sum_u64(&w, u, 1, &e) != MC_OK || u[0] != (uint64_t)-6 - 15;
    bad |= mc_world_tell(&w, word, sizeof word, &e) != MC_OK || word[0] != 5 || word[1] != 0;
    /* rank r sends r * 1000 bytes of r; rank 3 nothing */
    static unsigned char bytes[WORLD][WORLD * 1000];
    memset(bytes[me], me, sizeof bytes[me]);
    void *all = NULL;
    int64_t *count = NULL;
    bad |= mc_world_gather(&w, me == 3 ? NULL : bytes[me], me * 1000, &all, &count, &e) != MC_OK;
    bad |= (all != NULL) != (me == 0) || (count != NULL) != (me == 0);
    if (me == 0 && all && count) {
        const unsigned char *p = all;
        for (int r = 0; r < WORLD; r++) {
            int64_t n = r == 3 ? 0 : r * 1000;
            bad |= count[r] != n;
            for (int64_t i = 0; i < n; i++)
                bad |= *p++ != r;
        }
    }
    mc_free(all);
    mc_free(count);
    bad |= w.counts != (me % 2 == 0) || w.replica != me / 2 || w.replicas != 3 || w.size != WORLD;
    s->st[me] = bad ? MC_E_BUG : MC_OK;
}

static void what_is_exchanged_is_right(void **state)
{
    static struct seen s;
    (void)state;
    memset(&s, 0, sizeof s);
    run(2, 3, exchange, &s);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(s.st[r], MC_OK);
}

static void one_rank_is_the_identity(void **state)
{
    struct mc_world w = mc_world_of(NULL, NULL);
    struct mc_err e = {0};
    double v = 3;
    (void)state;
    assert_int_equal(mc_world_sum(&w, &v, 1, &e), MC_OK);
    assert_true(v == 3 && w.counts && w.size == 1 && w.replicas == 1);
    assert_int_equal(mc_world_vote(&w, MC_E_IO, NULL, &e), MC_E_IO);
    assert_int_equal(mc_world_vote(&w, MC_OK, NULL, &e), MC_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_is_the_identity),
        cmocka_unit_test(the_lowest_no_is_everybodys),
        cmocka_unit_test(what_is_exchanged_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
