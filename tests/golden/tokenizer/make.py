"""make.py - the three small tokenizers of the tests, and what the `tokenizers` library makes of nasty strings.

Trains byte-level BPEs with the published settings of GPT-2, Llama 3 and Qwen 2 on texts of the tree, and writes NAME.json and
expected.txt (TOKENIZER, special, string as hex, ids, decoded bytes as hex or ?: one line a
string). Needs: tokenizers 0.23.
Usage: python make.py [tokenizers] [expected]     from the repository root
"""
import os
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../interop"))
import nasty

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3, QWEN2 = CONTRACTIONS + r"\p{N}{1,3}" + REST, CONTRACTIONS + r"\p{N}" + REST


def texts():
    yield open(os.path.join(ROOT, "recipes/text/moon.txt"), encoding="utf-8").read()
    yield from nasty.corpus()


def byte_level(regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def split(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), byte_level(False)])


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = byte_level(True)
    return t, 1500, ["<|endoftext|>"], []


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = split(LLAMA3)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    added = [AddedToken(s, special=True) for s in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eot|>")]
    return t, 2000, [], added


def qwen2():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = split(QWEN2)
    added = [AddedToken(s, special=True) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    added += [AddedToken("<tool_call>", special=False, normalized=False), AddedToken("<think>", special=False, normalized=True),
              AddedToken("e\u0301te", special=False, normalized=True),
              AddedToken("<mask>", special=True, lstrip=True, rstrip=True)]
    return t, 1800, [], added


def make(name, maker):
    t, vocab, special, added = maker()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, special_tokens=special, show_progress=False,
                                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    for a in added:  # in order: their ids come after the model's
        t.add_special_tokens([a]) if a.special else t.add_tokens([a])
    path = os.path.join(HERE, name + ".json")
    t.save(path, pretty=False)
    print(f"{path}: {t.get_vocab_size()} ids, {os.path.getsize(path)} bytes")


def expect():
    strings = nasty.strings(700, seed=1)
    with open(os.path.join(HERE, "expected.txt"), "w") as out:
        for name in ("gpt2", "llama3", "qwen2"):
            t = Tokenizer.from_file(os.path.join(HERE, name + ".json"))
            odd = {i for i, a in t.get_added_tokens_decoder().items() if not a.content.isascii()}  # the library spells them wrongly
            for i, s in enumerate(strings):
                t.encode_special_tokens = special = i % 3 == 0  # the library's True: special tokens are text
                ids = t.encode(s, add_special_tokens=False).ids
                back = t.decode(ids, skip_special_tokens=False)
                out.write(f"{name} {int(not special)} {s.encode().hex() or '-'} {','.join(map(str, ids)) or '-'} "
                          f"{'?' if odd.intersection(ids) else back.encode().hex() or '-'}\n")
    print(f"{3 * len(strings)} expectations")


if __name__ == "__main__":
    what = sys.argv[1:] or ["tokenizers", "expected"]
    if "tokenizers" in what:
        for name, maker in (("gpt2", gpt2), ("llama3", llama3), ("qwen2", qwen2)):
            make(name, maker)
    if "expected" in what:
        expect()
