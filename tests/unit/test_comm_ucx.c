/* test_comm_ucx.c - collectives among processes, against sums and moves written down plainly.
 * links: mc_comm test_ranks */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"
#include "../../core/comm/comm.h"
#include "../support/ranks.h"

enum { MAX_N = 100003, MAX_RANKS = 16 };
static const int64_t sizes[] = {0, 1, 3, 7, 129, 5000, MAX_N};
enum { NSIZES = sizeof sizes / sizeof *sizes };

/* ---- the reference: every rank knows what every other one has ---- */

static uint16_t bf16_of(double v) /* nearest even by looking at both neighbours */
{
    float f = (float)v, g, h;
    uint32_t lo, u;
    memcpy(&u, &f, 4);
    lo = u & 0xffff0000u;
    uint32_t hi = lo + 0x10000u;
    memcpy(&g, &lo, 4);
    memcpy(&h, &hi, 4);
    double below = fabs((double)f - (double)g), above = fabs((double)h - (double)f);
    int up = above < below || (above == below && (lo >> 16 & 1));
    return (uint16_t)((up ? hi : lo) >> 16);
}

static float of_bf16(uint16_t v)
{
    float f;
    uint32_t u = (uint32_t)v << 16;
    memcpy(&f, &u, 4);
    return f;
}

/* What member m has at i in a call of this salt: between -1 and 1, with full mantissas. */
static double value(int m, int64_t i, int salt)
{
    uint64_t h = mc_mix64(mc_mix64((uint64_t)i * 64 + (uint64_t)m) ^ (uint64_t)salt);
    return (double)(int64_t)h / 9223372036854775808.0;
}

static void store(enum mc_dtype t, void *at, int64_t i, double v)
{
    if (t == MC_F32)
        ((float *)at)[i] = (float)v;
    else if (t == MC_F64)
        ((double *)at)[i] = v;
    else if (t == MC_BF16)
        ((uint16_t *)at)[i] = bf16_of(v);
    else if (t == MC_I32)
        ((int32_t *)at)[i] = (int32_t)(v * 2e9);
    else if (t == MC_I64)
        ((int64_t *)at)[i] = (int64_t)(v * 9e18);
    else
        ((uint8_t *)at)[i] = (uint8_t)((int)(v * 127) + 128);
}

/* The sum or maximum over members at i, one element at a time. */
static void reference(enum mc_dtype t, enum mc_reduce op, void *at, int64_t i, int g, int salt)
{
    unsigned char one[8];
    float f = 0;
    double d = 0;
    uint64_t u = 0;
    int64_t most = INT64_MIN;
    for (int m = 0; m < g; m++) {
        store(t, one, 0, value(m, i, salt));
        float x;
        double y;
        int32_t w;
        int64_t z;
        uint16_t b;
        memcpy(&x, one, 4);
        memcpy(&y, one, 8);
        memcpy(&w, one, 4);
        memcpy(&z, one, 8);
        memcpy(&b, one, 2);
        if (t == MC_BF16)
            x = of_bf16(b);
        if (t == MC_I32)
            z = w;
        f = m == 0 ? x : op == MC_SUM ? f + x : fmaxf(f, x);
        d = m == 0 ? y : op == MC_SUM ? d + y : fmax(d, y);
        u += (uint64_t)z;
        most = z > most ? z : most;
    }
    uint64_t whole = op == MC_SUM ? u : (uint64_t)most;
    uint32_t half = (uint32_t)whole;
    uint16_t b = bf16_of((double)f);
    const void *from = t == MC_F32    ? (void *)&f
                       : t == MC_F64  ? (void *)&d
                       : t == MC_BF16 ? (void *)&b
                       : t == MC_I32  ? (void *)&half
                                      : (void *)&whole;
    size_t es = mc_dtype_size(t);
    memcpy((char *)at + (size_t)i * es, from, es);
}

/* Uneven counts, some 0; the same on all ranks. */
static void uneven(int64_t n, int g, int salt, int64_t *counts)
{
    int64_t left = n;
    for (int m = 0; m < g; m++) {
        uint64_t h = mc_mix64((uint64_t)(m * 1000 + salt));
        counts[m] = m == g - 1 ? left : h % 3 == 0 ? 0 : (int64_t)(h % (uint64_t)(left + 1));
        left -= counts[m];
    }
}

struct buffers {
    char *in, *out, *want;
};

static void done(struct test_rank *r, struct mc_comm *c, struct mc_comm_req *q)
{
    struct mc_err err = {0};
    if (c->ops->wait(c, q, 0, &err) != MC_OK)
        test_rank_fail(r, __FILE__, __LINE__, err.msg);
}

static void fill(enum mc_dtype t, void *at, int m, int64_t from, int64_t n, int salt)
{
    for (int64_t i = 0; i < n; i++)
        store(t, at, i, value(m, from + i, salt));
}

static void reductions(struct test_rank *r, struct mc_comm *c, struct buffers *b, enum mc_dtype t,
                       int64_t n, enum mc_reduce op, int salt)
{
    struct mc_comm_req *q;
    int g = r->world;
    int64_t counts[MAX_RANKS], at = 0;
    size_t es = mc_dtype_size(t), bytes = (size_t)n * es;
    for (int64_t i = 0; i < n; i++)
        reference(t, op, b->want, i, g, salt);
    for (int in_place = 0; in_place < 2; in_place++) {
        char *out = in_place ? b->in : b->out;
        fill(t, b->in, r->me, 0, n, salt);
        memset(b->out, 0x55, bytes + 8);
        RANK_CHECK(r, c->ops->all_reduce(c, b->in, out, n, t, op, NULL, &q, NULL) == MC_OK);
        done(r, c, q);
        RANK_CHECK(r, memcmp(out, b->want, bytes) == 0);
        RANK_CHECK(r, in_place || b->out[bytes] == 0x55);
    }
    uneven(n, g, salt, counts);
    for (int m = 0; m < r->me; m++)
        at += counts[m];
    for (int in_place = 0; in_place < 2; in_place++) {
        char *out = in_place ? b->in + (size_t)at * es : b->out;
        fill(t, b->in, r->me, 0, n, salt);
        RANK_CHECK(r,
                   c->ops->reduce_scatter(c, b->in, out, counts, t, op, NULL, &q, NULL) == MC_OK);
        done(r, c, q);
        RANK_CHECK(r, memcmp(out, b->want + (size_t)at * es, (size_t)counts[r->me] * es) == 0);
    }
}

static void moves(struct test_rank *r, struct mc_comm *c, struct buffers *b, enum mc_dtype t,
                  int64_t n, int salt)
{
    struct mc_comm_req *q;
    int g = r->world;
    int64_t counts[MAX_RANKS], mine = 0, at = 0;
    size_t es = mc_dtype_size(t);
    uneven(n, g, salt, counts);
    for (int m = 0; m < g; m++) { /* member m gives its elements from 0 on */
        if (m == r->me)
            mine = at;
        fill(t, b->want + (size_t)at * es, m, 0, counts[m], salt);
        at += counts[m];
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        char *in = in_place ? b->out + (size_t)mine * es : b->in;
        memset(b->out, 0x55, (size_t)n * es);
        fill(t, in, r->me, 0, counts[r->me], salt);
        RANK_CHECK(r, c->ops->all_gather(c, in, b->out, counts, t, NULL, &q, NULL) == MC_OK);
        done(r, c, q);
        RANK_CHECK(r, memcmp(b->out, b->want, (size_t)n * es) == 0);
    }
    int root = salt % g;
    fill(t, b->want, root, 0, n, salt);
    memset(b->out, 0x55, (size_t)n * es);
    if (r->me == root)
        memcpy(b->out, b->want, (size_t)n * es);
    RANK_CHECK(r, c->ops->broadcast(c, b->out, n, t, root, NULL, &q, NULL) == MC_OK);
    done(r, c, q);
    RANK_CHECK(r, memcmp(b->out, b->want, (size_t)n * es) == 0);
}

/* From m to k go count(m, k) elements, value(m * 16 + k, i). */
static void exchanges(struct test_rank *r, struct mc_comm *c, struct buffers *b, enum mc_dtype t,
                      int64_t n, int salt)
{
    struct mc_comm_req *q;
    int64_t send[MAX_RANKS], recv[MAX_RANKS], out = 0, in = 0;
    size_t es = mc_dtype_size(t);
    for (int k = 0; k < r->world; k++) {
        send[k] = (int64_t)(mc_mix64((uint64_t)(r->me * 16 + k + salt * 256)) % 4) * n / 64;
        recv[k] = (int64_t)(mc_mix64((uint64_t)(k * 16 + r->me + salt * 256)) % 4) * n / 64;
        fill(t, b->in + (size_t)out * es, r->me * 16 + k, 0, send[k], salt);
        fill(t, b->want + (size_t)in * es, k * 16 + r->me, 0, recv[k], salt);
        out += send[k];
        in += recv[k];
    }
    RANK_CHECK(r, c->ops->all_to_all(c, b->in, send, b->out, recv, t, NULL, &q, NULL) == MC_OK);
    done(r, c, q);
    RANK_CHECK(r, memcmp(b->out, b->want, (size_t)in * es) == 0);
    RANK_CHECK(r, c->ops->barrier(c, &q, NULL) == MC_OK);
    done(r, c, q);
}

/* Messages that members make in different numbers, between collectives of all. */
static void star(struct test_rank *r, struct mc_comm *c)
{
    struct mc_comm_req *q;
    for (int m = 1; m < r->world; m++) {
        int64_t v = r->me * 10;
        if (r->me == m)
            RANK_CHECK(r, c->ops->send(c, &v, 1, MC_I64, 0, 0, NULL, &q, NULL) == MC_OK);
        else if (r->me == 0)
            RANK_CHECK(r, c->ops->recv(c, &v, 1, MC_I64, m, 0, NULL, &q, NULL) == MC_OK);
        else
            continue;
        done(r, c, q);
        RANK_CHECK(r, v == m * 10);
    }
    int64_t one = 1;
    RANK_CHECK(r, c->ops->all_reduce(c, &one, &one, 1, MC_I64, MC_SUM, NULL, &q, NULL) == MC_OK);
    done(r, c, q);
    RANK_CHECK(r, one == r->world);
}

static void every_call(struct test_rank *r, void *arg)
{
    static const enum mc_dtype sums[] = {MC_F32, MC_F64, MC_BF16, MC_I32, MC_I64};
    (void)arg;
    struct mc_comm_net *net = test_rank_net(r, NULL, NULL);
    struct mc_comm *c = test_rank_group(r, net, "dp", NULL, 0, 60);
    struct buffers b = {malloc(MAX_N * 8 + 64), malloc(MAX_N * 8 + 64), malloc(MAX_N * 8 + 64)};
    int salt = 1;
    for (int k = 0; k < NSIZES; k++) {
        for (int t = 0; t < 5; t++) {
            reductions(r, c, &b, sums[t], sizes[k], MC_SUM, salt++);
            if (k < NSIZES - 1)
                reductions(r, c, &b, sums[t], sizes[k], MC_MAX, salt++);
        }
        for (int t = 0; t < MC_NDTYPES; t++)
            if (t != MC_F16 && t != MC_U16) /* nothing but their size would be new */
                moves(r, c, &b, (enum mc_dtype)t, sizes[k], salt++);
        exchanges(r, c, &b, MC_F64, sizes[k], salt++);
    }
    star(r, c);
    /* After the first round nothing is allocated. */
    uint64_t calls = mc_mem_stats().calls;
    reductions(r, c, &b, MC_F32, 129, MC_SUM, salt++);
    moves(r, c, &b, MC_F32, 5000, salt++);
    RANK_CHECK(r, mc_mem_stats().calls == calls);
    c->ops->destroy(c);
    mc_comm_net_close(net);
    free(b.in);
    free(b.out);
    free(b.want);
}

static void every_call_gives_what_the_plain_form_gives(void **state)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 8, 16};
    (void)state;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        assert_int_equal(test_ranks_run(worlds[i], every_call, NULL, 120, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_gives_what_the_plain_form_gives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
