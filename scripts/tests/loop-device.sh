#!/usr/bin/env bash
# A volume behind a loop device is in use for whoever comes by way of its file, or of another loop device over that, and the other
# way round; two parts of one file are two devices, and a loop device without its file is a device all the same.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
is_root || skip "needs root"
need losetup blockdev flock
begin loop-device
LOOPS=()
# loop OPTION... FILE: attaches it, as $LOOP.
loop() {
    LOOP=$(losetup --find --show "$@") || skip "losetup does not work here"
    LOOPS=("$LOOP" "${LOOPS[@]}")
}
detach() {
    rest_unmount "$W"
    local l
    for l in "${LOOPS[@]}"; do losetup --detach "$l" 2>/dev/null || true; done
}
trap 'code=$?; set +e; trap - ERR; detach; (exit $code); finish' EXIT
# refused COMMAND...: as something in use, soon.
refused() {
    local code=0 begin=$SECONDS
    "$@" >"$W/refused.out" 2>&1 || code=$?
    [ $code -ne 0 ] || wrong "not refused: $*"
    [ "$(wc -l <"$W/refused.out")" = 1 ] && grep -q "in use by nenrin (pid" "$W/refused.out" || { cat "$W/refused.out" >&2; wrong "$*"; }
    [ $((SECONDS - begin)) -lt 8 ] || wrong "waited long: $*"
}
# What one way has written another one may have in the kernel's cache as it was before.
fresh() { local l; for l in "${LOOPS[@]}"; do blockdev --flushbufs "$l"; done; }
image() { rm -f "$1"; truncate -s "$2" "$1"; }
mkdir "$W/m2"
# held ONE OTHER...: while ONE is mounted nothing is done to the others, and they stand for the volume.
held() {
    local one=$1 other
    shift
    fresh
    "$NENRIN" mount --log "$LOG" "$one" "$MNT"
    echo "of $one" >"$MNT/file"
    for other in "$@"; do
        refused "$NENRIN" mount "$other" "$W/m2"
        refused "$NENRIN" mount -o ro "$other" "$W/m2"
        refused "$NENRIN" mkfs --force "$other"
        refused "$NENRIN" check "$other"
        [ "$("$NENRIN" info --json "$other" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p')" = \
            "$("$NENRIN" info --json "$one" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p')" ] || wrong "another owner of $other"
    done
    [ "$(cat "$MNT/file")" = "of $one" ] || wrong "not what was written"
    "$NENRIN" umount "$MNT"
    fresh
    for other in "$one" "$@"; do
        "$NENRIN" check --data "$other" >"$W/check.out" 2>&1 || { cat "$W/check.out" >&2; wrong "check of $other"; }
    done
}

raw=$W/lo.raw
image "$raw" 300M
loop "$raw"
first=$LOOP
loop "$raw"
second=$LOOP
loop "$first"
above=$LOOP
"$NENRIN" mkfs "$first" >/dev/null
ln "$raw" "$W/linked.raw"
ln -s lo.raw "$W/symlink.raw"
held "$first" "$raw" "$second" "$above" "$W/linked.raw" "$W/symlink.raw"
held "$raw" "$first" "$second" "$above"
held "$second" "$raw" "$first" "$above"
held "$above" "$raw" "$first" "$second"
figure "ways to one file, each while the volume is mounted by another" "4 times 3"
# One state of the past beside the live mount, by another way: its owner shows it.
fresh
"$NENRIN" mount --log "$LOG" "$first" "$MNT"
"$NENRIN" snapshot create "$MNT" before >/dev/null
"$NENRIN" mount -o at=before "$raw" "$W/m2" >/dev/null
[ "$(cat "$W/m2/file")" = "of $above" ] || wrong "another state"
"$NENRIN" umount "$W/m2"
# No longer than the mount, however that ends.
"$NENRIN" umount "$MNT"
"$NENRIN" mount --log "$LOG" "$first" "$MNT"
DAEMON=$("$NENRIN" info --json "$first" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p')
cut
umount -l "$MNT"
"$NENRIN" mount --log "$LOG" "$raw" "$MNT"
"$NENRIN" umount "$MNT"
# One that holds the lock for other reasons is told, too.
flock -F "$raw" sleep 60 &
PIDS+=($!)
while flock -n "$raw" true; do sleep 0.05; done
"$NENRIN" mount "$first" "$MNT" 2>"$W/refused.out" && wrong "not refused while flock has the file"
grep -q "in use by" "$W/refused.out" || wrong "$(cat "$W/refused.out")"
kill "${PIDS[-1]}"
wait "${PIDS[-1]}" 2>/dev/null || true
PIDS=()

# One file named twice is no mirror.
for pair in "$first $raw" "$raw $second" "$first $second"; do
    # shellcheck disable=SC2086 # two words
    "$NENRIN" mkfs --force --profile mirror $pair >"$W/refused.out" 2>&1 && wrong "a mirror of one file"
    grep -q "named twice" "$W/refused.out" || wrong "$(cat "$W/refused.out")"
done

# Two halves of a file are two devices, also beside each other in one volume; the file is both.
halves=$W/halves.raw
image "$halves" 600M
loop --sizelimit $((300 << 20)) "$halves"
low=$LOOP
loop --offset $((300 << 20)) "$halves"
high=$LOOP
loop --offset $((300 << 20)) "$halves"
again=$LOOP
"$NENRIN" mkfs --profile mirror "$low" "$high" >/dev/null
"$NENRIN" mount --log "$LOG" "$low,$high" "$MNT"
for other in "$halves" "$again"; do
    "$NENRIN" mkfs --force "$other" >"$W/refused.out" 2>&1 && wrong "$other was made anew"
    grep -q "in use by nenrin (pid" "$W/refused.out" || wrong "$(cat "$W/refused.out")"
done
"$NENRIN" check "$halves" >"$W/refused.out" 2>&1 && wrong "$halves was checked"
grep -q "in use by nenrin (pid" "$W/refused.out" || wrong "$(cat "$W/refused.out")"
"$NENRIN" umount "$MNT"
"$NENRIN" mkfs --force "$low" >/dev/null
"$NENRIN" mkfs --force "$high" >/dev/null
"$NENRIN" mount --log "$LOG" "$low" "$MNT"
"$NENRIN" mount --log "$LOG" "$high" "$W/m2"
echo two >"$W/m2/file"
echo one >"$MNT/file"
"$NENRIN" umount "$W/m2"
"$NENRIN" umount "$MNT"

# A file that nobody reaches any more, or whose name another one has.
gone=$W/gone.raw
image "$gone" 300M
loop "$gone"
"$NENRIN" mkfs "$LOOP" >/dev/null
mv "$gone" "$W/moved.raw"
image "$gone" 1M
held "$LOOP" "$W/moved.raw"
rm "$W/moved.raw" "$gone"
"$NENRIN" mount --log "$LOG" "$LOOP" "$MNT"
echo still >"$MNT/file"
"$NENRIN" umount "$MNT"
"$NENRIN" check "$LOOP" >/dev/null
figure "parts of a file, and one that was deleted" "used as devices"
