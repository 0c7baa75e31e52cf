/* test_pack_corpora.c - pack from JSONL, gzip, zstd, folders and by an encoder; any number of
 * workers gives the same bytes and the same error.
 * links: mc_data
 * What is expected is written down here document by document; packed inputs are made by zlib and
 * zstd themselves. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "dir_help.h"
#include <zlib.h>
#include <zstd.h>
#include "../../core/base/arena.h"
#include "../../core/data/pack_int.h"

static void write_gz(const char *name, const char *mode, const void *b, size_t n)
{
    gzFile f = gzopen(in_dir(name), mode);
    assert_non_null(f);
    assert_int_equal(gzwrite(f, b, (unsigned)n), (int)n);
    assert_int_equal(gzclose(f), Z_OK);
}

static void write_zst(const char *name, const char *mode, const void *b, size_t n)
{
    size_t cap = ZSTD_compressBound(n);
    void *c = malloc(cap);
    size_t got = ZSTD_compress(c, cap, b, n, 3);
    assert_false(ZSTD_isError(got));
    FILE *f = fopen(in_dir(name), mode);
    assert_int_equal(fwrite(c, 1, got, f), got);
    fclose(f);
    free(c);
}

static size_t read_bytes(const char *name, unsigned char **b)
{
    struct stat sb;
    assert_int_equal(stat(in_dir(name), &sb), 0);
    *b = malloc((size_t)sb.st_size + 1);
    FILE *f = fopen(in_dir(name), "rb");
    assert_int_equal(fread(*b, 1, (size_t)sb.st_size, f), (size_t)sb.st_size);
    fclose(f);
    return (size_t)sb.st_size;
}

static int files_in_dir(void)
{
    char **names;
    int n;
    assert_int_equal(mc_sys_list(dir, &names, &n, NULL), MC_OK);
    mc_sys_list_free(names, n);
    return n;
}

static mc_status pack_with(struct mc_pack_cfg cfg, const char *in, const char *out,
                           struct mc_pack_stats *st, struct mc_err *err)
{
    char o[MC_PATH];
    const char *inputs[1] = {in_dir(in)};
    snprintf(o, sizeof o, "%s/%s", dir, out);
    cfg.inputs = inputs;
    cfg.ninputs = 1;
    cfg.out_prefix = o;
    return mc_data_pack(&cfg, st, err);
}

static void drop_packed(const char *out)
{
    char name[64];
    static const char *const ext[3] = {"bin", "idx", "json"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s.%s", out, ext[i]);
        unlink(in_dir(name));
    }
}

/* `in` packed with 1, 2 and 5 workers is these documents, each closed by EOS. */
static void gives(struct mc_pack_cfg cfg, const char *in, const char *const *doc,
                  const size_t *bytes, int n)
{
    static const int workers[3] = {1, 2, 5};
    for (int k = 0; k < 3; k++) {
        struct mc_pack_stats st;
        struct mc_err err = {0};
        struct mc_indexed *x;
        int64_t text = 0, pos = 0;
        cfg.workers = workers[k];
        cfg.append_eos = 1;
        if (pack_with(cfg, in, "out", &st, &err) != MC_OK)
            fail_msg("%s: %s", in, err.msg);
        assert_int_equal(st.documents, n);
        assert_int_equal(mc_indexed_open(in_dir("out"), &x, NULL), MC_OK);
        assert_int_equal(mc_indexed_documents(x), n);
        for (int d = 0; d < n; d++) {
            int32_t *id = malloc((bytes[d] + 1) * sizeof *id);
            int64_t off, len;
            assert_int_equal(mc_indexed_sequence(x, d, &off, &len, NULL), MC_OK);
            assert_int_equal(len, bytes[d] + 1);
            assert_int_equal(mc_indexed_read(x, pos, len, id, NULL), MC_OK);
            for (size_t i = 0; i < bytes[d]; i++)
                if (id[i] != (unsigned char)doc[d][i])
                    fail_msg("%s: document %d, byte %zu", in, d, i);
            assert_int_equal(id[bytes[d]], MC_BYTES_EOS);
            pos += len;
            text += (int64_t)bytes[d];
            free(id);
        }
        assert_int_equal(mc_indexed_tokens(x), pos);
        assert_int_equal(st.tokens, pos);
        assert_int_equal(st.text_bytes, text);
        mc_indexed_close(x);
        struct mc_json j;
        mc_json_init_grow(&j);
        assert_int_equal(mc_data_verify(in_dir("out"), 257, &j, NULL), MC_OK);
        mc_json_fini(&j);
        drop_packed("out");
    }
}

static void refuses(struct mc_pack_cfg cfg, const char *in, mc_status want, const char *what)
{
    int before = files_in_dir();
    for (int w = 1; w <= 5; w += 2) {
        struct mc_pack_stats st;
        struct mc_err err = {0};
        cfg.workers = w;
        mc_status got = pack_with(cfg, in, "bad", &st, &err);
        if (got != want || !strstr(err.msg, what))
            fail_msg("%s, %d workers: %d \"%s\"; wanted %d \"%s\"", in, w, got, err.msg, want,
                     what);
        assert_int_equal(files_in_dir(), before);
    }
}

/* ---- JSONL ---- */

static const char lines[] =
    "\xef\xbb\xbf{\"text\": \"one\", \"id\": 1}\n"
    "\n"
    " \t\r\n"
    "{\"id\": [1, {\"text\": \"not this\"}], \"text\": \"t\\u00e9\\n\\\"\\\\\\u0000z\"}\r\n"
    "{\"text\": \"\"}\n"
    "{\"other\": \"x\", \"text\": \"\\ud83c\\udf15 \xf0\x9f\x8c\x96\"}"; /* no line end */
static const char *const docs[4] = {"one", "t\xc3\xa9\n\"\\\0z", "",
                                    "\xf0\x9f\x8c\x95 \xf0\x9f\x8c\x96"};
static const size_t sizes[4] = {3, 8, 0, 9};

static void corpora_jsonl_gives_a_document_a_line(void **state)
{
    (void)state;
    struct mc_pack_cfg none = {0}, other = {.key = "other"}, as = {.format = MC_PACK_JSONL},
                       text = {.format = MC_PACK_TEXT};
    write_bytes("a.jsonl", lines, sizeof lines - 1);
    gives(none, "a.jsonl", docs, sizes, 4);
    write_bytes("a.ndjson", lines, sizeof lines - 1);
    gives(none, "a.ndjson", docs, sizes, 4);
    write_bytes("plain", lines, sizeof lines - 1);
    gives(as, "plain", docs, sizes, 4);
    static const char *const whole[1] = {lines};
    static const size_t size[1] = {sizeof lines - 1};
    gives(text, "a.jsonl", whole, size, 1);
    write_bytes("o.jsonl", "{\"other\":\"x\",\"text\":3}\n", 23);
    static const char *const x[1] = {"x"};
    static const size_t one[1] = {1};
    gives(other, "o.jsonl", x, one, 1);
}

static void corpora_gzip_and_zstd_are_unpacked(void **state)
{
    (void)state;
    struct mc_pack_cfg none = {0};
    size_t half = 70, n = sizeof lines - 1;
    write_gz("b.jsonl.gz", "wb", lines, n);
    gives(none, "b.jsonl.gz", docs, sizes, 4);
    write_gz("c.jsonl.gz", "wb", lines, half); /* two members, cut within a line */
    write_gz("c.jsonl.gz", "ab", lines + half, n - half);
    gives(none, "c.jsonl.gz", docs, sizes, 4);
    write_zst("d.jsonl.zst", "wb", lines, half);
    write_zst("d.jsonl.zst", "ab", lines + half, n - half);
    gives(none, "d.jsonl.zst", docs, sizes, 4);
    static const char *const t[1] = {"some text"};
    static const size_t size[1] = {9};
    write_gz("e.txt.gz", "wb", t[0], 9);
    gives(none, "e.txt.gz", t, size, 1);
    static const char *const empty[1] = {""};
    static const size_t zero[1] = {0};
    write_zst("f.zst", "wb", "", 0);
    gives(none, "f.zst", empty, zero, 1);
    write_gz("f.gz", "wb", "", 0);
    gives(none, "f.gz", empty, zero, 1);
}

static void corpora_folders_are_mixed(void **state)
{
    (void)state;
    struct mc_pack_cfg none = {0};
    static const char *const want[7] = {
        "one",   "t\xc3\xa9\n\"\\\0z", "", "\xf0\x9f\x8c\x95 \xf0\x9f\x8c\x96", "text b", "line c",
        "text d"};
    static const size_t size[7] = {3, 8, 0, 9, 6, 6, 6};
    assert_int_equal(mkdir(in_dir("mix"), 0777), 0);
    write_gz("mix/a.jsonl.gz", "wb", lines, sizeof lines - 1);
    write_bytes("mix/b.txt", "text b", 6);
    write_zst("mix/c.jsonl.zst", "wb", "{\"text\":\"line c\"}\n", 18);
    write_gz("mix/d.gz", "wb", "text d", 6);
    gives(none, "mix", want, size, 7);
}

/* 9 MB in lines of 1 byte to 3 MB: blocks end everywhere, lines are longer than blocks. */
static void corpora_long_lines_and_many_blocks(void **state)
{
    (void)state;
    enum { N = 600 };
    static char *doc[N];
    static size_t size[N];
    struct mc_pack_cfg none = {0};
    char *all = malloc(16 << 20);
    size_t n = 0;
    for (int d = 0; d < N; d++) {
        size[d] = d == 7 ? 3 << 20 : d == 300 ? (1 << 20) + 1 : d * 7919 % 16000;
        doc[d] = malloc(size[d] + 1);
        for (size_t i = 0; i < size[d]; i++)
            doc[d][i] = (char)('a' + (i * 31 + (size_t)d) % 26);
        doc[d][size[d]] = 0;
        n += (size_t)sprintf(all + n, "{\"text\":\"%s\"}\n", doc[d]);
    }
    write_bytes("long.jsonl", all, n);
    gives(none, "long.jsonl", (const char *const *)doc, size, N);
    write_gz("long.jsonl.gz", "wb1", all, n);
    gives(none, "long.jsonl.gz", (const char *const *)doc, size, N);
    const char *const whole[1] = {all};
    write_zst("long.zst", "wb", all, n);
    gives(none, "long.zst", whole, &n, 1);
    for (int d = 0; d < N; d++)
        free(doc[d]);
    free(all);
}

/* ---- what is wrong, and where ---- */

static void corpora_errors_name_file_and_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{\"text\":\"a\"}\n\n{\"text\":\"b\"\n", "bad.jsonl:3: not JSON"},
        {"{\"text\":\"a\"}\n{\"text\":5}\n", "bad.jsonl:2: \"text\" is a number, not a string"},
        {"{\"text\":null}\n", "bad.jsonl:1: \"text\" is null, not a string"},
        {"{\"body\":\"a\",\"url\":1}\n",
         "bad.jsonl:1: no member \"text\"; it has \"body\", \"url\""},
        {"{}\n", "bad.jsonl:1: no member \"text\"; it has none"},
        {"[\"text\"]\n", "bad.jsonl:1: a list, not an object"},
        {"\"text\"\n", "bad.jsonl:1: a string, not an object"},
        {"{\"text\":\"a\",\"text\":\"b\"}\n", "bad.jsonl:1: not JSON"},
        {"{\"text\":\"a\"}{\"text\":\"b\"}\n", "bad.jsonl:1: not JSON"},
        {"{\"text\":\"\xff\"}\n", "bad.jsonl:1: not JSON"},
        {"{\"text\":\"\\ud800\"}\n", "bad.jsonl:1: not JSON"},
    };
    struct mc_pack_cfg none = {0}, key = {.key = "body"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_bytes("bad.jsonl", bad[i].text, strlen(bad[i].text));
        refuses(none, "bad.jsonl", MC_E_FORMAT, bad[i].says);
    }
    write_bytes("bad.jsonl", lines, sizeof lines - 1);
    refuses(key, "bad.jsonl", MC_E_FORMAT, "bad.jsonl:1: no member \"body\"");
}

/* The first error of the file, whoever meets another one first; far into the file, after blocks. */
static void corpora_first_error_wins_for_any_workers(void **state)
{
    (void)state;
    struct mc_pack_cfg none = {0};
    size_t n = 0, cap = 12 << 20;
    char *all = malloc(cap);
    for (int l = 1; l <= 100000; l++)
        n += (size_t)sprintf(
            all + n, "%s%d is a line of some length, to fill the blocks\"}\n",
            l == 61234 || l == 61299 || l == 99999 ? "{\"test\":\"" : "{\"text\":\"", l);
    write_bytes("many.jsonl", all, n);
    refuses(none, "many.jsonl", MC_E_FORMAT, "many.jsonl:61234: no member");
    /* an input that cannot be read comes after what is wrong before it */
    assert_int_equal(mkdir(in_dir("two"), 0777), 0);
    write_bytes("two/a.jsonl", "{\"text\":1}\n", 11);
    write_bytes("two/b.jsonl.gz", "no gzip", 7);
    refuses(none, "two", MC_E_FORMAT, "a.jsonl:1: \"text\" is a number");
    write_bytes("two/a.jsonl", "{\"text\":\"\"}\n", 12);
    refuses(none, "two", MC_E_FORMAT, "b.jsonl.gz: not whole gzip data");
    memset(all, 'x', cap);
    char *huge = malloc((size_t)MC_PACK_LINE + 13);
    memset(huge, ' ', (size_t)MC_PACK_LINE + 13);
    memcpy(huge, "{\"text\":\"\"}\n", 12);
    write_bytes("huge.jsonl", huge, (size_t)MC_PACK_LINE + 13);
    struct mc_pack_stats st;
    struct mc_err err = {0};
    assert_int_equal(pack_with(none, "huge.jsonl", "bad", &st, &err), MC_E_FORMAT);
    if (!strstr(err.msg, "huge.jsonl:2: a line of more than 64 MiB"))
        fail_msg("%s", err.msg);
    unlink(in_dir("huge.jsonl"));
    free(huge);
    free(all);
}

/* Cut anywhere, or one byte changed: never a shorter text. */
static void corpora_damaged_packings_are_refused(void **state)
{
    (void)state;
    static const char *const name[2] = {"cut.jsonl.gz", "cut.jsonl.zst"};
    static const char *const says[2] = {"cut.jsonl.gz: not whole gzip data",
                                        "cut.jsonl.zst: not whole zstd data"};
    struct mc_pack_cfg cfg = {.append_eos = 1};
    for (int k = 0; k < 2; k++) {
        unsigned char *b;
        struct mc_pack_stats st;
        if (k)
            write_zst(name[k], "wb", lines, sizeof lines - 1);
        else
            write_gz(name[k], "wb", lines, sizeof lines - 1);
        size_t n = read_bytes(name[k], &b);
        int before = files_in_dir();
        for (size_t cut = 0; cut < n; cut++) {
            struct mc_err err = {0};
            write_bytes(name[k], b, cut);
            mc_status got = pack_with(cfg, name[k], "bad", &st, &err);
            if (got != MC_E_FORMAT || !strstr(err.msg, says[k]))
                fail_msg("%s cut at %zu: %d \"%s\"", name[k], cut, got, err.msg);
            assert_int_equal(files_in_dir(), before);
        }
        b[n] = 'x';
        write_bytes(name[k], b, n + 1);
        assert_int_equal(pack_with(cfg, name[k], "bad", &st, NULL), MC_E_FORMAT);
        write_bytes(name[k], b + 1, n - 1);
        assert_int_equal(pack_with(cfg, name[k], "bad", &st, NULL), MC_E_FORMAT);
        assert_int_equal(files_in_dir(), before);
        free(b);
    }
    unsigned char *b; /* gzip has a checksum: the last byte of the deflated part */
    write_gz(name[0], "wb", lines, sizeof lines - 1);
    size_t n = read_bytes(name[0], &b);
    b[n - 8] ^= 1;
    write_bytes(name[0], b, n);
    refuses(cfg, name[0], MC_E_FORMAT, says[0]);
    free(b);
}

/* What a killed pack leaves does not stop the next one, nor is it taken for data. */
static void corpora_a_killed_pack_is_run_again(void **state)
{
    (void)state;
    struct mc_pack_cfg cfg = {.append_eos = 1, .workers = 2};
    struct mc_pack_stats st;
    struct mc_source *s;
    write_bytes("k.jsonl", lines, sizeof lines - 1);
    write_bytes("k.bin.tmp", "half of something much longer than the whole", 44);
    write_bytes("k.idx.tmp", "half", 4);
    assert_int_not_equal(mc_source_open(in_dir("k"), &s, NULL), MC_OK);
    assert_int_equal(pack_with(cfg, "k.jsonl", "k", &st, NULL), MC_OK);
    assert_int_equal(st.tokens, 3 + 8 + 0 + 9 + 4);
    assert_int_not_equal(access(in_dir("k.bin.tmp"), F_OK), 0);
    assert_int_not_equal(access(in_dir("k.idx.tmp"), F_OK), 0);
    assert_int_equal(mc_source_open(in_dir("k"), &s, NULL), MC_OK);
    mc_source_close(s);
}

/* ---- encoders ---- */

/* A word is one id, 70,000 + its length; blanks part them. Not cuttable. */
static int opened, closed;
static mc_status open_words(const void *ctx, void **state, struct mc_err *err)
{
    (void)ctx;
    (void)err;
    __atomic_add_fetch(&opened, 1, __ATOMIC_SEQ_CST);
    *state = &opened;
    return MC_OK;
}

static void close_words(void *state)
{
    assert_ptr_equal(state, &opened);
    closed++;
}

static mc_status encode_words(void *state, const char *text, size_t n, struct mc_pack_ids *out,
                              struct mc_err *err)
{
    (void)err;
    assert_ptr_equal(state, &opened);
    for (size_t i = 0, from = 0; i <= n; i++) {
        if (i < n && text[i] != ' ')
            continue;
        if (i > from) {
            if (out->n == out->cap) {
                int64_t cap = out->cap ? 2 * out->cap : 8;
                out->v = mc_grow(out->v, (size_t)out->n * 4, (size_t)cap * 4, "words");
                out->cap = cap;
            }
            out->v[out->n++] = 70000 + (int32_t)(i - from);
        }
        from = i + 1;
    }
    return MC_OK;
}

static void corpora_an_encoder_makes_the_ids(void **state)
{
    (void)state;
    struct mc_pack_encoder enc = {.name = "words",
                                  .hash = 0x1234,
                                  .vocab = 1 << 22,
                                  .eos = 5,
                                  .open = open_words,
                                  .close = close_words,
                                  .encode = encode_words};
    struct mc_pack_cfg cfg = {.append_eos = 1, .workers = 3, .encoder = &enc};
    struct mc_pack_stats st;
    struct mc_err err = {0};
    struct mc_indexed *x;
    size_t n = (3 << 20) + 5; /* one word, longer than a block: it must not be cut */
    char *long_text = malloc(n);
    memset(long_text, 'w', n);
    assert_int_equal(mkdir(in_dir("enc"), 0777), 0);
    write_bytes("enc/a.jsonl", "{\"text\":\"one three\"}\n{\"text\":\"\"}\n", 33);
    write_bytes("enc/b.txt", long_text, n);
    if (pack_with(cfg, "enc", "enc3", &st, &err) != MC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(mc_indexed_open(in_dir("enc3"), &x, NULL), MC_OK);
    assert_string_equal(mc_indexed_dtype_name(x), "i32");
    static const int32_t want[6] = {70003, 70005, 5, 5, 70000 + (3 << 20) + 5, 5};
    int32_t got[6];
    assert_int_equal(mc_indexed_tokens(x), 6);
    assert_int_equal(mc_indexed_documents(x), 3);
    assert_int_equal(mc_indexed_read(x, 0, 6, got, NULL), MC_OK);
    assert_memory_equal(got, want, sizeof got);
    mc_indexed_close(x);
    assert_int_equal(opened, 3);
    assert_int_equal(closed, 3);
    struct mc_sidecar sc;
    assert_int_equal(mc_sidecar_read(in_dir("enc3"), &sc, NULL), MC_OK);
    assert_string_equal(sc.tokenizer, "words");
    mc_sidecar_fini(&sc);
    enc.eos = -1;
    refuses(cfg, "enc", MC_E_USAGE, "has no EOS");
    enc.eos = 5;
    enc.vocab = 70004; /* a bug of the encoder's is not written down */
    refuses(cfg, "enc", MC_E_BUG, "gave id 70005");
    free(long_text);
}

static void corpora_keep_no_memory(void **state)
{
    (void)state;
    size_t bytes = mc_mem_stats().alloc_bytes;
    struct mc_pack_cfg cfg = {.append_eos = 1, .workers = 3};
    struct mc_pack_stats st;
    write_bytes("m.jsonl", lines, sizeof lines - 1);
    write_bytes("m2.jsonl", "{\"text\":1}", 10);
    assert_int_equal(pack_with(cfg, "m.jsonl", "m", &st, NULL), MC_OK);
    assert_int_equal(pack_with(cfg, "m2.jsonl", "m2", &st, NULL), MC_E_FORMAT);
    assert_int_equal(mc_mem_stats().alloc_bytes, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corpora_jsonl_gives_a_document_a_line),
        cmocka_unit_test(corpora_gzip_and_zstd_are_unpacked),
        cmocka_unit_test(corpora_folders_are_mixed),
        cmocka_unit_test(corpora_long_lines_and_many_blocks),
        cmocka_unit_test(corpora_errors_name_file_and_line),
        cmocka_unit_test(corpora_first_error_wins_for_any_workers),
        cmocka_unit_test(corpora_damaged_packings_are_refused),
        cmocka_unit_test(corpora_a_killed_pack_is_run_again),
        cmocka_unit_test(corpora_an_encoder_makes_the_ids),
        cmocka_unit_test(corpora_keep_no_memory),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
