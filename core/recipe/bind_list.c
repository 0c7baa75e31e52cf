/* bind_list.c - binders of the keys that are lists or take several forms.
 * Floor 1 (recipe). Includes: own folder.
 *
 * Each is the `bind` of one row.
 * I1  A wrong entry is named by its place, counted from 1 as in Lua: "data.train[2].weight".
 * I2  A form that could mean two things is refused with the form that cannot.
 * Memory: fills the recipe; copies. Threads: one owner. */
#include "recipe_int.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"

/* ---- batch ---------------------------------------------------------------------------------- */

void mc_bind_batch_global(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_batch_cfg *c = &b->box->r.batch;
    const struct mc_value *kind = mc_bind_get(v, "kind");
    struct mc_quantity q;

    if (v->kind == MC_V_MAP &&
        ((v->tag && strcmp(v->tag, "batch.function") == 0) ||
         (kind && v->n == 1 && kind->kind == MC_V_STR && strcmp(kind->str, "function") == 0))) {
        c->function = 1;
        c->global = 0;
        return;
    }
    if (v->kind == MC_V_STR) {
        if (mc_bind_quantity(b, v, MC_UNIT_SAMPLES, 1u << MC_UNIT_SAMPLES, &q))
            return;
        if (q.n < 1 || q.n >> 31 != 0)
            mc_bind_bad(b, v, "", "must be between 1 and 2147483648, not %lld", (long long)q.n);
        else
            c->global = q.n;
        return;
    }
    mc_bind_int(b, v, 1, INT64_C(1) << 31, &c->global);
}

static void bind_ramp_point(struct mc_binder *b, const struct mc_value *v, struct mc_ramp_point *p)
{
    static const char *const known[] = {"global", "samples", "steps", "tokens", NULL};
    const struct mc_value *global = mc_bind_get(v, "global"), *at;
    int n = 0;

    if (v->kind != MC_V_MAP || v->tag) {
        mc_bind_bad(b, v, "", "must be { tokens = from, global = n }, not %s", mc_bind_kind(v));
        return;
    }
    mc_bind_only(b, v, known);
    for (enum mc_unit u = MC_UNIT_STEPS; u <= MC_UNIT_TOKENS; u++) {
        if (!(at = mc_bind_get(v, mc_unit_name(u))))
            continue;
        size_t mark = mc_bind_enter(b, ".%s", mc_unit_name(u));
        mc_bind_quantity(b, at, u, 1u << u, &p->at);
        mc_bind_leave(b, mark);
        n++;
    }
    if (n != 1)
        mc_bind_bad(b, v, "", "must have one of steps, samples and tokens, has %d", n);
    if (!global) {
        mc_bind_bad(b, v, "", "must have global = samples of a step");
        return;
    }
    size_t mark = mc_bind_enter(b, ".global");
    mc_bind_int(b, global, 1, INT64_C(1) << 31, &p->global);
    mc_bind_leave(b, mark);
}

void mc_bind_ramp(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_batch_cfg *c = &b->box->r.batch;

    if (!mc_bind_is_list(b, v, "a list of { tokens = from, global = n }", MC_MAX_RAMP))
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1); /* I1 */
        bind_ramp_point(b, v->item[i], &c->ramp[i]);
        mc_bind_leave(b, mark);
    }
    c->nramp = v->n;
}

/* ---- data ----------------------------------------------------------------------------------- */

static void bind_source(struct mc_binder *b, const struct mc_value *v, struct mc_source_cfg *s)
{
    static const char *const known[] = {"1", "path", "weight", NULL};
    const struct mc_value *first, *path, *weight;

    s->weight = 1;
    if (v->kind == MC_V_STR) {
        mc_bind_str(b, v, s->path, sizeof s->path, 0);
        return;
    }
    if (v->kind == MC_V_LIST && v->n == 1) { /* { "path" } without a weight */
        mc_bind_str(b, v->item[0], s->path, sizeof s->path, 0);
        return;
    }
    if (v->kind != MC_V_MAP || v->tag) {
        mc_bind_bad(b, v, "", "must be a path or { path, weight = w }, not %s", mc_bind_kind(v));
        return;
    }
    mc_bind_only(b, v, known);
    first = mc_bind_get(v, "1");
    path = mc_bind_get(v, "path");
    weight = mc_bind_get(v, "weight");
    if (!first == !path) {
        mc_bind_bad(b, v, "such as { \"data/web\", weight = 0.8 }",
                    first ? "has two paths" : "has no path");
        return;
    }
    mc_bind_str(b, first ? first : path, s->path, sizeof s->path, 0);
    if (weight) {
        size_t mark = mc_bind_enter(b, ".weight");
        mc_bind_num(b, weight, 0, 1e12, 1, &s->weight);
        mc_bind_leave(b, mark);
    }
}

static void bind_sources(struct mc_binder *b, const struct mc_value *v, struct mc_source_cfg *s,
                         int *n)
{
    if (v->kind == MC_V_STR) {
        bind_source(b, v, &s[0]);
        *n = 1;
        return;
    }
    if (!mc_bind_is_list(b, v, "a path or a list of paths and { path, weight = w }",
                         MC_MAX_SOURCES))
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1); /* I1 */
        bind_source(b, v->item[i], &s[i]);
        for (int k = 0; k < i; k++) /* a cursor is kept by the source's name */
            if (s[i].path[0] && strcmp(s[i].path, s[k].path) == 0)
                mc_bind_bad(b, v->item[i], "give it once, with a larger weight",
                            "the same source as [%d]", k + 1);
        mc_bind_leave(b, mark);
    }
    *n = v->n;
}

void mc_bind_train(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_data_cfg *d = &b->box->r.data;
    const struct mc_value *kind = mc_bind_get(v, "kind");

    if (v->kind == MC_V_MAP &&
        ((v->tag && strcmp(v->tag, "data.required") == 0) ||
         (kind && v->n == 1 && kind->kind == MC_V_STR && strcmp(kind->str, "required") == 0))) {
        d->required = 1;
        return;
    }
    bind_sources(b, v, d->train, &d->ntrain);
    /* A declared recipe, read back from JSON, has an empty list. */
    if (v->n == 0 && (v->kind == MC_V_LIST || v->kind == MC_V_MAP)) {
        const struct mc_value *declared = mc_bind_get(mc_bind_get(b->root, "data"), "declared");
        const struct mc_value *tokens = mc_bind_get(declared, "tokens");
        if (!tokens || tokens->kind != MC_V_NUM || tokens->num <= 0)
            mc_bind_bad(b, v, "such as train = \"text\"", "has no source");
    }
}

void mc_bind_valid(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_data_cfg *d = &b->box->r.data;

    bind_sources(b, v, d->valid, &d->nvalid);
}

/* An empty list, as a resolved recipe has it, is no split. */
void mc_bind_split(struct mc_binder *b, const struct mc_value *v)
{
    double x[3] = {0, 0, 0};

    if (!mc_bind_is_list(b, v, "three numbers such as { 969, 30, 1 }", 3) || v->n == 0)
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1); /* I1 */
        mc_bind_num(b, v->item[i], 0, 1e12, 0, &x[i]);
        mc_bind_leave(b, mark);
    }
    if (x[0] <= 0)
        mc_bind_bad(b, v, "", "the first share, for training, must be above 0");
    memcpy(b->box->r.data.split, x, sizeof x);
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static void bind_allow(struct mc_binder *b, const struct mc_value *v, struct mc_hook_cfg *h)
{
    if (!mc_bind_is_list(b, v, "a list such as { \"exec:scontrol\" }", MC_MAX_ALLOW))
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1);
        mc_bind_str(b, v->item[i], h->allow[i], sizeof h->allow[i], 0);
        mc_bind_leave(b, mark);
    }
    h->nallow = v->n;
}

static void bind_option(struct mc_binder *b, const char *key, const struct mc_value *v,
                        struct mc_hook_cfg *h)
{
    struct mc_attr a;
    size_t mark = mc_bind_enter(b, ".%.60s", key);

    memset(&a, 0, sizeof a);
    a.kind = v->kind;
    if (key[0] >= '0' && key[0] <= '9') {
        mc_bind_bad(b, v, "", "an option needs a name");
    } else if (strlen(key) >= sizeof a.key || !mc_text_ok(key, 0)) {
        mc_bind_bad(b, v, "", "an option's name has at most %zu bytes of UTF-8", sizeof a.key - 1);
    } else if (h->noptions == MC_MAX_ATTRS) {
        mc_bind_bad(b, v, "", "more than %d options", MC_MAX_ATTRS);
    } else {
        int ok, t = 0;
        memcpy(a.key, key, strlen(key));
        if (v->kind == MC_V_BOOL) {
            ok = mc_bind_bool(b, v, &t) == 0;
            a.num = t;
        } else if (v->kind == MC_V_NUM) {
            ok = mc_bind_num(b, v, -INFINITY, INFINITY, 0, &a.num) == 0;
        } else if (v->kind == MC_V_STR) {
            ok = mc_bind_str(b, v, a.str, sizeof a.str, 1) == 0;
        } else {
            mc_bind_bad(b, v, "", "an option is true, false, a number or a string, not %s",
                        mc_bind_kind(v));
            ok = 0;
        }
        if (ok)
            h->option[h->noptions++] = a; /* keys of a map come in order: sorted */
    }
    mc_bind_leave(b, mark);
}

static void bind_hook(struct mc_binder *b, const struct mc_value *v, struct mc_hook_cfg *h)
{
    const struct mc_value *first, *path, *allow;

    if (v->kind == MC_V_STR) {
        mc_bind_str(b, v, h->path, sizeof h->path, 0);
        return;
    }
    if (v->kind != MC_V_MAP || v->tag) {
        mc_bind_bad(b, v, "", "must be a path or { path, option = value }, not %s",
                    mc_bind_kind(v));
        return;
    }
    first = mc_bind_get(v, "1");
    path = mc_bind_get(v, "path");
    allow = mc_bind_get(v, "allow");
    if (!first == !path) {
        mc_bind_bad(b, v, "such as { \"hooks/eval_every.lua\", steps = 100 }",
                    first ? "has two paths" : "has no path");
        return;
    }
    mc_bind_str(b, first ? first : path, h->path, sizeof h->path, 0);
    if (allow) {
        size_t mark = mc_bind_enter(b, ".allow");
        bind_allow(b, allow, h);
        mc_bind_leave(b, mark);
    }
    for (int i = 0; i < v->n; i++)
        if (v->item[i] != first && v->item[i] != path && v->item[i] != allow &&
            v->item[i]->kind != MC_V_NIL)
            bind_option(b, v->key[i], v->item[i], h);
}

void mc_bind_hooks(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_recipe *r = &b->box->r;

    if (!mc_bind_is_list(b, v, "a list of paths and { path, option = value }", MC_MAX_HOOKS))
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1); /* I1 */
        bind_hook(b, v->item[i], &r->hook[i]);
        mc_bind_leave(b, mark);
    }
    r->nhooks = v->n;
}

/* ---- lr ------------------------------------------------------------------------------------- */

void mc_bind_lr_kind(struct mc_binder *b, const struct mc_value *v)
{
    int k;

    if (mc_bind_word(b, v, mc_lr_kind_words, &k) == 0)
        b->box->r.lr.kind = (enum mc_lr_kind)k;
}

static void bind_piece(struct mc_binder *b, const struct mc_value *v, struct mc_lr_piece *p)
{
    static const char *const known[] = {"from", "shape", "to", "until", "upto", NULL};
    const struct mc_value *upto = mc_bind_get(v, "upto"), *until = mc_bind_get(v, "until"),
                          *from = mc_bind_get(v, "from"), *to = mc_bind_get(v, "to"),
                          *shape = mc_bind_get(v, "shape");
    size_t mark;
    int w = MC_SHAPE_LINEAR;

    if (v->kind != MC_V_MAP || v->tag) {
        mc_bind_bad(b, v, "", "must be { upto = x, from = a, to = b, shape = s }, not %s",
                    mc_bind_kind(v));
        return;
    }
    mc_bind_only(b, v, known);
    if (!from || !upto == !until) {
        mc_bind_bad(b, v, "",
                    !from  ? "must have from = rate"
                    : upto ? "has both upto and until, which are one key"
                           : "must have upto = point of progress");
        return;
    }
    mark = mc_bind_enter(b, ".upto");
    if (mc_bind_quantity(b, upto ? upto : until, MC_UNIT_STEPS,
                         1u << MC_UNIT_STEPS | 1u << MC_UNIT_SAMPLES | 1u << MC_UNIT_TOKENS,
                         &p->until) == 0 &&
        p->until.n == 0)
        mc_bind_bad(b, upto ? upto : until, "", "must be above 0");
    mc_bind_leave(b, mark);
    mark = mc_bind_enter(b, ".from");
    mc_bind_num(b, from, 0, 1e3, 0, &p->from);
    mc_bind_leave(b, mark);
    p->to = p->from;
    if (to) {
        mark = mc_bind_enter(b, ".to");
        mc_bind_num(b, to, 0, 1e3, 0, &p->to);
        mc_bind_leave(b, mark);
    }
    if (shape) {
        mark = mc_bind_enter(b, ".shape");
        mc_bind_word(b, shape, mc_lr_shape_words, &w);
        mc_bind_leave(b, mark);
    }
    p->shape = (enum mc_lr_shape)w;
    if (p->shape == MC_SHAPE_CONSTANT && p->from != p->to)
        mc_bind_bad(b, v, "", "a constant piece has from = to");
}

void mc_bind_pieces(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_lr_cfg *lr = &b->box->r.lr;

    if (!mc_bind_is_list(b, v, "a list of { upto = x, from = a, to = b, shape = s }",
                         MC_MAX_PIECES))
        return;
    if (v->n == 0)
        mc_bind_bad(b, v, "", "has no piece");
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1); /* I1 */
        bind_piece(b, v->item[i], &lr->piece[i]);
        mc_bind_leave(b, mark);
    }
    lr->npieces = v->n;
}

void mc_bind_table(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_lr_cfg *lr = &b->box->r.lr;

    if (!mc_bind_is_list(b, v, "a list of numbers", 1 << 20) || v->n == 0)
        return;
    mc_free(lr->table);
    lr->ntable = 0;
    lr->table = mc_alloc((size_t)v->n * sizeof *lr->table, "lr table");
    if (!lr->table) {
        b->nomem = MC_E_NOMEM;
        return;
    }
    lr->ntable = v->n;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1); /* I1 */
        int bad = mc_bind_num(b, v->item[i], 0, 1e3, 0, &lr->table[i]);
        mc_bind_leave(b, mark);
        if (bad)
            break; /* a million like it would say no more */
    }
}

/* ---- optim ---------------------------------------------------------------------------------- */

void mc_bind_optim_kind(struct mc_binder *b, const struct mc_value *v)
{
    static const char *const words[] = {"adamw", NULL};
    int w;

    mc_bind_word(b, v, words, &w);
}

void mc_bind_betas(struct mc_binder *b, const struct mc_value *v)
{
    if (v->kind != MC_V_LIST || v->n != 2) {
        mc_bind_bad(b, v, "", "must be two numbers such as { 0.9, 0.95 }");
        return;
    }
    for (int i = 0; i < 2; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1);
        double x;
        if (mc_bind_num(b, v->item[i], 0, 1, 0, &x) == 0) {
            if (x == 1)
                mc_bind_bad(b, v->item[i], "", "must be below 1: at 1 the moment never moves");
            b->box->r.optim.betas[i] = x;
        }
        mc_bind_leave(b, mark);
    }
}

static void bind_words(struct mc_binder *b, const struct mc_value *v, const char *form,
                       char (*word)[MC_WORD], int *n)
{
    if (!mc_bind_is_list(b, v, form, MC_MAX_WORDS))
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1); /* I1 */
        mc_bind_str(b, v->item[i], word[i], MC_WORD, 0);
        mc_bind_leave(b, mark);
    }
    *n = v->n;
}

void mc_bind_no_decay(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_optim_cfg *o = &b->box->r.optim;

    bind_words(b, v, "a list such as { \"norm\", \"bias\" }", o->no_decay, &o->nno_decay);
}

static void bind_rule(struct mc_binder *b, const struct mc_value *v, struct mc_optim_rule *r)
{
    static const char *const known[] = {"1", "lr_scale", "match", "weight_decay", NULL};
    const struct mc_value *first, *match, *decay, *scale;
    size_t mark;

    r->weight_decay = r->lr_scale = NAN;
    if (v->kind != MC_V_MAP || v->tag) {
        mc_bind_bad(b, v, "", "must be { \"glob\", weight_decay = w, lr_scale = s }, not %s",
                    mc_bind_kind(v));
        return;
    }
    mc_bind_only(b, v, known);
    first = mc_bind_get(v, "1");
    match = mc_bind_get(v, "match");
    decay = mc_bind_get(v, "weight_decay");
    scale = mc_bind_get(v, "lr_scale");
    if (!first == !match || (!decay && !scale)) {
        mc_bind_bad(b, v, "such as { \"*.bias\", weight_decay = 0 }",
                    first && match     ? "has two globs"
                    : !first && !match ? "has no glob"
                                       : "sets neither weight_decay nor lr_scale");
        return;
    }
    mc_bind_str(b, first ? first : match, r->match, sizeof r->match, 0);
    if (decay) {
        mark = mc_bind_enter(b, ".weight_decay");
        mc_bind_num(b, decay, 0, 100, 0, &r->weight_decay);
        mc_bind_leave(b, mark);
    }
    if (scale) {
        mark = mc_bind_enter(b, ".lr_scale");
        mc_bind_num(b, scale, 0, 1e6, 0, &r->lr_scale);
        mc_bind_leave(b, mark);
    }
}

void mc_bind_rules(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_optim_cfg *o = &b->box->r.optim;

    if (!mc_bind_is_list(b, v, "a list of { \"glob\", weight_decay = w }", MC_MAX_RULES))
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1); /* I1 */
        bind_rule(b, v->item[i], &o->rule[i]);
        mc_bind_leave(b, mark);
    }
    o->nrules = v->n;
}

/* ---- parallel ------------------------------------------------------------------------------- */

void mc_bind_recompute(struct mc_binder *b, const struct mc_value *v)
{
    static const char *const words[] = {"none", "block", NULL};
    struct mc_parallel_cfg *p = &b->box->r.parallel;
    int w;

    if (v->kind == MC_V_STR) {
        if (mc_bind_word(b, v, words, &w) == 0)
            p->recompute = w ? MC_RECOMPUTE_BLOCK : MC_RECOMPUTE_NONE;
        return;
    }
    bind_words(b, v, "\"none\", \"block\" or a list of op names", p->recompute_ops,
               &p->nrecompute_ops);
    if (v->n == 0 && (v->kind == MC_V_LIST || v->kind == MC_V_MAP))
        mc_bind_bad(b, v, "recompute = \"none\"", "names no op"); /* I2 */
    p->recompute = MC_RECOMPUTE_OPS;
}

void mc_bind_schedule(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_parallel_cfg *p = &b->box->r.parallel;
    struct mc_value word = *v;

    if (v->kind == MC_V_MAP && v->tag && strncmp(v->tag, "schedule.", 9) == 0) {
        word.kind = MC_V_STR;
        word.str = v->tag + 9; /* "function", or the name of a bundled one */
    }
    mc_bind_str(b, &word, p->schedule, sizeof p->schedule, 0);
}
