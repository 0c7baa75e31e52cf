/* pack_read.c - inputs to blocks: pieces of texts, whole lines of JSONL.
 * Floor 3 (data). Includes: base recipe.
 *
 * A text file is one document: it is cut into blocks anywhere when the encoder allows it (bytes),
 * else it is one block. JSONL is cut after the last line end that fits; a longer line gets a longer
 * block.
 *
 * I1  Lines are at most 64 MiB, texts of encoders that want them whole 1 GiB: longer ones are
 *     errors with file and line.
 * I2  The blocks are the same whoever encodes them: they depend on the inputs only.
 * I3  On an error the blocks before it stand: what is wrong in them comes first.
 * Memory: blocks keep their buffers from round to round. Threads: one at a time. */
#include "pack_int.h"
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"

int mc_pack_is_jsonl(const char *path)
{
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".gz"))
        n -= 3;
    else if (n > 4 && !strcmp(path + n - 4, ".zst"))
        n -= 4;
    return (n > 6 && !strncmp(path + n - 6, ".jsonl", 6)) ||
           (n > 7 && !strncmp(path + n - 7, ".ndjson", 7));
}

static mc_status room(char **buf, size_t *cap, size_t keep, size_t want, const char *path,
                      struct mc_err *err)
{
    if (want <= *cap)
        return MC_OK;
    size_t n = *cap ? *cap : MC_PACK_BLOCK;
    while (n < want)
        n *= 2;
    char *p = mc_grow(*buf, keep, n, "text being packed");
    if (!p)
        return mc_err_set(err, MC_E_NOMEM, "%s: no memory for %zu bytes of text", path, n);
    *buf = p;
    *cap = n;
    return MC_OK;
}

/* Reads on until the block has `want` bytes; *end: the input has no more. */
static mc_status more(struct mc_pack_reader *r, struct mc_pack_block *b, size_t want, int *end,
                      struct mc_err *err)
{
    size_t got = 0, ask = want - b->bytes;
    MC_TRY(room(&b->text, &b->cap, b->bytes, want, b->file, err));
    MC_TRY(mc_stream_read(r->s, b->text + b->bytes, ask, &got, err));
    b->bytes += got;
    *end = got < ask;
    return MC_OK;
}

static mc_status fill_text(struct mc_pack_reader *r, struct mc_pack_block *b, int *end,
                           struct mc_err *err)
{
    b->first = !r->begun;
    for (size_t want = MC_PACK_BLOCK;; want *= 2) {
        MC_TRY(more(r, b, want, end, err));
        if (*end || !r->whole)
            break;
        if (want >= MC_PACK_DOCUMENT) /* I1 */
            return mc_err_set(err, MC_E_FORMAT,
                              "%s: one text of more than %d MiB; a tokenizer wants a document "
                              "whole: split it, or make it JSONL",
                              b->file, MC_PACK_DOCUMENT >> 20);
    }
    b->last = *end;
    return MC_OK;
}

/* Bytes up to and with the last line end at or after `from`; 0: none. */
static size_t whole_lines(const struct mc_pack_block *b, size_t from)
{
    const char *at = b->bytes > from ? memrchr(b->text + from, '\n', b->bytes - from) : NULL;
    return at ? (size_t)(at - b->text) + 1 : 0;
}

static mc_status fill_lines(struct mc_pack_reader *r, struct mc_pack_block *b, int *end,
                            struct mc_err *err)
{
    size_t cut = 0, seen = 0;
    b->line = r->line;
    MC_TRY(room(&b->text, &b->cap, 0, r->nrest + 1, b->file, err));
    if (r->nrest)
        memcpy(b->text, r->rest, r->nrest);
    b->bytes = r->nrest;
    r->nrest = 0;
    for (size_t want = MC_PACK_BLOCK;; want *= 2) {
        if (want > MC_PACK_LINE)
            want = MC_PACK_LINE + 1;
        else if (want <= b->bytes)
            continue;
        MC_TRY(more(r, b, want, end, err));
        cut = whole_lines(b, seen);
        if (cut == 0 && b->bytes > MC_PACK_LINE) /* I1 */
            return mc_err_set(err, MC_E_FORMAT, "%s:%lld: a line of more than %d MiB", b->file,
                              (long long)b->line, MC_PACK_LINE >> 20);
        if (*end || cut > 0)
            break;
        seen = b->bytes;
    }
    if (!*end) {
        r->nrest = b->bytes - cut;
        MC_TRY(room(&r->rest, &r->cap_rest, 0, r->nrest + 1, b->file, err));
        memcpy(r->rest, b->text + cut, r->nrest);
        b->bytes = cut;
    }
    const char *at = b->text, *stop = b->text + b->bytes;
    while (at < stop && (at = memchr(at, '\n', (size_t)(stop - at)))) {
        r->line++;
        at++;
    }
    return MC_OK;
}

static mc_status fill(struct mc_pack_reader *r, struct mc_pack_block *b, struct mc_err *err)
{
    const struct mc_pack_input *in = &r->in[r->at];
    int end = 0;
    b->file = in->path;
    b->jsonl = in->jsonl;
    b->first = b->last = 0;
    b->bytes = 0;
    if (!r->s) {
        MC_TRY(mc_stream_open(in->path, in->bytes, &r->s, err));
        r->line = 1;
        r->begun = 0;
        r->nrest = 0;
    }
    if (in->jsonl)
        MC_TRY(fill_lines(r, b, &end, err));
    else
        MC_TRY(fill_text(r, b, &end, err));
    r->begun = 1;
    b->taken = r->taken + mc_stream_taken(r->s);
    if (end) {
        mc_stream_close(r->s);
        r->s = NULL;
        r->taken += in->bytes;
        b->taken = r->taken;
        r->at++;
    }
    return MC_OK;
}

mc_status mc_pack_read(struct mc_pack_reader *r, struct mc_pack_block *b, int n, int *filled,
                       struct mc_err *err)
{
    for (*filled = 0; *filled < n && r->at < r->nin; ++*filled)
        MC_TRY(fill(r, &b[*filled], err)); /* I3 */
    r->done = r->at == r->nin;
    return MC_OK;
}

void mc_pack_reader_fini(struct mc_pack_reader *r)
{
    mc_stream_close(r->s);
    mc_free(r->rest);
    r->s = NULL;
    r->rest = NULL;
}
