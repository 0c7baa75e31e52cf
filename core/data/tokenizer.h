/* tokenizer.h - bytes to token ids and back.
 *
 * "bytes": ids 0..255 are the bytes, 256 is EOS. Else a path: a Hugging Face tokenizer.json that
 * holds a byte-level BPE (GPT-2, Llama 3, Qwen and their kin). What is not of that kind (Unigram,
 * WordPiece, BPE over characters, unknown normalizers or pre-tokenizers) is refused, and the
 * message names the member.
 *
 * Encoding adds nothing: no BOS, no EOS; a post_processor of the file only does that, and is not
 * applied. Text that is not UTF-8 is no error: a byte that belongs to no character is a word
 * character of its own, and every byte has an id, so that without a normalizer
 * decode(encode(b)) == b for all bytes b. With one (Qwen: NFC) it is NFC of b, and bytes that
 * are no UTF-8 still come back.
 *
 * I1  Ids are 0 .. vocab-1, added tokens included; a file may leave holes, which no text encodes
 *     to.
 * I2  The same file and text give the same ids on every machine: what is a letter or a blank comes
 *     from our own tables (unicode_tables.c). The exception: a pre-tokenizer whose regex is none of
 *     the known ones runs on PCRE2 and its edition of Unicode.
 * I3  EOS is the first that the file's added tokens hold of: <|endoftext|> <|end_of_text|> </s>
 *     <|eos|> <eos> [EOS] <|end▁of▁sentence|> (DeepSeek's, in its own wide bars). None: -1. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct mc_tokenizer;
/* 1: the name of a tokenizer in a recipe is the path of a file: it ends in .json. */
int mc_tokenizer_is_file(const char *name);
mc_status mc_tokenizer_open(const char *bytes_or_path, struct mc_tokenizer **t, struct mc_err *err);
/* From memory; `path` for messages. */
mc_status mc_tokenizer_parse(const char *json, size_t n, const char *path, struct mc_tokenizer **t,
                             struct mc_err *err);
void mc_tokenizer_close(struct mc_tokenizer *t);
int64_t mc_tokenizer_vocab(const struct mc_tokenizer *t);
int32_t mc_tokenizer_eos(const struct mc_tokenizer *t);
int mc_tokenizer_is_bytes(const struct mc_tokenizer *t);
uint64_t
mc_tokenizer_hash(const struct mc_tokenizer *t); /* XXH3 of the file; "bytes": of its name */

/* An encoder is one thread's: it keeps a cache of words. The tokenizer outlives it, and any number
 * of encoders may use one tokenizer at a time. */
struct mc_encoder;
struct mc_ids { /* mc_free(v) */
    int32_t *v;
    int64_t n, cap;
};
enum mc_encode_special {
    MC_ENCODE_TEXT,   /* "<|endoftext|>" in the text is text: for data that others wrote */
    MC_ENCODE_SPECIAL /* ... is the token of that name, as the `tokenizers` library does */
};
mc_status mc_encoder_create(const struct mc_tokenizer *t, struct mc_encoder **e,
                            struct mc_err *err);
void mc_encoder_destroy(struct mc_encoder *e);
/* Appends the ids of text[0, n). */
mc_status mc_encode(struct mc_encoder *e, const void *text, size_t n, enum mc_encode_special how,
                    struct mc_ids *out, struct mc_err *err);

/* The bytes that an id stands for, *n of them (0 for EOS of "bytes" and for holes). Valid as long
 * as the tokenizer. */
const char *mc_tokenizer_piece(const struct mc_tokenizer *t, int32_t id, size_t *n);
int mc_tokenizer_is_special(const struct mc_tokenizer *t, int32_t id);
/* The name of an id as the file writes it ("Ġthe"); NULL: a hole or not an id. */
const char *mc_tokenizer_name(const struct mc_tokenizer *t, int32_t id, size_t *n);
int32_t mc_tokenizer_id(const struct mc_tokenizer *t, const char *name, size_t n); /* -1: none */
/* Bytes of ids[0, n) at dst, at most cap; returns how many there are in all. skip_special: special
 * tokens say nothing. */
size_t mc_tokenizer_decode(const struct mc_tokenizer *t, const int32_t *ids, int64_t n,
                           int skip_special, char *dst, size_t cap);

/* ---- bpe_train.c: a new byte-level BPE ---- */
enum mc_pretok_kind { MC_PRETOK_GPT2, MC_PRETOK_LLAMA3, MC_PRETOK_QWEN2, MC_NPRETOKS };
extern const char *const mc_pretok_names[MC_NPRETOKS]; /* "gpt2" "llama3" "qwen2" */
struct mc_bpe_trainer;
struct mc_bpe_train_cfg {
    enum mc_pretok_kind pretok;
    const char *const *special; /* ids 0 .. nspecial-1, in this order */
    int nspecial;
    int64_t vocab;         /* at most so many ids: special, 256 bytes, merges */
    int64_t min_frequency; /* a pair must occur so often to be merged; 2 is usual */
};
struct mc_bpe_train_stats {
    int64_t bytes, words, different_words, vocab;
};
mc_status mc_bpe_trainer_create(const struct mc_bpe_train_cfg *cfg, struct mc_bpe_trainer **t,
                                struct mc_err *err);
void mc_bpe_trainer_destroy(struct mc_bpe_trainer *t);
/* Counts the words of one text. The order of texts does not matter. */
mc_status mc_bpe_trainer_add(struct mc_bpe_trainer *t, const void *text, size_t n,
                             struct mc_err *err);
/* Learns and writes tokenizer.json to `path`. The pair that occurs most often is merged next; of
 * equals, the one of the lowest first id, then of the lowest second id: the same texts give the
 * same file, byte for byte. */
mc_status mc_bpe_trainer_write(struct mc_bpe_trainer *t, const char *path,
                               struct mc_bpe_train_stats *stats, struct mc_err *err);
