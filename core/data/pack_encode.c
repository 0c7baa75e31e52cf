/* pack_encode.c - a block of text to token ids.
 * Floor 3 (data). Includes: base recipe.
 *
 * JSONL: a line is one object and gives one document, its member `key` (a string). Blank lines give
 * none. A byte order mark before the first line is skipped.
 *
 * I1  A line that is no such object is an error with file, line and what was found.
 * I2  Ids are checked against the encoder's vocabulary, then narrowed to the elements of .bin.
 * I3  A block touches nothing but itself and its thread's state.
 * Memory: the block's buffers; jansson keeps its own. Threads: any, one a block. */
#include "pack_int.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"

/* ---- bytes ---- */

static mc_status reserve(struct mc_pack_ids *ids, int64_t n, struct mc_err *err)
{
    if (n <= ids->cap)
        return MC_OK;
    int64_t cap = ids->cap ? ids->cap : 1 << 16;
    while (cap < n)
        cap *= 2;
    int32_t *v = mc_grow(ids->v, (size_t)ids->n * sizeof *v, (size_t)cap * sizeof *v, "ids");
    if (!v)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %lld ids", (long long)cap);
    ids->v = v;
    ids->cap = cap;
    return MC_OK;
}

static mc_status encode_bytes(void *state, const char *text, size_t n, struct mc_pack_ids *out,
                              struct mc_err *err)
{
    (void)state;
    MC_TRY(reserve(out, out->n + (int64_t)n, err));
    for (size_t i = 0; i < n; i++)
        out->v[out->n + (int64_t)i] = (unsigned char)text[i];
    out->n += (int64_t)n;
    return MC_OK;
}

const struct mc_pack_encoder mc_pack_bytes = {.name = "bytes",
                                              .vocab = MC_BYTES_VOCAB,
                                              .eos = MC_BYTES_EOS,
                                              .cuttable = 1,
                                              .encode = encode_bytes};

/* ---- blocks ---- */

static mc_status end_document(const struct mc_pack_job *job, struct mc_pack_block *b,
                              struct mc_err *err)
{
    if (!job->append_eos)
        return MC_OK;
    MC_TRY(reserve(&b->ids, b->ids.n + 1, err));
    b->ids.v[b->ids.n++] = job->enc->eos;
    return MC_OK;
}

static mc_status count_document(struct mc_pack_block *b, int64_t tokens, struct mc_err *err)
{
    if (b->ndoc == b->cap_doc) {
        int64_t cap = b->cap_doc ? 2 * b->cap_doc : 256;
        int64_t *p = mc_grow(b->doc, (size_t)b->ndoc * sizeof *p, (size_t)cap * sizeof *p, "doc");
        if (!p)
            return mc_err_set(err, MC_E_NOMEM, "no memory for %lld documents", (long long)cap);
        b->doc = p;
        b->cap_doc = cap;
    }
    b->doc[b->ndoc++] = tokens;
    return MC_OK;
}

static const char *kind_of(const json_t *v)
{
    static const char *const name[] = {"an object", "a list", "a string", "a number",
                                       "a number",  "true",   "false",    "null"};
    return name[json_typeof(v)];
}

/* I1: what the line has instead. */
static mc_status no_text(const char *where, const char *key, json_t *o, struct mc_err *err)
{
    json_t *v = json_object_get(o, key);
    if (!json_is_object(o))
        return mc_err_set(err, MC_E_FORMAT, "%s: %s, not an object with a member \"%.60s\"", where,
                          kind_of(o), key);
    if (v)
        return mc_err_set(err, MC_E_FORMAT, "%s: \"%.60s\" is %s, not a string", where, key,
                          kind_of(v));
    char have[200] = "";
    size_t n = 0;
    const char *k;
    json_object_foreach(o, k, v) if (n < sizeof have - 80) n +=
        (size_t)snprintf(have + n, sizeof have - n, "%s\"%.60s\"", n ? ", " : "", k);
    return mc_err_set(err, MC_E_FORMAT, "%s: no member \"%.60s\"; it has %s (--key says which)",
                      where, key, n ? have : "none");
}

static mc_status encode_line(const struct mc_pack_job *job, struct mc_pack_block *b, int64_t line,
                             const char *text, size_t n, struct mc_err *err)
{
    char where[MC_PACK_NAME];
    json_error_t why;
    json_t *o =
        json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    snprintf(where, sizeof where, "%.*s:%lld", MC_PATH, b->file, (long long)line);
    if (!o && json_error_code(&why) == json_error_out_of_memory)
        return mc_err_set(err, MC_E_NOMEM, "%s: no memory to read the line", where);
    if (!o)
        return mc_err_set(err, MC_E_FORMAT, "%s: not JSON, at byte %d of the line: %s", where,
                          why.position, why.text);
    json_t *v = json_object_get(o, job->key);
    mc_status st = MC_OK;
    int64_t before = b->ids.n;
    if (!json_is_string(v)) {
        st = no_text(where, job->key, o, err);
        goto out;
    }
    size_t len = json_string_length(v);
    st = job->enc->encode(job->state, json_string_value(v), len, &b->ids, err);
    if (st == MC_OK)
        st = end_document(job, b, err);
    if (st == MC_OK)
        st = count_document(b, b->ids.n - before, err);
    b->text_bytes += (int64_t)len;
out:
    json_decref(o);
    return st;
}

static int is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r')
            return 0;
    return 1;
}

static mc_status encode_lines(const struct mc_pack_job *job, struct mc_pack_block *b,
                              struct mc_err *err)
{
    const char *at = b->text, *stop = b->text + b->bytes;
    if (b->line == 1 && b->bytes >= 3 && !memcmp(at, "\xef\xbb\xbf", 3))
        at += 3;
    for (int64_t line = b->line; at < stop; line++) {
        const char *end = memchr(at, '\n', (size_t)(stop - at));
        size_t n = (size_t)((end ? end : stop) - at);
        if (!is_blank(at, n))
            MC_TRY(encode_line(job, b, line, at, n, err));
        at = end ? end + 1 : stop;
    }
    return MC_OK;
}

/* I2: in place; an element is never wider than an id. */
static mc_status narrow(const struct mc_pack_job *job, struct mc_pack_block *b, struct mc_err *err)
{
    unsigned char *p = (unsigned char *)b->ids.v;
    for (int64_t i = 0; i < b->ids.n; i++) {
        int32_t id = b->ids.v[i];
        if (id < 0 || id >= job->enc->vocab)
            return mc_err_set(err, MC_E_BUG,
                              "%s: encoder \"%s\" gave id %d, its vocabulary is %lld", b->file,
                              job->enc->name, id, (long long)job->enc->vocab);
        b->max_id = id > b->max_id ? id : b->max_id;
        for (int k = 0; k < job->esize; k++)
            p[job->esize * i + k] = (unsigned char)((uint32_t)id >> 8 * k);
    }
    return MC_OK;
}

static mc_status encode(const struct mc_pack_job *job, struct mc_pack_block *b, struct mc_err *err)
{
    if (b->jsonl) {
        MC_TRY(encode_lines(job, b, err));
    } else {
        MC_TRY(job->enc->encode(job->state, b->text, b->bytes, &b->ids, err));
        b->text_bytes = (int64_t)b->bytes;
        if (b->last)
            MC_TRY(end_document(job, b, err));
    }
    return narrow(job, b, err);
}

void mc_pack_encode(const struct mc_pack_job *job, struct mc_pack_block *b)
{
    b->ids.n = b->ndoc = b->text_bytes = 0;
    b->max_id = -1;
    b->err = (struct mc_err){0};
    b->st = encode(job, b, &b->err);
}

void mc_pack_block_fini(struct mc_pack_block *b)
{
    mc_free(b->text);
    mc_free(b->ids.v);
    mc_free(b->doc);
    memset(b, 0, sizeof *b);
}
