/* test_optim.c - AdamW on flat buffers with the CPU kernels, over a graph that is only a list of
 * parameters: against PyTorch's numbers (tests/golden/optim), against a plain loop in long double,
 * and its promises: gaps stay zero, bits do not depend on storage order, nothing is allocated.
 * links: mc_optim */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"
#include "../../core/optim/optim.h"
#include "../../core/optim/optim_int.h"

/* ---- a graph that is only its parameters ---- */

enum { MAXP = 8 };
struct mc_graph {
    int n;
    struct mc_param p[MAXP];
    int64_t flat;
};

int mc_graph_nparams(const struct mc_graph *g)
{
    return g->n;
}

const struct mc_param *mc_graph_param(const struct mc_graph *g, int i)
{
    return &g->p[i];
}

int64_t mc_graph_flat_count(const struct mc_graph *g)
{
    return g->flat;
}

int mc_graph_nbuckets(const struct mc_graph *g)
{
    return g->n > 0;
}

void mc_graph_bucket(const struct mc_graph *g, int bucket, int64_t *offset, int64_t *count)
{
    *offset = bucket;
    *count = g->flat;
}

static void add(struct mc_graph *g, const char *name, enum mc_param_class cls, int64_t r, int64_t c,
                int64_t gap)
{
    struct mc_param *p = &g->p[g->n++];
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->shape = c > 0 ? mc_shape_2(r, c) : mc_shape_1(r);
    p->cls = cls;
    p->count = c > 0 ? r * c : r;
    p->stored = p->count;
    p->box = mc_box_whole(&p->shape);
    p->owned = 1;
    p->offset = g->flat + gap;
    g->flat = p->offset + p->count;
}

/* ---- fixture ---- */

struct fix {
    struct mc_graph g;
    struct mc_recipe *r;
    struct mc_pool *pool;
    const struct mc_kern_ops *k;
    struct mc_optim_buffers b;
    struct mc_optim *o;
};

static void set(const struct fix *f, void *flat, int64_t i, double v)
{
    if (f->k->dtype == MC_F64)
        ((double *)flat)[i] = v;
    else
        ((float *)flat)[i] = (float)v;
}

static double get(const struct fix *f, const void *flat, int64_t i)
{
    return f->k->dtype == MC_F64 ? ((const double *)flat)[i] : ((const float *)flat)[i];
}

/* Threads: the bits must not depend on them. */
static void start(struct fix *f, enum mc_dtype dtype, int threads)
{
    f->r = test_calloc(1, sizeof *f->r);
    f->r->optim = (struct mc_optim_cfg){
        .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1, .clip = 1, .nno_decay = 2};
    strcpy(f->r->optim.no_decay[0], "norm");
    strcpy(f->r->optim.no_decay[1], "bias");
    assert_int_equal(mc_pool_create(threads, &f->pool, NULL), MC_OK);
    assert_int_equal(mc_kern_get(MC_DEVICE_CPU, dtype, &f->k, NULL), MC_OK);
}

/* of: the model that f->g is a part of. */
static void create_of(struct fix *f, const struct mc_graph *of)
{
    struct mc_shard *s;
    assert_int_equal(mc_shard_create(&f->g, 1, 0, 0, &s, NULL), MC_OK);
    struct mc_optim_memory m = mc_optim_memory(s, f->k->dtype);
    mc_shard_destroy(s);
    assert_int_equal(m.m, (size_t)f->g.flat * mc_dtype_size(f->k->dtype));
    assert_int_equal(m.v, m.m);
    void **b[4] = {&f->b.params, &f->b.grads, &f->b.m, &f->b.v};
    for (int i = 0; i < 4; i++)
        *b[i] = mc_alloc(m.m, "test");
    struct mc_err err = {0};
    if (mc_optim_create(f->r, &f->g, of, f->k, f->pool, &f->b, NULL, &f->o, &err) != MC_OK)
        fail_msg("%s", err.msg);
}

static void create(struct fix *f)
{
    create_of(f, &f->g);
}

static void stop(struct fix *f)
{
    mc_optim_destroy(f->o);
    mc_free(f->b.params);
    mc_free(f->b.grads);
    mc_free(f->b.m);
    mc_free(f->b.v);
    mc_pool_destroy(f->pool);
    test_free(f->r);
}

static int find(const struct mc_graph *g, const char *name)
{
    for (int i = 0; i < g->n; i++)
        if (!strcmp(g->p[i].name, name))
            return i;
    fail_msg("no parameter %s", name);
    return -1;
}

/* ---- PyTorch ---- */

static double next(char **p)
{
    char *end;
    double v = strtod(*p, &end);
    assert_ptr_not_equal(end, *p);
    *p = end;
    return v;
}

static void load(const struct fix *f, void *flat, int param, char *p)
{
    for (int64_t i = 0; i < f->g.p[param].count; i++)
        set(f, flat, f->g.p[param].offset + i, next(&p));
}

/* ||a - b|| / ||b|| of one parameter. */
static double distance(const struct fix *f, int param, char *p)
{
    double d = 0, n = 0;
    for (int64_t i = 0; i < f->g.p[param].count; i++) {
        double want = next(&p), got = get(f, f->b.params, f->g.p[param].offset + i);
        d += (got - want) * (got - want);
        n += want * want;
    }
    return sqrt(d / n);
}

static int row_of(char *line, const char *word, char name[64], char **rest)
{
    int at = 0;
    char fmt[32];
    snprintf(fmt, sizeof fmt, "%s %%63s%%n", word);
    if (sscanf(line, fmt, name, &at) != 1)
        return 0;
    *rest = line + at;
    return 1;
}

static enum mc_param_class class_of(const char *s)
{
    return !strcmp(s, "norm")        ? MC_PARAM_NORM
           : !strcmp(s, "bias")      ? MC_PARAM_BIAS
           : !strcmp(s, "embedding") ? MC_PARAM_EMBEDDING
                                     : MC_PARAM_MATRIX;
}

static void against_torch(enum mc_dtype dtype, double bound)
{
    struct fix f = {0};
    char line[8192], name[64], cls[32], *p, first[MAXP][4096];
    FILE *in = fopen(MC_SOURCE_HOME "/tests/golden/optim/adamw.txt", "r");
    assert_non_null(in);
    start(&f, dtype, 2);
    f.r->optim.nrules = 1;
    f.r->optim.rule[0] = (struct mc_optim_rule){"*.mlp.*", 0.02, 0.5};
    int t = 0, checked = 0;
    double lr = 0, norm = 0, factor = 0;
    while (fgets(line, sizeof line, in)) {
        if (row_of(line, "param", name, &p)) {
            long long r, c;
            int at;
            assert_int_equal(sscanf(p, "%31s %lld %lld%n", cls, &r, &c, &at), 3);
            p += at;
            (void)next(&p); /* decay and factor: here they follow from the rules */
            (void)next(&p);
            snprintf(first[f.g.n], sizeof first[0], "%s", p);
            add(&f.g, name, class_of(cls), r, c == 1 ? 0 : c, f.g.n % 3 == 1 ? 0 : 5);
        } else if (sscanf(line, "step %lf %lf %lf", &lr, &norm, &factor) == 3) {
            if (t++ == 0) {
                create(&f);
                for (int i = 0; i < f.g.n; i++)
                    load(&f, f.b.params, i, first[i]);
            }
        } else if (row_of(line, "grad", name, &p)) {
            load(&f, f.b.grads, find(&f.g, name), p);
            if (find(&f.g, name) == f.g.n - 1) { /* the last one: the step is whole */
                double got = mc_optim_grad_norm(f.o);
                assert_true(fabs(got - norm) <= bound * norm);
                assert_true(fabs(mc_optim_clip(1, got) - factor) <= bound);
                mc_optim_update(f.o, t, lr, mc_optim_clip(1, got));
            }
        } else if (row_of(line, "weight", name, &p)) {
            double d = distance(&f, find(&f.g, name), p);
            if (!(d <= bound))
                fail_msg("step %d %s: %g > %g", t, name, d, bound);
            checked++;
        }
    }
    assert_int_equal(checked, 8 * 6);
    fclose(in);
    stop(&f);
}

static void optim_equals_pytorch_fp64(void **state)
{
    (void)state;
    against_torch(MC_F64, 1e-13);
}

static void optim_equals_pytorch_fp32(void **state)
{
    (void)state;
    against_torch(MC_F32, 1e-6);
}

/* ---- a plain loop ---- */

static double noise(uint64_t i)
{
    return (double)(int64_t)mc_mix64(i + 99) / 9.3e18;
}

static void model(struct mc_graph *g, int reversed)
{
    static const struct {
        const char *name;
        enum mc_param_class cls;
        int64_t r, c;
    } p[6] = {{"tok.weight", MC_PARAM_EMBEDDING, 257, 33},
              {"layers.0.norm.weight", MC_PARAM_NORM, 33, 0},
              {"layers.0.q.weight", MC_PARAM_MATRIX, 64, 33},
              {"layers.0.q.bias", MC_PARAM_BIAS, 64, 0},
              {"layers.1.q.weight", MC_PARAM_MATRIX, 65, 33},
              {"final.weight", MC_PARAM_MATRIX, 1, 1}};
    for (int i = 0; i < 6; i++) {
        int k = reversed ? 5 - i : i;
        add(g, p[k].name, p[k].cls, p[k].r, p[k].c, i % 2 ? 0 : 7 + i);
    }
    g->flat += 9;
}

/* Values by name and logical index, whatever the storage order. */
static void fill(const struct fix *f, void *flat, uint64_t salt, double size)
{
    for (int i = 0; i < f->g.n; i++)
        for (int64_t e = 0; e < f->g.p[i].count; e++)
            set(f, flat, f->g.p[i].offset + e,
                size * noise(salt * 1000003 + mc_hash64(f->g.p[i].name, strlen(f->g.p[i].name)) +
                             (uint64_t)e));
}

static void optim_equals_a_plain_loop(void **state)
{
    (void)state;
    struct fix f = {0};
    start(&f, MC_F64, 3);
    model(&f.g, 0);
    f.r->optim.betas[0] = 0.8;
    f.r->optim.betas[1] = 0.97;
    f.r->optim.eps = 1e-3; /* large enough that its place shows */
    f.r->optim.nrules = 2;
    f.r->optim.rule[0] = (struct mc_optim_rule){"layers.1.*", 0.7, NAN};
    f.r->optim.rule[1] = (struct mc_optim_rule){"layers.?.q.*", NAN, 3};
    create(&f);
    fill(&f, f.b.params, 1, 0.5);
    static const double decay[6] = {0.1, 0, 0.1, 0, 0.7, 0.1}, scale[6] = {1, 1, 3, 3, 1, 1};
    long double *w = test_calloc((size_t)f.g.flat, sizeof *w),
                *m = test_calloc((size_t)f.g.flat, sizeof *m),
                *v = test_calloc((size_t)f.g.flat, sizeof *v);
    for (int64_t i = 0; i < f.g.flat; i++)
        w[i] = get(&f, f.b.params, i);
    for (int t = 1; t <= 5; t++) {
        fill(&f, f.b.grads, (uint64_t)t + 50, 1);
        mc_optim_update(f.o, t, 1e-2, 0.25);
        for (int p = 0; p < f.g.n; p++)
            for (int64_t i = f.g.p[p].offset; i < f.g.p[p].offset + f.g.p[p].count; i++) {
                long double g = 0.25L * get(&f, f.b.grads, i);
                m[i] += (1 - 0.8L) * (g - m[i]);
                v[i] += (1 - 0.97L) * (g * g - v[i]);
                long double step =
                    m[i] / (1 - powl(0.8L, t)) / (sqrtl(v[i] / (1 - powl(0.97L, t))) + 1e-3L);
                w[i] -= 1e-2L * scale[p] * (step + decay[p] * w[i]);
            }
    }
    for (int64_t i = 0; i < f.g.flat; i++) { /* gaps: 0 in both */
        assert_true(fabsl(w[i] - get(&f, f.b.params, i)) <= 1e-14L);
        assert_true(fabsl(m[i] - get(&f, f.b.m, i)) <= 1e-14L);
        assert_true(fabsl(v[i] - get(&f, f.b.v, i)) <= 1e-14L);
    }
    for (int p = 0; p < f.g.n; p++) {
        assert_true(mc_optim_decay_of(f.o, p) == decay[p]);
        assert_true(mc_optim_lr_scale_of(f.o, p) == scale[p]);
    }
    test_free(w);
    test_free(m);
    test_free(v);
    stop(&f);
}

/* ---- promises ---- */

/* Two storage orders, three thread counts, both precisions: the same norm, weights and hash. */
static void optim_bits_do_not_depend_on_storage_or_threads(void **state)
{
    (void)state;
    static const enum mc_dtype dtypes[2] = {MC_F32, MC_F64};
    for (int d = 0; d < 2; d++) {
        double norm[2][24];
        uint64_t before[2], after[2];
        for (int k = 0; k < 2; k++) {
            struct fix f = {0};
            start(&f, dtypes[d], 1 + 2 * k);
            model(&f.g, k);
            create(&f);
            fill(&f, f.b.params, 1, 0.5);
            before[k] = mc_optim_weights_hash(f.o);
            for (int t = 1; t <= 24; t++) { /* one sum could come out the same by chance */
                fill(&f, f.b.grads, (uint64_t)t + 50, 1);
                norm[k][t - 1] = mc_optim_grad_norm(f.o);
                mc_optim_update(f.o, t, 1e-2, mc_optim_clip(1, norm[k][t - 1]));
            }
            after[k] = mc_optim_weights_hash(f.o);
            stop(&f);
        }
        assert_memory_equal(norm[0], norm[1], sizeof norm[0]);
        assert_int_equal(before[0], before[1]);
        assert_int_equal(after[0], after[1]);
        assert_int_not_equal(before[0], after[0]);
    }
}

static void optim_norm_counts_each_element_once_and_passes_nan(void **state)
{
    (void)state;
    struct fix f = {0};
    start(&f, MC_F64, 1);
    model(&f.g, 0);
    create(&f);
    long double sum = 0;
    fill(&f, f.b.grads, 3, 2);
    for (int64_t i = 0; i < f.g.flat; i++)
        sum += (long double)get(&f, f.b.grads, i) * get(&f, f.b.grads, i);
    assert_true(fabs(mc_optim_grad_norm(f.o) - (double)sqrtl(sum)) <= 1e-12);
    set(&f, f.b.grads, f.g.p[4].offset + 9, INFINITY);
    assert_true(isinf(mc_optim_grad_norm(f.o)));
    set(&f, f.b.grads, f.g.p[1].offset, NAN);
    assert_true(isnan(mc_optim_grad_norm(f.o)));
    stop(&f);
}

static void optim_step_allocates_nothing(void **state)
{
    (void)state;
    struct fix f = {0};
    start(&f, MC_F32, 2);
    model(&f.g, 0);
    create(&f);
    fill(&f, f.b.grads, 3, 2);
    uint64_t calls = mc_mem_stats().calls;
    for (int t = 1; t <= 20; t++) {
        mc_optim_update(f.o, t, 1e-3, mc_optim_clip(1, mc_optim_grad_norm(f.o)));
        (void)mc_optim_weights_hash(f.o);
    }
    assert_int_equal(mc_mem_stats().calls, calls);
    stop(&f);
}

static void optim_clip_by_its_formula(void **state)
{
    (void)state;
    assert_true(mc_optim_clip(0, 1e9) == 1);
    assert_true(mc_optim_clip(1, 0.5) == 1);
    assert_true(mc_optim_clip(1, 4) == 1 / (4 + 1e-6));
    assert_true(mc_optim_clip(1, 1) == 1 / (1 + 1e-6));
}

/* The hash sees a name, a shape, a bit; and it does not see gaps. */
static void optim_weights_hash_sees_what_it_should(void **state)
{
    (void)state;
    struct fix f = {0};
    start(&f, MC_F32, 1);
    model(&f.g, 0);
    create(&f);
    fill(&f, f.b.params, 1, 1);
    uint64_t h = mc_optim_weights_hash(f.o);
    ((float *)f.b.params)[0] = 5; /* a gap */
    assert_int_equal(mc_optim_weights_hash(f.o), h);
    unsigned char *bit = (unsigned char *)((float *)f.b.params + f.g.p[4].offset + 11);
    *bit ^= 1;
    assert_int_not_equal(mc_optim_weights_hash(f.o), h);
    *bit ^= 1;
    f.g.p[2].shape = mc_shape_2(33, 64);
    assert_int_not_equal(mc_optim_weights_hash(f.o), h);
    f.g.p[2].shape = mc_shape_2(64, 33);
    f.g.p[2].name[0] = 'm';
    assert_int_not_equal(mc_optim_weights_hash(f.o), h);
    f.g.p[2].name[0] = 'l';
    float *w = (float *)f.b.params + f.g.p[0].offset, x = w[0];
    w[0] = w[1];
    w[1] = x; /* the same numbers in another order */
    assert_int_not_equal(mc_optim_weights_hash(f.o), h);
    stop(&f);
}

static void optim_state_names_every_tensor(void **state)
{
    (void)state;
    struct fix f = {0};
    struct mc_state_tensor t[18];
    start(&f, MC_F64, 1);
    model(&f.g, 0);
    create(&f);
    assert_int_equal(mc_optim_state(f.o, NULL, 0), 18);
    assert_int_equal(mc_optim_state(f.o, t, 18), 18);
    const void *flat[3] = {f.b.params, f.b.m, f.b.v};
    static const char *const kind[3] = {"model/", "adam_m/", "adam_v/"};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 6; i++) {
            char want[160];
            snprintf(want, sizeof want, "%s%s", kind[k], f.g.p[i].name);
            assert_string_equal(t[6 * k + i].name, want);
            assert_true(mc_shape_eq(&t[6 * k + i].shape, &f.g.p[i].shape));
            assert_int_equal(mc_box_count(&t[6 * k + i].box), f.g.p[i].count);
            assert_int_equal(t[6 * k + i].dtype, MC_F64);
            assert_ptr_equal(t[6 * k + i].data, (const double *)flat[k] + f.g.p[i].offset);
        }
    stop(&f);
}

/* Stages have some of the parameters each, the last one a copy of the first's embedding, too: norm,
 * hash and update are those of the whole, to the bit, and a rule may be another stage's. */
static void optim_stages_are_the_whole(void **state)
{
    (void)state;
    struct fix f = {0}, s[3];
    enum { N = 6 };
    double parts[N], sum[N] = {0};
    uint64_t hash[N], hashes[N] = {0};
    start(&f, MC_F32, 1);
    model(&f.g, 0);
    strcpy(f.r->optim.no_decay[0], "layers.0.norm.*"); /* fits nothing of two stages */
    f.r->model.layers = 1;
    memset(s, 0, sizeof s);
    create(&f);
    fill(&f, f.b.params, 1, 1);
    fill(&f, f.b.grads, 2, 1e-2);
    double norm = mc_optim_grad_norm(f.o);
    mc_optim_update(f.o, 1, 1e-2, 0.5);
    for (int k = 0; k < 3; k++) {
        start(&s[k], MC_F32, 1);
        *s[k].r = *f.r;
        for (int i = 2 * k; i < 2 * k + 2; i++)
            add(&s[k].g, f.g.p[i].name, f.g.p[i].cls, f.g.p[i].shape.dim[0],
                f.g.p[i].shape.nd > 1 ? f.g.p[i].shape.dim[1] : 0, k);
        if (k == 2) {
            add(&s[k].g, f.g.p[0].name, f.g.p[0].cls, f.g.p[0].shape.dim[0], f.g.p[0].shape.dim[1],
                1);
            s[k].g.p[2].owned = 0;
        }
        create_of(&s[k], &f.g);
        fill(&s[k], s[k].b.params, 1, 1);
        fill(&s[k], s[k].b.grads, 2, 1e-2);
        mc_optim_norm_parts(s[k].o, parts);
        mc_optim_update(s[k].o, 1, 1e-2, 0.5);
        mc_optim_hash_parts(s[k].o, hash);
        for (int i = 0; i < N; i++) {
            sum[i] += parts[i];
            hashes[i] += hash[i];
        }
        for (int i = 0; i < s[k].g.n; i++) {
            const struct mc_param *p = &s[k].g.p[i], *q = &f.g.p[find(&f.g, p->name)];
            assert_memory_equal((float *)s[k].b.params + p->offset, (float *)f.b.params + q->offset,
                                (size_t)p->count * sizeof(float));
        }
    }
    double layers[3], whole[3];
    mc_optim_norm_parts(f.o, parts);
    mc_optim_layer_norms(f.o, parts, whole);
    for (int k = 0; k < 3; k++) {
        assert_true(mc_optim_norm_of(s[k].o, sum) == norm);
        assert_int_equal(mc_optim_hash_of(s[k].o, hashes), mc_optim_weights_hash(f.o));
        mc_optim_layer_norms(s[k].o, sum, layers);
        assert_memory_equal(layers, whole, sizeof layers);
        stop(&s[k]);
    }
    stop(&f);
}

/* ---- rules ---- */

static void optim_globs(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        int fits;
    } c[] = {{"*", "", 1},
             {"*", "a.b", 1},
             {"", "", 1},
             {"", "a", 0},
             {"a", "a", 1},
             {"a", "ab", 0},
             {"a?", "ab", 1},
             {"a?", "a", 0},
             {"*.weight", "layers.0.attn.q.weight", 1},
             {"*.weight", "layers.0.attn.q.bias", 0},
             {"layers.*.q.*", "layers.11.attn.q.weight", 1},
             {"layers.?.attn.*", "layers.11.attn.q.weight", 0},
             {"**a**b**", "xxaxxbxx", 1},
             {"*aab", "aaaaaab", 1},
             {"*a*a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 0},
             {"[a]", "a", 0},
             {"[a]", "[a]", 1}};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        if (mc_rules_glob(c[i].pattern, c[i].name) != c[i].fits)
            fail_msg("%s on %s: not %d", c[i].pattern, c[i].name, c[i].fits);
}

static const struct mc_rule_param six[6] = {
    {"embed.weight", MC_PARAM_EMBEDDING},        {"pos.weight", MC_PARAM_POSITION},
    {"layers.0.attn.q.weight", MC_PARAM_MATRIX}, {"layers.0.attn.q.bias", MC_PARAM_BIAS},
    {"layers.0.norm.weight", MC_PARAM_NORM},     {"head.weight", MC_PARAM_MATRIX}};

static struct mc_optim_cfg words(const char *a, const char *b, const char *c)
{
    struct mc_optim_cfg cfg = {.weight_decay = 0.1};
    const char *w[3] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (w[i])
            strcpy(cfg.no_decay[cfg.nno_decay++], w[i]);
    return cfg;
}

static void optim_rules_first_match_wins(void **state)
{
    (void)state;
    double d[6], s[6];
    struct mc_optim_cfg cfg = words("norm", "bias", NULL);
    assert_int_equal(mc_rules_resolve(&cfg, six, 6, d, s, NULL), MC_OK);
    static const double plain[6] = {0.1, 0.1, 0.1, 0, 0, 0.1};
    assert_memory_equal(d, plain, sizeof d);
    cfg = words("embedding", "*.q.weight", NULL);
    assert_int_equal(mc_rules_resolve(&cfg, six, 6, d, s, NULL), MC_OK);
    static const double globs[6] = {0, 0, 0, 0.1, 0.1, 0.1};
    assert_memory_equal(d, globs, sizeof d);
    cfg = words("norm", "bias", "embedding");
    cfg.nrules = 3;
    cfg.rule[0] = (struct mc_optim_rule){"layers.*.weight", NAN, 0.5};
    cfg.rule[1] = (struct mc_optim_rule){"*.weight", 0.3, NAN}; /* over no_decay */
    cfg.rule[2] = (struct mc_optim_rule){"bias", 0.4, 2};
    assert_int_equal(mc_rules_resolve(&cfg, six, 6, d, s, NULL), MC_OK);
    static const double decay[6] = {0.3, 0.3, 0.1, 0.4, 0, 0.3}, scale[6] = {1, 1, .5, 2, .5, 1};
    assert_memory_equal(d, decay, sizeof d);
    assert_memory_equal(s, scale, sizeof s);
}

static void refuses(const struct mc_optim_cfg *cfg, const char *what, const char *near)
{
    double d[6], s[6];
    struct mc_err err = {0};
    assert_int_equal(mc_rules_resolve(cfg, six, 6, d, s, &err), MC_E_RECIPE);
    if (!strstr(err.msg, what) || !strstr(err.msg, near))
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.msg, what, near);
}

static void optim_rules_refuse_what_fits_nothing(void **state)
{
    (void)state;
    struct mc_optim_cfg cfg = words("norm", "head.wieght", NULL);
    refuses(&cfg, "optim.no_decay[2]", "did you mean \"head.weight\"");
    cfg = words("zzz*", NULL, NULL);
    refuses(&cfg, "fits no parameter", "embed.weight");
    cfg = words(NULL, NULL, NULL);
    cfg.nrules = 1;
    cfg.rule[0] = (struct mc_optim_rule){"layers.0.atn.q.weight", 0, 1};
    refuses(&cfg, "optim.rules[1]", "layers.0.attn.q.weight");
    cfg.nrules = 2;
    cfg.rule[0] = (struct mc_optim_rule){"*", 0, 1};
    cfg.rule[1] = (struct mc_optim_rule){"head.*", 0, 1};
    refuses(&cfg, "optim.rules[2]", "earlier rules");
    double d[6], s[6];
    cfg = words("bias", NULL, NULL); /* a class may be empty */
    assert_int_equal(mc_rules_resolve(&cfg, six, 2, d, s, NULL), MC_OK);
}

static void optim_create_refuses_eps_zero_and_bad_words(void **state)
{
    (void)state;
    struct fix f = {0};
    struct mc_err err = {0};
    start(&f, MC_F32, 1);
    model(&f.g, 0);
    f.r->optim.eps = 0;
    assert_int_equal(mc_optim_create(f.r, &f.g, &f.g, f.k, f.pool, &f.b, NULL, &f.o, &err),
                     MC_E_RECIPE);
    f.r->optim.eps = 1e-8;
    strcpy(f.r->optim.no_decay[1], "biass");
    err = (struct mc_err){0};
    size_t bytes = mc_mem_stats().alloc_bytes;
    assert_int_equal(mc_optim_create(f.r, &f.g, &f.g, f.k, f.pool, &f.b, NULL, &f.o, &err),
                     MC_E_RECIPE);
    assert_non_null(strstr(err.msg, "biass"));
    assert_null(f.o);
    assert_int_equal(mc_mem_stats().alloc_bytes, bytes);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optim_equals_pytorch_fp64),
        cmocka_unit_test(optim_equals_pytorch_fp32),
        cmocka_unit_test(optim_equals_a_plain_loop),
        cmocka_unit_test(optim_bits_do_not_depend_on_storage_or_threads),
        cmocka_unit_test(optim_norm_counts_each_element_once_and_passes_nan),
        cmocka_unit_test(optim_step_allocates_nothing),
        cmocka_unit_test(optim_clip_by_its_formula),
        cmocka_unit_test(optim_weights_hash_sees_what_it_should),
        cmocka_unit_test(optim_state_names_every_tensor),
        cmocka_unit_test(optim_stages_are_the_whole),
        cmocka_unit_test(optim_globs),
        cmocka_unit_test(optim_rules_first_match_wins),
        cmocka_unit_test(optim_rules_refuse_what_fits_nothing),
        cmocka_unit_test(optim_create_refuses_eps_zero_and_bad_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
