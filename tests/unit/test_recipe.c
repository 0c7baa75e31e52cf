/* test_recipe.c - rows, binding, messages, texts.
 * links: mc_recipe */
#include "recipe_fixture.h"
#include <math.h>
#include <unistd.h>
#include "../../core/base/hash.h"
#include "../../core/recipe/recipe_int.h"

/* ---- Rows ------------------------------------------------------------------------------------ */

static void rows_are_sorted_and_whole(void **state)
{
    (void)state;
    for (int i = 0; i < mc_nrows; i++) {
        const struct mc_row *r = &mc_rows[i];
        if (i > 0)
            assert_true(strcmp(mc_rows[i - 1].path, r->path) < 0);
        assert_int_equal(mc_rows_find(r->path), i);
        assert_false(mc_rows_is_group(r->path));
        assert_non_null(r->doc);
        assert_true(r->type != MC_ROW_OTHER || (r->bind && r->write && r->form && !r->dfl));
        assert_true(r->dfl || r->dfl_doc || r->required || r->type == MC_ROW_OTHER);
        assert_true(strlen(r->path) < 40);
    }
    assert_true(mc_recipe_key_known("lr.end") && mc_recipe_key_known("model") &&
                mc_recipe_key_known("parallel.overlap.grads") && !mc_recipe_key_known("modell") &&
                !mc_recipe_key_known("mode") && !mc_recipe_key_known(""));
}

static void recipe_exclusive_names_the_siblings(void **state)
{
    const char *s[4];
    (void)state;
    assert_int_equal(mc_recipe_exclusive("steps.tokens", s), 2);
    assert_string_equal(s[0], "steps.samples");
    assert_string_equal(s[1], "steps.steps");
    assert_int_equal(mc_recipe_exclusive("model.layers", s), 0);
}

static void nearest_is_near(void **state)
{
    static const char *const known[] = {"heads", "hidden", "layers", "tp", "pp", "shard_optimizer"};
    static const char *const row[][2] = {
        {"head", "heads"},    {"n_heads", "heads"},
        {"Layers", "layers"}, {"layesr", "layers"},
        {"hiden", "hidden"},  {"xx", NULL},
        {"t", NULL},          {"banana", NULL},
        {"", NULL},           {"shard_optimiser", "shard_optimizer"}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const char *n = mc_nearest(row[i][0], known, 6);
        if (n != row[i][1] && (!n || !row[i][1] || strcmp(n, row[i][1]) != 0))
            fail_msg("%s -> %s", row[i][0], n ? n : "none");
    }
}

/* ---- Binding --------------------------------------------------------------------------------- */

static void bind_fills_defaults(void **state)
{
    struct fixture f;
    const struct mc_recipe *r;
    (void)state;
    fixture_init(&f);
    if (fixture_bind(&f) != MC_OK) {
        fixture_print(&f.problems);
        fail();
    }
    r = mc_recipe_of(f.box);
    assert_string_equal(r->name, "t");
    assert_int_equal(r->seed, 1234);
    assert_int_equal(r->model.head_dim, 8);
    assert_int_equal(r->model.kv_heads, 2);
    assert_int_equal(r->model.vocab, 257);
    assert_true(r->model.theta == 10000 && r->model.eps == 1e-5 && r->model.init_std == 0.02);
    assert_true(r->optim.betas[0] == 0.9 && r->optim.betas[1] == 0.95 && r->optim.eps == 1e-8 &&
                r->optim.weight_decay == 0.1 && r->optim.clip == 1.0);
    assert_int_equal(r->optim.nno_decay, 2);
    assert_string_equal(r->optim.no_decay[1], "bias");
    assert_int_equal(r->precision, MC_F32);
    assert_int_equal(r->device, MC_DEVICE_CPU);
    assert_int_equal(r->checkpoint.keep, 3);
    assert_true(r->checkpoint.every.n == INT64_C(1800000000000) &&
                r->checkpoint.every.unit == MC_UNIT_NS);
    assert_int_equal(r->checkpoint.async, 0);
    assert_int_equal(r->eval.every.n, 0);
    assert_int_equal(r->anomaly.nonfinite, MC_ANOMALY_SKIP);
    assert_true(r->anomaly.spike_factor == 0);
    assert_int_equal(r->anomaly.spike_window, 128);
    assert_int_equal(r->anomaly.max_skips, 10);
    assert_int_equal(r->log_every, 10);
    assert_int_equal(r->parallel.dp, 0);
    assert_int_equal(r->restart.max, -1);
    assert_string_equal(r->parallel.order, "tp-cp-ep-dp-pp");
    assert_string_equal(mc_recipe_origin(f.box, "model.theta"), "default");
    assert_string_equal(mc_recipe_origin(f.box, "model.layers"), "r.lua");
    assert_null(mc_recipe_origin(f.box, "model.bogus"));
    assert_int_equal(r->model.block[0].ncalls, 3);
    assert_string_equal(r->model.block[0].call[1].attr[0].key, "half");
    assert_int_equal(r->model.block[0].call[2].in[1], 2);
    assert_int_equal(r->model.stem.call[0].line, 3);
    fixture_fini(&f);
}

static void bind_takes_every_legal_form(void **state)
{
    static const char *const sets[][2] = {
        {"seed", "\"9223372036854775807\""},
        {"model.kv_heads", "4"},
        {"model.dropout", "0.25"},
        {"model.ffn", "null"},
        {"data", "{\"tokenizer\":\"bytes\",\"train\":[\"a\",{\"1\":\"b\",\"weight\":0.5},{\"path\":"
                 "\"c\"},[\"d\"]],"
                 "\"holdout\":0.1,\"mask_eod\":true}"},
        {"batch", "{\"global\":\"4k\",\"micro\":2,\"ramp\":[{\"tokens\":0,\"global\":128},{"
                  "\"tokens\":\"2B\",\"global\":4000}]}"},
        {"steps", "{\"tokens\":\"10B\"}"},
        {"time_limit", "\"4 h\""},
        {"lr", "{\"kind\":\"wsd\",\"peak\":6e-4,\"warmup\":\"200M tokens\",\"decay\":\"1B "
               "tokens\",\"tail\":\"sqrt\",\"end\":\"9B tokens\"}"},
        {"optim", "{\"kind\":\"adamw\",\"betas\":[0.5,0.75],\"no_decay\":[],\"rules\":[{\"1\":\"*."
                  "bias\",\"lr_scale\":2},{\"match\":\"x\",\"weight_decay\":0}]}"},
        {"precision", "\"fp64\""},
        {"parallel", "{\"dp\":4,\"overlap\":true,\"recompute\":[\"rmsnorm\"],\"schedule\":\"zb_v\","
                     "\"stages\":[3,0,12],\"pad\":{\"F\":\"20 ms\",\"I\":0.5}}"},
        {"checkpoint", "{\"every\":7,\"keep\":2,\"stall\":\"90 s\"}"},
        {"cluster", "{\"nodes\":2,\"per_node\":8,\"mtbf\":\"7.9 h\",\"mem\":\"24 GiB\"}"},
        {"eval", "{\"every\":\"1B tokens\",\"samples\":\"10k\"}"},
        {"hooks", "[\"h.lua\",{\"1\":\"g.lua\",\"allow\":[\"exec:x\"],\"every\":100,\"loud\":true,"
                  "\"zed\":\"a\\nb\"}]"},
        {"restart", "{\"max\":3,\"mode\":\"confirm\"}"},
        {"anomaly", "{\"spike_factor\":4,\"spike\":\"abort\"}"},
    };
    struct fixture f;
    const struct mc_recipe *r;
    (void)state;
    fixture_init(&f);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        fixture_set(&f, sets[i][0], sets[i][1]);
    if (fixture_bind(&f) != MC_OK) {
        fixture_print(&f.problems);
        fail();
    }
    r = mc_recipe_of(f.box);
    assert_true(r->seed == INT64_MAX);
    assert_int_equal(r->model.ffn, 128);
    assert_int_equal(r->data.ntrain, 4);
    assert_string_equal(r->data.train[1].path, "b");
    assert_true(r->data.train[1].weight == 0.5 && r->data.train[3].weight == 1);
    assert_int_equal(r->batch.global, 4000);
    assert_true(r->batch.ramp[1].at.n == 2000000000 && r->batch.ramp[1].at.unit == MC_UNIT_TOKENS);
    assert_true(r->steps.n == INT64_C(10000000000) && r->steps.unit == MC_UNIT_TOKENS);
    assert_true(r->time_limit.n == INT64_C(14400000000000));
    assert_int_equal(r->lr.kind, MC_LR_WSD);
    assert_true(r->lr.tail == MC_SHAPE_SQRT && r->lr.end.n == INT64_C(9000000000));
    assert_int_equal(r->optim.nno_decay, 0);
    assert_true(isnan(r->optim.rule[0].weight_decay) && r->optim.rule[0].lr_scale == 2);
    assert_true(r->optim.rule[1].weight_decay == 0 && isnan(r->optim.rule[1].lr_scale));
    assert_true(r->parallel.overlap_grads && r->parallel.overlap_params);
    assert_int_equal(r->parallel.recompute, MC_RECOMPUTE_OPS);
    int layers[MC_MAX_STAGES];
    assert_string_equal(r->parallel.stages, "3,0,12");
    assert_int_equal(mc_recipe_stages(&r->parallel, layers), 3);
    assert_true(layers[0] == 3 && layers[1] == 0 && layers[2] == 12);
    assert_true(r->parallel.pad_f == 0.02 && r->parallel.pad_i == 0.5 && r->parallel.pad_w == 0);
    assert_true(r->checkpoint.every.unit == MC_UNIT_STEPS && r->checkpoint.stall_s == 90);
    assert_true(r->cluster.mtbf_h == 7.9 && r->cluster.mem_bytes == INT64_C(25769803776));
    assert_int_equal(r->eval.samples, 10000);
    assert_int_equal(r->hook[1].noptions, 3);
    assert_string_equal(r->hook[1].option[2].str, "a\nb");
    assert_string_equal(mc_recipe_origin(f.box, "lr.stop"), "r.lua");
    assert_string_equal(mc_recipe_origin(f.box, "precision"), "r.lua:42");
    fixture_fini(&f);
}

static void bind_takes_the_tagged_forms_of_lua(void **state)
{
    struct fixture f;
    struct mc_value *v;
    (void)state;
    fixture_init(&f);
    mc_value_get(f.root, "model")->tag = "decoder";
    v = fixture_set(&f, "lr",
                    "{\"1\":{\"upto\":10,\"from\":0,\"to\":1e-3},\"2\":{\"until\":\"50 "
                    "steps\",\"from\":1e-3,\"shape\":\"constant\"}}");
    v->tag = "lr.pieces";
    fixture_set(&f, "optim", "{\"clip\":0}")->tag = "adamw";
    fixture_set(&f, "data", "{\"tokens\":\"1T\",\"vocab\":50257}")->tag = "data.declared";
    fixture_set(&f, "batch.global", "{}")->tag = "batch.function";
    fixture_set(&f, "parallel.schedule", "{}")->tag = "schedule.zb_h1";
    if (fixture_bind(&f) != MC_OK) {
        fixture_print(&f.problems);
        fail();
    }
    const struct mc_recipe *r = mc_recipe_of(f.box);
    assert_int_equal(r->lr.npieces, 2);
    assert_true(r->lr.piece[1].to == 1e-3 && r->lr.piece[1].until.n == 50);
    assert_int_equal(r->data.declared_vocab, 50257);
    assert_int_equal(r->model.vocab, 50257);
    assert_true(r->batch.function && r->batch.global == 0);
    assert_string_equal(r->parallel.schedule, "zb_h1");
    fixture_fini(&f);

    fixture_init(&f);
    fixture_set(&f, "lr", "{}")->tag = "lr.table";
    fixture_set(&f, "data.train", "{}")->tag = "data.required";
    assert_int_equal(fixture_bind(&f), MC_OK);
    assert_int_equal(mc_recipe_of(f.box)->lr.kind, MC_LR_TABLE);
    assert_true(mc_recipe_of(f.box)->data.required);
    double values[3] = {0.5, -0.0, 0.25};
    assert_int_equal(mc_recipe_set_lr_table(f.box, 3, values, NULL), MC_OK);
    values[0] = 9;
    assert_true(mc_recipe_of(f.box)->lr.table[0] == 0.5 &&
                !signbit(mc_recipe_of(f.box)->lr.table[1]));
    fixture_fini(&f);

    fixture_init(&f); /* pieces as a plain list */
    fixture_set(&f, "lr", "{\"kind\":\"pieces\",\"pieces\":[{\"upto\":10,\"from\":1}]}");
    assert_int_equal(fixture_bind(&f), MC_OK);
    assert_int_equal(mc_recipe_of(f.box)->lr.npieces, 1);
    fixture_fini(&f);
}

#define TEN(x)     x x x x x x x x x x
#define HUNDRED(x) TEN(TEN(x))
static const char g_many_stages[] = "[" HUNDRED("99,") HUNDRED("99,") HUNDRED("99,")
    HUNDRED("99,") "99]"; /* 1 202 characters as text */

static const struct bad {
    const char *key, *json, *path, *says;
} g_bad[] = {
    {"model.n_heads", "4", "model.n_heads", "did you mean \"heads\"?"},
    {"layers", "4", "layers", "did you mean \"model.layers\"?"},
    {"prallel", "{}", "prallel", "did you mean \"parallel\"?"},
    {"zzzzzz", "1", "zzzzzz", "unknown key"},
    {"model.layers", "1.5", "model.layers", "must be a whole number, not 1.5"},
    {"model.layers", "0", "model.layers", "must be between 1 and 4096, not 0"},
    {"model.layers", "1e300", "model.layers", "between"},
    {"model.layers", "\"two\"", "model.layers", "must be a whole number, not a string"},
    {"model.layers", "[1]", "model.layers", "not a list"},
    {"model.layers", "null", "model.layers", "required, not given"},
    {"model.heads", "5", "model.heads", "hidden 32 is not a multiple of heads 5"},
    {"model.eps", "\"x\"", "model.eps", "must be a number, not a string"},
    {"model.dropout", "1", "model.dropout", "between 0 and 0.99"},
    {"model.tied", "1", "model.tied", "must be true or false, not a number"},
    {"model.theta", "0", "model.theta", "must be above 0"},
    {"model.blocks", "null", "model", "must come from a model constructor"},
    {"model.layer_block", "[0]", "model", "1 entries for 2 layers"},
    {"model.layer_block", "[0,1]", "model", "but there are 1 blocks"},
    {"model.stem", "[{\"op\":\"embedding\",\"in\":[1]}]", "model.stem[1]", "between 0 and 0"},
    {"model.stem", "[{\"op\":\"embedding\",\"in\":[0],\"bogus\":1}]", "model.stem[1].bogus",
     "unknown key"},
    {"model.head", "[]", "model.head", "has no calls"},
    {"model.head", "[{\"op\":\"x\",\"in\":[0],\"attrs\":{\"a\":[]}}]", "model.head[1].attrs.a",
     "an attribute is"},
    {"model", "3", "model", "must be a table of keys, not a number"},
    {"model", "[1]", "model", "not a list"},
    {"model", "[]", "model.layers", "required, not given"}, /* once bound as nothing at all */
    {"name", "\"a/b\"", "name", "it names a folder"},
    {"name", "\".x\"", "name", "it names a folder"},
    {"name", "\"\"", "name", "must not be empty"},
    {"seed", "\"12x\"", "seed", "decimal digits"},
    {"seed", "\"9223372036854775808\"", "seed", "below 2^63"},
    {"seed", "-1", "seed", "between 0"},
    {"seed", "9007199254740992", "seed", "in quotes, as text"}, /* what Lua makes of ...993 */
    {"steps", "{\"tokens\":9007199254740992}", "steps.tokens", "in quotes, as text"},
    {"data.declared.tokens", "9007199254740992", "data.declared.tokens", "in quotes, as text"},
    {"optim.eps", "1e-300", "optim.eps", "as good as 0 in fp32"},
    {"optim.eps", "1e-40", "optim.eps", "as good as 0 in fp32"},
    {"model.eps", "0", "model.eps", "no protection in fp32"},
    {"model.eps", "1e-40", "model.eps", "as good as 0 in fp32"},
    {"model.head", "[{\"op\":\"rmsnorm\",\"name\":\"n\",\"in\":[0],\"attrs\":{\"eps\":1e-50}}]",
     "model.head", "eps of rmsnorm \"n\""},
    {"steps", "{\"steps\":5,\"tokens\":\"1B\"}", "steps.tokens", "a run has one target"},
    {"steps", "{}", "steps", "required, not given"},
    {"steps", "50", "steps", "such as steps = { steps = 1000 }"},
    {"steps.steps", "\"5 tokens\"", "steps.steps", "must be in steps, not in tokens"},
    {"steps.steps", "0", "steps.steps", "at least 1"},
    {"lr", "{\"peak\":1}", "lr", "must be a schedule such as"},
    {"lr.kind", "\"cosin\"", "lr.kind", "did you mean \"cosine\"?"},
    {"lr.decay", "5", "lr.decay", "not a key of m.lr.constant; it belongs to: wsd"},
    {"lr.peak", "null", "lr.peak", "required, not given"},
    {"lr.warmup", "\"5 min\"", "lr.warmup", "must be in steps, samples or tokens, not in time"},
    {"lr.warmup", "\"1.5 steps\"", "lr.warmup", "not a whole number of steps"},
    {"lr", "{\"kind\":\"pieces\",\"pieces\":[{\"from\":1}]}", "lr.pieces[1]", "must have upto"},
    {"lr", "{\"kind\":\"pieces\",\"pieces\":[]}", "lr.pieces", "has no piece"},
    {"lr", "{\"kind\":\"table\",\"values\":[1,\"x\"]}", "lr.values[2]", "must be a number"},
    {"batch.global", "null", "batch.global", "required, not given"},
    {"batch.ramp", "[{\"tokens\":0}]", "batch.ramp[1]", "must have global"},
    {"batch.ramp", "[{\"tokens\":0,\"steps\":0,\"global\":12}]", "batch.ramp[1]", "has 2"},
    {"batch.ramp", "5", "batch.ramp", "must be a list of"},
    {"data.train", "null", "data.train", "required, not given"},
    {"data.train", "[]", "data.train", "has no source"},
    {"data.train", "{\"1\":\"x\",\"weight\":1}", "data.train", "braces of its own"},
    {"data.train", "[{\"weight\":1}]", "data.train[1]", "has no path"},
    {"data.train", "[{\"1\":\"a\",\"weight\":-1}]", "data.train[1].weight", "above 0"},
    {"data.train", "[\"a\",\"a\"]", "data.train[2]", "same source as [1]"},
    {"data.train", "[{\"1\":\"a\",\"wieght\":1}]", "data.train[1].wieght",
     "did you mean \"weight\"?"},
    {"data.tokenizer", "\"gpt2\"", "model.vocab", "required, not given"},
    {"data.holdout", "0.95", "data.holdout", "between 0 and 0.9"},
    {"data.order", "\"megatrom\"", "data.order", "must be \"mascon\" or \"megatron\""},
    {"data.split", "[0,1]", "data.split", "above 0"},
    {"data.split", "[1,-1]", "data.split[2]", "between 0 and"},
    {"data.split", "[1,1,1,1]", "data.split", ""},
    {"optim.betas", "[0.9]", "optim.betas", "two numbers"},
    {"optim.betas", "[0.9,1]", "optim.betas[2]", "below 1"},
    {"optim.rules", "[{\"1\":\"x\"}]", "optim.rules[1]", "sets neither"},
    {"optim.kind", "\"sgd\"", "optim.kind", "must be \"adamw\""},
    {"precision", "\"fp16\"", "precision", "must be \"fp32\", \"fp64\" or \"bf16\", not \"fp16\""},
    {"device", "\"gpu\"", "device", "must be \"cpu\" or \"cuda\""},
    {"checkpoint.keep", "1", "checkpoint.keep", "between 2"},
    {"checkpoint.every", "\"0 min\"", "checkpoint.every", "at least 1"},
    {"checkpoint.every", "\"60 mins\"", "checkpoint.every", "unknown unit"},
    {"time_limit", "60", "time_limit", "needs a unit"},
    {"time_limit", "\"60 steps\"", "time_limit", "must be in time"},
    {"parallel.overlap", "3", "parallel.overlap", "must be a table of keys"},
    {"parallel.overlap.grad", "true", "parallel.overlap.grad", "did you mean \"grads\"?"},
    {"parallel.recompute", "\"all\"", "parallel.recompute", "must be \"none\" or \"block\""},
    {"parallel.dp", "\"many\"", "parallel.dp", "a whole number or \"auto\""},
    {"parallel.stages", "\"evenly\"", "parallel.stages",
     "must be \"even\", \"auto\" or a list of layers a stage such as { 3, 2, 2, 1 }, not "
     "\"evenly\""},
    {"parallel.stages", "\"3,2,\"", "parallel.stages", "not \"3,2,\""},
    {"parallel.stages", "\"3,-2\"", "parallel.stages", "not \"3,-2\""},
    {"parallel.stages", "\"99999999999999999999\"", "parallel.stages", "must be \"even\""},
    {"parallel.stages", "\"\"", "parallel.stages", "must be \"even\""},
    {"parallel.stages", "[]", "parallel.stages", "names no stage"},
    {"parallel.stages", "4", "parallel.stages", "a list of layers a stage"},
    {"parallel.stages", "[2,1.5]", "parallel.stages[2]", "must be a whole number, not 1.5"},
    {"parallel.stages", "[2,-1]", "parallel.stages[2]", "must be between 0"},
    {"parallel.stages", g_many_stages, "parallel.stages[342]", "too many stages"},
    {"parallel.pad.F", "-1", "parallel.pad.F", "must be between 0 and 3600"},
    {"parallel.pad.f", "1", "parallel.pad.f", "unknown key"},
    {"parallel.pad.W", "\"3 steps\"", "parallel.pad.W", "must be in time"},
    {"hooks", "[{\"allow\":[]}]", "hooks[1]", "has no path"},
    {"hooks", "[{\"1\":\"a\",\"x\":{}}]", "hooks[1].x", "an option is"},
    {"hooks", "\"a.lua\"", "hooks", "must be a list"},
    {"anomaly.spike_window", "7", "anomaly.spike_window", "between 8 and 1024"},
    {"cluster.mem", "\"24 gigs\"", "cluster.mem", "unknown unit"},
    {"cluster.mtbf", "\"7 steps\"", "cluster.mtbf", "must be in time"},
    /* across keys, in the same run */
    {"batch.micro", "0", "batch.micro", "between 1"},
    {"parallel.schedule", "\"gpype\"", "parallel.schedule", "did you mean \"gpipe\"?"},
};

static void bind_says_what_is_wrong_where_and_what_to_do(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof g_bad / sizeof g_bad[0]; i++) {
        const struct bad *b = &g_bad[i];
        struct fixture f;
        struct mc_err err = {0};
        fixture_init(&f);
        if (strcmp(b->key, "parallel.schedule") == 0 || strstr(b->says, "in fp32") ||
            strncmp(b->says, "eps of", 6) == 0)
            fixture_set(&f, "zzz", "1"); /* cross-checks join only where binding found a problem */
        fixture_set(&f, b->key, b->json);
        if (mc_recipe_bind(f.root, &f.problems, &f.box, &err) != MC_E_RECIPE || f.box ||
            err.code != MC_E_RECIPE || !fixture_says(&f.problems, b->path, b->says)) {
            fixture_print(&f.problems);
            fail_msg("%s = %s: want %s: %s", b->key, b->json, b->path, b->says);
        }
        if (strcmp(b->json, "null") != 0 && b->path == b->key &&
            (strcmp(f.problems.p[0].file, "r.lua") != 0 || f.problems.p[0].line != 42))
            fail_msg("%s: %s:%d", b->key, f.problems.p[0].file, f.problems.p[0].line);
        fixture_fini(&f);
    }
}

static void bind_says_one_problem_a_mistake(void **state)
{
    static const char *const one[][2] = {
        {"model.layers", "1.5"}, {"model.heads", "null"}, {"model", "null"},
        {"lr", "null"},          {"lr.kind", "\"x\""},    {"batch.global", "\"x\""},
        {"data.tokenizer", "3"}, {"model.blocks", "3"},   {"steps.steps", "\"x\""},
        {"model.heads", "6"},    {"batch.micro", "1.5"},  {"parallel", "7"}};
    (void)state;
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
        struct fixture f;
        fixture_init(&f);
        fixture_set(&f, one[i][0], one[i][1]);
        fixture_bind(&f);
        if (f.problems.n != 1) {
            fixture_print(&f.problems);
            fail_msg("%s = %s: %d problems", one[i][0], one[i][1], f.problems.n);
        }
        fixture_fini(&f);
    }
}

static void bind_reports_all_problems_in_one_run(void **state)
{
    struct fixture f;
    (void)state;
    fixture_init(&f);
    fixture_set(&f, "bogus", "1");
    fixture_set(&f, "model.layers", "\"x\"");
    fixture_set(&f, "batch.micro", "5");    /* 12 % 5 */
    fixture_set(&f, "model.kv_heads", "3"); /* 4 % 3 */
    fixture_set(&f, "lr.floor", "1");       /* not a key of constant */
    fixture_bind(&f);
    assert_int_equal(f.problems.n, 5);
    assert_true(
        fixture_says(&f.problems, "batch.global", "global 12 is not a multiple of micro 5"));
    assert_true(
        fixture_says(&f.problems, "model.kv_heads", "heads 4 is not a multiple of kv_heads 3"));
    fixture_fini(&f);
}

static void bind_model_binds_the_scalars_alone(void **state)
{
    struct fixture f;
    struct mc_model_cfg m = {.layers = 77};
    (void)state;
    fixture_init(&f);
    fixture_set(&f, "bogus", "1");
    fixture_set(&f, "model.bogus", "1");
    fixture_set(&f, "model.stem", "null");
    fixture_set(&f, "lr", "null");
    assert_int_equal(mc_recipe_bind_model(f.root, &f.problems, &m, NULL), MC_OK);
    assert_int_equal(f.problems.n, 0);
    assert_int_equal(m.layers, 2);
    assert_int_equal(m.vocab, 257);
    assert_int_equal(m.head_dim, 8);
    assert_null(m.block);
    m.layers = 77;
    fixture_set(&f, "model.hidden", "\"x\"");
    fixture_set(&f, "model.untraced", "true");
    assert_int_equal(mc_recipe_bind_model(f.root, &f.problems, &m, NULL), MC_E_RECIPE);
    assert_int_equal(m.layers, 77);
    assert_int_equal(f.problems.n, 1);
    fixture_bind(&f); /* says the rest, and not the same again */
    assert_int_equal(f.problems.n, 4);
    fixture_fini(&f);

    fixture_init(&f); /* untraced without a problem is one */
    fixture_set(&f, "model.untraced", "true");
    assert_int_equal(fixture_bind(&f), MC_E_RECIPE);
    assert_true(fixture_says(&f.problems, "model", "was not traced"));
    fixture_fini(&f);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

struct lines {
    char *text;
    size_t len;
};

static void collect(void *arg, const char *line)
{
    struct lines *l = arg;
    size_t n = strlen(line);

    l->text = realloc(l->text, l->len + n + 2);
    memcpy(l->text + l->len, line, n);
    l->len += n + 1;
    l->text[l->len - 1] = '\n';
    l->text[l->len] = '\0';
}

static void explain_shows_every_key_and_its_origin(void **state)
{
    struct fixture f;
    struct lines l = {0};
    struct mc_json j;
    (void)state;
    fixture_init(&f);
    fixture_set(&f, "model.layers", "2");
    assert_int_equal(fixture_bind(&f), MC_OK);
    mc_recipe_set_origin(f.box, "device", "found here");
    assert_int_equal(mc_recipe_explain(f.box, NULL, collect, &l), MC_OK);
    assert_non_null(strstr(l.text, "model.layers               = 2  "));
    assert_non_null(strstr(l.text, "  r.lua:42\n"));
    assert_non_null(strstr(l.text, "  found here\n"));
    assert_non_null(strstr(l.text, "1 block, 3 calls"));
    assert_null(strstr(l.text, "lr.decay"));
    for (int i = 0; i < mc_nrows; i++)
        if (mc_rows_active(&mc_rows[i], mc_recipe_of(f.box)) && !strstr(l.text, mc_rows[i].path))
            fail_msg("%s is missing", mc_rows[i].path);
    free(l.text);
    mc_json_init_grow(&j);
    assert_int_equal(mc_recipe_explain(f.box, &j, NULL, NULL), MC_OK);
    struct mc_value *v = NULL;
    assert_int_equal(mc_value_from_json(f.pool, j.buf, j.len, "x", &v, NULL), MC_OK);
    assert_true(v->n > 60);
    assert_string_equal(mc_value_get(v->item[0], "path")->str, "anomaly.max_skips");
    mc_json_fini(&j);
    fixture_fini(&f);
}

static void doc_has_every_row(void **state)
{
    struct lines l = {0};
    struct mc_err err = {0};
    (void)state;
    assert_int_equal(mc_recipe_doc(NULL, collect, &l, NULL), MC_OK);
    for (int i = 0; i < mc_nrows; i++) {
        char cell[64];
        snprintf(cell, sizeof cell, "| `%s` |", mc_rows[i].path);
        if (!strstr(l.text, cell))
            fail_msg("%s is missing", mc_rows[i].path);
    }
    for (char *s = l.text; s; s = strchr(s + 1, '|') ? strchr(s + 1, '\n') : NULL) {
        int bars = 0; /* every table line has 6 cells */
        char *line = s[0] == '\n' ? s + 1 : s;
        if (*line != '|')
            continue;
        for (; *line && *line != '\n'; line++)
            bars += *line == '|';
        assert_int_equal(bars, 7);
    }
    free(l.text);
    l = (struct lines){0};
    assert_int_equal(mc_recipe_doc("lr.warmup", collect, &l, NULL), MC_OK);
    assert_non_null(strstr(l.text, "lr.peak"));
    assert_int_equal(mc_recipe_doc("parallel.overlap", collect, &l, NULL), MC_OK);
    assert_int_equal(mc_recipe_doc("lr.warmupp", collect, &l, &err), MC_E_USAGE);
    assert_non_null(strstr(err.msg, "did you mean \"warmup\"?"));
    free(l.text);
}

static void problems_are_bounded_and_clean(void **state)
{
    struct mc_problems ps = {0};
    char big[2000];
    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    mc_problems_add(&ps, "a\x1b[31m", big, 1, big, "%s", big);
    assert_string_equal(ps.p[0].path, "a?[31m");
    mc_problems_add(&ps, "a\x1b[31m", big, 1, big, "%s", big);
    assert_int_equal(ps.n, 1);
    for (int i = 0; i < 1000; i++)
        mc_problems_add(&ps, "k", "f", i, "", "number %d", i);
    assert_int_equal(ps.n, 200);
    assert_int_equal(ps.dropped, 801);
    mc_problems_fini(&ps);
    assert_null(ps.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted_and_whole),
        cmocka_unit_test(recipe_exclusive_names_the_siblings),
        cmocka_unit_test(nearest_is_near),
        cmocka_unit_test(bind_fills_defaults),
        cmocka_unit_test(bind_takes_every_legal_form),
        cmocka_unit_test(bind_takes_the_tagged_forms_of_lua),
        cmocka_unit_test(bind_says_what_is_wrong_where_and_what_to_do),
        cmocka_unit_test(bind_says_one_problem_a_mistake),
        cmocka_unit_test(bind_reports_all_problems_in_one_run),
        cmocka_unit_test(bind_model_binds_the_scalars_alone),
        cmocka_unit_test(explain_shows_every_key_and_its_origin),
        cmocka_unit_test(doc_has_every_row),
        cmocka_unit_test(problems_are_bounded_and_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
