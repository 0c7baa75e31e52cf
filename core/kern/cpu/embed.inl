/* embed.inl - token and position tables, and rotary positions.
 *
 * The gradients of the tables add rows in ascending row order, whoever computes them: a task owns a
 * range of columns (token table) or of positions (position table) and walks all its rows. */
#define EMBED_COLS 64 /* columns of a backward task: one 256-byte piece of each fp32 row */

INL int64_t held_end(const struct mc_embed *o)
{
    return o->end ? o->end : o->vocab;
}

static void embed_task(void *arg, int task, int thread)
{
    const struct mc_embed *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        stored *y = (stored *)o->y + r * o->ldy;
        int64_t id = o->ids[r];
        if (id >= o->first && id < held_end(o)) {
            memcpy(y, (const stored *)o->w + (id - o->first) * n, (size_t)n * sizeof(stored));
            continue;
        }
        if (id >= 0 && id < o->vocab) { /* another part's */
            memset(y, 0, (size_t)n * sizeof(stored));
            continue;
        }
        for (int64_t j = 0; j < n; j++)
            y[j] = nearest((real)NAN);
    }
}

static void embed(struct mc_pool *pool, const struct mc_embed *o)
{
    run(pool, embed_task, o, row_tasks(o->m, o->c));
}

HOT static void embed_bwd_task(void *arg, int task, int thread)
{
    const struct mc_embed *o = arg;
    int64_t c0 = task * EMBED_COLS, n = min_i64(EMBED_COLS, o->c - c0);
    (void)thread;
    for (int64_t r = 0; r < o->m; r++) {
        int64_t id = o->ids[r];
        if (id < o->first || id >= held_end(o))
            continue;
        real *dw = (real *)o->dw + (id - o->first) * o->c + c0;
        const stored *dy = (const stored *)o->dy + r * o->lddy + c0;
        EACH for (int64_t j = 0; j < n; j++) dw[j] += val(dy[j]);
    }
}

static void embed_bwd(struct mc_pool *pool, const struct mc_embed *o)
{
    run(pool, embed_bwd_task, o, (int)((o->c + EMBED_COLS - 1) / EMBED_COLS));
}

HOT static void positions_task(void *arg, int task, int thread)
{
    const struct mc_embed *o = arg;
    int64_t n = o->c, r0 = task * rows_per_task(n), r1 = min_i64(r0 + rows_per_task(n), o->m);
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        const stored *x = (const stored *)o->x + r * o->ldx;
        const stored *w = (const stored *)o->w + (o->pos0 + (o->row0 + r) % o->t) * n;
        stored *y = (stored *)o->y + r * o->ldy;
        EACH for (int64_t j = 0; j < n; j++) y[j] = nearest(val(x[j]) + val(w[j]));
    }
}

static void positions(struct mc_pool *pool, const struct mc_embed *o)
{
    run(pool, positions_task, o, row_tasks(o->m, o->c));
}

HOT static void positions_bwd_task(void *arg, int task, int thread)
{
    const struct mc_embed *o = arg;
    int64_t n = o->c, t0 = task * rows_per_task(n), t1 = min_i64(t0 + rows_per_task(n), o->t);
    (void)thread;
    for (int64_t t = t0; t < t1; t++) {
        real *dw = (real *)o->dw + (o->pos0 + t) * n;
        int64_t from = (t - o->row0 % o->t + o->t) % o->t; /* the first row at position t */
        for (int64_t r = from; r < o->m; r += o->t) {
            const stored *dy = (const stored *)o->dy + r * o->lddy;
            EACH for (int64_t j = 0; j < n; j++) dw[j] += val(dy[j]);
        }
    }
}

static void positions_bwd(struct mc_pool *pool, const struct mc_embed *o)
{
    run(pool, positions_bwd_task, o, row_tasks(o->t, o->c));
}

/* -- Rotary positions ------------------------------------------------------------------------- */

/* One head, h = T / 2: (x_i, x_i+h), or interleaved (x_2i, x_2i+1), turned by the angle of
 * (position, i). Both are read before either is written, so y may be x. What lies beyond the turned
 * pairs keeps its place and value. */
INL void rope_head(const stored *x, stored *y, const real *co, const real *si, real sign, int64_t h)
{
    EACH for (int64_t i = 0; i < h; i++)
    {
        real a = val(x[i]), b = val(x[i + h]), s = sign * si[i];
        y[i] = nearest(a * co[i] - b * s);
        y[i + h] = nearest(b * co[i] + a * s);
    }
}

INL void rope_head_pairs(const stored *x, stored *y, const real *co, const real *si, real sign,
                         int64_t h)
{
    EACH for (int64_t i = 0; i < h; i++)
    {
        real a = val(x[2 * i]), b = val(x[2 * i + 1]), s = sign * si[i];
        y[2 * i] = nearest(a * co[i] - b * s);
        y[2 * i + 1] = nearest(b * co[i] + a * s);
    }
}

HOT static void rope_task(void *arg, int task, int thread)
{
    const struct mc_rope *o = arg;
    int64_t per = rows_per_task(o->heads * o->d), h = (o->turned ? o->turned : o->d) / 2;
    int64_t r0 = task * per, r1 = min_i64(r0 + per, o->b * o->t);
    real sign = o->inverse ? (real)-1 : (real)1;
    (void)thread;
    for (int64_t r = r0; r < r1; r++) {
        int64_t pos = o->pos0 + r % o->t;
        const real *co = (const real *)o->cos + pos * h, *si = (const real *)o->sin + pos * h;
        for (int64_t k = 0; k < o->heads; k++) {
            const stored *x = (const stored *)o->x + r * o->ldx + k * o->d;
            stored *y = (stored *)o->y + r * o->ldy + k * o->d;
            if (o->interleaved)
                rope_head_pairs(x, y, co, si, sign, h);
            else
                rope_head(x, y, co, si, sign, h);
            for (int64_t i = 2 * h; i < o->d; i++)
                y[i] = x[i];
        }
    }
}

static void rope(struct mc_pool *pool, const struct mc_rope *o)
{
    run(pool, rope_task, o, row_tasks(o->b * o->t, o->heads * o->d));
}
