#!/usr/bin/env bash
# bench-history.sh: what going back in time costs. As root, since caches are dropped. FILES (1000000) and
# BYTES (10G) say how much the volume holds, VERSIONS (1000) how often one file was saved, READ (1G) how
# much of a past version is read; DIR (/var/tmp) where the image lies; OUT where the table goes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ "$(id -u)" = 0 ] || fail "bench-history.sh: must be run as root"
command -v python3 >/dev/null || fail "bench-history.sh: python3 is missing"
export NENRIN=${NENRIN:-$(release)/nenrin}
dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-history.XXXXXX")
cleanup() {
    "$NENRIN" umount "$dir/past" >/dev/null 2>&1 || true
    "$NENRIN" umount "$dir/mnt" >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
python3 scripts/work/bench_history.py "$dir" "${FILES:-1000000}" "${BYTES:-10G}" "${VERSIONS:-1000}" "${READ:-1G}" | tee "${OUT:-docs/benchmarks/history.md}"
