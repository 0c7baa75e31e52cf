/* preload_alloc.c - count or fail memory allocations from outside: LD_PRELOAD=libpreload_alloc.so.
 *
 * Sees malloc, calloc, realloc, posix_memalign, aligned_alloc, memalign and mmap of the program and
 * of every library in it, from the moment it is loaded.
 *
 *   MC_ALLOC_FAIL    N - the N-th call from the start on returns no memory (ENOMEM); "N+": and
 * every later one MC_ALLOC_WATCH   SUFFIX:A:B - count only from the moment that a file whose path
 * ends in SUFFIX has got its A-th line (of this process) until it has got its B-th: the window of a
 * loop that writes one line a turn. Without it: from start to exit MC_ALLOC_REPORT  file to which
 * is appended, when the window closes or, without one, at exit: "PID calls=N bytes=N frees=N" and
 * up to 16 lines "  KIND BYTES MODULE+0xOFFSET": who asked (addr2line -fe MODULE 0xOFFSET)
 *
 * Threads: atomic counters. Memory: static. glibc only: it calls __libc_malloc and kin, so that it
 * needs no dlsym, which itself allocates. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t a, size_t b);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);
void *memalign(size_t align, size_t n);

enum { SITES = 16 };
static struct {
    long fail_at, from, to;
    int onwards, ready;
    const char *suffix, *report;
    size_t suffix_len;
    char suffix_buf[256];
    atomic_long lines;
    atomic_int counting;
    atomic_long calls, bytes, frees, all, sites;
    struct {
        const char *kind;
        size_t bytes;
        void *caller;
    } site[SITES];
} g;

__attribute__((constructor)) static void start(void)
{
    const char *fail = getenv("MC_ALLOC_FAIL"), *watch = getenv("MC_ALLOC_WATCH");
    char *end;
    g.report = getenv("MC_ALLOC_REPORT");
    if (fail) {
        g.fail_at = strtol(fail, &end, 10);
        g.onwards = *end == '+';
    }
    if (watch) {
        snprintf(g.suffix_buf, sizeof g.suffix_buf, "%s", watch);
        char *colon = strchr(g.suffix_buf, ':');
        if (colon) {
            *colon = 0;
            g.from = strtol(colon + 1, &end, 10);
            g.to = *end == ':' ? strtol(end + 1, NULL, 10) : 0;
            g.suffix = g.suffix_buf;
            g.suffix_len = strlen(g.suffix);
        }
    }
    atomic_store(&g.counting, !g.suffix);
    g.ready = 1;
}

static void report(void)
{
    char text[600];
    if (!g.report)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, g.report, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0)
        return;
    int n = snprintf(text, sizeof text, "%d calls=%ld bytes=%ld frees=%ld\n", (int)getpid(),
                     atomic_load(&g.calls), atomic_load(&g.bytes), atomic_load(&g.frees));
    syscall(SYS_write, fd, text, n);
    for (long i = 0; i < atomic_load(&g.sites) && i < SITES; i++) {
        Dl_info in = {0};
        dladdr(g.site[i].caller, &in);
        n = snprintf(text, sizeof text, "  %s %zu %s+0x%lx\n", g.site[i].kind, g.site[i].bytes,
                     in.dli_fname ? in.dli_fname : "?",
                     (unsigned long)((char *)g.site[i].caller - (char *)in.dli_fbase));
        syscall(SYS_write, fd, text, n);
    }
    syscall(SYS_close, fd);
}

__attribute__((destructor)) static void stop(void)
{
    if (g.ready && !g.suffix)
        report();
}

/* Every allocation comes by here; 0: refuse it. */
static int admit(const char *kind, size_t n, void *caller)
{
    if (!g.ready)
        return 1;
    if (atomic_load(&g.counting)) {
        atomic_fetch_add(&g.calls, 1);
        atomic_fetch_add(&g.bytes, (long)n);
        long s = atomic_fetch_add(&g.sites, 1);
        if (s < SITES) {
            g.site[s].kind = kind;
            g.site[s].bytes = n;
            g.site[s].caller = caller;
        }
    }
    long k = atomic_fetch_add(&g.all, 1) + 1;
    if (g.fail_at && (k == g.fail_at || (g.onwards && k > g.fail_at))) {
        errno = ENOMEM;
        return 0;
    }
    return 1;
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t n)
{
    return admit("malloc", n, CALLER) ? __libc_malloc(n) : NULL;
}

void *calloc(size_t a, size_t b)
{
    return admit("calloc", a * b, CALLER) ? __libc_calloc(a, b) : NULL;
}

void *realloc(void *p, size_t n)
{
    return admit("realloc", n, CALLER) ? __libc_realloc(p, n) : NULL;
}

void free(void *p)
{
    if (p && g.ready && atomic_load(&g.counting))
        atomic_fetch_add(&g.frees, 1);
    __libc_free(p);
}

void *memalign(size_t align, size_t n)
{
    return admit("memalign", n, CALLER) ? __libc_memalign(align, n) : NULL;
}

void *aligned_alloc(size_t align, size_t n)
{
    return admit("aligned_alloc", n, CALLER) ? __libc_memalign(align, n) : NULL;
}

int posix_memalign(void **p, size_t align, size_t n)
{
    void *q = admit("posix_memalign", n, CALLER) ? __libc_memalign(align, n) : NULL;
    if (!q)
        return ENOMEM;
    *p = q;
    return 0;
}

void *mmap(void *addr, size_t n, int prot, int flags, int fd, off_t off)
{
    if (!admit("mmap", n, CALLER))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, addr, n, prot, flags, fd, off);
}

void *mmap64(void *addr, size_t n, int prot, int flags, int fd, off_t off)
{
    if (!admit("mmap", n, CALLER))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, addr, n, prot, flags, fd, off);
}

/* ---- the window: lines of the watched file ---- */

static int watched(int fd)
{
    char link[64], path[1024];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path);
    return n >= (ssize_t)g.suffix_len &&
           memcmp(path + n - g.suffix_len, g.suffix, g.suffix_len) == 0;
}

static void wrote(int fd, const char *p, ssize_t n)
{
    if (n <= 0 || !g.ready || !g.suffix || !watched(fd))
        return;
    for (ssize_t i = 0; i < n; i++) {
        if (p[i] != '\n')
            continue;
        long line = atomic_fetch_add(&g.lines, 1) + 1;
        if (line == g.to) {
            atomic_store(&g.counting, 0);
            report();
        } else if (line == g.from) {
            atomic_store(&g.counting, 1);
        }
    }
}

ssize_t write(int fd, const void *buf, size_t n)
{
    ssize_t w = syscall(SYS_write, fd, buf, n);
    int e = errno;
    wrote(fd, buf, w);
    errno = e;
    return w;
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t off)
{
    ssize_t w = syscall(SYS_pwrite64, fd, buf, n, off);
    int e = errno;
    wrote(fd, buf, w);
    errno = e;
    return w;
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    ssize_t w = syscall(SYS_writev, fd, v, n);
    int e = errno;
    ssize_t left = w;
    for (int i = 0; i < n && left > 0; i++) {
        ssize_t part = left < (ssize_t)v[i].iov_len ? left : (ssize_t)v[i].iov_len;
        wrote(fd, v[i].iov_base, part);
        left -= part;
    }
    errno = e;
    return w;
}
