/* compare.c - what a resume may change.
 * Floor 1 (recipe). Includes: base.
 *
 * Two recipes are compared row by row through the rows' own text. The row says what a difference
 * is: free (nothing), logged (a record) or frozen (a problem, unless allowed by name: then a
 * record).
 * I1  Every row is compared; none is left out by being forgotten.
 * I2  Line numbers of calls are no difference, paths of data are none either; weights are
 *     logged. A table of rates that goes on where the other one ends is none.
 * I3  A model's traced parts follow from its scalars: where one of these differs, it is told, and
 *     not what it did to the parts.
 * Memory: two text buffers, freed here. Threads: pure. */
#include "recipe_int.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "../base/hash.h"

struct compare {
    const char *const *allow;
    int nallow;
    struct mc_recipe_change *changes;
    int cap, n, left_out;
    struct mc_problems *problems;
};

/* A key is allowed by its own name or by that of a group that holds it. */
static int allowed(const struct compare *c, const char *path)
{
    for (int i = 0; i < c->nallow; i++) {
        size_t n = strlen(c->allow[i]);
        if (n > 0 && strncmp(path, c->allow[i], n) == 0 && (path[n] == '\0' || path[n] == '.'))
            return 1;
    }
    return 0;
}

static int is_trace(const struct mc_row *row)
{
    return row->bind == mc_bind_stem || row->bind == mc_bind_head || row->bind == mc_bind_blocks ||
           row->bind == mc_bind_layer_block;
}

static int calls_of(const struct mc_row *row, const struct mc_model_cfg *m)
{
    int n = 0;
    if (row->bind == mc_bind_stem || row->bind == mc_bind_head)
        return row->bind == mc_bind_stem ? m->stem.ncalls : m->head.ncalls;
    for (int i = 0; i < m->nblocks; i++)
        n += m->block[i].ncalls;
    return n;
}

/* Long texts are told apart by their hash; those that a function of the recipe made, as such. */
static void shorten(const struct mc_row *row, const struct mc_recipe *r, const char *text,
                    size_t len, char dst[256])
{
    uint64_t hash = mc_hash64(text, len);

    if (row->bind == mc_bind_table && r->lr.kind == MC_LR_TABLE)
        snprintf(dst, 256, "the function given for lr (hash %016" PRIx64 ")", hash);
    else if (is_trace(row) && row->bind != mc_bind_layer_block)
        snprintf(dst, 256, "%d calls (hash %016" PRIx64 ")", calls_of(row, &r->model), hash);
    else if (len < 200)
        snprintf(dst, 256, "%.*s", (int)len, text);
    else
        snprintf(dst, 256, "%zu bytes of JSON, hash %016" PRIx64, len, hash);
}

/* A run made longer or shorter asks the same function for more or fewer steps (I2). */
static int same_rates(const struct mc_row *row, const struct mc_lr_cfg *a,
                      const struct mc_lr_cfg *b)
{
    int64_t n = a->ntable < b->ntable ? a->ntable : b->ntable;
    return row->bind == mc_bind_table && a->kind == MC_LR_TABLE && b->kind == MC_LR_TABLE &&
           n > 0 && memcmp(a->table, b->table, (size_t)n * sizeof *a->table) == 0;
}

static void change(struct compare *c, const char *path, const char *was, const char *now)
{
    struct mc_recipe_change *r;

    if (c->n == c->cap) {
        c->left_out++;
        return;
    }
    r = &c->changes[c->n++];
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(r->was, sizeof r->was, "%s", was);
    snprintf(r->now, sizeof r->now, "%s", now);
}

static void differ(struct compare *c, const struct mc_row *row, const char *was, const char *now)
{
    if (row->resume == MC_FREE)
        return;
    if (row->resume == MC_FROZEN && !allowed(c, row->path)) {
        char hint[160];
        snprintf(hint, sizeof hint, "--allow %s changes it all the same", row->path);
        mc_problems_add(c->problems, row->path, "", 0, hint,
                        "frozen: the run has %.180s, the recipe now has %.180s", was, now);
        return;
    }
    change(c, row->path, was, now);
}

/* data.train is free as paths, but its weights and their number are logged (I2). */
static void compare_weights(struct compare *c, const struct mc_data_cfg *was,
                            const struct mc_data_cfg *now)
{
    char path[64], a[32], b[32];

    if (was->ntrain != now->ntrain) {
        snprintf(a, sizeof a, "%d sources", was->ntrain);
        snprintf(b, sizeof b, "%d sources", now->ntrain);
        change(c, "data.train", a, b);
        return;
    }
    for (int i = 0; i < was->ntrain; i++)
        if (was->train[i].weight != now->train[i].weight) {
            snprintf(path, sizeof path, "data.train[%d].weight", i + 1);
            mc_fmt_f64(was->train[i].weight, a);
            mc_fmt_f64(now->train[i].weight, b);
            change(c, path, a, b);
        }
}

/* The rows that are traces (1), or those that are not (0). Returns how many model scalars differ.
 */
static int compare_rows(struct compare *c, int traces, const struct mc_recipe *was,
                        const struct mc_recipe *now, struct mc_json *a, struct mc_json *b)
{
    int scalars = 0;
    for (int i = 0; i < mc_nrows; i++) {
        const struct mc_row *row = &mc_rows[i];
        char was_text[256], now_text[256];
        if (is_trace(row) != traces)
            continue;
        mc_write_text(row, was, a);
        mc_write_text(row, now, b);
        if (a->failed || b->failed)
            break;
        if ((a->len == b->len && memcmp(a->buf, b->buf, a->len) == 0) ||
            same_rates(row, &was->lr, &now->lr))
            continue;
        scalars += row->model_scalar;
        shorten(row, was, a->buf, a->len, was_text);
        shorten(row, now, b->buf, b->len, now_text);
        differ(c, row, was_text, now_text);
    }
    return scalars;
}

mc_status mc_recipe_compare(const struct mc_recipe *was, const struct mc_recipe *now,
                            const char *const *allow, int nallow, struct mc_recipe_change *changes,
                            int cap, int *n, struct mc_problems *problems, struct mc_err *err)
{
    struct compare c = {allow, nallow, changes, cap, 0, 0, problems};
    int before = problems->said, failed;
    struct mc_json a, b;

    mc_json_init_grow(&a);
    mc_json_init_grow(&b);
    if (compare_rows(&c, 0, was, now, &a, &b) == 0) /* I1, I3 */
        compare_rows(&c, 1, was, now, &a, &b);
    compare_weights(&c, &was->data, &now->data);
    failed = a.failed || b.failed;
    mc_json_fini(&a);
    mc_json_fini(&b);
    if (failed)
        return mc_err_set(err, MC_E_NOMEM, "no memory to compare two recipes");
    if (c.left_out > 0 && cap > 0) {
        struct mc_recipe_change *last = &changes[cap - 1];
        snprintf(last->path, sizeof last->path, "...");
        snprintf(last->was, sizeof last->was, "%d more keys differ", c.left_out + 1);
        last->now[0] = '\0';
    }
    *n = c.n;
    if (problems->said > before)
        return mc_err_set(err, MC_E_RECIPE, "the run and the recipe differ in frozen keys%s%s",
                          problems->n ? ", such as " : "",
                          problems->n ? problems->p[problems->n - 1].path : "");
    return MC_OK;
}
