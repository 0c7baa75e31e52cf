/* verify.c - `mascon data inspect` and `mascon data verify`: what a data path holds, and whether it
 * is what it was.
 * Floor 3 (data). Includes: base recipe.
 *
 * inspect reads structure only. verify reads every byte: the hashes of the sidecar, chunk by chunk
 * so that damage has a place; the structure; every id. All that is found is listed in the report;
 * the error carries the first finding and how many more there are.
 *
 * I1  A finding is MC_E_DIFF, whatever kind it is; the system refusing to read is not a finding.
 * I2  The report is one closed JSON object in either case.
 * Memory: handle life. Threads: the caller's. */
#include "data_int.h"
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"

enum { SCAN_IDS = 1 << 16, MAX_LISTED = 16 };

/* ---- inspect ---- */

static void put_hash(struct mc_json *j, const char *key, uint64_t h)
{
    char hex[17];
    mc_hash_hex(h, hex);
    mc_json_str(j, key, hex);
}

static mc_status inspect_text(const char *path, struct mc_json *j, struct mc_err *err)
{
    struct mc_files f;
    MC_TRY(mc_source_files(path, &f, err));
    int64_t bytes = 0, empty = 0;
    for (int i = 0; i < f.n; i++) {
        bytes += f.bytes[i];
        empty += f.bytes[i] == 0;
    }
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "path", path);
    mc_json_str(j, "kind", "text");
    mc_json_str(j, "tokenizer", "bytes");
    mc_json_i64(j, "documents", f.n);
    mc_json_i64(j, "empty_documents", empty);
    mc_json_i64(j, "bytes", bytes);
    mc_json_i64(j, "tokens", bytes + f.n);
    mc_json_i64(j, "vocab", MC_BYTES_VOCAB);
    mc_json_close(j, '}');
    mc_source_files_fini(&f);
    return MC_OK;
}

static void inspect_sidecar(const char *prefix, struct mc_json *j)
{
    struct mc_sidecar sc;
    mc_status st = mc_sidecar_read(prefix, &sc, NULL);
    if (st != MC_OK) {
        mc_json_str(j, "sidecar", st == MC_E_NOTFOUND ? "missing" : "not one of ours");
        return;
    }
    mc_json_open(j, "sidecar", '{');
    mc_json_str(j, "tokenizer", sc.tokenizer);
    mc_json_i64(j, "documents", sc.documents);
    mc_json_i64(j, "tokens", sc.tokens);
    put_hash(j, "bin_xxh3", sc.bin_hash);
    put_hash(j, "idx_xxh3", sc.idx_hash);
    mc_json_close(j, '}');
    mc_sidecar_fini(&sc);
}

static mc_status inspect_packed(const char *path, const char *prefix, struct mc_json *j,
                                struct mc_err *err)
{
    struct mc_indexed *x;
    MC_TRY(mc_indexed_open(prefix, &x, err));
    int64_t min = INT64_MAX, max = 0, empty = 0, n = mc_indexed_sequences(x);
    for (int64_t i = 0; i < n; i++) {
        int64_t off, len;
        MC_ASSERT(mc_indexed_sequence(x, i, &off, &len, NULL) == MC_OK);
        min = len < min ? len : min;
        max = len > max ? len : max;
        empty += len == 0;
    }
    struct mc_indexed_view v;
    mc_indexed_bytes(x, &v);
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "path", path);
    mc_json_str(j, "kind", "packed");
    mc_json_i64(j, "version", 1);
    mc_json_str(j, "dtype", mc_indexed_dtype_name(x));
    mc_json_i64(j, "documents", mc_indexed_documents(x));
    mc_json_i64(j, "sequences", n);
    mc_json_i64(j, "empty_sequences", empty);
    mc_json_i64(j, "shortest", n ? min : 0);
    mc_json_i64(j, "longest", max);
    mc_json_i64(j, "tokens", mc_indexed_tokens(x));
    mc_json_i64(j, "bin_bytes", v.bin_bytes);
    mc_json_i64(j, "idx_bytes", v.idx_bytes);
    mc_json_bool(j, "modes", mc_indexed_has_modes(x));
    inspect_sidecar(prefix, j);
    mc_json_close(j, '}');
    mc_indexed_close(x);
    return MC_OK;
}

mc_status mc_data_inspect(const char *path, struct mc_json *j, struct mc_err *err)
{
    enum mc_source_kind kind;
    char prefix[MC_PATH];
    MC_TRY(mc_source_classify(path, &kind, prefix, err));
    return kind == MC_SOURCE_TEXT ? inspect_text(path, j, err)
                                  : inspect_packed(path, prefix, j, err);
}

/* ---- verify ---- */

struct findings {
    struct mc_json *j; /* inside the list "errors" */
    int n;
    char first[1100];
};

static void found(struct findings *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void found(struct findings *f, const char *fmt, ...)
{
    char msg[1100];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (f->n++ == 0)
        memcpy(f->first, msg, sizeof msg);
    if (f->n <= MAX_LISTED)
        mc_json_str(f->j, NULL, msg);
}

static void check_chunks(struct findings *f, const char *prefix, const struct mc_map *bin,
                         const struct mc_sidecar *sc)
{
    for (int64_t i = 0; i < sc->nchunks && i * sc->chunk < bin->bytes; i++) {
        int64_t at = i * sc->chunk, n = bin->bytes - at < sc->chunk ? bin->bytes - at : sc->chunk;
        if (mc_hash64(bin->data + at, (size_t)n) != sc->chunk_hash[i])
            found(f, "%s.bin: bytes %lld..%lld differ from what was packed", prefix, (long long)at,
                  (long long)(at + n - 1));
    }
}

static mc_status check_files(struct findings *f, const char *prefix, const struct mc_sidecar *sc,
                             struct mc_err *err)
{
    char path[MC_PATH + 8];
    struct mc_map bin = {0}, idx = {0};
    int before = f->n;
    mc_status st;
    snprintf(path, sizeof path, "%s.bin", prefix);
    MC_TRY_GOTO(st, mc_sys_map_ro(path, &bin, err), out);
    snprintf(path, sizeof path, "%s.idx", prefix);
    MC_TRY_GOTO(st, mc_sys_map_ro(path, &idx, err), out);
    if (bin.bytes != sc->bin_bytes)
        found(f, "%s.bin: %lld bytes, the sidecar says %lld", prefix, (long long)bin.bytes,
              (long long)sc->bin_bytes);
    if (idx.bytes != sc->idx_bytes)
        found(f, "%s.idx: %lld bytes, the sidecar says %lld", prefix, (long long)idx.bytes,
              (long long)sc->idx_bytes);
    else if (mc_hash64(idx.data, (size_t)idx.bytes) != sc->idx_hash)
        found(f, "%s.idx: differs from what was packed", prefix);
    check_chunks(f, prefix, &bin, sc);
    if (f->n == before && mc_hash64(bin.data, (size_t)bin.bytes) != sc->bin_hash)
        found(f, "%s.json: bin_xxh3 does not agree with bin_chunks: the sidecar is damaged",
              prefix);
out:
    mc_sys_unmap(&bin);
    mc_sys_unmap(&idx);
    return st;
}

struct scan {
    int64_t tokens, documents, max_id;
};

/* Reads every id; one finding for the first that is no id or past the vocabulary, with their
 * number. */
static mc_status scan_ids(struct findings *f, const struct mc_source *s, const char *path,
                          int64_t vocab, struct scan *sc, struct mc_err *err)
{
    int32_t *id = mc_alloc(SCAN_IDS * sizeof *id, "ids being verified");
    if (!id)
        return mc_err_set(err, MC_E_NOMEM, "no memory to verify %s", path);
    int64_t bad = 0, first = 0, first_id = 0;
    for (int64_t pos = 0; pos < sc->tokens; pos += SCAN_IDS) {
        int64_t n = sc->tokens - pos < SCAN_IDS ? sc->tokens - pos : SCAN_IDS;
        struct mc_err why = {0};
        if (mc_source_read(s, pos, n, id, &why) != MC_OK) {
            found(f, "%s", why.msg);
            break;
        }
        for (int64_t i = 0; i < n; i++) {
            if (id[i] > sc->max_id)
                sc->max_id = id[i];
            if (vocab > 0 && id[i] >= vocab && bad++ == 0) {
                first = pos + i;
                first_id = id[i];
            }
        }
    }
    mc_free(id);
    if (bad)
        found(f, "%s: %lld ids are past the vocabulary of %lld; the first is token %lld: %lld",
              path, (long long)bad, (long long)vocab, (long long)first, (long long)first_id);
    return MC_OK;
}

static mc_status verify_stream(struct findings *f, const char *path, int64_t vocab, struct scan *sc,
                               struct mc_err *err)
{
    struct mc_source *s;
    struct mc_err why = {0};
    mc_status st = mc_source_open(path, &s, &why);
    if (st == MC_E_FORMAT) {
        found(f, "%s", why.msg);
        return MC_OK;
    }
    if (st != MC_OK) {
        if (err && !err->code)
            *err = why;
        return st;
    }
    sc->tokens = mc_source_tokens(s);
    sc->documents = mc_source_documents(s);
    st = scan_ids(f, s, path, vocab, sc, err);
    mc_source_close(s);
    return st;
}

mc_status mc_data_verify(const char *path, int64_t vocab_or_0, struct mc_json *j,
                         struct mc_err *err)
{
    enum mc_source_kind kind;
    char prefix[MC_PATH];
    MC_TRY(mc_source_classify(path, &kind, prefix, err));
    struct findings f = {.j = j};
    struct scan sc = {.max_id = -1};
    struct mc_sidecar side = {0};
    struct mc_err why = {0};
    mc_status st = MC_OK, has = MC_E_NOTFOUND;
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "path", path);
    mc_json_str(j, "kind", kind == MC_SOURCE_TEXT ? "text" : "packed");
    mc_json_open(j, "errors", '[');
    if (kind == MC_SOURCE_PACKED) {
        has = mc_sidecar_read(prefix, &side, &why);
        if (has == MC_OK)
            st = check_files(&f, prefix, &side, err);
        else if (has == MC_E_FORMAT)
            found(&f, "%s", why.msg);
        else if (has != MC_E_NOTFOUND)
            st = mc_err_set(err, has, "%s", why.msg);
    }
    if (st == MC_OK)
        st = verify_stream(&f, path, vocab_or_0, &sc, err);
    mc_json_close(j, ']');
    mc_json_i64(j, "findings", f.n);
    if (kind == MC_SOURCE_PACKED)
        mc_json_str(j, "sidecar", has == MC_OK ? "read" : has == MC_E_NOTFOUND ? "missing" : "bad");
    mc_json_i64(j, "documents", sc.documents);
    mc_json_i64(j, "tokens", sc.tokens);
    mc_json_i64(j, "max_id", sc.max_id);
    mc_json_bool(j, "ok", st == MC_OK && f.n == 0);
    mc_json_close(j, '}'); /* I2 */
    mc_sidecar_fini(&side);
    MC_TRY(st);
    if (f.n == 0)
        return MC_OK;
    return f.n == 1 ? mc_err_set(err, MC_E_DIFF, "%s", f.first)
                    : mc_err_set(err, MC_E_DIFF, "%s (and %d more findings)", f.first, f.n - 1);
}
