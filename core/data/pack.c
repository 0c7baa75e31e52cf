/* pack.c - texts to packed data: prefix.bin, prefix.idx and the sidecar prefix.json.
 * Floor 3 (data). Includes: base recipe.
 *
 * Inputs are files and folders of files. By its name, .gz and .zst aside, a file is JSONL (.jsonl,
 * .ndjson: one document a line) or a text (one document); cfg.format overrules that. A document's
 * ids are followed by EOS if asked for. A document is one sequence, or several when longer than an
 * i32 can say. .bin is u16 where the vocabulary allows it, else i32. The format is in indexed.c,
 * the sidecar's in sidecar.c.
 *
 * Work goes in rounds over three sets of blocks (pack_int.h): while set r is encoded, one task
 * reads set r + 1 and one writes set r - 1. All are tasks of one pool run.
 *
 * I1  Nothing under the final names is unfinished: all three are written as NAME.tmp and fsynced;
 *     then .json, .bin, .idx are renamed, in that order, and the folder is fsynced. The rename of
 *     .idx is what makes them data.
 * I2  On any failure, a full disk included, every file of this call is removed again. After a crash
 *     only .tmp files, or a .json and .bin without .idx, can be left; neither is taken for data. A
 *     pack that was killed is started anew: the same call overwrites what it left.
 * I3  An existing prefix is never written over; a sidecar of ours whose .idx is missing is no
 *     prefix but what a killed pack left.
 * I4  The files of a call are listed, and so fixed, before the first byte is written.
 * I5  The output is the same bytes for any number of workers, and so is the error: the first in the
 *     order of the documents.
 *
 * Memory: handle life, 12 bytes a document beside the blocks (about 5 MiB each, six a worker).
 * Threads: the caller and its pool. */
#include "pack_int.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/hash.h"
#include "../base/pool.h"

enum { SETS = 3, MAX_WORKERS = 1024 };

struct writer { /* a file being written, hashed on the way */
    char path[MC_PATH + 8], tmp[MC_PATH + 16];
    int fd; /* -1: closed */
    int made, renamed;
    int64_t bytes;
    struct mc_hasher *hash;
};
struct set {
    struct mc_pack_block *block;
    int n;
};
struct packer {
    const struct mc_pack_cfg *cfg;
    const struct mc_pack_encoder *enc;
    int64_t max_seq;
    int esize;
    /* input */
    struct mc_files *files; /* [ninputs] */
    struct mc_pack_input *in;
    int nin;
    struct mc_pack_reader reader;
    mc_status read_st;
    struct mc_err read_err;
    /* the rounds */
    struct mc_pool *pool;
    int workers, nblocks; /* blocks of a set */
    void **state;         /* [workers], by enc->open */
    struct set set[SETS];
    int round;
    mc_status write_st;
    struct mc_err write_err;
    /* output */
    struct writer bin, idx, json;
    struct mc_hasher *chunk;
    int64_t chunk_left; /* bytes until the present chunk is full */
    uint64_t *chunks;
    int64_t nchunks, cap_chunks;
    int32_t *len; /* of each sequence */
    int64_t nseq, cap_seq;
    int64_t *doc; /* first sequence of each document */
    int64_t ndoc, cap_doc;
    int64_t doc_tokens; /* of the text being written */
    int32_t max_id;
    int64_t tokens, text_bytes, taken, bytes_all, began_ns, shown_ns;
};

/* ---- files ---- */

static mc_status out_open(struct writer *w, const char *prefix, const char *ext, struct mc_err *err)
{
    w->fd = -1;
    snprintf(w->path, sizeof w->path, "%s.%s", prefix, ext);
    snprintf(w->tmp, sizeof w->tmp, "%s.tmp", w->path);
    if (!(w->hash = mc_hasher_create()))
        return mc_err_set(err, MC_E_NOMEM, "no memory to hash %s", w->path);
    return MC_OK;
}

static mc_status out_start(struct writer *w, struct mc_err *err)
{
    MC_TRY(mc_sys_open(w->tmp, O_WRONLY | O_CREAT | O_TRUNC, 0666, &w->fd, err));
    w->made = 1;
    return MC_OK;
}

static mc_status out_add(struct writer *w, const void *p, size_t n, struct mc_err *err)
{
    MC_TRY(mc_sys_write_all(w->fd, p, n, w->tmp, err));
    mc_hasher_add(w->hash, p, n);
    w->bytes += (int64_t)n;
    return MC_OK;
}

static mc_status out_finish(struct writer *w, struct mc_err *err)
{
    MC_TRY(mc_sys_fsync(w->fd, w->tmp, err));
    int fd = w->fd;
    w->fd = -1;
    return mc_sys_close(fd, w->tmp, err);
}

static mc_status out_rename(struct writer *w, struct mc_err *err)
{
    MC_TRY(mc_sys_rename(w->tmp, w->path, err));
    w->renamed = 1;
    return MC_OK;
}

static void out_drop(struct writer *w, int failed)
{
    if (w->fd >= 0)
        (void)mc_sys_close(w->fd, w->tmp, NULL);
    if (failed && w->made) /* I2 */
        (void)mc_sys_unlink(w->renamed ? w->path : w->tmp, NULL);
    mc_hasher_destroy(w->hash);
}

/* ---- .bin ---- */

static mc_status room(void **p, int64_t *cap, int64_t n, size_t size, struct mc_err *err)
{
    if (n < *cap)
        return MC_OK;
    int64_t more = *cap ? 2 * *cap : 1024;
    void *q = mc_grow(*p, (size_t)*cap * size, (size_t)more * size, "index being packed");
    if (!q)
        return mc_err_set(err, MC_E_NOMEM, "no memory for an index of %lld entries",
                          (long long)more);
    *p = q;
    *cap = more;
    return MC_OK;
}

static mc_status end_chunk(struct packer *k, struct mc_err *err)
{
    MC_TRY(room((void **)&k->chunks, &k->cap_chunks, k->nchunks, sizeof *k->chunks, err));
    k->chunks[k->nchunks++] = mc_hasher_value(k->chunk);
    mc_hasher_reset(k->chunk);
    k->chunk_left = MC_SIDECAR_CHUNK;
    return MC_OK;
}

static mc_status put_bytes(struct packer *k, const void *v, int64_t n, struct mc_err *err)
{
    const unsigned char *p = v;
    MC_TRY(out_add(&k->bin, p, (size_t)n, err));
    while (n > 0) {
        int64_t part = n < k->chunk_left ? n : k->chunk_left;
        mc_hasher_add(k->chunk, p, (size_t)part);
        p += part;
        n -= part;
        if ((k->chunk_left -= part) == 0)
            MC_TRY(end_chunk(k, err));
    }
    return MC_OK;
}

static mc_status put_document(struct packer *k, int64_t tokens, struct mc_err *err)
{
    MC_TRY(room((void **)&k->doc, &k->cap_doc, k->ndoc, sizeof *k->doc, err));
    k->doc[k->ndoc++] = k->nseq;
    do { /* an empty document without EOS is one empty sequence */
        int64_t n = tokens < k->max_seq ? tokens : k->max_seq;
        MC_TRY(room((void **)&k->len, &k->cap_seq, k->nseq, sizeof *k->len, err));
        k->len[k->nseq++] = (int32_t)n;
        tokens -= n;
    } while (tokens > 0);
    return MC_OK;
}

static mc_status put_block(struct packer *k, const struct mc_pack_block *b, struct mc_err *err)
{
    if (b->ids.n > 0)
        MC_TRY(put_bytes(k, b->ids.v, b->ids.n * k->esize, err));
    k->tokens += b->ids.n;
    k->text_bytes += b->text_bytes;
    k->taken = b->taken;
    k->max_id = b->max_id > k->max_id ? b->max_id : k->max_id;
    for (int64_t i = 0; i < b->ndoc; i++)
        MC_TRY(put_document(k, b->doc[i], err));
    if (!b->jsonl) {
        k->doc_tokens = (b->first ? 0 : k->doc_tokens) + b->ids.n;
        if (b->last)
            MC_TRY(put_document(k, k->doc_tokens, err));
    }
    return MC_OK;
}

static void show_progress(struct packer *k, int last)
{
    int64_t now = mc_clock_ns();
    if (!k->cfg->progress || (!last && now - k->shown_ns < 200000000))
        return;
    k->shown_ns = now;
    double all = k->bytes_all > 0 ? (double)k->bytes_all : 1;
    double s = (double)(now - k->began_ns) * 1e-9, done = (double)k->taken;
    fprintf(stderr, "\rpack: %3.0f %%  %.1f of %.1f MB  %lld documents  %.1f M tokens  %.1f MB/s ",
            k->bytes_all > 0 ? 100 * done / all : 100.0, done / 1e6, (double)k->bytes_all / 1e6,
            (long long)k->ndoc, (double)k->tokens / 1e6, s > 0 ? done / 1e6 / s : 0.0);
    if (last)
        fputc('\n', stderr);
    else if (done > 0)
        fprintf(stderr, " %.0f s left   ", s * (all - done) / done);
    fflush(stderr);
}

/* ---- rounds ---- */

static void write_set(struct packer *k, struct set *s)
{
    for (int i = 0; i < s->n && k->write_st == MC_OK; i++)
        k->write_st = put_block(k, &s->block[i], &k->write_err);
}

static void read_set(struct packer *k, struct set *s)
{
    s->n = 0;
    if (k->read_st == MC_OK && !k->reader.done)
        k->read_st = mc_pack_read(&k->reader, s->block, k->nblocks, &s->n, &k->read_err);
}

static void task(void *arg, int t, int thread)
{
    struct packer *k = arg;
    if (t == 0) {
        write_set(k, &k->set[(k->round + 2) % SETS]);
    } else if (t == 1) {
        read_set(k, &k->set[(k->round + 1) % SETS]);
    } else {
        struct mc_pack_job job = {.enc = k->enc,
                                  .state = k->state[thread],
                                  .key = k->cfg->key ? k->cfg->key : "text",
                                  .append_eos = k->cfg->append_eos,
                                  .esize = k->esize};
        mc_pack_encode(&job, &k->set[k->round % SETS].block[t - 2]);
    }
}

static mc_status told(struct mc_err *err, mc_status st, const struct mc_err *why)
{
    if (err && !err->code)
        *err = *why;
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

/* I5: what is wrong in a set is told when all before it are written, before what follows it. */
static mc_status run_rounds(struct packer *k, struct mc_err *err)
{
    read_set(k, &k->set[0]);
    for (;; k->round++) {
        struct set *s = &k->set[k->round % SETS], *before = &k->set[(k->round + 2) % SETS];
        if (s->n == 0 && before->n == 0)
            break;
        mc_pool_run(k->pool, task, k, 2 + s->n);
        before->n = 0;
        if (k->write_st != MC_OK)
            return told(err, k->write_st, &k->write_err);
        for (int i = 0; i < s->n; i++)
            if (s->block[i].st != MC_OK)
                return told(err, s->block[i].st, &s->block[i].err);
        show_progress(k, 0);
    }
    if (k->read_st != MC_OK)
        return told(err, k->read_st, &k->read_err);
    return MC_OK;
}

/* ---- .idx and .json ---- */

static mc_status put_le(struct writer *w, const int64_t *v64, const int32_t *v32, int64_t n,
                        struct mc_err *err)
{
    unsigned char buf[8192];
    size_t fill = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t v = v64 ? (uint64_t)v64[i] : (uint64_t)(uint32_t)v32[i];
        for (int b = 0; b < (v64 ? 8 : 4); b++)
            buf[fill++] = (unsigned char)(v >> 8 * b);
        if (fill > sizeof buf - 8 || i == n - 1) {
            MC_TRY(out_add(w, buf, fill, err));
            fill = 0;
        }
    }
    return MC_OK;
}

static mc_status write_idx(struct packer *k, struct mc_err *err)
{
    int64_t counts[2] = {k->nseq, k->ndoc + 1}, version = 1, off = 0;
    MC_TRY(out_add(&k->idx, "MMIDIDX\0\0", 9, err));
    MC_TRY(put_le(&k->idx, &version, NULL, 1, err));
    MC_TRY(out_add(&k->idx, k->esize == 2 ? "\x08" : "\x04", 1, err)); /* u16, i32 */
    MC_TRY(put_le(&k->idx, counts, NULL, 2, err));
    MC_TRY(put_le(&k->idx, NULL, k->len, k->nseq, err));
    int64_t batch[512];
    for (int64_t i = 0; i < k->nseq;) {
        int n = 0;
        for (; n < 512 && i < k->nseq; n++, i++) {
            batch[n] = off;
            off += k->esize * (int64_t)k->len[i];
        }
        MC_TRY(put_le(&k->idx, batch, NULL, n, err));
    }
    MC_TRY(put_le(&k->idx, k->doc, NULL, k->ndoc, err));
    return put_le(&k->idx, &k->nseq, NULL, 1, err);
}

static void put_hash(struct mc_json *j, const char *key, uint64_t h)
{
    char hex[17];
    mc_hash_hex(h, hex);
    mc_json_str(j, key, hex);
}

static mc_status write_sidecar(struct packer *k, struct mc_err *err)
{
    struct mc_json j;
    mc_json_init_grow(&j);
    j.pretty = 1;
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "format", "mascon.pack");
    mc_json_i64(&j, "version", 1);
    mc_json_str(&j, "tokenizer", k->enc->name);
    if (k->enc->hash)
        put_hash(&j, "tokenizer_xxh3", k->enc->hash);
    mc_json_i64(&j, "vocab", k->enc->vocab);
    mc_json_i64(&j, "max_id", k->max_id);
    mc_json_bool(&j, "eos", k->cfg->append_eos != 0);
    mc_json_i64(&j, "documents", k->ndoc);
    mc_json_i64(&j, "tokens", k->tokens);
    mc_json_i64(&j, "bytes", k->bytes_all);
    mc_json_i64(&j, "text_bytes", k->text_bytes);
    mc_json_i64(&j, "bin_bytes", k->bin.bytes);
    mc_json_i64(&j, "idx_bytes", k->idx.bytes);
    put_hash(&j, "bin_xxh3", mc_hasher_value(k->bin.hash));
    put_hash(&j, "idx_xxh3", mc_hasher_value(k->idx.hash));
    mc_json_i64(&j, "chunk", MC_SIDECAR_CHUNK);
    mc_json_open(&j, "bin_chunks", '[');
    for (int64_t i = 0; i < k->nchunks; i++)
        put_hash(&j, NULL, k->chunks[i]);
    mc_json_close(&j, ']');
    mc_json_open(&j, "inputs", '[');
    for (int i = 0; i < k->cfg->ninputs; i++)
        mc_json_str(&j, NULL, k->cfg->inputs[i]);
    mc_json_close(&j, ']');
    mc_json_close(&j, '}');
    mc_status st = j.failed ? mc_err_set(err, MC_E_NOMEM, "no memory for %s", k->json.path)
                            : out_add(&k->json, j.buf, j.len, err);
    mc_json_fini(&j);
    if (st == MC_OK)
        st = out_add(&k->json, "\n", 1, err);
    return st;
}

/* ---- the call ---- */

static mc_status list_inputs(struct packer *k, struct mc_err *err)
{
    for (int i = 0; i < k->cfg->ninputs; i++) {
        enum mc_source_kind kind;
        char prefix[MC_PATH];
        MC_TRY(mc_source_classify(k->cfg->inputs[i], &kind, prefix, err));
        if (kind == MC_SOURCE_PACKED)
            return mc_err_set(err, MC_E_USAGE, "%s: packed already; pack takes text",
                              k->cfg->inputs[i]);
        MC_TRY(mc_source_files(k->cfg->inputs[i], &k->files[i], err));
        k->nin += k->files[i].n;
    }
    k->in = mc_alloc((size_t)k->nin * sizeof *k->in, "inputs");
    if (!k->in)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a list of %d files", k->nin);
    for (int i = 0, n = 0; i < k->cfg->ninputs; i++)
        for (int j = 0; j < k->files[i].n; j++, n++) {
            char *path = k->files[i].path[j];
            int jsonl = k->cfg->format == MC_PACK_JSONL ||
                        (k->cfg->format == MC_PACK_AUTO && mc_pack_is_jsonl(path));
            k->in[n] = (struct mc_pack_input){path, k->files[i].bytes[j], jsonl};
            k->bytes_all += k->in[n].bytes;
        }
    k->reader = (struct mc_pack_reader){.in = k->in, .nin = k->nin, .whole = !k->enc->cuttable};
    return MC_OK;
}

static mc_status write_all(struct packer *k, struct mc_err *err)
{
    char dir[MC_PATH];
    MC_TRY(out_start(&k->bin, err));
    MC_TRY(run_rounds(k, err));
    if (k->chunk_left < MC_SIDECAR_CHUNK)
        MC_TRY(end_chunk(k, err));
    MC_TRY(out_finish(&k->bin, err));
    MC_TRY(out_start(&k->idx, err));
    MC_TRY(write_idx(k, err));
    MC_TRY(out_finish(&k->idx, err));
    MC_TRY(out_start(&k->json, err));
    MC_TRY(write_sidecar(k, err));
    MC_TRY(out_finish(&k->json, err));
    MC_TRY(out_rename(&k->json, err)); /* I1 */
    MC_TRY(out_rename(&k->bin, err));
    MC_TRY(out_rename(&k->idx, err));
    mc_path_dir(dir, sizeof dir, k->bin.path);
    return mc_sys_fsync_dir(dir, err);
}

/* I3: a pack that died between its renames left its sidecar, and perhaps the .bin of that size. */
static int left_behind(const struct packer *k)
{
    struct mc_sidecar sc;
    int64_t bytes = 0;
    int bin = access(k->bin.path, F_OK) == 0;
    if (access(k->idx.path, F_OK) == 0 || access(k->json.path, F_OK) != 0 ||
        mc_sidecar_read(k->cfg->out_prefix, &sc, NULL) != MC_OK)
        return 0;
    int ours =
        !bin || (mc_sys_file_size(k->bin.path, &bytes, NULL) == MC_OK && bytes == sc.bin_bytes);
    mc_sidecar_fini(&sc);
    return ours;
}

static mc_status check_free(const struct packer *k, struct mc_err *err)
{
    const struct writer *w[3] = {&k->bin, &k->idx, &k->json};
    for (int i = 0; i < 3; i++)
        if (access(w[i]->path, F_OK) == 0 && !left_behind(k))
            return mc_err_set(err, MC_E_USAGE,
                              "%s exists already: remove it, or choose another output prefix",
                              w[i]->path);
    return MC_OK;
}

static mc_status open_outputs(struct packer *k, struct mc_err *err)
{
    const char *p = k->cfg->out_prefix;
    size_t n = strlen(p);
    if (n == 0 || n + 16 > MC_PATH || p[n - 1] == '/')
        return mc_err_set(err, MC_E_USAGE,
                          "output prefix \"%.80s\": give PATH/NAME, short of %d bytes", p,
                          MC_PATH - 16);
    MC_TRY(out_open(&k->bin, p, "bin", err));
    MC_TRY(out_open(&k->idx, p, "idx", err));
    MC_TRY(out_open(&k->json, p, "json", err));
    MC_TRY(check_free(k, err));
    k->chunk = mc_hasher_create();
    k->chunk_left = MC_SIDECAR_CHUNK;
    if (!k->chunk)
        return mc_err_set(err, MC_E_NOMEM, "no memory to pack");
    return MC_OK;
}

static mc_status open_workers(struct packer *k, struct mc_err *err)
{
    int n = k->cfg->workers < 1 ? 1 : k->cfg->workers;
    k->workers = n < MAX_WORKERS ? n : MAX_WORKERS;
    k->nblocks = 2 * k->workers;
    k->state = mc_alloc((size_t)k->workers * sizeof *k->state, "encoders");
    for (int i = 0; i < SETS; i++)
        k->set[i].block = mc_alloc((size_t)k->nblocks * sizeof *k->set[i].block, "blocks");
    if (!k->state || !k->set[0].block || !k->set[1].block || !k->set[2].block)
        return mc_err_set(err, MC_E_NOMEM, "no memory to pack");
    for (int i = 0; i < k->workers && k->enc->open; i++)
        MC_TRY(k->enc->open(k->enc->ctx, &k->state[i], err));
    return mc_pool_create(k->workers, &k->pool, err);
}

static void finish(struct packer *k, int failed)
{
    out_drop(&k->json, failed);
    out_drop(&k->idx, failed);
    out_drop(&k->bin, failed);
    if (k->pool)
        mc_pool_destroy(k->pool);
    for (int i = 0; k->state && i < k->workers; i++)
        if (k->state[i])
            k->enc->close(k->state[i]);
    for (int i = 0; i < SETS; i++) {
        for (int j = 0; k->set[i].block && j < k->nblocks; j++)
            mc_pack_block_fini(&k->set[i].block[j]);
        mc_free(k->set[i].block);
    }
    mc_pack_reader_fini(&k->reader);
    for (int i = 0; k->files && i < k->cfg->ninputs; i++)
        mc_source_files_fini(&k->files[i]);
    mc_hasher_destroy(k->chunk);
    mc_free(k->state);
    mc_free(k->files);
    mc_free(k->in);
    mc_free(k->chunks);
    mc_free(k->len);
    mc_free(k->doc);
}

mc_status mc_pack_split(const struct mc_pack_cfg *cfg, int64_t max_seq, struct mc_pack_stats *stats,
                        struct mc_err *err)
{
    if (cfg->ninputs < 1)
        return mc_err_set(err, MC_E_USAGE, "pack: no input; give files or folders of text");
    struct packer *k = mc_alloc(sizeof *k, "packer");
    if (!k)
        return mc_err_set(err, MC_E_NOMEM, "no memory to pack");
    mc_status st = MC_OK;
    k->cfg = cfg;
    k->enc = cfg->encoder ? cfg->encoder : &mc_pack_bytes;
    k->esize = k->enc->vocab <= 65536 ? 2 : 4;
    k->max_seq = max_seq;
    k->max_id = -1;
    k->bin.fd = k->idx.fd = k->json.fd = -1;
    k->began_ns = mc_clock_ns();
    if (cfg->append_eos && k->enc->eos < 0) {
        st = mc_err_set(err, MC_E_USAGE,
                        "tokenizer %s has no EOS to close documents with: --no-eos, or another",
                        k->enc->name);
        goto out;
    }
    if (!(k->files = mc_alloc((size_t)cfg->ninputs * sizeof *k->files, "file lists"))) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory to pack");
        goto out;
    }
    MC_TRY_GOTO(st, open_outputs(k, err), out);
    MC_TRY_GOTO(st, list_inputs(k, err), out); /* I4 */
    MC_TRY_GOTO(st, open_workers(k, err), out);
    MC_TRY_GOTO(st, write_all(k, err), out);
    show_progress(k, 1);
    *stats = (struct mc_pack_stats){.documents = k->ndoc,
                                    .tokens = k->tokens,
                                    .bytes_in = k->bytes_all,
                                    .text_bytes = k->text_bytes,
                                    .hash = mc_hasher_value(k->bin.hash)};
out:
    finish(k, st != MC_OK);
    mc_free(k);
    return st;
}

mc_status mc_data_pack(const struct mc_pack_cfg *cfg, struct mc_pack_stats *stats,
                       struct mc_err *err)
{
    return mc_pack_split(cfg, INT32_MAX, stats, err);
}
