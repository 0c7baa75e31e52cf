"""Makes adamw.txt: a few AdamW steps by PyTorch in fp64, with clipping, decay groups, a rate factor
and a rate that changes, for tests/unit/test_optim.c.

    python3 tests/golden/optim/adamw.py > tests/golden/optim/adamw.txt        (PyTorch 1.13)

Format, one item a line, numbers as %.17g:
    param NAME CLASS ROWS COLS DECAY LR_SCALE v...     initial values
    step LR NORM CLIP_FACTOR
    grad NAME v...                                     before clipping, one a parameter
    weight NAME v...                                   after the step
"""
import torch

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0
PARAMS = [  # storage order, which is not the order of names
    ("tok.weight", "embedding", 5, 3, DECAY, 1.0),
    ("layers.0.q.weight", "matrix", 4, 3, DECAY, 1.0),
    ("layers.0.q.bias", "bias", 4, 1, 0.0, 1.0),
    ("layers.0.norm.weight", "norm", 3, 1, 0.0, 1.0),
    ("layers.0.mlp.weight", "matrix", 7, 3, 0.02, 0.5),
    ("head.weight", "matrix", 5, 3, DECAY, 1.0),
]


def text(t):
    return " ".join("%.17g" % x for x in t.flatten().tolist())


w = {n: torch.nn.Parameter(torch.randn(r, c) * 0.5) for n, _, r, c, _, _ in PARAMS}
opt = torch.optim.AdamW(
    [{"params": [w[n]], "weight_decay": d, "scale": s} for n, _, _, _, d, s in PARAMS],
    lr=1.0, betas=BETAS, eps=EPS)
for n, k, r, c, d, s in PARAMS:
    print("param", n, k, r, c, "%.17g %.17g" % (d, s), text(w[n].data))
for step in range(1, 9):
    lr = 1e-2 * min(1, step / 3)
    size = 0.05 if step % 4 == 0 else 3.0  # some steps are clipped, some not
    for n in w:
        w[n].grad = torch.randn_like(w[n]) * size
    grads = {n: w[n].grad.clone() for n in w}
    norm = float(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP))
    for g in opt.param_groups:
        g["lr"] = lr * g["scale"]
    opt.step()
    print("step %.17g %.17g %.17g" % (lr, norm, min(1.0, CLIP / (norm + 1e-6))))
    for n in w:
        print("grad", n, text(grads[n]))
    for n in w:
        print("weight", n, text(w[n].data))
