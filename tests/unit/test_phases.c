/* test_phases.c - changes of sequence length and weights: which tokens are read, counted one by
 * one. links: mc_data
 *
 * Every draw marks its tokens in a table of the test's own, by pass and source. Bounds come from
 * the rule as sampler.c states it; nothing of its code is used. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../core/data/data_int.h"

enum { SOURCES = 3, PASSES = 40, MOST = 9000 };
static char dir[64];
static const int size[SOURCES] = {2600, 8999, 700}; /* bytes; EOS is one token more */

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/mc-phases-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    for (int i = 0; i < SOURCES; i++) {
        char p[96];
        snprintf(p, sizeof p, "%s/s%d", dir, i);
        FILE *f = fopen(p, "w");
        for (int k = 0; k < size[i]; k++) /* two bytes in a row tell the place, mod 241 x 239 */
            fputc(k % 2 ? k / 2 % 241 : k / 2 % 239, f);
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

static struct mc_recipe *recipe(int64_t seq, int64_t block)
{
    struct mc_recipe *r = test_calloc(1, sizeof *r);
    static const double weight[SOURCES] = {2, 5, 1};
    r->seed = 77;
    r->model.seq = seq;
    r->model.vocab = MC_BYTES_VOCAB;
    r->data.block = block;
    r->data.ntrain = SOURCES;
    strcpy(r->data.tokenizer, "bytes");
    for (int i = 0; i < SOURCES; i++) {
        snprintf(r->data.train[i].path, sizeof r->data.train[i].path, "s%d", i);
        r->data.train[i].weight = weight[i];
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

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* Reads: how often each token of each pass was an input. */
static unsigned char seen[SOURCES][PASSES][MOST];
static int64_t tokens[SOURCES], samples[SOURCES];

static void mark(const struct mc_data *d, const struct mc_sample *s, int64_t seq)
{
    int32_t x[256], y[256];
    assert_true(s->seq == seq && s->epoch < PASSES);
    assert_int_equal(mc_data_fetch(d, s, 1, x, y, NULL), MC_OK);
    for (int64_t k = 0; k < seq; k++) {
        int64_t pos = (int64_t)s->index * seq + k;
        assert_true(pos < size[s->source]);
        int byte = (int)(pos % 2 ? pos / 2 % 241 : pos / 2 % 239);
        assert_int_equal(x[k], byte);
        if (++seen[s->source][s->epoch][pos] > 1)
            fail_msg("source %d, pass %d: token %d twice", s->source, (int)s->epoch, (int)pos);
    }
    tokens[s->source] += seq;
    samples[s->source]++;
}

static void clear(void)
{
    memset(seen, 0, sizeof seen);
    memset(tokens, 0, sizeof tokens);
    memset(samples, 0, sizeof samples);
}

static int64_t read_in_pass(int source, uint64_t pass)
{
    int64_t n = 0;
    for (int i = 0; i < MOST; i++)
        n += seen[source][pass][i];
    return n;
}

static void as_counted(const struct mc_cursor *c)
{
    struct mc_mixture x;
    double all = 0;
    mc_cursor_mixture(c, &x);
    assert_int_equal(x.n, SOURCES);
    for (int s = 0; s < SOURCES; s++)
        all += (double)tokens[s];
    for (int s = 0; s < SOURCES; s++) {
        assert_int_equal(x.of[s].tokens, tokens[s]);
        assert_int_equal(x.of[s].samples, samples[s]);
        assert_true(fabs(x.of[s].share - (double)tokens[s] / all) < 1e-15);
    }
}

/* One length shorter than a block, many passes: every whole pass reads every block's tokens once.
 */
static void phases_short_sequences_cover_a_pass(void **state)
{
    (void)state;
    for (int64_t seq = 1; seq <= 128; seq *= 2) {
        struct mc_recipe *r = recipe(seq, 128);
        struct mc_data *d = opened(r);
        struct mc_cursor c;
        struct mc_sample s;
        clear();
        mc_cursor_init(d, &c);
        while (c.pass[1] < 3) {
            mc_data_draw(d, &c, 1, &s);
            mark(d, &s, seq);
        }
        for (int i = 0; i < SOURCES; i++) {
            int64_t whole = size[i] / 128 * 128; /* (n - 1) / B blocks, n with EOS */
            for (uint64_t p = 0; p < c.pass[i]; p++)
                assert_int_equal(read_in_pass(i, p), whole);
        }
        as_counted(&c);
        mc_data_close(d);
        test_free(r);
    }
}

/* Random changes between lengths that divide the block: no token twice in a pass, and what a pass
 * lacks at its end is at most what each change may lose. A cursor that went through its text goes
 * on alike. */
static void phases_change_length_and_lose_little(void **state)
{
    (void)state;
    uint64_t rng = 88172645463325252ull;
    for (int round = 0; round < 60; round++) {
        struct mc_recipe *r = recipe(16, 128);
        struct mc_data *d = opened(r);
        struct mc_cursor c, from_text;
        struct mc_sample s, t;
        int64_t seq = 16, changes[SOURCES][PASSES] = {{0}};
        clear();
        mc_cursor_init(d, &c);
        for (int phase = 0; phase < 12; phase++) {
            struct mc_json j;
            mc_json_init_grow(&j);
            mc_cursor_write(d, &c, &j);
            struct mc_err err = {0};
            if (mc_cursor_read(d, j.buf, &from_text, 0, &err) != MC_OK)
                fail_msg("%s: %s", err.msg, j.buf);
            assert_memory_equal(&c, &from_text, sizeof c);
            mc_json_fini(&j);
            int64_t was = seq;
            seq = (int64_t)8 << rnd(&rng) % 5; /* 8 .. 128 */
            for (int i = 0; i < SOURCES; i++)
                changes[i][c.pass[i]] += was != seq;
            assert_int_equal(mc_cursor_phase(d, &c, seq, NULL), was != seq);
            assert_int_equal(mc_cursor_phase(d, &c, seq, NULL), 0);
            mc_cursor_phase(d, &from_text, seq, NULL);
            for (int64_t n = (int64_t)(rnd(&rng) % 60); n > 0; n--) {
                mc_data_draw(d, &c, 1, &s);
                mc_data_draw(d, &from_text, 1, &t);
                assert_true(s.source == t.source && s.index == t.index && s.epoch == t.epoch);
                mark(d, &s, seq);
            }
            assert_memory_equal(&c, &from_text, sizeof c);
        }
        as_counted(&c);
        for (int i = 0; i < SOURCES; i++) {
            int64_t whole = size[i] / 128 * 128, group = size[i] / 128 / 32;
            group = (group > 1 ? group : 1) * 128;
            for (uint64_t p = 0; p < c.pass[i]; p++)
                assert_true(whole - read_in_pass(i, p) <= changes[i][p] * group);
        }
        mc_data_close(d);
        test_free(r);
    }
}

/* A length that the pass has no room for begins the next pass, in blocks of the recipe's. */
static void phases_longer_than_the_block_begin_a_pass(void **state)
{
    (void)state;
    struct mc_recipe *r = recipe(16, 0);
    struct mc_data *d = opened(r), *e;
    struct mc_cursor c;
    struct mc_sample s;
    struct mc_json j;
    struct mc_err err = {0};
    clear();
    mc_cursor_init(d, &c);
    for (int n = 0; n < 50; n++) {
        mc_data_draw(d, &c, 1, &s);
        mark(d, &s, 16);
    }
    mc_json_init_grow(&j);
    mc_cursor_write(d, &c, &j);
    r->data.nphases = 1; /* added on resume */
    r->data.phase[0] = (struct mc_phase_cfg){.from = {50, MC_UNIT_SAMPLES}, .seq = 64};
    e = opened(r);
    if (mc_cursor_read(e, j.buf, &c, 0, &err) != MC_OK)
        fail_msg("%s", err.msg);
    for (int i = 0; i < SOURCES; i++)
        assert_int_equal(c.block[i], 16); /* until the phase begins all is as it was */
    mc_cursor_phase(e, &c, 64, NULL);
    for (int i = 0; i < SOURCES; i++)
        assert_true(c.block[i] == 64 && c.pass[i] == 1 && c.at[i] == 0);
    for (int n = 0; n < 100; n++) {
        mc_data_draw(e, &c, 1, &s);
        assert_true(s.epoch >= 1);
        mark(e, &s, 64);
    }
    as_counted(&c);
    mc_json_fini(&j);
    mc_data_close(d);
    mc_data_close(e);
    test_free(r);
}

/* Weights of a phase: exact to one sample from its first draw on; 0 is never drawn. */
static void phases_weights_hold_from_their_first_draw(void **state)
{
    (void)state;
    static const double w[4][SOURCES] = {{2, 5, 1}, {0, 1, 3}, {7, 0, 0}, {0.3, 0.3, 0.4}};
    struct mc_recipe *r = recipe(16, 0);
    struct mc_data *d = opened(r);
    struct mc_cursor c;
    struct mc_sample s;
    mc_cursor_init(d, &c);
    for (int p = 0; p < 4; p++) {
        int64_t given[SOURCES] = {0};
        assert_int_equal(mc_cursor_phase(d, &c, 16, w[p]), p > 0);
        for (int n = 1; n <= 333; n++) {
            mc_data_draw(d, &c, 1, &s);
            given[s.source]++;
            double sum = w[p][0] + w[p][1] + w[p][2];
            for (int i = 0; i < SOURCES; i++)
                assert_true(fabs((double)given[i] - w[p][i] / sum * n) < 1 + 1e-9);
        }
        for (int i = 0; i < SOURCES; i++)
            assert_true(w[p][i] > 0 || given[i] == 0);
    }
    mc_data_close(d);
    test_free(r);
}

/* A cursor of before phases came goes on where it was. */
static void phases_old_cursor_goes_on(void **state)
{
    (void)state;
    struct mc_recipe *r = recipe(100, 0);
    struct mc_data *d = opened(r);
    struct mc_cursor c, old;
    struct mc_sample a[200], b[200];
    char text[600];
    mc_cursor_init(d, &c);
    mc_data_draw(d, &c, 150, a);
    snprintf(text, sizeof text,
             "{\"sources\":[{\"name\":\"%s\",\"samples\":26,\"taken\":%d,\"phase_base\":0},"
             "{\"name\":\"%s\",\"samples\":89,\"taken\":%d,\"phase_base\":0},"
             "{\"name\":\"%s\",\"samples\":7,\"taken\":%d,\"phase_base\":0}]}",
             mc_data_source_name(d, 0), (int)c.taken[0], mc_data_source_name(d, 1), (int)c.taken[1],
             mc_data_source_name(d, 2), (int)c.taken[2]);
    struct mc_err err = {0};
    if (mc_cursor_read(d, text, &old, 0, &err) != MC_OK)
        fail_msg("%s", err.msg);
    assert_memory_equal(&c, &old, sizeof c);
    mc_data_draw(d, &c, 200, a);
    mc_data_draw(d, &old, 200, b);
    for (int i = 0; i < 200; i++)
        assert_true(a[i].source == b[i].source && a[i].index == b[i].index &&
                    a[i].epoch == b[i].epoch && a[i].seq == b[i].seq);
    mc_data_close(d);
    test_free(r);
}

static void phases_damaged_places_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"\"in_group\":16", "\"in_group\":-1", "\"at\":20",
                                      "\"pass\":-1",     "\"block\":0",     "\"block\":24",
                                      "\"weight\":-1",   "\"tokens\":-5",   "\"weight\":null"};
    struct mc_recipe *r = recipe(16, 128);
    struct mc_data *d = opened(r);
    struct mc_cursor c;
    struct mc_json j;
    mc_cursor_init(d, &c);
    mc_json_init_grow(&j);
    mc_cursor_write(d, &c, &j);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char key[16], *text = test_malloc(j.len + 64), *at;
        snprintf(key, sizeof key, "%.*s", (int)(strchr(bad[i], ':') - bad[i]) + 1, bad[i]);
        at = strstr(j.buf, key);
        size_t n = (size_t)(at - j.buf);
        snprintf(text, j.len + 64, "%.*s%s%s", (int)n, j.buf, bad[i], at + strcspn(at, ",}"));
        assert_int_not_equal(mc_cursor_read(d, text, &c, 0, NULL), MC_OK);
        test_free(text);
    }
    mc_json_fini(&j);
    mc_data_close(d);
    test_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_short_sequences_cover_a_pass),
        cmocka_unit_test(phases_change_length_and_lose_little),
        cmocka_unit_test(phases_longer_than_the_block_begin_a_pass),
        cmocka_unit_test(phases_weights_hold_from_their_first_draw),
        cmocka_unit_test(phases_old_cursor_goes_on),
        cmocka_unit_test(phases_damaged_places_are_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
