/* graph_modern.h - a model of the ops that gpt2, llama and the odd one lack, as a call list. */
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
