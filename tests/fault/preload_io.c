/* preload_io.c - plant I/O faults from outside: LD_PRELOAD=libpreload_io.so PROGRAM.
 *
 * Counts the calls that change (or, on request, read) files below one folder, and at the n-th fails
 * it, cuts it short or kills the process; or logs them all, with their data, for the crash-state
 * enumerator. The engine knows nothing of it.
 *
 *   MC_IO_DIR    folder (absolute); calls on paths outside it are not seen. Needed: else all pass.
 *   MC_IO_FAIL   N:WHAT - the N-th call seen (from 1); "N+:WHAT" that and every later one. WHAT:
 *                eio enospc edquot estale eintr nomem | short (half a write or read) | kill
 * (SIGKILL before the call) | drop (a sync that says yes and does nothing: not even traced)
 *   MC_IO_RANK   only in the process `EXE rank RUN K ...` with this K; default: in all
 *   MC_IO_OPS    comma list of the operations counted; default all that write:
 *                open write fsync rename unlink mkdir rmdir ftruncate fallocate; reading ones, only
 *                if named: read stat list
 *   MC_IO_COUNT  file that receives the number of calls seen, at exit
 *   MC_IO_TRACE  file that receives the trace (format below)
 *
 * Trace, native byte order, one record a call that succeeded:
 *   offset size meaning
 *        0    4 operation, enum op
 *        4    4 bytes of path a       8    4 bytes of path b (rename)     12    4 zero
 *       16    8 offset (write) or size (ftruncate, fallocate)             24    8 bytes of data
 *       32    - path a, path b, data
 * access("mc-mark:TEXT") is logged as a mark with path a = TEXT, and has no effect.
 *
 * Threads: one lock over counting and logging. Memory: static; nothing is allocated. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum op {
    OP_OPEN = 1, /* a file created */
    OP_WRITE,
    OP_FSYNC,
    OP_RENAME,
    OP_UNLINK,
    OP_MKDIR,
    OP_RMDIR,
    OP_FTRUNCATE,
    OP_FALLOCATE,
    OP_MARK,
    OP_READ,
    OP_STAT,
    OP_LIST,
    OP_END
};
static const char *const op_names[OP_END] = {"",       "open",  "write", "fsync",     "rename",
                                             "unlink", "mkdir", "rmdir", "ftruncate", "fallocate",
                                             "mark",   "read",  "stat",  "list"};

enum { PATH = 2048, FDS = 1024 };
static struct {
    int ready, dir_len, at, onwards, trace_fd;
    char dir[PATH], what[16];
    unsigned ops; /* bit per enum op */
    long seen;
    const char *count_file;
    char fd_path[FDS][PATH];
} g = {.trace_fd = -1};
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

static int real_open(const char *path, int flags, int mode)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void raw_write(int fd, const void *p, size_t n)
{
    const char *c = p;
    while (n > 0) {
        long w = syscall(SYS_write, fd, c, n);
        if (w <= 0)
            return;
        c += w;
        n -= (size_t)w;
    }
}

static unsigned parse_ops(const char *list)
{
    unsigned ops = 0;
    if (!list) {
        for (int i = OP_OPEN; i <= OP_FALLOCATE; i++)
            ops |= 1u << i;
        return ops;
    }
    for (int i = 1; i < OP_END; i++) {
        const char *p = list;
        size_t n = strlen(op_names[i]);
        while ((p = strstr(p, op_names[i]))) {
            if ((p == list || p[-1] == ',') && (p[n] == 0 || p[n] == ','))
                ops |= 1u << i;
            p += n;
        }
    }
    return ops;
}

/* MC_IO_RANK against the command line of this process. */
static int is_meant(void)
{
    const char *rank = getenv("MC_IO_RANK");
    char line[PATH], *p = line;
    if (!rank)
        return 1;
    int fd = real_open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
    ssize_t n = fd < 0 ? -1 : (ssize_t)syscall(SYS_read, fd, line, sizeof line - 1);
    if (fd >= 0)
        syscall(SYS_close, fd);
    if (n <= 0)
        return 0;
    line[n] = 0;
    for (int i = 0; i < 3 && p < line + n; i++) {
        p += strlen(p) + 1;
        if (i == 0 && strcmp(p, "rank") != 0)
            return 0;
    }
    return p < line + n && strcmp(p, rank) == 0;
}

__attribute__((constructor)) static void start(void)
{
    const char *dir = getenv("MC_IO_DIR"), *fail = getenv("MC_IO_FAIL");
    const char *trace = getenv("MC_IO_TRACE");
    char *end;
    if (!dir || dir[0] != '/')
        return;
    snprintf(g.dir, sizeof g.dir, "%s", dir);
    if (!is_meant())
        return;
    g.dir_len = (int)strlen(g.dir);
    while (g.dir_len > 1 && g.dir[g.dir_len - 1] == '/')
        g.dir[--g.dir_len] = 0;
    if (fail) {
        g.at = (int)strtol(fail, &end, 10);
        g.onwards = *end == '+';
        end += g.onwards;
        snprintf(g.what, sizeof g.what, "%s", *end == ':' ? end + 1 : end);
    }
    g.ops = parse_ops(getenv("MC_IO_OPS"));
    g.count_file = getenv("MC_IO_COUNT");
    if (trace) {
        int fd = real_open(trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        g.trace_fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FDS); /* out of the program's way */
        if (fd >= 0)
            syscall(SYS_close, fd);
    }
    g.ready = 1;
}

__attribute__((destructor)) static void stop(void)
{
    char text[32];
    if (!g.ready || !g.count_file)
        return;
    int fd = real_open(g.count_file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    raw_write(fd, text, (size_t)snprintf(text, sizeof text, "%ld\n", g.seen));
    syscall(SYS_close, fd);
}

static const char *absolute(int dirfd, const char *path, char out[PATH])
{
    char link[64];
    ssize_t n;
    if (path[0] == '/')
        return path;
    if (dirfd == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
    n = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH - 1);
    if (n < 0)
        return path;
    if (strncmp(path, "./", 2) == 0)
        path += 2;
    snprintf(out + n, PATH - (size_t)n, "%s%s", path[0] ? "/" : "", path);
    return out;
}

static int inside(const char *path)
{
    return g.ready && path && strncmp(path, g.dir, (size_t)g.dir_len) == 0 &&
           (path[g.dir_len] == 0 || path[g.dir_len] == '/');
}

static const char *of_fd(int fd)
{
    return fd >= 0 && fd < FDS && g.ready && g.fd_path[fd][0] ? g.fd_path[fd] : NULL;
}

enum verdict { PASS, FAIL, SHORT, DROP };
/* Counts the call; FAIL has set errno. */
static enum verdict judge(enum op op)
{
    static const struct {
        const char *name;
        int err;
    } errs[] = {{"eio", EIO},       {"enospc", ENOSPC}, {"edquot", EDQUOT},
                {"estale", ESTALE}, {"eintr", EINTR},   {"nomem", ENOMEM}};
    if (!(g.ops >> op & 1))
        return PASS;
    pthread_mutex_lock(&g_lock);
    long n = ++g.seen;
    pthread_mutex_unlock(&g_lock);
    if (g.at <= 0 || !(n == g.at || (g.onwards && n > g.at)))
        return PASS;
    if (!strcmp(g.what, "kill")) {
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
        for (;;)
            syscall(SYS_pause);
    }
    if (!strcmp(g.what, "short"))
        return op == OP_WRITE || op == OP_READ ? SHORT : PASS;
    if (!strcmp(g.what, "drop"))
        return op == OP_FSYNC ? DROP : PASS;
    for (size_t i = 0; i < sizeof errs / sizeof *errs; i++)
        if (!strcmp(g.what, errs[i].name)) {
            errno = errs[i].err;
            return FAIL;
        }
    return PASS;
}

static void trace(enum op op, const char *a, const char *b, int64_t off, const void *data,
                  int64_t n)
{
    struct {
        uint32_t op, na, nb, zero;
        int64_t off, n;
    } r = {op, (uint32_t)strlen(a), (uint32_t)(b ? strlen(b) : 0), 0, off, n};
    if (g.trace_fd < 0)
        return;
    int e = errno;
    pthread_mutex_lock(&g_lock);
    raw_write(g.trace_fd, &r, sizeof r);
    raw_write(g.trace_fd, a, r.na);
    raw_write(g.trace_fd, b, r.nb);
    raw_write(g.trace_fd, data, (size_t)n);
    pthread_mutex_unlock(&g_lock);
    errno = e;
}

/* ---- names ---- */

static int open_any(int dirfd, const char *path, int flags, int mode)
{
    char buf[PATH];
    const char *abs = g.ready ? absolute(dirfd, path, buf) : path;
    int in = inside(abs), fresh = 0;
    if (in && flags & O_CREAT) {
        struct stat s;
        fresh = syscall(SYS_newfstatat, AT_FDCWD, abs, &s, 0) != 0;
    }
    if (in && judge(flags & O_CREAT ? OP_OPEN : OP_READ) == FAIL)
        return -1;
    int fd = (int)syscall(SYS_openat, dirfd, path, flags, mode);
    if (fd >= 0 && fd < FDS && g.ready)
        snprintf(g.fd_path[fd], PATH, "%s", in ? abs : "");
    if (fd >= 0 && in && fresh)
        trace(OP_OPEN, abs, NULL, 0, NULL, 0);
    else if (fd >= 0 && in && flags & O_TRUNC)
        trace(OP_FTRUNCATE, abs, NULL, 0, NULL, 0);
    return fd;
}

#define MODE_OF(flags, mode)                                                                       \
    do {                                                                                           \
        if ((flags)&O_CREAT) {                                                                     \
            va_list ap;                                                                            \
            va_start(ap, flags);                                                                   \
            mode = va_arg(ap, int);                                                                \
            va_end(ap);                                                                            \
        }                                                                                          \
    } while (0)

int open(const char *path, int flags, ...)
{
    int mode = 0;
    MODE_OF(flags, mode);
    return open_any(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    int mode = 0;
    MODE_OF(flags, mode);
    return open_any(AT_FDCWD, path, flags, mode);
}

int openat(int dirfd, const char *path, int flags, ...)
{
    int mode = 0;
    MODE_OF(flags, mode);
    return open_any(dirfd, path, flags, mode);
}

int close(int fd)
{
    if (fd >= 0 && fd < FDS && g.ready)
        g.fd_path[fd][0] = 0;
    return (int)syscall(SYS_close, fd);
}

int rename(const char *from, const char *to)
{
    char ba[PATH], bb[PATH];
    const char *a = absolute(AT_FDCWD, from, ba), *b = absolute(AT_FDCWD, to, bb);
    if ((inside(a) || inside(b)) && judge(OP_RENAME) == FAIL)
        return -1;
    int r = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (r == 0 && inside(b))
        trace(OP_RENAME, a, b, 0, NULL, 0);
    return r;
}

static int one_path(enum op op, const char *path, int (*call)(const char *, int), int arg)
{
    char buf[PATH];
    const char *abs = absolute(AT_FDCWD, path, buf);
    if (inside(abs) && judge(op) == FAIL)
        return -1;
    int r = call(path, arg);
    if (r == 0 && inside(abs))
        trace(op, abs, NULL, 0, NULL, 0);
    return r;
}

static int call_unlink(const char *path, int flags)
{
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, flags);
}

static int call_mkdir(const char *path, int mode)
{
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
    return one_path(OP_UNLINK, path, call_unlink, 0);
}

int rmdir(const char *path)
{
    return one_path(OP_RMDIR, path, call_unlink, AT_REMOVEDIR);
}

int mkdir(const char *path, mode_t mode)
{
    return one_path(OP_MKDIR, path, call_mkdir, (int)mode);
}

int stat(const char *restrict path, struct stat *restrict s)
{
    char buf[PATH];
    if (g.ready && inside(absolute(AT_FDCWD, path, buf)) && judge(OP_STAT) == FAIL)
        return -1;
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, s, 0);
}

DIR *opendir(const char *path)
{
    char buf[PATH];
    if (g.ready && inside(absolute(AT_FDCWD, path, buf)) && judge(OP_LIST) == FAIL)
        return NULL;
    return REAL(opendir)(path);
}

int access(const char *path, int mode)
{
    if (strncmp(path, "mc-mark:", 8) == 0) {
        trace(OP_MARK, path + 8, NULL, 0, NULL, 0);
        errno = ENOENT;
        return -1;
    }
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

/* ---- content ---- */

static ssize_t write_at(int fd, const void *buf, size_t n, int64_t off, int positioned)
{
    const char *path = of_fd(fd);
    if (path) {
        enum verdict v = judge(OP_WRITE);
        if (v == FAIL)
            return -1;
        if (v == SHORT && n > 1)
            n /= 2;
        if (!positioned)
            off = syscall(SYS_lseek, fd, 0, SEEK_CUR);
    }
    ssize_t w =
        positioned ? syscall(SYS_pwrite64, fd, buf, n, off) : syscall(SYS_write, fd, buf, n);
    if (path && w > 0)
        trace(OP_WRITE, path, NULL, off, buf, w);
    return w;
}

ssize_t write(int fd, const void *buf, size_t n)
{
    return write_at(fd, buf, n, 0, 0);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t off)
{
    return write_at(fd, buf, n, off, 1);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off_t off)
{
    return write_at(fd, buf, n, off, 1);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    if (of_fd(fd) && n > 0) /* a short write, as the standard allows */
        return write_at(fd, v[0].iov_base, v[0].iov_len, 0, 0);
    return syscall(SYS_writev, fd, v, n);
}

static ssize_t read_at(int fd, void *buf, size_t n, int64_t off, int positioned)
{
    if (of_fd(fd)) {
        enum verdict v = judge(OP_READ);
        if (v == FAIL)
            return -1;
        if (v == SHORT && n > 1)
            n /= 2;
    }
    return positioned ? syscall(SYS_pread64, fd, buf, n, off) : syscall(SYS_read, fd, buf, n);
}

ssize_t read(int fd, void *buf, size_t n)
{
    return read_at(fd, buf, n, 0, 0);
}

ssize_t pread(int fd, void *buf, size_t n, off_t off)
{
    return read_at(fd, buf, n, off, 1);
}

ssize_t pread64(int fd, void *buf, size_t n, off_t off)
{
    return read_at(fd, buf, n, off, 1);
}

static int sync_fd(int fd, long call)
{
    const char *path = of_fd(fd);
    enum verdict v = path ? judge(OP_FSYNC) : PASS;
    if (v == FAIL)
        return -1;
    if (v == DROP)
        return 0;
    int r = (int)syscall(call, fd);
    if (r == 0 && path)
        trace(OP_FSYNC, path, NULL, 0, NULL, 0);
    return r;
}

int fsync(int fd)
{
    return sync_fd(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return sync_fd(fd, SYS_fdatasync);
}

static int resize(enum op op, int fd, int mode, int64_t off, int64_t size)
{
    const char *path = of_fd(fd);
    if (path && judge(op) == FAIL)
        return -1;
    int r = op == OP_FTRUNCATE ? (int)syscall(SYS_ftruncate, fd, size)
                               : (int)syscall(SYS_fallocate, fd, mode, off, size);
    if (r == 0 && path && !mode)
        trace(op, path, NULL, off + size, NULL, 0);
    return r;
}

int ftruncate(int fd, off_t size)
{
    return resize(OP_FTRUNCATE, fd, 0, 0, size);
}

int ftruncate64(int fd, off_t size)
{
    return resize(OP_FTRUNCATE, fd, 0, 0, size);
}

int fallocate(int fd, int mode, off_t off, off_t size)
{
    return resize(OP_FALLOCATE, fd, mode, off, size);
}

int fallocate64(int fd, int mode, off_t off, off_t size)
{
    return resize(OP_FALLOCATE, fd, mode, off, size);
}
