/* test_train_books.c - books of a checkpoint: written, read, damaged.
 * links: mc_train */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../core/train/train_int.h"

static struct mc_recipe g_recipe;
static struct mc_data *g_data;
static struct mc_books_run g_run;
static char g_path[] = "/tmp/mc_books_XXXXXX";

static int open_all(void **state)
{
    (void)state;
    struct mc_err err = {0};
    struct mc_recipe *r = &g_recipe;
    int fd = mkstemp(g_path);
    for (int i = 0; i < 500; i++)
        if (write(fd, "the tide follows", 16) != 16)
            return 1;
    close(fd);
    strcpy(r->name, "books");
    strcpy(r->data.tokenizer, "bytes");
    r->data.ntrain = 1;
    strcpy(r->data.train[0].path, g_path);
    r->data.train[0].weight = 1;
    r->model.seq = 16;
    r->model.vocab = 257;
    r->anomaly.spike_window = 8;
    if (mc_data_open(r, "/", &g_data, &err) != MC_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    g_run = (struct mc_books_run){
        .recipe = r, .data = g_data, .fingerprint = "cpu | x", .software = "mascon test"};
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    mc_data_close(g_data);
    return unlink(g_path);
}

static void fill(struct mc_books *b)
{
    struct mc_sample s[5];
    mc_books_init(b, &g_recipe);
    b->at = (struct mc_counters){.steps = 41, .samples = 492, .tokens = INT64_C(1) << 60};
    b->skipped = 3;
    b->successful = 38;
    b->skips_in_row = 2;
    b->loss = 0.1 + 0.2;
    b->grad_norm = NAN;
    b->lr_scale = 1.0 / 3;
    b->weights_hash = 0xfedcba9876543210u;
    b->segment = 4;
    b->eval_owed = b->call_owed = 1;
    b->lr = 0.1 + 0.7;
    b->pending.stop = 1;
    b->pending.lr_scale = 0.7;
    strcpy(b->pending.why, "a \"quoted\" reason\n");
    for (int i = 0; i < 11; i++) /* more than the window: the ring has turned */
        mc_spikes_push(&b->spikes, 1.0 / (i + 3));
    mc_cursor_init(g_data, &b->cursor);
    mc_data_draw(g_data, &b->cursor, 5, s);
}

static char *write_text(const struct mc_books *b)
{
    struct mc_json j;
    struct mc_err err = {0};
    mc_json_init_grow(&j);
    assert_int_equal(mc_books_write(b, &g_run, &j, &err), MC_OK);
    char *text = strdup(j.buf);
    mc_json_fini(&j);
    return text;
}

static void books_read_back_what_was_written(void **state)
{
    (void)state;
    static struct mc_books a, b;
    struct mc_books_seen seen;
    struct mc_err err = {0};
    fill(&a);
    char *text = write_text(&a);
    mc_books_init(&b, &g_recipe);
    assert_int_equal(mc_books_read(text, &g_run, &b, &seen, &err), MC_OK);
    assert_memory_equal(&a.at, &b.at, sizeof a.at);
    assert_int_equal(b.skipped, 3);
    assert_int_equal(b.successful, 38);
    assert_int_equal(b.skips_in_row, 2);
    assert_memory_equal(&a.loss, &b.loss, sizeof a.loss);
    assert_true(isnan(b.grad_norm));
    assert_memory_equal(&a.lr_scale, &b.lr_scale, sizeof a.lr_scale);
    assert_true(a.weights_hash == b.weights_hash);
    assert_int_equal(b.segment, 4);
    assert_int_equal(b.eval_owed, 1);
    assert_int_equal(b.call_owed, 1);
    assert_memory_equal(&a.lr, &b.lr, sizeof a.lr);
    assert_int_equal(b.pending.stop, 1);
    assert_int_equal(b.pending.anomaly_action, -1);
    assert_true(b.pending.lr_scale == 0.7);
    assert_string_equal(a.pending.why, b.pending.why);
    assert_memory_equal(&a.cursor, &b.cursor, sizeof a.cursor);
    assert_string_equal(seen.software, "mascon test");
    assert_true(seen.data_hash == mc_data_hash(g_data));
    assert_true(mc_spikes_median(&a.spikes) == mc_spikes_median(&b.spikes));
    for (int i = 0; i < 9; i++) { /* and the windows stay alike: same order of time */
        mc_spikes_push(&a.spikes, 5.0 + i);
        mc_spikes_push(&b.spikes, 5.0 + i);
        assert_true(mc_spikes_median(&a.spikes) == mc_spikes_median(&b.spikes));
    }
    char *again = write_text(&b); /* spikes differ by now; the rest must not */
    json_t *x = json_loads(text, 0, NULL), *y = json_loads(again, 0, NULL);
    json_object_del(x, "spikes");
    json_object_del(y, "spikes");
    assert_true(json_equal(x, y));
    json_decref(x);
    json_decref(y);
    free(text);
    free(again);
}

/* Each member taken away, and each given another type, is named; nothing is written out. */
static void books_name_what_is_missing_or_of_another_type(void **state)
{
    (void)state;
    static const char *const needed[] = {"version",     "step",       "samples",      "tokens",
                                         "skipped",     "successful", "skips_in_row", "loss",
                                         "grad_norm",   "lr_scale",   "weights_hash", "data_hash",
                                         "recipe_hash", "segment",    "software",     "fingerprint",
                                         "spikes",      "directive",  "cursor"};
    static struct mc_books a, b, before;
    fill(&a);
    char *text = write_text(&a);
    mc_books_init(&b, &g_recipe);
    before = b;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        for (int wrong = 0; wrong < 2; wrong++) {
            struct mc_err err = {0};
            json_t *o = json_loads(text, 0, NULL);
            if (wrong)
                json_object_set_new(o, needed[i], json_pack("[b]", 1));
            else
                json_object_del(o, needed[i]);
            char *bad = json_dumps(o, 0);
            assert_int_not_equal(mc_books_read(bad, &g_run, &b, NULL, &err), MC_OK);
            assert_true(strstr(err.msg, needed[i]) || strcmp(needed[i], "cursor") == 0);
            assert_memory_equal(&b, &before, sizeof b);
            free(bad);
            json_decref(o);
        }
    free(text);
}

static void books_refuse_impossible_counts(void **state)
{
    (void)state;
    static struct mc_books a, b;
    const struct {
        const char *key;
        json_int_t v;
    } row[] = {{"version", 2},      {"step", -1},    {"skipped", 42}, {"successful", 39},
               {"skips_in_row", 4}, {"segment", -1}, {"tokens", -5}};
    fill(&a);
    char *text = write_text(&a);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mc_err err = {0};
        json_t *o = json_loads(text, 0, NULL);
        json_object_set_new(o, row[i].key, json_integer(row[i].v));
        char *bad = json_dumps(o, 0);
        mc_books_init(&b, &g_recipe);
        assert_int_equal(mc_books_read(bad, &g_run, &b, NULL, &err), MC_E_CORRUPT);
        free(bad);
        json_decref(o);
    }
    free(text);
}

/* Any bytes: an error or a sound struct, never a crash (run under the sanitizers too). */
static void books_survive_damage_anywhere(void **state)
{
    (void)state;
    static struct mc_books a, b;
    fill(&a);
    char *text = write_text(&a);
    size_t n = strlen(text);
    uint64_t x = 99;
    for (int i = 0; i < 4000; i++) {
        struct mc_err err = {0};
        char *bad = strdup(text);
        x = x * 6364136223846793005u + 1442695040888963407u;
        bad[(x >> 20) % n] = (char)(x >> 56);
        if (i % 5 == 0)
            bad[(x >> 8) % n] = 0; /* cut */
        mc_books_init(&b, &g_recipe);
        mc_status st = mc_books_read(bad, &g_run, &b, NULL, &err);
        assert_true(st == MC_OK || st == MC_E_CORRUPT || st == MC_E_RECIPE);
        free(bad);
    }
    free(text);
}

static void books_of_a_foreign_text_are_refused(void **state)
{
    (void)state;
    static struct mc_books b;
    static const char *const bad[] = {"", "null", "[]", "{", "{}", "{\"step\":1,\"step\":2}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mc_err err = {0};
        assert_int_equal(mc_books_read(bad[i], NULL, &b, NULL, &err), MC_E_CORRUPT);
        assert_true(err.msg[0] != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(books_read_back_what_was_written),
        cmocka_unit_test(books_name_what_is_missing_or_of_another_type),
        cmocka_unit_test(books_refuse_impossible_counts),
        cmocka_unit_test(books_survive_damage_anywhere),
        cmocka_unit_test(books_of_a_foreign_text_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
