#!/usr/bin/env bash
# startup.sh PROGRAM [N] - how long `check` of each bundled recipe takes, and `train` of the tiny recipe to the start of step 1.
# Whole processes, N runs each (default 9): minimum, median, maximum in ms. Figures, not a test: machines are shared.
set -euo pipefail
m=$1 n=${2:-9}
d=$(mktemp -d)
trap 'rm -rf "$d"' EXIT
stats() { sort -n | awk '{ v[NR] = $1 } END { printf "min %.0f  median %.0f  max %.0f ms\n", v[1], v[int((NR + 1) / 2)], v[NR] }'; }
now() { date +%s%N; }
for r in recipes/*.lua; do
    printf 'check %-28s ' "$(basename "$r")"
    for _ in $(seq "$n"); do
        a=$(now); "$m" check "$r" >/dev/null 2>&1 || true; b=$(now); echo "scale=3; ($b - $a) / 1000000" | bc
    done | stats
done
printf 'train to the start of step 1         '
for i in $(seq "$n"); do
    a=$(now)
    "$m" train recipes/tiny_llama.lua --run "$d/$i" --set steps.steps=1 >/dev/null 2>&1 || true
    # events.jsonl says when step 1 began (kind "first_step", wall clock): the only mark that does not contain the step itself.
    t=$(grep '"kind":"first_step"' "$d/$i/events.jsonl" | sed 's/.*"unix":\([0-9.]*\).*/\1/')
    echo "scale=3; $t * 1000 - $a / 1000000" | bc
done | stats
