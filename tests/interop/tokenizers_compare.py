"""tokenizers_compare.py - our tokenizers against the `tokenizers` library: ids and decoded bytes, on strings that are nasty.

Usage: python tokenizers_compare.py DRIVER [COUNT] [SEED]   DRIVER: the program of tokenizer_driver.c
Text that is not UTF-8: the library takes Python strings and cannot be given it; ours encodes each stray byte as a character of
its own and gives it back, which is checked here alone.
"""
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import nasty

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "../golden/tokenizer")
DRIVER, COUNT, SEED = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12000, int(sys.argv[3]) if len(sys.argv) > 3 else 2
passed = failed = 0


class Ours:
    def __init__(self, path):
        self.p = subprocess.Popen([DRIVER, "ask", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, data, special):
        self.p.stdin.write(struct.pack("<BI", special, len(data)) + data)
        self.p.stdin.flush()
        n, = struct.unpack("<I", self.p.stdout.read(4))
        ids = list(struct.unpack(f"<{n}i", self.p.stdout.read(4 * n)))
        n, = struct.unpack("<I", self.p.stdout.read(4))
        return ids, self.p.stdout.read(n)

    def end(self):
        self.p.stdin.close()
        return self.p.wait()


def check(ok, what):
    global passed, failed
    if ok:
        passed += 1
        return
    failed += 1
    if failed <= 20:
        print("FAILED", what)


def compare(name, tok, path, strings):
    ours = Ours(path)
    # The library spells added tokens by the alphabet of bytes: "é" decodes to the byte 0xE9. Ours gives the text back.
    odd = {i for i, a in tok.get_added_tokens_decoder().items() if not a.content.isascii()}
    for i, s in enumerate(strings):
        special = i % 3 != 0
        tok.encode_special_tokens = not special
        ids = tok.encode(s, add_special_tokens=False).ids
        mine, back = ours.ask(s.encode(), special)
        check(mine == ids, f"{name}: {s!r:.300}: library {ids[:40]}, ours {mine[:40]}")
        if odd.intersection(ids):
            check("\ufffd" in s or "\ufffd" not in back.decode(errors="replace"), f"{name}: decode of {s!r:.300}: {back!r:.300}")
            continue
        check(back.decode(errors="replace") == tok.decode(ids, skip_special_tokens=False), f"{name}: decode of {s!r:.300}: {back!r:.300}")
    check(ours.end() == 0, f"{name}: the driver's end")


def invalid(name, path, nfc):
    """Bytes that are no UTF-8 come back, between texts that are unchanged by them."""
    r, ours = random.Random(SEED), Ours(path)
    for _ in range(1500):
        parts = [nasty.one(r).encode(), bytes(r.randrange(256) for _ in range(r.randrange(1, 6))), nasty.one(r).encode()[:r.randrange(1, 9)]]
        data = b"".join(parts)
        if not nfc:
            check(ours.ask(data, 0)[1] == data, f"{name}: bytes {data!r} do not come back")
        else:  # NFC of each stretch of UTF-8: what a strict decoder keeps
            want, rest = b"", data
            while rest:
                try:
                    want += unicodedata.normalize("NFC", rest.decode()).encode()
                    rest = b""
                except UnicodeDecodeError as e:
                    want += unicodedata.normalize("NFC", rest[:e.start].decode()).encode() + rest[e.start:e.start + 1]
                    rest = rest[e.start + 1:]
            got = ours.ask(data, 0)[1]
            check(got == want or unicodedata.unidata_version > "14", f"{name}: bytes {data!r}: {got!r}, not {want!r}")
    check(ours.end() == 0, f"{name}: the driver's end")


def regexes(strings, folder):
    """Pre-tokenizers that no scanner of ours knows."""
    o200k = "|".join([
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
    old = [s for s in strings if all(unicodedata.category(c) != "Cn" for c in s)]  # assigned in this Python's edition of Unicode
    P = pre_tokenizers
    bl = P.ByteLevel(add_prefix_space=False, use_regex=False)
    cases = {
        "o200k": P.Sequence([P.Split(Regex(o200k), "isolated"), bl]),
        "deepseek": P.Sequence([P.Split(Regex(r"\p{N}{1,3}"), "isolated"), P.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                P.Split(Regex(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
                                              r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"), bl]),
        "digits": P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False, use_regex=True)]),
        "runs of digits": P.Sequence([P.Digits(individual_digits=False), P.ByteLevel(add_prefix_space=False, use_regex=True)]),
        "prefix": P.ByteLevel(add_prefix_space=True, use_regex=True),
        "lines": P.Sequence([P.Split(Regex(r"^.*$|\n"), "isolated"), bl]),
        "only words": bl,
    }
    for name, pre in cases.items():
        t = Tokenizer.from_file(os.path.join(GOLDEN, "gpt2.json"))
        t.pre_tokenizer = pre
        path = os.path.join(folder, "t.json")
        t.save(path)
        compare(name, Tokenizer.from_file(path), path, old)


def training(folder):
    """Our trainer against the library's: the same vocabulary and merges."""
    texts = [open(os.path.join(HERE, "../../recipes/text/moon.txt"), encoding="utf-8").read()] + list(nasty.corpus())
    paths = []
    for i, t in enumerate(texts):
        paths.append(os.path.join(folder, f"{i}.txt"))
        open(paths[-1], "wb").write(t.encode())
    P = pre_tokenizers
    for name in ("gpt2", "llama3", "qwen2"):
        made = Tokenizer.from_file(os.path.join(GOLDEN, name + ".json"))
        for vocab in (300, 700, 2500):
            lib = Tokenizer(models.BPE())
            lib.pre_tokenizer = made.pre_tokenizer
            if made.normalizer:
                lib.normalizer = made.normalizer
            lib.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, special_tokens=["<|endoftext|>", "<pad>"],
                                                               show_progress=False, initial_alphabet=P.ByteLevel.alphabet()))
            out = os.path.join(folder, "ours.json")
            subprocess.run([DRIVER, "train", name, str(vocab), out, "<|endoftext|>,<pad>"] + paths, check=True, stdout=subprocess.DEVNULL)
            ours = Tokenizer.from_file(out)
            check(ours.get_vocab() == lib.get_vocab(), f"training {name} {vocab}: vocabularies of {ours.get_vocab_size()}, {lib.get_vocab_size()} differ")
            for s in nasty.strings(600, SEED):
                check(ours.encode(s).ids == lib.encode(s).ids or name == "llama3", f"training {name} {vocab}: {s!r:.100}")


strings = nasty.strings(COUNT, SEED)
for which in ("gpt2", "llama3", "qwen2"):
    file = os.path.join(GOLDEN, which + ".json")
    compare(which, Tokenizer.from_file(file), file, strings)
    invalid(which, file, which == "qwen2")
with tempfile.TemporaryDirectory() as tmp:
    regexes(strings[:3000], tmp)
    training(tmp)
print(f"{len(strings)} strings a tokenizer")
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
