#!/usr/bin/env bash
# bench-slow.sh: what is left of the rate when one of four devices becomes a hundred times slower (decision 0026).
# As root; three minutes for each profile on an idle machine. PROFILES (stripe single); IOPS (8000) of each device; ROUNDS (4); DIR (/var/tmp) where
# images lie; OUT (bench-results) where raw results go.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ "$(id -u)" = 0 ] || fail "bench-slow.sh: must be run as root, since it makes loop devices and limits them"
find_cargo
[ -n "${NENRIN:-}" ] || "$CARGO" build --release --locked --quiet -p nenrin
out=${OUT:-$PWD/bench-results}
mkdir -p "$out"
for profile in ${PROFILES:-stripe single}; do
    dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-slow.XXXXXX")
    python3 scripts/work/slow_device.py --nenrin "${NENRIN:-$(release)/nenrin}" --dir "$dir" --profile "$profile" \
        --iops "${IOPS:-8000}" --rounds "${ROUNDS:-4}" --out "$out/slow-$profile.json" || { rm -rf "$dir"; exit 1; }
    rm -rf "$dir"
done
