/* write.c - a recipe as canonical JSON, and its hash.
 * Floor 1 (recipe). Includes: base.
 *
 * I1  Canonical: keys sorted at every level, every active key present, the shortest numbers that
 *     read back bit for bit: equal recipes give equal text.
 * I2  bind(write(r)) == r; what cannot be said by a JSON number (seeds and counts from 2^53 on)
 *     is a string. A key that has no meaning in this recipe (lr.decay of lr.cosine) is absent.
 * I3  The hash leaves out the line numbers of calls: moving a function in its file is no new
 *     model.
 * Memory: the caller's JSON buffer. Threads: pure. */
#include "recipe_int.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../base/hash.h"

static void write_quantity(struct mc_json *j, const char *key, struct mc_quantity q)
{
    char text[48];

    mc_units_print(q, text);
    mc_json_str(j, key, text);
}

/* ---- Rows of type OTHER --------------------------------------------------------------------- */

void mc_write_batch_global(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    if (r->batch.global > 0 || !r->batch.function) {
        mc_json_i64(j, key, r->batch.global);
        return;
    }
    mc_json_open(j, key, '{');
    mc_json_str(j, "kind", "function");
    mc_json_close(j, '}');
}

void mc_write_ramp(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_open(j, key, '[');
    for (int i = 0; i < r->batch.nramp; i++) {
        mc_json_open(j, NULL, '{');
        mc_json_i64(j, "global", r->batch.ramp[i].global);
        write_quantity(j, mc_unit_name(r->batch.ramp[i].at.unit), r->batch.ramp[i].at);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

static void write_sources(const struct mc_source_cfg *s, int n, struct mc_json *j, const char *key)
{
    mc_json_open(j, key, '[');
    for (int i = 0; i < n; i++) {
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "path", s[i].path);
        mc_json_f64(j, "weight", s[i].weight);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

void mc_write_train(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    if (!r->data.required) {
        write_sources(r->data.train, r->data.ntrain, j, key);
        return;
    }
    mc_json_open(j, key, '{');
    mc_json_str(j, "kind", "required");
    mc_json_close(j, '}');
}

void mc_write_valid(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    write_sources(r->data.valid, r->data.nvalid, j, key);
}

void mc_write_split(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_open(j, key, '[');
    for (int i = 0; i < 3 && r->data.split[0] > 0; i++)
        mc_json_f64(j, NULL, r->data.split[i]);
    mc_json_close(j, ']');
}

static void write_attr(const struct mc_attr *a, struct mc_json *j)
{
    if (a->kind == MC_V_BOOL)
        mc_json_bool(j, a->key, a->num != 0);
    else if (a->kind == MC_V_NUM)
        mc_json_f64(j, a->key, a->num);
    else
        mc_json_str(j, a->key, a->str);
}

static void write_hook(const struct mc_hook_cfg *h, struct mc_json *j)
{
    static const char *const own[] = {"allow", "path"};
    int i = 0, k = 0;

    mc_json_open(j, NULL, '{');
    while (i < 2 || k < h->noptions) { /* merges two sorted runs (I1) */
        if (k < h->noptions && (i == 2 || strcmp(h->option[k].key, own[i]) < 0)) {
            write_attr(&h->option[k++], j);
        } else if (i++ == 0) {
            mc_json_open(j, "allow", '[');
            for (int a = 0; a < h->nallow; a++)
                mc_json_str(j, NULL, h->allow[a]);
            mc_json_close(j, ']');
        } else {
            mc_json_str(j, "path", h->path);
        }
    }
    mc_json_close(j, '}');
}

void mc_write_hooks(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_open(j, key, '[');
    for (int i = 0; i < r->nhooks; i++)
        write_hook(&r->hook[i], j);
    mc_json_close(j, ']');
}

void mc_write_lr_kind(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_str(j, key, mc_lr_kind_words[r->lr.kind]);
}

void mc_write_pieces(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_open(j, key, '[');
    for (int i = 0; i < r->lr.npieces; i++) {
        const struct mc_lr_piece *p = &r->lr.piece[i];
        mc_json_open(j, NULL, '{');
        mc_json_f64(j, "from", p->from);
        mc_json_str(j, "shape", mc_lr_shape_words[p->shape]);
        mc_json_f64(j, "to", p->to);
        write_quantity(j, "upto", p->until);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

void mc_write_table(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_open(j, key, '[');
    for (int64_t i = 0; i < r->lr.ntable; i++)
        mc_json_f64(j, NULL, r->lr.table[i]);
    mc_json_close(j, ']');
}

void mc_write_optim_kind(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)r;
    (void)lines;
    mc_json_str(j, key, "adamw");
}

void mc_write_betas(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_open(j, key, '[');
    mc_json_f64(j, NULL, r->optim.betas[0]);
    mc_json_f64(j, NULL, r->optim.betas[1]);
    mc_json_close(j, ']');
}

static void write_words(const char (*word)[MC_WORD], int n, struct mc_json *j, const char *key)
{
    mc_json_open(j, key, '[');
    for (int i = 0; i < n; i++)
        mc_json_str(j, NULL, word[i]);
    mc_json_close(j, ']');
}

void mc_write_no_decay(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    write_words(r->optim.no_decay, r->optim.nno_decay, j, key);
}

void mc_write_rules(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_open(j, key, '[');
    for (int i = 0; i < r->optim.nrules; i++) {
        const struct mc_optim_rule *u = &r->optim.rule[i];
        mc_json_open(j, NULL, '{');
        mc_json_f64(j, "lr_scale", u->lr_scale); /* NaN, not set: null, which binds as absent */
        mc_json_str(j, "match", u->match);
        mc_json_f64(j, "weight_decay", u->weight_decay);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

void mc_write_recompute(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    const struct mc_parallel_cfg *p = &r->parallel;

    (void)lines;
    if (p->recompute == MC_RECOMPUTE_OPS)
        write_words(p->recompute_ops, p->nrecompute_ops, j, key);
    else
        mc_json_str(j, key, p->recompute == MC_RECOMPUTE_BLOCK ? "block" : "none");
}

void mc_write_schedule(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_str(j, key, r->parallel.schedule);
}

static void write_func(const struct mc_func *f, struct mc_json *j, const char *key, int lines)
{
    mc_json_open(j, key, '[');
    for (int i = 0; i < f->ncalls; i++) {
        const struct mc_call *c = &f->call[i];
        mc_json_open(j, NULL, '{');
        mc_json_open(j, "attrs", '{');
        for (int a = 0; a < c->nattrs; a++)
            write_attr(&c->attr[a], j);
        mc_json_close(j, '}');
        mc_json_open(j, "in", '[');
        for (int a = 0; a < c->nin; a++)
            mc_json_i64(j, NULL, c->in[a]);
        mc_json_close(j, ']');
        if (lines) /* I3 */
            mc_json_i64(j, "line", c->line);
        mc_json_str(j, "name", c->name);
        mc_json_str(j, "op", c->op);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

void mc_write_stem(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    write_func(&r->model.stem, j, key, lines);
}

void mc_write_head(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    write_func(&r->model.head, j, key, lines);
}

void mc_write_blocks(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    mc_json_open(j, key, '[');
    for (int i = 0; i < r->model.nblocks; i++)
        write_func(&r->model.block[i], j, NULL, lines);
    mc_json_close(j, ']');
}

void mc_write_layer_block(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_open(j, key, '[');
    for (int64_t i = 0; r->model.layer_block && i < r->model.layers; i++)
        mc_json_i64(j, NULL, r->model.layer_block[i]);
    mc_json_close(j, ']');
}

/* ---- One row, all rows ---------------------------------------------------------------------- */

static void write_i64(struct mc_json *j, const char *key, int64_t n)
{
    char text[24];

    if (n < INT64_C(1) << 53) {
        mc_json_i64(j, key, n);
        return;
    }
    snprintf(text, sizeof text, "%" PRId64, n); /* I2 */
    mc_json_str(j, key, text);
}

void mc_write_row(const struct mc_row *row, const struct mc_recipe *r, struct mc_json *j,
                  const char *key, int lines)
{
    const void *at = mc_rows_at(row, r);

    switch (row->type) {
    case MC_ROW_I64:
        if (row->word && *(const int64_t *)at == row->word_value) {
            mc_json_str(j, key, row->word);
            break;
        }
        write_i64(j, key, *(const int64_t *)at);
        break;
    case MC_ROW_SEED:
    case MC_ROW_BYTES:
        write_i64(j, key, *(const int64_t *)at);
        break;
    case MC_ROW_BOOL:
        mc_json_bool(j, key, *(const int *)at);
        break;
    case MC_ROW_F64:
    case MC_ROW_SPAN:
        mc_json_f64(j, key, *(const double *)at);
        break;
    case MC_ROW_ENUM:
        mc_json_str(j, key, row->words[*(const int *)at]);
        break;
    case MC_ROW_STR:
        mc_json_str(j, key, at);
        break;
    case MC_ROW_QUANTITY:
    case MC_ROW_TARGET:
        write_quantity(j, key, *(const struct mc_quantity *)at);
        break;
    case MC_ROW_OTHER:
        row->write(r, j, key, lines);
        break;
    }
}

void mc_write_text(const struct mc_row *row, const struct mc_recipe *r, struct mc_json *j)
{
    mc_json_reset(j);
    j->pretty = 0;
    if (mc_rows_active(row, r))
        mc_write_row(row, r, j, NULL, 0);
    else
        mc_json_raw(j, NULL, "-");
}

/* Rows are sorted, so groups are runs: open what begins, close what ends (I1). */
static void write_all(const struct mc_recipe *r, struct mc_json *j, int lines)
{
    char open[4][32];
    int depth = 0;

    mc_json_open(j, NULL, '{');
    for (int i = 0; i < mc_nrows; i++) {
        const char *p = mc_rows[i].path, *dot;
        int d = 0;
        if (!mc_rows_active(&mc_rows[i], r))
            continue;
        while ((dot = strchr(p, '.'))) {
            size_t n = (size_t)(dot - p);
            if (d >= depth || strlen(open[d]) != n || strncmp(open[d], p, n) != 0) {
                for (; depth > d; depth--)
                    mc_json_close(j, '}');
                snprintf(open[d], sizeof open[d], "%.*s", (int)n, p);
                mc_json_open(j, open[d], '{');
                depth++;
            }
            d++;
            p = dot + 1;
        }
        for (; depth > d; depth--)
            mc_json_close(j, '}');
        mc_write_row(&mc_rows[i], r, j, p, lines);
    }
    for (; depth > 0; depth--)
        mc_json_close(j, '}');
    mc_json_close(j, '}');
}

void mc_recipe_write_json(const struct mc_recipe *r, struct mc_json *j)
{
    write_all(r, j, 1);
}

uint64_t mc_recipe_hash(const struct mc_recipe *r)
{
    struct mc_json j;
    uint64_t h;

    mc_json_init_grow(&j);
    write_all(r, &j, 0); /* I3 */
    h = j.failed ? 0 : mc_hash64(j.buf, j.len);
    mc_json_fini(&j);
    return h;
}
