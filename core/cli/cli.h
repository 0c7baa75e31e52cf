/* cli.h - the inside of core/cli: commands, their arguments, and what they share. Floor 8.
 *
 * A command is one row of main.c's table and one file cmd_NAME.c. It parses its own arguments with
 * a table that also prints its help, prints its answer on stdout (JSON with --json), everything
 * else on stderr, and returns the exit code of the process. */
#pragma once
#include <stdint.h>
#include "../base/json.h"
#include "../base/status.h"
#include "../data/data.h"
#include "../data/tokenizer.h"
#include "../pipe/line.h"
#include "../plan/check.h"
#include "../plan/stages.h"
#include "../recipe/recipe.h"
#include "../run/rundir.h"
#include "../train/train.h"
#include "../../ckpt/ckpt.h"
#include "../../lua/host.h"

#ifndef MC_VERSION /* set by the build */
#define MC_VERSION "unknown"
#endif
#define MC_SOFTWARE "mascon " MC_VERSION

/* ---- args.c ---- */
enum mc_arg_kind { MC_ARG_FLAG, MC_ARG_STR, MC_ARG_I64, MC_ARG_F64, MC_ARG_LIST };
enum { MC_ARG_LIST_MAX = 256 };
struct mc_arg_list {
    const char *v[MC_ARG_LIST_MAX];
    int n;
};
struct mc_arg {
    const char *name; /* "--set" */
    const char *meta; /* "KEY=VALUE"; NULL for flags */
    const char *doc;  /* NULL: not for people */
    enum mc_arg_kind kind;
    void *dst;     /* int, const char *, int64_t, double, struct mc_arg_list */
    double lo, hi; /* numbers; both 0: not bounded */
};
struct mc_args {
    const char *usage; /* "mascon check RECIPE [options]" */
    const char *about; /* paragraphs for --help */
    const struct mc_arg *arg;
    int nargs;
    const char **pos; /* room for max_pos */
    int min_pos, max_pos;
    int npos; /* out */
};
enum { MC_ARGS_GO = -1 };
/* MC_ARGS_GO, or an exit code: 0 after --help, 2 after a message. argv[0] is the first argument. */
int mc_args_parse(struct mc_args *a, int argc, char **argv);
int mc_args_i64(const char *s, int64_t *v); /* whole text, decimal; 0: no */

/* ---- say.c: messages and small things all commands share ---- */
void mc_say_line(void *arg, const char *line); /* to stdout */
int mc_say_error(const struct mc_err *err, mc_status st);
void mc_say_problems(const struct mc_problems *ps);
void mc_say_problems_json(const struct mc_problems *ps, struct mc_json *j);
void mc_say_notes(const struct mc_check_notes *notes);
void mc_say_json(struct mc_json *j); /* one line on stdout, then frees it */
void mc_say_bytes(double bytes, char dst[32]);
void mc_say_count(int64_t n, char dst[32]); /* 1234567 -> "1,234,567" */
mc_status mc_home_find(char home[1024], struct mc_err *err);
mc_status mc_exe_find(char exe[1024], struct mc_err *err);

/* ---- early.c ---- */
void mc_early_signals(void); /* first in main(): SIGHUP ignored at the start is ignored */

/* ---- bus.c: a mapped file that shrinks is named ---- */
struct mc_page;
void mc_bus_install(void);
void mc_bus_page(struct mc_page *page); /* where a rank's last word goes; NULL: to stderr */

/* ---- load.c: RECIPE --set --device --json, alike in every command that takes a recipe ---- */
struct mc_cli_recipe {
    const char *path, *device;
    struct mc_arg_list set;
    int json;
    int64_t ranks, nodes, per_node;
    int for_train;
    /* out */
    char home[1024];
    struct mc_loaded loaded;
    struct mc_problems problems;
    struct mc_check_notes notes;
    struct mc_recipe *recipe;
    struct mc_line *line;          /* the proven pipelines; NULL: parallel.pp is 1 */
    struct mc_train_memory memory; /* of the fullest rank; total 0: not planned */
};
/* Loads, checks, tabulates. 0, or the exit code after everything was said (76 after a stop signal,
 * which the caller tells); on 0 the caller ends with mc_cli_unload(), which may also be called
 * after a failure. */
int mc_cli_load(struct mc_cli_recipe *r);
void mc_cli_unload(struct mc_cli_recipe *r);

/* ---- schedule.c: parallel.schedule ---- */
/* How the layers are cut into the stages of the pipeline (core/plan/stages.h), which for "auto" and
 * several chunks depends on the schedule's stage map: the schedule is asked for it first, all
 * stages being alike. work: NULL, as predicted. mc_free(*cut). proven: may be NULL. */
mc_status mc_cli_cut(struct mc_cli_recipe *r, const struct mc_stages_work *work, int **cut,
                     int *proven, struct mc_err *err);
/* Costs of stages so cut: given = { F, I, W, hop } of one rank, or NULL: those of `work`, or
 * (NULL) as predicted. depth is not set. */
mc_status mc_cli_costs_create(const struct mc_recipe *r, const int *cut, const double given[4],
                              const struct mc_stages_work *work, struct mc_sched_costs *c,
                              struct mc_err *err);
void mc_cli_costs_destroy(struct mc_sched_costs *c);
/* The schedule for m microbatches, proven; *depth: what its channels hold. */
mc_status mc_cli_schedule(struct mc_cli_recipe *r, int64_t m, const struct mc_sched_costs *c,
                          struct mc_sched **s, int *depth, struct mc_err *err);
/* pp > 1: every number of microbatches of the run is proven, and kept in r->line; a refusal is
 * added to r->problems. */
mc_status mc_cli_schedule_check(struct mc_cli_recipe *r, struct mc_err *err);
/* After it, of a recipe whose memory is over cluster.mem: if the schedules keep too many
 * microbatches at once, where they do is added to r->problems. */
mc_status mc_cli_schedule_memory(struct mc_cli_recipe *r, struct mc_err *err);

/* ---- measured.c, cmd_trace.c: a traced step ---- */
/* The newest traced step of the newest segment that has one, or `step`; dir: the segment's folder.
 * -1: there is none. */
int64_t mc_cli_trace_find(const struct mc_rundir *rd, int64_t step, char dir[1200]);
/* Times of one microbatch in the pieces of the recipe's model, seconds, from a run's newest traced
 * step; dir, step: where it is. mc_stages_work_drop(work). */
mc_status mc_cli_measured(const char *run, const struct mc_recipe *r, struct mc_stages_work *work,
                          int64_t *step, char dir[1200], struct mc_err *err);

/* ---- traced.c: the pipeline in it ---- */
struct mc_cli_traced {
    struct mc_line *line;         /* NULL: a run without a pipeline */
    const struct mc_sched *sched; /* of the largest replica; NULL: no op ran */
    double *f, *i, *w;        /* [stages] seconds that ops of one microbatch took, waits apart */
    double first_ms, last_ms; /* when the first op began, and the last one ended */
    double busy_ms;           /* of all ranks together */
    int ranks;                /* of the run */
};
/* dir, step: as mc_cli_trace_find() says. parts: how B is shared by I and W; may be NULL. */
mc_status mc_cli_traced_open(const char *dir, int64_t step, const struct mc_stages_work *parts,
                             struct mc_cli_traced *t, struct mc_err *err);
void mc_cli_traced_close(struct mc_cli_traced *t);
/* Each line of a rank's trace; MC_E_FORMAT: it has no last one. */
struct json_t;
mc_status mc_cli_trace_lines(const char *path,
                             mc_status (*line)(void *, struct json_t *, struct mc_err *), void *arg,
                             struct mc_err *err);

/* ---- model.c: RUN|CKPT, alike in eval and generate ---- */
struct mc_cli_model {
    const char *path, *device, *recipe_path;
    int64_t step; /* -1: the newest */
    /* out */
    char ckpt[1100];
    int64_t at;
    struct mc_recipe_box *box; /* of the checkpoint */
    struct mc_cli_recipe own;  /* when --recipe was given */
    struct mc_recipe *recipe;
};
int mc_cli_model_open(struct mc_cli_model *m);
void mc_cli_model_close(struct mc_cli_model *m);

/* ---- seat.c: a rank's place among the others ---- */
struct mc_cli_seat {
    int64_t number, world, page_fd, ctl_fd, wait_s, stall_s; /* from its command line */
    struct mc_page *page;                                    /* NULL: no agent */
    struct mc_ctl *ctl;
    struct mc_comm_peers peers;
    struct mc_comm_net *net; /* NULL: one rank */
    struct mc_mesh *mesh;    /* NULL: one rank */
};
void mc_cli_seat_init(struct mc_cli_seat *s);
mc_status mc_cli_seat_page(struct mc_cli_seat *s, struct mc_err *err);
/* Of what all ranks and their agent must have alike: the recipe and (line; may be NULL) the cut and
 * the schedules of its pipeline. */
mc_status mc_cli_seat_hash(const struct mc_recipe *recipe, const struct mc_line *line,
                           uint64_t *hash, struct mc_err *err);
/* Hello to the agent; with others in the world: who they are, the net to them, groups on it. */
mc_status mc_cli_seat_join(struct mc_cli_seat *s, const struct mc_recipe *recipe,
                           const struct mc_line *line, const struct mc_layout *layout,
                           struct mc_err *err);
/* The last word, for the agent. */
void mc_cli_seat_result(struct mc_cli_seat *s, const struct mc_train_result *res, int exit_code,
                        mc_status status, const char *message);
void mc_cli_seat_leave(struct mc_cli_seat *s, mc_status st); /* after the last word */
void mc_cli_seat_give_back(struct mc_cli_seat *s);           /* the page, last of all */

/* ---- several.c: eval and generate on several ranks ---- */
struct mc_cli_several {
    int64_t ranks; /* --ranks; 0: what --set asks for, else one */
    struct mc_arg_list set;
    struct mc_cli_seat seat; /* number -1: what a person started */
    struct mc_layout layout; /* from here: settled */
    struct mc_line *line;    /* NULL: parallel.pp is 1 */
    int threads;             /* of one rank */
};
/* The rows of --ranks, --set and what a rank is given. */
#define MC_CLI_SEVERAL_ARGS(s)                                                                     \
    {"--ranks", "N",    "on N processes of this machine (default 1)", MC_ARG_I64, &(s).ranks,      \
     1,         1 << 20},                                                                          \
        {"--set",                                                                                  \
         "parallel.tp=N",                                                                          \
         "ranks that share every matrix; likewise parallel.pp, .dp and .sp",                       \
         MC_ARG_LIST,                                                                              \
         &(s).set,                                                                                 \
         0,                                                                                        \
         0},                                                                                       \
        {"--rank", "K", NULL, MC_ARG_I64, &(s).seat.number, 0, 1 << 20},                           \
        {"--page-fd", "FD", NULL, MC_ARG_I64, &(s).seat.page_fd, 0, 1 << 20},                      \
    {                                                                                              \
        "--ctl-fd", "FD", NULL, MC_ARG_I64, &(s).seat.ctl_fd, 0, 1 << 20                           \
    }

void mc_cli_several_init(struct mc_cli_several *s);
/* Into the recipe's parallel, and s->layout. */
mc_status mc_cli_several_settle(struct mc_cli_several *s, struct mc_recipe *r, struct mc_err *err);
/* 1: this process starts the others, with mc_cli_several_run: the exit code, all is said. */
int mc_cli_several_is_agent(const struct mc_cli_several *s);
int mc_cli_several_run(struct mc_cli_several *s, const struct mc_cli_model *m, const char *command,
                       int argc, char **argv);
/* Of one rank: before the session, then its end, which gives the exit code. */
mc_status mc_cli_several_join(struct mc_cli_several *s, const struct mc_recipe *r,
                              struct mc_err *err);
int mc_cli_several_end(struct mc_cli_several *s, mc_status st, const struct mc_err *err);

/* ---- diff.c ---- */
int mc_cli_diff_beyond(const struct mc_ckpt_diff *r, double tolerance);
/* Of two checkpoint folders; mc_free(*rows). */
mc_status mc_cli_diff_paths(const char *a, const char *b, struct mc_ckpt_diff **rows, int *n,
                            struct mc_err *err);
void mc_cli_diff_json(const struct mc_ckpt_diff *r, struct mc_json *j);
/* `ckpt diff`; MC_E_DIFF after the answer was given. */
mc_status mc_cli_ckpt_diff(const char *a, const char *b, int64_t step, double tolerance, int json,
                           struct mc_err *err);

/* ---- past.c: what a run that is resumed has behind it ---- */
struct mc_cli_past {
    char ckpt[1100]; /* the checkpoint it would go on from; "": none */
    int64_t step;    /* of it */
    int finished;    /* it is at the target, and whole: then with its loss and hash */
    double loss;
    uint64_t weights_hash;
};
/* step -1: the newest that can be used. MC_E_NOTFOUND: no checkpoint of that step; MC_E_GIVEUP:
 * there are some, and none can be used. */
mc_status mc_cli_past_find(const struct mc_rundir *rd, int64_t step,
                           const struct mc_quantity *target, struct mc_cli_past *p,
                           struct mc_err *err);
/* The recipe of that checkpoint; without one, of the newest segment (there must be one). */
mc_status mc_cli_past_recipe(const struct mc_rundir *rd, const struct mc_cli_past *p,
                             struct mc_recipe_box **box, struct mc_err *err);

/* ---- cmd_data.c ---- */
mc_status mc_cli_pack_format(const char *word, enum mc_pack_format *f, struct mc_err *err);
int mc_cmd_data_tokenizer(int argc, char **argv);

/* ---- tokenizer.c ---- */
/* The run folder's copy of the recipe's tokenizer.json (`file`: not one: nothing to do). */
mc_status mc_cli_tokenizer_keep(const char *run, const char *file, int allowed, struct mc_err *err);
/* Settles where the model's tokenizer is read, in m->recipe->data.tokenizer; given: --tokenizer. */
mc_status mc_cli_tokenizer_find(struct mc_cli_model *m, const char *given, struct mc_err *err);
mc_status mc_cli_tokenizer_open(const struct mc_cli_model *m, struct mc_tokenizer **t,
                                struct mc_err *err);

/* ---- cmd_train.c ---- */
struct mc_cli_import {
    const char *from, *recipe, *run /* NULL: runs/NAME */, *device;
    struct mc_arg_list set;
    int json;
};
/* `ckpt import`: the run folder and the checkpoint of step 0. The exit code; all is said. */
int mc_cli_import(const struct mc_cli_import *job);

int mc_cmd_check(int argc, char **argv);
int mc_cmd_explain(int argc, char **argv);
int mc_cmd_plan(int argc, char **argv);
int mc_cmd_train(int argc, char **argv);
int mc_cmd_rank(int argc, char **argv);
int mc_cmd_eval(int argc, char **argv);
int mc_cmd_generate(int argc, char **argv);
int mc_cmd_ckpt(int argc, char **argv);
int mc_cmd_diff_run(int argc, char **argv);
int mc_cmd_compare(int argc, char **argv);
int mc_cmd_trace(int argc, char **argv);
int mc_cmd_data(int argc, char **argv);
int mc_cmd_doc(int argc, char **argv);
int mc_cmd_version(int argc, char **argv);
