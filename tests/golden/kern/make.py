#!/usr/bin/env python3
"""make.py - PyTorch's answers for the kernels: writes refs.bin beside itself.

Made with torch 1.13, autograd in float64 on inputs that float32 holds exactly, results rounded once.
refs.bin, little endian: the 8 bytes "mckern1\n", then records
    offset 0   char[24]   name, NUL padded
    offset 24  int64      count
    offset 32  float32    values[count]
"""
import os
import struct

import torch
import torch.nn.functional as F

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)
records = []


def put(name, x):
    x = x.detach().to(torch.float32).contiguous().flatten()
    assert len(name) < 24
    records.append(struct.pack("<24sq", name.encode(), x.numel()) + x.numpy().tobytes())


def leaf(name, *shape, scale=1.0):
    x = (torch.randn(*shape) * scale).to(torch.float32).to(torch.float64).requires_grad_()
    put(name, x)
    return x


def grads(prefix, y, *named):
    """y and, for a random dy, the gradients of the named leaves."""
    put(prefix + ".out", y)
    dy = leaf(prefix + ".dy", *y.shape)
    for (name, x), g in zip(named, torch.autograd.grad((y * dy.detach()).sum(), [x for _, x in named])):
        put(prefix + "." + name, g)


# linear: x [29, 31], w [37, 31], b [37]
x, w, b = leaf("linear.x", 29, 31), leaf("linear.w", 37, 31), leaf("linear.b", 37)
grads("linear", F.linear(x, w, b), ("dx", x), ("dw", w), ("db", b))

# norms: x [13, 67]
x, w, b = leaf("ln.x", 13, 67, scale=2.0), leaf("ln.w", 67), leaf("ln.b", 67)
grads("ln", F.layer_norm(x, (67,), w, b, eps=1e-5), ("dx", x), ("dw", w), ("db", b))
x, w = leaf("rms.x", 13, 67, scale=2.0), leaf("rms.w", 67)
grads("rms", x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w, ("dx", x), ("dw", w))

# activations: x [9, 53]
for name, f in [("gelu", lambda v: F.gelu(v, approximate="tanh")), ("gelu_erf", F.gelu),
                ("silu", F.silu), ("relu", F.relu)]:
    x = leaf(name + ".x", 9, 53, scale=2.0)
    grads(name, f(x), ("dx", x))
g, u = leaf("swiglu.g", 9, 53, scale=2.0), leaf("swiglu.u", 9, 53)
grads("swiglu", F.silu(g) * u, ("dg", g), ("du", u))

# rope, "half" layout: x [2 sequences, 11 positions, 3 heads, 16], tables [11, 8]
x = leaf("rope.x", 2, 11, 3, 16)
angle = torch.outer(torch.arange(11.0), 10000 ** (-torch.arange(0, 16, 2.0) / 16))
put("rope.cos", angle.cos())
put("rope.sin", angle.sin())
c, s = (torch.cat([f, f], -1)[None, :, None, :] for f in (angle.cos(), angle.sin()))
grads("rope", x * c + torch.cat([-x[..., 8:], x[..., :8]], -1) * s, ("dx", x))


def attention(prefix, batch, t, heads, kv, d, causal):
    q = leaf(prefix + ".q", batch, t, heads, d)
    k, v = leaf(prefix + ".k", batch, t, kv, d), leaf(prefix + ".v", batch, t, kv, d)
    kk, vv = (x.repeat_interleave(heads // kv, 2).transpose(1, 2) for x in (k, v))
    score = q.transpose(1, 2) @ kk.transpose(-1, -2) / d ** 0.5
    if causal:
        score = score.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
    grads(prefix, (score.softmax(-1) @ vv).transpose(1, 2), ("dq", q), ("dk", k), ("dv", v))


attention("mha", 2, 33, 2, 2, 16, True)
attention("gqa", 1, 70, 4, 2, 8, True)
attention("mqa", 1, 17, 3, 1, 5, False)

# cross entropy: logits [19, 257], a third masked; loss a row, gradient of the mean
x = leaf("xent.x", 19, 257, scale=3.0)
target = torch.randint(0, 257, (19,))
target[::3] = -100
put("xent.target", target)
put("xent.loss", F.cross_entropy(x, target, ignore_index=-100, reduction="none"))
put("xent.dx", torch.autograd.grad(F.cross_entropy(x, target, ignore_index=-100), x)[0])

# embedding: w [23, 9], 31 ids
w, ids = leaf("embed.w", 23, 9), torch.randint(0, 23, (31,))
put("embed.ids", ids)
grads("embed", F.embedding(ids, w), ("dw", w))

# AdamW: 101 weights, 6 steps
w = leaf("adamw.w", 101)
p = torch.nn.Parameter(w.detach().clone())
opt = torch.optim.AdamW([p], lr=3e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
for step in range(6):
    p.grad = leaf("adamw.g%d" % step, 101).detach()
    opt.step()
put("adamw.out", p)

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "refs.bin"), "wb") as f:
    f.write(b"mckern1\n" + b"".join(records))
