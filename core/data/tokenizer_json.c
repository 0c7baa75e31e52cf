/* tokenizer_json.c - a Hugging Face tokenizer.json to a tokenizer.
 * Floor 3 (data). Includes: base.
 *
 *   added_tokens    [{id, content, special, lstrip, rstrip, normalized, single_word = false}]
 *   normalizer      null | NFC | Sequence of those
 *   pre_tokenizer   ByteLevel | Split (Regex, Isolated) | Digits | Sequence that ends in ByteLevel
 *   post_processor  checked to be of a kind that only adds tokens, and not applied
 *   decoder         null | ByteLevel
 *   model           BPE: vocab {name: id}, merges ["a b"] or [["a", "b"]], ignore_merges
 *
 * I1  Nothing is read and left aside: a member that would change ids and is not understood is
 *     refused by name (truncation, padding, dropout, byte_fallback, end_of_word_suffix ...).
 * I2  Bounded: the file, ids below 2^24, at most as many holes as tokens (and 1,024), names of at
 *     most 64 KiB, 8 stages. Ids are unique; each of the 256 bytes has a token; both halves and the
 *     whole of each merge are in the vocabulary.
 * I3  Names may be any text; what they spell is decided in I3 of tokenizer.c.
 *
 * Memory: what it makes is the tokenizer's; jansson keeps its own, freed at the end. */
#include "tokenizer_int.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"

enum { MAX_ID = 1 << 24, MAX_NAME = 64 << 10, MAX_ADDED = 1 << 20 };

struct named { /* one token of the file */
    int32_t id;
    unsigned char flags, normal; /* normal: looked for after normalisation */
    const char *name;            /* in the JSON tree */
    size_t n;
};
struct reading {
    const char *path;
    json_t *root;
    struct mc_tokenizer *t;
    struct named *tok;
    int64_t ntok;
    struct mc_err *err;
};

#define REFUSE(r, ...) mc_err_set((r)->err, MC_E_FORMAT, __VA_ARGS__)

static mc_status no_memory(struct reading *r)
{
    return mc_err_set(r->err, MC_E_NOMEM, "%s: no memory for this tokenizer", r->path);
}

/* ---- small readers; `at` is the dotted path for messages ---- */

static const char *type_of(json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    return s ? s : "(no type)";
}

static mc_status flag(struct reading *r, json_t *o, const char *at, const char *key, int dflt,
                      int *v)
{
    json_t *e = json_object_get(o, key);
    *v = dflt;
    if (e && !json_is_boolean(e))
        return REFUSE(r, "%s: %s.%s: true or false expected", r->path, at, key);
    if (e)
        *v = json_is_true(e);
    return MC_OK;
}

/* I1: the member is absent, null, false, 0 or "". */
static mc_status unset(struct reading *r, json_t *o, const char *at, const char *key,
                       const char *why)
{
    json_t *e = json_object_get(o, key);
    if (!e || json_is_null(e) || json_is_false(e) ||
        (json_is_number(e) && json_number_value(e) == 0) ||
        (json_is_string(e) && json_string_length(e) == 0))
        return MC_OK;
    return REFUSE(r, "%s: %s%s%s is set: %s", r->path, at, *at ? "." : "", key, why);
}

static mc_status known_keys(struct reading *r, json_t *o, const char *at, const char *const *keys)
{
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v)
    {
        int k = 0;
        while (keys[k] && strcmp(keys[k], key) != 0)
            k++;
        if (!keys[k])
            return REFUSE(r, "%s: %s%s%.60s: unknown member", r->path, at, *at ? "." : "", key);
    }
    return MC_OK;
}

/* ---- normalizer, pre_tokenizer, post_processor, decoder ---- */

static mc_status read_normalizer(struct reading *r, json_t *o, int depth)
{
    json_t *list, *e;
    struct mc_err *err = r->err;
    size_t i;
    if (!o || json_is_null(o))
        return MC_OK;
    if (!strcmp(type_of(o), "NFC")) {
        r->t->nfc = 1;
        return MC_OK;
    }
    list = json_object_get(o, "normalizers");
    if (strcmp(type_of(o), "Sequence") != 0 || !json_is_array(list) || depth > 2)
        return REFUSE(r, "%s: normalizer: %.60s is not one that this reader knows (NFC, none)",
                      r->path, type_of(o));
    json_array_foreach(list, i, e) MC_TRY(read_normalizer(r, e, depth + 1));
    return MC_OK;
}

static mc_status add_stage(struct reading *r, const struct mc_stage *s)
{
    if (r->t->nstages == MC_MAX_STAGES)
        return REFUSE(r, "%s: pre_tokenizer: more than %d stages", r->path, MC_MAX_STAGES);
    r->t->stage[r->t->nstages++] = *s;
    return MC_OK;
}

static mc_status read_split(struct reading *r, json_t *o)
{
    json_t *re = json_object_get(json_object_get(o, "pattern"), "Regex");
    const char *how = json_string_value(json_object_get(o, "behavior"));
    struct mc_stage s;
    struct mc_err *err = r->err;
    int invert;
    if (!json_is_string(re))
        return REFUSE(r, "%s: pre_tokenizer: Split: pattern.Regex expected", r->path);
    MC_TRY(flag(r, o, "pre_tokenizer", "invert", 0, &invert));
    if (r->t->nstages == MC_MAX_STAGES)
        return REFUSE(r, "%s: pre_tokenizer: more than %d stages", r->path, MC_MAX_STAGES);
    MC_TRY(mc_pretok_stage(json_string_value(re), json_string_length(re), &s, err));
    r->t->stage[r->t->nstages++] = s;     /* owned from here */
    int total = s.kind != MC_STAGE_REGEX; /* its matches cover any text */
    if (how &&
        ((!strcmp(how, "Isolated") && !invert) || (!strcmp(how, "Removed") && invert && total)))
        return MC_OK;
    return REFUSE(r,
                  "%s: pre_tokenizer: Split: behavior %.40s%s is not taken; Isolated keeps every "
                  "byte of the text",
                  r->path, how ? how : "(none)", invert ? " with invert" : "");
}

static mc_status read_byte_level(struct reading *r, json_t *o)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                       NULL};
    struct mc_err *err = r->err;
    int regex, prefix;
    MC_TRY(known_keys(r, o, "pre_tokenizer", keys));
    MC_TRY(flag(r, o, "pre_tokenizer", "use_regex", 1, &regex));
    MC_TRY(flag(r, o, "pre_tokenizer", "add_prefix_space", 1, &prefix));
    if (prefix && r->t->nstages > 0)
        return REFUSE(r,
                      "%s: pre_tokenizer: ByteLevel.add_prefix_space after other stages is not "
                      "taken",
                      r->path);
    r->t->prefix_space = prefix;
    if (!regex)
        return MC_OK;
    struct mc_stage s = {.kind = MC_STAGE_GPT2};
    return add_stage(r, &s);
}

/* *closed: ByteLevel was seen; nothing may follow. */
static mc_status read_pre_tokenizer(struct reading *r, json_t *o, int depth, int *closed)
{
    struct mc_err *err = r->err;
    const char *type = type_of(o);
    json_t *list = json_object_get(o, "pretokenizers"), *e;
    size_t i;
    if (!strcmp(type, "Sequence") && json_is_array(list) && depth <= 2) {
        json_array_foreach(list, i, e) MC_TRY(read_pre_tokenizer(r, e, depth + 1, closed));
        return MC_OK;
    }
    if (*closed)
        return REFUSE(r, "%s: pre_tokenizer: %.60s after ByteLevel", r->path, type);
    if (!strcmp(type, "ByteLevel")) {
        *closed = 1;
        return read_byte_level(r, o);
    }
    if (!strcmp(type, "Split"))
        return read_split(r, o);
    if (!strcmp(type, "Digits")) {
        struct mc_stage s = {.kind = MC_STAGE_DIGITS};
        MC_TRY(flag(r, o, "pre_tokenizer", "individual_digits", 0, &s.digits));
        return add_stage(r, &s);
    }
    return REFUSE(r,
                  "%s: pre_tokenizer: %.60s is not one that this reader knows (ByteLevel, Split, "
                  "Digits, Sequence)",
                  r->path, type);
}

static mc_status read_post_processor(struct reading *r, json_t *o, int depth)
{
    static const char *const adds[] = {"ByteLevel", "TemplateProcessing", "RobertaProcessing",
                                       "BertProcessing"};
    json_t *list = json_object_get(o, "processors"), *e;
    struct mc_err *err = r->err;
    size_t i;
    if (!o || json_is_null(o))
        return MC_OK;
    for (i = 0; i < sizeof adds / sizeof *adds; i++)
        if (!strcmp(type_of(o), adds[i]))
            return MC_OK;
    if (strcmp(type_of(o), "Sequence") != 0 || !json_is_array(list) || depth > 2)
        return REFUSE(r, "%s: post_processor: %.60s is not one that this reader knows", r->path,
                      type_of(o));
    json_array_foreach(list, i, e) MC_TRY(read_post_processor(r, e, depth + 1));
    return MC_OK;
}

static mc_status read_frame(struct reading *r)
{
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    struct mc_err *err = r->err;
    json_t *pre = json_object_get(r->root, "pre_tokenizer");
    json_t *dec = json_object_get(r->root, "decoder");
    int closed = 0;
    MC_TRY(known_keys(r, r->root, "", keys));
    MC_TRY(unset(r, r->root, "", "truncation", "documents are never cut; write null there"));
    MC_TRY(unset(r, r->root, "", "padding", "documents are never padded; write null there"));
    MC_TRY(read_normalizer(r, json_object_get(r->root, "normalizer"), 0));
    if (!pre || json_is_null(pre))
        return REFUSE(r,
                      "%s: pre_tokenizer: none: only byte-level BPE is read, and that has "
                      "ByteLevel there",
                      r->path);
    MC_TRY(read_pre_tokenizer(r, pre, 0, &closed));
    if (!closed)
        return REFUSE(r, "%s: pre_tokenizer: no ByteLevel in it: only byte-level BPE is read",
                      r->path);
    MC_TRY(read_post_processor(r, json_object_get(r->root, "post_processor"), 0));
    if (dec && !json_is_null(dec) && strcmp(type_of(dec), "ByteLevel") != 0)
        return REFUSE(r, "%s: decoder: %.60s: only byte-level BPE is read", r->path, type_of(dec));
    return MC_OK;
}

/* ---- tokens ---- */

static mc_status check_model(struct reading *r, json_t *m)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    struct mc_err *err = r->err;
    json_t *type = json_object_get(m, "type");
    if (!json_is_object(m))
        return REFUSE(r, "%s: model: not there: this is no tokenizer.json", r->path);
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return REFUSE(r, "%s: model.type: %.60s: only byte-level BPE is read", r->path, type_of(m));
    if (!json_is_object(json_object_get(m, "vocab")) ||
        !json_is_array(json_object_get(m, "merges")))
        return REFUSE(r, "%s: model.vocab and model.merges of a BPE are not there", r->path);
    MC_TRY(known_keys(r, m, "model", keys));
    MC_TRY(unset(r, m, "model", "dropout", "ids would be random"));
    MC_TRY(unset(r, m, "model", "byte_fallback",
                 "a BPE over characters; only byte-level BPE is read"));
    MC_TRY(unset(r, m, "model", "continuing_subword_prefix", "only byte-level BPE is read"));
    MC_TRY(unset(r, m, "model", "end_of_word_suffix", "only byte-level BPE is read"));
    return flag(r, m, "model", "ignore_merges", 0, &r->t->bpe.whole_words);
}

static mc_status collect(struct reading *r)
{
    json_t *vocab = json_object_get(json_object_get(r->root, "model"), "vocab");
    json_t *added = json_object_get(r->root, "added_tokens"), *v;
    size_t i, nvocab = json_object_size(vocab), nadded = json_array_size(added);
    const char *key;
    if (added && !json_is_array(added))
        return REFUSE(r, "%s: added_tokens: a list expected", r->path);
    if (nvocab > MAX_ID || nadded > MAX_ADDED)
        return REFUSE(r, "%s: %zu tokens and %zu added: too many", r->path, nvocab, nadded);
    r->tok = mc_alloc((nvocab + nadded + 1) * sizeof *r->tok, "tokens of a file");
    if (!r->tok)
        return no_memory(r);
    json_object_foreach(vocab, key, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= MAX_ID)
            return REFUSE(r, "%s: model.vocab: \"%.60s\": an id from 0 to %d expected", r->path,
                          key, MAX_ID - 1);
        r->tok[r->ntok++] = (struct named){.id = (int32_t)json_integer_value(v),
                                           .flags = MC_TOK_MODEL,
                                           .name = key,
                                           .n = strlen(key)};
    }
    json_array_foreach(added, i, v)
    {
        json_t *id = json_object_get(v, "id"), *text = json_object_get(v, "content"), *in;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= MAX_ID || !json_is_string(text) ||
            json_string_length(text) == 0)
            return REFUSE(r, "%s: added_tokens[%zu]: an id below %d and a content expected",
                          r->path, i, MAX_ID);
        const char *name = json_string_value(text);
        size_t n = json_string_length(text);
        int special = json_is_true(json_object_get(v, "special"));
        if (strlen(name) != n)
            return REFUSE(r, "%s: added_tokens[%zu]: a NUL in the content", r->path, i);
        in = json_object_get(vocab, name);
        if (in && json_integer_value(in) != json_integer_value(id))
            return REFUSE(
                r, "%s: added_tokens[%zu]: \"%.60s\" is %lld here and %lld in model.vocab", r->path,
                i, name, (long long)json_integer_value(id), (long long)json_integer_value(in));
        unsigned char f = (unsigned char)(MC_TOK_ADDED | (special ? MC_TOK_SPECIAL : 0) |
                                          (in ? MC_TOK_MODEL : 0));
        json_t *normal = json_object_get(v, "normalized");
        r->tok[r->ntok++] = (struct named){.id = (int32_t)json_integer_value(id),
                                           .flags = f,
                                           .normal = normal ? json_is_true(normal) : !special,
                                           .name = name,
                                           .n = n};
    }
    return MC_OK;
}

static int by_id(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (y->flags & MC_TOK_ADDED) - (x->flags & MC_TOK_ADDED); /* the added one first */
}

/* I3 of tokenizer.c: what the name of a model's token spells; 0: it is not in the alphabet. */
static int spell(const char *name, size_t n, unsigned char *dst, size_t *len)
{
    const unsigned char *s = (const unsigned char *)name, *e = s + n;
    *len = 0;
    while (s < e) {
        uint32_t cp;
        s += mc_utf8_next(s, e, &cp);
        int b = mc_alphabet_byte(cp);
        if (b < 0)
            return 0;
        dst[(*len)++] = (unsigned char)b;
    }
    return 1;
}

static mc_status put_token(struct reading *r, const struct named *k, unsigned char *buf,
                           unsigned char *spelled)
{
    struct mc_tokenizer *t = r->t;
    struct mc_err *err = r->err;
    size_t n = 0;
    if (k->n > MAX_NAME)
        return REFUSE(r, "%s: token %d has a name of %zu bytes, at most %d are taken", r->path,
                      k->id, k->n, MAX_NAME);
    t->flags[k->id] = k->flags;
    MC_TRY(mc_text_add(&t->name, k->name, k->n, err));
    if ((k->flags & MC_TOK_MODEL) && spell(k->name, k->n, buf, &n)) {
        spelled[k->id] = 1;
        if (n == 1)
            t->bpe.byte_id[buf[0]] = k->id;
        return mc_text_add(&t->piece, buf, n, err);
    }
    if (k->normal && t->nfc) /* what the text says where it stands */
        return mc_unicode_nfc(t->props, (const unsigned char *)k->name, k->n, &t->piece, err);
    return mc_text_add(&t->piece, k->name, k->n, err);
}

/* Tokens in order of their ids. *spelled: [n], 1 where the name is in the alphabet. */
static mc_status lay_out(struct reading *r, unsigned char **spelled, struct mc_err *err)
{
    struct mc_tokenizer *t = r->t;
    qsort(r->tok, (size_t)r->ntok, sizeof *r->tok, by_id);
    int64_t n = r->ntok > 0 ? (int64_t)r->tok[r->ntok - 1].id + 1 : 0;
    if (n - r->ntok > r->ntok + 1024) /* I2 */
        return REFUSE(r, "%s: the highest id is %lld, but there are only %lld tokens", r->path,
                      (long long)n - 1, (long long)r->ntok);
    t->n = (int32_t)n;
    t->flags = mc_alloc((size_t)n + 1, "tokens");
    *spelled = mc_alloc((size_t)n + 1, "tokens");
    t->piece_at = mc_alloc(((size_t)n + 1) * sizeof *t->piece_at, "tokens");
    t->name_at = mc_alloc(((size_t)n + 1) * sizeof *t->name_at, "tokens");
    unsigned char *buf = mc_alloc(MAX_NAME, "a name");
    mc_status st = t->flags && *spelled && t->piece_at && t->name_at && buf ? MC_OK : no_memory(r);
    memset(t->bpe.byte_id, 0xff, sizeof t->bpe.byte_id);
    int64_t k = 0;
    for (int32_t id = 0; id < n && st == MC_OK; id++) {
        t->piece_at[id] = (uint32_t)t->piece.n;
        t->name_at[id] = (uint32_t)t->name.n;
        if (k >= r->ntok || r->tok[k].id != id)
            continue; /* a hole */
        const struct named *first = &r->tok[k++];
        st = put_token(r, first, buf, *spelled);
        for (; st == MC_OK && k < r->ntok && r->tok[k].id == id; k++)
            if (r->tok[k].n != first->n || memcmp(r->tok[k].name, first->name, first->n) != 0 ||
                (r->tok[k].flags & MC_TOK_ADDED))
                st = REFUSE(r, "%s: id %d is \"%.60s\" and \"%.60s\" at once", r->path, id,
                            first->name, r->tok[k].name);
    }
    mc_free(buf);
    if (st != MC_OK)
        return mc_err_trail(err, st, __FILE__, __LINE__);
    t->piece_at[n] = (uint32_t)t->piece.n;
    t->name_at[n] = (uint32_t)t->name.n;
    for (int b = 0; b < 256; b++)
        if (t->bpe.byte_id[b] < 0)
            return REFUSE(r, "%s: model.vocab: no token for byte 0x%02x: this is no byte-level BPE",
                          r->path, b);
    return MC_OK;
}

/* ---- merges ---- */

/* The halves of merge i; 0: not two texts. */
static int halves(json_t *m, const char **a, size_t *na, const char **b, size_t *nb)
{
    if (json_is_string(m)) {
        const char *s = json_string_value(m), *gap = strchr(s, ' ');
        if (!gap || strchr(gap + 1, ' '))
            return 0;
        *a = s;
        *na = (size_t)(gap - s);
        *b = gap + 1;
        *nb = json_string_length(m) - *na - 1;
        return 1;
    }
    json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
    if (json_array_size(m) != 2 || !json_is_string(x) || !json_is_string(y))
        return 0;
    *a = json_string_value(x);
    *na = json_string_length(x);
    *b = json_string_value(y);
    *nb = json_string_length(y);
    return 1;
}

/* Id of a model's token of this name, or -1. */
static int32_t model_id(const struct mc_tokenizer *t, const char *name, size_t n)
{
    int32_t id = mc_tokenizer_id(t, name, n);
    return id >= 0 && (t->flags[id] & MC_TOK_MODEL) ? id : -1;
}

static mc_status read_merges(struct reading *r, struct mc_err *err)
{
    json_t *list = json_object_get(json_object_get(r->root, "model"), "merges"), *m;
    size_t i, n = json_array_size(list);
    if (n > MAX_ID)
        return REFUSE(r, "%s: model.merges: %zu: too many", r->path, n);
    struct mc_bpe_merge *merge = mc_alloc((n + 1) * sizeof *merge, "merges");
    char *both = mc_alloc(2 * MAX_NAME, "a name");
    mc_status st = merge && both ? MC_OK : no_memory(r);
    json_array_foreach(list, i, m)
    {
        const char *a, *b;
        size_t na, nb;
        if (st != MC_OK)
            break;
        if (!halves(m, &a, &na, &b, &nb) || na > MAX_NAME || nb > MAX_NAME) {
            st = REFUSE(r, "%s: model.merges[%zu]: two names expected", r->path, i);
            break;
        }
        memcpy(both, a, na);
        memcpy(both + na, b, nb);
        merge[i] = (struct mc_bpe_merge){model_id(r->t, a, na), model_id(r->t, b, nb),
                                         model_id(r->t, both, na + nb)};
        if (merge[i].left < 0 || merge[i].right < 0 || merge[i].into < 0)
            st = REFUSE(r, "%s: model.merges[%zu]: \"%.60s\" is not in model.vocab", r->path, i,
                        merge[i].left < 0    ? a
                        : merge[i].right < 0 ? b
                                             : "what the two make");
    }
    if (st == MC_OK)
        st = mc_bpe_init(&r->t->bpe, merge, (int64_t)n, err);
    mc_free(merge);
    mc_free(both);
    return st;
}

/* ---- added tokens ---- */

static int by_first_byte(const void *a, const void *b, void *pattern)
{
    const struct mc_added *x = a, *y = b;
    const unsigned char *p = pattern;
    if (p[x->at] != p[y->at])
        return p[x->at] - p[y->at];
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return memcmp(p + x->at, p + y->at, x->n);
}

static mc_status sort_added(struct reading *r, struct mc_added_set *s)
{
    const unsigned char *p = r->t->pattern.v;
    if (s->n == 0)
        return MC_OK;
    qsort_r(s->v, (size_t)s->n, sizeof *s->v, by_first_byte, r->t->pattern.v);
    for (int i = 1; i < s->n; i++)
        if (by_first_byte(&s->v[i - 1], &s->v[i], r->t->pattern.v) == 0)
            return REFUSE(r, "%s: added_tokens: ids %d and %d look for the same text", r->path,
                          s->v[i - 1].id, s->v[i].id);
    for (int b = 0, i = 0; b <= 256; b++) {
        while (i < s->n && p[s->v[i].at] < b)
            i++;
        s->first[b] = i;
    }
    return MC_OK;
}

static mc_status read_added(struct reading *r)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    json_t *list = json_object_get(r->root, "added_tokens"), *o;
    size_t i, n = json_array_size(list);
    struct mc_tokenizer *t = r->t;
    struct mc_err *err = r->err;
    t->raw.v = mc_alloc((n + 1) * sizeof *t->raw.v, "added tokens");
    t->normal.v = mc_alloc((n + 1) * sizeof *t->normal.v, "added tokens");
    if (!t->raw.v || !t->normal.v)
        return no_memory(r);
    json_array_foreach(list, i, o)
    {
        char at[40];
        int special, single, l, rs, normal;
        json_t *text = json_object_get(o, "content");
        const unsigned char *s = (const unsigned char *)json_string_value(text);
        size_t len = json_string_length(text), from = t->pattern.n;
        snprintf(at, sizeof at, "added_tokens[%zu]", i);
        MC_TRY(known_keys(r, o, at, keys));
        MC_TRY(flag(r, o, at, "special", 0, &special));
        MC_TRY(flag(r, o, at, "single_word", 0, &single));
        MC_TRY(flag(r, o, at, "lstrip", 0, &l));
        MC_TRY(flag(r, o, at, "rstrip", 0, &rs));
        MC_TRY(flag(r, o, at, "normalized", !special, &normal));
        if (single)
            return REFUSE(r, "%s: %s.single_word is set: not taken", r->path, at);
        if (normal && t->nfc)
            MC_TRY(mc_unicode_nfc(t->props, s, len, &t->pattern, err));
        else
            MC_TRY(mc_text_add(&t->pattern, s, len, err));
        struct mc_added_set *set = normal ? &t->normal : &t->raw;
        set->v[set->n++] =
            (struct mc_added){.id = (int32_t)json_integer_value(json_object_get(o, "id")),
                              .at = (uint32_t)from,
                              .n = (uint32_t)(t->pattern.n - from),
                              .special = (unsigned char)special,
                              .lstrip = (unsigned char)l,
                              .rstrip = (unsigned char)rs};
    }
    MC_TRY(sort_added(r, &t->raw));
    return sort_added(r, &t->normal);
}

static void find_eos(struct mc_tokenizer *t)
{
    static const char *const names[] = {
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<|eos|>",
        "<eos>",
        "[EOS]",
        "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"};
    t->eos = -1;
    for (size_t i = 0; i < sizeof names / sizeof *names && t->eos < 0; i++) {
        int32_t id = mc_tokenizer_id(t, names[i], strlen(names[i]));
        if (id >= 0 && (t->flags[id] & MC_TOK_ADDED))
            t->eos = id;
    }
}

/* ---- the call ---- */

static mc_status read_all(struct reading *r, struct mc_err *err)
{
    struct mc_tokenizer *t = r->t;
    unsigned char *spelled = NULL;
    mc_status st;
    t->props = mc_alloc(MC_UC_N, "properties of characters");
    if (!t->props)
        return no_memory(r);
    mc_unicode_props(t->props);
    MC_TRY_GOTO(st, check_model(r, json_object_get(r->root, "model")), out);
    MC_TRY_GOTO(st, read_frame(r), out);
    MC_TRY_GOTO(st, collect(r), out);
    MC_TRY_GOTO(st, lay_out(r, &spelled, err), out);
    MC_TRY_GOTO(st, mc_tokenizer_index(t, err), out);
    MC_TRY_GOTO(st, read_merges(r, err), out);
    t->bpe.piece_at = t->piece_at;
    t->bpe.piece = t->piece.v;
    MC_TRY_GOTO(st, mc_bpe_words(&t->bpe, spelled, t->n, err), out);
    MC_TRY_GOTO(st, read_added(r), out);
    find_eos(t);
out:
    mc_free(spelled);
    return st;
}

mc_status mc_tokenizer_parse(const char *json, size_t n, const char *path, struct mc_tokenizer **t,
                             struct mc_err *err)
{
    json_error_t why;
    struct reading r = {.path = path, .err = err};
    r.root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &why);
    if (!r.root)
        return mc_err_set(err, MC_E_FORMAT, "%s: not JSON: line %d: %s", path, why.line, why.text);
    r.t = mc_alloc(sizeof *r.t, "tokenizer");
    mc_status st = r.t ? read_all(&r, err) : no_memory(&r);
    json_decref(r.root);
    mc_free(r.tok);
    if (st != MC_OK) {
        mc_tokenizer_close(r.t);
        return st;
    }
    r.t->hash = mc_hash64(json, n);
    *t = r.t;
    return MC_OK;
}
