/* test_data_fetch.c - sources of text, and what training and validation get of them, against plain
 * streams built here.
 * links: mc_data */
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
#include "../../core/base/arena.h"
#include "../../core/data/data_int.h"

static void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

/* A packed source of u16 ids, one document. */
static void write_packed(const char *name, const int *id, int n)
{
    unsigned char idx[34 + 12 + 16] = "MMIDIDX\0\0\1\0\0\0\0\0\0\0\x8\1\0\0\0\0\0\0\0\2", bin[512];
    char p[64];
    memcpy(idx + 34, &n, 4);
    idx[34 + 12 + 8] = 1;
    for (int i = 0; i < n; i++) {
        bin[2 * i] = (unsigned char)id[i];
        bin[2 * i + 1] = (unsigned char)(id[i] >> 8);
    }
    snprintf(p, sizeof p, "%s.idx", name);
    write_bytes(p, idx, sizeof idx);
    snprintf(p, sizeof p, "%s.bin", name);
    write_bytes(p, bin, (size_t)(2 * n));
}

static struct mc_recipe *recipe(int64_t seq, const char *train, const char *valid)
{
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    r->seed = 1234;
    r->model.seq = seq;
    r->model.vocab = MC_BYTES_VOCAB;
    strcpy(r->data.tokenizer, "bytes");
    if (train) {
        r->data.ntrain = 1;
        r->data.train[0].weight = 1;
        strcpy(r->data.train[0].path, train);
    }
    if (valid) {
        r->data.nvalid = 1;
        r->data.valid[0].weight = 1;
        strcpy(r->data.valid[0].path, valid);
    }
    return r;
}

static struct mc_data *opened(const struct mc_recipe *r)
{
    struct mc_data *d;
    struct mc_err err = {0};
    if (mc_data_open(r, dir, &d, &err) != MC_OK)
        fail_msg("%s", err.msg);
    return d;
}

static void refused(const struct mc_recipe *r, mc_status code, const char *what)
{
    struct mc_data *d;
    struct mc_err err = {0};
    size_t bytes = mc_mem_stats().alloc_bytes;
    mc_status st = mc_data_open(r, dir, &d, &err);
    if (st != code || !strstr(err.msg, what))
        fail_msg("%d \"%s\" is not %d or does not say \"%s\"", st, err.msg, code, what);
    assert_int_equal(mc_mem_stats().alloc_bytes, bytes);
}

/* ---- text ---- */

static void stream_is(const char *path, const int32_t *want, int64_t n, int64_t docs)
{
    struct mc_source *s;
    struct mc_err err = {0};
    if (mc_source_open(in_dir(path), &s, &err) != MC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(mc_source_tokens(s), n);
    assert_int_equal(mc_source_documents(s), docs);
    for (int64_t a = 0; a < n; a++)
        for (int64_t k = 1; a + k <= n; k++) {
            int32_t got[64];
            assert_int_equal(mc_source_read(s, a, k, got, NULL), MC_OK);
            assert_memory_equal(got, want + a, (size_t)k * 4);
        }
    int32_t id;
    assert_int_equal(mc_source_read(s, n, 1, &id, NULL), MC_E_FORMAT);
    mc_source_close(s);
}

static void fetch_a_file_is_its_bytes_and_eos(void **state)
{
    (void)state;
    write_bytes("one", "a\0\xff\n", 4); /* any bytes are text */
    static const int32_t want[5] = {'a', 0, 255, '\n', 256};
    stream_is("one", want, 5, 1);
    write_text("none", "");
    stream_is("none", want + 4, 1, 1);
}

/* Order by whole path, hidden names and special files skipped, links followed but not in circles,
 * empty files kept as empty documents. */
static void fetch_a_folder_is_its_files_in_path_order(void **state)
{
    (void)state;
    static const char *const sub[] = {"f", "f/a", "f/.git", "f/z", "elsewhere"};
    for (int i = 0; i < 5; i++)
        assert_int_equal(mkdir(in_dir(sub[i]), 0777), 0);
    write_text("f/a/x", "2");
    write_text("f/a.b", "1"); /* '.' sorts before '/' */
    write_text("f/b", "");
    write_text("f/.hidden", "no");
    write_text("f/.git/config", "no");
    write_text("f/z/last", "5");
    write_text("elsewhere/g", "4");
    assert_int_equal(symlink("../elsewhere", in_dir("f/link")), 0);
    assert_int_equal(symlink("..", in_dir("f/z/up")), 0);
    assert_int_equal(symlink(".", in_dir("f/z/self")), 0);
    assert_int_equal(mkfifo(in_dir("f/pipe"), 0666), 0);
    static const int32_t want[9] = {'1', 256, '2', 256, 256, '4', 256, '5', 256};
    stream_is("f", want, 9, 5);
    stream_is("f/", want, 9, 5);
}

static void fetch_tells_packed_from_text(void **state)
{
    (void)state;
    static const int id[3] = {5, 6, 7};
    static const int32_t want[3] = {5, 6, 7}, text[2] = {'x', 256};
    write_packed("pk", id, 3);
    stream_is("pk", want, 3, 1);
    stream_is("pk.idx", want, 3, 1);
    stream_is("pk.bin", want, 3, 1);
    assert_int_equal(mkdir(in_dir("pk"), 0777), 0);
    write_text("pk/t", "x");
    struct mc_source *s;
    struct mc_err err = {0};
    assert_int_equal(mc_source_open(in_dir("pk"), &s, &err), MC_E_RECIPE);
    assert_non_null(strstr(err.msg, "/pk.idx or a / at the end"));
    stream_is("pk/", text, 2, 1);
    unlink(in_dir("pk.bin"));
    err = (struct mc_err){0};
    assert_int_equal(mc_source_open(in_dir("pk.idx"), &s, &err), MC_E_NOTFOUND);
    assert_non_null(strstr(err.msg, "the .bin is missing"));
    rename(in_dir("pk.idx"), in_dir("qk.idx"));
    err = (struct mc_err){0};
    assert_int_equal(mc_source_open(in_dir("qk"), &s, &err), MC_E_NOTFOUND);
    assert_non_null(strstr(err.msg, "qk.bin is missing"));
}

static void fetch_refuses_what_is_no_source(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("hollow"), 0777), 0);
    write_text("hollow/.x", "hidden");
    write_text("foreign.idx", "GGUF of another kind, longer than the head of an index");
    write_text("foreign.bin", "");
    assert_int_equal(mkfifo(in_dir("pipe"), 0666), 0);
    struct mc_recipe *r = recipe(4, "missing.txt", NULL);
    refused(r, MC_E_NOTFOUND, "missing.txt");
    strcpy(r->data.train[0].path, "hollow");
    refused(r, MC_E_FORMAT, "no regular file");
    strcpy(r->data.train[0].path, "foreign.idx");
    refused(r, MC_E_FORMAT, "MMIDIDX");
    strcpy(r->data.train[0].path, "pipe");
    refused(r, MC_E_FORMAT, "neither a regular file nor a folder");
    strcpy(r->data.train[0].path, "");
    refused(r, MC_E_NOTFOUND, "is empty");
    if (geteuid() != 0) { /* root reads everything */
        write_text("shut", "x");
        chmod(in_dir("shut"), 0);
        strcpy(r->data.train[0].path, "shut");
        refused(r, MC_E_IO, "shut");
    }
    test_free(r);
}

/* ---- samples ---- */

static void fetch_samples_are_windows_with_shifted_targets(void **state)
{
    (void)state;
    char text[100];
    for (int i = 0; i < 100; i++)
        text[i] = (char)(i + 20);
    write_bytes("t", text, 99); /* 100 tokens with EOS: floor(99 / 7) = 14 samples */
    struct mc_recipe *r = recipe(7, "t", NULL);
    struct mc_data *d = opened(r);
    assert_int_equal(mc_data_train_tokens(d), 100);
    assert_int_equal(mc_data_valid_samples(d), 0);
    assert_true(mc_data_bytes_like(d));
    struct mc_sample s[14];
    int32_t tok[98], tgt[98];
    for (int i = 0; i < 14; i++)
        s[i] = (struct mc_sample){.index = (uint64_t)(13 - i), .seq = 7};
    uint64_t calls = mc_mem_stats().calls;
    assert_int_equal(mc_data_fetch(d, s, 14, tok, tgt, NULL), MC_OK);
    assert_int_equal(mc_mem_stats().calls, calls);
    for (int i = 0; i < 14; i++)
        for (int k = 0; k < 7; k++) {
            int pos = 7 * (13 - i) + k;
            assert_int_equal(tok[7 * i + k], pos + 20);
            assert_int_equal(tgt[7 * i + k], pos == 98 ? 256 : pos + 21);
        }
    mc_data_close(d);
    r->model.seq = 99; /* exactly one */
    d = opened(r);
    mc_data_close(d);
    r->model.seq = 100;
    refused(r, MC_E_RECIPE, "100 tokens");
    refused(r, MC_E_RECIPE, "sequence length 100 needs 101");
    test_free(r);
}

static void fetch_masks_the_target_after_eos(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("docs"), 0777), 0);
    write_text("docs/1", "ab");
    write_text("docs/2", "");
    write_text("docs/3", "c"); /* a b E E c E */
    struct mc_recipe *r = recipe(5, "docs", NULL);
    static const int32_t tok5[5] = {'a', 'b', 256, 256, 'c'}, tgt5[5] = {'b', 256, 256, 'c', 256},
                         mask5[5] = {'b', 256, -1, -1, 256};
    for (int mask = 0; mask < 2; mask++) {
        r->data.mask_eod = mask;
        struct mc_data *d = opened(r);
        struct mc_sample s = {.seq = 5};
        int32_t tok[5], tgt[5];
        assert_int_equal(mc_data_fetch(d, &s, 1, tok, tgt, NULL), MC_OK);
        assert_memory_equal(tok, tok5, sizeof tok);
        assert_memory_equal(tgt, mask ? mask5 : tgt5, sizeof tgt);
        mc_data_close(d);
    }
    test_free(r);
}

/* No window of one side reads a token of the other, whatever the cut. */
static void fetch_holdout_is_disjoint(void **state)
{
    (void)state;
    unsigned char b[250];
    for (int i = 0; i < 250; i++)
        b[i] = (unsigned char)i; /* the id is the position */
    write_bytes("h", b, 250);
    struct mc_recipe *r = recipe(3, "h", NULL);
    static const double cut[5] = {0.1, 0.3333, 0.5, 0.05, 0.9};
    for (int c = 0; c < 5; c++)
        for (r->model.seq = 1; r->model.seq <= 8; r->model.seq++) {
            int64_t t = r->model.seq;
            r->data.holdout = cut[c];
            struct mc_data *d = opened(r);
            int64_t at = (int64_t)(251 * (1 - cut[c])), most = -1, least = 9999;
            assert_int_equal(mc_data_train_tokens(d), at);
            int32_t tok[8], tgt[8];
            for (int64_t i = 0; i < (at - 1) / t; i++) {
                struct mc_sample s = {.index = (uint64_t)i, .seq = t};
                assert_int_equal(mc_data_fetch(d, &s, 1, tok, tgt, NULL), MC_OK);
                for (int64_t k = 0; k < t; k++)
                    most = tgt[k] > most ? tgt[k] : most;
            }
            assert_int_equal(mc_data_valid_samples(d), (251 - at - 1) / t);
            for (int64_t i = 0; i < mc_data_valid_samples(d); i++) {
                assert_int_equal(mc_data_fetch_valid(d, i, 1, tok, tgt, NULL), MC_OK);
                assert_int_equal(tok[0], at + i * t); /* in stream order */
                for (int64_t k = 0; k < t; k++)
                    least = tok[k] < least ? tok[k] : least;
            }
            assert_true(most < at && least >= at);
            mc_data_close(d);
        }
    r->model.seq = 30;
    r->data.holdout = 0.1;
    refused(r, MC_E_RECIPE, "holdout");
    test_free(r);
}

static void fetch_validation_sources_follow_each_other(void **state)
{
    (void)state;
    write_text("v1", "abcd"); /* 5 tokens: 2 samples of 2 */
    write_text("v2", "efghij");
    struct mc_recipe *r = recipe(2, NULL, "v1");
    r->data.nvalid = 2;
    strcpy(r->data.valid[1].path, "v2");
    struct mc_data *d = opened(r); /* no training source: evaluation only */
    assert_int_equal(mc_data_valid_samples(d), 5);
    int32_t tok[10], tgt[10];
    assert_int_equal(mc_data_fetch_valid(d, 0, 5, tok, tgt, NULL), MC_OK);
    static const int32_t want[10] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j'};
    assert_memory_equal(tok, want, sizeof tok);
    assert_int_equal(tgt[3], 256);
    assert_int_equal(mc_data_fetch_valid(d, 1, 3, tok, tgt, NULL), MC_OK);
    assert_memory_equal(tok, want + 2, 6 * sizeof *tok);
    assert_int_equal(mc_data_fetch_valid(d, 3, 3, tok, tgt, NULL), MC_E_BUG);
    mc_data_close(d);
    r->data.ntrain = 1;
    r->data.train[0].weight = 1;
    strcpy(r->data.train[0].path, "./x/../v2");
    refused(r, MC_E_RECIPE, "v2 is a training source too");
    test_free(r);
}

static void fetch_checks_ids_when_first_touched(void **state)
{
    (void)state;
    static const int id[6] = {1, 2, 3, 4, 300, 5};
    write_packed("ids", id, 6);
    struct mc_recipe *r = recipe(2, "ids", NULL);
    struct mc_data *d = opened(r);
    struct mc_sample s[2] = {{.index = 0, .seq = 2}, {.index = 1, .seq = 2}};
    int32_t tok[4], tgt[4];
    assert_false(mc_data_bytes_like(d)); /* nothing says that they are bytes */
    assert_int_equal(mc_data_fetch(d, s, 1, tok, tgt, NULL), MC_OK);
    struct mc_err err = {0};
    assert_int_equal(mc_data_fetch(d, s, 2, tok, tgt, &err), MC_E_FORMAT);
    static const char *const says[4] = {"/ids\"", "token 4", "id 300", "vocabulary of 257"};
    for (int i = 0; i < 4; i++)
        if (!strstr(err.msg, says[i]))
            fail_msg("\"%s\" does not say %s", err.msg, says[i]);
    mc_data_close(d);
    r->model.vocab = 301;
    d = opened(r);
    assert_int_equal(mc_data_fetch(d, s, 2, tok, tgt, NULL), MC_OK);
    mc_data_close(d);
    test_free(r);
}

static void fetch_refuses_recipes_that_cannot_be(void **state)
{
    (void)state;
    write_text("w", "some text of no weight");
    struct mc_recipe *r = recipe(4, "w", NULL);
    static const double bad[4] = {0, -1, 1.0 / 0.0, 0.0 / 0.0};
    for (int i = 0; i < 4; i++) {
        r->data.train[0].weight = bad[i];
        refused(r, MC_E_RECIPE, "must be above 0");
    }
    r->data.train[0].weight = 1;
    r->data.holdout = 0.5;
    r->data.nvalid = 1;
    strcpy(r->data.valid[0].path, "one");
    refused(r, MC_E_RECIPE, "not both");
    r->data.nvalid = 0;
    r->data.holdout = 1;
    refused(r, MC_E_RECIPE, "[0, 1)");
    r->data.holdout = 0;
    strcpy(r->data.tokenizer, "gpt2");
    refused(r, MC_E_RECIPE, "packed data");
    r->data.declared_tokens = 5;
    refused(r, MC_E_RECIPE, "declared");
    r->data.declared_tokens = 0;
    r->data.ntrain = 0;
    r->data.required = 1;
    refused(r, MC_E_RECIPE, "--set data.train=");
    test_free(r);
}

/* The hash follows size and content, and nothing else. */
static void fetch_hash_follows_content(void **state)
{
    (void)state;
    write_text("c1", "the same text");
    write_text("c2", "the same text");
    write_text("c3", "the same texu");
    struct mc_recipe *r = recipe(2, "c1", NULL);
    uint64_t h[3];
    for (int i = 0; i < 3; i++) {
        snprintf(r->data.train[0].path, sizeof r->data.train[0].path, "c%d", i + 1);
        struct mc_data *d = opened(r);
        h[i] = mc_data_hash(d);
        mc_data_close(d);
    }
    assert_int_equal(h[0], h[1]);
    assert_int_not_equal(h[0], h[2]);
    test_free(r);
}

/* 70 MB, sparse: above the size that is hashed whole, the ends still count. */
static void fetch_hash_of_a_large_file_sees_its_ends(void **state)
{
    (void)state;
    uint64_t h[3];
    for (int i = 0; i < 3; i++) {
        write_text("large", i == 1 ? "x" : "y");
        assert_int_equal(truncate(in_dir("large"), 70000000), 0);
        int fd = open(in_dir("large"), O_WRONLY);
        assert_int_equal(pwrite(fd, i == 2 ? "a" : "b", 1, 69999999), 1);
        close(fd);
        struct mc_source *s;
        assert_int_equal(mc_source_open(in_dir("large"), &s, NULL), MC_OK);
        h[i] = mc_source_hash(s);
        mc_source_close(s);
    }
    assert_true(h[0] != h[1] && h[0] != h[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetch_a_file_is_its_bytes_and_eos),
        cmocka_unit_test(fetch_a_folder_is_its_files_in_path_order),
        cmocka_unit_test(fetch_tells_packed_from_text),
        cmocka_unit_test(fetch_refuses_what_is_no_source),
        cmocka_unit_test(fetch_samples_are_windows_with_shifted_targets),
        cmocka_unit_test(fetch_masks_the_target_after_eos),
        cmocka_unit_test(fetch_holdout_is_disjoint),
        cmocka_unit_test(fetch_validation_sources_follow_each_other),
        cmocka_unit_test(fetch_checks_ids_when_first_touched),
        cmocka_unit_test(fetch_refuses_recipes_that_cannot_be),
        cmocka_unit_test(fetch_hash_follows_content),
        cmocka_unit_test(fetch_hash_of_a_large_file_sees_its_ends),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
