#!/usr/bin/env bash
# Random workloads on a crash disk, cut everywhere, recovered and checked: at
# least so many distinct crash images.   crash.sh IMAGES [MINUTES_MAX]
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
find_cargo
images=${1:-200000} minutes=${2:-15}
jobs=$(nproc)

# Every deliberate break must be noticed. Apart, so that what is tested below is what is shipped.
"$CARGO" build --release --locked --quiet -p nenrin-sim --features breaks
cp target/release/nenrin-sim target/release/nenrin-sim-breaks
"$CARGO" build --release --locked --quiet -p nenrin-sim
# The table of the promises names every break, and each where the hunt has it.
documented=$(awk -F'|' '/^\|/ && match($4, /`[A-Z][A-Za-z]+`/) {
    name = substr($4, RSTART + 1, RLENGTH - 2)
    if (match($2, /P[1-8]/)) promise = substr($2, RSTART, 2)
    print promise, name }' docs/CRASH-MODEL.md | sort -u)
listed=$(target/release/nenrin-sim-breaks breaks --list | sort -u)
missing=$(comm -13 <(echo "$documented") <(echo "$listed"))
[ -z "$missing" ] || fail "docs/CRASH-MODEL.md does not name in their rows: $missing"
missing=$(comm -3 <(cut -d' ' -f2 <<<"$documented" | sort -u) \
    <(sed -n '/^pub enum Break/,/^}/s/^    \([A-Z][A-Za-z]*\),$/\1/p' crates/core/src/breaks.rs | sort))
[ -z "$missing" ] || fail "docs/CRASH-MODEL.md and crates/core/src/breaks.rs do not name the same breaks: $missing"

echo "nenrin-sim breaks"
target/release/nenrin-sim-breaks breaks
one=$(target/release/nenrin-sim-breaks breaks NoFlush)
grep -q NoFlush <<<"$one" && [ "$(tail -n +2 <<<"$one")" = "1 of 1 deliberate breaks were noticed" ] ||
    fail "crash.sh: breaks NoFlush should try one: $one"
for wrong in Flush "NoFlush AckEarly" --all; do
    code=0
    # shellcheck disable=SC2086 # two words are two arguments
    target/release/nenrin-sim-breaks breaks $wrong >/dev/null 2>&1 || code=$?
    [ $code = 2 ] || fail "crash.sh: breaks $wrong should end with 2, not $code"
done
"$CARGO" test --locked --quiet -p nenrin-fuzz -p nenrin-core --features nenrin-fuzz/breaks,nenrin-core/breaks \
    --test breaks --lib noticed -- --nocapture

simulate() {
    local wanted=$1 out distinct
    shift
    echo "nenrin-sim $*, at least $wanted images"
    out=$(target/release/nenrin-sim "$@" --minutes "$minutes" --jobs "$jobs") || { echo "$out"; exit 1; }
    echo "$out"
    distinct=$(sed -n 's/.*distinct \([0-9]*\)$/\1/p' <<<"$out" | head -1)
    [ "${distinct:-0}" -ge "$wanted" ] || { echo "only ${distinct:-0} distinct images in $minutes minutes"; exit 1; }
}

simulate "$((images * 8 / 10))" run --seeds 0..1000000 --images "$((images * 8 / 10))" --flips 40
simulate "$((images / 20))" run --seeds 2000000..3000000 --images "$((images / 20))" --order strict
simulate "$((images / 20))" run --seeds 4000000..5000000 --images "$((images / 20))" --barrier checkpoint
simulate "$((images / 20))" run --seeds 6000000..7000000 --profile clean --steps 300 --images "$((images / 20))"
simulate 10000 scenarios
simulate 300 lives --seeds 100..104
simulate 3000 ace --length 1
simulate "$((images / 20))" ace --length 2 --sample 2000
