/* xent_part.inl - cross entropy over a vocabulary that lies in parts: what a part knows of a row,
 * and what the parts know together. A part without columns has the largest logit -inf and sums of
 * 0.
 *
 * lse = M + log sum_p s_p exp(m_p - M) over the parts' largest logits m_p and sums s_p, M the
 * largest of all. The join is fp64, in the order of the parts, so every rank that joins gets the
 * same bits. */
HOT static void xent_part_task(void *arg, int task, int thread)
{
    const struct mc_xent *o = arg;
    int64_t n = o->v, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->logits + r * o->ld;
        int64_t target = (int64_t)o->targets[r] - o->first;
        double *part = o->part + 4 * r;
        part[0] = -INFINITY;
        part[1] = part[2] = part[3] = 0;
        if (o->targets[r] < 0 || n == 0)
            continue;
        real a[LANES] = {0}, top = vec_max(x, n);
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++)
                a[j] += exp_r(val(x[i + j]) - top);
        for (int j = 0; i + j < n; j++)
            a[j] += exp_r(val(x[i + j]) - top);
        part[0] = (double)top;
        part[1] = (double)lanes_sum(a);
        part[2] = target >= 0 && target < n ? (double)val(x[target]) : 0;
        part[3] = o->smoothing > 0 ? (double)vec_sum(x, n) : 0;
    }
}

static void xent_part(struct mc_pool *pool, const struct mc_xent *o)
{
    run(pool, xent_part_task, o, row_tasks(o->m, o->v));
}

static void xent_join_task(void *arg, int task, int thread)
{
    const struct mc_xent *o = arg;
    int64_t n = o->all, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        double top = -INFINITY, sum = 0, hit = 0, total = 0, lse = 0, loss = 0;
        for (int64_t p = 0; p < o->parts; p++) {
            const double *part = o->part + 4 * (p * o->m + r);
            top = part[0] > top || part[0] != part[0] ? part[0] : top;
            hit += part[2];
            total += part[3];
        }
        for (int64_t p = 0; p < o->parts; p++) {
            const double *part = o->part + 4 * (p * o->m + r);
            if (part[1] != 0) /* else it has no columns */
                sum += part[1] * exp(part[0] - top);
        }
        if (o->targets[r] >= 0) {
            lse = log(sum);
            /* the small difference first, as in one part */
            loss = o->targets[r] < n ? lse + (top - hit) : (double)NAN;
            if (o->smoothing > 0)
                loss = (1 - o->smoothing) * loss + o->smoothing * (lse + (top - total / (double)n));
            lse += top;
            if (o->z > 0)
                loss += o->z * (lse * lse);
        }
        ((real *)o->lse)[r] = (real)lse;
        ((real *)o->loss)[r] = (real)loss;
    }
}

static void xent_join(struct mc_pool *pool, const struct mc_xent *o)
{
    run(pool, xent_join_task, o, row_tasks(o->m, o->all));
}
