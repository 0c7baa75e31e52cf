/* unicode.c - properties of characters by table, and NFC.
 * Floor 3 (data). Includes: base.
 *
 * NFC of a text: every character is decomposed as far as it goes; marks (combining class > 0) that
 * stand together are sorted by class, equal ones keeping their order; then each character is
 * composed with the last starter before it, where the two have a composite and nothing of an equal
 * or higher class (and no other starter) stands between them. Hangul is arithmetic:
 *     syllable = 0xAC00 + (L * 21 + V) * 28 + T    L from 0x1100, V from 0x1161, T from 0x11A7
 *
 * I1  A text is cut before each character without MC_UC_NFC: such a one starts anew, and nothing
 *     before it can join it. Only pieces that hold a character with MC_UC_NFC are worked on.
 * I2  A byte that belongs to no character is kept as it is and joins nothing.
 * I3  Sorting marks is n log n: a megabyte of marks is no attack.
 *
 * Memory: the caller's text grows; a work array for the call. Threads: any. */
#include "unicode.h"
#include <stdlib.h>
#include <string.h>
#include "../base/arena.h"

enum {
    S_BASE = 0xac00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11a7,
    L_N = 19,
    V_N = 21,
    T_N = 28,
    S_N = L_N * V_N * T_N
};

int mc_utf8_put(uint32_t cp, unsigned char dst[4])
{
    if (cp < 0x80) {
        dst[0] = (unsigned char)cp;
        return 1;
    }
    int n = cp < 0x800 ? 1 : cp < 0x10000 ? 2 : 3;
    static const unsigned char lead[4] = {0, 0xc0, 0xe0, 0xf0};
    for (int i = n; i > 0; i--, cp >>= 6)
        dst[i] = (unsigned char)(0x80 | (cp & 0x3f));
    dst[0] = (unsigned char)(lead[n] | cp);
    return n + 1;
}

mc_status mc_text_add(struct mc_text *t, const void *p, size_t n, struct mc_err *err)
{
    if (n > t->cap - t->n) {
        size_t cap = t->cap ? 2 * t->cap : 256;
        while (cap < t->n + n)
            cap *= 2;
        unsigned char *v = mc_grow(t->v, t->cap, cap, "text");
        if (!v)
            return mc_err_set(err, MC_E_NOMEM, "no memory for %zu bytes of text", cap);
        t->v = v;
        t->cap = cap;
    }
    if (n)
        memcpy(t->v + t->n, p, n);
    t->n += n;
    return MC_OK;
}

/* ---- tables ---- */

static const struct mc_unicode_decomposition *decomposition(uint32_t cp)
{
    int lo = 0, hi = mc_unicode_decomps_n - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        uint32_t at = mc_unicode_decomps[mid].cp;
        if (at == cp)
            return &mc_unicode_decomps[mid];
        if (at < cp)
            lo = mid + 1;
        else
            hi = mid - 1;
    }
    return NULL;
}

static int order_of(uint32_t cp)
{
    int lo = 0, hi = mc_unicode_marks_n - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        if (mc_unicode_marks[mid].last < cp)
            lo = mid + 1;
        else if (mc_unicode_marks[mid].first > cp)
            hi = mid - 1;
        else
            return mc_unicode_marks[mid].order;
    }
    return 0;
}

/* The composite of a and b, or 0. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a >= L_BASE && a < L_BASE + L_N && b >= V_BASE && b < V_BASE + V_N)
        return S_BASE + ((a - L_BASE) * V_N + (b - V_BASE)) * T_N;
    if (a >= S_BASE && a < S_BASE + S_N && (a - S_BASE) % T_N == 0 && b > T_BASE &&
        b < T_BASE + T_N)
        return a + (b - T_BASE);
    int lo = 0, hi = mc_unicode_comps_n - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        const struct mc_unicode_composition *c = &mc_unicode_comps[mid];
        if (c->a == a && c->b == b)
            return c->cp;
        if (c->a < a || (c->a == a && c->b < b))
            lo = mid + 1;
        else
            hi = mid - 1;
    }
    return 0;
}

static void mark(unsigned char *props, const struct mc_unicode_range *r, int n, int kind)
{
    for (int i = 0; i < n; i++)
        memset(props + r[i].first, kind, r[i].last - r[i].first + 1);
}

void mc_unicode_props(unsigned char *props)
{
    memset(props, MC_UC_OTHER, MC_UC_N);
    mark(props, mc_unicode_letters, mc_unicode_letters_n, MC_UC_LETTER);
    mark(props, mc_unicode_numbers, mc_unicode_numbers_n, MC_UC_NUMBER);
    mark(props, mc_unicode_blanks, mc_unicode_blanks_n, MC_UC_BLANK);
    for (int i = 0; i < mc_unicode_marks_n; i++)
        for (uint32_t c = mc_unicode_marks[i].first; c <= mc_unicode_marks[i].last; c++)
            props[c] |= MC_UC_NFC;
    for (int i = 0; i < mc_unicode_decomps_n; i++) {
        const struct mc_unicode_decomposition *d = &mc_unicode_decomps[i];
        props[d->composes ? d->b : d->cp] |= MC_UC_NFC;
    }
    for (uint32_t c = V_BASE; c < V_BASE + V_N; c++)
        props[c] |= MC_UC_NFC;
    for (uint32_t c = T_BASE + 1; c < T_BASE + T_N; c++)
        props[c] |= MC_UC_NFC;
}

/* ---- NFC ---- */

struct mark_at { /* one decomposed character */
    uint32_t cp; /* MC_UC_INVALID + byte: no character */
    int order;
    size_t at; /* place before sorting */
};
struct work {
    struct mark_at *v;
    size_t n, cap;
};

static mc_status push(struct work *w, uint32_t cp, int order, struct mc_err *err)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        struct mark_at *v =
            mc_grow(w->v, w->cap * sizeof *v, cap * sizeof *v, "characters to compose");
        if (!v)
            return mc_err_set(err, MC_E_NOMEM, "no memory for %zu characters", cap);
        w->v = v;
        w->cap = cap;
    }
    w->v[w->n] = (struct mark_at){.cp = cp, .order = order, .at = w->n};
    w->n++;
    return MC_OK;
}

static mc_status decompose(struct work *w, uint32_t cp, struct mc_err *err)
{
    if (cp >= S_BASE && cp < S_BASE + S_N) {
        uint32_t s = cp - S_BASE, t = s % T_N;
        MC_TRY(push(w, L_BASE + s / (V_N * T_N), 0, err));
        MC_TRY(push(w, V_BASE + s % (V_N * T_N) / T_N, 0, err));
        return t ? push(w, T_BASE + t, 0, err) : MC_OK;
    }
    const struct mc_unicode_decomposition *d = cp < 0xc0 ? NULL : decomposition(cp);
    if (!d)
        return push(w, cp, cp < 0x300 ? 0 : order_of(cp), err);
    MC_TRY(decompose(w, d->a, err)); /* the table's chains are at most four deep */
    return d->b ? decompose(w, d->b, err) : MC_OK;
}

static int by_order(const void *a, const void *b)
{
    const struct mark_at *x = a, *y = b;
    if (x->order != y->order)
        return x->order - y->order;
    return x->at < y->at ? -1 : 1;
}

static mc_status flush(struct work *w, struct mc_text *dst, struct mc_err *err)
{
    for (size_t i = 0; i < w->n;) { /* I3: runs of marks */
        size_t j = i;
        while (j < w->n && w->v[j].order > 0)
            j++;
        if (j > i + 1)
            qsort(w->v + i, j - i, sizeof *w->v, by_order);
        i = j + 1;
    }
    size_t keep = 0, starter = w->n; /* none yet */
    int last = -1;                   /* class of what stands between it and here; -1: nothing */
    for (size_t i = 0; i < w->n; i++) {
        struct mark_at c = w->v[i];
        uint32_t both = 0;
        if (starter < keep && last < c.order && c.cp < MC_UC_INVALID &&
            w->v[starter].cp < MC_UC_INVALID)
            both = compose(w->v[starter].cp, c.cp);
        if (both) {
            w->v[starter].cp = both;
            continue;
        }
        if (c.order == 0) {
            starter = keep;
            last = -1;
        } else {
            last = c.order;
        }
        w->v[keep++] = c;
    }
    for (size_t i = 0; i < keep; i++) {
        unsigned char b[4];
        int n = 1;
        if (w->v[i].cp >= MC_UC_INVALID)
            b[0] = (unsigned char)(w->v[i].cp - MC_UC_INVALID); /* I2 */
        else
            n = mc_utf8_put(w->v[i].cp, b);
        MC_TRY(mc_text_add(dst, b, (size_t)n, err));
    }
    w->n = 0;
    return MC_OK;
}

int mc_unicode_is_nfc(const unsigned char *props, const unsigned char *s, size_t n)
{
    const unsigned char *e = s + n;
    while (s < e) {
        uint32_t cp;
        if (*s < 0x80) {
            s++;
            continue;
        }
        s += mc_utf8_next(s, e, &cp);
        if (props[cp] & MC_UC_NFC)
            return 0;
    }
    return 1;
}

mc_status mc_unicode_nfc(const unsigned char *props, const unsigned char *s, size_t n,
                         struct mc_text *dst, struct mc_err *err)
{
    const unsigned char *e = s + n, *piece = s; /* I1: where the present piece began */
    struct work w = {0};
    int dirty = 0;
    mc_status st = MC_OK;
    while (s < e && st == MC_OK) {
        uint32_t cp;
        int len = mc_utf8_next(s, e, &cp);
        if (!(props[cp] & MC_UC_NFC)) {
            if (dirty)
                st = flush(&w, dst, err);
            else
                st = mc_text_add(dst, piece, (size_t)(s - piece), err);
            piece = s;
            dirty = 0;
        } else if (!dirty) {
            dirty = 1;
            for (const unsigned char *p = piece; p < s && st == MC_OK;) {
                uint32_t c;
                int k = mc_utf8_next(p, s, &c);
                st = c == MC_UC_INVALID ? push(&w, c + *p, 0, err) : decompose(&w, c, err);
                p += k;
            }
        }
        if (dirty && st == MC_OK)
            st = decompose(&w, cp, err);
        s += len;
    }
    if (st == MC_OK)
        st = dirty ? flush(&w, dst, err) : mc_text_add(dst, piece, (size_t)(e - piece), err);
    mc_free(w.v);
    return st;
}
