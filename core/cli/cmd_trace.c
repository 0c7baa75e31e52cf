/* cmd_trace.c - `mascon trace RUN`: a traced step for a timeline viewer. Floor 8 (cli).
 *
 * Writes Chrome's trace event format (JSON object with "traceEvents", complete events "X", times in
 * microseconds), which chrome://tracing and Perfetto open: a process for each rank, in it a track
 * of ops and one of transfers and the last backward. Reads segments/NNN/trace-STEP.RANK.jsonl
 * (core/train/record.c).
 *
 * I1  Lines stream from file to file: nothing is kept.
 * Memory: one file at a time. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const char about[] =
    "Turns the step that train --trace STEP has kept into a timeline for chrome://tracing or\n"
    "Perfetto: begin and end of each op and each transfer of every rank, on stdout or in --out.";

enum { OPS, TRANSFERS };
#define MAX_FILE ((size_t)1 << 30)

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
        snprintf(name, sizeof name, "%s %s", text(o, "op"), text(o, "name"));
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
        mc_json_i64(j, "first_sample", json_integer_value(json_object_get(o, "mb")));
    }
    mc_json_close(j, '}');
    mc_json_close(j, '}');
}

static mc_status one_rank(const char *path, int rank, struct mc_json *j, struct mc_err *err)
{
    char *all;
    size_t n;
    int ended = 0;
    MC_TRY(mc_sys_read_file(path, MAX_FILE, &all, &n, err));
    for (char *s = all, *end; (end = memchr(s, '\n', n - (size_t)(s - all))); s = end + 1) {
        json_t *o = json_loadb(s, (size_t)(end - s), 0, NULL);
        const char *what = text(o, "at");
        ended |= strcmp(what, "end") == 0;
        if (strcmp(what, "op") == 0 || strcmp(what, "span") == 0)
            event(j, o, rank);
        json_decref(o);
    }
    mc_free(all);
    if (!ended)
        return mc_err_set(err, MC_E_FORMAT, "%s is not whole: its last line is missing", path);
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

static mc_status make(const struct mc_rundir *rd, int64_t step, struct mc_json *j,
                      struct mc_err *err)
{
    char dir[1200], path[1300];
    int64_t found = mc_cli_trace_find(rd, step, dir);
    if (found < 0)
        return mc_err_set(err, MC_E_NOTFOUND, "%s: no trace%s; train it with --trace STEP",
                          rd->path, step < 0 ? "" : " of that step");
    mc_json_open(j, NULL, '{');
    mc_json_open(j, "traceEvents", '[');
    for (int r = 0;; r++) {
        snprintf(path, sizeof path, "%s/trace-%lld.%d.jsonl", dir, (long long)found, r);
        if (!mc_sys_exists(path))
            break;
        MC_TRY(one_rank(path, r, j, err));
    }
    mc_json_close(j, ']');
    mc_json_str(j, "displayTimeUnit", "ms");
    mc_json_i64(j, "step", found);
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
    mc_json_init_grow(&j);
    mc_status st = mc_rundir_open(run, 0, &rd, &err);
    if (st == MC_OK)
        st = make(&rd, step, &j, &err);
    if (st == MC_OK && out)
        st = mc_sys_replace_file(out, j.buf, j.len, &err);
    if (st == MC_OK && !out)
        mc_say_json(&j);
    else
        mc_json_fini(&j);
    mc_rundir_close(&rd);
    return st == MC_OK ? 0 : mc_say_error(&err, st);
}
