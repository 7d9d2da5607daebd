#!/usr/bin/env bash
# fill.sh ROUNDS STEPS SIZE: random creates, overwrites, truncations, removals, copies that share, snapshots and their
# deletion while the volume is 90 to 100 % full. After each round every file is right, before and after a
# remount, `check --data` is clean, and once all is removed the volume can be filled again.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
rounds=${1:-1} steps=${2:-1500} size=${3:-256M}
need python3
begin fill
[ -e "$W/round" ] || { volume "$size"; echo 0 >"$W/round"; }
round=$(cat "$W/round")
while [ "$round" -lt "$rounds" ]; do
    time_left || { say "   $round of $rounds rounds so far"; exit 75; }
    # A round that was stopped in the middle begins anew.
    up
    "$NENRIN" snapshot list --json "$MNT" | sed -n 's/^ *"name": "\(.*\)",*$/\1/p' | while read -r name; do
        "$NENRIN" snapshot delete "$MNT" "$name"
    done
    find "$MNT" -mindepth 1 -delete
    python3 "$HERE/fill.py" work "$MNT" "$W/model" "${SEED:-$round}" "$steps" "$NENRIN"
    python3 "$HERE/fill.py" verify "$MNT" "$W/model"
    down
    checked
    up
    python3 "$HERE/fill.py" verify "$MNT" "$W/model"
    python3 "$HERE/fill.py" empty "$MNT" "$W/model" "$NENRIN"
    down
    checked
    round=$((round + 1))
    echo "$round" >"$W/round"
done
figure "rounds of filling and deleting, $steps steps each" "$rounds"
