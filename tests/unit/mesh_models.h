/* mesh_models.h - models that a mesh may not change the meaning of, as call lists.
 *
 * Together they have every op and every way in which a parameter lies on a mesh: tied and untied
 * vocabularies that tp does not divide, biases of column and row linears, fewer key heads than
 * ranks, norms of heads, learned positions, dropout of whole rows and of columns, linears that are
 * not cut, partial sums added before they are summed, values read both by work that is split and by
 * work that is not. */
#pragma once
#include "graph_modern.h"

MAYBE struct model *gpt2_odd(void) /* 257 rows over 2 or 4; dropout on rows */
{
    static const struct sizes s = {2, 24, 4, 4, 6, 32, 257, 8};
    return gpt2(&s, 0.1);
}
MAYBE struct model *gpt2_even(void)
{
    static const struct sizes s = {2, 24, 4, 2, 6, 32, 64, 8};
    return gpt2(&s, 0);
}
MAYBE struct model *llama_gqa(void)
{
    static const struct sizes s = {2, 32, 8, 4, 4, 48, 64, 8};
    return llama(&s);
}
MAYBE struct model *llama_odd(void) /* fewer rows of the vocabulary than 4 full parts: 2 2 1 0 */
{
    static const struct sizes s = {2, 24, 4, 4, 6, 32, 5, 7};
    return llama(&s);
}
MAYBE struct model *llama_one_kv(void)
{
    static const struct sizes s = {2, 24, 4, 1, 6, 32, 257, 8};
    return llama(&s);
}
MAYBE struct model *llama_two_kv(void)
{
    static const struct sizes s = {2, 32, 8, 2, 4, 32, 61, 8};
    return llama(&s);
}

/* Biases of q, k, v; norms of heads; two key heads. */
MAYBE struct model *qwen(void)
{
    const struct sizes s = {2, 24, 4, 2, 6, 32, 67, 8};
    struct model *m = model_new(&s);
    struct fn *f = &m->stem;
    int x, h, q, k, v, g, u;
    call(f, "embedding", "embed", 1, 0, 0, 0);
    f = &m->block;
    h = call(f, "rmsnorm", "attn_norm", 1, 0, 0, 0);
    q = linear(f, "attn.q", h, 24, "column", 1);
    k = linear(f, "attn.k", h, 12, "column", 1);
    v = linear(f, "attn.v", h, 12, "column", 1);
    q = call(f, "rope", "", 1, rms(f, "attn.q_norm", q, 6, 0), 0, 0);
    k = call(f, "rope", "", 1, rms(f, "attn.k_norm", k, 6, 0), 0, 0);
    h = call(f, "attention", "", 3, q, k, v);
    h = linear(f, "attn.o", h, 24, "row", 1);
    x = call(f, "add", "", 2, 0, h, 0);
    h = call(f, "rmsnorm", "mlp_norm", 1, x, 0, 0);
    g = linear(f, "mlp.gate", h, 32, "column", 1);
    u = linear(f, "mlp.up", h, 32, "column", 1);
    g = call(f, "swiglu", "", 2, g, u, 0);
    g = linear(f, "mlp.down", g, 24, "row", 1);
    call(f, "add", "", 2, x, g, 0);
    f = &m->head;
    h = call(f, "rmsnorm", "final_norm", 1, 0, 0, 0);
    linear(f, "head", h, 67, "column", 1);
    seal(m);
    return m;
}

/* What graph_modern.h has, in widths that 4 divides, with a tied head and a sequence that 4 does
 * not divide; logits wider than the vocabulary. */
MAYBE struct model *gemma(void)
{
    const struct sizes s = {2, 20, 4, 2, 6, 24, 29, 7};
    struct model *m = model_new(&s);
    struct fn *f = &m->stem;
    int x, h, q, k, v, g, u;
    m->r.model.eos = MODERN_EOS;
    m->r.model.label_smoothing = 0.1;
    m->r.model.z_loss = 1e-2;
    x = call(f, "embedding", "embed", 1, 0, 0, 0);
    num(f, "vocab", 31);
    call(f, "scale", "", 1, x, 0, 0);
    num(f, "scale", sqrt(20));
    f = &m->block;
    h = rms(f, "attn_norm", 0, 0, 1);
    q = linear(f, "attn.q", h, 24, "column", 0);
    k = linear(f, "attn.k", h, 12, "column", 0);
    v = linear(f, "attn.v", h, 12, "column", 0);
    q = turn(f, q, 0);
    k = turn(f, rms(f, "attn.k_norm", k, 6, 1), 0);
    h = call(f, "attention", "", 3, q, k, v);
    num(f, "documents", 1);
    num(f, "softcap", 1.5);
    num(f, "window", 4);
    h = linear(f, "attn.o", h, 20, "row", 0);
    h = rms(f, "post_norm", h, 0, 1);
    x = call(f, "add", "", 2, 0, h, 0);
    h = rms(f, "mlp_norm", x, 0, 1);
    g = linear(f, "mlp.gate", h, 24, "column", 0);
    u = linear(f, "mlp.up", h, 24, "column", 0);
    u = call(f, "relu_squared", "", 1, turn(f, u, 1), 0, 0);
    g = call(f, "geglu", "", 2, g, u, 0);
    g = linear(f, "mlp.down", g, 20, "row", 0);
    call(f, "add", "", 2, x, g, 0);
    f = &m->head;
    h = rms(f, "final_norm", 0, 0, 1);
    h = linear(f, "head", h, 31, "column", 0);
    str(f, "tied", "embed.weight");
    h = call(f, "scale", "", 1, h, 0, 0);
    num(f, "scale", 0.7);
    call(f, "softcap", "", 1, h, 0, 0);
    num(f, "cap", 2.5);
    seal(m);
    return m;
}

/* The odd one of graph_help.h, its two tied heads cut: linears that are not cut, whose fused
 * outputs go straight into the stream. */
MAYBE struct model *odd_cut(void)
{
    struct model *m = odd_model();
    for (int i = 0; i < m->head.n; i++)
        if (strcmp(m->head.call[i].op, "linear") == 0) {
            struct mc_attr *a = &m->head.call[i].attr[m->head.call[i].nattrs++];
            *a = (struct mc_attr){.kind = MC_V_STR};
            snprintf(a->key, sizeof a->key, "shard");
            snprintf(a->str, sizeof a->str, "column");
        }
    seal(m);
    return m;
}

/* A parallel block: partial sums added before they are summed. The stream enters a column linear
 * with no norm between; a value that a column linear reads is read by an uncut one, too, and so are
 * keys (in copies on 4 ranks) and gates (columns); dropout acts on columns. */
MAYBE struct model *parallel_block(void)
{
    const struct sizes s = {2, 24, 4, 2, 6, 24, 33, 8};
    struct model *m = model_new(&s);
    struct fn *f = &m->stem;
    int x, h, q, k, v, a, g;
    x = call(f, "embedding", "embed", 1, 0, 0, 0);
    call(f, "positions", "pos", 1, x, 0, 0);
    f = &m->block;
    h = call(f, "layernorm", "norm", 1, 0, 0, 0);
    q = linear(f, "attn.q", h, 24, "column", 0);
    k = linear(f, "attn.k", h, 12, "column", 1);
    v = linear(f, "attn.v", h, 12, "column", 0);
    a = call(f, "attention", "", 3, q, k, v);
    a = linear(f, "attn.o", a, 24, "row", 1);
    g = linear(f, "mlp.up", 0, 24, "column", 1); /* of the stream itself */
    g = call(f, "gelu", "", 1, g, 0, 0);
    g = call(f, "dropout", "mlp.drop", 1, g, 0, 0);
    num(f, "p", 0.2);
    x = linear(f, "mlp.down", g, 24, "row", 1);
    a = call(f, "add", "", 2, a, x, 0); /* both partial */
    x = call(f, "add", "", 2, 0, a, 0);
    a = linear(f, "of_keys", k, 24, "none", 1);
    q = linear(f, "of_gates", g, 24, "none", 0);
    v = linear(f, "of_norm", h, 24, "none", 0);
    a = call(f, "add", "", 2, a, q, 0);
    a = call(f, "add", "", 2, a, v, 0);
    call(f, "add", "", 2, x, a, 0);
    f = &m->head;
    h = call(f, "layernorm", "final_norm", 1, 0, 0, 0);
    linear(f, "head", h, 33, "none", 1); /* all logits everywhere */
    seal(m);
    return m;
}

MAYBE struct model *(*const mesh_models[])(void) = {
    gpt2_odd,     gpt2_even, llama_gqa, llama_odd, llama_one_kv,
    llama_two_kv, qwen,      gemma,     odd_cut,   parallel_block};
MAYBE const char *const mesh_names[] = {"gpt2_odd",     "gpt2_even",     "llama_gqa", "llama_odd",
                                        "llama_one_kv", "llama_two_kv",  "qwen",      "gemma",
                                        "odd_cut",      "parallel_block"};
enum { MESH_MODELS = 10 };
