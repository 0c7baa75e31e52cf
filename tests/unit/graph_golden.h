/* graph_golden.h - the references of golden/model, for test_graph_model.c and test_graph_bf16.c. */
#pragma once
#include "graph_help.h"

enum { B = 3, T = 17, STEPS = 20, MAX_REC = 64 };
MAYBE const struct sizes gpt2_sizes = {2, 24, 3, 3, 8, 56, 67, T};
MAYBE const struct sizes llama_sizes = {2, 30, 6, 2, 6, 44, 67, T};

struct reference {
    int ngrad, nfinal;
    struct {
        char name[MC_NAME_MAX];
        long count, offset;
    } grad[MAX_REC];
    struct {
        char name[MC_NAME_MAX];
        double norm;
    } final[MAX_REC];
    double loss[STEPS + 1], norm[STEPS + 1];
    double *g;
    long n;
};

MAYBE void read_reference(const char *name, struct reference *r)
{
    char path[512], line[256], word[MC_NAME_MAX];
    long a, b;
    double v;
    memset(r, 0, sizeof *r);
    snprintf(path, sizeof path, MC_SOURCE_HOME "/tests/golden/model/%s.txt", name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "grad %95s %ld %ld", word, &a, &b) == 3) {
            assert_true(r->ngrad < MAX_REC);
            strcpy(r->grad[r->ngrad].name, word);
            r->grad[r->ngrad].count = a;
            r->grad[r->ngrad++].offset = b;
            r->n = a + b;
        } else if (sscanf(line, "loss %ld %lf", &a, &v) == 2) {
            r->loss[a] = v;
        } else if (sscanf(line, "norm %ld %lf", &a, &v) == 2) {
            r->norm[a] = v;
        } else if (sscanf(line, "final %95s %lf", word, &v) == 2) {
            assert_true(r->nfinal < MAX_REC);
            strcpy(r->final[r->nfinal].name, word);
            r->final[r->nfinal++].norm = v;
        }
    }
    fclose(f);
    snprintf(path, sizeof path, MC_SOURCE_HOME "/tests/golden/model/%s.f64", name);
    f = fopen(path, "rb");
    assert_non_null(f);
    r->g = mc_alloc((size_t)r->n * 8, "test");
    assert_int_equal(fread(r->g, 8, (size_t)r->n, f), r->n);
    fclose(f);
}

MAYBE int param_of(const struct rig *r, const char *name)
{
    for (int i = 0; i < mc_graph_nparams(r->g); i++)
        if (strcmp(mc_graph_param(r->g, i)->name, name) == 0)
            return i;
    fail_msg("no parameter %s", name);
    return -1;
}

/* Zero in exact arithmetic (no rope: softmax does not see a shift of all keys): its value is noise.
 */
MAYBE int is_key_bias(const char *name)
{
    return strstr(name, "attn.k.bias") != NULL;
}
