/* value.c - trees of plain values, and JSON text turned into them.
 * Floor 1 (recipe). Includes: base, jansson.
 *
 * I1  A map's keys are always in ascending strcmp order, each once: get is a binary search.
 * I2  The room of an item array is a function of its count alone: 4, then the next power of two.
 *     So arrays need no capacity member, and every way to make one (push, put, JSON) must use
 *     room().
 * I3  JSON text is foreign: size, depth and number of values are checked before jansson is
 *     asked, an integer that a double cannot hold is refused, and no text makes the cost more
 *     than linear.
 * Memory: everything lives in the pool (chunks) and goes with it; outgrown arrays stay until
 * then. Threads: one owner a pool. */
#include "value.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "../base/arena.h"

enum { CHUNK = 64 * 1024, MAX_DEPTH = 32, MAX_VALUES = 1 << 21 };
static const size_t MAX_TEXT = (size_t)64 << 20;

struct chunk {
    struct chunk *next;
    size_t used, cap;
    unsigned char data[];
};
struct mc_values {
    struct chunk *chunks;
};

/* ---- The pool ------------------------------------------------------------------------------- */

struct mc_values *mc_values_create(void)
{
    return mc_alloc(sizeof(struct mc_values), "values");
}

void mc_values_destroy(struct mc_values *p)
{
    if (!p)
        return;
    for (struct chunk *c = p->chunks, *next; c; c = next) {
        next = c->next;
        mc_free(c);
    }
    mc_free(p);
}

static void *pool_take(struct mc_values *p, size_t bytes)
{
    struct chunk *c = p->chunks;
    void *r;

    bytes = mc_align_up(bytes, 16);
    if (!c || c->cap - c->used < bytes) {
        size_t cap = bytes > CHUNK / 4 ? bytes : CHUNK;
        c = mc_alloc(sizeof *c + cap, "values");
        if (!c)
            return NULL;
        c->cap = cap;
        if (cap != CHUNK && p->chunks) { /* a big one goes behind: the head keeps its free room */
            c->next = p->chunks->next;
            p->chunks->next = c;
        } else {
            c->next = p->chunks;
            p->chunks = c;
        }
    }
    r = c->data + c->used;
    c->used += bytes;
    return r;
}

struct mc_value *mc_value_new(struct mc_values *p, enum mc_value_kind kind)
{
    struct mc_value *v = pool_take(p, sizeof *v);

    if (v)
        v->kind = kind;
    return v;
}

const char *mc_value_strn(struct mc_values *p, const char *s, size_t n)
{
    char *d = pool_take(p, n + 1);

    if (d) {
        if (n)
            memcpy(d, s, n);
        d[n] = '\0';
    }
    return d;
}

/* ---- Lists and maps ------------------------------------------------------------------------- */

static size_t room(size_t n) /* I2 */
{
    size_t c = 4;

    while (c < n)
        c *= 2;
    return c;
}

/* Makes place for one more item (and key). */
static mc_status grow(struct mc_values *p, struct mc_value *v, struct mc_err *err)
{
    size_t n = (size_t)v->n;

    if (v->n == MAX_VALUES)
        return mc_err_set(err, MC_E_FORMAT, "a list of more than %d values", MAX_VALUES);
    if (n == 0 || n == room(n)) {
        size_t cap = room(n + 1);
        struct mc_value **item = pool_take(p, cap * sizeof *item);
        const char **key = v->kind == MC_V_MAP ? pool_take(p, cap * sizeof *key) : NULL;
        if (!item || (v->kind == MC_V_MAP && !key))
            return mc_err_set(err, MC_E_NOMEM, "no memory for a list of %zu values", cap);
        if (n)
            memcpy(item, v->item, n * sizeof *item);
        if (n && key)
            memcpy(key, v->key, n * sizeof *key);
        v->item = item;
        if (key)
            v->key = key;
    }
    return MC_OK;
}

mc_status mc_value_push(struct mc_values *p, struct mc_value *list, struct mc_value *item,
                        struct mc_err *err)
{
    if (!item)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a value");
    MC_TRY(grow(p, list, err));
    list->item[list->n++] = item;
    return MC_OK;
}

/* Index of key, or -1 - (where it belongs). */
static int find(const struct mc_value *map, const char *key)
{
    int lo = 0, hi = map->n;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, c = strcmp(map->key[mid], key);
        if (c == 0)
            return mid;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1 - lo;
}

mc_status mc_value_put(struct mc_values *p, struct mc_value *map, const char *key,
                       struct mc_value *item, struct mc_err *err)
{
    int at = find(map, key);
    const char *k;

    if (!item)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a value");
    if (at >= 0) {
        map->item[at] = item;
        return MC_OK;
    }
    at = -1 - at;
    k = mc_value_strn(p, key, strlen(key));
    if (!k)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a key");
    MC_TRY(grow(p, map, err));
    memmove(map->item + at + 1, map->item + at, (size_t)(map->n - at) * sizeof *map->item);
    memmove(map->key + at + 1, map->key + at, (size_t)(map->n - at) * sizeof *map->key);
    map->item[at] = item;
    map->key[at] = k; /* I1 */
    map->n++;
    return MC_OK;
}

struct mc_value *mc_value_get(const struct mc_value *map, const char *key)
{
    int at;

    if (!map || map->kind != MC_V_MAP || map->n == 0)
        return NULL;
    at = find(map, key);
    return at < 0 ? NULL : map->item[at];
}

int mc_value_remove(struct mc_value *map, const char *key)
{
    int at;

    if (!map || map->kind != MC_V_MAP || map->n == 0 || (at = find(map, key)) < 0)
        return 0;
    map->n--;
    memmove(map->item + at, map->item + at + 1, (size_t)(map->n - at) * sizeof *map->item);
    memmove(map->key + at, map->key + at + 1, (size_t)(map->n - at) * sizeof *map->key);
    return 1;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

struct from {
    struct mc_values *p;
    const char *origin;
    struct mc_err *err;
};

static mc_status convert(struct from *f, const json_t *j, struct mc_value **out);

static int key_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static mc_status convert_map(struct from *f, const json_t *j, struct mc_value *v)
{
    size_t n = json_object_size(j), i = 0;
    const char *key;
    json_t *item;

    if (n == 0)
        return MC_OK;
    v->item = pool_take(f->p, room(n) * sizeof *v->item);
    v->key = pool_take(f->p, room(n) * sizeof *v->key);
    if (!v->item || !v->key)
        return mc_err_set(f->err, MC_E_NOMEM, "no memory for %s", f->origin);
    json_object_foreach((json_t *)j, key, item)
    {
        v->key[i] = mc_value_strn(f->p, key, strlen(key));
        if (!v->key[i++])
            return mc_err_set(f->err, MC_E_NOMEM, "no memory for %s", f->origin);
    }
    qsort(v->key, n, sizeof *v->key, key_order); /* I1; duplicates were refused by the parser */
    for (i = 0; i < n; i++) {
        mc_status st = convert(f, json_object_get(j, v->key[i]), &v->item[i]);
        if (st)
            return st;
    }
    v->n = (int)n;
    return MC_OK;
}

static mc_status convert_list(struct from *f, const json_t *j, struct mc_value *v)
{
    size_t n = json_array_size(j);

    if (n == 0)
        return MC_OK;
    v->item = pool_take(f->p, room(n) * sizeof *v->item);
    if (!v->item)
        return mc_err_set(f->err, MC_E_NOMEM, "no memory for %s", f->origin);
    for (size_t i = 0; i < n; i++) {
        mc_status st = convert(f, json_array_get(j, i), &v->item[i]);
        if (st)
            return st;
    }
    v->n = (int)n;
    return MC_OK;
}

static mc_status convert(struct from *f, const json_t *j, struct mc_value **out)
{
    struct mc_value *v = mc_value_new(f->p, MC_V_NIL);
    mc_status st = MC_OK;

    if (!v)
        return mc_err_set(f->err, MC_E_NOMEM, "no memory for %s", f->origin);
    v->file = f->origin;
    switch (json_typeof(j)) {
    case JSON_NULL:
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        v->kind = MC_V_BOOL;
        v->b = json_is_true(j);
        break;
    case JSON_INTEGER: {
        json_int_t i = json_integer_value(j);
        v->kind = MC_V_NUM;
        v->num = (double)i;
        /* 2^63 itself would overflow on the way back */
        if (v->num >= 9223372036854775808.0 || (json_int_t)v->num != i)
            return mc_err_set(f->err, MC_E_FORMAT,
                              "%s: the integer %" JSON_INTEGER_FORMAT
                              " is not exact as a double: write it as a string",
                              f->origin, i);
        break;
    }
    case JSON_REAL:
        v->kind = MC_V_NUM;
        v->num = json_real_value(j);
        break;
    case JSON_STRING:
        v->kind = MC_V_STR;
        v->str = mc_value_strn(f->p, json_string_value(j), json_string_length(j));
        if (!v->str)
            return mc_err_set(f->err, MC_E_NOMEM, "no memory for %s", f->origin);
        break;
    case JSON_ARRAY:
        v->kind = MC_V_LIST;
        st = convert_list(f, j, v);
        break;
    case JSON_OBJECT:
        v->kind = MC_V_MAP;
        st = convert_map(f, j, v);
        break;
    }
    if (st == MC_OK)
        *out = v;
    return st;
}

/* Bounds depth and number of values by one look at the brackets and commas outside strings, so that
 * neither jansson's memory nor anyone's stack is at the mercy of the text (I3). */
static mc_status bounds(const char *text, size_t n, const char *origin, struct mc_err *err)
{
    int depth = 0, in_string = 0;
    int64_t values = 1;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = 0;
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '[' || c == '{') {
            depth++;
            values++;
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',') {
            values++;
        }
        if (depth > MAX_DEPTH)
            return mc_err_set(err, MC_E_FORMAT, "%s: nested deeper than %d", origin, MAX_DEPTH);
        if (values > MAX_VALUES)
            return mc_err_set(err, MC_E_FORMAT, "%s: more than %d values", origin, MAX_VALUES);
    }
    return MC_OK;
}

mc_status mc_value_from_json(struct mc_values *p, const char *text, size_t n, const char *origin,
                             struct mc_value **v, struct mc_err *err)
{
    struct from f = {p, mc_value_strn(p, origin, strlen(origin)), err};
    json_error_t je;
    json_t *j;
    mc_status st;

    if (!f.origin)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %s", origin);
    if (n > MAX_TEXT)
        return mc_err_set(err, MC_E_FORMAT, "%s: %zu bytes of JSON, more than %zu", origin, n,
                          MAX_TEXT);
    MC_TRY(bounds(text, n, origin, err));
    j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!j)
        return mc_err_set(err, MC_E_FORMAT, "%s:%d: not valid JSON: %s", origin, je.line, je.text);
    st = convert(&f, j, v);
    json_decref(j);
    return st;
}
