#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: coverage-guided fuzzing with cargo-fuzz, so many seconds (60) for each target,
# beginning with the corpus of the repository. Ends with 77 where there is no nightly toolchain. What it finds
# is left in target/fuzz/artifacts, with the line that shows it again.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
find_cargo
seconds=${1:-60}
[ $# = 0 ] || shift
nightly=$(rustup toolchain list 2>/dev/null | sed -n 's/^\(nightly[^ ]*\).*/\1/p' | head -n 1 || true)
[ -n "$nightly" ] || { say "skipped: no nightly toolchain (rustup toolchain install nightly)"; exit 77; }
tools=$PWD/target/tools
if [ ! -x "$tools/bin/cargo-fuzz" ]; then
    say "Building cargo-fuzz"
    "$CARGO" install --quiet --locked --root "$tools" --target-dir "$tools/build" cargo-fuzz@0.13.1 </dev/null >"$tools.log" 2>&1 ||
        { say "skipped: cargo-fuzz could not be built: $(grep -m 1 -E '^error' "$tools.log")"; exit 77; }
    rm -rf "$tools/build" "$tools.log"
fi
PATH="$tools/bin:$PATH"
if [ $# = 0 ]; then
    for file in fuzz/fuzz_targets/*.rs; do
        set -- "$@" "$(basename "$file" .rs)"
    done
fi
work=$PWD/target/fuzz
# The code has no unsafe in what is fuzzed, so the address sanitizer would only make it slower.
options=(--fuzz-dir fuzz --sanitizer none --target-dir "$work/build")
cargo "+$nightly" fuzz build "${options[@]}" >"$work.log" 2>&1 || { tail -n 20 "$work.log" >&2; fail "fuzz.sh: the targets could not be built"; }
status=0
for name; do
    mkdir -p "$work/corpus/$name" "$work/artifacts/$name"
    code=0
    # New inputs go to the first directory, those of the repository are only read.
    cargo "+$nightly" fuzz run "${options[@]}" "$name" "$work/corpus/$name" "fuzz/corpus/$name" -- -max_total_time="$seconds" \
        -timeout=60 -rss_limit_mb=3000 -print_final_stats=1 -artifact_prefix="$work/artifacts/$name/" </dev/null >"$work.log" 2>&1 || code=$?
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work.log" | tail -n 1)
    cover=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$work.log" | tail -n 1)
    if [ $code = 0 ]; then
        printf 'fuzz %-8s %10s executions in %s s, %s edges\n' "$name" "${executions:-0}" "$seconds" "${cover:-?}"
    else
        status=1
        say "FAILED: fuzz $name: $(grep -m 1 -E 'panicked at|ERROR: libFuzzer' "$work.log" || true)"
        grep -A 1 'panicked at' "$work.log" | tail -n 1 >&2
        artifact=$(sed -n 's/.*Test unit written to //p' "$work.log" | head -n 1)
        [ -z "$artifact" ] || say "cargo run --profile test -p nenrin-fuzz -- replay $name $(od -An -v -tx1 "$artifact" | tr -d ' \n')"
    fi
done
exit $status
