/* data_int.h - inside core/data: sources, the index of a packed one, the sidecar, the order. */
#pragma once
#include "data.h"
#include "../base/sysio.h"

/* ---- source.c: what a path means, and its token stream ---- */
enum mc_source_kind { MC_SOURCE_TEXT, MC_SOURCE_PACKED };
enum { MC_SOURCE_MAX_MAPPED = 32768 }; /* files mapped at once; the kernel's usual limit is 65530 */

struct mc_files { /* regular files of a text source, ascending by path */
    int n, cap;
    char **path;
    int64_t *bytes;
};
/* What `path` is. *prefix receives the path without .idx/.bin for MC_SOURCE_PACKED. */
mc_status mc_source_classify(const char *path, enum mc_source_kind *kind, char prefix[MC_PATH],
                             struct mc_err *err);
/* The files of a text source: `path` itself, or all regular files below it. */
mc_status mc_source_files(const char *path, struct mc_files *f, struct mc_err *err);
void mc_source_files_fini(struct mc_files *f);

struct mc_source;
mc_status mc_source_open(const char *path, struct mc_source **s, struct mc_err *err);
/* Once, before the first read: what a packed source's sidecar says must hold (mc_indexed_expect).
 */
mc_status mc_source_expect(struct mc_source *s, struct mc_err *err);
void mc_source_close(struct mc_source *s);
enum mc_source_kind mc_source_kind(const struct mc_source *s);
int64_t mc_source_tokens(const struct mc_source *s);
int64_t mc_source_documents(const struct mc_source *s);
uint64_t mc_source_hash(const struct mc_source *s); /* sizes and content */
int mc_source_is_bytes(const struct mc_source *s);  /* text, or packed by the bytes tokenizer */
/* Hash of the tokenizer it was packed by; 0: bytes, or not known. *name: as its sidecar says. */
uint64_t mc_source_tokenizer(const struct mc_source *s, const char **name);
int64_t mc_source_max_id(const struct mc_source *s); /* by its sidecar; -1: not known */
/* NULL: not packed. */
const struct mc_indexed *mc_source_indexed(const struct mc_source *s);
/* Tokens [pos, pos + n) of the stream. MC_E_FORMAT: an id outside [0, 2^31). */
mc_status mc_source_read(const struct mc_source *s, int64_t pos, int64_t n, int32_t *out,
                         struct mc_err *err);

/* ---- indexed.c ---- */
struct mc_indexed_view { /* the mapped bytes, for hashes */
    const unsigned char *bin, *idx;
    int64_t bin_bytes, idx_bytes;
};
void mc_indexed_bytes(const struct mc_indexed *x, struct mc_indexed_view *v);
int mc_indexed_has_modes(const struct mc_indexed *x);
/* The same checks on bytes already in memory (fuzzing); both stay the caller's. */
mc_status mc_indexed_open_memory(const void *idx, int64_t idx_bytes, const void *bin,
                                 int64_t bin_bytes, struct mc_indexed **x, struct mc_err *err);

struct mc_sidecar;
/* The sidecar vouches for the files: sizes, .idx and the ends of .bin now, the rest of .bin when it
 * is first read. MC_E_CORRUPT names file and range, here and from reads. */
mc_status mc_indexed_expect(struct mc_indexed *x, const struct mc_sidecar *sc, struct mc_err *err);
int64_t mc_indexed_start(const struct mc_indexed *x, int64_t i); /* stream position of sequence i */

/* ---- megatron.c ---- */
enum { MC_MT_WORDS = 624 };
struct mc_mt19937 {
    uint32_t key[MC_MT_WORDS];
    int at; /* next word; MC_MT_WORDS: all are used */
};
void mc_megatron_seed(struct mc_mt19937 *g, uint32_t seed);
uint32_t mc_megatron_u32(struct mc_mt19937 *g);
void mc_megatron_shuffle(struct mc_mt19937 *g, uint32_t *v, int64_t n); /* n <= 2^32 */
/* Weights divided by their sum, and that again. */
void mc_megatron_weights(const double *weight, int n, double *once, double *twice);
int64_t mc_megatron_share(int64_t samples, double weight); /* samples to build one of several for */
void mc_megatron_split(const double split[3], int64_t n, int64_t end[2]);
int mc_megatron_next(const double *weight, int n, const uint64_t *taken, uint64_t total);
struct mc_megatron {        /* the order of one source; owned, mc_megatron_fini() */
    int64_t tokens, epochs; /* tokens of one epoch */
    int separate_last;
    int64_t ndoc, rows, first_rows; /* first_rows: of the shuffle's first part */
    uint32_t *doc;                  /* [ndoc] sequences */
    int64_t *at;                    /* [rows + 1] place in doc where a sample begins */
    int32_t *off;                   /* [rows + 1] and the token in that sequence */
    uint32_t *shuffle;              /* [rows] */
    uint64_t hash;                  /* of doc and shuffle */
};
struct mc_megatron_cfg {
    const struct mc_indexed *x;
    const char *name;     /* for messages */
    int64_t first, n;     /* sequences to use */
    int64_t seq, samples; /* sequence length; samples wanted */
    int64_t seed;
};
mc_status mc_megatron_build(const struct mc_megatron_cfg *c, struct mc_megatron *out,
                            struct mc_err *err);
void mc_megatron_fini(struct mc_megatron *m);
/* n tokens from where sample `row` begins; n <= seq + 1. */
mc_status mc_megatron_read(const struct mc_megatron *m, const struct mc_indexed *x, int64_t row,
                           int64_t n, int32_t *out, struct mc_err *err);

/* ---- pack.c ---- */
enum { MC_SIDECAR_CHUNK = 16 << 20 }; /* bytes of .bin under one hash of the sidecar */
/* As mc_data_pack(), but a document longer than max_seq tokens becomes several sequences. */
mc_status mc_pack_split(const struct mc_pack_cfg *cfg, int64_t max_seq, struct mc_pack_stats *stats,
                        struct mc_err *err);

/* ---- sidecar.c: prefix.json ---- */
struct mc_sidecar {
    char tokenizer[MC_WORD];
    uint64_t tokenizer_hash; /* 0: not written (bytes) */
    int64_t documents, tokens, bin_bytes, idx_bytes;
    int64_t max_id; /* -1: none, or not said */
    uint64_t bin_hash, idx_hash;
    int64_t chunk;
    int64_t nchunks;
    uint64_t *chunk_hash; /* owned */
};
/* MC_E_NOTFOUND: there is none. MC_E_FORMAT: it is not one of ours. */
mc_status mc_sidecar_read(const char *prefix, struct mc_sidecar *s, struct mc_err *err);
/* `path` for messages. */
mc_status mc_sidecar_parse(const char *text, size_t n, const char *path, struct mc_sidecar *s,
                           struct mc_err *err);
void mc_sidecar_fini(struct mc_sidecar *s);

/* ---- sampler.c: pure order, no files ---- */
struct mc_order {     /* of one training source */
    uint64_t key;     /* from (seed, name) */
    uint64_t samples; /* K: blocks */
};
uint64_t mc_order_key(int64_t seed, const char *name);
void mc_order_sample(const struct mc_order *o, uint64_t taken, uint64_t *index, uint64_t *epoch);
/* weight [n]: they sum to 1; 0: never drawn. */
int mc_order_next(const double *weight, int n, const struct mc_cursor *c, uint64_t total);
/* Name of a source in cursors and messages: the last two components of its path. */
void mc_order_name(const char *abs_path, char *dst, size_t cap);
/* Lexical: makes absolute by `base` (itself made absolute by the working folder), drops "." and
 * "..", and doubled slashes. */
mc_status mc_order_abs(const char *base, const char *path, char dst[MC_PATH], struct mc_err *err);

/* ---- data.c ---- */
struct mc_part { /* a range of one source's stream: what training or validation sees of it */
    struct mc_source *src; /* borrowed from mc_data.source */
    char name[MC_PATH];
    const char *given;     /* its path as the recipe has it; while it is opened only */
    int64_t first, tokens; /* stream range [first, first + tokens) */
    int64_t samples;       /* training: floor((tokens - 1) / block); validation: / model.seq */
};
struct mc_data {
    int64_t seq, block, vocab;     /* seq: of validation, and of training at the start */
    double weight[MC_MAX_SOURCES]; /* of data.train, as declared */
    int mask_eod, bytes_like;
    int32_t eos;  /* -1: not known */
    int megatron; /* the order is Megatron's: mega, blend; else mc_order's */
    struct mc_megatron mega[MC_MAX_SOURCES];
    double blend[MC_MAX_SOURCES];
    int nsource;
    struct mc_source *source[2 * MC_MAX_SOURCES];
    int ntrain, nvalid;
    struct mc_part train[MC_MAX_SOURCES], valid[MC_MAX_SOURCES];
    struct mc_order order[MC_MAX_SOURCES];
    uint64_t hash;
};
