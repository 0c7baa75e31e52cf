/* measured.c - times of a model's pieces, out of the traced step of a run. Floor 8 (cli).
 *
 * Reads segments/NNN/trace-STEP.RANK.jsonl (core/train/record.c) of all ranks: of each op the
 * layer, the verb, begin and end. What a rank computed of a piece is divided by its microbatches, a
 * short one counting as its part, and the mean taken over the ranks that have the piece; so the
 * layout of the traced run does not matter, but for tp, which cuts every op.
 *
 * I1  Layers of one block are the same work: each has their mean. What differs between them in one
 *     step is the machine's mood.
 * I2  Sums and copies between ops belong to no layer by themselves; they count to the layer of the
 *     op before them.
 * I3  A time of another model is refused, by the first key that differs.
 *
 * Memory: one file at a time. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { MAX_MICROBATCHES = 1 << 16 };

struct reader {
    struct mc_stages_work *work; /* sums */
    double *count;               /* [layers + 2] microbatches of the pieces, over ranks */
    double *one;                 /* [layers + 2] 1: this rank has the piece */
    double micro;                /* samples of a microbatch, in the recipe */
    int64_t *seen;               /* first samples of this rank's microbatches */
    int nseen;
    double samples; /* of this rank */
    int64_t layer;  /* of its last op */
};

static double ms(json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* Microbatches come one after the other, and back: look from the end. */
static mc_status see(struct reader *r, int64_t mb, double n, struct mc_err *err)
{
    for (int k = r->nseen - 1; k >= 0; k--)
        if (r->seen[k] == mb)
            return MC_OK;
    if (r->nseen == MAX_MICROBATCHES)
        return mc_err_set(err, MC_E_FORMAT, "more than %d microbatches", MAX_MICROBATCHES);
    r->seen[r->nseen++] = mb;
    r->samples += n;
    return MC_OK;
}

static mc_status take(void *arg, json_t *o, struct mc_err *err)
{
    struct reader *r = arg;
    const char *verb = json_string_value(json_object_get(o, "verb")),
               *op = json_string_value(json_object_get(o, "op"));
    int64_t layer = json_integer_value(json_object_get(o, "layer"));
    double took = (ms(o, "end") - ms(o, "begin")) * 1e-3;
    if (strcmp(json_string_value(json_object_get(o, "at")), "op") != 0)
        return MC_OK;
    if (!verb || layer < -1 || layer > r->work->layers || !(took >= 0))
        return mc_err_set(err, MC_E_FORMAT, "an op without a verb, a layer or times");
    if (op && (strcmp(op, "copy") == 0 || strcmp(op, "sum of gradients") == 0)) { /* I2 */
        if (r->nseen == 0)
            return MC_OK;
        layer = r->layer;
    }
    r->layer = layer;
    double *sum = strcmp(verb, "forward") == 0           ? r->work->f
                  : strcmp(verb, "backward weight") == 0 ? r->work->w
                                                         : r->work->i; /* "again" too */
    sum[layer + 1] += took;
    r->one[layer + 1] = 1;
    return see(r, json_integer_value(json_object_get(o, "mb")), ms(o, "n"), err);
}

static mc_status one_rank(struct reader *r, const char *path, struct mc_err *err)
{
    r->nseen = 0;
    r->samples = 0;
    r->layer = -1;
    for (int k = 0; k < r->work->layers + 2; k++)
        r->one[k] = 0;
    MC_TRY(mc_cli_trace_lines(path, take, r, err));
    for (int k = 0; k < r->work->layers + 2; k++)
        r->count[k] += r->one[k] * r->samples / r->micro;
    return MC_OK;
}

/* Sums become means (I1). */
static mc_status mean(const struct reader *r, const struct mc_model_cfg *m, struct mc_err *err)
{
    double *t[3] = {r->work->f, r->work->i, r->work->w};
    for (int k = 0; k < r->work->layers + 2; k++) {
        if (r->count[k] <= 0 && k > 0 && k <= r->work->layers)
            return mc_err_set(err, MC_E_FORMAT, "the trace has no op of layer %d", k - 1);
        for (int j = 0; j < 3 && r->count[k] > 0; j++)
            t[j][k] /= r->count[k];
    }
    for (int b = 0; b < m->nblocks; b++)
        for (int j = 0; j < 3; j++) {
            double sum = 0;
            int n = 0;
            for (int l = 0; l < r->work->layers; l++)
                if (m->layer_block[l] == b)
                    sum += t[j][l + 1], n++;
            for (int l = 0; l < r->work->layers; l++)
                if (m->layer_block[l] == b)
                    t[j][l + 1] = sum / n;
        }
    return MC_OK;
}

/* I3 */
static mc_status same(const struct mc_recipe *now, const char *dir, struct mc_err *err)
{
    struct mc_recipe_box *box;
    char path[1300];
    snprintf(path, sizeof path, "%s/resolved.json", dir);
    MC_TRY(mc_recipe_read_json(path, &box, err));
    const struct mc_recipe *was = mc_recipe_of(box);
    const struct {
        const char *key;
        int64_t was, now;
    } key[] = {
        {"model.layers", was->model.layers, now->model.layers},
        {"model.hidden", was->model.hidden, now->model.hidden},
        {"model.ffn", was->model.ffn, now->model.ffn},
        {"model.heads", was->model.heads, now->model.heads},
        {"model.vocab", was->model.vocab, now->model.vocab},
        {"model.seq", was->model.seq, now->model.seq},
        {"parallel.tp", was->parallel.tp, now->parallel.tp},
    };
    mc_status st = MC_OK;
    for (size_t k = 0; k < sizeof key / sizeof *key && st == MC_OK; k++)
        if (key[k].was != key[k].now)
            st = mc_err_set(err, MC_E_RECIPE,
                            "%s was traced with %s = %lld; here it is %lld: those times are not "
                            "these",
                            dir, key[k].key, (long long)key[k].was, (long long)key[k].now);
    mc_recipe_destroy(box);
    return st;
}

static mc_status read_all(struct reader *x, const struct mc_recipe *r, const char *dir,
                          int64_t step, struct mc_err *err)
{
    char path[1300];
    MC_TRY(same(r, dir, err));
    for (int k = 0;; k++) {
        snprintf(path, sizeof path, "%s/trace-%lld.%d.jsonl", dir, (long long)step, k);
        if (!mc_sys_exists(path))
            break;
        MC_TRY(one_rank(x, path, err));
    }
    return mean(x, &r->model, err);
}

mc_status mc_cli_measured(const char *run, const struct mc_recipe *r, struct mc_stages_work *work,
                          int64_t *step, char dir[1200], struct mc_err *err)
{
    struct mc_rundir rd = {.lock_fd = -1};
    struct reader x = {.work = work, .micro = (double)r->batch.micro};
    size_t n = (size_t)r->model.layers + 2;
    MC_TRY(mc_rundir_open(run, 0, &rd, err));
    *step = mc_cli_trace_find(&rd, -1, dir);
    mc_rundir_close(&rd);
    if (*step < 0)
        return mc_err_set(err, MC_E_NOTFOUND, "%s: no trace; train it with --trace STEP", run);
    MC_TRY(mc_stages_work_create((int)r->model.layers, work, err));
    x.count = mc_alloc(2 * n * sizeof *x.count, "pieces of a trace");
    x.seen = mc_alloc(MAX_MICROBATCHES * sizeof *x.seen, "microbatches of a trace");
    x.one = x.count ? x.count + n : NULL;
    mc_status st = x.count && x.seen ? read_all(&x, r, dir, *step, err)
                                     : mc_err_set(err, MC_E_NOMEM, "no memory for the trace");
    mc_free(x.count);
    mc_free(x.seen);
    if (st != MC_OK)
        mc_stages_work_drop(work);
    return st;
}
