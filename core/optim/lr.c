/* lr.c - the learning rate: a pure function of (recipe, counters).
 * Floor 5 (optim). Includes: recipe.
 *
 * The rate of an update is asked for with the counters as that update leaves them (steps >= 1,
 * samples and tokens with its own batch), so n >= 1 and the first step is never at rate 0 by
 * accident. With, in one unit (steps, samples or tokens):
 *   n  the counter      W  warm-up      D  end of the decay      A  length of the decay (wsd)
 *   P  peak             F  floor        I  init
 *
 *   warm-up, all kinds but pieces and table:  0 < n <= W, W > 0:   I + (P - I) n / W
 *       so n = W gives exactly P
 *   after it, n > D > 0, all kinds but constant:                   F
 *   constant        P
 *   linear          F + (P - F) (1 - r)                     r = (n - W) / (D - W)
 *   cosine          F + (P - F) (1 + cos(pi r)) / 2
 *   inverse_sqrt    max(F, P sqrt(max(W, 1)) / sqrt(n))     at D it steps down to F: give no end to
 *                                                           keep the tail
 *   power           max(F, P (n / max(W, 1))^-p)            p = power; likewise
 *   wsd             n <= D - A:  P;  else F + (P - F) c(q)  q = (n - (D - A)) / A
 *   pieces          piece i holds for a_i < n <= b_i, b_i its `until`, a_i that of the piece before
 *                   (0 for the first):  to + (from - to) c(q), q = (n - a_i) / (b_i - a_i); after
 *                   the last piece its value at q = 1
 *   table           entry min(steps, ntable), from 1
 *
 *   tails and shapes:  linear c = 1 - q     cosine c = (1 + cos(pi q)) / 2     sqrt c = 1 - sqrt(q)
 *                      exponential c = 2 * 0.5^q - 1     constant c = 1
 *
 * I1  W, D and A of one schedule are in one unit; mc_lr_resolve() makes it so: it fills a missing
 *     end with the target of `steps` and, where units differ, turns all of them into tokens, which
 *     is exact, as the batch schedule says how many tokens any number of steps has read.
 * I2  The same counters give the same bits: no state, no order of evaluation that could differ.
 * Threads: pure. */
#include "optim.h"
#include <math.h>
#include <string.h>
#include "optim_int.h"

static double counter(enum mc_unit u, const struct mc_counters *c)
{
    return (double)(u == MC_UNIT_TOKENS ? c->tokens : u == MC_UNIT_SAMPLES ? c->samples : c->steps);
}

/* c(q) of the essay, q in [0, 1]. */
static double fall(enum mc_lr_shape shape, double q)
{
    switch (shape) {
    case MC_SHAPE_LINEAR:
        return 1 - q;
    case MC_SHAPE_COSINE:
        return 0.5 * (1 + cos(M_PI * q));
    case MC_SHAPE_SQRT:
        return 1 - sqrt(q);
    case MC_SHAPE_EXPONENTIAL:
        return 2 * pow(0.5, q) - 1;
    default:
        return 1;
    }
}

static double pieces_at(const struct mc_lr_cfg *lr, const struct mc_counters *c)
{
    double a = 0;
    for (int i = 0; i < lr->npieces; i++) {
        const struct mc_lr_piece *p = &lr->piece[i];
        double n = counter(p->until.unit, c), b = (double)p->until.n;
        if (n <= b) {
            double q = b > a ? (n - a) / (b - a) : 1;
            return p->to + (p->from - p->to) * fall(p->shape, q);
        }
        a = b;
    }
    const struct mc_lr_piece *last = &lr->piece[lr->npieces - 1];
    return last->shape == MC_SHAPE_CONSTANT ? last->from : last->to;
}

/* The unit that n is counted in. */
static enum mc_unit unit_of(const struct mc_lr_cfg *lr)
{
    return lr->warmup.n > 0 ? lr->warmup.unit : lr->end.n > 0 ? lr->end.unit : lr->decay.unit;
}

double mc_lr_at(const struct mc_lr_cfg *lr, const struct mc_counters *c)
{
    if (lr->kind == MC_LR_PIECES)
        return pieces_at(lr, c);
    if (lr->kind == MC_LR_TABLE)
        return lr->table[(c->steps < lr->ntable ? (c->steps > 1 ? c->steps : 1) : lr->ntable) - 1];
    double n = counter(unit_of(lr), c), w = (double)lr->warmup.n, d = (double)lr->end.n,
           a = (double)lr->decay.n, span = lr->peak - lr->floor, x;
    if (w > 0 && n <= w)
        return lr->init + (lr->peak - lr->init) * n / w;
    if (lr->kind == MC_LR_CONSTANT)
        return lr->peak;
    if (d > 0 && n > d)
        return lr->floor;
    switch (lr->kind) {
    case MC_LR_LINEAR:
    case MC_LR_COSINE:
        MC_ASSERT(d > w); /* mc_lr_resolve() has filled it */
        return lr->floor + span * fall(lr->kind == MC_LR_LINEAR ? MC_SHAPE_LINEAR : MC_SHAPE_COSINE,
                                       (n - w) / (d - w));
    case MC_LR_WSD:
        MC_ASSERT(d >= a);
        return n <= d - a ? lr->peak : lr->floor + span * fall(lr->tail, (n - (d - a)) / a);
    case MC_LR_INVERSE_SQRT:
        x = lr->peak * sqrt(w > 1 ? w : 1) / sqrt(n > 1 ? n : 1);
        return x > lr->floor ? x : lr->floor;
    default: /* MC_LR_POWER */
        x = lr->peak * pow((n > 1 ? n : 1) / (w > 1 ? w : 1), -lr->power);
        return x > lr->floor ? x : lr->floor;
    }
}

/* ---- resolve ---- */

/* q in tokens read, under the recipe's batch schedule. */
static mc_status to_tokens(const struct mc_recipe *r, const char *key, struct mc_quantity *q,
                           struct mc_err *err)
{
    if (q->n == 0 || q->unit == MC_UNIT_TOKENS) {
        q->unit = MC_UNIT_TOKENS;
        return MC_OK;
    }
    struct mc_counters c = {0};
    int64_t tokens = -1;
    if (q->unit == MC_UNIT_SAMPLES) {
        if (q->n <= INT64_MAX / r->model.seq)
            tokens = q->n * r->model.seq;
    } else if (mc_batch_advance(r, q->n, &c) == 0) {
        tokens = c.tokens;
    }
    if (tokens < 0)
        return mc_err_set(err, MC_E_RECIPE, "lr.%s: %lld %s are more tokens than 2^63", key,
                          (long long)q->n, mc_unit_name(q->unit));
    *q = (struct mc_quantity){tokens, MC_UNIT_TOKENS};
    return MC_OK;
}

static mc_status check(const struct mc_lr_cfg *lr, struct mc_err *err)
{
    const double v[4] = {lr->peak, lr->init, lr->floor, lr->power};
    for (int i = 0; i < 4; i++)
        if (!isfinite(v[i]) || v[i] < 0)
            return mc_err_set(err, MC_E_RECIPE, "lr: peak, init, floor and power must be >= 0");
    int needs_end = lr->kind == MC_LR_LINEAR || lr->kind == MC_LR_COSINE || lr->kind == MC_LR_WSD;
    if (lr->kind == MC_LR_PIECES || lr->kind == MC_LR_TABLE)
        return MC_OK;
    if (lr->init > lr->peak || (lr->kind != MC_LR_CONSTANT && lr->floor > lr->peak))
        return mc_err_set(err, MC_E_RECIPE, "lr: init %g and floor %g must not be above peak %g",
                          lr->init, lr->floor, lr->peak);
    if (needs_end && lr->end.n <= lr->warmup.n)
        return mc_err_set(err, MC_E_RECIPE,
                          "lr: the decay ends at %lld %s, which is not after the warm-up of %lld",
                          (long long)lr->end.n, mc_unit_name(lr->end.unit),
                          (long long)lr->warmup.n);
    if (lr->kind == MC_LR_WSD && (lr->decay.n < 1 || lr->decay.n > lr->end.n - lr->warmup.n))
        return mc_err_set(err, MC_E_RECIPE,
                          "lr.decay: %lld %s do not fit between the warm-up (%lld) and the end "
                          "(%lld)",
                          (long long)lr->decay.n, mc_unit_name(lr->decay.unit),
                          (long long)lr->warmup.n, (long long)lr->end.n);
    return MC_OK;
}

static mc_status resolve_pieces(const struct mc_recipe *r, struct mc_lr_cfg *lr, struct mc_err *err)
{
    int mixed = 0;
    for (int i = 1; i < lr->npieces; i++)
        mixed |= lr->piece[i].until.unit != lr->piece[0].until.unit;
    for (int i = 0; i < lr->npieces; i++) {
        if (mixed)
            MC_TRY(to_tokens(r, "pieces", &lr->piece[i].until, err));
        if (lr->piece[i].until.n <= (i ? lr->piece[i - 1].until.n : 0))
            return mc_err_set(err, MC_E_RECIPE, "lr.pieces[%d]: it ends where it begins, at %lld",
                              i + 1, (long long)lr->piece[i].until.n);
    }
    return MC_OK;
}

mc_status mc_lr_resolve(const struct mc_recipe *r, struct mc_lr_cfg *out, struct mc_err *err)
{
    struct mc_lr_cfg lr = r->lr;
    if (lr.kind == MC_LR_PIECES && lr.npieces < 1)
        return mc_err_set(err, MC_E_RECIPE, "lr.pieces: none given");
    if (lr.kind == MC_LR_TABLE && (lr.ntable < 1 || !lr.table))
        return mc_err_set(err, MC_E_RECIPE, "lr: the function was evaluated for no step");
    if (lr.end.n == 0 &&
        (lr.kind == MC_LR_LINEAR || lr.kind == MC_LR_COSINE || lr.kind == MC_LR_WSD))
        lr.end = r->steps; /* the others need no end: their tail goes on */
    const struct mc_quantity *q[3] = {&lr.warmup, &lr.end, &lr.decay};
    enum mc_unit u = MC_UNIT_NONE;
    int mixed = 0;
    for (int i = 0; i < 3; i++) {
        if (q[i]->n == 0)
            continue;
        mixed |= u != MC_UNIT_NONE && q[i]->unit != u;
        u = q[i]->unit;
    }
    if (mixed) { /* I1 */
        MC_TRY(to_tokens(r, "warmup", &lr.warmup, err));
        MC_TRY(to_tokens(r, "end", &lr.end, err));
        /* A length, not a position: counted back from the end, so that a ramp before it does not
         * stretch it. In steps it would need the ramp read backwards: one unit is asked for. */
        if (lr.decay.n > 0 && lr.decay.unit == MC_UNIT_STEPS && r->batch.nramp > 0)
            return mc_err_set(err, MC_E_RECIPE,
                              "lr.decay: in steps, while warmup or end are not, under a batch "
                              "ramp: give it in samples or tokens");
        MC_TRY(to_tokens(r, "decay", &lr.decay, err));
    }
    if (lr.kind == MC_LR_PIECES)
        MC_TRY(resolve_pieces(r, &lr, err));
    MC_TRY(check(&lr, err));
    *out = lr;
    return MC_OK;
}
