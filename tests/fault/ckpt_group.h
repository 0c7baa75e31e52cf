/* ckpt_group.h - several writers of one checkpoint, as threads that take turns: a writer runs until
 * it votes or hands over its table, then the next one does. So the order of all system calls is the
 * same in every run, and the n-th of them can be made to fail. Used by the unit tests of ckpt/ and
 * by the fault drivers. Memory: calloc, and mc_alloc for what ckpt/ frees. */
#pragma once
#include <pthread.h>
#include "ckpt_fixture.h"
#include "../../core/base/arena.h"

enum { FX_WRITERS = 4 };
struct fx_group {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int n, turn;
    struct fx_slot { /* of two rounds, so that the next one does not overwrite what is still read */
        mc_status st;
        struct mc_err err;
        const void *bytes;
        int64_t nbytes;
    } slot[2][FX_WRITERS];
};
struct fx_writer {
    struct fx_group *g;
    int me, rounds;
    struct mc_ckpt_group group;
    struct mc_ckpt_save save;
    struct fx state; /* its boxes */
    char books[256];
    mc_status st;
    struct mc_err err;
};

static inline void fx_await_turn(struct fx_writer *w)
{
    pthread_mutex_lock(&w->g->lock);
    while (w->g->turn != w->me)
        pthread_cond_wait(&w->g->moved, &w->g->lock);
    pthread_mutex_unlock(&w->g->lock);
}

static inline void fx_pass_turn(struct fx_writer *w)
{
    pthread_mutex_lock(&w->g->lock);
    w->g->turn = (w->me + 1) % w->g->n;
    pthread_cond_broadcast(&w->g->moved);
    pthread_mutex_unlock(&w->g->lock);
}

/* Leaves `mine` for the others; all of theirs are there on return. */
static inline const struct fx_slot *fx_share(struct fx_writer *w, const struct fx_slot *mine)
{
    struct fx_slot *round = w->g->slot[w->rounds++ & 1];
    round[w->me] = *mine;
    fx_pass_turn(w);
    fx_await_turn(w);
    return round;
}

static inline mc_status fx_vote(void *arg, mc_status mine, struct mc_err *err)
{
    struct fx_writer *w = arg;
    struct fx_slot s = {.st = mine, .err = *err};
    const struct fx_slot *all = fx_share(w, &s);
    for (int i = 0; i < w->g->n; i++)
        if (all[i].st != MC_OK) {
            *err = all[i].err;
            return all[i].st;
        }
    return MC_OK;
}

static inline mc_status fx_gather(void *arg, const void *mine, int64_t n, void **all,
                                  int64_t **bytes, struct mc_err *err)
{
    struct fx_writer *w = arg;
    struct fx_slot s = {.bytes = mine, .nbytes = mine ? n : 0};
    const struct fx_slot *got = fx_share(w, &s);
    int64_t sum = 0;
    mc_status st = MC_OK;
    if (w->me == 0) {
        char *p;
        for (int i = 0; i < w->g->n; i++)
            sum += got[i].nbytes;
        *bytes = mc_alloc((size_t)w->g->n * sizeof **bytes, "tables");
        *all = p = mc_alloc((size_t)sum + 1, "tables");
        if (!*all || !*bytes)
            st = mc_err_set(err, MC_E_NOMEM, "no memory for the tables");
        for (int i = 0; i < w->g->n && st == MC_OK; p += got[i].nbytes, i++) {
            if (got[i].nbytes)
                memcpy(p, got[i].bytes, (size_t)got[i].nbytes);
            (*bytes)[i] = got[i].nbytes;
        }
    }
    s = (struct fx_slot){0}; /* the senders keep their bytes until they have been copied */
    fx_share(w, &s);
    return st;
}

/* Writer `me` of n: rows of most tensors, columns of one, a scalar whole. Data is step's. */
static inline void fx_make_part(struct fx *f, int64_t step, int me, int n)
{
    struct fx whole;
    fx_make(&whole, step);
    f->n = 0;
    for (int i = 0; i < whole.n; i++) {
        struct mc_state_tensor t = whole.t[i];
        int d = i == 1 ? 2 : 0; /* model/layers.0.w: by columns */
        free(t.data);
        if (t.shape.nd == 0 && me != i % n)
            continue;
        if (t.shape.nd > 0) {
            int64_t a = t.shape.dim[d] * me / n, z = t.shape.dim[d] * (me + 1) / n;
            if (a == z)
                continue;
            t.box.lo[d] = a;
            t.box.n[d] = z - a;
        }
        t.data = calloc((size_t)fx_count(&t) + 1, fx_elem(&t));
        if (!t.data)
            exit(4);
        fx_fill(&t, step);
        f->t[f->n++] = t;
    }
}

static inline void fx_group_init(struct fx_group *g, struct fx_writer w[FX_WRITERS], int n,
                                 const char *dir, int64_t step, int epoch, int compress)
{
    memset(g, 0, sizeof *g);
    memset(w, 0, sizeof *w * FX_WRITERS);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->moved, NULL);
    g->n = n;
    for (int i = 0; i < n; i++) {
        w[i].g = g;
        w[i].me = i;
        fx_make_part(&w[i].state, step, i, n);
        w[i].group = (struct mc_ckpt_group){
            .me = i, .n = n, .arg = &w[i], .vote = fx_vote, .gather = fx_gather};
        w[i].save = (struct mc_ckpt_save){.ckpt_dir = dir,
                                          .step = step,
                                          .epoch = epoch,
                                          .tensor = w[i].state.t,
                                          .ntensors = w[i].state.n,
                                          .books = i ? NULL : fx_books(step, w[i].books),
                                          .group = &w[i].group,
                                          .compress = compress};
    }
}

static inline void *fx_write(void *arg)
{
    struct fx_writer *w = arg;
    fx_await_turn(w);
    w->st = mc_ckpt_save(&w->save, &w->err);
    fx_pass_turn(w);
    return NULL;
}

/* Runs the save on all; verdicts in w[i].st. */
static inline void fx_group_run(struct fx_group *g, struct fx_writer w[FX_WRITERS])
{
    pthread_t id[FX_WRITERS];
    for (int i = 0; i < g->n; i++)
        if (pthread_create(&id[i], NULL, fx_write, &w[i]))
            exit(4);
    for (int i = 0; i < g->n; i++)
        pthread_join(id[i], NULL);
    for (int i = 0; i < g->n; i++)
        fx_free(&w[i].state);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->moved);
}

/* One save by n writers; a verdict that is not everybody's is a bug of its own. */
static inline mc_status fx_save_by(int n, const char *dir, int64_t step, int epoch, int compress,
                                   struct mc_err *err)
{
    static struct fx_group g;
    static struct fx_writer w[FX_WRITERS];
    fx_group_init(&g, w, n, dir, step, epoch, compress);
    fx_group_run(&g, w);
    for (int i = 1; i < n; i++)
        if (w[i].st != w[0].st)
            return mc_err_set(err, MC_E_BUG, "writer 0 says %s, writer %d %s",
                              mc_status_name(w[0].st), i, mc_status_name(w[i].st));
    if (w[0].st != MC_OK)
        *err = w[0].err;
    return w[0].st;
}
