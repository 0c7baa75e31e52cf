/* test_train_metrics.c - metrics.jsonl lines read back by jansson, torn files, and the log line as
 * a scraper of Megatron's logs would look at it.
 * links: mc_train */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <unistd.h>
#include "../../core/train/train_int.h"

static struct mc_metric sample(void)
{
    return (struct mc_metric){.step = 7,
                              .tokens = INT64_C(9007199254740993),
                              .samples = 84,
                              .skipped = 1,
                              .loss = 0.1 + 0.2,
                              .grad_norm = 5e-324,
                              .lr = 6e-4,
                              .step_ms = 123.456,
                              .tokens_per_s = 1e300,
                              .mfu = NAN,
                              .segment = 3,
                              .target_steps = 50,
                              .global_batch = 12};
}

static void metrics_line_reads_back_bit_for_bit(void **state)
{
    (void)state;
    char line[MC_METRIC_LINE];
    struct mc_metric m = sample();
    int n = mc_metrics_format(&m, line, sizeof line);
    assert_true(n > 0 && line[n - 1] == '\n');
    json_t *o = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    assert_int_equal(json_object_size(o), 11);
    assert_int_equal(json_integer_value(json_object_get(o, "tokens")), m.tokens);
    assert_int_equal(json_integer_value(json_object_get(o, "step")), 7);
    assert_int_equal(json_integer_value(json_object_get(o, "segment")), 3);
    double loss = json_number_value(json_object_get(o, "loss"));
    double norm = json_number_value(json_object_get(o, "grad_norm"));
    assert_memory_equal(&loss, &m.loss, sizeof loss);
    assert_memory_equal(&norm, &m.grad_norm, sizeof norm);
    assert_true(json_is_null(json_object_get(o, "mfu")));
    json_decref(o);
}

static void metrics_line_shows_the_mixture(void **state)
{
    (void)state;
    static char line[MC_METRIC_LONG];
    static struct mc_mixture x = {.n = 2};
    struct mc_metric m = sample();
    x.of[0].samples = 7;
    x.of[0].tokens = INT64_C(9007199254740993);
    x.of[0].share = 0.1 + 0.2;
    x.of[1].weight = 1.0 / 3;
    m.mixture = &x;
    int n = mc_metrics_format(&m, line, sizeof line);
    json_t *o = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    json_t *list = json_object_get(o, "mixture"), *e = json_array_get(list, 0);
    assert_int_equal(json_array_size(list), 2);
    assert_int_equal(json_integer_value(json_object_get(e, "samples")), 7);
    assert_int_equal(json_integer_value(json_object_get(e, "tokens")), x.of[0].tokens);
    assert_true(json_number_value(json_object_get(e, "share")) == 0.1 + 0.2);
    e = json_array_get(list, 1);
    assert_true(json_number_value(json_object_get(e, "weight")) == 1.0 / 3);
    json_decref(o);
    x.n = MC_MAX_SOURCES; /* the longest */
    for (int s = 0; s < x.n; s++) {
        x.of[s].samples = x.of[s].tokens = INT64_MIN;
        x.of[s].share = x.of[s].weight = -1.2345678901234567e-300;
    }
    assert_true(mc_metrics_format(&m, line, sizeof line) > 0);
}

static void metrics_longest_line_fits(void **state)
{
    (void)state;
    char line[MC_METRIC_LINE];
    double d = -1.2345678901234567e-300;
    struct mc_metric m = {.step = INT64_MIN,
                          .tokens = INT64_MIN,
                          .samples = INT64_MIN,
                          .skipped = INT64_MIN,
                          .loss = d,
                          .grad_norm = d,
                          .lr = d,
                          .step_ms = d,
                          .tokens_per_s = d,
                          .mfu = d,
                          .segment = -2147483647 - 1};
    assert_true(mc_metrics_format(&m, line, sizeof line) > 0);
    assert_int_equal(mc_metrics_format(&m, line, 64), -1);
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static char *get(const char *path)
{
    static char text[200000];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    return text;
}

static void metrics_open_cuts_to_the_last_full_line(void **state)
{
    const char *path = *state;
    static struct mc_metrics ms;
    struct mc_err err = {0};
    static char big[20000];
    memset(big, 'x', sizeof big - 1); /* a torn line longer than the block that is looked at */
    memcpy(big, "{\"a\":1}\n", 8);
    const struct {
        const char *was, *now;
    } row[] = {{"{\"a\":1}\n{\"b\":2}\n", "{\"a\":1}\n{\"b\":2}\n"},
               {"{\"a\":1}\n{\"b\":", "{\"a\":1}\n"},
               {"{\"a\"", ""},
               {"", ""},
               {big, "{\"a\":1}\n"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        put(path, row[i].was);
        assert_int_equal(mc_metrics_open(&ms, path, &err), MC_OK);
        mc_metrics_close(&ms);
        assert_string_equal(get(path), row[i].now);
    }
}

/* A disk that is full: here the file may not grow past a limit. Lines wait, none is half. */
static void metrics_wait_while_the_disk_is_full(void **state)
{
    const char *path = *state;
    static struct mc_metrics ms;
    struct mc_err err = {0};
    struct rlimit was, now;
    struct mc_metric m = sample();
    put(path, "");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(mc_metrics_open(&ms, path, &err), MC_OK);
    assert_int_equal(mc_metrics_add(&ms, &m, &err), MC_OK);
    size_t one = strlen(get(path));
    getrlimit(RLIMIT_FSIZE, &was);
    now = was;
    now.rlim_cur = one + one / 2;
    setrlimit(RLIMIT_FSIZE, &now);
    int out = dup(2), null = open("/dev/null", O_WRONLY); /* the complaint is expected */
    dup2(null, 2);
    for (int i = 0; i < 10; i++)
        assert_int_equal(mc_metrics_add(&ms, &m, &err), MC_OK);
    dup2(out, 2);
    assert_int_equal(strlen(get(path)), one); /* whole lines only */
    assert_int_not_equal(mc_metrics_sync(&ms, &err), MC_OK);
    setrlimit(RLIMIT_FSIZE, &was);
    mc_err_clear(&err);
    assert_int_equal(mc_metrics_sync(&ms, &err), MC_OK);
    assert_int_equal(strlen(get(path)), 11 * one);
    mc_metrics_close(&ms);
    close(out);
    close(null);
}

static void metrics_backlog_has_an_end(void **state)
{
    const char *path = *state;
    static struct mc_metrics ms;
    struct mc_err err = {0};
    struct mc_metric m = sample();
    put(path, "");
    assert_int_equal(mc_metrics_open(&ms, path, &err), MC_OK);
    close(ms.fd); /* every write fails from here */
    ms.fd = open("/dev/null", O_RDONLY);
    int out = dup(2), null = open("/dev/null", O_WRONLY), n = 0;
    dup2(null, 2);
    while (mc_metrics_add(&ms, &m, &err) == MC_OK && n < 100000)
        n++;
    dup2(out, 2);
    assert_in_range(n, 100, 1000);
    mc_metrics_close(&ms);
    close(out);
    close(null);
}

static int matches(const char *re, const char *s)
{
    regex_t r;
    assert_int_equal(regcomp(&r, re, REG_EXTENDED | REG_NOSUB), 0);
    int ok = regexec(&r, s, 0, NULL, 0) == 0;
    regfree(&r);
    return ok;
}

static void log_line_has_the_fields_that_scrapers_look_for(void **state)
{
    (void)state;
    static struct mc_metrics ms;
    char line[640];
    struct mc_metric m = sample();
    memset(&ms, 0, sizeof ms);
    ms.n = 2;
    ms.nfinite = 2;
    ms.sum_loss = 5;
    ms.sum_ms = 250;
    ms.nskipped = 1;
    m.grad_norm = 1.23456;
    mc_metrics_log_format(&ms, &m, "2026-01-31 12:00:00.123", line, sizeof line);
    assert_string_equal(
        line,
        " [2026-01-31 12:00:00.123] iteration        7/      50 | consumed samples:           "
        "84 | elapsed time per iteration (ms): 125.0 | learning rate: 6.000000E-04 | global "
        "batch size:    12 | lm loss: 2.500000E+00 | grad norm: 1.235 | number of skipped "
        "iterations:   1 | number of nan iterations:   0 |");
    assert_true(matches("iteration +[0-9]+/ *[0-9]+ \\|", line));
    ms.nfinite = 0;
    ms.nnan = 2;
    m.grad_norm = NAN;
    mc_metrics_log_format(&ms, &m, "t", line, sizeof line);
    assert_true(matches("lm loss: nan \\|", line)); /* never left out */
    assert_true(matches("grad norm: nan \\|", line));
    assert_true(matches("number of nan iterations:   2 \\|", line));
}

static void eval_line_bounds_the_perplexity(void **state)
{
    (void)state;
    char line[200];
    mc_metrics_eval_format(20, 1.5, line, sizeof line);
    assert_string_equal(line, " validation loss at iteration 20 | lm loss value: 1.500000E+00 | lm "
                              "loss PPL: 4.481689E+00 |");
    mc_metrics_eval_format(20, 100, line, sizeof line);
    assert_true(matches("PPL: 4.851652E\\+08", line)); /* exp(20) */
}

static int make_path(void **state)
{
    static char path[] = "/tmp/mc_metrics_XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    *state = path;
    return fd < 0;
}

static int drop_path(void **state)
{
    return unlink(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_line_reads_back_bit_for_bit),
        cmocka_unit_test(metrics_line_shows_the_mixture),
        cmocka_unit_test(metrics_longest_line_fits),
        cmocka_unit_test(metrics_open_cuts_to_the_last_full_line),
        cmocka_unit_test(metrics_wait_while_the_disk_is_full),
        cmocka_unit_test(metrics_backlog_has_an_end),
        cmocka_unit_test(log_line_has_the_fields_that_scrapers_look_for),
        cmocka_unit_test(eval_line_bounds_the_perplexity),
    };
    return cmocka_run_group_tests(tests, make_path, drop_path);
}
