/* clock.c - the three clocks. Floor 0 (base).
 * I1  Deadlines and durations use the monotonic clock only; wall time is for people and for files.
 * Threads: any. */
#include "clock.h"
#include <stdio.h>
#include <time.h>

static int64_t read_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t mc_clock_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

int64_t mc_clock_thread_cpu_ns(void)
{
    return read_ns(CLOCK_THREAD_CPUTIME_ID);
}

double mc_clock_unix(void)
{
    return (double)read_ns(CLOCK_REALTIME) * 1e-9;
}

void mc_clock_iso(char *dst, size_t cap)
{
    struct timespec t;
    struct tm g;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &g);
    snprintf(dst, cap, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", g.tm_year + 1900, g.tm_mon + 1,
             g.tm_mday, g.tm_hour, g.tm_min, g.tm_sec, (int)(t.tv_nsec / 1000000));
}
