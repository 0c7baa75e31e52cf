/* bind.c - a tree of values becomes a recipe, by the rows of rows.c.
 * Floor 1 (recipe). Includes: base.
 *
 * Defaults are bound first, by the same code as given values; then the tree is walked key by
 * key, so that no key can be overlooked; then what is required and missing is named, and defaults
 * that follow from other keys are derived. Forms that a tree may take:
 *
 *   data              tagged "data.declared": its keys are then those of data.declared
 *   lr                tagged "lr.KIND", or with a key kind; pieces as a list or positional keys
 *   optim             tagged "adamw", or with a key kind
 *   model             tagged "decoder": scalars, and what was traced (bind_model.c)
 *   parallel.overlap  a table, or one boolean for both of its keys
 *
 * I1  Every key is bound or is a problem: nothing is dropped.
 * I2  Any tree is safe input: NaN, huge, empty, deep, over-long, of a wrong kind.
 * I3  The recipe borrows nothing from the tree.
 * I4  -0.0 becomes 0.0 and texts are valid UTF-8: what is bound survives JSON bit for bit.
 * Memory: the box owns all; outputs only on success. Threads: one owner. */
#include "recipe_int.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/arena.h"

/* ---- One row -------------------------------------------------------------------------------- */

static void bind_i64(struct mc_binder *b, const struct mc_row *row, const struct mc_value *v)
{
    int64_t *dst = mc_rows_at(row, &b->box->r), n;
    struct mc_quantity q;

    if (row->word && v->kind == MC_V_STR && strcmp(v->str, row->word) == 0) {
        *dst = row->word_value;
        return;
    }
    if (row->word && v->kind == MC_V_STR) {
        mc_bind_bad(b, v, "", "must be a whole number or \"%s\", not \"%.60s\"", row->word, v->str);
        return;
    }
    if (row->base != MC_UNIT_NONE && v->kind == MC_V_STR) {
        if (mc_bind_quantity(b, v, row->base, 1u << row->base, &q))
            return;
        if (q.n < (int64_t)row->min || q.n > (int64_t)row->max) {
            mc_bind_bad(b, v, "", "must be between %.0f and %.0f, not %lld", row->min, row->max,
                        (long long)q.n);
            return;
        }
        *dst = q.n;
        return;
    }
    if (mc_bind_int(b, v, (int64_t)row->min, (int64_t)row->max, &n) == 0)
        *dst = n;
}

static void bind_seed(struct mc_binder *b, const struct mc_value *v)
{
    const char *s = v->str;
    int64_t n = 0;

    if (v->kind != MC_V_STR) {
        if (mc_bind_int(b, v, 0, INT64_C(1) << 53, &n) == 0)
            b->box->r.seed = n;
        return;
    }
    for (; *s >= '0' && *s <= '9'; s++) {
        if (n > (INT64_MAX - (*s - '0')) / 10)
            break;
        n = n * 10 + (*s - '0');
    }
    if (*s || s == v->str) {
        mc_bind_bad(b, v, "", "must be decimal digits below 2^63, not \"%.60s\"", v->str);
        return;
    }
    b->box->r.seed = n;
}

static void bind_quantity(struct mc_binder *b, const struct mc_row *row, const struct mc_value *v)
{
    unsigned units = row->type == MC_ROW_TARGET ? 1u << row->base : row->units;
    struct mc_quantity q, *dst = mc_rows_at(row, &b->box->r);

    if (mc_bind_quantity(b, v, row->base, units, &q))
        return;
    if (q.n < (int64_t)row->min || q.n > (int64_t)row->max) {
        mc_bind_bad(b, v, "", "must be at least %.0f and at most %.0f", row->min, row->max);
        return;
    }
    if (row->type == MC_ROW_TARGET && dst->unit != MC_UNIT_NONE) {
        mc_bind_bad(b, v, "", "steps.%s is given too: a run has one target",
                    mc_unit_name(dst->unit));
        return;
    }
    *dst = q;
}

static void bind_span(struct mc_binder *b, const struct mc_row *row, const struct mc_value *v)
{
    double *dst = mc_rows_at(row, &b->box->r), x, ns = row->unit[0] == 'h' ? 3.6e12 : 1e9;
    struct mc_value num = *v;
    struct mc_quantity q;

    if (v->kind == MC_V_STR) {
        if (mc_bind_quantity(b, v, MC_UNIT_NONE, 1u << MC_UNIT_NS, &q))
            return;
        num.kind = MC_V_NUM;
        num.num = (double)q.n / ns;
    }
    if (mc_bind_num(b, &num, row->min, row->max, row->above, &x) == 0)
        *dst = x;
}

static void bind_bytes(struct mc_binder *b, const struct mc_row *row, const struct mc_value *v)
{
    int64_t *dst = mc_rows_at(row, &b->box->r), n;
    char why[128];

    if (v->kind == MC_V_STR) {
        if (mc_units_parse_bytes(v->str, &n, why))
            mc_bind_bad(b, v, "", "\"%.60s\": %s", v->str, why);
        else if (n > (int64_t)row->max)
            mc_bind_bad(b, v, "", "too large: at most %.0f bytes", row->max);
        else
            *dst = n;
    } else if (mc_bind_int(b, v, (int64_t)row->min, (int64_t)row->max, &n) == 0) {
        *dst = n;
    }
}

static void bind_text(struct mc_binder *b, const struct mc_row *row, const struct mc_value *v)
{
    int may_be_empty = row->dfl && row->dfl[0] == '\0';
    char *dst = mc_rows_at(row, &b->box->r);

    if (v->kind == MC_V_STR && v->str[0] == '\0' && may_be_empty) {
        memset(dst, 0, row->size);
        return;
    }
    if (mc_bind_str(b, v, dst, row->size, 0))
        return;
    if (strcmp(row->path, "name") == 0 &&
        (dst[0] == '.' ||
         dst[strspn(dst, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")]))
        mc_bind_bad(
            b, v, "",
            "must be letters, digits, '.', '_' and '-', not starting with '.': it names a folder");
}

static void bind_value(struct mc_binder *b, const struct mc_row *row, const struct mc_value *v)
{
    void *dst = mc_rows_at(row, &b->box->r);
    double x;
    int w;

    switch (row->type) {
    case MC_ROW_I64:
        bind_i64(b, row, v);
        break;
    case MC_ROW_SEED:
        bind_seed(b, v);
        break;
    case MC_ROW_BOOL:
        mc_bind_bool(b, v, dst);
        break;
    case MC_ROW_F64:
        if (mc_bind_num(b, v, row->min, row->max, row->above, &x) == 0)
            *(double *)dst = x;
        break;
    case MC_ROW_ENUM:
        if (mc_bind_word(b, v, row->words, &w) == 0)
            *(int *)dst = w;
        break;
    case MC_ROW_STR:
        bind_text(b, row, v);
        break;
    case MC_ROW_QUANTITY:
    case MC_ROW_TARGET:
        bind_quantity(b, row, v);
        break;
    case MC_ROW_SPAN:
        bind_span(b, row, v);
        break;
    case MC_ROW_BYTES:
        bind_bytes(b, row, v);
        break;
    case MC_ROW_OTHER:
        row->bind(b, v);
        break;
    }
}

static void set_origin(struct mc_binder *b, struct mc_origin *o, const char *file, int line)
{
    char text[300];

    if (line > 0)
        snprintf(text, sizeof text, "%.250s:%d", file, line);
    else
        snprintf(text, sizeof text, "%.250s", file);
    o->text = mc_value_strn(b->box->pool, text, strlen(text));
    o->file = mc_value_strn(b->box->pool, file, strlen(file));
    o->line = line;
    if (!o->text || !o->file)
        b->nomem = MC_E_NOMEM;
}

static void bind_row(struct mc_binder *b, int at, const struct mc_value *v)
{
    const struct mc_row *row = &mc_rows[at];
    struct mc_origin *o = &b->box->origin[at];

    b->row = at;
    snprintf(b->path, sizeof b->path, "%s", row->path);
    if (o->text) {
        mc_bind_bad(b, v, "", "given twice, under two of its names");
        return;
    }
    set_origin(b, o, v->file ? v->file : "given", v->line);
    if (row->lr_kinds && !mc_rows_active(row, &b->box->r)) {
        char kinds[160] = "";
        for (int k = 0; mc_lr_kind_words[k]; k++)
            if ((row->lr_kinds >> k) & 1) {
                size_t n = strlen(kinds);
                snprintf(kinds + n, sizeof kinds - n, "%s%s", n ? ", " : "", mc_lr_kind_words[k]);
            }
        mc_bind_bad(b, v, "", "not a key of m.lr.%s; it belongs to: %s",
                    mc_lr_kind_words[b->box->r.lr.kind], kinds);
        return;
    }
    bind_value(b, row, v);
}

static void bind_default(struct mc_binder *b, int at)
{
    const struct mc_row *row = &mc_rows[at];
    struct mc_value v = {.kind = MC_V_STR, .str = row->dfl};
    char *end;

    b->row = at;
    snprintf(b->path, sizeof b->path, "%s", row->path);
    if (strcmp(row->dfl, "true") == 0 || strcmp(row->dfl, "false") == 0) {
        v.kind = MC_V_BOOL;
        v.b = row->dfl[0] == 't';
    } else {
        v.num = strtod(row->dfl, &end);
        if (end != row->dfl && *end == '\0')
            v.kind = MC_V_NUM;
    }
    bind_value(b, row, &v);
}

/* ---- The walk ------------------------------------------------------------------------------- */

static void bind_map(struct mc_binder *b, const char *prefix, const struct mc_value *map);

/* The one tag that each group may carry; lr has a family of them. */
static const char *tag_of(const char *group)
{
    static const char *const tags[][2] = {
        {"model", "decoder"}, {"optim", "adamw"}, {"data", "data.declared"}};

    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        if (strcmp(tags[i][0], group) == 0)
            return tags[i][1];
    return NULL;
}

static void at_group(struct mc_binder *b, const char *path)
{
    b->row = -1;
    snprintf(b->path, sizeof b->path, "%s", path);
}

/* The entries "1", "2" ... of a table with named keys too, as a list. NULL: no memory. */
static struct mc_value *positional(struct mc_binder *b, const struct mc_value *map)
{
    struct mc_value *list = mc_value_new(b->box->pool, MC_V_LIST), *item;
    char key[16];

    if (list) {
        list->file = map->file;
        list->line = map->line;
    }
    for (b->npositional = 0; list; b->npositional++) {
        snprintf(key, sizeof key, "%d", b->npositional + 1);
        if (!(item = mc_value_get(map, key)))
            return list;
        if (mc_value_push(b->box->pool, list, item, NULL))
            break;
    }
    b->nomem = MC_E_NOMEM;
    return NULL;
}

/* Is key one of the positional entries that bind_lr() took? */
static int is_taken(const struct mc_binder *b, const char *key)
{
    char text[16];
    int i = atoi(key);

    snprintf(text, sizeof text, "%d", i);
    return i >= 1 && i <= b->npositional && strcmp(text, key) == 0;
}

/* lr: the kind comes first, because it decides which keys are legal. */
static void bind_lr(struct mc_binder *b, const struct mc_value *v)
{
    const struct mc_value *kind = mc_bind_get(v, "kind");
    struct mc_value word = *v;
    int at = mc_rows_find("lr.kind");

    if (v->tag && strncmp(v->tag, "lr.", 3) == 0 && !kind) {
        word.kind = MC_V_STR;
        word.str = v->tag + 3;
        kind = &word;
    }
    if (!kind) {
        at_group(b, "lr");
        b->box->origin[at].bad = 1;
        mc_bind_bad(b, v, "",
                    v->tag
                        ? "must be one of m.lr.*, not m.%s"
                        : "must be a schedule such as m.lr.cosine { peak = 6e-4, warmup = 100 }%s",
                    v->tag ? v->tag : "");
        return;
    }
    if (v->tag && kind != &word &&
        (strncmp(v->tag, "lr.", 3) != 0 || kind->kind != MC_V_STR ||
         strcmp(kind->str, v->tag + 3) != 0)) {
        at_group(b, "lr.kind");
        b->row = at;
        mc_bind_bad(b, kind, "", "contradicts m.%s", v->tag);
    }
    bind_row(b, at, kind);
    if (b->box->origin[at].bad)
        return;
    if (b->box->r.lr.kind == MC_LR_PIECES && (v->kind == MC_V_LIST || mc_value_get(v, "1"))) {
        struct mc_value *list = (struct mc_value *)v;
        if (v->kind == MC_V_MAP && !(list = positional(b, v)))
            return;
        bind_row(b, mc_rows_find("lr.pieces"), list);
    }
    if (v->kind == MC_V_MAP)
        bind_map(b, "lr", v);
}

static void bind_group(struct mc_binder *b, const char *path, const struct mc_value *v)
{
    const char *tag = tag_of(path);

    if (strcmp(path, "lr") == 0) {
        bind_lr(b, v);
        return;
    }
    at_group(b, path);
    if (strcmp(path, "parallel.overlap") == 0 && v->kind == MC_V_BOOL) {
        bind_row(b, mc_rows_find("parallel.overlap.grads"), v);
        bind_row(b, mc_rows_find("parallel.overlap.params"), v);
        return;
    }
    if (v->kind == MC_V_LIST && v->n > 0) {
        mc_bind_bad(b, v, "", "must be a table of named keys, not a list");
        return;
    }
    if (v->kind != MC_V_MAP && v->kind != MC_V_LIST) {
        mc_bind_bad(b, v, strcmp(path, "steps") == 0 ? "such as steps = { steps = 1000 }" : "",
                    "must be a table of keys, not %s", mc_bind_kind(v));
        return;
    }
    if (v->kind == MC_V_MAP && v->tag && (!tag || strcmp(tag, v->tag) != 0)) {
        mc_bind_bad(b, v, "", "m.%s has no place here%s%s", v->tag, tag ? "; it wants m." : "",
                    tag ? tag : "");
        return;
    }
    if (v->kind == MC_V_MAP && v->tag && strcmp(path, "data") == 0) {
        b->declared = 1;
        bind_map(b, "data.declared", v);
        return;
    }
    if (v->kind != MC_V_MAP)
        return;
    if (v->tag && strcmp(path, "optim") == 0 && !mc_value_get(v, "kind"))
        set_origin(b, &b->box->origin[mc_rows_find("optim.kind")], v->file ? v->file : "given",
                   v->line); /* the constructor said the kind */
    bind_map(b, path, v);
}

static void bind_map(struct mc_binder *b, const char *prefix, const struct mc_value *map)
{
    char path[160], hint[160];

    for (int i = 0; i < map->n; i++) {
        const struct mc_value *v = map->item[i];
        const char *key = map->key[i];
        int at;
        if (v->kind == MC_V_NIL)
            continue;
        snprintf(path, sizeof path, "%s%s%.100s", prefix, prefix[0] ? "." : "", key);
        at = strchr(key, '.') ? -1 : mc_rows_find(path); /* "a.b" as one key is no path */
        if (at >= 0) {
            if (mc_rows[at].type == MC_ROW_OTHER && mc_rows[at].bind == mc_bind_lr_kind)
                continue; /* bind_lr() took it */
            bind_row(b, at, v);
        } else if (!strchr(key, '.') && mc_rows_is_group(path)) {
            bind_group(b, path, v);
        } else if (strcmp(path, "model.untraced") == 0 && v->kind == MC_V_BOOL) {
            b->untraced = v->b;
        } else if (strcmp(prefix, "lr") == 0 && is_taken(b, key)) {
            continue;
        } else {
            at_group(b, path);
            mc_rows_hint(prefix, key, hint);
            mc_bind_bad(b, v, hint, "unknown key");
        }
    }
}

/* ---- Defaults, required keys, derived keys -------------------------------------------------- */

static int given(const struct mc_binder *b, const char *path)
{
    return b->box->origin[mc_rows_find(path)].text != NULL;
}

static int is_bad(const struct mc_binder *b, const char *path)
{
    return b->box->origin[mc_rows_find(path)].bad;
}

static void defaults(struct mc_binder *b)
{
    struct mc_recipe *r = &b->box->r;

    for (int i = 0; i < mc_nrows; i++)
        if (mc_rows[i].dfl && mc_rows[i].type != MC_ROW_OTHER)
            bind_default(b, i);
    r->optim.betas[0] = 0.9;
    r->optim.betas[1] = 0.95;
    r->optim.nno_decay = 2;
    snprintf(r->optim.no_decay[0], MC_WORD, "norm");
    snprintf(r->optim.no_decay[1], MC_WORD, "bias");
    snprintf(r->parallel.schedule, sizeof r->parallel.schedule, "one_f_one_b");
    snprintf(r->parallel.stages, sizeof r->parallel.stages, "even");
}

static void missing(struct mc_binder *b, const char *path, const char *group, const char *hint)
{
    int at = mc_rows_find(path);

    b->row = at;
    snprintf(b->path, sizeof b->path, "%s", path);
    mc_bind_bad(b, group ? mc_bind_get(b->root, group) : NULL, hint, "required, not given");
}

static void missing_group(struct mc_binder *b, const char *group, const char *hint)
{
    at_group(b, group);
    for (int i = 0; i < mc_nrows; i++)
        if (strncmp(mc_rows[i].path, group, strlen(group)) == 0)
            b->box->origin[i].bad = 1;
    mc_bind_bad(b, NULL, hint, "required, not given");
}

/* model_only: rows of mc_recipe_bind_model() alone. */
static void required(struct mc_binder *b, int model_only)
{
    const struct mc_value *model = mc_bind_get(b->root, "model"), *lr = mc_bind_get(b->root, "lr");

    if (!model)
        missing_group(b, "model", "such as model = m.decoder { ... } or m.models.llama { ... }");
    if (!lr && !model_only)
        missing_group(b, "lr", "such as lr = m.lr.cosine { peak = 6e-4, warmup = 100 }");
    for (int i = 0; i < mc_nrows; i++) {
        const struct mc_row *row = &mc_rows[i];
        int in_model = strncmp(row->path, "model.", 6) == 0;
        if (!row->required || b->box->origin[i].text || (model_only && !row->model_scalar))
            continue;
        if (in_model ? model && mc_bind_is_table(model)
                     : lr && !is_bad(b, "lr.kind") && mc_rows_active(row, &b->box->r))
            missing(b, row->path, in_model ? "model" : "lr", "");
    }
}

static void derive_model(struct mc_binder *b)
{
    struct mc_model_cfg *m = &b->box->r.model;
    const struct mc_value *model = mc_bind_get(b->root, "model");
    const struct mc_recipe *r = &b->box->r;

    if (!given(b, "model.kv_heads"))
        m->kv_heads = m->heads;
    if (!given(b, "model.ffn"))
        m->ffn = 4 * m->hidden;
    if (!given(b, "model.head_dim") && m->heads > 0 && m->hidden > 0) {
        if (m->hidden % m->heads == 0) {
            m->head_dim = m->hidden / m->heads;
        } else {
            b->row = mc_rows_find("model.head_dim");
            snprintf(b->path, sizeof b->path, "model.heads");
            mc_bind_bad(b, mc_bind_get(model, "heads"), "or give head_dim",
                        "hidden %lld is not a multiple of heads %lld", (long long)m->hidden,
                        (long long)m->heads);
        }
    }
    if (!given(b, "model.vocab") && model && !is_bad(b, "data.tokenizer")) {
        if (r->data.declared_vocab > 0)
            m->vocab = r->data.declared_vocab;
        else if (strcmp(r->data.tokenizer, "bytes") == 0)
            m->vocab = 257; /* 256 bytes and EOS */
        else
            missing(b, "model.vocab", "model",
                    "only the tokenizer \"bytes\" has a known vocabulary here");
    }
    if (!given(b, "model.eos")) /* of the bytes: after the 256 */
        m->eos = strcmp(r->data.tokenizer, "bytes") == 0 && r->data.declared_vocab == 0 ? 256 : -1;
}

/* runs/NAME from "dir/NAME.lua" */
static void derive_name(struct mc_binder *b)
{
    const char *s = b->box->source, *slash = strrchr(s, '/');
    char *dst = b->box->r.name;
    size_t n;

    if (given(b, "name"))
        return;
    s = slash ? slash + 1 : s;
    n = strcspn(s, ".");
    if (n == 0 || n >= sizeof b->box->r.name ||
        strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") < n) {
        s = "run";
        n = 3;
    }
    memcpy(dst, s, n);
    dst[n] = '\0';
}

static void derive(struct mc_binder *b)
{
    struct mc_recipe *r = &b->box->r;

    derive_name(b);
    derive_model(b);
    if (r->steps.unit == MC_UNIT_NONE && !is_bad(b, "steps.steps") && !is_bad(b, "steps.tokens") &&
        !is_bad(b, "steps.samples")) {
        at_group(b, "steps");
        mc_bind_bad(b, mc_bind_get(b->root, "steps"), "such as steps = { steps = 1000 }",
                    "required, not given");
    }
    if (!given(b, "batch.global") && r->batch.nramp > 0)
        r->batch.global = r->batch.ramp[r->batch.nramp - 1].global;
    if (!given(b, "batch.global") && !given(b, "batch.ramp"))
        missing(b, "batch.global", "batch", "");
    if (!given(b, "data.train") && !b->declared && r->data.declared_tokens == 0)
        missing(b, "data.train", "data", "such as data = { train = \"text\" }");
    if (b->declared) {
        if (r->data.declared_tokens == 0 && !is_bad(b, "data.declared.tokens"))
            missing(b, "data.declared.tokens", "data", "");
        if (r->data.declared_vocab == 0 && !is_bad(b, "data.declared.vocab"))
            missing(b, "data.declared.vocab", "data", "");
    }
}

/* ---- Entries -------------------------------------------------------------------------------- */

static struct mc_recipe_box *box_create(const struct mc_value *root)
{
    struct mc_recipe_box *box = mc_alloc(sizeof *box, "recipe");

    if (!box)
        return NULL;
    box->pool = mc_values_create();
    box->origin = mc_alloc((size_t)mc_nrows * sizeof *box->origin, "recipe origins");
    if (box->pool) {
        const char *file = root->file ? root->file : "";
        box->source = mc_value_strn(box->pool, file, strlen(file));
    }
    if (!box->pool || !box->origin || !box->source) {
        mc_recipe_destroy(box);
        return NULL;
    }
    return box;
}

mc_status mc_recipe_bind(const struct mc_value *root, struct mc_problems *problems,
                         struct mc_recipe_box **box, struct mc_err *err)
{
    struct mc_binder b = {.problems = problems, .root = root, .row = -1};
    int before = problems->said, found;
    static const struct mc_value no_file = {.kind = MC_V_MAP};

    b.box = box_create(root ? root : &no_file);
    if (!b.box)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a recipe");
    defaults(&b);
    MC_ASSERT(problems->said == before); /* a default that does not bind: our bug */
    if (!root || root->kind != MC_V_MAP || (root->tag && strcmp(root->tag, "recipe") != 0)) {
        mc_bind_bad(&b, root, "return m.recipe { ... }", "a recipe is one table of named keys");
    } else {
        bind_map(&b, "", root);
        required(&b, 0);
        derive(&b);
        mc_bind_model_end(&b);
    }
    if (b.untraced && problems->said == 0) {
        at_group(&b, "model");
        mc_bind_bad(&b, mc_bind_get(root, "model"), "", "was not traced");
    }
    found = problems->said - before;
    if (b.nomem) {
        mc_recipe_destroy(b.box);
        return mc_err_set(err, MC_E_NOMEM, "no memory for a recipe");
    }
    if (found > 0 || b.untraced) {
        if (root && root->kind == MC_V_MAP)
            mc_recipe_cross(b.box, problems);
        mc_recipe_destroy(b.box);
        found = problems->n + problems->dropped;
        return mc_err_set(err, MC_E_RECIPE, "%d problem%s in the recipe", found,
                          found == 1 ? "" : "s");
    }
    *box = b.box;
    return MC_OK;
}

mc_status mc_recipe_bind_model(const struct mc_value *root, struct mc_problems *problems,
                               struct mc_model_cfg *out, struct mc_err *err)
{
    struct mc_problems quiet = {0}; /* of other keys: mc_recipe_bind() says them */
    struct mc_binder b = {.problems = &quiet, .root = root, .row = -1};
    const struct mc_value *model = mc_bind_get(root, "model"), *data = mc_bind_get(root, "data"),
                          *v;
    const struct mc_value *declared =
        data && data->kind == MC_V_MAP && data->tag ? data : mc_bind_get(data, "declared");
    int before = problems->said, found;

    b.box = box_create(root);
    if (!b.box)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a recipe");
    defaults(&b);
    if ((v = mc_bind_get(data, "tokenizer")))
        bind_row(&b, mc_rows_find("data.tokenizer"), v);
    if ((v = mc_bind_get(declared, "vocab")))
        bind_row(&b, mc_rows_find("data.declared.vocab"), v);
    mc_problems_fini(&quiet);
    b.problems = problems;
    for (int i = 0; i < mc_nrows; i++)
        if (mc_rows[i].model_scalar && (v = mc_bind_get(model, mc_rows[i].path + strlen("model."))))
            bind_row(&b, i, v);
    required(&b, 1);
    derive_model(&b);
    found = problems->said - before;
    if (found == 0 && !b.nomem)
        *out = b.box->r.model;
    mc_recipe_destroy(b.box);
    if (b.nomem)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a recipe");
    if (found > 0)
        return mc_err_set(err, MC_E_RECIPE, "%d problem%s in the model", found,
                          found == 1 ? "" : "s");
    return MC_OK;
}

void mc_recipe_destroy(struct mc_recipe_box *box)
{
    if (!box)
        return;
    mc_model_free(&box->r.model);
    mc_free(box->r.lr.table);
    mc_free(box->origin);
    mc_values_destroy(box->pool);
    mc_free(box);
}

struct mc_recipe *mc_recipe_of(struct mc_recipe_box *box)
{
    return &box->r;
}

mc_status mc_recipe_set_lr_table(struct mc_recipe_box *box, int64_t n, const double *values,
                                 struct mc_err *err)
{
    double *t = mc_alloc((size_t)n * sizeof *t, "lr table");

    if (!t)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %lld learning rates", (long long)n);
    for (int64_t i = 0; i < n; i++)
        t[i] = values[i] + 0.0; /* I4 */
    mc_free(box->r.lr.table);
    box->r.lr.kind = MC_LR_TABLE;
    box->r.lr.table = t;
    box->r.lr.ntable = n;
    mc_recipe_set_origin(box, "lr.values", mc_recipe_origin(box, "lr.kind")); /* the function's */
    return MC_OK;
}

/* Row of "data.train[2].weight": that of data.train. */
static int row_of(const char *dotted)
{
    char path[160];

    snprintf(path, sizeof path, "%s", dotted);
    path[strcspn(path, "[")] = '\0';
    return mc_rows_find(path);
}

const char *mc_recipe_origin(const struct mc_recipe_box *box, const char *dotted)
{
    int at = row_of(dotted);

    if (at < 0)
        return NULL;
    return box->origin[at].text ? box->origin[at].text : "default";
}

void mc_recipe_where(const struct mc_recipe_box *box, const char *dotted, char file[256], int *line)
{
    int at = row_of(dotted);
    const struct mc_origin *o = at >= 0 ? &box->origin[at] : NULL;
    size_t n = strlen(dotted);

    for (int i = 0; at < 0 && i < mc_nrows; i++) /* a group: its first line */
        if (strncmp(mc_rows[i].path, dotted, n) == 0 && mc_rows[i].path[n] == '.' &&
            box->origin[i].line > 0 && (!o || box->origin[i].line < o->line))
            o = &box->origin[i];
    snprintf(file, 256, "%s", o && o->file ? o->file : box->source);
    *line = o ? o->line : 0;
}

void mc_recipe_set_origin(struct mc_recipe_box *box, const char *dotted, const char *origin)
{
    int at = row_of(dotted);
    const char *text;

    if (at < 0)
        return;
    text = mc_value_strn(box->pool, origin, strlen(origin));
    if (text) /* without memory the old origin stays: it is a text for people only */
        box->origin[at].text = text;
}
