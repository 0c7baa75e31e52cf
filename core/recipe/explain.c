/* explain.c - recipes and rows as text for people: `mascon explain` and `mascon doc`.
 * Floor 1 (recipe). Includes: base.
 *
 * I1  Both come from the rows and the writers: what they say is what the engine does.
 * Memory: one text buffer, freed here. Threads: pure. */
#include "recipe_int.h"
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"

static const char *const resume_words[] = {"free", "logged", "frozen"};

/* ---- explain -------------------------------------------------------------------------------- */

static void calls_text(const struct mc_row *row, const struct mc_recipe *r, char dst[96])
{
    const struct mc_model_cfg *m = &r->model;
    int calls = 0;

    if (row->bind == mc_bind_blocks) {
        for (int i = 0; i < m->nblocks; i++)
            calls += m->block[i].ncalls;
        snprintf(dst, 96, "%d block%s, %d calls", m->nblocks, m->nblocks == 1 ? "" : "s", calls);
    } else if (row->bind == mc_bind_stem || row->bind == mc_bind_head) {
        calls = row->bind == mc_bind_stem ? m->stem.ncalls : m->head.ncalls;
        snprintf(dst, 96, "%d call%s", calls, calls == 1 ? "" : "s");
    } else if (row->bind == mc_bind_layer_block) {
        snprintf(dst, 96, "%lld layers of %d block%s", (long long)m->layers, m->nblocks,
                 m->nblocks == 1 ? "" : "s");
    } else if (row->bind == mc_bind_table) {
        snprintf(dst, 96, "%lld rates", (long long)r->lr.ntable);
    } else {
        dst[0] = '\0';
    }
}

static void explain_json(const struct mc_recipe_box *box, struct mc_json *j)
{
    mc_json_open(j, NULL, '[');
    for (int i = 0; i < mc_nrows; i++) {
        const struct mc_row *row = &mc_rows[i];
        if (!mc_rows_active(row, &box->r))
            continue;
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "path", row->path);
        mc_write_row(row, &box->r, j, "value", 1);
        mc_json_str(j, "origin", mc_recipe_origin(box, row->path));
        mc_json_str(j, "unit", row->unit ? row->unit : "");
        mc_json_str(j, "resume", resume_words[row->resume]);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

mc_status mc_recipe_explain(const struct mc_recipe_box *box, struct mc_json *json_or_null,
                            void (*line)(void *, const char *), void *arg)
{
    struct mc_json j;

    if (json_or_null) {
        explain_json(box, json_or_null);
        return json_or_null->failed ? MC_E_NOMEM : MC_OK;
    }
    mc_json_init_grow(&j);
    for (int i = 0; i < mc_nrows; i++) {
        const struct mc_row *row = &mc_rows[i];
        char calls[96], *text;
        if (!mc_rows_active(row, &box->r))
            continue;
        calls_text(row, &box->r, calls);
        mc_write_text(row, &box->r, &j);
        if (j.failed)
            break;
        text = mc_sprintf("%-26s = %-34.*s  %s", row->path, calls[0] ? 96 : (int)j.len,
                          calls[0] ? calls : j.buf, mc_recipe_origin(box, row->path));
        if (!text)
            break;
        line(arg, text);
        mc_free(text);
        if (i == mc_nrows - 1) {
            mc_json_fini(&j);
            return MC_OK;
        }
    }
    mc_json_fini(&j);
    return MC_E_NOMEM;
}

/* ---- doc ------------------------------------------------------------------------------------ */

struct doc {
    void (*line)(void *, const char *);
    void *arg;
    int failed;
};

static void put(struct doc *d, const char *text)
{
    d->line(d->arg, text);
}

/* A number that is a power of two or a plain one, for ranges. */
static void bound_text(double x, char dst[32])
{
    if (x >= 9.2e18) {
        snprintf(dst, 32, "2^63 - 1");
        return;
    }
    for (int n = 20; n <= 62; n++)
        if (x == (double)((int64_t)1 << n)) {
            snprintf(dst, 32, "2^%d", n);
            return;
        }
    mc_fmt_f64(x, dst);
}

/* "whole number, 1 to 4096" */
static void form_text(const struct mc_row *row, char *dst, size_t cap)
{
    char lo[32], hi[32];
    size_t n;

    bound_text(row->min, lo);
    bound_text(row->max, hi);
    switch (row->type) {
    case MC_ROW_I64:
    case MC_ROW_SEED:
        snprintf(dst, cap, "whole number%s%s%s, %s to %s", row->word ? " or \"" : "",
                 row->word ? row->word : "", row->word ? "\"" : "", lo, hi);
        break;
    case MC_ROW_BOOL:
        snprintf(dst, cap, "true or false");
        break;
    case MC_ROW_F64:
        snprintf(dst, cap, "number, %s%s to %s", row->above ? "above " : "", lo, hi);
        break;
    case MC_ROW_ENUM:
        n = 0;
        dst[0] = '\0';
        for (int i = 0; row->words[i] && n < cap; i++)
            n += (size_t)snprintf(dst + n, cap - n, "%s\"%s\"", i ? ", " : "", row->words[i]);
        break;
    case MC_ROW_STR:
        snprintf(dst, cap, "string");
        break;
    case MC_ROW_QUANTITY:
    case MC_ROW_TARGET:
        n = row->type == MC_ROW_TARGET ? 0 : row->units >> MC_UNIT_NS & 1;
        snprintf(dst, cap,
                 row->base == MC_UNIT_NONE ? "time, such as \"60 min\""
                 : n ? "steps, samples, tokens or time; a bare number is in %s"
                 : row->type == MC_ROW_TARGET ? "%s"
                                              : "steps, samples or tokens; a bare number is in %s",
                 mc_unit_name(row->base));
        break;
    case MC_ROW_SPAN:
        snprintf(dst, cap, "time; a bare number is in %s", row->unit);
        break;
    case MC_ROW_BYTES:
        snprintf(dst, cap, "bytes, such as \"24 GiB\"");
        break;
    case MC_ROW_OTHER:
        snprintf(dst, cap, "%s", row->form);
        break;
    }
}

static void default_text(const struct mc_row *row, char *dst, size_t cap)
{
    if (row->dfl_doc)
        snprintf(dst, cap, "%s", row->dfl_doc);
    else if (!row->dfl)
        snprintf(dst, cap, row->required ? "required" : "none");
    else if (row->type == MC_ROW_ENUM || row->type == MC_ROW_STR || row->type == MC_ROW_QUANTITY ||
             row->word)
        snprintf(dst, cap, "\"%s\"", row->dfl);
    else
        snprintf(dst, cap, "%s", row->dfl);
}

/* '|' ends a cell of a Markdown table. */
static void cell(char *s)
{
    for (; *s; s++)
        if (*s == '|')
            *s = '/';
}

static void doc_row(struct doc *d, const struct mc_row *row)
{
    char form[256], dfl[160], kinds[200] = "", *text;

    form_text(row, form, sizeof form);
    default_text(row, dfl, sizeof dfl);
    cell(form);
    cell(dfl);
    if (row->lr_kinds) {
        size_t n = (size_t)snprintf(kinds, sizeof kinds, " Of ");
        const char *sep = "";
        for (int k = 0; mc_lr_kind_words[k]; k++)
            if ((row->lr_kinds >> k) & 1) {
                n +=
                    (size_t)snprintf(kinds + n, sizeof kinds - n, "%s%s", sep, mc_lr_kind_words[k]);
                sep = ", ";
            }
        snprintf(kinds + n, sizeof kinds - n, ".");
    }
    text = mc_sprintf("| `%s` | %s | %s | %s | %s | %s%s |", row->path, form,
                      row->unit ? row->unit : "", dfl, resume_words[row->resume], row->doc, kinds);
    if (!text) {
        d->failed = 1;
        return;
    }
    put(d, text);
    mc_free(text);
}

static void doc_head(struct doc *d)
{
    put(d, "| key | value | unit | default | on resume | meaning |");
    put(d, "|---|---|---|---|---|---|");
}

static void doc_one(struct doc *d, const struct mc_row *row)
{
    char form[256], dfl[160], *text;

    form_text(row, form, sizeof form);
    default_text(row, dfl, sizeof dfl);
    text = mc_sprintf("%s\n  %s\n  value:     %s%s%s%s\n  default:   %s\n  on resume: %s",
                      row->path, row->doc, form, row->unit ? " (" : "", row->unit ? row->unit : "",
                      row->unit ? ")" : "", dfl, resume_words[row->resume]);
    if (!text) {
        d->failed = 1;
        return;
    }
    for (char *s = text, *end; s; s = end) {
        end = strchr(s, '\n');
        if (end)
            *end++ = '\0';
        put(d, s);
    }
    mc_free(text);
}

static void doc_all(struct doc *d)
{
    char group[32] = "";
    size_t n;

    put(d, "# Recipe reference");
    put(d, "");
    put(d, "Made from the field rows by `mascon doc`. On resume a *free* key may change, a change "
           "of a "
           "*logged* key is");
    put(d, "written down, a *frozen* one needs `--allow KEY`.");
    for (int i = 0; i < mc_nrows; i++) {
        const char *p = mc_rows[i].path;
        n = strcspn(p, ".");
        if (p[n] == '\0')
            continue; /* keys without a group come first of all, below */
        if (strlen(group) != n || strncmp(group, p, n) != 0) {
            char title[64];
            snprintf(group, sizeof group, "%.*s", (int)n, p);
            put(d, "");
            snprintf(title, sizeof title, "## %s", group);
            put(d, title);
            put(d, "");
            doc_head(d);
        }
        doc_row(d, &mc_rows[i]);
    }
    put(d, "");
    put(d, "## Keys of their own");
    put(d, "");
    doc_head(d);
    for (int i = 0; i < mc_nrows; i++)
        if (!strchr(mc_rows[i].path, '.'))
            doc_row(d, &mc_rows[i]);
}

mc_status mc_recipe_doc(const char *key_or_null, void (*line)(void *, const char *), void *arg,
                        struct mc_err *err)
{
    struct doc d = {line, arg, 0};
    int at;

    if (!key_or_null) {
        doc_all(&d);
    } else if ((at = mc_rows_find(key_or_null)) >= 0) {
        doc_one(&d, &mc_rows[at]);
    } else if (mc_rows_is_group(key_or_null)) {
        size_t n = strlen(key_or_null);
        doc_head(&d);
        for (int i = 0; i < mc_nrows; i++)
            if (strncmp(mc_rows[i].path, key_or_null, n) == 0 && mc_rows[i].path[n] == '.')
                doc_row(&d, &mc_rows[i]);
    } else {
        char hint[160], group[64] = "";
        const char *dot = strrchr(key_or_null, '.');
        if (dot && (size_t)(dot - key_or_null) < sizeof group)
            snprintf(group, sizeof group, "%.*s", (int)(dot - key_or_null), key_or_null);
        mc_rows_hint(mc_rows_is_group(group) ? group : "", dot ? dot + 1 : key_or_null, hint);
        return mc_err_set(err, MC_E_USAGE, "%.100s: no such key; %s", key_or_null,
                          hint[0] ? hint : "`mascon doc` lists all");
    }
    return d.failed ? mc_err_set(err, MC_E_NOMEM, "no memory for the reference") : MC_OK;
}
