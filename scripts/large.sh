#!/usr/bin/env bash
# large.sh: what the size of a volume costs that holds little: time to make and mount it, memory, the daemon's processor while nothing
# is done and with 200 syncs in a second, and how long these take (decision 0033). As root, on loop devices over sparse files; two minutes for all sizes.
# GIB ("8 1024 8192") sizes; SECONDS_EACH (10); DIR (/var/tmp) where the file lies; NENRIN another program.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ "$(id -u)" = 0 ] || fail "large.sh: must be run as root, since it makes loop devices"
find_cargo
[ -n "${NENRIN:-}" ] || "$CARGO" build --release --locked --quiet -p nenrin
dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-large.XXXXXX")
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2086
python3 scripts/work/large.py --nenrin "${NENRIN:-$(release)/nenrin}" --dir "$dir" --gib ${GIB:-8 1024 8192} --seconds "${SECONDS_EACH:-10}"
