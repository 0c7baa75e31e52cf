/* balance.c - the search for the cut. Floor 6 (plan).
 *
 * Times become whole numbers first, the sum of all just below 2^40: from there on sums are exact
 * and equal ones are equal.
 *
 * Let stage s .. end, layers l .. end be what is left to place.
 *   alone[s][l]   the least that the largest of these stages can be, by dynamic programming: the
 *                 next stage ends at e, max(layers l .. e - 1, alone[s + 1][e]), over all e. With
 *                 one chunk a stage is a rank, and alone[0][0] is the answer. With more it is a
 *                 lower bound, of the largest rank and of the largest stage.
 *   hopeless()    for a bound on every rank and one on every stage, and what the ranks have so far:
 *                 a rank cannot take more layers than its room, and that of its stages, allows if
 *                 all were as cheap as the cheapest left, nor more work than that room; it must
 *                 take one a stage. If all together cannot take what is left, nothing can. Where
 *                 layers are alike, the converse holds too: a rank may have any number of them
 *                 between its least and its most, and split them over its stages as they allow.
 * So: the answer lies between the least bound that is not hopeless at the start (found by
 * bisection) and any cut's; bisect again, each bound being tried by a depth-first search that
 * leaves what is hopeless. With one chunk, or layers alike, the first try is at the answer and
 * never turns back. Else the search is complete unless it takes too long. With several chunks, the
 * bound of the ranks is then loosened by a fiftieth, that of the stages bisected in the same way,
 * and then that of the ranks once more.
 *
 * I1  The order in which the search takes ends of stages is the order of preference of balance.h:
 *     what it finds first under a bound is what is asked for.
 * I2  The same input gives the same cut on every machine.
 *
 * Memory: one block, freed before return. Threads: any. */
#include "balance.h"
#include <math.h>
#include <string.h>
#include "../base/arena.h"

/* Of one try, a rank looked at each: a few hundredths of a second; and enough never to turn back.
 */
#define STEPS(x) (INT64_C(4000000) + 16 * (x)->S * (int64_t)(x)->p)
enum { SLACK = 50 }; /* a fiftieth */

struct search {
    int L, S, p, head_rank;
    int64_t *upto;   /* [L + 1]: work of layers 0 .. l - 1 */
    int64_t *least;  /* [L + 1]: the cheapest of layers l .. ; least[L] = 1 */
    int64_t *alone;  /* [(S + 1) * (L + 1)] */
    int64_t *load;   /* [p] */
    int *rank_of;    /* [S] */
    int *open, *due; /* [p]: stages left; those of them that need a layer */
    int64_t stem, head, all, steps;
    int64_t bound, stage;    /* of every rank, of every stage */
    int64_t even;            /* work that is spread evenly over `sharers` stages */
    int sharers, alone_stem; /* the stem is more than its share: its stage has nothing else */
    int *cut;
};

static int need(const struct search *x, int s)
{
    return s > 0 && s < x->S - 1;
}

static int64_t *alone(const struct search *x, int s, int l)
{
    return &x->alone[(size_t)s * (size_t)(x->L + 1) + (size_t)l];
}

/* -- Whole numbers ----------------------------------------------------------------------------- */

static void weigh(struct search *x, const double *work)
{
    double sum = 0, unit;
    int e;

    for (int k = 0; k < x->L + 2; k++)
        sum += work[k];
    frexp(sum > 0 ? sum : 1, &e);
    unit = ldexp(1, 40 - e); /* a power of two: what was whole, and small, stays so */
    x->stem = llround(work[0] * unit);
    x->head = llround(work[x->L + 1] * unit);
    for (int l = 0; l < x->L; l++) {
        int64_t w = llround(work[l + 1] * unit);
        x->upto[l + 1] = x->upto[l] + (w > 0 ? w : 1);
    }
    x->least[x->L] = 1;
    for (int l = x->L - 1; l >= 0; l--) {
        int64_t w = x->upto[l + 1] - x->upto[l];
        x->least[l] = l < x->L - 1 && x->least[l + 1] < w ? x->least[l + 1] : w;
    }
    x->all = x->even = x->stem + x->upto[x->L] + x->head;
    x->sharers = x->S;
    if (x->head * x->sharers > x->even)
        x->even -= x->head, x->sharers--;
    x->alone_stem = x->stem * x->sharers > x->even;
    if (x->alone_stem)
        x->even -= x->stem, x->sharers--;
}

static void find_alone(struct search *x)
{
    for (int l = 0; l <= x->L; l++)
        *alone(x, x->S, l) = l == x->L ? 0 : INT64_MAX;
    for (int s = x->S - 1; s >= 0; s--)
        for (int l = x->L; l >= 0; l--) {
            int64_t own = (s == 0 ? x->stem : 0) + (s == x->S - 1 ? x->head : 0), best = INT64_MAX;
            for (int e = l + need(x, s); e <= x->L; e++) {
                int64_t here = own + x->upto[e] - x->upto[l], rest = *alone(x, s + 1, e);
                if (here >= best)
                    break; /* longer ones are no better */
                best = here > rest ? here : rest < best ? rest : best;
            }
            *alone(x, s, l) = best;
        }
}

/* What stage s has beside layers. */
static int64_t ends(const struct search *x, int s)
{
    return (s == 0 ? x->stem : 0) + (s == x->S - 1 ? x->head : 0);
}

/* -- The search -------------------------------------------------------------------------------- */

static int hopeless(struct search *x, int s, int l)
{
    int64_t left = x->L - l, layers = 0, work = 0, due = 0;

    x->steps += x->p;
    if (*alone(x, s, l) > x->bound || *alone(x, s, l) > x->stage)
        return 1;
    for (int r = 0; r < x->p; r++) {
        int64_t room = x->bound - x->load[r] - (r == x->head_rank ? x->head : 0), most;
        if (room < 0)
            return 1;
        if (x->open[r] == 0)
            continue;
        int64_t each = room / x->open[r] < x->stage ? room : x->stage; /* of one stage */
        most = room / x->least[l];
        if (x->open[r] * (each / x->least[l]) < most)
            most = x->open[r] * (each / x->least[l]);
        if (each < room && x->open[r] * each < room)
            room = x->open[r] * each;
        if (most < x->due[r])
            return 1;
        layers += most < left ? most : left;
        work += room;
        due += x->due[r];
    }
    return layers < left || due > left || work < x->upto[x->L] - x->upto[l];
}

/* How far the end of stage s at e is from even shares, times the sharers. */
static int64_t off(const struct search *x, int s, int e)
{
    int64_t at = x->upto[e] + (x->alone_stem ? 0 : x->stem);
    int64_t d = x->sharers * at - (s + 1 - x->alone_stem) * x->even;
    return d < 0 ? -d : d;
}

static int place_from(struct search *x, int s, int l);

static int place_one(struct search *x, int s, int l, int e)
{
    int r = x->rank_of[s], found;
    int64_t work = x->upto[e] - x->upto[l];

    if (x->steps > STEPS(x) || x->load[r] + work > x->bound || ends(x, s) + work > x->stage)
        return 0;
    x->load[r] += work;
    x->open[r]--;
    x->due[r] -= need(x, s);
    x->cut[s + 1] = e;
    found = !hopeless(x, s + 1, e) && place_from(x, s + 1, e);
    x->load[r] -= work;
    x->open[r]++;
    x->due[r] += need(x, s);
    return found;
}

/* Stages s .. of layers l ..; the cut is left in x->cut. */
static int place_from(struct search *x, int s, int l)
{
    int first = l + need(x, s), last = x->L, at, up;

    if (s == x->S)
        return l == x->L;
    if (s == x->S - 1)
        return place_one(x, s, l, x->L);
    for (int q = s + 1; q < x->S; q++)
        last -= need(x, q);
    for (at = first; at < last && off(x, s, at + 1) < off(x, s, at);)
        at++;
    for (up = at + 1; at >= first || up <= last;) { /* I1 */
        int below = up > last || (at >= first && off(x, s, at) <= off(x, s, up));
        if (place_one(x, s, l, below ? at : up))
            return 1;
        if (below)
            at--;
        else
            up++;
    }
    return 0;
}

/* Is there a cut with no rank above the bound? *whole 0: the search was broken off. */
static int try_bound(struct search *x, int64_t bound, int *whole)
{
    int found;

    x->bound = bound;
    x->steps = 0;
    found = !hopeless(x, 0, 0) && place_from(x, 0, 0);
    if (!found && x->steps > STEPS(x))
        *whole = 0;
    return found;
}

static int64_t largest(const struct search *x, const int *cut)
{
    int64_t most = 0;

    for (int r = 0; r < x->p; r++) {
        int64_t sum = r == x->head_rank ? x->head : 0;
        for (int s = 0; s < x->S; s++)
            if (x->rank_of[s] == r)
                sum += x->upto[cut[s + 1]] - x->upto[cut[s]] + (s == 0 ? x->stem : 0);
        most = sum > most ? sum : most;
    }
    return most;
}

static int64_t largest_stage(const struct search *x, const int *cut)
{
    int64_t most = 0;

    for (int s = 0; s < x->S; s++) {
        int64_t sum = ends(x, s) + x->upto[cut[s + 1]] - x->upto[cut[s]];
        most = sum > most ? sum : most;
    }
    return most;
}

/* The least largest rank, whatever its stages are. */
static int solve_ranks(struct search *x, int *cut)
{
    int64_t low = 0, high = x->all; /* low: hopeless or unknown below it */
    int whole = 1;

    while (low < high) {
        x->bound = low + (high - low) / 2;
        if (hopeless(x, 0, 0))
            low = x->bound + 1;
        else
            high = x->bound;
    }
    if (try_bound(x, low, &whole)) {
        memcpy(cut, x->cut, (size_t)(x->S + 1) * sizeof *cut);
        return 1;
    }
    try_bound(x, x->all, &whole); /* nothing is too much: the even shares */
    for (;;) {
        memcpy(cut, x->cut, (size_t)(x->S + 1) * sizeof *cut);
        high = largest(x, cut);
        while (low < high && !try_bound(x, low + (high - low) / 2, &whole))
            low += (high - low) / 2 + 1;
        if (low >= high)
            break;
    }
    if (try_bound(x, high, &whole)) /* I1: those above may have passed it by */
        memcpy(cut, x->cut, (size_t)(x->S + 1) * sizeof *cut);
    return whole;
}

static int solve(struct search *x, int *cut)
{
    const size_t bytes = (size_t)(x->S + 1) * sizeof *cut;
    x->stage = x->all;
    int whole = solve_ranks(x, cut);
    if (x->S == x->p) /* a stage is a rank */
        return whole;
    int64_t least = largest(x, cut), low = *alone(x, 0, 0), high = largest_stage(x, cut);
    while (low < high) {
        x->stage = low + (high - low) / 2;
        if (try_bound(x, least + least / SLACK, &whole)) {
            memcpy(cut, x->cut, bytes);
            high = largest_stage(x, cut);
        } else {
            low = x->stage + 1;
        }
    }
    x->stage = high;
    for (low = least, high = largest(x, cut); low < high;) {
        if (try_bound(x, low + (high - low) / 2, &whole)) {
            memcpy(cut, x->cut, bytes);
            high = largest(x, cut);
        } else {
            low = x->bound + 1;
        }
    }
    if (try_bound(x, high, &whole)) /* I1 */
        memcpy(cut, x->cut, bytes);
    return whole;
}

mc_status mc_balance_cut(const struct mc_balance *b, int *cut, int *proven, struct mc_err *err)
{
    struct search x = {.L = b->layers, .S = b->ranks * b->chunks, .p = b->ranks};
    size_t L = (size_t)x.L + 1, S = (size_t)x.S, p = (size_t)x.p;
    int64_t *wide;
    int *narrow, sure;

    if (x.S < 2 || x.L < x.S - 2)
        return mc_err_set(err, MC_E_RECIPE, "model.layers: %d are too few for %d stages", x.L, x.S);
    wide = mc_alloc((2 * L + (S + 1) * L + p) * sizeof *wide, "work of a pipeline");
    narrow = mc_alloc((2 * S + 1 + 2 * p) * sizeof *narrow, "stages of a pipeline");
    if (!wide || !narrow) {
        mc_free(wide);
        mc_free(narrow);
        return mc_err_set(err, MC_E_NOMEM, "no memory to cut %d layers", x.L);
    }
    x.upto = wide;
    x.least = wide + L;
    x.alone = wide + 2 * L;
    x.load = x.alone + (S + 1) * L;
    x.rank_of = narrow;
    x.cut = narrow + S;
    x.open = x.cut + S + 1;
    x.due = x.open + p;
    for (int r = 0; r < b->ranks; r++)
        for (int c = 0; c < b->chunks; c++) {
            int s = b->place ? b->place[r * b->chunks + c] : c * b->ranks + r;
            x.rank_of[s] = r;
            x.open[r]++;
            x.due[r] += need(&x, s);
        }
    x.head_rank = x.rank_of[x.S - 1];
    weigh(&x, b->work);
    find_alone(&x);
    x.load[x.rank_of[0]] = x.stem;
    sure = solve(&x, cut);
    if (proven)
        *proven = sure;
    mc_free(wide);
    mc_free(narrow);
    return MC_OK;
}
