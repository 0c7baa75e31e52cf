#!/bin/bash
# run.sh [SECONDS [BUILD]] - builds every tests/fuzz/fuzz_X.c with clang and libFuzzer (preset `fuzz`) and runs each for
# SECONDS (default 15), one a core at a time, from seeds made on the spot by the engine itself. Last line: "N passed, N failed, N skipped".
# What a failing target found stays in BUILD/found/X, with the log.
set -u
cd "$(dirname "$0")/../.." || exit 2
seconds=${1:-15} build=${2:-build/fuzz}
targets=$(cd tests/fuzz && ls fuzz_*.c | sed 's/\.c$//')
total=$(echo "$targets" | wc -l)
if ! command -v clang >/dev/null || ! echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d[0] + n > 9 ? 0 : 0; }' |
    clang -x c - -fsanitize=fuzzer,address -o /dev/null 2>/dev/null; then
    echo "skip: no clang with libFuzzer (on Debian: apt-get install clang)"
    echo "0 passed, 0 failed, $total skipped"
    exit 0
fi
mkdir -p "$build"
# shellcheck disable=SC2086
if ! { cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Release -DMC_FUZZ=ON -DMC_TESTS=OFF &&
    cmake --build "$build" --target $targets mascon; } >"$build/log" 2>&1; then
    grep -aE 'error|undefined' "$build/log" | head -n 20
    echo "0 passed, $total failed, 0 skipped"
    exit 1
fi
found=$build/found seeds=$build/seeds
rm -rf "$seeds"
for t in $targets; do mkdir -p "$seeds/$t" "$found/$t"; done

# Seeds: two steps of a real run give a recipe, books, a cursor, a manifest and data; packed text gives an index.
run=$build/seed-run
rm -rf "$run"
if "$build/mascon" train recipes/tiny_llama.lua --run "$run" --set steps.steps=2 >"$build/seed.log" 2>&1; then
    c=$(ls -d "$run"/ckpt/step-*)
    cp "$run"/segments/001/resolved.json "$seeds/fuzz_recipe_json/real" 2>/dev/null
    [ ! -d "$seeds/fuzz_manifest" ] || sed 's/,"hash":"[0-9a-f]*"}$//' "$c/manifest.json" | head -c -1 >"$seeds/fuzz_manifest/real"
    [ ! -d "$seeds/fuzz_data_file" ] || { printf '\2\1'; head -c 4096 "$c/data-00000.mcd"; } >"$seeds/fuzz_data_file/file"
    [ ! -d "$seeds/fuzz_books" ] || { printf '\2'; sed 's/.*"books"://; s/,"files":.*//' "$c/manifest.json"; } >"$seeds/fuzz_books/real"
else
    echo "no seeds from a run: $(tail -n 1 "$build/seed.log")"
fi
printf '{"format":"mascon-checkpoint","version":1,"step":1,"epoch":1,"time":1.5,"weights_hash":null,"books":{"step":1},"files":[{"name":"data-00000.mcd","bytes":192}],"tensors":[{"name":"a","dtype":"F32","shape":[4,2],"boxes":[{"file":0,"lo":[0,0],"n":[2,2],"chunks":[[64,16,16,"raw","00000000000000aa","00000000000000aa"]]},{"file":0,"lo":[2,0],"n":[2,2],"chunks":[[128,9,16,"zstd","00000000000000aa","00000000000000ab"]]}]}]' >"$seeds/fuzz_manifest/small"
printf '\0\3abcdefghijklmnop' >"$seeds/fuzz_data_file/raw"
{ printf '\5\77'; head -c 256 /dev/zero | zstd -q -c 2>/dev/null || printf '\50\265\57\375\40\0\1\0\0'; } >"$seeds/fuzz_data_file/zstd"
# A table of one box [4, 2] and one chunk; its checksum is the target's business.
if [ -d "$seeds/fuzz_table" ]; then
    z() { head -c "$1" /dev/zero; }
    { printf 'MCTABLE\1\1'; z 7; printf '\7'; z 7; printf '\2'; z 7; printf '\200'; z 7; printf '\1'; z 7; printf '\1'; z 15
      printf a; z 115; printf '\2\0\0\0\4'; z 7; printf '\2'; z 55; printf '\4'; z 7; printf '\2'; z 23
      printf '\1'; z 7; printf '\100'; z 7; printf '\40\0\0\0\40'; z 27; } >"$seeds/fuzz_table/small"
fi
printf '\1{"sources":[{"name":"text","taken":5,"phase_base":0}]}' >"$seeds/fuzz_books/cursor"
i=0
for u in '200M tokens' '2B' '10k samples' '7 steps' '60 min' '1.5 h' '90 s' 500 '0.25 days' '3ms' '1e3 steps' '4611686018427387904 tokens'; do
    i=$((i + 1)); printf '%s' "$u" >"$seeds/fuzz_units/$i"
done
if [ -d "$seeds/fuzz_idx" ] && "$build/mascon" data pack recipes/text/moon.txt --out "$build/seed-pack" >>"$build/seed.log" 2>&1; then
    { printf '\0\1'; cat "$build/seed-pack.idx"; } >"$seeds/fuzz_idx/real"
fi
[ ! -d "$seeds/fuzz_data_json" ] || cp "$build"/seed-pack.json "$seeds/fuzz_data_json/real" 2>/dev/null
if [ -d "$seeds/fuzz_tokenizer" ]; then
    cp tests/golden/tokenizer/*.json "$seeds/fuzz_tokenizer/"
    for k in 0 1 2; do { printf "\\$k"; head -c 300 recipes/text/moon.txt; printf " 's 12 e\314\201 \r\n<|endoftext|>"; } >"$seeds/fuzz_tokenizer/text$k"; done
fi
if [ -d "$seeds/fuzz_pack" ]; then
    lines='{"text":"a \\u00e9\\ud83c\\udf15\\n","id":[1,{"text":2}]}\n\n{"id":1.5e3,"text":""}\r\n{"text":"last"}'
    { printf '\0'; printf "$lines"; } >"$seeds/fuzz_pack/jsonl"
    { printf '\1'; printf "$lines" | gzip -c; printf "\n$lines" | gzip -c; } >"$seeds/fuzz_pack/gzip"
    { printf '\3'; printf "$lines"; } >"$seeds/fuzz_pack/text"
    { printf '\5'; printf "$lines" | zstd -q -c 2>/dev/null || printf '\50\265\57\375\40\0\1\0\0'; } >"$seeds/fuzz_pack/zstd"
fi
if [ -d "$seeds/fuzz_line" ]; then
    h='mascon-pipeline 1\nranks 2 chunks %s depth 2 schedules %s\ncut 0 1 %s\nplace 0%s\n'
    printf "$h"'microbatches 1 a\n0 F0 B0\n1 F0 I0 W0\nmicrobatches 2 a\n0 F0 F1 B0 B1\n1 F0 B0 F1 B1\nend\n' 1 2 3 ' 1' >"$seeds/fuzz_line/two"
    printf "$h"'microbatches 1 v\n0 F0 F0.1 B0.1 B0\n1 F0 F0.1 B0.1 B0\nend\n' 2 1 '3 4 5' ' 3 1 2' >"$seeds/fuzz_line/chunks"
fi
[ ! -d "$seeds/fuzz_wire" ] || { printf 'MCM1\10\0\0\0\3\0\0\0\1\0\0\0'; head -c 80 /dev/zero; printf '\5\0\0\0\4\0\0\0startpart'; } >"$seeds/fuzz_wire/gather"
if [ -d "$seeds/fuzz_safetensors" ]; then
    cp tests/golden/import/mistral/model.safetensors "$seeds/fuzz_safetensors/bf16"
    h='{"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2,3],"data_offsets":[8,20]},"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"c":{"dtype":"BOOL","shape":[0,4],"data_offsets":[20,20]}}'
    { printf "\\$(printf %03o ${#h})\0\0\0\0\0\0\0%s" "$h"; printf 'twenty bytes of data'; } >"$seeds/fuzz_safetensors/small"
fi
for d in "$seeds"/*/; do printf 'x' >"$d/x"; done

one() { # one TARGET: its log and exit status beside what it finds
    "$build/tests/$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$found/$1/" "$seeds/$1" >"$found/$1/log" 2>&1 </dev/null
    echo $? >"$found/$1/rc"
}
export -f one
export build seconds found seeds
echo "$targets" | xargs -P "$(nproc)" -I{} bash -c 'one {}'

passed=0 failed=0
for t in $targets; do
    rc=$(cat "$found/$t/rc")
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$found/$t/log")
    if [ "$rc" = 0 ]; then
        passed=$((passed + 1))
        echo "$t: ${runs:-?} inputs in $seconds s, nothing found"
    else
        failed=$((failed + 1))
        echo "FAILED: $t (exit $rc), $found/$t:"
        grep -aE 'ERROR|SUMMARY|runtime error|Test unit written' "$found/$t/log" | head -n 8
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
