/* test_megatron.c - Megatron's sample order against indices made by tests/golden/megatron_order.
 * links: mc_data
 * The references come from NumPy and a reading of the published rules (make.py there). The data is
 * made here: token o of sequence q has id 256 q + o, so a fetched sample says where it came from.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/data/data_int.h"

enum { MAX_K = 12 };
struct ints {
    int64_t n;
    int64_t *v;
};
struct config {
    char name[64];
    int64_t seed, seq, samples;
    int k;
    double split[3], weight[MAX_K];
    double blend[MAX_K];
    int64_t wanted[MAX_K], epochs[MAX_K], separate[MAX_K], end[MAX_K][2];
    struct ints len[MAX_K], doc[MAX_K], rows[MAX_K], shuffle[MAX_K], draws;
};
static char dir[64];
static struct config all[16];
static int nall;

/* ---- the reference ---- */

static struct ints ints(FILE *f, const char *word, int each)
{
    char w[64];
    long long n, x;
    assert_int_equal(fscanf(f, "%63s", w), 1);
    assert_string_equal(w, word);
    assert_int_equal(fscanf(f, "%lld", &n), 1);
    struct ints r = {n, calloc((size_t)(n * each), sizeof *r.v)};
    for (int64_t i = 0; i < n * each; i++) {
        assert_int_equal(fscanf(f, "%lld", &x), 1);
        r.v[i] = x;
    }
    return r;
}

static void read_config(FILE *f, struct config *c)
{
    char w[64];
    long long a, b, w64;
    for (int s = 0; s < c->k; s++) {
        assert_int_equal(fscanf(f, " source %lf", &c->weight[s]), 1);
        assert_int_equal(fscanf(f, "%lld", &a), 1);
        c->len[s] = (struct ints){a, calloc((size_t)a, sizeof *c->len[s].v)};
        for (int64_t i = 0; i < c->len[s].n; i++) {
            assert_int_equal(fscanf(f, "%lld", &b), 1);
            c->len[s].v[i] = b;
        }
    }
    for (int s = 0; s < c->k; s++)
        assert_int_equal(fscanf(f, " weight %la", &c->blend[s]), 1);
    for (int s = 0; s < c->k; s++) {
        assert_int_equal(fscanf(f, " index %lld %lld %lld", &w64, &a, &b), 3);
        c->wanted[s] = w64;
        c->epochs[s] = a;
        c->separate[s] = b;
        c->doc[s] = ints(f, "documents", 1);
        c->rows[s] = ints(f, "rows", 2);
        c->shuffle[s] = ints(f, "shuffle", 1);
    }
    c->draws = ints(f, "draws", 2);
    for (int s = 0; s < c->k; s++) {
        assert_int_equal(fscanf(f, " %63s %lld %lld", w, &a, &b), 3);
        c->end[s][0] = a;
        c->end[s][1] = b;
    }
}

static void read_all(void)
{
    FILE *f = fopen(MC_SOURCE_HOME "/tests/golden/megatron_order/order.txt", "r");
    long long seed, seq, samples;
    struct config *c = all;
    assert_non_null(f);
    while (fscanf(f, " config %63s seed %lld seq %lld samples %lld sources %d split %lf %lf %lf",
                  c->name, &seed, &seq, &samples, &c->k, &c->split[0], &c->split[1],
                  &c->split[2]) == 8) {
        c->seed = seed;
        c->seq = seq;
        c->samples = samples;
        read_config(f, c);
        c = &all[++nall];
    }
    fclose(f);
    assert_true(nall >= 5);
}

static const struct config *named(const char *name)
{
    for (int i = 0; i < nall; i++)
        if (!strcmp(all[i].name, name))
            return &all[i];
    fail_msg("no configuration %s", name);
    return NULL;
}

/* ---- the data ---- */

static void put(FILE *f, int64_t v, int bytes)
{
    for (int b = 0; b < bytes; b++)
        fputc((int)((uint64_t)v >> 8 * b & 255), f);
}

static void pack(const struct config *c, int s)
{
    char p[160];
    int64_t n = c->len[s].n, at = 0;
    snprintf(p, sizeof p, "%s/%.60s-%d.bin", dir, c->name, s);
    FILE *f = fopen(p, "wb");
    for (int64_t q = 0; q < n; q++)
        for (int64_t o = 0; o < c->len[s].v[q]; o++)
            put(f, 256 * q + o, 4);
    fclose(f);
    snprintf(p, sizeof p, "%s/%.60s-%d.idx", dir, c->name, s);
    f = fopen(p, "wb");
    fwrite("MMIDIDX\0\0", 1, 9, f);
    put(f, 1, 8);
    put(f, 4, 1);
    put(f, n, 8);
    put(f, n + 1, 8);
    for (int64_t q = 0; q < n; q++)
        put(f, c->len[s].v[q], 4);
    for (int64_t q = 0; q < n; at += 4 * c->len[s].v[q++])
        put(f, at, 8);
    for (int64_t q = 0; q <= n; q++)
        put(f, q, 8);
    fclose(f);
}

static struct mc_recipe *recipe(const struct config *c)
{
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    r->seed = c->seed;
    r->model.seq = c->seq;
    r->model.vocab = 1 << 24;
    strcpy(r->data.tokenizer, "some");
    r->data.order = MC_ORDER_MEGATRON;
    r->data.samples = c->samples;
    memcpy(r->data.split, c->split, sizeof c->split);
    r->data.ntrain = c->k;
    for (int s = 0; s < c->k; s++) {
        snprintf(r->data.train[s].path, MC_PATH, "%s-%d", c->name, s);
        r->data.train[s].weight = c->weight[s];
    }
    return r;
}

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/mc-megatron-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    read_all();
    for (int i = 0; i < nall; i++)
        for (int s = 0; s < all[i].k; s++)
            pack(&all[i], s);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    char cmd[128];
    for (int i = 0; i < nall; i++) {
        free(all[i].draws.v);
        for (int s = 0; s < all[i].k; s++) {
            free(all[i].len[s].v);
            free(all[i].doc[s].v);
            free(all[i].rows[s].v);
            free(all[i].shuffle[s].v);
        }
    }
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

static struct mc_data *opened(struct mc_recipe *r)
{
    struct mc_data *d;
    struct mc_err err = {0};
    if (mc_data_open(r, dir, &d, &err) != MC_OK)
        fail_msg("%s", err.msg);
    test_free(r);
    return d;
}

/* ---- tests ---- */

/* Published values of NumPy's legacy generator. */
static void megatron_generator_is_numpys(void **state)
{
    (void)state;
    static const uint32_t want[2][10] = {{8, 1, 5, 0, 7, 2, 9, 4, 3, 6},
                                         {7, 2, 9, 1, 0, 8, 4, 5, 6, 3}};
    static const uint32_t seed[2] = {42, 1234};
    struct mc_mt19937 g;
    mc_megatron_seed(&g, 42);
    uint32_t a = mc_megatron_u32(&g) >> 5, b = mc_megatron_u32(&g) >> 6;
    assert_true((a * 67108864.0 + b) / 9007199254740992.0 == 0.3745401188473625);
    for (int k = 0; k < 2; k++) {
        uint32_t v[10];
        for (uint32_t i = 0; i < 10; i++)
            v[i] = i;
        mc_megatron_seed(&g, seed[k]);
        mc_megatron_shuffle(&g, v, 10);
        assert_memory_equal(v, want[k], sizeof v);
    }
    mc_megatron_seed(&g, 5489); /* the 10,000th word of the generator's default seed */
    for (int i = 0; i < 9999; i++)
        mc_megatron_u32(&g);
    assert_int_equal(mc_megatron_u32(&g), 4123659995u);
}

static void same_index(const struct config *c, int s, const struct mc_megatron *m)
{
    assert_int_equal(m->epochs, c->epochs[s]);
    assert_int_equal(m->separate_last, c->separate[s]);
    assert_int_equal(m->ndoc, c->doc[s].n);
    assert_int_equal(m->rows, c->shuffle[s].n);
    assert_int_equal(m->rows + 1, c->rows[s].n);
    for (int64_t i = 0; i < m->ndoc; i++)
        assert_int_equal(m->doc[i], c->doc[s].v[i]);
    for (int64_t i = 0; i <= m->rows; i++) {
        assert_int_equal(m->at[i], c->rows[s].v[2 * i]);
        assert_int_equal(m->off[i], c->rows[s].v[2 * i + 1]);
    }
    for (int64_t i = 0; i < m->rows; i++)
        assert_int_equal(m->shuffle[i], c->shuffle[s].v[i]);
}

/* The S + 1 tokens of a row by walking the reference's documents. */
static void same_tokens(const struct config *c, int s, int64_t row, const int32_t *tokens,
                        const int32_t *targets)
{
    int64_t place = c->rows[s].v[2 * row], off = c->rows[s].v[2 * row + 1];
    for (int64_t i = 0; i <= c->seq; i++, off++) {
        while (off >= c->len[s].v[c->doc[s].v[place]]) {
            off -= c->len[s].v[c->doc[s].v[place]];
            place++;
        }
        int64_t id = 256 * c->doc[s].v[place] + off;
        if (i < c->seq)
            assert_int_equal(tokens[i], id);
        if (i > 0)
            assert_int_equal(targets[i - 1], id);
    }
}

static void megatron_order_equals_the_reference(void **state)
{
    (void)state;
    for (int k = 0; k < nall; k++) {
        const struct config *c = &all[k];
        struct mc_data *d = opened(recipe(c));
        for (int s = 0; s < c->k; s++)
            same_index(c, s, &d->mega[s]);
        struct mc_cursor cur;
        int32_t tokens[64], targets[64];
        struct mc_sample x[7];
        struct mc_err err = {0};
        mc_cursor_init(d, &cur);
        uint64_t calls = mc_mem_stats().calls;
        for (int64_t i = 0; i < c->samples; i++) {
            if (i % 7 == 0) /* in batches; the last may be past what was asked for */
                mc_data_draw(d, &cur, c->samples - i < 7 ? c->samples - i : 7, x);
            int s = (int)c->draws.v[2 * i];
            int64_t row = c->shuffle[s].v[c->draws.v[2 * i + 1]];
            assert_int_equal(x[i % 7].source, s);
            assert_int_equal(x[i % 7].index, row);
            if (mc_data_fetch(d, &x[i % 7], 1, tokens, targets, &err) != MC_OK)
                fail_msg("%s", err.msg);
            same_tokens(c, s, row, tokens, targets);
        }
        assert_int_equal(mc_mem_stats().calls, calls);
        mc_data_close(d);
    }
}

/* To the bit: one more and the epochs or the picks may be others. */
static void megatron_shares_equal_the_reference(void **state)
{
    (void)state;
    for (int k = 0; k < nall; k++) {
        const struct config *c = &all[k];
        double once[MAX_K], twice[MAX_K];
        mc_megatron_weights(c->weight, c->k, once, twice);
        for (int s = 0; s < c->k; s++) {
            assert_true(twice[s] == c->blend[s]);
            if (c->k > 1)
                assert_int_equal(mc_megatron_share(c->samples, once[s]), c->wanted[s]);
        }
    }
}

/* Validation: the second share, in stream order. */
static void megatron_split_keeps_validation_apart(void **state)
{
    (void)state;
    const struct config *c = named("split_and_blend");
    struct mc_data *d = opened(recipe(c));
    int64_t want = 0, n = mc_data_valid_samples(d), k = 0;
    int32_t tokens[64], targets[64];
    for (int s = 0; s < 2; s++) {
        int64_t t = 0, first = 0;
        for (int64_t q = c->end[s][0]; q < c->end[s][1]; q++)
            t += c->len[s].v[q];
        want += (t - 1) / c->seq;
        while (first < c->end[s][1] && (first < c->end[s][0] || c->len[s].v[first] == 0))
            first++;
        assert_int_equal(mc_data_fetch_valid(d, k, 1, tokens, targets, NULL), MC_OK);
        assert_int_equal(tokens[0], 256 * first);
        k = want;
    }
    assert_int_equal(n, want);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(mc_data_fetch_valid(d, i, 1, tokens, targets, NULL), MC_OK);
        int s = i >= (int64_t)d->valid[0].samples;
        for (int64_t j = 0; j < c->seq; j++)
            assert_in_range(targets[j] / 256, c->end[s][0], c->end[s][1] - 1);
    }
    mc_data_close(d);
}

static char *cursor_text(const struct mc_data *d, const struct mc_cursor *c)
{
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_cursor_write(d, c, &j);
    assert_false(j.failed);
    return j.buf; /* mc_free */
}

static mc_status goes_on(struct mc_recipe *r, const char *text, int weights_changed,
                         struct mc_cursor *c, struct mc_err *err)
{
    struct mc_data *d = opened(r);
    *err = (struct mc_err){0};
    mc_status st = mc_cursor_read(d, text, c, weights_changed, err);
    mc_data_close(d);
    return st;
}

static void says(mc_status got, mc_status want, const struct mc_err *err, const char *what)
{
    if (got != want || !strstr(err->msg, what))
        fail_msg("status %d, \"%s\"; wanted %d and \"%s\"", got, err->msg, want, what);
}

static void megatron_cursor_goes_on_in_the_same_order_only(void **state)
{
    (void)state;
    const struct config *c = named("one_epoch"), *b = named("blend_of_3");
    struct mc_data *d = opened(recipe(c));
    struct mc_cursor cur, now;
    struct mc_sample x[50];
    struct mc_err err;
    mc_cursor_init(d, &cur);
    mc_data_draw(d, &cur, 50, x);
    char *text = cursor_text(d, &cur);
    assert_int_equal(goes_on(recipe(c), text, 0, &now, &err), MC_OK);
    assert_memory_equal(&cur, &now, sizeof cur);
    struct mc_recipe *r = recipe(c);
    r->data.samples = 200; /* still one epoch: the same order */
    assert_int_equal(goes_on(r, text, 0, &now, &err), MC_OK);
    assert_memory_equal(&cur, &now, sizeof cur);
    r = recipe(c);
    r->data.samples = 400; /* two */
    says(goes_on(r, text, 0, &now, &err), MC_E_RECIPE, &err, "data.samples");
    r = recipe(c);
    r->seed++;
    says(goes_on(r, text, 0, &now, &err), MC_E_RECIPE, &err, "another one");
    r = recipe(c);
    r->data.order = MC_ORDER_MASCON;
    says(goes_on(r, text, 0, &now, &err), MC_E_RECIPE, &err, "data.order");
    mc_free(text);
    mc_data_close(d);
    r = recipe(c);
    r->data.order = MC_ORDER_MASCON;
    d = opened(r);
    mc_cursor_init(d, &cur);
    text = cursor_text(d, &cur);
    says(goes_on(recipe(c), text, 0, &now, &err), MC_E_RECIPE, &err, "data.order");
    mc_free(text);
    mc_data_close(d);
    d = opened(recipe(b));
    mc_cursor_init(d, &cur);
    text = cursor_text(d, &cur);
    says(goes_on(recipe(b), text, 1, &now, &err), MC_E_RECIPE, &err, "weights");
    mc_free(text);
    mc_data_close(d);
}

static void megatron_order_ends_where_it_was_built_to(void **state)
{
    (void)state;
    struct mc_data *d = opened(recipe(named("one_epoch")));
    struct mc_cursor cur;
    struct mc_sample x;
    int32_t tokens[64], targets[64];
    struct mc_err err = {0};
    mc_cursor_init(d, &cur);
    cur.taken[0] = (uint64_t)d->mega[0].rows - 1;
    mc_data_draw(d, &cur, 1, &x);
    assert_int_equal(mc_data_fetch(d, &x, 1, tokens, targets, &err), MC_OK);
    mc_data_draw(d, &cur, 1, &x);
    says(mc_data_fetch(d, &x, 1, tokens, targets, &err), MC_E_RECIPE, &err, "used up");
    mc_data_close(d);
}

static void refused(struct mc_recipe *r, mc_status want, const char *what)
{
    struct mc_data *d = NULL;
    struct mc_err err = {0};
    says(mc_data_open(r, dir, &d, &err), want, &err, what);
    assert_null(d);
    test_free(r);
}

static void megatron_refuses_what_it_cannot_order(void **state)
{
    (void)state;
    const struct config *c = named("one_epoch");
    struct mc_recipe *r = recipe(c);
    r->data.samples = 0;
    refused(r, MC_E_RECIPE, "data.samples");
    r = recipe(c);
    r->data.samples = INT64_MAX / 4;
    refused(r, MC_E_RECIPE, "data.samples");
    r = recipe(c);
    r->data.samples = (int64_t)1 << 40;
    refused(r, MC_E_RECIPE, "more than this order's index can hold");
    r = recipe(c);
    r->seed = -1;
    refused(r, MC_E_RECIPE, "seed");
    r = recipe(c);
    r->data.holdout = 0.1;
    refused(r, MC_E_RECIPE, "data.split");
    r = recipe(c);
    r->data.order = MC_ORDER_MASCON;
    r->data.split[0] = 1;
    refused(r, MC_E_RECIPE, "data.split");
    r = recipe(c);
    r->model.seq = 100000;
    refused(r, MC_E_RECIPE, "one sample of sequence length 100000 needs 100001");
    r = recipe(c);
    r->data.split[0] = 1e-9;
    r->data.split[1] = 1;
    refused(r, MC_E_RECIPE, "has 0 tokens");
    char p[128];
    snprintf(p, sizeof p, "%s/text", dir);
    FILE *f = fopen(p, "w");
    fputs("some text that is long enough for a sample", f);
    fclose(f);
    r = recipe(c);
    strcpy(r->data.tokenizer, "bytes");
    strcpy(r->data.train[0].path, "text");
    refused(r, MC_E_RECIPE, "mascon data pack");
    r = recipe(c);
    r->model.vocab = 300; /* sequences from 2 on are past it */
    struct mc_data *d = opened(r);
    struct mc_cursor cur;
    struct mc_sample x;
    int32_t tokens[64], targets[64];
    struct mc_err err = {0};
    mc_status st = MC_OK;
    mc_cursor_init(d, &cur);
    for (int i = 0; i < 9 && st == MC_OK; i++) {
        mc_data_draw(d, &cur, 1, &x);
        st = mc_data_fetch(d, &x, 1, tokens, targets, &err);
    }
    says(st, MC_E_FORMAT, &err, "past the vocabulary of 300");
    mc_data_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megatron_generator_is_numpys),
        cmocka_unit_test(megatron_order_equals_the_reference),
        cmocka_unit_test(megatron_shares_equal_the_reference),
        cmocka_unit_test(megatron_split_keeps_validation_apart),
        cmocka_unit_test(megatron_cursor_goes_on_in_the_same_order_only),
        cmocka_unit_test(megatron_order_ends_where_it_was_built_to),
        cmocka_unit_test(megatron_refuses_what_it_cannot_order),
    };
    return cmocka_run_group_tests(tests, set_up, drop_dir);
}
