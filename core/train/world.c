/* world.c - small exchanges over all ranks. Floor 6 (train).
 *
 * The common way of a vote is one number: the largest of (ranks - rank) over those that say no, 0
 * when nobody does. Only then the lowest of them sends what it has to say.
 *
 * I1  Nothing here but gather allocates.
 * Memory: gather's result is the caller's. Threads: the trainer's. */
#include "world.h"
#include "../base/arena.h"
#include <stdio.h>
#include <string.h>

struct mc_world mc_world_of(const struct mc_mesh *mesh, const struct mc_line *line)
{
    struct mc_world w = {.size = 1, .replicas = 1, .counts = 1};
    if (!mesh || mesh->layout.world == 1)
        return w;
    w.mesh = mesh;
    w.rank = mesh->rank;
    w.size = mesh->layout.world;
    w.replica = mesh->coord[MC_AXIS_DP];
    w.replicas = mesh->layout.size[MC_AXIS_DP];
    w.counts =
        mesh->coord[MC_AXIS_TP] == 0 && (!line || mesh->coord[MC_AXIS_PP] == mc_line_head(line));
    return w;
}

static mc_status reduce(const struct mc_world *w, void *v, int64_t n, enum mc_dtype dtype,
                        enum mc_reduce how, struct mc_err *err)
{
    struct mc_comm_req *r;
    if (!w->mesh)
        return MC_OK;
    struct mc_comm *c = w->mesh->world;
    MC_TRY(c->ops->all_reduce(c, v, v, n, dtype, how, NULL, &r, err));
    return c->ops->wait(c, r, 0, err);
}

static mc_status tell(const struct mc_world *w, void *buf, int64_t n, int root, struct mc_err *err)
{
    struct mc_comm_req *r;
    if (!w->mesh)
        return MC_OK;
    struct mc_comm *c = w->mesh->world;
    MC_TRY(c->ops->broadcast(c, buf, n, MC_U8, root, NULL, &r, err));
    return c->ops->wait(c, r, 0, err);
}

mc_status mc_world_sum(const struct mc_world *w, double *v, int64_t n, struct mc_err *err)
{
    return reduce(w, v, n, MC_F64, MC_SUM, err);
}

mc_status mc_world_sum_u64(const struct mc_world *w, uint64_t *v, int64_t n, struct mc_err *err)
{
    return reduce(w, v, n, MC_I64, MC_SUM, err);
}

mc_status mc_world_tell(const struct mc_world *w, void *buf, int64_t n, struct mc_err *err)
{
    return tell(w, buf, n, 0, err);
}

struct word { /* of the rank that says no */
    int32_t code, sys_errno, sound, rank;
    char msg[1000];
};

mc_status mc_world_vote(const struct mc_world *w, mc_status mine, int *sound, struct mc_err *err)
{
    struct mc_err own = {0};
    if (!w->mesh)
        return mine;
    if (!err)
        err = &own;
    if (mine == MC_E_TIMEOUT || mine == MC_E_PEER) /* world.h I2 */
        return mine;
    int64_t who = mine == MC_OK ? 0 : w->size - w->rank;
    mc_status st = reduce(w, &who, 1, MC_I64, MC_MAX, err);
    if (st != MC_OK)
        return mine != MC_OK ? mine : st; /* the first cause is kept */
    if (who == 0)
        return MC_OK;
    struct word word = {0};
    int root = w->size - (int)who;
    if (root == w->rank) {
        word = (struct word){mine, err->sys_errno, sound && *sound, w->rank, ""};
        snprintf(word.msg, sizeof word.msg, "%.999s", err->msg);
    }
    st = tell(w, &word, sizeof word, root, mine != MC_OK ? NULL : err);
    if (st != MC_OK)
        return mine != MC_OK ? mine : st;
    if (sound)
        *sound = word.sound;
    if (root != w->rank) {
        mc_err_clear(err);
        mc_err_set(err, word.code, "rank %d: %.1000s", word.rank, word.msg);
        err->sys_errno = word.sys_errno;
    }
    return word.code;
}

/* To the control rank: each other one sends, in rank order. */
static mc_status move(const struct mc_world *w, const void *mine, const int64_t *count,
                      unsigned char *got, struct mc_err *err)
{
    struct mc_comm *c = w->mesh->world;
    struct mc_comm_req *r;
    if (w->rank != 0) {
        if (count[w->rank] == 0)
            return MC_OK;
        MC_TRY(c->ops->send(c, mine, count[w->rank], MC_U8, 0, 0, NULL, &r, err));
        return c->ops->wait(c, r, 0, err);
    }
    if (count[0] > 0)
        memcpy(got, mine, (size_t)count[0]);
    int64_t at = count[0];
    for (int i = 1; i < w->size; at += count[i], i++) {
        if (count[i] == 0)
            continue;
        MC_TRY(c->ops->recv(c, got + at, count[i], MC_U8, i, 0, NULL, &r, err));
        MC_TRY(c->ops->wait(c, r, 0, err));
    }
    return MC_OK;
}

static mc_status sizes(const struct mc_world *w, int64_t n, int64_t *ones, int64_t *count,
                       struct mc_err *err)
{
    struct mc_comm *c = w->mesh->world;
    struct mc_comm_req *r;
    for (int i = 0; i < w->size; i++)
        ones[i] = 1;
    MC_TRY(c->ops->all_gather(c, &n, count, ones, MC_I64, NULL, &r, err));
    return c->ops->wait(c, r, 0, err);
}

mc_status mc_world_gather(const struct mc_world *w, const void *mine, int64_t n, void **all,
                          int64_t **bytes, struct mc_err *err)
{
    int64_t sum = 0;
    int64_t *count = mc_alloc((size_t)w->size * sizeof *count, "counts of a gather");
    int64_t *ones = mc_alloc((size_t)w->size * sizeof *ones, "counts of a gather");
    unsigned char *got = NULL;
    mc_status st = count && ones ? MC_OK
                                 : mc_err_set(err, MC_E_NOMEM,
                                              "no memory for the counts of %d ranks", w->size);
    st = mc_world_vote(w, st, NULL, err);
    if (st == MC_OK)
        st = sizes(w, mine ? n : 0, ones, count, err);
    for (int i = 0; i < w->size && st == MC_OK; i++)
        sum += count[i];
    if (st == MC_OK && w->rank == 0 && !(got = mc_alloc((size_t)sum + 1, "what the ranks sent")))
        st = mc_err_set(err, MC_E_NOMEM, "no memory for %lld bytes of the ranks", (long long)sum);
    st = mc_world_vote(w, st, NULL, err); /* nobody sends to one who cannot receive */
    if (st == MC_OK)
        st = move(w, mine, count, got, err);
    mc_free(ones);
    if (st == MC_OK && w->rank == 0) {
        *all = got;
        *bytes = count;
        return MC_OK;
    }
    mc_free(got);
    mc_free(count);
    return st;
}

static mc_status vote_of_writer(void *arg, mc_status mine, struct mc_err *err)
{
    return mc_world_vote(arg, mine, NULL, err);
}

static mc_status gather_of_writer(void *arg, const void *mine, int64_t n, void **all,
                                  int64_t **bytes, struct mc_err *err)
{
    return mc_world_gather(arg, mine, n, all, bytes, err);
}

struct mc_ckpt_group mc_world_writers(const struct mc_world *w)
{
    return (struct mc_ckpt_group){.me = w->rank,
                                  .n = w->size,
                                  .arg = (void *)(uintptr_t)w,
                                  .vote = vote_of_writer,
                                  .gather = gather_of_writer};
}
