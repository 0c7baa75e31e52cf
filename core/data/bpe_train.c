/* bpe_train.c - learns a byte-level BPE and writes it as tokenizer.json.
 * Floor 3 (data). Includes: base.
 *
 * Words are counted; each is a row of ids, at first of its bytes. The pair of neighbours that
 * occurs most often over all words becomes a new id and is put together wherever it stands, from
 * left to right; and so on, until the vocabulary is full or no pair occurs `min_frequency` times.
 *
 * I1  Of pairs that occur equally often, the one of the lowest (first id, second id) goes first. So
 *     the result depends on the words and their counts only, not on the order of texts.
 * I2  Ids: special tokens as given; the 256 bytes in the order of their characters in the alphabet
 *     of byte-level tokens; then one id a merge. A merge that spells what another id spells already
 *     takes that id; one that spells the name of a special token, or more than 16 KiB, is not made.
 * I3  A pair's count is exact at all times; the heap holds what it once was, and an entry that is
 *     not true any more goes back with the true count.
 *
 * Memory: struct mc_bpe_trainer owns all. Threads: one. */
#include "tokenizer_int.h"
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"
#include "../base/json.h"
#include "../base/sysio.h"

enum { MAX_VOCAB = 1 << 24, MAX_PIECE = 16 << 10 };
const char *const mc_pretok_names[MC_NPRETOKS] = {"gpt2", "llama3", "qwen2"};

struct list { /* of any size of element */
    void *v;
    size_t n, cap;
};
struct word {
    uint32_t at, n; /* in ids; before learning, bytes in text */
    int64_t count;
};
struct pair {
    int32_t a, b;
    int64_t count;
    size_t raised;   /* merges made when it was last counted up */
    uint32_t *where; /* words that hold it, or once did */
    uint32_t nwhere, cap;
};
struct best { /* heap: most often first, then lowest ids */
    int64_t count;
    uint32_t pair;
};
struct mc_bpe_trainer {
    struct mc_bpe_train_cfg cfg; /* special: borrowed */
    unsigned char *props;
    struct mc_stage stage;
    struct mc_pretok pretok;
    struct mc_text text, normal; /* the bytes of different words */
    struct list words;           /* struct word */
    uint32_t *by_text;           /* hash -> word + 1 */
    size_t by_text_cap;
    int64_t bytes, total;
    /* learning */
    int32_t *ids;
    struct list pairs; /* struct pair */
    uint32_t *by_pair; /* hash -> pair + 1 */
    size_t by_pair_cap;
    struct list heap;   /* struct best */
    struct list raised; /* uint32_t: pairs that occur more often since the last merge */
    struct list merges; /* struct mc_bpe_merge */
    struct mc_text piece;
    struct list piece_at; /* uint32_t, one more than ids */
    int32_t *by_piece;    /* hash -> id + 1 */
    size_t by_piece_cap;
};

static mc_status no_memory(struct mc_err *err)
{
    return mc_err_set(err, MC_E_NOMEM, "no memory to learn a tokenizer");
}

static mc_status room(struct list *l, size_t size, struct mc_err *err)
{
    if (l->n < l->cap)
        return MC_OK;
    size_t cap = l->cap ? 2 * l->cap : 256;
    void *v = cap < UINT32_MAX ? mc_grow(l->v, l->cap * size, cap * size, "learning") : NULL;
    if (!v)
        return no_memory(err);
    l->v = v;
    l->cap = cap;
    return MC_OK;
}

/* ---- counting words ---- */

static uint32_t *word_slot(struct mc_bpe_trainer *t, const unsigned char *s, size_t n)
{
    size_t mask = t->by_text_cap - 1, i = mc_hash64(s, n) & mask;
    for (; t->by_text[i]; i = (i + 1) & mask) {
        const struct word *w = (struct word *)t->words.v + (t->by_text[i] - 1);
        if (w->n == n && !memcmp(t->text.v + w->at, s, n))
            break;
    }
    return &t->by_text[i];
}

static mc_status grow_words(struct mc_bpe_trainer *t, struct mc_err *err)
{
    uint32_t *old = t->by_text;
    size_t cap = t->by_text_cap ? 2 * t->by_text_cap : 4096;
    if (2 * t->words.n < t->by_text_cap)
        return MC_OK;
    t->by_text = mc_alloc(cap * sizeof *t->by_text, "words");
    if (!t->by_text) {
        t->by_text = old;
        return no_memory(err);
    }
    mc_free(old);
    t->by_text_cap = cap;
    for (size_t i = 0; i < t->words.n; i++) {
        const struct word *w = (struct word *)t->words.v + i;
        *word_slot(t, t->text.v + w->at, w->n) = (uint32_t)i + 1;
    }
    return MC_OK;
}

static mc_status count_word(void *arg, const unsigned char *s, size_t n, struct mc_err *err)
{
    struct mc_bpe_trainer *t = arg;
    MC_TRY(grow_words(t, err));
    uint32_t *slot = word_slot(t, s, n);
    t->total++;
    if (!*slot) {
        if (t->text.n + n > UINT32_MAX)
            return mc_err_set(err, MC_E_NOMEM,
                              "more than 4 GiB of different words: this is no text to learn from");
        MC_TRY(room(&t->words, sizeof(struct word), err));
        struct word *w = (struct word *)t->words.v + t->words.n;
        *w = (struct word){.at = (uint32_t)t->text.n, .n = (uint32_t)n};
        MC_TRY(mc_text_add(&t->text, s, n, err));
        *slot = (uint32_t)++t->words.n;
    }
    ((struct word *)t->words.v)[*slot - 1].count++;
    return MC_OK;
}

mc_status mc_bpe_trainer_add(struct mc_bpe_trainer *t, const void *text, size_t n,
                             struct mc_err *err)
{
    const unsigned char *s = text;
    t->bytes += (int64_t)n;
    if (t->cfg.pretok == MC_PRETOK_QWEN2 && !mc_unicode_is_nfc(t->props, s, n)) {
        t->normal.n = 0;
        MC_TRY(mc_unicode_nfc(t->props, s, n, &t->normal, err));
        s = t->normal.v;
        n = t->normal.n;
    }
    return mc_pretok_run(&t->pretok, s, n, count_word, t, err);
}

static mc_status check_cfg(const struct mc_bpe_train_cfg *c, struct mc_err *err)
{
    if (c->vocab < 256 + c->nspecial || c->vocab > MAX_VOCAB)
        return mc_err_set(err, MC_E_USAGE,
                          "a vocabulary of %lld: it holds 256 bytes and %d special tokens, and at "
                          "most %d ids in all",
                          (long long)c->vocab, c->nspecial, MAX_VOCAB);
    for (int i = 0; i < c->nspecial; i++) {
        uint32_t cp;
        const unsigned char *s = (const unsigned char *)c->special[i];
        size_t n = strlen(c->special[i]);
        int one = n == 0 ? 1 : mc_utf8_next(s, s + n, &cp) == (int)n;
        for (size_t k = 0; k < n;) {
            k += (size_t)mc_utf8_next(s + k, s + n, &cp);
            one |= cp == MC_UC_INVALID;
        }
        for (int k = 0; k < i; k++)
            one |= !strcmp(c->special[i], c->special[k]);
        if (one)
            return mc_err_set(err, MC_E_USAGE,
                              "special token \"%.60s\": it must be UTF-8, longer than one "
                              "character, and given once",
                              c->special[i]);
    }
    return MC_OK;
}

mc_status mc_bpe_trainer_create(const struct mc_bpe_train_cfg *cfg, struct mc_bpe_trainer **out,
                                struct mc_err *err)
{
    static const char *const regex[MC_NPRETOKS] = {NULL, mc_pretok_llama3, mc_pretok_qwen2};
    MC_TRY(check_cfg(cfg, err));
    struct mc_bpe_trainer *t = mc_alloc(sizeof *t, "learning");
    mc_status st = MC_OK;
    if (!t)
        return no_memory(err);
    t->cfg = *cfg;
    t->stage.kind = MC_STAGE_GPT2;
    t->props = mc_alloc(MC_UC_N, "properties of characters");
    if (!t->props) {
        st = no_memory(err);
        goto fail;
    }
    mc_unicode_props(t->props);
    if (regex[cfg->pretok])
        MC_TRY_GOTO(st,
                    mc_pretok_stage(regex[cfg->pretok], strlen(regex[cfg->pretok]), &t->stage, err),
                    fail);
    MC_TRY_GOTO(st, mc_pretok_init(&t->pretok, t->props, &t->stage, 1, err), fail);
    *out = t;
    return MC_OK;
fail:
    mc_bpe_trainer_destroy(t);
    return st;
}

void mc_bpe_trainer_destroy(struct mc_bpe_trainer *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->pairs.n; i++)
        mc_free(((struct pair *)t->pairs.v)[i].where);
    mc_pretok_fini(&t->pretok);
    mc_pretok_stage_fini(&t->stage);
    void *all[] = {t->props,    t->text.v,  t->normal.v,   t->words.v,  t->by_text,
                   t->ids,      t->pairs.v, t->by_pair,    t->heap.v,   t->raised.v,
                   t->merges.v, t->piece.v, t->piece_at.v, t->by_piece, t};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mc_free(all[i]);
}

/* ---- pairs and their heap ---- */

static uint32_t *pair_slot(struct mc_bpe_trainer *t, int32_t a, int32_t b)
{
    uint64_t key = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    size_t mask = t->by_pair_cap - 1, i = mc_mix64(key) & mask;
    for (; t->by_pair[i]; i = (i + 1) & mask) {
        const struct pair *p = (struct pair *)t->pairs.v + (t->by_pair[i] - 1);
        if (p->a == a && p->b == b)
            break;
    }
    return &t->by_pair[i];
}

static mc_status grow_pairs(struct mc_bpe_trainer *t, struct mc_err *err)
{
    uint32_t *old = t->by_pair;
    size_t cap = t->by_pair_cap ? 2 * t->by_pair_cap : 4096;
    if (2 * t->pairs.n < t->by_pair_cap)
        return MC_OK;
    t->by_pair = mc_alloc(cap * sizeof *t->by_pair, "pairs");
    if (!t->by_pair) {
        t->by_pair = old;
        return no_memory(err);
    }
    mc_free(old);
    t->by_pair_cap = cap;
    for (size_t i = 0; i < t->pairs.n; i++) {
        const struct pair *p = (struct pair *)t->pairs.v + i;
        *pair_slot(t, p->a, p->b) = (uint32_t)i + 1;
    }
    return MC_OK;
}

/* Adds to the count of a pair; `word` holds it (by > 0). */
static mc_status count_pair(struct mc_bpe_trainer *t, int32_t a, int32_t b, int64_t by,
                            uint32_t word, struct mc_err *err)
{
    MC_TRY(grow_pairs(t, err));
    uint32_t *slot = pair_slot(t, a, b);
    if (!*slot) {
        MC_TRY(room(&t->pairs, sizeof(struct pair), err));
        ((struct pair *)t->pairs.v)[t->pairs.n] = (struct pair){.a = a, .b = b};
        *slot = (uint32_t)++t->pairs.n;
    }
    struct pair *p = (struct pair *)t->pairs.v + (*slot - 1);
    p->count += by;
    if (by > 0 && p->raised != t->merges.n) { /* the heap may have it with a lower count */
        p->raised = t->merges.n;
        MC_TRY(room(&t->raised, sizeof(uint32_t), err));
        ((uint32_t *)t->raised.v)[t->raised.n++] = *slot - 1;
    }
    if (by < 0 || (p->nwhere > 0 && p->where[p->nwhere - 1] == word))
        return MC_OK;
    if (p->nwhere == p->cap) {
        uint32_t cap = p->cap ? 2 * p->cap : 4;
        uint32_t *w = mc_grow(p->where, p->cap * sizeof *w, cap * sizeof *w, "places of a pair");
        if (!w)
            return no_memory(err);
        p->where = w;
        p->cap = cap;
    }
    p->where[p->nwhere++] = word;
    return MC_OK;
}

static int before(const struct mc_bpe_trainer *t, const struct best *x, const struct best *y)
{
    const struct pair *p = (struct pair *)t->pairs.v + x->pair,
                      *q = (struct pair *)t->pairs.v + y->pair;
    if (x->count != y->count)
        return x->count > y->count;
    return p->a != q->a ? p->a < q->a : p->b < q->b; /* I1 */
}

static mc_status push_best(struct mc_bpe_trainer *t, uint32_t pair, struct mc_err *err)
{
    struct best b = {.count = ((struct pair *)t->pairs.v)[pair].count, .pair = pair};
    if (b.count < 1)
        return MC_OK;
    MC_TRY(room(&t->heap, sizeof b, err));
    struct best *h = t->heap.v;
    size_t i = t->heap.n++;
    for (; i > 0 && before(t, &b, &h[(i - 1) / 2]); i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = b;
    return MC_OK;
}

static struct best pop_best(struct mc_bpe_trainer *t)
{
    struct best *h = t->heap.v, top = h[0], b = h[--t->heap.n];
    size_t i = 0, k;
    for (; (k = 2 * i + 1) < t->heap.n; i = k) {
        if (k + 1 < t->heap.n && before(t, &h[k + 1], &h[k]))
            k++;
        if (!before(t, &h[k], &b))
            break;
        h[i] = h[k];
    }
    h[i] = b;
    return top;
}

/* ---- ids and what they spell ---- */

static int32_t *piece_slot(struct mc_bpe_trainer *t, const unsigned char *s, size_t n)
{
    const uint32_t *at = t->piece_at.v;
    size_t mask = t->by_piece_cap - 1, i = mc_hash64(s, n) & mask;
    for (; t->by_piece[i]; i = (i + 1) & mask) {
        int32_t id = t->by_piece[i] - 1;
        if (at[id + 1] - at[id] == n && !memcmp(t->piece.v + at[id], s, n))
            break;
    }
    return &t->by_piece[i];
}

/* The next id spells [s, s+n). hidden: nothing may be found by it (special tokens). */
static mc_status add_id(struct mc_bpe_trainer *t, const unsigned char *s, size_t n, int hidden,
                        struct mc_err *err)
{
    int32_t *slot = hidden ? NULL : piece_slot(t, s, n);
    MC_TRY(mc_text_add(&t->piece, s, n, err));
    if (t->piece.n > UINT32_MAX)
        return no_memory(err);
    MC_TRY(room(&t->piece_at, sizeof(uint32_t), err));
    if (slot)
        *slot = (int32_t)t->piece_at.n;
    ((uint32_t *)t->piece_at.v)[t->piece_at.n++] = (uint32_t)t->piece.n;
    return MC_OK;
}

static int64_t nids(const struct mc_bpe_trainer *t)
{
    return (int64_t)t->piece_at.n - 1;
}

static mc_status first_ids(struct mc_bpe_trainer *t, int32_t byte_id[256], struct mc_err *err)
{
    t->by_piece_cap = 4096;
    while (t->by_piece_cap < 2 * (size_t)t->cfg.vocab)
        t->by_piece_cap *= 2;
    t->by_piece = mc_alloc(t->by_piece_cap * sizeof *t->by_piece, "pieces");
    if (!t->by_piece)
        return no_memory(err);
    MC_TRY(room(&t->piece_at, sizeof(uint32_t), err));
    ((uint32_t *)t->piece_at.v)[t->piece_at.n++] = 0;
    for (int i = 0; i < t->cfg.nspecial; i++)
        MC_TRY(
            add_id(t, (const unsigned char *)t->cfg.special[i], strlen(t->cfg.special[i]), 1, err));
    for (uint32_t cp = 0; cp < MC_ALPHABET_END; cp++) { /* I2 */
        int b = mc_alphabet_byte(cp);
        unsigned char c = (unsigned char)b;
        if (b < 0)
            continue;
        byte_id[b] = (int32_t)nids(t);
        MC_TRY(add_id(t, &c, 1, 0, err));
    }
    return MC_OK;
}

/* ---- learning ---- */

static mc_status start(struct mc_bpe_trainer *t, struct mc_err *err)
{
    int32_t byte_id[256];
    MC_TRY(first_ids(t, byte_id, err));
    t->ids = mc_alloc((t->text.n + 1) * sizeof *t->ids, "words as ids");
    if (!t->ids)
        return no_memory(err);
    for (size_t i = 0; i < t->text.n; i++)
        t->ids[i] = byte_id[t->text.v[i]];
    for (size_t w = 0; w < t->words.n; w++) {
        struct word x = ((struct word *)t->words.v)[w];
        for (uint32_t i = 0; i + 1 < x.n; i++)
            MC_TRY(
                count_pair(t, t->ids[x.at + i], t->ids[x.at + i + 1], x.count, (uint32_t)w, err));
    }
    for (size_t p = 0; p < t->pairs.n; p++)
        MC_TRY(push_best(t, (uint32_t)p, err));
    return MC_OK;
}

/* Puts a, b together as `into` in one word; counts what goes and what comes. */
static mc_status merge_word(struct mc_bpe_trainer *t, uint32_t w, int32_t a, int32_t b,
                            int32_t into, struct mc_err *err)
{
    struct word *x = (struct word *)t->words.v + w;
    int32_t *id = t->ids + x->at;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->n;) {
        if (i + 1 == x->n || id[i] != a || id[i + 1] != b) {
            id[kept++] = id[i++];
            continue;
        }
        if (kept > 0) {
            MC_TRY(count_pair(t, id[kept - 1], a, -x->count, w, err));
            MC_TRY(count_pair(t, id[kept - 1], into, x->count, w, err));
        }
        if (i + 2 < x->n) {
            MC_TRY(count_pair(t, b, id[i + 2], -x->count, w, err));
            MC_TRY(count_pair(t, into, id[i + 2], x->count, w, err));
        }
        id[kept++] = into;
        i += 2;
    }
    x->n = kept;
    return MC_OK;
}

static int spells_special(const struct mc_bpe_trainer *t, const unsigned char *s, size_t n)
{
    for (int i = 0; i < t->cfg.nspecial; i++) {
        size_t k = 0, at = 0;
        const char *name = t->cfg.special[i];
        unsigned char c[4];
        for (; k < n; k++) { /* names of bytes are one or two bytes long */
            size_t len = (size_t)mc_utf8_put(mc_alphabet_char(s[k]), c);
            if (strncmp(name + at, (const char *)c, len) != 0)
                break;
            at += len;
        }
        if (k == n && !name[at])
            return 1;
    }
    return 0;
}

static mc_status merge_pair(struct mc_bpe_trainer *t, uint32_t pair, struct mc_text *both,
                            struct mc_err *err)
{
    struct pair p = ((struct pair *)t->pairs.v)[pair];
    const uint32_t *at = t->piece_at.v;
    both->n = 0;
    MC_TRY(mc_text_add(both, t->piece.v + at[p.a], at[p.a + 1] - at[p.a], err));
    MC_TRY(mc_text_add(both, t->piece.v + at[p.b], at[p.b + 1] - at[p.b], err));
    if (both->n > MAX_PIECE || spells_special(t, both->v, both->n)) /* I2 */
        return MC_OK;
    int32_t into = *piece_slot(t, both->v, both->n) - 1;
    if (into < 0) {
        into = (int32_t)nids(t);
        MC_TRY(add_id(t, both->v, both->n, 0, err));
    }
    MC_TRY(room(&t->merges, sizeof(struct mc_bpe_merge), err));
    ((struct mc_bpe_merge *)t->merges.v)[t->merges.n++] =
        (struct mc_bpe_merge){.left = p.a, .right = p.b, .into = into};
    t->raised.n = 0;
    for (uint32_t i = 0; i < p.nwhere; i++)
        MC_TRY(merge_word(t, p.where[i], p.a, p.b, into, err));
    struct pair *now = (struct pair *)t->pairs.v + pair;
    now->count = 0;
    mc_free(now->where);
    now->where = NULL;
    now->nwhere = now->cap = 0;
    for (size_t i = 0; i < t->raised.n; i++)
        MC_TRY(push_best(t, ((uint32_t *)t->raised.v)[i], err));
    return MC_OK;
}

static mc_status learn(struct mc_bpe_trainer *t, struct mc_err *err)
{
    struct mc_text both = {0};
    mc_status st = MC_OK;
    int64_t least = t->cfg.min_frequency > 1 ? t->cfg.min_frequency : 1;
    while (nids(t) < t->cfg.vocab && t->heap.n > 0 && st == MC_OK) {
        struct best b = pop_best(t);
        if (b.count < least)
            break;
        if (b.count != ((struct pair *)t->pairs.v)[b.pair].count)
            st = push_best(t, b.pair, err); /* I3 */
        else
            st = merge_pair(t, b.pair, &both, err);
    }
    mc_free(both.v);
    return st;
}

/* ---- writing ---- */

/* Appends the name of an id. */
static mc_status put_name(const struct mc_bpe_trainer *t, int32_t id, struct mc_text *dst,
                          struct mc_err *err)
{
    const uint32_t *at = t->piece_at.v;
    if (id < t->cfg.nspecial)
        return mc_text_add(dst, t->piece.v + at[id], at[id + 1] - at[id], err);
    for (uint32_t i = at[id]; i < at[id + 1]; i++) {
        unsigned char c[4];
        MC_TRY(mc_text_add(dst, c, (size_t)mc_utf8_put(mc_alphabet_char(t->piece.v[i]), c), err));
    }
    return MC_OK;
}

static void put_byte_level(struct mc_json *j, const char *key, int regex)
{
    mc_json_open(j, key, '{');
    mc_json_str(j, "type", "ByteLevel");
    mc_json_bool(j, "add_prefix_space", 0);
    mc_json_bool(j, "trim_offsets", 0);
    mc_json_bool(j, "use_regex", regex);
    mc_json_close(j, '}');
}

static void put_frame(const struct mc_bpe_trainer *t, struct mc_json *j)
{
    mc_json_str(j, "version", "1.0");
    mc_json_null(j, "truncation");
    mc_json_null(j, "padding");
    mc_json_open(j, "added_tokens", '[');
    for (int i = 0; i < t->cfg.nspecial; i++) {
        mc_json_open(j, NULL, '{');
        mc_json_i64(j, "id", i);
        mc_json_str(j, "content", t->cfg.special[i]);
        mc_json_bool(j, "single_word", 0);
        mc_json_bool(j, "lstrip", 0);
        mc_json_bool(j, "rstrip", 0);
        mc_json_bool(j, "normalized", 0);
        mc_json_bool(j, "special", 1);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
    if (t->cfg.pretok == MC_PRETOK_QWEN2) {
        mc_json_open(j, "normalizer", '{');
        mc_json_str(j, "type", "NFC");
        mc_json_close(j, '}');
    } else {
        mc_json_null(j, "normalizer");
    }
    if (t->cfg.pretok == MC_PRETOK_GPT2) {
        put_byte_level(j, "pre_tokenizer", 1);
    } else {
        mc_json_open(j, "pre_tokenizer", '{');
        mc_json_str(j, "type", "Sequence");
        mc_json_open(j, "pretokenizers", '[');
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "type", "Split");
        mc_json_open(j, "pattern", '{');
        mc_json_str(j, "Regex",
                    t->cfg.pretok == MC_PRETOK_LLAMA3 ? mc_pretok_llama3 : mc_pretok_qwen2);
        mc_json_close(j, '}');
        mc_json_str(j, "behavior", "Isolated");
        mc_json_bool(j, "invert", 0);
        mc_json_close(j, '}');
        put_byte_level(j, NULL, 0);
        mc_json_close(j, ']');
        mc_json_close(j, '}');
    }
    mc_json_null(j, "post_processor");
    put_byte_level(j, "decoder", 1);
}

static mc_status put_model(const struct mc_bpe_trainer *t, struct mc_json *j, struct mc_err *err)
{
    static const char *const none[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                       "end_of_word_suffix"};
    struct mc_text name = {0};
    mc_status st = MC_OK;
    mc_json_open(j, "model", '{');
    mc_json_str(j, "type", "BPE");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        mc_json_null(j, none[i]);
    mc_json_bool(j, "fuse_unk", 0);
    mc_json_bool(j, "byte_fallback", 0);
    mc_json_bool(j, "ignore_merges", t->cfg.pretok == MC_PRETOK_LLAMA3);
    mc_json_open(j, "vocab", '{');
    for (int32_t id = 0; id < nids(t) && st == MC_OK; id++) {
        name.n = 0;
        st = put_name(t, id, &name, err);
        if (st == MC_OK)
            st = mc_text_add(&name, "", 1, err);
        if (st == MC_OK)
            mc_json_i64(j, (const char *)name.v, id);
    }
    mc_json_close(j, '}');
    mc_json_open(j, "merges", '[');
    for (size_t i = 0; i < t->merges.n && st == MC_OK; i++) {
        struct mc_bpe_merge m = ((struct mc_bpe_merge *)t->merges.v)[i];
        name.n = 0;
        st = put_name(t, m.left, &name, err);
        if (st == MC_OK)
            st = mc_text_add(&name, " ", 1, err);
        if (st == MC_OK)
            st = put_name(t, m.right, &name, err);
        if (st == MC_OK)
            mc_json_strn(j, NULL, (const char *)name.v, name.n);
    }
    mc_json_close(j, ']');
    mc_json_close(j, '}');
    mc_free(name.v);
    return st;
}

mc_status mc_bpe_trainer_write(struct mc_bpe_trainer *t, const char *path,
                               struct mc_bpe_train_stats *stats, struct mc_err *err)
{
    struct mc_json j;
    MC_ASSERT(t->piece_at.n == 0); /* a trainer writes once */
    MC_TRY(start(t, err));
    MC_TRY(learn(t, err));
    mc_json_init_grow(&j);
    j.pretty = 1;
    mc_json_open(&j, NULL, '{');
    put_frame(t, &j);
    mc_status st = put_model(t, &j, err);
    mc_json_close(&j, '}');
    if (st == MC_OK && j.failed)
        st = no_memory(err);
    if (st == MC_OK)
        st = mc_sys_replace_file(path, j.buf, j.len, err);
    mc_json_fini(&j);
    if (st == MC_OK)
        *stats = (struct mc_bpe_train_stats){.bytes = t->bytes,
                                             .words = t->total,
                                             .different_words = (int64_t)t->words.n,
                                             .vocab = nids(t)};
    return mc_err_trail(err, st, __FILE__, __LINE__);
}
