/* ckpt_fixture.h - a small training state whose every byte is a function of (tensor, step, logical
 * index), so that what was loaded can be judged without the bytes that were saved. Used by the unit
 * tests of ckpt/ and by the fault drivers. Memory: calloc; this is a test, not the engine. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../ckpt/ckpt.h"

enum { FX_TENSORS = 6 };
struct fx {
    struct mc_state_tensor t[FX_TENSORS];
    int n;
};

static inline uint64_t fx_bits(const char *name, int64_t step, uint64_t index)
{
    uint64_t h = 1469598103934665603u ^ (uint64_t)step * 0x9e3779b97f4a7c15u;
    for (const char *c = name; *c; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    h ^= index * 0xc2b2ae3d27d4eb4fu;
    h ^= h >> 29;
    return h * 0xff51afd7ed558ccdu;
}

static inline size_t fx_elem(const struct mc_state_tensor *t)
{
    return t->dtype == MC_F64 ? 8 : t->dtype == MC_BF16 ? 2 : 4;
}

/* Logical index of element i of the box. */
static inline uint64_t fx_logical(const struct mc_state_tensor *t, int64_t i)
{
    int64_t at[MC_MAX_DIMS] = {0};
    uint64_t r = 0;
    for (int d = t->box.nd - 1; d >= 0; d--) {
        at[d] = t->box.lo[d] + i % t->box.n[d];
        i /= t->box.n[d];
    }
    for (int d = 0; d < t->shape.nd; d++)
        r = r * (uint64_t)t->shape.dim[d] + (uint64_t)at[d];
    return r;
}

static inline int64_t fx_count(const struct mc_state_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->box.nd; d++)
        n *= t->box.n[d];
    return n;
}

/* adam_m is mostly zeros, so that a compressed save has chunks of both kinds. */
static inline uint64_t fx_value(const struct mc_state_tensor *t, int64_t step, int64_t i)
{
    uint64_t at = fx_logical(t, i);
    return t->name[0] == 'a' && at % 16 ? 0 : fx_bits(t->name, step, at);
}

static inline void fx_fill(struct mc_state_tensor *t, int64_t step)
{
    size_t e = fx_elem(t);
    for (int64_t i = 0; i < fx_count(t); i++) {
        uint64_t v = fx_value(t, step, i);
        memcpy((char *)t->data + (size_t)i * e, &v, e);
    }
}

/* Index of the first element that is not step's, or -1. */
static inline int64_t fx_wrong(const struct mc_state_tensor *t, int64_t step)
{
    size_t e = fx_elem(t);
    for (int64_t i = 0; i < fx_count(t); i++) {
        uint64_t v = fx_value(t, step, i);
        if (memcmp((const char *)t->data + (size_t)i * e, &v, e))
            return i;
    }
    return -1;
}

static inline struct mc_state_tensor fx_tensor(const char *name, enum mc_dtype dtype, int nd,
                                               const int64_t *dim)
{
    struct mc_state_tensor t = {.dtype = dtype};
    snprintf(t.name, sizeof t.name, "%s", name);
    t.shape.nd = t.box.nd = nd;
    for (int d = 0; d < nd; d++)
        t.shape.dim[d] = t.box.n[d] = dim[d];
    t.data = calloc((size_t)fx_count(&t) + 1, fx_elem(&t));
    if (!t.data)
        exit(4); /* the fixture's own memory: says nothing about the engine */
    return t;
}

static inline void fx_make(struct fx *f, int64_t step)
{
    f->n = 0;
    f->t[f->n++] = fx_tensor("model/embed", MC_F32, 2, (int64_t[]){257, 16});
    f->t[f->n++] = fx_tensor("model/layers.0.w", MC_F32, 3, (int64_t[]){5, 3, 7});
    f->t[f->n++] = fx_tensor("model/scalar", MC_F64, 0, NULL);
    f->t[f->n++] = fx_tensor("model/half", MC_BF16, 1, (int64_t[]){33});
    f->t[f->n++] = fx_tensor("adam_m/embed", MC_F32, 2, (int64_t[]){257, 16});
    f->t[f->n++] = fx_tensor("adam_v/w", MC_F64, 4, (int64_t[]){2, 3, 4, 5});
    for (int i = 0; i < f->n; i++)
        fx_fill(&f->t[i], step);
}

static inline void fx_free(struct fx *f)
{
    for (int i = 0; i < f->n; i++)
        free(f->t[i].data);
    f->n = 0;
}

static inline void fx_clear(struct fx *f)
{
    for (int i = 0; i < f->n; i++)
        memset(f->t[i].data, 0xee, (size_t)fx_count(&f->t[i]) * fx_elem(&f->t[i]));
}

static inline int fx_all_right(const struct fx *f, int64_t step)
{
    for (int i = 0; i < f->n; i++)
        if (fx_wrong(&f->t[i], step) >= 0)
            return 0;
    return 1;
}

static inline const char *fx_books(int64_t step, char dst[256])
{
    snprintf(dst, 256,
             "{\"step\":%lld,\"tokens\":%lld,\"lr\":0.1,\"weights_hash\":\"%016llx\","
             "\"cursors\":[1,2,3]}",
             (long long)step, (long long)step * 100, (unsigned long long)fx_bits("w", step, 0));
    return dst;
}

static inline mc_status fx_save(const char *dir, struct fx *f, int64_t step, int epoch,
                                int compress, struct mc_err *err)
{
    char books[256];
    struct mc_ckpt_save s = {.ckpt_dir = dir,
                             .step = step,
                             .epoch = epoch,
                             .tensor = f->t,
                             .ntensors = f->n,
                             .books = fx_books(step, books),
                             .compress = compress};
    return mc_ckpt_save(&s, err);
}

/* Newest checkpoint of dir, loaded in full and judged. Returns its step; -1 none exists; -2 none is
 * whole or loading failed (err says); -3 its bytes are not its step's. */
static inline int64_t fx_newest(const char *dir, struct mc_err *err)
{
    char path[1100];
    struct mc_ckpt *c;
    struct fx f;
    mc_status st = mc_ckpt_resolve(dir, -1, path, err);
    if (st != MC_OK)
        return st == MC_E_NOTFOUND ? -1 : -2;
    if (mc_ckpt_open(path, &c, err) != MC_OK)
        return -2;
    fx_make(&f, 0);
    fx_clear(&f);
    int64_t step = mc_ckpt_step(c);
    st = mc_ckpt_load(c, f.t, f.n, 1, err);
    if (st != MC_OK)
        step = -2;
    else if (!fx_all_right(&f, step))
        step = -3;
    mc_ckpt_close(c);
    fx_free(&f);
    return step;
}
