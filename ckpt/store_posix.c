/* store_posix.c - checkpoints in folders of a file system.
 *
 * Floor 5 (ckpt). Uses base/sysio only, so that every call that can fail is checked in one way.
 * I1  The order of a save: mkdir FOLDER, fsync of its parent (begin); data files: create, write,
 *     fsync, close (create .. finish); fsync FOLDER; manifest.json.tmp: write, fsync; rename to
 *     manifest.json; fsync FOLDER (commit). The rename is the only commit point.
 * I2  No file is written twice: names are created exclusively, so a failed fsync is never followed
 *     by another one on the same file; an attempt that failed leaves an unfinished folder, and the
 *     next attempt of that name removes it first.
 * I3  The order of a deletion: unlink manifest.json, fsync FOLDER (uncommit); then data, then the
 *     folder (sweep). At no instant is there a manifest without its data.
 * I4  A commit that fails after its rename is taken back as far as the disk still obeys: the caller
 *     is told that it failed, and a later start may find either state, both whole.
 * Memory: none but what the caller passes; names() gives the caller a list.
 * Threads: any, one per file; two on one folder exclude each other by the run's lock. */
#include "ckpt_int.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include "../core/base/sysio.h"

#define MANIFEST     "manifest.json"
#define MANIFEST_TMP "manifest.json.tmp"

/* Is `name` a file that a save makes? Nothing else is ever deleted. */
static int of_a_save(const char *name)
{
    int id = -1, end = 0;
    if (!strcmp(name, MANIFEST_TMP))
        return 1;
    return sscanf(name, "data-%5d.mcd%n", &id, &end) == 1 && end == (int)strlen(name) && id >= 0;
}

static mc_status empty(const char *folder, int *left, struct mc_err *err)
{
    char **name, path[MC_CKPT_PATH];
    int n, foreign = 0;
    mc_status st = MC_OK;
    MC_TRY(mc_sys_list(folder, &name, &n, err));
    for (int i = 0; i < n && st == MC_OK; i++)
        if (!strcmp(name[i], MANIFEST)) /* whoever asked was told otherwise: touch nothing */
            st = mc_err_set(err, MC_E_FAILED, "%s: is a finished checkpoint; it is left as it is",
                            folder);
    for (int i = 0; i < n && st == MC_OK; i++) {
        if (!of_a_save(name[i])) {
            foreign = 1;
            continue;
        }
        st = mc_path_join(path, sizeof path, folder, name[i], err);
        if (st == MC_OK)
            st = mc_sys_unlink(path, err);
    }
    mc_sys_list_free(name, n);
    if (st != MC_OK)
        return mc_err_trail(err, st, __FILE__, __LINE__);
    *left = foreign;
    return MC_OK;
}

/* A disk that does not answer is not a "no": that would let a sweeper loose, or a run start afresh.
 */
static mc_status committed(const char *folder, int *yes, struct mc_err *err)
{
    char path[MC_CKPT_PATH];
    int64_t bytes;
    struct mc_err e = {0};
    MC_TRY(mc_path_join(path, sizeof path, folder, MANIFEST, err));
    mc_status st = mc_sys_file_size(path, &bytes, &e);
    if (st == MC_OK || st == MC_E_NOTFOUND || e.sys_errno == ENOTDIR) {
        *yes = st == MC_OK;
        return MC_OK;
    }
    mc_err_set(err, st, "%s", e.msg);
    if (err && !err->sys_errno)
        err->sys_errno = e.sys_errno;
    return st;
}

static mc_status begin(const char *dir, const char *name, struct mc_err *err)
{
    char folder[MC_CKPT_PATH], parent[MC_CKPT_PATH];
    int created, left, there;
    MC_TRY(mc_path_join(folder, sizeof folder, dir, name, err));
    MC_TRY(mc_sys_mkdirs(dir, err));
    /* `dir` may have been made, and not yet synced, by a process that was killed. */
    mc_path_dir(parent, sizeof parent, dir);
    MC_TRY(mc_sys_fsync_dir(parent, err));
    MC_TRY(mc_sys_mkdir(folder, &created, err));
    if (!created) {
        MC_TRY(committed(folder, &there, err));
        if (there)
            return mc_err_set(err, MC_E_FAILED,
                              "%s: a finished checkpoint of this step and epoch is there already; "
                              "it is left as it is and nothing was written",
                              folder);
        MC_TRY(empty(folder, &left, err)); /* I2 */
        if (left)
            return mc_err_set(err, MC_E_FAILED,
                              "%s: holds files that are no part of a checkpoint; move them away",
                              folder);
    }
    MC_TRY(mc_sys_fsync_dir(dir, err)); /* I1 */
    return MC_OK;
}

static mc_status create(const char *path, int64_t expect_bytes, struct mc_store_file *f,
                        struct mc_err *err)
{
    struct mc_store_file r = {.fd = -1};
    if ((size_t)snprintf(r.path, sizeof r.path, "%s", path) >= sizeof r.path)
        return mc_err_set(err, MC_E_IO, "%s: path too long", path);
    MC_TRY(mc_sys_open(path, O_WRONLY | O_CREAT | O_EXCL, 0644, &r.fd, err)); /* I2 */
    mc_status st = expect_bytes ? mc_sys_fallocate(r.fd, expect_bytes, path, err) : MC_OK;
    if (st != MC_OK) {
        mc_sys_close(r.fd, path, NULL);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    *f = r;
    return MC_OK;
}

static mc_status append(struct mc_store_file *f, const void *buf, size_t n, struct mc_err *err)
{
    MC_TRY(mc_sys_write_all(f->fd, buf, n, f->path, err));
    f->bytes += (int64_t)n;
    return MC_OK;
}

static void abandon(struct mc_store_file *f)
{
    if (f->fd >= 0)
        mc_sys_close(f->fd, f->path, NULL); /* the first error is the caller's to tell */
    f->fd = -1;
}

static mc_status finish(struct mc_store_file *f, struct mc_err *err)
{
    mc_status st;
    /* Room was asked for the raw size; compressed chunks need less. */
    MC_TRY_GOTO(st, mc_sys_ftruncate(f->fd, f->bytes, f->path, err), fail);
    MC_TRY_GOTO(st, mc_sys_fsync(f->fd, f->path, err), fail);
    int fd = f->fd;
    f->fd = -1;
    MC_TRY(mc_sys_close(fd, f->path, err));
    return MC_OK;
fail:
    abandon(f);
    return st;
}

static mc_status commit(const char *folder, const void *manifest, size_t n, struct mc_err *err)
{
    char path[MC_CKPT_PATH], tmp[MC_CKPT_PATH];
    int fd;
    mc_status st;
    MC_TRY(mc_path_join(path, sizeof path, folder, MANIFEST, err));
    MC_TRY(mc_path_join(tmp, sizeof tmp, folder, MANIFEST_TMP, err));
    MC_TRY(mc_sys_fsync_dir(folder, err)); /* I1: the data's names, before any manifest */
    MC_TRY(mc_sys_open(tmp, O_WRONLY | O_CREAT | O_EXCL, 0644, &fd, err));
    st = mc_sys_write_all(fd, manifest, n, tmp, err);
    if (st == MC_OK)
        st = mc_sys_fsync(fd, tmp, err);
    mc_status closed = mc_sys_close(fd, tmp, st == MC_OK ? err : NULL);
    if (st == MC_OK)
        st = closed;
    if (st != MC_OK)
        return mc_err_trail(err, st, __FILE__, __LINE__);
    MC_TRY(mc_sys_rename(tmp, path, err)); /* the commit point */
    st = mc_sys_fsync_dir(folder, err);
    if (st != MC_OK) {
        mc_sys_unlink(path, NULL); /* I4 */
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    return MC_OK;
}

static mc_status open_file(const char *path, int cold, struct mc_store_file *f, struct mc_err *err)
{
    struct mc_store_file r = {.fd = -1};
    if ((size_t)snprintf(r.path, sizeof r.path, "%s", path) >= sizeof r.path)
        return mc_err_set(err, MC_E_IO, "%s: path too long", path);
    MC_TRY(mc_sys_file_size(path, &r.bytes, err));
    MC_TRY(mc_sys_open(path, O_RDONLY, 0, &r.fd, err));
    if (cold) /* advice: what it answers changes nothing that we promise */
        (void)posix_fadvise(r.fd, 0, 0, POSIX_FADV_DONTNEED);
    *f = r;
    return MC_OK;
}

static mc_status read_file(const struct mc_store_file *f, int64_t off, void *buf, size_t n,
                           struct mc_err *err)
{
    return mc_sys_pread_all(f->fd, buf, n, off, f->path, err);
}

static mc_status size(const char *path, int64_t *bytes, struct mc_err *err)
{
    return mc_sys_file_size(path, bytes, err);
}

static mc_status manifest(const char *folder, char **text, size_t *n, struct mc_err *err)
{
    char path[MC_CKPT_PATH];
    MC_TRY(mc_path_join(path, sizeof path, folder, MANIFEST, err));
    return mc_sys_read_file(path, MC_CKPT_MANIFEST_MAX, text, n, err);
}

static mc_status settle(const char *dir, const char *name, struct mc_err *err)
{
    char folder[MC_CKPT_PATH];
    MC_TRY(mc_path_join(folder, sizeof folder, dir, name, err));
    MC_TRY(mc_sys_fsync_dir(folder, err));
    return mc_sys_fsync_dir(dir, err);
}

static mc_status uncommit(const char *folder, struct mc_err *err)
{
    char path[MC_CKPT_PATH];
    MC_TRY(mc_path_join(path, sizeof path, folder, MANIFEST, err));
    MC_TRY(mc_sys_unlink(path, err));
    return mc_sys_fsync_dir(folder, err); /* I3 */
}

static mc_status sweep(const char *folder, int *left, struct mc_err *err)
{
    int foreign;
    MC_TRY(empty(folder, &foreign, err));
    if (!foreign)
        MC_TRY(mc_sys_rmdir(folder, err));
    *left = foreign;
    return MC_OK;
}

static mc_status sweep_tmp(const char *folder, struct mc_err *err)
{
    char path[MC_CKPT_PATH];
    MC_TRY(mc_path_join(path, sizeof path, folder, MANIFEST_TMP, err));
    return mc_sys_unlink(path, err);
}

const struct mc_store_ops mc_store_posix = {
    .kind = "posix",
    .begin = begin,
    .create = create,
    .append = append,
    .finish = finish,
    .abandon = abandon,
    .commit = commit,
    .open = open_file,
    .read = read_file,
    .close = abandon,
    .size = size,
    .manifest = manifest,
    .committed = committed,
    .names = mc_sys_list,
    .settle = settle,
    .uncommit = uncommit,
    .sweep = sweep,
    .sweep_tmp = sweep_tmp,
    .sync = mc_sys_fsync_dir,
};
