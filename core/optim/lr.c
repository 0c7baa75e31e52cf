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
 * I1  W, D and A of one schedule, and the points of pieces, are in one unit, and D is known where
 *     the kind needs it: mc_recipe_resolve_lr() (core/recipe) makes it so and refuses what cannot
 *     be.
 * I2  The same counters give the same bits: no state, no order of evaluation that could differ.
 *
 * Threads: pure. */
#include "optim.h"
#include <math.h>

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
        MC_ASSERT(d > w); /* I1 */
        return lr->floor + span * fall(lr->kind == MC_LR_LINEAR ? MC_SHAPE_LINEAR : MC_SHAPE_COSINE,
                                       (n - w) / (d - w));
    case MC_LR_WSD:
        MC_ASSERT(a > 0 && d >= a); /* I1 */
        return n <= d - a ? lr->peak : lr->floor + span * fall(lr->tail, (n - (d - a)) / a);
    case MC_LR_INVERSE_SQRT:
        x = lr->peak * sqrt(w > 1 ? w : 1) / sqrt(n > 1 ? n : 1);
        return x > lr->floor ? x : lr->floor;
    default: /* MC_LR_POWER */
        x = lr->peak * pow((n > 1 ? n : 1) / (w > 1 ? w : 1), -lr->power);
        return x > lr->floor ? x : lr->floor;
    }
}
