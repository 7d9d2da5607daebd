#!/usr/bin/env bash
# sync-stages.sh [PROGRAM]: where the time of one program's write and sync goes, by the kernel's tracepoints (decisions 0022, 0025, 0031, 0032).
# As root, on an idle machine. SECONDS_TRACED (4); OPTIONS of the mount; SIZE (1G) of the image; DIR (/var/tmp) where it lies; OUT for JSON.
# HOGS (0) programs want a processor all the time beside it.
# Tracing costs some microseconds of each operation: compare what was traced with what was traced.
# For example: OPTIONS=nopoll scripts/sync-stages.sh target/release/nenrin
set -euo pipefail
program=${1:+$(realpath "$1")} OUT=${OUT:+$(realpath "$OUT")}
cd "$(dirname "$0")/.."
. scripts/lib.sh
program=${program:-$(release)/nenrin}
[ "$(id -u)" = 0 ] || fail "sync-stages.sh: must be run as root, since it makes a loop device and traces the kernel"
[ -x "$program" ] || fail "sync-stages.sh: build first (make build), or name the program"
# Not every machine has it mounted.
tracing=
if [ ! -d /sys/kernel/tracing/events ] && mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null; then tracing=yes; fi
trap '[ -z "$tracing" ] || umount /sys/kernel/tracing' EXIT
[ -d /sys/kernel/tracing/events/fuse ] || fail "sync-stages.sh: this kernel shows no tracepoints of fuse in /sys/kernel/tracing"
dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-stages.XXXXXX")
loop= hogs=()
cleanup() {
    kill "${hogs[@]}" 2>/dev/null || true
    "$program" umount "$dir/mnt" >/dev/null 2>&1 || true
    [ -z "$loop" ] || losetup --detach "$loop" || true
    rm -rf --one-file-system "$dir"
    [ -z "$tracing" ] || umount /sys/kernel/tracing || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM
# Written, as a disk is: a first write to a file that only reserves costs its file system more.
truncate --size "${SIZE:-1G}" "$dir/image"
dd if=/dev/zero of="$dir/image" bs=1M count=$(($(stat --format %s "$dir/image") >> 20)) conv=notrunc,fsync status=none
loop=$(losetup --find --show "$dir/image")
mkdir "$dir/mnt"
"$program" mkfs "$loop" >/dev/null
"$program" mount ${OPTIONS:+-o "$OPTIONS"} "$loop" "$dir/mnt"
for _ in $(seq "${HOGS:-0}"); do
    sh -c 'while :; do :; done' &
    hogs+=($!)
done
python3 scripts/work/sync_stages.py "$dir/mnt" "$loop" "${SECONDS_TRACED:-4}" ${OUT:+"$OUT"}
