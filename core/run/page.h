/* page.h - the progress page: one memfd a rank, written by the rank, read by its agent, alive after
 * the rank is dead. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "../base/flight.h"
#include "../base/status.h"

enum mc_phase {
    MC_PHASE_START,
    MC_PHASE_LOAD,
    MC_PHASE_STEP,
    MC_PHASE_EVAL,
    MC_PHASE_SAVE,
    MC_PHASE_EXIT
};
const char *mc_phase_name(enum mc_phase p);

struct mc_page {
    uint32_t magic, version;
    _Atomic uint32_t phase;
    _Atomic int64_t phase_since_ns, step, samples, tokens, collective_seq, bytes_moved, beat_ns;
    /* written once, before exit; valid when result_valid is 1 */
    _Atomic uint32_t result_valid;
    int32_t exit_code, status; /* status: mc_status of the error in message */
    int64_t result_step, segment_steps,
        committed_step; /* steps done in this segment; newest committed checkpoint or -1 */
    double loss;
    uint64_t weights_hash;
    char message[1024]; /* the first error, one line; "" */
    struct mc_flight flight;
};
mc_status mc_page_create(int *fd, struct mc_page **page,
                         struct mc_err *err); /* agent; close-on-exec: mc_spawn keeps it */
mc_status mc_page_attach(int fd, struct mc_page **page,
                         struct mc_err *err); /* rank; checks magic, version, size */
void mc_page_detach(struct mc_page *page);
void mc_page_phase(struct mc_page *page, enum mc_phase phase, int64_t step); /* NULL page: no-op */
