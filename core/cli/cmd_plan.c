/* cmd_plan.c - `mascon plan`: what a recipe will ask of its ranks, before anything is asked of a
 * cluster. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/pool.h"
#include "../base/sysio.h"
#include "../pipe/sched.h"
#include "../plan/plan.h"
#include <stdio.h>
#include <string.h>

static const char about[] =
    "Lays RECIPE out over N ranks, or over nodes, and says who holds what: the layout, the\n"
    "microbatches, parameters and bytes of every stage, checkpoints, floating-point operations.\n"
    "Takes no device, in seconds, for any size. --rank R: where that rank stands.\n"
    "With pipeline ranks the schedule is simulated: bubble, makespan, what each rank keeps; "
    "--draw\n"
    "shows it, --svg FILE writes it as a picture. Times are those given with --costs, or those of\n"
    "the step that a run kept with train --trace (any layout of the same model and tp), else the\n"
    "operations of each stage in units of a rank's mean forward. parallel.stages = \"auto\" cuts "
    "the\n"
    "layers by them; the list that is shown can be put into the recipe.\n"
    "\n"
    "Not in it: the time of a step.\n"
    "Exit code 0: sound; 2: errors.";

static const double minutes[] = {1, 2, 5, 10, 15, 30, 60, 120, 240};
enum { NMINUTES = sizeof minutes / sizeof *minutes };

struct plan_cmd {
    struct mc_cli_recipe r;
    int64_t rank; /* -1: none */
    const char *costs, *svg;
    int draw;
    struct mc_plan plan;
    struct mc_train_memory own;   /* of `rank` */
    struct mc_train_memory *held; /* [pp] of the ranks at 0 on all other axes; NULL: not planned */
    /* pp > 1 */
    int64_t traced;             /* the step that --costs RUN was measured in; 0: not measured */
    char dir[1200];             /* of its segment */
    int same_stages;            /* that run was cut alike: its stages' times are these */
    struct mc_stages_work work; /* of pieces, measured or predicted */
    int *cut, proven;
    double *stage_work, *rank_work; /* shares of all work */
    struct mc_sched *sched;
    struct mc_sched_costs cost;
    struct mc_sched_report report;
};

/* -- The schedule ------------------------------------------------------------------------------ */

/* "1,1,0.5" or "1,1,0.5,0.1": F, I, W of one rank, and a message. */
static mc_status parse_costs(const char *s, double v[4], struct mc_err *err)
{
    int n = 0, used = 0;
    v[3] = 0;
    if (sscanf(s, "%lf,%lf,%lf%n", &v[0], &v[1], &v[2], &used) == 3) {
        n = 3;
        if (s[used] == ',' && sscanf(s + used, ",%lf%n", &v[3], &used) == 1)
            n = 4;
    }
    for (int k = 0; k < n; k++)
        if (!(v[k] >= 0 && v[k] < 1e15))
            n = 0;
    if (n == 0 || v[0] + v[1] + v[2] == 0)
        return mc_err_set(
            err, MC_E_USAGE,
            "--costs \"%.60s\"%s: give times F,I,W of one rank, and of a message if you "
            "like, as in 1,1,0.5,0.1; or a traced run",
            s, strchr(s, ',') ? "" : " is no folder");
    return MC_OK;
}

/* Predicted costs in units of a rank's forward, the mean of all: so makespans of other cuts, chunks
 * and schedules of one pipeline compare. */
static void scale(struct mc_sched_costs *c, int stages, int64_t ranks)
{
    double *t = (double *)(uintptr_t)c->f, all = 0;
    for (int s = 0; s < stages; s++)
        all += t[s];
    for (int k = 0; k < 3 * stages && all > 0; k++)
        t[k] *= (double)ranks / all;
}

static double total(const struct mc_stages_work *work)
{
    double t = 0;
    for (int k = 0; k < work->layers + 2; k++)
        t += work->f[k] + work->i[k] + work->w[k];
    return t;
}

/* Where the layers are cut, and what that makes of the work. */
static mc_status cut(struct plan_cmd *c, struct mc_err *err)
{
    const struct mc_recipe *r = c->r.recipe;
    const int n = mc_stages_count(r);
    struct mc_err none = {0};
    double given[4];
    if (c->costs && parse_costs(c->costs, given, &none) != MC_OK && mc_sys_exists(c->costs))
        MC_TRY(mc_cli_measured(c->costs, r, &c->work, &c->traced, c->dir, err));
    else
        MC_TRY(mc_stages_predict(r, &c->work, err));
    MC_TRY(mc_cli_cut(&c->r, &c->work, &c->cut, &c->proven, err));
    c->stage_work = mc_alloc(4 * (size_t)n * sizeof *c->stage_work, "work of stages");
    c->rank_work = mc_alloc((size_t)n * sizeof *c->rank_work, "work of ranks");
    if (!c->stage_work || !c->rank_work)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the work of %d stages", n);
    double *t = c->stage_work, all = total(&c->work);
    mc_stages_sum(&c->work, c->cut, n, t + n, t + 2 * n, t + 3 * n);
    for (int s = 0; s < n; s++)
        t[s] = all > 0 ? (t[n + s] + t[2 * n + s] + t[3 * n + s]) / all : 0;
    return MC_OK;
}

/* Where the traced run had these stages, what they took, with all that is around their ops. */
static mc_status use_stages(struct plan_cmd *c, struct mc_err *err)
{
    const struct mc_recipe *r = c->r.recipe;
    const size_t n = (size_t)mc_stages_count(r);
    struct mc_cli_traced t;
    MC_TRY(mc_cli_traced_open(c->dir, c->traced, &c->work, &t, err));
    c->same_stages = t.line && t.sched && t.line->ranks == r->parallel.pp &&
                     t.line->chunks == r->parallel.chunks &&
                     memcmp(t.line->cut, c->cut, (n + 1) * sizeof *c->cut) == 0;
    if (c->same_stages)
        memcpy((double *)(uintptr_t)c->cost.f, t.f, 3 * n * sizeof *t.f);
    mc_cli_traced_close(&t);
    return MC_OK;
}

static mc_status simulate(struct plan_cmd *c, struct mc_err *err)
{
    const struct mc_recipe *r = c->r.recipe;
    const int own = c->costs && c->traced == 0;
    int64_t counts[MC_STAGES_COUNTS];
    double given[4];
    int depth, n = mc_stages_microbatches(r, counts);
    if (own)
        MC_TRY(parse_costs(c->costs, given, err));
    MC_TRY(mc_cli_costs_create(r, c->cut, own ? given : NULL, &c->work, &c->cost, err));
    if (!c->costs)
        scale(&c->cost, mc_stages_count(r), r->parallel.pp);
    if (c->traced > 0)
        MC_TRY(use_stages(c, err));
    MC_TRY(mc_cli_schedule(&c->r, counts[n - 1], &c->cost, &c->sched, &depth, err));
    c->cost.depth = depth;
    size_t records = (size_t)c->sched->first[c->sched->ranks];
    c->report.rank = mc_alloc((size_t)c->sched->ranks * sizeof *c->report.rank, "ranks of a plan");
    c->report.start = mc_alloc(records * sizeof *c->report.start, "times of a plan");
    if (!c->report.rank || !c->report.start)
        return mc_err_set(err, MC_E_NOMEM, "no memory to simulate the schedule");
    for (int k = 0; k < mc_sched_stages(c->sched); k++)
        c->rank_work[k / c->sched->chunks] += c->stage_work[c->sched->place[k]];
    return mc_sched_simulate(c->sched, &c->cost, &c->report, err);
}

/* The busiest rank over the mean. */
static double imbalance(const struct plan_cmd *c)
{
    double most = 0;
    for (int k = 0; k < c->sched->ranks; k++)
        most = c->rank_work[k] > most ? c->rank_work[k] : most;
    return most * c->sched->ranks;
}

static void drop(struct plan_cmd *c)
{
    mc_stages_work_drop(&c->work);
    mc_free(c->held);
    mc_free(c->cut);
    mc_free(c->stage_work);
    mc_free(c->rank_work);
    mc_free(c->report.rank);
    mc_free(c->report.start);
    mc_sched_destroy(c->sched);
    mc_cli_costs_destroy(&c->cost);
}

/* The pipelines that were proven are cut as predicted; those of a measured cut are others. */
static mc_status line_of(struct plan_cmd *c, struct mc_line **own, struct mc_err *err)
{
    const struct mc_line *line = c->r.line;
    const int n = mc_stages_count(c->r.recipe);
    struct mc_sched *s;
    int depth;
    *own = NULL;
    if (!line || memcmp(line->cut, c->cut, (size_t)(n + 1) * sizeof *c->cut) == 0)
        return MC_OK;
    MC_TRY(mc_cli_schedule(&c->r, c->sched->microbatches, &c->cost, &s, &depth, err));
    return mc_line_create(line->ranks, line->chunks, c->cut, &s, 1, depth, own, err);
}

/* What ranks keep, activations too. */
static mc_status hold(struct plan_cmd *c, struct mc_err *err)
{
    const int pp = c->plan.layout.size[MC_AXIS_PP],
              threads = mc_pool_default_threads(c->plan.per_node);
    c->held = mc_alloc((size_t)pp * sizeof *c->held, "memory of ranks");
    if (!c->held)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the memory of %d ranks", pp);
    struct mc_line *own;
    MC_TRY(line_of(c, &own, err));
    mc_status st = MC_OK;
    for (int k = 0; k < pp && st == MC_OK; k++) {
        const int coord[MC_NAXES] = {[MC_AXIS_PP] = k};
        st = mc_train_plan_rank(c->r.recipe, &c->plan.layout, own ? own : c->r.line,
                                mc_layout_rank(&c->plan.layout, coord), threads, &c->held[k], err);
    }
    mc_line_destroy(own);
    return st;
}

static void svg_line(void *arg, const char *line)
{
    fprintf(arg, "%s\n", line);
}

static mc_status write_svg(const struct plan_cmd *c, struct mc_err *err)
{
    FILE *f = fopen(c->svg, "w");
    if (!f)
        return mc_err_sys(err, "--svg %s", c->svg);
    mc_sched_draw_svg(c->sched, &c->cost, &c->report, svg_line, f);
    int bad = ferror(f);
    if (fclose(f) || bad)
        return mc_err_sys(err, "--svg %s", c->svg);
    return MC_OK;
}

static const char *times_of(const struct plan_cmd *c)
{
    return c->traced > 0 ? "measured" : c->costs ? "given" : "predicted";
}

static void cut_json(const struct plan_cmd *c, struct mc_json *j)
{
    mc_json_open(j, "cut", '{');
    mc_json_str(j, "stages", c->r.recipe->parallel.stages);
    mc_json_str(j, "by", c->traced > 0 ? "measured" : "predicted");
    mc_json_open(j, "layers", '[');
    for (int s = 0; s < c->plan.nstages; s++)
        mc_json_i64(j, NULL, c->cut[s + 1] - c->cut[s]);
    mc_json_close(j, ']');
    mc_json_f64(j, "imbalance", imbalance(c));
    mc_json_bool(j, "proven", c->proven);
    mc_json_close(j, '}');
}

static void say_cut(const struct plan_cmd *c)
{
    printf("\ncut         parallel.stages = {");
    for (int s = 0; s < c->plan.nstages; s++)
        printf("%s%d", s ? ", " : " ", c->cut[s + 1] - c->cut[s]);
    printf(" }");
    if (strcmp(c->r.recipe->parallel.stages, "auto") == 0)
        printf(", which is \"auto\"%s", c->proven ? "" : " (the best that was found in time)");
    printf("; the busiest rank has %.3f of the mean work\n", imbalance(c));
    if (c->traced > 0)
        printf("  work      measured in step %lld of %s\n", (long long)c->traced, c->costs);
    else
        printf("  work      predicted from operations\n");
}

static void bubble_json(const struct plan_cmd *c, struct mc_json *j)
{
    mc_json_open(j, "bubble", '{');
    mc_json_f64(j, "fraction", c->report.bubble);
    mc_json_f64(j, "makespan", c->report.makespan);
    mc_json_str(j, "times", times_of(c));
    mc_json_i64(j, "depth", c->cost.depth);
    mc_json_open(j, "ranks", '[');
    for (int i = 0; i < c->sched->ranks; i++) {
        const struct mc_sched_rank_report *r = &c->report.rank[i];
        mc_json_open(j, NULL, '{');
        mc_json_f64(j, "busy", r->busy);
        mc_json_f64(j, "first", r->first);
        mc_json_f64(j, "last", r->last);
        mc_json_f64(j, "peak_microbatches", (double)r->alive / c->sched->chunks);
        mc_json_i64(j, "peak_pending", r->pending);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
    mc_json_close(j, '}');
}

static void say_schedule(const struct plan_cmd *c)
{
    const struct mc_recipe *r = c->r.recipe;
    printf("\nschedule    %s, %lld microbatches over %d ranks x %d chunk%s: makespan %.4g, bubble "
           "%.2f %%\n",
           r->parallel.schedule, (long long)c->sched->microbatches, c->sched->ranks,
           c->sched->chunks, c->sched->chunks == 1 ? "" : "s", c->report.makespan,
           100 * c->report.bubble);
    printf("  times     %s\n", c->same_stages  ? "measured of these stages, in seconds"
                               : c->traced > 0 ? "measured op by op, in seconds"
                               : c->costs      ? "as given"
                                          : "predicted from operations, a rank's mean forward = 1");
    printf("  %5s %10s %10s %10s %26s\n", "rank", "busy", "first", "last",
           "most microbatches at once");
    for (int i = 0; i < c->sched->ranks; i++) {
        const struct mc_sched_rank_report *k = &c->report.rank[i];
        printf("  %5d %10.4g %10.4g %10.4g %26.4g\n", i, k->busy, k->first, k->last,
               (double)k->alive / c->sched->chunks);
    }
    if (c->draw) {
        printf("\n");
        mc_sched_draw_text(c->sched, &c->cost, &c->report, 200, mc_say_line, NULL);
    }
}

/* -- The answer -------------------------------------------------------------------------------- */

static void rank_json(const struct plan_cmd *c, struct mc_json *j)
{
    int at[MC_NAXES];
    mc_layout_coord(&c->plan.layout, (int)c->rank, at);
    mc_json_open(j, "rank", '{');
    mc_json_i64(j, "rank", c->rank);
    mc_json_i64(j, "tp", at[MC_AXIS_TP]);
    mc_json_i64(j, "pp", at[MC_AXIS_PP]);
    mc_json_i64(j, "dp", at[MC_AXIS_DP]);
    mc_json_i64(j, "cp", at[MC_AXIS_CP]);
    mc_json_i64(j, "ep", at[MC_AXIS_EP]);
    mc_json_i64(j, "node", c->rank / c->plan.per_node);
    mc_json_i64(j, "device", c->rank % c->plan.per_node);
    if (c->own.total > 0)
        mc_json_i64(j, "memory_bytes", (int64_t)c->own.total);
    mc_json_close(j, '}');
}

static void stages_json(const struct plan_cmd *c, struct mc_json *j)
{
    const struct mc_plan *p = &c->plan;
    mc_json_open(j, "stages", '[');
    for (int s = 0; s < p->nstages; s++) {
        mc_json_open(j, NULL, '{');
        mc_json_i64(j, "stage", s);
        mc_json_i64(j, "first_layer", p->stage[s].first_layer);
        mc_json_i64(j, "end_layer", p->stage[s].end_layer);
        mc_json_bool(j, "stem", s == 0);
        mc_json_bool(j, "head", s == p->nstages - 1);
        mc_json_i64(j, "params", p->stage[s].params);
        mc_json_i64(j, "rank", p->stage[s].rank);
        if (c->sched)
            mc_json_f64(j, "work", c->stage_work[s]);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
    mc_json_open(j, "per_rank", '[');
    for (int k = 0; k < p->layout.size[MC_AXIS_PP]; k++) {
        const struct mc_plan_rank *t = &p->rank[k];
        mc_json_open(j, NULL, '{');
        mc_json_i64(j, "pp", k);
        mc_json_i64(j, "params", t->params);
        if (c->sched)
            mc_json_f64(j, "work", c->rank_work[k]);
        mc_json_i64(j, "weights_bytes", t->weights);
        mc_json_i64(j, "grads_bytes", t->grads);
        mc_json_i64(j, "optimizer_bytes", t->optim);
        mc_json_i64(j, "state_bytes", t->weights + t->grads + t->optim);
        if (c->held) {
            mc_json_i64(j, "activations_bytes", (int64_t)c->held[k].activations);
            mc_json_i64(j, "temporary_bytes", (int64_t)c->held[k].temp);
            mc_json_i64(j, "pipe_bytes", (int64_t)c->held[k].pipe);
            mc_json_i64(j, "total_bytes", (int64_t)c->held[k].total);
        }
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

static void checkpoint_json(const struct mc_plan *p, struct mc_json *j)
{
    mc_json_open(j, "checkpoint", '{');
    mc_json_i64(j, "bytes", p->checkpoint.bytes);
    if (p->checkpoint.bytes_per_day > 0)
        mc_json_f64(j, "bytes_per_day", p->checkpoint.bytes_per_day);
    if (p->checkpoint.optimum_minutes > 0) {
        mc_json_open(j, "intervals", '[');
        for (int i = 0; i < NMINUTES; i++) {
            double save, rollback;
            mc_plan_interval(p, minutes[i], &save, &rollback);
            mc_json_open(j, NULL, '{');
            mc_json_f64(j, "minutes", minutes[i]);
            mc_json_f64(j, "save_pct", save);
            mc_json_f64(j, "rollback_pct", rollback);
            mc_json_f64(j, "total_pct", save + rollback);
            mc_json_close(j, '}');
        }
        mc_json_close(j, ']');
        mc_json_f64(j, "optimum_minutes", p->checkpoint.optimum_minutes);
    }
    mc_json_close(j, '}');
}

static void say_json(const struct plan_cmd *c)
{
    const struct mc_plan *p = &c->plan;
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "name", c->r.recipe->name);
    mc_json_i64(&j, "ranks", p->layout.world);
    mc_json_open(&j, "layout", '{');
    mc_json_i64(&j, "tp", p->layout.size[MC_AXIS_TP]);
    mc_json_i64(&j, "pp", p->layout.size[MC_AXIS_PP]);
    mc_json_i64(&j, "dp", p->layout.size[MC_AXIS_DP]);
    mc_json_i64(&j, "cp", p->layout.size[MC_AXIS_CP]);
    mc_json_i64(&j, "ep", p->layout.size[MC_AXIS_EP]);
    mc_json_str(&j, "order", c->r.recipe->parallel.order);
    mc_json_close(&j, '}');
    mc_json_i64(&j, "microbatches", p->microbatches);
    mc_json_i64(&j, "tokens_per_step", p->tokens_per_step);
    mc_json_i64(&j, "params", p->params);
    stages_json(c, &j);
    mc_json_open(&j, "even", '{');
    mc_json_f64(&j, "params", p->even.params);
    mc_json_f64(&j, "state_bytes_unsharded", p->even.state_unsharded);
    mc_json_f64(&j, "state_bytes_sharded", p->even.state_sharded);
    mc_json_close(&j, '}');
    checkpoint_json(p, &j);
    if (c->r.memory.total > 0)
        mc_json_i64(&j, "memory_bytes", (int64_t)c->r.memory.total); /* of the fullest rank */
    if (c->sched) {
        cut_json(c, &j);
        bubble_json(c, &j);
    }
    mc_json_open(&j, "flops", '{');
    mc_json_f64(&j, "per_token_causal", p->flops_causal);
    if (p->flops_full > 0)
        mc_json_f64(&j, "per_token_full", p->flops_full);
    mc_json_close(&j, '}');
    if (c->rank >= 0)
        rank_json(c, &j);
    mc_json_open(&j, "notes", '[');
    for (int i = 0; i < c->r.notes.n; i++)
        mc_json_str(&j, NULL, c->r.notes.note[i]);
    mc_json_close(&j, ']');
    mc_json_close(&j, '}');
    mc_say_json(&j);
}

static void say_share(const double *share, int k)
{
    if (share)
        printf(" %6.2f %%", 100 * share[k]);
    printf("\n");
}

static void say_stages(const struct plan_cmd *c)
{
    const struct mc_plan *p = &c->plan;
    char n[32], w[32], g[32], o[32], all[32];
    const char *share = c->sched ? "     work" : "";
    printf("\n%5s  %5s  %-11s %18s%s\n", "stage", "rank", "layers", "parameters", share);
    for (int s = 0; s < p->nstages; s++) {
        const struct mc_plan_stage *t = &p->stage[s];
        char layers[32] = "none";
        if (t->end_layer > t->first_layer)
            snprintf(layers, sizeof layers, "%d-%d", t->first_layer, t->end_layer - 1);
        mc_say_count(t->params, n);
        printf("%5d  %5d  %-11s %18s", s, t->rank, layers, n);
        say_share(c->sched ? c->stage_work : NULL, s);
    }
    printf("\n%5s  %18s %11s %11s %11s %11s %11s %11s %11s%s\n", "rank", "parameters", "weights",
           "gradients", "optimizer", "activations", "temporary", "messages", "all", share);
    for (int k = 0; k < p->layout.size[MC_AXIS_PP]; k++) {
        const struct mc_plan_rank *t = &p->rank[k];
        mc_say_count(t->params, n);
        mc_say_bytes((double)t->weights, w);
        mc_say_bytes((double)t->grads, g);
        mc_say_bytes((double)t->optim, o);
        printf("%5d  %18s %11s %11s %11s", k, n, w, g, o);
        if (c->held) {
            mc_say_bytes((double)c->held[k].activations, w);
            mc_say_bytes((double)c->held[k].temp, g);
            mc_say_bytes((double)c->held[k].pipe, o);
            mc_say_bytes((double)c->held[k].total, all);
            printf(" %11s %11s %11s %11s", w, g, o, all);
        } else {
            printf(" %11s %11s %11s %11s", "-", "-", "-", "-");
        }
        say_share(c->sched ? c->rank_work : NULL, k);
    }
}

static void say_checkpoint(const struct mc_plan *p)
{
    char b[32], day[32];
    mc_say_bytes((double)p->checkpoint.bytes, b);
    mc_say_bytes(p->checkpoint.bytes_per_day, day);
    printf("\ncheckpoint %s", b);
    if (p->checkpoint.bytes_per_day > 0)
        printf(", %s a day", day);
    printf("\n");
    if (p->checkpoint.optimum_minutes == 0) {
        printf("  declare checkpoint.stall and cluster.mtbf to see what an interval costs\n");
        return;
    }
    printf("  a save stalls %g s, failures are %g h apart: least is lost at one save each %.1f "
           "minutes\n",
           p->checkpoint.stall_s, p->checkpoint.mtbf_s / 3600, p->checkpoint.optimum_minutes);
    for (int i = 0; i < NMINUTES; i++) {
        double save, back;
        mc_plan_interval(p, minutes[i], &save, &back);
        printf("  every %3g minutes   saves %7.3f %%   done again %7.3f %%   together %7.3f %%\n",
               minutes[i], save, back, save + back);
    }
}

static void say_people(const struct plan_cmd *c)
{
    const struct mc_plan *p = &c->plan;
    const int *size = p->layout.size;
    char n[32], tokens[32], shard[32], whole[32];
    mc_say_notes(&c->r.notes);
    mc_say_count(p->params, n);
    mc_say_count(p->tokens_per_step, tokens);
    mc_say_bytes(p->even.state_sharded, shard);
    mc_say_bytes(p->even.state_unsharded, whole);
    printf("%s: %s parameters on %d ranks, %d a node\n", c->r.recipe->name, n, p->layout.world,
           p->per_node);
    printf("layout      tp %d x pp %d x dp %d x cp %d x ep %d, order %s\n", size[MC_AXIS_TP],
           size[MC_AXIS_PP], size[MC_AXIS_DP], size[MC_AXIS_CP], size[MC_AXIS_EP],
           c->r.recipe->parallel.order);
    printf("step        %s tokens, %lld microbatches a replica\n", tokens,
           (long long)p->microbatches);
    printf("state       %s a rank if spread evenly, %s with the optimizer over dp x cp\n", whole,
           shard);
    if (c->r.memory.total > 0) {
        mc_say_bytes((double)c->r.memory.total, whole);
        printf("memory      %s on the fullest rank, activations too\n", whole);
    }
    printf("operations  %.6g a token causal", p->flops_causal);
    if (p->flops_full > 0)
        printf(", %.6g full", p->flops_full);
    printf("\n");
    say_stages(c);
    if (c->sched) {
        say_cut(c);
        say_schedule(c);
    }
    say_checkpoint(p);
    if (c->rank >= 0) {
        int at[MC_NAXES];
        mc_layout_coord(&p->layout, (int)c->rank, at);
        printf("\nrank %lld: tp %d, cp %d, ep %d, dp %d, pp %d; node %lld, device %lld\n",
               (long long)c->rank, at[MC_AXIS_TP], at[MC_AXIS_CP], at[MC_AXIS_EP], at[MC_AXIS_DP],
               at[MC_AXIS_PP], (long long)c->rank / p->per_node, (long long)c->rank % p->per_node);
        mc_say_bytes((double)c->own.total, n);
        if (c->own.total > 0)
            printf("memory of it: %s\n", n);
    }
}

int mc_cmd_plan(int argc, char **argv)
{
    static struct plan_cmd c;
    c.rank = -1;
    const struct mc_arg arg[] = {
        {"--set", "KEY=VALUE", "change a key after loading (repeatable)", MC_ARG_LIST, &c.r.set, 0,
         0},
        {"--device", "D", "cpu or cuda", MC_ARG_STR, &c.r.device, 0, 0},
        {"--ranks", "N", "over N ranks", MC_ARG_I64, &c.r.ranks, 1, 1 << 20},
        {"--nodes", "N", "... or over N nodes", MC_ARG_I64, &c.r.nodes, 1, 1 << 20},
        {"--per-node", "G", "devices on a node", MC_ARG_I64, &c.r.per_node, 1, 1024},
        {"--rank", "R", "where this rank stands", MC_ARG_I64, &c.rank, 0, 1 << 22},
        {"--costs", "F,I,W[,HOP]|RUN",
         "times of one rank's forward, input and weight gradient; or a traced run", MC_ARG_STR,
         &c.costs, 0, 0},
        {"--draw", NULL, "draw the schedule", MC_ARG_FLAG, &c.draw, 0, 0},
        {"--svg", "FILE", "write the schedule as a picture", MC_ARG_STR, &c.svg, 0, 0},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &c.r.json, 0, 0},
    };
    struct mc_args a = {.usage = "mascon plan RECIPE [--ranks N | --nodes N --per-node G] "
                                 "[--rank R] [options]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = &c.r.path,
                        .min_pos = 1,
                        .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    struct mc_err err = {0};
    rc = mc_cli_load(&c.r);
    if (rc == 0) {
        int64_t per_node = c.r.per_node > 0 ? c.r.per_node : c.r.recipe->cluster.per_node;
        mc_status st = MC_OK;
        if (c.r.recipe->parallel.pp > 1)
            st = cut(&c, &err);
        else if (c.costs || c.draw || c.svg)
            st = mc_err_set(&err, MC_E_USAGE, "%s is for a pipeline, and parallel.pp is 1",
                            c.costs  ? "--costs"
                            : c.draw ? "--draw"
                                     : "--svg");
        if (st == MC_OK && c.cut)
            st = simulate(&c, &err);
        if (st == MC_OK)
            st = mc_plan_make(c.r.recipe, (int)per_node, c.cut, c.sched ? c.sched->place : NULL,
                              &c.plan, &err);
        if (st == MC_OK && c.rank >= c.plan.layout.world)
            st = mc_err_set(&err, MC_E_USAGE, "--rank %lld: there are ranks 0 to %d",
                            (long long)c.rank, c.plan.layout.world - 1);
        if (st == MC_OK && c.rank >= 0 && c.r.memory.total > 0)
            st = mc_train_plan_rank(c.r.recipe, &c.plan.layout, c.r.line, (int)c.rank,
                                    mc_pool_default_threads(c.plan.per_node), &c.own, &err);
        if (st == MC_OK && c.r.memory.total > 0)
            st = hold(&c, &err);
        if (st == MC_OK && c.svg)
            st = write_svg(&c, &err);
        if (st != MC_OK)
            rc = mc_say_error(&err, st);
        else if (c.r.json)
            say_json(&c);
        else
            say_people(&c);
    }
    drop(&c);
    mc_cli_unload(&c.r);
    return rc;
}
