/* source.c - what a path means as data, and the one stream of tokens that it becomes.
 * Floor 3 (data). Includes: base recipe.
 *
 * A path is, in this order:
 *   1. PREFIX.idx or PREFIX.bin            packed; both files must be there
 *   2. PREFIX with PREFIX.idx, PREFIX.bin  packed; when PREFIX itself exists as well: an error that
 *                                          asks to write PREFIX.idx or PREFIX/
 *   3. a folder                            text: each regular file below it is one document
 *   4. a regular file                      text: one document
 * Text is taken as bytes, whatever they are: byte b is id b; every document is closed by EOS (256);
 * an empty file is an empty document, just EOS.
 * A folder is read with all its folders. The order is strcmp of the paths. Names that start with
 * "." are skipped, files and folders alike; so is what is neither file nor folder. Symbolic links
 * are followed, except one that leads to a folder it lies in: that loop is not entered; a broken
 * one is an error.
 *
 * I1  The stream is fixed at open: sizes are those then. Files must not be cut while they are open
 *     (reading a mapped file past its new end kills the reader).
 * I2  Positions: file f begins at start[f]; start[f + 1] = start[f] + bytes + 1 (EOS). A position
 *     is found by bisection; reads allocate nothing.
 * I3  The hash covers sizes and content: whole up to 64 MiB a source, above that 1,024 blocks of 4
 *     KiB, evenly spaced, the first and the last included; the .idx of a packed source always
 *     whole. It tells two sources apart; proof against damage is the sidecar of a packed one
 *     (indexed.c, I5), and `verify`.
 * I4  What is surely not meant as its bytes is refused: .gz, .zst, .jsonl, .ndjson. Pack reads
 *     them.
 *
 * Memory: handle life; file bytes are mapped, at most 32,768 files a source. Threads: read-only
 * after open, any number of readers. stat(2) is called here and not through sysio: its answer
 * steers nothing but what to open, and the open then fails in sysio. */
#include "pack_int.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../base/arena.h"
#include "../base/hash.h"

enum { MAX_DEPTH = 64, HASH_WHOLE = 64 << 20, HASH_BLOCKS = 1024, HASH_BLOCK = 4096 };

struct text_file {
    struct mc_map map;
    int64_t start; /* stream position of its first byte */
};
struct mc_source {
    enum mc_source_kind kind;
    char path[MC_PATH];
    int64_t tokens, documents;
    uint64_t hash;
    int is_bytes;
    int64_t max_id;          /* by the sidecar; -1: not known */
    char tokenizer[MC_WORD]; /* PACKED, by us */
    uint64_t tokenizer_hash;
    int nfiles; /* TEXT */
    struct text_file *file;
    struct mc_indexed *indexed; /* PACKED */
};

/* ---- what a path is ---- */

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && !strcmp(s + n - m, end);
}

static int file_with(const char *prefix, const char *ext)
{
    char p[MC_PATH + 8];
    struct stat sb;
    int n = snprintf(p, sizeof p, "%s%s", prefix, ext);
    return n > 0 && n < (int)sizeof p && stat(p, &sb) == 0 && S_ISREG(sb.st_mode);
}

mc_status mc_source_classify(const char *path, enum mc_source_kind *kind, char prefix[MC_PATH],
                             struct mc_err *err)
{
    size_t n = strlen(path);
    if (n == 0)
        return mc_err_set(err, MC_E_NOTFOUND, "the path of a data source is empty");
    if (n + 8 > MC_PATH)
        return mc_err_set(err, MC_E_NOTFOUND, "path of %zu bytes is too long: %.80s...", n, path);
    int named = ends_with(path, ".idx") || ends_with(path, ".bin");
    char p[MC_PATH];
    memcpy(p, path, n + 1);
    if (named)
        p[n - 4] = 0;
    struct stat sb;
    int exists = stat(path, &sb) == 0, why = errno;
    int idx = file_with(p, ".idx"), bin = file_with(p, ".bin");
    if (named && exists && S_ISDIR(sb.st_mode))
        named = 0; /* a folder that happens to be called x.bin */
    if (named || (path[n - 1] != '/' && idx && bin)) {
        if (!idx || !bin)
            return mc_err_set(err, MC_E_NOTFOUND, "%s: packed data needs %s.idx and %s.bin: %s",
                              path, p, p,
                              !idx && !bin ? "neither is there"
                              : !idx       ? "the .idx is missing"
                                           : "the .bin is missing");
        if (!named && exists)
            return mc_err_set(err, MC_E_RECIPE,
                              "%s: is this %s itself or the packed %s.idx? Write %s.idx%s%s", path,
                              path, path, path, S_ISDIR(sb.st_mode) ? " or " : ", or move one away",
                              S_ISDIR(sb.st_mode) ? "a / at the end" : "");
        memcpy(prefix, p, strlen(p) + 1);
        *kind = MC_SOURCE_PACKED;
        return MC_OK;
    }
    if (!exists) {
        if (why == ENOENT && (idx || bin))
            return mc_err_set(err, MC_E_NOTFOUND, "%s: %s.%s is there but %s.%s is missing", path,
                              path, idx ? "idx" : "bin", path, idx ? "bin" : "idx");
        errno = why;
        return mc_err_sys(err, "data source %s", path);
    }
    if (!S_ISREG(sb.st_mode) && !S_ISDIR(sb.st_mode))
        return mc_err_set(err, MC_E_FORMAT, "%s: neither a regular file nor a folder", path);
    *kind = MC_SOURCE_TEXT;
    prefix[0] = 0;
    return MC_OK;
}

/* ---- files below a folder ---- */

struct parents { /* folders on the way down, to see a loop of links */
    int n;
    struct {
        dev_t dev;
        ino_t ino;
    } at[MAX_DEPTH];
};

static mc_status add_file(struct mc_files *f, const char *path, int64_t bytes, struct mc_err *err)
{
    if (f->n == f->cap) {
        int cap = f->cap ? 2 * f->cap : 64;
        char **p =
            mc_grow(f->path, (size_t)f->cap * sizeof *p, (size_t)cap * sizeof *p, "file list");
        if (p)
            f->path = p;
        int64_t *b =
            mc_grow(f->bytes, (size_t)f->cap * sizeof *b, (size_t)cap * sizeof *b, "file list");
        if (b)
            f->bytes = b;
        if (!p || !b)
            return mc_err_set(err, MC_E_NOMEM, "no memory for a list of %d files", cap);
        f->cap = cap;
    }
    if (!(f->path[f->n] = mc_strdup(path)))
        return mc_err_set(err, MC_E_NOMEM, "no memory for a list of %d files", f->n);
    f->bytes[f->n++] = bytes;
    return MC_OK;
}

static mc_status walk(const char *dir, const struct stat *self, struct parents *up,
                      struct mc_files *f, struct mc_err *err)
{
    for (int i = 0; i < up->n; i++)
        if (up->at[i].dev == self->st_dev && up->at[i].ino == self->st_ino)
            return MC_OK; /* a link back to where we came from */
    if (up->n == MAX_DEPTH)
        return mc_err_set(err, MC_E_FORMAT, "%s: more than %d folders deep", dir, MAX_DEPTH);
    up->at[up->n].dev = self->st_dev;
    up->at[up->n++].ino = self->st_ino;
    char **name = NULL;
    int n = 0;
    mc_status st;
    MC_TRY_GOTO(st, mc_sys_list(dir, &name, &n, err), out);
    for (int i = 0; i < n; i++) {
        char path[MC_PATH];
        struct stat sb;
        if (name[i][0] == '.')
            continue;
        MC_TRY_GOTO(st, mc_path_join(path, sizeof path, dir, name[i], err), out);
        if (stat(path, &sb) != 0) {
            st = mc_err_sys(err, "data file %s", path);
            goto out;
        }
        if (S_ISDIR(sb.st_mode))
            MC_TRY_GOTO(st, walk(path, &sb, up, f, err), out);
        else if (S_ISREG(sb.st_mode))
            MC_TRY_GOTO(st, add_file(f, path, sb.st_size, err), out);
    }
    up->n--;
out:
    mc_sys_list_free(name, n);
    return st;
}

struct one_file {
    char *path;
    int64_t bytes;
};

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct one_file *)a)->path, ((const struct one_file *)b)->path);
}

static mc_status sort_files(struct mc_files *f, struct mc_err *err)
{
    struct one_file *o = mc_alloc((size_t)f->n * sizeof *o, "file list");
    if (!o)
        return mc_err_set(err, MC_E_NOMEM, "no memory to sort %d files", f->n);
    for (int i = 0; i < f->n; i++)
        o[i] = (struct one_file){f->path[i], f->bytes[i]};
    qsort(o, (size_t)f->n, sizeof *o, by_path);
    for (int i = 0; i < f->n; i++) {
        f->path[i] = o[i].path;
        f->bytes[i] = o[i].bytes;
    }
    mc_free(o);
    return MC_OK;
}

mc_status mc_source_files(const char *path, struct mc_files *f, struct mc_err *err)
{
    *f = (struct mc_files){0};
    struct stat sb;
    if (stat(path, &sb) != 0)
        return mc_err_sys(err, "data source %s", path);
    mc_status st;
    if (!S_ISDIR(sb.st_mode)) {
        MC_TRY_GOTO(st, add_file(f, path, sb.st_size, err), fail);
        return MC_OK;
    }
    char dir[MC_PATH]; /* without the / that a user may end it with */
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n >= sizeof dir)
        return mc_err_set(err, MC_E_NOTFOUND, "path of %zu bytes is too long: %.80s...", n, path);
    memcpy(dir, path, n);
    dir[n] = 0;
    struct parents up = {0};
    MC_TRY_GOTO(st, walk(dir, &sb, &up, f, err), fail);
    if (f->n == 0) {
        st = mc_err_set(err, MC_E_FORMAT,
                        "%s: no regular file below this folder (hidden ones do not count)", path);
        goto fail;
    }
    MC_TRY_GOTO(st, sort_files(f, err), fail);
    return MC_OK;
fail:
    mc_source_files_fini(f);
    return st;
}

void mc_source_files_fini(struct mc_files *f)
{
    for (int i = 0; i < f->n; i++)
        mc_free(f->path[i]);
    mc_free(f->path);
    mc_free(f->bytes);
    *f = (struct mc_files){0};
}

/* ---- open ---- */

/* I3: adds `n` bytes at p to the hash, or blocks of them. */
static void hash_span(struct mc_hasher *h, const unsigned char *p, int64_t n, int whole)
{
    if (whole || n <= (int64_t)HASH_BLOCKS * HASH_BLOCK) {
        if (n)
            mc_hasher_add(h, p, (size_t)n);
        return;
    }
    int64_t last = n - HASH_BLOCK;
    for (int64_t i = 0; i < HASH_BLOCKS; i++) {
        int64_t at = last / (HASH_BLOCKS - 1) * i; /* no product above n */
        mc_hasher_add(h, p + (i == HASH_BLOCKS - 1 ? last : at), HASH_BLOCK);
    }
}

static void hash_count(struct mc_hasher *h, int64_t v)
{
    unsigned char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)((uint64_t)v >> 8 * i);
    mc_hasher_add(h, b, sizeof b);
}

static mc_status hash_source(struct mc_source *s, struct mc_err *err)
{
    struct mc_hasher *h = mc_hasher_create();
    if (!h)
        return mc_err_set(err, MC_E_NOMEM, "no memory to hash %s", s->path);
    hash_count(h, s->kind);
    hash_count(h, s->tokens);
    hash_count(h, s->documents);
    if (s->kind == MC_SOURCE_PACKED) {
        struct mc_indexed_view v;
        mc_indexed_bytes(s->indexed, &v);
        hash_count(h, v.bin_bytes);
        hash_span(h, v.idx, v.idx_bytes, 1);
        hash_span(h, v.bin, v.bin_bytes, v.bin_bytes <= HASH_WHOLE);
    }
    for (int i = 0; i < s->nfiles; i++) {
        hash_count(h, s->file[i].map.bytes);
        hash_span(h, s->file[i].map.data, s->file[i].map.bytes, s->tokens <= HASH_WHOLE);
    }
    s->hash = mc_hasher_value(h);
    mc_hasher_destroy(h);
    return MC_OK;
}

/* I4 */
static mc_status plain_only(const struct mc_files *f, struct mc_err *err)
{
    for (int i = 0; i < f->n; i++)
        if (mc_stream_packed(f->path[i]) || mc_pack_is_jsonl(f->path[i]))
            return mc_err_set(err, MC_E_RECIPE,
                              "%s: %s is not read as it is: pack it first (mascon data pack), or "
                              "give it another name if its bytes are meant",
                              f->path[i],
                              mc_stream_packed(f->path[i]) ? "a compressed file" : "JSONL");
    return MC_OK;
}

static mc_status open_text(struct mc_source *s, struct mc_err *err)
{
    struct mc_files f;
    MC_TRY(mc_source_files(s->path, &f, err));
    mc_status st;
    MC_TRY_GOTO(st, plain_only(&f, err), out);
    if (f.n > MC_SOURCE_MAX_MAPPED) {
        st = mc_err_set(
            err, MC_E_RECIPE,
            "%s: %d files, at most %d are read as they are; pack them first: mascon data "
            "pack",
            s->path, f.n, MC_SOURCE_MAX_MAPPED);
        goto out;
    }
    s->file = mc_alloc((size_t)f.n * sizeof *s->file, "text files");
    if (!s->file) {
        st = mc_err_set(err, MC_E_NOMEM, "%s: no memory for a list of %d files", s->path, f.n);
        goto out;
    }
    for (int i = 0; i < f.n; i++) {
        MC_TRY_GOTO(st, mc_sys_map_ro(f.path[i], &s->file[i].map, err), out);
        s->nfiles = i + 1;
        s->file[i].start = s->tokens;
        s->tokens += s->file[i].map.bytes + 1; /* I2: EOS */
    }
    s->documents = f.n;
    s->is_bytes = 1;
out:
    mc_source_files_fini(&f);
    return st;
}

/* The three files are of one packing, as far as sizes and counts tell. */
static mc_status sidecar_agrees(const struct mc_source *s, const char *prefix,
                                const struct mc_sidecar *sc, struct mc_err *err)
{
    struct mc_indexed_view v;
    mc_indexed_bytes(s->indexed, &v);
    const struct {
        const char *what;
        int64_t is, said;
    } pair[] = {{"bytes in .bin", v.bin_bytes, sc->bin_bytes},
                {"bytes in .idx", v.idx_bytes, sc->idx_bytes},
                {"tokens", s->tokens, sc->tokens},
                {"documents", s->documents, sc->documents}};
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        if (pair[i].is != pair[i].said)
            return mc_err_set(err, MC_E_FORMAT,
                              "%s: %lld %s, but %s.json says %lld: damaged, or files of different "
                              "packings under one name",
                              prefix, (long long)pair[i].is, pair[i].what, prefix,
                              (long long)pair[i].said);
    return MC_OK;
}

static mc_status open_packed(struct mc_source *s, const char *prefix, struct mc_err *err)
{
    MC_TRY(mc_indexed_open(prefix, &s->indexed, err));
    s->tokens = mc_indexed_tokens(s->indexed);
    s->documents = mc_indexed_documents(s->indexed);
    struct mc_sidecar sc;
    if (mc_sidecar_read(prefix, &sc, NULL) == MC_OK) { /* a foreign .json is not our concern here */
        mc_status st = sidecar_agrees(s, prefix, &sc, err);
        if (st != MC_OK) {
            mc_sidecar_fini(&sc);
            return st;
        }
        s->is_bytes = !strcmp(sc.tokenizer, "bytes");
        s->max_id = sc.max_id;
        s->tokenizer_hash = sc.tokenizer_hash;
        memcpy(s->tokenizer, sc.tokenizer, sizeof s->tokenizer);
        mc_sidecar_fini(&sc);
    }
    return MC_OK;
}

mc_status mc_source_expect(struct mc_source *s, struct mc_err *err)
{
    enum mc_source_kind kind;
    char prefix[MC_PATH];
    struct mc_sidecar sc;
    if (s->kind != MC_SOURCE_PACKED)
        return MC_OK;
    MC_TRY(mc_source_classify(s->path, &kind, prefix, err));
    if (mc_sidecar_read(prefix, &sc, NULL) != MC_OK)
        return MC_OK;
    mc_status st = mc_indexed_expect(s->indexed, &sc, err);
    mc_sidecar_fini(&sc);
    return st;
}

mc_status mc_source_open(const char *path, struct mc_source **s, struct mc_err *err)
{
    enum mc_source_kind kind;
    char prefix[MC_PATH];
    MC_TRY(mc_source_classify(path, &kind, prefix, err));
    struct mc_source *y = mc_alloc(sizeof *y, "data source");
    if (!y)
        return mc_err_set(err, MC_E_NOMEM, "no memory to open %s", path);
    y->kind = kind;
    y->max_id = -1;
    memcpy(y->path, path, strlen(path) + 1);
    mc_status st = kind == MC_SOURCE_TEXT ? open_text(y, err) : open_packed(y, prefix, err);
    if (st == MC_OK)
        st = hash_source(y, err);
    if (st != MC_OK) {
        mc_source_close(y);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    *s = y;
    return MC_OK;
}

void mc_source_close(struct mc_source *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->nfiles; i++)
        mc_sys_unmap(&s->file[i].map);
    mc_free(s->file);
    mc_indexed_close(s->indexed);
    mc_free(s);
}

enum mc_source_kind mc_source_kind(const struct mc_source *s)
{
    return s->kind;
}

int64_t mc_source_tokens(const struct mc_source *s)
{
    return s->tokens;
}

int64_t mc_source_documents(const struct mc_source *s)
{
    return s->documents;
}

uint64_t mc_source_hash(const struct mc_source *s)
{
    return s->hash;
}

int64_t mc_source_max_id(const struct mc_source *s)
{
    return s->max_id;
}

const struct mc_indexed *mc_source_indexed(const struct mc_source *s)
{
    return s->indexed;
}

int mc_source_is_bytes(const struct mc_source *s)
{
    return s->is_bytes;
}

uint64_t mc_source_tokenizer(const struct mc_source *s, const char **name)
{
    *name = s->tokenizer;
    return s->tokenizer_hash;
}

/* ---- read ---- */

mc_status mc_source_read(const struct mc_source *s, int64_t pos, int64_t n, int32_t *out,
                         struct mc_err *err)
{
    if (s->kind == MC_SOURCE_PACKED)
        return mc_indexed_read(s->indexed, pos, n, out, err);
    if (pos < 0 || n < 0 || pos > s->tokens || n > s->tokens - pos)
        return mc_err_set(err, MC_E_FORMAT, "%s: tokens %lld + %lld asked for, the stream has %lld",
                          s->path, (long long)pos, (long long)n, (long long)s->tokens);
    int lo = 0, hi = s->nfiles - 1; /* I2: last file that starts at or before pos */
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        if (s->file[mid].start <= pos)
            lo = mid;
        else
            hi = mid - 1;
    }
    int64_t off = pos - s->file[lo].start;
    for (int64_t done = 0; done < n; lo++, off = 0) {
        const struct mc_map *m = &s->file[lo].map;
        for (; off < m->bytes && done < n; off++)
            out[done++] = m->data[off];
        if (done < n)
            out[done++] = MC_BYTES_EOS;
    }
    return MC_OK;
}
