#!/usr/bin/env bash
# Random workloads on a crash disk, cut everywhere, recovered and checked: at
# least so many distinct crash images.   crash.sh IMAGES [MINUTES_MAX]
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
find_cargo
images=${1:-20000} minutes=${2:-6}
"$CARGO" build --release --locked --quiet -p nenrin-sim

simulate() {
    local wanted=$1 out distinct
    shift
    echo "nenrin-sim run $*, $wanted images"
    out=$(target/release/nenrin-sim run --seeds 0..1000000 --images "$wanted" --minutes "$minutes" --json "$@") ||
        { echo "$out"; exit 1; }
    echo "$out"
    distinct=$(sed -n 's/.*"distinct": *\([0-9]*\).*/\1/p' <<<"$out" | head -1)
    [ "${distinct:-0}" -ge "$wanted" ] || { echo "only ${distinct:-0} distinct images in $minutes minutes"; exit 1; }
}

simulate "$images"
simulate $((images / 10)) --order strict
simulate $((images / 10)) --barrier checkpoint
