/* batch.c - global batch and sequence length as functions of the counters, and the way to the
 * target.
 * Floor 5 (optim). Includes: recipe.
 *
 * A step starts with counters c (steps attempted, samples and tokens read so far) and takes a batch
 * of B samples:  no ramp: B = batch.global;  else B = `global` of the last point of the ramp whose
 * `at` is <= the counter of its unit (before the first point: the first). A skipped update has read
 * its batch, so it moves the counters like any other.
 *
 * A phase of data.phases holds likewise from its point on, over the ramp where it gives a batch.
 *
 * I1  Between two points of the ramp, or of the phases, batch and length are constant, so any
 *     number of steps is found point by point, not step by step.
 *
 * Threads: pure. */
#include "optim.h"

static int64_t value(enum mc_unit u, const struct mc_counters *c)
{
    return u == MC_UNIT_TOKENS ? c->tokens : u == MC_UNIT_SAMPLES ? c->samples : c->steps;
}

int64_t mc_batch_at(const struct mc_batch_cfg *b, const struct mc_counters *c)
{
    if (b->nramp == 0)
        return b->global;
    int last = 0;
    for (int i = 1; i < b->nramp; i++)
        if (b->ramp[i].at.n <= value(b->ramp[i].at.unit, c))
            last = i;
    return b->ramp[last].global;
}

struct mc_phase_now mc_phase_at(const struct mc_recipe *r, const struct mc_counters *c)
{
    struct mc_phase_now now = {.seq = r->model.seq, .global = mc_batch_at(&r->batch, c)};
    struct mc_quantity batch = {0};
    for (int i = 0; i < r->data.nphases; i++) {
        const struct mc_phase_cfg *p = &r->data.phase[i];
        if (value(p->from.unit, c) < p->from.n)
            break;
        now.index = i + 1;
        now.seq = p->seq > 0 ? p->seq : now.seq;
        now.weight = p->nweights > 0 ? p->weight : now.weight;
        batch = p->batch.n > 0 ? p->batch : batch;
    }
    if (batch.n > 0)
        now.global = batch.unit == MC_UNIT_TOKENS ? batch.n / now.seq : batch.n;
    return now;
}

int mc_target_reached(const struct mc_quantity *target, const struct mc_counters *c)
{
    return value(target->unit, c) >= target->n;
}

/* Steps of `batch` samples until the counter of q's unit is >= q.n; 0: it is. */
static int64_t steps_until(const struct mc_quantity *q, const struct mc_counters *c, int64_t batch,
                           int64_t seq)
{
    int64_t left = q->n - value(q->unit, c);
    if (left <= 0)
        return 0;
    __int128 each = q->unit == MC_UNIT_TOKENS    ? (__int128)batch * seq
                    : q->unit == MC_UNIT_SAMPLES ? batch
                                                 : 1;
    return (int64_t)((left + each - 1) / each);
}

/* As many steps as are like the present one, `most` at the most; moves c. -1: c would leave int64.
 */
static int64_t stride(const struct mc_recipe *r, const struct mc_phase_now *p, int64_t most,
                      struct mc_counters *c)
{
    int64_t k = most;
    for (int i = 0; i < r->batch.nramp + r->data.nphases; i++) { /* I1 */
        const struct mc_quantity *at =
            i < r->batch.nramp ? &r->batch.ramp[i].at : &r->data.phase[i - r->batch.nramp].from;
        int64_t to = steps_until(at, c, p->global, p->seq);
        if (to > 0 && to < k)
            k = to;
    }
    __int128 samples = (__int128)k * p->global + c->samples, tokens = (__int128)k * p->global;
    if (samples > INT64_MAX || k > INT64_MAX - c->steps)
        return -1;
    tokens = tokens * p->seq + c->tokens;
    if (tokens > INT64_MAX)
        return -1;
    *c = (struct mc_counters){c->steps + k, (int64_t)samples, (int64_t)tokens};
    return k;
}

/* Steps from *at until the target of r is reached; moves *at there. -1: more than 2^40. */
static int64_t go(const struct mc_recipe *r, struct mc_counters *at)
{
    int64_t n = 0;
    while (!mc_target_reached(&r->steps, at)) {
        struct mc_phase_now p = mc_phase_at(r, at);
        int64_t k = stride(r, &p, steps_until(&r->steps, at, p.global, p.seq), at);
        if (k < 0 || (n += k) > (int64_t)1 << 40)
            return -1;
    }
    return n;
}

int64_t mc_steps_to_go(const struct mc_recipe *r, const struct mc_counters *c)
{
    struct mc_counters at = *c;
    return go(r, &at);
}

int64_t mc_samples_to_go(const struct mc_recipe *r, const struct mc_counters *c)
{
    struct mc_counters at = *c;
    return go(r, &at) < 0 ? -1 : at.samples - c->samples;
}
