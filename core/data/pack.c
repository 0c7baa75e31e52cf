/* pack.c - text to packed data: prefix.bin, prefix.idx and the sidecar prefix.json.
 * Floor 3 (data). Includes: base recipe.
 *
 * Each input file is one document: its bytes as u16 ids (the vocabulary of 257 does not fit a
 * byte), then EOS if asked for. A document is one sequence, or several when longer than an i32 can
 * say. The format is in indexed.c, the sidecar's in sidecar.c.
 *
 * I1  Nothing under the final names is unfinished: all three are written as NAME.tmp and fsynced;
 *     then .bin, .idx, .json are renamed, in that order, and the folder is fsynced.
 * I2  On any failure, a full disk included, every file of this call is removed again. After a crash
 *     only .tmp files, or a .bin without its .idx, can be left; neither is taken for data.
 * I3  An existing prefix is never written over.
 * I4  The files of a call are listed, and so fixed, before the first byte is written.
 * Memory: handle life, 12 bytes a document beside the buffers; one input is mapped at a time. */
#include "data_int.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/hash.h"

enum { BUF_IDS = 1 << 19 }; /* 1 MiB of u16 */

struct writer { /* a file being written, hashed on the way */
    char path[MC_PATH + 8], tmp[MC_PATH + 16];
    int fd; /* -1: closed */
    int made, renamed;
    int64_t bytes;
    struct mc_hasher *hash;
};
struct packer {
    const struct mc_pack_cfg *cfg;
    int64_t max_seq;
    struct writer bin, idx, json;
    uint16_t *ids; /* [BUF_IDS], little-endian */
    int64_t nids;
    struct mc_hasher *chunk;
    int64_t chunk_left; /* bytes until the present chunk is full */
    uint64_t *chunks;
    int64_t nchunks, cap_chunks;
    int32_t *len; /* of each sequence */
    int64_t nseq, cap_seq;
    int64_t *doc; /* first sequence of each document */
    int64_t ndoc, cap_doc;
    int64_t tokens, bytes_in, bytes_all, shown_ns;
};

/* ---- files ---- */

static mc_status out_open(struct writer *w, const char *prefix, const char *ext, struct mc_err *err)
{
    w->fd = -1;
    snprintf(w->path, sizeof w->path, "%s.%s", prefix, ext);
    snprintf(w->tmp, sizeof w->tmp, "%s.tmp", w->path);
    if (access(w->path, F_OK) == 0) /* I3 */
        return mc_err_set(err, MC_E_USAGE,
                          "%s exists already: remove it, or choose another output prefix", w->path);
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

static mc_status flush_ids(struct packer *k, struct mc_err *err)
{
    const unsigned char *p = (const unsigned char *)k->ids;
    int64_t n = 2 * k->nids;
    MC_TRY(out_add(&k->bin, p, (size_t)n, err));
    while (n > 0) {
        int64_t part = n < k->chunk_left ? n : k->chunk_left;
        mc_hasher_add(k->chunk, p, (size_t)part);
        p += part;
        n -= part;
        if ((k->chunk_left -= part) == 0)
            MC_TRY(end_chunk(k, err));
    }
    k->nids = 0;
    return MC_OK;
}

static mc_status put_id(struct packer *k, unsigned id, struct mc_err *err)
{
    unsigned char *p = (unsigned char *)&k->ids[k->nids];
    p[0] = (unsigned char)id;
    p[1] = (unsigned char)(id >> 8);
    return ++k->nids == BUF_IDS ? flush_ids(k, err) : MC_OK;
}

static void show_progress(struct packer *k, int last)
{
    int64_t now = mc_clock_ns();
    if (!k->cfg->progress || (!last && now - k->shown_ns < 200000000))
        return;
    k->shown_ns = now;
    double all = k->bytes_all > 0 ? (double)k->bytes_all : 1;
    fprintf(stderr, "\rpack: %3.0f %%  %.1f of %.1f MB%s",
            k->bytes_all > 0 ? 100 * (double)k->bytes_in / all : 100.0, (double)k->bytes_in / 1e6,
            (double)k->bytes_all / 1e6, last ? "\n" : "");
    fflush(stderr);
}

static mc_status put_sequences(struct packer *k, int64_t tokens, struct mc_err *err)
{
    do { /* an empty document without EOS is one empty sequence */
        int64_t n = tokens < k->max_seq ? tokens : k->max_seq;
        MC_TRY(room((void **)&k->len, &k->cap_seq, k->nseq, sizeof *k->len, err));
        k->len[k->nseq++] = (int32_t)n;
        tokens -= n;
    } while (tokens > 0);
    return MC_OK;
}

static mc_status put_document(struct packer *k, const char *path, struct mc_err *err)
{
    struct mc_map m;
    mc_status st = MC_OK;
    MC_TRY(room((void **)&k->doc, &k->cap_doc, k->ndoc, sizeof *k->doc, err));
    k->doc[k->ndoc++] = k->nseq;
    MC_TRY(mc_sys_map_ro(path, &m, err));
    int64_t tokens = m.bytes + (k->cfg->append_eos != 0);
    for (int64_t i = 0; i < m.bytes; i++) {
        MC_TRY_GOTO(st, put_id(k, m.data[i], err), out);
        if ((i & 0xfffff) == 0xfffff) {
            k->bytes_in += 0x100000;
            show_progress(k, 0);
        }
    }
    k->bytes_in += m.bytes & 0xfffff;
    if (k->cfg->append_eos)
        MC_TRY_GOTO(st, put_id(k, MC_BYTES_EOS, err), out);
    MC_TRY_GOTO(st, put_sequences(k, tokens, err), out);
    k->tokens += tokens;
    show_progress(k, 0);
out:
    mc_sys_unmap(&m);
    return st;
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
    MC_TRY(out_add(&k->idx, "\x08", 1, err)); /* u16 */
    MC_TRY(put_le(&k->idx, counts, NULL, 2, err));
    MC_TRY(put_le(&k->idx, NULL, k->len, k->nseq, err));
    int64_t batch[512];
    for (int64_t i = 0; i < k->nseq;) {
        int n = 0;
        for (; n < 512 && i < k->nseq; n++, i++) {
            batch[n] = off;
            off += 2 * (int64_t)k->len[i];
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
    mc_json_str(&j, "tokenizer", "bytes");
    mc_json_bool(&j, "eos", k->cfg->append_eos != 0);
    mc_json_i64(&j, "documents", k->ndoc);
    mc_json_i64(&j, "tokens", k->tokens);
    mc_json_i64(&j, "bytes", k->bytes_in);
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

static mc_status list_inputs(struct packer *k, struct mc_files *f, struct mc_err *err)
{
    for (int i = 0; i < k->cfg->ninputs; i++) {
        enum mc_source_kind kind;
        char prefix[MC_PATH];
        MC_TRY(mc_source_classify(k->cfg->inputs[i], &kind, prefix, err));
        if (kind == MC_SOURCE_PACKED)
            return mc_err_set(err, MC_E_USAGE, "%s: packed already; pack takes text",
                              k->cfg->inputs[i]);
        MC_TRY(mc_source_files(k->cfg->inputs[i], &f[i], err));
        for (int n = 0; n < f[i].n; n++)
            k->bytes_all += f[i].bytes[n];
    }
    return MC_OK;
}

static mc_status write_all(struct packer *k, const struct mc_files *f, struct mc_err *err)
{
    char dir[MC_PATH];
    MC_TRY(out_start(&k->bin, err));
    for (int i = 0; i < k->cfg->ninputs; i++)
        for (int n = 0; n < f[i].n; n++)
            MC_TRY(put_document(k, f[i].path[n], err));
    MC_TRY(flush_ids(k, err));
    if (k->chunk_left < MC_SIDECAR_CHUNK)
        MC_TRY(end_chunk(k, err));
    MC_TRY(out_finish(&k->bin, err));
    MC_TRY(out_start(&k->idx, err));
    MC_TRY(write_idx(k, err));
    MC_TRY(out_finish(&k->idx, err));
    MC_TRY(out_start(&k->json, err));
    MC_TRY(write_sidecar(k, err));
    MC_TRY(out_finish(&k->json, err));
    MC_TRY(out_rename(&k->bin, err)); /* I1 */
    MC_TRY(out_rename(&k->idx, err));
    MC_TRY(out_rename(&k->json, err));
    mc_path_dir(dir, sizeof dir, k->bin.path);
    return mc_sys_fsync_dir(dir, err);
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
    k->ids = mc_alloc(BUF_IDS * sizeof *k->ids, "ids being packed");
    k->chunk = mc_hasher_create();
    k->chunk_left = MC_SIDECAR_CHUNK;
    if (!k->ids || !k->chunk)
        return mc_err_set(err, MC_E_NOMEM, "no memory to pack");
    return MC_OK;
}

mc_status mc_pack_split(const struct mc_pack_cfg *cfg, int64_t max_seq, struct mc_pack_stats *stats,
                        struct mc_err *err)
{
    if (cfg->ninputs < 1)
        return mc_err_set(err, MC_E_USAGE, "pack: no input; give files or folders of text");
    struct packer *k = mc_alloc(sizeof *k, "packer");
    struct mc_files *f = mc_alloc((size_t)cfg->ninputs * sizeof *f, "file lists");
    mc_status st = MC_OK;
    if (!k || !f) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory to pack");
        goto out;
    }
    k->cfg = cfg;
    k->max_seq = max_seq;
    k->bin.fd = k->idx.fd = k->json.fd = -1;
    MC_TRY_GOTO(st, open_outputs(k, err), out);
    MC_TRY_GOTO(st, list_inputs(k, f, err), out); /* I4 */
    MC_TRY_GOTO(st, write_all(k, f, err), out);
    show_progress(k, 1);
    *stats = (struct mc_pack_stats){k->ndoc, k->tokens, k->bytes_in, mc_hasher_value(k->bin.hash)};
out:
    if (k) {
        out_drop(&k->json, st != MC_OK);
        out_drop(&k->idx, st != MC_OK);
        out_drop(&k->bin, st != MC_OK);
        mc_hasher_destroy(k->chunk);
        mc_free(k->ids);
        mc_free(k->chunks);
        mc_free(k->len);
        mc_free(k->doc);
    }
    for (int i = 0; f && i < cfg->ninputs; i++)
        mc_source_files_fini(&f[i]);
    mc_free(f);
    mc_free(k);
    return st;
}

mc_status mc_data_pack(const struct mc_pack_cfg *cfg, struct mc_pack_stats *stats,
                       struct mc_err *err)
{
    return mc_pack_split(cfg, INT32_MAX, stats, err);
}
