#!/usr/bin/env bash
# replace.sh MIB: a mirror, and rows with parity, lose a device under load, which comes back and is brought up to date while files are
# written; a dead device and a live one of a stripe are replaced under load; the daemon is killed in the middle. Devices of MIB each.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
mib=${1:-160}
need cmp
begin replace
is_root || skip "a device that fails needs a small tmpfs, and that root"
mkdir -p "$W/kept" "$W/small"

volume_on() { # PROFILE DEVICE...
    local profile=$1
    shift
    "$NENRIN" mkfs --sparse --size "${mib}M" --profile "$profile" "$@" >/dev/null
}
up_on() { # DEVICES [OPTIONS]
    IMG=${1%%,*}
    "$NENRIN" mount -o "$(mount_options "${2:-}")" --log "$LOG" "$1" "$MNT"
}

# bulk MIB: something that takes a while to bring over.
bulk() { head -c "$1M" /dev/urandom >"$W/kept/bulk"; cp "$W/kept/bulk" "$MNT/bulk"; sync "$MNT/bulk"; }
# Writes files, keeps what they hold outside, and syncs; until stopped.
writing() {
    (
        n=0
        while [ ! -e "$W/stop" ]; do
            n=$((n + 1))
            name=$1.$((n % 40))
            head -c $((5000 + n * 7919 % 300000)) /dev/urandom >"$W/next"
            cp "$W/next" "$MNT/$name"
            sync "$MNT/$name"
            mv "$W/next" "$W/kept/$name"
            echo "$n" >"$W/written"
        done
    ) &
    WRITER=$!
    PIDS+=("$WRITER")
}
stop_writing() {
    touch "$W/stop"
    wait "$WRITER" || wrong "a file could not be written"
    rm "$W/stop"
    figure "$1: files written and synced meanwhile" "$(cat "$W/written")"
}
verified() { # DEVICE...
    local f
    for f in "$W"/kept/*; do cmp "$f" "$MNT/${f##*/}" || wrong "$f differs"; done
    down
    "$NENRIN" check --data "$@" >"$W/check.out" 2>&1 || { cat "$W/check.out" >&2; wrong "check $*"; }
}
state() { "$NENRIN" device list "$MNT" | awk -v n="$1" '$1 == n { print $2 }'; }
becomes() { # NUMBER STATE
    local end=$((SECONDS + 40))
    until [ "$(state "$1")" = "$2" ]; do
        [ $SECONDS -lt $end ] || { "$NENRIN" device list "$MNT" >&2; wrong "device $1 does not become $2"; }
        sleep 0.1
    done
}
refused() { # WORDS COMMAND...
    local words=$1
    shift
    ! "$@" >"$W/said" 2>&1 || wrong "was not refused: $*"
    grep -qi "$words" "$W/said" || { cat "$W/said" >&2; wrong "said something else: $*"; }
}

for profile in mirror parity; do
more=()
[ $profile = mirror ] || more=("$W/p.img")
and=${more:+,$more}
# A device fails under load.
mount -t tmpfs -o size=$((mib + 20))M none "$W/small"
a=$W/a.img b=$W/small/b.img
volume_on $profile "$a" "$b" "${more[@]}"
up_on "$a,$b$and"
bulk $((mib / 3))
writing first
sleep 1
dd if=/dev/zero of="$W/small/full" bs=1M status=none 2>/dev/null || true
becomes 2 absent
sleep 1
stop_writing "$profile: without a device"
"$NENRIN" info "$MNT" | grep -q 'device 2.*is absent' || wrong "info does not name the device"
down
rm "$W/small/full"
# It is back, and files are written while it is brought up to date.
up_on "$a,$b$and"
writing second
becomes 2 active
stop_writing "$profile: while a device is brought up to date"
verified "$a" "$b" "${more[@]}"
up_on "$b$and" degraded
IMG=$b
for f in "$W"/kept/*; do cmp "$f" "$MNT/${f##*/}" || wrong "$f on the device that was away"; done
down

# It is gone for good (and what went on with b alone is all there is).
c=$W/c.img
mv "$a" "$W/gone.img"
truncate -s "${mib}M" "$c"
up_on "$b$and" degraded
truncate -s 20M "$W/short.img"
cp "$(command -v cmp)" "$W/foreign.img"
truncate -s "${mib}M" "$W/foreign.img"
refused 'too small' "$NENRIN" device replace "$MNT" 1 "$W/short.img"
refused 'force' "$NENRIN" device replace "$MNT" 1 "$W/foreign.img"
refused 'already' "$NENRIN" device replace "$MNT" 1 "$b"
refused 'no device of this volume' "$NENRIN" device replace "$MNT" 7 "$c"
refused 'is not there' "$NENRIN" device replace "$MNT" 1 "$W/nothing.img"
writing third
"$NENRIN" device replace --json "$MNT" 1 "$c" >"$W/said"
grep -q '"done": true' "$W/said" || wrong "$(cat "$W/said")"
becomes 1 active
stop_writing "$profile: while a dead device is replaced"
verified "$b" "$c" "${more[@]}"
# The old one is back: it is told, and not used.
mv "$W/gone.img" "$a"
up_on "$a,$b,$c$and" >"$W/said" 2>&1
grep -q 'has been replaced' "$W/said" || { cat "$W/said" >&2; wrong "nothing is said of the old device"; }
down
umount "$W/small"
rm -f "$W"/kept/* "$W"/*.img
done

# A live device of a stripe; at first the daemon is killed in the middle.
x=$W/x.img y=$W/y.img z=$W/z.img
volume_on stripe "$x" "$y"
truncate -s "${mib}M" "$z"
up_on "$x,$y"
bulk "$mib"
writing fourth
sleep 0.5
DAEMON=$(daemon_pid)
"$NENRIN" device replace "$MNT" "$x" "$z" >/dev/null 2>&1 &
asker=$!
until [ "$(state 1)" = active ] && "$NENRIN" device list "$MNT" | grep -q 'being replaced'; do
    kill -0 $asker 2>/dev/null || break
    sleep 0.02
done
kill -9 "$WRITER"; wait "$WRITER" 2>/dev/null || true
half=done
! kill -0 $asker 2>/dev/null || half="under way"
cut
wait $asker || true
figure "the replacement when the daemon was killed" "$half"
rm -f "$W/next"
rest_unmount "$W"
devices="$x,$y"
"$NENRIN" info "$x" >/dev/null 2>&1 || devices="$y,$z"
up_on "$devices"
if [ "$devices" = "$x,$y" ]; then
    writing fourth
    "$NENRIN" device replace --force "$MNT" "$x" "$z" >"$W/said"
    grep -q 'is device 1 now' "$W/said" || wrong "$(cat "$W/said")"
    stop_writing "while a live device is replaced"
fi
# The one that was written when the daemon was killed may be newer than what was kept.
differ=()
for f in "$W"/kept/*; do cmp -s "$f" "$MNT/${f##*/}" || differ+=("${f##*/}"); done
[ ${#differ[@]} -le 1 ] && [ "${differ[*]:-}" != bulk ] || wrong "files that were synced differ: ${differ[*]}"
for f in "${differ[@]}"; do rm "$W/kept/$f"; done
verified "$z" "$y"
refused 'not a nenrin volume' "$NENRIN" check "$x"
say "   replaced under load, verified, checked"
