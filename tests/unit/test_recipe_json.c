/* test_recipe_json.c - canonical JSON, the hash, resolved.json read back, comparison on resume.
 * links: mc_recipe */
#include "recipe_fixture.h"
#include <math.h>
#include <unistd.h>
#include "../../core/base/hash.h"
#include "../../core/recipe/recipe_int.h"

/* ---- JSON ------------------------------------------------------------------------------------ */

static char *text_of(const struct mc_recipe *r, int pretty)
{
    struct mc_json j;
    char *s;

    mc_json_init_grow(&j);
    j.pretty = pretty;
    mc_recipe_write_json(r, &j);
    assert_false(j.failed);
    s = malloc(j.len + 1);
    memcpy(s, j.buf, j.len);
    s[j.len] = '\0';
    mc_json_fini(&j);
    return s;
}

static struct mc_recipe_box *read_text(const char *text, mc_status want)
{
    char path[] = "/tmp/mc_recipe_XXXXXX";
    int fd = mkstemp(path);
    struct mc_recipe_box *box = NULL;
    struct mc_err err = {0};

    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    mc_status st = mc_recipe_read_json(path, &box, &err);
    if (st != want)
        fail_msg("%d: %s", st, err.msg);
    unlink(path);
    return box;
}

/* Every legal form at once, so that every writer has work. */
static void rich(struct fixture *f)
{
    fixture_set(f, "seed", "\"9223372036854775807\"");
    fixture_set(f, "data.train", "[\"a\",{\"1\":\"b \\u00e9\",\"weight\":0.1}]");
    fixture_set(f, "data.valid", "\"v\"");
    fixture_set(f, "batch",
                "{\"ramp\":[{\"samples\":0,\"global\":4},{\"samples\":\"2B\",\"global\":12}]}");
    fixture_set(f, "steps", "{\"tokens\":\"4611686018427387900 tokens\"}");
    fixture_set(f, "steps", "{\"tokens\":\"461168601842738790e1\"}");
    fixture_set(f, "lr",
                "{\"kind\":\"pieces\",\"pieces\":[{\"upto\":\"9007199254740993 "
                "tokens\",\"from\":0.1,\"to\":0.30000000000000004,\"shape\":\"sqrt\"}]}");
    fixture_set(f, "optim.rules", "[{\"1\":\"*\",\"lr_scale\":0.3333333333333333}]");
    fixture_set(f, "hooks",
                "[\"h\",{\"1\":\"g\",\"aaa\":1.1,\"nnn\":\"\\u00e9\\n\\\"\",\"zzz\":false,"
                "\"allow\":[\"x:y\"]}]");
    fixture_set(f, "parallel.recompute", "[\"add\",\"rope\"]");
    fixture_set(f, "parallel.stages", "\"1 ,1\"");
    fixture_set(f, "parallel.pad.I", "0.1");
    fixture_set(f, "cluster.mtbf", "\"7.9 h\"");
    fixture_set(f, "checkpoint.stall", "0.1");
    fixture_set(f, "model.eps", "1.1754943508222877e-38");
    fixture_set(f, "optim.weight_decay", "4.9406564584124654e-324");
    fixture_set(f, "model.init_std", "0.1");
}

static void json_round_trips_bit_for_bit(void **state)
{
    struct fixture f;
    (void)state;
    for (int form = 0; form < 10; form++) {
        fixture_init(&f);
        if (form == 1)
            rich(&f);
        if (form == 2) {
            fixture_set(&f, "lr", "{}")->tag = "lr.table";
            fixture_set(&f, "batch.global", "{}")->tag = "batch.function";
            fixture_set(&f, "data.train", "{}")->tag = "data.required";
            fixture_set(&f, "parallel.schedule", "{}")->tag = "schedule.function";
        }
        if (form == 3)
            fixture_set(&f, "data", "{\"tokens\":\"10T\",\"vocab\":50000}")->tag = "data.declared";
        if (form == 4)
            fixture_set(&f, "lr",
                        "{\"kind\":\"wsd\",\"peak\":0.1,\"decay\":5,\"tail\":\"cosine\"}");
        if (form == 5)
            fixture_set(&f, "lr",
                        "{\"kind\":\"power\",\"peak\":0.1,\"power\":0.5,\"warmup\":\"1 sample\"}");
        if (form == 6)
            fixture_set(&f, "lr", "{\"kind\":\"table\",\"values\":[0.1,1e-300,3]}");
        if (form == 7)
            fixture_set(&f, "time_limit", "\"0.000001 ms\"");
        if (form == 8)
            fixture_set(&f, "model.theta", "12345678901.234567");
        if (form == 9) {
            fixture_set(&f, "data.order", "\"megatron\"");
            fixture_set(&f, "data.samples", "\"12B\"");
            fixture_set(&f, "data.split", "[0.969,0.03,1e-3]");
        }
        if (fixture_bind(&f) != MC_OK) {
            fixture_print(&f.problems);
            fail();
        }
        char *a = text_of(mc_recipe_of(f.box), 0), *pretty = text_of(mc_recipe_of(f.box), 1);
        struct mc_recipe_box *back = read_text(a, MC_OK), *back2 = read_text(pretty, MC_OK);
        char *b = text_of(mc_recipe_of(back), 0), *b2 = text_of(mc_recipe_of(back2), 0);
        assert_string_equal(a, b);
        assert_string_equal(a, b2);
        assert_true(mc_recipe_hash(mc_recipe_of(f.box)) == mc_recipe_hash(mc_recipe_of(back)));
        /* and not only as text: members that text could hide */
        const struct mc_recipe *x = mc_recipe_of(f.box), *y = mc_recipe_of(back);
        assert_memory_equal(&x->optim, &y->optim, offsetof(struct mc_optim_cfg, no_decay));
        assert_memory_equal(&x->model.theta, &y->model.theta, 4 * sizeof(double));
        assert_int_equal(x->seed, y->seed);
        assert_true(x->data.order == y->data.order && x->data.samples == y->data.samples);
        assert_memory_equal(x->data.split, y->data.split, sizeof x->data.split);
        assert_int_equal(x->batch.global, y->batch.global);
        assert_string_equal(x->parallel.stages, y->parallel.stages);
        assert_string_equal(x->parallel.stages, form == 1 ? "1,1" : "even");
        assert_true(x->parallel.pad_i == y->parallel.pad_i);
        assert_int_equal(x->batch.nramp, y->batch.nramp);
        for (int i = 0; i < x->batch.nramp; i++)
            assert_true(x->batch.ramp[i].at.n == y->batch.ramp[i].at.n &&
                        x->batch.ramp[i].at.unit == y->batch.ramp[i].at.unit &&
                        x->batch.ramp[i].global == y->batch.ramp[i].global);
        for (int i = 0; i < x->lr.npieces; i++)
            assert_true(x->lr.piece[i].until.n == y->lr.piece[i].until.n &&
                        x->lr.piece[i].until.unit == y->lr.piece[i].until.unit &&
                        x->lr.piece[i].from == y->lr.piece[i].from &&
                        x->lr.piece[i].to == y->lr.piece[i].to &&
                        x->lr.piece[i].shape == y->lr.piece[i].shape);
        assert_memory_equal(x->hook, y->hook, sizeof x->hook);
        assert_memory_equal(&x->cluster, &y->cluster, sizeof x->cluster);
        for (int i = 0; i < x->model.block[0].ncalls; i++)
            assert_memory_equal(&x->model.block[0].call[i], &y->model.block[0].call[i],
                                sizeof(struct mc_call));
        assert_memory_equal(x->model.layer_block, y->model.layer_block, 2 * sizeof(int));
        free(a), free(b), free(b2), free(pretty);
        mc_recipe_destroy(back);
        mc_recipe_destroy(back2);
        fixture_fini(&f);
    }
}

/* Keys of every object in ascending order, found by a scan of the text that knows no rows. */
static void json_is_sorted_at_every_level(void **state)
{
    struct fixture f;
    char last[40][64], *text;
    int depth = 0, is_map[40] = {0};
    (void)state;
    fixture_init(&f);
    rich(&f);
    assert_int_equal(fixture_bind(&f), MC_OK);
    text = text_of(mc_recipe_of(f.box), 0);
    for (char *s = text; *s; s++) {
        if (*s == '{' || *s == '[') {
            is_map[++depth] = *s == '{';
            last[depth][0] = '\0';
        } else if (*s == '}' || *s == ']') {
            depth--;
        } else if (*s == '"') {
            char *end = s + 1;
            while (*end != '"')
                end += *end == '\\' ? 2 : 1;
            if (end[1] == ':') {
                char key[64];
                assert_true(is_map[depth]);
                snprintf(key, sizeof key, "%.*s", (int)(end - s - 1), s + 1);
                if (strcmp(last[depth], key) >= 0)
                    fail_msg("%s after %s", key, last[depth]);
                strcpy(last[depth], key);
            }
            s = end;
        }
    }
    assert_int_equal(depth, 0);
    free(text);
    fixture_fini(&f);
}

static void hash_leaves_lines_out_and_nothing_else(void **state)
{
    struct fixture f;
    struct mc_recipe *r;
    uint64_t h;
    (void)state;
    fixture_init(&f);
    assert_int_equal(fixture_bind(&f), MC_OK);
    r = mc_recipe_of(f.box);
    h = mc_recipe_hash(r);
    r->model.stem.call[0].line++;
    assert_true(mc_recipe_hash(r) == h);
    r->model.block[0].call[1].attr[1].num = nextafter(r->model.block[0].call[1].attr[1].num, 1e9);
    assert_false(mc_recipe_hash(r) == h);
    h = mc_recipe_hash(r);
    r->model.block[0].call[2].in[0] = 1;
    assert_false(mc_recipe_hash(r) == h);
    h = mc_recipe_hash(r);
    r->optim.eps = nextafter(r->optim.eps, 1);
    assert_false(mc_recipe_hash(r) == h);
    h = mc_recipe_hash(r);
    r->parallel.sp = 1;
    assert_false(mc_recipe_hash(r) == h);
    fixture_fini(&f);
}

static void read_json_survives_damage(void **state)
{
    struct fixture f;
    struct mc_recipe_box *box = NULL;
    char *text, *copy;
    size_t n;
    int good = 0;
    (void)state;
    fixture_init(&f);
    rich(&f);
    assert_int_equal(fixture_bind(&f), MC_OK);
    text = text_of(mc_recipe_of(f.box), 0);
    n = strlen(text);
    copy = malloc(n + 1);
    srand(5);
    for (int i = 0; i < 4000; i++) {
        memcpy(copy, text, n + 1);
        size_t len = i % 7 == 0 ? (size_t)rand() % n : n;
        for (int k = rand() % 3 + (i % 7 != 0); k > 0; k--)
            copy[(size_t)rand() % n] = i % 2 ? (char)rand() : "0123456789-.eE[]{}\",:"[rand() % 21];
        char path[] = "/tmp/mc_recipe_XXXXXX";
        int fd = mkstemp(path);
        assert_int_equal(write(fd, copy, len), (ssize_t)len);
        close(fd);
        struct mc_err err = {0};
        mc_status st = mc_recipe_read_json(path, &box, &err);
        unlink(path);
        if (st == MC_OK) {
            good++;
            mc_recipe_destroy(box);
        } else {
            assert_int_equal(st, MC_E_CORRUPT);
            assert_int_equal(err.code, MC_E_CORRUPT);
            assert_non_null(strstr(err.msg, path));
        }
    }
    assert_true(good < 3000); /* a changed digit is another recipe; most damage is seen */
    free(text), free(copy);
    fixture_fini(&f);
    struct mc_err err = {0};
    assert_int_equal(mc_recipe_read_json("/nonexistent/resolved.json", &box, &err), MC_E_NOTFOUND);
}

/* ---- Random trees ------------------------------------------------------------------------------
 */

/* What was bound without a problem, and passes the cross-checks, reads back to the same text. */
static int reads_back(struct mc_recipe_box *box)
{
    struct mc_problems ps = {0};
    int sound;

    mc_recipe_cross(box, &ps);
    sound = ps.said == 0;
    mc_problems_fini(&ps);
    if (!sound)
        return 0;
    char *a = text_of(mc_recipe_of(box), 0);
    struct mc_recipe_box *back = read_text(a, MC_OK);
    char *b = text_of(mc_recipe_of(back), 0);
    assert_string_equal(a, b);
    free(a), free(b);
    mc_recipe_resolve_lr(box);
    mc_recipe_cross(box, &ps); /* resolving makes no new problem */
    assert_int_equal(ps.said, 0);
    mc_recipe_destroy(back);
    return 1;
}

static void bind_survives_any_tree(void **state)
{
    int good = 0, rounds = 4000;
    static const double nums[] = {0, -0.0, 1, -1, 0.5, 1e308, -1e308, 9007199254740993.0, 1e18};
    struct mc_recipe_box *box = NULL;
    (void)state;
    srand(11);
    for (int round = 0; round < rounds; round++) {
        struct fixture f;
        fixture_init(&f);
        for (int k = rand() % 3 + 1; k > 0; k--) {
            const struct mc_row *row = &mc_rows[rand() % mc_nrows];
            char path[64];
            struct mc_value *v;
            snprintf(path, sizeof path, "%s", row->path);
            if (rand() % 4 == 0)
                path[rand() % (int)strlen(path) + 1] = '\0';
            if (path[strlen(path) - 1] == '.')
                continue;
            static const char *const json[] = {"[]",
                                               "{}",
                                               "[1,2,3]",
                                               "{\"1\":2,\"kind\":\"x\"}",
                                               "\"x\"",
                                               "\"\"",
                                               "\"auto\"",
                                               "\"5 steps\"",
                                               "2",
                                               "\"none\"",
                                               "\"block\"",
                                               "0.5",
                                               "\"7 min\"",
                                               "1e-5",
                                               "12",
                                               "true",
                                               "null",
                                               "0",
                                               "[[[[{}]]]]",
                                               "{\"steps\":1,\"global\":2}",
                                               "[{\"steps\":1,\"global\":2}]",
                                               "[{\"op\":\"a\",\"in\":[0]}]",
                                               "[\"a\",\"b\"]"};
            const struct mc_value *at = f.root;
            char copy[64], *part = copy;
            snprintf(copy, sizeof copy, "%s", path);
            int blocked = 0; /* a scalar planted before may stand in the way */
            for (char *dot = strchr(part, '.'); dot; part = dot + 1, dot = strchr(part, '.')) {
                *dot = '\0';
                const struct mc_value *next = mc_value_get(at, part);
                if (next && next->kind != MC_V_MAP)
                    blocked = 1;
                if (!next || blocked)
                    break;
                at = next;
            }
            if (blocked)
                continue;
            v = fixture_set(&f, path, json[(size_t)rand() % (sizeof json / sizeof json[0])]);
            if (rand() % 3 == 0) {
                v->kind = MC_V_NUM;
                v->num = rand() % 10 == 0 ? NAN : rand() % 9 == 0 ? INFINITY : nums[rand() % 9];
            } else if (rand() % 9 == 0 && v->kind == MC_V_MAP) {
                static const char *const tags[] = {
                    "lr.wsd", "lr.",       "lr.pieces",         "lr.table",
                    "adamw",  "decoder",   "data.required",     "data.declared",
                    "",       "schedule.", "schedule.function", "batch.function"};
                v->tag = tags[rand() % 12];
            } else if (rand() % 5 == 0) {
                v->kind = MC_V_STR;
                v->str = rand() % 2 ? "\xff\xfe" : "a\x01";
            }
        }
        mc_status st = mc_recipe_bind(f.root, &f.problems, &box, NULL);
        assert_int_equal(st == MC_OK, f.problems.n == 0);
        if (st == MC_OK) {
            good += reads_back(box);
            mc_recipe_destroy(box);
        }
        fixture_fini(&f);
    }
    assert_true(good > 50); /* the trees are not all refused */
    /* no tree at all, and a tree that is no table */
    struct mc_problems ps = {0};
    struct mc_value v = {.kind = MC_V_NUM};
    assert_int_equal(mc_recipe_bind(&v, &ps, &box, NULL), MC_E_RECIPE);
    assert_int_equal(mc_recipe_bind(NULL, &ps, &box, NULL), MC_E_RECIPE);
    mc_problems_fini(&ps);
}

/* ---- Compare --------------------------------------------------------------------------------- */

struct pair {
    struct fixture was, now;
};

static mc_status compare(struct pair *p, const char *allow, struct mc_recipe_change *ch, int cap,
                         int *n)
{
    const char *list[1] = {allow};

    if (fixture_bind(&p->was) != MC_OK || fixture_bind(&p->now) != MC_OK) {
        fixture_print(&p->now.problems);
        fail();
    }
    return mc_recipe_compare(mc_recipe_of(p->was.box), mc_recipe_of(p->now.box), list,
                             allow != NULL, ch, cap, n, &p->now.problems, NULL);
}

static void compare_knows_free_logged_and_frozen(void **state)
{
    static const struct {
        const char *key, *json;
        char is; /* f free, l logged, z frozen */
    } row[] = {
        {"steps.steps", "99", 'f'},
        {"name", "\"u\"", 'f'},
        {"checkpoint.keep", "9", 'f'},
        {"hooks", "[\"x\"]", 'f'},
        {"parallel.overlap", "true", 'f'},
        {"parallel.pad.F", "0.5", 'f'},
        {"restart.max", "2", 'f'},
        {"time_limit", "\"1 h\"", 'f'},
        {"log_every", "3", 'f'},
        {"cluster.nodes", "3", 'f'},
        {"anomaly.max_skips", "3", 'f'},
        {"data.train", "\"elsewhere\"", 'f'},
        {"data.valid", "\"v\"", 'f'},
        {"eval.samples", "3", 'f'},
        {"parallel.tp", "2", 'l'},
        {"lr.peak", "0.002", 'l'},
        {"batch.micro", "2", 'l'},
        {"batch.global", "24", 'l'},
        {"optim.clip", "0.5", 'l'},
        {"optim.betas", "[0.9,0.99]", 'l'},
        {"device", "\"cuda\"", 'l'},
        {"parallel.schedule", "\"gpipe\"", 'l'},
        {"parallel.stages", "[1,1]", 'l'},
        {"parallel.recompute", "\"block\"", 'l'},
        {"data.train", "[{\"1\":\"text\",\"weight\":0.5}]", 'l'},
        {"data.train", "[\"a\",\"b\"]", 'l'},
        {"seed", "5", 'z'},
        {"precision", "\"fp64\"", 'z'},
        {"model.eps", "1e-6", 'z'},
        {"model.vocab", "300", 'z'},
        {"model.ffn", "96", 'z'},
        {"data.holdout", "0.1", 'z'},
        {"data.order", "\"megatron\"", 'z'},
        {"data.split", "[90,10]", 'z'},
        {"data.samples", "100", 'l'},
        {"model.head", "[{\"op\":\"linear\",\"name\":\"other\",\"in\":[0]}]", 'z'},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct pair p;
        struct mc_recipe_change ch[8];
        int n = -1;
        fixture_init(&p.was);
        fixture_init(&p.now);
        fixture_set(&p.now, row[i].key, row[i].json);
        mc_status st = compare(&p, NULL, ch, 8, &n);
        if ((st == MC_E_RECIPE) != (row[i].is == 'z') || n != (row[i].is == 'l') ||
            p.now.problems.n != (row[i].is == 'z'))
            fail_msg("%s: status %d, %d changes, %d problems", row[i].key, st, n, p.now.problems.n);
        if (row[i].is == 'z') {
            struct mc_recipe_change c2[8];
            const char *group[1] = {"model"}, *self[1] = {row[i].key};
            struct mc_problems ps = {0};
            assert_true(strstr(p.now.problems.p[0].hint, row[i].key) &&
                        strstr(p.now.problems.p[0].hint, "--allow"));
            assert_int_equal(mc_recipe_compare(mc_recipe_of(p.was.box), mc_recipe_of(p.now.box),
                                               self, 1, c2, 8, &n, &ps, NULL),
                             MC_OK);
            assert_int_equal(n, 1);
            assert_string_equal(c2[0].path, row[i].key);
            if (strncmp(row[i].key, "model.", 6) == 0)
                assert_int_equal(mc_recipe_compare(mc_recipe_of(p.was.box), mc_recipe_of(p.now.box),
                                                   group, 1, c2, 8, &n, &ps, NULL),
                                 MC_OK);
            mc_problems_fini(&ps);
        }
        fixture_fini(&p.was);
        fixture_fini(&p.now);
    }
}

static void compare_ignores_lines_and_says_values(void **state)
{
    struct pair p;
    struct mc_recipe_change ch[2];
    int n;
    (void)state;
    fixture_init(&p.was);
    fixture_init(&p.now);
    mc_value_get(mc_value_get(mc_value_get(p.now.root, "model"), "stem")->item[0], "line")->num =
        99;
    fixture_set(&p.now, "lr.peak", "0.25");
    fixture_set(&p.now, "batch.micro", "2");
    fixture_set(&p.now, "optim.clip", "2");
    assert_int_equal(compare(&p, NULL, ch, 2, &n), MC_OK);
    assert_int_equal(n, 2);
    assert_string_equal(ch[0].path, "batch.micro");
    assert_string_equal(ch[0].was, "1");
    assert_string_equal(ch[0].now, "2");
    assert_string_equal(ch[1].path, "...");
    assert_string_equal(ch[1].was, "2 more keys differ");
    fixture_fini(&p.was);
    fixture_fini(&p.now);
}

/* A scalar is told, not what it did to the traced parts; a part that changed alone is. */
static void compare_leaves_out_what_a_scalar_explains(void **state)
{
    struct pair p;
    struct mc_recipe_change ch[8];
    int n;
    (void)state;
    fixture_init(&p.was);
    fixture_init(&p.now);
    fixture_set(&p.now, "model.eps", "1e-6");
    fixture_set(&p.now, "model.head", "[{\"op\":\"linear\",\"name\":\"other\",\"in\":[0]}]");
    assert_int_equal(compare(&p, NULL, ch, 8, &n), MC_E_RECIPE);
    assert_int_equal(p.now.problems.n, 1);
    assert_string_equal(p.now.problems.p[0].path, "model.eps");
    fixture_fini(&p.was);
    fixture_fini(&p.now);
    fixture_init(&p.was);
    fixture_init(&p.now);
    fixture_set(&p.now, "model.head", "[{\"op\":\"linear\",\"name\":\"other\",\"in\":[0]}]");
    assert_int_equal(compare(&p, NULL, ch, 8, &n), MC_E_RECIPE);
    assert_string_equal(p.now.problems.p[0].path, "model.head");
    assert_non_null(strstr(p.now.problems.p[0].message, " calls (hash "));
    fixture_fini(&p.was);
    fixture_fini(&p.now);
}

/* was has 3 rates, now n of value last behind two equal ones. */
static int rates_differ(int64_t n, double last, char was[256])
{
    static const double a[3] = {1e-3, 2e-3, 3e-3};
    double b[8] = {1e-3, 2e-3};
    struct pair p;
    struct mc_recipe_change ch[8];
    int changes = 0, found = 0;

    for (int i = 2; i < 8; i++)
        b[i] = last;
    fixture_init(&p.was);
    fixture_init(&p.now);
    assert_int_equal(fixture_bind(&p.was), MC_OK);
    assert_int_equal(fixture_bind(&p.now), MC_OK);
    assert_int_equal(mc_recipe_set_lr_table(p.was.box, 3, a, NULL), MC_OK);
    assert_int_equal(mc_recipe_set_lr_table(p.now.box, n, b, NULL), MC_OK);
    assert_int_equal(mc_recipe_compare(mc_recipe_of(p.was.box), mc_recipe_of(p.now.box), NULL, 0,
                                       ch, 8, &changes, &p.now.problems, NULL),
                     MC_OK);
    for (int i = 0; i < changes; i++)
        if (strcmp(ch[i].path, "lr.values") == 0) {
            found = 1;
            memcpy(was, ch[i].was, sizeof ch[i].was);
        }
    fixture_fini(&p.was);
    fixture_fini(&p.now);
    return found;
}

static void compare_tells_a_function_from_its_length(void **state)
{
    char was[256];
    (void)state;
    assert_false(rates_differ(8, 3e-3, was)); /* more steps of the same function */
    assert_false(rates_differ(2, 3e-3, was)); /* fewer */
    assert_true(rates_differ(3, 4e-3, was));
    assert_non_null(strstr(was, "the function given for lr"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compare_leaves_out_what_a_scalar_explains),
        cmocka_unit_test(compare_tells_a_function_from_its_length),
        cmocka_unit_test(json_round_trips_bit_for_bit),
        cmocka_unit_test(json_is_sorted_at_every_level),
        cmocka_unit_test(hash_leaves_lines_out_and_nothing_else),
        cmocka_unit_test(read_json_survives_damage),
        cmocka_unit_test(bind_survives_any_tree),
        cmocka_unit_test(compare_knows_free_logged_and_frozen),
        cmocka_unit_test(compare_ignores_lines_and_says_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
