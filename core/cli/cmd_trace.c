/* cmd_trace.c - `mascon trace RUN`: a traced step for a timeline viewer. Floor 8 (cli).
 *
 * Writes Chrome's trace event format (JSON object with "traceEvents", complete events "X", times in
 * microseconds), which chrome://tracing and Perfetto open: a process for each rank, in it a track
 * of ops and one of transfers and the last backward; of a pipeline one of the schedule's ops, and
 * under it one of when they would have begun in the simulation, given the times that they took.
 * Reads segments/NNN/trace-STEP.RANK.jsonl (core/train/record.c).
 *
 * I1  Lines stream from file to file: nothing is kept but the times of a schedule.
 * Memory: one file at a time. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const char about[] =
    "Turns the step that train --trace STEP has kept into a timeline for chrome://tracing or\n"
    "Perfetto: begin and end of each op and each transfer of every rank, on stdout or in --out.\n"
    "Of a pipeline also the ops of its schedule, and under them when they would have begun by\n"
    "simulation, with the times that they took.";

enum { OPS, TRANSFERS, PIPELINE, PREDICTED };

struct job {
    struct mc_json *j;
    struct mc_cli_traced traced;
    double *start;           /* [records] when each op would begin, seconds; NULL: no pipeline */
    double makespan, bubble; /* then */
    int rank, member;        /* of the file in hand: its rank, its place in the pipeline */
    int64_t piped;           /* its ops of the schedule */
};

static double at(json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key)) * 1e3;
}

static const char *text(json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static void event(struct mc_json *j, json_t *o, int rank)
{
    char name[300];
    int span = strcmp(text(o, "at"), "span") == 0;
    if (span)
        snprintf(name, sizeof name, "%s %lld", text(o, "kind"),
                 (long long)json_integer_value(json_object_get(o, "bucket")));
    else
        snprintf(name, sizeof name, "%s%s%s", text(o, "op"), text(o, "name")[0] ? " " : "",
                 text(o, "name"));
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "ph", "X");
    mc_json_str(j, "name", name);
    mc_json_str(j, "cat",
                span                                       ? "transfer"
                : json_is_true(json_object_get(o, "comm")) ? "collective"
                                                           : text(o, "verb"));
    mc_json_i64(j, "pid", rank);
    mc_json_i64(j, "tid", span ? TRANSFERS : OPS);
    mc_json_f64(j, "ts", at(o, "begin"));
    mc_json_f64(j, "dur", at(o, "end") - at(o, "begin"));
    mc_json_open(j, "args", '{');
    if (span && json_object_get(o, "wait")) {
        mc_json_f64(j, "exposed_ms", (at(o, "end") - at(o, "wait")) * 1e-3);
    } else if (!span) {
        mc_json_str(j, "verb", text(o, "verb"));
        if (json_object_get(o, "layer"))
            mc_json_i64(j, "layer", json_integer_value(json_object_get(o, "layer")));
        mc_json_i64(j, "first_sample", json_integer_value(json_object_get(o, "mb")));
    }
    mc_json_close(j, '}');
    mc_json_close(j, '}');
}

static void pipe_event(struct mc_json *j, json_t *o, int rank)
{
    char name[80];
    double input = json_number_value(json_object_get(o, "input")) * 1e3,
           wait = json_number_value(json_object_get(o, "wait")) * 1e3;
    snprintf(name, sizeof name, "%s%lld.%lld", text(o, "op"),
             (long long)json_integer_value(json_object_get(o, "mb")),
             (long long)json_integer_value(json_object_get(o, "chunk")));
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "ph", "X");
    mc_json_str(j, "name", name);
    mc_json_str(j, "cat", "pipeline");
    mc_json_i64(j, "pid", rank);
    mc_json_i64(j, "tid", PIPELINE);
    mc_json_f64(j, "ts", at(o, "begin") + input); /* waits are the gaps between ops */
    mc_json_f64(j, "dur", at(o, "end") - at(o, "begin") - wait);
    mc_json_open(j, "args", '{');
    mc_json_i64(j, "stage", json_integer_value(json_object_get(o, "stage")));
    mc_json_i64(j, "microbatch", json_integer_value(json_object_get(o, "mb")));
    mc_json_f64(j, "waited_for_input_ms", input * 1e-3);
    mc_json_f64(j, "waited_for_room_ms", (wait - input) * 1e-3);
    mc_json_close(j, '}');
    mc_json_close(j, '}');
}

/* What the schedule would have done with the times that its ops took: a track beside what it did.
 */
static mc_status predict(struct job *x, struct mc_err *err)
{
    const struct mc_cli_traced *t = &x->traced;
    const struct mc_sched_costs c = {.f = t->f, .i = t->i, .w = t->w, .depth = t->line->depth};
    size_t n = (size_t)t->sched->first[t->sched->ranks];
    x->start = mc_alloc(n * sizeof *x->start, "times of a schedule");
    if (!x->start)
        return mc_err_set(err, MC_E_NOMEM, "no memory to simulate the schedule");
    struct mc_sched_report r = {.start = x->start};
    MC_TRY(mc_sched_simulate(t->sched, &c, &r, err));
    x->makespan = r.makespan;
    x->bubble = r.bubble;
    return MC_OK;
}

static double took(const struct mc_cli_traced *t, int op, int stage)
{
    return op == MC_SCHED_F   ? t->f[stage]
           : op == MC_SCHED_I ? t->i[stage]
           : op == MC_SCHED_W ? t->w[stage]
                              : t->i[stage] + t->w[stage];
}

static void predicted_events(struct job *x, int member, int rank)
{
    const struct mc_sched *s = x->traced.sched;
    char name[80];
    for (int64_t k = s->first[member]; k < s->first[member + 1]; k++) {
        const struct mc_sched_rec *e = &s->rec[k];
        int stage = s->place[member * s->chunks + e->chunk];
        snprintf(name, sizeof name, "%s%d.%d", mc_sched_op_name(e->op), (int)e->mb, e->chunk);
        mc_json_open(x->j, NULL, '{');
        mc_json_str(x->j, "ph", "X");
        mc_json_str(x->j, "name", name);
        mc_json_str(x->j, "cat", "predicted");
        mc_json_i64(x->j, "pid", rank);
        mc_json_i64(x->j, "tid", PREDICTED);
        mc_json_f64(x->j, "ts", x->traced.first_ms * 1e3 + x->start[k] * 1e6);
        mc_json_f64(x->j, "dur", took(&x->traced, e->op, stage) * 1e6);
        mc_json_open(x->j, "args", '{');
        mc_json_i64(x->j, "stage", stage);
        mc_json_i64(x->j, "microbatch", e->mb);
        mc_json_close(x->j, '}');
        mc_json_close(x->j, '}');
    }
}

static mc_status on_line(void *arg, json_t *o, struct mc_err *err)
{
    struct job *x = arg;
    const char *what = text(o, "at");
    (void)err;
    if (strcmp(what, "head") == 0)
        x->member = (int)json_integer_value(json_object_get(json_object_get(o, "coord"), "pp"));
    if (strcmp(what, "op") == 0 || strcmp(what, "span") == 0)
        event(x->j, o, x->rank);
    if (strcmp(what, "pipe") == 0) {
        x->piped++;
        pipe_event(x->j, o, x->rank);
    }
    return MC_OK;
}

static void name_track(struct job *x, const char *what, int tid, const char *name)
{
    mc_json_open(x->j, NULL, '{');
    mc_json_str(x->j, "ph", "M");
    mc_json_str(x->j, "name", what);
    mc_json_i64(x->j, "pid", x->rank);
    mc_json_i64(x->j, "tid", tid);
    mc_json_open(x->j, "args", '{');
    mc_json_str(x->j, "name", name);
    mc_json_close(x->j, '}');
    mc_json_close(x->j, '}');
}

static mc_status one_rank(struct job *x, const char *path, struct mc_err *err)
{
    static const char *const names[] = {"ops", "transfers", "pipeline", "pipeline, predicted"};
    x->member = 0;
    x->piped = 0;
    MC_TRY(mc_cli_trace_lines(path, on_line, x, err));
    const struct mc_sched *s = x->traced.sched;
    if (s && x->member < s->ranks && x->piped == s->first[x->member + 1] - s->first[x->member])
        predicted_events(x, x->member, x->rank); /* a smaller replica ran another schedule */
    char label[40];
    snprintf(label, sizeof label, s ? "rank %d, pipeline rank %d" : "rank %d", x->rank, x->member);
    name_track(x, "process_name", 0, label);
    for (int k = 0; k < (x->piped ? 4 : 2); k++)
        name_track(x, "thread_name", k, names[k]);
    return MC_OK;
}

int64_t mc_cli_trace_find(const struct mc_rundir *rd, int64_t step, char dir[1200])
{
    for (int seg = rd->segment; seg > 0; seg--) {
        char **names;
        int n;
        int64_t best = -1;
        snprintf(dir, 1200, "%s/segments/%03d", rd->path, seg);
        if (mc_sys_list(dir, &names, &n, NULL) != MC_OK)
            continue;
        for (int i = 0; i < n; i++) {
            long long s;
            if (sscanf(names[i], "trace-%lld.0.jsonl", &s) == 1 && (step < 0 || s == step) &&
                s > best)
                best = s;
        }
        mc_sys_list_free(names, n);
        if (best >= 0)
            return best;
    }
    return -1;
}

/* By one formula: 1 - busy / (ranks x makespan), from the first op's begin to the last one's end.
 */
static void say_bubble(const struct job *x, struct mc_json *j)
{
    const struct mc_cli_traced *t = &x->traced;
    double took = t->last_ms - t->first_ms, bubble = 1 - t->busy_ms / (t->ranks * took);
    mc_json_open(j, "bubble", '{');
    mc_json_f64(j, "measured", bubble);
    mc_json_f64(j, "predicted", x->bubble);
    mc_json_f64(j, "measured_ms", took);
    mc_json_f64(j, "predicted_ms", x->makespan * 1e3);
    mc_json_close(j, '}');
    fprintf(stderr,
            "bubble: measured %.1f %% of %.1f ms; predicted, with the times of its ops, %.1f %% of "
            "%.1f ms\n",
            100 * bubble, took, 100 * x->bubble, x->makespan * 1e3);
}

static mc_status make(const struct mc_rundir *rd, int64_t step, struct job *x, struct mc_err *err)
{
    struct mc_json *j = x->j;
    char dir[1200], path[1300];
    int64_t found = mc_cli_trace_find(rd, step, dir);
    if (found < 0)
        return mc_err_set(err, MC_E_NOTFOUND, "%s: no trace%s; train it with --trace STEP",
                          rd->path, step < 0 ? "" : " of that step");
    MC_TRY(mc_cli_traced_open(dir, found, NULL, &x->traced, err));
    if (x->traced.sched)
        MC_TRY(predict(x, err));
    mc_json_open(j, NULL, '{');
    mc_json_open(j, "traceEvents", '[');
    for (x->rank = 0;; x->rank++) {
        snprintf(path, sizeof path, "%s/trace-%lld.%d.jsonl", dir, (long long)found, x->rank);
        if (!mc_sys_exists(path))
            break;
        MC_TRY(one_rank(x, path, err));
    }
    mc_json_close(j, ']');
    mc_json_str(j, "displayTimeUnit", "ms");
    mc_json_i64(j, "step", found);
    if (x->start)
        say_bubble(x, j);
    mc_json_close(j, '}');
    if (j->failed)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the timeline");
    return MC_OK;
}

int mc_cmd_trace(int argc, char **argv)
{
    const char *run = NULL, *out = NULL;
    int64_t step = -1;
    const struct mc_arg arg[] = {
        {"--step", "K", "that step (default: the newest traced)", MC_ARG_I64, &step, 1, 9e15},
        {"--out", "FILE", "instead of stdout", MC_ARG_STR, &out, 0, 0},
    };
    struct mc_args a = {.usage = "mascon trace RUN [--step K] [--out FILE]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = &run,
                        .min_pos = 1,
                        .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    struct mc_err err = {0};
    struct mc_rundir rd = {.lock_fd = -1};
    struct mc_json j;
    struct job x = {.j = &j};
    mc_json_init_grow(&j);
    mc_status st = mc_rundir_open(run, 0, &rd, &err);
    if (st == MC_OK)
        st = make(&rd, step, &x, &err);
    if (st == MC_OK && out)
        st = mc_sys_replace_file(out, j.buf, j.len, &err);
    if (st == MC_OK && !out)
        mc_say_json(&j);
    else
        mc_json_fini(&j);
    mc_cli_traced_close(&x.traced);
    mc_free(x.start);
    mc_rundir_close(&rd);
    return st == MC_OK ? 0 : mc_say_error(&err, st);
}
