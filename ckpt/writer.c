/* writer.c - save: state in memory -> a committed checkpoint, or nothing.
 *
 * Floor 5 (ckpt). One data file a writer, then the manifest. All integers little-endian:
 *
 *   data-00000.mcd
 *   offset  size  meaning
 *        0     8  "MCDATA" 0 1
 *        8     4  format version, 1
 *       12     4  writer: the number in the file's name
 *       16     8  step
 *       24     4  epoch
 *       28    28  zeros
 *       56     8  XXH3 of bytes 0 .. 55
 *       64     -  chunks, each at the next multiple of 64 with zeros between; after the last one
 *                 zeros up to a multiple of 64, which is the file's size. What a chunk holds is in
 *                 the manifest.
 *
 * I1  The order of writes and syncs is the store's (store_posix.c I1); the manifest is last.
 * I2  A chunk is a run of whole rows of its box where a row fits in 4 MiB, else a piece of one row:
 *     whoever holds rows i..j later reads few bytes that are not his.
 * I3  A chunk is hashed where the state lies, then copied, then the copy is hashed again: state
 *     that changes while it is saved, or memory that does not keep it, stops the save.
 * I4  Fence: with a higher epoch in ckpt_dir somebody else has taken over this run. Asked before
 *     the first byte and again before the commit: a zombie commits nothing.
 * I5  A failure leaves the unfinished folder, and every committed checkpoint as it was.
 * I6  With several writers: writer 0 makes the folder; vote; each writes and syncs its file; vote;
 *     the tables of chunks (table.c) go to writer 0, which makes one manifest of them, checks it
 *     and commits; vote. No writer makes a file before the first vote, and none is committed over
 *     a writer that did not say yes in the second: a failure of one fails the save on all, alike.
 * Memory: two chunk buffers, a compressor, the manifest, on writer 0 all tables, for the life of
 * one save. The state is borrowed. Threads: the caller's; one save at a time in a process, or the
 * writers of one save. */
#include "ckpt_int.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include "../core/base/arena.h"
#include "../core/base/clock.h"
#include "../core/base/hash.h"
#include "../core/base/sysio.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is the memory's byte order");

/* Which folder this process is writing, so that its own sweeper leaves it alone. g_busy: writers.
 */
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static int g_busy, g_epoch;
static int64_t g_step;

int mc_writer_busy(int64_t step, int epoch)
{
    pthread_mutex_lock(&g_lock);
    int busy = g_busy > 0 && g_step == step && g_epoch == epoch;
    pthread_mutex_unlock(&g_lock);
    return busy;
}

static int claim(const struct mc_ckpt_save *ask)
{
    pthread_mutex_lock(&g_lock);
    int ok = !g_busy || (ask->group && g_step == ask->step && g_epoch == ask->epoch);
    if (ok) {
        g_busy++;
        g_step = ask->step;
        g_epoch = ask->epoch;
    }
    pthread_mutex_unlock(&g_lock);
    return ok;
}

static void release(void)
{
    pthread_mutex_lock(&g_lock);
    g_busy--;
    pthread_mutex_unlock(&g_lock);
}

void mc_data_header(unsigned char h[MC_CKPT_HEADER], int64_t step, int epoch, int writer)
{
    uint32_t version = MC_CKPT_VERSION, w = (uint32_t)writer, e = (uint32_t)epoch;
    memset(h, 0, MC_CKPT_HEADER);
    memcpy(h, "MCDATA\0\1", 8);
    memcpy(h + 8, &version, 4);
    memcpy(h + 12, &w, 4);
    memcpy(h + 16, &step, 8);
    memcpy(h + 24, &e, 4);
    uint64_t sum = mc_hash64(h, 56);
    memcpy(h + 56, &sum, 8);
}

/* ---- the plan: what goes where, before anything is written -------------------------------- */

struct save {
    const struct mc_ckpt_save *ask;
    const struct mc_store_ops *store;
    const struct mc_state_tensor **sorted; /* [ntensors] by name; boxes of one tensor together */
    struct mc_manifest m;                  /* of this writer's file alone */
    int me;                                /* writer */
    int claimed;
    char name[MC_CKPT_NAME], folder[MC_CKPT_PATH];
    struct mc_store_file file;
    unsigned char *raw, *packed; /* a chunk, and its compressed form; both with room for padding */
    size_t packed_cap;
    ZSTD_CCtx *zstd;
    int64_t done_bytes, all_bytes; /* source bytes */
};

static int by_name(const void *pa, const void *pb)
{
    const struct mc_state_tensor *a = *(const struct mc_state_tensor *const *)pa;
    const struct mc_state_tensor *b = *(const struct mc_state_tensor *const *)pb;
    int c = strcmp(a->name, b->name);
    return c ? c : (a > b) - (a < b);
}

/* Elements of the next chunk when `at` of the box's elements are done. I2 */
static int64_t chunk_elems(const struct mc_box *box, size_t elem, int64_t at)
{
    int64_t count = mc_box_count(box), most = MC_CKPT_CHUNK / (int64_t)elem;
    int64_t row = box->nd > 0 ? count / box->n[0] : 1;
    if (row <= most) {
        int64_t n = most / row * row;
        return n < count - at ? n : count - at;
    }
    int64_t rest = row - at % row; /* a piece of one row never reaches into the next */
    return most < rest ? most : rest;
}

static int64_t count_chunks(const struct mc_box *box, size_t elem)
{
    int64_t n = 0, count = mc_box_count(box);
    for (int64_t at = 0; at < count; at += chunk_elems(box, elem, at))
        n++;
    return n;
}

static mc_status check_tensor(const struct mc_state_tensor *t, struct mc_err *err)
{
    char text[128];
    int64_t count;
    if (!t->name[0] || !memchr(t->name, 0, sizeof t->name))
        return mc_err_set(err, MC_E_BUG, "save: a tensor without a name, or with one too long");
    for (const char *c = t->name; *c; c++)
        if (*c < 0x20 || *c > 0x7e)
            return mc_err_set(err, MC_E_BUG, "save: tensor name %s is not printable ASCII",
                              t->name);
    mc_shape_print(&t->shape, text, sizeof text);
    if ((unsigned)t->dtype >= MC_NDTYPES)
        return mc_err_set(err, MC_E_BUG, "save: tensor %s: unknown dtype %d", t->name, t->dtype);
    if (t->shape.nd < 0 || t->shape.nd > MC_MAX_DIMS || (count = mc_shape_count(&t->shape)) < 1 ||
        count > INT64_MAX / 16)
        return mc_err_set(err, MC_E_BUG, "save: tensor %s: impossible shape %s", t->name, text);
    if (!mc_box_valid(&t->box, &t->shape))
        return mc_err_set(err, MC_E_BUG, "save: tensor %s: its box is not inside its shape %s",
                          t->name, text);
    if (!t->data)
        return mc_err_set(err, MC_E_BUG, "save: tensor %s has no data", t->name);
    return MC_OK;
}

static mc_status plan_tensors(struct save *s, struct mc_err *err)
{
    const struct mc_ckpt_save *ask = s->ask;
    struct mc_manifest *m = &s->m;
    for (int i = 0; i < ask->ntensors; i++) {
        const struct mc_state_tensor *t = s->sorted[i];
        struct mc_stored_tensor *x = m->ntensors ? &m->tensor[m->ntensors - 1] : NULL;
        if (!x || strcmp(x->name, t->name)) {
            x = &m->tensor[m->ntensors++];
            *x = (struct mc_stored_tensor){.dtype = t->dtype, .shape = t->shape, .first_box = i};
            memcpy(x->name, t->name, sizeof x->name);
        } else if (x->dtype != t->dtype || !mc_shape_eq(&x->shape, &t->shape)) {
            return mc_err_set(err, MC_E_BUG, "save: parts of tensor %s differ in dtype or shape",
                              t->name);
        }
        x->nboxes++;
        m->box[i] = (struct mc_stored_box){.box = t->box, .first_chunk = m->nchunks};
        m->box[i].nchunks = count_chunks(&t->box, mc_dtype_size(t->dtype));
        m->nchunks += m->box[i].nchunks;
        s->all_bytes += mc_box_count(&t->box) * (int64_t)mc_dtype_size(t->dtype);
    }
    m->nboxes = ask->ntensors;
    if (ask->group)
        return MC_OK; /* known when all tables are together */
    /* Exactly once, before a byte is written. */
    struct mc_box *cover = mc_alloc(((size_t)m->nboxes + 1) * sizeof *cover, "save plan");
    mc_status st = cover ? MC_OK : mc_err_set(err, MC_E_NOMEM, "save: no memory for the plan");
    for (int64_t i = 0; i < m->ntensors && st == MC_OK; i++) {
        const struct mc_stored_tensor *x = &m->tensor[i];
        for (int64_t b = 0; b < x->nboxes; b++)
            cover[b] = m->box[x->first_box + b].box;
        st = mc_box_cover(cover, x->nboxes, &x->shape, "save", x->name, err);
    }
    mc_free(cover);
    return st;
}

static mc_status plan(struct save *s, struct mc_err *err)
{
    const struct mc_ckpt_save *ask = s->ask;
    struct mc_manifest *m = &s->m;
    size_t n = (size_t)(ask->ntensors > 0 ? ask->ntensors : 0);
    const struct mc_ckpt_group *g = ask->group;
    if (!ask->ckpt_dir || !ask->ckpt_dir[0] || ask->step < 0 || ask->epoch < 0 ||
        (s->me == 0 && !ask->books) || ask->ntensors < (g ? 0 : 1) || (n && !ask->tensor) ||
        (g && (g->me < 0 || g->me >= g->n || g->n > MC_CKPT_MAX_FILES)))
        return mc_err_set(err, MC_E_BUG, "save: folder, step, epoch, books or tensors are missing");
    for (size_t i = 0; i < n; i++)
        MC_TRY(check_tensor(&ask->tensor[i], err));
    if (s->me == 0)
        MC_TRY(mc_manifest_books(ask->books, ask->step, m->weights_hash, err));
    m->step = ask->step;
    m->epoch = ask->epoch;
    m->unix_time = mc_clock_unix();
    m->nfiles = 1;
    s->sorted = mc_alloc((n + 1) * sizeof *s->sorted, "save plan");
    m->tensor = mc_alloc((n + 1) * sizeof *m->tensor, "save plan");
    m->box = mc_alloc((n + 1) * sizeof *m->box, "save plan");
    m->file_bytes = mc_alloc(sizeof *m->file_bytes, "save plan");
    m->books = mc_strdup(s->me == 0 ? ask->books : "{}");
    if (!s->sorted || !m->tensor || !m->box || !m->file_bytes || !m->books)
        return mc_err_set(err, MC_E_NOMEM, "save: no memory for the plan of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        s->sorted[i] = &ask->tensor[i];
    qsort(s->sorted, n, sizeof *s->sorted, by_name);
    MC_TRY(plan_tensors(s, err));
    m->chunk = mc_alloc((size_t)(m->nchunks + 1) * sizeof *m->chunk, "save plan");
    s->packed_cap = ask->compress ? ZSTD_compressBound(MC_CKPT_CHUNK) + MC_CKPT_ALIGN : 1;
    s->raw = mc_alloc(MC_CKPT_CHUNK + MC_CKPT_ALIGN, "save buffer");
    s->packed = mc_alloc(s->packed_cap, "save buffer");
    s->zstd = ask->compress ? ZSTD_createCCtx() : NULL;
    if (!m->chunk || !s->raw || !s->packed || (ask->compress && !s->zstd))
        return mc_err_set(err, MC_E_NOMEM, "save: no memory for its buffers (%d MiB)",
                          2 * MC_CKPT_CHUNK >> 20);
    return MC_OK;
}

static mc_status fence(const struct save *s, struct mc_err *err)
{
    int top;
    MC_TRY(mc_ckpt_top_epoch(s->ask->ckpt_dir, &top, err));
    if (top > s->ask->epoch) /* I4 */
        return mc_err_set(err, MC_E_MACHINE,
                          "%s: a later start of this run (epoch %d) has written here; this process "
                          "belongs to epoch %d and must not save any more",
                          s->ask->ckpt_dir, top, s->ask->epoch);
    return MC_OK;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Level 1: state compresses little, and the trainer is waiting. */
static size_t pack(struct save *s, size_t raw_bytes)
{
    if (!s->zstd)
        return 0;
    size_t n =
        ZSTD_compressCCtx(s->zstd, s->packed, s->packed_cap - MC_CKPT_ALIGN, s->raw, raw_bytes, 1);
    return !ZSTD_isError(n) && n <= raw_bytes - raw_bytes / 8 && n < raw_bytes ? n : 0;
}

static mc_status write_chunk(struct save *s, const struct mc_state_tensor *t, int64_t first,
                             int64_t count, struct mc_chunk *c, struct mc_err *err)
{
    size_t elem = mc_dtype_size(t->dtype), n = (size_t)count * elem;
    const unsigned char *src = (const unsigned char *)t->data + (size_t)first * elem;
    c->raw_bytes = (uint32_t)n;
    c->raw_hash = mc_hash64(src, n); /* I3 */
    memcpy(s->raw, src, n);
    if (mc_hash64(s->raw, n) != c->raw_hash)
        return mc_err_set(
            err, MC_E_BUG,
            "save of %s: tensor %s changed while it was being copied (elements %lld to "
            "%lld): something still writes to it, or memory is failing",
            s->name, t->name, (long long)first, (long long)(first + count - 1));
    size_t packed = pack(s, n);
    unsigned char *out = packed ? s->packed : s->raw;
    size_t stored = packed ? packed : n, padded = mc_align_up(stored, MC_CKPT_ALIGN);
    c->codec = packed ? MC_CODEC_ZSTD : MC_CODEC_RAW;
    c->stored_bytes = (uint32_t)stored;
    c->stored_hash = packed ? mc_hash64(out, stored) : c->raw_hash;
    c->off = s->file.bytes;
    memset(out + stored, 0, padded - stored);
    MC_TRY(s->store->append(&s->file, out, padded, err));
    s->done_bytes += (int64_t)n;
    return MC_OK;
}

static mc_status write_data(struct save *s, struct mc_err *err)
{
    const struct mc_ckpt_save *ask = s->ask;
    struct mc_chunk *c = s->m.chunk;
    unsigned char header[MC_CKPT_HEADER];
    mc_data_header(header, ask->step, ask->epoch, s->me);
    MC_TRY(s->store->append(&s->file, header, sizeof header, err));
    for (int i = 0; i < ask->ntensors; i++) {
        const struct mc_state_tensor *t = s->sorted[i];
        int64_t count = mc_box_count(&t->box), n;
        for (int64_t at = 0; at < count; at += n, c++) {
            if (ask->cancel && *ask->cancel)
                return mc_err_set(err, MC_E_FAILED,
                                  "save of %s: given up on request; it is unfinished and counts as "
                                  "no checkpoint",
                                  s->name);
            n = chunk_elems(&t->box, mc_dtype_size(t->dtype), at);
            MC_TRY(write_chunk(s, t, at, n, c, err));
            if (ask->progress)
                ask->progress(ask->arg, s->done_bytes, s->all_bytes);
        }
    }
    return MC_OK;
}

static int64_t expected_bytes(const struct save *s)
{
    int64_t n = MC_CKPT_HEADER;
    for (int i = 0; i < s->ask->ntensors; i++) {
        const struct mc_state_tensor *t = s->sorted[i];
        int64_t elem = (int64_t)mc_dtype_size(t->dtype), count = mc_box_count(&t->box), k;
        for (int64_t at = 0; at < count; at += k) {
            k = chunk_elems(&t->box, (size_t)elem, at);
            n += (int64_t)mc_align_up((size_t)(k * elem), MC_CKPT_ALIGN);
        }
    }
    return n;
}

/* ---- in order ----------------------------------------------------------------------------- */

/* All writers go on, or none does; the message is that of the first that could not. */
static mc_status vote(const struct save *s, mc_status mine, struct mc_err *err)
{
    const struct mc_ckpt_group *g = s->ask->group;
    return g ? g->vote(g->arg, mine, err) : mine;
}

static mc_status open_folder(struct save *s, struct mc_err *err)
{
    s->claimed = claim(s->ask);
    if (!s->claimed)
        return mc_err_set(err, MC_E_BUG, "save: another save of this process is still writing");
    MC_TRY(plan(s, err));
    mc_ckpt_name_print(s->ask->step, s->ask->epoch, s->name);
    MC_TRY(mc_path_join(s->folder, sizeof s->folder, s->ask->ckpt_dir, s->name, err));
    MC_TRY(fence(s, err));
    return s->me == 0 ? s->store->begin(s->ask->ckpt_dir, s->name, err) : MC_OK;
}

static mc_status write_file(struct save *s, struct mc_err *err)
{
    char name[32], path[MC_CKPT_PATH];
    snprintf(name, sizeof name, "data-%05d.mcd", s->me);
    MC_TRY(mc_path_join(path, sizeof path, s->folder, name, err));
    MC_TRY(s->store->create(path, expected_bytes(s), &s->file, err));
    MC_TRY(write_data(s, err));
    s->m.file_bytes[0] = s->file.bytes;
    return s->store->finish(&s->file, err);
}

/* s->m of writer 0 becomes that of all writers. */
static mc_status take_tables(struct save *s, const void *tables, const int64_t *bytes,
                             struct mc_err *err)
{
    struct mc_manifest all = {.step = s->m.step, .epoch = s->m.epoch, .unix_time = s->m.unix_time};
    mc_status st = mc_table_merge(tables, bytes, s->ask->group->n, &all, err);
    if (st != MC_OK) {
        mc_manifest_fini(&all);
        return st;
    }
    all.books = s->m.books;
    s->m.books = NULL;
    memcpy(all.weights_hash, s->m.weights_hash, sizeof all.weights_hash);
    mc_manifest_fini(&s->m);
    s->m = all;
    return MC_OK;
}

/* Every writer's table to writer 0 (I6). A failure of one is known to all at the next vote. */
static mc_status gather(struct save *s, struct mc_err *err)
{
    const struct mc_ckpt_group *g = s->ask->group;
    void *table = NULL, *tables = NULL;
    int64_t *bytes = NULL;
    size_t n = 0;
    mc_status st = mc_table_write(&s->m, s->me, &table, &n, err);
    mc_status sent = g->gather(g->arg, table, (int64_t)n, &tables, &bytes, err);
    if (st == MC_OK)
        st = sent;
    if (st == MC_OK && s->me == 0)
        st = take_tables(s, tables, bytes, err);
    mc_free(table);
    mc_free(tables);
    mc_free(bytes);
    return st;
}

static mc_status commit(struct save *s, struct mc_err *err)
{
    struct mc_json j;
    mc_status st = MC_OK;
    MC_TRY(mc_manifest_check(&s->m, s->folder, err)); /* what no reader would accept stays out */
    mc_json_init_grow(&j);
    mc_manifest_write(&s->m, &j);
    if (j.failed || j.len >= MC_CKPT_MANIFEST_MAX)
        st = mc_err_set(err, MC_E_NOMEM, "save of %s: no memory for the manifest (%zu bytes)",
                        s->name, j.len);
    if (st == MC_OK)
        st = fence(s, err); /* I4 */
    if (st == MC_OK) {
        j.buf[j.len] = '\n'; /* in the place of the text's NUL */
        st = s->store->commit(s->folder, j.buf, j.len + 1, err);
    }
    mc_json_fini(&j);
    return st;
}

/* All writers have voted, so none writes: what they wrote goes, or the space that a failed save
 * took on a full disk would keep every later one from succeeding. Where somebody was not heard, it
 * stays for the sweeper; what cannot be removed, too. */
static void give_back(const struct save *s, mc_status why)
{
    int left;
    if (s->me == 0 && why != MC_E_PEER && why != MC_E_TIMEOUT)
        (void)s->store->sweep(s->folder, &left, NULL);
}

static mc_status save(struct save *s, struct mc_err *err)
{
    MC_TRY(vote(s, open_folder(s, err), err));
    mc_status st = vote(s, write_file(s, err), err);
    if (st != MC_OK) {
        give_back(s, st);
        return st;
    }
    st = s->ask->group ? gather(s, err) : MC_OK;
    if (st == MC_OK && s->me == 0)
        st = commit(s, err);
    return vote(s, st, err);
}

mc_status mc_ckpt_save(const struct mc_ckpt_save *ask, struct mc_err *err)
{
    struct save s = {.ask = ask,
                     .store = &mc_store_posix,
                     .me = ask->group ? ask->group->me : 0,
                     .file = {.fd = -1}};
    mc_status st = save(&s, err);
    s.store->abandon(&s.file); /* a no-op after finish */
    ZSTD_freeCCtx(s.zstd);
    mc_free(s.raw);
    mc_free(s.packed);
    mc_free(s.sorted);
    mc_manifest_fini(&s.m);
    if (s.claimed)
        release();
    return st == MC_OK ? st : mc_err_trail(err, st, __FILE__, __LINE__);
}
