/* cmd_ckpt.c - `mascon ckpt ls|show|verify|diff|import`: look at checkpoints, check every byte,
 * make one of a foreign model. Floor 8 (cli).
 *
 * I1  Nothing here writes: a run in progress may be looked at. import makes a new run, by the way
 *     that train takes (cmd_train.c).
 * I2  PATH is a run, its ckpt/ or one checkpoint; `verify` of a run verifies all of them.
 */
#include "cli.h"
#include "../train/books.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include "../../ckpt/ckpt.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char about[] =
    "  ls      the checkpoints of a run, newest last\n"
    "  show    one checkpoint: its books (step, hashes, cursors ...) and its tensors\n"
    "  verify  every stored byte against its checksum; exit code 4 when something is damaged\n"
    "  diff    A B: two checkpoints tensor by tensor, whatever layouts wrote them; exit code 4\n"
    "          when one deviates by more than --tolerance (default 0: when a bit differs)\n"
    "  import  the weights of a transformers model as the first checkpoint of a new run\n"
    "\n"
    "PATH is a run folder, its ckpt/ or one checkpoint. Of a run, show takes the newest whole one "
    "(or\n"
    "--step N) and verify takes all.\n"
    "\n"
    "mascon ckpt import FROM --recipe RECIPE [--run RUN]: FROM is a *.safetensors file, an index\n"
    "(*.index.json) or a folder with model.safetensors or model.safetensors.index.json, of the\n"
    "family llama, mistral, qwen2, qwen3, gemma, gemma2 or gpt2. Every tensor and every parameter\n"
    "must find its counterpart; config.json beside it must agree with the recipe. Then eval and\n"
    "generate take RUN, and train RECIPE --run RUN --resume auto goes on from there.";

static int is_one(const char *path)
{
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/')
        n--;
    size_t b = n;
    while (b > 0 && path[b - 1] != '/')
        b--;
    return strncmp(path + b, "step-", 5) == 0;
}

/* The folder that holds checkpoints: PATH/ckpt of a run, else PATH; for one checkpoint its parent.
 */
static mc_status folder_of(const char *path, char dir[1100], struct mc_err *err)
{
    if (!mc_sys_is_dir(path))
        return mc_err_set(err, MC_E_NOTFOUND, "%s: no such folder", path);
    if (is_one(path)) {
        char plain[1100];
        snprintf(plain, sizeof plain, "%s", path);
        size_t n = strlen(plain);
        while (n > 1 && plain[n - 1] == '/')
            plain[--n] = '\0';
        mc_path_dir(dir, 1100, plain);
        return MC_OK;
    }
    MC_TRY(mc_path_join(dir, 1100, path, "ckpt", err));
    if (!mc_sys_is_dir(dir))
        snprintf(dir, 1100, "%s", path);
    return MC_OK;
}

static const char *last_part(const char *path)
{
    const char *b = strrchr(path, '/');
    return b ? b + 1 : path;
}

static mc_status list(const char *path, int json, struct mc_err *err)
{
    char dir[1100], when[40], size[32];
    struct mc_ckpt_info *l = NULL;
    int n = 0;
    MC_TRY(folder_of(path, dir, err));
    MC_TRY(mc_ckpt_list(dir, &l, &n, err));
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '{');
    mc_json_open(&j, "checkpoints", '[');
    for (int i = 0; i < n; i++) {
        const struct mc_ckpt_info *c = &l[i];
        mc_json_open(&j, NULL, '{');
        mc_json_i64(&j, "step", c->step);
        mc_json_i64(&j, "epoch", c->epoch);
        mc_json_i64(&j, "bytes", c->bytes);
        mc_json_f64(&j, "time", c->unix_time);
        mc_json_bool(&j, "whole", c->whole);
        mc_json_str(&j, "why", c->why);
        mc_json_str(&j, "path", c->path);
        mc_json_close(&j, '}');
        if (json)
            continue;
        time_t t = (time_t)c->unix_time;
        struct tm tm;
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&t, &tm));
        mc_say_bytes((double)c->bytes, size);
        printf("%-24s step %10lld  epoch %3d  %10s  %s  %s\n", last_part(c->path),
               (long long)c->step, c->epoch, size, when, c->whole ? "whole" : c->why);
    }
    mc_json_close(&j, ']');
    mc_json_close(&j, '}');
    mc_free(l);
    if (json) {
        mc_say_json(&j);
    } else {
        mc_json_fini(&j);
        if (n == 0)
            printf("no checkpoints in %s\n", dir);
    }
    return MC_OK;
}

static void say_source(void *arg, const struct mc_books_source *s)
{
    (void)arg;
    printf("read of %s: %lld samples, %lld tokens, %.2f %% of all (weight in force: %.2f %%)\n",
           s->name, (long long)s->samples, (long long)s->tokens, 100 * s->share, 100 * s->weight);
}

/* A line a member; the recipe is --json's to show. */
static void say_books(const char *books)
{
    json_t *all = json_loads(books, 0, NULL), *value;
    const char *key;
    json_object_foreach(all, key, value)
    {
        if (strcmp(key, "recipe") == 0)
            continue;
        printf("%-14s ", key);
        json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
        putchar('\n');
    }
    json_decref(all);
}

static mc_status show(const char *path, int64_t step, int json, struct mc_err *err)
{
    char one[1100], size[32];
    struct mc_ckpt *c;
    MC_TRY(mc_ckpt_resolve(path, step, one, err));
    MC_TRY(mc_ckpt_open(one, &c, err));
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_ckpt_show(c, &j);
    if (json) {
        mc_say_json(&j);
        mc_ckpt_close(c);
        return MC_OK;
    }
    mc_json_fini(&j);
    printf("%s\nstep %lld, epoch %d\n", one, (long long)mc_ckpt_step(c), mc_ckpt_epoch(c));
    say_books(mc_ckpt_books(c));
    (void)mc_books_sources(mc_ckpt_books(c), say_source, NULL, NULL); /* the text is there anyway */
    for (int i = 0; i < mc_ckpt_ntensors(c); i++) {
        struct mc_state_tensor t;
        mc_status st = mc_ckpt_tensor(c, i, &t);
        if (st != MC_OK)
            break;
        mc_say_bytes((double)(mc_box_count(&t.box) * (int64_t)mc_dtype_size(t.dtype)), size);
        printf("  %-44s %-4s [", t.name, mc_dtype_name(t.dtype));
        for (int d = 0; d < t.shape.nd; d++)
            printf("%s%lld", d ? ", " : "", (long long)t.shape.dim[d]);
        printf("]  %s\n", size);
    }
    mc_ckpt_close(c);
    return MC_OK;
}

static void on_progress(void *arg, int64_t done, int64_t all)
{
    (void)arg;
    fprintf(stderr, "\r\033[Kverified %lld of %lld MiB", (long long)(done >> 20),
            (long long)(all >> 20));
}

/* A folder named like another checkpoint is none: `ls` says so, and no resume takes it. */
static mc_status check_name(const char *path, const struct mc_ckpt *c, struct mc_err *err)
{
    char plain[1100], want[64];
    snprintf(plain, sizeof plain, "%s", path);
    for (size_t n = strlen(plain); n > 1 && plain[n - 1] == '/'; n--)
        plain[n - 1] = '\0';
    snprintf(want, sizeof want, "step-%09lld.e%d", (long long)mc_ckpt_step(c), mc_ckpt_epoch(c));
    if (!strcmp(last_part(plain), want))
        return MC_OK;
    return mc_err_set(err, MC_E_CORRUPT,
                      "%s: its manifest is that of step %lld, epoch %d: a copy, or renamed; its "
                      "name must be %s",
                      plain, (long long)mc_ckpt_step(c), mc_ckpt_epoch(c), want);
}

static mc_status verify_one(const char *path, struct mc_err *err)
{
    struct mc_ckpt *c;
    int tty = isatty(STDERR_FILENO);
    MC_TRY(mc_ckpt_open(path, &c, err));
    mc_status st = check_name(path, c, err);
    if (st == MC_OK)
        st = mc_ckpt_verify(c, tty ? on_progress : NULL, NULL, err);
    if (tty)
        fprintf(stderr, "\r\033[K");
    mc_ckpt_close(c);
    return st;
}

struct verify_sum {
    int n, damaged;
    struct mc_json j;
};

static void verify_told(struct verify_sum *s, const char *path, int json)
{
    struct mc_err err = {0};
    mc_status st = verify_one(path, &err);
    s->n++;
    s->damaged += st != MC_OK;
    mc_json_open(&s->j, NULL, '{');
    mc_json_str(&s->j, "path", path);
    mc_json_bool(&s->j, "ok", st == MC_OK);
    mc_json_str(&s->j, "message", err.msg);
    mc_json_close(&s->j, '}');
    if (!json)
        printf("%s: %s\n", path, st == MC_OK ? "ok" : err.msg);
}

static mc_status verify(const char *path, int64_t step, int json, struct mc_err *err)
{
    struct verify_sum s = {0};
    char dir[1100], one[1100];
    struct mc_ckpt_info *l = NULL;
    int n = 0;
    MC_TRY(folder_of(path, dir, err));
    if (is_one(path)) {
        snprintf(one, sizeof one, "%s", path);
    } else if (step >= 0) {
        MC_TRY(mc_ckpt_resolve(path, step, one, err));
    } else {
        MC_TRY(mc_ckpt_list(dir, &l, &n, err));
        if (n == 0)
            return mc_err_set(err, MC_E_NOTFOUND, "%s: no checkpoints", dir);
    }
    mc_json_init_grow(&s.j);
    mc_json_open(&s.j, NULL, '{');
    mc_json_open(&s.j, "checkpoints", '[');
    for (int i = 0; i < n; i++)
        verify_told(&s, l[i].path, json);
    if (n == 0)
        verify_told(&s, one, json);
    mc_json_close(&s.j, ']');
    mc_json_bool(&s.j, "ok", s.damaged == 0);
    mc_json_close(&s.j, '}');
    mc_free(l);
    if (json)
        mc_say_json(&s.j);
    else
        mc_json_fini(&s.j);
    if (s.damaged > 0)
        return mc_err_set(err, MC_E_DIFF, "%d of %d checkpoint%s damaged", s.damaged, s.n,
                          s.n == 1 ? " is" : "s are");
    return MC_OK;
}

int mc_cmd_ckpt(int argc, char **argv)
{
    static const char *const verbs[] = {"ls", "show", "verify", "import", "diff"};
    static struct mc_cli_import job;
    const char *pos[3] = {0};
    double tolerance = 0;
    int json = 0;
    int64_t step = -1;
    const struct mc_arg arg[] = {
        {"--step", "N", "of a run, the checkpoint of this step", MC_ARG_I64, &step, 0, 9e15},
        {"--tolerance", "T", "diff: the largest deviation ||a-b|| / ||a|| that is none", MC_ARG_F64,
         &tolerance, 0, 1e300},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &json, 0, 0},
        {"--recipe", "RECIPE", "import: the recipe of the run", MC_ARG_STR, &job.recipe, 0, 0},
        {"--run", "DIR", "import: the run folder (default ./runs/NAME)", MC_ARG_STR, &job.run, 0,
         0},
        {"--set", "KEY=VALUE", "import: change a key after loading (repeatable)", MC_ARG_LIST,
         &job.set, 0, 0},
        {"--device", "D", "import: cpu or cuda", MC_ARG_STR, &job.device, 0, 0},
    };
    struct mc_args a = {.usage = "mascon ckpt ls|show|verify PATH [--step N] [--json]\n"
                                 "       mascon ckpt diff A B [--step N] [--tolerance T] [--json]\n"
                                 "       mascon ckpt import FROM --recipe RECIPE [--run DIR]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = pos,
                        .min_pos = 2,
                        .max_pos = 3};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    struct mc_err err = {0};
    mc_status st;
    int import = !strcmp(pos[0], "import"), diff = !strcmp(pos[0], "diff");
    if (diff != (a.npos == 3))
        st = mc_err_set(&err, MC_E_USAGE, "ckpt %.60s: %s", pos[0],
                        diff ? "takes two checkpoints or runs" : "one word too many");
    else if (!diff && tolerance > 0)
        st = mc_err_set(&err, MC_E_USAGE, "ckpt %.60s: --tolerance is that of diff", pos[0]);
    else
        st = MC_OK;
    if (st != MC_OK)
        return mc_say_error(&err, st);
    if (import && step < 0 && job.recipe) {
        job.from = pos[1];
        job.json = json;
        return mc_cli_import(&job);
    }
    if (import)
        st = mc_err_set(&err, MC_E_USAGE, "ckpt import takes --recipe RECIPE, and no --step");
    else if (job.recipe || job.run || job.set.n > 0 || job.device)
        st = mc_err_set(&err, MC_E_USAGE,
                        "ckpt %.60s: --recipe, --run, --set and --device are those of import",
                        pos[0]);
    else if (!strcmp(pos[0], "ls")) {
        st = list(pos[1], json, &err);
    } else if (!strcmp(pos[0], "show")) {
        st = show(pos[1], step, json, &err);
    } else if (diff) {
        st = mc_cli_ckpt_diff(pos[1], pos[2], step, tolerance, json, &err);
    } else if (!strcmp(pos[0], "verify")) {
        st = verify(pos[1], step, json, &err);
    } else {
        const char *near = mc_nearest(pos[0], verbs, 5);
        st = mc_err_set(&err, MC_E_USAGE,
                        "ckpt: unknown verb \"%.60s\"%s%s%s; it is ls, show, "
                        "verify, diff or import",
                        pos[0], near ? " (did you mean \"" : "", near ? near : "",
                        near ? "\"?)" : "");
    }
    return st == MC_OK ? 0 : mc_say_error(&err, st);
}
