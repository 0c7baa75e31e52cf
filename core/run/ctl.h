/* ctl.h - a rank's end of the control socket to its agent. Opened once, before anything that needs
 * other ranks. One thread, but for mc_ctl_describe. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct mc_ctl;
struct mc_ctl_cfg {
    int fd; /* inherited; owned by the ctl from now on */
    int rank, world;
    uint64_t recipe_hash, build; /* the agent refuses a rank that differs */
    int64_t deadline_ns;         /* a span: within it every rank of the world must be there */
};
/* Says hello and returns when all ranks of the world have. MC_E_MACHINE: the agent refused this
 * rank, and why. */
mc_status mc_ctl_open(const struct mc_ctl_cfg *cfg, struct mc_ctl **ctl, struct mc_err *err);
void mc_ctl_close(struct mc_ctl *ctl);
/* Every rank gives n bytes and gets everybody's, in rank order: all[world * n]. All ranks call the
 * same exchanges in the same order; `what` (a word) names it in messages. deadline_ns: a span. arg:
 * struct mc_ctl. */
mc_status mc_ctl_exchange(void *arg, const char *what, const void *mine, size_t n, void *all,
                          int64_t deadline_ns, struct mc_err *err);
/* "rank 3 (pid 4711 on node7)"; valid until this thread's next call. Any thread. */
const char *mc_ctl_describe(void *arg, int world_rank);
/* Identity of the running program's file: ranks and agents must be one build. 0: cannot be read. */
uint64_t mc_ctl_build_id(void);
