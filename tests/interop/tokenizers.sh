#!/usr/bin/env bash
# tokenizers.sh BUILD/tests [COUNT] - our tokenizers against the `tokenizers` library on COUNT (12,000) nasty strings a tokenizer.
# The library is installed into build/venv by its name with pip; where that cannot be had, the test is skipped with the reason
# (tests/unit/test_tokenizer.c holds the library's answers to some 2,000 strings in any case).
set -u
cd "$(dirname "$0")/../.." || exit 2
driver=$1/tokenizer_driver count=${2:-12000}
venv=build/venv want='tokenizers>=0.23,<0.24'
skip() { echo "skip: interop with tokenizers: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }

[ -x "$driver" ] || { echo "$driver is not built"; exit 1; }
command -v python3 >/dev/null || skip "no python3"
if ! "$venv/bin/python" -c 'import tokenizers; assert tokenizers.__version__.startswith("0.23.")' 2>/dev/null; then
    rm -rf "$venv"
    python3 -m venv "$venv" >build/venv.log 2>&1 || skip "python3 -m venv failed (on Debian: apt-get install python3-venv)"
    timeout 300 "$venv/bin/pip" install --disable-pip-version-check -q "$want" >>build/venv.log 2>&1 ||
        skip "pip could not install '$want': $(tail -n 1 build/venv.log | cut -c1-200)"
fi
PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" tests/interop/tokenizers_compare.py "$driver" "$count"
