/* test_pipe_ucx.c - pipelines over the real transport: processes as ranks against one whole graph,
 * small messages and ones that UCX hands over only when they are asked for.
 * links: test_threads test_ranks mc_lua mc_pipe */
#include "pipe_maker.h"
#include "../support/ranks.h"

struct world {
    struct cell c;
    struct mc_layout layout;
};

static void child(struct test_rank *r, void *arg)
{
    struct world *w = arg;
    struct mc_mesh *mesh;
    struct mc_err err = {0};
    struct mc_comm_net *net = test_rank_net(r, NULL, NULL);
    mc_status st = mc_mesh_create(&w->layout, r->me, net, "", 20000000000, &mesh, &err);
    if (st != MC_OK)
        fprintf(stderr, "rank %d: %s\n", r->me, err.msg);
    RANK_CHECK(r, st == MC_OK);
    pipe_rank(mesh, &w->c);
    const char *why = check_cell(&w->c, r->me);
    if (why)
        fprintf(stderr, "%s\n", why);
    RANK_CHECK(r, !why);
    RANK_CHECK(r, w->c.calls[r->me] == 0); /* nothing is allocated, in no layer */
    test_rank_meet(r);
    mc_mesh_destroy(mesh);
    mc_comm_net_close(net);
}

static void run(const struct ref *ref, struct mc_sched *sched, int more, const char *what)
{
    static struct world w;
    const int size[MC_NAXES] = {1, 1, 1, 1, 4};
    struct mc_line *line = line_with(&sched, 1, more, 0);
    memset(&w, 0, sizeof w);
    w.c = (struct cell){.ref = ref, .line = line, .tp = 1, .dp = 1, .repeat = 5};
    check_ok(mc_layout_init(&w.layout, MC_ORDER_DEFAULT, size, 4, NULL), NULL);
    if (test_ranks_run(4, child, &w, 60, NULL) != 0)
        fail_msg("%s, depth %d, hidden %d", what, line->depth, (int)ref->m->r.model.hidden);
    mc_line_destroy(line);
}

/* Large messages at the least depth: UCX holds none of them for a receiver that has not asked. */
static void every_schedule_over_processes(void **state)
{
    (void)state;
    for (int big = 0; big < 2; big++) {
        static struct ref ref;
        const struct sizes s = {LAYERS, big ? 2048 : 12, 2, 2, 6, 16, 30, 6};
        struct model *m = big ? llama(&s) : gpt2(&s, 0.1);
        m->r.precision = MC_F32;
        make_batch(m);
        ref_open(&ref, m, 1, 8 * MICRO - 1);
        for (size_t a = 0; a < sizeof all / sizeof *all; a++)
            run(&ref, bundled(all[a].name, 4, all[a].v, 8), !big, all[a].name);
        for (int k = 0; k < 8; k++) {
            g_seed = (uint64_t)(k + 1) * 2654435761u;
            run(&ref, made(4, 1 + k % 2, 8), 0, "made by chance");
        }
        ref_close(&ref);
        mc_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_schedule_over_processes)};
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
