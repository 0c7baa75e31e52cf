#!/usr/bin/env bash
# transformers.sh BUILD/tests - `ckpt import` against models that transformers makes now, with other random weights than those kept
# in tests/golden/import (which tests/golden/import.lua compares in any case, and with it all that is refused).
# torch and transformers come by name with pip into build/venv-transformers: gigabytes, so that only --long installs them.
set -u
cd "$(dirname "$0")/../.." || exit 2
program=$(dirname "$1")/mascon
venv=build/venv-transformers
skip() { echo "skip: interop with transformers: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
there() { "$venv/bin/python" -c 'import torch, transformers; assert int(transformers.__version__.split(".")[0]) >= 5' 2>/dev/null; }

[ -x "$program" ] || { echo "$program is not built"; exit 1; }
command -v python3 >/dev/null || skip "no python3"
if ! there; then
    [ -n "${MC_TEST_LONG:-}" ] || skip "torch and transformers are not in $venv (tests/run --long installs them)"
    { python3 -m venv "$venv" && timeout 700 "$venv/bin/pip" install --disable-pip-version-check -q torch 'transformers>=5'; } \
        >build/venv-transformers.log 2>&1
    there || skip "pip could not install torch and transformers: $(tail -n 1 build/venv-transformers.log | cut -c1-200)"
fi
out=$(mktemp -d /tmp/mascon-transformers-XXXXXX)
trap 'rm -rf "$out"' EXIT
seed=$(date +%s)
echo "seed $seed"
HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" tests/golden/import/make.py --seed "$seed" --out "$out" >"$out/log" 2>&1 ||
    { cat "$out/log"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
luajit tests/golden/import.lua "$program" "$out"
