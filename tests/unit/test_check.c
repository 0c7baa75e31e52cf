/* test_check.c - a recipe against the world: layouts, versions, notes, memory.
 * links: mc_plan */
#include "recipe_fixture.h"
#include <unistd.h>
#include "../../core/plan/check.h"
#include "../../core/train/train.h"

struct world {
    struct fixture f;
    struct mc_check_cfg cfg;
    struct mc_check_notes notes;
    struct mc_err err;
};

static void world_init(struct world *w)
{
    memset(w, 0, sizeof *w);
    fixture_init(&w->f);
    w->cfg.ranks = 1;
}

static void world_fini(struct world *w)
{
    fixture_fini(&w->f);
}

/* Binds (which must succeed) and checks. */
static mc_status check(struct world *w)
{
    if (fixture_bind(&w->f) != MC_OK) {
        fixture_print(&w->f.problems);
        fail();
    }
    return mc_check(w->f.box, &w->cfg, &w->f.problems, &w->notes, &w->err);
}

static int notes_say(const struct world *w, const char *text)
{
    for (int i = 0; i < w->notes.n; i++)
        if (strstr(w->notes.note[i], text))
            return 1;
    return 0;
}

/* Up to three keys set, one world, one problem wanted (says NULL: none). */
struct row {
    const char *set[3][2];
    int ranks, nodes, per_node, for_train;
    const char *path, *says;
};

#define COSINE(more) "{\"kind\":\"cosine\",\"peak\":0.001" more "}"
#define WSD(more)    "{\"kind\":\"wsd\",\"peak\":0.001" more "}"
static const struct row g_rows[] = {
    /* layouts: legal */
    {.ranks = 1},
    {{{"parallel.tp", "4"}}, .ranks = 4},
    {{{"parallel.tp", "2"}, {"parallel.sp", "true"}, {"parallel.pp", "2"}}, .ranks = 12},
    {{{"parallel.dp", "4"}}, .ranks = 0},
    {{{"cluster", "{\"nodes\":2,\"per_node\":2}"}, {"parallel.tp", "2"}}, .ranks = 0},
    {{{"parallel.tp", "4"}}, .nodes = 2, .per_node = 4, .says = "global 12", .path = NULL},
    /* layouts: refused */
    {{{"parallel.tp", "3"}},
     .ranks = 3,
     .path = "model.heads",
     .says = "heads 4 is not a multiple of parallel.tp 3"},
    {{{"parallel.tp", "4"}, {"model.ffn", "66"}},
     .ranks = 4,
     .path = "model.ffn",
     .says = "ffn 66 is not a multiple"},
    {{{"model.heads", "16"}, {"model.kv_heads", "4"}, {"parallel.tp", "16"}}, .ranks = 16},
    {{{"parallel.tp", "8"}, {"model.heads", "16"}, {"model.kv_heads", "16"}},
     .ranks = 8,
     .nodes = 0,
     .per_node = 4,
     .path = "parallel.tp",
     .says = "more than the 4 ranks of a node"},
    {{{"parallel.tp", "2"}, {"parallel.order", "\"pp-tp-cp-ep-dp\""}, {"parallel.pp", "2"}},
     .ranks = 4,
     .per_node = 2,
     .path = "parallel.tp",
     .says = "leaves its node"},
    {{{"parallel.tp", "2"}},
     .ranks = 6,
     .per_node = 3,
     .path = "parallel.tp",
     .says = "group of rank 2 leaves its node"},
    {{{"model.seq", "18"}, {"parallel.tp", "4"}, {"parallel.sp", "true"}},
     .ranks = 4,
     .path = "model.seq",
     .says = "seq 18 is not a multiple of parallel.tp (parallel.sp is on) 4"},
    {{{"parallel.pp", "4"}},
     .ranks = 4,
     .path = "model.layers",
     .says = "layers 2 is not a multiple of parallel.pp x chunks 4"},
    {{{"parallel.pp", "5"}, {"parallel.stages", "\"auto\""}},
     .ranks = 5,
     .path = "model.layers",
     .says = "2 layers are too few for 5 stages"},
    {{{"parallel.pp", "2"}, {"parallel.chunks", "2"}},
     .ranks = 2,
     .path = "model.layers",
     .says = "parallel.pp x chunks 4"},
    {{{"parallel.tp", "2"}, {"parallel.dp", "2"}}, .ranks = 8, .path = "parallel", .says = "8"},
    {{{"parallel.tp", "2"}}, .ranks = 3, .path = "parallel", .says = "3"},
    {{{"parallel.order", "\"tp-zz\""}}, .ranks = 1, .path = "parallel", .says = "zz"},
    {{{"parallel.tp", "4096"}, {"parallel.pp", "4096"}},
     .ranks = 1,
     .path = "parallel",
     .says = "beyond 4194304 ranks"},
    {{{"cluster.nodes", "2"}},
     .ranks = 0,
     .path = "cluster.per_node",
     .says = "required with 2 nodes"},
    {{{"parallel.pp", "2"}, {"parallel.stages", "[1,0,1]"}},
     .ranks = 2,
     .path = "parallel.stages",
     .says = "has 3 entries, the pipeline has 2 stages (pp x chunks)"},
    {{{"parallel.pp", "2"}, {"parallel.stages", "\"3,5\""}},
     .ranks = 2,
     .path = "parallel.stages",
     .says = "3,5 are 8 layers, the model has 2"},
    {{{"parallel.pp", "4"}, {"parallel.stages", "[0,2,0,0]"}},
     .ranks = 4,
     .path = "parallel.stages",
     .says = "stage 2 of 0 to 3 has no layers"},
    {{{"parallel.schedule", "\"interleved\""}},
     .ranks = 1,
     .path = "parallel.schedule",
     .says = "did you mean \"interleaved\"?"},
    {{{"parallel.recompute", "[\"rmsnrom\"]"}},
     .ranks = 1,
     .path = "parallel.recompute",
     .says = "did you mean \"rmsnorm\"?"},
    /* model */
    {{{"model.head_dim", "7"}},
     .ranks = 1,
     .path = "model.head_dim",
     .says = "odd, but the block rotates pairs"},
    {{{"model.kv_heads", "3"}},
     .ranks = 1,
     .path = "model.kv_heads",
     .says = "not a multiple of kv_heads 3"},
    {{{"model.vocab", "256"}}, .ranks = 1, .path = "model.vocab", .says = "256 + EOS = 257"},
    {{{"data", "{\"declared\":{\"tokens\":5,\"vocab\":400}}"}, {"model.vocab", "399"}},
     .ranks = 1,
     .path = "model.vocab",
     .says = "below the declared tokenizer's 400"},
    /* batch */
    {{{"batch.micro", "5"}},
     .ranks = 1,
     .path = "batch.global",
     .says = "global 12 is not a multiple of micro 5"},
    {{{"batch.ramp", "[{\"steps\":1,\"global\":12}]"}},
     .ranks = 1,
     .path = "batch.ramp",
     .says = "must start at 0, not at 1 step"},
    {{{"batch.ramp", "[{\"steps\":0,\"global\":4},{\"steps\":0,\"global\":12}]"}},
     .ranks = 1,
     .path = "batch.ramp[2]",
     .says = "points must rise"},
    {{{"batch.ramp", "[{\"steps\":0,\"global\":4},{\"tokens\":9,\"global\":12}]"}},
     .ranks = 1,
     .path = "batch.ramp[2]",
     .says = "a ramp has one unit"},
    {{{"batch.ramp", "[{\"steps\":0,\"global\":5},{\"steps\":9,\"global\":12}]"},
      {"batch.micro", "2"}},
     .ranks = 1,
     .path = "batch.ramp[1]",
     .says = "global 5 is not a multiple of micro 2"},
    {{{"batch.ramp", "[{\"steps\":0,\"global\":4},{\"steps\":9,\"global\":8}]"}},
     .ranks = 1,
     .path = "batch.global",
     .says = "is 12, but the ramp ends at 8"},
    /* lr */
    {{{"lr", COSINE(",\"warmup\":50")}},
     .ranks = 1,
     .path = "lr.warmup",
     .says = "before the schedule does, at 50 steps (from steps)"},
    {{{"lr", COSINE(",\"warmup\":20,\"stop\":10")}},
     .ranks = 1,
     .path = "lr.warmup",
     .says = "at 10 steps"},
    {{{"lr", WSD(",\"warmup\":20,\"decay\":31")}},
     .ranks = 1,
     .path = "lr.decay",
     .says = "do not fit before the end at 50 steps"},
    {{{"lr", WSD(",\"warmup\":20,\"decay\":30")}}, .ranks = 1},
    {{{"lr", COSINE(",\"floor\":0.1")}},
     .ranks = 1,
     .path = "lr.floor",
     .says = "0.1 is above the peak 0.001"},
    {{{"lr.init", "0.1"}}, .ranks = 1, .path = "lr.init", .says = "above the peak"},
    {{{"lr", COSINE(",\"warmup\":\"9600 tokens\"")}},
     .ranks = 1,
     .path = "lr.warmup",
     .says = "at 9600 tokens"},
    {{{"lr", COSINE(",\"warmup\":\"9599 tokens\"")}}, .ranks = 1},
    {{{"lr", COSINE(",\"warmup\":\"10 tokens\"")},
      {"batch.ramp", "[{\"steps\":0,\"global\":4},{\"steps\":9,\"global\":12}]"}},
     .ranks = 1,
     .path = "steps",
     .says = "is in steps, lr.warmup in tokens: with a batch that changes"},
    {{{"lr", COSINE(",\"stop\":\"4611686018427387 tokens\",\"warmup\":\"9007199254740991 steps\"")},
      {"batch.global", "2147483640"}},
     .ranks = 1,
     .path = "lr.warmup",
     .says = "beyond 2^62"},
    {{{"lr", "{\"kind\":\"pieces\",\"pieces\":[{\"upto\":9,\"from\":1},{\"upto\":9,\"from\":1}]}"}},
     .ranks = 1,
     .path = "lr.pieces[2].upto",
     .says = "pieces must rise: 9 steps is not after 9 steps"},
    /* numbers, devices */
    {{{"precision", "\"bf16\""}}, .ranks = 1, .for_train = 1},
    {{{"precision", "\"bf16\""}, {"checkpoint.weights", "\"rebuild\""}},
     .ranks = 1,
     .for_train = 1},
    {{{"precision", "\"bf16\""}, {"device", "\"cuda\""}}, .ranks = 1},
    {{{"precision", "\"fp64\""}, {"device", "\"cuda\""}},
     .ranks = 1,
     .path = "precision",
     .says = "proof precision of CPUs"},
    {{{"device", "\"cuda\""}},
     .ranks = 1,
     .for_train = 1,
     .path = "device",
     .says = "this build computes on CPUs"},
    /* data */
    {{{"data.holdout", "0.1"}, {"data.valid", "\"v\""}},
     .ranks = 1,
     .path = "data.holdout",
     .says = "not from both"},
    {{{"data.order", "\"megatron\""}, {"data.holdout", "0.1"}},
     .ranks = 1,
     .path = "data.holdout",
     .says = "cuts a sequence of tokens"},
    {{{"data.order", "\"megatron\""}, {"data.split", "[9,1]"}, {"data.valid", "\"v\""}},
     .ranks = 1,
     .path = "data.split",
     .says = "not from both"},
    {{{"data.order", "\"megatron\""}, {"seed", "4294967296"}},
     .ranks = 1,
     .path = "seed",
     .says = "takes 0 to 2^32 - 1"},
    {{{"data.split", "[9,1]"}}, .ranks = 1, .path = "data.split", .says = "is for data.order"},
    {{{"data.samples", "9"}}, .ranks = 1, .path = "data.samples", .says = "needs no length"},
    {{{"data.order", "\"megatron\""}, {"data.split", "[9,1]"}, {"eval.every", "5"}}, .ranks = 1},
    {{{"eval.every", "5"}},
     .ranks = 1,
     .path = "eval.every",
     .says = "there is no validation data"},
    {{{"data.train", "{\"kind\":\"required\"}"}},
     .ranks = 1,
     .for_train = 1,
     .path = "data.train",
     .says = "--set data.train=FILE"},
    {{{"data.train", "{\"kind\":\"required\"}"}}, .ranks = 1},
    {{{"data", "{\"declared\":{\"tokens\":5,\"vocab\":400}}"}},
     .ranks = 1,
     .for_train = 1,
     .path = "data.train",
     .says = "planned, not trained"},
    /* not in this version: refused for training, else noted */
    {{{"parallel.pp", "2"}}, .ranks = 2, .for_train = 1},
    {{{"checkpoint.async", "true"}},
     .ranks = 1,
     .for_train = 1,
     .path = "checkpoint.async",
     .says = "while training waits"},
    {{{"checkpoint.weights", "\"rebuild\""}},
     .ranks = 1,
     .for_train = 1,
     .path = "checkpoint.weights",
     .says = "rebuilt from masters at bf16"},
    {{{"restart.max", "2"}},
     .ranks = 1,
     .for_train = 1,
     .path = "restart.max",
     .says = "does not restart by itself"},
    {{{"restart.mode", "\"confirm\""}},
     .ranks = 1,
     .for_train = 1,
     .path = "restart.mode",
     .says = "nothing to confirm"},
    {{{"parallel.ep", "2"}},
     .ranks = 2,
     .for_train = 1,
     .path = "parallel.ep",
     .says = "no expert parallel"},
    {{{"parallel.cp", "2"}},
     .ranks = 2,
     .for_train = 1,
     .path = "parallel.cp",
     .says = "no context parallel"},
    {{{"hooks", "[{\"1\":\"h\",\"allow\":[\"exec:x\"]}]"}},
     .ranks = 1,
     .for_train = 1,
     .path = "hooks[1].allow",
     .says = "exec:x"},
    {{{"parallel.sp", "true"}, {"parallel.shard_optimizer", "true"}, {"parallel.overlap", "true"}},
     .ranks = 1,
     .for_train = 1},
};

static void check_says_what_does_not_fit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof g_rows / sizeof g_rows[0]; i++) {
        const struct row *r = &g_rows[i];
        struct world w;
        world_init(&w);
        for (int k = 0; k < 3 && r->set[k][0]; k++)
            fixture_set(&w.f, r->set[k][0], r->set[k][1]);
        w.cfg.ranks = r->ranks;
        w.cfg.nodes = r->nodes;
        w.cfg.per_node = r->per_node;
        w.cfg.for_train = r->for_train;
        mc_status st = check(&w);
        int ok = r->path ? st == MC_E_RECIPE && w.err.code == MC_E_RECIPE &&
                               fixture_says(&w.f.problems, r->path, r->says)
                         : st == MC_OK && w.f.problems.n == 0;
        if (!ok) {
            fixture_print(&w.f.problems);
            fail_msg("row %zu (%s): status %d, want %s: %s", i, r->set[0][0] ? r->set[0][0] : "",
                     st, r->path ? r->path : "none", r->says ? r->says : "");
        }
        if (r->path && strncmp(r->path, "lr", 2) == 0 &&
            strcmp(w.f.problems.p[0].file, "r.lua") != 0)
            fail_msg("row %zu: file \"%s\"", i, w.f.problems.p[0].file);
        world_fini(&w);
    }
}

static void check_notes_what_it_does_not_refuse(void **state)
{
    static const struct {
        const char *key, *json, *says;
        int ranks;
    } row[] = {
        {"parallel.sp", "true", "parallel.sp has no effect at tp 1", 1},
        {"parallel.shard_optimizer", "true", "parallel.shard_optimizer has no effect at dp 1", 1},
        {"parallel.overlap.grads", "true", "parallel.overlap has no effect at dp 1", 1},
        {"parallel.chunks", "2", "parallel.chunks has no effect at pp 1", 1},
        {"parallel.schedule", "\"mine.lua\"", "parallel.schedule (mine.lua) has no effect at pp 1",
         1},
        {"parallel.stages", "[1,1]", "parallel.stages (1,1) has no effect at pp 1", 1},
        {"parallel.pad.F", "\"20 ms\"", "parallel.pad has no effect at pp 1", 1},
        {"parallel", "{\"pp\":2,\"pad\":{\"F\":\"20 ms\",\"W\":1}}",
         "slowed on purpose: a microbatch takes a rank at least F 0.02 s, I 0 s, W 1 s", 2},
        {"model.dropout", "0.1", "model.dropout has no effect", 1},
        {"anomaly.spike", "\"abort\"", "spike_factor is 0", 1},
        {"checkpoint.stall", "3", "checkpoint.stall is declared for the planner", 1},
        {"cluster.mtbf", "3", "cluster.mtbf is declared for the planner", 1},
        {"checkpoint.async", "true", "checkpoint.async: this version", 1},
        {"device", "\"cuda\"", "device: this build computes on CPUs", 1},
        {"data.train", "{\"kind\":\"required\"}", "data.train: the recipe wants a text of yours",
         1},
        {"name", "\"x\"", "neither --ranks, --nodes nor cluster", 0},
        {"cluster", "{\"nodes\":2,\"per_node\":2}", "ranks: 4, from cluster", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct world w;
        world_init(&w);
        fixture_set(&w.f, row[i].key, row[i].json);
        w.cfg.ranks = row[i].ranks;
        if (check(&w) != MC_OK || !notes_say(&w, row[i].says)) {
            fixture_print(&w.f.problems);
            for (int k = 0; k < w.notes.n; k++)
                print_message("  note: %s\n", w.notes.note[k]);
            fail_msg("%s: no note \"%s\"", row[i].key, row[i].says);
        }
        world_fini(&w);
    }
    struct world w; /* a plain recipe needs no remark */
    world_init(&w);
    assert_int_equal(check(&w), MC_OK);
    assert_int_equal(w.notes.n, 0);
    world_fini(&w);
}

static void check_resolves_and_may_run_again(void **state)
{
    struct world w;
    const struct mc_recipe *r;
    uint64_t h;
    (void)state;
    world_init(&w);
    fixture_set(&w.f, "lr", WSD(",\"warmup\":\"10 samples\",\"decay\":\"1 step\""));
    w.cfg.ranks = 3;
    assert_int_equal(check(&w), MC_OK);
    r = mc_recipe_of(w.f.box);
    assert_int_equal(r->parallel.dp, 3);
    assert_string_equal(mc_recipe_origin(w.f.box, "parallel.dp"), "auto: of 3 ranks");
    assert_true(r->lr.warmup.n == 10 && r->lr.warmup.unit == MC_UNIT_SAMPLES);
    assert_true(r->lr.decay.n == 12 && r->lr.decay.unit == MC_UNIT_SAMPLES);
    assert_true(r->lr.end.n == 600 && r->lr.end.unit == MC_UNIT_SAMPLES); /* 50 steps x 12 */
    assert_string_equal(mc_recipe_origin(w.f.box, "lr.stop"), "default: the target of steps");
    h = mc_recipe_hash(r);
    assert_int_equal(mc_check(w.f.box, &w.cfg, &w.f.problems, &w.notes, &w.err), MC_OK);
    assert_true(mc_recipe_hash(r) == h);
    world_fini(&w);

    world_init(&w); /* a problem said before is a problem still */
    fixture_set(&w.f, "batch.micro", "5");
    assert_int_equal(check(&w), MC_E_RECIPE);
    assert_int_equal(mc_check(w.f.box, &w.cfg, &w.f.problems, &w.notes, NULL), MC_E_RECIPE);
    assert_int_equal(w.f.problems.n, 1);
    world_fini(&w);
}

static void check_finds_all_at_once(void **state)
{
    struct world w;
    (void)state;
    world_init(&w);
    fixture_set(&w.f, "model.kv_heads", "3");
    fixture_set(&w.f, "batch.micro", "5");
    fixture_set(&w.f, "checkpoint.weights", "\"rebuild\"");
    fixture_set(&w.f, "checkpoint.async", "true");
    fixture_set(&w.f, "eval.every", "5");
    fixture_set(&w.f, "parallel.tp", "2");
    w.cfg.ranks = 3;
    w.cfg.for_train = 1;
    assert_int_equal(check(&w), MC_E_RECIPE);
    /* 3 % 2 ranks; 4 % 3 heads, kv 3 with tp 2; 12 % 5; rebuild; async; eval */
    assert_true(w.f.problems.n >= 6);
    world_fini(&w);
}

static void check_asks_whether_the_data_exist(void **state)
{
    struct world w;
    char dir[] = "/tmp/mc_check_XXXXXX", file[64];
    FILE *f;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/tok.bin", dir);
    assert_non_null(f = fopen(file, "w"));
    fclose(f);
    world_init(&w);
    w.cfg.base_dir = dir;
    fixture_set(&w.f, "data.train", "[\"tok\",\"nowhere\"]");
    fixture_set(&w.f, "data.valid", "\"neither\"");
    assert_int_equal(check(&w), MC_E_RECIPE);
    assert_int_equal(w.f.problems.n, 2);
    assert_true(fixture_says(&w.f.problems, "data.train[2]", "no such file or folder: nowhere"));
    assert_true(fixture_says(&w.f.problems, "data.valid[1]", "neither"));
    assert_int_equal(w.f.problems.p[0].line, 42);
    world_fini(&w);
    unlink(file);
    rmdir(dir);
}

static mc_status fake_plan(const struct mc_recipe *r, const struct mc_layout *layout,
                           const struct mc_line *line, int threads, struct mc_train_memory *m,
                           struct mc_err *err)
{
    assert_null(line);
    assert_int_equal(layout->world, 1);
    if (r->log_every == 13)
        return mc_err_set(err, MC_E_RECIPE, "layers.0.norm: rmsnorm (line 7): no");
    m->params = (size_t)r->log_every << 30;
    m->temp = (size_t)threads << 20;
    m->total = m->params + m->temp;
    return MC_OK;
}

static void check_compares_memory(void **state)
{
    static const struct {
        const char *gib, *mem;
        int for_train;
        mc_status st;
        const char *path, *says;
    } row[] = {
        {"3", NULL, 0, MC_OK, NULL, NULL},
        {"3", "\"4 GiB\"", 0, MC_OK, NULL, NULL},
        {"3", "\"3 GiB\"", 0, MC_E_RECIPE, "cluster.mem",
         "one rank needs 3.0 GiB (weights 3.0 GiB"},
        {"1000000", NULL, 0, MC_OK, NULL, NULL},
        {"1000000", NULL, 1, MC_E_MACHINE, "batch.micro", "needs 976.6 TiB"},
        {"1000000", "\"1 GiB\"", 1, MC_E_RECIPE, "cluster.mem", "cluster.mem is 1.0 GiB"},
        {"13", NULL, 0, MC_E_RECIPE, "model", "layers.0.norm: rmsnorm (line 7): no"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct world w;
        world_init(&w);
        fixture_set(&w.f, "log_every", row[i].gib);
        if (row[i].mem)
            fixture_set(&w.f, "cluster.mem", row[i].mem);
        w.cfg.for_train = row[i].for_train;
        w.cfg.memory = fake_plan;
        w.cfg.threads = 2;
        mc_status st = check(&w);
        if (st == MC_OK)
            st = mc_check_memory(w.f.box, &w.cfg, &w.f.problems, &w.notes, &w.err);
        if (st != row[i].st ||
            (row[i].path && !fixture_says(&w.f.problems, row[i].path, row[i].says))) {
            fixture_print(&w.f.problems);
            fail_msg("row %zu: %d", i, st);
        }
        if (row[i].st == MC_OK)
            assert_true(notes_say(&w, "memory of one rank: "));
        world_fini(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_says_what_does_not_fit),
        cmocka_unit_test(check_notes_what_it_does_not_refuse),
        cmocka_unit_test(check_resolves_and_may_run_again),
        cmocka_unit_test(check_finds_all_at_once),
        cmocka_unit_test(check_asks_whether_the_data_exist),
        cmocka_unit_test(check_compares_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
