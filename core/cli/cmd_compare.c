/* cmd_compare.c - `mascon compare`: the same work under two settings, A and B. Floor 8 (cli).
 *
 * `mascon train` of this same program runs A B A B ... into temporary run folders; what a run wrote
 * of itself (metrics.jsonl, events.jsonl) and what the system says of its processes is the answer.
 *
 * I1  Both settings are checked before anything runs. What the comparison settles itself (length,
 *     checkpoints, evaluations, hooks, time limit) cannot be set as well.
 * I2  Each round runs both, so that a machine which gets slower by the minute slows both. A
 *     difference is claimed only when the ranges over the rounds do not touch.
 * I3  The temporary folder is gone at the end, also after an error or a stop signal.
 * I4  A run that fails ends the comparison: its own words, its exit code.
 *
 * Measured: step_ms, tokens_per_s, exposed_ms and bubble are medians over the steps after the
 * warm-up; planned memory is that of rank 0; peak memory is the largest resident set that any one
 * process of the run had, as wait4 tells (bytes; the agent has waited for its ranks by then).
 *
 * Memory: losses of all steps and rounds, and room for one run's figures. Threads: main. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/pool.h"
#include "../base/sysio.h"
#include "../run/spawn.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char about[] =
    "Trains the same work under two settings, in turn, and says which takes less time and memory,\n"
    "what communication it leaves exposed, and whether the losses agree. Setting A is RECIPE with\n"
    "--set and --a; setting B is RECIPE_B (or RECIPE) with --set and --b:\n"
    "\n"
    "  mascon compare R.lua --a 'parallel.recompute=\"none\"' --b 'parallel.recompute=\"block\"'\n"
    "\n"
    "Runs are of warmup + steps updates, without hooks and evaluations, in a temporary folder "
    "below\n"
    "./runs that is removed at the end. Times are medians over the steps after the warm-up, then\n"
    "over the rounds. Planned memory is rank 0's; peak memory is the largest resident set of one\n"
    "process. Exit code 0 whatever the difference; of a run that fails, that run's.";

enum { MAX_ROUNDS = 100, MAX_STEPS = 100000, MAX_FILE = 1 << 30, NOWN = 5 };
enum { MS, TOKENS, EXPOSED, BUBBLE, NFIGURES };
enum { BITWISE, ROUNDING, DIFFERENT };

struct setting {
    struct mc_cli_recipe r;
    struct mc_arg_list own; /* --a or --b */
    int world, threads;     /* ranks; threads of one */
    int64_t tokens;         /* of a step */
    struct mc_train_memory plan;
    double *loss; /* [rounds][total steps]; NaN: not finite */
    double figure[NFIGURES][MAX_ROUNDS];
    int64_t planned, allocated, peak; /* bytes; the largest of the rounds */
};
struct compare {
    struct setting s[2];
    struct mc_arg_list set;
    int64_t ranks, steps, warmup, rounds, total;
    int json;
    char exe[1024], dir[64], own[NOWN][64];
    double *scratch; /* [NFIGURES][steps] */
    int failed;      /* exit code of a run that failed, told already */
};

static const char letter[] = "AB";

/* ---- settings ---- */

static mc_status join_sets(struct compare *c, struct setting *s, struct mc_err *err)
{
    static const char *const ours[] = {"steps", "hooks", "checkpoint.every", "eval.every",
                                       "time_limit"};
    struct mc_arg_list *to = &s->r.set;
    if (c->set.n + s->own.n + NOWN > MC_ARG_LIST_MAX)
        return mc_err_set(err, MC_E_USAGE, "more than %d settings", MC_ARG_LIST_MAX - NOWN);
    for (int i = 0; i < c->set.n; i++)
        to->v[to->n++] = c->set.v[i];
    for (int i = 0; i < s->own.n; i++)
        to->v[to->n++] = s->own.v[i];
    for (int i = 0; i < to->n; i++)
        for (size_t k = 0; k < sizeof ours / sizeof *ours; k++) {
            size_t n = strlen(ours[k]);
            if (strncmp(to->v[i], ours[k], n) == 0 && strchr("=. ", to->v[i][n])) /* I1 */
                return mc_err_set(err, MC_E_USAGE,
                                  "%.100s: compare settles %s itself; --warmup and --steps say how "
                                  "long a run is",
                                  to->v[i], ours[k]);
        }
    for (int i = 0; i < NOWN; i++)
        to->v[to->n++] = c->own[i];
    return MC_OK;
}

static mc_status settle(struct compare *c, struct mc_err *err)
{
    c->total = c->warmup + c->steps;
    snprintf(c->own[0], sizeof c->own[0], "steps={steps=%lld}", (long long)c->total);
    snprintf(c->own[1], sizeof c->own[1], "checkpoint.every=\"%lld steps\"", (long long)c->total);
    snprintf(c->own[2], sizeof c->own[2], "hooks={}");
    snprintf(c->own[3], sizeof c->own[3], "eval.every=\"0 steps\"");
    snprintf(c->own[4], sizeof c->own[4], "time_limit=\"0 s\"");
    for (int k = 0; k < 2; k++)
        MC_TRY(join_sets(c, &c->s[k], err));
    return mc_exe_find(c->exe, err);
}

/* 0, or the exit code; everything was said. I1 */
static int check(struct compare *c)
{
    for (int k = 0; k < 2; k++) {
        struct setting *s = &c->s[k];
        struct mc_layout layout;
        struct mc_err err = {0};
        s->r.for_train = 1;
        s->r.ranks = c->ranks;
        s->r.json = c->json;
        int rc = mc_cli_load(&s->r);
        if (rc != 0 && !mc_signals_pending())
            fprintf(stderr, "mascon: that was setting %c\n", letter[k]);
        if (rc != 0)
            return rc;
        mc_status st = mc_check_layout(s->r.recipe, 0, &layout, &err);
        s->world = layout.world;
        s->threads = mc_pool_default_threads(s->world);
        s->tokens = s->r.recipe->batch.global * s->r.recipe->model.seq;
        if (st == MC_OK)
            st = mc_train_plan(s->r.recipe, s->threads, &s->plan, &err);
        if (st != MC_OK)
            return mc_say_error(&err, st);
    }
    return 0;
}

/* ---- one run ---- */

/* The child gets `log` as stdout and stderr. */
static mc_status start(const char *const *argv, int threads, const char *log, struct mc_child *ch,
                       struct mc_err *err)
{
    int fd, keep[2] = {-1, -1};
    fflush(NULL);
    MC_TRY(mc_sys_open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600, &fd, err));
    mc_status st = MC_OK;
    for (int i = 0; i < 2 && st == MC_OK; i++) {
        keep[i] = fcntl(STDOUT_FILENO + i, F_DUPFD_CLOEXEC, 3);
        if (keep[i] == -1 || dup2(fd, STDOUT_FILENO + i) == -1)
            st = mc_err_sys(err, "cannot give a run its log");
    }
    if (st == MC_OK)
        st = mc_spawn(&(struct mc_spawn){.argv = argv, .threads = threads}, ch, err);
    for (int i = 0; i < 2; i++)
        if (keep[i] != -1) {
            (void)dup2(keep[i], STDOUT_FILENO + i);
            close(keep[i]);
        }
    (void)mc_sys_close(fd, log, NULL);
    return st;
}

/* Stop signals are passed on: the first as SIGTERM, the second kills. */
static int wait_for(const struct mc_child *ch, struct rusage *use)
{
    int status = 0, sent = 0;
    for (;;) {
        pid_t p = wait4(ch->pid, &status, WNOHANG, use);
        if (p == ch->pid)
            break;
        if (p == -1 && errno != EINTR)
            return 76;
        for (; sent < mc_signals_count(); sent++)
            (void)kill(ch->pid, sent == 0 ? SIGTERM : SIGKILL);
        struct pollfd pf = {.fd = ch->pidfd, .events = POLLIN};
        (void)poll(&pf, 1, 100); /* ms; a signal ends it */
    }
    if (ch->pidfd >= 0)
        close(ch->pidfd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 76;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int64_t n) /* sorts v */
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static void take_step(struct compare *c, struct setting *s, int round, const json_t *o)
{
    static const char *const key[NFIGURES] = {"step_ms", "tokens_per_s", "exposed_ms", "bubble"};
    int64_t step = json_integer_value(json_object_get(o, "step"));
    if (step < 1 || step > c->total)
        return;
    s->loss[round * c->total + step - 1] = number(o, "loss");
    for (int f = 0; f < NFIGURES && step > c->warmup; f++)
        c->scratch[f * c->steps + step - c->warmup - 1] = number(o, key[f]);
}

static void take_event(struct setting *s, const json_t *o)
{
    const char *kind = json_string_value(json_object_get(o, "kind"));
    if (!kind || strcmp(kind, "memory") != 0)
        return;
    s->planned = json_integer_value(json_object_get(o, "planned"));
    s->allocated = json_integer_value(json_object_get(o, "allocated"));
}

static mc_status read_run(struct compare *c, struct setting *s, int round, const char *run,
                          struct mc_err *err)
{
    static const char *const name[2] = {"metrics.jsonl", "events.jsonl"};
    for (int64_t i = 0; i < NFIGURES * c->steps; i++)
        c->scratch[i] = NAN;
    for (int f = 0; f < 2; f++) {
        char path[200], *all;
        size_t n;
        snprintf(path, sizeof path, "%s/%s", run, name[f]);
        MC_TRY(mc_sys_read_file(path, MAX_FILE, &all, &n, err));
        for (char *at = all, *end; (end = memchr(at, '\n', n - (size_t)(at - all))); at = end + 1) {
            json_t *o = json_loadb(at, (size_t)(end - at), 0, NULL);
            if (o && f == 0)
                take_step(c, s, round, o);
            else if (o)
                take_event(s, o);
            json_decref(o);
        }
        mc_free(all);
    }
    for (int64_t i = 0; i < c->steps; i++)
        if (isnan(c->scratch[MS * c->steps + i]))
            return mc_err_set(err, MC_E_CORRUPT, "%s/metrics.jsonl has no time of step %lld", run,
                              (long long)(c->warmup + i + 1));
    for (int f = 0; f < NFIGURES; f++)
        s->figure[f][round] =
            (f == EXPOSED && s->world == 1) || (f == BUBBLE && s->r.recipe->parallel.pp == 1)
                ? (double)NAN
                : median(c->scratch + f * c->steps, c->steps);
    return MC_OK;
}

static void say_log(const char *path)
{
    char *text;
    size_t n;
    if (mc_sys_read_file(path, 1 << 24, &text, &n, NULL) != MC_OK)
        return;
    fwrite(text, 1, n, stderr);
    mc_free(text);
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    (void)remove(path); /* what a killed rank still writes is met by the next try */
    return 0;
}

static void clear(const char *path)
{
    for (int i = 0; i < 100 && mc_sys_exists(path); i++) {
        if (i > 0)
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        (void)nftw(path, drop, 16, FTW_DEPTH | FTW_PHYS);
    }
    if (mc_sys_exists(path))
        fprintf(stderr, "mascon: %s could not be removed\n", path);
}

static mc_status one_run(struct compare *c, int k, int round, struct mc_err *err)
{
    struct setting *s = &c->s[k];
    const char *argv[2 * MC_ARG_LIST_MAX + 16];
    char run[80], log[80], ranks[24];
    int n = 0;
    struct mc_child ch;
    struct rusage use = {0};
    snprintf(run, sizeof run, "%s/%c%d", c->dir, letter[k], round + 1);
    snprintf(log, sizeof log, "%s/log", c->dir);
    snprintf(ranks, sizeof ranks, "%lld", (long long)c->ranks);
    const char *const head[] = {c->exe, "train", "--quiet", "--run", run, "--ranks", ranks};
    for (int i = 0; i < (c->ranks > 0 ? 7 : 5); i++)
        argv[n++] = head[i];
    for (int i = 0; i < s->r.set.n; i++) {
        argv[n++] = "--set";
        argv[n++] = s->r.set.v[i];
    }
    argv[n++] = "--";
    argv[n++] = s->r.path;
    argv[n] = NULL;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "round %d of %lld: %c\n", round + 1, (long long)c->rounds, letter[k]);
    MC_TRY(start(argv, s->threads, log, &ch, err));
    int rc = wait_for(&ch, &use);
    if (mc_signals_pending())
        return mc_err_set(err, MC_E_FAILED, "stopped by SIG%s; there is nothing to compare",
                          sigabbrev_np(mc_signals_pending()));
    if (rc != 0) { /* I4 */
        say_log(log);
        c->failed = rc;
        return mc_err_set(err, MC_E_FAILED, "round %d of setting %c ended with exit code %d",
                          round + 1, letter[k], rc);
    }
    if (use.ru_maxrss * (int64_t)1024 > s->peak) /* KiB */
        s->peak = use.ru_maxrss * (int64_t)1024;
    mc_status st = read_run(c, s, round, run, err);
    clear(run); /* one checkpoint on the disk at a time */
    return st;
}

static mc_status run_all(struct compare *c, struct mc_err *err)
{
    int made;
    c->scratch = mc_alloc((size_t)(NFIGURES * c->steps) * sizeof(double), "figures of a run");
    for (int k = 0; k < 2; k++)
        c->s[k].loss = mc_alloc((size_t)(c->rounds * c->total) * sizeof(double), "losses");
    if (!c->scratch || !c->s[0].loss || !c->s[1].loss)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the figures of the runs");
    MC_TRY(mc_sys_mkdir("runs", &made, err));
    snprintf(c->dir, sizeof c->dir, "runs/compare-XXXXXX");
    mc_status st = MC_OK;
    if (!mkdtemp(c->dir))
        st = mc_err_sys(err, "cannot make a temporary folder below runs");
    for (int round = 0; round < c->rounds && st == MC_OK; round++) /* I2 */
        for (int k = 0; k < 2 && st == MC_OK; k++)
            st = one_run(c, k, round, err);
    clear(c->dir); /* I3 */
    if (made)
        (void)rmdir("runs"); /* not empty: another run began there */
    return st;
}

/* ---- the answer ---- */

struct range {
    double mid, lo, hi;
};
static struct range range_of(const double *v, int64_t n)
{
    double copy[MAX_ROUNDS];
    memcpy(copy, v, (size_t)n * sizeof *v);
    struct range r = {.mid = median(copy, n)};
    r.lo = copy[0];
    r.hi = copy[n - 1];
    return r;
}

struct answer {
    struct range ms[2], ratio;
    double mid[2][NFIGURES], deviation, tolerance; /* of losses, relative */
    int losses, apart, repeats[2]; /* repeats: a setting's rounds give the same losses */
};

static double deviation(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? 0 : (double)INFINITY;
    return a == b ? 0 : fabs(a - b) / fabs(a);
}

static void judge(const struct compare *c, struct answer *w)
{
    double ratio[MAX_ROUNDS];
    int p[2];
    for (int64_t i = 0; i < c->rounds; i++)
        ratio[i] = c->s[1].figure[MS][i] / c->s[0].figure[MS][i];
    w->ratio = range_of(ratio, c->rounds);
    for (int k = 0; k < 2; k++) {
        const struct setting *s = &c->s[k];
        w->ms[k] = range_of(s->figure[MS], c->rounds);
        for (int f = 0; f < NFIGURES; f++)
            w->mid[k][f] = range_of(s->figure[f], c->rounds).mid;
        w->repeats[k] = 1;
        for (int64_t i = c->total; i < c->rounds * c->total; i++)
            w->repeats[k] &= deviation(s->loss[i % c->total], s->loss[i]) == 0;
        p[k] = (int)s->r.recipe->precision;
    }
    w->apart = w->ms[0].hi < w->ms[1].lo || w->ms[1].hi < w->ms[0].lo; /* I2 */
    for (int64_t i = 0; i < c->total; i++)
        w->deviation = fmax(w->deviation, deviation(c->s[0].loss[i], c->s[1].loss[i]));
    w->tolerance = p[0] == MC_F64 && p[1] == MC_F64     ? 1e-11 /* as diff-run's */
                   : p[0] == MC_BF16 || p[1] == MC_BF16 ? 5e-2
                                                        : 1e-4;
    w->losses = w->deviation == 0 ? BITWISE : w->deviation <= w->tolerance ? ROUNDING : DIFFERENT;
}

static const char *work_note(const struct compare *c)
{
    const struct setting *a = &c->s[0], *b = &c->s[1];
    if (a->plan.parameters != b->plan.parameters || a->plan.flops_causal != b->plan.flops_causal)
        return "A and B are different models: times and losses are not of the same work";
    if (a->tokens != b->tokens)
        return "A and B take different numbers of tokens a step: compare tokens/s, not times";
    return NULL;
}

static void say(const struct compare *c, const struct answer *w)
{
    const char *note = work_note(c);
    for (int k = 0; k < 2; k++) {
        printf("%c: %s", letter[k], c->s[k].r.path);
        for (int i = 0; i < c->s[k].own.n; i++)
            printf(" %s", c->s[k].own.v[i]);
        putchar('\n');
    }
    printf("%-7s %9s %19s %10s %11s %11s %10s %7s %10s %10s\n", "setting", "ms/step", "least-most",
           "tokens/s", "planned", "peak", "exposed ms", "bubble", "first loss", "last loss");
    for (int k = 0; k < 2; k++) {
        const struct setting *s = &c->s[k];
        char least[40], planned[32], peak[32], exposed[32] = "-", bubble[32] = "-";
        snprintf(least, sizeof least, "%.2f-%.2f", w->ms[k].lo, w->ms[k].hi);
        mc_say_bytes((double)s->planned, planned);
        mc_say_bytes((double)s->peak, peak);
        if (s->world > 1)
            snprintf(exposed, sizeof exposed, "%.2f", w->mid[k][EXPOSED]);
        if (s->r.recipe->parallel.pp > 1)
            snprintf(bubble, sizeof bubble, "%.1f %%", 100 * w->mid[k][BUBBLE]);
        printf("%-7c %9.2f %19s %10.0f %11s %11s %10s %7s %10.6f %10.6f\n", letter[k], w->ms[k].mid,
               least, w->mid[k][TOKENS], planned, peak, exposed, bubble, s->loss[0],
               s->loss[c->total - 1]);
    }
    if (c->rounds == 1)
        printf("B took %.3g of A's time a step in one round; more rounds would show the noise\n",
               w->ratio.mid);
    else if (w->apart)
        printf("B takes %.3g of A's time a step (%.3g to %.3g over %lld rounds)\n", w->ratio.mid,
               w->ratio.lo, w->ratio.hi, (long long)c->rounds);
    else
        printf("no difference in time above the noise (B / A is %.3g to %.3g over %lld rounds)\n",
               w->ratio.lo, w->ratio.hi, (long long)c->rounds);
    if (w->losses == BITWISE)
        printf("losses of all %lld steps are equal bit by bit\n", (long long)c->total);
    else
        printf("losses are %s: relative deviation %.3g, rounding is up to %g\n",
               w->losses == ROUNDING ? "equal to rounding" : "different", w->deviation,
               w->tolerance);
    for (int k = 0; k < 2; k++)
        if (!w->repeats[k])
            printf("note: the rounds of %c do not give the same losses\n", letter[k]);
    if (note)
        printf("note: %s\n", note);
}

static void range_json(struct mc_json *j, const char *key, const struct range *r)
{
    mc_json_open(j, key, '{');
    mc_json_f64(j, "median", r->mid);
    mc_json_f64(j, "least", r->lo);
    mc_json_f64(j, "most", r->hi);
    mc_json_close(j, '}');
}

static void setting_json(struct mc_json *j, const struct compare *c, const struct answer *w, int k)
{
    static const char *const per_round[NFIGURES] = {"ms", "tokens_per_s", "exposed_ms", "bubble"};
    const struct setting *s = &c->s[k];
    mc_json_open(j, k ? "b" : "a", '{');
    mc_json_str(j, "recipe", s->r.path);
    mc_json_i64(j, "ranks", s->world);
    mc_json_i64(j, "threads", s->threads);
    mc_json_i64(j, "parameters", s->plan.parameters);
    mc_json_i64(j, "tokens_per_step", s->tokens);
    range_json(j, "step_ms", &w->ms[k]);
    mc_json_f64(j, "tokens_per_s", w->mid[k][TOKENS]);
    mc_json_f64(j, "exposed_ms", w->mid[k][EXPOSED]);
    mc_json_f64(j, "bubble", w->mid[k][BUBBLE]);
    mc_json_i64(j, "planned", s->planned);
    mc_json_i64(j, "allocated", s->allocated);
    mc_json_i64(j, "peak", s->peak);
    mc_json_f64(j, "first_loss", s->loss[0]);
    mc_json_f64(j, "last_loss", s->loss[c->total - 1]);
    mc_json_bool(j, "repeats", w->repeats[k]);
    mc_json_open(j, "rounds", '[');
    for (int64_t i = 0; i < c->rounds; i++) {
        mc_json_open(j, NULL, '{');
        for (int f = 0; f < NFIGURES; f++)
            mc_json_f64(j, per_round[f], s->figure[f][i]);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
    mc_json_close(j, '}');
}

static void say_in_json(const struct compare *c, const struct answer *w)
{
    static const char *const word[] = {"bitwise", "rounding", "different"};
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '{');
    mc_json_i64(&j, "steps", c->steps);
    mc_json_i64(&j, "warmup", c->warmup);
    for (int k = 0; k < 2; k++)
        setting_json(&j, c, w, k);
    range_json(&j, "ratio", &w->ratio);
    mc_json_bool(&j, "above_noise", c->rounds > 1 && w->apart);
    mc_json_str(&j, "losses", word[w->losses]);
    mc_json_f64(&j, "loss_deviation", w->deviation);
    mc_json_str(&j, "note", work_note(c));
    mc_json_close(&j, '}');
    mc_say_json(&j);
}

int mc_cmd_compare(int argc, char **argv)
{
    static struct compare c;
    const char *pos[2];
    const struct mc_arg arg[] = {
        {"--set", "KEY=VALUE", "change a key in both settings (repeatable)", MC_ARG_LIST, &c.set, 0,
         0},
        {"--a", "KEY=VALUE", "change a key in A (repeatable)", MC_ARG_LIST, &c.s[0].own, 0, 0},
        {"--b", "KEY=VALUE", "change a key in B (repeatable)", MC_ARG_LIST, &c.s[1].own, 0, 0},
        {"--ranks", "N", "processes of each run (default: what the recipe says)", MC_ARG_I64,
         &c.ranks, 1, 1 << 20},
        {"--steps", "N", "steps measured (default 10)", MC_ARG_I64, &c.steps, 1, MAX_STEPS},
        {"--warmup", "N", "steps before them (default 2)", MC_ARG_I64, &c.warmup, 0, MAX_STEPS},
        {"--rounds", "N", "runs of each setting (default 3)", MC_ARG_I64, &c.rounds, 1, MAX_ROUNDS},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &c.json, 0, 0},
    };
    struct mc_args a = {.usage = "mascon compare RECIPE [RECIPE_B] [--a KEY=VALUE] "
                                 "[--b KEY=VALUE] [options]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = pos,
                        .min_pos = 1,
                        .max_pos = 2};
    c.steps = 10;
    c.warmup = 2;
    c.rounds = 3;
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    mc_signals_install();
    struct mc_err err = {0};
    struct answer w = {.losses = BITWISE};
    c.s[0].r.path = pos[0];
    c.s[1].r.path = pos[a.npos - 1];
    mc_status st = settle(&c, &err);
    rc = st == MC_OK ? check(&c) : mc_say_error(&err, st);
    if (rc == 0) {
        st = run_all(&c, &err);
        if (st == MC_OK)
            judge(&c, &w);
        if (st == MC_OK && c.json)
            say_in_json(&c, &w);
        else if (st == MC_OK)
            say(&c, &w);
        else
            rc = mc_say_error(&err, st);
        if (c.failed)
            rc = c.failed;
    } else if (mc_signals_pending()) {
        fprintf(stderr, "mascon: stopped by SIG%s\n", sigabbrev_np(mc_signals_pending()));
    }
    for (int k = 0; k < 2; k++) {
        mc_free(c.s[k].loss);
        mc_cli_unload(&c.s[k].r);
    }
    mc_free(c.scratch);
    return rc;
}
