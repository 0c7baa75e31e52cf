/* tokenizer.c - encoding and decoding.
 * Floor 3 (data). Includes: base.
 *
 * Encoding, in this order:
 *   1. added tokens that are looked for before normalisation cut the text
 *   2. what lies between them is normalised (nothing, or NFC)
 *   3. added tokens that are looked for after it cut that
 *   4. what is left is cut into words (pretok.c), each of which becomes ids (bpe.c)
 *
 * I1  Of added tokens that match at the leftmost place, the longest is taken; then the search goes
 *     on behind it. A special token that is to be read as text has still taken its place in the
 *     search: so the library has it, and so the two ways cut alike.
 * I2  lstrip and rstrip take the blanks beside a token with it, never those that the token before
 *     has taken.
 * I3  An id of the model stands for the bytes that its name spells in the alphabet of byte-level
 *     tokens; an added token, and a name with other characters, stands for its name (normalised, if
 *     it is looked for after normalisation). The library spells added tokens by the alphabet as
 *     well: there one of Latin letters beyond ASCII decodes to bytes that are no text.
 *
 * Memory: struct mc_tokenizer owns all; struct mc_encoder is one thread's and borrows it. */
#include "tokenizer_int.h"
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"
#include "../base/sysio.h"

enum { MAX_FILE = 256 << 20, BYTES_EOS = 256, BYTES_N = 257 };

/* ---- open ---- */

static mc_status open_bytes(struct mc_tokenizer **t, struct mc_err *err)
{
    struct mc_tokenizer *y = mc_alloc(sizeof *y, "tokenizer");
    mc_status st = y ? MC_OK : mc_err_set(err, MC_E_NOMEM, "no memory for a tokenizer");
    if (y) {
        y->bytes = 1;
        y->n = BYTES_N;
        y->eos = BYTES_EOS;
        y->hash = mc_hash64("bytes", 5);
        y->piece_at = mc_alloc((BYTES_N + 1) * sizeof *y->piece_at, "tokenizer");
        y->flags = mc_alloc(BYTES_N, "tokenizer");
        if (!y->piece_at || !y->flags)
            st = mc_err_set(err, MC_E_NOMEM, "no memory for a tokenizer");
    }
    for (int i = 0; i < 256 && st == MC_OK; i++) {
        unsigned char b = (unsigned char)i;
        y->flags[i] = MC_TOK_MODEL;
        y->piece_at[i] = (uint32_t)i;
        st = mc_text_add(&y->piece, &b, 1, err);
    }
    if (st != MC_OK) {
        mc_tokenizer_close(y);
        return st;
    }
    y->flags[BYTES_EOS] = MC_TOK_ADDED | MC_TOK_SPECIAL;
    y->piece_at[BYTES_EOS] = y->piece_at[BYTES_N] = 256;
    *t = y;
    return MC_OK;
}

int mc_tokenizer_is_file(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && !strcmp(name + n - 5, ".json");
}

mc_status mc_tokenizer_open(const char *bytes_or_path, struct mc_tokenizer **t, struct mc_err *err)
{
    char *text;
    size_t n;
    if (!strcmp(bytes_or_path, "bytes"))
        return open_bytes(t, err);
    MC_TRY(mc_sys_read_file(bytes_or_path, MAX_FILE, &text, &n, err));
    mc_status st = mc_tokenizer_parse(text, n, bytes_or_path, t, err);
    mc_free(text);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

void mc_tokenizer_close(struct mc_tokenizer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->nstages; i++)
        mc_pretok_stage_fini(&t->stage[i]);
    mc_bpe_fini(&t->bpe);
    mc_free(t->flags);
    mc_free(t->piece_at);
    mc_free(t->name_at);
    mc_free(t->piece.v);
    mc_free(t->name.v);
    mc_free(t->pattern.v);
    mc_free(t->by_name);
    mc_free(t->raw.v);
    mc_free(t->normal.v);
    mc_free(t->props);
    mc_free(t);
}

/* ---- ids and names ---- */

int64_t mc_tokenizer_vocab(const struct mc_tokenizer *t)
{
    return t->n;
}

int32_t mc_tokenizer_eos(const struct mc_tokenizer *t)
{
    return t->eos;
}

int mc_tokenizer_is_bytes(const struct mc_tokenizer *t)
{
    return t->bytes;
}

uint64_t mc_tokenizer_hash(const struct mc_tokenizer *t)
{
    return t->hash;
}

const char *mc_tokenizer_piece(const struct mc_tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || id >= t->n) {
        *n = 0;
        return "";
    }
    *n = t->piece_at[id + 1] - t->piece_at[id];
    return *n ? (const char *)t->piece.v + t->piece_at[id] : "";
}

int mc_tokenizer_is_special(const struct mc_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n && (t->flags[id] & MC_TOK_SPECIAL) != 0;
}

const char *mc_tokenizer_name(const struct mc_tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= t->n || !t->flags[id])
        return NULL;
    if (t->bytes)
        return mc_tokenizer_piece(t, id, n);
    *n = t->name_at[id + 1] - t->name_at[id];
    return *n ? (const char *)t->name.v + t->name_at[id] : "";
}

mc_status mc_tokenizer_index(struct mc_tokenizer *t, struct mc_err *err)
{
    t->by_name_cap = 64;
    while (t->by_name_cap < 2 * (size_t)t->n)
        t->by_name_cap *= 2;
    t->by_name = mc_alloc(t->by_name_cap * sizeof *t->by_name, "names of tokens");
    if (!t->by_name)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the names of %d tokens", t->n);
    memset(t->by_name, 0xff, t->by_name_cap * sizeof *t->by_name);
    for (int32_t id = 0; id < t->n; id++) {
        size_t n;
        const char *name = mc_tokenizer_name(t, id, &n);
        if (!name)
            continue;
        size_t i = mc_hash64(name, n) & (t->by_name_cap - 1);
        while (t->by_name[i] >= 0)
            i = (i + 1) & (t->by_name_cap - 1);
        t->by_name[i] = id;
    }
    return MC_OK;
}

int32_t mc_tokenizer_id(const struct mc_tokenizer *t, const char *name, size_t n)
{
    if (t->bytes)
        return n == 1 ? (unsigned char)*name : -1;
    for (size_t i = mc_hash64(name, n) & (t->by_name_cap - 1); t->by_name[i] >= 0;
         i = (i + 1) & (t->by_name_cap - 1)) {
        size_t m;
        const char *its = mc_tokenizer_name(t, t->by_name[i], &m);
        if (m == n && !memcmp(its, name, n))
            return t->by_name[i];
    }
    return -1;
}

size_t mc_tokenizer_decode(const struct mc_tokenizer *t, const int32_t *ids, int64_t n,
                           int skip_special, char *dst, size_t cap)
{
    size_t all = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t k;
        const char *p = mc_tokenizer_piece(t, ids[i], &k);
        if (skip_special && mc_tokenizer_is_special(t, ids[i]))
            continue;
        if (all < cap && k > 0)
            memcpy(dst + all, p, k < cap - all ? k : cap - all);
        all += k;
    }
    return all;
}

/* ---- encode ---- */

struct mc_encoder {
    const struct mc_tokenizer *tok;
    struct mc_bpe_work *bpe;
    struct mc_pretok pretok;
    struct mc_text normal, spaced;
    enum mc_encode_special how;
    struct mc_ids *out;
};

mc_status mc_encoder_create(const struct mc_tokenizer *t, struct mc_encoder **e, struct mc_err *err)
{
    struct mc_encoder *x = mc_alloc(sizeof *x, "encoder");
    if (!x)
        return mc_err_set(err, MC_E_NOMEM, "no memory for an encoder");
    mc_status st = MC_OK;
    x->tok = t;
    if (!t->bytes) {
        MC_TRY_GOTO(st, mc_bpe_work_create(&t->bpe, &x->bpe, err), fail);
        MC_TRY_GOTO(st, mc_pretok_init(&x->pretok, t->props, t->stage, t->nstages, err), fail);
    }
    *e = x;
    return MC_OK;
fail:
    mc_encoder_destroy(x);
    return st;
}

void mc_encoder_destroy(struct mc_encoder *e)
{
    if (!e)
        return;
    mc_bpe_work_destroy(e->bpe);
    mc_pretok_fini(&e->pretok);
    mc_free(e->normal.v);
    mc_free(e->spaced.v);
    mc_free(e);
}

static mc_status put_word(void *arg, const unsigned char *word, size_t n, struct mc_err *err)
{
    struct mc_encoder *e = arg;
    return mc_bpe_word(e->bpe, word, n, e->out, err);
}

/* Step 4. */
static mc_status put_words(struct mc_encoder *e, const unsigned char *s, size_t n,
                           struct mc_err *err)
{
    if (n > 0 && e->tok->prefix_space && *s != ' ') {
        e->spaced.n = 0;
        MC_TRY(mc_text_add(&e->spaced, " ", 1, err));
        MC_TRY(mc_text_add(&e->spaced, s, n, err));
        s = e->spaced.v;
        n = e->spaced.n;
    }
    return mc_pretok_run(&e->pretok, s, n, put_word, e, err);
}

static mc_status put_normal(struct mc_encoder *e, const unsigned char *s, size_t n,
                            struct mc_err *err);

/* The longest token of the set that begins at s, or NULL. */
static const struct mc_added *match(const struct mc_tokenizer *t, const struct mc_added_set *set,
                                    const unsigned char *s, size_t n)
{
    for (int i = set->first[*s]; i < set->first[*s + 1]; i++) /* longest first */
        if (set->v[i].n <= n && !memcmp(t->pattern.v + set->v[i].at, s, set->v[i].n))
            return &set->v[i];
    return NULL;
}

static int blank_at(const struct mc_tokenizer *t, const unsigned char *s, const unsigned char *e,
                    int *n)
{
    uint32_t cp;
    *n = mc_utf8_next(s, e, &cp);
    return (t->props[cp] & MC_UC_CLASS) == MC_UC_BLANK;
}

/* I2: the first of the blanks that end at `at`, not before `least`. */
static const unsigned char *blanks_before(const struct mc_tokenizer *t, const unsigned char *least,
                                          const unsigned char *at)
{
    while (at > least) {
        const unsigned char *p = at - 1;
        int n;
        while (p > least && at - p < 4 && (*p & 0xc0) == 0x80)
            p--;
        if (!blank_at(t, p, at, &n) || p + n != at)
            break;
        at = p;
    }
    return at;
}

/* Steps 1 and 3: tokens of the set to ids, what lies between them to `rest`. */
static mc_status
cut(struct mc_encoder *e, const struct mc_added_set *set, const unsigned char *s, size_t n,
    mc_status (*rest)(struct mc_encoder *, const unsigned char *, size_t, struct mc_err *),
    struct mc_err *err)
{
    const struct mc_tokenizer *t = e->tok;
    const unsigned char *end = s + n, *done = s, *p = s;
    while (set->n > 0 && p < end) {
        if (set->first[*p] == set->first[*p + 1]) {
            p++;
            continue;
        }
        const struct mc_added *a = match(t, set, p, (size_t)(end - p));
        if (!a) {
            p++;
            continue;
        }
        const unsigned char *from = p, *to = p + a->n;
        p = to; /* I1 */
        if (a->special && e->how == MC_ENCODE_TEXT)
            continue;
        if (a->lstrip)
            from = blanks_before(t, done, from);
        for (int k; a->rstrip && to < end && blank_at(t, to, end, &k);)
            to += k;
        if (from > done)
            MC_TRY(rest(e, done, (size_t)(from - done), err));
        MC_TRY(mc_ids_room(e->out, 1, err));
        e->out->v[e->out->n++] = a->id;
        done = to;
    }
    return done < end ? rest(e, done, (size_t)(end - done), err) : MC_OK;
}

/* Steps 2 and 3. */
static mc_status put_normal(struct mc_encoder *e, const unsigned char *s, size_t n,
                            struct mc_err *err)
{
    if (e->tok->nfc && !mc_unicode_is_nfc(e->tok->props, s, n)) {
        e->normal.n = 0;
        MC_TRY(mc_unicode_nfc(e->tok->props, s, n, &e->normal, err));
        s = e->normal.v;
        n = e->normal.n;
    }
    return cut(e, &e->tok->normal, s, n, put_words, err);
}

mc_status mc_encode(struct mc_encoder *e, const void *text, size_t n, enum mc_encode_special how,
                    struct mc_ids *out, struct mc_err *err)
{
    const unsigned char *s = text;
    if (e->tok->bytes) {
        MC_TRY(mc_ids_room(out, (int64_t)n, err));
        for (size_t i = 0; i < n; i++)
            out->v[out->n++] = s[i];
        return MC_OK;
    }
    e->how = how;
    e->out = out;
    return cut(e, &e->tok->raw, s, n, put_normal, err);
}
