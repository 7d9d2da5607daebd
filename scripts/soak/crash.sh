#!/bin/sh
# Every sequence of two operations, a sample of three; the scenarios in which much is moved or taken away, with every cut
# that scripts/crash.sh takes a part of; then as many random crash images as there is time for, long workloads
# cut in more places than in make test.
. "$(dirname "$0")/../lib.sh"
cd "$(dirname "$0")/../.." && find_cargo
"$CARGO" build --release --locked --quiet -p nenrin-sim
sim=$(release)/nenrin-sim jobs=$(nproc) minutes=$((SOAK_SECONDS / 60 + 1))
begin=$(date +%s)
state=${SOAK_STATE:?}
mkdir -p "$state"
# 78,400 sequences of two, in pieces, so that the next run goes on where this one stopped.
piece=$(cat "$state/piece" 2>/dev/null || echo 0)
while [ "$piece" -lt 20 ] && [ $(($(date +%s) - begin)) -lt $((SOAK_SECONDS / 2)) ]; do
    "$sim" ace --length 2 --sequences "$((piece * 3920))..$(((piece + 1) * 3920))" --jobs "$jobs" || exit 1
    piece=$((piece + 1))
    echo "$piece" >"$state/piece"
done
# The long scenarios with every cut, one seed of settings after the other.
long=$(cat "$state/long" 2>/dev/null || echo 0)
while [ "$long" -lt 18 ] && [ $(($(date +%s) - begin)) -lt $((SOAK_SECONDS * 2 / 3)) ]; do
    name=$(echo clean reflink-clean remove-huge | cut -d' ' -f$((long % 3 + 1)))
    "$sim" scenarios --scenario "$name" --seeds "$((long / 3))..$((long / 3 + 1))" --each 1000000000 --jobs "$jobs" || exit 1
    long=$((long + 1))
    echo "$long" >"$state/long"
done
"$sim" ace --length 3 --sample 20000 --seeds "$(date +%s)..0" --minutes "$((minutes / 8 + 1))" --jobs "$jobs" || exit 1
left=$(((SOAK_SECONDS - $(date +%s) + begin) / 60 + 1))
"$sim" run --seeds "$(date +%s)..20000000000" --minutes "$left" --each 1500 --flips 20 --faults 8 --jobs "$jobs" || exit 1
[ "$piece" -ge 20 ] && [ "$long" -ge 18 ] || exit 75
