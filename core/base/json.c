/* json.c - a JSON writer. Floor 0 (base).
 *
 * I1  What comes out is one valid UTF-8 JSON text, whatever bytes come in.
 * I2  buf always ends in a NUL; after the first failure nothing more is written and `failed` stays.
 * I3  With a fixed buffer nothing is allocated.
 * I4  A double reads back bit for bit. The C locale is in force: nothing here calls setlocale.
 *
 * Memory: a grown buffer belongs to the writer until mc_json_fini. Threads: a writer belongs to
 * one. */
#include "json.h"
#include "arena.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mc_json_init_fixed(struct mc_json *j, char *buf, size_t cap)
{
    memset(j, 0, sizeof *j);
    j->buf = buf;
    j->cap = cap;
    if (cap > 0)
        buf[0] = 0;
    else
        j->failed = 1;
}

void mc_json_init_grow(struct mc_json *j)
{
    memset(j, 0, sizeof *j);
    j->grow = 1;
    j->cap = 1024;
    j->buf = mc_alloc(j->cap, "json");
    if (!j->buf) {
        j->cap = 0;
        j->failed = 1;
    }
}

void mc_json_fini(struct mc_json *j)
{
    if (j->grow)
        mc_free(j->buf);
    memset(j, 0, sizeof *j);
}

void mc_json_reset(struct mc_json *j)
{
    j->len = 0;
    j->depth = j->comma = 0;
    j->failed = j->cap == 0;
    if (j->cap > 0)
        j->buf[0] = 0;
}

static void put(struct mc_json *j, const char *s, size_t n)
{
    if (j->failed)
        return;
    if (n >= j->cap - j->len) { /* I2: room for the NUL */
        size_t more = 2 * j->cap + n + 1;
        char *b = j->grow ? mc_grow(j->buf, j->len + 1, more, "json") : NULL; /* I3 */
        if (!b) {
            j->failed = 1;
            return;
        }
        j->buf = b;
        j->cap = more;
    }
    memcpy(j->buf + j->len, s, n);
    j->len += n;
    j->buf[j->len] = 0;
}

static void newline(struct mc_json *j)
{
    put(j, "\n", 1);
    for (int i = 0; i < j->depth; i++)
        put(j, "  ", 2);
}

/* Length of the valid UTF-8 sequence at s, 0 when there is none (overlong, surrogate, past
 * U+10FFFF, cut). */
static size_t utf8_len(const unsigned char *s, size_t n)
{
    unsigned lo = 0x80, hi = 0xbf;
    size_t len;
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        len = 2;
    else if (s[0] >= 0xe0 && s[0] <= 0xef)
        len = 3;
    else if (s[0] >= 0xf0 && s[0] <= 0xf4)
        len = 4;
    else
        return 0;
    if (s[0] == 0xe0)
        lo = 0xa0;
    else if (s[0] == 0xed)
        hi = 0x9f;
    else if (s[0] == 0xf0)
        lo = 0x90;
    else if (s[0] == 0xf4)
        hi = 0x8f;
    if (n < len || s[1] < lo || s[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++)
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    return len;
}

static void put_quoted(struct mc_json *j, const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    put(j, "\"", 1);
    for (size_t i = 0; i < n;) {
        unsigned char c = s[i];
        char esc[8];
        size_t len = utf8_len(s + i, n - i);
        if (len == 0) { /* I1 */
            put(j, "\xef\xbf\xbd", 3);
            len = 1;
        } else if (c == '"' || c == '\\') {
            esc[0] = '\\';
            esc[1] = (char)c;
            put(j, esc, 2);
        } else if (c == '\n' || c == '\t' || c == '\r') {
            put(j, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r", 2);
        } else if (c < 0x20) {
            put(j, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04x", c));
        } else {
            put(j, text + i, len);
        }
        i += len;
    }
    put(j, "\"", 1);
}

/* What stands before a value: comma, line, key. */
static void lead(struct mc_json *j, const char *key)
{
    if (j->comma)
        put(j, ",", 1);
    if (j->pretty && j->depth > 0)
        newline(j);
    if (key) {
        put_quoted(j, key, strlen(key));
        put(j, ": ", j->pretty ? 2 : 1);
    }
    j->comma = 1;
}

void mc_json_open(struct mc_json *j, const char *key, char kind)
{
    MC_ASSERT(kind == '{' || kind == '[');
    lead(j, key);
    put(j, &kind, 1);
    j->depth++;
    j->comma = 0;
}

void mc_json_close(struct mc_json *j, char kind)
{
    MC_ASSERT((kind == '}' || kind == ']') && j->depth > 0);
    j->depth--;
    if (j->pretty && j->comma)
        newline(j);
    put(j, &kind, 1);
    j->comma = 1;
}

void mc_json_strn(struct mc_json *j, const char *key, const char *s, size_t n)
{
    lead(j, key);
    if (s)
        put_quoted(j, s, n);
    else
        put(j, "null", 4);
}

void mc_json_str(struct mc_json *j, const char *key, const char *s)
{
    mc_json_strn(j, key, s, s ? strlen(s) : 0);
}

void mc_json_i64(struct mc_json *j, const char *key, int64_t v)
{
    char text[24];
    lead(j, key);
    put(j, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)v));
}

void mc_json_f64(struct mc_json *j, const char *key, double v)
{
    char text[32];
    lead(j, key);
    if (isfinite(v))
        mc_fmt_f64(v, text);
    else
        memcpy(text, "null", 5);
    put(j, text, strlen(text));
}

void mc_json_bool(struct mc_json *j, const char *key, int v)
{
    lead(j, key);
    put(j, v ? "true" : "false", v ? 4 : 5);
}

void mc_json_null(struct mc_json *j, const char *key)
{
    lead(j, key);
    put(j, "null", 4);
}

void mc_json_raw(struct mc_json *j, const char *key, const char *json_text)
{
    lead(j, key);
    put(j, json_text, strlen(json_text));
}

void mc_fmt_f64(double v, char dst[32])
{
    if (isnan(v)) {
        memcpy(dst, "nan", 4);
        return;
    }
    if (isinf(v)) {
        memcpy(dst, v < 0 ? "-inf" : "inf", v < 0 ? 5 : 4);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) { /* 17 always reads back */
        snprintf(dst, 32, "%.*g", digits, v);
        if (strtod(dst, NULL) == v) /* I4; -0.0 prints its sign */
            return;
    }
}
