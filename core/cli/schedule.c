/* schedule.c - the recipe's pipeline schedule, made, proven, simulated. Floor 8 (cli).
 *
 * I1  Every number of microbatches that the run will meet is proven before anything starts.
 * I2  A channel holds two messages, or as many as the schedule needs if those are more; a schedule
 *     that locks with as many as there are microbatches and chunks locks with any.
 * I3  The counter-example is as small as can be had cheaply: the fewest microbatches with which the
 *     function's schedule is refused. A function that took its time to be refused (it may loop) is
 *     not asked again.
 * I4  What was proven is what runs: the schedules are kept as they are (r->line), and no function
 *     is asked again.
 * I5  What a schedule keeps at once is held against cluster.mem last, when the bytes of a
 *     microbatch are known.
 *
 * Memory: schedules are handles; costs are the caller's. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/pool.h"
#include "../par/layout.h"
#include "../pipe/line.h"
#include "../pipe/sched.h"
#include "../plan/check.h"
#include "../plan/stages.h"
#include "../train/train.h"
#include <stdio.h>
#include <string.h>

enum { SMALLEST_TRIES = 64, DEPTH = 2 };
#define SMALLEST_NS 1500000000LL /* after which no smaller one is looked for */

mc_status mc_cli_costs_create(const struct mc_recipe *r, const int *cut, const double given[4],
                              const struct mc_stages_work *work, struct mc_sched_costs *c,
                              struct mc_err *err)
{
    int n = mc_stages_count(r);
    double *t = mc_alloc(3 * (size_t)n * sizeof *t, "costs of stages");
    if (!t)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the costs of %d stages", n);
    mc_status st = MC_OK;
    if (!given && work)
        mc_stages_sum(work, cut, n, t, t + n, t + 2 * n);
    else if (!given)
        st = mc_stages_cost(r, cut, n, t, t + n, t + 2 * n, err);
    for (int s = 0; given && s < n; s++)
        for (int k = 0; k < 3; k++)
            t[k * n + s] = given[k] / (double)r->parallel.chunks;
    if (st != MC_OK) {
        mc_free(t);
        return st;
    }
    *c = (struct mc_sched_costs){.f = t, .i = t + n, .w = t + 2 * n, .hop = given ? given[3] : 0};
    return MC_OK;
}

void mc_cli_costs_destroy(struct mc_sched_costs *c)
{
    mc_free((void *)(uintptr_t)c->f);
    memset(c, 0, sizeof *c);
}

/* How far each rank had come; arg counts the lines. */
static void to_stderr(void *arg, const char *line)
{
    int *lines = arg;
    if ((*lines)++ == 0)
        fprintf(stderr, "each rank's work, the bar where it stands:\n");
    fprintf(stderr, "  %s\n", line);
}

/* One number of microbatches: made and proven; *depth is what its channels must hold. *made: the
 * function gave a list of records, whatever the proof says of it. */
static mc_status prove_made(struct mc_cli_recipe *r, int64_t m, const struct mc_sched_costs *c,
                            int picture, struct mc_sched **out, int *depth, int *made,
                            struct mc_err *err)
{
    const struct mc_recipe *recipe = mc_recipe_of(r->loaded.box);
    struct mc_sched_ask ask = {.ranks = (int)recipe->parallel.pp,
                               .chunks = (int)recipe->parallel.chunks,
                               .microbatches = (int)m,
                               .costs = c};
    struct mc_sched *s;
    *made = 0;
    MC_TRY(mc_lua_schedule(&r->loaded, &ask, &s, err));
    *made = 1;
    int64_t most = m * ask.chunks;
    struct mc_sched_limits lim = {.depth = most > 1 << 30 ? 1 << 30 : (int)most}; /* I2 */
    int need = 0, lines = 0;
    mc_status st = mc_sched_verify(s, &lim, picture ? to_stderr : NULL, &lines, err);
    if (st == MC_OK)
        st = mc_sched_least_depth(s, lim.depth, &need, err);
    if (st != MC_OK) {
        mc_sched_destroy(s);
        return st;
    }
    *depth = need < DEPTH ? DEPTH : need;
    if (out)
        *out = s;
    else
        mc_sched_destroy(s);
    return MC_OK;
}

static mc_status prove(struct mc_cli_recipe *r, int64_t m, const struct mc_sched_costs *c,
                       int picture, struct mc_sched **out, int *depth, struct mc_err *err)
{
    int made;
    return prove_made(r, m, c, picture, out, depth, &made, err);
}

mc_status mc_cli_schedule(struct mc_cli_recipe *r, int64_t m, const struct mc_sched_costs *c,
                          struct mc_sched **out, int *depth, struct mc_err *err)
{
    return prove(r, m, c, 0, out, depth, err);
}

mc_status mc_cli_cut(struct mc_cli_recipe *r, const struct mc_stages_work *work, int **cut,
                     int *proven, struct mc_err *err)
{
    const struct mc_recipe *recipe = mc_recipe_of(r->loaded.box);
    const struct mc_parallel_cfg *p = &recipe->parallel;
    struct mc_sched *s = NULL;
    int depth;
    *cut = mc_alloc(((size_t)mc_stages_count(recipe) + 1) * sizeof **cut, "cut of a pipeline");
    if (!*cut)
        return mc_err_set(err, MC_E_NOMEM, "no memory to cut %d stages", mc_stages_count(recipe));
    if (p->chunks > 1 && strcmp(p->stages, "auto") == 0) {
        int64_t counts[MC_STAGES_COUNTS];
        struct mc_err later = {0}; /* the proof says it, with the right costs */
        int n = mc_stages_microbatches(recipe, counts);
        if (n > 0)
            prove(r, counts[n - 1], NULL, 0, &s, &depth, &later);
    }
    mc_status st = mc_stages_cut_by(recipe, work, s ? s->place : NULL, *cut, proven, err);
    mc_sched_destroy(s);
    if (st != MC_OK) {
        mc_free(*cut);
        *cut = NULL;
    }
    return st;
}

/* A refusal of m microbatches, with the smallest number that is refused alike (I3): where the proof
 * refused, by the proof, since a function need not be made for numbers that the run never meets. */
static mc_status refuse(struct mc_cli_recipe *r, int64_t m, int made,
                        const struct mc_sched_costs *c, int64_t begun, struct mc_err *why,
                        struct mc_err *err)
{
    char file[256];
    int line, depth, less_made;
    for (int64_t small = 1;
         small < m && small <= SMALLEST_TRIES && mc_clock_ns() - begun < SMALLEST_NS; small++) {
        struct mc_err less = {0};
        if (prove_made(r, small, c, 0, NULL, &depth, &less_made, &less) == MC_E_RECIPE &&
            less_made == made && strstr(less.msg, "slot")) {
            *why = less;
            m = small;
            break;
        }
    }
    if (!r->json && mc_clock_ns() - begun < 2 * SMALLEST_NS) {
        struct mc_err again = {0};
        prove(r, m, c, 1, NULL, &depth, &again);
    }
    mc_recipe_where(r->loaded.box, "parallel.schedule", file, &line);
    mc_problems_add(&r->problems, "parallel.schedule", file, line, NULL,
                    "with %lld microbatch%s: %s", (long long)m, m == 1 ? "" : "es", why->msg);
    return mc_err_set(err, MC_E_RECIPE, "%s", why->msg);
}

static void blame(struct mc_cli_recipe *r, const struct mc_err *err)
{
    char file[256];
    int line;
    mc_recipe_where(r->loaded.box, "parallel.schedule", file, &line);
    mc_problems_add(&r->problems, "parallel.schedule", file, line, NULL, "%s", err->msg);
}

/* What "auto" came to. */
static void note_cut(struct mc_check_notes *notes, const int *cut, int n)
{
    char *text = notes->note[notes->n];
    size_t at = 0, cap = sizeof notes->note[0];
    if (notes->n == MC_CHECK_NOTES)
        return;
    at = (size_t)snprintf(text, cap, "parallel.stages: \"auto\" is {");
    for (int s = 0; s < n && at < cap; s++)
        at += (size_t)snprintf(text + at, cap - at, "%s%d", s ? ", " : " ", cut[s + 1] - cut[s]);
    if (at + 3 < cap)
        snprintf(text + at, cap - at, " }");
    else
        memcpy(text + cap - 5, " ...", 5); /* `plan` shows all of it */
    notes->n++;
}

mc_status mc_cli_schedule_check(struct mc_cli_recipe *r, struct mc_err *err)
{
    const struct mc_recipe *recipe = mc_recipe_of(r->loaded.box);
    const struct mc_parallel_cfg *p = &recipe->parallel;
    struct mc_sched_costs c;
    struct mc_sched *s[MC_STAGES_COUNTS];
    int64_t counts[MC_STAGES_COUNTS];
    int depth = DEPTH, kept = 0, *cut;
    mc_line_destroy(r->line);
    r->line = NULL;
    if (p->pp == 1)
        return MC_OK;
    int n = mc_stages_microbatches(recipe, counts);
    MC_TRY(mc_cli_cut(r, NULL, &cut, NULL, err));
    mc_status st = mc_cli_costs_create(recipe, cut, NULL, NULL, &c, err);
    if (st != MC_OK) {
        mc_free(cut);
        return st;
    }
    for (; kept < n && st == MC_OK; kept += st == MC_OK) { /* I1 */
        struct mc_err why = {0};
        const int64_t begun = mc_clock_ns();
        int need = 0, made;
        st = prove_made(r, counts[kept], &c, 0, &s[kept], &need, &made, &why);
        depth = need > depth ? need : depth;
        if (st == MC_E_RECIPE)
            st = refuse(r, counts[kept], made, &c, begun, &why, err);
        else if (st != MC_OK && err)
            *err = why;
    }
    mc_cli_costs_destroy(&c);
    if (st == MC_OK) {
        st = mc_line_create((int)p->pp, (int)p->chunks, cut, s, n, depth, &r->line, err); /* I4 */
        if (st == MC_E_RECIPE)
            blame(r, err);
        else if (strcmp(p->stages, "auto") == 0)
            note_cut(&r->notes, cut, mc_stages_count(recipe));
    } else {
        for (int k = 0; k < kept; k++)
            mc_sched_destroy(s[k]);
    }
    mc_free(cut);
    return st;
}

/* Most (chunk, microbatch) pairs that pipeline rank k may keep in `mem` bytes; 0: what does not fit
 * is not what it keeps of them. */
static mc_status may_keep(const struct mc_cli_recipe *r, const struct mc_layout *l, int k,
                          size_t mem, int64_t *most, struct mc_err *err)
{
    int coord[MC_NAXES] = {[MC_AXIS_PP] = k};
    const int threads = mc_pool_default_threads(l->world);
    struct mc_train_memory m = {0};
    int64_t slots = 0;
    MC_TRY(mc_train_plan_rank(mc_recipe_of(r->loaded.box), l, r->line, mc_layout_rank(l, coord),
                              threads, &m, err));
    for (int c = 0; c < r->line->chunks; c++)
        slots += mc_line_slots(r->line, k, c);
    size_t rest = m.total - m.activations;
    *most =
        mem > rest ? (int64_t)((double)(mem - rest) / ((double)m.activations / (double)slots)) : 0;
    return MC_OK;
}

mc_status mc_cli_schedule_memory(struct mc_cli_recipe *r, struct mc_err *err)
{
    const struct mc_recipe *recipe = mc_recipe_of(r->loaded.box);
    const struct mc_line *line = r->line;
    struct mc_layout l;
    char file[256];
    int where;
    if (!line || recipe->cluster.mem_bytes <= 0)
        return MC_OK;
    int64_t *most = mc_alloc((size_t)line->ranks * sizeof *most, "what ranks may keep");
    if (!most)
        return mc_err_set(err, MC_E_NOMEM, "no memory to check %d ranks", line->ranks);
    mc_status st = mc_check_layout(recipe, 0, &l, err);
    int schedules = st == MC_OK; /* 0: another rank's weights do not fit either */
    for (int k = 0; k < line->ranks && st == MC_OK; k++) {
        st = may_keep(r, &l, k, (size_t)recipe->cluster.mem_bytes, &most[k], err);
        schedules = schedules && most[k] > 0;
    }
    for (int i = 0; i < line->nsched && st == MC_OK && schedules; i++) {
        const struct mc_sched_limits lim = {.depth = line->depth, .alive = most}; /* I5 */
        struct mc_err why = {0};
        st = mc_sched_verify(line->sched[i], &lim, NULL, NULL, &why);
        if (st == MC_OK)
            continue;
        mc_recipe_where(r->loaded.box, "parallel.schedule", file, &where);
        mc_problems_add(&r->problems, "parallel.schedule", file, where,
                        mc_line_split(line)
                            ? "a schedule that keeps less, such as one without I and W"
                            : "a schedule that keeps less, or parallel.recompute = \"block\"",
                        "with %d microbatches: %s", line->sched[i]->microbatches, why.msg);
        mc_err_set(err, st, "%s", why.msg);
    }
    mc_free(most);
    return st;
}
