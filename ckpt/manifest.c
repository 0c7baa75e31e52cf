/* manifest.c - the text that makes a folder a checkpoint: written, read back, and proven whole.
 *
 * Floor 5 (ckpt). JSON on one line, for people and other programs; UTF-8, at most 512 MiB:
 *
 *   member        meaning
 *   format        "mascon-checkpoint"
 *   version       1
 *   step, epoch   as in the folder's name
 *   time          seconds since 1970 at the save
 *   weights_hash  copy of books.weights_hash, or null
 *   books         the run's own books: any JSON object; this folder reads "step" and "weights_hash"
 *   files         [{ "name": "data-00000.mcd", "bytes": N }]; file i is data-<i, five digits>.mcd
 *   tensors       ascending by name: [{ "name", "dtype": "F32", "shape": [..], "boxes": [BOX] }]
 *   hash          XXH3 (16 hex digits) of every byte before the comma in front of it; then "}\n"
 *
 *   BOX           { "file": i, "lo": [..], "n": [..], "chunks": [CHUNK] }
 *   CHUNK         [offset, stored bytes, raw bytes, "raw" | "zstd", raw XXH3, stored XXH3]
 *
 * A manifest is valid if and only if
 * I1  its hash holds, so that any changed byte is found before the text is believed;
 * I2  each tensor's boxes cover its shape exactly once;
 * I3  a box's chunks, in order, are its elements in row-major order: raw bytes are whole elements,
 *     at most 4 MiB, and add up to the box;
 * I4  a file is its 64-byte header and, in manifest order, its chunks, each at the next multiple of
 *     64 and zeros between: no byte is unaccounted for, none is used twice.
 * The parser trusts nothing, not even a text whose hash holds: it is fuzzed behind the hash.
 * Memory: mc_manifest owns its arrays until fini. jansson's own while reading. Threads: any. */
#include "ckpt_int.h"
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../core/base/arena.h"
#include "../core/base/hash.h"

#define FORMAT     "mascon-checkpoint"
#define TAIL_HEAD  ",\"hash\":\""
#define TAIL_BYTES (sizeof TAIL_HEAD - 1 + 16 + 3) /* ,"hash":"0123456789abcdef"}\n */

void mc_manifest_fini(struct mc_manifest *m)
{
    mc_free(m->books);
    mc_free(m->file_bytes);
    mc_free(m->tensor);
    mc_free(m->box);
    mc_free(m->chunk);
    memset(m, 0, sizeof *m);
}

int64_t mc_manifest_find(const struct mc_manifest *m, const char *name)
{
    int64_t lo = 0, hi = m->ntensors;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, m->tensor[mid].name);
        if (c == 0)
            return mid;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}

/* ---- writing ------------------------------------------------------------------------------ */

static void write_ints(struct mc_json *j, const char *key, const int64_t *v, int n)
{
    mc_json_open(j, key, '[');
    for (int i = 0; i < n; i++)
        mc_json_i64(j, NULL, v[i]);
    mc_json_close(j, ']');
}

static void write_box(const struct mc_manifest *m, const struct mc_stored_box *b, struct mc_json *j)
{
    char hex[17];
    mc_json_open(j, NULL, '{');
    mc_json_i64(j, "file", b->file);
    write_ints(j, "lo", b->box.lo, b->box.nd);
    write_ints(j, "n", b->box.n, b->box.nd);
    mc_json_open(j, "chunks", '[');
    for (int64_t k = b->first_chunk; k < b->first_chunk + b->nchunks; k++) {
        const struct mc_chunk *c = &m->chunk[k];
        mc_json_open(j, NULL, '[');
        mc_json_i64(j, NULL, c->off);
        mc_json_i64(j, NULL, c->stored_bytes);
        mc_json_i64(j, NULL, c->raw_bytes);
        mc_json_str(j, NULL, c->codec == MC_CODEC_ZSTD ? "zstd" : "raw");
        mc_hash_hex(c->raw_hash, hex);
        mc_json_str(j, NULL, hex);
        mc_hash_hex(c->stored_hash, hex);
        mc_json_str(j, NULL, hex);
        mc_json_close(j, ']');
    }
    mc_json_close(j, ']');
    mc_json_close(j, '}');
}

void mc_manifest_write_files(const struct mc_manifest *m, struct mc_json *j)
{
    char name[32];
    mc_json_open(j, "files", '[');
    for (int i = 0; i < m->nfiles; i++) {
        snprintf(name, sizeof name, "data-%05d.mcd", i);
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "name", name);
        mc_json_i64(j, "bytes", m->file_bytes[i]);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

void mc_manifest_write(const struct mc_manifest *m, struct mc_json *j)
{
    char hex[17], tail[64];
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "format", FORMAT);
    mc_json_i64(j, "version", MC_CKPT_VERSION);
    mc_json_i64(j, "step", m->step);
    mc_json_i64(j, "epoch", m->epoch);
    mc_json_f64(j, "time", m->unix_time);
    mc_json_str(j, "weights_hash", m->weights_hash[0] ? m->weights_hash : NULL);
    mc_json_raw(j, "books", m->books);
    mc_manifest_write_files(m, j);
    mc_json_open(j, "tensors", '[');
    for (int64_t t = 0; t < m->ntensors; t++) {
        const struct mc_stored_tensor *x = &m->tensor[t];
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "name", x->name);
        mc_json_str(j, "dtype", mc_dtype_name(x->dtype));
        write_ints(j, "shape", x->shape.dim, x->shape.nd);
        mc_json_open(j, "boxes", '[');
        for (int64_t b = x->first_box; b < x->first_box + x->nboxes; b++)
            write_box(m, &m->box[b], j);
        mc_json_close(j, ']');
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
    if (j->failed)
        return;
    mc_hash_hex(mc_hash64(j->buf, j->len), hex); /* I1: all that is there so far */
    mc_json_str(j, "hash", hex);
    mc_json_close(j, '}');
    /* The reader finds the tail by its length, so the writer must have made it as expected. */
    if (j->failed)
        return;
    snprintf(tail, sizeof tail, TAIL_HEAD "%s\"}", hex);
    MC_ASSERT(j->len > strlen(tail) && !memcmp(j->buf + j->len - strlen(tail), tail, strlen(tail)));
}

/* ---- JSON text ---------------------------------------------------------------------------- */

/* When memory runs out, jansson mostly reports a syntax error, and at places drops characters and
 * goes on. "Damaged" would send a run back to an older checkpoint for want of a few bytes, so its
 * allocator is wrapped to leave a note, and what came out after a refusal is thrown away. The wrap
 * is the whole process's; it changes nothing for others. */
static _Thread_local int t_refused;
static json_malloc_t g_theirs;

static void *noting(size_t n)
{
    void *p = g_theirs(n);
    if (!p)
        t_refused = 1;
    return p;
}

static void hook_jansson(void)
{
    json_free_t give_back;
    json_get_alloc_funcs(&g_theirs, &give_back);
    json_set_alloc_funcs(noting, give_back);
}

static mc_status parse(const char *text, size_t n, const char *where, json_t **out,
                       struct mc_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    json_error_t je;
    pthread_once(&once, hook_jansson);
    t_refused = 0;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (t_refused) {
        json_decref(v);
        return mc_err_set(err, MC_E_NOMEM, "%s: no memory to read it", where);
    }
    if (!v)
        return mc_err_set(err, MC_E_CORRUPT, "%s: not JSON: %s at byte %d", where, je.text,
                          je.position);
    *out = v;
    return MC_OK;
}

/* ---- reading ------------------------------------------------------------------------------ */

struct in { /* where we are, for messages */
    const char *where, *tensor;
    struct mc_err *err;
};

static mc_status bad(const struct in *in, const char *what)
{
    return mc_err_set(in->err, MC_E_CORRUPT, "%s: damaged or not a manifest: %s%s%s", in->where,
                      in->tensor ? in->tensor : "", in->tensor ? ": " : "", what);
}

static int get_int(const json_t *v, int64_t lo, int64_t hi, int64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return 0;
    *out = json_integer_value(v);
    return 1;
}

static int get_hash(const json_t *v, uint64_t *out)
{
    const char *s = json_string_value(v);
    uint64_t h = 0;
    if (!s || json_string_length(v) != 16)
        return 0;
    for (int i = 0; i < 16; i++) {
        int c = s[i], digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 87 : -1;
        if (digit < 0)
            return 0;
        h = h << 4 | (uint64_t)digit;
    }
    *out = h;
    return 1;
}

static int get_ints(const json_t *v, int n, int64_t lo, int64_t out[MC_MAX_DIMS])
{
    if (!json_is_array(v) || json_array_size(v) != (size_t)n)
        return 0;
    for (int i = 0; i < n; i++)
        if (!get_int(json_array_get(v, (size_t)i), lo, INT64_MAX, &out[i]))
            return 0;
    return 1;
}

static mc_status read_chunk(const struct in *in, const json_t *v, struct mc_chunk *c)
{
    int64_t stored, raw;
    const char *codec = json_string_value(json_array_get(v, 3));
    if (!json_is_array(v) || json_array_size(v) != 6 || !codec ||
        !get_int(json_array_get(v, 0), MC_CKPT_HEADER, INT64_MAX / 2, &c->off) ||
        !get_int(json_array_get(v, 1), 1, MC_CKPT_CHUNK, &stored) ||
        !get_int(json_array_get(v, 2), 1, MC_CKPT_CHUNK, &raw) ||
        !get_hash(json_array_get(v, 4), &c->raw_hash) ||
        !get_hash(json_array_get(v, 5), &c->stored_hash))
        return bad(in, "a chunk is not [offset, stored, raw, codec, hash, hash]");
    c->stored_bytes = (uint32_t)stored;
    c->raw_bytes = (uint32_t)raw;
    if (!strcmp(codec, "zstd"))
        c->codec = MC_CODEC_ZSTD;
    else if (!strcmp(codec, "raw"))
        c->codec = MC_CODEC_RAW;
    else
        return bad(in, "a chunk's codec is neither raw nor zstd");
    if (c->codec == MC_CODEC_RAW ? stored != raw || c->raw_hash != c->stored_hash : stored >= raw)
        return bad(in, "a chunk's stored and raw sizes or hashes contradict its codec");
    return MC_OK;
}

static mc_status read_tensor(const struct in *at, const json_t *v, struct mc_manifest *m,
                             int64_t *nbox, int64_t *nchunk)
{
    struct in here = *at, *in = &here;
    struct mc_stored_tensor *t = &m->tensor[m->ntensors];
    const char *name = json_string_value(json_object_get(v, "name"));
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    const json_t *shape = json_object_get(v, "shape"), *boxes = json_object_get(v, "boxes"), *bv;
    size_t k;
    if (json_object_size(v) != 4 || !name || !name[0] || strlen(name) >= sizeof t->name || !dtype ||
        !json_is_array(boxes))
        return bad(in, "a tensor is not {name, dtype, shape, boxes}");
    snprintf(t->name, sizeof t->name, "%s", name);
    here.tensor = t->name;
    if (mc_dtype_parse(dtype) < 0)
        return bad(in, "unknown dtype");
    t->dtype = (enum mc_dtype)mc_dtype_parse(dtype);
    t->shape.nd = (int)json_array_size(shape);
    if (!json_is_array(shape) || json_array_size(shape) > MC_MAX_DIMS ||
        !get_ints(shape, t->shape.nd, 1, t->shape.dim))
        return bad(in, "its shape is not a list of at most 4 positive integers");
    t->first_box = *nbox;
    t->nboxes = (int64_t)json_array_size(boxes);
    json_array_foreach(boxes, k, bv)
    {
        struct mc_stored_box *b = &m->box[*nbox];
        const json_t *chunks = json_object_get(bv, "chunks"), *cv;
        int64_t file;
        size_t i;
        b->box.nd = t->shape.nd;
        if (json_object_size(bv) != 4 || !json_is_array(chunks) ||
            !get_int(json_object_get(bv, "file"), 0, m->nfiles - 1, &file) ||
            !get_ints(json_object_get(bv, "lo"), t->shape.nd, 0, b->box.lo) ||
            !get_ints(json_object_get(bv, "n"), t->shape.nd, 1, b->box.n))
            return bad(in, "a box is not {file, lo, n, chunks}");
        b->file = (int)file;
        b->first_chunk = *nchunk;
        b->nchunks = (int64_t)json_array_size(chunks);
        json_array_foreach(chunks, i, cv)
        {
            mc_status st = read_chunk(in, cv, &m->chunk[*nchunk]);
            if (st != MC_OK)
                return st;
            ++*nchunk;
        }
        ++*nbox;
    }
    m->ntensors++;
    return MC_OK;
}

/* How much memory the text asks for is known only from what it holds: count, then allocate. */
static mc_status allocate(const struct in *in, const json_t *files, const json_t *tensors,
                          struct mc_manifest *m)
{
    size_t boxes = 0, chunks = 0, t, b;
    const json_t *tv, *bv;
    json_array_foreach(tensors, t, tv)
    {
        boxes += json_array_size(json_object_get(tv, "boxes"));
        json_array_foreach(json_object_get(tv, "boxes"), b, bv)
        {
            chunks += json_array_size(json_object_get(bv, "chunks"));
        }
    }
    m->file_bytes = mc_alloc((json_array_size(files) + 1) * sizeof *m->file_bytes, "manifest");
    m->tensor = mc_alloc((json_array_size(tensors) + 1) * sizeof *m->tensor, "manifest tensors");
    m->box = mc_alloc((boxes + 1) * sizeof *m->box, "manifest boxes");
    m->chunk = mc_alloc((chunks + 1) * sizeof *m->chunk, "manifest chunks");
    if (!m->file_bytes || !m->tensor || !m->box || !m->chunk)
        return mc_err_set(in->err, MC_E_NOMEM, "%s: no memory for the list of %zu chunks",
                          in->where, chunks);
    return MC_OK;
}

static mc_status read_files(const struct in *in, const json_t *files, struct mc_manifest *m)
{
    char expect[32];
    size_t i;
    const json_t *v;
    json_array_foreach(files, i, v)
    {
        const char *name = json_string_value(json_object_get(v, "name"));
        snprintf(expect, sizeof expect, "data-%05zu.mcd", i);
        if (json_object_size(v) != 2 || !name || strcmp(name, expect) ||
            !get_int(json_object_get(v, "bytes"), MC_CKPT_HEADER, INT64_MAX / 2, &m->file_bytes[i]))
            return bad(in, "the list of files is not data-00000.mcd, ... with their sizes");
        m->nfiles++;
    }
    return MC_OK;
}

static mc_status read_root(const struct in *in, const json_t *root, struct mc_manifest *m)
{
    int64_t version, epoch, nbox = 0, nchunk = 0;
    const json_t *files = json_object_get(root, "files"),
                 *tensors = json_object_get(root, "tensors");
    const json_t *wh = json_object_get(root, "weights_hash"), *time = json_object_get(root, "time");
    const json_t *books = json_object_get(root, "books"), *v;
    const char *format = json_string_value(json_object_get(root, "format"));
    struct mc_err *err = in->err;
    size_t i;
    if (!format || strcmp(format, FORMAT))
        return bad(in, "its format is not \"" FORMAT "\"");
    if (!get_int(json_object_get(root, "version"), 0, INT64_MAX, &version))
        return bad(in, "it has no version");
    if (version != MC_CKPT_VERSION)
        return mc_err_set(err, MC_E_CORRUPT,
                          "%s: format version %lld; this program reads version %d", in->where,
                          (long long)version, MC_CKPT_VERSION);
    if (json_object_size(root) != 10 ||
        !get_int(json_object_get(root, "step"), 0, INT64_MAX, &m->step) ||
        !get_int(json_object_get(root, "epoch"), 0, INT32_MAX, &epoch) || !json_is_number(time) ||
        !json_is_object(books) || !json_is_array(files) || !json_is_array(tensors) ||
        json_array_size(files) < 1 || json_array_size(files) > MC_CKPT_MAX_FILES ||
        !(json_is_null(wh) || (json_is_string(wh) && json_string_length(wh) > 0 &&
                               json_string_length(wh) < sizeof m->weights_hash)))
        return bad(in, "a member is missing, unknown or of the wrong kind");
    m->epoch = (int)epoch;
    m->unix_time = json_number_value(time);
    if (json_is_string(wh))
        snprintf(m->weights_hash, sizeof m->weights_hash, "%s", json_string_value(wh));
    MC_TRY(allocate(in, files, tensors, m));
    MC_TRY(read_files(in, files, m));
    json_array_foreach(tensors, i, v)
    {
        MC_TRY(read_tensor(in, v, m, &nbox, &nchunk));
    }
    m->nboxes = nbox;
    m->nchunks = nchunk;
    t_refused = 0;
    char *text = json_dumps(books, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text && !t_refused)
        m->books = mc_strdup(text);
    free(text); /* jansson's */
    if (!m->books)
        return mc_err_set(err, MC_E_NOMEM, "%s: no memory for the books", in->where);
    return MC_OK;
}

mc_status mc_manifest_read(const char *text, size_t n, const char *where, struct mc_manifest *m,
                           struct mc_err *err)
{
    struct in in = {.where = where, .err = err};
    struct mc_manifest r = {0};
    char hex[17], wh[40];
    if (n <= TAIL_BYTES || n > MC_CKPT_MANIFEST_MAX)
        return mc_err_set(err, MC_E_CORRUPT, "%s: %zu bytes: cut off, or not a manifest", where, n);
    const char *tail = text + n - TAIL_BYTES;
    mc_hash_hex(mc_hash64(text, n - TAIL_BYTES), hex);
    if (memcmp(tail, TAIL_HEAD, sizeof TAIL_HEAD - 1) ||
        memcmp(tail + sizeof TAIL_HEAD - 1, hex, 16) || memcmp(text + n - 3, "\"}\n", 3)) /* I1 */
        return mc_err_set(err, MC_E_CORRUPT,
                          "%s: damaged: its bytes do not match the hash at its end", where);
    json_t *root;
    MC_TRY(parse(text, n, where, &root, err));
    mc_status st = read_root(&in, root, &r);
    json_decref(root);
    if (st == MC_OK)
        st = mc_manifest_check(&r, where, err);
    if (st == MC_OK)
        st = mc_manifest_books(r.books, r.step, wh, err);
    if (st == MC_OK && strcmp(wh, r.weights_hash))
        st = bad(&in, "weights_hash differs from the books'");
    if (st != MC_OK) {
        mc_manifest_fini(&r);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    *m = r;
    return MC_OK;
}

mc_status mc_manifest_books(const char *text, int64_t step, char weights_hash[40],
                            struct mc_err *err)
{
    size_t n = strlen(text);
    mc_status st = MC_OK;
    if (n > MC_CKPT_BOOKS_MAX)
        return mc_err_set(err, MC_E_CORRUPT, "books: %zu bytes of JSON; at most %d", n,
                          MC_CKPT_BOOKS_MAX);
    json_t *o;
    MC_TRY(parse(text, n, "books", &o, err));
    if (!json_is_object(o))
        st = mc_err_set(err, MC_E_CORRUPT, "books: not a JSON object");
    const json_t *s = json_object_get(o, "step"), *wh = json_object_get(o, "weights_hash");
    if (st == MC_OK && s && (!json_is_integer(s) || json_integer_value(s) != step))
        st = mc_err_set(err, MC_E_CORRUPT, "books: their step is not %lld, the checkpoint's",
                        (long long)step);
    if (st == MC_OK && wh &&
        (!json_is_string(wh) || !json_string_length(wh) || json_string_length(wh) >= 40))
        st = mc_err_set(err, MC_E_CORRUPT, "books: weights_hash is not a short string");
    if (st == MC_OK)
        snprintf(weights_hash, 40, "%s", wh ? json_string_value(wh) : "");
    json_decref(o);
    return st;
}

/* ---- structure ---------------------------------------------------------------------------- */

/* I3, I4 for one box; next[f]: where file f's next chunk must start. */
static mc_status check_box(const struct mc_manifest *m, const struct mc_stored_tensor *t,
                           const struct mc_stored_box *b, int64_t *next, const struct in *in)
{
    int64_t elem = (int64_t)mc_dtype_size(t->dtype), want = mc_box_count(&b->box) * elem, have = 0;
    for (int64_t k = b->first_chunk; k < b->first_chunk + b->nchunks; k++) {
        const struct mc_chunk *c = &m->chunk[k];
        if (c->raw_bytes % elem || c->raw_bytes > want - have)
            return bad(in, "a chunk is not whole elements of its box");
        if (c->off != next[b->file])
            return bad(in, "chunks overlap, or leave a gap in their file");
        have += c->raw_bytes;
        next[b->file] = c->off + (int64_t)mc_align_up(c->stored_bytes, MC_CKPT_ALIGN);
        if (next[b->file] > m->file_bytes[b->file])
            return bad(in, "a chunk ends behind the end of its file");
    }
    if (have != want)
        return bad(in, "the chunks of a box are fewer than its elements");
    return MC_OK;
}

mc_status mc_manifest_check(const struct mc_manifest *m, const char *where, struct mc_err *err)
{
    struct in in = {.where = where, .err = err};
    int64_t *next = mc_alloc(((size_t)m->nfiles + 1) * sizeof *next, "manifest check");
    struct mc_box *cover = mc_alloc(((size_t)m->nboxes + 1) * sizeof *cover, "manifest check");
    mc_status st = MC_OK;
    if (!next || !cover)
        st = mc_err_set(err, MC_E_NOMEM, "%s: no memory to check it", where);
    for (int i = 0; i < m->nfiles && st == MC_OK; i++)
        next[i] = MC_CKPT_HEADER;
    for (int64_t i = 0; i < m->ntensors && st == MC_OK; i++) {
        const struct mc_stored_tensor *t = &m->tensor[i];
        int64_t count = mc_shape_count(&t->shape);
        in.tensor = t->name;
        if (i > 0 && strcmp(m->tensor[i - 1].name, t->name) >= 0)
            st = bad(&in, "names are not ascending, or one comes twice");
        else if (count < 1 || count > INT64_MAX / 16)
            st = bad(&in, "its shape is empty or has too many elements");
        for (int64_t b = t->first_box; b < t->first_box + t->nboxes && st == MC_OK; b++) {
            cover[b - t->first_box] = m->box[b].box;
            if (!mc_box_valid(&m->box[b].box, &t->shape))
                st = bad(&in, "a box is empty or outside the tensor");
            else
                st = check_box(m, t, &m->box[b], next, &in);
        }
        if (st == MC_OK)
            st = mc_box_cover(cover, t->nboxes, &t->shape, where, t->name, err); /* I2 */
    }
    in.tensor = NULL;
    for (int i = 0; i < m->nfiles && st == MC_OK; i++)
        if (next[i] != m->file_bytes[i])
            st = bad(&in, "a file holds more bytes than its chunks");
    mc_free(next);
    mc_free(cover);
    return st;
}
