/* ckpt.h - a checkpoint is whole or does not exist.
 *
 * RUN/ckpt/step-000001200.e3/   e = epoch of the run's control plane: a fence against zombies
 *          data-00000.mcd       one data file per writer (writer.c)
 *          manifest.json        last; its rename is the only commit point (manifest.c)
 *
 * I1  A folder without manifest.json is no checkpoint: ignored, swept by the next holder of the
 *     run's lock.
 * I2  Order: mkdir, fsync ckpt/; data: write, fsync; with several writers, all of them have said
 *     so; folder fsync; manifest.json.tmp, write, fsync, rename, folder fsync.
 * I3  A failed fsync is never retried on the same file.
 * I4  Retention deletes only after a *verified* successor, manifest first (unlink, folder fsync,
 *     then data), never below two verified.
 * I5  Every tensor by logical name, dtype, shape, and the boxes each file holds: each logical
 *     element exactly once. Chunks are checksummed (XXH3) at the source copy, stored raw or zstd
 *     where it pays.
 * I6  Load: every live byte is loaded, every stored byte consumed; a missing or extra tensor is an
 *     error by name. `books` is plain JSON (step, samples, tokens, cursors, hooks' state, ...):
 *     this folder does not know its meaning, except the members "step" and "weights_hash". Loading
 *     never runs code; each parser here is bounded and fuzzed. */
#pragma once
#include <stdint.h>
#include "../core/base/json.h"
#include "../core/base/status.h"
#include "../core/tensor/tensor.h"

/* Where checkpoints are stored. posix is in the box; an object store commits by a conditional put.
 */
struct mc_store_ops;

/* The writers of one checkpoint, when there are several: each calls mc_ckpt_save() with the same
 * step and epoch and its own tensors (none is legal), and all come back with the same verdict. What
 * joins them is filled by who knows the others: */
struct mc_ckpt_group {
    int me, n; /* writer `me` of n writes data-<me>.mcd; writer 0 makes the folder and commits */
    void *arg;
    /* MC_OK on all writers when all say MC_OK; else on all of them the code of the first that does
     * not, or what the way between them says; err: filled by whom `mine` says it, then by all. */
    mc_status (*vote)(void *arg, mc_status mine, struct mc_err *err);
    /* Everybody's n bytes (mine NULL: none, that writer votes no next) to writer 0, which gets them
     * in writer order; mc_free(*all), mc_free(*bytes). */
    mc_status (*gather)(void *arg, const void *mine, int64_t n, void **all, int64_t **bytes,
                        struct mc_err *err);
};

struct mc_ckpt_save {
    const char *ckpt_dir; /* RUN/ckpt, created if missing */
    int64_t step;
    int epoch;
    const struct mc_state_tensor *tensor;
    int ntensors;
    const char *books;                 /* JSON object text; of several writers, writer 0's */
    const struct mc_ckpt_group *group; /* NULL: one writer */
    int compress;                      /* 1: zstd per chunk where it saves >= 1/8 */
    const volatile int
        *cancel; /* may be NULL: nonzero asks to give up between chunks (second ctrl-C) */
    void (*progress)(void *arg, int64_t bytes_done, int64_t bytes_all);
    void *arg; /* may be NULL */
};
/* On failure nothing committed is touched; the unfinished folder is removed where no writer can be
 * at work in it any more, else stays for the sweeper, and is no obstacle to another attempt.
 * MC_E_MACHINE: a higher epoch is in ckpt_dir, so this process is a zombie. MC_E_FAILED: cancelled,
 * or a finished one of this (step, epoch) exists. */
mc_status mc_ckpt_save(const struct mc_ckpt_save *s, struct mc_err *err);

struct mc_ckpt_info {
    int64_t step;
    int epoch;
    char path[1100];
    int64_t bytes;
    double unix_time;
    int whole; /* structure and sizes hold */
    char why[200];
};
/* All checkpoints, newest ((epoch, step) highest) last. mc_free(*list). A missing folder: n = 0. */
mc_status mc_ckpt_list(const char *ckpt_dir, struct mc_ckpt_info **list, int *n,
                       struct mc_err *err);

struct mc_ckpt; /* an open, structurally valid checkpoint */
mc_status mc_ckpt_open(const char *path, struct mc_ckpt **c, struct mc_err *err);
void mc_ckpt_close(struct mc_ckpt *c);
const char *mc_ckpt_books(const struct mc_ckpt *c); /* JSON text */
int64_t mc_ckpt_step(const struct mc_ckpt *c);
int mc_ckpt_epoch(const struct mc_ckpt *c);
int mc_ckpt_ntensors(const struct mc_ckpt *c);
/* Logical tensor i: box = whole, data NULL. */
mc_status mc_ckpt_tensor(const struct mc_ckpt *c, int i, struct mc_state_tensor *t);
/* Fills every tensor's box; checks every chunk it reads; fixed host buffer. Names, dtypes and
 * shapes are compared before the first byte is written: MC_E_RECIPE names the tensor, and both
 * shapes. all = 1: the boxes given must, together, consume each stored element exactly once. all =
 * 0: stored tensors not asked for are fine (generate needs model/ only). MC_E_CORRUPT names file,
 * tensor and offset; the tensors are then part filled: fall back to another checkpoint. */
mc_status mc_ckpt_load(struct mc_ckpt *c, const struct mc_state_tensor *t, int n, int all,
                       struct mc_err *err);
/* The comparison of mc_ckpt_load() alone: reads no data and wants no memory in t[].data. */
mc_status mc_ckpt_fits(const struct mc_ckpt *c, const struct mc_state_tensor *t, int n, int all,
                       struct mc_err *err);
/* Every stored byte against its checksum, read back past the cache where the system lets us;
 * progress may be NULL. MC_E_CORRUPT: damage, by file, tensor and offset. */
mc_status mc_ckpt_verify(struct mc_ckpt *c, void (*progress)(void *, int64_t, int64_t), void *arg,
                         struct mc_err *err);
/* Tensor by tensor, any two layouts (diff.c). Names ascend; those in one alone are rows, too. */
struct mc_ckpt_diff {
    char name[MC_NAME_MAX + 16];
    int in_a, in_b;
    enum mc_dtype dtype[2];
    struct mc_shape shape;
    int64_t count;
    int bitwise;
    double apart, largest; /* ||a - b||, and of its elements */
    double norm;           /* ||a|| */
    double deviation;      /* by the norm, or the least that such tensors have; infinite: in one
                              alone, or other non-finite elements */
};
/* mc_free(*rows). MC_E_USAGE: shapes differ, or nothing is in common. */
mc_status mc_ckpt_diff(struct mc_ckpt *a, struct mc_ckpt *b, struct mc_ckpt_diff **rows, int *n,
                       struct mc_err *err);
/* Deletes unfinished folders and, by I4, all but the newest `keep` (>= 2) verified ones. Needs the
 * run's lock. */
mc_status mc_ckpt_retain(const char *ckpt_dir, int keep, int this_epoch, struct mc_err *err);
/* path: a run, its ckpt/ or one checkpoint folder -> the checkpoint (newest whole one, or `step` >=
 * 0). MC_E_NOTFOUND: none exists; MC_E_CORRUPT: some exist, none is whole. */
mc_status mc_ckpt_resolve(const char *path, int64_t step_or_minus1, char out[1100],
                          struct mc_err *err);
void mc_ckpt_show(const struct mc_ckpt *c, struct mc_json *j);
