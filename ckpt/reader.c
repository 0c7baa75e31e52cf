/* reader.c - open, load, verify, show: nothing is believed that a checksum does not confirm.
 *
 * Floor 5 (ckpt).
 * I1  Open proves the structure (manifest.c) and that every file is there with its size; it reads
 *     no data.
 * I2  Load compares names, dtypes, shapes and cover of all tensors before it writes the first byte
 *     to any of them.
 * I3  A byte reaches the caller only out of a chunk whose stored and raw checksums hold. What load
 *     has filled before it meets damage is whole chunks, but the set is useless: fall back.
 * I4  Verify reads every byte of every file: header, chunks and the zeros between.
 * I5  "Damaged" is said of bytes only: no memory, or a disk that does not answer, keep their code.
 * Memory: the manifest, and two chunk buffers made at the first read; handle life.
 * Threads: a handle belongs to one thread at a time. */
#include "ckpt_int.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include "../core/base/arena.h"
#include "../core/base/hash.h"
#include "../core/base/sysio.h"

struct mc_ckpt {
    struct mc_manifest m;
    const struct mc_store_ops *store;
    char path[MC_CKPT_PATH];
    uint64_t digest;           /* of the manifest's text, and so of all that it vouches for */
    struct mc_store_file file; /* the one open data file */
    int file_index;            /* -1: none */
    unsigned char *stored, *raw;
    ZSTD_DCtx *zstd;
};

void mc_ckpt_close(struct mc_ckpt *c)
{
    if (!c)
        return;
    c->store->close(&c->file);
    ZSTD_freeDCtx(c->zstd);
    mc_free(c->stored);
    mc_free(c->raw);
    mc_manifest_fini(&c->m);
    mc_free(c);
}

static mc_status data_path(const struct mc_ckpt *c, int file, char path[MC_CKPT_PATH],
                           struct mc_err *err)
{
    char name[32];
    snprintf(name, sizeof name, "data-%05d.mcd", file);
    return mc_path_join(path, MC_CKPT_PATH, c->path, name, err);
}

static mc_status check_sizes(const struct mc_ckpt *c, struct mc_err *err)
{
    char path[MC_CKPT_PATH];
    for (int i = 0; i < c->m.nfiles; i++) {
        int64_t bytes;
        struct mc_err e = {0};
        MC_TRY(data_path(c, i, path, err));
        mc_status st = c->store->size(path, &bytes, &e);
        if (st == MC_E_NOTFOUND)
            return mc_err_set(err, MC_E_CORRUPT, "%s: missing, but the manifest lists it", path);
        if (st != MC_OK) {
            mc_err_set(err, st, "%s", e.msg);
            if (err)
                err->sys_errno = e.sys_errno;
            return st;
        }
        if (bytes != c->m.file_bytes[i])
            return mc_err_set(err, MC_E_CORRUPT, "%s: %lld bytes; the manifest says %lld", path,
                              (long long)bytes, (long long)c->m.file_bytes[i]);
    }
    return MC_OK;
}

mc_status mc_ckpt_open(const char *path, struct mc_ckpt **out, struct mc_err *err)
{
    char *text = NULL, where[MC_CKPT_PATH];
    size_t n;
    mc_status st;
    MC_TRY(mc_path_join(where, sizeof where, path, "manifest.json", err));
    struct mc_ckpt *c = mc_alloc(sizeof *c, "checkpoint");
    if (!c)
        return mc_err_set(err, MC_E_NOMEM, "%s: no memory to open it", path);
    c->store = &mc_store_posix;
    c->file.fd = c->file_index = -1;
    snprintf(c->path, sizeof c->path, "%s", path);
    MC_TRY_GOTO(st, c->store->manifest(path, &text, &n, err), fail);
    MC_TRY_GOTO(st, mc_manifest_read(text, n, where, &c->m, err), fail);
    c->digest = mc_hash64(text, n);
    mc_free(text);
    text = NULL;
    MC_TRY_GOTO(st, check_sizes(c, err), fail); /* I1 */
    *out = c;
    return MC_OK;
fail:
    mc_free(text);
    mc_ckpt_close(c);
    if (st == MC_E_FORMAT) { /* too large to be a manifest: here that is damage */
        st = MC_E_CORRUPT;
        if (err)
            err->code = st;
    }
    return st;
}

const char *mc_ckpt_books(const struct mc_ckpt *c)
{
    return c->m.books;
}

int64_t mc_ckpt_step(const struct mc_ckpt *c)
{
    return c->m.step;
}

int mc_ckpt_epoch(const struct mc_ckpt *c)
{
    return c->m.epoch;
}

int mc_ckpt_ntensors(const struct mc_ckpt *c)
{
    return (int)c->m.ntensors;
}

mc_status mc_ckpt_tensor(const struct mc_ckpt *c, int i, struct mc_state_tensor *t)
{
    if (i < 0 || i >= c->m.ntensors)
        return MC_E_NOTFOUND;
    const struct mc_stored_tensor *x = &c->m.tensor[i];
    struct mc_state_tensor r = {.dtype = x->dtype, .shape = x->shape};
    memcpy(r.name, x->name, sizeof r.name);
    r.box = mc_box_whole(&r.shape);
    *t = r;
    return MC_OK;
}

/* ---- one chunk ---------------------------------------------------------------------------- */

static int all_zero(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return 0;
    return 1;
}

/* A read that fails names the tensor too: sysio knows only the file. */
static mc_status read_at(struct mc_ckpt *c, int64_t off, size_t n, const char *tensor,
                         struct mc_err *err)
{
    struct mc_err e = {0};
    mc_status st = c->store->read(&c->file, off, c->stored, n, &e);
    if (st == MC_OK)
        return MC_OK;
    mc_err_set(err, st, "%s (offset %lld%s%s)", e.msg, (long long)off, tensor ? ", tensor " : "",
               tensor ? tensor : "");
    if (err && err->sys_errno == 0)
        err->sys_errno = e.sys_errno;
    return st;
}

static mc_status use_file(struct mc_ckpt *c, int file, int cold, struct mc_err *err)
{
    unsigned char want[MC_CKPT_HEADER];
    char path[MC_CKPT_PATH];
    if (c->file_index == file)
        return MC_OK;
    if (!c->stored) {
        c->stored = mc_alloc(MC_CKPT_CHUNK + MC_CKPT_ALIGN, "checkpoint buffer");
        c->raw = mc_alloc(MC_CKPT_CHUNK, "checkpoint buffer");
        c->zstd = ZSTD_createDCtx();
        if (!c->stored || !c->raw || !c->zstd) {
            mc_free(c->stored);
            mc_free(c->raw);
            ZSTD_freeDCtx(c->zstd);
            c->stored = c->raw = NULL;
            c->zstd = NULL;
            return mc_err_set(err, MC_E_NOMEM, "%s: no memory to read it (%d MiB)", c->path,
                              2 * MC_CKPT_CHUNK >> 20);
        }
    }
    c->store->close(&c->file);
    c->file_index = -1;
    MC_TRY(data_path(c, file, path, err));
    MC_TRY(c->store->open(path, cold, &c->file, err));
    MC_TRY(read_at(c, 0, MC_CKPT_HEADER, NULL, err));
    mc_data_header(want, c->m.step, c->m.epoch, file);
    if (memcmp(c->stored, want, MC_CKPT_HEADER))
        return mc_err_set(
            err, MC_E_CORRUPT,
            "%s: damaged at offset 0: its header is not that of writer %d at step %lld, "
            "epoch %d",
            path, file, (long long)c->m.step, c->m.epoch);
    c->file_index = file;
    return MC_OK;
}

/* The chunk's raw bytes, proven (I3); good until the next call. */
static mc_status read_chunk(struct mc_ckpt *c, const struct mc_stored_tensor *t, int file,
                            const struct mc_chunk *k, int cold, const unsigned char **bytes,
                            struct mc_err *err)
{
    const char *why = NULL;
    size_t n = k->stored_bytes, padded = mc_align_up(n, MC_CKPT_ALIGN);
    MC_TRY(use_file(c, file, cold, err));
    MC_TRY(read_at(c, k->off, padded, t->name, err));
    const unsigned char *raw = c->stored;
    if (mc_hash64(c->stored, n) != k->stored_hash) {
        why = "its bytes do not match their checksum";
    } else if (!all_zero(c->stored + n, padded - n)) {
        why = "the bytes behind it are not zero";
    } else if (k->codec == MC_CODEC_ZSTD) {
        size_t got = ZSTD_decompressDCtx(c->zstd, c->raw, MC_CKPT_CHUNK, c->stored, n);
        raw = c->raw;
        if (ZSTD_isError(got) || got != k->raw_bytes)
            why = "it does not decompress";
        else if (mc_hash64(c->raw, got) != k->raw_hash)
            why = "what it decompresses to does not match its checksum";
    }
    if (why)
        return mc_err_set(err, MC_E_CORRUPT,
                          "%s: damaged at offset %lld (%zu bytes of tensor %s): %s", c->file.path,
                          (long long)k->off, n, t->name, why);
    *bytes = raw;
    return MC_OK;
}

/* ---- load --------------------------------------------------------------------------------- */

static mc_status check_asked(const struct mc_ckpt *c, const struct mc_state_tensor *t,
                             struct mc_err *err)
{
    char a[128], b[128];
    int64_t i = mc_manifest_find(&c->m, t->name);
    if (i < 0)
        return mc_err_set(
            err, MC_E_RECIPE,
            "%s: holds no tensor %s, which this run needs: the checkpoint is of another "
            "model",
            c->path, t->name);
    const struct mc_stored_tensor *x = &c->m.tensor[i];
    if (x->dtype != t->dtype)
        return mc_err_set(err, MC_E_RECIPE,
                          "%s: tensor %s is stored as %s, but this run has it as %s", c->path,
                          t->name, mc_dtype_name(x->dtype), mc_dtype_name(t->dtype));
    if (!mc_shape_eq(&x->shape, &t->shape)) {
        mc_shape_print(&x->shape, a, sizeof a);
        mc_shape_print(&t->shape, b, sizeof b);
        return mc_err_set(err, MC_E_RECIPE,
                          "%s: tensor %s is stored with shape %s, but this run has %s", c->path,
                          t->name, a, b);
    }
    if (!mc_box_valid(&t->box, &t->shape))
        return mc_err_set(err, MC_E_BUG, "load: tensor %s: its box is not inside its shape",
                          t->name);
    return MC_OK;
}

static int by_name(const void *pa, const void *pb)
{
    const struct mc_state_tensor *a = *(const struct mc_state_tensor *const *)pa;
    const struct mc_state_tensor *b = *(const struct mc_state_tensor *const *)pb;
    return strcmp(a->name, b->name);
}

/* all: the boxes asked for, together, consume every stored element exactly once. */
static mc_status check_all(const struct mc_ckpt *c, const struct mc_state_tensor *t, int n,
                           struct mc_err *err)
{
    const struct mc_state_tensor **s = mc_alloc(((size_t)n + 1) * sizeof *s, "load plan");
    struct mc_box *cover = mc_alloc(((size_t)n + 1) * sizeof *cover, "load plan");
    struct mc_err e = {0};
    mc_status st = MC_OK;
    int at = 0;
    if (!s || !cover)
        st = mc_err_set(err, MC_E_NOMEM, "load: no memory for the plan of %d tensors", n);
    for (int i = 0; i < n && st == MC_OK; i++)
        s[i] = &t[i];
    if (st == MC_OK && n > 1)
        qsort(s, (size_t)n, sizeof *s, by_name);
    for (int64_t i = 0; i < c->m.ntensors && st == MC_OK; i++) {
        const struct mc_stored_tensor *x = &c->m.tensor[i];
        int boxes = 0;
        for (; at < n && !strcmp(s[at]->name, x->name); at++) /* all names are known: I2 */
            cover[boxes++] = s[at]->box;
        if (boxes == 0)
            st = mc_err_set(
                err, MC_E_RECIPE,
                "%s: holds tensor %s, which this run does not have: the checkpoint is of "
                "another model",
                c->path, x->name);
        else
            st = mc_box_cover(cover, boxes, &x->shape, "load", x->name, &e);
        if (e.code) /* the caller's boxes: no older checkpoint will help */
            st = mc_err_set(err, MC_E_BUG, "%s", e.msg);
    }
    mc_free(s);
    mc_free(cover);
    return st;
}

static mc_status load_box(struct mc_ckpt *c, const struct mc_stored_tensor *x,
                          const struct mc_stored_box *b, const struct mc_state_tensor *t,
                          struct mc_err *err)
{
    struct mc_box meet;
    size_t elem = mc_dtype_size(x->dtype);
    int64_t first = 0;
    int64_t row = b->box.nd > 0 ? mc_box_count(&b->box) / b->box.n[0] : 1;
    if (!mc_box_meet(&b->box, &t->box, &meet))
        return MC_OK;
    for (int64_t k = b->first_chunk; k < b->first_chunk + b->nchunks; k++) {
        const struct mc_chunk *ch = &c->m.chunk[k];
        const unsigned char *bytes;
        int64_t count = (int64_t)(ch->raw_bytes / elem);
        /* Rows of the tensor that the chunk holds: none of ours, nothing to read. */
        int64_t r0 = b->box.nd > 0 ? b->box.lo[0] + first / row : 0;
        int64_t r1 = b->box.nd > 0 ? b->box.lo[0] + (first + count - 1) / row : 0;
        if (b->box.nd == 0 || (r1 >= meet.lo[0] && r0 < meet.lo[0] + meet.n[0])) {
            MC_TRY(read_chunk(c, x, b->file, ch, 0, &bytes, err));
            mc_box_copy(t->data, &t->box, bytes, &b->box, first, count, elem);
        }
        first += count;
    }
    return MC_OK;
}

mc_status mc_ckpt_fits(const struct mc_ckpt *c, const struct mc_state_tensor *t, int n, int all,
                       struct mc_err *err)
{
    for (int i = 0; i < n; i++)
        MC_TRY(check_asked(c, &t[i], err));
    return all ? check_all(c, t, n, err) : MC_OK;
}

mc_status mc_ckpt_load(struct mc_ckpt *c, const struct mc_state_tensor *t, int n, int all,
                       struct mc_err *err)
{
    MC_TRY(mc_ckpt_fits(c, t, n, all, err)); /* I2 */
    for (int i = 0; i < n; i++) {
        if (!t[i].data)
            return mc_err_set(err, MC_E_BUG, "load: tensor %s has no memory", t[i].name);
        const struct mc_stored_tensor *x = &c->m.tensor[mc_manifest_find(&c->m, t[i].name)];
        for (int64_t b = x->first_box; b < x->first_box + x->nboxes; b++)
            MC_TRY(load_box(c, x, &c->m.box[b], &t[i], err));
    }
    return MC_OK;
}

/* ---- verify, show ------------------------------------------------------------------------- */

mc_status mc_ckpt_verify(struct mc_ckpt *c, void (*progress)(void *, int64_t, int64_t), void *arg,
                         struct mc_err *err)
{
    int64_t done = 0, all = 0;
    const unsigned char *bytes;
    for (int i = 0; i < c->m.nfiles; i++)
        all += c->m.file_bytes[i];
    MC_TRY(check_sizes(c, err));
    c->store->close(&c->file); /* opened anew, cold: what a cache remembers proves little */
    c->file_index = -1;
    for (int i = 0; i < c->m.nfiles; i++) { /* headers, also of a file without chunks: I4 */
        MC_TRY(use_file(c, i, 1, err));
        done += MC_CKPT_HEADER;
    }
    for (int64_t i = 0; i < c->m.ntensors; i++) {
        const struct mc_stored_tensor *t = &c->m.tensor[i];
        for (int64_t b = t->first_box; b < t->first_box + t->nboxes; b++) {
            const struct mc_stored_box *x = &c->m.box[b];
            for (int64_t k = x->first_chunk; k < x->first_chunk + x->nchunks; k++) {
                MC_TRY(read_chunk(c, t, x->file, &c->m.chunk[k], 1, &bytes, err));
                done += (int64_t)mc_align_up(c->m.chunk[k].stored_bytes, MC_CKPT_ALIGN);
                if (progress)
                    progress(arg, done, all);
            }
        }
    }
    return MC_OK;
}

void mc_ckpt_measure(const struct mc_ckpt *c, int64_t *bytes, double *unix_time)
{
    *bytes = 0;
    for (int i = 0; i < c->m.nfiles; i++)
        *bytes += c->m.file_bytes[i];
    *unix_time = c->m.unix_time;
}

uint64_t mc_ckpt_digest(const struct mc_ckpt *c)
{
    return c->digest;
}

void mc_ckpt_show(const struct mc_ckpt *c, struct mc_json *j)
{
    const struct mc_manifest *m = &c->m;
    int64_t bytes, raw = 0, stored = 0;
    double unix_time;
    mc_ckpt_measure(c, &bytes, &unix_time);
    for (int64_t k = 0; k < m->nchunks; k++) {
        raw += m->chunk[k].raw_bytes;
        stored += m->chunk[k].stored_bytes;
    }
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "path", c->path);
    mc_json_i64(j, "step", m->step);
    mc_json_i64(j, "epoch", m->epoch);
    mc_json_f64(j, "time", unix_time);
    mc_json_str(j, "weights_hash", m->weights_hash[0] ? m->weights_hash : NULL);
    mc_json_i64(j, "bytes", bytes);
    mc_json_i64(j, "raw_bytes", raw);
    mc_json_i64(j, "stored_bytes", stored);
    mc_manifest_write_files(m, j);
    mc_json_open(j, "tensors", '[');
    for (int64_t i = 0; i < m->ntensors; i++) {
        const struct mc_stored_tensor *t = &m->tensor[i];
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "name", t->name);
        mc_json_str(j, "dtype", mc_dtype_name(t->dtype));
        mc_json_open(j, "shape", '[');
        for (int d = 0; d < t->shape.nd; d++)
            mc_json_i64(j, NULL, t->shape.dim[d]);
        mc_json_close(j, ']');
        mc_json_i64(j, "boxes", t->nboxes);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
    mc_json_raw(j, "books", m->books);
    mc_json_close(j, '}');
}
