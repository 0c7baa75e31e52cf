/* test_tokenizer.c - tokenizers: against what the library made of nasty strings (expected.txt),
 * against a naive reading of the rules, and what is refused.
 * links: mc_data */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/base/sysio.h"
#include "../../core/data/tokenizer_int.h"

#define GOLDEN MC_SOURCE_HOME "/tests/golden/tokenizer/"
static const char *const names[3] = {"gpt2", "llama3", "qwen2"};
static struct mc_tokenizer *tok[3];
static struct mc_encoder *enc[3];

static void open_one(const char *path, struct mc_tokenizer **t, struct mc_encoder **e)
{
    struct mc_err err = {0};
    if (mc_tokenizer_open(path, t, &err) != MC_OK || mc_encoder_create(*t, e, &err) != MC_OK)
        fail_msg("%s", err.msg);
}

static int open_all(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        char path[512];
        snprintf(path, sizeof path, GOLDEN "%s.json", names[i]);
        open_one(path, &tok[i], &enc[i]);
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        mc_encoder_destroy(enc[i]);
        mc_tokenizer_close(tok[i]);
    }
    return 0;
}

static size_t unhex(const char *s, unsigned char *dst)
{
    size_t n = 0;
    if (*s == '-')
        return 0;
    for (; s[0] && s[1]; s += 2) {
        unsigned v;
        assert_int_equal(sscanf(s, "%2x", &v), 1);
        dst[n++] = (unsigned char)v;
    }
    return n;
}

static struct mc_ids encode(struct mc_encoder *e, const void *s, size_t n,
                            enum mc_encode_special how)
{
    struct mc_ids ids = {0};
    struct mc_err err = {0};
    if (mc_encode(e, s, n, how, &ids, &err) != MC_OK)
        fail_msg("%s", err.msg);
    return ids;
}

/* ---- the library's answers ---- */

static void tokenizer_gives_the_ids_and_bytes_of_the_library(void **state)
{
    (void)state;
    static char line[1 << 20], name[16], text[1 << 18], ids[1 << 18], back[1 << 18];
    static unsigned char want[1 << 17], s[1 << 17], got[1 << 17];
    int special, lines = 0;
    FILE *f = fopen(GOLDEN "expected.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        assert_int_equal(
            sscanf(line, "%15s %d %262143s %262143s %262143s", name, &special, text, ids, back), 5);
        int k = 0;
        while (strcmp(names[k], name) != 0)
            k++;
        size_t n = unhex(text, s);
        struct mc_ids out = encode(enc[k], s, n, special ? MC_ENCODE_SPECIAL : MC_ENCODE_TEXT);
        int64_t m = 0;
        for (char *p = ids; *p && *p != '-'; m++) {
            long id = strtol(p, &p, 10);
            p += *p == ',';
            if (m >= out.n || out.v[m] != id)
                fail_msg("%s: %s: id %lld is not %ld", name, text, (long long)m, id);
        }
        assert_int_equal(m, out.n);
        if (*back != '?') {
            /* the library shows bytes that are no UTF-8 as U+FFFD; these texts hold none */
            size_t w = unhex(back, want);
            assert_int_equal(mc_tokenizer_decode(tok[k], out.v, out.n, 0, (char *)got, sizeof got),
                             w);
            assert_memory_equal(got, want, w);
        }
        mc_free(out.v);
        lines++;
    }
    fclose(f);
    assert_true(lines >= 2100);
}

/* ---- bytes that are no text ---- */

static unsigned rnd(unsigned *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void tokenizer_gives_any_bytes_back(void **state)
{
    (void)state;
    unsigned seed = 5;
    unsigned char s[200];
    char back[400];
    for (int round = 0; round < 3000; round++) {
        size_t n = rnd(&seed) % sizeof s;
        for (size_t i = 0; i < n; i++)
            s[i] = (unsigned char)(rnd(&seed) % 3 ? rnd(&seed) : ' ' + rnd(&seed) % 90);
        for (int k = 0; k < 2; k++) { /* without a normalizer */
            struct mc_ids ids = encode(enc[k], s, n, (enum mc_encode_special)(round % 2));
            assert_int_equal(mc_tokenizer_decode(tok[k], ids.v, ids.n, 0, back, sizeof back), n);
            assert_memory_equal(back, s, n);
            mc_free(ids.v);
        }
    }
}

static void unicode_takes_stray_bytes_one_by_one(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        int len;
        uint32_t cp;
    } row[] = {
        {"A", 1, 'A'},
        {"\xc3\xa9", 2, 0xe9},
        {"\xe2\x82\xac", 3, 0x20ac},
        {"\xf0\x9f\x9a\x80", 4, 0x1f680},
        {"\xf4\x8f\xbf\xbf", 4, 0x10ffff},
        {"\x80", 1, MC_UC_INVALID},
        {"\xc0\x80", 1, MC_UC_INVALID},         /* overlong */
        {"\xe0\x80\x80", 1, MC_UC_INVALID},     /* overlong */
        {"\xf0\x8f\xbf\xbf", 1, MC_UC_INVALID}, /* overlong */
        {"\xed\xa0\x80", 1, MC_UC_INVALID},     /* surrogate */
        {"\xf4\x90\x80\x80", 1, MC_UC_INVALID}, /* past the last */
        {"\xe2\x82", 1, MC_UC_INVALID},         /* cut */
        {"\xff", 1, MC_UC_INVALID},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint32_t cp;
        const unsigned char *s = (const unsigned char *)row[i].s;
        assert_int_equal(mc_utf8_next(s, s + strlen(row[i].s), &cp), row[i].len);
        assert_int_equal(cp, row[i].cp);
    }
}

static void unicode_composes_by_the_rules(void **state)
{
    (void)state;
    /* From the standard's description of the algorithm and its examples. */
    static const char *const row[][2] = {
        {"e\xcc\x81", "\xc3\xa9"},
        {"a\xcc\x87\xcc\xa3", "\xe1\xba\xa1\xcc\x87"},            /* dot below goes first */
        {"\xe2\x84\xab", "\xc3\x85"},                             /* Angstrom sign: singleton */
        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"}, /* Hangul L V T */
        {"\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81"},             /* LV T */
        {"\xea\xb0\x81\xe1\x86\xa8", "\xea\xb0\x81\xe1\x86\xa8"}, /* LVT takes no T */
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},             /* composition exclusion */
        {"\xcc\x88\xcc\x81", "\xcc\x88\xcc\x81"},                 /* only marks */
        {"\xcd\x84", "\xcc\x88\xcc\x81"},                         /* decomposes, stays so */
        {"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},               /* sorted, no composite */
        {"\xff"
         "e\xcc\x81\xff\xcc\x81",
         "\xff\xc3\xa9\xff\xcc\x81"}, /* stray bytes stay */
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mc_text t = {0};
        const unsigned char *s = (const unsigned char *)row[i][0];
        assert_int_equal(mc_unicode_nfc(tok[2]->props, s, strlen(row[i][0]), &t, NULL), MC_OK);
        assert_int_equal(t.n, strlen(row[i][1]));
        assert_memory_equal(t.v, row[i][1], t.n);
        mc_free(t.v);
    }
}

/* ---- a naive reading: merge the lowest rank, leftmost first, until none is left ---- */

static int64_t naive(const struct mc_bpe *b, const unsigned char *s, int64_t n, int32_t *id)
{
    for (int64_t i = 0; i < n; i++)
        id[i] = b->byte_id[s[i]];
    for (;;) {
        int64_t at = -1;
        struct mc_bpe_to best = {0};
        for (int64_t i = 0; i + 1 < n; i++) {
            uint64_t key = (uint64_t)(uint32_t)id[i] << 32 | (uint32_t)id[i + 1];
            for (size_t k = 0; k < b->pairs_cap; k++)
                if (b->pair[k] == key && (at < 0 || b->to[k].rank < best.rank)) {
                    best = b->to[k];
                    at = i;
                }
        }
        if (at < 0)
            return n;
        id[at] = best.into;
        memmove(id + at + 1, id + at + 2, (size_t)(n - at - 2) * sizeof *id);
        n--;
    }
}

static void bpe_merges_as_the_naive_reading(void **state)
{
    (void)state;
    /* Merges out of their usual order: later ranks make what earlier ones want. */
    static const char alphabet[] = "abcde";
    struct mc_bpe b = {0};
    struct mc_bpe_merge m[60];
    struct mc_bpe_work *w;
    unsigned seed = 9;
    for (int i = 0; i < 256; i++)
        b.byte_id[i] = i;
    for (int i = 0; i < 60; i++) {
        int32_t lo = 97, hi = 102;
        int32_t x = rnd(&seed) % 2 && i ? 300 + (int32_t)(rnd(&seed) % (unsigned)i)
                                        : lo + (int32_t)(rnd(&seed) % (unsigned)(hi - lo));
        int32_t y = rnd(&seed) % 3 ? lo + (int32_t)(rnd(&seed) % 5) : x;
        m[i] = (struct mc_bpe_merge){x, y, 300 + i};
    }
    for (int i = 0; i < 30; i++) { /* shuffled */
        int k = (int)(rnd(&seed) % 60);
        struct mc_bpe_merge t = m[i];
        m[i] = m[k];
        m[k] = t;
    }
    assert_int_equal(mc_bpe_init(&b, m, 60, NULL), MC_OK);
    assert_int_equal(mc_bpe_work_create(&b, &w, NULL), MC_OK);
    for (int round = 0; round < 400; round++) {
        unsigned char s[160];
        int32_t want[160];
        struct mc_ids ids = {0};
        size_t n = 1 + rnd(&seed) % (round % 2 ? sizeof s : 30); /* both ways of bpe.c */
        for (size_t i = 0; i < n; i++)
            s[i] = (unsigned char)alphabet[rnd(&seed) % (1 + rnd(&seed) % 5)];
        int64_t k = naive(&b, s, (int64_t)n, want);
        for (int twice = 0; twice < 2; twice++) { /* fresh, then from the cache */
            ids.n = 0;
            assert_int_equal(mc_bpe_word(w, s, n, &ids, NULL), MC_OK);
            assert_int_equal(ids.n, k);
            assert_memory_equal(ids.v, want, (size_t)k * sizeof *want);
        }
        mc_free(ids.v);
    }
    mc_bpe_work_destroy(w);
    mc_bpe_fini(&b);
}

/* ---- scanners against PCRE2 reading the same regex ---- */

struct lengths {
    size_t n, len[4096];
};
static mc_status note(void *arg, const unsigned char *word, size_t n, struct mc_err *err)
{
    struct lengths *l = arg;
    (void)word;
    (void)err;
    l->len[l->n++] = n;
    return MC_OK;
}

static void pretok_scanners_agree_with_their_regexes(void **state)
{
    (void)state;
    static const char gpt2[] = "(?:'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+"
                               "| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+)";
    static const char *const bits[] = {"'",
                                       "s",
                                       "S",
                                       "re",
                                       "LL",
                                       "'d",
                                       "a",
                                       "\xc3\xa9",
                                       "7",
                                       "12",
                                       "\xc2\xbd",
                                       " ",
                                       " ",
                                       "  ",
                                       "\n",
                                       "\r",
                                       "\t",
                                       "\xc2\xa0",
                                       "\xe2\x80\xa8",
                                       "!",
                                       "?",
                                       "\xe2\x82\xac",
                                       "\xcc\x81",
                                       "\xf0\x9f\x9a\x80",
                                       "\xc5\xbf",
                                       "\xc2\x85",
                                       "\xe6\x9c\x88",
                                       "x"};
    char group[512];
    const char *regex[3] = {gpt2, mc_pretok_llama3, mc_pretok_qwen2};
    unsigned seed = 3;
    for (int k = 0; k < 3; k++) {
        struct mc_stage scan, re;
        struct mc_pretok a, b;
        struct mc_err err = {0};
        /* a group around it: not a known text any more, so PCRE2 compiles it */
        snprintf(group, sizeof group, "(?:%s)", regex[k]);
        if (mc_pretok_stage(group, strlen(group), &re, &err) != MC_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(re.kind, MC_STAGE_REGEX);
        if (k == 0)
            scan = (struct mc_stage){.kind = MC_STAGE_GPT2};
        else
            assert_int_equal(mc_pretok_stage(regex[k], strlen(regex[k]), &scan, NULL), MC_OK);
        assert_int_not_equal(scan.kind, MC_STAGE_REGEX);
        assert_int_equal(mc_pretok_init(&a, tok[0]->props, &scan, 1, NULL), MC_OK);
        assert_int_equal(mc_pretok_init(&b, tok[0]->props, &re, 1, NULL), MC_OK);
        for (int round = 0; round < 20000; round++) {
            char s[256] = "";
            struct lengths x = {0}, y = {0};
            for (unsigned i = rnd(&seed) % 14; i > 0; i--)
                strcat(s, bits[rnd(&seed) % (sizeof bits / sizeof *bits)]);
            size_t n = strlen(s);
            assert_int_equal(mc_pretok_run(&a, (unsigned char *)s, n, note, &x, NULL), MC_OK);
            assert_int_equal(mc_pretok_run(&b, (unsigned char *)s, n, note, &y, NULL), MC_OK);
            if (x.n != y.n || memcmp(x.len, y.len, x.n * sizeof *x.len) != 0)
                fail_msg("regex %d: \"%s\": %zu words, %zu by PCRE2", k, s, x.n, y.n);
        }
        mc_pretok_fini(&a);
        mc_pretok_fini(&b);
        mc_pretok_stage_fini(&re);
    }
}

static void pretok_regex_that_gives_up_is_an_error(void **state)
{
    (void)state;
    static const char re[] = "(?:a+)+c"; /* exponential in the letters before b */
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabc";
    struct mc_stage s;
    struct mc_pretok p;
    struct lengths l = {0};
    struct mc_err err = {0};
    assert_int_equal(mc_pretok_stage(re, sizeof re - 1, &s, NULL), MC_OK);
    assert_int_equal(mc_pretok_init(&p, tok[0]->props, &s, 1, NULL), MC_OK);
    assert_int_equal(
        mc_pretok_run(&p, (const unsigned char *)text, sizeof text - 1, note, &l, &err),
        MC_E_FORMAT);
    assert_non_null(strstr(err.msg, "gave up"));
    mc_pretok_fini(&p);
    mc_pretok_stage_fini(&s);
}

/* ---- bytes, ids, names ---- */

static void tokenizer_bytes_is_the_same_interface(void **state)
{
    (void)state;
    struct mc_tokenizer *t;
    struct mc_encoder *e;
    size_t n;
    open_one("bytes", &t, &e);
    assert_int_equal(mc_tokenizer_vocab(t), 257);
    assert_int_equal(mc_tokenizer_eos(t), 256);
    struct mc_ids ids = encode(e, "a\xff\0z", 4, MC_ENCODE_TEXT);
    static const int32_t want[4] = {'a', 255, 0, 'z'};
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.v, want, sizeof want);
    assert_string_equal(mc_tokenizer_piece(t, 256, &n), "");
    assert_int_equal(n, 0);
    assert_int_equal(mc_tokenizer_piece(t, 255, &n)[0] & 0xff, 255);
    assert_int_equal(mc_tokenizer_id(t, "z", 1), 'z');
    mc_free(ids.v);
    mc_encoder_destroy(e);
    mc_tokenizer_close(t);
}

static void tokenizer_names_round_trip(void **state)
{
    (void)state;
    static const int eos[3] = {0, 1928, 1800};
    for (int k = 0; k < 3; k++) {
        for (int32_t id = 0; id < mc_tokenizer_vocab(tok[k]); id++) {
            size_t n;
            const char *name = mc_tokenizer_name(tok[k], id, &n);
            assert_non_null(name);
            assert_int_equal(mc_tokenizer_id(tok[k], name, n), id);
        }
        size_t n;
        const char *name = mc_tokenizer_name(tok[k], mc_tokenizer_eos(tok[k]), &n);
        assert_int_equal(mc_tokenizer_eos(tok[k]), eos[k]);
        assert_memory_equal(name, k == 1 ? "<|end_of_text|>" : "<|endoftext|>", n);
        assert_true(mc_tokenizer_is_special(tok[k], eos[k]));
        assert_int_equal(mc_tokenizer_id(tok[k], "no such", 7), -1);
        assert_null(mc_tokenizer_name(tok[k], (int32_t)mc_tokenizer_vocab(tok[k]), &n));
        assert_null(mc_tokenizer_name(tok[k], -1, &n));
    }
}

static void tokenizer_decode_can_skip_special_tokens(void **state)
{
    (void)state;
    char s[64];
    struct mc_ids ids = encode(enc[0], "moon<|endoftext|>tide", 21, MC_ENCODE_SPECIAL);
    assert_int_equal(mc_tokenizer_decode(tok[0], ids.v, ids.n, 1, s, sizeof s), 8);
    assert_memory_equal(s, "moontide", 8);
    assert_int_equal(mc_tokenizer_decode(tok[0], ids.v, ids.n, 0, s, 3), 21); /* cut, counted */
    mc_free(ids.v);
    ids = encode(enc[0], "<|endoftext|>", 13, MC_ENCODE_TEXT);
    assert_true(ids.n > 1);
    for (int64_t i = 0; i < ids.n; i++)
        assert_int_not_equal(ids.v[i], 0);
    mc_free(ids.v);
}

/* ---- refusals ---- */

/* gpt2.json with one text in place of another. */
static void refused(const char *from, const char *to, const char *says)
{
    char *text;
    size_t n;
    struct mc_tokenizer *t;
    struct mc_err err = {0};
    assert_int_equal(mc_sys_read_file(GOLDEN "gpt2.json", 1 << 24, &text, &n, NULL), MC_OK);
    char *at = strstr(text, from), *made = malloc(n + strlen(to) + 1);
    assert_non_null(at);
    assert_non_null(made);
    snprintf(made, n + strlen(to) + 1, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    mc_status st = mc_tokenizer_parse(made, strlen(made), "t.json", &t, &err);
    if (st == MC_OK)
        fail_msg("taken: %s", to);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
    assert_int_equal(st, MC_E_FORMAT);
    mc_free(text);
    free(made);
}

static void tokenizer_json_refuses_by_name(void **state)
{
    (void)state;
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true"
#define PRE        "\"pre_tokenizer\":" BYTE_LEVEL ",\"use_regex\":true}"
    static const char *const row[][3] = {
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type: Unigram"},
        {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "model.type: WordPiece"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", "model.byte_fallback"},
        {"\"dropout\":null", "\"dropout\":0.1", "model.dropout"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"",
         "model.end_of_word_suffix"},
        {"\"ignore_merges\":false", "\"ignore_merges\":1", "model.ignore_merges"},
        {"\"ignore_merges\":false", "\"ignore_merge\":false", "model.ignore_merge: unknown"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", "normalizer: Lowercase"},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"}]}",
         "normalizer: NFKC"},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":5}", "truncation"},
        {"\"padding\":null", "\"padding\":{}", "padding"},
        {"\"version\":", "\"versions\":", "versions: unknown member"},
        {PRE, "\"pre_tokenizer\":null", "pre_tokenizer: none"},
        {PRE, "\"pre_tokenizer\":{\"type\":\"Metaspace\"}", "pre_tokenizer: Metaspace"},
        {PRE, "\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":true}", "no ByteLevel"},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":\"a(\"},\"behavior\":\"Isolated\",\"invert\":false}]}",
         "does not compile"},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":\"Isolated\",\"invert\":false}]}",
         "\\w"},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\",\"invert\":false}]}",
         "behavior Removed"},
        {PRE, "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regexp\":true}", "use_regexp"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"",
         "decoder: Metaspace"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"Odd\"}", "post_processor: Odd"},
        {"\"single_word\":false", "\"single_word\":true", "added_tokens[0].single_word"},
        {"\"lstrip\":false", "\"lstrips\":false", "added_tokens[0].lstrips"},
        {"\"id\":0,\"content\"", "\"id\":77,\"content\"", "added_tokens[0]"},
        {"\"id\":0,\"content\"", "\"id\":-1,\"content\"", "added_tokens[0]"},
        {"\"!\":1,", "\"!\":2,", "id 2 is"},
        {"\"!\":1,", "", "no token for byte 0x21"},
        {"\"!\":1,", "\"!\":16777216,", "an id from 0"},
        {"\"!\":1,", "\"!\":16777215,", "the highest id is 16777215"},
        {"\"!\":1,", "\"!\":1.5,", "an id from 0"},
        {"\"!\":1,", "\"!\":1,\"!\":1,", "not JSON"},
        {"\"merges\":[", "\"merges\":[\"a b c\",", "model.merges[0]"},
        {"\"merges\":[", "\"merges\":[[\"a\"],", "model.merges[0]"},
        {"\"merges\":[", "\"merges\":[[\"a\",\"none\"],", "\"none\" is not in model.vocab"},
        {"\"merges\":[", "\"merges\":[\"~ ~\",", "what the two make"},
        {"\"merges\":[", "\"mergers\":[", "model.merges"},
        {"{", "[", "not JSON"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        refused(row[i][0], row[i][1], row[i][2]);
    struct mc_tokenizer *t;
    struct mc_err err = {0};
    assert_int_equal(mc_tokenizer_open("/no/such/tokenizer.json", &t, &err), MC_E_NOTFOUND);
    assert_non_null(strstr(err.msg, "/no/such/tokenizer.json"));
}

/* ---- learning ---- */

static mc_status learn(const char *path, enum mc_pretok_kind kind, int64_t vocab,
                       const char *const *text, int ntext, struct mc_bpe_train_stats *s)
{
    static const char *const special[] = {"<|endoftext|>", "abc"};
    struct mc_bpe_train_cfg cfg = {
        .pretok = kind, .special = special, .nspecial = 2, .vocab = vocab, .min_frequency = 2};
    struct mc_bpe_trainer *t;
    struct mc_err err = {0};
    mc_status st = mc_bpe_trainer_create(&cfg, &t, &err);
    if (st != MC_OK)
        return st;
    for (int i = 0; i < ntext; i++)
        assert_int_equal(mc_bpe_trainer_add(t, text[i], strlen(text[i]), &err), MC_OK);
    st = mc_bpe_trainer_write(t, path, s, &err);
    mc_bpe_trainer_destroy(t);
    return st;
}

static void bpe_train_merges_by_count_then_by_lowest_ids(void **state)
{
    (void)state;
    char path[] = "/tmp/mc-tok-XXXXXX";
    struct mc_bpe_train_stats s;
    struct mc_tokenizer *t;
    struct mc_encoder *e;
    close(mkstemp(path));
    /* By hand: "xy" 5 times; then "cd", "zw" 3 times each (c < z); "qq" twice ("qqq": one word,
     * two places); "bc" once is too rare. "abc" is the name of a special token. */
    static const char *const text[] = {"xy\nxy\nxy\nxy\nxy\nzw\ncd", "zw\ncd\nzw\ncd", "qqq\nbc"};
    assert_int_equal(learn(path, MC_PRETOK_GPT2, 1000, text, 3, &s), MC_OK);
    open_one(path, &t, &e);
    assert_int_equal(s.vocab, 2 + 256 + 4);
    assert_int_equal(mc_tokenizer_vocab(t), s.vocab);
    assert_int_equal(mc_tokenizer_id(t, "<|endoftext|>", 13), 0);
    assert_int_equal(mc_tokenizer_eos(t), 0);
    assert_int_equal(mc_tokenizer_id(t, "!", 1), 2); /* the first of the alphabet */
    assert_int_equal(mc_tokenizer_id(t, "xy", 2), 258);
    assert_int_equal(mc_tokenizer_id(t, "cd", 2), 259);
    assert_int_equal(mc_tokenizer_id(t, "zw", 2), 260);
    assert_int_equal(mc_tokenizer_id(t, "qq", 2), 261);
    mc_encoder_destroy(e);
    mc_tokenizer_close(t);
    /* "ab" + "c" would spell the special token "abc". */
    static const char *const abc[] = {"abc abc abc abc"};
    assert_int_equal(learn(path, MC_PRETOK_GPT2, 1000, abc, 1, &s), MC_OK);
    open_one(path, &t, &e);
    assert_int_equal(mc_tokenizer_id(t, "abc", 3), 1);
    struct mc_ids ids = encode(e, "abc", 3, MC_ENCODE_TEXT);
    assert_int_equal(ids.n, 2);
    mc_free(ids.v);
    mc_encoder_destroy(e);
    mc_tokenizer_close(t);
    assert_int_not_equal(learn(path, MC_PRETOK_GPT2, 257, abc, 1, &s), MC_OK);
    /* One letter 2^17 times: tokens double, up to a length that the reader takes too. */
    static char run[(1 << 17) + 1];
    memset(run, 'r', sizeof run - 1);
    static const char *const long_one[] = {run};
    assert_int_equal(learn(path, MC_PRETOK_GPT2, 1000, long_one, 1, &s), MC_OK);
    assert_int_equal(s.vocab, 2 + 256 + 14);
    open_one(path, &t, &e);
    ids = encode(e, run, sizeof run - 1, MC_ENCODE_TEXT);
    assert_int_equal(ids.n, 8);
    mc_free(ids.v);
    mc_encoder_destroy(e);
    mc_tokenizer_close(t);
    unlink(path);
}

static void bpe_train_does_not_depend_on_the_order_of_texts(void **state)
{
    (void)state;
    char path[] = "/tmp/mc-tok-XXXXXX", *a, *b;
    struct mc_bpe_train_stats s;
    size_t na, nb;
    close(mkstemp(path));
    static const char *const x[] = {"the moon and the tide\n", "a tide of moons; 12 moons\n",
                                    "e\xcc\x81t\xc3\xa9 of the moon, the tide's\n"};
    static const char *const y[] = {x[2], x[0], x[1]};
    for (int k = 0; k < MC_NPRETOKS; k++) {
        assert_int_equal(learn(path, (enum mc_pretok_kind)k, 300, x, 3, &s), MC_OK);
        assert_int_equal(mc_sys_read_file(path, 1 << 24, &a, &na, NULL), MC_OK);
        assert_int_equal(learn(path, (enum mc_pretok_kind)k, 300, y, 3, &s), MC_OK);
        assert_int_equal(mc_sys_read_file(path, 1 << 24, &b, &nb, NULL), MC_OK);
        assert_int_equal(na, nb);
        assert_memory_equal(a, b, na);
        mc_free(a);
        mc_free(b);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_gives_the_ids_and_bytes_of_the_library),
        cmocka_unit_test(tokenizer_gives_any_bytes_back),
        cmocka_unit_test(unicode_takes_stray_bytes_one_by_one),
        cmocka_unit_test(unicode_composes_by_the_rules),
        cmocka_unit_test(bpe_merges_as_the_naive_reading),
        cmocka_unit_test(pretok_scanners_agree_with_their_regexes),
        cmocka_unit_test(pretok_regex_that_gives_up_is_an_error),
        cmocka_unit_test(tokenizer_bytes_is_the_same_interface),
        cmocka_unit_test(tokenizer_names_round_trip),
        cmocka_unit_test(tokenizer_decode_can_skip_special_tokens),
        cmocka_unit_test(tokenizer_json_refuses_by_name),
        cmocka_unit_test(bpe_train_merges_by_count_then_by_lowest_ids),
        cmocka_unit_test(bpe_train_does_not_depend_on_the_order_of_texts),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
