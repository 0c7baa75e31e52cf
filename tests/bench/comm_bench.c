/* comm_bench.c - what collectives cost among processes of this machine, for threads that sleep.
 *
 *   bench_comm [ranks...]      default 2 4 8 16
 *
 * A line a call and size: microseconds a call (the slowest rank's mean), bytes of the buffer moved
 * a second, and CPU seconds of all ranks a second of wall time (2.0 on two cores: all busy). Last,
 * the CPU time that a rank uses while it waits one second for another. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include "../../core/base/clock.h"
#include "../support/ranks.h"

enum { MAX_BYTES = 16 << 20 };
enum call { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BARRIER, NCALLS };
static const char *const names[NCALLS] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                          "barrier"};

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void call(struct test_rank *r, struct mc_comm *c, enum call k, float *in, float *out,
                 int64_t n)
{
    struct mc_comm_req *q = NULL;
    mc_status st = MC_OK;
    int64_t counts[64];
    for (int m = 0; m < r->world; m++)
        counts[m] = n / r->world;
    switch (k) {
    case ALL_REDUCE:
        st = c->ops->all_reduce(c, in, in, n, MC_F32, MC_SUM, NULL, &q, NULL);
        break;
    case REDUCE_SCATTER:
        st = c->ops->reduce_scatter(c, in, out, counts, MC_F32, MC_SUM, NULL, &q, NULL);
        break;
    case ALL_GATHER:
        st = c->ops->all_gather(c, in, out, counts, MC_F32, NULL, &q, NULL);
        break;
    case BROADCAST:
        st = c->ops->broadcast(c, in, n, MC_F32, 0, NULL, &q, NULL);
        break;
    default:
        st = c->ops->barrier(c, &q, NULL);
    }
    RANK_CHECK(r, st == MC_OK && c->ops->wait(c, q, 0, NULL) == MC_OK);
}

static void measure(struct test_rank *r, void *arg)
{
    static float in[MAX_BYTES / 4], out[MAX_BYTES / 4];
    static const int64_t sizes[] = {64, 4096, 65536, 1 << 20, MAX_BYTES};
    (void)arg;
    struct mc_comm_net *net = test_rank_net(r, NULL, NULL);
    struct mc_comm *c = test_rank_group(r, net, "bench", NULL, 0, 60);
    for (enum call k = ALL_REDUCE; k < NCALLS; k++)
        for (int s = 0; s < (k == BARRIER ? 1 : 5); s++) {
            int reps = sizes[s] > 1000000 ? (sizes[s] > 2000000 ? 8 : 40) : 300;
            for (int i = 0; i < 3; i++)
                call(r, c, k, in, out, sizes[s] / 4);
            double cost[2] = {(double)mc_clock_ns(), cpu_s()}, cpu;
            for (int i = 0; i < reps; i++)
                call(r, c, k, in, out, sizes[s] / 4);
            cost[0] = ((double)mc_clock_ns() - cost[0]) * 1e-9;
            cpu = cost[1] = cpu_s() - cost[1];
            struct mc_comm_req *q;
            c->ops->all_reduce(c, &cost[0], &cost[0], 1, MC_F64, MC_MAX, NULL, &q, NULL);
            c->ops->wait(c, q, 0, NULL);
            c->ops->all_reduce(c, &cpu, &cost[1], 1, MC_F64, MC_SUM, NULL, &q, NULL);
            c->ops->wait(c, q, 0, NULL);
            if (r->me == 0)
                printf("%2d ranks  %-14s %9lld B  %9.1f us  %7.3f GB/s  cpu %.2f\n", r->world,
                       names[k], k == BARRIER ? 0LL : (long long)sizes[s], cost[0] / reps * 1e6,
                       k == BARRIER ? 0 : (double)sizes[s] * reps / cost[0] * 1e-9,
                       cost[1] / cost[0]);
        }
    double t = cpu_s();
    const struct timespec second = {.tv_sec = 1};
    if (r->me == 0)
        nanosleep(&second, NULL);
    call(r, c, BARRIER, in, out, 0);
    t = cpu_s() - t;
    if (r->me == 1)
        printf("%2d ranks  waiting 1 s uses %.4f s of CPU\n", r->world, t);
    c->ops->destroy(c);
    mc_comm_net_close(net);
}

int main(int argc, char **argv)
{
    static const int usual[] = {2, 4, 8, 16};
    int bad = 0;
    for (int i = 0; i < (argc > 1 ? argc - 1 : 4); i++)
        bad += test_ranks_run(argc > 1 ? atoi(argv[i + 1]) : usual[i], measure, NULL, 300, NULL);
    return bad != 0;
}
