/* bind_scalar.c - one value against what a row wants: numbers, words, texts, quantities; and the
 * wording of what is wrong with it.
 * Floor 1 (recipe). Includes: base.
 *
 * I1  Each function either fills *out and returns 0, or says one problem at the binder's path,
 *     leaves *out alone and returns -1.
 * I2  Any value is safe input: NaN, huge, empty, over-long, of a wrong kind.
 * I4  -0.0 becomes 0.0 and texts are valid UTF-8: what is bound survives JSON bit for bit
 *     (bind.c).
 * Memory: none. Threads: one owner. */
#include "recipe_int.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Messages ------------------------------------------------------------------------------- */

void mc_bind_bad(struct mc_binder *b, const struct mc_value *at, const char *hint, const char *fmt,
                 ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (b->row >= 0)
        b->box->origin[b->row].bad = 1;
    mc_problems_add(b->problems, b->path, at && at->file ? at->file : b->box->source,
                    at ? at->line : 0, hint, "%s", text);
}

const char *mc_bind_kind(const struct mc_value *v)
{
    static const char *const names[] = {"nothing",  "true or false", "a number",
                                        "a string", "a list",        "a table"};
    return names[v->kind];
}

size_t mc_bind_enter(struct mc_binder *b, const char *fmt, ...)
{
    size_t mark = strlen(b->path);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(b->path + mark, sizeof b->path - mark, fmt, ap);
    va_end(ap);
    return mark;
}

void mc_bind_leave(struct mc_binder *b, size_t mark)
{
    b->path[mark] = '\0';
}

/* ---- Scalars -------------------------------------------------------------------------------- */

int mc_bind_num(struct mc_binder *b, const struct mc_value *v, double min, double max, int above,
                double *out)
{
    char got[32], lo[32], hi[32];

    if (v->kind != MC_V_NUM) {
        mc_bind_bad(b, v, "", "must be a number, not %s", mc_bind_kind(v));
        return -1;
    }
    if (!isfinite(v->num)) { /* I2 */
        mc_bind_bad(b, v, "", "must be a finite number");
        return -1;
    }
    if (v->num < min || v->num > max || (above && v->num == min)) {
        mc_fmt_f64(v->num, got);
        mc_fmt_f64(min, lo);
        mc_fmt_f64(max, hi);
        mc_bind_bad(b, v, "",
                    above ? "must be above %s and at most %s, not %s"
                          : "must be between %s and %s, not %s",
                    lo, hi, got);
        return -1;
    }
    *out = v->num + 0.0; /* I4 */
    return 0;
}

int mc_bind_int(struct mc_binder *b, const struct mc_value *v, int64_t min, int64_t max,
                int64_t *out)
{
    char got[32];

    if (v->kind != MC_V_NUM) {
        mc_bind_bad(b, v, "", "must be a whole number, not %s", mc_bind_kind(v));
        return -1;
    }
    mc_fmt_f64(v->num, got);
    if (!isfinite(v->num) || v->num != floor(v->num)) {
        mc_bind_bad(b, v, "", "must be a whole number, not %s", got);
        return -1;
    }
    if (v->num >= 9007199254740992.0 && max >= INT64_C(1) << 53) { /* 2^53 may have been 2^53 + 1 */
        mc_bind_bad(b, v, "write it in quotes, as text",
                    "is 2^53 or more, where numbers of Lua are no longer exact");
        return -1;
    }
    if (v->num < (double)min || v->num > (double)max) {
        mc_bind_bad(b, v, "", "must be between %lld and %lld, not %s", (long long)min,
                    (long long)max, got);
        return -1;
    }
    *out = (int64_t)v->num;
    return 0;
}

int mc_bind_bool(struct mc_binder *b, const struct mc_value *v, int *out)
{
    if (v->kind != MC_V_BOOL) {
        mc_bind_bad(b, v, "", "must be true or false, not %s", mc_bind_kind(v));
        return -1;
    }
    *out = v->b != 0;
    return 0;
}

int mc_text_ok(const char *s, int free_text)
{
    const unsigned char *p = (const unsigned char *)s;

    while (*p) {
        int n = *p < 0x80                  ? 0
                : *p >= 0xC2 && *p <= 0xDF ? 1
                : (*p & 0xF0) == 0xE0      ? 2
                : *p >= 0xF0 && *p <= 0xF4 ? 3
                                           : -1;
        unsigned c = n <= 0 ? *p : *p & (0x3Fu >> n);
        if (n < 0 || (!free_text && (*p < 0x20 || *p == 0x7f)))
            return 0;
        for (int i = 1; i <= n; i++) {
            if ((p[i] & 0xC0) != 0x80)
                return 0;
            c = c << 6 | (p[i] & 0x3Fu);
        }
        if ((n == 2 && (c < 0x800 || (c >= 0xD800 && c <= 0xDFFF))) ||
            (n == 3 && (c < 0x10000 || c > 0x10FFFF)))
            return 0; /* overlong, surrogate, too large */
        p += n + 1;
    }
    return 1;
}

int mc_bind_str(struct mc_binder *b, const struct mc_value *v, char *dst, size_t cap, int free_text)
{
    size_t n;

    if (v->kind != MC_V_STR) {
        mc_bind_bad(b, v, "", "must be a string, not %s", mc_bind_kind(v));
        return -1;
    }
    n = strlen(v->str);
    if (n >= cap) {
        mc_bind_bad(b, v, "", "too long: %zu bytes, at most %zu", n, cap - 1);
        return -1;
    }
    if (n == 0 && !free_text) {
        mc_bind_bad(b, v, "", "must not be empty");
        return -1;
    }
    if (!mc_text_ok(v->str, free_text)) {
        mc_bind_bad(b, v, "",
                    free_text ? "is not valid UTF-8"
                              : "holds a control character or is not valid UTF-8");
        return -1;
    }
    memset(dst, 0, cap);
    memcpy(dst, v->str, n);
    return 0;
}

int mc_bind_word(struct mc_binder *b, const struct mc_value *v, const char *const *words, int *out)
{
    char list[200] = "", hint[160] = "";
    const char *near;
    int n;

    for (n = 0; words[n]; n++) {
        size_t at = strlen(list);
        if (v->kind == MC_V_STR && strcmp(v->str, words[n]) == 0) {
            *out = n;
            return 0;
        }
        snprintf(list + at, sizeof list - at, "%s\"%s\"",
                 n == 0         ? ""
                 : words[n + 1] ? ", "
                                : " or ",
                 words[n]);
    }
    if (v->kind != MC_V_STR) {
        mc_bind_bad(b, v, "", "must be %s, not %s", list, mc_bind_kind(v));
        return -1;
    }
    near = mc_nearest(v->str, words, n);
    if (near)
        snprintf(hint, sizeof hint, "did you mean \"%s\"?", near);
    mc_bind_bad(b, v, hint, "must be %s, not \"%.60s\"", list, v->str);
    return -1;
}

int mc_bind_quantity(struct mc_binder *b, const struct mc_value *v, enum mc_unit base,
                     unsigned units, struct mc_quantity *out)
{
    struct mc_quantity q = {0, MC_UNIT_NONE};
    char why[128];
    int bits;

    if (v->kind == MC_V_NUM) {
        if (mc_bind_int(b, v, 0, INT64_C(1) << 53, &q.n))
            return -1;
    } else if (v->kind != MC_V_STR) {
        mc_bind_bad(b, v, "", "must be a quantity such as %s, not %s",
                    units == 1u << MC_UNIT_NS ? "\"60 min\"" : "500 or \"200M tokens\"",
                    mc_bind_kind(v));
        return -1;
    } else if (mc_units_parse(v->str, &q, why)) {
        mc_bind_bad(b, v, "", "\"%.60s\": %s", v->str, why);
        return -1;
    }
    if (q.unit == MC_UNIT_NONE) {
        if (base == MC_UNIT_NONE) {
            mc_bind_bad(b, v, "", "needs a unit, such as \"60 min\"");
            return -1;
        }
        q.unit = base;
        bits = base == MC_UNIT_TOKENS ? 62 : 53;
        if (q.n >> bits != 0) {
            mc_bind_bad(b, v, "", "too large: must be below 2^%d %s", bits, mc_unit_name(base));
            return -1;
        }
    }
    if (!((units >> q.unit) & 1)) {
        mc_bind_bad(b, v, "", "must be in %s, not in %s",
                    units == 1u << MC_UNIT_NS                     ? "time (ms s min h d)"
                    : base != MC_UNIT_NONE && units == 1u << base ? mc_unit_name(base)
                                                                  : "steps, samples or tokens",
                    q.unit == MC_UNIT_NS ? "time" : mc_unit_name(q.unit));
        return -1;
    }
    *out = q;
    return 0;
}

/* ---- Lists and maps of inner values --------------------------------------------------------- */

int mc_bind_is_list(struct mc_binder *b, const struct mc_value *v, const char *form, int max)
{
    if (v->kind == MC_V_MAP && v->n == 0 && !v->tag)
        return 1; /* {} in Lua is both */
    if (v->kind == MC_V_MAP && mc_value_get(v, "1")) {
        mc_bind_bad(b, v, "put each entry that has named keys in braces of its own",
                    "must be %s, not one table of both", form);
        return 0;
    }
    if (v->kind != MC_V_LIST) {
        mc_bind_bad(b, v, "", "must be %s, not %s", form, mc_bind_kind(v));
        return 0;
    }
    if (v->n > max) {
        mc_bind_bad(b, v, "", "too many: %d, at most %d", v->n, max);
        return 0;
    }
    return 1;
}

const struct mc_value *mc_bind_get(const struct mc_value *map, const char *key)
{
    const struct mc_value *v = mc_value_get(map, key);

    return v && v->kind != MC_V_NIL ? v : NULL;
}

int mc_bind_only(struct mc_binder *b, const struct mc_value *map, const char *const *known)
{
    int bad = 0, n = 0;

    while (known[n])
        n++;
    for (int i = 0; i < map->n; i++) {
        char hint[160] = "";
        const char *near;
        int at = 0;
        while (at < n && strcmp(known[at], map->key[i]) != 0)
            at++;
        if (at < n)
            continue;
        near = mc_nearest(map->key[i], known, n);
        if (near)
            snprintf(hint, sizeof hint, "did you mean \"%s\"?", near);
        size_t mark = mc_bind_enter(b, ".%.60s", map->key[i]);
        mc_bind_bad(b, map->item[i], hint, "unknown key");
        mc_bind_leave(b, mark);
        bad++;
    }
    return bad;
}
