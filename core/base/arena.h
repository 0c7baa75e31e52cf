/* arena.h - the three lives of memory: run (arena), step (scratch), handle (create/destroy).
 *
 * I1  A run arena is sized by a plan before step 1; mc_arena_take() never grows it: past the end is
 *     an assert.
 * I2  The step loop allocates nothing: mc_mem_stats().calls does not move (a test counts).
 * I3  Planned bytes == allocated bytes exactly: the sum over arenas of their size is
 *     mc_mem_stats().arena_bytes.
 * Memory from mc_alloc is aligned to 64 bytes and zeroed. NULL only when the system has none left.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "status.h"

#define MC_ALIGN 64
static inline size_t mc_align_up(size_t n, size_t a)
{
    return (n + a - 1) / a * a;
}

void *mc_alloc(size_t bytes,
               const char *what); /* what: static string, named in out-of-memory messages */
void mc_free(void *p);            /* NULL is fine */
void *mc_grow(void *p, size_t old_bytes, size_t new_bytes,
              const char *what); /* handle life only; NULL on failure, p kept */
char *mc_strdup(const char *s);
char *mc_sprintf(const char *fmt, ...)
    __attribute__((format(printf, 1, 2))); /* mc_free it; NULL on failure */

struct mc_arena {
    const char *name;
    unsigned char *base; /* page aligned, zeroed, huge pages advised above 4 MiB */
    size_t bytes;        /* exactly what the plan said */
    size_t used;
};
/* mmap `bytes`; touches nothing. bytes 0: base NULL, legal. MC_E_NOMEM names arena and size. */
mc_status mc_arena_init(struct mc_arena *a, const char *name, size_t bytes, struct mc_err *err);
void mc_arena_fini(struct mc_arena *a);
/* Next `bytes` at MC_ALIGN. Past the end: MC_ASSERT (the plan was wrong). */
void *mc_arena_take(struct mc_arena *a, size_t bytes);

struct mc_mem_stats {
    uint64_t calls;     /* mc_alloc + mc_grow + mc_arena_init so far */
    size_t arena_bytes; /* live bytes in arenas */
    size_t alloc_bytes; /* live bytes by mc_alloc */
};
struct mc_mem_stats mc_mem_stats(void);
/* Resident set now and its high-water mark, bytes, from /proc/self/status. 0 when unknown. */
size_t mc_mem_rss(void);
size_t mc_mem_rss_peak(void);
