/* ranks.h - processes of this machine as the ranks of a net, for tests and benchmarks.
 *
 * test_ranks_run forks n children that each run fn and exit; what a rendezvous does in a run is
 * done here through shared memory. A child says what is wrong by RANK_CHECK, which ends it. */
#pragma once
#include <stdio.h>
#include "../../core/comm/comm.h"

struct test_world; /* shared by all children */
struct test_rank {
    int world, me;
    struct mc_comm_peers peers;
    struct test_world *shared;
};
typedef void (*test_rank_fn)(struct test_rank *r, void *arg);

/* Status of each child as of waitpid in status[n] (NULL: not wanted); returns how many did not exit
 * with 0. Whoever still runs after timeout_s is killed and said so on stderr. */
int test_ranks_run(int n, test_rank_fn fn, void *arg, int timeout_s, int *status);
/* Opens the net; ends the child when that fails. */
struct mc_comm_net *test_rank_net(struct test_rank *r, _Atomic int64_t *calls,
                                  _Atomic int64_t *bytes);
/* A group of all ranks, or of those in ranks[n] (which must hold me). */
struct mc_comm *test_rank_group(struct test_rank *r, struct mc_comm_net *net, const char *name,
                                const int *ranks, int n, double deadline_s);
/* All children meet here; not through the net. */
void test_rank_meet(struct test_rank *r);
_Noreturn void test_rank_fail(const struct test_rank *r, const char *file, int line,
                              const char *what);
#define RANK_CHECK(r, cond) ((cond) ? (void)0 : test_rank_fail((r), __FILE__, __LINE__, #cond))
