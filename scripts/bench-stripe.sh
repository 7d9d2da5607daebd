#!/usr/bin/env bash
# bench-stripe.sh: what several devices give, beside btrfs with the same profiles and ext4, into
# docs/benchmarks/stripe.md with plots and raw results. As root; about an hour on an idle machine, and 50 GB of room in DIR.
# QUICK=1 takes 2 minutes and says little. PARTS (limited unlimited changes) leaves one out: its last result stays. SLICES (3)
# for each contender and row; IOPS (250) and BPS (20000000) of each device in the limited part; SIZE (1G) of each device: with less, segments of
# two devices are too small for long runs to begin at units;
# CONTENDERS and ONLY as for nenrin-bench; DIR (/var/tmp) where images lie; OUT where results go.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
out=${OUT:-$PWD/docs/benchmarks/stripe} parts=" ${PARTS:-limited unlimited changes} "
slices=${SLICES:-3} iops=${IOPS:-250} bps=${BPS:-20000000} size=${SIZE:-1G} limited_ms=1500 unlimited_ms=400
contenders=${CONTENDERS:-} only=${ONLY:-}
if [ -n "${QUICK:-}" ]; then
    slices=1 limited_ms=600 unlimited_ms=200
    contenders=${CONTENDERS:-ext4,nenrin,nenrin@4,nenrin@4:parity,btrfs@4}
fi
known "$parts" limited unlimited changes
[ "$(id -u)" = 0 ] || fail "bench-stripe.sh: must be run as root, since it makes and mounts file systems"
scripts/setup.sh bench-stripe
find_cargo
export NENRIN=${NENRIN:-$(release)/nenrin}
"$CARGO" build --release --locked --quiet -p nenrin-bench
bench=$(release)/nenrin-bench
mkdir -p "$out"
dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-stripe.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
# harness PART OPTION...
harness() {
    local part=$1
    shift
    case $parts in *" $part "*) ;; *) return 0 ;; esac
    say "$part"
    "$bench" --suite stripe --nenrin "$NENRIN" --slices "$slices" --size "$size" --dir "$dir/work" --keep-images \
        ${contenders:+--contenders "$contenders"} ${only:+--only "$only"} --out "$dir/$part" "$@" >"$dir/$part.txt" ||
        { tail -n 5 "$dir/$part.txt" >&2; say "some of it failed: the table says what" >&2; }
    cp "$dir/$part/results.json" "$out/$part.json"
}
harness limited --slice-ms "$limited_ms" --limit-iops "$iops" --limit-bps "$bps" --gate-wait 500
harness unlimited --slice-ms "$unlimited_ms" --gate-wait 500
case $parts in *" changes "*)
    say changes
    mkdir "$dir/changes"
    python3 scripts/work/device_changes.py --nenrin "$NENRIN" --dir "$dir/changes" --out "$out/changes.json" >"$dir/changes.txt"
    ;;
esac
python3 scripts/work/bench_stripe.py "$out"
say "docs/benchmarks/stripe.md is written"
