"""nasty.py - strings that tokenizers stumble over, always the same ones for a seed; and a small corpus to train on."""
import random

WORDS = ["the", "The", "moon", "tide's", "don't", "DON'T", "we'LL", "I'M", "they'Ve", "a", "naïve", "Straße", "été", "e\u0301te\u0301",
         "Москва", "луна", "月", "月の海", "달", "القمر", "चाँद", "ดวงจันทร์", "ירח", "Σελήνη", "ǆ", "ﬁne", "İstanbul", "ſun", "it'ſ", "it'ſh"]
PIECES = [
    "'", "''", "'s", "'S", "'ſ", "’s", "'re", "'RE", "'rE", "'ve", "'ll", "'lL", "'d", "'t", "'m", "'x", " 's", "s's",
    " ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\r\n\r\n", " \n", "\n ", " \r\n ", "\x0b", "\x0c", "\x85", "\xa0", "\u1680",
    "\u2000", "\u2003 ", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\x00", "\x01",
    "\x1f", "\x7f", "\x80", "\xad",
    "0", "1", "12", "123", "1234", "1234567", "3.14", "1,000,000", "½", "²", "Ⅷ", "٣", "४५", "௧", "〇", "一二三", "①", "𝟘𝟙", "𒐀", "0x1F", "1e-5",
    "👩\u200d👩\u200d👧", "👍🏽", "🇫🇷", "🏴\U000e0067\U000e0062\U000e007f", "❤️", "☺", "🫠", "🚀🚀", "👨🏿\u200d🚀", "#️⃣",
    "e\u0301", "é", "a\u0323\u0307", "a\u0307\u0323", "q\u0307\u0323", "\u0301", "\u0301\u0302\u0316", "o\u031b\u0323", "ợ", "Å", "\u212b", "\u2126",
    "\u1e9b\u0323", "ñ", "n\u0303", "각", "\u1100\u1161\u11a8", "\u1100\u1161", "가\u11a8", "각\u11a8", "\u11a8", "\u0958", "\u0915\u093c", "\u2adc",
    "\u0344", "\ufb1d", "\U0001d15e", "\U0001d157\U0001d165", "\U00011099\U000110ba", "\u0b47\u0b56", "\u0fb2\u0f71\u0f80", "豈", "\U0002f800", "\u0340", "\u0374",
    "\u037e", "\u0387", "\u1fef", "\u2000", "\u2329", "\u09c7\u09be", "\u1026", "\u1025\u102e", "\u0cca\u0cd5", "\U0001134b", "\u1b06",
    "\u0378", "\ue000", "\uffff", "\ufffe", "\U0010ffff", "\U00031350", "\U00011f02", "\U0001e4d0", "\u1c89", "\U000105c0", "\U00016d70", "\U0002ebf0",
    ".", ",", "!", "?!", "...", "—", "-", "--", "==", "=>", "{}", "()", "[[", "\\n", "/*", "*/", "//", "#", "##", "\"", "`", "```", "$", "€", "£", "%", "^",
    "_", "__init__", "&", "&amp;", "@", "~", "|", "||", "<", ">", "<|", "|>", "<<", "•", "→", "∀", "≠", "∑", "│", "█", "\ufffd", "©", "™", "¼½¾",
    "<|endoftext|>", "<|endoftext|", "|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "<|eot_id|>", "<|eot|>", "<|eot|><|eot_id|>", "<|im_start|>",
    "<|im_end|>", "<tool_call>", "<think>", "e\u0301te", "éte", "<mask>", " <mask> ", "<mask> <mask>", "\n<mask>\t", "<|ENDOFTEXT|>", "<<|endoftext|>>",
    "Ġ", "Ċ", "ĠĠ", "Ń", "\u0122", "def f(x):\n    return x\n", "for(;;){\r\n\t}\r\n", "http://a.b/c?d=e&f=%20", "C++", "x\u20d7", "a\u0300\u0300",
]
RANGES = [(0x20, 0x7f), (0x80, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0x900), (0x900, 0xe00), (0xe00, 0x1200), (0x1200, 0x1e00),
          (0x1e00, 0x2000), (0x2000, 0x2c00), (0x2c00, 0x3100), (0x3100, 0xa000), (0xa000, 0xac00), (0xac00, 0xd7b0), (0xf900, 0x10000),
          (0x10000, 0x11000), (0x11000, 0x12000), (0x12000, 0x17000), (0x1d000, 0x1f000), (0x1f000, 0x1fb00), (0x20000, 0x32000),
          (0xe0000, 0xe0200)]


def char(r):
    while True:
        a, b = r.choice(RANGES)
        c = r.randrange(a, b)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def one(r):
    kind = r.randrange(10)
    if kind == 0:  # anything
        return "".join(char(r) for _ in range(r.randrange(1, 12)))
    if kind == 1:  # marks on marks
        return "".join(r.choice("aeoqñ각\u1100") + "".join(chr(r.randrange(0x300, 0x370)) for _ in range(r.randrange(5))) for _ in range(r.randrange(1, 5)))
    if kind == 2:  # long runs
        return r.choice([" ", "0", "9", "a", "ab", "\n", "\r\n", "\t ", "=", "é", "月", "👍", "'s", " a", "\u0301"]) * r.randrange(1, 40) + r.choice(["", "x", " x", "1"])
    if kind == 3:
        return " ".join(r.choice(WORDS) for _ in range(r.randrange(1, 10)))
    if kind == 4:  # blanks of all kinds around words
        return "".join(r.choice(["x", "7", "!", "é", " ", " ", "\n", "\r", "\t", "\u2003", "\xa0", "\u3000", "\x85"]) for _ in range(r.randrange(1, 14)))
    return "".join(r.choice(PIECES if r.random() < 0.8 else WORDS) for _ in range(r.randrange(1, 7)))


def strings(n, seed):
    """Every piece and every word alone, the empty string, some long ones, then random mixtures: n in all at least."""
    r = random.Random(seed)
    out = [""] + PIECES + WORDS + [" " + w for w in WORDS] + [w + "\n" for w in PIECES[:60]]
    out += ["a" * 3000, " " * 2000 + "x", "1" * 1001, "\n" * 500, "ab" * 700, "\u0301" * 300, "e" + "\u0323\u0307" * 200, "the " * 300, "👍" * 200]
    while len(out) < n:
        out.append(one(r))
    return out


def corpus():
    """Texts to train on, so that merges cross bytes of all lengths."""
    r = random.Random(7)
    for _ in range(400):
        yield " ".join(r.choice(WORDS) + r.choice(["", "", ",", ".", "!", "\n", "'s"]) for _ in range(30))
    for _ in range(300):
        yield "".join(r.choice(PIECES) for _ in range(20))
    for k in (2, 4, 8, 16):
        yield ("x" + " " * k + "\n" * (k // 2)) * 20 + ("=" * k + " ") * 20 + ("12" * k + " ") * 10
    yield "def f(x):\n    if x > 0:\n        return x\n    return -x\n\n" * 20
