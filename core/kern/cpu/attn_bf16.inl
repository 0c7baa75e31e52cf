/* attn_bf16.inl - attention on bf16 operands: one sequence at a time is widened into scratch, goes
 * through the fp32 kernels, and its outputs are rounded once.
 *
 * I1  Scores and probabilities stay fp32, o, dq, dk and dv are rounded at the end; lse is fp32.
 *     Backward reads the rounded o, as any op reads what another left in memory. Shapes: as
 *     attn.inl's, of one sequence. Scratch: WIDE_Q matrices of T x heads D and WIDE_KV of T x
 *     kv_heads D, then what the fp32 kernels want. */
#define WIDE_Q  4 /* q, o, d_o, dq */
#define WIDE_KV 4 /* k, v, dk, dv */

static int64_t wide_size(int64_t t, int64_t cols)
{
    return (t * cols + LANES - 1) / LANES * LANES;
}

static size_t attn_scratch(int64_t b, int64_t t, int64_t heads, int64_t kv_heads, int64_t d,
                           int threads)
{
    (void)b;
    int64_t wide = WIDE_Q * wide_size(t, heads * d) + WIDE_KV * wide_size(t, kv_heads * d);
    return (size_t)wide * sizeof(real) + WIDE_TABLE.attn_scratch(1, t, heads, kv_heads, d, threads);
}

/* [rows, cols] between memory (ld) and scratch (packed). */
struct wide_copy {
    int64_t rows, cols;
    stored *x;
    int64_t ldx;
    real *wide;
    int back;
};

static void wide_copy_task(void *arg, int task, int thread)
{
    const struct wide_copy *o = arg;
    int64_t r0 = task * rows_per_task(o->cols);
    int64_t rows = min_i64(rows_per_task(o->cols), o->rows - r0);
    (void)thread;
    if (o->back)
        narrow(o->x + r0 * o->ldx, o->ldx, o->wide + r0 * o->cols, rows, o->cols, 0, NULL);
    else
        widen(o->wide + r0 * o->cols, o->x + r0 * o->ldx, o->ldx, rows, o->cols);
}

/* Widens `x` to the next room of scratch. */
static real *wide_in(struct mc_pool *pool, real **room, int64_t rows, int64_t cols, const stored *x,
                     int64_t ldx)
{
    struct wide_copy o = {rows, cols, (stored *)(uintptr_t)x, ldx, *room, 0};
    *room += wide_size(rows, cols);
    run(pool, wide_copy_task, &o, row_tasks(rows, cols));
    return o.wide;
}

static real *wide_room(real **room, int64_t rows, int64_t cols)
{
    real *at = *room;
    *room += wide_size(rows, cols);
    return at;
}

static void wide_out(struct mc_pool *pool, const real *wide, int64_t rows, int64_t cols, stored *x,
                     int64_t ldx)
{
    struct wide_copy o = {rows, cols, x, ldx, (real *)(uintptr_t)wide, 1};
    run(pool, wide_copy_task, &o, row_tasks(rows, cols));
}

/* Sequence `seq` of f, its operands widened; w.scratch is what is left of the room. */
static struct mc_attn wide_sequence(struct mc_pool *pool, const struct mc_attn *f, int64_t seq,
                                    real **room)
{
    struct mc_attn w = *f;
    int64_t row = seq * f->t, qc = f->heads * f->d, kc = f->kv_heads * f->d;
    w.b = 1;
    w.q = wide_in(pool, room, f->t, qc, (const stored *)f->q + row * f->ldq, f->ldq);
    w.k = wide_in(pool, room, f->t, kc, (const stored *)f->k + row * f->ldk, f->ldk);
    w.v = wide_in(pool, room, f->t, kc, (const stored *)f->v + row * f->ldv, f->ldv);
    w.ldq = w.ldo = qc;
    w.ldk = w.ldv = kc;
    w.lse = (real *)f->lse + row * f->heads;
    if (f->mask.start)
        w.mask.start = f->mask.start + row;
    return w;
}

static void attn(struct mc_pool *pool, const struct mc_attn *f)
{
    int64_t qc = f->heads * f->d;
    for (int64_t seq = 0; seq < f->b; seq++) {
        real *room = f->scratch;
        struct mc_attn w = wide_sequence(pool, f, seq, &room);
        w.o = wide_room(&room, f->t, qc);
        w.scratch = room;
        WIDE_TABLE.attn(pool, &w);
        wide_out(pool, w.o, f->t, qc, (stored *)f->o + seq * f->t * f->ldo, f->ldo);
    }
}

static void attn_bwd(struct mc_pool *pool, const struct mc_attn_grad *g)
{
    const struct mc_attn *f = &g->f;
    int64_t t = f->t, qc = f->heads * f->d, kc = f->kv_heads * f->d;
    for (int64_t seq = 0; seq < f->b; seq++) {
        real *room = g->scratch;
        struct mc_attn_grad w = {.f = wide_sequence(pool, f, seq, &room)};
        int64_t row = seq * t;
        w.f.o = wide_in(pool, &room, t, qc, (const stored *)f->o + row * f->ldo, f->ldo);
        w.d_o = wide_in(pool, &room, t, qc, (const stored *)g->d_o + row * g->lddo, g->lddo);
        w.dq = wide_room(&room, t, qc);
        w.dk = wide_room(&room, t, kc);
        w.dv = wide_room(&room, t, kc);
        w.lddo = w.lddq = qc;
        w.lddk = w.lddv = kc;
        w.scratch = w.f.scratch = room;
        WIDE_TABLE.attn_bwd(pool, &w);
        wide_out(pool, w.dq, t, qc, (stored *)g->dq + row * g->lddq, g->lddq);
        wide_out(pool, w.dk, t, kc, (stored *)g->dk + row * g->lddk, g->lddk);
        wide_out(pool, w.dv, t, kc, (stored *)g->dv + row * g->lddv, g->lddv);
    }
}

static void attn_cached(struct mc_pool *pool, const struct mc_attn_cached *f)
{
    struct mc_attn_cached w = *f;
    int64_t qc = f->heads * f->d, kc = f->kv_heads * f->d, keys = f->pos0 + f->t;
    real *room = f->scratch;
    w.q = wide_in(pool, &room, f->t, qc, f->q, f->ldq);
    w.kc = wide_in(pool, &room, keys, kc, f->kc, f->ldc);
    w.vc = wide_in(pool, &room, keys, kc, f->vc, f->ldc);
    w.o = wide_room(&room, f->t, qc);
    w.ldq = w.ldo = qc;
    w.ldc = kc;
    w.scratch = room;
    WIDE_TABLE.attn_cached(pool, &w);
    wide_out(pool, w.o, f->t, qc, f->o, f->ldo);
}
