#!/usr/bin/python3
"""Whole-model references in PyTorch, fp64: losses, first gradients, 20 AdamW steps.

    /usr/bin/python3 reference.py          writes gpt2.txt gpt2.f64 llama.txt llama.f64 beside itself

Weights, tokens and targets come from the formulas of tests/unit/graph_help.h (splitmix64 over FNV-1a of
the parameter's name), so none are stored. X.txt, one record a line:
    grad NAME COUNT OFFSET      gradient of step 1 (before clipping), elements OFFSET.. of X.f64
    loss STEP VALUE             loss before update STEP, STEP = 1 .. 20
    norm STEP VALUE             global gradient norm before clipping
    final NAME NORM             2-norm of the parameter after the last update
X.f64: little-endian doubles. AdamW: lr 1e-3, betas 0.9 0.95, eps 1e-8, decay 0.1 on parameters of two
dimensions, gradient norm clipped to 1 by c / (norm + 1e-6).
"""
import math
import os
import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
M64 = (1 << 64) - 1
B, T, STEPS = 3, 17, 20
GPT2 = dict(layers=2, hidden=24, heads=3, kv=3, dim=8, ffn=56, vocab=67)
LLAMA = dict(layers=2, hidden=30, heads=6, kv=2, dim=6, ffn=44, vocab=67)


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & M64
    return x ^ x >> 31


def name_hash(s):
    h = 0xCBF29CE484222325
    for c in s.encode():
        h = ((h ^ c) * 0x100000001B3) & M64
    return h


def weight(name, shape, kind):
    h, n = name_hash(name), int(np.prod(shape))
    u = np.array([(mix((h + i) & M64) >> 40) / 8388608.0 - 1.0 for i in range(n)])
    v = {"matrix": lambda: u / math.sqrt(shape[-1]), "embedding": lambda: 0.5 * u,
         "position": lambda: 0.25 * u, "norm": lambda: 1 + 0.25 * u, "bias": lambda: 0.125 * u}[kind]()
    v = v.astype(np.float32).astype(np.float64).reshape(shape)
    return torch.nn.Parameter(torch.tensor(v, dtype=torch.float64))


def batch(step, vocab):
    tokens, targets = [], []
    for i in range(B * T):
        a, b = mix(step * 1000003 + 2 * i), mix(step * 1000003 + 2 * i + 1)
        tokens.append(a % vocab)
        targets.append(-1 if b % 7 == 0 else b // 7 % vocab)
    return torch.tensor(tokens).view(B, T), torch.tensor(targets).view(B, T)


def attend(q, k, v, heads, kv, dim):
    """(B, T, heads*dim) -> the same; plain softmax over a full mask."""
    split = lambda x, n: x.view(B, T, n, dim).transpose(1, 2)
    q, k, v = split(q, heads), split(k, kv), split(v, kv)
    k, v = (x.repeat_interleave(heads // kv, dim=1) for x in (k, v))
    s = q @ k.transpose(2, 3) / math.sqrt(dim)
    s = s.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
    return (s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, heads * dim)


def rotate(x, n, dim, theta=10000.0):
    """Pairs (i, i + dim/2) as one complex number, turned by e^(i angle)."""
    x = x.view(B, T, n, dim)
    z = torch.complex(x[..., : dim // 2], x[..., dim // 2:])
    angle = torch.arange(T, dtype=torch.float64)[:, None] * theta ** (
        -torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    z = z * torch.polar(torch.ones_like(angle), angle)[None, :, None, :]
    return torch.cat([z.real, z.imag], -1).reshape(B, T, n * dim)


class Gpt2:
    def __init__(self, c):
        self.c, self.p = c, {}
        C, d = c["hidden"], c["heads"] * c["dim"]
        add = lambda n, s, k: self.p.__setitem__(n, weight(n, s, k))
        both = lambda n, o, i: (add(n + ".weight", (o, i), "matrix"), add(n + ".bias", (o,), "bias"))
        norm = lambda n: (add(n + ".weight", (C,), "norm"), add(n + ".bias", (C,), "bias"))
        add("embed.weight", (c["vocab"], C), "embedding")
        add("pos.weight", (T, C), "position")
        for l in range(c["layers"]):
            n = "layers.%d." % l
            norm(n + "attn_norm"), norm(n + "mlp_norm")
            for x in "qkv":
                both(n + "attn." + x, d, C)
            both(n + "attn.o", C, d), both(n + "mlp.up", c["ffn"], C), both(n + "mlp.down", C, c["ffn"])
        norm("final_norm")

    def logits(self, tok):
        p, c = self.p, self.c
        lin = lambda n, x: F.linear(x, p[n + ".weight"], p[n + ".bias"])
        norm = lambda n, x: F.layer_norm(x, x.shape[-1:], p[n + ".weight"], p[n + ".bias"], 1e-5)
        x = F.embedding(tok, p["embed.weight"]) + p["pos.weight"][None]
        for l in range(c["layers"]):
            n = "layers.%d." % l
            h = norm(n + "attn_norm", x)
            a = attend(*(lin(n + "attn." + y, h) for y in "qkv"), c["heads"], c["heads"], c["dim"])
            x = x + lin(n + "attn.o", a)
            h = F.gelu(lin(n + "mlp.up", norm(n + "mlp_norm", x)), approximate="tanh")
            x = x + lin(n + "mlp.down", h)
        return F.linear(norm("final_norm", x), p["embed.weight"])


class Llama:
    def __init__(self, c):
        self.c, self.p = c, {}
        C, d, e = c["hidden"], c["heads"] * c["dim"], c["kv"] * c["dim"]
        add = lambda n, s, k="matrix": self.p.__setitem__(n + ".weight", weight(n + ".weight", s, k))
        add("embed", (c["vocab"], C), "embedding")
        for l in range(c["layers"]):
            n = "layers.%d." % l
            add(n + "attn_norm", (C,), "norm"), add(n + "mlp_norm", (C,), "norm")
            add(n + "attn.q", (d, C)), add(n + "attn.k", (e, C)), add(n + "attn.v", (e, C))
            add(n + "attn.o", (C, d)), add(n + "mlp.gate", (c["ffn"], C))
            add(n + "mlp.up", (c["ffn"], C)), add(n + "mlp.down", (C, c["ffn"]))
        add("final_norm", (C,), "norm"), add("head", (c["vocab"], C))

    def logits(self, tok):
        c = self.c
        w = lambda n: self.p[n + ".weight"]
        norm = lambda n, x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * w(n)
        x = w("embed")[tok]
        for l in range(c["layers"]):
            n = "layers.%d." % l
            h = norm(n + "attn_norm", x)
            q, k, v = (h @ w(n + "attn." + y).T for y in "qkv")
            q, k = rotate(q, c["heads"], c["dim"]), rotate(k, c["kv"], c["dim"])
            x = x + attend(q, k, v, c["heads"], c["kv"], c["dim"]) @ w(n + "attn.o").T
            h = norm(n + "mlp_norm", x)
            x = x + (F.silu(h @ w(n + "mlp.gate").T) * (h @ w(n + "mlp.up").T)) @ w(n + "mlp.down").T
        return norm("final_norm", x) @ w("head").T


def write(name, model):
    vocab = model.c["vocab"]
    decay = [p for p in model.p.values() if p.dim() > 1]
    rest = [p for p in model.p.values() if p.dim() < 2]
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)],
                            lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    lines, blobs, at = [], [], 0
    for step in range(1, STEPS + 1):
        tok, tgt = batch(step, vocab)
        opt.zero_grad()
        loss = F.cross_entropy(model.logits(tok).view(-1, vocab), tgt.view(-1), ignore_index=-1)
        loss.backward()
        if step == 1:
            for n in sorted(model.p):
                g = model.p[n].grad.numpy().astype("<f8").ravel()
                lines.append("grad %s %d %d" % (n, g.size, at))
                blobs.append(g.tobytes())
                at += g.size
        lines.append("loss %d %.17g" % (step, loss.item()))
        norm = torch.nn.utils.clip_grad_norm_(model.p.values(), 1.0)
        lines.append("norm %d %.17g" % (step, norm.item()))
        opt.step()
    for n in sorted(model.p):
        lines.append("final %s %.17g" % (n, model.p[n].detach().norm().item()))
    with open(os.path.join(HERE, name + ".txt"), "w") as f:
        f.write("\n".join(lines) + "\n")
    with open(os.path.join(HERE, name + ".f64"), "wb") as f:
        f.write(b"".join(blobs))
    print(name, at, "elements;", lines[-1])


torch.set_num_threads(1)
if __name__ == "__main__":
    write("gpt2", Gpt2(GPT2))
    write("llama", Llama(LLAMA))
