/* test_pack.c - packing text, and what inspect and verify find: round trip, bytes of the files by
 * their format, every flipped byte, a failing disk, refusals.
 * links: mc_data */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "dir_help.h"
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"
#include "../../core/data/data_int.h"

static size_t read_bytes(const char *name, unsigned char *b, size_t cap)
{
    FILE *f = fopen(in_dir(name), "rb");
    assert_non_null(f);
    size_t n = fread(b, 1, cap, f);
    fclose(f);
    return n;
}

static mc_status pack(const char *in, const char *out, int eos, struct mc_pack_stats *st,
                      struct mc_err *err)
{
    char o[MC_PATH];
    snprintf(o, sizeof o, "%s/%s", dir, out);
    const char *inputs[1] = {in_dir(in)};
    struct mc_pack_cfg cfg = {.inputs = inputs, .ninputs = 1, .out_prefix = o, .append_eos = eos};
    return mc_data_pack(&cfg, st, err);
}

static void packed(const char *in, const char *out, int eos, struct mc_pack_stats *st)
{
    struct mc_err err = {0};
    if (pack(in, out, eos, st, &err) != MC_OK)
        fail_msg("%s", err.msg);
}

/* A folder of three documents, one empty, one with every byte. */
static void make_folder(const char *name)
{
    char p[64];
    unsigned char all[256];
    if (access(in_dir(name), F_OK) == 0)
        return;
    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)(255 - i);
    assert_int_equal(mkdir(in_dir(name), 0777), 0);
    snprintf(p, sizeof p, "%s/a", name);
    write_bytes(p, all, 256);
    snprintf(p, sizeof p, "%s/b", name);
    write_bytes(p, "", 0);
    snprintf(p, sizeof p, "%s/c", name);
    write_bytes(p, "xyz", 3);
}

static int exists(const char *name)
{
    return access(in_dir(name), F_OK) == 0;
}

static int files_in_dir(void)
{
    char **names;
    int n;
    assert_int_equal(mc_sys_list(dir, &names, &n, NULL), MC_OK);
    mc_sys_list_free(names, n);
    return n;
}

/* ---- what is written ---- */

static void pack_gives_the_stream_of_the_text(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    struct mc_source *a, *b;
    int32_t x[300], y[300];
    make_folder("f");
    packed("f", "rt", 1, &st);
    assert_int_equal(st.documents, 3);
    assert_int_equal(st.tokens, 262);
    assert_int_equal(st.bytes_in, 259);
    assert_int_equal(mc_source_open(in_dir("f"), &a, NULL), MC_OK);
    assert_int_equal(mc_source_open(in_dir("rt"), &b, NULL), MC_OK);
    assert_int_equal(mc_source_tokens(b), 262);
    assert_int_equal(mc_source_documents(b), 3);
    assert_true(mc_source_is_bytes(b));
    assert_int_equal(mc_source_read(a, 0, 262, x, NULL), MC_OK);
    assert_int_equal(mc_source_read(b, 0, 262, y, NULL), MC_OK);
    assert_memory_equal(x, y, 262 * 4);
    mc_source_close(a);
    mc_source_close(b);
}

/* By the table of the format, with no help from the reader. */
static void pack_writes_the_format_byte_by_byte(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    unsigned char got[128];
    assert_int_equal(mkdir(in_dir("g"), 0777), 0);
    write_bytes("g/1", "A\xff", 2);
    write_bytes("g/2", "", 0);
    static const unsigned char bin[8] = {'A', 0, 255, 0, 0, 1, 0, 1};
    static const unsigned char idx[34 + 8 + 16 + 24] =
        "MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0"
        "\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0"
        "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0";
    packed("g", "fmt", 1, &st);
    assert_int_equal(read_bytes("fmt.bin", got, sizeof got), sizeof bin);
    assert_memory_equal(got, bin, sizeof bin);
    assert_int_equal(st.hash, mc_hash64(bin, sizeof bin));
    assert_int_equal(read_bytes("fmt.idx", got, sizeof got), sizeof idx);
    assert_memory_equal(got, idx, sizeof idx);
    packed("g", "noeos", 0, &st); /* without EOS the empty document has an empty sequence */
    assert_int_equal(st.tokens, 2);
    assert_int_equal(st.documents, 2);
    assert_int_equal(read_bytes("noeos.bin", got, sizeof got), 4);
    json_t *j = json_load_file(in_dir("fmt.json"), 0, NULL);
    assert_non_null(j);
    char hex[17];
    mc_hash_hex(mc_hash64(idx, sizeof idx), hex);
    assert_string_equal(json_string_value(json_object_get(j, "idx_xxh3")), hex);
    assert_string_equal(json_string_value(json_object_get(j, "tokenizer")), "bytes");
    assert_int_equal(json_integer_value(json_object_get(j, "documents")), 2);
    assert_int_equal(json_integer_value(json_object_get(j, "tokens")), 4);
    assert_int_equal(json_integer_value(json_object_get(j, "bytes")), 2);
    json_decref(j);
}

/* A document longer than a sequence can be: several sequences, one document, the same stream. */
static void pack_splits_long_documents(void **state)
{
    (void)state;
    make_folder("f");
    const char *inputs[2] = {in_dir("f"), in_dir("f/c")};
    char out[MC_PATH];
    snprintf(out, sizeof out, "%s/split", dir);
    struct mc_pack_cfg cfg = {.inputs = inputs, .ninputs = 2, .out_prefix = out, .append_eos = 1};
    struct mc_pack_stats st;
    struct mc_indexed *x;
    assert_int_equal(mc_pack_split(&cfg, 100, &st, NULL), MC_OK);
    assert_int_equal(mc_indexed_open(out, &x, NULL), MC_OK);
    assert_int_equal(mc_indexed_documents(x), 4);
    assert_int_equal(mc_indexed_sequences(x), 3 + 1 + 1 + 1);
    assert_int_equal(mc_indexed_tokens(x), 266);
    int32_t id[266];
    assert_int_equal(mc_indexed_read(x, 0, 266, id, NULL), MC_OK);
    for (int i = 0; i < 256; i++)
        assert_int_equal(id[i], 255 - i);
    assert_int_equal(id[256], 256);
    assert_int_equal(id[257], 256);
    assert_int_equal(id[262], 'x');
    mc_indexed_close(x);
}

/* 20 MB: buffers and chunks end inside the file. */
static void pack_large_file_verifies_by_chunks(void **state)
{
    (void)state;
    size_t n = 20 << 20;
    unsigned char *b = malloc(n);
    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)(mc_mix64(i) >> 7);
    write_bytes("large.txt", b, n);
    struct mc_pack_stats st;
    packed("large.txt", "large", 1, &st);
    assert_int_equal(st.tokens, n + 1);
    struct mc_json j;
    struct mc_err err = {0};
    mc_json_init_grow(&j);
    assert_int_equal(mc_data_verify(in_dir("large"), 257, &j, NULL), MC_OK);
    int fd = open(in_dir("large.bin"), O_RDWR);
    unsigned char bit = b[10000000] ^ 4;
    assert_int_equal(pwrite(fd, &bit, 1, 20000000), 1); /* in the second chunk of 16 MiB */
    close(fd);
    mc_json_reset(&j);
    assert_int_equal(mc_data_verify(in_dir("large"), 257, &j, &err), MC_E_DIFF);
    if (!strstr(err.msg, "bytes 16777216..33554431 differ"))
        fail_msg("%s", err.msg);
    mc_json_fini(&j);
    unlink(in_dir("large.bin"));
    free(b);
}

/* ---- verify ---- */

static mc_status verify(const char *name, int64_t vocab, struct mc_err *err, char *report,
                        size_t cap)
{
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_status st = mc_data_verify(in_dir(name), vocab, &j, err);
    json_t *o = json_loadb(j.buf, j.len, 0, NULL); /* always one whole object */
    assert_non_null(o);
    assert_int_equal(json_is_true(json_object_get(o, "ok")), st == MC_OK);
    assert_int_equal(json_array_size(json_object_get(o, "errors")) > 0, st == MC_E_DIFF);
    json_decref(o);
    if (report)
        snprintf(report, cap, "%.*s", (int)j.len, j.buf);
    mc_json_fini(&j);
    return st;
}

static void pack_verify_sees_every_flipped_byte(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    make_folder("f");
    packed("f", "v", 1, &st);
    assert_int_equal(verify("v", 257, NULL, NULL, 0), MC_OK);
    static const char *const ext[2] = {"v.bin", "v.idx"};
    for (int e = 0; e < 2; e++) {
        unsigned char b[1024];
        size_t n = read_bytes(ext[e], b, sizeof b);
        for (size_t i = 0; i < n; i++) {
            struct mc_err err = {0};
            b[i] ^= (unsigned char)(1 << i % 8);
            write_bytes(ext[e], b, n);
            if (verify("v", 0, &err, NULL, 0) != MC_E_DIFF)
                fail_msg("%s: byte %zu flipped was not seen", ext[e], i);
            assert_non_null(strstr(err.msg, dir));
            b[i] ^= (unsigned char)(1 << i % 8);
        }
        write_bytes(ext[e], b, n - 1); /* cut, then longer */
        assert_int_equal(verify("v", 0, NULL, NULL, 0), MC_E_DIFF);
        b[n] = 0;
        write_bytes(ext[e], b, n + 1);
        assert_int_equal(verify("v", 0, NULL, NULL, 0), MC_E_DIFF);
        write_bytes(ext[e], b, n);
    }
    assert_int_equal(verify("v", 257, NULL, NULL, 0), MC_OK);
    /* sound by structure, with the same counts, and yet not what was packed: document 1 moved */
    unsigned char idx[1024];
    size_t n = read_bytes("v.idx", idx, sizeof idx);
    struct mc_err err = {0};
    assert_int_equal(idx[n - 24], 1);
    idx[n - 24] = 2;
    write_bytes("v.idx", idx, n);
    assert_int_equal(verify("v", 0, &err, NULL, 0), MC_E_DIFF);
    assert_non_null(strstr(err.msg, "v.idx: differs from what was packed"));
}

static void pack_verify_without_sidecar_checks_structure_and_ids(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    struct mc_err err = {0};
    char report[4096];
    make_folder("f");
    packed("f", "s", 1, &st);
    unlink(in_dir("s.json"));
    assert_int_equal(verify("s", 257, NULL, report, sizeof report), MC_OK);
    assert_non_null(strstr(report, "missing"));
    assert_int_equal(verify("s", 256, &err, NULL, 0), MC_E_DIFF);
    if (!strstr(err.msg, "3 ids are past the vocabulary of 256") || !strstr(err.msg, "token 256"))
        fail_msg("%s", err.msg);
    unsigned char b[1024];
    size_t n = read_bytes("s.idx", b, sizeof b);
    b[34] ^= 2; /* two tokens longer: over the next sequence */
    write_bytes("s.idx", b, n);
    assert_int_equal(verify("s", 0, NULL, NULL, 0), MC_E_DIFF);
    assert_int_equal(verify("f", 257, NULL, NULL, 0), MC_OK); /* text */
    assert_int_equal(verify("f", 200, NULL, NULL, 0), MC_E_DIFF);
    struct mc_json j;
    mc_json_init_grow(&j);
    assert_int_equal(mc_data_verify(in_dir("nothing"), 0, &j, NULL), MC_E_NOTFOUND);
    mc_json_fini(&j);
}

static void pack_sidecar_must_be_one(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    make_folder("f");
    packed("f", "sc", 1, &st);
    char good[4096] = {0};
    size_t n = read_bytes("sc.json", (unsigned char *)good, sizeof good - 1);
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"format\":\"mascon.pack\",\"version\":2}",
        "{\"format\":\"mascon.pack\",\"version\":1,\"tokenizer\":\"bytes\"}",
        "\"x\"",
        "\xff\xfe"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_bytes("sc.json", bad[i], strlen(bad[i]));
        struct mc_sidecar s;
        assert_int_equal(mc_sidecar_read(in_dir("sc"), &s, NULL), MC_E_FORMAT);
        assert_int_equal(verify("sc", 0, NULL, NULL, 0), MC_E_DIFF);
    }
    static const char *const edit[][2] = {
        {"\"tokens\": 262", "\"tokens\": 263"},
        {"\"documents\": 3", "\"documents\": 4"},
        {"\"bin_bytes\": 524", "\"bin_bytes\": 525"},
        {"\"bin_bytes\": 524", "\"bin_bytes\": -24"},
        {"\"chunk\": 16777216", "\"chunk\": 0"},
        {"\"chunk\": 16777216", "\"chunk\": 9223372036854775807"},
    };
    for (size_t i = 0; i < sizeof edit / sizeof edit[0]; i++) {
        char text[5000];
        char *at = strstr(good, edit[i][0]);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, edit[i][1],
                 at + strlen(edit[i][0]));
        write_bytes("sc.json", text, strlen(text));
        mc_status v = verify("sc", 0, NULL, NULL, 0);
        struct mc_source *s = NULL;
        struct mc_err err = {0};
        if (i < 2) { /* the counts are held against the files before anything is trained on them */
            assert_int_equal(mc_source_open(in_dir("sc"), &s, &err), MC_E_FORMAT);
            assert_non_null(strstr(err.msg, i ? "3 documents, but" : "262 tokens, but"));
        } else if (i == 5) {
            assert_int_equal(mc_source_open(in_dir("sc"), &s, &err), MC_OK);
            mc_source_close(s);
        }
        if (i == 5) /* one chunk of any size above the file is the same statement */
            assert_int_equal(v, MC_OK);
        else
            assert_int_equal(v, MC_E_DIFF);
    }
    write_bytes("sc.json", good, n);
    assert_int_equal(verify("sc", 0, NULL, NULL, 0), MC_OK);
}

static void pack_inspect_tells_what_is_there(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    make_folder("f");
    packed("f", "in", 1, &st);
    static const char *const path[2] = {"f", "in.idx"}, *const kind[2] = {"text", "packed"};
    for (int i = 0; i < 2; i++) {
        struct mc_json j;
        mc_json_init_grow(&j);
        assert_int_equal(mc_data_inspect(in_dir(path[i]), &j, NULL), MC_OK);
        json_t *o = json_loadb(j.buf, j.len, 0, NULL);
        assert_non_null(o);
        assert_string_equal(json_string_value(json_object_get(o, "kind")), kind[i]);
        assert_int_equal(json_integer_value(json_object_get(o, "documents")), 3);
        assert_int_equal(json_integer_value(json_object_get(o, "tokens")), 262);
        if (i == 1) {
            assert_string_equal(json_string_value(json_object_get(o, "dtype")), "u16");
            assert_int_equal(json_integer_value(json_object_get(o, "longest")), 257);
            assert_int_equal(json_integer_value(json_object_get(o, "shortest")), 1);
            assert_true(json_is_object(json_object_get(o, "sidecar")));
        }
        json_decref(o);
        mc_json_fini(&j);
    }
}

/* ---- refusals and failures ---- */

static void pack_never_writes_over(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    static const char *const ext[3] = {"w.bin", "w.idx", "w.json"};
    make_folder("f");
    for (int i = 0; i < 3; i++) {
        struct mc_err err = {0};
        write_bytes(ext[i], "mine", 4);
        int before = files_in_dir();
        assert_int_equal(pack("f", "w", 1, &st, &err), MC_E_USAGE);
        assert_non_null(strstr(err.msg, "remove it, or choose another"));
        assert_int_equal(files_in_dir(), before);
        unlink(in_dir(ext[i]));
    }
    struct mc_err err = {0};
    packed("f", "w", 1, &st);
    assert_int_equal(pack("w.idx", "w2", 1, &st, &err), MC_E_USAGE);
    assert_non_null(strstr(err.msg, "packed already"));
    assert_int_equal(pack("missing", "w3", 1, &st, NULL), MC_E_NOTFOUND);
    assert_int_equal(pack("f", "nowhere/w4", 1, &st, NULL), MC_E_NOTFOUND);
    assert_int_equal(pack("f", "", 1, &st, NULL), MC_E_USAGE);
    assert_false(exists("w2.bin") || exists("w3.bin") || exists("w3.bin.tmp"));
}

/* No more than `limit` bytes to a file: as a disk that is full. At any limit nothing is left. */
static void pack_on_a_full_disk_leaves_nothing(void **state)
{
    (void)state;
    struct rlimit was, now;
    struct mc_pack_stats st;
    make_folder("f");
    packed("f", "probe", 1, &st);
    int before = files_in_dir();
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limit[5] = {0, 1, 100, 500, 523};
    for (int i = 0; i < 5; i++) {
        struct mc_err err = {0};
        now = was;
        now.rlim_cur = limit[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
        mc_status s = pack("f", "full", 1, &st, &err);
        setrlimit(RLIMIT_FSIZE, &was);
        assert_int_not_equal(s, MC_OK);
        assert_int_equal(err.sys_errno, EFBIG);
        assert_int_equal(files_in_dir(), before);
    }
    /* .bin and .idx fit, the sidecar does not */
    now.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
    mc_status s = pack("f/c", "full", 1, &st, NULL);
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_not_equal(s, MC_OK);
    assert_int_equal(files_in_dir(), before);
    packed("f", "full", 1, &st);
    assert_int_equal(files_in_dir(), before + 3);
}

/* The name of the sidecar is taken while pack runs: what was renamed already is removed again. */
static void pack_undoes_renames_on_failure(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    make_folder("f");
    int before = files_in_dir();
    assert_int_equal(mkdir(in_dir("u.json.tmp"), 0777), 0); /* it cannot be opened for writing */
    assert_int_not_equal(pack("f", "u", 1, &st, NULL), MC_OK);
    assert_int_equal(rmdir(in_dir("u.json.tmp")), 0);
    assert_int_equal(files_in_dir(), before);
}

static void pack_keeps_no_memory(void **state)
{
    (void)state;
    struct mc_pack_stats st;
    make_folder("f");
    size_t bytes = mc_mem_stats().alloc_bytes;
    packed("f", "mem", 1, &st);
    assert_int_equal(verify("mem", 257, NULL, NULL, 0), MC_OK);
    assert_int_not_equal(pack("f", "mem", 1, &st, NULL), MC_OK);
    assert_int_equal(mc_mem_stats().alloc_bytes, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack_gives_the_stream_of_the_text),
        cmocka_unit_test(pack_writes_the_format_byte_by_byte),
        cmocka_unit_test(pack_splits_long_documents),
        cmocka_unit_test(pack_large_file_verifies_by_chunks),
        cmocka_unit_test(pack_verify_sees_every_flipped_byte),
        cmocka_unit_test(pack_verify_without_sidecar_checks_structure_and_ids),
        cmocka_unit_test(pack_sidecar_must_be_one),
        cmocka_unit_test(pack_inspect_tells_what_is_there),
        cmocka_unit_test(pack_never_writes_over),
        cmocka_unit_test(pack_on_a_full_disk_leaves_nothing),
        cmocka_unit_test(pack_undoes_renames_on_failure),
        cmocka_unit_test(pack_keeps_no_memory),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
