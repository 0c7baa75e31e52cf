/* test_families.c - the presets of five families against Hugging Face transformers.
 * links: mc_lua mc_graph
 *
 * golden/families/reference.py made tiny random models of each family in PyTorch, fp32: logits,
 * loss and every gradient. The same weights come here from the formula over our parameters' names,
 * the model from FAMILY.lua through the loader, so that a preset's Lua, its trace and the graph are
 * all under test. Logits come from INFER graphs (whole prompts, and token by token through the
 * cache), loss and gradients from TRAIN ones. In fp64 ours differ from fp32 references by the
 * references' own rounding; a tiny model's worst tensor has some 1e-6 of it. */
#include "graph_help.h"
#include "../../lua/host.h"

enum { B = 2, T = 24, V = 61, MAX_REC = 64 };

struct reference {
    double loss;
    int n;
    struct {
        char name[MC_NAME_MAX];
        long count, offset;
    } grad[MAX_REC];
    float *x; /* logits [B, T, V], then the gradients */
    long nx;
};

static void read_reference(const char *family, struct reference *r)
{
    char path[512], line[256], word[MC_NAME_MAX];
    long a, b;
    memset(r, 0, sizeof *r);
    snprintf(path, sizeof path, MC_SOURCE_HOME "/tests/golden/families/%s.txt", family);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "grad %95s %ld %ld", word, &a, &b) == 3) {
            assert_true(r->n < MAX_REC);
            strcpy(r->grad[r->n].name, word);
            r->grad[r->n].count = a;
            r->grad[r->n++].offset = b;
            r->nx = a + b;
        } else if (sscanf(line, "logits %ld", &a) == 1) {
            assert_int_equal(a, B * T * V);
        } else {
            assert_int_equal(sscanf(line, "loss %lf", &r->loss), 1);
        }
    }
    fclose(f);
    snprintf(path, sizeof path, MC_SOURCE_HOME "/tests/golden/families/%s.f32", family);
    f = fopen(path, "rb");
    assert_non_null(f);
    r->x = mc_alloc((size_t)r->nx * sizeof *r->x, "test");
    assert_int_equal(fread(r->x, sizeof *r->x, (size_t)r->nx, f), r->nx);
    fclose(f);
}

static void load(const char *family, struct mc_loaded *l)
{
    char path[512];
    struct mc_problems problems = {0};
    struct mc_err err = {0};
    snprintf(path, sizeof path, MC_SOURCE_HOME "/tests/golden/families/%s.lua", family);
    struct mc_load_cfg cfg = {.path = path, .home = MC_SOURCE_HOME};
    mc_status st = mc_lua_load_recipe(&cfg, &problems, l, &err);
    if (st != MC_OK)
        fail_msg("%s: %s: %s", family, problems.n ? problems.p[0].path : "",
                 problems.n ? problems.p[0].message : err.msg);
    mc_problems_fini(&problems);
}

/* ||a - b|| / ||b|| over the logits of all positions. */
static double logits_differ(const struct model *m, const struct reference *ref,
                            const int32_t *tokens, int one_by_one)
{
    struct rig f = rig_open(m, MC_GRAPH_INFER, 1, T, 2, 1, NULL);
    double diff = 0, size = 0;
    formula_weights(&f);
    for (int r = 0; r < B * T; r++) {
        int p = r % T;
        const int32_t *row = tokens + r / T * T;
        const void *got =
            one_by_one ? infer(f.g, row + p, 1, p) : infer(f.g, row, p + 1, 0);
        for (int j = 0; j < V; j++) {
            double want = (double)ref->x[r * V + j];
            diff += pow(get(&f, got, j) - want, 2);
            size += want * want;
        }
    }
    rig_close(&f);
    return sqrt(diff / size);
}

/* The largest ||a - b|| / max(||b||, 1e-3 ||all|| sqrt(n / N)) of a gradient. */
static double gradients_differ(const struct rig *r, const struct reference *ref)
{
    double all = 0, worst = 0;
    long first = ref->grad[0].offset;
    for (long i = first; i < ref->nx; i++)
        all += pow((double)ref->x[i], 2);
    assert_int_equal(ref->n, mc_graph_nparams(r->g));
    assert_int_equal(ref->nx - first, mc_graph_param_count(r->g));
    for (int i = 0; i < mc_graph_nparams(r->g); i++) {
        const struct mc_param *p = mc_graph_param(r->g, i);
        double diff = 0, size = 0, least;
        int k = 0;
        while (k < ref->n && strcmp(ref->grad[k].name, p->name) != 0)
            k++;
        if (k == ref->n || ref->grad[k].count != p->count)
            fail_msg("the reference has no %s of %lld", p->name, (long long)p->count);
        for (int64_t e = 0; e < p->count; e++) {
            double want = (double)ref->x[ref->grad[k].offset + e];
            diff += pow(get(r, r->b.grads, p->offset + e) - want, 2);
            size += want * want;
        }
        least = 1e-3 * sqrt(all) * sqrt((double)p->count / (double)(ref->nx - first));
        worst = fmax(worst, sqrt(diff) / fmax(sqrt(size), least));
    }
    return worst;
}

static void compare(const char *family, enum mc_dtype dtype)
{
    struct reference ref;
    struct mc_loaded l = {0};
    struct model *m = mc_alloc(sizeof *m, "test");
    int32_t tokens[B * T], targets[B * T];
    struct mc_microbatch mb = {.b = B, .t = T, .tokens = tokens, .targets = targets};
    int64_t n = formula_batch(1, B * T, V, tokens, targets);
    read_reference(family, &ref);
    load(family, &l);
    m->r = *mc_recipe_of(l.box);
    m->r.precision = dtype;
    struct rig r = rig_open(m, MC_GRAPH_TRAIN, B, T, 2, 1, NULL);
    formula_weights(&r);
    double loss = step_once(&r, &mb, n, 1);
    double e_loss = fabs(loss - ref.loss) / ref.loss, e_grad = gradients_differ(&r, &ref);
    double e_whole = logits_differ(m, &ref, tokens, 0), e_one = logits_differ(m, &ref, tokens, 1);
    print_message("  %s %s: logits %.1e, by the cache %.1e, loss %.1e, gradients %.1e\n", family,
                  mc_dtype_name(dtype), e_whole, e_one, e_loss, e_grad);
    assert_true(e_whole <= 1e-5 && e_one <= 1e-5);
    assert_true(e_loss <= 1e-5);
    assert_true(e_grad <= 1e-5);
    rig_close(&r);
    mc_free(ref.x);
    mc_free(m);
    mc_lua_loaded_fini(&l);
}

#define FAMILY(f)                                                                                  \
    static void f##_equals_transformers(void **st)                                                 \
    {                                                                                              \
        (void)st;                                                                                  \
        compare(#f, MC_F32);                                                                       \
        compare(#f, MC_F64);                                                                       \
    }
FAMILY(llama3)
FAMILY(mistral)
FAMILY(qwen2)
FAMILY(qwen3)
FAMILY(gemma2)

/* Frequencies and the factor on cos and sin, as transformers computes them in fp32. */
static void rope_frequencies_equal_transformers(void **st)
{
    char kind[16];
    double theta, factor, original, amplitude, want;
    int d, count = 0;
    FILE *f = fopen(MC_SOURCE_HOME "/tests/golden/families/rope.txt", "r");
    (void)st;
    assert_non_null(f);
    while (fscanf(f, " rope %15s %d %lf %lf %lf %lf", kind, &d, &theta, &factor, &original,
                  &amplitude) == 6) {
        struct fn c = {.n = 0};
        const int one[MC_NAXES] = {1, 1, 1, 1, 1};
        struct mc_model_cfg model = {.head_dim = d};
        struct mc_err err = {0};
        call(&c, "rope", "", 1, 0, 0, 0);
        num(&c, "factor", factor);
        if (original > 0)
            num(&c, "original_max", original);
        str(&c, "scaling", kind);
        num(&c, "theta", theta);
        struct mc_op_infer io = {.op = mc_op_find("rope"),
                                 .call = &c.call[0],
                                 .model = &model,
                                 .nin = 1,
                                 .in = {{.cols = d}},
                                 .want = {{.cols = d}},
                                 .bound = {1, 1, 0},
                                 .axis_size = one};
        check_ok(io.op->infer(&io, &err), &err);
        assert_true(fabs(mc_rope_amplitude(io.attr) - amplitude) <= 1e-15);
        for (int i = 0; i < d / 2; i++) {
            assert_int_equal(fscanf(f, "%lf", &want), 1);
            if (fabs(mc_rope_frequency(io.attr, i) / want - 1) > 1e-6)
                fail_msg("%s %d theta %g: pair %d is %.9g, not %.9g", kind, d, theta, i,
                         mc_rope_frequency(io.attr, i), want);
        }
        count++;
    }
    fclose(f);
    assert_int_equal(count, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(llama3_equals_transformers),
                                       cmocka_unit_test(mistral_equals_transformers),
                                       cmocka_unit_test(qwen2_equals_transformers),
                                       cmocka_unit_test(qwen3_equals_transformers),
                                       cmocka_unit_test(gemma2_equals_transformers),
                                       cmocka_unit_test(rope_frequencies_equal_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
