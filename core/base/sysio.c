/* sysio.c - every system call on files that can fail. Floor 0 (base).
 *
 * I1  Short reads, short writes and EINTR are handled here and nowhere else.
 * I2  A failed fsync is never retried on the same file: the kernel may have dropped the dirty pages
 *     and marked them clean, so a second fsync would report a success that is none.
 * I3  close() of a written file can carry the error of an earlier write: it is an error here. EINTR
 *     of close is not: Linux has closed the descriptor by then.
 * I4  A file under its final name is whole: NAME.tmp, write, fsync, close, rename, fsync of the
 *     folder, in that order; what fails before the rename removes NAME.tmp.
 * I5  Syncs and renames are noted in the flight recorder before they begin: a process that hangs in
 *     one says so after its death.
 *
 * Memory: buffers that are returned come from mc_alloc and belong to the caller. Threads: any. */
#include "sysio.h"
#include "arena.h"
#include "flight.h"
#include "log.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define IO_MAX ((size_t)1 << 30) /* bytes a call; Linux itself stops at 2 GiB - 4 KiB */

mc_status mc_sys_open(const char *path, int flags, int mode, int *fd, struct mc_err *err)
{
    int f;
    do
        f = open(path, flags | O_CLOEXEC, mode);
    while (f == -1 && errno == EINTR); /* I1 */
    if (f == -1)
        return mc_err_sys(err, "cannot %s %s", flags & O_CREAT ? "create" : "open", path);
    *fd = f;
    return MC_OK;
}

mc_status mc_sys_close(int fd, const char *path, struct mc_err *err)
{
    if (close(fd) == -1 && errno != EINTR) /* I3 */
        return mc_err_sys(err, "cannot close %s", path);
    return MC_OK;
}

mc_status mc_sys_write_all(int fd, const void *buf, size_t n, const char *path, struct mc_err *err)
{
    const unsigned char *p = buf;
    size_t left = n;
    while (left > 0) { /* I1 */
        ssize_t w = write(fd, p, left < IO_MAX ? left : IO_MAX);
        if (w == -1 && errno == EINTR)
            continue;
        if (w == -1)
            return mc_err_sys(err, "cannot write %s (%zu of %zu bytes were written)", path,
                              n - left, n);
        if (w == 0) { /* no progress and no reason given: do not turn for ever */
            errno = EIO;
            return mc_err_sys(err, "cannot write %s: the system took 0 of %zu bytes", path, left);
        }
        p += w;
        left -= (size_t)w;
    }
    return MC_OK;
}

mc_status mc_sys_pread_all(int fd, void *buf, size_t n, int64_t off, const char *path,
                           struct mc_err *err)
{
    unsigned char *p = buf;
    size_t got = 0;
    while (got < n) { /* I1 */
        size_t want = n - got < IO_MAX ? n - got : IO_MAX;
        ssize_t r = pread(fd, p + got, want, (off_t)(off + (int64_t)got));
        if (r == -1 && errno == EINTR)
            continue;
        if (r == -1)
            return mc_err_sys(err, "cannot read %zu bytes at %lld of %s", want,
                              (long long)(off + (int64_t)got), path);
        if (r == 0)
            return mc_err_set(err, MC_E_CORRUPT,
                              "%s ends at byte %lld, but %zu bytes at %lld are needed: it is "
                              "truncated",
                              path, (long long)(off + (int64_t)got), n, (long long)off);
        got += (size_t)r;
    }
    return MC_OK;
}

mc_status mc_sys_fsync(int fd, const char *path, struct mc_err *err)
{
    mc_flight_note(-1, 0, "io.fsync"); /* I5 */
    if (fsync(fd) == -1)               /* I2: EINTR, too, is a failure */
        return mc_err_sys(err, "cannot fsync %s (what was written to it may be lost)", path);
    return MC_OK;
}

mc_status mc_sys_fsync_dir(const char *dir, struct mc_err *err)
{
    static _Atomic int told;
    int fd;
    MC_TRY(mc_sys_open(dir, O_RDONLY | O_DIRECTORY, 0, &fd, err));
    mc_flight_note(-1, 0, "io.fsync folder"); /* I5 */
    mc_status st = MC_OK;
    if (fsync(fd) == -1) {
        if (errno != EINVAL && errno != EOPNOTSUPP)
            st = mc_err_sys(err, "cannot fsync the folder %s", dir);
        else if (atomic_exchange(&told, 1) == 0) /* a file system without folder syncs: said once */
            mc_log(MC_LOG_WARN,
                   "the file system of %s cannot sync a folder: a power cut there may undo the "
                   "last renames",
                   dir);
    }
    close(fd); /* opened for reading: nothing to lose */
    return st;
}

mc_status mc_sys_rename(const char *from, const char *to, struct mc_err *err)
{
    mc_flight_note(-1, 0, "io.rename"); /* I5 */
    if (rename(from, to) == -1)
        return mc_err_sys(err, "cannot rename %s to %s", from, to);
    return MC_OK;
}

mc_status mc_sys_unlink(const char *path, struct mc_err *err)
{
    if (unlink(path) == -1 && errno != ENOENT)
        return mc_err_sys(err, "cannot remove %s", path);
    return MC_OK;
}

mc_status mc_sys_mkdir(const char *path, int *created, struct mc_err *err)
{
    int made = 0;
    if (mkdir(path, 0777) == 0)
        made = 1;
    else if (errno != EEXIST)
        return mc_err_sys(err, "cannot make the folder %s", path);
    else if (!mc_sys_is_dir(path)) {
        errno = ENOTDIR;
        return mc_err_sys(err, "cannot make the folder %s: something else has that name", path);
    }
    if (created)
        *created = made;
    return MC_OK;
}

mc_status mc_sys_mkdirs(const char *path, struct mc_err *err)
{
    char at[4096], up[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof at)
        return mc_err_set(err, MC_E_USAGE, "a folder's name must have 1 to %zu bytes, not %zu",
                          sizeof at - 1, n);
    memcpy(at, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        int made;
        if (at[i] != '/' && at[i] != 0)
            continue;
        at[i] = 0;
        MC_TRY(mc_sys_mkdir(at, &made, err));
        if (made) {
            mc_path_dir(up, sizeof up, at);
            MC_TRY(mc_sys_fsync_dir(up, err));
        }
        at[i] = path[i];
    }
    return MC_OK;
}

mc_status mc_sys_rmdir(const char *path, struct mc_err *err)
{
    if (rmdir(path) == -1)
        return mc_err_sys(err, "cannot remove the folder %s", path);
    return MC_OK;
}

mc_status mc_sys_ftruncate(int fd, int64_t size, const char *path, struct mc_err *err)
{
    int r;
    do
        r = ftruncate(fd, (off_t)size);
    while (r == -1 && errno == EINTR); /* I1 */
    if (r == -1)
        return mc_err_sys(err, "cannot set the size of %s to %lld", path, (long long)size);
    return MC_OK;
}

mc_status mc_sys_fallocate(int fd, int64_t size, const char *path, struct mc_err *err)
{
    int r;
    if (size == 0)
        return MC_OK;
    do
        r = fallocate(fd, 0, 0, (off_t)size);
    while (r == -1 && errno == EINTR); /* I1 */
    if (r == -1 && errno != EOPNOTSUPP && errno != ENOSYS)
        return mc_err_sys(err, "cannot reserve %lld bytes for %s", (long long)size, path);
    return MC_OK;
}

mc_status mc_sys_file_size(const char *path, int64_t *size, struct mc_err *err)
{
    struct stat s;
    if (stat(path, &s) == -1)
        return mc_err_sys(err, "cannot find %s", path);
    *size = (int64_t)s.st_size;
    return MC_OK;
}

int mc_sys_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0;
}

int mc_sys_is_dir(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* ---- whole files ---- */

/* Reads fd to its end into *buf of *cap bytes, growing it; one byte stays free for the NUL. */
static mc_status read_to_end(int fd, const char *path, size_t max_bytes, char **buf, size_t *cap,
                             size_t *n, struct mc_err *err)
{
    *n = 0;
    for (;;) {
        if (*n + 1 >= *cap) {
            size_t more = *cap < max_bytes / 2 ? *cap * 2 : max_bytes + 2;
            char *b = mc_grow(*buf, *n, more, path);
            if (!b)
                return mc_err_set(err, MC_E_NOMEM, "no memory to read %s (%zu bytes)", path, more);
            *buf = b;
            *cap = more;
        }
        size_t want = *cap - 1 - *n < IO_MAX ? *cap - 1 - *n : IO_MAX;
        ssize_t r = read(fd, *buf + *n, want);
        if (r == -1 && errno == EINTR) /* I1 */
            continue;
        if (r == -1)
            return mc_err_sys(err, "cannot read %s", path);
        if (r == 0)
            return MC_OK;
        *n += (size_t)r;
        if (*n > max_bytes)
            return mc_err_set(err, MC_E_FORMAT,
                              "%s is larger than %zu bytes, the most that is read of such a file",
                              path, max_bytes);
    }
}

/* Opens a regular file to read. A pipe that nobody writes would wait for ever, in open() already
 * without O_NONBLOCK; a terminal or /dev/zero in read(). */
static mc_status open_plain(const char *path, int *fd, struct mc_err *err)
{
    int f;
    struct stat s;
    mc_status st = MC_OK;
    MC_TRY(mc_sys_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, &f, err));
    if (fstat(f, &s) == -1)
        st = mc_err_sys(err, "cannot read the size of %s", path);
    else if (!S_ISREG(s.st_mode))
        st = mc_err_set(err, MC_E_FORMAT, "%s is %s, not a file", path,
                        S_ISDIR(s.st_mode) ? "a folder" : "a pipe or device");
    if (st != MC_OK)
        close(f);
    else
        *fd = f;
    return st;
}

mc_status mc_sys_read_file(const char *path, size_t max_bytes, char **buf, size_t *n,
                           struct mc_err *err)
{
    int fd;
    struct stat s;
    MC_ASSERT(max_bytes < SIZE_MAX / 2);
    MC_TRY(open_plain(path, &fd, err));
    size_t cap = 4096, len = 0;
    if (fstat(fd, &s) == 0 && s.st_size > 0)
        cap = ((uint64_t)s.st_size < max_bytes ? (size_t)s.st_size : max_bytes) + 2;
    char *b = mc_alloc(cap, path);
    mc_status st = b ? read_to_end(fd, path, max_bytes, &b, &cap, &len, err)
                     : mc_err_set(err, MC_E_NOMEM, "no memory to read %s (%zu bytes)", path, cap);
    close(fd); /* opened for reading: nothing to lose */
    if (st != MC_OK) {
        mc_free(b);
        return st;
    }
    b[len] = 0;
    *buf = b;
    *n = len;
    return MC_OK;
}

mc_status mc_sys_replace_file(const char *path, const void *buf, size_t n, struct mc_err *err)
{
    char tmp[4096], dir[4096];
    int fd;
    mc_status st;
    int w = snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (w < 0 || (size_t)w >= sizeof tmp)
        return mc_err_set(err, MC_E_USAGE, "the path %.80s... is too long", path);
    mc_path_dir(dir, sizeof dir, path);
    MC_TRY(mc_sys_open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0666, &fd, err)); /* I4 */
    MC_TRY_GOTO(st, mc_sys_write_all(fd, buf, n, tmp, err), err_close);
    MC_TRY_GOTO(st, mc_sys_fsync(fd, tmp, err), err_close);
    MC_TRY_GOTO(st, mc_sys_close(fd, tmp, err), err_unlink);
    MC_TRY_GOTO(st, mc_sys_rename(tmp, path, err), err_unlink);
    MC_TRY(mc_sys_fsync_dir(dir, err));
    return MC_OK;
err_close:
    close(fd);
err_unlink:
    unlink(tmp);
    return st;
}

mc_status mc_sys_append(int fd, const void *buf, size_t n, const char *path, struct mc_err *err)
{
    ssize_t w;
    do
        w = write(fd, buf, n);
    while (w == -1 && errno == EINTR); /* I1 */
    if (w == -1)
        return mc_err_sys(err, "cannot append to %s", path);
    if ((size_t)w < n) /* a file system that fills up takes a part first; the rest says why */
        return mc_sys_write_all(fd, (const char *)buf + w, n - (size_t)w, path, err);
    return MC_OK;
}

/* Who is mapped where, for the handler of SIGBUS, which may not wait: a slot is taken by `taken`,
 * filled, and counts once `start` is set. */
enum { NMAPPED = 256, MAPPED_NAME = 240 };
static struct {
    _Atomic int taken;
    _Atomic uintptr_t start;
    size_t bytes;
    char name[MAPPED_NAME];
} g_mapped[NMAPPED];
static _Atomic int g_unnamed; /* maps that found no slot */

static void mapped_add(const char *path, const void *start, size_t bytes)
{
    size_t n = strlen(path);
    for (int i = 0; i < NMAPPED; i++) {
        int no = 0;
        if (!atomic_compare_exchange_strong(&g_mapped[i].taken, &no, 1))
            continue;
        g_mapped[i].bytes = bytes;
        snprintf(g_mapped[i].name, MAPPED_NAME, "%s",
                 n < MAPPED_NAME ? path : path + (n - (MAPPED_NAME - 1)));
        atomic_store(&g_mapped[i].start, (uintptr_t)start);
        return;
    }
    atomic_fetch_add(&g_unnamed, 1);
}

static void mapped_drop(const void *start)
{
    for (int i = 0; i < NMAPPED; i++)
        if (atomic_load(&g_mapped[i].start) == (uintptr_t)start) {
            atomic_store(&g_mapped[i].start, 0);
            atomic_store(&g_mapped[i].taken, 0);
            return;
        }
    atomic_fetch_sub(&g_unnamed, 1);
}

const char *mc_sys_mapped(const void *address)
{
    uintptr_t at = (uintptr_t)address;
    for (int i = 0; i < NMAPPED; i++) {
        uintptr_t start = atomic_load(&g_mapped[i].start);
        if (start != 0 && at >= start && at - start < g_mapped[i].bytes)
            return g_mapped[i].name;
    }
    return atomic_load(&g_unnamed) > 0 ? "(name not kept)" : NULL;
}

mc_status mc_sys_map_ro(const char *path, struct mc_map *map, struct mc_err *err)
{
    int fd;
    struct stat s;
    mc_status st = MC_OK;
    MC_TRY(open_plain(path, &fd, err));
    void *p = NULL;
    if (fstat(fd, &s) == -1)
        st = mc_err_sys(err, "cannot read the size of %s", path);
    else if (s.st_size > 0) {
        p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            st = mc_err_sys(err, "cannot map %s (%lld bytes)", path, (long long)s.st_size);
    }
    close(fd); /* the mapping holds the file */
    if (st != MC_OK)
        return st;
    if (p)
        mapped_add(path, p, (size_t)s.st_size);
    map->data = p;
    map->bytes = (int64_t)s.st_size;
    return MC_OK;
}

void mc_sys_unmap(struct mc_map *map)
{
    if (map->data) {
        mapped_drop(map->data);
        munmap((void *)(uintptr_t)map->data, (size_t)map->bytes);
    }
    map->data = NULL;
    map->bytes = 0;
}

/* ---- folders and paths ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

mc_status mc_sys_list(const char *dir, char ***names, int *n, struct mc_err *err)
{
    char **list = NULL;
    int len = 0, cap = 0;
    mc_status st = MC_OK;
    DIR *d = opendir(dir);
    if (!d)
        return mc_err_sys(err, "cannot list the folder %s", dir);
    for (;;) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e && errno != 0) {
            st = mc_err_sys(err, "cannot list the folder %s", dir);
            break;
        }
        if (!e)
            break;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (len == cap) {
            int more = cap ? 2 * cap : 16;
            char **l = mc_grow(list, (size_t)len * sizeof *l, (size_t)more * sizeof *l, "names");
            if (l) {
                list = l;
                cap = more;
            }
        }
        char *s = len < cap ? mc_strdup(e->d_name) : NULL;
        if (!s) {
            st = mc_err_set(err, MC_E_NOMEM, "no memory to list the folder %s", dir);
            break;
        }
        list[len++] = s;
    }
    closedir(d);
    if (st != MC_OK) {
        mc_sys_list_free(list, len);
        return st;
    }
    if (len > 1)
        qsort(list, (size_t)len, sizeof *list, by_name);
    *names = list;
    *n = len;
    return MC_OK;
}

void mc_sys_list_free(char **names, int n)
{
    for (int i = 0; i < n; i++)
        mc_free(names[i]);
    mc_free(names);
}

mc_status mc_path_join(char *dst, size_t cap, const char *dir, const char *name, struct mc_err *err)
{
    size_t nd = strlen(dir);
    const char *sep = nd == 0 || dir[nd - 1] == '/' ? "" : "/";
    int w = name[0] == '/' ? snprintf(dst, cap, "%s", name)
                           : snprintf(dst, cap, "%s%s%s", dir, sep, name);
    if (w < 0 || (size_t)w >= cap)
        return mc_err_set(err, MC_E_USAGE, "the path %.80s.../%.80s is longer than %zu bytes", dir,
                          name, cap - 1);
    return MC_OK;
}

void mc_path_dir(char *dst, size_t cap, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') /* "a/b/" is "a/b" */
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/') /* "a//b" -> "a"; "/b" -> "/" */
        n--;
    if (n == 0)
        snprintf(dst, cap, ".");
    else
        snprintf(dst, cap, "%.*s", (int)n, path);
}

mc_status mc_sys_whole_lines(int fd, const char *path, int64_t size, int64_t *end,
                             struct mc_err *err)
{
    char block[4096];
    while (size > 0) {
        int64_t n = size < (int64_t)sizeof block ? size : (int64_t)sizeof block;
        MC_TRY(mc_sys_pread_all(fd, block, (size_t)n, size - n, path, err));
        for (int64_t i = n; i > 0; i--)
            if (block[i - 1] == '\n') {
                *end = size - n + i;
                return MC_OK;
            }
        size -= n;
    }
    *end = 0;
    return MC_OK;
}
