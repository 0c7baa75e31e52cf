/* rundir.h - a run folder and its lock.
 *
 *   segments/NNN/{resolved.json,recipe.lua,launch_map.tsv}  metrics.jsonl  events.jsonl
 *   incidents/NNN.json  ckpt/  logs/  run.lock
 *
 * I1  One holder: flock on run.lock; its descriptor is inherited by the ranks, so the lock lasts
 *     until the last of them is gone. run.lock holds {"pid":..,"host":"..","start":..} of the
 *     agent. A start that finds it held while that agent is dead on this host waits up to 5 s, else
 *     refuses at once (0.25 s, for a kill -9 to take effect): MC_E_MACHINE, naming pid and host.
 * I2  A segment is one start; its number is the epoch of its checkpoints. Folder names never
 *     repeat.
 * I3  A run folder can be copied and moved: nothing in it holds its own path. */
#pragma once
#include <stdint.h>
#include "../base/json.h"
#include "../base/status.h"

struct mc_rundir {
    char path[1024];
    int lock_fd;
    int segment; /* 0: none yet */
};
/* Opens (create: makes) the folder. Reads the highest segment number. Takes no lock. MC_E_NOTFOUND
 * when missing and !create; MC_E_MACHINE when it is a non-empty folder that is no run of ours. */
mc_status mc_rundir_open(const char *path, int create, struct mc_rundir *rd, struct mc_err *err);
mc_status mc_rundir_lock(struct mc_rundir *rd, struct mc_err *err);
/* Is RUN/run.lock still the file that lock_fd holds? MC_E_FAILED: the folder, or its lock, was
 * deleted or replaced under the run, and whoever is there now must not be disturbed. Without a lock
 * (lock_fd -1), and when it cannot be told: MC_OK. Events, incidents and segments are written only
 * when it holds. */
mc_status mc_rundir_held(const struct mc_rundir *rd, struct mc_err *err);
void mc_rundir_close(struct mc_rundir *rd); /* drops this process's hold */
/* The texts of a segment's files; NULL: no such file. */
struct mc_segment_text {
    const char *recipe, *resolved, *launch_map, *schedule;
};
/* New segment: folder made, its files stored durably, rd->segment set. */
mc_status mc_rundir_new_segment(struct mc_rundir *rd, const struct mc_segment_text *text,
                                struct mc_err *err);
mc_status mc_rundir_file(const struct mc_rundir *rd, const char *name, char out[1100],
                         struct mc_err *err); /* RUN/name */
mc_status mc_rundir_segment_file(const struct mc_rundir *rd, int segment, const char *name,
                                 char out[1100], struct mc_err *err);

/* ---- events.jsonl and incidents/ ---- */
/* Appends {"time":..,"kind":kind, ...fields} as one line, one write. fields_json: members without
 * braces, may be "". */
mc_status mc_rundir_event(const struct mc_rundir *rd, const char *kind, const char *fields_json,
                          struct mc_err *err);
/* Cuts off a last line that a crash left torn. By the holder of the lock, before it writes any;
 * mc_rundir_new_segment does. */
mc_status mc_rundir_mend_events(const struct mc_rundir *rd, struct mc_err *err);
struct mc_incident {
    const char *cls;
    int rank;
    int pid;
    const char *node;
    const char *message;
    int64_t step;
    const char *flight; /* JSON array (mc_flight_json) or NULL */
    const char *others; /* JSON array: how the other ranks ended, and their flights; or NULL */
};
mc_status mc_rundir_incident(const struct mc_rundir *rd, const struct mc_incident *in, int *number,
                             struct mc_err *err);
