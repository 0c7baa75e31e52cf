/* clock.h - monotonic time for everything that waits, wall time for people. */
#pragma once
#include <stddef.h>
#include <stdint.h>

int64_t mc_clock_ns(void);                /* CLOCK_MONOTONIC */
int64_t mc_clock_thread_cpu_ns(void);     /* CLOCK_THREAD_CPUTIME_ID */
double mc_clock_unix(void);               /* seconds since the epoch, wall */
void mc_clock_iso(char *dst, size_t cap); /* "2026-01-31T12:00:00.123Z" */
