/* test_sampler.c - the computed order: each sample once an epoch, shares, independence, cursors.
 * links: mc_data */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/data/data_int.h"

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/mc-order-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    static const int size[4] = {501, 1300, 77, 4000}; /* K at T = 10: 50, 130, 7, 400 */
    for (int i = 0; i < 4; i++) {
        char p[96];
        snprintf(p, sizeof p, "%s/s%d", dir, i);
        FILE *f = fopen(p, "w");
        for (int k = 0; k < size[i]; k++)
            fputc('a' + k % 26, f);
        fclose(f);
    }
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

/* Sources s0, s1 ... of the given weights; 0: left out. */
static struct mc_recipe *recipe(const double *weight, int n)
{
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    r->seed = 1234;
    r->model.seq = 10;
    r->model.vocab = MC_BYTES_VOCAB;
    strcpy(r->data.tokenizer, "bytes");
    for (int i = 0; i < n; i++)
        if (weight[i] > 0) {
            struct mc_source_cfg *c = &r->data.train[r->data.ntrain++];
            snprintf(c->path, sizeof c->path, "s%d", i);
            c->weight = weight[i];
        }
    return r;
}

static struct mc_data *opened(const struct mc_recipe *r)
{
    struct mc_data *d;
    struct mc_err err = {0};
    if (mc_data_open(r, dir, &d, &err) != MC_OK)
        fail_msg("%s", err.msg);
    return d;
}

static struct mc_data *with(const double *weight, int n, int64_t seed)
{
    struct mc_recipe *r = recipe(weight, n);
    r->seed = seed;
    struct mc_data *d = opened(r);
    test_free(r);
    return d;
}

/* The order in which one source's samples come out of n draws: indices, and how many. */
static int order_of(const struct mc_data *d, const char *name, int64_t draws, uint64_t *out)
{
    struct mc_cursor c;
    int n = 0;
    mc_cursor_init(d, &c);
    for (int64_t i = 0; i < draws; i++) {
        struct mc_sample s;
        mc_data_draw(d, &c, 1, &s);
        if (strstr(mc_data_source_name(d, s.source), name))
            out[n++] = s.index;
    }
    return n;
}

static void sampler_gives_each_sample_once_an_epoch(void **state)
{
    (void)state;
    static const double w[4] = {0, 0, 0, 1};
    struct mc_data *d = with(w, 4, 1234);
    struct mc_cursor c;
    struct mc_sample s;
    uint64_t first[400], fixed = 0, same = 0;
    mc_cursor_init(d, &c);
    for (uint64_t e = 0; e < 5; e++) {
        int seen[400] = {0};
        for (int i = 0; i < 400; i++) {
            mc_data_draw(d, &c, 1, &s);
            assert_true(s.epoch == e && s.index < 400);
            assert_int_equal(seen[s.index]++, 0);
            same += e > 0 && first[i] == s.index;
            fixed += s.index == (uint64_t)i;
            if (e == 0)
                first[i] = s.index;
        }
    }
    assert_true(same < 20 && fixed < 20); /* chance gives 4 and 5 */
    mc_data_close(d);
}

static void sampler_order_follows_seed_and_name_only(void **state)
{
    (void)state;
    static const double alone[2] = {0, 1}, pair[4] = {3, 1}, crowd[4] = {0.1, 5, 0.7, 2};
    uint64_t a[130], b[4000], c[4000], o[130];
    struct mc_data *d = with(alone, 2, 7);
    assert_int_equal(order_of(d, "/s1", 130, a), 130);
    mc_data_close(d);
    d = with(pair, 2, 7);
    assert_true(order_of(d, "/s1", 700, b) >= 130);
    mc_data_close(d);
    d = with(crowd, 4, 7);
    assert_true(order_of(d, "/s1", 700, c) >= 130);
    mc_data_close(d);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(a, c, sizeof a);
    d = with(alone, 2, 8);
    order_of(d, "/s1", 130, o);
    assert_memory_not_equal(a, o, sizeof a);
    mc_data_close(d);
}

/* Batches of 1, 7 and 64: the same draws; and drawing takes no memory. */
static void sampler_order_knows_no_batch(void **state)
{
    (void)state;
    static const double w[4] = {1, 2, 3, 4};
    struct mc_data *d = with(w, 4, 1234);
    static struct mc_sample a[448], b[448];
    struct mc_cursor c, e;
    uint64_t calls = mc_mem_stats().calls;
    mc_cursor_init(d, &c);
    mc_data_draw(d, &c, 448, a);
    for (int size = 1; size <= 64; size = size == 1 ? 7 : size == 7 ? 64 : 65) {
        mc_cursor_init(d, &e);
        for (int i = 0; i < 448; i += size)
            mc_data_draw(d, &e, size, b + i);
        for (int i = 0; i < 448; i++)
            assert_true(a[i].source == b[i].source && a[i].index == b[i].index &&
                        a[i].epoch == b[i].epoch);
        assert_memory_equal(&c, &e, sizeof c);
    }
    assert_int_equal(mc_mem_stats().calls, calls);
    mc_data_close(d);
}

static void shares_hold(const double *weight, int n, uint64_t draws)
{
    struct mc_cursor c = {.nsources = n};
    double sum = 0, share[MC_MAX_SOURCES];
    for (int i = 0; i < n; i++)
        sum += weight[i];
    for (int i = 0; i < n; i++) {
        share[i] = weight[i] / sum;
        c.taken[i] = c.phase_base[i] = 1000 + (uint64_t)i; /* counted from here */
    }
    for (uint64_t t = 0; t < draws; t++) {
        c.taken[mc_order_next(share, n, &c, t)]++;
        for (int i = 0; i < n; i++) {
            double off = (double)(c.taken[i] - c.phase_base[i]) - share[i] * (double)(t + 1);
            if (!(fabs(off) < 1 + 1e-9))
                fail_msg("source %d of %d is off by %.3f after %d draws", i, n, off, (int)t + 1);
        }
    }
}

/* In every prefix each source has given its share, to one sample. The first rows are blends for
 * which a rule that takes the source furthest behind leaves one 1.1 to 1.2 samples behind. */
static void sampler_shares_stay_within_one_sample(void **state)
{
    (void)state;
    static const double w[][12] = {
        {0.288, 1.084, 0.004, 1.585, 0.306, 0.973, 61.44, 8.458, 49.489, 12.089, 0.43, 0.069},
        {0.113, 0.349, 0.15, 0.002, 2.156, 32.116, 22.3, 3.034},
        {0.047, 0.501, 0.016, 0.507, 0.001},
        {0.8, 0.2},
        {1, 1, 1, 1},
        {0.5, 0.25, 0.125, 0.125},
        {3.14159, 2.71828, 1.41421, 0.57721},
        {1},
    };
    static const int n[8] = {12, 8, 5, 2, 4, 4, 4, 1};
    for (int k = 0; k < 8; k++)
        shares_hold(w[k], n[k], 20000);
    uint64_t s = 88172645463325252ull;
    for (int round = 0; round < 300; round++) {
        double x[MC_MAX_SOURCES];
        int many = 2 + round % (MC_MAX_SOURCES - 1);
        for (int i = 0; i < many; i++) {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            x[i] = pow((double)(s % 1000 + 1) / 1000, 4);
        }
        shares_hold(x, many, 2000);
    }
}

/* New weights at draw 333: every source goes on where it was, and the new shares hold from there.
 */
static void sampler_weights_change_without_repeats(void **state)
{
    (void)state;
    static const double before[4] = {1, 1, 0.2, 6}, after[4] = {4, 2, 0.2, 1};
    struct mc_data *d = with(before, 4, 1234), *e = with(after, 4, 1234);
    struct mc_cursor c, r;
    struct mc_json j;
    struct mc_sample x;
    uint64_t next[4] = {0};
    mc_cursor_init(d, &c);
    for (int i = 0; i < 333; i++) {
        mc_data_draw(d, &c, 1, &x);
        next[x.source]++;
    }
    mc_json_init_grow(&j);
    mc_cursor_write(d, &c, &j);
    struct mc_err err = {0};
    if (mc_cursor_read(e, j.buf, &r, 1, &err) != MC_OK)
        fail_msg("%s", err.msg);
    uint64_t given[4] = {0};
    for (int64_t n = 1; n <= 1000; n++) {
        uint64_t index, epoch;
        mc_data_draw(e, &r, 1, &x);
        mc_order_sample(&e->order[x.source], next[x.source]++, &index, &epoch);
        assert_true(x.index == index && x.epoch == epoch);
        given[x.source]++;
        for (int s = 0; s < 4; s++)
            assert_true(fabs((double)given[s] - after[s] / 7.2 * (double)n) < 1 + 1e-9);
    }
    mc_json_fini(&j);
    mc_data_close(d);
    mc_data_close(e);
}

static void sampler_cursor_round_trip(void **state)
{
    (void)state;
    static const double w[4] = {1, 2, 3, 4};
    struct mc_data *d = with(w, 4, 1234);
    struct mc_cursor c, r;
    struct mc_json j;
    static struct mc_sample a[100], b[100];
    mc_cursor_init(d, &c);
    c.taken[0] = (uint64_t)1 << 62; /* beyond a double */
    c.phase_base[0] = ((uint64_t)1 << 62) - 3;
    mc_data_draw(d, &c, 57, a);
    mc_json_init_grow(&j);
    mc_cursor_write(d, &c, &j);
    assert_false(j.failed);
    assert_int_equal(mc_cursor_read(d, j.buf, &r, 0, NULL), MC_OK);
    assert_memory_equal(&c, &r, sizeof c);
    mc_data_draw(d, &c, 100, a);
    mc_data_draw(d, &r, 100, b);
    assert_memory_equal(&c, &r, sizeof c);
    for (int i = 0; i < 100; i++)
        assert_true(a[i].source == b[i].source && a[i].index == b[i].index);
    mc_json_fini(&j);
    mc_data_close(d);
}

static void sampler_cursor_refuses_other_sources(void **state)
{
    (void)state;
    static const double two[4] = {1, 1}, other[4] = {1, 0, 1}, three[4] = {1, 1, 1};
    struct mc_data *d = with(two, 2, 1234);
    struct mc_cursor c;
    struct mc_json j;
    mc_cursor_init(d, &c);
    mc_json_init_grow(&j);
    mc_cursor_write(d, &c, &j);
    static const struct {
        const double *w;
        int64_t seq;
        mc_status st;
        const char *says;
    } k[4] = {{two, 10, MC_OK, ""},
              {other, 10, MC_E_RECIPE, "source 2 was"},
              {three, 10, MC_E_RECIPE, "there were 2 sources, there are 3"},
              {two, 10, MC_E_RECIPE, "had 50 samples, has 25 now"}};
    for (int i = 0; i < 4; i++) {
        struct mc_recipe *r = recipe(k[i].w, 4);
        struct mc_err err = {0};
        r->model.seq = k[i].seq;
        if (i == 3)
            r->data.holdout = 0.49; /* 256 of 502 tokens are left */
        struct mc_data *e = NULL;
        if (k[i].w[2] > 0) /* 7 samples at T = 10 */
            assert_true(r->model.seq == 10);
        e = opened(r);
        mc_status st = mc_cursor_read(e, j.buf, &c, 0, &err);
        if (st != k[i].st || !strstr(err.msg, k[i].says))
            fail_msg("%d: %d \"%s\"", i, st, err.msg);
        mc_data_close(e);
        test_free(r);
    }
    static const char *const bad[] = {
        "",
        "[]",
        "{",
        "{\"sources\":3}",
        "{\"sources\":[{},{}]}",
        "{\"sources\":[{\"name\":\"x\",\"samples\":50,\"taken\":1,\"phase_base\":2},0]}",
        "{\"sources\":[{\"name\":\"x\",\"samples\":50,\"taken\":1.5,\"phase_base\":0},0]}",
        "{\"sources\":[{\"name\":\"x\",\"samples\":50,\"taken\":-1,\"phase_base\":-1},0]}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(mc_cursor_read(d, bad[i], &c, 0, NULL), MC_E_CORRUPT);
    mc_json_fini(&j);
    mc_data_close(d);
}

/* A name is the last two components, however the path was written; twins get a number. */
static void sampler_names_do_not_depend_on_where_the_tree_is(void **state)
{
    (void)state;
    static const struct {
        const char *base, *path, *name;
    } c[] = {{"/x/y", "data/web", "data/web"},
             {"/x/y", "web", "y/web"},
             {"/x/y", "/other/data/web", "data/web"},
             {"/x/y", "./data//web/", "data/web"},
             {"/x/y", "../z/web.idx", "z/web"},
             {"/x/y", "/web.bin", "web"},
             {"/x/y", "data/notes.txt", "data/notes.txt"},
             {"/", "../../../a", "a"}};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        char p[MC_PATH], name[MC_PATH];
        assert_int_equal(mc_order_abs(c[i].base, c[i].path, p, NULL), MC_OK);
        mc_order_name(p, name, sizeof name);
        assert_string_equal(name, c[i].name);
    }
    struct mc_recipe *r = recipe((const double[4]){1, 1, 0, 1}, 4);
    strcpy(r->data.train[1].path, "./s0"); /* twice the same: legal, drawn apart */
    snprintf(r->data.train[2].path, sizeof r->data.train[2].path, "%s/s0", dir);
    struct mc_data *d = opened(r);
    const char *base = strrchr(dir, '/') + 1;
    for (int i = 0; i < 3; i++) {
        char want[128];
        snprintf(want, sizeof want, i ? "%s/s0#%d" : "%s/s0", base, i + 1);
        assert_string_equal(mc_data_source_name(d, i), want);
    }
    assert_true(d->order[0].key != d->order[1].key && d->order[1].key != d->order[2].key);
    mc_data_close(d);
    test_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampler_gives_each_sample_once_an_epoch),
        cmocka_unit_test(sampler_order_follows_seed_and_name_only),
        cmocka_unit_test(sampler_order_knows_no_batch),
        cmocka_unit_test(sampler_shares_stay_within_one_sample),
        cmocka_unit_test(sampler_weights_change_without_repeats),
        cmocka_unit_test(sampler_cursor_round_trip),
        cmocka_unit_test(sampler_cursor_refuses_other_sources),
        cmocka_unit_test(sampler_names_do_not_depend_on_where_the_tree_is),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
