/* ckpt_int.h - what the files of ckpt/ share: constants of the format, the manifest in memory, and
 * the store that a checkpoint lies on. For this folder only. */
#pragma once
#include "ckpt.h"

enum {
    MC_CKPT_VERSION = 1,
    MC_CKPT_CHUNK = 4 << 20, /* most source bytes in one chunk */
    MC_CKPT_ALIGN = 64,      /* chunks start here; the gap to the next is zeros */
    MC_CKPT_HEADER = 64,     /* bytes of a data file's header */
    MC_CKPT_PATH = 1100,
    MC_CKPT_NAME = 48,            /* "step-000000120.e3", with room for 63-bit steps */
    MC_CKPT_MAX_FILES = 1 << 16,  /* writers */
    MC_CKPT_BOOKS_MAX = 64 << 20, /* bytes of JSON text */
    MC_CKPT_MANIFEST_MAX = 512 << 20
};

/* ---- The manifest in memory (manifest.c) -------------------------------------------------- */
enum mc_codec { MC_CODEC_RAW, MC_CODEC_ZSTD };
struct mc_chunk {
    int64_t off; /* in its file; a multiple of MC_CKPT_ALIGN */
    uint32_t stored_bytes, raw_bytes;
    uint64_t raw_hash, stored_hash; /* XXH3; equal for MC_CODEC_RAW */
    enum mc_codec codec;
};
struct mc_stored_box {
    int file;
    struct mc_box box;
    int64_t first_chunk, nchunks; /* consecutive; together the box's elements, row-major */
};
struct mc_stored_tensor {
    char name[MC_NAME_MAX + 16];
    enum mc_dtype dtype;
    struct mc_shape shape;
    int64_t first_box, nboxes;
};
struct mc_manifest {
    int64_t step;
    int epoch;
    double unix_time;
    char *books;           /* JSON text of an object */
    char weights_hash[40]; /* copy of the books' member; "" when they have none */
    int nfiles;
    int64_t *file_bytes; /* [nfiles]; the name of file i is data-<i, 5 digits>.mcd */
    int64_t ntensors, nboxes, nchunks;
    struct mc_stored_tensor *tensor; /* ascending by name, so that no name comes twice */
    struct mc_stored_box *box;
    struct mc_chunk *chunk;
};
void mc_manifest_fini(struct mc_manifest *m);
/* The text that is committed, its own hash last; in j (grow). Check j->failed. */
void mc_manifest_write(const struct mc_manifest *m, struct mc_json *j);
void mc_manifest_write_files(const struct mc_manifest *m, struct mc_json *j); /* "files":[...] */
/* where: the file's path, for messages. Everything in the text is bounded and cross-checked. */
mc_status mc_manifest_read(const char *text, size_t n, const char *where, struct mc_manifest *m,
                           struct mc_err *err);
/* Structure: boxes cover each tensor exactly once, chunks tile boxes and files. */
mc_status mc_manifest_check(const struct mc_manifest *m, const char *where, struct mc_err *err);
int64_t mc_manifest_find(const struct mc_manifest *m, const char *name); /* -1: no such tensor */
/* JSON object text -> its "weights_hash" ("" if none); "step", if a member, must equal `step`. */
mc_status mc_manifest_books(const char *text, int64_t step, char weights_hash[40],
                            struct mc_err *err);

/* ---- A writer's table of chunks (table.c) -------------------------------------------------- */
/* part: tensors, boxes and chunks of one file. mc_free(*bytes). */
mc_status mc_table_write(const struct mc_manifest *part, int writer, void **bytes, size_t *n,
                         struct mc_err *err);
mc_status mc_table_read(const void *bytes, size_t n, int writer, struct mc_manifest *part,
                        struct mc_err *err);
/* n tables one behind the other -> files, tensors, boxes and chunks of m, whose step and epoch are
 * set. On failure m is part filled; mc_manifest_fini() takes it. */
mc_status mc_table_merge(const void *tables, const int64_t *bytes, int n, struct mc_manifest *m,
                         struct mc_err *err);

/* ---- Boxes (box.c) ------------------------------------------------------------------------ */
int mc_box_valid(const struct mc_box *b, const struct mc_shape *s); /* inside, no empty side */
/* Do n boxes, each valid in s, cover it exactly once? MC_E_CORRUPT with what overlaps or how much
 * is missing, after "WHERE: tensor NAME: ". Sorts `b` in place. */
mc_status mc_box_cover(struct mc_box *b, int64_t n, const struct mc_shape *s, const char *where,
                       const char *name, struct mc_err *err);
int mc_box_meet(const struct mc_box *a, const struct mc_box *b, struct mc_box *out); /* 0: apart */
/* src holds elements [first, first + count) of box `from`, row-major. Those that lie in `to` too
 * are copied to their place in dst, which holds all of `to`, row-major. */
void mc_box_copy(void *dst, const struct mc_box *to, const void *src, const struct mc_box *from,
                 int64_t first, int64_t count, size_t elem_bytes);
void mc_shape_print(const struct mc_shape *s, char *dst, size_t cap); /* "[3, 4]" */
void mc_box_print(const struct mc_box *b, char *dst, size_t cap);     /* "[0:3, 4:8]" */

/* ---- An open checkpoint (reader.c) -------------------------------------------------------- */
void mc_ckpt_measure(const struct mc_ckpt *c, int64_t *bytes, double *unix_time);
uint64_t mc_ckpt_digest(const struct mc_ckpt *c); /* of its manifest: two alike hold the same */

/* ---- Folder names (resolve.c) ------------------------------------------------------------- */
void mc_ckpt_name_print(int64_t step, int epoch, char dst[MC_CKPT_NAME]);
int mc_ckpt_name_parse(const char *name, int64_t *step, int *epoch); /* 0: not one of ours */
/* Highest epoch of any checkpoint folder, finished or not; -1: none, or no ckpt_dir. */
mc_status mc_ckpt_top_epoch(const char *ckpt_dir, int *epoch, struct mc_err *err);

/* ---- The header of a data file (writer.c) ------------------------------------------------- */
void mc_data_header(unsigned char h[MC_CKPT_HEADER], int64_t step, int epoch, int writer);

/* ---- Is this process writing that folder now? (writer.c) ---------------------------------- */
int mc_writer_busy(int64_t step, int epoch);

/* ---- The store (store_posix.c) ------------------------------------------------------------ */
struct mc_store_file {
    int fd; /* -1: closed */
    int64_t bytes;
    char path[MC_CKPT_PATH];
};
/* A store keeps folders of immutable files, and makes one of them a checkpoint in one instant.
 * posix: that is the manifest's rename. An object store has no folders to make, puts parts under
 * the folder's name as prefix, and commits by a put of the manifest that fails if one is there. */
struct mc_store_ops {
    const char *kind;
    /* dir/name exists, is empty and its name is durable. A committed one of that name is an error;
     * what an earlier, unfinished attempt left there is removed. */
    mc_status (*begin)(const char *dir, const char *name, struct mc_err *err);
    /* expect_bytes: room asked for at once, so that a full disk is found early. */
    mc_status (*create)(const char *path, int64_t expect_bytes, struct mc_store_file *f,
                        struct mc_err *err);
    mc_status (*append)(struct mc_store_file *f, const void *buf, size_t n, struct mc_err *err);
    mc_status (*finish)(struct mc_store_file *f, struct mc_err *err); /* content is durable */
    void (*abandon)(struct mc_store_file *f);                         /* after a failure */
    /* Every finished file of `folder` is durable by name; then the manifest appears, whole. */
    mc_status (*commit)(const char *folder, const void *manifest, size_t n, struct mc_err *err);

    /* cold: read what the medium holds rather than a cached copy, as far as the system lets us. */
    mc_status (*open)(const char *path, int cold, struct mc_store_file *f, struct mc_err *err);
    mc_status (*read)(const struct mc_store_file *f, int64_t off, void *buf, size_t n,
                      struct mc_err *err);
    void (*close)(struct mc_store_file *f);
    mc_status (*size)(const char *path, int64_t *bytes, struct mc_err *err);
    mc_status (*manifest)(const char *folder, char **text, size_t *n, struct mc_err *err);
    /* Is there a manifest? A disk that does not answer is an error, not a "no". */
    mc_status (*committed)(const char *folder, int *yes, struct mc_err *err);

    mc_status (*names)(const char *dir, char ***names, int *n, struct mc_err *err);
    /* The names that make `folder` a checkpoint of `dir` are durable. */
    mc_status (*settle)(const char *dir, const char *name, struct mc_err *err);
    mc_status (*uncommit)(const char *folder, struct mc_err *err); /* durably no checkpoint */
    /* Removes what a save leaves in an uncommitted folder, and the folder. Files that no save
     * makes are left alone, and *left is set. */
    mc_status (*sweep)(const char *folder, int *left, struct mc_err *err);
    mc_status (*sweep_tmp)(const char *folder, struct mc_err *err); /* orphaned .tmp */
    mc_status (*sync)(const char *dir, struct mc_err *err);
};
extern const struct mc_store_ops mc_store_posix;
