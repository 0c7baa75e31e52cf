/* graph_modern.h - models, as call lists, of the ops that gpt2 and llama lack. */
#pragma once
#include "graph_help.h"

/* rmsnorm of 1 + w; head_dim > 0: of heads. */
MAYBE int rms(struct fn *f, const char *name, int in, int64_t head_dim, int unit)
{
    int v = call(f, "rmsnorm", name, 1, in, 0, 0);
    if (head_dim > 0)
        num(f, "head_dim", (double)head_dim);
    if (unit)
        num(f, "unit_offset", 1);
    return v;
}
MAYBE int turn(struct fn *f, int in, int heads_half)
{
    int v = call(f, "rope", "", 1, in, 0, 0);
    num(f, "factor", 4);
    if (!heads_half) {
        str(f, "layout", "interleaved");
        num(f, "original_max", 30);
        num(f, "rotary_dim", 4);
        str(f, "scaling", "yarn");
        num(f, "theta", 50);
    } else {
        num(f, "original_max", 30);
        str(f, "scaling", "llama3");
    }
    return v;
}
enum { MODERN_EOS = 3 };
/* What gpt2 and llama lack: norms of heads and of 1 + w, ropes scaled, partial and interleaved,
 * attention that is windowed, within documents and capped, geglu, relu squared, softcap, scaled
 * embeddings and logits, smoothed targets, z-loss, logits wider than the vocabulary. */
MAYBE struct model *modern(int64_t seq)
{
    const struct sizes s = {2, 20, 4, 2, 6, 12, 29, seq};
    struct model *m = model_new(&s);
    struct fn *f = &m->stem;
    int x, h, q, k, v, g, u;
    m->r.model.eos = MODERN_EOS;
    m->r.model.label_smoothing = 0.1;
    m->r.model.z_loss = 1e-2;
    x = call(f, "embedding", "embed", 1, 0, 0, 0);
    call(f, "scale", "", 1, x, 0, 0);
    num(f, "scale", sqrt(20));
    f = &m->block;
    h = rms(f, "attn_norm", 0, 0, 1);
    q = linear(f, "attn.q", h, 24, "column", 1);
    k = linear(f, "attn.k", h, 12, "column", 1);
    v = linear(f, "attn.v", h, 12, "column", 1);
    q = turn(f, rms(f, "attn.q_norm", q, 6, 0), 0);
    k = turn(f, rms(f, "attn.k_norm", k, 6, 1), 0);
    h = call(f, "attention", "", 3, q, k, v);
    num(f, "documents", 1);
    num(f, "softcap", 1.5);
    num(f, "window", 4);
    h = linear(f, "attn.o", h, 20, "row", 0);
    x = call(f, "add", "", 2, 0, rms(f, "post_norm", h, 0, 1), 0);
    h = rms(f, "mlp_norm", x, 0, 1);
    g = linear(f, "mlp.gate", h, 12, "column", 0);
    u = linear(f, "mlp.up", h, 12, "column", 0);
    g = call(f, "geglu", "", 2, g, u, 0);
    u = call(f, "relu_squared", "", 1, u, 0, 0);
    q = turn(f, u, 1);
    g = call(f, "geglu", "", 2, g, q, 0);
    num(f, "erf", 1);
    g = linear(f, "mlp.down", g, 20, "row", 0);
    call(f, "add", "", 2, x, g, 0);
    f = &m->head;
    h = rms(f, "final_norm", 0, 0, 1);
    h = linear(f, "head", h, 31, "column", 0);
    h = call(f, "scale", "", 1, h, 0, 0);
    num(f, "scale", 0.7);
    call(f, "softcap", "", 1, h, 0, 0);
    num(f, "cap", 2.5);
    seal(m);
    return m;
}

/* Every op that gpt2 and llama lack, and what is hard for the planner: values used often, twice by
 * one add, by two steps in a row; outputs of fused linears that go straight into the stream, so
 * that their gradients are one; a bare linear around which the stream runs; three uses of one
 * parameter. */
MAYBE struct model *odd_model(void)
{
    const struct sizes s = {2, 12, 2, 2, 6, 12, 31, 7};
    struct model *m = model_new(&s);
    struct fn *f = &m->stem;
    int x, y, a, b, h;
    call(f, "embedding", "embed", 1, 0, 0, 0);
    f = &m->block;
    h = call(f, "layernorm", "n", 1, 0, 0, 0);
    a = linear(f, "a", h, 12, "none", 1);
    b = linear(f, "b", h, 12, "none", 1);
    x = call(f, "add", "", 2, a, b, 0); /* both in one fused pair, their gradient one */
    x = call(f, "add", "", 2, 0, x, 0);
    y = call(f, "scale", "", 1, x, 0, 0);
    num(f, "scale", 1.5);
    a = call(f, "silu", "", 1, y, 0, 0); /* y is read by two steps in a row and no more */
    b = call(f, "gelu", "", 1, y, 0, 0);
    num(f, "erf", 1);
    a = call(f, "swiglu", "", 2, a, b, 0);
    b = call(f, "scale", "", 1, a, 0, 0);
    num(f, "scale", -0.75);
    b = call(f, "add", "", 2, b, b, 0); /* the same value twice */
    b = call(f, "add", "", 2, b, h, 0);
    b = call(f, "relu", "", 1, b, 0, 0); /* of both signs */
    a = linear(f, "c", a, 12, "none", 0);
    a = call(f, "add", "", 2, a, h, 0);
    a = call(f, "add", "", 2, a, b, 0);
    x = call(f, "add", "", 2, x, a, 0);
    a = linear(f, "bare", x, 12, "none", 0); /* the gradient it reads is also the one it adds to */
    x = call(f, "add", "", 2, x, a, 0);
    a = linear(f, "e", x, 12, "none", 0); /* e is used by rmsnorm and by scale: summed in place */
    b = linear(f, "f", x, 12, "none", 0);
    h = call(f, "rmsnorm", "n2", 1, a, 0, 0);
    y = call(f, "scale", "", 1, a, 0, 0);
    num(f, "scale", 0.5);
    b = call(f, "add", "", 2, b, h, 0);
    a = linear(f, "g", b, 12, "none", 0);
    h = linear(f, "h", b, 12, "none", 0);
    a = call(f, "add", "", 2, a, y, 0);
    a = call(f, "add", "", 2, a, h, 0);
    a = call(f, "scale", "", 1, a, 0, 0); /* a gradient of its own: scale takes it over from g */
    num(f, "scale", 0.9);
    call(f, "add", "", 2, x, a, 0);
    f = &m->head;
    h = call(f, "rmsnorm", "final_norm", 1, 0, 0, 0);
    a = call(f, "linear", "head", 1, h, 0, 0);
    str(f, "tied", "embed.weight");
    b = call(f, "linear", "head2", 1, h, 0, 0); /* three uses of the embedding */
    str(f, "tied", "embed.weight");
    b = call(f, "scale", "", 1, b, 0, 0);
    num(f, "scale", 0.5);
    call(f, "add", "", 2, a, b, 0);
    seal(m);
    return m;
}
