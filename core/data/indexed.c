/* indexed.c - read Megatron's .bin/.idx as they are.
 * Floor 3 (data). Includes: base tensor recipe.
 *
 * PREFIX.bin: token ids, little-endian, back to back, nothing else.
 * PREFIX.idx, little-endian, unaligned:
 *   offset           size  meaning
 *   0                9     "MMIDIDX" 0 0
 *   9                8     version, u64: 1
 *   17               1     element type of .bin: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8
 * u16 18               8     S, sequences, u64 26               8     D, entries of the document
 * array, u64: documents + 1 34               4*S   length of each sequence in tokens, i32 34 + 4S
 * 8*S   byte offset of each sequence in .bin, i64 34 + 12S         8*D   first sequence of each
 * document, i64; the last entry is S 34 + 12S + 8D    S     modes, i8: optional (there or not by
 * the size of the file); not used here
 *
 * I1  Nothing in the file is believed: counts are held against the file's size before any product
 *     of them is formed, every length, offset and document start is checked once, at open; after
 *     that no read can leave the maps.
 * I2  Sequences may leave gaps in .bin, so a read honours their offsets; they may neither overlap
 *     nor go backwards, so no token is in the stream twice; the last one ends where .bin ends, so
 *     none is left out.
 * I3  The stream is sequence 0, 1, ... S-1. Its positions are found by a table of one entry for
 *     every 64 sequences, then by walking at most 63 lengths: 1/8 byte of memory a sequence.
 * I4  Ids are handed out as int32 and are in [0, 2^31): others are an error with their position.
 * I5  Bytes that a sidecar vouches for (mc_indexed_expect) are hashed once, a chunk at a time,
 *     before the first token of the chunk is handed out; a .bin above 8 GiB only at its two ends,
 *     at open: whole chunks behind scattered reads would cost more than the reads. Nothing is
 *     allocated.
 *
 * Memory: handle life; the maps are shared with the page cache. A file that is cut while it is
 * mapped is a SIGBUS (cli/bus.c names it): packed files are never written in place, see pack.c.
 * Threads: read-only after open but for the marks of I5, which may be set twice; any number of
 * readers. */
#include "data_int.h"
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"

enum { IDX_HEAD = 34, STRIDE = 64 };
static const int64_t CHECKED = INT64_C(8) << 30; /* I5 */

static const struct {
    const char *name;
    int size;
    enum mc_dtype dtype;
} kinds[9] = {
    {"", 0, MC_NDTYPES},    {"u8", 1, MC_U8},   {"i8", 1, MC_NDTYPES},
    {"i16", 2, MC_NDTYPES}, {"i32", 4, MC_I32}, {"i64", 8, MC_I64},
    {"f64", 8, MC_F64},     {"f32", 4, MC_F32}, {"u16", 2, MC_U16},
};

struct mc_indexed {
    char prefix[MC_PATH];
    struct mc_map idx, bin;
    int mapped; /* 1: the maps are ours */
    int code, esize;
    int modes;
    int64_t nseq, ndoc, tokens;
    int64_t *start;       /* [ceil(nseq/64)] stream position of sequence 64 b */
    int64_t chunk;        /* bytes; 0: nothing is vouched for */
    uint64_t *chunk_hash; /* [ceil(bin bytes / chunk)] */
    unsigned char *sound; /* the same: 1 once its hash was found right */
};

static uint64_t le64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static uint32_t le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int64_t seq_len(const struct mc_indexed *x, int64_t i)
{
    return (int32_t)le32(x->idx.data + IDX_HEAD + 4 * i);
}

static int64_t seq_off(const struct mc_indexed *x, int64_t i)
{
    return (int64_t)le64(x->idx.data + IDX_HEAD + 4 * x->nseq + 8 * i);
}

static int64_t doc_start(const struct mc_indexed *x, int64_t i)
{
    return (int64_t)le64(x->idx.data + IDX_HEAD + 12 * x->nseq + 8 * i);
}

static mc_status check_head(struct mc_indexed *x, struct mc_err *err)
{
    const unsigned char *p = x->idx.data;
    int64_t size = x->idx.bytes;
    if (size < IDX_HEAD)
        return mc_err_set(err, MC_E_FORMAT,
                          "%s.idx: %lld bytes, but the header alone has %d: truncated, or not an "
                          "index",
                          x->prefix, (long long)size, IDX_HEAD);
    if (memcmp(p, "MMIDIDX\0\0", 9) != 0)
        return mc_err_set(err, MC_E_FORMAT,
                          "%s.idx: does not start with MMIDIDX: not an index of tokens", x->prefix);
    if (le64(p + 9) != 1)
        return mc_err_set(err, MC_E_FORMAT, "%s.idx: version %llu, this reader knows 1", x->prefix,
                          (unsigned long long)le64(p + 9));
    x->code = p[17];
    if (x->code < 1 || x->code > 8)
        return mc_err_set(err, MC_E_FORMAT, "%s.idx: element type code %d at byte 17, known: 1..8",
                          x->prefix, x->code);
    x->esize = kinds[x->code].size;
    if (x->code == 6 || x->code == 7)
        return mc_err_set(err, MC_E_FORMAT, "%s.idx: elements are %s: token ids are integers",
                          x->prefix, kinds[x->code].name);
    /* I1: divide the file's size, never multiply its claims. */
    uint64_t s = le64(p + 18), d = le64(p + 26), rest = (uint64_t)(size - IDX_HEAD);
    if (s > rest / 12)
        return mc_err_set(err, MC_E_FORMAT,
                          "%s.idx: claims %llu sequences, its %lld bytes hold at most %llu: "
                          "truncated or damaged",
                          x->prefix, (unsigned long long)s, (long long)size,
                          (unsigned long long)(rest / 12));
    rest -= 12 * s;
    if (d > rest / 8)
        return mc_err_set(err, MC_E_FORMAT,
                          "%s.idx: claims %llu document entries, after %llu sequences there is "
                          "room for %llu: truncated or damaged",
                          x->prefix, (unsigned long long)d, (unsigned long long)s,
                          (unsigned long long)(rest / 8));
    rest -= 8 * d;
    if (rest != 0 && rest != s)
        return mc_err_set(err, MC_E_FORMAT,
                          "%s.idx: %llu bytes follow the document array, expected none or %llu "
                          "(modes)",
                          x->prefix, (unsigned long long)rest, (unsigned long long)s);
    if (d < 1)
        return mc_err_set(err, MC_E_FORMAT, "%s.idx: the document array is empty", x->prefix);
    x->nseq = (int64_t)s;
    x->ndoc = (int64_t)d - 1;
    x->modes = s > 0 && rest == s;
    return MC_OK;
}

static mc_status check_sequences(struct mc_indexed *x, struct mc_err *err)
{
    int64_t end = 0, tokens = 0; /* byte after the previous sequence; tokens so far */
    for (int64_t i = 0; i < x->nseq; i++) {
        int64_t len = seq_len(x, i), off = seq_off(x, i);
        if (i % STRIDE == 0)
            x->start[i / STRIDE] = tokens;
        if (len < 0)
            return mc_err_set(err, MC_E_FORMAT, "%s.idx: sequence %lld has length %lld", x->prefix,
                              (long long)i, (long long)len);
        if (off < 0 || off % x->esize != 0)
            return mc_err_set(err, MC_E_FORMAT,
                              "%s.idx: sequence %lld starts at byte %lld, not at a multiple of the "
                              "element size %d",
                              x->prefix, (long long)i, (long long)off, x->esize);
        if (off < end) /* I2 */
            return mc_err_set(err, MC_E_FORMAT,
                              "%s.idx: sequence %lld starts at byte %lld, before the end of the "
                              "one before it (%lld)",
                              x->prefix, (long long)i, (long long)off, (long long)end);
        if (off > x->bin.bytes || len > (x->bin.bytes - off) / x->esize)
            return mc_err_set(err, MC_E_FORMAT,
                              "%s.bin: %lld bytes, but sequence %lld is %lld %s at byte %lld: "
                              "truncated, or not the file of this index",
                              x->prefix, (long long)x->bin.bytes, (long long)i, (long long)len,
                              kinds[x->code].name, (long long)off);
        end = off + len * x->esize;
        tokens += len; /* <= bin.bytes, as sequences do not overlap */
    }
    if (end < x->bin.bytes) /* I2 */
        return mc_err_set(err, MC_E_FORMAT,
                          "%s.bin: %lld bytes, but its index ends at byte %lld: too long, or not "
                          "the file of this index",
                          x->prefix, (long long)x->bin.bytes, (long long)end);
    x->tokens = tokens;
    return MC_OK;
}

static mc_status check_documents(const struct mc_indexed *x, struct mc_err *err)
{
    int64_t prev = 0;
    for (int64_t i = 0; i <= x->ndoc; i++) {
        int64_t s = doc_start(x, i);
        if (i == 0 && s != 0)
            return mc_err_set(err, MC_E_FORMAT, "%s.idx: document 0 starts at sequence %lld, not 0",
                              x->prefix, (long long)s);
        if (s < prev || s > x->nseq)
            return mc_err_set(err, MC_E_FORMAT,
                              "%s.idx: entry %lld of the document array is %lld, after %lld, of "
                              "%lld sequences: not ascending",
                              x->prefix, (long long)i, (long long)s, (long long)prev,
                              (long long)x->nseq);
        prev = s;
    }
    if (prev != x->nseq)
        return mc_err_set(err, MC_E_FORMAT,
                          "%s.idx: the document array ends at sequence %lld, there are %lld",
                          x->prefix, (long long)prev, (long long)x->nseq);
    return MC_OK;
}

/* Checks x->idx and x->bin and builds the table. */
static mc_status build(struct mc_indexed *x, struct mc_err *err)
{
    MC_TRY(check_head(x, err));
    size_t blocks = (size_t)((x->nseq + STRIDE - 1) / STRIDE);
    x->start = mc_alloc((blocks + 1) * sizeof *x->start, "table of sequences");
    if (!x->start)
        return mc_err_set(err, MC_E_NOMEM, "%s.idx: no memory for the table of %lld sequences",
                          x->prefix, (long long)x->nseq);
    MC_TRY(check_sequences(x, err));
    return check_documents(x, err);
}

mc_status mc_indexed_open(const char *prefix_or_file, struct mc_indexed **x, struct mc_err *err)
{
    size_t n = strlen(prefix_or_file);
    if (n > 4 &&
        (!strcmp(prefix_or_file + n - 4, ".idx") || !strcmp(prefix_or_file + n - 4, ".bin")))
        n -= 4;
    char path[MC_PATH + 8];
    if (n + 5 > MC_PATH)
        return mc_err_set(err, MC_E_FORMAT, "path of %zu bytes is too long: %.80s...", n,
                          prefix_or_file);
    struct mc_indexed *y = mc_alloc(sizeof *y, "index");
    if (!y)
        return mc_err_set(err, MC_E_NOMEM, "no memory to open %s", prefix_or_file);
    memcpy(y->prefix, prefix_or_file, n);
    y->mapped = 1;
    mc_status st;
    snprintf(path, sizeof path, "%s.idx", y->prefix);
    MC_TRY_GOTO(st, mc_sys_map_ro(path, &y->idx, err), fail);
    snprintf(path, sizeof path, "%s.bin", y->prefix);
    MC_TRY_GOTO(st, mc_sys_map_ro(path, &y->bin, err), fail);
    MC_TRY_GOTO(st, build(y, err), fail);
    *x = y;
    return MC_OK;
fail:
    mc_indexed_close(y);
    return st;
}

mc_status mc_indexed_open_memory(const void *idx, int64_t idx_bytes, const void *bin,
                                 int64_t bin_bytes, struct mc_indexed **x, struct mc_err *err)
{
    struct mc_indexed *y = mc_alloc(sizeof *y, "index");
    if (!y)
        return mc_err_set(err, MC_E_NOMEM, "no memory to open an index");
    snprintf(y->prefix, sizeof y->prefix, "(memory)");
    y->idx = (struct mc_map){idx, idx_bytes};
    y->bin = (struct mc_map){bin, bin_bytes};
    mc_status st;
    MC_TRY_GOTO(st, build(y, err), fail);
    *x = y;
    return MC_OK;
fail:
    mc_indexed_close(y);
    return st;
}

void mc_indexed_close(struct mc_indexed *x)
{
    if (!x)
        return;
    if (x->mapped) {
        mc_sys_unmap(&x->idx);
        mc_sys_unmap(&x->bin);
    }
    mc_free(x->start);
    mc_free(x->chunk_hash);
    mc_free(x->sound);
    mc_free(x);
}

/* I5: bytes [off, off + n) of .bin, n > 0. */
static mc_status check_chunks(const struct mc_indexed *x, int64_t off, int64_t n,
                              struct mc_err *err)
{
    for (int64_t c = off / x->chunk; c <= (off + n - 1) / x->chunk; c++) {
        if (__atomic_load_n(&x->sound[c], __ATOMIC_RELAXED))
            continue;
        int64_t at = c * x->chunk, len = x->bin.bytes - at;
        if (len > x->chunk)
            len = x->chunk;
        if (mc_hash64(x->bin.data + at, (size_t)len) != x->chunk_hash[c])
            return mc_err_set(err, MC_E_CORRUPT,
                              "%s.bin: bytes %lld to %lld are not those that were packed (their "
                              "hash in %s.json differs): restore the file from a copy, or pack it "
                              "again",
                              x->prefix, (long long)at, (long long)(at + len - 1), x->prefix);
        __atomic_store_n(&x->sound[c], 1, __ATOMIC_RELAXED);
    }
    return MC_OK;
}

mc_status mc_indexed_expect(struct mc_indexed *x, const struct mc_sidecar *sc, struct mc_err *err)
{
    const struct {
        const char *ext;
        int64_t have, said;
    } size[2] = {{"bin", x->bin.bytes, sc->bin_bytes}, {"idx", x->idx.bytes, sc->idx_bytes}};
    for (int i = 0; i < 2; i++)
        if (size[i].have != size[i].said)
            return mc_err_set(err, MC_E_CORRUPT,
                              "%s.%s: %lld bytes, but %lld were packed (%s.json): restore the file "
                              "from a copy, or pack it again",
                              x->prefix, size[i].ext, (long long)size[i].have,
                              (long long)size[i].said, x->prefix);
    if (mc_hash64(x->idx.data, (size_t)x->idx.bytes) != sc->idx_hash)
        return mc_err_set(err, MC_E_CORRUPT,
                          "%s.idx: bytes 0 to %lld are not those that were packed (their hash in "
                          "%s.json differs): restore the file from a copy, or pack it again",
                          x->prefix, (long long)x->idx.bytes - 1, x->prefix);
    if (sc->nchunks == 0)
        return MC_OK;
    x->chunk_hash = mc_alloc((size_t)sc->nchunks * sizeof *x->chunk_hash, "hashes of chunks");
    x->sound = mc_alloc((size_t)sc->nchunks, "hashes of chunks");
    if (!x->chunk_hash || !x->sound)
        return mc_err_set(err, MC_E_NOMEM, "%s: no memory for %lld hashes", x->prefix,
                          (long long)sc->nchunks);
    memcpy(x->chunk_hash, sc->chunk_hash, (size_t)sc->nchunks * sizeof *x->chunk_hash);
    x->chunk = sc->chunk;
    MC_TRY(check_chunks(x, 0, 1, err));
    MC_TRY(check_chunks(x, x->bin.bytes - 1, 1, err));
    if (x->bin.bytes > CHECKED)
        x->chunk = 0;
    return MC_OK;
}

int64_t mc_indexed_sequences(const struct mc_indexed *x)
{
    return x->nseq;
}

int64_t mc_indexed_documents(const struct mc_indexed *x)
{
    return x->ndoc;
}

int64_t mc_indexed_tokens(const struct mc_indexed *x)
{
    return x->tokens;
}

enum mc_dtype mc_indexed_dtype(const struct mc_indexed *x)
{
    return kinds[x->code].dtype;
}

const char *mc_indexed_dtype_name(const struct mc_indexed *x)
{
    return kinds[x->code].name;
}

int mc_indexed_has_modes(const struct mc_indexed *x)
{
    return x->modes;
}

void mc_indexed_bytes(const struct mc_indexed *x, struct mc_indexed_view *v)
{
    *v = (struct mc_indexed_view){x->bin.data, x->idx.data, x->bin.bytes, x->idx.bytes};
}

mc_status mc_indexed_sequence(const struct mc_indexed *x, int64_t i, int64_t *byte_offset,
                              int64_t *len, struct mc_err *err)
{
    if (i < 0 || i >= x->nseq)
        return mc_err_set(err, MC_E_NOTFOUND, "%s.idx: no sequence %lld, there are %lld", x->prefix,
                          (long long)i, (long long)x->nseq);
    *byte_offset = seq_off(x, i);
    *len = seq_len(x, i);
    return MC_OK;
}

int64_t mc_indexed_start(const struct mc_indexed *x, int64_t i)
{
    MC_ASSERT(i >= 0 && i < x->nseq);
    int64_t pos = x->start[i / STRIDE]; /* I3 */
    for (int64_t k = i / STRIDE * STRIDE; k < i; k++)
        pos += seq_len(x, k);
    return pos;
}

/* n elements at p -> int32. Returns the first element that is no id (I4), or n. */
static int64_t convert(int code, const unsigned char *p, int64_t n, int32_t *out)
{
    switch (code) {
    case 1:
        for (int64_t i = 0; i < n; i++)
            out[i] = p[i];
        return n;
    case 8:
        for (int64_t i = 0; i < n; i++)
            out[i] = p[2 * i] | p[2 * i + 1] << 8;
        return n;
    case 2:
        for (int64_t i = 0; i < n; i++)
            if ((out[i] = (int8_t)p[i]) < 0)
                return i;
        return n;
    case 3:
        for (int64_t i = 0; i < n; i++)
            if ((out[i] = (int16_t)(p[2 * i] | p[2 * i + 1] << 8)) < 0)
                return i;
        return n;
    case 4:
        for (int64_t i = 0; i < n; i++)
            if ((out[i] = (int32_t)le32(p + 4 * i)) < 0)
                return i;
        return n;
    default:
        for (int64_t i = 0; i < n; i++) {
            uint64_t v = le64(p + 8 * i);
            if (v > INT32_MAX)
                return i;
            out[i] = (int32_t)v;
        }
        return n;
    }
}

/* The id that convert() stopped at, as it is in the file. */
static int64_t raw_id(int code, const unsigned char *p)
{
    switch (code) {
    case 2:
        return (int8_t)p[0];
    case 3:
        return (int16_t)(p[0] | p[1] << 8);
    case 4:
        return (int32_t)le32(p);
    default:
        return (int64_t)le64(p);
    }
}

mc_status mc_indexed_read(const struct mc_indexed *x, int64_t first_token, int64_t n, int32_t *out,
                          struct mc_err *err)
{
    if (first_token < 0 || n < 0 || first_token > x->tokens || n > x->tokens - first_token)
        return mc_err_set(err, MC_E_FORMAT, "%s: tokens %lld + %lld asked for, the stream has %lld",
                          x->prefix, (long long)first_token, (long long)n, (long long)x->tokens);
    if (n == 0)
        return MC_OK;
    int64_t lo = 0, hi = (x->nseq - 1) / STRIDE; /* I3: last block that starts at or before */
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (x->start[mid] <= first_token)
            lo = mid;
        else
            hi = mid - 1;
    }
    int64_t i = lo * STRIDE, skip = first_token - x->start[lo];
    while (skip >= seq_len(x, i)) {
        skip -= seq_len(x, i);
        i++;
    }
    for (int64_t done = 0; done < n; i++, skip = 0) {
        int64_t len = seq_len(x, i) - skip;
        if (len > n - done)
            len = n - done;
        if (len == 0)
            continue; /* an empty sequence at the very end of .bin has no byte to point at */
        int64_t at = seq_off(x, i) + skip * x->esize;
        if (x->chunk) /* I5 */
            MC_TRY(check_chunks(x, at, len * x->esize, err));
        const unsigned char *p = x->bin.data + at;
        int64_t ok = convert(x->code, p, len, out + done);
        if (ok < len)
            return mc_err_set(err, MC_E_FORMAT,
                              "%s.bin: token %lld of the stream (byte %lld) is %lld: not an id",
                              x->prefix, (long long)(first_token + done + ok),
                              (long long)(seq_off(x, i) + (skip + ok) * x->esize),
                              (long long)raw_id(x->code, p + ok * x->esize));
        done += len;
    }
    return MC_OK;
}
