#!/usr/bin/env bash
# Random workloads on a crash disk, cut all over, recovered and checked: at
# least so many distinct crash images.   crash.sh IMAGES [MINUTES_MAX]
#
# crash.sh --measured [IMAGES [MINUTES_MAX]]: instead, every way to mount that a benchmark measures, as users mount it: so many
# distinct images of each (20,000), in at most so many minutes each (2). Where several devices are, fewer, and 1,000 at least.
# What came of it is written to docs/benchmarks/sync/simulated.jsonl (or OUT), for the table of docs/benchmarks/sync.md.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
find_cargo
[ "${1:-}" != --measured ] || { shift; exec scripts/work/measured.sh "$@"; }
images=${1:-200000} minutes=${2:-15}
jobs=$(nproc)

# Every deliberate break must be noticed, in the build of the unit tests: what is tested below that is what is shipped.
target=$(dirname "$(release)")
"$CARGO" test --locked --quiet --workspace --features "$TEST_FEATURES" --no-run
# With the program, which the scripts behind this want: to optimise one as a whole keeps one processor busy, and for minutes.
"$CARGO" build --release --locked --quiet -p nenrin-sim -p nenrin
hunt=$target/debug/nenrin-sim sim=$target/release/nenrin-sim
# The table of the promises names every break, and each where the hunt has it.
documented=$(awk -F'|' '/^\|/ && match($4, /`[A-Z][A-Za-z]+`/) {
    name = substr($4, RSTART + 1, RLENGTH - 2)
    if (match($2, /P[1-8]/)) promise = substr($2, RSTART, 2)
    print promise, name }' docs/CRASH-MODEL.md | sort -u)
listed=$("$hunt" breaks --list | sort -u)
missing=$(comm -13 <(echo "$documented") <(echo "$listed"))
[ -z "$missing" ] || fail "docs/CRASH-MODEL.md does not name in their rows: $missing"
missing=$(comm -3 <(cut -d' ' -f2 <<<"$documented" | sort -u) \
    <(sed -n '/^pub enum Break/,/^}/s/^    \([A-Z][A-Za-z]*\),$/\1/p' crates/core/src/breaks.rs | sort))
[ -z "$missing" ] || fail "docs/CRASH-MODEL.md and crates/core/src/breaks.rs do not name the same breaks: $missing"

echo "nenrin-sim breaks"
"$hunt" breaks
one=$("$hunt" breaks NoFlush)
grep -q NoFlush <<<"$one" && [ "$(tail -n +2 <<<"$one")" = "1 of 1 deliberate breaks were noticed" ] ||
    fail "crash.sh: breaks NoFlush should try one: $one"
for wrong in Flush "NoFlush AckEarly" --all; do
    code=0
    # shellcheck disable=SC2086 # two words are two arguments
    "$hunt" breaks $wrong >/dev/null 2>&1 || code=$?
    [ $code = 2 ] || fail "crash.sh: breaks $wrong should end with 2, not $code"
done
said=$("$sim" breaks 2>&1) && fail "crash.sh: without the feature there is nothing to hunt"
grep -q -e '--features breaks' <<<"$said" || fail "crash.sh: without the feature breaks should say how to get it: $said"
"$CARGO" test --locked --quiet --workspace --features "$TEST_FEATURES" --test breaks --lib noticed -- --nocapture

simulate() {
    local wanted=$1 distinct
    shift
    echo "nenrin-sim $*, at least $wanted images"
    out=$("$sim" "$@" --minutes "$minutes" --jobs "$jobs") || { echo "$out"; exit 1; }
    echo "$out"
    distinct=$(sed -n 's/.*distinct \([0-9]*\)$/\1/p' <<<"$out" | head -1)
    [ "${distinct:-0}" -ge "$wanted" ] || { echo "only ${distinct:-0} distinct images in $minutes minutes"; exit 1; }
}

# The run that ended brought about every one of these decisions of recovery.
decided() {
    local row
    for row; do
        grep -q "^  $row  *[1-9]" <<<"$out" || fail "crash.sh: recovery never decided: $row"
    done
}
# The run that ended has seen each of these.
seen() {
    local what
    for what; do
        grep -q "^  $what  *[1-9]" <<<"$out" || fail "crash.sh: never seen: $what"
    done
}
rows=('partials accepted' 'cut before missing payload' 'cut before missing data' 'unfinished logical segment dropped' 'the log ends')

simulate "$((images * 8 / 10))" run --seeds 0..1000000 --images "$((images * 8 / 10))" --flips 40 --unreads 10
decided "${rows[@]}" 'after a lie or a flipped bit: damage proven' 'Cut, and not read: Mounted' 'Cut, and not read: Repaired'
simulate "$((images / 20))" run --seeds 2000000..3000000 --images "$((images / 20))" --order strict
simulate "$((images / 50))" run --seeds 0..1000000 --images "$((images / 50))" --order strict --profile content
simulate "$((images / 20))" run --seeds 4000000..5000000 --images "$((images / 20))" --barrier checkpoint
simulate "$((images / 20))" run --seeds 6000000..7000000 --profile clean --steps 300 --images "$((images / 20))"
simulate 10000 scenarios
# They bring about what they are for: cleaning, full volumes, and every decision of recovery that a power cut allows.
number() { sed -n "s/.*$1 *\([0-9]*\).*/\1/p" <<<"$out" | head -1; }
moved=$(number 'blocks moved') refused=$(number 'for want of space')
[ "${moved:-0}" -gt 1000 ] && [ "${refused:-0}" -gt 100 ] || fail "crash.sh: scenarios moved $moved blocks, refused $refused calls"
decided "${rows[@]}"
simulate 300 lives --seeds 100..104
# Worlds that the others do not have, each with its own number. Names that collide need the switches of the tests.
simulate 150 run --seeds 0..1000000 --images 150 --each 60 --faults 0 --lies 0 --profile wide
[ "$(number 'index nodes above inner ones')" -gt 20 ] || fail "crash.sh: the index of wide worlds is not deep"
simulate 1000 run --seeds 0..1000000 --images 1000 --each 20 --faults 0 --lies 0 --hurts 1 --rots 1
seen 'Read of a mount fails: Damage' 'Read of a mount fails: Shown' 'Write of a mount fails: Refused' \
    'Cut, and a bit wrong: Error' 'Cut, and a bit wrong: Damage' 'Cut, and a bit wrong: Same'
# several IMAGES ARGUMENTS...: on several devices. Rows with parity are mounted with each of them missing, which takes long.
several() {
    local wanted=$1
    shift
    simulate "$wanted" run --seeds 0..1000000 --images "$wanted" --each 60 --faults 0 --lies 0 "$@"
}
several 400 --devices 2 --layout mirror
several 100 --devices 3 --layout parity
several 400 --devices 3 --layout stripe
for devices in '400 --devices 2 --layout mirror' '100 --devices 3 --layout parity' '400 --devices 3 --layout stripe'; do
    # shellcheck disable=SC2086 # arguments are several words
    several $devices --changes
    [ "$(number 'segments laid')" -gt 0 ] || fail "crash.sh: $devices: nothing was laid anew"
done
for joins in '400 --devices 2 --layout mirror --joins back:any' '100 --devices 3 --layout parity --joins takes:any'; do
    # shellcheck disable=SC2086
    several $joins
    [ "$(number 'devices brought up to date')" -gt 0 ] || fail "crash.sh: $joins: no device was brought up to date"
done
(sim=$hunt; simulate 400 run --seeds 0..1000000 --images 400 --each 60 --faults 0 --lies 0 --profile names --collide)
simulate 3000 ace --length 1
simulate 1000 ace --length 1 --order strict
simulate 1000 ace --length 1 --barrier checkpoint
simulate 1000 ace --length 1 --order strict --barrier none
simulate "$((images / 20))" ace --length 2 --sample 2000
simulate 3000 ace --length 3 --sample 400
