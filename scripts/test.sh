#!/usr/bin/env bash
# Every test but the soak tests, with the time of each part. Goes on after a
# failure, so that one run shows everything that is wrong.
#   test.sh [PART...]      parts: all format lint unit crash scripts
# A part that hangs is ended, and said to have failed: after its own limit, or
# when the time of the whole run is over.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh
known "$*" all format lint unit crash scripts
find_cargo
# More than processors, since many wait for mounts and devices.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-4}"
# Nothing is built twice here, so what helps the second time only costs.
export CARGO_INCREMENTAL=0

summary=()
failed=()
status=0 passed=0 skipped=0
logs="${CARGO_TARGET_DIR:-target}/test-logs"
mkdir -p "$logs" && rm -f "$logs"/*.log
# What tests of unit leave out, in the words of their scripts.
NENRIN_LEFT_OUT=$(cd "$logs" && pwd)/unit-tests.log
export NENRIN_LEFT_OUT
# Disks in memory come and go: kept by the allocator, they are not cleared by the kernel each time, more than half of the processor time of the core's unit tests.
keep_memory=(env MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=67108864)
# Seconds: of the whole run, of a compiling part, of a script.
whole=4500 long=3000 short=600
running=
trap 'kill "$running" 2>/dev/null; wait; exit 130' INT TERM

part() {
    local limit=$1 name=$2 begin=$SECONDS result=ok code
    shift 2
    [ $((SECONDS + limit)) -le $whole ] || limit=$((whole > SECONDS ? whole - SECONDS : 1))
    echo "== $name"
    code=0
    set -m
    timeout --kill-after=60 "$limit" "$@" </dev/null > >(exec tee "$logs/$name.log") 2>&1 &
    running=$!
    set +m
    wait "$running" || code=$?
    # 77 means: cannot be done here, as the part has said.
    case $code in
    0) passed=$((passed + 1)) ;;
    77) result=skipped skipped=$((skipped + 1)) ;;
    124 | 137) echo "$name: ended after $limit s" >&2; result=FAILED status=1 ;;
    *) result=FAILED status=1 ;;
    esac
    [ "$result" != FAILED ] || failed+=("$name")
    summary+=("$(printf '%-28s %-7s %4d s' "$name" "$result" $((SECONDS - begin)))")
}

for wanted in "${@:-all}"; do
    case "$wanted" in all | format) part $long format scripts/lint.sh format ;; esac
    case "$wanted" in all | lint) part $long lint scripts/lint.sh clippy ;; esac
    case "$wanted" in all | unit) part $long unit "${keep_memory[@]}" "$CARGO" test --locked --workspace --features "$TEST_FEATURES" --no-fail-fast --quiet ;; esac
    case "$wanted" in all | crash) part $long crash scripts/crash.sh 200000 ;; esac
    case "$wanted" in all | scripts)
        part $long build scripts/build.sh
        for file in scripts/tests/*.sh; do
            part $short "$(basename "$file")" "$file"
        done ;;
    esac
done

echo
printf '%s\n' "${summary[@]}"
echo "together                             $((SECONDS)) s of 1500 s"
# A part may have left something out and be good otherwise.
for log in "$logs"/*.log; do
    sed -n "s/^   skipped: /left out of $(basename "$log" .log): /p" "$log" | sort -u
done
case "$status $skipped" in
"0 0") echo "all passed" ;;
"0 "*) echo "$passed passed, $skipped skipped" ;;
*) echo "FAILED" ;;
esac
# What went wrong comes last, in a few lines: it is what a reader of the end of a long output needs.
for name in "${failed[@]}"; do
    echo "-- $name ($logs/$name.log):"
    # A test that failed says below its name why.
    found=$(grep -E '^test .*FAILED|^error|FAIL|: ended after' "$logs/$name.log" | tail -8
        grep -A6 -E '^---- .* stdout ----' "$logs/$name.log" | grep -vE '^$|RUST_BACKTRACE|^stack backtrace' | tail -20)
    printf '%s\n' "${found:-$(tail -5 "$logs/$name.log")}" | cut -c1-300
done
exit "$status"
