/* sysio.h - every system call that can fail, in one file, with one way to say so.
 *
 * I1  Short reads and writes and EINTR are handled here and nowhere else.
 * I2  A failed fsync is never retried on the same file (the kernel may have dropped the pages).
 * I3  close() errors of a written file are errors.
 * Faults are planted from outside: tests/fault preloads a library that fails or kills at the n-th
 * call. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "status.h"

mc_status mc_sys_open(const char *path, int flags, int mode, int *fd,
                      struct mc_err *err); /* O_CLOEXEC added */
mc_status mc_sys_close(int fd, const char *path, struct mc_err *err);
mc_status mc_sys_write_all(int fd, const void *buf, size_t n, const char *path, struct mc_err *err);
mc_status mc_sys_pread_all(int fd, void *buf, size_t n, int64_t off, const char *path,
                           struct mc_err *err); /* early EOF: MC_E_CORRUPT */
mc_status mc_sys_fsync(int fd, const char *path, struct mc_err *err);
mc_status mc_sys_fsync_dir(const char *dir, struct mc_err *err);
mc_status mc_sys_rename(const char *from, const char *to, struct mc_err *err);
mc_status mc_sys_unlink(const char *path, struct mc_err *err); /* ENOENT is MC_OK */
mc_status mc_sys_mkdir(const char *path, int *created,
                       struct mc_err *err); /* exists: MC_OK, *created = 0 (may be NULL) */
mc_status mc_sys_mkdirs(const char *path,
                        struct mc_err *err); /* with parents, each parent fsynced */
mc_status mc_sys_rmdir(const char *path, struct mc_err *err);
mc_status mc_sys_ftruncate(int fd, int64_t size, const char *path, struct mc_err *err);
/* *end: offset just behind the last newline in [0, size), 0 when there is none. */
mc_status mc_sys_whole_lines(int fd, const char *path, int64_t size, int64_t *end,
                             struct mc_err *err);
mc_status mc_sys_fallocate(int fd, int64_t size, const char *path,
                           struct mc_err *err); /* EOPNOTSUPP is MC_OK */
mc_status mc_sys_file_size(const char *path, int64_t *size, struct mc_err *err);
int mc_sys_exists(
    const char *path); /* messages only; never for decisions that a race could spoil */
int mc_sys_is_dir(const char *path);

/* Whole file, NUL added after *n bytes; mc_free(*buf). Larger than max_bytes: MC_E_FORMAT. */
mc_status mc_sys_read_file(const char *path, size_t max_bytes, char **buf, size_t *n,
                           struct mc_err *err);
/* path.tmp, write, fsync, rename over path, fsync folder: readers see the old or the new whole. */
mc_status mc_sys_replace_file(const char *path, const void *buf, size_t n, struct mc_err *err);
/* One write(2) on a descriptor opened with O_APPEND: lines of several writers do not mix. */
mc_status mc_sys_append(int fd, const void *buf, size_t n, const char *path, struct mc_err *err);

struct mc_map {
    const unsigned char *data;
    int64_t bytes;
};
mc_status mc_sys_map_ro(const char *path, struct mc_map *map,
                        struct mc_err *err); /* empty file: data NULL, bytes 0 */
void mc_sys_unmap(struct mc_map *map);
/* The path of the file mapped there; NULL: no map of ours. Safe in a signal handler. The names of
 * the first 256 maps are kept, of each the last 239 bytes; others are "(name not kept)". */
const char *mc_sys_mapped(const void *address);

/* Names in dir without . and .., sorted by strcmp; each and the array mc_free'd by
 * mc_sys_list_free. */
mc_status mc_sys_list(const char *dir, char ***names, int *n, struct mc_err *err);
void mc_sys_list_free(char **names, int n);

/* dst receives dir + "/" + name; truncation is an error. An absolute `name` is taken alone. */
mc_status mc_path_join(char *dst, size_t cap, const char *dir, const char *name,
                       struct mc_err *err);
void mc_path_dir(char *dst, size_t cap, const char *path); /* "a/b/c" -> "a/b"; "c" -> "." */
