/* anomaly.c - is this step's loss or gradient sound? Floor 6 (train).
 *
 * A step is judged before its update, from two numbers: the loss of the global batch and the norm
 * of its gradient. Non-finite ones are always anomalies. A spike is a norm above `spike_factor`
 * times the median of the last `spike_window` norms.
 *
 * I1  Only norms of successful updates enter the window, so that a run of bad batches does not
 *     become the new normal; a resumed run carries the window in its books.
 * I2  The window judges only when it is full: the first steps of a run have large norms by nature.
 * I3  No allocation: the window is kept in order of time and in order of size, and each push moves
 *     at most `cap` doubles. The median of an even window is the mean of the middle two.
 *
 * Memory: the caller's. Threads: any one. */
#include "train_int.h"
#include <math.h>
#include <string.h>

void mc_spikes_init(struct mc_spikes *s, int cap)
{
    MC_ASSERT(cap >= 1 && cap <= MC_SPIKES_MAX);
    s->cap = cap;
    s->n = 0;
    s->head = 0;
}

/* First index of sorted[0..n) whose value is not below x. */
static int lower_bound(const double *sorted, int n, double x)
{
    int lo = 0;
    while (n > 0) {
        int half = n / 2;
        if (sorted[lo + half] < x) {
            lo += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return lo;
}

void mc_spikes_push(struct mc_spikes *s, double norm)
{
    if (s->n == s->cap) { /* the oldest leaves */
        int at = lower_bound(s->sorted, s->n, s->ring[s->head]);
        memmove(s->sorted + at, s->sorted + at + 1, (size_t)(s->n - at - 1) * sizeof(double));
        s->ring[s->head] = norm;
        s->head = (s->head + 1) % s->cap;
        s->n--;
    } else {
        s->ring[s->n] = norm;
    }
    int at = lower_bound(s->sorted, s->n, norm);
    memmove(s->sorted + at + 1, s->sorted + at, (size_t)(s->n - at) * sizeof(double));
    s->sorted[at] = norm;
    s->n++;
}

double mc_spikes_median(const struct mc_spikes *s)
{
    if (s->n < s->cap) /* I2 */
        return NAN;
    int h = s->n / 2;
    return s->n % 2 ? s->sorted[h] : 0.5 * (s->sorted[h - 1] + s->sorted[h]);
}

struct mc_verdict mc_anomaly_judge(const struct mc_anomaly_cfg *cfg, const struct mc_spikes *s,
                                   double loss, double norm)
{
    struct mc_verdict v = {.kind = NULL, .ratio = NAN};
    if (!isfinite(loss)) {
        v.kind = "nonfinite_loss";
    } else if (!isfinite(norm)) {
        v.kind = "nonfinite_grad";
    } else if (cfg->spike_factor > 0) {
        double median = mc_spikes_median(s);
        if (norm > cfg->spike_factor * median) { /* false while the median is NaN */
            v.kind = "spike";
            v.ratio = norm / median;
        }
    }
    return v;
}
