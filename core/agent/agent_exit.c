/* agent_exit.c - how a rank ended, as numbers that travel, and what the system knows about it.
 * Floor 6 (agent).
 *
 *   v   of EXITED (run/wire.c)
 *   0   wait status, as from waitpid
 *   1   bit 0: the page holds a result; bit 1: the out-of-memory killer was at work; bit 2: its
 *       agent killed it, because it did not leave after its last word
 *   2   exit code on the page
 *   3   mc_status of the page's error
 *   4   steps of this segment
 *   5   step of the page
 *   6   phase of the page
 *   7   step of the result
 *   8   loss, the bits of a double
 *   9   weights_hash
 * Memory: none kept. Threads: any. */
#include "agent_int.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mc_agent_exit_pack(const struct mc_agent_exit *x, int64_t v[MC_MSG_VALUES])
{
    v[0] = x->wait_status;
    v[1] = (x->result_valid ? 1 : 0) | (x->oom ? 2 : 0) | (x->late ? 4 : 0);
    v[2] = x->exit_code;
    v[3] = x->status;
    v[4] = x->segment_steps;
    v[5] = x->step;
    v[6] = (int64_t)x->phase;
    v[7] = x->result_step;
    memcpy(&v[8], &x->loss, 8);
    memcpy(&v[9], &x->weights_hash, 8);
}

void mc_agent_exit_unpack(const int64_t v[MC_MSG_VALUES], struct mc_agent_exit *x)
{
    *x = (struct mc_agent_exit){.wait_status = (int)v[0],
                                .result_valid = (int)(v[1] & 1),
                                .oom = (int)(v[1] >> 1 & 1),
                                .late = (int)(v[1] >> 2 & 1),
                                .exit_code = (int)v[2],
                                .status = (mc_status)v[3],
                                .segment_steps = v[4],
                                .step = v[5],
                                .phase = (enum mc_phase)v[6],
                                .result_step = v[7]};
    memcpy(&x->loss, &v[8], 8);
    memcpy(&x->weights_hash, &v[9], 8);
}

/* The number behind `key` and one blank, at the start of a line; -1 when the file has none. */
static int64_t counter_in(const char *path, const char *key)
{
    char *text;
    size_t n, nk = strlen(key);
    int64_t v = -1;
    if (mc_sys_read_file(path, (size_t)1 << 20, &text, &n, NULL) != MC_OK)
        return -1;
    for (char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (strncmp(line, key, nk) == 0 && line[nk] == ' ')
            v = strtoll(line + nk + 1, NULL, 10);
    mc_free(text);
    return v;
}

/* In this process's cgroup (version 2, else 1), else, where there is no such file (a root cgroup),
 * on the whole host. */
int64_t mc_agent_oom_kills(void)
{
    char *text, path[1400];
    size_t n;
    int64_t v = -1;
    if (mc_sys_read_file("/proc/self/cgroup", 65536, &text, &n, NULL) == MC_OK) {
        for (char *save = NULL, *line = strtok_r(text, "\n", &save); line && v < 0;
             line = strtok_r(NULL, "\n", &save)) {
            char *at = strstr(line, ":memory:");
            if (strncmp(line, "0::", 3) == 0) {
                snprintf(path, sizeof path, "/sys/fs/cgroup%.1000s/memory.events", line + 3);
                v = counter_in(path, "oom_kill");
            } else if (at) {
                snprintf(path, sizeof path, "/sys/fs/cgroup/memory%.1000s/memory.oom_control",
                         at + 8);
                v = counter_in(path, "oom_kill");
            }
        }
        mc_free(text);
    }
    return v >= 0 ? v : counter_in("/proc/vmstat", "oom_kill");
}
