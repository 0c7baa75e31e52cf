/* bpe.c - one word to ids by byte pair encoding.
 * Floor 3 (data). Includes: base.
 *
 * The word's bytes are symbols; of all pairs of neighbours that the model merges, the one of the
 * lowest rank is merged (the leftmost of equals), until none is left.
 *
 * I1  What is merged next depends on the present symbols only: (rank, position) least. Both ways
 *     below do that; short words scan, long ones keep a heap, so that a word of n bytes costs
 *     n log n. Entries of the heap that no longer hold are dropped when they come up: a pair's rank
 *     at a position changes only when one of its symbols grows, so a stale entry cannot agree with
 *     the present pair's rank by chance.
 * I2  The cache maps words of at most 24 bytes to at most 8 ids. It is a cache and nothing more: a
 *     word's ids are the same with and without it.
 *
 * Memory: struct mc_bpe, read by all threads; struct mc_bpe_work is one thread's. */
#include "tokenizer_int.h"
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"

enum { SHORT = 48, KEY = 24, CACHED_IDS = 8, CACHE_BITS = 15 };

struct entry { /* 64 bytes */
    uint64_t key[KEY / 8];
    uint8_t len, n; /* len 0: free */
    int32_t id[CACHED_IDS];
};
struct link { /* a symbol of a long word */
    int32_t id;
    int32_t prev, next; /* -1: none */
    int32_t alive;
};
struct mc_bpe_work {
    const struct mc_bpe *bpe;
    struct entry *cache; /* [1 << CACHE_BITS] */
    struct link *link;
    uint64_t *heap; /* rank << 32 | position */
    size_t cap, heap_cap, heap_n;
};

uint32_t mc_alphabet_char(int byte)
{
    int same = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    if (same)
        return (uint32_t)byte;
    if (byte <= 0x20) /* the others in order, from U+0100 */
        return 0x100u + (uint32_t)byte;
    return byte == 0xad ? 0x143 : 0x121u + (uint32_t)(byte - 0x7f);
}

int mc_alphabet_byte(uint32_t cp)
{
    if (cp >= 0x100 && cp < MC_ALPHABET_END)
        return cp <= 0x120 ? (int)cp - 0x100 : cp == 0x143 ? 0xad : (int)cp - 0x121 + 0x7f;
    return cp < 0x100 && mc_alphabet_char((int)cp) == cp ? (int)cp : -1;
}

mc_status mc_ids_room(struct mc_ids *ids, int64_t more, struct mc_err *err)
{
    if (more <= ids->cap - ids->n)
        return MC_OK;
    int64_t cap = ids->cap ? 2 * ids->cap : 256;
    while (cap < ids->n + more)
        cap *= 2;
    int32_t *v = mc_grow(ids->v, (size_t)ids->cap * sizeof *v, (size_t)cap * sizeof *v, "ids");
    if (!v)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %lld ids", (long long)cap);
    ids->v = v;
    ids->cap = cap;
    return MC_OK;
}

/* ---- the model ---- */

static size_t table_size(int64_t n)
{
    size_t cap = 64;
    while (cap < 2 * (size_t)n)
        cap *= 2;
    return cap;
}

static const struct mc_bpe_to *merged(const struct mc_bpe *b, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t i = mc_mix64(key) & (b->pairs_cap - 1);; i = (i + 1) & (b->pairs_cap - 1)) {
        if (b->pair[i] == key)
            return &b->to[i];
        if (b->pair[i] == UINT64_MAX)
            return NULL;
    }
}

mc_status mc_bpe_init(struct mc_bpe *b, const struct mc_bpe_merge *merge, int64_t n,
                      struct mc_err *err)
{
    b->pairs_cap = table_size(n);
    b->pair = mc_alloc(b->pairs_cap * sizeof *b->pair, "merges");
    b->to = mc_alloc(b->pairs_cap * sizeof *b->to, "merges");
    if (!b->pair || !b->to)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %lld merges", (long long)n);
    memset(b->pair, 0xff, b->pairs_cap * sizeof *b->pair);
    for (int64_t k = 0; k < n; k++) {
        uint64_t key = (uint64_t)(uint32_t)merge[k].left << 32 | (uint32_t)merge[k].right;
        size_t i = mc_mix64(key) & (b->pairs_cap - 1);
        while (b->pair[i] != UINT64_MAX && b->pair[i] != key)
            i = (i + 1) & (b->pairs_cap - 1);
        b->pair[i] = key;
        b->to[i] = (struct mc_bpe_to){.rank = (int32_t)k, .into = merge[k].into};
    }
    return MC_OK;
}

mc_status mc_bpe_words(struct mc_bpe *b, const unsigned char *model_id, int64_t ids,
                       struct mc_err *err)
{
    b->words_cap = table_size(ids);
    b->word = mc_alloc(b->words_cap * sizeof *b->word, "words of the vocabulary");
    if (!b->word)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %lld words", (long long)ids);
    memset(b->word, 0xff, b->words_cap * sizeof *b->word);
    for (int64_t id = 0; id < ids; id++) {
        if (!model_id[id])
            continue;
        size_t n = b->piece_at[id + 1] - b->piece_at[id];
        size_t i = mc_hash64(b->piece + b->piece_at[id], n) & (b->words_cap - 1);
        while (b->word[i] >= 0)
            i = (i + 1) & (b->words_cap - 1);
        b->word[i] = (int32_t)id;
    }
    return MC_OK;
}

void mc_bpe_fini(struct mc_bpe *b)
{
    mc_free(b->pair);
    mc_free(b->to);
    mc_free(b->word);
}

static int32_t whole_word(const struct mc_bpe *b, const unsigned char *word, size_t n)
{
    for (size_t i = mc_hash64(word, n) & (b->words_cap - 1); b->word[i] >= 0;
         i = (i + 1) & (b->words_cap - 1)) {
        const uint32_t *at = b->piece_at + b->word[i];
        if (at[1] - at[0] == n && !memcmp(b->piece + at[0], word, n))
            return b->word[i];
    }
    return -1;
}

/* ---- a short word: scan for the lowest rank ---- */

static int scan_word(const struct mc_bpe *b, const unsigned char *word, int n, int32_t *id)
{
    struct mc_bpe_to to[SHORT]; /* of (id[i], id[i + 1]); rank -1: none */
    for (int i = 0; i < n; i++)
        id[i] = b->byte_id[word[i]];
    for (int i = 0; i + 1 < n; i++) {
        const struct mc_bpe_to *m = merged(b, id[i], id[i + 1]);
        to[i] = m ? *m : (struct mc_bpe_to){-1, -1};
    }
    for (;;) {
        int best = -1;
        for (int i = 0; i + 1 < n; i++)
            if (to[i].rank >= 0 && (best < 0 || to[i].rank < to[best].rank)) /* I1 */
                best = i;
        if (best < 0)
            return n;
        id[best] = to[best].into;
        n--;
        for (int i = best + 1; i < n; i++)
            id[i] = id[i + 1];
        for (int i = best; i + 1 < n; i++)
            to[i] = to[i + 1];
        for (int i = best - 1; i <= best; i++)
            if (i >= 0 && i + 1 < n) {
                const struct mc_bpe_to *m = merged(b, id[i], id[i + 1]);
                to[i] = m ? *m : (struct mc_bpe_to){-1, -1};
            }
    }
}

/* ---- a long word: a heap of (rank, position) ---- */

static void sift_up(uint64_t *h, size_t i)
{
    for (uint64_t v = h[i]; i > 0 && h[(i - 1) / 2] > v; i = (i - 1) / 2) {
        h[i] = h[(i - 1) / 2];
        h[(i - 1) / 2] = v;
    }
}

static uint64_t pop(struct mc_bpe_work *w)
{
    uint64_t *h = w->heap, top = h[0], v = h[--w->heap_n];
    size_t i = 0, n = w->heap_n;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= n)
            break;
        if (k + 1 < n && h[k + 1] < h[k])
            k++;
        if (h[k] >= v)
            break;
        h[i] = h[k];
        i = k;
    }
    h[i] = v;
    return top;
}

static mc_status note_pair(struct mc_bpe_work *w, int32_t pos, struct mc_err *err)
{
    if (pos < 0 || w->link[pos].next < 0)
        return MC_OK;
    const struct mc_bpe_to *m = merged(w->bpe, w->link[pos].id, w->link[w->link[pos].next].id);
    if (!m)
        return MC_OK;
    if (w->heap_n == w->heap_cap) {
        size_t cap = w->heap_cap ? 2 * w->heap_cap : 1024;
        uint64_t *h =
            mc_grow(w->heap, w->heap_cap * sizeof *h, cap * sizeof *h, "heap of a long word");
        if (!h)
            return mc_err_set(err, MC_E_NOMEM, "no memory for a word of %zu bytes", w->cap);
        w->heap = h;
        w->heap_cap = cap;
    }
    w->heap[w->heap_n] = (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)pos;
    sift_up(w->heap, w->heap_n++);
    return MC_OK;
}

static mc_status long_word(struct mc_bpe_work *w, const unsigned char *word, size_t n,
                           struct mc_ids *out, struct mc_err *err)
{
    if (n > INT32_MAX / 2)
        return mc_err_set(err, MC_E_FORMAT,
                          "a word of %zu bytes without a blank: this is no text for a tokenizer",
                          n);
    if (n > w->cap) {
        struct link *l = mc_grow(w->link, 0, n * sizeof *l, "symbols of a long word");
        if (!l)
            return mc_err_set(err, MC_E_NOMEM, "no memory for a word of %zu bytes", n);
        w->link = l;
        w->cap = n;
    }
    w->heap_n = 0;
    for (size_t i = 0; i < n; i++)
        w->link[i] = (struct link){.id = w->bpe->byte_id[word[i]],
                                   .prev = (int32_t)i - 1,
                                   .next = i + 1 < n ? (int32_t)i + 1 : -1,
                                   .alive = 1};
    for (size_t i = 0; i + 1 < n; i++)
        MC_TRY(note_pair(w, (int32_t)i, err));
    while (w->heap_n > 0) {
        uint64_t top = pop(w);
        int32_t pos = (int32_t)(uint32_t)top;
        struct link *l = &w->link[pos];
        if (!l->alive || l->next < 0)
            continue;
        struct link *r = &w->link[l->next];
        const struct mc_bpe_to *m = merged(w->bpe, l->id, r->id);
        if (!m || (uint32_t)m->rank != top >> 32) /* I1: stale */
            continue;
        l->id = m->into;
        r->alive = 0;
        l->next = r->next;
        if (r->next >= 0)
            w->link[r->next].prev = pos;
        MC_TRY(note_pair(w, l->prev, err));
        MC_TRY(note_pair(w, pos, err));
    }
    for (int32_t i = 0; i >= 0; i = w->link[i].next) {
        MC_TRY(mc_ids_room(out, 1, err));
        out->v[out->n++] = w->link[i].id;
    }
    return MC_OK;
}

/* ---- the call ---- */

mc_status mc_bpe_work_create(const struct mc_bpe *b, struct mc_bpe_work **w, struct mc_err *err)
{
    struct mc_bpe_work *x = mc_alloc(sizeof *x, "encoder");
    if (x)
        x->cache = mc_alloc(sizeof *x->cache << CACHE_BITS, "cache of words");
    if (!x || !x->cache) {
        mc_free(x);
        return mc_err_set(err, MC_E_NOMEM, "no memory for an encoder");
    }
    x->bpe = b;
    *w = x;
    return MC_OK;
}

void mc_bpe_work_destroy(struct mc_bpe_work *w)
{
    if (!w)
        return;
    mc_free(w->cache);
    mc_free(w->link);
    mc_free(w->heap);
    mc_free(w);
}

static mc_status fresh_word(struct mc_bpe_work *w, const unsigned char *word, size_t n,
                            struct mc_ids *out, struct mc_err *err)
{
    if (w->bpe->whole_words) {
        int32_t id = whole_word(w->bpe, word, n);
        if (id >= 0) {
            out->v[out->n++] = id;
            return MC_OK;
        }
    }
    if (n > SHORT)
        return long_word(w, word, n, out, err);
    out->n += scan_word(w->bpe, word, (int)n, out->v + out->n);
    return MC_OK;
}

mc_status mc_bpe_word(struct mc_bpe_work *w, const unsigned char *word, size_t n,
                      struct mc_ids *out, struct mc_err *err)
{
    MC_TRY(mc_ids_room(out, SHORT, err));
    if (n == 1) {
        out->v[out->n++] = w->bpe->byte_id[*word];
        return MC_OK;
    }
    if (n > KEY)
        return fresh_word(w, word, n, out, err);
    uint64_t key[KEY / 8] = {0};
    memcpy(key, word, n);
    uint64_t h = mc_mix64(key[0] ^ mc_mix64(key[1] ^ (key[2] + n) * 0x9e3779b97f4a7c15u));
    struct entry *e = &w->cache[h >> (64 - CACHE_BITS)];
    if (e->len == n && e->key[0] == key[0] && e->key[1] == key[1] && e->key[2] == key[2]) {
        memcpy(out->v + out->n, e->id, sizeof e->id); /* there is room for all of them */
        out->n += e->n;
        return MC_OK;
    }
    int64_t first = out->n;
    MC_TRY(fresh_word(w, word, n, out, err));
    if (out->n - first <= CACHED_IDS) { /* I2 */
        memcpy(e->key, key, sizeof key);
        e->len = (uint8_t)n;
        e->n = (uint8_t)(out->n - first);
        memcpy(e->id, out->v + first, (size_t)e->n * sizeof *e->id);
    }
    return MC_OK;
}
