/* import.c - weights of a transformers model become the first checkpoint of a run. Floor 6 (train).
 *
 * I1  Every stored tensor goes somewhere and every parameter is filled, once, by shape and by name;
 *     what does not is said, all of it, before anything is read or written.
 * I2  A value is carried over exactly where the run's precision holds it, else rounded once to
 *     nearest; none becomes infinite, and none that is not finite is taken.
 * I3  A head that is stored beside the embedding it is tied to must hold the same numbers.
 * I4  What is written is what a run writes before its first step with its own weights: same books,
 *     same cursor, moments of zero.
 * I5  Data passes through one buffer, whatever the size of a tensor.
 *
 * Memory: struct mc_import owns the reader, the graph and one place a parameter. Threads: one. */
#include "import_int.h"
#include "train_int.h"
#include "../run/spawn.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PIECE = 8192 }; /* numbers at once */

struct place { /* where a parameter comes from */
    int tensor;
    const struct mc_import_row *row; /* NULL: from nowhere yet */
};
struct mc_import {
    const struct mc_recipe *r;
    struct mc_safetensors *s;
    const struct mc_import_family *family;
    struct mc_graphs graphs;
    struct place *place; /* [params] */
    int nparams;
    int tied_head; /* tensor that must equal the embedding; -1: none */
    char from[1100];
    double buf[PIECE], other[PIECE];
};

static void problem(struct mc_import *im, struct mc_problems *ps, const char *name, const char *fmt,
                    ...) __attribute__((format(printf, 4, 5)));
static void problem(struct mc_import *im, struct mc_problems *ps, const char *name, const char *fmt,
                    ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    mc_problems_add(ps, name, im->from, 0, NULL, "%s", text);
}

/* ---- names ---- */

static int param_named(const struct mc_graph *g, const char *name)
{
    for (int i = 0; i < mc_graph_nparams(g); i++)
        if (strcmp(mc_graph_param(g, i)->name, name) == 0)
            return i;
    return -1;
}

/* Tensors whose names the family knows. */
static int known(const struct mc_safetensors *s, const struct mc_import_family *f)
{
    int n = 0, layer, hit;
    const struct mc_import_row *row;
    for (int i = 0; i < mc_safetensors_count(s); i++) {
        const char *name = mc_import_plain(mc_safetensors_at(s, i)->name);
        hit = 0;
        for (int k = 0; (row = mc_import_row_at(f, k)) != NULL; k++)
            hit |= mc_import_follows(row, name, &layer);
        n += hit;
    }
    return n;
}

/* Without config.json: the family that knows most of the names, the first of equals. */
static const struct mc_import_family *guess(const struct mc_safetensors *s)
{
    const struct mc_import_family *best = &mc_import_families[0];
    for (int i = 1; i < mc_import_nfamilies; i++)
        if (known(s, &mc_import_families[i]) > known(s, best))
            best = &mc_import_families[i];
    return best;
}

static void print_shape(const struct mc_shape *s, char dst[100])
{
    int n = snprintf(dst, 100, "[");
    for (int d = 0; d < s->nd; d++)
        n += snprintf(dst + n, 100 - (size_t)n, "%s%lld", d ? ", " : "", (long long)s->dim[d]);
    snprintf(dst + n, 100 - (size_t)n, "]");
}

/* The shape that theirs must have, for ours. */
static struct mc_shape shape_there(const struct mc_import_row *row, const struct mc_shape *ours)
{
    struct mc_shape s = *ours;
    if (row->transposed && s.nd == 2)
        s = mc_shape_2(ours->dim[1], ours->dim[0]);
    if (row->parts > 0 && s.nd > 0)
        s.dim[s.nd - 1] *= row->parts;
    return s;
}

static void give(struct mc_import *im, int tensor, const struct mc_import_row *row, int p,
                 struct mc_problems *ps)
{
    const struct mc_safetensor *t = mc_safetensors_at(im->s, tensor);
    const struct mc_param *param = mc_graph_param(im->graphs.train, p);
    const struct mc_shape want = shape_there(row, &param->shape);
    char a[100], b[100], c[100];
    if (im->place[p].row)
        problem(im, ps, t->name, "%s has come from %s already", param->name,
                mc_safetensors_at(im->s, im->place[p].tensor)->name);
    else if (!mc_safetensors_is_real(t))
        problem(im, ps, t->name, "its dtype is %s; F32, F16, BF16 and F64 can be carried over",
                t->dtype);
    else if (!mc_shape_eq(&want, &t->shape)) {
        print_shape(&t->shape, a);
        print_shape(&want, b);
        print_shape(&param->shape, c);
        problem(im, ps, t->name, "its shape is %s; the recipe's %s of %s needs %s", a, param->name,
                c, b);
    }
    im->place[p] = (struct place){tensor, row};
}

/* Where tensor i goes (I1). */
static void settle(struct mc_import *im, int i, struct mc_problems *ps)
{
    const struct mc_safetensor *t = mc_safetensors_at(im->s, i);
    const struct mc_import_row *row;
    char ours[MC_NAME_MAX];
    int layer, said = 0;
    for (int k = 0; (row = mc_import_row_at(im->family, k)) != NULL; k++) {
        if (!mc_import_follows(row, mc_import_plain(t->name), &layer))
            continue;
        said = 1;
        if (!row->ours)
            continue;
        mc_import_expand(row->ours, layer, ours);
        int p = param_named(im->graphs.train, ours);
        if (p >= 0)
            give(im, i, row, p, ps);
        else if (strcmp(ours, "head.weight") == 0 && im->r->model.tied)
            im->tied_head = i; /* I3 */
        else
            problem(im, ps, t->name, "the recipe's model has no %s", ours);
    }
    if (!said)
        problem(im, ps, t->name, "a %s has no tensor of that name", im->family->model_type);
}

static void find_missing(struct mc_import *im, struct mc_problems *ps)
{
    char theirs[MC_NAME_MAX], shape[100];
    for (int p = 0; p < im->nparams; p++) {
        const struct mc_param *param = mc_graph_param(im->graphs.train, p);
        const struct mc_import_row *row;
        int layer = param->layer;
        if (im->place[p].row)
            continue;
        theirs[0] = '\0';
        for (int k = 0; (row = mc_import_row_at(im->family, k)) != NULL && !theirs[0]; k++) {
            char ours[MC_NAME_MAX];
            if (!row->ours)
                continue;
            mc_import_expand(row->ours, layer, ours);
            if (strcmp(ours, param->name) == 0)
                mc_import_expand(row->theirs, layer, theirs);
        }
        print_shape(&param->shape, shape);
        if (theirs[0])
            problem(im, ps, param->name, "not in the file: %s, for %s", theirs, shape);
        else
            problem(im, ps, param->name, "a %s has nothing for this %s", im->family->model_type,
                    shape);
    }
}

static void check_tied(struct mc_import *im, struct mc_problems *ps)
{
    int e = param_named(im->graphs.train, "embed.weight");
    if (im->tied_head < 0 || e < 0 || !im->place[e].row)
        return;
    const struct mc_safetensor *t = mc_safetensors_at(im->s, im->tied_head);
    const struct mc_safetensor *embed = mc_safetensors_at(im->s, im->place[e].tensor);
    if (!mc_shape_eq(&t->shape, &embed->shape) || !mc_safetensors_is_real(t))
        problem(im, ps, t->name, "not of the shape of %s, to which the recipe ties the head",
                embed->name);
}

mc_status mc_import_open(const struct mc_recipe *r, int threads, const char *from,
                         struct mc_problems *ps, struct mc_import **out, struct mc_err *err)
{
    mc_status st;
    int before = ps->said;
    struct mc_import *im = mc_alloc(sizeof *im, "import");
    if (!im)
        return mc_err_set(err, MC_E_NOMEM, "no memory for an import");
    im->r = r;
    im->tied_head = -1;
    snprintf(im->from, sizeof im->from, "%s", from);
    MC_TRY_GOTO(st, mc_safetensors_open(from, &im->s, err), fail);
    const struct mc_graphs_cfg cfg = {.recipe = r, .threads = threads};
    MC_TRY_GOTO(st, mc_graphs_build(&cfg, &im->graphs, err), fail);
    MC_TRY_GOTO(st, mc_import_config(mc_safetensors_folder(im->s), r, &im->family, ps, err), fail);
    if (!im->family)
        im->family = guess(im->s);
    im->nparams = mc_graph_nparams(im->graphs.train);
    im->place = mc_alloc((size_t)im->nparams * sizeof *im->place, "places of parameters");
    st = im->place ? MC_OK : mc_err_set(err, MC_E_NOMEM, "no memory for %d places", im->nparams);
    if (st != MC_OK)
        goto fail;
    for (int i = 0; i < mc_safetensors_count(im->s); i++)
        settle(im, i, ps);
    find_missing(im, ps);
    check_tied(im, ps);
    if (ps->said != before) {
        st = MC_E_RECIPE;
        goto fail;
    }
    *out = im;
    return MC_OK;
fail:
    mc_import_close(im);
    return st;
}

void mc_import_close(struct mc_import *im)
{
    if (!im)
        return;
    mc_graphs_destroy(&im->graphs);
    mc_safetensors_close(im->s);
    mc_free(im->place);
    mc_free(im);
}

const char *mc_import_family(const struct mc_import *im)
{
    return im->family->model_type;
}

int mc_import_tensors(const struct mc_import *im)
{
    return mc_safetensors_count(im->s);
}

/* ---- values ---- */

/* data: fp32 or fp64, or NULL. 0: not finite in the precision (I2). */
static int store(void *data, enum mc_dtype precision, int64_t at, double v)
{
    float f = (float)v;
    uint32_t bits;
    if (precision == MC_F64) {
        if (data)
            ((double *)data)[at] = v;
        return isfinite(v);
    }
    if (data)
        ((float *)data)[at] = f;
    memcpy(&bits, &f, sizeof bits);
    if (precision == MC_BF16) /* past this it rounds to infinity */
        return (bits & 0x7fffffff) < 0x7f7f8000;
    return isfinite(f);
}

static mc_status not_finite(const struct mc_import *im, int tensor, int64_t at, double v,
                            struct mc_err *err)
{
    return mc_err_set(err, MC_E_FORMAT,
                      "%s: tensor \"%.200s\": element %lld is %g, which the run's precision does "
                      "not hold",
                      im->from, mc_safetensors_at(im->s, tensor)->name, (long long)at, v);
}

/* Parameter p into data, row-major, or (data NULL) only a look at it. Theirs is read row by row: n
 * numbers of ours in each. Ours lie `step` apart, and the next row of theirs begins `next` on. */
static mc_status carry(struct mc_import *im, int p, void *data, struct mc_err *err)
{
    const struct mc_import_row *row = im->place[p].row;
    const struct mc_shape *ours = &mc_graph_param(im->graphs.train, p)->shape;
    const int tensor = im->place[p].tensor;
    int64_t parts = row->parts > 0 ? row->parts : 1,
            last = ours->nd > 0 ? ours->dim[ours->nd - 1] : 1;
    int64_t all = mc_shape_count(ours);
    int64_t n = row->transposed ? ours->dim[0] : row->parts > 0 ? last : all;
    int64_t rows = n > 0 ? all / n : 0;
    int64_t step = row->transposed ? last : 1, next = row->transposed ? 1 : n;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < n; k += PIECE) {
            int64_t take = n - k < PIECE ? n - k : PIECE;
            int64_t first = i * n * parts + row->part * n + k;
            if (mc_signals_pending())
                return mc_err_set(err, MC_E_FAILED, "stopped by a signal");
            MC_TRY(mc_safetensors_read(im->s, tensor, first, take, im->buf, err)); /* I5 */
            for (int64_t j = 0; j < take; j++)
                if (!store(data, im->r->precision, i * next + (k + j) * step, im->buf[j]))
                    return not_finite(im, tensor, first + j, im->buf[j], err);
        }
    return MC_OK;
}

static mc_status look_at_tied(struct mc_import *im, struct mc_err *err) /* I3 */
{
    int e = param_named(im->graphs.train, "embed.weight");
    if (im->tied_head < 0 || e < 0)
        return MC_OK;
    const struct mc_safetensor *t = mc_safetensors_at(im->s, im->tied_head);
    for (int64_t at = 0; at < t->count; at += PIECE) {
        int64_t n = t->count - at < PIECE ? t->count - at : PIECE;
        MC_TRY(mc_safetensors_read(im->s, im->tied_head, at, n, im->buf, err));
        MC_TRY(mc_safetensors_read(im->s, im->place[e].tensor, at, n, im->other, err));
        for (int64_t j = 0; j < n; j++)
            if (im->buf[j] != im->other[j])
                return mc_err_set(
                    err, MC_E_FORMAT,
                    "%s: tensor \"%.200s\" differs from \"%.200s\" at element %lld (%g, %g), but "
                    "the recipe ties the head to the embedding: set model.tied = false",
                    im->from, t->name, mc_safetensors_at(im->s, im->place[e].tensor)->name,
                    (long long)(at + j), im->buf[j], im->other[j]);
    }
    return MC_OK;
}

mc_status mc_import_look(struct mc_import *im, struct mc_err *err)
{
    for (int p = 0; p < im->nparams; p++)
        MC_TRY(carry(im, p, NULL, err));
    return look_at_tied(im, err);
}

/* ---- the checkpoint ---- */

static mc_status fill(struct mc_import *im, struct mc_trainer *t, struct mc_err *err)
{
    for (int i = 0; i < t->nstate; i++) {
        const struct mc_state_tensor *s = &t->state[i];
        const char *slash = strchr(s->name, '/');
        if (s->dtype != mc_optim_dtype(im->r->precision) || strncmp(s->name, "adam_", 5) == 0)
            continue; /* rounded below; zero as it is (I4) */
        int p = param_named(im->graphs.train, slash + 1);
        MC_ASSERT(p >= 0 && mc_box_count(&s->box) == mc_shape_count(&s->shape));
        MC_TRY(carry(im, p, s->data, err));
    }
    mc_optim_round_weights(t->optim);
    return MC_OK;
}

static void tell_import(struct mc_trainer *t, const struct mc_import *im)
{
    struct mc_event e;
    mc_event_begin(&e);
    mc_json_str(&e.j, "from", im->from);
    mc_json_str(&e.j, "family", im->family->model_type);
    mc_json_i64(&e.j, "tensors", mc_safetensors_count(im->s));
    mc_event_end(t, &e, "import");
}

mc_status mc_import_save(struct mc_import *im, const struct mc_train_cfg *cfg,
                         struct mc_train_result *res, struct mc_err *err)
{
    struct mc_trainer *t = NULL;
    mc_status st = mc_trainer_create(cfg, &t, err);
    if (st == MC_OK)
        st = mc_trainer_fresh(t);
    if (st == MC_OK)
        st = fill(im, t, err);
    if (st == MC_OK) {
        t->started = 1;
        tell_import(t, im);
        st = mc_save(t, 1, 0, err);
    }
    if (st == MC_OK)
        *res = (struct mc_train_result){.committed_step = t->committed_step,
                                        .loss = NAN,
                                        .weights_hash = mc_optim_weights_hash(t->optim)};
    mc_trainer_destroy(t);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}
