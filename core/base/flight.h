/* flight.h - the flight recorder: a lock-free ring of the last 1024 events of this process, in
 * memory that the agent keeps after the rank is dead. Dump is async-signal-safe. */
#pragma once
#include <stdint.h>

struct mc_json;

#define MC_FLIGHT_EVENTS 1024
struct mc_flight_event { /* 64 bytes */
    int64_t t_ns;
    uint64_t seq; /* 0: never written */
    int64_t step;
    int64_t bytes;
    char what[32]; /* "comm.all_reduce dp", "io.fsync", "phase.eval" */
};
struct mc_flight {
    uint64_t next;
    uint64_t pad[7];
    struct mc_flight_event ev[MC_FLIGHT_EVENTS];
};

void mc_flight_use(struct mc_flight *ring); /* NULL: back to the process's own static ring */
void mc_flight_note(int64_t step, int64_t bytes, const char *what);
void mc_flight_dump(const struct mc_flight *ring, int fd,
                    int last_n); /* ring NULL: the one in use */
/* The same as an array of {seq,t_ns,step,bytes,what}, for incidents; ring NULL: the one in use. */
void mc_flight_json(const struct mc_flight *ring, int last_n, struct mc_json *j, const char *key);
