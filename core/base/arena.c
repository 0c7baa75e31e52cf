/* arena.c - the three lives of memory, and the books that prove the step loop allocates nothing.
 * Floor 0 (base).
 *
 * I1  Every block that the engine owns passes through mc_alloc, mc_grow or mc_arena_init, and each
 *     such call moves mc_mem_stats().calls by one.
 * I2  arena_bytes is the sum of the sizes that the plans asked for, not of what mmap rounds up to.
 * I3  Blocks are zeroed without being touched where the system hands out fresh zero pages, so that
 *     resident memory grows by what is used.
 *
 * A block of mc_alloc, offsets from its 64-byte-aligned payload:
 *     -64   8   address that calloc returned
 *     -56   8   payload bytes
 *     -48   8   BLOCK_LIVE, or BLOCK_DEAD after mc_free (a double free is a bug and asserts)
 *
 * Memory: this file is its owner of last resort. Threads: any; an arena belongs to one. */
#include "arena.h"
#include "log.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK_LIVE UINT64_C(0x6d61736b6f6e4c56)
#define BLOCK_DEAD UINT64_C(0x6d61736b6f6e4444)
#define HUGE_FROM  ((size_t)4 << 20) /* bytes; below, huge pages waste more than they save */

struct block {
    void *raw;
    uint64_t bytes, state;
    uint64_t pad[5];
};
_Static_assert(sizeof(struct block) == MC_ALIGN, "the head keeps the payload aligned");

static _Atomic uint64_t g_calls;
static _Atomic size_t g_arena_bytes, g_alloc_bytes;

void *mc_alloc(size_t bytes, const char *what)
{
    atomic_fetch_add_explicit(&g_calls, 1, memory_order_relaxed); /* I1 */
    unsigned char *raw = NULL;
    if (bytes <= SIZE_MAX / 2)
        raw = calloc(1, bytes + sizeof(struct block) + MC_ALIGN); /* I3 */
    if (!raw) {
        mc_log(MC_LOG_ERROR, "out of memory: %zu bytes for %s", bytes, what ? what : "?");
        return NULL;
    }
    uintptr_t at = (uintptr_t)raw + sizeof(struct block);
    at = (at + MC_ALIGN - 1) / MC_ALIGN * MC_ALIGN;
    struct block *b = (struct block *)(at - sizeof(struct block));
    b->raw = raw;
    b->bytes = bytes;
    b->state = BLOCK_LIVE;
    atomic_fetch_add_explicit(&g_alloc_bytes, bytes, memory_order_relaxed);
    return (void *)at;
}

static struct block *block_of(void *p)
{
    struct block *b = (struct block *)((unsigned char *)p - sizeof(struct block));
    MC_ASSERT(b->state == BLOCK_LIVE);
    return b;
}

void mc_free(void *p)
{
    if (!p)
        return;
    struct block *b = block_of(p);
    b->state = BLOCK_DEAD;
    atomic_fetch_sub_explicit(&g_alloc_bytes, b->bytes, memory_order_relaxed);
    free(b->raw);
}

void *mc_grow(void *p, size_t old_bytes, size_t new_bytes, const char *what)
{
    MC_ASSERT(!p || block_of(p)->bytes >= old_bytes);
    void *q = mc_alloc(new_bytes, what);
    if (!q)
        return NULL;
    if (p) {
        memcpy(q, p, old_bytes < new_bytes ? old_bytes : new_bytes);
        mc_free(p);
    }
    return q;
}

char *mc_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *d = mc_alloc(n, "string");
    if (d)
        memcpy(d, s, n);
    return d;
}

char *mc_sprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return NULL;
    char *d = mc_alloc((size_t)n + 1, "string");
    if (!d)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(d, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return d;
}

/* ---- arenas ---- */

mc_status mc_arena_init(struct mc_arena *a, const char *name, size_t bytes, struct mc_err *err)
{
    void *p = NULL;
    atomic_fetch_add_explicit(&g_calls, 1, memory_order_relaxed); /* I1 */
    if (bytes > 0) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return mc_err_set(err, MC_E_NOMEM,
                              "arena '%s': the system refuses %zu bytes (%.1f MiB): %s; use a "
                              "smaller model or microbatch, or a machine with more memory",
                              name, bytes, (double)bytes / 1048576.0, strerror(errno));
        if (bytes >= HUGE_FROM)
            (void)madvise(p, bytes, MADV_HUGEPAGE); /* advice: a kernel without it runs slower */
    }
    a->name = name;
    a->base = p;
    a->bytes = bytes;
    a->used = 0;
    atomic_fetch_add_explicit(&g_arena_bytes, bytes, memory_order_relaxed); /* I2 */
    return MC_OK;
}

void mc_arena_fini(struct mc_arena *a)
{
    if (a->base)
        munmap(a->base, a->bytes);
    atomic_fetch_sub_explicit(&g_arena_bytes, a->bytes, memory_order_relaxed);
    a->base = NULL;
    a->bytes = a->used = 0;
}

void *mc_arena_take(struct mc_arena *a, size_t bytes)
{
    size_t at = mc_align_up(a->used, MC_ALIGN);
    MC_ASSERT(at >= a->used && at <= a->bytes && bytes <= a->bytes - at);
    a->used = at + bytes;
    return a->base ? a->base + at : NULL;
}

struct mc_mem_stats mc_mem_stats(void)
{
    struct mc_mem_stats s = {
        .calls = atomic_load_explicit(&g_calls, memory_order_relaxed),
        .arena_bytes = atomic_load_explicit(&g_arena_bytes, memory_order_relaxed),
        .alloc_bytes = atomic_load_explicit(&g_alloc_bytes, memory_order_relaxed),
    };
    return s;
}

/* A "Name:   1234 kB" line of /proc/self/status, in bytes; 0 when it cannot be read. */
static size_t status_kb(const char *name)
{
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd == -1)
        return 0;
    size_t n = 0;
    while (n < sizeof text - 1) {
        ssize_t r = read(fd, text + n, sizeof text - 1 - n);
        if (r == -1 && errno == EINTR)
            continue;
        if (r <= 0)
            break;
        n += (size_t)r;
    }
    close(fd);
    text[n] = 0;
    const char *at = strstr(text, name);
    return at ? (size_t)strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

size_t mc_mem_rss(void)
{
    return status_kb("\nVmRSS:");
}

size_t mc_mem_rss_peak(void)
{
    return status_kb("\nVmHWM:");
}
