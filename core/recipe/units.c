/* units.c - values with units, read and printed exactly.
 * Floor 1 (recipe). Includes: own folder only.
 *
 *   text   := number [suffix] [unit]          "200M tokens"  "1.5 h"  "7 steps"  "2B"
 *   number := digits [ "." digits ] [ "e" [sign] digits ]
 * A number is kept as m * 10^e with an integer m of at most 18 digits, a unit as c * 10^k with c
 * in {1, 6, 36, 864} (a minute is 6 * 10^10 ns), so that the product is exact integer arithmetic.
 *
 * I1  No rounding: what is not a whole number of its unit is an error ("1.5 steps"), never cut.
 * I2  parse(print(q)) == q for every q that parse can give.
 * I3  Any bytes are safe input: lengths and exponents are bounded before they are used.
 * Memory: none. Threads: pure functions. */
#include "units.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct unit_row {
    const char *name;
    enum mc_unit unit;
    int c, k; /* one of it is c * 10^k of the base unit */
};
static const struct unit_row g_units[] = {
    {"step", MC_UNIT_STEPS, 1, 0},     {"steps", MC_UNIT_STEPS, 1, 0},
    {"sample", MC_UNIT_SAMPLES, 1, 0}, {"samples", MC_UNIT_SAMPLES, 1, 0},
    {"token", MC_UNIT_TOKENS, 1, 0},   {"tokens", MC_UNIT_TOKENS, 1, 0},
    {"ms", MC_UNIT_NS, 1, 6},          {"s", MC_UNIT_NS, 1, 9},
    {"sec", MC_UNIT_NS, 1, 9},         {"min", MC_UNIT_NS, 6, 10},
    {"h", MC_UNIT_NS, 36, 11},         {"hour", MC_UNIT_NS, 36, 11},
    {"hours", MC_UNIT_NS, 36, 11},     {"d", MC_UNIT_NS, 864, 11},
    {"day", MC_UNIT_NS, 864, 11},      {"days", MC_UNIT_NS, 864, 11},
};
static const struct unit_row g_suffixes[] = {
    {"k", MC_UNIT_NONE, 1, 3}, {"M", MC_UNIT_NONE, 1, 6},  {"B", MC_UNIT_NONE, 1, 9},
    {"G", MC_UNIT_NONE, 1, 9}, {"T", MC_UNIT_NONE, 1, 12},
};

static const struct unit_row *unit_find(const struct unit_row *rows, size_t n, const char *w,
                                        size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(rows[i].name) == len && memcmp(rows[i].name, w, len) == 0)
            return &rows[i];
    return NULL;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static int is_alpha(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static const char *skip_space(const char *s)
{
    while (*s == ' ' || *s == '\t')
        s++;
    return s;
}

/* Reads a number at *s as m * 10^e; -1 with a message. */
static int number_read(const char **s, uint64_t *m, int *e, char why[128])
{
    const char *p = *s;
    int digits = 0, any = 0, point = 0;

    *m = 0;
    *e = 0;
    if (*p == '-') {
        snprintf(why, 128, "must not be negative");
        return -1;
    }
    if (*p == '+')
        p++;
    for (;; p++) {
        if (*p == '.' && !point) {
            point = 1;
            continue;
        }
        if (!is_digit(*p))
            break;
        any = 1;
        if (digits == 0 && *p == '0') {
            *e -= point;
        } else if (++digits <= 18) { /* I3 */
            *m = *m * 10 + (uint64_t)(*p - '0');
            *e -= point;
        } else if (*p == '0') {
            *e += !point;
        } else {
            snprintf(why, 128, "more than 18 digits");
            return -1;
        }
        if (*e < -1000 || *e > 1000) {
            snprintf(why, 128, "a number with more digits than any quantity needs");
            return -1;
        }
    }
    if (!any) {
        snprintf(why, 128, "does not begin with a number");
        return -1;
    }
    if ((*p == 'e' || *p == 'E') &&
        (is_digit(p[1]) || ((p[1] == '-' || p[1] == '+') && is_digit(p[2])))) {
        int neg = p[1] == '-', x = 0;
        for (p += is_digit(p[1]) ? 1 : 2; is_digit(*p); p++)
            if (x < 10000)
                x = x * 10 + (*p - '0');
        *e += neg ? -x : x;
    }
    *s = p;
    return 0;
}

/* m * c * 10^e as a whole number below 2^bits; -1 with a message. */
static int scale(uint64_t m, int c, int e, int bits, const char *unit, int64_t *out, char why[128])
{
    unsigned __int128 v = (unsigned __int128)m * (unsigned)c;

    if (m == 0) {
        *out = 0;
        return 0;
    }
    for (; e < 0; e++) {
        if (v % 10 != 0) { /* I1 */
            snprintf(why, 128, "not a whole number of %s", unit);
            return -1;
        }
        v /= 10;
    }
    for (; e > 0 && v >> bits == 0; e--)
        v *= 10;
    if (v >> bits != 0) {
        snprintf(why, 128, "too large: must be below 2^%d %s", bits, unit);
        return -1;
    }
    *out = (int64_t)v;
    return 0;
}

/* The next word of letters at *s; its length. */
static size_t word_read(const char **s, const char **w)
{
    const char *p = skip_space(*s);

    *w = p;
    while (is_alpha(*p))
        p++;
    *s = p;
    return (size_t)(p - *w);
}

int mc_units_parse(const char *s, struct mc_quantity *q, char why[128])
{
    const struct unit_row *suffix = NULL, *unit = NULL;
    const char *p = skip_space(s), *w;
    uint64_t m;
    int e, c = 1, bits = 53;
    size_t len;
    struct mc_quantity r = {0, MC_UNIT_NONE};

    if (number_read(&p, &m, &e, why))
        return -1;
    len = word_read(&p, &w);
    if (len > 0) {
        suffix = unit_find(g_suffixes, sizeof g_suffixes / sizeof g_suffixes[0], w, len);
        if (suffix) {
            e += suffix->k;
            len = word_read(&p, &w);
        }
    }
    if (len > 0) {
        unit = unit_find(g_units, sizeof g_units / sizeof g_units[0], w, len);
        if (!unit) {
            snprintf(why, 128,
                     "unknown unit \"%.*s\"; units: steps samples tokens ms s min h d, suffixes: "
                     "k M B G T",
                     (int)(len > 16 ? 16 : len), w);
            return -1;
        }
        r.unit = unit->unit;
        c = unit->c;
        e += unit->k;
    }
    if (*skip_space(p) != '\0') {
        snprintf(why, 128,
                 "something follows the value: write it as \"200M tokens\" or \"60 min\"");
        return -1;
    }
    if (r.unit == MC_UNIT_TOKENS || r.unit == MC_UNIT_NONE)
        bits = 62;
    if (scale(m, c, e, bits, unit ? mc_unit_name(r.unit) : "things", &r.n, why))
        return -1;
    *q = r;
    return 0;
}

void mc_units_print(struct mc_quantity q, char dst[48])
{
    static const struct {
        int64_t ns;
        const char *name;
    } span[] = {{60000000000, "min"}, {1000000000, "s"}, {1000000, "ms"}};

    if (q.unit == MC_UNIT_NONE) {
        snprintf(dst, 48, "%" PRId64, q.n);
        return;
    }
    if (q.unit != MC_UNIT_NS) {
        snprintf(dst, 48, "%" PRId64 " %.*s", q.n, (int)strlen(mc_unit_name(q.unit)) - (q.n == 1),
                 mc_unit_name(q.unit));
        return;
    }
    for (size_t i = q.n == 0; i < 3; i++)
        if (q.n % span[i].ns == 0) {
            snprintf(dst, 48, "%" PRId64 " %s", q.n / span[i].ns, span[i].name);
            return;
        }
    snprintf(dst, 48, "%" PRId64 ".%06" PRId64 " ms", q.n / 1000000, q.n % 1000000); /* I2 */
}

const char *mc_unit_name(enum mc_unit u)
{
    static const char *const names[] = {"", "steps", "samples", "tokens", "ns"};

    return names[u];
}

int mc_units_parse_bytes(const char *s, int64_t *bytes, char why[128])
{
    static const char letters[] = "KMGT";
    const char *p = skip_space(s), *w;
    uint64_t m, mul = 1;
    int e;
    size_t len;

    if (number_read(&p, &m, &e, why))
        return -1;
    len = word_read(&p, &w);
    if (len == 3 && w[1] == 'i' && w[2] == 'B' && strchr(letters, w[0])) {
        for (const char *l = letters;; l++) {
            mul *= 1024;
            if (*l == w[0])
                break;
        }
    } else if (len == 2 && w[1] == 'B' && strchr("kMGT", w[0])) {
        e += 3 * (int)(strchr("kMGT", w[0]) - "kMGT" + 1);
    } else if (!(len == 0 || (len == 1 && w[0] == 'B'))) {
        snprintf(why, 128, "unknown unit \"%.*s\"; units: B, KiB MiB GiB TiB, kB MB GB TB",
                 (int)(len > 16 ? 16 : len), w);
        return -1;
    }
    if (*skip_space(p) != '\0') {
        snprintf(why, 128, "something follows the value: write it as \"24 GiB\"");
        return -1;
    }
    /* m * mul * 10^e: m has 18 digits at most (60 bits), mul 40 bits: 128 bits hold the product. */
    unsigned __int128 v = (unsigned __int128)m * mul;
    for (; e < 0 && v != 0; e++) {
        if (v % 10 != 0) {
            snprintf(why, 128, "not a whole number of bytes");
            return -1;
        }
        v /= 10;
    }
    for (; e > 0 && v >> 53 == 0 && v != 0; e--)
        v *= 10;
    if (v >> 53 != 0) {
        snprintf(why, 128, "too large: must be below 2^53 bytes");
        return -1;
    }
    *bytes = (int64_t)v;
    return 0;
}

void mc_units_print_bytes(int64_t bytes, char dst[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;

    while (v >= 1024 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(dst, 32, u == 0 ? "%.0f %s" : "%.1f %s", v, unit[u]);
}
