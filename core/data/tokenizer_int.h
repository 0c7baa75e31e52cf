/* tokenizer_int.h - inside core/data: the parts of a tokenizer. */
#pragma once
#include "tokenizer.h"
#include "unicode.h"

/* ---- pretok.c: text to words ---- */
enum mc_stage_kind {
    MC_STAGE_GPT2,   /* the regex of GPT-2's ByteLevel */
    MC_STAGE_CL100K, /* the regex of Llama 3 and Qwen 2; `digits` in a number */
    MC_STAGE_DIGITS, /* numbers apart from the rest; digits 1: each alone, 0: runs */
    MC_STAGE_REGEX   /* any other, by PCRE2 */
};
enum { MC_MAX_STAGES = 8 };
struct mc_pretok_regex; /* compiled, read-only */
struct mc_stage {
    enum mc_stage_kind kind;
    int digits;
    struct mc_pretok_regex *regex; /* owned */
};
/* Known patterns become scanners; others are compiled. MC_E_FORMAT: PCRE2 refuses it, or it means
 * different things in different engines. */
mc_status mc_pretok_stage(const char *regex, size_t n, struct mc_stage *s, struct mc_err *err);
void mc_pretok_stage_fini(struct mc_stage *s);
extern const char mc_pretok_llama3[], mc_pretok_qwen2[];

struct mc_pretok { /* one thread's */
    const unsigned char *props;
    const struct mc_stage *stage;
    int nstages;
    struct mc_pretok_match *match[MC_MAX_STAGES]; /* PCRE2's work space of regex stages */
};
mc_status mc_pretok_init(struct mc_pretok *p, const unsigned char *props,
                         const struct mc_stage *stage, int nstages, struct mc_err *err);
void mc_pretok_fini(struct mc_pretok *p);
typedef mc_status (*mc_word_fn)(void *arg, const unsigned char *word, size_t n, struct mc_err *err);
/* Calls fn for the words of [s, s+n), in order; together they are the text. No stage: one word. */
mc_status mc_pretok_run(struct mc_pretok *p, const unsigned char *s, size_t n, mc_word_fn fn,
                        void *arg, struct mc_err *err);

/* ---- bpe.c: a word to ids ---- */
struct mc_bpe_merge {
    int32_t left, right, into;
};
struct mc_bpe { /* read-only after mc_bpe_init */
    int32_t byte_id[256];
    uint64_t *pair; /* [pairs_cap] left << 32 | right; UINT64_MAX: free */
    struct mc_bpe_to {
        int32_t rank, into;
    } * to;
    size_t pairs_cap; /* a power of two */
    int whole_words;  /* ignore_merges: a word of the vocabulary is its id */
    /* bytes -> id of the model's own tokens */
    int32_t *word; /* [words_cap]; -1: free */
    size_t words_cap;
    const uint32_t *piece_at; /* [ids + 1] into piece; borrowed from the tokenizer */
    const unsigned char *piece;
};
/* A later merge of the same pair replaces the earlier one. */
mc_status mc_bpe_init(struct mc_bpe *b, const struct mc_bpe_merge *merge, int64_t n,
                      struct mc_err *err);
void mc_bpe_fini(struct mc_bpe *b);
mc_status mc_bpe_words(struct mc_bpe *b, const unsigned char *model_id, int64_t ids,
                       struct mc_err *err); /* model_id[i]: i is a token of the model */

struct mc_bpe_work; /* one thread's: cache and scratch */
mc_status mc_bpe_work_create(const struct mc_bpe *b, struct mc_bpe_work **w, struct mc_err *err);
void mc_bpe_work_destroy(struct mc_bpe_work *w);
mc_status mc_bpe_word(struct mc_bpe_work *w, const unsigned char *word, size_t n,
                      struct mc_ids *out, struct mc_err *err);
mc_status mc_ids_room(struct mc_ids *ids, int64_t more, struct mc_err *err);

/* ---- the alphabet of byte-level tokens: byte -> code point, U+0000 .. U+0143 ---- */
enum { MC_ALPHABET_END = 0x144 };
uint32_t mc_alphabet_char(int byte);
/* Code point -> byte, or -1. */
int mc_alphabet_byte(uint32_t cp);

/* ---- tokenizer.c, tokenizer_json.c ---- */
enum { MC_TOK_MODEL = 1, MC_TOK_ADDED = 2, MC_TOK_SPECIAL = 4 }; /* 0: a hole */
struct mc_added {
    int32_t id;
    uint32_t at, n; /* what is looked for: in tokenizer.pattern */
    unsigned char special, lstrip, rstrip;
};
struct mc_added_set {
    struct mc_added *v; /* by first byte, longest first */
    int n;
    int first[257]; /* v[first[b] .. first[b + 1]) begin with byte b */
};
struct mc_tokenizer {
    int bytes;
    uint64_t hash;
    int32_t n, eos;
    unsigned char *flags;         /* [n] */
    uint32_t *piece_at, *name_at; /* [n + 1] */
    struct mc_text piece, name, pattern;
    int32_t *by_name; /* [by_name_cap]: hash of names; -1: free */
    size_t by_name_cap;
    struct mc_added_set raw, normal; /* looked for before, and after normalisation */
    int nfc, prefix_space;
    unsigned char *props;
    struct mc_stage stage[MC_MAX_STAGES];
    int nstages;
    struct mc_bpe bpe;
};
/* Fills by_name from name, name_at and flags. */
mc_status mc_tokenizer_index(struct mc_tokenizer *t, struct mc_err *err);
