/* import_config.c - config.json of a transformers model against the recipe. Floor 6 (train).
 *
 * I1  Where both speak of the same thing they agree, or it is an error that names both. What
 *     config.json does not say is not asked for; shapes say much of it again (import.c).
 * I2  What the model computes is read from the recipe's traced calls, not from the keys that made
 *     them: a block of one's own is judged by what it does.
 * I3  A number that changes the model and that our ops do not have must be at the value at which it
 *     changes nothing.
 *
 * Memory: jansson's, freed here. Threads: one. */
#include "import_int.h"
#include "../base/sysio.h"
#include "../base/arena.h"
#include "../graph/op.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CONFIG_MAX = 4 << 20 };

struct look {
    const json_t *config;
    const struct mc_recipe *r;
    const struct mc_import_family *family;
    struct mc_problems *problems;
    char file[1100];
};

static void differ(struct look *l, const char *key, const char *theirs, const char *ours,
                   const char *where)
{
    mc_problems_add(l->problems, key, l->file, 0, NULL, "config.json says %.100s, %s %.100s",
                    theirs, where, ours);
}

static void as_text(const json_t *v, char dst[100])
{
    if (json_is_string(v))
        snprintf(dst, 100, "\"%.90s\"", json_string_value(v));
    else if (json_is_number(v))
        snprintf(dst, 100, "%.17g", json_number_value(v));
    else
        snprintf(dst, 100, "%s",
                 json_is_true(v)    ? "true"
                 : json_is_false(v) ? "false"
                 : json_is_null(v)  ? "null"
                                    : "a list or an object");
}

/* A number of theirs, where it is there and not null, against ours. */
static void number(struct look *l, const json_t *in, const char *key, double ours,
                   const char *where)
{
    const json_t *v = json_object_get(in, key);
    char a[100], b[100];
    if (!v || json_is_null(v))
        return;
    if (json_is_number(v) && json_number_value(v) == ours)
        return;
    as_text(v, a);
    if (isnan(ours)) { /* I3 */
        mc_problems_add(l->problems, key, l->file, 0, NULL,
                        "config.json says %.100s, which cannot be carried over", a);
        return;
    }
    snprintf(b, sizeof b, "%.17g", ours);
    differ(l, key, a, b, where);
}

static void flag(struct look *l, const char *key, int ours, const char *where)
{
    const json_t *v = json_object_get(l->config, key);
    char a[100];
    if (!v || json_is_null(v) || (json_is_boolean(v) && json_is_true(v) == ours))
        return;
    as_text(v, a);
    differ(l, key, a, ours ? "true" : "false", where);
}

/* ---- what the model does (I2) ---- */

static const struct mc_func *block_of(const struct look *l, int64_t layer)
{
    return &l->r->model.block[l->r->model.layer_block[layer]];
}

static const struct mc_call *call_of(const struct mc_func *f, const char *op)
{
    for (int i = 0; i < f->ncalls; i++)
        if (strcmp(f->call[i].op, op) == 0)
            return &f->call[i];
    return NULL;
}

static void sizes(struct look *l)
{
    const struct mc_model_cfg *m = &l->r->model;
    const struct {
        const char *theirs, *gpt2, *ours;
        int64_t value;
    } row[] = {
        {"hidden_size", "n_embd", "model.hidden is", m->hidden},
        {"num_hidden_layers", "n_layer", "model.layers is", m->layers},
        {"num_attention_heads", "n_head", "model.heads is", m->heads},
        {"num_key_value_heads", NULL, "model.kv_heads is", m->kv_heads},
        {"head_dim", NULL, "model.head_dim is", m->head_dim},
        {"intermediate_size", "n_inner", "model.ffn is", m->ffn},
        {"vocab_size", "vocab_size", "model.vocab is", m->vocab},
        {NULL, "n_positions", "model.seq is", m->seq},
    };
    int gpt2 = strcmp(l->family->model_type, "gpt2") == 0;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *key = gpt2 ? row[i].gpt2 : row[i].theirs;
        if (key)
            number(l, l->config, key, (double)row[i].value, row[i].ours);
    }
    flag(l, "tie_word_embeddings", m->tied, "model.tied is");
}

static void activation(struct look *l)
{
    static const char *const key[] = {"hidden_act", "hidden_activation", "activation_function"};
    for (size_t k = 0; k < sizeof key / sizeof *key; k++) {
        const json_t *v = json_object_get(l->config, key[k]);
        const char *word = json_string_value(v);
        char a[100];
        /* gemma keeps a hidden_act from before hidden_activation was there, which rules */
        if (!v || json_is_null(v) || (k == 0 && json_is_string(json_object_get(l->config, key[1]))))
            continue;
        as_text(v, a);
        if (!word || (strcmp(word, l->family->act[0]) != 0 && strcmp(word, l->family->act[1]) != 0))
            differ(l, key[k], a, l->family->act[0], "what can be carried over is");
    }
    for (int64_t i = 0; i < l->r->model.layers; i++) {
        const struct mc_call *c = call_of(block_of(l, i), l->family->gate);
        if (c && mc_call_num(c, "erf", 0) == 0)
            continue;
        mc_problems_add(l->problems, l->family->gate, l->file, 0, NULL,
                        "the model's layer %lld does not compute nn.%s, as a %s does", (long long)i,
                        l->family->gate, l->family->model_type);
        return;
    }
}

/* Every norm of the model has their epsilon, and their form of the weight. */
static void norms_of(struct look *l, const struct mc_func *f, int *said)
{
    int gemma = strncmp(l->family->model_type, "gemma", 5) == 0;
    for (int i = 0; i < f->ncalls && !*said; i++) {
        const struct mc_call *c = &f->call[i];
        int before = l->problems->said;
        if (strcmp(c->op, "rmsnorm") != 0 && strcmp(c->op, "layernorm") != 0)
            continue;
        if (strcmp(c->op, l->family->norm) != 0)
            mc_problems_add(l->problems, c->name, l->file, 0, NULL,
                            "the model has nn.%s there, a %s has %s", c->op, l->family->model_type,
                            l->family->norm);
        else if ((mc_call_num(c, "unit_offset", 0) != 0) != gemma)
            mc_problems_add(l->problems, c->name, l->file, 0, NULL,
                            "unit_offset is %s there; a %s norm multiplies by %s",
                            gemma ? "not set" : "set", l->family->model_type,
                            gemma ? "1 + w" : "w");
        else
            number(l, l->config, l->family->eps, mc_call_num(c, "eps", 0),
                   "the model's norms have");
        *said = l->problems->said != before;
    }
}

static void norms(struct look *l)
{
    int said = 0;
    for (int b = 0; b < l->r->model.nblocks; b++)
        norms_of(l, &l->r->model.block[b], &said);
    norms_of(l, &l->r->model.head, &said);
}

/* ---- rope ---- */

/* Settings of scaled rope; what a call does not say has the default that both sides share. */
static void scaled(struct look *l, const json_t *rope, const struct mc_call *c, const char *kind)
{
    int yarn = strcmp(kind, "yarn") == 0;
    const json_t *v = json_object_get(rope, "original_max_position_embeddings");
    number(l, rope, "factor", mc_call_num(c, "factor", 1), "the model's rope has");
    number(l, v ? rope : l->config, "original_max_position_embeddings",
           mc_call_num(c, "original_max", 0), "the model's rope has");
    if (yarn) {
        number(l, rope, "beta_fast", mc_call_num(c, "beta_fast", 32), "the model's rope has");
        number(l, rope, "beta_slow", mc_call_num(c, "beta_slow", 1), "the model's rope has");
        if (mc_call_attr(c, "attention_factor") ||
            json_is_number(json_object_get(rope, "attention_factor")))
            number(l, rope, "attention_factor", mc_call_num(c, "attention_factor", NAN),
                   "the model's rope has");
        number(l, rope, "mscale", NAN, "");
        number(l, rope, "mscale_all_dim", NAN, "");
    } else if (strcmp(kind, "llama3") == 0) {
        number(l, rope, "low_freq_factor", mc_call_num(c, "low_freq_factor", 1),
               "the model's rope has");
        number(l, rope, "high_freq_factor", mc_call_num(c, "high_freq_factor", 4),
               "the model's rope has");
    }
}

static void rope_of(struct look *l, const struct mc_call *c)
{
    const json_t *rope = json_object_get(l->config, "rope_parameters");
    if (!json_is_object(rope)) /* older: rope_theta beside rope_scaling */
        rope = json_object_get(l->config, "rope_scaling");
    const json_t *theta = json_object_get(rope, "rope_theta");
    const char *kind = json_string_value(json_object_get(rope, "rope_type"));
    if (!kind)
        kind = json_string_value(json_object_get(rope, "type"));
    if (!kind || strcmp(kind, "default") == 0)
        kind = "none";
    number(l, theta ? rope : l->config, "rope_theta", mc_call_num(c, "theta", 0),
           "the model's rope has");
    number(l, l->config, "partial_rotary_factor", 1, "the model's rope turns all:"); /* I3 */
    number(l, rope, "partial_rotary_factor", 1, "the model's rope turns all:");
    if (mc_call_num(c, "rotary_dim", (double)l->r->model.head_dim) != (double)l->r->model.head_dim)
        differ(l, "rope", "all of a head", "a part of it", "the model's rope turns");
    if (strcmp(mc_call_str(c, "layout", "half"), "half") != 0)
        differ(l, "rope", "pairs (i, i + half)", "interleaved", "the model's rope is");
    if (strcmp(kind, mc_call_str(c, "scaling", "none")) != 0)
        differ(l, "rope_type", kind, mc_call_str(c, "scaling", "none"), "the model's rope has");
    else if (strcmp(kind, "none") != 0)
        scaled(l, rope, c, kind);
}

/* ---- attention ---- */

/* Tokens that their layer sees: 0: all. -1: it cannot be told. */
static int64_t their_window(const struct look *l, int64_t layer)
{
    const json_t *w = json_object_get(l->config, "sliding_window");
    const json_t *type = json_array_get(json_object_get(l->config, "layer_types"), (size_t)layer);
    const char *word = json_string_value(type);
    int64_t size = json_is_integer(w) ? json_integer_value(w) : 0;
    if (json_is_false(json_object_get(l->config, "use_sliding_window")))
        return 0;
    if (word)
        return strcmp(word, "sliding_attention") == 0 ? size
               : strcmp(word, "full_attention") == 0  ? 0
                                                      : -1;
    if (strcmp(l->family->model_type, "gemma2") == 0) /* older files: every other layer */
        return layer % 2 == 0 ? size : 0;
    if (strncmp(l->family->model_type, "qwen", 4) == 0 && size > 0) {
        const json_t *from = json_object_get(l->config, "max_window_layers");
        return json_is_true(json_object_get(l->config, "use_sliding_window"))
                   ? (json_is_integer(from) && layer < json_integer_value(from) ? 0 : size)
                   : 0;
    }
    return size;
}

static void attention_of(struct look *l, const struct mc_call *c, int64_t layer)
{
    const struct mc_model_cfg *m = &l->r->model;
    int64_t window = their_window(l, layer);
    char a[100], b[100], where[64];
    double scale = mc_call_num(c, "scale", 1 / sqrt((double)m->head_dim));
    const json_t *q = json_object_get(l->config, "query_pre_attn_scalar");
    if ((double)window != mc_call_num(c, "window", 0)) {
        snprintf(a, sizeof a, "%lld", (long long)window);
        snprintf(b, sizeof b, "%.17g", mc_call_num(c, "window", 0));
        snprintf(where, sizeof where, "the model's layer %lld sees", (long long)layer);
        differ(l, "sliding_window", a, b, where);
    }
    if (strcmp(l->family->model_type, "gemma2") == 0) {
        number(l, l->config, "attn_logit_softcapping", mc_call_num(c, "softcap", 0),
               "the model's attention has");
        if (json_is_number(q) && fabs(1 / sqrt(json_number_value(q)) / scale - 1) > 1e-12)
            number(l, l->config, "query_pre_attn_scalar", 1 / (scale * scale),
                   "the model's attention has");
    }
}

static void attention(struct look *l)
{
    int before = l->problems->said;
    for (int64_t i = 0; i < l->r->model.layers && l->problems->said == before; i++) {
        const struct mc_func *f = block_of(l, i);
        const struct mc_call *rope = call_of(f, "rope"), *a = call_of(f, "attention");
        if (rope)
            rope_of(l, rope);
        else if (strcmp(l->family->model_type, "gpt2") != 0)
            differ(l, "model_type", l->family->model_type, "none", "the model's rope is");
        if (a)
            attention_of(l, a, i);
    }
}

static void others(struct look *l) /* I3 */
{
    const struct mc_call *cap = call_of(&l->r->model.head, "softcap");
    number(l, l->config, "final_logit_softcapping", cap ? mc_call_num(cap, "cap", 0) : 0,
           "the model's head has");
    flag(l, "scale_attn_weights", 1, "here it is");
    flag(l, "scale_attn_by_inverse_layer_idx", 0, "here it is");
    flag(l, "add_cross_attention", 0, "here it is");
    number(l, l->config, "logit_scale", 1, "here it is");
}

mc_status mc_import_config(const char *folder, const struct mc_recipe *r,
                           const struct mc_import_family **family, struct mc_problems *problems,
                           struct mc_err *err)
{
    struct look l = {.r = r, .problems = problems};
    char *text;
    size_t n;
    json_error_t je;
    *family = NULL;
    MC_TRY(mc_path_join(l.file, sizeof l.file, folder, "config.json", err));
    if (!mc_sys_exists(l.file))
        return MC_OK;
    MC_TRY(mc_sys_read_file(l.file, CONFIG_MAX, &text, &n, err));
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    mc_free(text);
    mc_status st = MC_OK;
    if (!type)
        st = mc_err_set(err, MC_E_FORMAT, "%s: %s", l.file,
                        root ? "no text \"model_type\"" : je.text);
    else if (!(l.family = mc_import_family_named(type)))
        st = mc_err_set(err, MC_E_FORMAT,
                        "%s: model_type \"%.60s\": the families that can be carried over are "
                        "llama, mistral, qwen2, qwen3, gemma, gemma2 and gpt2",
                        l.file, type);
    if (st == MC_OK) {
        l.config = root;
        sizes(&l);
        activation(&l);
        norms(&l);
        attention(&l);
        others(&l);
        *family = l.family;
    }
    json_decref(root);
    return st;
}
