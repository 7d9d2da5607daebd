#!/usr/bin/env bash
# nenrin trace on a loop device: the counts are the device's own, for ext4 and
# for a nenrin volume, of which it also tells what each write was.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
is_root || skip "tracing needs root"
need losetup mkfs.ext4 python3 dd
begin trace
disk=$W/disk
truncate -s 256M "$disk"
loop=$(losetup --find --show "$disk") || skip "losetup does not work here"
cleanup() {
    local code=$?
    set +e
    rest_unmount "$W"
    losetup --detach "$loop"
    ( exit "$code" )
    finish
}
trap cleanup EXIT

record() { "$NENRIN" trace record --device "$loop" -o "$1" -- bash -euc "$2" 2>"$W/said" || { cat "$W/said" >&2; return 1; }; }
record "$W/try" true || { grep -Eq 'tracefs|tracepoint' "$W/said" && skip "no tracefs"; exit 1; }
# field FILE EXPRESSION: of the report, as python
field() { "$NENRIN" trace report --json "${@:3}" "$1" | python3 -c "import json,sys; r=json.load(sys.stdin)[0]; print($2)"; }
written() { local n; read -r -a n <"/sys/block/${loop#/dev/}/stat"; echo $((n[6] * 512)); }
load='dd if=/dev/urandom of='"$MNT"'/f bs=1M count=32 conv=fsync status=none'

mkfs.ext4 -q -F "$loop"
before=$(written)
record "$W/ext4" "mount $loop $MNT; $load; umount $MNT"
[ "$(field "$W/ext4" 'r["written_bytes"]')" = $(($(written) - before)) ] || wrong "ext4: bytes differ from the device's"
[ "$(field "$W/ext4" 'r["counters_agree"], r["lost"], r["cut"]')" = "True 0 False" ] || wrong "ext4: counters differ"
figure "ext4: bytes written for 32 MiB" "$(field "$W/ext4" 'r["written_bytes"]')"

"$NENRIN" mkfs --force "$loop" >/dev/null
before=$(written)
record "$W/nenrin" "'$NENRIN' mount '$loop' '$MNT'; $load; '$NENRIN' umount '$MNT'"
[ "$(field "$W/nenrin" 'r["written_bytes"]')" = $(($(written) - before)) ] || wrong "nenrin: bytes differ from the device's"
[ "$(field "$W/nenrin" 'r["counters_agree"], r["lost"], r["cut"]')" = "True 0 False" ] || wrong "nenrin: counters differ"
[ "$(field "$W/nenrin" 'r["volume"]["files"][0]["file"], r["volume"]["files"][0]["bytes"] >= 32 << 20' --volume "$loop")" = "/f True" ] ||
    wrong "nenrin: the file's writes were not found"
[ "$(field "$W/nenrin" 'sum(v["bytes"] for v in r["volume"]["kinds"].values()) == r["written_bytes"]' --volume "$loop")" = True ] ||
    wrong "nenrin: kinds do not add up"
figure "nenrin: bytes written for 32 MiB" "$(field "$W/nenrin" 'r["written_bytes"]')"

# A recorder that gets no time, with a buffer that is too small: what the kernel dropped is counted and said.
flood='echo 4 >/sys/kernel/tracing/instances/nenrin-$PPID-0/buffer_size_kb; kill -STOP $PPID
    dd if=/dev/zero of='"$loop"' bs=4k count=4000 oflag=direct status=none; kill -CONT $PPID'
record "$W/lost" "$flood"
read -r lost issued completed agree < <(field "$W/lost" 'r["lost"], r["write_requests"], r["counted"][0]["writes"], r["counters_agree"]' | tr -d '(),')
{ [ "$lost" -gt 0 ] && [ "$agree" = False ]; } || wrong "lost events: $lost reported, counters agree: $agree"
[ $((lost + issued + completed)) = 8000 ] || wrong "of 8000 events $lost are lost, $issued and $completed are there"
"$NENRIN" trace report "$W/lost" | grep -q "$lost events LOST: counts are too low" || wrong "the report does not say what was lost"
figure "a starved recorder: events lost, counted, of 8000" "$lost, $((issued + completed))"

"$NENRIN" trace report --html "$W/page.html" "$W/ext4" "$W/nenrin" >/dev/null
grep -q '<svg' "$W/page.html" && ! grep -q 'https\?:' "$W/page.html" || wrong "the page needs something from outside"
! ls /sys/kernel/tracing/instances | grep -q "nenrin-" || say "   note: somebody else is recording"
echo "trace: the counts are the device's own"
