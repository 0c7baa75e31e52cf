/* read.c - resolved.json back to a recipe.
 * Floor 1 (recipe). Includes: base.
 *
 * The file is ours, but its bytes are foreign: a disk, an editor or an attacker may have been at
 * it.
 * I1  Whatever is wrong with it is MC_E_CORRUPT with the file, the key and what to do; reading
 *     never runs code and its cost is bounded (value.c).
 * I2  What is returned has passed the same rows and the same cross-checks as a fresh recipe.
 * Memory: the box is the caller's. Threads: pure. */
#include "recipe.h"
#include <string.h>
#include "../base/arena.h"
#include "../base/sysio.h"

mc_status mc_recipe_read_json(const char *path, struct mc_recipe_box **box, struct mc_err *err)
{
    struct mc_problems ps = {0};
    struct mc_err inner = {0};
    struct mc_values *pool = NULL;
    struct mc_value *root;
    struct mc_recipe_box *b = NULL;
    char *text = NULL;
    size_t n;
    mc_status st = mc_sys_read_file(path, (size_t)64 << 20, &text, &n, &inner);

    if (st == MC_OK && !(pool = mc_values_create()))
        st = mc_err_set(&inner, MC_E_NOMEM, "no memory to read %s", path);
    if (st == MC_OK)
        st = mc_value_from_json(pool, text, n, path, &root, &inner);
    if (st == MC_OK)
        st = mc_recipe_bind(root, &ps, &b, &inner);
    if (st == MC_OK)
        mc_recipe_cross(b, &ps); /* I2 */
    if (ps.n > 0) {
        const struct mc_problem *p = &ps.p[0];
        st = mc_err_set(
            err, MC_E_CORRUPT,
            "%s: %s: %s (%d problem%s): the file is damaged; restore it from a copy, or "
            "start a new segment from the recipe",
            path, p->path, p->message, ps.n + ps.dropped, ps.n + ps.dropped == 1 ? "" : "s");
    } else if (st == MC_E_FORMAT) {
        st = mc_err_set(
            err, MC_E_CORRUPT,
            "%s; the file is damaged: restore it from a copy, or start a new segment from "
            "the recipe",
            inner.msg); /* I1 */
    } else if (st != MC_OK) {
        st = mc_err_set(err, st, "%s", inner.msg);
    }
    mc_problems_fini(&ps);
    mc_values_destroy(pool);
    mc_free(text);
    if (st != MC_OK)
        mc_recipe_destroy(b);
    else
        *box = b;
    return st;
}
