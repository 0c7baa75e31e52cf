/* several.c - `generate` and `eval` on several ranks: which layout, who starts them, what a rank of
 * them does besides. Floor 8 (cli).
 *
 * The command that a person typed finds the checkpoint and the layout, and starts its own command
 * line once a rank, with the checkpoint it found in place of PATH:
 *     EXE generate --rank K --page-fd F --ctl-fd C WORDS...
 * Rank 0 writes the answer to the stdout that all inherit.
 *
 * I1  Every rank works out the same layout from the same words and the same checkpoint; the agent
 *     compares the hash of the recipe with its own.
 * I2  The layout is asked for, not remembered: pp is --set parallel.pp, else 1; tp is --set
 *     parallel.tp, else the largest part of the recipe's that divides the ranks; all other ranks
 *     are dp. A checkpoint has no layout. A pipeline goes forward only, so it has one chunk a rank
 *     and no schedule to choose; its layers are cut evenly where that divides, else by their cost.
 * I3  One rank, and no --ranks: this process, no agent.
 * I4  Nothing is written to a run: agents without one keep no events and no incidents.
 *
 * Memory: struct mc_cli_several owns the seat. Threads: main. */
#include "cli.h"
#include "../agent/agent.h"
#include "../base/arena.h"
#include "../base/pool.h"
#include "../plan/stages.h"
#include "../run/ctl.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 60 };

void mc_cli_several_init(struct mc_cli_several *s)
{
    memset(s, 0, sizeof *s);
    mc_cli_seat_init(&s->seat);
    s->seat.number = -1;
}

static mc_status set_one(const char *word, int64_t *tp, int64_t *pp, int64_t *dp, int *sp,
                         struct mc_err *err)
{
    const struct {
        const char *key;
        int64_t *n;
    } key[] = {{"parallel.tp=", tp}, {"parallel.pp=", pp}, {"parallel.dp=", dp}};
    for (int i = 0; i < 3; i++) {
        size_t len = strlen(key[i].key);
        if (strncmp(word, key[i].key, len) != 0)
            continue;
        if (!mc_args_i64(word + len, key[i].n) || *key[i].n < 1 || *key[i].n > 1 << 20)
            return mc_err_set(err, MC_E_USAGE, "--set %.80s: not a number of ranks", word);
        return MC_OK;
    }
    if (!strcmp(word, "parallel.sp=true") || !strcmp(word, "parallel.sp=false")) {
        *sp = word[12] == 't';
        return MC_OK;
    }
    return mc_err_set(err, MC_E_USAGE,
                      "--set %.80s: of a checkpoint only parallel.tp, parallel.pp, parallel.dp and "
                      "parallel.sp can be chosen here; the rest is what it was trained with",
                      word);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Microbatches in flight, at most: one a rank, and one more on its way. */
static mc_status make_line(struct mc_cli_several *s, struct mc_recipe *r, struct mc_err *err)
{
    struct mc_parallel_cfg *p = &r->parallel;
    int pp = (int)p->pp, even = r->model.layers % pp == 0;
    int *cut = mc_alloc((size_t)(pp + 1) * sizeof *cut, "layers of stages");
    if (!cut)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the cut of the layers");
    snprintf(p->stages, sizeof p->stages, "%s", even ? "even" : "auto"); /* I2 */
    mc_status st = mc_stages_cut(r, NULL, cut, err);
    if (st == MC_OK)
        st = mc_line_forward(pp, cut, 2 * pp, &s->line, err);
    mc_free(cut);
    return st;
}

mc_status mc_cli_several_settle(struct mc_cli_several *s, struct mc_recipe *r, struct mc_err *err)
{
    struct mc_parallel_cfg *p = &r->parallel;
    int64_t tp = 0, pp = 1, dp = 0, world = s->ranks;
    int sp = p->sp;
    for (int i = 0; i < s->set.n; i++)
        MC_TRY(set_one(s->set.v[i], &tp, &pp, &dp, &sp, err));
    if (world == 0)
        world = (tp > 0 ? tp : 1) * pp * (dp > 0 ? dp : 1);
    if (tp == 0) /* I2 */
        tp = dp > 0 && world % (pp * dp) == 0 ? world / (pp * dp)
                                              : common_divisor(p->tp, world / pp);
    if (tp == 0)
        tp = 1;
    if (dp == 0)
        dp = world / (tp * pp);
    if (tp * pp > world)
        return mc_err_set(err, MC_E_USAGE,
                          "parallel.tp %lld x parallel.pp %lld are %lld ranks, and --ranks is %lld",
                          (long long)tp, (long long)pp, (long long)(tp * pp), (long long)world);
    if (tp * pp * dp != world)
        return mc_err_set(
            err, MC_E_USAGE,
            "parallel.tp %lld x parallel.pp %lld x parallel.dp %lld are %lld ranks, and "
            "--ranks is %lld",
            (long long)tp, (long long)pp, (long long)dp, (long long)(tp * pp * dp),
            (long long)world);
    if (world > MC_AGENT_RANKS)
        return mc_err_set(err, MC_E_USAGE, "ranks on one machine: 1 to %d, not %lld",
                          MC_AGENT_RANKS, (long long)world);
    p->tp = tp;
    p->dp = dp;
    p->pp = pp;
    p->cp = p->ep = p->chunks = 1;
    p->sp = sp && tp > 1;
    s->seat.world = world;
    s->threads = mc_pool_default_threads((int)world);
    MC_TRY(mc_check_layout(r, (int)world, &s->layout, err));
    return pp > 1 ? make_line(s, r, err) : MC_OK;
}

int mc_cli_several_is_agent(const struct mc_cli_several *s)
{
    return s->seat.world > 1 && s->seat.number < 0;
}

int mc_cli_several_run(struct mc_cli_several *s, const struct mc_cli_model *m, const char *command,
                       int argc, char **argv)
{
    char exe[1024];
    const char *word[MAX_WORDS + 1];
    struct mc_agent_result res = {0};
    struct mc_err err = {0};
    struct mc_train_memory plan;
    if (argc > MAX_WORDS) {
        fprintf(stderr, "mascon: %s: more than %d words\n", command, MAX_WORDS);
        return 2;
    }
    int n = 0;
    for (int i = 0; i < argc; i++)
        word[n++] = argv[i] == m->path ? m->ckpt : argv[i]; /* the newest now, not once a rank */
    word[n] = NULL;
    /* would the model go on this layout? Else every rank would say it. */
    mc_status st = mc_train_plan_rank(m->recipe, &s->layout, s->line, 0, 1, &plan, &err);
    if (st == MC_OK)
        st = mc_exe_find(exe, &err);
    const struct mc_agent_run run = {.command = command,
                                     .nranks = s->layout.world,
                                     .threads_per_rank = s->threads,
                                     .exe = exe,
                                     .rank_args = word,
                                     .wait_ns = s->seat.wait_s * 1000000000,
                                     .recipe_hash = mc_recipe_hash(m->recipe),
                                     .build = mc_ctl_build_id()};
    if (st == MC_OK)
        st = mc_agent_run(&run, &res, &err);
    if (st != MC_OK)
        return mc_say_error(&err, st);
    if (res.message[0])
        fprintf(stderr, "mascon: %s\n", res.message);
    return res.exit_code;
}

mc_status mc_cli_several_join(struct mc_cli_several *s, const struct mc_recipe *r,
                              struct mc_err *err)
{
    if (s->seat.number < 0) /* I3 */
        return MC_OK;
    if (s->seat.number >= s->seat.world)
        return mc_err_set(err, MC_E_USAGE, "--rank %lld of %lld ranks", (long long)s->seat.number,
                          (long long)s->seat.world);
    MC_TRY(mc_cli_seat_page(&s->seat, err));
    return mc_cli_seat_join(&s->seat, r, NULL, &s->layout, err);
}

int mc_cli_several_end(struct mc_cli_several *s, mc_status st, const struct mc_err *err)
{
    const struct mc_train_result none = {.committed_step = -1, .loss = NAN};
    int rc = mc_status_exit_code(st);
    mc_cli_seat_result(&s->seat, &none, rc, st, st == MC_OK ? "" : err->msg);
    if (st != MC_OK && (!s->seat.page || st == MC_E_BUG)) /* else the agent says it, once */
        mc_say_error(err, st);
    mc_cli_seat_leave(&s->seat, st);
    mc_cli_seat_give_back(&s->seat);
    mc_line_destroy(s->line);
    s->line = NULL;
    return rc;
}
