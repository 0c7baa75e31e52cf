/* data.c - the data of a run: its sources, what training and validation see of each, and fetching.
 * Floor 3 (data). Includes: base recipe.
 *
 * A source's stream has n tokens. At sequence length T, sample k is the T + 1 tokens from k*T on:
 * inputs [k*T, k*T + T) and the same shifted by one as targets. Training reads whole blocks of B
 * tokens (B a multiple of every T of the run), floor((n - 1) / B) of them, and not the tokens after
 * the last one; validation has floor((n - 1) / T) samples of T = model.seq.
 * With holdout h, training sees [0, cut) and validation [cut, n), cut = floor(n * (1 - h)), of
 * every training source; samples are cut within each range, so no window reads a token of the other
 * side. Without it, validation has sources of its own; a path in both lists is refused.
 *
 * With data.order = "megatron" samples and their order are those of megatron.c instead, and
 * data.split cuts between sequences; validation is read in stream order as ever.
 *
 * I1  Each training source gives at least one sample, and so does each validation range: a source
 *     that could never be drawn is an error, with both lengths.
 * I2  Weights are finite and above 0; a draw normalises them.
 * I3  Ids are checked against the vocabulary in every fetch: that is when they are first touched;
 *     and at open where the sidecar tells the largest.
 * I4  Fetch allocates nothing and may run in several threads at once. ntrain = 0 with validation
 *     sources is legal: evaluation only.
 *
 * Memory: handle life. */
#include "data_int.h"
#include "tokenizer.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"

/* ---- open ---- */

static mc_status name_parts(struct mc_part *p, int n, const char *abs_path, struct mc_err *err)
{
    char base[MC_PATH];
    mc_order_name(abs_path, base, sizeof base);
    if (strlen(base) + 16 > sizeof base)
        return mc_err_set(err, MC_E_RECIPE, "data: path is too long: %.80s...", abs_path);
    memcpy(p[n].name, base, strlen(base) + 1);
    for (int k = 2, i = 0; i < n; i++)
        if (!strcmp(p[i].name, p[n].name)) {
            snprintf(p[n].name, sizeof p[n].name, "%.*s#%d", MC_PATH - 16, base, k++);
            i = -1;
        }
    return MC_OK;
}

/* Opens path i of a list into p[i]; the range is the whole stream. */
static mc_status open_part(struct mc_data *d, const char *base_dir, const struct mc_source_cfg *cfg,
                           struct mc_part *p, int i, struct mc_err *err)
{
    char path[MC_PATH];
    size_t n = strlen(cfg->path), len;
    MC_TRY(mc_order_abs(base_dir, cfg->path, path, err));
    MC_TRY(name_parts(p, i, path, err));
    p[i].given = cfg->path;
    len = strlen(path);
    if (n > 1 && cfg->path[n - 1] == '/' && len + 1 < sizeof path)
        memcpy(path + len, "/", 2); /* "a folder, not the packed data of that name": see source.c */
    MC_TRY(mc_source_open(path, &p[i].src, err));
    d->source[d->nsource++] = p[i].src;
    MC_TRY(mc_source_expect(p[i].src, err));
    p[i].tokens = mc_source_tokens(p[i].src);
    return MC_OK;
}

static mc_status cut_samples(int64_t len, struct mc_part *p, const char *side, struct mc_err *err)
{
    p->samples = p->tokens > 0 ? (p->tokens - 1) / len : 0;
    if (p->samples > 0)
        return MC_OK;
    return mc_err_set(err, MC_E_RECIPE,
                      "%s: source \"%s\" has %lld tokens there, but one sample of sequence length "
                      "%lld needs %lld: a sequence longer than the data; shorten model.seq or give "
                      "more text",
                      side, p->given, (long long)p->tokens, (long long)len, (long long)len + 1);
}

static mc_status check_weights(const struct mc_data_cfg *cfg, struct mc_err *err)
{
    for (int i = 0; i < cfg->ntrain; i++)
        if (!isfinite(cfg->train[i].weight) || cfg->train[i].weight <= 0)
            return mc_err_set(
                err, MC_E_RECIPE,
                "data.train[%d] (%s): weight %g: it must be above 0; leave the source "
                "out to draw nothing from it",
                i + 1, cfg->train[i].path, cfg->train[i].weight);
    return MC_OK;
}

/* The last part of training source i becomes validation source i. */
static mc_status hold_out(struct mc_data *d, int i, int64_t cut, int64_t end, const char *key,
                          struct mc_err *err)
{
    struct mc_part *p = &d->train[i], *v = &d->valid[i];
    *v = *p;
    v->first = cut;
    v->tokens = end - cut;
    p->tokens = cut;
    MC_TRY(cut_samples(d->seq, v, key, err));
    d->nvalid = i + 1;
    return MC_OK;
}

static mc_status open_train(struct mc_data *d, const struct mc_recipe *r, const char *base_dir,
                            struct mc_err *err)
{
    const struct mc_data_cfg *cfg = &r->data;
    MC_TRY(check_weights(cfg, err)); /* I2 */
    for (int i = 0; i < cfg->ntrain; i++) {
        struct mc_part *p = &d->train[i];
        MC_TRY(open_part(d, base_dir, &cfg->train[i], d->train, i, err));
        int64_t n = p->tokens;
        if (cfg->holdout > 0)
            MC_TRY(hold_out(d, i, (int64_t)floor((double)n * (1 - cfg->holdout)), n,
                            "validation (data.holdout)", err));
        if (!d->megatron)
            MC_TRY(cut_samples(d->block, p, "data.train", err)); /* I1 */
        d->ntrain = i + 1;
        d->weight[i] = cfg->train[i].weight;
    }
    for (int i = 0; i < d->ntrain && !d->megatron; i++)
        d->order[i] = (struct mc_order){.key = mc_order_key(r->seed, d->train[i].name),
                                        .samples = (uint64_t)d->train[i].samples};
    return MC_OK;
}

/* The split and the index of training source i, built for so many samples. */
static mc_status open_megatron_one(struct mc_data *d, const struct mc_recipe *r, int i,
                                   int64_t samples, struct mc_err *err)
{
    struct mc_part *p = &d->train[i];
    const struct mc_indexed *x = mc_source_indexed(p->src);
    if (!x)
        return mc_err_set(
            err, MC_E_RECIPE,
            "data.order \"megatron\": source \"%s\" is text; this order is defined on "
            "packed data: mascon data pack first",
            p->name);
    int64_t end[2] = {mc_indexed_sequences(x), 0};
    const double *split = r->data.split;
    if (split[0] > 0) {
        mc_megatron_split(split, end[0], end);
        if (split[1] > 0) {
            int64_t n = mc_indexed_sequences(x), cut = p->tokens, stop = p->tokens;
            cut = end[0] < n ? mc_indexed_start(x, end[0]) : cut;
            stop = end[1] < n ? mc_indexed_start(x, end[1]) : stop;
            MC_TRY(hold_out(d, i, cut, stop, "validation (data.split)", err));
        }
    }
    struct mc_megatron_cfg c = {
        .x = x, .name = p->name, .n = end[0], .seq = d->seq, .samples = samples, .seed = r->seed};
    MC_TRY(mc_megatron_build(&c, &d->mega[i], err));
    p->tokens = d->mega[i].tokens;
    p->samples = d->mega[i].rows;
    return MC_OK;
}

static mc_status open_megatron(struct mc_data *d, const struct mc_recipe *r, struct mc_err *err)
{
    double w[MC_MAX_SOURCES], once[MC_MAX_SOURCES];
    int64_t k = r->data.samples;
    if (k < 1)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.samples: data.order \"megatron\" is computed for a number of "
                          "samples: give it");
    for (int i = 0; i < d->ntrain; i++)
        w[i] = r->data.train[i].weight;
    mc_megatron_weights(w, d->ntrain, once, d->blend);
    for (int i = 0; i < d->ntrain; i++)
        MC_TRY(open_megatron_one(d, r, i, d->ntrain == 1 ? k : mc_megatron_share(k, once[i]), err));
    return MC_OK;
}

static mc_status open_valid(struct mc_data *d, const struct mc_data_cfg *cfg, const char *base_dir,
                            struct mc_err *err)
{
    for (int i = 0; i < cfg->nvalid; i++) {
        char v[MC_PATH], t[MC_PATH];
        MC_TRY(mc_order_abs(base_dir, cfg->valid[i].path, v, err));
        for (int k = 0; k < cfg->ntrain; k++) {
            MC_TRY(mc_order_abs(base_dir, cfg->train[k].path, t, err));
            if (!strcmp(v, t))
                return mc_err_set(
                    err, MC_E_RECIPE,
                    "data.valid: %s is a training source too, so validation would see "
                    "what was learned; use data.holdout to keep a part of it apart",
                    cfg->valid[i].path);
        }
        MC_TRY(open_part(d, base_dir, &cfg->valid[i], d->valid, i, err));
        MC_TRY(cut_samples(d->seq, &d->valid[i], "data.valid", err));
        d->nvalid = i + 1;
    }
    return MC_OK;
}

static mc_status check_cfg(const struct mc_recipe *r, struct mc_err *err)
{
    const struct mc_data_cfg *cfg = &r->data;
    if (cfg->declared_tokens > 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "data: declared (m.data.declared), for planning only; give data.train a "
                          "path");
    if (cfg->ntrain == 0 && (cfg->required || cfg->nvalid == 0))
        return mc_err_set(err, MC_E_RECIPE,
                          "data.train: this recipe needs a text from you: --set data.train=PATH");
    if (!(cfg->holdout >= 0 && cfg->holdout < 1))
        return mc_err_set(err, MC_E_RECIPE, "data.holdout: %g is not in [0, 1)", cfg->holdout);
    if (cfg->holdout > 0 && cfg->nvalid > 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.holdout and data.valid: give one of them, not both");
    if (cfg->split[1] > 0 && cfg->nvalid > 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.split and data.valid: give one of them, not both");
    if (cfg->order == MC_ORDER_MEGATRON && cfg->holdout > 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.holdout cuts a sequence of tokens, which data.order \"megatron\" "
                          "cannot: use data.split");
    if (cfg->order != MC_ORDER_MEGATRON && cfg->split[0] > 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.split is for data.order = \"megatron\"; use data.holdout");
    if (r->model.seq < 1 || r->model.vocab < 1)
        return mc_err_set(err, MC_E_RECIPE, "model: seq %lld, vocab %lld: both must be above 0",
                          (long long)r->model.seq, (long long)r->model.vocab);
    return MC_OK;
}

/* Packed sources must come from this tokenizer, where their sidecar tells. t NULL: a name. */
static mc_status check_packed(const struct mc_data *d, const char *want,
                              const struct mc_tokenizer *t, struct mc_err *err)
{
    for (int i = 0; i < d->nsource; i++) {
        const struct mc_source *s = d->source[i];
        const char *name;
        uint64_t hash = mc_source_tokenizer(s, &name);
        if (mc_source_kind(s) == MC_SOURCE_TEXT && !mc_tokenizer_is_bytes(t))
            return mc_err_set(err, MC_E_RECIPE,
                              "data: source %d is text, which only tokenizer = \"bytes\" reads as "
                              "it is; with \"%s\" pack it first: mascon data pack --tokenizer %s",
                              i + 1, want, want);
        if (hash != 0 && hash != mc_tokenizer_hash(t))
            return mc_err_set(err, MC_E_RECIPE,
                              "data: source %d was packed by another tokenizer (%s), not by "
                              "data.tokenizer = \"%s\"; pack it again, or set that one",
                              i + 1, name, want);
        if (mc_source_kind(s) == MC_SOURCE_PACKED && mc_source_is_bytes(s) &&
            !mc_tokenizer_is_bytes(t))
            return mc_err_set(
                err, MC_E_RECIPE,
                "data: source %d was packed as bytes, not by data.tokenizer = \"%s\"; "
                "pack it again with --tokenizer %s",
                i + 1, want, want);
    }
    return MC_OK;
}

static mc_status check_name(const struct mc_data *d, const struct mc_data_cfg *cfg,
                            struct mc_err *err)
{
    for (int i = 0; i < d->nsource; i++)
        if (mc_source_kind(d->source[i]) == MC_SOURCE_TEXT)
            return mc_err_set(err, MC_E_RECIPE,
                              "data: source %d is text, which only tokenizer = \"bytes\" reads as "
                              "it is; \"%s\" is a name: give a tokenizer.json and packed data "
                              "(mascon data pack --tokenizer FILE)",
                              i + 1, cfg->tokenizer);
    if (cfg->mask_eod)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.mask_eod: the EOS of tokenizer \"%s\" is not known",
                          cfg->tokenizer);
    return MC_OK;
}

static mc_status check_tokenizer(struct mc_data *d, const struct mc_data_cfg *cfg,
                                 const char *base_dir, struct mc_err *err)
{
    char path[MC_PATH];
    struct mc_tokenizer *t;
    int bytes = !strcmp(cfg->tokenizer, "bytes");
    d->eos = -1;
    if (!bytes && !mc_tokenizer_is_file(cfg->tokenizer))
        return check_name(d, cfg, err);
    if (bytes)
        snprintf(path, sizeof path, "bytes");
    else
        MC_TRY(mc_path_join(path, sizeof path, base_dir, cfg->tokenizer, err));
    MC_TRY(mc_tokenizer_open(path, &t, err));
    d->eos = mc_tokenizer_eos(t);
    mc_status st = check_packed(d, cfg->tokenizer, t, err);
    mc_tokenizer_close(t);
    if (st == MC_OK && cfg->mask_eod && d->eos < 0)
        st = mc_err_set(err, MC_E_RECIPE, "data.mask_eod: tokenizer %s has no EOS", cfg->tokenizer);
    return st;
}

/* I3, before anything is read. */
static mc_status check_ids(const struct mc_data *d, const struct mc_part *p, int n,
                           struct mc_err *err)
{
    for (int i = 0; i < n; i++)
        if (mc_source_max_id(p[i].src) >= d->vocab)
            return mc_err_set(err, MC_E_RECIPE,
                              "source \"%s\" has ids up to %lld, past the vocabulary of %lld ids; "
                              "is model.vocab that of the data's tokenizer?",
                              p[i].name, (long long)mc_source_max_id(p[i].src),
                              (long long)d->vocab);
    return MC_OK;
}

static mc_status open_all(struct mc_data *d, const struct mc_recipe *r, const char *base_dir,
                          struct mc_err *err)
{
    MC_TRY(open_train(d, r, base_dir, err));
    if (d->megatron && d->ntrain > 0)
        MC_TRY(open_megatron(d, r, err));
    MC_TRY(open_valid(d, &r->data, base_dir, err));
    MC_TRY(check_tokenizer(d, &r->data, base_dir, err)); /* first: it names the cause */
    MC_TRY(check_ids(d, d->train, d->ntrain, err));
    MC_TRY(check_ids(d, d->valid, d->nvalid, err));
    struct mc_hasher *h = mc_hasher_create();
    if (!h)
        return mc_err_set(err, MC_E_NOMEM, "no memory to hash the data");
    d->bytes_like = !strcmp(r->data.tokenizer, "bytes");
    for (int i = 0; i < d->nsource; i++) {
        uint64_t v = mc_source_hash(d->source[i]);
        mc_hasher_add(h, &v, sizeof v);
        d->bytes_like &= mc_source_is_bytes(d->source[i]);
    }
    d->hash = mc_hasher_value(h);
    mc_hasher_destroy(h);
    return MC_OK;
}

mc_status mc_data_open(const struct mc_recipe *r, const char *base_dir, struct mc_data **d,
                       struct mc_err *err)
{
    MC_TRY(check_cfg(r, err));
    struct mc_data *y = mc_alloc(sizeof *y, "data");
    if (!y)
        return mc_err_set(err, MC_E_NOMEM, "no memory to open the data");
    y->seq = r->model.seq;
    y->block = mc_recipe_block(r);
    y->vocab = r->model.vocab;
    y->mask_eod = r->data.mask_eod;
    y->megatron = r->data.order == MC_ORDER_MEGATRON;
    mc_status st;
    MC_TRY_GOTO(st, open_all(y, r, base_dir, err), fail);
    *d = y;
    return MC_OK;
fail:
    mc_data_close(y);
    return st;
}

void mc_data_close(struct mc_data *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->ntrain; i++)
        mc_megatron_fini(&d->mega[i]);
    for (int i = 0; i < d->nsource; i++)
        mc_source_close(d->source[i]);
    mc_free(d);
}

int64_t mc_data_train_tokens(const struct mc_data *d)
{
    int64_t n = 0;
    for (int i = 0; i < d->ntrain; i++)
        n += d->train[i].tokens;
    return n;
}

int64_t mc_data_valid_samples(const struct mc_data *d)
{
    int64_t n = 0;
    for (int i = 0; i < d->nvalid; i++)
        n += d->valid[i].samples;
    return n;
}

uint64_t mc_data_hash(const struct mc_data *d)
{
    return d->hash;
}

int mc_data_bytes_like(const struct mc_data *d)
{
    return d->bytes_like;
}

const char *mc_data_source_name(const struct mc_data *d, int source)
{
    return source >= 0 && source < d->ntrain ? d->train[source].name : "?";
}

/* ---- fetch ---- */

/* tokens and targets [t]: ids against the vocabulary, the loss mask. `where`: position of the first
 * token, in its stream or in its sample. */
static mc_status finish_one(const struct mc_data *d, const char *source, const char *of,
                            int64_t where, int64_t t, int32_t *tokens, int32_t *targets,
                            struct mc_err *err)
{
    memcpy(targets, tokens + 1, (size_t)(t - 1) * sizeof *targets);
    for (int64_t i = 0; i <= t; i++) { /* I3 */
        int32_t id = i < t ? tokens[i] : targets[t - 1];
        if (id >= d->vocab)
            return mc_err_set(
                err, MC_E_FORMAT,
                "source \"%s\": token %lld of %s has id %d, past the "
                "vocabulary of %lld ids; is model.vocab that of the data's tokenizer?",
                source, (long long)(where + i), of, id, (long long)d->vocab);
    }
    if (d->mask_eod)
        for (int64_t i = 0; i < t; i++)
            if (tokens[i] == d->eos)
                targets[i] = -1;
    return MC_OK;
}

/* One sample: tokens [t], targets [t]. */
static mc_status fetch_one(const struct mc_data *d, const struct mc_part *p, int64_t index,
                           int64_t t, int32_t *tokens, int32_t *targets, struct mc_err *err)
{
    int64_t pos = p->first + index * t;
    if (index < 0 || t < 1 || index >= (p->tokens - 1) / t)
        return mc_err_set(err, MC_E_BUG,
                          "source \"%s\": sample %lld of %lld tokens asked for, it has %lld tokens",
                          p->name, (long long)index, (long long)t, (long long)p->tokens);
    MC_TRY(mc_source_read(p->src, pos, t, tokens, err));
    MC_TRY(mc_source_read(p->src, pos + t, 1, &targets[t - 1], err));
    return finish_one(d, p->name, "the stream", pos, t, tokens, targets, err);
}

/* The same in Megatron's order: index is a row of the source's sample index. */
static mc_status fetch_megatron(const struct mc_data *d, int source, uint64_t index,
                                int32_t *tokens, int32_t *targets, struct mc_err *err)
{
    const struct mc_part *p = &d->train[source];
    const struct mc_megatron *m = &d->mega[source];
    const struct mc_indexed *x = mc_source_indexed(p->src);
    char of[48];
    if (index >= (uint64_t)m->rows)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.order \"megatron\": source \"%s\" was built for %lld samples and "
                          "they are used up; this order has to know the length of the run: give "
                          "data.samples when the run starts",
                          p->name, (long long)m->rows);
    MC_TRY(mc_megatron_read(m, x, (int64_t)index, d->seq, tokens, err));
    MC_TRY(mc_megatron_read(m, x, (int64_t)index + 1, 1, &targets[d->seq - 1], err));
    snprintf(of, sizeof of, "sample %llu", (unsigned long long)index);
    return finish_one(d, p->name, of, 0, d->seq, tokens, targets, err);
}

mc_status mc_data_fetch(const struct mc_data *d, const struct mc_sample *s, int64_t n,
                        int32_t *tokens, int32_t *targets, struct mc_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (s[i].source < 0 || s[i].source >= d->ntrain)
            return mc_err_set(err, MC_E_BUG, "sample of source %d, there are %d", s[i].source,
                              d->ntrain);
        int64_t t = s[i].seq;
        int32_t *x = tokens + i * t, *y = targets + i * t;
        if (d->megatron)
            MC_TRY(fetch_megatron(d, s[i].source, s[i].index, x, y, err));
        else
            MC_TRY(fetch_one(d, &d->train[s[i].source], (int64_t)s[i].index, t, x, y, err));
    }
    return MC_OK;
}

mc_status mc_data_fetch_valid(const struct mc_data *d, int64_t first, int64_t n, int32_t *tokens,
                              int32_t *targets, struct mc_err *err)
{
    int part = 0;
    int64_t k = first;
    if (first < 0 || n < 0 || first + n > mc_data_valid_samples(d))
        return mc_err_set(err, MC_E_BUG, "validation samples %lld + %lld asked for, there are %lld",
                          (long long)first, (long long)n, (long long)mc_data_valid_samples(d));
    for (int64_t i = 0; i < n; i++, k++) {
        while (k >= d->valid[part].samples)
            k -= d->valid[part++].samples;
        MC_TRY(fetch_one(d, &d->valid[part], k, d->seq, tokens + i * d->seq, targets + i * d->seq,
                         err));
    }
    return MC_OK;
}
