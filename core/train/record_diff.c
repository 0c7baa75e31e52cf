/* record_diff.c - two records of a step, compared: which op gave something else first. Floor 6
 * (train).
 *
 * On the same layout, ranks and layers lying alike, each rank's line is compared with the same
 * rank's, bit by bit where no tolerance is given. On different layouts sketches are added up over
 * the ranks that `counts` says, which gives those of the logical tensor, per microbatch where both
 * runs have the same ones, else over the step. A weight's gradient grows with each microbatch, so
 * there its last state counts.
 *
 * Deviation: ||a - b|| / max(||a||, 1e-3 r sqrt(n)), r the root mean square of the elements of that
 * kind of tensor in A: what is zero but for rounding is no difference.
 *
 * I1  Program order: data, then ops by microbatch and tick, then gradients, then the state.
 * I2  A file without its last line is refused.
 * I3  A key that one side alone has (collectives, what is fused otherwise) is counted, no
 *     difference; but no key in common, or another number of elements, is another model.
 * Memory: handle life of a call. Threads: one. */
#include "record.h"
#include "../base/arena.h"
#include "../base/hash.h"
#include "../base/sysio.h"
#include "../tensor/sketch.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { DATA, FORWARD, BACKWARD, WEIGHT, GRAD, MODEL, MOMENT, SQUARE, NKINDS };
#define WHOLE_STEP  (-1)
#define MAX_FILE    ((size_t)2 << 30)
#define MIN_OF_NORM 1e-3

struct entry {
    char key[320];
    struct mc_record_place at;
    enum kind kind;
    int counts, partial, tick;
    int64_t line;
    struct mc_sketch is;
};
struct side {
    struct entry *e;
    int64_t n, cap;
    int ranks, size[5]; /* axes[] */
    uint64_t where;     /* what each rank has of the layout and of the layers */
    int64_t micro;
    char precision[8];
};

static const char *const axes[5] = {"tp", "cp", "ep", "dp", "pp"};

static const char *text(json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int64_t whole(json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static double number(json_t *v)
{
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void read_sketch(json_t *o, struct mc_sketch *s)
{
    json_t *p = json_object_get(o, "p");
    s->count = whole(o, "count");
    s->nonfinite = whole(o, "nonfinite");
    s->sum = number(json_object_get(o, "sum"));
    s->squares = number(json_object_get(o, "squares"));
    s->max = number(json_object_get(o, "max"));
    for (int k = 0; k < MC_SKETCH; k++)
        s->p[k] = number(json_array_get(p, (size_t)k));
    s->hash = strtoull(text(o, "hash"), NULL, 16);
}

static enum kind kind_of(const char *at, const char *verb, const char *what)
{
    if (strcmp(at, "data") == 0)
        return DATA;
    if (strcmp(at, "grad") == 0)
        return GRAD;
    if (strcmp(at, "state") == 0)
        return strncmp(what, "adam_m/", 7) == 0   ? MOMENT
               : strncmp(what, "adam_v/", 7) == 0 ? SQUARE
                                                  : MODEL;
    return strcmp(verb, "forward") == 0           ? FORWARD
           : strcmp(verb, "backward weight") == 0 ? WEIGHT
                                                  : BACKWARD;
}

static mc_status add(struct side *s, json_t *o, int rank, int64_t line, struct mc_err *err)
{
    const char *at = text(o, "at"), *what = text(o, "what");
    if (s->n == s->cap) {
        int64_t cap = s->cap ? 2 * s->cap : 4096;
        struct entry *e =
            mc_grow(s->e, (size_t)s->cap * sizeof *e, (size_t)cap * sizeof *e, "lines of a record");
        if (!e)
            return mc_err_set(err, MC_E_NOMEM, "no memory for %lld lines of a record",
                              (long long)cap);
        s->e = e;
        s->cap = cap;
    }
    struct entry *e = &s->e[s->n++];
    memset(e, 0, sizeof *e);
    int op = strcmp(at, "op") == 0;
    e->kind = kind_of(at, text(o, "verb"), what);
    struct mc_record_place *p = &e->at;
    snprintf(p->name, sizeof p->name, "%s", op ? text(o, "name") : what);
    if (op && !*p->name && whole(o, "layer") >= 0) /* a call without a name */
        snprintf(p->name, sizeof p->name, "layers.%lld (%lld)", (long long)whole(o, "layer"),
                 (long long)whole(o, "nth") + 1);
    snprintf(p->op, sizeof p->op, "%s", text(o, "op"));
    snprintf(p->verb, sizeof p->verb, "%s",
             op                ? text(o, "verb")
             : e->kind == DATA ? "data"
             : e->kind == GRAD ? "gradient"
                               : "state");
    snprintf(p->what, sizeof p->what, "%s", what);
    p->k = (int)whole(o, "k");
    p->mb = e->kind <= WEIGHT ? whole(o, "mb") : WHOLE_STEP;
    p->n = whole(o, "n");
    p->rank_lo = p->rank_hi = rank;
    e->counts = op ? json_is_true(json_object_get(o, "counts")) : e->kind != DATA;
    e->partial = json_is_true(json_object_get(o, "partial"));
    e->tick = op ? (int)whole(o, "tick") : -1;
    e->line = line;
    read_sketch(o, &e->is);
    if (e->kind == WEIGHT) /* whatever was fused with it */
        snprintf(e->key, sizeof e->key, "%d|%s|%d", e->kind, what, p->k);
    else
        snprintf(e->key, sizeof e->key, "%d|%s|%s|%s|%lld|%lld|%s|%d", e->kind, p->name, p->op,
                 p->verb, (long long)whole(o, "layer"), (long long)whole(o, "nth"), what, p->k);
    return MC_OK;
}

static void path_of(const char *dir, int64_t step, int rank, char path[1200])
{
    snprintf(path, 1200, "%s/record-%lld.%d.jsonl", dir, (long long)step, rank);
}

static void head(struct side *s, json_t *o)
{
    s->ranks = (int)whole(o, "ranks");
    for (int a = 0; a < 5; a++)
        s->size[a] = (int)whole(o, axes[a]);
    json_t *coord = json_object_get(o, "coord");
    for (int a = 0; a < 5; a++) {
        int64_t at = whole(coord, axes[a]);
        s->where = mc_hash64_seed(&at, sizeof at, s->where);
    }
    s->where = mc_hash64_seed(text(o, "stages"), strlen(text(o, "stages")), s->where);
    s->micro = whole(o, "micro");
    snprintf(s->precision, sizeof s->precision, "%s", text(o, "precision"));
}

static mc_status read_rank(const char *dir, int64_t step, int rank, struct side *s,
                           struct mc_err *err)
{
    char path[1200], *all;
    size_t n;
    int64_t line = 0;
    int ended = 0;
    mc_status st = MC_OK;
    path_of(dir, step, rank, path);
    MC_TRY(mc_sys_read_file(path, MAX_FILE, &all, &n, err));
    for (char *at = all, *end; st == MC_OK && (end = memchr(at, '\n', n - (size_t)(at - all)));
         at = end + 1) {
        json_t *o = json_loadb(at, (size_t)(end - at), 0, NULL);
        const char *what = o ? text(o, "at") : "";
        line++;
        if (strcmp(what, "head") == 0)
            head(s, o);
        else if (strcmp(what, "end") == 0)
            ended = 1;
        else if (*what)
            st = add(s, o, rank, line, err);
        else
            st = mc_err_set(err, MC_E_FORMAT, "%s:%lld: not a line of a record", path,
                            (long long)line);
        json_decref(o);
    }
    if (st == MC_OK && !ended) /* I2 */
        st = mc_err_set(err, MC_E_FORMAT, "%s is not whole: its last line is missing", path);
    mc_free(all);
    return st;
}

static mc_status read_side(const char *dir, int64_t step, struct side *s, struct mc_err *err)
{
    MC_TRY(read_rank(dir, step, 0, s, err));
    for (int r = 1; r < s->ranks; r++)
        MC_TRY(read_rank(dir, step, r, s, err));
    return MC_OK;
}

int mc_record_ranks(const char *dir, int64_t step)
{
    char path[1200];
    int n = 0;
    for (path_of(dir, step, 0, path); mc_sys_exists(path); path_of(dir, step, n, path))
        n++;
    return n;
}

/* ---- keys together ---- */

static int by_key(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;
    int c = strcmp(a->key, b->key);
    if (c == 0)
        c = (a->at.mb > b->at.mb) - (a->at.mb < b->at.mb);
    return c != 0 ? c : (a->at.rank_lo > b->at.rank_lo) - (a->at.rank_lo < b->at.rank_lo);
}

/* Copies that `counts` left out must be as one that counts. */
static void look_for_torn(const struct entry *e, int64_t n, double tolerance, int *torn,
                          struct mc_record_place *first, int64_t *first_line)
{
    for (int64_t i = 0; i < n; i++) {
        double best = INFINITY;
        if (e[i].counts || e[i].partial || e[i].kind == DATA)
            continue;
        for (int64_t k = 0; k < n; k++)
            if (e[k].counts && e[k].is.count == e[i].is.count && e[k].at.mb == e[i].at.mb) {
                double d = e[k].is.hash == e[i].is.hash ? 0 : mc_sketch_apart(&e[k].is, &e[i].is);
                double norm = sqrt(e[k].is.squares);
                d = d == 0 ? 0 : norm > 0 ? d / norm : INFINITY;
                best = d < best ? d : best;
            }
        if (best > tolerance && isfinite(best)) {
            ++*torn;
            if (e[i].line < *first_line) {
                *first_line = e[i].line;
                *first = e[i].at;
                first->deviation = best;
            }
        }
    }
}

/* One entry for each key and microbatch (merged: for each key), ranks added up. In place. */
static void combine(struct side *s, int merged, double tolerance, int *torn,
                    struct mc_record_place *first)
{
    int64_t to = 0, line = INT64_MAX;
    qsort(s->e, (size_t)s->n, sizeof *s->e, by_key);
    for (int64_t i = 0, end; i < s->n; i = end) {
        int whole_step = merged || s->e[i].kind >= WEIGHT;
        for (end = i + 1; end < s->n && strcmp(s->e[end].key, s->e[i].key) == 0 &&
                          (whole_step || s->e[end].at.mb == s->e[i].at.mb);
             end++)
            ;
        look_for_torn(s->e + i, end - i, tolerance, torn, first, &line);
        struct entry sum = s->e[i];
        memset(&sum.is, 0, sizeof sum.is);
        for (int64_t k = i; k < end; k++) {
            const struct entry *e = &s->e[k];
            int last = 1; /* of its rank: a weight's gradient has grown to it */
            for (int64_t l = k + 1; l < end && e->kind == WEIGHT; l++)
                last &= s->e[l].at.rank_lo != e->at.rank_lo;
            /* data are the same on all ranks of a replica */
            int same = k > i && e->kind == DATA && e->at.mb == s->e[k - 1].at.mb;
            sum.partial |= e->partial;
            if (e->at.rank_lo < sum.at.rank_lo)
                sum.at.rank_lo = e->at.rank_lo;
            if (e->at.rank_hi > sum.at.rank_hi)
                sum.at.rank_hi = e->at.rank_hi;
            if (e->kind == DATA ? !same : e->counts && last)
                mc_sketch_join(&sum.is, &e->is);
        }
        if (sum.kind == WEIGHT)
            sum.partial |= s->size[3] > 1;
        if (whole_step)
            sum.at.mb = WHOLE_STEP;
        s->e[to++] = sum;
    }
    s->n = to;
}

/* Have both runs the same microbatches? All of a side's are in its data lines. */
static int same_batches(const struct side *a, const struct side *b)
{
    for (int turn = 0; turn < 2; turn++) {
        const struct side *x = turn ? b : a, *y = turn ? a : b;
        for (int64_t i = 0; i < x->n; i++) {
            int found = 0;
            if (x->e[i].kind != DATA)
                continue;
            for (int64_t k = 0; k < y->n && !found; k++)
                found = y->e[k].kind == DATA && x->e[i].at.mb == y->e[k].at.mb &&
                        x->e[i].at.n == y->e[k].at.n;
            if (!found)
                return 0;
        }
    }
    return 1;
}

/* ---- comparing ---- */

static double norm_of(const struct entry *e)
{
    return e->partial ? mc_sketch_norm(&e->is) : sqrt(e->is.squares);
}

struct usual {
    double squares[NKINDS];
    int64_t count[NKINDS];
};

static int earlier(const struct entry *a, const struct entry *b) /* I1 */
{
    int ops = a->kind <= WEIGHT && b->kind <= WEIGHT;
    if (!ops || a->kind == DATA || b->kind == DATA)
        if ((a->kind > WEIGHT) != (b->kind > WEIGHT) || a->kind > WEIGHT)
            return a->kind != b->kind ? a->kind < b->kind : a->line < b->line;
    int64_t x = a->at.mb == WHOLE_STEP && a->kind == WEIGHT ? INT64_MAX : a->at.mb;
    int64_t y = b->at.mb == WHOLE_STEP && b->kind == WEIGHT ? INT64_MAX : b->at.mb;
    if (x != y)
        return x < y;
    return a->tick != b->tick ? a->tick < b->tick : a->line < b->line;
}

static double deviation(const struct entry *a, const struct entry *b, const struct usual *u)
{
    int hash = !a->partial && !b->partial;
    double apart = hash && a->is.hash == b->is.hash ? 0 : mc_sketch_apart(&a->is, &b->is);
    double n = (double)a->is.count, ref = norm_of(a);
    if (apart == 0 || n == 0)
        return 0;
    double least = MIN_OF_NORM * sqrt(u->squares[a->kind] / (double)u->count[a->kind] * n);
    ref = ref > least ? ref : least;
    return ref > 0 ? apart / ref : INFINITY;
}

static void keep_worst(struct mc_record_diff *d, const struct mc_record_place *p)
{
    int at = d->nworst;
    while (at > 0 && d->worst[at - 1].deviation < p->deviation)
        at--;
    if (at == MC_RECORD_WORST)
        return;
    int n = d->nworst < MC_RECORD_WORST ? d->nworst : MC_RECORD_WORST - 1;
    memmove(d->worst + at + 1, d->worst + at, (size_t)(n - at) * sizeof *d->worst);
    d->worst[at] = *p;
    d->nworst = n + 1;
}

static mc_status match(struct side *a, struct side *b, struct mc_record_diff *d, struct mc_err *err)
{
    struct usual u = {0};
    const struct entry *first = NULL;
    for (int64_t i = 0; i < a->n; i++) {
        double norm = norm_of(&a->e[i]);
        u.squares[a->e[i].kind] += norm * norm;
        u.count[a->e[i].kind] += a->e[i].is.count;
    }
    for (int64_t i = 0, k = 0; i < a->n || k < b->n;) {
        int c = i == a->n ? 1 : k == b->n ? -1 : by_key(&a->e[i], &b->e[k]);
        if (c == 0 || d->same_layout || i == a->n || k == b->n)
            ;
        else if (strcmp(a->e[i].key, b->e[k].key) == 0 && a->e[i].at.mb == b->e[k].at.mb)
            c = 0; /* ranks were added up */
        if (c != 0) {
            *(c < 0 ? &d->only_a : &d->only_b) += 1; /* I3 */
            c < 0 ? i++ : k++;
            continue;
        }
        struct entry *x = &a->e[i++];
        const struct entry *y = &b->e[k++];
        /* each replica has the whole of a weight's gradient, as its samples make it */
        if (x->kind != WEIGHT && x->is.count != y->is.count)
            return mc_err_set(err, MC_E_USAGE,
                              "%s %s has %lld elements in one run and %lld in the other: they are "
                              "of different models or batches",
                              x->at.op, x->at.name, (long long)x->is.count, (long long)y->is.count);
        x->at.rank_lo = y->at.rank_lo;
        x->at.rank_hi = y->at.rank_hi;
        x->at.bitwise = x->is.hash == y->is.hash; /* of partial things: share by share */
        x->at.deviation = x->at.bitwise ? 0 : deviation(x, y, &u);
        d->compared++;
        d->unequal += !x->at.bitwise;
        int apart = d->tolerance > 0
                        ? !(x->at.deviation <= d->tolerance)
                        : !x->at.bitwise && (d->same_layout || !x->partial || x->at.deviation > 0);
        if (!apart)
            continue;
        d->differ++;
        keep_worst(d, &x->at);
        if (!first || earlier(x, first))
            first = x;
    }
    if (first)
        d->first = first->at;
    return MC_OK;
}

static double usual_tolerance(const struct side *a, const struct side *b)
{
    int f64 = strcmp(a->precision, "F64") == 0 && strcmp(b->precision, "F64") == 0;
    int bf16 = strcmp(a->precision, "BF16") == 0 || strcmp(b->precision, "BF16") == 0;
    return f64 ? 1e-11 : bf16 ? 5e-2 : 1e-4;
}

mc_status mc_record_compare(const char *dir_a, const char *dir_b, int64_t step, double tolerance,
                            struct mc_record_diff *d, struct mc_err *err)
{
    struct side a = {0}, b = {0};
    mc_status st;
    memset(d, 0, sizeof *d);
    MC_TRY_GOTO(st, read_side(dir_a, step, &a, err), done);
    MC_TRY_GOTO(st, read_side(dir_b, step, &b, err), done);
    d->same_batches = same_batches(&a, &b);
    d->same_layout = d->same_batches && a.ranks == b.ranks &&
                     memcmp(a.size, b.size, sizeof a.size) == 0 && a.where == b.where &&
                     strcmp(a.precision, b.precision) == 0;
    d->tolerance = tolerance >= 0 ? tolerance : d->same_layout ? 0 : usual_tolerance(&a, &b);
    if (d->same_layout) {
        qsort(a.e, (size_t)a.n, sizeof *a.e, by_key);
        qsort(b.e, (size_t)b.n, sizeof *b.e, by_key);
    } else {
        combine(&a, !d->same_batches, d->tolerance, &d->torn[0], &d->torn_first[0]);
        combine(&b, !d->same_batches, d->tolerance, &d->torn[1], &d->torn_first[1]);
    }
    st = match(&a, &b, d, err);
    if (st == MC_OK && d->compared == 0)
        st = mc_err_set(err, MC_E_USAGE,
                        "the records of step %lld have no op in common: they are of different "
                        "models",
                        (long long)step); /* I3 */
done:
    mc_free(a.e);
    mc_free(b.e);
    return st;
}
