#!/usr/bin/python3
"""The same models and steps as reference.py, at bf16: fp64 arithmetic, rounded where the engine says that it rounds.

    /usr/bin/python3 reference_bf16.py           writes gpt2_bf16.txt .f64 llama_bf16.txt .f64 beside itself
    /usr/bin/python3 reference_bf16.py wrong     prints how far wrong rounding points lead from the right ones

Rounding points: each op's output, each gradient of an op's input (after it was added to what is there, where the op adds), weights
from their masters. Never: parameters' gradients, moments, losses. Masters are fp32. Ops are differentiated by PyTorch one by one on
rounded operands (attention by hand: its backward reads its rounded output), so nothing here is the engine's code or its order.
Files and formulas as in reference.py; `final` is of masters.
"""
import math
import os
import sys
import numpy as np
import torch
import torch.nn.functional as F
from reference import B, GPT2, HERE, LLAMA, STEPS, T, Gpt2, Llama, batch, rotate

torch.set_default_dtype(torch.float64)
WRONG = None  # a rounding point to get wrong


def nearest(x):
    """To 8 bits of fraction, ties to even; all here is far from overflow, and 0 stays."""
    m, e = torch.frexp(x)
    return torch.ldexp(torch.round(m * 256), e - 8)


def unless(wrong, x):
    return x if WRONG == wrong else nearest(x)


class Value:
    def __init__(self, x):
        self.x, self.grad = x, None

    def add(self, g):  # a gradient of its own, already rounded, joins what is there
        self.grad = g if self.grad is None else nearest(self.grad + g)

    def add_inside(self, g):  # the op itself adds: one rounding
        if WRONG == "twice":
            g = nearest(g)
        self.grad = nearest(g if self.grad is None else self.grad + g)


class Run:
    """One forward and backward; p: rounded weights; g: gradients of parameters."""

    def __init__(self, c, p):
        self.c, self.p, self.g, self.tape = c, p, {n: torch.zeros_like(w) for n, w in p.items()}, []

    def grad(self, name, g):
        self.g[name] += unless("", g) if WRONG == "weight gradient" else g

    def each(self, f, xs, names=(), inside=False):
        """out = round(f(inputs, parameters)); its gradients by autograd."""
        ins = [v.x.clone().requires_grad_() for v in xs]
        ps = [self.p[n].clone().requires_grad_() for n in names]
        y = f(*ins, *ps)
        out = Value(nearest(y.detach()))

        def back():
            got = torch.autograd.grad(y, ins + ps, out.grad)
            for v, g in zip(xs, got):
                v.add_inside(g) if inside else v.add(nearest(g))
            for n, g in zip(names, got[len(xs):]):
                self.grad(n, g)
        self.tape.append(back)
        return out

    def plus(self, a, b):
        out = Value(unless("residual", a.x + b.x))

        def back():
            a.add(out.grad), b.add(out.grad)
        self.tape.append(back)
        return out

    def linears(self, x, names, bias):
        """Products of one input: their parts of its gradient are one sum, rounded once."""
        outs = []
        for n in names:
            y = x.x @ self.p[n + ".weight"].T
            if WRONG == "bias":
                y = nearest(y)
            outs.append(Value(nearest(y + self.p[n + ".bias"] if bias else y)))

        def back():
            for n, o in zip(names, outs):
                self.grad(n + ".weight", torch.einsum("bto,bti->oi", o.grad, x.x))
                if bias:
                    self.grad(n + ".bias", o.grad.sum((0, 1)))
            x.add_inside(sum(o.grad @ self.p[n + ".weight"] for n, o in zip(names, outs)))
        self.tape.append(back)
        return outs

    def attention(self, q, k, v):
        c = self.c
        h, kv, d = c["heads"], c["kv"], c["dim"]
        split = lambda x, n: x.view(B, T, n, d).transpose(1, 2)
        join = lambda x, n: x.transpose(1, 2).reshape(B, T, n * d)
        Q, K, V = split(q.x, h), split(k.x, kv).repeat_interleave(h // kv, 1), split(v.x, kv).repeat_interleave(h // kv, 1)
        s = (Q @ K.transpose(2, 3) / math.sqrt(d)).masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        P = s.softmax(-1)
        if WRONG == "probabilities":
            P = nearest(P)
        out = Value(nearest(join(P @ V, h)))

        def back():
            dO, O = split(out.grad, h), split(out.x, h)
            dS = P * (dO @ V.transpose(2, 3) - (dO * O).sum(-1, keepdim=True)) / math.sqrt(d)
            shared = lambda x: x.view(B, kv, h // kv, T, d).sum(2)
            q.add(nearest(join(dS @ K, h)))
            k.add(nearest(join(shared(dS.transpose(2, 3) @ Q), kv)))
            v.add(nearest(join(shared(P.transpose(2, 3) @ dO), kv)))
        self.tape.append(back)
        return out

    def table(self, tok):
        out = Value(self.p["embed.weight"][tok])
        self.tape.append(lambda: self.g["embed.weight"].index_add_(0, tok.view(-1), out.grad.view(B * T, -1)))
        return out

    def loss(self, logits, tgt):
        valid = tgt >= 0
        n = int(valid.sum())
        lse = logits.x.logsumexp(-1)
        at = logits.x.gather(-1, tgt.clamp(min=0)[..., None])[..., 0]
        hit = F.one_hot(tgt.clamp(min=0), logits.x.shape[-1])
        d = ((logits.x - lse[..., None]).exp() - hit) / n * valid[..., None]
        self.tape.append(lambda: logits.add(unless("dlogits", d)))
        return float(((lse - at) * valid).sum() / n)

    def backward(self):
        for back in reversed(self.tape):
            back()


def gpt2(r, tok, tgt):
    norm = lambda x, n: r.each(lambda a, w, b: F.layer_norm(a, a.shape[-1:], w, b, 1e-5), [x],
                               (n + ".weight", n + ".bias"), inside=True)
    e, pos = r.table(tok), Value(r.p["pos.weight"][None].expand(B, T, -1))
    x = r.plus(e, pos)
    r.tape.insert(1, lambda: r.grad("pos.weight", pos.grad.sum(0)))
    for l in range(r.c["layers"]):
        n = "layers.%d." % l
        a = r.attention(*r.linears(norm(x, n + "attn_norm"), [n + "attn." + y for y in "qkv"], True))
        x = r.plus(x, r.linears(a, [n + "attn.o"], True)[0])
        u = r.linears(norm(x, n + "mlp_norm"), [n + "mlp.up"], True)[0]
        u = r.each(lambda z: F.gelu(z, approximate="tanh"), [u])
        x = r.plus(x, r.linears(u, [n + "mlp.down"], True)[0])
    h = norm(x, "final_norm")
    logits = Value(nearest(h.x @ r.p["embed.weight"].T))

    def back():
        r.grad("embed.weight", torch.einsum("bto,bti->oi", logits.grad, h.x))
        h.add_inside(logits.grad @ r.p["embed.weight"])
    r.tape.append(back)
    return r.loss(logits, tgt)


def llama(r, tok, tgt):
    norm = lambda x, n: r.each(lambda a, w: a * (a.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * w, [x],
                               (n + ".weight",), inside=True)
    c = r.c
    x = r.table(tok)
    for l in range(c["layers"]):
        n = "layers.%d." % l
        q, k, v = r.linears(norm(x, n + "attn_norm"), [n + "attn." + y for y in "qkv"], False)
        q = r.each(lambda z: rotate(z, c["heads"], c["dim"]), [q])
        k = r.each(lambda z: rotate(z, c["kv"], c["dim"]), [k])
        x = r.plus(x, r.linears(r.attention(q, k, v), [n + "attn.o"], False)[0])
        g, u = r.linears(norm(x, n + "mlp_norm"), [n + "mlp.gate", n + "mlp.up"], False)
        x = r.plus(x, r.linears(r.each(lambda a, b: F.silu(a) * b, [g, u]), [n + "mlp.down"], False)[0])
    return r.loss(r.linears(norm(x, "final_norm"), ["head"], False)[0], tgt)


def train(model, body, steps):
    """First gradients, losses, norms, masters."""
    master = {n: w.detach().clone() for n, w in model.p.items()}
    m, v = ({n: torch.zeros_like(w) for n, w in master.items()} for _ in range(2))
    first, losses, norms = None, [], []
    for step in range(1, steps + 1):
        r = Run(model.c, {n: w if WRONG == "weights" else nearest(w) for n, w in master.items()})
        losses.append(body(r, *batch(step, model.c["vocab"])))
        r.backward()
        first = first or {n: g.clone() for n, g in r.g.items()}
        norms.append(math.sqrt(sum(float(g.pow(2).sum()) for g in r.g.values())))
        scale = min(1, 1 / (norms[-1] + 1e-6))
        for n, w in master.items():
            g = r.g[n] * scale
            m[n] = 0.9 * m[n] + 0.1 * g
            v[n] = 0.95 * v[n] + 0.05 * g * g
            u = m[n] / (1 - 0.9 ** step) / ((v[n] / (1 - 0.95 ** step)).sqrt() + 1e-8)
            w = w - 1e-3 * (u + (0.1 if w.dim() > 1 else 0) * w)
            master[n] = nearest(w) if WRONG == "master" else w.float().double()
    return first, losses, norms, master


def write(name, model, body):
    first, losses, norms, master = train(model, body, STEPS)
    lines, at = [], 0
    with open(os.path.join(HERE, name + ".f64"), "wb") as f:
        for n in sorted(first):
            lines.append("grad %s %d %d" % (n, first[n].numel(), at))
            f.write(first[n].numpy().astype("<f8").tobytes())
            at += first[n].numel()
    for i in range(STEPS):
        lines += ["loss %d %.17g" % (i + 1, losses[i]), "norm %d %.17g" % (i + 1, norms[i])]
    lines += ["final %s %.17g" % (n, master[n].norm().item()) for n in sorted(master)]
    with open(os.path.join(HERE, name + ".txt"), "w") as f:
        f.write("\n".join(lines) + "\n")
    print(name, at, "elements;", losses[0], losses[-1])


def wrong(name, new, body):
    """What test_graph_bf16.c measures, between the right reference and ones that round elsewhere."""
    global WRONG
    WRONG = None
    first, losses, norms, _ = train(new(), body, STEPS)
    for WRONG in ("residual", "bias", "twice", "probabilities", "dlogits", "weight gradient", "weights", "master"):
        f, l, n, _ = train(new(), body, STEPS)
        whole = math.sqrt(sum(float(g.pow(2).sum()) for g in first.values()))
        apart = math.sqrt(sum(float((f[k] - first[k]).pow(2).sum()) for k in first))
        print("%s, %s: gradients %.1e, losses of step 1 %.1e, of 20 steps %.1e" % (
            name, WRONG, apart / whole, abs(l[0] / losses[0] - 1), max(abs(a / b - 1) for a, b in zip(l, losses))))


torch.set_num_threads(1)
if sys.argv[1:] == ["wrong"]:
    wrong("gpt2", lambda: Gpt2(GPT2), gpt2)
    wrong("llama", lambda: Llama(LLAMA), llama)
else:
    write("gpt2_bf16", Gpt2(GPT2), gpt2)
    write("llama_bf16", Llama(LLAMA), llama)
