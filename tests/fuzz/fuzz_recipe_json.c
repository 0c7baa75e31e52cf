/* fuzz_recipe_json.c - any bytes as resolved.json: refused with problems, or a recipe that writes
 * itself back to the same hash.
 * links: mc_recipe */
#include <stdlib.h>
#include <string.h>
#include "../../core/recipe/recipe.h"

static struct mc_recipe_box *bind(const char *text, size_t n)
{
    struct mc_err e = {0};
    struct mc_problems ps = {0};
    struct mc_values *pool = mc_values_create();
    struct mc_value *v;
    struct mc_recipe_box *box = NULL;
    if (mc_value_from_json(pool, text, n, "fuzz", &v, &e) == MC_OK) {
        mc_status st = mc_recipe_bind(v, &ps, &box, &e);
        if ((st == MC_OK) != (ps.n == 0))
            abort(); /* refused without a reason, or taken with one */
        if (st != MC_OK)
            box = NULL;
    } else if (!e.msg[0]) {
        abort();
    }
    mc_problems_fini(&ps);
    mc_values_destroy(pool);
    return box;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* exact size: a step over the end is seen */
    if (!text)
        abort();
    text = realloc(text, size + !size);
    if (size)
        memcpy(text, data, size);
    struct mc_recipe_box *box = bind(text, size);
    if (box) {
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_recipe_write_json(mc_recipe_of(box), &j);
        struct mc_recipe_box *again = j.failed ? NULL : bind(j.buf, j.len);
        if (!again || mc_recipe_hash(mc_recipe_of(box)) != mc_recipe_hash(mc_recipe_of(again)))
            abort();
        mc_recipe_destroy(again);
        mc_recipe_destroy(box);
        mc_json_fini(&j);
    }
    free(text);
    return 0;
}
