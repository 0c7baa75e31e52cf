/* cross.c - what must hold between the keys of one recipe, whatever machine it meets.
 * Floor 1 (recipe). Includes: own folder.
 *
 * I1  A check is made only where all its keys are sound: one mistake, one message.
 * I2  Nothing is changed here, mc_recipe_resolve_lr() aside: cross-checks of a sound recipe may run
 *     any number of times.
 * I3  Sums and products of recipe numbers are formed in a width that cannot overflow, or checked.
 *     Progress in different units is compared by: tokens = samples x seq (of one sequence length),
 *     samples = steps x global (only while the global batch is constant).
 *
 * Memory: the stack. Threads: pure. */
#include "recipe_int.h"
#include <float.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct cross {
    const struct mc_recipe_box *box;
    const struct mc_recipe *r;
    struct mc_problems *problems; /* NULL: be silent */
    int found;
};

/* Are all these keys (NULL-ended) sound? (I1) */
static int sound(const struct cross *c, ...)
{
    va_list ap;
    const char *path;
    int ok = 1;

    va_start(ap, c);
    while ((path = va_arg(ap, const char *)))
        ok &= !c->box->origin[mc_rows_find(path)].bad;
    va_end(ap);
    return ok;
}

static void say(struct cross *c, const char *path, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void say(struct cross *c, const char *path, const char *hint, const char *fmt, ...)
{
    char text[512], file[256];
    va_list ap;
    int line;

    c->found++;
    if (!c->problems)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    mc_recipe_where(c->box, path, file, &line);
    mc_problems_add(c->problems, path, file, line, hint, "%s", text);
}

/* ---- model ---------------------------------------------------------------------------------- */

static int calls_op(const struct mc_func *f, const char *op)
{
    for (int i = 0; i < f->ncalls; i++)
        if (strcmp(f->call[i].op, op) == 0)
            return 1;
    return 0;
}

static int blocks_call(const struct mc_model_cfg *m, const char *op)
{
    for (int i = 0; i < m->nblocks; i++)
        if (calls_op(&m->block[i], op))
            return 1;
    return 0;
}

static int blocks_give(const struct mc_model_cfg *m, const char *attr)
{
    for (int i = 0; i < m->nblocks; i++)
        for (int j = 0; j < m->block[i].ncalls; j++)
            for (int k = 0; k < m->block[i].call[j].nattrs; k++)
                if (strcmp(m->block[i].call[j].attr[k].key, attr) == 0)
                    return 1;
    return 0;
}

/* Keys that only some calls take: none may be without effect. */
static void cross_model_options(struct cross *c)
{
    const struct mc_model_cfg *m = &c->r->model;
    int plain = m->rope_scaling == MC_ROPE_NONE;

    if (!sound(c, "model.blocks", NULL))
        return;
    if (sound(c, "model.window", NULL) && m->window > 0 && !blocks_give(m, "window"))
        say(c, "model.window", "", "no attention of the model takes it");
    if (sound(c, "model.documents", NULL) && m->documents && !blocks_give(m, "documents"))
        say(c, "model.documents", "", "no attention of the model takes it");
    if (!sound(c, "model.rope_scaling", "model.rope_factor", "model.rope_original", NULL))
        return;
    if (!plain && !blocks_give(m, "scaling"))
        say(c, "model.rope_scaling", "", "no rope of the model takes it");
    if (plain && m->rope_factor != 1)
        say(c, "model.rope_factor", "rope_scaling = \"linear\", \"llama3\" or \"yarn\"",
            "scales nothing while rope_scaling is \"none\"");
    if ((plain || m->rope_scaling == MC_ROPE_LINEAR) && m->rope_original > 0)
        say(c, "model.rope_original", "rope_scaling = \"llama3\" or \"yarn\"",
            "is not used by rope_scaling = \"%s\"", mc_rope_scaling_words[m->rope_scaling]);
}

/* An eps that is 0, or that the run's precision rounds to 0 or to a subnormal, protects nothing:
 * the first row of zeros divides by 0. */
static void plain_eps(struct cross *c, const char *path, const char *whose, double eps)
{
    int wide = c->r->precision == MC_F64;
    double least = wide ? DBL_MIN : (double)FLT_MIN;

    if (eps < least)
        say(c, path, "", "%s%g is %s in %s; the least is %.3g", whose, eps,
            eps > 0 ? "as good as 0" : "no protection", wide ? "fp64" : "fp32", least);
}

static void calls_eps(struct cross *c, const char *path, const struct mc_func *f)
{
    char whose[200];

    for (int i = 0; i < f->ncalls; i++)
        for (int k = 0; k < f->call[i].nattrs; k++) {
            const struct mc_attr *a = &f->call[i].attr[k];
            if (strcmp(a->key, "eps") != 0 || a->kind != MC_V_NUM)
                continue;
            if (a->num == c->r->model.eps)
                continue; /* said of model.eps */
            snprintf(whose, sizeof whose, "eps of %s \"%s\", ", f->call[i].op, f->call[i].name);
            plain_eps(c, path, whose, a->num);
        }
}

static void cross_eps(struct cross *c)
{
    const struct mc_model_cfg *m = &c->r->model;

    if (!sound(c, "precision", NULL))
        return;
    if (sound(c, "model.eps", NULL))
        plain_eps(c, "model.eps", "", m->eps);
    if (sound(c, "optim.eps", NULL))
        plain_eps(c, "optim.eps", "", c->r->optim.eps);
    if (!sound(c, "model.stem", "model.blocks", "model.head", NULL))
        return;
    calls_eps(c, "model.stem", &m->stem);
    for (int i = 0; i < m->nblocks; i++)
        calls_eps(c, "model.blocks", &m->block[i]);
    calls_eps(c, "model.head", &m->head);
}

static void cross_model(struct cross *c)
{
    const struct mc_model_cfg *m = &c->r->model;
    const struct mc_data_cfg *d = &c->r->data;

    if (sound(c, "model.heads", "model.kv_heads", NULL) && m->kv_heads > 0 &&
        m->heads % m->kv_heads != 0)
        say(c, "model.kv_heads", "", "heads %" PRId64 " is not a multiple of kv_heads %" PRId64,
            m->heads, m->kv_heads);
    if (sound(c, "model.head_dim", "model.blocks", NULL) && m->head_dim % 2 != 0 &&
        blocks_call(m, "rope"))
        say(c, "model.head_dim", "", "%" PRId64 " is odd, but the block rotates pairs (rope)",
            m->head_dim);
    cross_model_options(c);
    if (sound(c, "model.vocab", "model.eos", NULL) && m->vocab > 0 && m->eos >= m->vocab &&
        m->documents)
        say(c, "model.eos", "", "%" PRId64 " is past the vocabulary of %" PRId64 " ids", m->eos,
            m->vocab);
    cross_eps(c);
    if (!sound(c, "model.vocab", "data.tokenizer", "data.declared.vocab", NULL) || m->vocab == 0)
        return;
    if (strcmp(d->tokenizer, "bytes") == 0 && d->declared_vocab == 0 && m->vocab < 257)
        say(c, "model.vocab", "",
            "%" PRId64 " is below the tokenizer's: \"bytes\" has 256 + EOS = 257 ids", m->vocab);
    if (m->vocab < d->declared_vocab)
        say(c, "model.vocab", "", "%" PRId64 " is below the declared tokenizer's %" PRId64,
            m->vocab, d->declared_vocab);
}

/* ---- parallel ------------------------------------------------------------------------------- */

static void divides(struct cross *c, const char *path, const char *what, int64_t n, const char *by,
                    int64_t k)
{
    if (sound(c, path, NULL) && k > 0 && n % k != 0)
        say(c, path, "", "%s %" PRId64 " is not a multiple of %s %" PRId64, what, n, by, k);
}

static void lengths_divide(struct cross *c, const char *by, int64_t k)
{
    const struct mc_data_cfg *d = &c->r->data;
    char path[40];

    divides(c, "model.seq", "seq", c->r->model.seq, by, k);
    for (int i = 0; i < d->nphases && sound(c, "data.phases", NULL); i++) {
        snprintf(path, sizeof path, "data.phases[%d].seq", i + 1);
        if (d->phase[i].seq % k != 0)
            say(c, path, "", "seq %" PRId64 " is not a multiple of %s %" PRId64, d->phase[i].seq,
                by, k);
    }
}

/* n stages of a pipeline: can the layers be cut as parallel.stages says? */
static void cross_stages(struct cross *c, int64_t layers, int64_t n)
{
    int list[MC_MAX_STAGES], k = mc_recipe_stages(&c->r->parallel, list);
    int64_t sum = 0;

    if (strcmp(c->r->parallel.stages, "even") == 0 && layers % n != 0) {
        say(c, "model.layers", "parallel.stages = \"auto\", or a list of layers a stage",
            "layers %" PRId64 " is not a multiple of parallel.pp x chunks %" PRId64, layers, n);
        return;
    }
    if (k == 0 && layers < n - 2) { /* the first may have the stem alone, the last the head */
        say(c, "model.layers", "", "%" PRId64 " layers are too few for %" PRId64 " stages", layers,
            n);
        return;
    }
    if (k == 0)
        return;
    if (k != n) {
        say(c, "parallel.stages", "",
            "has %d entries, the pipeline has %" PRId64 " stages (pp x chunks)", k, n);
        return;
    }
    for (int i = 0; i < k; i++)
        sum += list[i];
    if (sum != layers)
        say(c, "parallel.stages", "", "%.60s are %" PRId64 " layers, the model has %" PRId64,
            c->r->parallel.stages, sum, layers);
    for (int i = 1; i < k - 1; i++)
        if (list[i] == 0) {
            say(c, "parallel.stages", "",
                "stage %d of 0 to %d has no layers, and only the first and the last have other "
                "work",
                i, k - 1);
            return;
        }
}

static void cross_parallel(struct cross *c)
{
    const struct mc_parallel_cfg *p = &c->r->parallel;
    const struct mc_model_cfg *m = &c->r->model;

    if (sound(c, "parallel.tp", NULL) && p->tp > 1) {
        divides(c, "model.heads", "heads", m->heads, "parallel.tp", p->tp);
        divides(c, "model.ffn", "ffn", m->ffn, "parallel.tp", p->tp);
        if (sound(c, "model.kv_heads", NULL) && m->kv_heads > 0 && m->kv_heads % p->tp != 0 &&
            p->tp % m->kv_heads != 0)
            say(c, "model.kv_heads", "",
                "kv_heads %" PRId64 " and parallel.tp %" PRId64
                ": one must be a multiple of the other",
                m->kv_heads, p->tp);
        if (p->sp)
            lengths_divide(c, "parallel.tp (parallel.sp is on)", p->tp);
    }
    if (sound(c, "parallel.cp", NULL) && p->cp > 1)
        lengths_divide(c, "2 x parallel.cp", 2 * p->cp);
    if (p->pp > 1 &&
        sound(c, "parallel.pp", "parallel.chunks", "parallel.stages", "model.layers", NULL))
        cross_stages(c, m->layers, p->pp * p->chunks);
}

static void cross_schedule(struct cross *c)
{
    static const char *const bundled[] = {"gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_v"};
    const struct mc_parallel_cfg *p = &c->r->parallel;
    size_t n = strlen(p->schedule);
    int own =
        strcmp(p->schedule, "function") == 0 || (n > 4 && strcmp(p->schedule + n - 4, ".lua") == 0);
    const char *near;
    char hint[160] = "";

    if (!sound(c, "parallel.schedule", NULL))
        return;
    for (size_t i = 0; i < sizeof bundled / sizeof bundled[0]; i++)
        if (strcmp(p->schedule, bundled[i]) == 0)
            return;
    if (own)
        return;
    near = mc_nearest(p->schedule, bundled, 5);
    if (near)
        snprintf(hint, sizeof hint, "did you mean \"%s\"?", near);
    say(c, "parallel.schedule", hint,
        "\"%.60s\" is no schedule: gpipe, one_f_one_b, interleaved, zb_h1, zb_v, or a .lua file",
        p->schedule);
}

static void cross_recompute(struct cross *c)
{
    const struct mc_parallel_cfg *p = &c->r->parallel;
    const struct mc_model_cfg *m = &c->r->model;
    const char *used[64], *near;
    int n = 0;

    if (p->recompute != MC_RECOMPUTE_OPS || m->nblocks == 0 ||
        !sound(c, "parallel.recompute", "model.blocks", NULL))
        return;
    for (int i = 0; i < m->nblocks; i++)
        for (int k = 0; k < m->block[i].ncalls && n < 64; k++)
            used[n++] = m->block[i].call[k].op;
    for (int i = 0; i < p->nrecompute_ops; i++) {
        char hint[160] = "";
        if (blocks_call(m, p->recompute_ops[i]) ||
            strcmp(p->recompute_ops[i], MC_RECOMPUTE_GATHER) == 0)
            continue;
        near = mc_nearest(p->recompute_ops[i], used, n);
        if (near)
            snprintf(hint, sizeof hint, "did you mean \"%s\"?", near);
        say(c, "parallel.recompute", hint, "the model's blocks call no op \"%.60s\"",
            p->recompute_ops[i]);
    }
}

/* ---- batch ---------------------------------------------------------------------------------- */

/* A step is whole microbatches on one rank. That dp divides it is not asked: the batch is cut into
 * runs of samples, and the last microbatch of a replica may be smaller. */
static void multiple(struct cross *c, const char *path, const char *what, int64_t global)
{
    int64_t micro = c->r->batch.micro;

    if (sound(c, "batch.micro", NULL) && global > 0 && global % micro != 0)
        say(c, path, "", "%s %" PRId64 " is not a multiple of micro %" PRId64, what, global, micro);
}

static void cross_batch(struct cross *c)
{
    const struct mc_batch_cfg *b = &c->r->batch;
    char at[48], before[48], path[40];

    if (sound(c, "batch.global", NULL) &&
        !(b->nramp > 0 && c->box->origin[mc_rows_find("batch.global")].text == NULL))
        multiple(c, "batch.global", "global", b->global);
    if (!sound(c, "batch.ramp", NULL) || b->nramp == 0)
        return;
    if (b->ramp[0].at.n != 0) {
        mc_units_print(b->ramp[0].at, at);
        say(c, "batch.ramp", "", "must start at 0, not at %s", at);
    }
    for (int i = 0; i < b->nramp; i++) {
        snprintf(path, sizeof path, "batch.ramp[%d]", i + 1);
        mc_units_print(b->ramp[i].at, at);
        if (i > 0 && b->ramp[i].at.unit != b->ramp[i - 1].at.unit) {
            say(c, path, "", "is in %s, the point before in %s: a ramp has one unit",
                mc_unit_name(b->ramp[i].at.unit), mc_unit_name(b->ramp[i - 1].at.unit));
        } else if (i > 0 && b->ramp[i].at.n <= b->ramp[i - 1].at.n) {
            mc_units_print(b->ramp[i - 1].at, before);
            say(c, path, "", "points must rise: %s is not after %s", at, before);
        }
        multiple(c, path, "global", b->ramp[i].global);
    }
    if (sound(c, "batch.global", NULL) && !b->function && b->global != b->ramp[b->nramp - 1].global)
        say(c, "batch.global", "", "is %" PRId64 ", but the ramp ends at %" PRId64, b->global,
            b->ramp[b->nramp - 1].global);
}

/* ---- lr ------------------------------------------------------------------------------------- */

enum { NQ = MC_MAX_PIECES + 3 };
struct lr_terms {
    struct mc_quantity *q[NQ];
    char path[NQ][40];
    int n;
};

static void term(struct lr_terms *t, struct mc_quantity *q, const char *fmt, int i)
    __attribute__((format(printf, 3, 0)));
static void term(struct lr_terms *t, struct mc_quantity *q, const char *fmt, int i)
{
    t->q[t->n] = q;
    snprintf(t->path[t->n], sizeof t->path[0], fmt, i);
    t->n++;
}

/* In the finest unit that is used, tokens before samples before steps. 0 ok. */
static int convert(struct cross *c, struct lr_terms *t)
{
    const struct mc_recipe *r = c->r;
    enum mc_unit unit = MC_UNIT_NONE;
    int constant = r->batch.nramp <= 1 && r->batch.global > 0, first = -1, one_length = 1;

    for (int i = 0; i < r->data.nphases; i++) {
        constant &= r->data.phase[i].batch.n == 0;
        one_length &= r->data.phase[i].seq == 0 || r->data.phase[i].seq == r->model.seq;
    }
    for (int i = 0; i < t->n; i++)
        if (t->q[i]->n > 0 && t->q[i]->unit > unit)
            unit = t->q[i]->unit; /* the enum is in this order */
    for (int i = 0; i < t->n && unit != MC_UNIT_NONE; i++) {
        struct mc_quantity *q = t->q[i];
        if (q->n > 0 && q->unit == MC_UNIT_STEPS && unit != MC_UNIT_STEPS) {
            if (!constant) {
                for (int k = 0; k < t->n; k++)
                    first = t->q[k]->n > 0 && t->q[k]->unit == unit ? k : first;
                say(c, t->path[i], "give both in one unit",
                    "is in steps, %s in %s: with a batch that changes they cannot be compared",
                    t->path[first], mc_unit_name(unit));
                return -1;
            }
            if (__builtin_mul_overflow(q->n, r->batch.global, &q->n))
                q->n = INT64_MAX;
            q->unit = MC_UNIT_SAMPLES;
        }
        if (q->n > 0 && q->unit == MC_UNIT_SAMPLES && unit == MC_UNIT_TOKENS && !one_length) {
            say(c, t->path[i], "give both in one unit",
                "is not in tokens, as others are: with sequence lengths that change (data.phases) "
                "they cannot be compared");
            return -1;
        }
        if (q->n > 0 && q->unit == MC_UNIT_SAMPLES && unit == MC_UNIT_TOKENS &&
            __builtin_mul_overflow(q->n, r->model.seq, &q->n))
            q->n = INT64_MAX;
        q->unit = unit;
        if (q->n >> 62 != 0) { /* I3 */
            say(c, t->path[i], "", "is beyond 2^62 %s", mc_unit_name(unit));
            return -1;
        }
    }
    return 0;
}

/* Fills *lr with the schedule in one unit, its end known. Problems are said when c asks. */
static void resolve_lr(struct cross *c, struct mc_lr_cfg *lr)
{
    const struct mc_recipe *r = c->r;
    struct lr_terms t = {.n = 0};
    int k = lr->kind, needs_end = k == MC_LR_LINEAR || k == MC_LR_COSINE || k == MC_LR_WSD;
    int from_steps = needs_end && lr->end.n == 0;
    int ends = needs_end || (k != MC_LR_CONSTANT && k != MC_LR_PIECES && lr->end.n > 0);
    char a[48], b[48];

    if (k == MC_LR_TABLE)
        return;
    if (from_steps)
        lr->end = r->steps;
    if (k != MC_LR_PIECES)
        term(&t, &lr->warmup, "lr.warmup", 0);
    if (k == MC_LR_WSD)
        term(&t, &lr->decay, "lr.decay", 0);
    if (ends)
        term(&t, &lr->end, from_steps ? "steps" : "lr.stop", 0);
    for (int i = 0; k == MC_LR_PIECES && i < lr->npieces; i++)
        term(&t, &lr->piece[i].until, "lr.pieces[%d].upto", i + 1);
    if (convert(c, &t))
        return;
    mc_units_print(lr->end, a);
    if (ends && lr->warmup.n >= lr->end.n) {
        mc_units_print(lr->warmup, b);
        say(c, "lr.warmup", "", "%s: the warm-up must end before the schedule does, at %s%s", b, a,
            from_steps ? " (from steps)" : "");
    } else if (k == MC_LR_WSD && lr->decay.n > lr->end.n - lr->warmup.n) {
        mc_units_print(lr->decay, b);
        say(c, "lr.decay", "", "%s: the decay and the warm-up do not fit before the end at %s%s", b,
            a, from_steps ? " (from steps)" : "");
    }
    for (int i = 1; k == MC_LR_PIECES && i < lr->npieces; i++)
        if (lr->piece[i].until.n <= lr->piece[i - 1].until.n) {
            mc_units_print(lr->piece[i].until, a);
            mc_units_print(lr->piece[i - 1].until, b);
            say(c, t.path[i], "", "pieces must rise: %s is not after %s", a, b);
        }
}

static void cross_lr(struct cross *c)
{
    struct mc_lr_cfg lr = c->r->lr;
    int lr_sound =
        sound(c, "lr.kind", "lr.warmup", "lr.stop", "lr.decay", "lr.pieces", "lr.values", NULL);

    if (sound(c, "lr.kind", "lr.peak", NULL) && lr.kind < MC_LR_PIECES) {
        char low[32], peak[32];
        mc_fmt_f64(lr.peak, peak);
        mc_fmt_f64(lr.floor, low);
        if (sound(c, "lr.floor", NULL) && lr.floor > lr.peak)
            say(c, "lr.floor", "", "%s is above the peak %s", low, peak);
        mc_fmt_f64(lr.init, low);
        if (sound(c, "lr.init", NULL) && lr.init > lr.peak)
            say(c, "lr.init", "", "%s is above the peak %s", low, peak);
    }
    if (lr_sound && c->r->steps.unit != MC_UNIT_NONE &&
        sound(c, "batch.global", "batch.ramp", "data.phases", "model.seq", "steps.steps",
              "steps.samples", "steps.tokens", NULL))
        resolve_lr(c, &lr); /* a copy (I2) */
}

void mc_recipe_resolve_lr(struct mc_recipe_box *box)
{
    struct cross c = {box, &box->r, NULL, 0};
    int from_steps = box->r.lr.end.n == 0;

    resolve_lr(&c, &box->r.lr);
    if (from_steps && box->r.lr.end.n > 0)
        mc_recipe_set_origin(box, "lr.stop", "default: the target of steps");
}

/* ---- data, eval ----------------------------------------------------------------------------- */

static void cross_order(struct cross *c)
{
    const struct mc_data_cfg *d = &c->r->data;
    int megatron = d->order == MC_ORDER_MEGATRON;

    if (!sound(c, "data.order", NULL))
        return;
    if (!megatron && sound(c, "data.samples", NULL) && d->samples > 0)
        say(c, "data.samples", "", "is for data.order = \"megatron\"; this order needs no length");
    if (!megatron && sound(c, "data.split", NULL) && d->split[0] > 0)
        say(c, "data.split", "data.holdout = 0.1 keeps the last tenth",
            "is for data.order = \"megatron\"");
    if (megatron && sound(c, "data.holdout", NULL) && d->holdout > 0)
        say(c, "data.holdout", "data.split = { 90, 10 }",
            "cuts a sequence of tokens, which data.order = \"megatron\" cannot");
    if (megatron && sound(c, "data.split", "data.valid", NULL) && d->split[1] > 0 && d->nvalid > 0)
        say(c, "data.split", "data.split = { 1, 0, 0 }, or none",
            "validation comes from data.valid or from data.split, not from both");
    if (megatron && sound(c, "seed", NULL) && (c->r->seed < 0 || c->r->seed > UINT32_MAX))
        say(c, "seed", "", "%" PRId64 ": data.order = \"megatron\" takes 0 to 2^32 - 1",
            c->r->seed);
}

/* Every sequence length of the run divides the blocks that sources are read in. */
static void cross_block(struct cross *c)
{
    const struct mc_recipe *r = c->r;
    const struct mc_data_cfg *d = &r->data;
    int64_t block = mc_recipe_block(r), longest = mc_recipe_longest(r);
    char path[40];

    if (!sound(c, "data.block", "data.phases", "model.seq", NULL) || r->model.seq < 1)
        return;
    if (d->block > 0 && d->block < longest) {
        say(c, "data.block", "", "%" PRId64 " is below the longest sequence, %" PRId64 " tokens",
            d->block, longest);
        return;
    }
    if (block % r->model.seq != 0)
        say(c, d->block > 0 ? "data.block" : "data.phases", "",
            "model.seq %" PRId64 " does not divide %s, %" PRId64 " tokens: sources are read in "
            "blocks of that length",
            r->model.seq, d->block > 0 ? "it" : "the longest sequence", block);
    for (int i = 0; i < d->nphases; i++) {
        snprintf(path, sizeof path, "data.phases[%d].seq", i + 1);
        if (d->phase[i].seq > 0 && block % d->phase[i].seq != 0)
            say(c, path, "",
                "%" PRId64 " does not divide %s, %" PRId64 " tokens: sources are read in blocks of "
                "that length",
                d->phase[i].seq, d->block > 0 ? "data.block" : "the longest sequence", block);
    }
}

static void cross_phase_batch(struct cross *c, const char *path, struct mc_quantity q, int64_t seq)
{
    if (q.unit == MC_UNIT_TOKENS && q.n % seq != 0)
        say(c, path, "", "%" PRId64 " tokens are not whole samples of %" PRId64 " tokens", q.n,
            seq);
    else if (q.unit == MC_UNIT_TOKENS && q.n / seq > INT64_C(1) << 31)
        say(c, path, "", "is more than 2^31 samples of %" PRId64 " tokens", seq);
    else
        multiple(c, path, "batch", q.unit == MC_UNIT_TOKENS ? q.n / seq : q.n);
}

static void cross_phases(struct cross *c)
{
    const struct mc_data_cfg *d = &c->r->data;
    int64_t seq = c->r->model.seq;
    struct mc_quantity batch = {0};
    char path[40], at[48], before[48];

    if (d->nphases == 0 || seq < 1 || !sound(c, "data.phases", "model.seq", NULL))
        return;
    if (d->order == MC_ORDER_MEGATRON && sound(c, "data.order", NULL))
        say(c, "data.phases", "data.order = \"mascon\"",
            "data.order = \"megatron\" is one order for one sequence length and one set of "
            "weights: "
            "it has no phases");
    for (int i = 0; i < d->nphases; i++) {
        const struct mc_phase_cfg *p = &d->phase[i], *was = i > 0 ? p - 1 : p;
        snprintf(path, sizeof path, "data.phases[%d]", i + 1);
        mc_units_print(p->from, at);
        mc_units_print(was->from, before);
        if (p->from.unit != was->from.unit)
            say(c, path, "", "is in %s, the phase before in %s: phases have one unit",
                mc_unit_name(p->from.unit), mc_unit_name(was->from.unit));
        else if (i > 0 && p->from.n <= was->from.n)
            say(c, path, "", "phases must rise: %s is not after %s", at, before);
        if (p->nweights > 0 && d->ntrain > 0 && p->nweights != d->ntrain)
            say(c, path, "", "weights has %d numbers, data.train has %d source%s", p->nweights,
                d->ntrain, d->ntrain == 1 ? "" : "s");
        seq = p->seq > 0 ? p->seq : seq;
        batch = p->batch.n > 0 ? p->batch : batch;
        if (batch.n > 0)
            cross_phase_batch(c, path, batch, seq);
        if (p->batch.n > 0 && c->r->batch.function)
            say(c, path, "", "has a batch, and batch.global is a function: give it there");
    }
}

static void cross_data(struct cross *c)
{
    const struct mc_data_cfg *d = &c->r->data;

    if (sound(c, "data.holdout", "data.valid", NULL) && d->holdout > 0 && d->nvalid > 0)
        say(c, "data.holdout", "",
            "validation comes from data.valid or from data.holdout, not from both");
    cross_order(c);
    cross_block(c);
    cross_phases(c);
    if (sound(c, "eval.every", "data.holdout", "data.split", "data.valid", "data.train", NULL) &&
        c->r->eval.every.n > 0 && d->holdout == 0 && d->split[1] == 0 && d->nvalid == 0 &&
        d->declared_tokens == 0)
        say(c, "eval.every", "data.holdout = 0.1 keeps the last tenth",
            "there is no validation data: give data.valid or data.holdout");
}

void mc_recipe_cross(const struct mc_recipe_box *box, struct mc_problems *problems)
{
    struct cross c = {box, &box->r, problems, 0};

    cross_model(&c);
    cross_parallel(&c);
    cross_schedule(&c);
    cross_recompute(&c);
    cross_batch(&c);
    cross_lr(&c);
    cross_data(&c);
}
