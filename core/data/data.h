/* data.h - token streams, and the order in which samples are drawn from them.
 *
 * A *source* is a stream of tokens: documents back to back, each closed by EOS. With `holdout` h
 * the stream is cut at floor(n*(1-h)): training sees tokens before the cut only, validation only
 * those after it. A source is read in *blocks* of B tokens (data.block: the run's longest sequence;
 * of one sequence length, a block is a sample), block k from token k*B on, k in [0,
 * floor((n-1)/B)). A *sample* at sequence length T, which divides B, is the T+1 tokens that start
 * at a multiple of T in a block: inputs and shifted labels.
 *
 * The order is computed, not stored. A *pass* over a source takes every block once, in the order
 * permute(key(seed, s's name, pass), K, .); sampler.c has the rest: how blocks become samples when
 * T < B, and what a change of T keeps. Which source gives the next
 * draw of the run: of those not ahead of their share, taken < weight * (total + 1), both counted
 * since the weights were set, the one whose next draw is due first, (taken + 1) / weight (ties:
 * first); so shares are exact to one sample in every prefix. So order depends neither on train
 * length, batch or DP, nor, within a source, on other sources.
 *
 * data.order = "megatron" is another order, that of Megatron's GPT data sets: megatron.c.
 *
 * I1  The cursor is all the state there is: plain numbers, a few a source.
 * I2  Ids are checked against the vocabulary when first touched.
 *
 * "bytes": ids 0..255 are the bytes, 256 is EOS. A folder is all regular files below it in path
 * order, each one document; see source.c. */
#pragma once
#include <stdint.h>
#include "../base/status.h"
#include "../base/json.h"
#include "../recipe/recipe.h"

enum { MC_BYTES_EOS = 256, MC_BYTES_VOCAB = 257 };

struct mc_cursor { /* plain data, kept in the checkpoint */
    int nsources;
    int64_t seq;                         /* sequence length of the next draw */
    uint64_t taken[MC_MAX_SOURCES];      /* samples drawn from each source, ever */
    uint64_t phase_base[MC_MAX_SOURCES]; /* `taken` when the present weights were set */
    uint64_t tokens[MC_MAX_SOURCES];     /* read from each source, ever */
    double weight[MC_MAX_SOURCES];       /* in force, as declared */
    /* Where the pass over each source is: its number, its block length, blocks done with, and
     * samples drawn of the group of blocks in hand. */
    uint64_t pass[MC_MAX_SOURCES], at[MC_MAX_SOURCES], in_group[MC_MAX_SOURCES];
    int64_t block[MC_MAX_SOURCES];
};
struct mc_mixture { /* what was read of each source, in the order of data.train */
    int n;
    struct {
        int64_t samples, tokens;
        double share;  /* of all tokens read */
        double weight; /* in force; they sum to 1 */
    } of[MC_MAX_SOURCES];
};
void mc_cursor_mixture(const struct mc_cursor *c, struct mc_mixture *x);
struct mc_sample {
    int source;
    uint64_t index; /* sample in the source: begins at token index * seq */
    uint64_t epoch; /* the pass */
    int64_t seq;
};

struct mc_data;
/* base_dir: folder that relative paths start from. Opens training and validation sources. Each
 * source needs one full sample on each side it serves: "a sequence longer than the data" is an
 * error with both lengths. No training source but a validation source is legal: evaluation only. A
 * source is known by the last two components of its absolute path (twins: NAME#2); see sampler.c.
 */
mc_status mc_data_open(const struct mc_recipe *r, const char *base_dir, struct mc_data **d,
                       struct mc_err *err);
void mc_data_close(struct mc_data *d);
int64_t mc_data_train_tokens(const struct mc_data *d);
int64_t mc_data_valid_samples(const struct mc_data *d); /* 0: no validation set */
uint64_t mc_data_hash(const struct mc_data *d);         /* of all sources: sizes and content hash */
int mc_data_bytes_like(
    const struct mc_data *d); /* 1: tokens are bytes, bits per byte makes sense */
void mc_cursor_init(const struct mc_data *d, struct mc_cursor *c);
/* From the next draw on: sequences of seq tokens (it divides data.block), and these weights, NULL:
 * data.train's. Returns 1 when that was news. */
int mc_cursor_phase(const struct mc_data *d, struct mc_cursor *c, int64_t seq,
                    const double *weight);
/* The next n draws; advances the cursor. Allocates nothing. */
void mc_data_draw(const struct mc_data *d, struct mc_cursor *c, int64_t n, struct mc_sample *out);
/* Tokens and targets ([n*T] each, T = s->seq of all) of n samples; targets of masked positions are
 * -1. MC_E_FORMAT: an id past the vocabulary. */
mc_status mc_data_fetch(const struct mc_data *d, const struct mc_sample *s, int64_t n,
                        int32_t *tokens, int32_t *targets, struct mc_err *err);
/* Validation samples [first, first+n), in stream order. */
mc_status mc_data_fetch_valid(const struct mc_data *d, int64_t first, int64_t n, int32_t *tokens,
                              int32_t *targets, struct mc_err *err);
const char *mc_data_source_name(const struct mc_data *d, int source);
void mc_cursor_write(const struct mc_data *d, const struct mc_cursor *c,
                     struct mc_json *j); /* sampler.c has the members */
/* Names and count must agree with the open data: else MC_E_RECIPE telling what differs. Cursors
 * written before they held weights: the caller says whether those changed. */
mc_status mc_cursor_read(const struct mc_data *d, const char *json, struct mc_cursor *c,
                         int weights_changed, struct mc_err *err);

/* ---- Megatron's .bin/.idx (core/data/indexed.c): read as is, written by pack ---- */
struct mc_indexed;
mc_status mc_indexed_open(const char *prefix_or_file, struct mc_indexed **x,
                          struct mc_err *err); /* every field bounded and cross-checked */
void mc_indexed_close(struct mc_indexed *x);
int64_t mc_indexed_sequences(const struct mc_indexed *x);
int64_t mc_indexed_documents(const struct mc_indexed *x);
int64_t mc_indexed_tokens(const struct mc_indexed *x);
enum mc_dtype mc_indexed_dtype(const struct mc_indexed *x);    /* i8, i16: MC_NDTYPES */
const char *mc_indexed_dtype_name(const struct mc_indexed *x); /* "u16" */
mc_status mc_indexed_read(const struct mc_indexed *x, int64_t first_token, int64_t n, int32_t *out,
                          struct mc_err *err); /* stream positions */
mc_status mc_indexed_sequence(const struct mc_indexed *x, int64_t i, int64_t *byte_offset,
                              int64_t *len, struct mc_err *err);
/* ---- pack.c: texts to .bin/.idx ---- */
struct mc_pack_ids { /* v: mc_grow'n */
    int32_t *v;
    int64_t n, cap;
};
struct mc_pack_encoder { /* from text to ids; "bytes" where none is given */
    const char *name;    /* "tokenizer" of the sidecar */
    uint64_t hash;       /* of the tokenizer, for the sidecar; 0: not written */
    int64_t vocab;       /* ids are below it; up to 65,536: .bin is u16, else i32 */
    int32_t eos;         /* -1: has none */
    int cuttable;        /* a text may be encoded piece by piece, cut anywhere */
    const void *ctx;
    /* One state a thread; both NULL: none is needed. */
    mc_status (*open)(const void *ctx, void **state, struct mc_err *err);
    void (*close)(void *state);
    /* Appends the ids of text[0, n). */
    mc_status (*encode)(void *state, const char *text, size_t n, struct mc_pack_ids *out,
                        struct mc_err *err);
};
struct mc_tokenizer;
/* `name` (short of MC_WORD bytes) and the tokenizer are borrowed. */
void mc_pack_tokenizer(const struct mc_tokenizer *t, const char *name, struct mc_pack_encoder *e);
enum mc_pack_format { MC_PACK_AUTO, MC_PACK_TEXT, MC_PACK_JSONL }; /* AUTO: by the file's name */
struct mc_pack_cfg {
    const char *const *inputs; /* files and folders */
    int ninputs;
    const char *out_prefix;
    int append_eos;
    int progress; /* a line on stderr */
    enum mc_pack_format format;
    const char *key;                       /* of a JSONL line's text; NULL: "text" */
    int workers;                           /* threads; 0: one. The output does not depend on it */
    const struct mc_pack_encoder *encoder; /* NULL: bytes */
};
struct mc_pack_stats {
    int64_t documents, tokens, bytes_in; /* bytes_in: of the files, packed as they are */
    int64_t text_bytes;                  /* of the documents */
    uint64_t hash;
};
/* A text file is one document, a line of JSONL is one; .gz and .zst are unpacked. Writes
 * prefix.bin, prefix.idx, then the sidecar prefix.json (hashes, counts). */
mc_status mc_data_pack(const struct mc_pack_cfg *cfg, struct mc_pack_stats *stats,
                       struct mc_err *err);
mc_status mc_data_inspect(const char *path, struct mc_json *j, struct mc_err *err);
/* Re-reads everything, checks structure and sidecar hashes: MC_E_DIFF with what and where. */
mc_status mc_data_verify(const char *path, int64_t vocab_or_0, struct mc_json *j,
                         struct mc_err *err);
