/* diff.c - `mascon ckpt diff A B`: and what diff-run needs of it. Floor 8 (cli).
 *
 * I1  Exit 4 when a tensor deviates by more than the tolerance (0: when one bit differs), or is in
 *     one checkpoint alone.
 * Memory: the rows, until the answer is given. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 20 };

int mc_cli_diff_beyond(const struct mc_ckpt_diff *r, double tolerance)
{
    if (!r->in_a || !r->in_b)
        return 1;
    return tolerance > 0 ? !(r->deviation <= tolerance) : !r->bitwise;
}

mc_status mc_cli_diff_paths(const char *a, const char *b, struct mc_ckpt_diff **rows, int *n,
                            struct mc_err *err)
{
    struct mc_ckpt *x = NULL, *y = NULL;
    MC_TRY(mc_ckpt_open(a, &x, err));
    mc_status st = mc_ckpt_open(b, &y, err);
    if (st == MC_OK)
        st = mc_ckpt_diff(x, y, rows, n, err);
    mc_ckpt_close(x);
    mc_ckpt_close(st == MC_OK || y ? y : NULL);
    return st;
}

static int worst_first(const void *pa, const void *pb)
{
    const struct mc_ckpt_diff *a = pa, *b = pb;
    int ma = !a->in_a || !a->in_b, mb = !b->in_a || !b->in_b;
    if (ma != mb)
        return mb - ma;
    if (a->deviation != b->deviation)
        return a->deviation < b->deviation ? 1 : -1;
    return a->bitwise != b->bitwise ? a->bitwise - b->bitwise : strcmp(a->name, b->name);
}

void mc_cli_diff_json(const struct mc_ckpt_diff *r, struct mc_json *j)
{
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "name", r->name);
    mc_json_str(j, "in", r->in_a && r->in_b ? "both" : r->in_a ? "A" : "B");
    mc_json_bool(j, "bitwise", r->in_a && r->in_b && r->bitwise);
    mc_json_f64(j, "deviation", r->deviation); /* null: infinite */
    mc_json_f64(j, "apart", r->apart);
    mc_json_f64(j, "largest", r->largest);
    mc_json_f64(j, "norm", r->norm);
    mc_json_i64(j, "elements", r->count);
    mc_json_close(j, '}');
}

static void table(const struct mc_ckpt_diff *row, int n)
{
    printf("%-12s %-12s %-12s %-8s %s\n", "deviation", "||a-b||", "||a||", "bitwise", "tensor");
    for (int i = 0; i < n && i < SHOWN; i++) {
        const struct mc_ckpt_diff *r = &row[i];
        if (!r->in_a || !r->in_b)
            printf("%-12s %-12s %-12s %-8s %s\n", r->in_a ? "only in A" : "only in B", "", "", "",
                   r->name);
        else
            printf("%-12.3e %-12.3e %-12.3e %-8s %s\n", r->deviation, r->apart, r->norm,
                   r->bitwise ? "yes" : "no", r->name);
    }
    if (n > SHOWN)
        printf("... and %d more, none of them worse\n", n - SHOWN);
}

mc_status mc_cli_ckpt_diff(const char *a, const char *b, int64_t step, double tolerance, int json,
                           struct mc_err *err)
{
    char one[1100], two[1100];
    struct mc_ckpt_diff *row = NULL;
    int n = 0, beyond = 0, unequal = 0;
    MC_TRY(mc_ckpt_resolve(a, step, one, err));
    MC_TRY(mc_ckpt_resolve(b, step, two, err));
    MC_TRY(mc_cli_diff_paths(one, two, &row, &n, err));
    qsort(row, (size_t)n, sizeof *row, worst_first);
    for (int i = 0; i < n; i++) {
        beyond += mc_cli_diff_beyond(&row[i], tolerance); /* I1 */
        unequal += !row[i].bitwise;
    }
    if (json) {
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '{');
        mc_json_str(&j, "a", one);
        mc_json_str(&j, "b", two);
        mc_json_f64(&j, "tolerance", tolerance);
        mc_json_i64(&j, "tensors_compared", n);
        mc_json_i64(&j, "beyond", beyond);
        mc_json_i64(&j, "not_bitwise", unequal);
        mc_json_open(&j, "tensors", '[');
        for (int i = 0; i < n; i++)
            mc_cli_diff_json(&row[i], &j);
        mc_json_close(&j, ']');
        mc_json_close(&j, '}');
        mc_say_json(&j);
    } else {
        printf("A %s\nB %s\n", one, two);
        table(row, n);
        printf("%d tensors, %d not equal bit by bit, %d beyond the tolerance %g\n", n, unequal,
               beyond, tolerance);
    }
    mc_free(row);
    if (beyond > 0)
        return mc_err_set(err, MC_E_DIFF, "%d of %d tensors differ", beyond, n);
    return MC_OK;
}
