#!/bin/bash
# run.sh BUILD/tests - faults planted into checkpoints from outside: the n-th I/O call, the n-th allocation,
# kill -9 at every call, and every state that a power cut may leave. The folder holds ckpt_driver,
# ckpt_crash and libpreload_*.so. Last line: "N passed, N failed, N skipped"; exit 1 if
# any failed. Files below /dev/shm, or $TMPDIR. Half a minute on one core.
set -u
# With MC_TEST_LONG set, every allocation is failed, not one in 23. No root needed but for one check.
build=${1:?usage: run.sh BUILD/tests}
[ -n "${MC_TEST_LONG:-}" ] && stride=1 || stride=23 # of the allocations: there are thousands
[ -d "$build/tests" ] && build=$build/tests
bin=$(cd "$build" && pwd) || exit 2
driver=$bin/ckpt_driver io=$bin/libpreload_io.so mem=$bin/libpreload_alloc.so
for f in "$driver" "$bin/ckpt_crash" "$io" "$mem"; do
    [ -e "$f" ] || { echo "run.sh: $f is missing: build ckpt_driver ckpt_crash preload_io preload_alloc"; exit 2; }
done
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" mc_fault.XXXXXX)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAILED: $*"; }

run=$work/run dir=$work/run/ckpt out=$work/out
fresh() { rm -rf "$run"; cp -r "$work/base" "$run"; }
plain() { "$driver" "$dir" "$@" 2>&1; }

# What must hold whatever happened: the newest acknowledged checkpoint or a newer one loads whole, and
# life goes on (sweep, save, load) in the next epoch.
still_good() { # LEAST WHAT
    local got
    got=$(plain load) || { fail "$2: $got"; return 1; }
    [ "${got#loaded }" -ge "$1" ] || { fail "$2: $got, but $1 was acknowledged"; return 1; }
    got=$(plain retain:2:8 save:90:8 load | tail -1)
    [ "$got" = "loaded 90" ] || { fail "$2: afterwards: $got"; return 1; }
}

# ---- the n-th call that writes: fails once, fails for good, is short, is the last one ----
mkdir -p "$work/base"
"$driver" "$work/base/ckpt" save:1:1 save:2:1:z >/dev/null || exit 2
mkdir "$work/base/ckpt/step-000000003.e1" && echo half >"$work/base/ckpt/step-000000003.e1/data-00000.mcd"
sweep() { # NAME JOB...: a failure at each call of the job, of each kind
local name=$1 job calls what at n rc acked ok
shift
job=("$@")
fresh
calls=$(MC_IO_DIR=$run MC_IO_COUNT=$work/n LD_PRELOAD=$io "$driver" "$dir" "${job[@]}" >/dev/null; cat "$work/n")
[ "$calls" -gt 40 ] || fail "only $calls I/O calls seen in save and retain: is the shim in?"
for what in :eio :enospc :edquot :estale :short :eintr :kill +:eio +:enospc; do
    at=0 n=1
    while [ "$n" -le "$calls" ]; do
        fresh
        { MC_IO_DIR=$run MC_IO_FAIL=$n$what LD_PRELOAD=$io "$driver" "$dir" "${job[@]}" >"$out" 2>&1; } 2>/dev/null
        rc=$?
        acked=$(sed -n 's/^saved //p' "$out" | tail -1)
        told="$name, call $n of $calls, $what (exit $rc)"
        case $what:$rc in
        *:0 | :kill:137) ok=1 ;;
        :short:*) ok=0 ;;
        *) [ $rc -gt 20 ] && [ $rc -lt 60 ] && grep -q "^failed" "$out" && ok=1 || ok=0 ;;
        esac
        if [ $ok = 0 ]; then fail "$told: $(tail -1 "$out")"
        elif still_good "${acked:-2}" "$told"; then at=$((at + 1)); fi
        n=$((n + 1))
    done
    [ "$at" = "$calls" ] && pass
    echo "I/O call n fails, $name, n = 1..$calls, $what: $at good"
done
}
sweep "one writer" retain:2:2 save:4:2:z save:5:2 retain:2:2
sweep "three writers" many:4:2:z many:5:2 retain:2:2
# The message says which file and why, and ENOSPC is told from EIO.
fresh
MC_IO_DIR=$run MC_IO_OPS=fallocate MC_IO_FAIL=1:enospc LD_PRELOAD=$io "$driver" "$dir" save:4:2 >"$out" 2>&1
grep -q "^failed nospc: .*data-00000.mcd.*No space left" "$out" && pass || fail "full disk: $(cat "$out")"

# ---- the n-th call that reads: never a wrong byte, never "there is none" ----
rm -rf "$run"; mkdir -p "$run"; "$driver" "$dir" save:1:1 save:2:1:z >/dev/null
calls=$(MC_IO_DIR=$run MC_IO_OPS=read,stat,list MC_IO_COUNT=$work/n LD_PRELOAD=$io "$driver" "$dir" load verify >/dev/null; cat "$work/n")
for what in :eio :estale :short :eintr; do
    at=0 n=1
    while [ "$n" -le "$calls" ]; do
        MC_IO_DIR=$run MC_IO_OPS=read,stat,list MC_IO_FAIL=$n$what LD_PRELOAD=$io "$driver" "$dir" load verify >"$out" 2>&1
        rc=$?
        if grep -q "^failed notfound" "$out" || [ $rc = 3 ] || [ $rc -gt 60 ] || { [ $rc -ne 0 ] && [ $what = :short ]; }; then
            fail "reading call $n of $calls, $what (exit $rc): $(tail -1 "$out")"
        else at=$((at + 1)); fi
        n=$((n + 1))
    done
    [ "$at" = "$calls" ] && pass
    echo "reading call n fails, n = 1..$calls, $what: $at good"
done

# ---- the n-th allocation ----
rm -rf "$work/base"; mkdir -p "$work/base"
"$driver" "$work/base/ckpt" save:1:1 save:2:1 >/dev/null
fresh
rm -f "$work/n"
MC_ALLOC_REPORT=$work/n LD_PRELOAD=$mem "$driver" "$dir" save:3:1:z retain:2:1 load verify >/dev/null
calls=$(sed -n 's/.* calls=\([0-9]*\).*/\1/p' "$work/n")
at=0 n=1 refused=0 tried=0
while [ "$n" -le "${calls:-0}" ]; do
    fresh
    MC_ALLOC_FAIL=$n LD_PRELOAD=$mem "$driver" "$dir" save:3:1:z retain:2:1 load verify >"$out" 2>&1
    rc=$?
    name="allocation $n of $calls (exit $rc)"
    if [ $rc = 4 ]; then at=$((at + 1)) # the driver's own
    elif [ $rc != 0 ] && ! grep -q "^failed nomem" "$out"; then fail "$name: $(tail -1 "$out")"
    elif still_good "$(sed -n 's/^saved //p' "$out" | grep . || echo 2)" "$name"; then at=$((at + 1)); fi
    [ $rc != 0 ] && [ $rc != 4 ] && refused=$((refused + 1))
    tried=$((tried + 1)) n=$((n + stride))
done
[ "$at" = $tried ] && [ "$refused" -gt 20 ] && pass || fail "allocations: $at good of $tried, $refused refused"
echo "allocation n fails, n = 1..${calls:-0} by $stride: $at of $tried good, $refused of them told as nomem"

# ---- power cuts ----
states=0
crash() { # NAME WANT DROP SETUP -- JOB
    local name=$1 want=$2 drop=$3 got rc
    shift 3
    local -a setup=() jobs=()
    while [ "$1" != -- ]; do setup+=("$1"); shift; done
    shift
    jobs=("$@")
    rm -rf "$run" "$work/base" "$work/trace" "$work/states"
    mkdir -p "$run" "$work/states"
    [ ${#setup[@]} -gt 0 ] && plain "${setup[@]}" >/dev/null
    [ "$name" = sweep ] && mkdir "$dir/step-000000009.e1" && echo x >"$dir/step-000000009.e1/data-00000.mcd"
    cp -r "$run" "$work/base"
    env MC_IO_DIR=$run MC_IO_TRACE=$work/trace MC_IO_OPS=fsync ${drop:+MC_IO_FAIL=$drop:drop} \
        LD_PRELOAD=$io "$driver" "$dir" "${jobs[@]}" >"$out" 2>&1 || { fail "crash $name: $(tail -1 "$out")"; return; }
    got=$("$bin/ckpt_crash" "$work/base" "$work/trace" "$work/states" "$run" 2>"$work/why")
    rc=$?
    states=$((states + $(echo "$got" | sed -n 's/^states \([0-9]*\).*/\1/p')))
    if [ $rc = "$want" ]; then pass; else fail "crash $name${drop:+, sync $drop forgotten}: $got: $(cat "$work/why")"; fi
    [ -z "$drop" ] && echo "power cuts, $name: $got"
}
crash first 0 "" -- save:1:1
crash next 0 "" save:1:1 -- save:2:1:z
crash many 0 "" save:1:1 -- many:2:1
crash many-first 0 "" -- many:1:1
crash retain 0 "" save:1:1 save:2:1 -- save:3:1 retain:2:1
crash sweep 0 "" save:1:1 save:2:1 -- retain:2:2 save:3:2 save:4:2 retain:2:2
crash long 0 "" save:1:1 save:2:1 save:3:1 -- save:4:2 retain:2:2 save:5:2 retain:2:2 save:6:2 retain:3:2
# The enumerator must see what it is for: each sync of a save, forgotten, loses something. (Syncs 1
# and 2, of the run folder, stand in for each other when ckpt/ is new.)
for k in 3 4 5 6 7; do crash first 1 $k -- save:1:1; done
for k in 4 5 6 7 8 9; do crash many-first 1 $k -- many:1:1; done # of three data files, 4 to 6
echo "power cuts: $states states in all"

# ---- memory of a save and a load: chunks, not the state ----
rm -rf "$run"; mkdir -p "$run"
got=$(plain rss:96) && [ "${got#rss }" -lt $((32 * 1024)) ] && pass || fail "memory for 96 MiB of state: $got KiB"
echo "memory to save and load 96 MiB: $got KiB"

# ---- a disk that is really full ----
mkdir -p "$work/small"
if mount -t tmpfs -o size=192k none "$work/small" 2>/dev/null; then
    dir=$work/small/ckpt
    plain save:1:1 save:2:1 >/dev/null
    n=3
    while plain save:$n:1 >"$out"; do n=$((n + 1)); [ $n -gt 20 ] && break; done
    got=$(plain load)
    if grep -q "^failed nospc" "$out" && [ "$got" = "loaded $((n - 1))" ]; then pass; else fail "full tmpfs: $(cat "$out"); $got"; fi
    echo "full tmpfs at save $n: $(cut -c1-60 "$out"); $got"
    umount "$work/small"
else
    skipped=$((skipped + 1))
    echo "skipped: a really full disk (mounting a tmpfs needs root)"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
