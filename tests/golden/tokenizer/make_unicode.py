"""make_unicode.py - writes core/data/unicode_tables.c: the character data that tokenizers stand on.

What is a letter, a number or a blank, and how NFC composes, changes with the edition of Unicode. Token ids must not: so the
tables are not the system's, but exactly those that the `tokenizers` library (0.23) answers with, asked here one character at a
time. Needs: tokenizers. Usage: python make_unicode.py > core/data/unicode_tables.c
"""
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
NFC, NFD = normalizers.NFC(), normalizers.NFD()


def chars_of(regex):
    split = pre_tokenizers.Split(Regex(regex), "removed")
    return [c for c in CPS if not split.pre_tokenize_str(chr(c))]


def ranges(cps):
    out = []
    for c in cps:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def nfd(s):
    return NFD.normalize_str(s)


def combining_class(c):
    """By how the library orders c against marks of known class."""
    s, low, high = chr(c), "\u0334", "\u0345"  # classes 1 and 240
    if nfd(s + low) != low + s and nfd(high + s) != s + high:
        # 0, 1 or 240: 1 moves before 202, and 240 lets 232 pass
        if nfd("\u0327" + s) == s + "\u0327":
            return 1
        return 240 if nfd(s + "\u0315") == "\u0315" + s else 0
    if s in REPS.values():
        return unicodedata.combining(s)
    below = {k for k in REPS if nfd(s + REPS[k]) == REPS[k] + s}
    above = {k for k in REPS if nfd(REPS[k] + s) == s + REPS[k]}
    equal = [k for k in REPS if k not in below and k not in above]
    assert len(equal) == 1, (hex(c), equal)
    return equal[0]


REPS = {1: "\u0334"}
for c in CPS:
    if nfd(chr(c) + "\u0334") == "\u0334" + chr(c) and nfd(chr(c)) == chr(c):  # above class 1, says the library
        REPS.setdefault(unicodedata.combining(chr(c)), chr(c))

COMBINING = {}
for c in CPS:
    if 0xAC00 <= c <= 0xD7A3 or len(nfd(chr(c))) != 1 or nfd(chr(c)) != chr(c):
        continue
    k = combining_class(c)
    if k:
        COMBINING[c] = k
        assert unicodedata.combining(chr(c)) in (k, 0), hex(c)

DECOMP = []
for c in CPS:
    if 0xAC00 <= c <= 0xD7A3 or nfd(chr(c)) == chr(c):
        continue
    parts = [int(x, 16) for x in unicodedata.decomposition(chr(c)).split()]
    assert 1 <= len(parts) <= 2 and nfd("".join(map(chr, parts))) == nfd(chr(c)), hex(c)
    composes = len(parts) == 2 and NFC.normalize_str("".join(map(chr, parts))) == chr(c)
    DECOMP.append((c, parts[0], parts[1] if len(parts) == 2 else 0, composes))


def table(kind, name, rows, per_line):
    print(f"const struct {kind} {name}[] = {{")
    for i in range(0, len(rows), per_line):
        print("    " + " ".join(r + "," for r in rows[i:i + per_line]))
    print("};")
    print(f"const int {name}_n = sizeof {name} / sizeof *{name};")


print("""/* unicode_tables.c - letters, numbers, blanks, combining classes and canonical decompositions.
 * Floor 3 (data). Written by tests/golden/tokenizer/make_unicode.py; not by hand.
 * rule zero: a table; its length is that of Unicode.
 *
 * I1  Every table ascends by its first column (then its second).
 * I2  The tables are data of the tokenizers, not of the system: they say what version 0.23 of the
 *     `tokenizers` library says (letters and numbers of Unicode 16, NFC of an
 *     older edition), so that a text has the same ids on every machine.
 * Hangul syllables are computed (unicode.c) and not listed. */
#include "unicode.h"

/* clang-format off */""")
letters, numbers, blanks = chars_of(r"\p{L}"), chars_of(r"\p{N}"), chars_of(r"\s")
for name, cps in (("mc_unicode_letters", letters), ("mc_unicode_numbers", numbers), ("mc_unicode_blanks", blanks)):
    table("mc_unicode_range", name, [f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges(cps)], 4)
    print()
rows = []
for c in sorted(COMBINING):
    if rows and rows[-1][1] == c - 1 and rows[-1][2] == COMBINING[c]:
        rows[-1][1] = c
    else:
        rows.append([c, c, COMBINING[c]])
print("/* first, last, class */")
table("mc_unicode_combining", "mc_unicode_marks", [f"{{0x{a:x}, 0x{b:x}, {k}}}" for a, b, k in rows], 3)
print()
print("/* character, its two parts (or one and 0), 1 when NFC puts them together again */")
table("mc_unicode_decomposition", "mc_unicode_decomps",
      [f"{{0x{c:x}, 0x{a:x}, 0x{b:x}, {int(k)}}}" for c, a, b, k in DECOMP], 3)
print()
print("/* two parts, which ascend, and what NFC makes of them */")
table("mc_unicode_composition", "mc_unicode_comps",
      [f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for a, b, c in sorted((a, b, c) for c, a, b, k in DECOMP if k)], 3)
print("/* clang-format on */")
sys.stderr.write(f"{len(letters)} letters, {len(numbers)} numbers, {len(blanks)} blanks, {len(COMBINING)} marks, "
                 f"{len(DECOMP)} decompositions\n")
