/* pack_int.h - inside pack: blocks of text on their way from the reader through the encoders to the
 * writer. pack.c drives, pack_read.c fills, pack_encode.c encodes, stream.c unpacks. */
#pragma once
#include "data_int.h"

enum {
    MC_PACK_BLOCK = 1 << 20,     /* bytes of text that a block aims at */
    MC_PACK_LINE = 64 << 20,     /* longest line of JSONL */
    MC_PACK_DOCUMENT = 1 << 30,  /* longest text file of an encoder that wants it whole */
    MC_PACK_NAME = MC_PATH + 24, /* "FILE:LINE" */
};

/* ---- stream.c: the bytes of a file, unpacked when its name ends in .gz or .zst ---- */
struct mc_stream;
/* The first `bytes` of the file are read, however it grows. */
mc_status mc_stream_open(const char *path, int64_t bytes, struct mc_stream **s, struct mc_err *err);
void mc_stream_close(struct mc_stream *s);
/* Fills dst; *got < n only at the end. MC_E_FORMAT: not gzip or zstd, damaged, or cut short. */
mc_status mc_stream_read(struct mc_stream *s, void *dst, size_t n, size_t *got, struct mc_err *err);
int64_t mc_stream_taken(const struct mc_stream *s); /* bytes of the file read so far */
int mc_stream_packed(const char *path);             /* by its name */

/* ---- blocks ---- */
struct mc_pack_block {
    /* by the reader: whole lines of JSONL, or a piece of one text */
    const char *file;       /* borrowed from the list of inputs */
    int jsonl, first, last; /* first, last: of its text */
    int64_t line;           /* of its first line, from 1 */
    char *text;
    size_t bytes, cap;
    int64_t taken; /* bytes of all inputs read when it was full */
    /* by the encoder */
    struct mc_pack_ids ids; /* narrowed to elements of .bin by mc_pack_encode() */
    int64_t ndoc, cap_doc;  /* JSONL: documents */
    int64_t *doc;           /* tokens of each */
    int32_t max_id;         /* -1: none */
    int64_t text_bytes;     /* that were encoded */
    mc_status st;
    struct mc_err err;
};
void mc_pack_block_fini(struct mc_pack_block *b);

/* ---- pack_read.c ---- */
struct mc_pack_input {
    char *path; /* owned by the list it came from */
    int64_t bytes;
    int jsonl;
};
struct mc_pack_reader {
    const struct mc_pack_input *in;
    int nin, at; /* at: the input being read */
    int whole;   /* texts may not be cut */
    struct mc_stream *s;
    char *rest; /* what follows the last whole line of the block before */
    size_t nrest, cap_rest;
    int64_t line, taken; /* taken: bytes of the inputs already closed */
    int begun, done;
};
int mc_pack_is_jsonl(const char *path); /* by its name, .gz and .zst aside */
/* Fills up to n blocks; fewer at the end of the inputs and before an error. */
mc_status mc_pack_read(struct mc_pack_reader *r, struct mc_pack_block *b, int n, int *filled,
                       struct mc_err *err);
void mc_pack_reader_fini(struct mc_pack_reader *r);

/* ---- pack_encode.c ---- */
struct mc_pack_job {
    const struct mc_pack_encoder *enc;
    void *state; /* of this thread, by enc->open */
    const char *key;
    int append_eos, esize;
};
extern const struct mc_pack_encoder mc_pack_bytes;
void mc_pack_encode(const struct mc_pack_job *job, struct mc_pack_block *b); /* b->st tells */
