#!/usr/bin/env bash
# bench-turns.sh BEFORE AFTER: two builds of nenrin in turns, so that a change is told from the machine's moods (decisions 0025, 0031).
# As root, on an idle machine: a minute for each of 2 x TURNS runs. TURNS (5); ROWS of the suite sync, with a comma between them;
# CONTENDERS (raw,ext4,nenrin); SLICES (4); SIZE (1G); DIR (/var/tmp) where images lie; OUT (bench-results/turns) where raw results go.
# For example: scripts/bench-turns.sh ~/nenrin.main target/release/nenrin
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ "$(id -u)" = 0 ] || fail "bench-turns.sh: must be run as root, since it makes loop devices"
if [ $# -ne 2 ] || [ ! -x "$1" ] || [ ! -x "$2" ]; then fail "bench-turns.sh: two programs are wanted, see its first lines"; fi
before=$(realpath "$1") after=$(realpath "$2")
find_cargo
"$CARGO" build --release --locked --quiet -p nenrin-bench
bench=$(release)/nenrin-bench
out=${OUT:-$PWD/bench-results/turns}
mkdir -p "$out"
dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-turns.XXXXXX")
switch=/sys/module/fuse/parameters/enable_uring
had=$(cat "$switch" 2>/dev/null || true)
trap 'rm -rf "$dir"; [ -z "$had" ] || echo "$had" >"$switch"' EXIT
contenders=${CONTENDERS:-raw,ext4,nenrin}
case "$contenders" in *uring*) echo Y >"$switch" ;; esac
rows=${ROWS:-append-fsync-1,append-fsync-4,append-fsync-16,overwrite-fdatasync-1,overwrite-fdatasync-4}
for turn in $(seq "${TURNS:-5}"); do
    for name in before after; do
        program=$before
        [ $name = before ] || program=$after
        "$bench" --nenrin "$program" --suite sync --only "$rows" --contenders "$contenders" \
            --slices "${SLICES:-4}" --size "${SIZE:-1G}" --dir "$dir/work" --out "$dir/out" --keep-images >"$dir/log" 2>&1 ||
            { tail -5 "$dir/log" >&2; fail "bench-turns.sh: turn $turn of the program $name failed"; }
        mv "$dir/out/results.json" "$out/$name-$turn.json"
    done
done
python3 scripts/work/turns.py "$out"
