#!/usr/bin/env bash
# tokenizer.sh BUILD/tests [MEGABYTES] - encoding speed of one core, ours and the `tokenizers` library's, alternated in one run on
# one text (tests/interop/tokenizers.sh makes build/venv first), processor time, best of 3 each. Prints MB/s and the ratio.
# Ours encodes the whole text in one call; the library is given it whole and, apart, as a batch of paragraphs: the better counts.
set -eu
cd "$(dirname "$0")/../.."
driver=$1/tokenizer_driver mb=${2:-1}
[ -x build/venv/bin/python ] || { echo "no build/venv: run tests/interop/tokenizers.sh $1 first"; exit 3; }
PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 exec build/venv/bin/python - "$driver" "$mb" <<'PY'
import glob, os, subprocess, sys, tempfile, time
from tokenizers import Tokenizer
driver, size = sys.argv[1], int(float(sys.argv[2]) * 1e6)
# Prose and code of the tree and of the system's documentation: real words, much variety.
text = ""
for pattern in ("recipes/text/*.txt", "docs/*.md", "core/*/*.c", "lua/**/*.lua", "/usr/share/perl/5*/**/*.pod", "/usr/lib/python3*/*.py"):
    for path in sorted(glob.glob(pattern, recursive=True)):
        if len(text) < size:
            text += open(path, encoding="utf-8", errors="replace").read() + "\n\n"
while len(text) < size:
    text += text
text = text[:size]
parts = text.split("\n\n")
with tempfile.NamedTemporaryFile(delete=False) as f:
    f.write(text.encode())
mb = os.path.getsize(f.name) / 1e6
print(f"{mb:.1f} MB, one core, processor time, best of 3")
worst = 1e9
big = f.name + ".json"
t = time.perf_counter()
subprocess.run([driver, "train", "llama3", "16000", big, "<|endoftext|>", f.name], check=True, stdout=subprocess.DEVNULL)
print(f"learning 16,000 ids from it: {time.perf_counter() - t:.2f} s")
for name in ("gpt2", "llama3", "qwen2", "16,000"):
    path = big if name == "16,000" else f"tests/golden/tokenizer/{name}.json"
    lib = Tokenizer.from_file(path)
    lib.encode_special_tokens = True
    ours = whole = batch = 1e9
    for _ in range(3):
        n, ids, s = subprocess.run([driver, "bench", path, f.name, "1"], check=True, capture_output=True, text=True).stdout.split()
        ours = min(ours, float(s))
        t = time.process_time(); got = lib.encode(text, add_special_tokens=False); whole = min(whole, time.process_time() - t)
        t = time.process_time(); lib.encode_batch_fast(parts, add_special_tokens=False); batch = min(batch, time.process_time() - t)
    same = "same ids" if len(got.ids) == int(ids) else f"{len(got.ids)} ids, ours {ids}"
    best = min(whole, batch)
    worst = min(worst, best / ours)
    print(f"{name:7s} ours {mb / ours:6.1f} MB/s   library {mb / whole:5.2f} MB/s whole, {mb / batch:5.2f} MB/s in {len(parts)} parts   ratio {best / ours:5.1f}   {same}")
os.unlink(f.name)
os.unlink(big)
print(f"ratio {worst:.1f}")
PY
