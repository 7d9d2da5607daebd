#!/usr/bin/env bash
# fill.sh ROUNDS STEPS SIZE [RULED]: random creates, overwrites, truncations, removals, copies that share, snapshots and their
# deletion while the volume is 90 to 100 % full. After each round every file is right, before and after a
# remount, `check --data` is clean, and once all is removed as much is available as after mkfs, and can be filled again.
# Of RULED rounds the first (0: none) has a short rule for keeping checkpoints, which acts after ten minutes of a mount, so such
# a round takes twelve; checkpoints are deleted besides, and what is kept must show what it showed.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
rounds=${1:-1} steps=${2:-1500} size=${3:-256M} ruled=${4:-0}
need python3
begin fill
# What is available after mkfs is what every round must give back.
fresh() {
    volume "$size"
    up
    echo $(($(stat -f -c '%a * %S' "$MNT"))) >"$W/empty"
    down
    rm -f "$W"/{seconds,regained,ruled,thinned}
    echo 0 >"$W/round"
}
[ -e "$W/round" ] && [ -e "$W/empty" ] || fresh
number() { cat "$W/$1" 2>/dev/null || echo 0; }
add() { echo $(($(number "$1") + $2)) >"$W/$1"; }
told() {
    figure "rounds of filling and deleting, $steps steps each" "$(number round)"
    figure "seconds that they took in sum" "$(number seconds)"
    [ ! -e "$W/regained" ] || figure "least available once all was removed, of 1,000 after mkfs" "$(number regained)"
    [ "$ruled" = 0 ] || figure "of these rounds with a short rule; checkpoints that it let go" "$(number ruled); $(number thinned)"
}
work() {
    if [ "$ruled" -gt 0 ] && [ $((round % ruled)) = 0 ]; then
        up checkpoint=1
        thinned=$(python3 "$HERE/fill_rule.py" "$MNT" "$W/model" "${SEED:-$round}" "$steps" "$NENRIN")
        [ "$thinned" -gt 0 ] || wrong "the rule let no checkpoint go"
        add ruled 1
        add thinned "$thinned"
    else
        up
        "$NENRIN" retention set "$MNT" default >/dev/null
        python3 "$HERE/fill.py" work "$MNT" "$W/model" "${SEED:-$round}" "$steps" "$NENRIN"
    fi
}
round=$(number round)
while [ "$round" -lt "$rounds" ]; do
    time_left || { told; exit 75; }
    began=$SECONDS
    # A round that was stopped in the middle begins anew.
    up
    "$NENRIN" snapshot list --json "$MNT" | sed -n 's/^ *"name": "\(.*\)",*$/\1/p' | while read -r name; do
        "$NENRIN" snapshot delete "$MNT" "$name"
    done
    find "$MNT" -mindepth 1 -delete
    down
    work
    python3 "$HERE/fill.py" verify "$MNT" "$W/model"
    down
    checked
    up
    python3 "$HERE/fill.py" verify "$MNT" "$W/model"
    left=$(python3 "$HERE/fill.py" empty "$MNT" "$W/model" "$NENRIN" "$(number empty)")
    [ -e "$W/regained" ] && [ "$left" -ge "$(number regained)" ] || echo "$left" >"$W/regained"
    down
    checked
    round=$((round + 1))
    echo "$round" >"$W/round"
    add seconds $((SECONDS - began))
done
told
