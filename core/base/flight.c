/* flight.c - the flight recorder. Floor 0 (base).
 *
 * I1  A writer claims a slot by one atomic add and never waits; readers recognise a slot that is
 *     being written by its sequence number (0 while it changes) and skip it.
 * I2  Dumping formats by hand into a stack buffer and calls write(2) only: it runs in a signal
 *     handler or after an assert.
 * I3  The ring may lie in memory shared with the agent, which reads it when this process is dead:
 *     no pointers in it.
 *
 * Memory: the caller's ring (the progress page), else a static one. Threads: any. */
#include "flight.h"
#include "json.h"
#include "clock.h"
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct mc_flight_event) == 64, "one cache line an event");
_Static_assert(sizeof(struct mc_flight) == 64 * (MC_FLIGHT_EVENTS + 1), "the layout is shared");

static struct mc_flight g_own;
static struct mc_flight *g_ring = &g_own;

void mc_flight_use(struct mc_flight *ring)
{
    __atomic_store_n(&g_ring, ring ? ring : &g_own, __ATOMIC_RELEASE);
}

void mc_flight_note(int64_t step, int64_t bytes, const char *what)
{
    struct mc_flight *r = __atomic_load_n(&g_ring, __ATOMIC_ACQUIRE);
    uint64_t seq = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED); /* I1 */
    struct mc_flight_event *e = &r->ev[seq % MC_FLIGHT_EVENTS];
    char text[sizeof e->what] = {0};
    uint64_t word[sizeof text / 8];
    for (size_t i = 0; i < sizeof text - 1 && what[i]; i++)
        text[i] = what[i];
    memcpy(word, text, sizeof text);
    /* Each field is stored with release and loaded with acquire: whoever sees a new field sees the
     * 0 before it, too. */
    __atomic_store_n(&e->seq, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->t_ns, mc_clock_ns(), __ATOMIC_RELEASE);
    __atomic_store_n(&e->step, step, __ATOMIC_RELEASE);
    __atomic_store_n(&e->bytes, bytes, __ATOMIC_RELEASE);
    for (size_t i = 0; i < sizeof text / 8; i++)
        __atomic_store_n((uint64_t *)(void *)e->what + i, word[i], __ATOMIC_RELEASE);
    __atomic_store_n(&e->seq, seq + 1, __ATOMIC_RELEASE);
}

/* Copies event `seq` (from 0); 0 when it is gone or being written. */
static int read_event(const struct mc_flight *r, uint64_t seq, struct mc_flight_event *out)
{
    const struct mc_flight_event *e = &r->ev[seq % MC_FLIGHT_EVENTS];
    uint64_t word[sizeof e->what / 8];
    if (__atomic_load_n(&e->seq, __ATOMIC_ACQUIRE) != seq + 1)
        return 0;
    out->t_ns = __atomic_load_n(&e->t_ns, __ATOMIC_ACQUIRE);
    out->step = __atomic_load_n(&e->step, __ATOMIC_ACQUIRE);
    out->bytes = __atomic_load_n(&e->bytes, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < sizeof word / 8; i++)
        word[i] = __atomic_load_n((const uint64_t *)(const void *)e->what + i, __ATOMIC_ACQUIRE);
    memcpy(out->what, word, sizeof word);
    out->what[sizeof out->what - 1] = 0;
    out->seq = seq + 1;
    return __atomic_load_n(&e->seq, __ATOMIC_RELAXED) == seq + 1; /* I1 */
}

static uint64_t first_of(uint64_t next, int last_n)
{
    uint64_t n = last_n < 0 ? 0 : (uint64_t)last_n;
    if (n > MC_FLIGHT_EVENTS)
        n = MC_FLIGHT_EVENTS;
    return next > n ? next - n : 0;
}

/* ---- dump: async-signal-safe (I2) ---- */

static char *put_str(char *p, const char *s)
{
    while (*s)
        *p++ = *s++;
    return p;
}

static char *put_i64(char *p, int64_t v)
{
    char digits[24];
    int n = 0;
    uint64_t u = v < 0 ? -(uint64_t)v : (uint64_t)v;
    if (v < 0)
        *p++ = '-';
    do
        digits[n++] = (char)('0' + u % 10);
    while (u /= 10);
    while (n > 0)
        *p++ = digits[--n];
    return p;
}

void mc_flight_dump(const struct mc_flight *ring, int fd, int last_n)
{
    const struct mc_flight *r = ring ? ring : __atomic_load_n(&g_ring, __ATOMIC_ACQUIRE);
    uint64_t next = __atomic_load_n(&r->next, __ATOMIC_RELAXED);
    for (uint64_t seq = first_of(next, last_n); seq < next; seq++) {
        struct mc_flight_event e;
        char line[192], *p = line; /* 4 numbers of at most 20 digits, 31 characters, words */
        if (!read_event(r, seq, &e))
            continue;
        p = put_str(p, "  #");
        p = put_i64(p, (int64_t)e.seq);
        p = put_str(p, " t_ns ");
        p = put_i64(p, e.t_ns);
        p = put_str(p, " step ");
        p = put_i64(p, e.step);
        p = put_str(p, " bytes ");
        p = put_i64(p, e.bytes);
        p = put_str(p, " ");
        p = put_str(p, e.what);
        *p++ = '\n';
        ssize_t w;
        do
            w = write(fd, line, (size_t)(p - line));
        while (w == -1 && errno == EINTR);
        if (w == -1)
            return;
    }
}

void mc_flight_json(const struct mc_flight *ring, int last_n, struct mc_json *j, const char *key)
{
    const struct mc_flight *r = ring ? ring : __atomic_load_n(&g_ring, __ATOMIC_ACQUIRE);
    uint64_t next = __atomic_load_n(&r->next, __ATOMIC_RELAXED);
    mc_json_open(j, key, '[');
    for (uint64_t seq = first_of(next, last_n); seq < next; seq++) {
        struct mc_flight_event e;
        if (!read_event(r, seq, &e))
            continue;
        mc_json_open(j, NULL, '{');
        mc_json_i64(j, "seq", (int64_t)e.seq);
        mc_json_i64(j, "t_ns", e.t_ns);
        mc_json_i64(j, "step", e.step);
        mc_json_i64(j, "bytes", e.bytes);
        mc_json_str(j, "what", e.what);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}
