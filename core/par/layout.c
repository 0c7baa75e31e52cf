/* layout.c - rank <-> coordinates. Floor 3 (par).
 *
 * I1  rank = sum over axes of coord * stride; the leftmost axis of the order string has stride 1
 *     and each next one the product of the sizes to its left. So coordinates and ranks are a
 *     bijection.
 * I2  An axis of size 1 has coordinate 0 and may be missing from the string; its stride is never
 *     used, and is set as if it stood at the right end.
 * I3  Nothing is rounded: the product of the sizes equals the world, or an error says which product
 *     met which world.
 *
 * Memory: none. Threads: any. */
#include "layout.h"
#include <stdio.h>
#include <string.h>

/* "tp-dp" -> axes in order, count in *n. */
static mc_status parse_order(const char *order, enum mc_axis axis[MC_NAXES], int *n,
                             struct mc_err *err)
{
    int seen[MC_NAXES] = {0}, k = 0;
    const char *p = order;
    for (;;) {
        size_t len = strcspn(p, "-");
        int a = 0;
        while (a < MC_NAXES && !(strlen(mc_axis_name((enum mc_axis)a)) == len &&
                                 strncmp(mc_axis_name((enum mc_axis)a), p, len) == 0))
            a++;
        if (a == MC_NAXES)
            return mc_err_set(err, MC_E_RECIPE,
                              "parallel.order \"%.60s\": \"%.*s\" is no axis; the axes are tp, cp, "
                              "ep, dp and pp, joined by \"-\"",
                              order, (int)(len < 20 ? len : 20), p);
        if (seen[a]++)
            return mc_err_set(err, MC_E_RECIPE, "parallel.order \"%.60s\": %s stands there twice",
                              order, mc_axis_name((enum mc_axis)a));
        axis[k++] = (enum mc_axis)a;
        if (p[len] == 0)
            break;
        p += len + 1;
    }
    *n = k;
    return MC_OK;
}

/* The sizes with dp filled in, checked against the world (I3). */
static mc_status fill_sizes(int out[MC_NAXES], const int size[MC_NAXES], int world,
                            struct mc_err *err)
{
    char text[160];
    int64_t product = 1; /* without dp when dp is derived */
    int n = 0;
    for (int a = 0; a < MC_NAXES; a++) {
        if (size[a] < (a == MC_AXIS_DP ? 0 : 1))
            return mc_err_set(err, MC_E_RECIPE, "parallel.%s is %d; it must be at least 1",
                              mc_axis_name((enum mc_axis)a), size[a]);
        out[a] = size[a];
        if (size[a] == 0)
            continue;
        if (__builtin_mul_overflow(product, (int64_t)size[a], &product) || product > INT32_MAX)
            return mc_err_set(
                err, MC_E_RECIPE,
                "parallel: the product of tp, cp, ep, dp and pp is beyond 2^31 ranks");
        if (size[a] > 1)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%s %d", n ? " x " : "",
                          mc_axis_name((enum mc_axis)a), size[a]);
    }
    if (n == 0)
        snprintf(text, sizeof text, "every axis 1");
    if (size[MC_AXIS_DP] == 0) {
        if (world % product != 0)
            return mc_err_set(err, MC_E_RECIPE,
                              "parallel: %s = %lld ranks a replica, which does not divide the %d "
                              "ranks there are; dp cannot be derived",
                              text, (long long)product, world);
        out[MC_AXIS_DP] = (int)(world / product);
    } else if (product != world) {
        return mc_err_set(err, MC_E_RECIPE, "parallel: %s = %lld ranks, but there are %d", text,
                          (long long)product, world);
    }
    return MC_OK;
}

mc_status mc_layout_init(struct mc_layout *l, const char *order, const int size[MC_NAXES],
                         int world, struct mc_err *err)
{
    enum mc_axis axis[MC_NAXES];
    struct mc_layout x = {.world = world};
    int n = 0;
    if (world < 1)
        return mc_err_set(err, MC_E_USAGE, "a run needs at least 1 rank, not %d", world);
    MC_TRY(parse_order(order, axis, &n, err));
    MC_TRY(fill_sizes(x.size, size, world, err));
    int stride = 1;
    for (int i = 0; i < n; i++) { /* I1 */
        x.stride[axis[i]] = stride;
        stride *= x.size[axis[i]];
    }
    for (int a = 0; a < MC_NAXES; a++) {
        if (x.stride[a] != 0)
            continue;
        if (x.size[a] > 1)
            return mc_err_set(err, MC_E_RECIPE,
                              "parallel.order \"%.60s\" leaves out %s, whose size is %d; only axes "
                              "of size 1 may be left out",
                              order, mc_axis_name((enum mc_axis)a), x.size[a]);
        x.stride[a] = stride; /* I2 */
    }
    *l = x;
    return MC_OK;
}

void mc_layout_coord(const struct mc_layout *l, int rank, int coord[MC_NAXES])
{
    for (int a = 0; a < MC_NAXES; a++)
        coord[a] = rank / l->stride[a] % l->size[a];
}

int mc_layout_rank(const struct mc_layout *l, const int coord[MC_NAXES])
{
    int rank = 0;
    for (int a = 0; a < MC_NAXES; a++)
        rank += coord[a] * l->stride[a];
    return rank;
}

int mc_layout_group(const struct mc_layout *l, int rank, enum mc_axis axis, int *ranks)
{
    int coord[MC_NAXES];
    mc_layout_coord(l, rank, coord);
    for (int i = 0; i < l->size[axis]; i++) {
        coord[axis] = i;
        ranks[i] = mc_layout_rank(l, coord);
    }
    return l->size[axis];
}
