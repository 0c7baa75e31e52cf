/* table.c - what one writer of a checkpoint tells the writer of the manifest: its boxes and where
 * their chunks lie; and all such tables made one manifest.
 *
 * Floor 5 (ckpt). Bytes that cross from rank to rank, little-endian, without gaps:
 *
 *   offset  size  meaning
 *        0     8  "MCTABLE\1"
 *        8     4  version, 1
 *       12     4  writer: its file is data-<writer, five digits>.mcd
 *       16     8  step
 *       24     4  epoch
 *       28     4  zero
 *       32     8  bytes of the data file
 *       40     8  boxes
 *       48     8  chunks
 *       56     8  XXH3 of all other bytes of the table: [0, 56), then [64, end)
 *       64   216  a box, `boxes` times, ascending by tensor name:
 *                   0  112  tensor name, zeros behind it
 *                 112    4  dtype (core/tensor/dtype.h)
 *                 116    4  dimensions
 *                 120   32  shape, 4 x i64, unused ones zero
 *                 152   32  lo
 *                 184   32  n
 *      ...     8  for each box, its number of chunks
 *      ...    40  a chunk, `chunks` times, in the order of their boxes:
 *                   0    8  offset in the file
 *                   8    4  stored bytes       12  4  raw bytes
 *                  16    8  raw XXH3           24  8  stored XXH3
 *                  32    4  0 raw, 1 zstd      36  4  zero
 *
 * I1  Nothing in a table is believed: sizes are counted against the bytes that are there before
 *     anything is allocated, every member has its range. It is fuzzed behind its checksum.
 * I2  A table of another step, epoch or writer is refused: no zombie's boxes enter a manifest.
 * I3  In the merged manifest the boxes of a tensor come by writer and then in the writer's order,
 *     so that each file's chunks ascend (manifest.c I4). That they cover every tensor exactly once
 *     is the manifest's check, not this file's.
 * Memory: what is returned belongs to the caller. Threads: any. */
#include "ckpt_int.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../core/base/arena.h"
#include "../core/base/hash.h"

enum { HEAD = 64, BOX = 216, COUNT = 8, CHUNK = 40, NAME = 112, VERSION = 1 };
_Static_assert(sizeof((struct mc_stored_tensor *)0)->name == NAME, "the format's names");

/* ---- bytes ---- */

static void put32(unsigned char *p, uint32_t v)
{
    memcpy(p, &v, 4); /* little-endian, as the data files (writer.c) */
}

static void put64(unsigned char *p, uint64_t v)
{
    memcpy(p, &v, 8);
}

static uint32_t get32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static int64_t get64(const unsigned char *p)
{
    int64_t v;
    memcpy(&v, p, 8);
    return v;
}

static uint64_t checksum(const unsigned char *p, size_t n)
{
    return mc_hash64(p, 56) ^ mc_mix64(mc_hash64(p + HEAD, n - HEAD));
}

/* ---- writing ---- */

mc_status mc_table_write(const struct mc_manifest *part, int writer, void **out, size_t *bytes,
                         struct mc_err *err)
{
    size_t n = HEAD + (size_t)part->nboxes * (BOX + COUNT) + (size_t)part->nchunks * CHUNK;
    unsigned char *all = mc_alloc(n, "table of chunks"), *p = all + HEAD; /* zeroed */
    if (!all)
        return mc_err_set(err, MC_E_NOMEM, "save: no memory for a table of %zu bytes", n);
    memcpy(all, "MCTABLE\1", 8);
    put32(all + 8, VERSION);
    put32(all + 12, (uint32_t)writer);
    put64(all + 16, (uint64_t)part->step);
    put32(all + 24, (uint32_t)part->epoch);
    put64(all + 32, (uint64_t)part->file_bytes[0]);
    put64(all + 40, (uint64_t)part->nboxes);
    put64(all + 48, (uint64_t)part->nchunks);
    for (int64_t t = 0; t < part->ntensors; t++) {
        const struct mc_stored_tensor *x = &part->tensor[t];
        for (int64_t b = x->first_box; b < x->first_box + x->nboxes; b++, p += BOX) {
            memcpy(p, x->name, strlen(x->name));
            put32(p + 112, (uint32_t)x->dtype);
            put32(p + 116, (uint32_t)x->shape.nd);
            for (int d = 0; d < x->shape.nd; d++) {
                put64(p + 120 + 8 * d, (uint64_t)x->shape.dim[d]);
                put64(p + 152 + 8 * d, (uint64_t)part->box[b].box.lo[d]);
                put64(p + 184 + 8 * d, (uint64_t)part->box[b].box.n[d]);
            }
        }
    }
    for (int64_t b = 0; b < part->nboxes; b++, p += COUNT)
        put64(p, (uint64_t)part->box[b].nchunks);
    for (int64_t k = 0; k < part->nchunks; k++, p += CHUNK) {
        const struct mc_chunk *c = &part->chunk[k];
        put64(p, (uint64_t)c->off);
        put32(p + 8, c->stored_bytes);
        put32(p + 12, c->raw_bytes);
        put64(p + 16, c->raw_hash);
        put64(p + 24, c->stored_hash);
        put32(p + 32, c->codec == MC_CODEC_ZSTD);
    }
    MC_ASSERT(p == all + n);
    put64(all + 56, checksum(all, n));
    *out = all;
    *bytes = n;
    return MC_OK;
}

/* ---- reading ---- */

static mc_status bad(int writer, const char *what, struct mc_err *err)
{
    return mc_err_set(err, MC_E_PEER, "save: the table of writer %d is damaged or not a table: %s",
                      writer, what);
}

static int zeros(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return 0;
    return 1;
}

static const char *read_box(const unsigned char *p, struct mc_stored_tensor *t, struct mc_box *b)
{
    const unsigned char *end = memchr(p, 0, NAME);
    if (!end || end == p || !zeros(end, NAME - (size_t)(end - p)))
        return "a tensor's name";
    for (const unsigned char *c = p; c < end; c++)
        if (*c < 0x20 || *c > 0x7e)
            return "a tensor's name";
    memcpy(t->name, p, NAME);
    uint32_t dtype = get32(p + 112), nd = get32(p + 116);
    if (dtype >= MC_NDTYPES || nd > MC_MAX_DIMS)
        return "a dtype or a number of dimensions";
    t->dtype = (enum mc_dtype)dtype;
    t->shape.nd = b->nd = (int)nd;
    for (uint32_t d = 0; d < MC_MAX_DIMS; d++) {
        int64_t dim = get64(p + 120 + 8 * d), lo = get64(p + 152 + 8 * d),
                n = get64(p + 184 + 8 * d);
        if (d < nd) {
            t->shape.dim[d] = dim;
            b->lo[d] = lo;
            b->n[d] = n;
        } else if (dim || lo || n) {
            return "an unused dimension";
        }
    }
    int64_t count = mc_shape_count(&t->shape);
    return count < 1 || count > INT64_MAX / 16 || !mc_box_valid(b, &t->shape)
               ? "a box outside its tensor"
               : NULL;
}

static const char *read_chunk(const unsigned char *p, struct mc_chunk *c)
{
    uint32_t codec = get32(p + 32);
    c->off = get64(p);
    c->stored_bytes = get32(p + 8);
    c->raw_bytes = get32(p + 12);
    memcpy(&c->raw_hash, p + 16, 8);
    memcpy(&c->stored_hash, p + 24, 8);
    c->codec = codec ? MC_CODEC_ZSTD : MC_CODEC_RAW;
    if (codec > 1 || get32(p + 36) || c->off < MC_CKPT_HEADER || c->off > INT64_MAX / 2 ||
        c->stored_bytes < 1 || c->stored_bytes > MC_CKPT_CHUNK || c->raw_bytes < 1 ||
        c->raw_bytes > MC_CKPT_CHUNK)
        return "a chunk's members are out of their ranges";
    if (codec ? c->stored_bytes >= c->raw_bytes
              : c->stored_bytes != c->raw_bytes || c->raw_hash != c->stored_hash)
        return "a chunk's sizes or hashes contradict its codec";
    return NULL;
}

/* Boxes and chunks, whose arrays are there. Boxes of one tensor stand together. */
static const char *read_body(const unsigned char *p, struct mc_manifest *m)
{
    const unsigned char *counts = p + m->nboxes * BOX, *chunks = counts + m->nboxes * COUNT;
    int64_t next = 0;
    const char *why;
    for (int64_t i = 0; i < m->nboxes; i++) {
        struct mc_stored_tensor t = {.first_box = i};
        struct mc_stored_box *b = &m->box[i];
        if ((why = read_box(p + i * BOX, &t, &b->box)))
            return why;
        struct mc_stored_tensor *last = m->ntensors ? &m->tensor[m->ntensors - 1] : NULL;
        int order = last ? strcmp(last->name, t.name) : -1;
        if (order > 0 ||
            (order == 0 && (last->dtype != t.dtype || !mc_shape_eq(&last->shape, &t.shape))))
            return "its tensors are not ascending by name, or one has two shapes";
        if (order < 0) {
            last = &m->tensor[m->ntensors++];
            *last = t;
        }
        last->nboxes++;
        b->first_chunk = next;
        b->nchunks = get64(counts + i * COUNT);
        if (b->nchunks < 1 || b->nchunks > m->nchunks - next)
            return "a box's number of chunks";
        next += b->nchunks;
    }
    if (next != m->nchunks)
        return "chunks that belong to no box";
    for (int64_t k = 0; k < m->nchunks; k++)
        if ((why = read_chunk(chunks + k * CHUNK, &m->chunk[k])))
            return why;
    return NULL;
}

mc_status mc_table_read(const void *bytes, size_t n, int writer, struct mc_manifest *part,
                        struct mc_err *err)
{
    const unsigned char *p = bytes;
    if (n < HEAD || memcmp(p, "MCTABLE\1", 8) || get32(p + 8) != VERSION)
        return bad(writer, "its head", err);
    if ((uint64_t)get64(p + 56) != checksum(p, n))
        return bad(writer, "its bytes do not match their checksum", err);
    struct mc_manifest m = {.nfiles = 1, .nboxes = get64(p + 40), .nchunks = get64(p + 48)};
    size_t room = n - HEAD; /* I1 */
    if (m.nboxes < 0 || m.nchunks < 0 || (uint64_t)m.nboxes > room / (BOX + COUNT) ||
        (uint64_t)m.nchunks > room / CHUNK ||
        (size_t)m.nboxes * (BOX + COUNT) + (size_t)m.nchunks * CHUNK != room)
        return bad(writer, "its size is not that of its boxes and chunks", err);
    m.step = get64(p + 16);
    uint32_t epoch = get32(p + 24);
    m.epoch = epoch <= INT32_MAX ? (int)epoch : -1;
    if (get32(p + 12) != (uint32_t)writer || m.step < 0 || m.epoch < 0 || get32(p + 28))
        return bad(writer, "its writer, step or epoch", err);
    m.file_bytes = mc_alloc(sizeof *m.file_bytes, "table of chunks");
    m.tensor = mc_alloc(((size_t)m.nboxes + 1) * sizeof *m.tensor, "table of chunks");
    m.box = mc_alloc(((size_t)m.nboxes + 1) * sizeof *m.box, "table of chunks");
    m.chunk = mc_alloc(((size_t)m.nchunks + 1) * sizeof *m.chunk, "table of chunks");
    mc_status st = MC_OK;
    if (!m.file_bytes || !m.tensor || !m.box || !m.chunk) {
        st = mc_err_set(err, MC_E_NOMEM, "save: no memory for the table of writer %d", writer);
    } else {
        m.file_bytes[0] = get64(p + 32);
        const char *why = m.file_bytes[0] < MC_CKPT_HEADER || m.file_bytes[0] > INT64_MAX / 2
                              ? "the size of its file"
                              : read_body(p + HEAD, &m);
        if (why)
            st = bad(writer, why, err);
    }
    if (st == MC_OK)
        *part = m;
    else
        mc_manifest_fini(&m);
    return st;
}

/* ---- all tables, one manifest ---- */

struct entry {
    const struct mc_stored_tensor *t;
    const struct mc_manifest *from;
    int writer;
};

static int by_name(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;
    int c = strcmp(a->t->name, b->t->name);
    return c ? c : a->writer - b->writer; /* I3 */
}

static mc_status join(const struct entry *e, size_t n, struct mc_manifest *m, struct mc_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct mc_stored_tensor *t = e[i].t;
        struct mc_stored_tensor *x = m->ntensors ? &m->tensor[m->ntensors - 1] : NULL;
        if (!x || strcmp(x->name, t->name)) {
            x = &m->tensor[m->ntensors++];
            *x = *t;
            x->first_box = m->nboxes;
            x->nboxes = 0;
        } else if (x->dtype != t->dtype || !mc_shape_eq(&x->shape, &t->shape)) {
            return mc_err_set(err, MC_E_BUG,
                              "save: writer %d has tensor %s in another dtype or shape than the "
                              "writers before it",
                              e[i].writer, t->name);
        }
        x->nboxes += t->nboxes;
        for (int64_t b = t->first_box; b < t->first_box + t->nboxes; b++) {
            const struct mc_stored_box *from = &e[i].from->box[b];
            struct mc_stored_box *to = &m->box[m->nboxes++];
            *to = *from;
            to->file = e[i].writer;
            to->first_chunk = m->nchunks;
            memcpy(m->chunk + m->nchunks, e[i].from->chunk + from->first_chunk,
                   (size_t)from->nchunks * sizeof *m->chunk);
            m->nchunks += from->nchunks;
        }
    }
    return MC_OK;
}

static mc_status merge(const struct mc_manifest *part, int n, struct mc_manifest *m,
                       struct mc_err *err)
{
    size_t tensors = 0, boxes = 0, chunks = 0, at = 0;
    for (int w = 0; w < n; w++) {
        if (part[w].step != m->step || part[w].epoch != m->epoch) /* I2 */
            return mc_err_set(err, MC_E_PEER,
                              "save: writer %d sent the table of step %lld, epoch %d, not of step "
                              "%lld, epoch %d",
                              w, (long long)part[w].step, part[w].epoch, (long long)m->step,
                              m->epoch);
        tensors += (size_t)part[w].ntensors;
        boxes += (size_t)part[w].nboxes;
        chunks += (size_t)part[w].nchunks;
    }
    struct entry *e = mc_alloc((tensors + 1) * sizeof *e, "manifest");
    m->nfiles = n;
    m->file_bytes = mc_alloc((size_t)n * sizeof *m->file_bytes, "manifest");
    m->tensor = mc_alloc((tensors + 1) * sizeof *m->tensor, "manifest tensors");
    m->box = mc_alloc((boxes + 1) * sizeof *m->box, "manifest boxes");
    m->chunk = mc_alloc((chunks + 1) * sizeof *m->chunk, "manifest chunks");
    mc_status st = MC_OK;
    if (!e || !m->file_bytes || !m->tensor || !m->box || !m->chunk)
        st = mc_err_set(err, MC_E_NOMEM, "save: no memory for the list of %zu chunks", chunks);
    for (int w = 0; w < n && st == MC_OK; w++) {
        m->file_bytes[w] = part[w].file_bytes[0];
        for (int64_t t = 0; t < part[w].ntensors; t++)
            e[at++] = (struct entry){&part[w].tensor[t], &part[w], w};
    }
    if (st == MC_OK) {
        qsort(e, at, sizeof *e, by_name);
        st = join(e, at, m, err);
    }
    mc_free(e);
    return st;
}

mc_status mc_table_merge(const void *tables, const int64_t *bytes, int n, struct mc_manifest *m,
                         struct mc_err *err)
{
    const unsigned char *p = tables;
    struct mc_manifest *part = mc_alloc((size_t)n * sizeof *part, "tables of chunks");
    mc_status st =
        part ? MC_OK : mc_err_set(err, MC_E_NOMEM, "save: no memory for %d tables of chunks", n);
    for (int w = 0; w < n && st == MC_OK; p += bytes[w], w++)
        st = mc_table_read(p, (size_t)bytes[w], w, &part[w], err);
    if (st == MC_OK)
        st = merge(part, n, m, err);
    for (int w = 0; part && w < n; w++)
        mc_manifest_fini(&part[w]);
    mc_free(part);
    return st;
}
