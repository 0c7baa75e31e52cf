/* test_indexed.c - the reader of .bin/.idx against files made byte by byte here: every element
 * type, gaps, empty sequences and documents, sizes beyond 2^31 and 2^32, and each way to be
 * damaged. links: mc_data */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"
#include "../../core/data/data_int.h"

static char dir[64], prefix[96];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/mc-indexed-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(prefix, sizeof prefix, "%s/p", dir);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    char p[128];
    snprintf(p, sizeof p, "%s.idx", prefix);
    unlink(p);
    snprintf(p, sizeof p, "%s.bin", prefix);
    unlink(p);
    return rmdir(dir);
}

/* ---- an index in memory ---- */

struct img {
    unsigned char b[8192];
    int64_t n;
};

static void put(struct img *m, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        m->b[m->n++] = (unsigned char)(v >> 8 * i);
}

static void set(struct img *m, int64_t at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        m->b[at + i] = (unsigned char)(v >> 8 * i);
}

static struct img image(int code, int nseq, const int64_t *len, const int64_t *off, int ndoc,
                        const int64_t *doc)
{
    struct img m = {.n = 9};
    memcpy(m.b, "MMIDIDX\0\0", 9);
    put(&m, 1, 8);
    put(&m, (uint64_t)code, 1);
    put(&m, (uint64_t)nseq, 8);
    put(&m, (uint64_t)ndoc, 8);
    for (int i = 0; i < nseq; i++)
        put(&m, (uint64_t)len[i], 4);
    for (int i = 0; i < nseq; i++)
        put(&m, (uint64_t)off[i], 8);
    for (int i = 0; i < ndoc; i++)
        put(&m, (uint64_t)doc[i], 8);
    return m;
}

/* The index under test: 3 sequences of i16 with a gap of 4 bytes and an empty one, 3 documents, one
 * of them empty. */
static const int64_t len3[3] = {2, 0, 3}, off3[3] = {0, 4, 8}, doc3[4] = {0, 1, 1, 3};
static const unsigned char bin3[14] = {1, 0, 2, 0, 99, 99, 99, 99, 3, 0, 4, 1, 5, 0};

static mc_status open_img(const struct img *m, int64_t bin_bytes, struct mc_indexed **x,
                          struct mc_err *err)
{
    /* exact-size copies: a sanitizer sees any step over the end */
    unsigned char *i = malloc((size_t)m->n + !m->n), *b = malloc((size_t)bin_bytes + !bin_bytes);
    memcpy(i, m->b, (size_t)m->n);
    memset(b, 0, (size_t)bin_bytes);
    memcpy(b, bin3, (size_t)(bin_bytes < 14 ? bin_bytes : 14));
    mc_status st = mc_indexed_open_memory(i, m->n, b, bin_bytes, x, err);
    if (st == MC_OK) {
        int32_t id;
        for (int64_t t = 0; t < mc_indexed_tokens(*x); t++)
            (void)mc_indexed_read(*x, t, 1, &id, NULL);
        mc_indexed_close(*x);
    }
    free(i);
    free(b);
    return st;
}

static void indexed_honours_offsets_and_empty_parts(void **state)
{
    (void)state;
    struct img m = image(3, 3, len3, off3, 4, doc3);
    struct mc_indexed *x;
    assert_int_equal(mc_indexed_open_memory(m.b, m.n, bin3, 14, &x, NULL), MC_OK);
    assert_int_equal(mc_indexed_sequences(x), 3);
    assert_int_equal(mc_indexed_documents(x), 3);
    assert_int_equal(mc_indexed_tokens(x), 5);
    assert_string_equal(mc_indexed_dtype_name(x), "i16");
    static const int32_t want[5] = {1, 2, 3, 260, 5};
    for (int64_t a = 0; a <= 5; a++)
        for (int64_t n = 0; a + n <= 5; n++) {
            int32_t got[5];
            assert_int_equal(mc_indexed_read(x, a, n, got, NULL), MC_OK);
            assert_memory_equal(got, want + a, (size_t)n * 4);
        }
    int32_t id[6];
    int64_t off, len;
    assert_int_equal(mc_indexed_read(x, 0, 6, id, NULL), MC_E_FORMAT);
    assert_int_equal(mc_indexed_read(x, -1, 1, id, NULL), MC_E_FORMAT);
    assert_int_equal(mc_indexed_read(x, INT64_MAX, INT64_MAX, id, NULL), MC_E_FORMAT);
    assert_int_equal(mc_indexed_sequence(x, 2, &off, &len, NULL), MC_OK);
    assert_int_equal(off, 8);
    assert_int_equal(len, 3);
    assert_int_equal(mc_indexed_sequence(x, 3, &off, &len, NULL), MC_E_NOTFOUND);
    mc_indexed_close(x);
}

static void indexed_reads_every_integer_type(void **state)
{
    (void)state;
    static const struct {
        int code, size;
        const char *name;
        int32_t max; /* largest id that the type holds */
    } t[] = {{1, 1, "u8", 255},        {2, 1, "i8", 127},        {3, 2, "i16", 32767},
             {4, 4, "i32", INT32_MAX}, {5, 8, "i64", INT32_MAX}, {8, 2, "u16", 65535}};
    for (int k = 0; k < 6; k++) {
        struct img bin = {.n = 0};
        int64_t len = 3, off = 0, doc[2] = {0, 1};
        put(&bin, 7, t[k].size);
        put(&bin, (uint64_t)t[k].max, t[k].size);
        put(&bin, t[k].code == 5 ? 1ull << 31 : ~0ull, t[k].size); /* i64: too large; signed: -1 */
        struct img m = image(t[k].code, 1, &len, &off, 2, doc);
        struct mc_indexed *x;
        int32_t id[3] = {0};
        assert_int_equal(mc_indexed_open_memory(m.b, m.n, bin.b, bin.n, &x, NULL), MC_OK);
        assert_string_equal(mc_indexed_dtype_name(x), t[k].name);
        assert_int_equal(mc_indexed_read(x, 0, 2, id, NULL), MC_OK);
        assert_int_equal(id[0], 7);
        assert_int_equal(id[1], t[k].max);
        struct mc_err err = {0};
        mc_status st = mc_indexed_read(x, 1, 2, id, &err);
        if (t[k].name[0] == 'u') {
            assert_int_equal(st, MC_OK);
        } else {
            assert_int_equal(st, MC_E_FORMAT);
            assert_non_null(strstr(err.msg, "token 2"));
            assert_non_null(strstr(err.msg, t[k].code == 5 ? "2147483648" : "-1"));
        }
        mc_indexed_close(x);
    }
}

static void indexed_knows_modes(void **state)
{
    (void)state;
    struct img m = image(3, 3, len3, off3, 4, doc3);
    put(&m, 0x010101, 3);
    struct mc_indexed *x;
    assert_int_equal(mc_indexed_open_memory(m.b, m.n, bin3, 14, &x, NULL), MC_OK);
    assert_true(mc_indexed_has_modes(x));
    mc_indexed_close(x);
    int64_t none[1] = {0};
    m = image(8, 0, NULL, NULL, 1, none); /* nothing at all is legal here */
    assert_int_equal(mc_indexed_open_memory(m.b, m.n, NULL, 0, &x, NULL), MC_OK);
    assert_int_equal(mc_indexed_tokens(x), 0);
    assert_false(mc_indexed_has_modes(x));
    mc_indexed_close(x);
}

static void refused(const struct img *m, int64_t bin_bytes, const char *what)
{
    struct mc_indexed *x;
    struct mc_err err = {0};
    size_t bytes = mc_mem_stats().alloc_bytes;
    mc_status st = open_img(m, bin_bytes, &x, &err);
    if (st != MC_E_FORMAT || !strstr(err.msg, what))
        fail_msg("%d \"%s\" does not say \"%s\"", st, err.msg, what);
    assert_int_equal(mc_mem_stats().alloc_bytes, bytes);
}

static void indexed_refuses_each_damage_by_name(void **state)
{
    (void)state;
    const struct img good = image(3, 3, len3, off3, 4, doc3);
    enum { LEN = 34, OFF = 34 + 12, DOC = 34 + 36 };
    static const struct {
        int64_t at;
        uint64_t v;
        int bytes;
        const char *what;
    } c[] = {
        {0, 'X', 1, "MMIDIDX"},
        {8, 1, 1, "MMIDIDX"},
        {9, 2, 8, "version 2"},
        {17, 0, 1, "code 0"},
        {17, 9, 1, "code 9"},
        {17, 6, 1, "f64"},
        {17, 7, 1, "f32"},
        {18, 4, 8, "document entries"},
        {18, 1ull << 61, 8, "sequences"}, /* 12 S and 8 D wrap 64 bits */
        {18, 0x1555555555555556ull, 8, "sequences"},
        {18, ~0ull, 8, "sequences"},
        {26, 5, 8, "document entries"},
        {26, 1ull << 61, 8, "document entries"},
        {26, 3, 8, "8 bytes follow"},
        {LEN, ~0ull, 4, "length -1"},
        {LEN, 3, 4, "before the end"},
        {LEN + 8, 4, 4, "truncated"},
        {LEN + 8, 0x7fffffff, 4, "truncated"},
        {OFF + 16, 9, 8, "multiple of the element size"},
        {OFF + 16, 2, 8, "before the end"},
        {OFF + 16, 1ull << 62, 8, "truncated"},
        {OFF + 16, ~1ull, 8, "multiple of the element size"}, /* negative */
        {DOC, 1, 8, "starts at sequence 1"},
        {DOC + 8, 4, 8, "not ascending"},
        {DOC + 8, ~0ull, 8, "not ascending"},
        {DOC + 16, 0, 8, "not ascending"},
        {DOC + 24, 2, 8, "ends at sequence 2"},
    };
    struct mc_indexed *x;
    assert_int_equal(open_img(&good, 14, &x, NULL), MC_OK);
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct img m = good;
        set(&m, c[i].at, c[i].v, c[i].bytes);
        refused(&m, 14, c[i].what);
    }
    refused(&good, 13, "truncated");
    refused(&good, 15, "15 bytes, but its index ends at byte 14: too long");
    refused(&good, 4096, "4096 bytes, but its index ends at byte 14: too long");
    refused(&good, 0, "truncated");
    for (int64_t n = 0; n < good.n; n++) { /* cut at every byte */
        struct img m = good;
        m.n = n;
        refused(&m, 14, "");
    }
    for (int64_t n = 1; n < 9; n++) { /* 3 more bytes would be modes */
        struct img m = good;
        m.n += n;
        if (n != 3)
            refused(&m, 14, "bytes follow");
    }
    struct img m = good;
    set(&m, 18, 0, 8);
    set(&m, 26, 0, 8);
    m.n = 34;
    refused(&m, 14, "empty");
}

/* Any one bit flipped: refused, or read without leaving the buffers. */
static void indexed_survives_every_flipped_bit(void **state)
{
    (void)state;
    const struct img good = image(3, 3, len3, off3, 4, doc3);
    for (int64_t bit = 0; bit < 8 * good.n; bit++) {
        struct img m = good;
        struct mc_indexed *x;
        m.b[bit / 8] ^= (unsigned char)(1 << bit % 8);
        (void)open_img(&m, 14, &x, NULL);
    }
}

/* ---- files ---- */

static void write_file(const char *ext, const void *p, int64_t n, int64_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s%s", prefix, ext);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    assert_true(fd >= 0);
    if (n)
        assert_int_equal(write(fd, p, (size_t)n), n);
    assert_int_equal(ftruncate(fd, size), 0);
    close(fd);
}

static void poke(int64_t at, const void *p, int64_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s.bin", prefix);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, p, (size_t)n, at), n);
    close(fd);
}

/* u16: 5 sequences of 2^31 - 1 tokens: byte offsets pass 2^32, token positions pass 2^33. */
static void indexed_reads_beyond_2_32_in_a_sparse_file(void **state)
{
    (void)state;
    const int64_t big = INT32_MAX;
    int64_t len[5], off[5], doc[3] = {0, 2, 5};
    for (int i = 0; i < 5; i++) {
        len[i] = big;
        off[i] = 2 * big * i + 6 * i; /* with gaps of 3 tokens */
    }
    struct img m = image(8, 5, len, off, 3, doc);
    write_file(".idx", m.b, m.n, m.n);
    write_file(".bin", NULL, 0, off[4] + 2 * big);
    static const struct {
        int seq;
        int64_t at; /* token in the sequence */
    } where[] = {{0, 0}, {0, 2147483646}, {1, 5}, {2, 1}, {2, 77777777}, {4, 2147483646}};
    for (int i = 0; i < 6; i++) {
        unsigned char id[2] = {(unsigned char)(11 + i), 3};
        poke(off[where[i].seq] + 2 * where[i].at, id, 2);
    }
    struct mc_indexed *x;
    struct mc_err err = {0};
    if (mc_indexed_open(prefix, &x, &err) != MC_OK)
        fail_msg("%s", err.msg);
    assert_true(mc_indexed_tokens(x) == 5 * big);
    assert_true(mc_indexed_tokens(x) > (int64_t)1 << 33);
    for (int i = 0; i < 6; i++) {
        int32_t id[3];
        int64_t pos = where[i].seq * big + where[i].at;
        int64_t from = pos > 0 ? pos - 1 : 0, n = pos + 2 < 5 * big ? 3 : 2;
        assert_int_equal(mc_indexed_read(x, from, n, id, NULL), MC_OK);
        assert_int_equal(id[pos - from], 0x300 + 11 + i);
        if (i == 1) /* the next one is over the gap */
            assert_int_equal(id[2], 0);
    }
    int32_t id;
    assert_int_equal(mc_indexed_read(x, 5 * big, 1, &id, NULL), MC_E_FORMAT);
    mc_indexed_close(x);
    write_file(".bin", NULL, 0, off[4] + 2 * big - 1); /* one byte short, beyond 2^34 */
    assert_int_equal(mc_indexed_open(prefix, &x, &err), MC_E_FORMAT);
}

/* Many sequences: every position, through the blocks of the table. */
static void indexed_finds_positions_among_many_sequences(void **state)
{
    (void)state;
    enum { N = 400 };
    int64_t len[N], off[N], doc[2] = {0, N}, at = 0, tokens = 0;
    unsigned char bin[8192];
    int32_t want[8192];
    for (int i = 0; i < N; i++) {
        len[i] = i % 70 == 3 ? 0 : (i * 37) % 11;
        off[i] = at;
        for (int64_t k = 0; k < len[i]; k++) {
            want[tokens] = (int32_t)(tokens * 7 % 251);
            bin[at + k] = (unsigned char)want[tokens++];
        }
        at += len[i] + i % 3;
    }
    struct img m = image(1, N, len, off, 2, doc);
    write_file(".idx", m.b, m.n, m.n);
    write_file(".bin", bin, at, at);
    struct mc_indexed *x;
    char path[128];
    static const char *const ext[3] = {"", ".idx", ".bin"};
    for (int e = 0; e < 3; e++) {
        snprintf(path, sizeof path, "%s%s", prefix, ext[e]);
        assert_int_equal(mc_indexed_open(path, &x, NULL), MC_OK);
        assert_int_equal(mc_indexed_tokens(x), tokens);
        for (int64_t a = 0; a < tokens; a++) {
            int32_t got[130];
            int64_t n = tokens - a < 130 ? tokens - a : 130;
            assert_int_equal(mc_indexed_read(x, a, n, got, NULL), MC_OK);
            assert_memory_equal(got, want + a, (size_t)n * 4);
        }
        mc_indexed_close(x);
    }
}

static void indexed_says_what_is_missing(void **state)
{
    (void)state;
    struct mc_indexed *x;
    struct mc_err err = {0};
    assert_int_equal(mc_indexed_open("/nowhere/at/all", &x, &err), MC_E_NOTFOUND);
    assert_non_null(strstr(err.msg, "/nowhere/at/all.idx"));
    char path[2000];
    memset(path, 'a', sizeof path);
    path[sizeof path - 1] = 0;
    assert_int_equal(mc_indexed_open(path, &x, NULL), MC_E_FORMAT);
}

/* One sequence of 20,000 bytes in chunks of 4,096, hashed when they were sound. */
enum { SPAN = 20000, CHUNK = 4096, NCHUNK = 5 };
static void indexed_checks_a_chunk_when_it_is_first_read(void **state)
{
    static unsigned char bin[SPAN];
    const int64_t len[1] = {SPAN}, off[1] = {0}, doc[2] = {0, 1};
    struct img m = image(1, 1, len, off, 2, doc);
    uint64_t hash[NCHUNK];
    int32_t out[CHUNK];
    struct mc_indexed *x;
    (void)state;
    for (int i = 0; i < SPAN; i++)
        bin[i] = (unsigned char)(i * 7);
    for (int c = 0; c < NCHUNK; c++)
        hash[c] = mc_hash64(bin + c * CHUNK, c < NCHUNK - 1 ? CHUNK : SPAN - c * CHUNK);
    struct mc_sidecar sc = {.bin_bytes = SPAN,
                            .idx_bytes = m.n,
                            .idx_hash = mc_hash64(m.b, (size_t)m.n),
                            .chunk = CHUNK,
                            .nchunks = NCHUNK,
                            .chunk_hash = hash};
    struct mc_err e = {0};
    bin[2 * CHUNK + 5] ^= 1;
    assert_int_equal(mc_indexed_open_memory(m.b, m.n, bin, SPAN, &x, NULL), MC_OK);
    assert_int_equal(mc_indexed_expect(x, &sc, &e), MC_OK);
    assert_int_equal(mc_indexed_read(x, CHUNK, CHUNK, out, &e), MC_OK);
    assert_int_equal(mc_indexed_read(x, 3 * CHUNK, CHUNK, out, &e), MC_OK);
    assert_int_equal(mc_indexed_read(x, 2 * CHUNK - 1, 2, out, &e), MC_E_CORRUPT);
    assert_non_null(strstr(e.msg, ".bin: bytes 8192 to 12287 are not"));
    bin[CHUNK] ^= 1; /* after its chunk was found sound: it is not looked at again */
    assert_int_equal(mc_indexed_read(x, CHUNK, 1, out, NULL), MC_OK);
    mc_indexed_close(x);
    for (int k = 0; k < 4; k++) { /* at once: an end, the index, a size */
        bin[SPAN - 1] ^= k == 0;
        sc.idx_hash ^= k == 1;
        sc.bin_bytes += k == 2;
        sc.idx_bytes += k == 3;
        assert_int_equal(mc_indexed_open_memory(m.b, m.n, bin, SPAN, &x, NULL), MC_OK);
        assert_int_equal(mc_indexed_expect(x, &sc, NULL), MC_E_CORRUPT);
        mc_indexed_close(x);
        bin[SPAN - 1] ^= k == 0;
        sc.idx_hash ^= k == 1;
        sc.bin_bytes -= k == 2;
        sc.idx_bytes -= k == 3;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(indexed_honours_offsets_and_empty_parts),
        cmocka_unit_test(indexed_reads_every_integer_type),
        cmocka_unit_test(indexed_knows_modes),
        cmocka_unit_test(indexed_refuses_each_damage_by_name),
        cmocka_unit_test(indexed_survives_every_flipped_bit),
        cmocka_unit_test(indexed_reads_beyond_2_32_in_a_sparse_file),
        cmocka_unit_test(indexed_finds_positions_among_many_sequences),
        cmocka_unit_test(indexed_checks_a_chunk_when_it_is_first_read),
        cmocka_unit_test(indexed_says_what_is_missing),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
