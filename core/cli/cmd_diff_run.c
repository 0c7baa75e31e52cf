/* cmd_diff_run.c - `mascon diff-run A B`: where do two runs part? Floor 8 (cli).
 *
 * Three sources, from coarse to fine; each is used as far as both runs have it:
 *   metrics.jsonl    loss and grad_norm of the steps in common: the first step that differs
 *   checkpoints      parameters and moments of the steps in common: the first step, and of it the
 *                    first parameter in the order of the forward pass, that differ
 *   records          (train --record STEP) each op's output, gradients, the update: the first op in
 *                    program order that differs, forward or backward, which microbatch, which rank
 *
 * I1  The tolerance is one for all three; without one: bit for bit where both runs had the same
 *     layout, but for its pipeline, and precision, else what rounding gives
 *     (core/train/record_diff.c; of losses and checkpoints: as of ops).
 * I2  Exit 4 when anything differs beyond it, 0 when nothing does, 2 when there is nothing to
 *     compare or the models are not the same.
 *
 * Memory: handle life. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include "../train/record.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char about[] =
    "Compares two run folders and says where they part: the first step whose loss or gradient "
    "norm\n"
    "differs, the first parameter that differs at a checkpoint of the same step, and, when both\n"
    "were trained with --record STEP, the first op in program order whose output differs, with "
    "its\n"
    "rank and microbatch, forward or backward. Any two layouts: tensors are compared as logical\n"
    "ones.\n"
    "\n"
    "Without --tolerance: bit for bit between runs of the same layout (but for its pipeline) and\n"
    "precision, else 1e-4\n"
    "(1e-11 when both are fp64, 5e-2 when one is bf16). Exit code 4 when they differ.";

enum { MAX_FILE = 1 << 30 };

struct side {
    const char *path;
    struct mc_rundir rd;
    struct mc_recipe_box *box;
    double *value; /* [steps + 1][2]: loss, grad_norm; NaN: no line */
    int64_t steps;
    struct mc_ckpt_info *ckpt;
    int nckpt;
};
struct diff {
    struct side s[2];
    int64_t step; /* --step; -1: any */
    double tolerance;
    int same_layout;
    /* found; -1: nothing */
    int64_t common, first_step, compared_ckpts, ckpt_step, record_step;
    double loss[2], norm[2], worst_loss;
    char tensor[MC_NAME_MAX + 16];
    double tensor_deviation;
    int tensors_beyond;
    struct mc_record_diff rec;
};

/* ---- reading ---- */

static mc_status read_metrics(struct side *s, struct mc_err *err)
{
    char path[1100], *all;
    size_t n;
    MC_TRY(mc_rundir_file(&s->rd, "metrics.jsonl", path, err));
    if (!mc_sys_exists(path))
        return MC_OK;
    MC_TRY(mc_sys_read_file(path, MAX_FILE, &all, &n, err));
    for (int turn = 0; turn < 2; turn++) { /* how many steps; then their numbers */
        for (char *at = all, *end; (end = memchr(at, '\n', n - (size_t)(at - all))); at = end + 1) {
            json_t *o = json_loadb(at, (size_t)(end - at), 0, NULL);
            int64_t step = json_integer_value(json_object_get(o, "step"));
            if (turn == 0 && step > s->steps)
                s->steps = step;
            if (turn == 1 && step > 0 &&
                step <= s->steps) { /* a step done again: the last counts */
                json_t *loss = json_object_get(o, "loss"), *norm = json_object_get(o, "grad_norm");
                s->value[2 * step] = json_is_number(loss) ? json_number_value(loss) : (double)NAN;
                s->value[2 * step + 1] =
                    json_is_number(norm) ? json_number_value(norm) : (double)NAN;
            }
            json_decref(o);
        }
        if (turn == 0 && s->steps > (int64_t)n) /* a line has more bytes than one */
            s->steps = (int64_t)n;
        if (turn == 0)
            s->value = mc_alloc((size_t)(s->steps + 1) * 2 * sizeof *s->value, "metrics of a run");
        if (!s->value) {
            mc_free(all);
            return mc_err_set(err, MC_E_NOMEM, "no memory for %lld steps", (long long)s->steps);
        }
        for (int64_t i = 0; turn == 0 && i < 2 * (s->steps + 1); i++)
            s->value[i] = NAN;
    }
    mc_free(all);
    return MC_OK;
}

static mc_status open_side(struct side *s, struct mc_err *err)
{
    char path[1100];
    struct mc_err why = {0};
    mc_status st = mc_rundir_open(s->path, 0, &s->rd, &why);
    if (st != MC_OK || s->rd.segment == 0)
        return mc_err_set(err, MC_E_NOTFOUND, "%s: no run to compare%s%s", s->path,
                          st != MC_OK ? ": " : "", why.msg);
    MC_TRY(mc_rundir_segment_file(&s->rd, s->rd.segment, "resolved.json", path, err));
    MC_TRY(mc_recipe_read_json(path, &s->box, err));
    MC_TRY(read_metrics(s, err));
    MC_TRY(mc_rundir_file(&s->rd, "ckpt", path, err));
    return mc_ckpt_list(path, &s->ckpt, &s->nckpt, err);
}

static void close_side(struct side *s)
{
    if (s->box)
        mc_recipe_destroy(s->box);
    mc_free(s->value);
    mc_free(s->ckpt);
    mc_rundir_close(&s->rd);
}

static mc_status check_models(const struct diff *d, struct mc_err *err)
{
    const struct mc_model_cfg *a = &mc_recipe_of(d->s[0].box)->model;
    const struct mc_model_cfg *b = &mc_recipe_of(d->s[1].box)->model;
    const struct {
        const char *key;
        int64_t a, b;
    } is[] = {{"layers", a->layers, b->layers},       {"hidden", a->hidden, b->hidden},
              {"heads", a->heads, b->heads},          {"kv_heads", a->kv_heads, b->kv_heads},
              {"head_dim", a->head_dim, b->head_dim}, {"ffn", a->ffn, b->ffn},
              {"vocab", a->vocab, b->vocab},          {"seq", a->seq, b->seq}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++)
        if (is[i].a != is[i].b)
            return mc_err_set(err, MC_E_USAGE,
                              "they are of different models: model.%s is %lld in %s and %lld in "
                              "%s; there is nothing to compare",
                              is[i].key, (long long)is[i].a, d->s[0].path, (long long)is[i].b,
                              d->s[1].path);
    return MC_OK;
}

/* The pipeline alone may differ: it changes no bit (docs/schedules.md). Sums over all ranks are in
 * rank order. */
static int alike(const struct mc_recipe *a, const struct mc_recipe *b)
{
    const struct mc_parallel_cfg *p = &a->parallel, *q = &b->parallel;
    return p->tp == q->tp && p->dp == q->dp && p->cp == q->cp && p->ep == q->ep && p->sp == q->sp &&
           strcmp(p->order, q->order) == 0 && a->precision == b->precision &&
           a->batch.micro == b->batch.micro;
}

/* I1: before records are read, whose head says more. */
static void settle_tolerance(struct diff *d)
{
    char map[2][1100], *text[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    for (int k = 0; k < 2; k++)
        if (mc_rundir_segment_file(&d->s[k].rd, d->s[k].rd.segment, "launch_map.tsv", map[k],
                                   NULL) == MC_OK)
            (void)mc_sys_read_file(map[k], 1 << 26, &text[k], &n[k], NULL);
    const struct mc_recipe *a = mc_recipe_of(d->s[0].box), *b = mc_recipe_of(d->s[1].box);
    d->same_layout = text[0] && text[1] && n[0] == n[1] && memcmp(text[0], text[1], n[0]) == 0 &&
                     a->precision == b->precision && a->batch.micro == b->batch.micro;
    mc_free(text[0]);
    mc_free(text[1]);
    if (d->tolerance < 0)
        d->tolerance = d->same_layout || alike(a, b)                        ? 0
                       : a->precision == MC_F64 && b->precision == MC_F64   ? 1e-11
                       : a->precision == MC_BF16 || b->precision == MC_BF16 ? 5e-2
                                                                            : 1e-4;
}

/* ---- comparing ---- */

static int apart(double a, double b, double tolerance)
{
    if (isnan(a) || isnan(b))
        return isnan(a) != isnan(b);
    return tolerance > 0 ? fabs(a - b) > tolerance * fabs(a) : a != b;
}

static void compare_metrics(struct diff *d)
{
    const double *a = d->s[0].value, *b = d->s[1].value;
    int64_t n = d->s[0].steps < d->s[1].steps ? d->s[0].steps : d->s[1].steps;
    for (int64_t i = 1; a && b && i <= n; i++) {
        if (isnan(a[2 * i]) && isnan(a[2 * i + 1]))
            continue;
        d->common++;
        double off = fabs(a[2 * i] - b[2 * i]) / fabs(a[2 * i]);
        if (off > d->worst_loss)
            d->worst_loss = off;
        if (d->first_step < 0 && (apart(a[2 * i], b[2 * i], d->tolerance) ||
                                  apart(a[2 * i + 1], b[2 * i + 1], d->tolerance))) {
            d->first_step = i;
            for (int k = 0; k < 2; k++) {
                d->loss[k] = d->s[k].value[2 * i];
                d->norm[k] = d->s[k].value[2 * i + 1];
            }
        }
    }
}

/* The first parameter in forward order: that of the record of which no op is needed. Checkpoints
 * keep names alone, so the order is stem, layers ascending, head; within a place by name. */
static int64_t place_of(const char *name)
{
    long long layer;
    const char *s = strchr(name, '/');
    s = s ? s + 1 : name;
    if (sscanf(s, "layers.%lld.", &layer) == 1)
        return 1 + layer;
    return strncmp(s, "embed", 5) == 0 || strncmp(s, "pos", 3) == 0 ? 0 : INT64_MAX;
}

static int sooner(const struct mc_ckpt_diff *a, const struct mc_ckpt_diff *b)
{
    int64_t x = place_of(a->name), y = place_of(b->name);
    return x != y ? x < y : strcmp(a->name, b->name) < 0;
}

static mc_status compare_pair(struct diff *d, const char *a, const char *b, int64_t step,
                              struct mc_err *err)
{
    struct mc_ckpt_diff *row, *first = NULL;
    int n;
    MC_TRY(mc_cli_diff_paths(a, b, &row, &n, err));
    d->compared_ckpts++;
    for (int i = 0; i < n; i++)
        if (mc_cli_diff_beyond(&row[i], d->tolerance)) {
            d->tensors_beyond++;
            if (!first || sooner(&row[i], first))
                first = &row[i];
        }
    if (first) {
        d->ckpt_step = step;
        memcpy(d->tensor, first->name, sizeof d->tensor);
        d->tensor_deviation = first->deviation;
    }
    mc_free(row);
    return MC_OK;
}

static mc_status compare_checkpoints(struct diff *d, struct mc_err *err)
{
    const struct side *a = &d->s[0], *b = &d->s[1];
    for (int i = 0; i < a->nckpt && d->ckpt_step < 0; i++)
        for (int k = 0; k < b->nckpt && d->ckpt_step < 0; k++)
            if (a->ckpt[i].step == b->ckpt[k].step && a->ckpt[i].whole && b->ckpt[k].whole &&
                (d->step < 0 || a->ckpt[i].step == d->step))
                MC_TRY(compare_pair(d, a->ckpt[i].path, b->ckpt[k].path, a->ckpt[i].step, err));
    return MC_OK;
}

/* The segment that holds the record of a step: the newest. 0: none. */
static int holder(const struct side *s, int64_t step, char dir[1200])
{
    for (int seg = s->rd.segment; seg > 0; seg--) {
        snprintf(dir, 1200, "%s/segments/%03d", s->rd.path, seg);
        if (mc_record_ranks(dir, step) > 0)
            return seg;
    }
    return 0;
}

/* The first step that both have a record of. */
static int64_t recorded(const struct diff *d)
{
    char dir[1200], **names;
    int n;
    int64_t best = -1;
    for (int seg = 1; seg <= d->s[0].rd.segment; seg++) {
        snprintf(dir, sizeof dir, "%s/segments/%03d", d->s[0].rd.path, seg);
        if (mc_sys_list(dir, &names, &n, NULL) != MC_OK)
            continue;
        for (int i = 0; i < n; i++) {
            char other[1200];
            long long step;
            if (sscanf(names[i], "record-%lld.0.jsonl", &step) == 1 && (best < 0 || step < best) &&
                (d->step < 0 || step == d->step) && holder(&d->s[1], step, other))
                best = step;
        }
        mc_sys_list_free(names, n);
    }
    return best;
}

static mc_status compare_records(struct diff *d, double tolerance, struct mc_err *err)
{
    char a[1200], b[1200];
    d->record_step = recorded(d);
    if (d->record_step < 0)
        return MC_OK;
    (void)holder(&d->s[0], d->record_step, a);
    (void)holder(&d->s[1], d->record_step, b);
    return mc_record_compare(a, b, d->record_step, tolerance, &d->rec, err);
}

static mc_status compare(struct diff *d, struct mc_err *err)
{
    double asked = d->tolerance;
    MC_TRY(open_side(&d->s[0], err));
    MC_TRY(open_side(&d->s[1], err));
    MC_TRY(check_models(d, err));
    settle_tolerance(d);
    compare_metrics(d);
    MC_TRY(compare_checkpoints(d, err));
    MC_TRY(compare_records(d, d->tolerance == 0 ? 0 : asked, err)); /* I1 */
    if (d->step >= 0 && d->compared_ckpts == 0 && d->record_step < 0)
        return mc_err_set(err, MC_E_NOTFOUND,
                          "step %lld: the runs have neither a checkpoint nor a record of it in "
                          "common; train both with --record %lld, or ask for another step",
                          (long long)d->step, (long long)d->step);
    if (d->common == 0 && d->compared_ckpts == 0 && d->record_step < 0)
        return mc_err_set(err, MC_E_NOTFOUND,
                          "%s and %s have no step in common: no line of metrics, no checkpoint, no "
                          "record",
                          d->s[0].path, d->s[1].path);
    return MC_OK;
}

/* ---- the answer ---- */

static const char *ranks(const struct mc_record_place *p, char dst[48])
{
    if (p->rank_lo == p->rank_hi)
        snprintf(dst, 48, "rank %d", p->rank_lo);
    else
        snprintf(dst, 48, "ranks %d to %d", p->rank_lo, p->rank_hi);
    return dst;
}

static void say_place(const char *head, const struct mc_record_place *p)
{
    char who[48];
    printf("%s%s %s%s%s", head, p->verb, p->op, *p->op ? " " : "", p->name);
    if (*p->op)
        printf(", %s %d", p->what, p->k);
    if (p->mb >= 0)
        printf(", samples %lld to %lld", (long long)p->mb, (long long)(p->mb + p->n - 1));
    printf(", %s: deviation %.3e\n", ranks(p, who), p->deviation);
}

static void say_record(const struct diff *d)
{
    const struct mc_record_diff *r = &d->rec;
    printf("record of step %lld: %lld outputs compared%s%s, %lld not equal bit by bit, %lld beyond "
           "%g\n",
           (long long)d->record_step, (long long)r->compared,
           r->same_layout ? ", rank by rank" : ", as logical tensors",
           r->same_batches ? "" : ", added up over the step", (long long)r->unequal,
           (long long)r->differ, r->tolerance);
    for (int k = 0; k < 2; k++)
        if (r->torn[k] > 0)
            say_place(k ? "  in B, ranks that hold the same do not agree; first: "
                        : "  in A, ranks that hold the same do not agree; first: ",
                      &r->torn_first[k]);
    if (r->differ == 0)
        return;
    say_place("  first: ", &r->first);
    for (int i = 0; i < r->nworst && i < 5; i++)
        say_place(i == 0 ? "  worst: " : "         ", &r->worst[i]);
}

static void say(const struct diff *d)
{
    printf("A %s\nB %s\n", d->s[0].rd.path, d->s[1].rd.path);
    if (d->first_step >= 0)
        printf("metrics: %lld steps in common; step %lld is the first beyond %g: loss %.9g and "
               "%.9g, gradient norm %.9g and %.9g\n",
               (long long)d->common, (long long)d->first_step, d->tolerance, d->loss[0], d->loss[1],
               d->norm[0], d->norm[1]);
    else if (d->tolerance == 0)
        printf("metrics: %lld steps in common, equal bit by bit\n", (long long)d->common);
    else
        printf("metrics: %lld steps in common, none beyond %g (worst loss %.3e)\n",
               (long long)d->common, d->tolerance, d->worst_loss);
    if (d->ckpt_step >= 0)
        printf("checkpoints: step %lld is the first that differs, in %d tensors; first in forward "
               "order: %s, deviation %.3e\n",
               (long long)d->ckpt_step, d->tensors_beyond, d->tensor, d->tensor_deviation);
    else if (d->tolerance == 0)
        printf("checkpoints: %lld in common, equal bit by bit\n", (long long)d->compared_ckpts);
    else
        printf("checkpoints: %lld in common, none differs beyond %g\n",
               (long long)d->compared_ckpts, d->tolerance);
    if (d->record_step >= 0)
        say_record(d);
    else
        printf("no record in common: train both with --record STEP to learn which op it is\n");
}

static void place_json(const char *key, const struct mc_record_place *p, struct mc_json *j)
{
    mc_json_open(j, key, '{');
    mc_json_str(j, "verb", p->verb);
    mc_json_str(j, "op", p->op);
    mc_json_str(j, "name", p->name);
    mc_json_str(j, "what", p->what);
    mc_json_i64(j, "k", p->k);
    mc_json_i64(j, "first_sample", p->mb);
    mc_json_i64(j, "samples", p->n);
    mc_json_i64(j, "first_rank", p->rank_lo);
    mc_json_i64(j, "last_rank", p->rank_hi);
    mc_json_f64(j, "deviation", p->deviation);
    mc_json_close(j, '}');
}

static void record_json(const struct diff *d, struct mc_json *j)
{
    const struct mc_record_diff *r = &d->rec;
    mc_json_open(j, "record", '{');
    mc_json_i64(j, "step", d->record_step);
    mc_json_bool(j, "same_layout", r->same_layout);
    mc_json_f64(j, "tolerance", r->tolerance);
    mc_json_i64(j, "compared", r->compared);
    mc_json_i64(j, "differ", r->differ);
    mc_json_i64(j, "not_bitwise", r->unequal);
    mc_json_i64(j, "only_a", r->only_a);
    mc_json_i64(j, "only_b", r->only_b);
    if (r->differ > 0)
        place_json("first", &r->first, j);
    mc_json_open(j, "worst", '[');
    for (int i = 0; i < r->nworst; i++)
        place_json(NULL, &r->worst[i], j);
    mc_json_close(j, ']');
    if (r->torn[0] > 0)
        place_json("disagree_a", &r->torn_first[0], j);
    if (r->torn[1] > 0)
        place_json("disagree_b", &r->torn_first[1], j);
    mc_json_close(j, '}');
}

static void say_in_json(const struct diff *d, int differ)
{
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "a", d->s[0].rd.path);
    mc_json_str(&j, "b", d->s[1].rd.path);
    mc_json_bool(&j, "differ", differ);
    mc_json_f64(&j, "tolerance", d->tolerance);
    mc_json_i64(&j, "steps_in_common", d->common);
    mc_json_f64(&j, "worst_loss", d->worst_loss);
    if (d->first_step >= 0)
        mc_json_i64(&j, "first_step", d->first_step);
    mc_json_i64(&j, "checkpoints_in_common", d->compared_ckpts);
    if (d->ckpt_step >= 0) {
        mc_json_open(&j, "checkpoint", '{');
        mc_json_i64(&j, "step", d->ckpt_step);
        mc_json_str(&j, "tensor", d->tensor);
        mc_json_f64(&j, "deviation", d->tensor_deviation);
        mc_json_i64(&j, "tensors", d->tensors_beyond);
        mc_json_close(&j, '}');
    }
    if (d->record_step >= 0)
        record_json(d, &j);
    mc_json_close(&j, '}');
    mc_say_json(&j);
}

int mc_cmd_diff_run(int argc, char **argv)
{
    static struct diff d;
    const char *pos[2];
    int json = 0;
    d.step = d.first_step = d.ckpt_step = d.record_step = -1;
    d.tolerance = -1;
    const struct mc_arg arg[] = {
        {"--step", "K", "only this step's checkpoint and record", MC_ARG_I64, &d.step, 0, 9e15},
        {"--tolerance", "T", "the largest deviation that is none", MC_ARG_F64, &d.tolerance, 0,
         1e300},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &json, 0, 0},
    };
    struct mc_args a = {.usage = "mascon diff-run RUN RUN [--step K] [--tolerance T] [--json]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = pos,
                        .min_pos = 2,
                        .max_pos = 2};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    struct mc_err err = {0};
    for (int k = 0; k < 2; k++) {
        d.s[k].path = pos[k];
        d.s[k].rd.lock_fd = -1;
    }
    mc_status st = compare(&d, &err);
    int differ = d.first_step >= 0 || d.ckpt_step >= 0 || d.rec.differ > 0 || d.rec.torn[0] > 0 ||
                 d.rec.torn[1] > 0;
    if (st == MC_OK && json)
        say_in_json(&d, differ);
    else if (st == MC_OK)
        say(&d);
    rc = st != MC_OK ? mc_say_error(&err, st) : differ ? 4 : 0; /* I2 */
    close_side(&d.s[0]);
    close_side(&d.s[1]);
    return rc;
}
