/* test_ckpt_diff.c - checkpoints of other cuts compared, against sums made here in the plain way.
 * links: mc_ckpt
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../ckpt/ckpt.h"
#include "../../core/base/arena.h"

enum { ROWS = 1500, COLS = 2000, SMALL = 50 }; /* the large one: more than a block */
static char g_dir[64];
static float *g_big, g_small[SMALL];

static int make_dir(void **state)
{
    (void)state;
    snprintf(g_dir, sizeof g_dir, "/tmp/mc_ckpt_XXXXXX");
    g_big = malloc(sizeof *g_big * ROWS * COLS);
    for (int i = 0; i < ROWS * COLS; i++)
        g_big[i] = (float)(i % 1013) * 1e-3f - 0.5f;
    for (int i = 0; i < SMALL; i++)
        g_small[i] = 1e-9f * (float)i;
    return g_big && mkdtemp(g_dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    char cmd[128];
    (void)state;
    free(g_big);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", g_dir);
    return system(cmd);
}

static void ok(mc_status st, const struct mc_err *e)
{
    if (st != MC_OK)
        fail_msg("%s: %s [%s]", mc_status_name(st), e->msg, e->trail);
}

/* cuts: the large tensor in so many boxes of rows; extra: one more tensor. */
static struct mc_ckpt *save(int64_t step, int cuts, int extra, int64_t dim)
{
    struct mc_err e = {0};
    struct mc_state_tensor t[8] = {0};
    struct mc_shape big = mc_shape_2(ROWS, COLS), small = mc_shape_1(dim);
    char path[1100], books[40];
    struct mc_ckpt *c;
    int n = 0;
    snprintf(books, sizeof books, "{\"step\":%lld}", (long long)step);
    for (int k = 0; k < cuts; k++) {
        struct mc_state_tensor *x = &t[n++];
        *x = (struct mc_state_tensor){
            .name = "model/big", .dtype = MC_F32, .shape = big, .box = mc_box_whole(&big)};
        x->box.lo[0] = ROWS * k / cuts;
        x->box.n[0] = ROWS * (k + 1) / cuts - x->box.lo[0];
        x->data = g_big + x->box.lo[0] * COLS;
    }
    for (int k = 0; k < 1 + extra; k++) {
        t[n] = (struct mc_state_tensor){
            .dtype = MC_F32, .shape = small, .box = mc_box_whole(&small), .data = g_small};
        snprintf(t[n++].name, sizeof t[0].name, k ? "model/extra" : "model/small");
    }
    struct mc_ckpt_save s = {.ckpt_dir = g_dir,
                             .step = step,
                             .epoch = 1,
                             .tensor = t,
                             .ntensors = n,
                             .books = books,
                             .compress = cuts % 2};
    ok(mc_ckpt_save(&s, &e), &e);
    ok(mc_ckpt_resolve(g_dir, step, path, &e), &e);
    ok(mc_ckpt_open(path, &c, &e), &e);
    return c;
}

static void any_cut_and_one_changed_element(void **state)
{
    struct mc_err e = {0};
    struct mc_ckpt_diff *r;
    double norm = 0, largest;
    int n;
    (void)state;
    struct mc_ckpt *a = save(1, 1, 0, SMALL), *b = save(2, 3, 0, SMALL);
    ok(mc_ckpt_diff(a, b, &r, &n, &e), &e);
    assert_int_equal(n, 2);
    assert_true(r[0].bitwise && r[1].bitwise && r[0].deviation == 0 && r[0].in_a && r[0].in_b);
    mc_free(r);
    /* in the last block, and in the small tensor */
    float was = g_big[ROWS * COLS - 1], was_small = g_small[7];
    g_big[ROWS * COLS - 1] += 0.125f;
    g_small[7] += 1e-9f;
    largest = (double)g_big[ROWS * COLS - 1] - (double)was;
    struct mc_ckpt *c = save(3, 4, 1, SMALL);
    ok(mc_ckpt_diff(a, c, &r, &n, &e), &e);
    g_big[ROWS * COLS - 1] = was;
    for (int i = 0; i < ROWS * COLS; i++)
        norm += (double)g_big[i] * (double)g_big[i];
    assert_int_equal(n, 3);
    assert_string_equal(r[0].name, "model/big");
    assert_true(!r[0].bitwise && fabs(r[0].apart - largest) < 1e-12 && r[0].largest == largest);
    assert_true(fabs(r[0].norm - sqrt(norm)) < 1e-9 * sqrt(norm));
    assert_true(fabs(r[0].deviation - largest / sqrt(norm)) < 1e-12);
    assert_string_equal(r[1].name, "model/extra");
    assert_true(!r[1].in_a && r[1].in_b && isinf(r[1].deviation));
    /* what is all but zero beside the others is measured by them */
    assert_string_equal(r[2].name, "model/small");
    assert_true(!r[2].bitwise && r[2].deviation > 0);
    double least = 1e-3 * sqrt(norm * SMALL / (ROWS * COLS + 2 * SMALL)),
           moved = (double)g_small[7] - (double)was_small;
    assert_true(fabs(r[2].deviation - moved / least) < 1e-3 * r[2].deviation);
    g_small[7] = was_small;
    mc_free(r);
    mc_ckpt_close(a);
    mc_ckpt_close(b);
    mc_ckpt_close(c);
}

static void other_models_are_refused(void **state)
{
    struct mc_err e = {0};
    struct mc_ckpt_diff *r;
    int n;
    (void)state;
    struct mc_ckpt *a = save(11, 1, 0, SMALL), *b = save(12, 1, 0, SMALL - 1);
    assert_int_equal(mc_ckpt_diff(a, b, &r, &n, &e), MC_E_USAGE);
    assert_non_null(strstr(e.msg, "model/small"));
    mc_ckpt_close(a);
    mc_ckpt_close(b);
}

static void not_a_number_is_a_difference_unless_the_same(void **state)
{
    struct mc_err e = {0};
    struct mc_ckpt_diff *r;
    int n;
    (void)state;
    struct mc_ckpt *a = save(21, 1, 0, SMALL);
    float was = g_small[3];
    g_small[3] = NAN;
    struct mc_ckpt *b = save(22, 1, 0, SMALL), *c = save(23, 2, 0, SMALL);
    g_small[3] = was;
    ok(mc_ckpt_diff(a, b, &r, &n, &e), &e);
    assert_true(isinf(r[1].deviation) && !r[1].bitwise);
    mc_free(r);
    ok(mc_ckpt_diff(b, c, &r, &n, &e), &e);
    assert_true(r[1].bitwise && r[1].deviation == 0);
    mc_free(r);
    mc_ckpt_close(a);
    mc_ckpt_close(b);
    mc_ckpt_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_and_one_changed_element),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(not_a_number_is_a_difference_unless_the_same),
    };
    return cmocka_run_group_tests_name("ckpt_diff", tests, make_dir, drop_dir);
}
