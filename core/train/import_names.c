/* import_names.c - what the parameters of transformers' models are called here. Floor 6 (train).
 *
 * One table a family. A family whose names are another's shares its table: llama, mistral, qwen2,
 * qwen3 and gemma differ in what is there, not in what it is called.
 *
 * I1  A table says everything about a name: where it goes, whether it is transposed (the linears of
 *     gpt2 are stored [in, out], ours [out, in]) and which part of it is meant (gpt2 stores q, k
 *     and v as one). No name is treated in any other way.
 * I2  Rows without a name of ours are buffers that older files hold: masks and frequencies, which
 *     follow from the config. They are the only tensors of a file that go nowhere.
 *
 * Memory: none. Threads: any. */
#include "import_int.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct mc_import_row decoder_rows[] = {
    {"embed_tokens.weight", "embed.weight", 0, 0, 0},
    {"norm.weight", "norm.weight", 0, 0, 0},
    {"lm_head.weight", "head.weight", 0, 0, 0},
    {"layers.*.input_layernorm.weight", "layers.*.attn_norm.weight", 0, 0, 0},
    {"layers.*.self_attn.q_proj.weight", "layers.*.attn.q.weight", 0, 0, 0},
    {"layers.*.self_attn.q_proj.bias", "layers.*.attn.q.bias", 0, 0, 0},
    {"layers.*.self_attn.k_proj.weight", "layers.*.attn.k.weight", 0, 0, 0},
    {"layers.*.self_attn.k_proj.bias", "layers.*.attn.k.bias", 0, 0, 0},
    {"layers.*.self_attn.v_proj.weight", "layers.*.attn.v.weight", 0, 0, 0},
    {"layers.*.self_attn.v_proj.bias", "layers.*.attn.v.bias", 0, 0, 0},
    {"layers.*.self_attn.o_proj.weight", "layers.*.attn.o.weight", 0, 0, 0},
    {"layers.*.self_attn.o_proj.bias", "layers.*.attn.o.bias", 0, 0, 0},
    {"layers.*.mlp.gate_proj.weight", "layers.*.mlp.gate.weight", 0, 0, 0},
    {"layers.*.mlp.gate_proj.bias", "layers.*.mlp.gate.bias", 0, 0, 0},
    {"layers.*.mlp.up_proj.weight", "layers.*.mlp.up.weight", 0, 0, 0},
    {"layers.*.mlp.up_proj.bias", "layers.*.mlp.up.bias", 0, 0, 0},
    {"layers.*.mlp.down_proj.weight", "layers.*.mlp.down.weight", 0, 0, 0},
    {"layers.*.mlp.down_proj.bias", "layers.*.mlp.down.bias", 0, 0, 0},
    {"layers.*.self_attn.q_norm.weight", "layers.*.attn.q_norm.weight", 0, 0, 0},
    {"layers.*.self_attn.k_norm.weight", "layers.*.attn.k_norm.weight", 0, 0, 0},
    {"layers.*.self_attn.rotary_emb.inv_freq", NULL, 0, 0, 0}, /* I2 */
    {NULL, NULL, 0, 0, 0},
};

/* The norm after attention is the one before the mlp, */
static const struct mc_import_row llama_rows[] = {
    {"layers.*.post_attention_layernorm.weight", "layers.*.mlp_norm.weight", 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

/* but here, where each half has two. */
static const struct mc_import_row gemma2_rows[] = {
    {"layers.*.post_attention_layernorm.weight", "layers.*.attn.post_norm.weight", 0, 0, 0},
    {"layers.*.pre_feedforward_layernorm.weight", "layers.*.mlp_norm.weight", 0, 0, 0},
    {"layers.*.post_feedforward_layernorm.weight", "layers.*.mlp.post_norm.weight", 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

static const struct mc_import_row gpt2_rows[] = {
    {"wte.weight", "embed.weight", 0, 0, 0},
    {"wpe.weight", "pos.weight", 0, 0, 0},
    {"ln_f.weight", "norm.weight", 0, 0, 0},
    {"ln_f.bias", "norm.bias", 0, 0, 0},
    {"lm_head.weight", "head.weight", 0, 0, 0},
    {"h.*.ln_1.weight", "layers.*.attn_norm.weight", 0, 0, 0},
    {"h.*.ln_1.bias", "layers.*.attn_norm.bias", 0, 0, 0},
    {"h.*.ln_2.weight", "layers.*.mlp_norm.weight", 0, 0, 0},
    {"h.*.ln_2.bias", "layers.*.mlp_norm.bias", 0, 0, 0},
    {"h.*.attn.c_attn.weight", "layers.*.attn.q.weight", 1, 0, 3},
    {"h.*.attn.c_attn.bias", "layers.*.attn.q.bias", 0, 0, 3},
    {"h.*.attn.c_attn.weight", "layers.*.attn.k.weight", 1, 1, 3},
    {"h.*.attn.c_attn.bias", "layers.*.attn.k.bias", 0, 1, 3},
    {"h.*.attn.c_attn.weight", "layers.*.attn.v.weight", 1, 2, 3},
    {"h.*.attn.c_attn.bias", "layers.*.attn.v.bias", 0, 2, 3},
    {"h.*.attn.c_proj.weight", "layers.*.attn.o.weight", 1, 0, 0},
    {"h.*.attn.c_proj.bias", "layers.*.attn.o.bias", 0, 0, 0},
    {"h.*.mlp.c_fc.weight", "layers.*.mlp.up.weight", 1, 0, 0},
    {"h.*.mlp.c_fc.bias", "layers.*.mlp.up.bias", 0, 0, 0},
    {"h.*.mlp.c_proj.weight", "layers.*.mlp.down.weight", 1, 0, 0},
    {"h.*.mlp.c_proj.bias", "layers.*.mlp.down.bias", 0, 0, 0},
    {"h.*.attn.bias", NULL, 0, 0, 0},        /* I2 */
    {"h.*.attn.masked_bias", NULL, 0, 0, 0}, /* I2 */
    {NULL, NULL, 0, 0, 0},
};

static const struct mc_import_row no_rows[] = {{NULL, NULL, 0, 0, 0}};

const struct mc_import_family mc_import_families[] = {
    {"llama", {decoder_rows, llama_rows}, "rmsnorm", "rms_norm_eps", "swiglu", {"silu", "swish"}},
    {"mistral", {decoder_rows, llama_rows}, "rmsnorm", "rms_norm_eps", "swiglu", {"silu", "swish"}},
    {"qwen2", {decoder_rows, llama_rows}, "rmsnorm", "rms_norm_eps", "swiglu", {"silu", "swish"}},
    {"qwen3", {decoder_rows, llama_rows}, "rmsnorm", "rms_norm_eps", "swiglu", {"silu", "swish"}},
    {"gemma",
     {decoder_rows, llama_rows},
     "rmsnorm",
     "rms_norm_eps",
     "geglu",
     {"gelu_pytorch_tanh", "gelu_new"}},
    {"gemma2",
     {decoder_rows, gemma2_rows},
     "rmsnorm",
     "rms_norm_eps",
     "geglu",
     {"gelu_pytorch_tanh", "gelu_new"}},
    {"gpt2",
     {gpt2_rows, no_rows},
     "layernorm",
     "layer_norm_epsilon",
     "gelu",
     {"gelu_new", "gelu_pytorch_tanh"}},
};
const int mc_import_nfamilies = (int)(sizeof mc_import_families / sizeof *mc_import_families);

const struct mc_import_family *mc_import_family_named(const char *model_type)
{
    for (int i = 0; i < mc_import_nfamilies; i++)
        if (strcmp(mc_import_families[i].model_type, model_type) == 0)
            return &mc_import_families[i];
    return NULL;
}

const char *mc_import_plain(const char *name)
{
    static const char *const prefix[] = {"model.", "transformer."};
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
        if (strncmp(name, prefix[i], strlen(prefix[i])) == 0)
            return name + strlen(prefix[i]);
    return name;
}

const struct mc_import_row *mc_import_row_at(const struct mc_import_family *f, int i)
{
    for (int k = 0; k < 2; k++)
        for (const struct mc_import_row *row = f->rows[k]; row->theirs; row++)
            if (i-- == 0)
                return row;
    return NULL;
}

int mc_import_follows(const struct mc_import_row *row, const char *name, int *layer)
{
    const char *star = strchr(row->theirs, '*');
    *layer = -1;
    if (!star)
        return strcmp(row->theirs, name) == 0;
    size_t before = (size_t)(star - row->theirs);
    if (strncmp(row->theirs, name, before) != 0)
        return 0;
    size_t digits = strspn(name + before, "0123456789");
    if (digits == 0 || digits > 6 || (digits > 1 && name[before] == '0'))
        return 0;
    *layer = atoi(name + before);
    return strcmp(star + 1, name + before + digits) == 0;
}

void mc_import_expand(const char *pattern, int layer, char dst[MC_NAME_MAX])
{
    const char *star = strchr(pattern, '*');
    if (star)
        snprintf(dst, MC_NAME_MAX, "%.*s%d%s", (int)(star - pattern), pattern, layer, star + 1);
    else
        snprintf(dst, MC_NAME_MAX, "%s", pattern);
}
