/* unicode.h - inside core/data: UTF-8, what kind of character a code point is, and NFC.
 * Written for bytes that may be no UTF-8 at all: a byte that belongs to no character is a character
 * of its own, MC_UC_INVALID, neither letter, number nor blank, and is never changed. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

enum {
    MC_UC_OTHER = 0,
    MC_UC_LETTER = 1, /* \p{L} */
    MC_UC_NUMBER = 2, /* \p{N} */
    MC_UC_BLANK = 3,  /* \s: White_Space */
    MC_UC_CLASS = 3,  /* mask of the four */
    MC_UC_NFC = 4,    /* may change under NFC, or joins what stands before it */
    MC_UC_INVALID = 0x110000,
    MC_UC_N = 0x110001 /* entries of the table of properties */
};

/* The next character of [s, e), s < e: its length, 1 to 4. */
static inline int mc_utf8_next(const unsigned char *s, const unsigned char *e, uint32_t *cp)
{
    uint32_t c = *s;
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    int n = c < 0xc2 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : 0;
    static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
    *cp = MC_UC_INVALID;
    if (n == 0 || e - s <= n)
        return 1;
    c &= 0x3fu >> n;
    for (int i = 1; i <= n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 1;
        c = c << 6 | (s[i] & 0x3fu);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 1;
    *cp = c;
    return n + 1;
}
int mc_utf8_put(uint32_t cp, unsigned char dst[4]); /* bytes written */

/* Fills props[MC_UC_N]: class | MC_UC_NFC. */
void mc_unicode_props(unsigned char *props);

struct mc_text { /* bytes that grow; mc_free(v) */
    unsigned char *v;
    size_t n, cap;
};
mc_status mc_text_add(struct mc_text *t, const void *p, size_t n, struct mc_err *err);

/* 1: [s, s+n) is NFC already, surely. */
int mc_unicode_is_nfc(const unsigned char *props, const unsigned char *s, size_t n);
/* Appends NFC of [s, s+n) to dst. */
mc_status mc_unicode_nfc(const unsigned char *props, const unsigned char *s, size_t n,
                         struct mc_text *dst, struct mc_err *err);

/* unicode_tables.c */
struct mc_unicode_range {
    uint32_t first, last;
};
struct mc_unicode_combining {
    uint32_t first, last;
    uint8_t order;
};
struct mc_unicode_decomposition {
    uint32_t cp, a, b; /* b 0: a alone */
    uint8_t composes;
};
struct mc_unicode_composition {
    uint32_t a, b, cp;
};
extern const struct mc_unicode_range mc_unicode_letters[], mc_unicode_numbers[],
    mc_unicode_blanks[];
extern const int mc_unicode_letters_n, mc_unicode_numbers_n, mc_unicode_blanks_n;
extern const struct mc_unicode_combining mc_unicode_marks[];
extern const struct mc_unicode_decomposition mc_unicode_decomps[];
extern const struct mc_unicode_composition mc_unicode_comps[];
extern const int mc_unicode_marks_n, mc_unicode_decomps_n, mc_unicode_comps_n;
