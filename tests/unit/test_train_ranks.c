/* test_train_ranks.c - the trainer on several ranks, which are threads here: any layout gives the
 * numbers of one rank, and which switches are on changes no bit.
 * links: mc_lua mc_train test_threads
 */
#include <dirent.h>
#include <math.h>
#include "lua_util.h"
#include "../../core/base/log.h"
#include "../../core/par/layout.h"
#include "../../core/run/rundir.h"
#include "../../core/train/train_int.h"
#include "../support/comm_threads.h"

enum { STEPS = 6, WORLD = 8 };
#define DEADLINE (INT64_C(60) * 1000000000)

/* After a failure among ranks the buffers of transfers stay until the process ends: one may still
 * be on its way into them (core/train/setup.c, I5). */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:make_optim";
}

static const char recipe_text[] =
    "local m = require 'mascon'\n"
    "return m.recipe { name = 't', seed = 5,\n"
    "  model = m.models.llama { layers = 2, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, seq = "
    "16 },\n"
    "  data = { tokenizer = 'bytes', train = 'text.txt', holdout = 0.1 },\n"
    "  batch = { global = 7, micro = 2 }, steps = { steps = 6 },\n"
    "  lr = m.lr.constant { peak = 1e-2, warmup = '2 steps' },\n"
    "  optim = m.adamw { weight_decay = 0.1, clip = 1.0 },\n"
    "  eval = { every = '3 steps' }, precision = 'fp64',\n"
    "  checkpoint = { every = '3 steps', keep = 5 } }\n";

struct numbers { /* of one run */
    int steps;
    double loss[32], norm[32], eval[8];
    int nevals;
    uint64_t hash;
    mc_status st;
    int exit_code;
    char msg[400];
};
struct job {
    const struct mc_recipe *recipe;
    struct mc_rundir rd;
    enum mc_resume resume;
    struct mc_train_result res[WORLD];
    mc_status st[WORLD];
    struct mc_err err[WORLD];
    int resave; /* instead of training: load, and save the same state as another epoch */
};

static void one_rank(struct mc_mesh *mesh, void *arg)
{
    struct job *j = arg;
    int me = mesh ? mesh->rank : 0;
    struct mc_train_cfg cfg = {.recipe = j->recipe,
                               .rd = &j->rd,
                               .mesh = mesh,
                               .rank = me,
                               .nranks = mesh ? mesh->layout.world : 1,
                               .threads = 1,
                               .resume = j->resume,
                               .software = "test",
                               .quiet = 1};
    if (!j->resave) {
        j->st[me] = mc_train(&cfg, &j->res[me], &j->err[me]);
        return;
    }
    struct mc_trainer *t;
    j->st[me] = mc_trainer_create(&cfg, &t, &j->err[me]);
    if (j->st[me] == MC_OK)
        j->st[me] = mc_trainer_start(t, &j->err[me]);
    if (j->st[me] == MC_OK)
        j->st[me] = mc_save(t, 1, 0, &j->err[me]);
    mc_trainer_destroy(t);
}

static void read_numbers(const struct job *j, struct numbers *out)
{
    char path[1100], line[4096];
    out->steps = out->nevals = 0;
    assert_int_equal(mc_rundir_file(&j->rd, "metrics.jsonl", path, NULL), MC_OK);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        long long step = 0;
        double loss = 0, norm = 0;
        assert_int_equal(
            sscanf(line, "{\"step\":%lld,\"loss\":%lf,\"grad_norm\":%lf", &step, &loss, &norm), 3);
        assert_true(step >= 1 && step < 32);
        out->loss[step] = loss;
        out->norm[step] = norm;
        out->steps = (int)step;
    }
    if (f)
        fclose(f);
    assert_int_equal(mc_rundir_file(&j->rd, "events.jsonl", path, NULL), MC_OK);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"loss\":");
        if (strstr(line, "\"kind\":\"eval\"") && at && out->nevals < 8)
            out->eval[out->nevals++] = atof(at + 7);
    }
    if (f)
        fclose(f);
}

/* Runs the recipe with `set` (NULL-ended) on tp x dp ranks in folder `name`. */
static void train(struct job *j, const char *name, int tp, int dp, const char *const *set,
                  struct numbers *out)
{
    struct loaded x;
    char text[64][64];
    const char *all[64];
    int n = 0;
    static char data[8000];
    for (int i = 0; i < 7999; i++)
        data[i] = "the moon is made of lua and of rock "[(i + i / 36 * 7 + i / 500) % 36];
    write_file("text.txt", data);
    write_file("r.lua", recipe_text);
    snprintf(text[0], sizeof text[0], "parallel.tp=%d", tp);
    all[n++] = text[0];
    for (; set && *set; set++)
        all[n++] = *set;
    load_file(&x, path_of("r.lua"), all, n);
    if (x.st != MC_OK)
        fail_msg("%s %s", x.err.msg, x.problems.n ? x.problems.p[0].message : "");
    struct mc_recipe *r = mc_recipe_of(x.l.box);
    snprintf(r->data.train[0].path, sizeof r->data.train[0].path, "%s", path_of("text.txt"));
    j->recipe = r;
    j->rd = (struct mc_rundir){.lock_fd = -1};
    struct mc_err err = {0};
    if (mc_rundir_open(path_of(name), 1, &j->rd, &err) != MC_OK ||
        mc_rundir_new_segment(&j->rd,
                              &(struct mc_segment_text){.recipe = recipe_text, .resolved = "{}"},
                              &err) != MC_OK)
        fail_msg("%s", err.msg);
    j->rd.lock_fd = -1;
    int size[MC_NAXES] = {tp, 1, 1, dp, 1};
    struct mc_layout layout;
    assert_int_equal(mc_layout_init(&layout, MC_ORDER_DEFAULT, size, tp * dp, &err), MC_OK);
    if (layout.world == 1)
        one_rank(NULL, j);
    else if (mc_test_mesh(&layout, DEADLINE, one_rank, j, &err) != MC_OK)
        fail_msg("%s", err.msg);
    for (int i = 1; i < layout.world; i++) {
        if (j->st[i] != j->st[0])
            fail_msg("rank %d: %s, rank 0: %s", i, j->err[i].msg, j->err[0].msg);
        if (j->res[i].weights_hash != j->res[0].weights_hash)
            fail_msg("rank %d has another hash", i);
    }
    *out = (struct numbers){
        .hash = j->res[0].weights_hash, .st = j->st[0], .exit_code = j->res[0].exit_code};
    snprintf(out->msg, sizeof out->msg, "%.399s", j->err[0].msg);
    read_numbers(j, out);
    mc_lua_loaded_fini(&x.l);
    mc_problems_fini(&x.problems);
}

static struct numbers run(const char *name, int tp, int dp, const char *const *set)
{
    static struct job j;
    struct numbers n;
    memset(&j, 0, sizeof j);
    train(&j, name, tp, dp, set, &n);
    if (n.st != MC_OK || n.exit_code != 0)
        fail_msg("%s: exit %d, %s", name, n.exit_code, n.msg);
    return n;
}

static void close_to(const struct numbers *a, const struct numbers *b, double within,
                     const char *what)
{
    assert_int_equal(a->steps, b->steps);
    assert_int_equal(a->nevals, b->nevals);
    for (int i = 1; i <= a->steps; i++) {
        if (!(fabs(a->loss[i] - b->loss[i]) <= within * fabs(b->loss[i])))
            fail_msg("%s: step %d: loss %.17g, one rank %.17g", what, i, a->loss[i], b->loss[i]);
        if (!(fabs(a->norm[i] - b->norm[i]) <= 100 * within * fabs(b->norm[i])))
            fail_msg("%s: step %d: norm %.17g, one rank %.17g", what, i, a->norm[i], b->norm[i]);
    }
    for (int i = 0; i < a->nevals; i++)
        if (!(fabs(a->eval[i] - b->eval[i]) <= within * fabs(b->eval[i])))
            fail_msg("%s: evaluation %d: %.17g, one rank %.17g", what, i, a->eval[i], b->eval[i]);
}

static void replicas_are_one_rank(void **state)
{
    (void)state;
    struct numbers one = run("one", 1, 1, NULL);
    assert_int_equal(one.steps, STEPS);
    assert_int_equal(one.nevals, 2);
    for (int dp = 2; dp <= 4; dp++) {
        char name[32];
        snprintf(name, sizeof name, "dp%d", dp);
        struct numbers n = run(name, 1, dp, NULL);
        close_to(&n, &one, 1e-11, name);
    }
}

static void a_replica_without_samples_takes_part(void **state)
{
    const char *const few[] = {"batch.global=3", "batch.micro=1", NULL};
    (void)state;
    struct numbers one = run("one", 1, 1, few), n = run("dp4", 1, 4, few);
    close_to(&n, &one, 1e-11, "dp 4, 3 samples");
    const char *const sharded[] = {"batch.global=3", "batch.micro=1",
                                   "parallel.shard_optimizer=true", NULL};
    struct numbers s = run("dp4s", 1, 4, sharded);
    assert_true(s.hash == n.hash);
}

static void switches_change_no_bit(void **state)
{
    static const char *const precision[] = {"precision=fp64", "precision=fp32", "precision=bf16"};
    (void)state;
    for (int p = 0; p < 3; p++)
        for (int dp = 2; dp <= 4; dp += 1 + (p > 0)) {
            const char *const plain[] = {precision[p], NULL};
            const char *const overlap[] = {precision[p], "parallel.overlap.grads=true", NULL};
            const char *const split[] = {precision[p], "parallel.shard_optimizer=true", NULL};
            const char *const both[] = {precision[p], "parallel.shard_optimizer=true",
                                        "parallel.overlap.grads=true",
                                        "parallel.overlap.params=true", NULL};
            char name[4][32];
            for (int i = 0; i < 4; i++)
                snprintf(name[i], sizeof name[i], "p%d-dp%d-%d", p, dp, i);
            struct numbers n[4] = {run(name[0], 1, dp, plain), run(name[1], 1, dp, overlap),
                                   run(name[2], 1, dp, split), run(name[3], 1, dp, both)};
            for (int i = 1; i < 4; i++) {
                if (n[i].hash != n[0].hash)
                    fail_msg("%s: other weights than %s", name[i], name[0]);
                assert_memory_equal(n[i].loss, n[0].loss, sizeof n[i].loss);
                assert_memory_equal(n[i].norm, n[0].norm, sizeof n[i].norm);
                assert_memory_equal(n[i].eval, n[0].eval, sizeof n[i].eval);
            }
        }
}

static void stop_and_resume_is_never_stopped(void **state)
{
    const char *const half[] = {"steps.steps=3", "parallel.shard_optimizer=true", NULL};
    const char *const whole[] = {"parallel.shard_optimizer=true", NULL};
    static struct job j;
    struct numbers n;
    (void)state;
    struct numbers straight = run("straight", 1, 3, whole);
    run("halves", 1, 3, half);
    memset(&j, 0, sizeof j);
    j.resume = MC_RESUME_AUTO;
    train(&j, "halves", 1, 3, whole, &n);
    assert_int_equal(n.st, MC_OK);
    assert_true(n.hash == straight.hash);
    assert_memory_equal(n.loss, straight.loss, sizeof n.loss);
    /* on another layout: within rounding */
    run("other", 1, 2, half);
    memset(&j, 0, sizeof j);
    j.resume = MC_RESUME_AUTO;
    train(&j, "other", 1, 4, NULL, &n);
    assert_int_equal(n.st, MC_OK);
    n.nevals = straight.nevals; /* each segment has its own */
    memcpy(n.eval, straight.eval, sizeof n.eval);
    close_to(&n, &straight, 1e-11, "dp 2 -> dp 4");
}

/* Every tensor of two checkpoints, bit for bit. */
static void same_state(const char *a, const char *b)
{
    struct mc_ckpt *c[2];
    struct mc_err e = {0};
    assert_int_equal(mc_ckpt_open(a, &c[0], &e), MC_OK);
    assert_int_equal(mc_ckpt_open(b, &c[1], &e), MC_OK);
    assert_int_equal(mc_ckpt_ntensors(c[0]), mc_ckpt_ntensors(c[1]));
    for (int i = 0; i < mc_ckpt_ntensors(c[0]); i++) {
        struct mc_state_tensor t;
        assert_int_equal(mc_ckpt_tensor(c[0], i, &t), MC_OK);
        size_t bytes = (size_t)mc_box_count(&t.box) * mc_dtype_size(t.dtype);
        void *p[2];
        for (int k = 0; k < 2; k++) {
            p[k] = malloc(bytes);
            t.data = p[k];
            if (mc_ckpt_load(c[k], &t, 1, 0, &e) != MC_OK)
                fail_msg("%s", e.msg);
        }
        if (memcmp(p[0], p[1], bytes) != 0)
            fail_msg("%s differs", t.name);
        free(p[0]);
        free(p[1]);
    }
    mc_ckpt_close(c[0]);
    mc_ckpt_close(c[1]);
}

/* One rank -> a layout, sharded -> one rank: each loads and saves, and nothing moves. */
static void through_layouts(int tp, int dp, const char *precision)
{
    const char *const half[] = {precision, "steps.steps=3", NULL};
    const char *const split[] = {precision, "steps.steps=3", "parallel.shard_optimizer=true", NULL};
    char dir[64], a[400], b[400];
    static struct job j;
    struct numbers n;
    snprintf(dir, sizeof dir, "through-%d-%d-%s", tp, dp, precision + 10);
    run(dir, 1, 1, half);
    for (int k = 0; k < 2; k++) {
        memset(&j, 0, sizeof j);
        j.resume = MC_RESUME_AUTO;
        j.resave = 1;
        train(&j, dir, k ? 1 : tp, k ? 1 : dp, split, &n);
        if (n.st != MC_OK)
            fail_msg("%s", n.msg);
    }
    snprintf(a, sizeof a, "%s/ckpt/step-000000003.e1", path_of(dir));
    for (int e = 2; e <= 3; e++) {
        snprintf(b, sizeof b, "%s/ckpt/step-000000003.e%d", path_of(dir), e);
        same_state(a, b);
    }
}

static void state_goes_through_any_layout(void **state)
{
    (void)state;
    through_layouts(1, 4, "precision=fp32");
    through_layouts(1, 3, "precision=bf16");
    through_layouts(2, 2, "precision=fp32");
    through_layouts(4, 2, "precision=fp64");
}

static void tensor_parallel_ranks_are_one_rank(void **state)
{
    const char *const sp[] = {"parallel.sp=true", "parallel.shard_optimizer=true",
                              "parallel.overlap.grads=true", "parallel.overlap.params=true", NULL};
    (void)state;
    struct numbers one = run("one", 1, 1, NULL);
    struct numbers a = run("tp2", 2, 1, NULL), b = run("tp2dp2", 2, 2, sp),
                   c = run("tp4dp2", 4, 2, sp);
    close_to(&a, &one, 1e-11, "tp 2");
    close_to(&b, &one, 1e-11, "tp 2, dp 2, sp, sharded");
    close_to(&c, &one, 1e-11, "tp 4, dp 2, sp, sharded");
}

static void data_that_fails_on_one_rank_ends_all(void **state)
{
    /* a vocabulary below the text's ids: found by the rank that reads the sample */
    static struct job j;
    struct numbers n;
    (void)state;
    memset(&j, 0, sizeof j);
    j.resume = MC_RESUME_AUTO;
    train(&j, "empty", 1, 3, NULL, &n); /* auto on an empty folder: fresh on all */
    assert_int_equal(n.exit_code, 0);
    memset(&j, 0, sizeof j);
    j.resume = MC_RESUME_STEP; /* of step 0: there is none */
    train(&j, "empty2", 1, 3, NULL, &n);
    assert_int_not_equal(n.st, MC_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(j.st[i], n.st);
}

/* ---- a checkpoint's model on several ranks ---- */

enum { WORDS = 12 };
struct talk {
    const struct mc_recipe *recipe;
    char ckpt[300], base[100];
    mc_status st[WORLD];
    double loss[WORLD];
    int64_t made[WORLD];
    int32_t said[WORDS];
    int nsaid;
};

static int hear(void *arg, int32_t token)
{
    struct talk *t = arg;
    if (t->nsaid < WORDS)
        t->said[t->nsaid++] = token;
    return 0;
}

static void speak(struct mc_mesh *mesh, void *arg)
{
    struct talk *t = arg;
    int me = mesh ? mesh->rank : 0;
    struct mc_session *s = NULL;
    struct mc_err e = {0};
    struct mc_eval_result r = {0};
    static const int32_t prompt[] = {'t', 'h', 'e'};
    const struct mc_generate_cfg cfg = {.prompt = prompt,
                                        .nprompt = 3,
                                        .eos = 256,
                                        .max_tokens = WORDS,
                                        .top_p = 1,
                                        .emit = hear,
                                        .arg = t};
    const struct mc_session_cfg open = {
        .recipe = t->recipe, .mesh = mesh, .ckpt_path = t->ckpt, .threads = 1};
    t->st[me] = mc_session_open(&open, &s, &e);
    if (t->st[me] == MC_OK)
        t->st[me] = mc_session_generate(s, &cfg, &t->made[me], &e);
    if (t->st[me] == MC_OK)
        t->st[me] = mc_session_eval(s, t->base, 0, &r, &e);
    t->loss[me] = r.loss;
    mc_session_close(s);
}

static void any_layout_says_the_same(void **state)
{
    static struct talk one, many;
    static const int layouts[][2] = {{2, 1}, {4, 1}, {1, 3}, {2, 2}};
    struct loaded x;
    (void)state;
    run("one", 1, 1, NULL);
    load_file(&x, path_of("r.lua"), NULL, 0);
    assert_int_equal(x.st, MC_OK);
    struct mc_recipe *r = mc_recipe_of(x.l.box);
    snprintf(r->data.train[0].path, sizeof r->data.train[0].path, "%s", path_of("text.txt"));
    memset(&one, 0, sizeof one);
    one.recipe = r;
    snprintf(one.ckpt, sizeof one.ckpt, "%s/ckpt/step-000000006.e1", path_of("one"));
    snprintf(one.base, sizeof one.base, ".");
    many = one;
    speak(NULL, &one);
    assert_int_equal(one.st[0], MC_OK);
    assert_int_equal(one.nsaid, WORDS);
    for (int i = 0; i < 4; i++) {
        struct talk fresh = many;
        int size[MC_NAXES] = {layouts[i][0], 1, 1, layouts[i][1], 1};
        int world = layouts[i][0] * layouts[i][1];
        struct mc_layout layout;
        struct mc_err e = {0};
        assert_int_equal(mc_layout_init(&layout, MC_ORDER_DEFAULT, size, world, &e), MC_OK);
        assert_int_equal(mc_test_mesh(&layout, DEADLINE, speak, &fresh, &e), MC_OK);
        assert_int_equal(fresh.nsaid, WORDS);
        assert_memory_equal(fresh.said, one.said, sizeof one.said);
        for (int k = 0; k < world; k++) {
            assert_int_equal(fresh.st[k], MC_OK);
            assert_int_equal(fresh.made[k], WORDS);
            assert_true(fabs(fresh.loss[k] - one.loss[0]) <= 1e-11 * one.loss[0]);
        }
    }
    mc_lua_loaded_fini(&x.l);
    mc_problems_fini(&x.problems);
}

int main(void)
{
    mc_log_init(MC_LOG_ERROR, -1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(replicas_are_one_rank, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_replica_without_samples_takes_part, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(switches_change_no_bit, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(stop_and_resume_is_never_stopped, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(data_that_fails_on_one_rank_ends_all, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(any_layout_says_the_same, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(tensor_parallel_ranks_are_one_rank, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(state_goes_through_any_layout, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
