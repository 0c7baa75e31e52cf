/* safetensors.c - the reader of safetensors files and of their index. Floor 5 (ckpt).
 *
 * One file, little-endian:
 *     0      8    N, bytes of the header
 *     8      N    JSON object, blanks may follow it: NAME -> {dtype, shape, data_offsets [b, e)},
 *                 and perhaps "__metadata__" -> {text: text}
 *     8 + N  ..   data, row-major; offsets count from here
 * An index is a JSON object; its member "weight_map" says NAME -> file beside it.
 *
 * I1  Nothing is believed: N against the file's size, each range against the data, each range's
 *     length against dtype and shape (without overflow), and the ranges together: they cover the
 *     data exactly, without gap or overlap.
 * I2  A name occurs once, in all files together; of an index, each file holds the tensors that the
 *     index gives it, and no other.
 * I3  A file of an index is a plain name: nothing is opened outside the folder.
 * I4  Sizes are bounded before memory is taken: header, index, tensors, files. Data is never
 *     loaded whole.
 *
 * Memory: struct mc_safetensors owns the lists and the descriptors. Threads: one a handle. */
#include "safetensors.h"
#include "../core/base/arena.h"
#include "../core/base/sysio.h"
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_MAX = 64 << 20,
    INDEX_MAX = 64 << 20,
    TENSORS_MAX = 1 << 20,
    FILES_MAX = 512, /* each keeps a descriptor */
    NAME_LONGEST = 511,
    PIECE = 65536 /* bytes read at once */
};

struct dtype {
    const char *word;
    int bytes, real;
};
static const struct dtype dtypes[] = {
    {"F32", 4, 1},  {"F16", 2, 1}, {"BF16", 2, 1},    {"F64", 8, 1},
    {"BOOL", 1, 0}, {"U8", 1, 0},  {"I8", 1, 0},      {"U16", 2, 0},
    {"I16", 2, 0},  {"U32", 4, 0}, {"I32", 4, 0},     {"U64", 8, 0},
    {"I64", 8, 0},  {"C64", 8, 0}, {"F8_E4M3", 1, 0}, {"F8_E5M2", 1, 0},
};

struct entry {
    struct mc_safetensor t; /* t.name is owned */
    const struct dtype *dtype;
    int64_t begin, end; /* bytes of its file's data */
    int file;
};
struct part { /* one file */
    char path[1100];
    int fd;                /* -1: memory */
    const uint8_t *memory; /* the whole file */
    int64_t data, bytes;   /* where data begins; how much there is */
};
struct mc_safetensors {
    struct entry *entry;
    int n, cap;
    struct part *part;
    int nparts;
    char folder[1100];
};

/* ---- one header ---- */

static mc_status bad(struct mc_err *err, const struct part *p, const char *name, const char *what)
{
    return mc_err_set(err, MC_E_FORMAT, "%s: tensor \"%.200s\": %s", p->path, name, what);
}

static const struct dtype *dtype_of(const char *word)
{
    for (size_t i = 0; word && i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].word, word) == 0)
            return &dtypes[i];
    return NULL;
}

static mc_status read_shape(const struct part *p, const char *name, const json_t *dims,
                            struct mc_safetensor *t, struct mc_err *err)
{
    size_t nd = json_array_size(dims);
    if (!json_is_array(dims))
        return bad(err, p, name, "\"shape\" is not a list");
    if (nd > MC_MAX_DIMS)
        return bad(err, p, name, "more than 4 dimensions");
    t->shape.nd = (int)nd;
    for (size_t d = 0; d < nd; d++) {
        const json_t *v = json_array_get(dims, d);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return bad(err, p, name, "\"shape\" holds something else than sizes");
        t->shape.dim[d] = json_integer_value(v);
    }
    t->count = mc_shape_count(&t->shape);
    return t->count < 0 ? bad(err, p, name, "its size is past 2^63") : MC_OK;
}

static mc_status read_entry(const struct part *p, const char *name, const json_t *v,
                            struct entry *e, struct mc_err *err)
{
    const json_t *range = json_object_get(v, "data_offsets");
    const json_t *b = json_array_get(range, 0), *z = json_array_get(range, 1);
    if (!json_is_object(v))
        return bad(err, p, name, "not described by an object");
    if (json_object_size(v) != 3)
        return bad(err, p, name, "described by other members than dtype, shape, data_offsets");
    e->dtype = dtype_of(json_string_value(json_object_get(v, "dtype")));
    if (!e->dtype)
        return bad(err, p, name, "a \"dtype\" that is not known");
    e->t.dtype = e->dtype->word;
    MC_TRY(read_shape(p, name, json_object_get(v, "shape"), &e->t, err));
    if (json_array_size(range) != 2 || !json_is_integer(b) || !json_is_integer(z))
        return bad(err, p, name, "\"data_offsets\" is not a pair of whole numbers");
    e->begin = json_integer_value(b);
    e->end = json_integer_value(z);
    if (e->begin < 0 || e->end < e->begin || e->end > p->bytes) /* I1 */
        return mc_err_set(err, MC_E_FORMAT,
                          "%s: tensor \"%.200s\" has bytes %lld to %lld of %lld: the file is cut "
                          "short, or its header is wrong",
                          p->path, name, (long long)e->begin, (long long)e->end,
                          (long long)p->bytes);
    if (e->t.count > p->bytes || e->t.count * e->dtype->bytes != e->end - e->begin)
        return mc_err_set(err, MC_E_FORMAT,
                          "%s: tensor \"%.200s\": %lld elements of %s do not take the %lld bytes "
                          "that it is given",
                          p->path, name, (long long)e->t.count, e->t.dtype,
                          (long long)(e->end - e->begin));
    return MC_OK;
}

static mc_status append(struct mc_safetensors *s, const char *name, const struct entry *e,
                        struct mc_err *err)
{
    size_t len = strlen(name);
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 64;
        struct entry *more = mc_alloc((size_t)cap * sizeof *more, "list of tensors");
        if (!more)
            return mc_err_set(err, MC_E_NOMEM, "no memory for a list of %d tensors", cap);
        if (s->n > 0)
            memcpy(more, s->entry, (size_t)s->n * sizeof *more);
        mc_free(s->entry);
        s->entry = more;
        s->cap = cap;
    }
    char *own = mc_alloc(len + 1, "name of a tensor");
    if (!own)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a name");
    memcpy(own, name, len + 1);
    s->entry[s->n] = *e;
    s->entry[s->n++].t.name = own;
    return MC_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return strcmp(x->t.name, y->t.name);
}

/* The entries from `first` on are those of part p: they cover its data exactly (I1). */
static mc_status check_cover(struct mc_safetensors *s, int first, const struct part *p,
                             struct mc_err *err)
{
    int64_t at = 0;
    if (s->n > first)
        qsort(s->entry + first, (size_t)(s->n - first), sizeof *s->entry, by_place);
    for (int i = first; i < s->n; i++) {
        const struct entry *e = &s->entry[i];
        if (e->begin < at)
            return mc_err_set(err, MC_E_FORMAT,
                              "%s: tensors \"%.200s\" and \"%.200s\" overlap at byte %lld", p->path,
                              s->entry[i - 1].t.name, e->t.name, (long long)e->begin);
        if (e->begin > at)
            return mc_err_set(err, MC_E_FORMAT, "%s: bytes %lld to %lld belong to no tensor",
                              p->path, (long long)at, (long long)e->begin);
        at = e->end;
    }
    if (at != p->bytes)
        return mc_err_set(err, MC_E_FORMAT, "%s: bytes %lld to %lld belong to no tensor", p->path,
                          (long long)at, (long long)p->bytes);
    return MC_OK;
}

static mc_status read_header(struct mc_safetensors *s, int file, const char *text, size_t n,
                             struct mc_err *err)
{
    const struct part *p = &s->part[file];
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    int first = s->n;
    const char *name;
    json_t *v;
    mc_status st = MC_OK;
    if (!json_is_object(root)) {
        json_decref(root);
        return mc_err_set(err, MC_E_FORMAT, "%s: its header is not a JSON object (%s)", p->path,
                          root ? "another value" : je.text);
    }
    json_object_foreach(root, name, v)
    {
        struct entry e = {.file = file};
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (strlen(name) > NAME_LONGEST || s->n >= TENSORS_MAX) /* I4 */
            st = mc_err_set(err, MC_E_FORMAT, "%s: more than %d tensors, or a name past %d bytes",
                            p->path, (int)TENSORS_MAX, (int)NAME_LONGEST);
        if (st == MC_OK)
            st = read_entry(p, name, v, &e, err);
        if (st == MC_OK)
            st = append(s, name, &e, err);
        if (st != MC_OK)
            break;
    }
    json_decref(root);
    MC_TRY(st);
    return check_cover(s, first, p, err);
}

/* ---- one file ---- */

static mc_status read_bytes(const struct part *p, int64_t at, void *buf, size_t n,
                            struct mc_err *err)
{
    if (p->fd >= 0)
        return mc_sys_pread_all(p->fd, buf, n, at, p->path, err);
    memcpy(buf, p->memory + at, n);
    return MC_OK;
}

/* size: of the whole file. */
static mc_status read_part(struct mc_safetensors *s, int file, int64_t size, struct mc_err *err)
{
    struct part *p = &s->part[file];
    uint8_t b[8];
    uint64_t n = 0;
    if (size < 8)
        return mc_err_set(err, MC_E_FORMAT, "%s: %lld bytes are no safetensors file", p->path,
                          (long long)size);
    MC_TRY(read_bytes(p, 0, b, sizeof b, err));
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)b[i] << 8 * i;
    if (n > HEADER_MAX || (int64_t)n > size - 8) /* I1, I4 */
        return mc_err_set(err, MC_E_FORMAT,
                          "%s: no safetensors file: its header would take %llu bytes (%lld follow; "
                          "at most %d are read)",
                          p->path, (unsigned long long)n, (long long)(size - 8), (int)HEADER_MAX);
    p->data = 8 + (int64_t)n;
    p->bytes = size - p->data;
    char *text = mc_alloc((size_t)n + 1, "header");
    if (!text)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a header of %llu bytes",
                          (unsigned long long)n);
    mc_status st = read_bytes(p, 8, text, (size_t)n, err);
    if (st == MC_OK)
        st = read_header(s, file, text, (size_t)n, err);
    mc_free(text);
    return st;
}

static mc_status open_part(struct mc_safetensors *s, const char *path, struct mc_err *err)
{
    int64_t size;
    struct part *p = &s->part[s->nparts];
    p->fd = -1;
    if (snprintf(p->path, sizeof p->path, "%s", path) >= (int)sizeof p->path)
        return mc_err_set(err, MC_E_USAGE, "%.100s...: path too long", path);
    MC_TRY(mc_sys_file_size(path, &size, err));
    /* O_NONBLOCK: a pipe would wait for a writer; opened, it has 0 bytes and is refused */
    MC_TRY(mc_sys_open(path, O_RDONLY | O_NONBLOCK, 0, &p->fd, err));
    s->nparts++; /* from here on it is closed with the rest */
    return read_part(s, s->nparts - 1, size, err);
}

/* ---- an index ---- */

static int is_plain(const char *file) /* I3 */
{
    return file && *file && *file != '.' && strlen(file) < 256 && !strchr(file, '/');
}

/* The number of `file` among the parts; opened when it is new. */
static mc_status part_named(struct mc_safetensors *s, const char *file, int *number,
                            struct mc_err *err)
{
    char path[1100];
    MC_TRY(mc_path_join(path, sizeof path, s->folder, file, err));
    for (*number = 0; *number < s->nparts; ++*number)
        if (strcmp(s->part[*number].path, path) == 0)
            return MC_OK;
    if (s->nparts == FILES_MAX)
        return mc_err_set(err, MC_E_FORMAT, "the index names more than %d files", (int)FILES_MAX);
    return open_part(s, path, err);
}

static mc_status open_files(struct mc_safetensors *s, const char *path, const json_t *map,
                            struct mc_err *err)
{
    const char *name;
    json_t *v;
    int number;
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        if (!is_plain(json_string_value(v)))
            return mc_err_set(err, MC_E_FORMAT,
                              "%s: tensor \"%.200s\": its file is not a plain name", path, name);
        MC_TRY(part_named(s, json_string_value(v), &number, err));
    }
    return MC_OK;
}

/* I2, after sorting by name */
static mc_status check_map(const struct mc_safetensors *s, const char *path, const json_t *map,
                           struct mc_err *err)
{
    const char *name;
    json_t *v;
    for (int i = 0; i < s->n; i++)
        if (!json_object_get(map, s->entry[i].t.name))
            return mc_err_set(err, MC_E_FORMAT, "%s does not know tensor \"%.200s\" of %s", path,
                              s->entry[i].t.name, s->part[s->entry[i].file].path);
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        int i = mc_safetensors_find(s, name);
        const char *at = i < 0 ? "" : strrchr(s->part[s->entry[i].file].path, '/') + 1;
        if (strcmp(at, json_string_value(v)) != 0)
            return mc_err_set(err, MC_E_FORMAT, "%s: tensor \"%.200s\" is not in %.255s", path,
                              name, json_string_value(v));
    }
    return MC_OK;
}

static mc_status sort_names(struct mc_safetensors *s, struct mc_err *err)
{
    if (s->n > 1)
        qsort(s->entry, (size_t)s->n, sizeof *s->entry, by_name);
    for (int i = 1; i < s->n; i++)
        if (strcmp(s->entry[i].t.name, s->entry[i - 1].t.name) == 0) /* I2 */
            return mc_err_set(err, MC_E_FORMAT, "tensor \"%.200s\" is in %s and in %s",
                              s->entry[i].t.name, s->part[s->entry[i - 1].file].path,
                              s->part[s->entry[i].file].path);
    return MC_OK;
}

static mc_status open_index(struct mc_safetensors *s, const char *path, struct mc_err *err)
{
    char *text;
    size_t n;
    json_error_t je;
    MC_TRY(mc_sys_read_file(path, INDEX_MAX, &text, &n, err));
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    const json_t *map = json_object_get(root, "weight_map");
    mc_status st = json_is_object(map) && json_object_size(map) <= TENSORS_MAX
                       ? MC_OK
                       : mc_err_set(err, MC_E_FORMAT, "%s: no index of safetensors files: %s", path,
                                    root ? "no object \"weight_map\"" : je.text);
    mc_free(text);
    if (st == MC_OK)
        st = open_files(s, path, map, err);
    if (st == MC_OK)
        st = sort_names(s, err);
    if (st == MC_OK)
        st = check_map(s, path, map, err);
    json_decref(root);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

/* ---- open, close ---- */

static struct mc_safetensors *create(int files)
{
    struct mc_safetensors *s = mc_alloc(sizeof *s, "safetensors");
    if (s)
        s->part = mc_alloc((size_t)files * sizeof *s->part, "list of files");
    if (s && !s->part) {
        mc_free(s);
        s = NULL;
    }
    return s;
}

/* A folder holds one file, or an index: which of the two is never guessed. */
static mc_status in_folder(const char *dir, char path[1100], struct mc_err *err)
{
    char one[1100], index[1100];
    MC_TRY(mc_path_join(one, sizeof one, dir, "model.safetensors", err));
    MC_TRY(mc_path_join(index, sizeof index, dir, "model.safetensors.index.json", err));
    int a = mc_sys_exists(one), b = mc_sys_exists(index);
    if (a == b)
        return mc_err_set(err, a ? MC_E_FORMAT : MC_E_NOTFOUND,
                          a ? "%s holds model.safetensors and model.safetensors.index.json: name "
                              "the one that is meant"
                            : "%s holds no model.safetensors and no model.safetensors.index.json",
                          dir);
    snprintf(path, 1100, "%s", a ? one : index);
    return MC_OK;
}

static int is_index(const char *path)
{
    static const char end[] = ".index.json";
    size_t n = strlen(path), k = sizeof end - 1;
    return n > k && strcmp(path + n - k, end) == 0;
}

mc_status mc_safetensors_open(const char *path, struct mc_safetensors **out, struct mc_err *err)
{
    char at[1100];
    if (strlen(path) >= sizeof at)
        return mc_err_set(err, MC_E_USAGE, "%.100s...: path too long", path);
    snprintf(at, sizeof at, "%s", path);
    if (mc_sys_is_dir(path))
        MC_TRY(in_folder(path, at, err));
    struct mc_safetensors *s = create(is_index(at) ? FILES_MAX : 1);
    if (!s)
        return mc_err_set(err, MC_E_NOMEM, "no memory to read %s", path);
    mc_path_dir(s->folder, sizeof s->folder, at);
    mc_status st = is_index(at) ? open_index(s, at, err) : open_part(s, at, err);
    if (st == MC_OK)
        st = sort_names(s, err);
    if (st != MC_OK) {
        mc_safetensors_close(s);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    *out = s;
    return MC_OK;
}

mc_status mc_safetensors_open_memory(const void *bytes, size_t n, struct mc_safetensors **out,
                                     struct mc_err *err)
{
    struct mc_safetensors *s = create(1);
    if (!s)
        return mc_err_set(err, MC_E_NOMEM, "no memory to read %zu bytes", n);
    s->nparts = 1;
    s->part[0] = (struct part){.path = "memory", .fd = -1, .memory = bytes};
    snprintf(s->folder, sizeof s->folder, ".");
    mc_status st = read_part(s, 0, n > INT64_MAX ? INT64_MAX : (int64_t)n, err);
    if (st == MC_OK)
        st = sort_names(s, err);
    if (st != MC_OK) {
        mc_safetensors_close(s);
        return st;
    }
    *out = s;
    return MC_OK;
}

void mc_safetensors_close(struct mc_safetensors *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        mc_free((char *)(uintptr_t)s->entry[i].t.name);
    for (int i = 0; i < s->nparts; i++)
        if (s->part[i].fd >= 0)
            mc_sys_close(s->part[i].fd, s->part[i].path, NULL);
    mc_free(s->entry);
    mc_free(s->part);
    mc_free(s);
}

/* ---- look, read ---- */

int mc_safetensors_count(const struct mc_safetensors *s)
{
    return s->n;
}

const struct mc_safetensor *mc_safetensors_at(const struct mc_safetensors *s, int i)
{
    MC_ASSERT(i >= 0 && i < s->n);
    return &s->entry[i].t;
}

int mc_safetensors_find(const struct mc_safetensors *s, const char *name)
{
    int lo = 0, hi = s->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2, c = strcmp(s->entry[mid].t.name, name);
        if (c == 0)
            return mid;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

const char *mc_safetensors_folder(const struct mc_safetensors *s)
{
    return s->folder;
}

int mc_safetensors_is_real(const struct mc_safetensor *t)
{
    const struct dtype *d = dtype_of(t->dtype);
    return d && d->real;
}

static uint64_t little(const uint8_t *b, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint64_t)b[i] << 8 * i;
    return v;
}

static double from_bits32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* binary16: 1 sign, 5 exponent (bias 15), 10 fraction; exponent 0: fraction * 2^-24 */
static double from_half(uint32_t h)
{
    uint32_t sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31)
        return from_bits32(sign | 0x7f800000 | m << 13);
    if (e > 0)
        return from_bits32(sign | (e + 112) << 23 | m << 13);
    double v = (double)m / 16777216.0;
    return sign ? -v : v;
}

static double one(const struct dtype *d, const uint8_t *b)
{
    uint64_t bits = little(b, d->bytes);
    double v;
    if (d->bytes == 8) {
        memcpy(&v, &bits, sizeof v);
        return v;
    }
    if (d->bytes == 4)
        return from_bits32((uint32_t)bits);
    return d->word[0] == 'B' ? from_bits32((uint32_t)bits << 16) : from_half((uint32_t)bits);
}

mc_status mc_safetensors_read(const struct mc_safetensors *s, int i, int64_t first, int64_t n,
                              double *out, struct mc_err *err)
{
    MC_ASSERT(i >= 0 && i < s->n);
    const struct entry *e = &s->entry[i];
    const struct part *p = &s->part[e->file];
    uint8_t buf[PIECE];
    MC_ASSERT(first >= 0 && n >= 0 && first <= e->t.count && n <= e->t.count - first);
    if (!e->dtype->real)
        return bad(err, p, e->t.name, "its dtype is not F32, F16, BF16 or F64");
    for (int64_t at = 0; at < n;) {
        int64_t take = PIECE / e->dtype->bytes;
        take = take < n - at ? take : n - at;
        MC_TRY(read_bytes(p, p->data + e->begin + (first + at) * e->dtype->bytes, buf,
                          (size_t)(take * e->dtype->bytes), err));
        for (int64_t k = 0; k < take; k++)
            out[at + k] = one(e->dtype, buf + k * e->dtype->bytes);
        at += take;
    }
    return MC_OK;
}
