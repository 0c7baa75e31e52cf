/* traced.c - the pipeline in a traced step: how long its ops took, and when they would have begun.
 * Floor 8 (cli).
 *
 * Reads "pipe" lines of segments/NNN/trace-STEP.RANK.jsonl (core/train/record.c), which say of each
 * op of the schedule when it began and ended and what of that it waited, and schedule.txt beside
 * them. An op's time is what is left of it without its waits, padding included; a stage's is the
 * mean over microbatches and ranks that have it.
 *
 * I1  Of B alone its parts are not known: they share it as `parts` do, else evenly. A schedule that
 *     has no I and W does not ask.
 * Memory: handle life; one file at a time. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define MAX_FILE ((size_t)1 << 30)

struct sums {
    int n;                                              /* stages */
    double *took[MC_SCHED_NOPS], *count[MC_SCHED_NOPS]; /* [n] */
};

static double num(json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

mc_status mc_cli_trace_lines(const char *path, mc_status (*line)(void *, json_t *, struct mc_err *),
                             void *arg, struct mc_err *err)
{
    struct mc_err why = {0};
    char *all;
    size_t n;
    int ended = 0, at = 0;
    mc_status st = MC_OK;
    MC_TRY(mc_sys_read_file(path, MAX_FILE, &all, &n, err));
    for (char *s = all, *end; st == MC_OK && (end = memchr(s, '\n', n - (size_t)(s - all)));
         s = end + 1) {
        json_t *o = json_loadb(s, (size_t)(end - s), 0, NULL);
        const char *what = json_string_value(json_object_get(o, "at"));
        at++;
        ended |= what && strcmp(what, "end") == 0;
        if (what)
            st = line(arg, o, &why);
        json_decref(o);
    }
    mc_free(all);
    if (st != MC_OK)
        return mc_err_set(err, st, "%s:%d: %s", path, at, why.msg);
    if (!ended)
        return mc_err_set(err, MC_E_FORMAT, "%s is not whole: its last line is missing", path);
    return MC_OK;
}

struct reader {
    struct mc_cli_traced *t;
    struct sums s;
    int64_t most; /* microbatches */
};

static mc_status take(void *arg, json_t *o, struct mc_err *err)
{
    struct reader *r = arg;
    const char *op = json_string_value(json_object_get(o, "op"));
    int64_t stage = json_integer_value(json_object_get(o, "stage")),
            mb = json_integer_value(json_object_get(o, "mb"));
    double took = num(o, "end") - num(o, "begin") - num(o, "wait"),
           begin = num(o, "begin") + num(o, "input");
    int k = 0;
    if (strcmp(json_string_value(json_object_get(o, "at")), "pipe") != 0)
        return MC_OK;
    while (op && k < MC_SCHED_NOPS && strcmp(op, mc_sched_op_name(k)) != 0)
        k++;
    if (!op || k == MC_SCHED_NOPS || stage < 0 || stage >= r->s.n || mb < 0 || !(took >= 0))
        return mc_err_set(err, MC_E_FORMAT, "not an op of %d stages", r->s.n);
    r->s.took[k][stage] += took * 1e-3;
    r->s.count[k][stage]++;
    r->most = mb + 1 > r->most ? mb + 1 : r->most;
    if (r->t->first_ms < 0 || begin < r->t->first_ms)
        r->t->first_ms = begin;
    if (num(o, "end") > r->t->last_ms)
        r->t->last_ms = num(o, "end");
    r->t->busy_ms += took;
    return MC_OK;
}

/* Sums become means in f, i, w. */
static void settle(struct reader *r, const struct mc_stages_work *parts)
{
    struct mc_cli_traced *t = r->t;
    for (int s = 0; s < r->s.n; s++) {
        double mean[MC_SCHED_NOPS], share = 0.5;
        for (int k = 0; k < MC_SCHED_NOPS; k++)
            mean[k] = r->s.count[k][s] > 0 ? r->s.took[k][s] / r->s.count[k][s] : 0;
        if (parts) { /* I1 */
            double i = 0, w = 0;
            for (int l = t->line->cut[s] + (s > 0); l <= t->line->cut[s + 1] + (s == r->s.n - 1);
                 l++)
                i += parts->i[l], w += parts->w[l];
            share = i + w > 0 ? i / (i + w) : 0.5;
        }
        t->f[s] = mean[MC_SCHED_F];
        t->i[s] = mean[MC_SCHED_I] + share * mean[MC_SCHED_B];
        t->w[s] = mean[MC_SCHED_W] + (1 - share) * mean[MC_SCHED_B];
    }
}

static mc_status read_ranks(struct reader *r, const char *dir, int64_t step, struct mc_err *err)
{
    char path[1300];
    for (int k = 0;; k++) {
        snprintf(path, sizeof path, "%s/trace-%lld.%d.jsonl", dir, (long long)step, k);
        r->t->ranks = k;
        if (!mc_sys_exists(path))
            return MC_OK;
        MC_TRY(mc_cli_trace_lines(path, take, r, err));
    }
}

mc_status mc_cli_traced_open(const char *dir, int64_t step, const struct mc_stages_work *parts,
                             struct mc_cli_traced *t, struct mc_err *err)
{
    struct reader r = {.t = t};
    char path[1300], *text;
    size_t n;
    *t = (struct mc_cli_traced){.first_ms = -1};
    snprintf(path, sizeof path, "%s/schedule.txt", dir);
    if (!mc_sys_exists(path))
        return MC_OK;
    MC_TRY(mc_sys_read_file(path, MAX_FILE, &text, &n, err));
    mc_status st = mc_line_parse(text, n, &t->line, err);
    mc_free(text);
    if (st != MC_OK)
        return mc_err_trail(err, st, __FILE__, __LINE__);
    r.s.n = t->line->ranks * t->line->chunks;
    if (parts && t->line->cut[r.s.n] != parts->layers) {
        st = mc_err_set(err, MC_E_FORMAT, "%s cuts %d layers, the model has %d", path,
                        t->line->cut[r.s.n], parts->layers);
        mc_cli_traced_close(t);
        return st;
    }
    n = (size_t)r.s.n;
    t->f = mc_alloc((3 + 2 * MC_SCHED_NOPS) * n * sizeof *t->f, "times of stages");
    if (!t->f) {
        mc_cli_traced_close(t);
        return mc_err_set(err, MC_E_NOMEM, "no memory for the times of %d stages", r.s.n);
    }
    t->i = t->f + n;
    t->w = t->f + 2 * n;
    for (int k = 0; k < MC_SCHED_NOPS; k++) {
        r.s.took[k] = t->f + (3 + 2 * (size_t)k) * n;
        r.s.count[k] = r.s.took[k] + n;
    }
    st = read_ranks(&r, dir, step, err);
    if (st != MC_OK) {
        mc_cli_traced_close(t);
        return st;
    }
    settle(&r, parts);
    t->sched = mc_line_sched(t->line, r.most);
    return MC_OK;
}

void mc_cli_traced_close(struct mc_cli_traced *t)
{
    mc_line_destroy(t->line);
    mc_free(t->f);
    memset(t, 0, sizeof *t);
}
