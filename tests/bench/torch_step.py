#!/usr/bin/env python3
"""torch_step.py - times GPT-2 training steps of PyTorch on a CPU: the peer of tests/bench/cpu_train.

usage: torch_step.py LAYERS WIDTH HEADS VOCAB B T STEPS THREADS OPTIMIZER ATTENTION TEXT
  OPTIMIZER  foreach | fused | loop      how AdamW walks the parameters
  ATTENTION  sdpa | explicit             torch's own fused attention, or T x T in memory
  gemm M:N:K:op ... in place of all that: GFLOP/s of torch.matmul for those shapes (bench_gemm's)

The model is that of mascon's gpt2 preset: pre-norm, learned positions, tanh gelu, tied head, fp32. Prints
a line a step: seconds, share of the CPUs that other processes used meanwhile, loss."""
import math
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads, explicit):
        super().__init__()
        self.heads, self.explicit = heads, explicit
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        if self.explicit:
            hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
            s = (q @ k.transpose(2, 3)) / math.sqrt(c // self.heads)
            y = F.softmax(s.masked_fill(hidden, float("-inf")), -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, layers, width, heads, vocab, t, explicit):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(t, width)
        self.blocks = nn.ModuleList(Block(width, heads, explicit) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def busy():
    """Clock ticks that all processes used so far, and this one alone."""
    f = [int(v) for v in open("/proc/stat").readline().split()[1:9]]
    return (sum(f) - f[3] - f[4]) / os.sysconf("SC_CLK_TCK") - time.process_time()


def gemm(shapes, threads):
    torch.set_num_threads(threads)
    for shape in shapes:
        m, n, k, op = shape.split(":")
        m, n, k = int(m), int(n), int(k)
        sets = (96 << 20) // (4 * (m * n + n * k + m * k)) + 1
        x, w, y = ([torch.rand(*s) for _ in range(sets)] for s in ((m, k), (n, k), (m, n)))
        flop, rates, at = 2.0 * m * n * k, [], 0
        for timing in range(6):
            calls, t0 = 0, time.perf_counter()
            while time.perf_counter() - t0 < 0.01:
                a, b, c = x[at], w[at], y[at]
                at = (at + 1) % sets
                if op == "nt":
                    torch.mm(a, b.t(), out=c)
                elif op == "nn":
                    torch.mm(c, b, out=a)
                else:
                    torch.mm(c.t(), a, out=b)
                calls += 1
            if timing:
                rates.append(flop * calls / (time.perf_counter() - t0) * 1e-9)
        print(f"{shape} {sorted(rates)[2]:.1f}", flush=True)


def main():
    if sys.argv[1] == "gemm":
        return gemm(sys.argv[3:], int(sys.argv[2]))
    layers, width, heads, vocab, b, t, steps, threads = (int(v) for v in sys.argv[1:9])
    optimizer, attention, text = sys.argv[9:12]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = Model(layers, width, heads, vocab, t, attention == "explicit")
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    how = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}[optimizer]
    adamw = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), **how)
    data = torch.tensor(list(open(text, "rb").read()), dtype=torch.int64)
    for step in range(steps):
        at = step * b * t % (len(data) - b * t - 1)
        chunk = data[at:at + b * t + 1]
        t0, c0 = time.perf_counter(), busy()
        loss = model(chunk[:-1].view(b, t), chunk[1:].view(b, t))
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
        value = loss.item()
        seconds = time.perf_counter() - t0
        print(f"{seconds:.6f} {(busy() - c0) / seconds / os.cpu_count():.4f} {value:.4f}", flush=True)


main()
