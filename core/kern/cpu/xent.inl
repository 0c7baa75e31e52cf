/* xent.inl - softmax cross entropy on logits [M, V], one pass over memory each way: forward keeps
 * lse [M] and the token losses [M], backward turns the logits into their gradient in place.
 *
 * The row maximum is taken out before exp, so nothing overflows. A masked row (target < 0) has loss
 * 0, lse 0 and a zero gradient, whatever its logits hold; a target past the vocabulary gives NaN.
 *
 * With smoothing e and z:  loss = (1 - e)(lse - x_t) + e (lse - mean x) + z lse^2,
 * d loss / d x_j = p_j (1 + 2 z lse) - e / V - (1 - e) [j = t]. Padding columns hold no part. */
HOT static void xent_task(void *arg, int task, int thread)
{
    const struct mc_xent *o = arg;
    int64_t n = o->v, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->logits + r * o->ld;
        int64_t target = o->targets[r];
        real lse = 0, loss = 0, top;
        if (target >= 0) {
            real a[LANES] = {0};
            int64_t i = 0;
            top = vec_max(x, n);
            for (; i + LANES <= n; i += LANES)
                for (int j = 0; j < LANES; j++)
                    a[j] += exp_r(val(x[i + j]) - top);
            for (int j = 0; i + j < n; j++)
                a[j] += exp_r(val(x[i + j]) - top);
            lse = log_r(lanes_sum(a));
            /* the small difference first: top - x[target] is exact where it matters */
            loss = target < n ? lse + (top - val(x[target])) : (real)NAN;
            if (o->smoothing > 0)
                loss = ((real)1 - (real)o->smoothing) * loss +
                       (real)o->smoothing * (lse + (top - vec_sum(x, n) / (real)n));
            lse += top;
            if (o->z > 0)
                loss += (real)o->z * (lse * lse);
        }
        ((real *)o->lse)[r] = lse;
        ((real *)o->loss)[r] = loss;
    }
}

static void xent(struct mc_pool *pool, const struct mc_xent *o)
{
    run(pool, xent_task, o, row_tasks(o->m, o->v));
}

HOT static void xent_bwd_task(void *arg, int task, int thread)
{
    const struct mc_xent *o = arg;
    int64_t n = o->v, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    int64_t all = o->all ? o->all : n;
    real scale = (real)o->scale;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        stored *x = (stored *)o->logits + r * o->ld;
        int64_t target = o->targets[r];
        real lse = ((const real *)o->lse)[r];
        memset(x + n, 0, (size_t)o->pad * sizeof(stored));
        if (target < 0) {
            memset(x, 0, (size_t)n * sizeof(stored));
            continue;
        }
        real f = scale, each = 0, hit = scale;
        if (o->smoothing > 0 || o->z > 0) {
            f = scale * ((real)1 + (real)(2 * o->z) * lse);
            each = scale * (real)(o->smoothing / (double)all);
            hit = scale * ((real)1 - (real)o->smoothing);
        }
        int64_t here = target - o->first;
        real at = (real)NAN;
        if (here >= 0 && here < n)
            at = exp_r(val(x[here]) - lse) * f - each - hit;
        else if (target >= all && n > 0)
            here = 0;
        else
            here = -1; /* another part's */
        EACH for (int64_t j = 0; j < n; j++) x[j] = nearest(exp_r(val(x[j]) - lse) * f - each);
        if (here >= 0)
            x[here] = nearest(at); /* rounded once */
    }
}

static void xent_bwd(struct mc_pool *pool, const struct mc_xent *o)
{
    run(pool, xent_bwd_task, o, row_tasks(o->m, o->v));
}
