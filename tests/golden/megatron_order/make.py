#!/usr/bin/python3
"""make.py - what Megatron's GPT data sets would draw, from its published rules and NumPy's own generator.

    /usr/bin/python3 tests/golden/megatron_order/make.py > tests/golden/megatron_order/order.txt

Only indices are made: no engine of ours, no Megatron. The rules are followed step by step, as a reader of them would do it by
hand: epochs are counted by adding, the sample index is found by walking the documents, NumPy's RandomState shuffles.
One configuration (fields between spaces; the C test reads them with scanf):

    config NAME seed SEED seq S samples N sources K split A B C     split 0 0 0: none
    source WEIGHT SEQUENCES length...                               K times: the input
    weight W                                                        K times: in the blend, as C99 hexadecimal
    index WANTED EPOCHS SEPARATE                                    K times: the expected index, built for WANTED samples
    documents COUNT id...
    rows COUNT (place offset)...                                    one more row than samples
    shuffle COUNT row...
    draws COUNT (source sample)...                                  the first N draws; sample: the how-maniest of its source
    split TRAIN_END VALID_END                                       K times, of sequences
"""
import math
import sys
import numpy as np


def lengths(seed, n, top):
    r = np.random.RandomState(seed)
    v = r.randint(0, top, size=n)
    v[r.randint(0, n, size=max(1, n // 20))] = 0  # empty documents
    return [int(x) for x in v]


def normalise(w):
    w = np.array(w, dtype=np.float64)
    return (w / np.sum(w)).tolist()


def split_ends(split, n):
    if not any(split):
        return n, n
    f = normalise(split)
    return int(round(f[0] * float(n))), int(round((0 + f[0] + f[1]) * float(n)))


def document_index(docs, epochs, rng, separate):
    if not separate:
        idx = np.mgrid[0:epochs, 0:len(docs)][1]
        idx[:] = docs
        idx = idx.reshape(-1).astype(np.int32)
        rng.shuffle(idx)
        return idx
    return np.concatenate([document_index(docs, epochs - 1, rng, False), document_index(docs, 1, rng, False)])


def sample_index(sizes, docs, seq, total):
    rows, place, offset = [(0, 0)], 0, 0
    for _ in range((total - 1) // seq):
        left = seq + 1
        while left:
            have = sizes[docs[place]] - offset
            left -= have
            if left <= 0:
                offset += left + have - 1  # the next sample starts with the last token of this one
                left = 0
            else:
                place, offset = place + 1, 0
        rows.append((place, offset))
    return rows


def shuffle_index(first, all_, rng):
    a = np.arange(first, dtype=np.uint32)
    rng.shuffle(a)
    if first == all_:
        return a
    b = np.arange(first, all_, dtype=np.uint32)
    rng.shuffle(b)
    return np.concatenate([a, b])


def build(sizes, docs, seq, wanted, seed):
    per_epoch = sum(sizes[d] for d in docs)
    epochs, have = 1, per_epoch
    while have < wanted * seq + 1:
        epochs, have = epochs + 1, have + per_epoch
    separate, first = False, None
    if epochs > 1:
        first = ((epochs - 1) * per_epoch - 1) // seq
        separate = wanted - first < int(0.80 * ((per_epoch - 1) // seq))
    rng = np.random.RandomState(seed)
    d = document_index(docs, epochs, rng, separate)
    rows = sample_index(sizes, d, seq, epochs * per_epoch)
    n = len(rows) - 1
    return epochs, separate, d, rows, shuffle_index(first if separate else n, n, rng)


def blend(weights, n):
    taken, out = [0] * len(weights), []
    for i in range(n):
        x = max(float(i), 1.0)
        errors = [w * x - float(t) for w, t in zip(weights, taken)]
        s = errors.index(max(errors))
        out.append((s, taken[s]))
        taken[s] += 1
    return out


def config(name, seed, seq, samples, sources, split=(0, 0, 0)):
    print("config", name, "seed", seed, "seq", seq, "samples", samples, "sources", len(sources), "split", *split)
    for w, sizes in sources:
        print("source", repr(float(w)), len(sizes), *sizes)
    w = normalise([s[0] for s in sources])
    for x in normalise(w):
        print("weight", x.hex())
    ends = []
    for (_, sizes), share in zip(sources, w):
        end = split_ends(split, len(sizes))
        ends.append(end)
        wanted = samples if len(sources) == 1 else int(math.ceil(math.ceil(samples * share) * (1 + 0.005)))
        epochs, separate, d, rows, shuffled = build(sizes, np.arange(end[0], dtype=np.int32), seq, wanted, seed)
        print("index", wanted, epochs, int(separate))
        print("documents", len(d), *d)
        print("rows", len(rows), *[x for r in rows for x in r])
        print("shuffle", len(shuffled), *shuffled)
        print(name, "epochs", epochs, "separate", separate, "samples", len(shuffled), "of", wanted, file=sys.stderr)
    draws = blend(normalise(w), samples)
    print("draws", len(draws), *[x for d in draws for x in d])
    for e in ends:
        print("split", *e)


a, b, c = lengths(1, 150, 60), lengths(2, 90, 40), lengths(3, 61, 90)
config("one_epoch", 1234, 16, 150, [(1, a)])
config("several_epochs", 42, 16, 1070, [(1, a)])
config("separate_last", 1234, 16, 500, [(1, a)])
per_epoch = (sum(a) - 1) // 16
edge = per_epoch + int(0.80 * per_epoch)  # the second epoch gives just the share that keeps it with the first
config("last_epoch_just_enough", 3, 16, edge, [(1, a)])
config("last_epoch_just_too_few", 3, 16, edge - 1, [(1, a)])
config("blend_of_3", 7, 16, 900, [(0.2, b), (0.7, a), (0.1, c)])
config("split", 1234, 8, 500, [(1, lengths(4, 451, 12))], (969, 30, 1))
config("split_and_blend", 4294967295, 8, 300, [(3, lengths(5, 133, 20)), (1, lengths(6, 77, 30))], (90, 5, 5))
nine = [0.3, 0.17, 0.11, 0.1, 0.09, 0.07, 0.0709, 0.05, 0.013]
assert normalise(nine) != [x / sum(nine) for x in nine]  # the order of NumPy's sums shows
config("blend_of_9", 0, 4, 400, [(x, lengths(20 + i, 12, 30)) for i, x in enumerate(nine)])
