#!/usr/bin/env bash
# tsan_train.sh PROGRAM - a short training run with three threads, a hook, an evaluation and checkpoints, under ThreadSanitizer.
# PROGRAM is built with -fsanitize=thread. OpenBLAS is not instrumented: what it does inside itself is not ours to see.
set -uo pipefail
m=$1
d=$(mktemp -d)
trap 'rm -rf "$d"' EXIT
printf 'called_from_lib:libopenblas\n' >"$d/supp"
export OMP_NUM_THREADS=3 TSAN_OPTIONS="suppressions=$d/supp exitcode=66 halt_on_error=0"
passed=0 failed=0
check() { # check NAME EXPECTED-RC ACTUAL-RC LOG
    if [ "$2" = "$3" ] && ! grep -q 'WARNING: ThreadSanitizer' "$4"; then passed=$((passed + 1)); else
        failed=$((failed + 1)); echo "FAILED $1: exit $3"; head -n 60 "$4"; fi
}
"$m" train recipes/tiny_llama.lua --run "$d/run" --set steps.steps=4 --set 'checkpoint.every="2 steps"' \
    --set data.holdout=0.1 --set 'hooks={{"hooks/eval_every.lua",steps=2}}' >"$d/log" 2>&1
check train 0 $? "$d/log"
"$m" train recipes/tiny_llama.lua --run "$d/run" --resume auto --set steps.steps=6 --set data.holdout=0.1 >"$d/log" 2>&1
check resume 0 $? "$d/log"
"$m" eval "$d/run" --data recipes/text/moon.txt --samples 4 >"$d/log" 2>&1
check eval 0 $? "$d/log"
"$m" generate "$d/run" --prompt "The moon" --tokens 16 >"$d/log" 2>&1
check generate 0 $? "$d/log"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
