#!/usr/bin/env bash
# past.sh STATES OPERATIONS: states of the past, by number and by name, ten thousand
# operations later, beside the live mount and alone: each equals the copy that was kept outside.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
states=${1:-1} operations=${2:-10000}
need python3 rsync getfattr getfacl
begin past
rm -rf --one-file-system "$W"/copy.* "$W"/was
mkdir -p "$W/was"
flags="-aHAXS --modify-window=-1"
is_root || flags="-aHXS --modify-window=-1"

volume "${PAST_SIZE:-2G}"
up
python3 "$HERE/ops.py" "$MNT/work" 3000 1
if is_root; then python3 "$HERE/tree.py" special "$MNT/special"; fi
declare -a number
for ((s = 0; s < states; s++)); do
    # By number and by name in turn.
    if [ $((s % 2)) = 0 ]; then
        number[s]=$("$NENRIN" checkpoint create "$MNT" | grep -o '^[0-9]*')
    else
        "$NENRIN" snapshot create "$MNT" "state-$s" >/dev/null
    fi
    rsync $flags "$MNT/" "$W/copy.$s/"
    begin_ms=$(now_ms)
    python3 "$HERE/ops.py" "$MNT/work" "$operations" $((s + 2))
    figure "$operations operations, s" "$((($(now_ms) - begin_ms) / 1000))"
    ! time_left && [ $s -gt 0 ] && { states=$((s + 1)); break; }
done
"$NENRIN" snapshot create "$MNT" last >/dev/null
rsync $flags "$MNT/" "$W/copy.last/"
rm -rf "$MNT/special" "$MNT"/work/*[0-7]

look() {
    "$NENRIN" mount -o "$(mount_options "$1")" "$IMG" "$W/was" >/dev/null
    same "$2" "$W/was"
    ! touch "$W/was/x" 2>/dev/null || wrong "the past can be written to"
    "$NENRIN" umount "$W/was" 2>/dev/null
}
every() {
    local s
    for ((s = 0; s < states; s++)); do
        [ -d "$W/copy.$s" ] || continue
        if [ $((s % 2)) = 0 ]; then look "cp=${number[s]}" "$W/copy.$s"; else look "at=state-$s" "$W/copy.$s"; fi
    done
    look at=last "$W/copy.last"
}
begin_ms=$(now_ms)
every
figure "$((states + 1)) states equal, beside the live mount, s" "$((($(now_ms) - begin_ms) / 1000))"
# While the live one goes on changing.
python3 "$HERE/ops.py" "$MNT/work" 3000 99 &
ops=$!
every
wait $ops
figure "checkpoints kept" "$("$NENRIN" checkpoint list "$MNT" | wc -l)"
down
every
figure "the same with nothing else mounted" ok
checked
# A snapshot that is let go is gone; the others stay.
up
"$NENRIN" snapshot delete "$MNT" last >/dev/null
! "$NENRIN" mount -o at=last "$IMG" "$W/was" 2>/dev/null || wrong "a deleted snapshot is still there"
look "cp=${number[0]}" "$W/copy.0"
down
checked
