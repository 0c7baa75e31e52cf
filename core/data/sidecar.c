/* sidecar.c - prefix.json beside packed data: what it was made of, and its hashes.
 * Floor 3 (data). Includes: base recipe.
 *
 * One JSON object, written last by pack.c:
 *   format "mascon.pack"   version 1   tokenizer "bytes" or the file's name
 *   tokenizer_xxh3                XXH3-64 of the tokenizer's file; not there for bytes
 *   documents, tokens, bytes      counts; bytes: of the inputs
 *   vocab, max_id                 of the ids; max_id: the largest in .bin, -1: none
 *   bin_bytes, idx_bytes          sizes
 *   bin_xxh3, idx_xxh3            XXH3-64 of each file, 16 hex digits
 *   chunk                         bytes of .bin under one entry of the next list
 *   bin_chunks                    XXH3-64 of each chunk: says where damage is
 *   inputs                        paths as given
 *
 * I1  It is foreign input like any other: bounded (1 GiB, enough for 700 TB of .bin), typed, each
 *     number checked; the number of chunks must be that of bin_bytes.
 * Memory: handle life; chunk_hash is the caller's, freed by mc_sidecar_fini(). */
#include "data_int.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"

static int hex64(const char *s, uint64_t *v)
{
    uint64_t x = 0;
    if (!s || strlen(s) != 16)
        return 0;
    for (; *s; s++) {
        const char *digits = "0123456789abcdef", *at = strchr(digits, *s);
        if (!at)
            return 0;
        x = x << 4 | (uint64_t)(at - digits);
    }
    *v = x;
    return 1;
}

static int count(json_t *o, const char *key, int64_t *v)
{
    json_t *e = json_object_get(o, key);
    if (!json_is_integer(e) || json_integer_value(e) < 0)
        return 0;
    *v = json_integer_value(e);
    return 1;
}

static mc_status parse(json_t *o, const char *path, struct mc_sidecar *s, struct mc_err *err)
{
    const char *format = json_string_value(json_object_get(o, "format"));
    const char *tok = json_string_value(json_object_get(o, "tokenizer"));
    json_t *list = json_object_get(o, "bin_chunks");
    int64_t version;
    if (!format || strcmp(format, "mascon.pack") != 0 || !count(o, "version", &version))
        return mc_err_set(err, MC_E_FORMAT, "%s: not a sidecar of packed data", path);
    if (version != 1)
        return mc_err_set(err, MC_E_FORMAT, "%s: version %lld, this reader knows 1", path,
                          (long long)version);
    if (!tok || strlen(tok) >= sizeof s->tokenizer || !count(o, "documents", &s->documents) ||
        !count(o, "tokens", &s->tokens) || !count(o, "bin_bytes", &s->bin_bytes) ||
        !count(o, "idx_bytes", &s->idx_bytes) || !count(o, "chunk", &s->chunk) ||
        !hex64(json_string_value(json_object_get(o, "bin_xxh3")), &s->bin_hash) ||
        !hex64(json_string_value(json_object_get(o, "idx_xxh3")), &s->idx_hash))
        return mc_err_set(err, MC_E_FORMAT, "%s: a member is missing or of the wrong type", path);
    json_t *th = json_object_get(o, "tokenizer_xxh3");
    if (th && !hex64(json_string_value(th), &s->tokenizer_hash))
        return mc_err_set(err, MC_E_FORMAT, "%s: tokenizer_xxh3 is not 16 hex digits", path);
    snprintf(s->tokenizer, sizeof s->tokenizer, "%s", tok);
    s->max_id = -1; /* a sidecar of an empty stream, or one that does not say */
    if (json_object_get(o, "max_id") && json_integer_value(json_object_get(o, "max_id")) >= 0 &&
        !count(o, "max_id", &s->max_id))
        return mc_err_set(err, MC_E_FORMAT, "%s: max_id is not a number", path);
    s->nchunks = (int64_t)json_array_size(list);
    if (s->chunk < 4096 || s->nchunks != s->bin_bytes / s->chunk + (s->bin_bytes % s->chunk > 0))
        return mc_err_set(err, MC_E_FORMAT, "%s: %lld chunks of %lld bytes do not make %lld bytes",
                          path, (long long)s->nchunks, (long long)s->chunk,
                          (long long)s->bin_bytes);
    s->chunk_hash = mc_alloc((size_t)s->nchunks * sizeof *s->chunk_hash + 8, "sidecar");
    if (!s->chunk_hash)
        return mc_err_set(err, MC_E_NOMEM, "%s: no memory for %lld hashes", path,
                          (long long)s->nchunks);
    for (int64_t i = 0; i < s->nchunks; i++)
        if (!hex64(json_string_value(json_array_get(list, (size_t)i)), &s->chunk_hash[i]))
            return mc_err_set(err, MC_E_FORMAT, "%s: bin_chunks[%lld] is not 16 hex digits", path,
                              (long long)i);
    return MC_OK;
}

mc_status mc_sidecar_parse(const char *text, size_t n, const char *path, struct mc_sidecar *s,
                           struct mc_err *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    memset(s, 0, sizeof *s);
    if (!root)
        return mc_err_set(err, MC_E_FORMAT, "%s: not JSON: line %d: %s", path, why.line, why.text);
    mc_status st = parse(root, path, s, err);
    json_decref(root);
    if (st != MC_OK)
        mc_sidecar_fini(s);
    return st;
}

mc_status mc_sidecar_read(const char *prefix, struct mc_sidecar *s, struct mc_err *err)
{
    char path[MC_PATH + 8], *text;
    size_t n;
    memset(s, 0, sizeof *s);
    snprintf(path, sizeof path, "%s.json", prefix);
    MC_TRY(mc_sys_read_file(path, (size_t)1 << 30, &text, &n, err)); /* I1 */
    mc_status st = mc_sidecar_parse(text, n, path, s, err);
    mc_free(text);
    return st;
}

void mc_sidecar_fini(struct mc_sidecar *s)
{
    mc_free(s->chunk_hash);
    memset(s, 0, sizeof *s);
}
