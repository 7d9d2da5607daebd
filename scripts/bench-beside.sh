#!/usr/bin/env bash
# bench-beside.sh SYNCERS WRITERS [PROGRAM...]: programs that append 4 KiB and sync, beside programs that write files of 100 MB as fast as
# they can, on ext4 and on nenrin, by each of these builds, in turns (decision 0034). As root, on an idle machine.
# ROUNDS (3) of SECONDS_EACH (4); SIZE (2G) of each image; DIR (/var/tmp) where they lie; OUT for JSON.
# For example: scripts/bench-beside.sh 1 1 ~/nenrin.main target/release/nenrin
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
syncers=$1 writers=$2 programs=() OUT=${OUT:+$(realpath "$OUT")}
shift 2
for program in "$@"; do programs+=("$(realpath "$program")"); done
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ ${#programs[@]} != 0 ] || programs=("$(release)/nenrin")
[ "$(id -u)" = 0 ] || fail "bench-beside.sh: must be run as root, since it makes and mounts file systems"
for program in "${programs[@]}"; do [ -x "$program" ] || fail "bench-beside.sh: $program is no program: build first (make build)"; done
dir=$(mktemp -d "${DIR:-/var/tmp}/nenrin-beside.XXXXXX")
loops=() mounts=()
cleanup() {
    for mount in "${mounts[@]}"; do umount "$mount" 2>/dev/null || true; done
    # A daemon lets its device go when it has written all.
    sync
    for loop in "${loops[@]}"; do losetup --detach "$loop" || true; done
    rm -rf --one-file-system "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
# place NAME: a loop device, every block of which was written, and a directory.
place() {
    truncate --size "${SIZE:-2G}" "$dir/$1.image"
    dd if=/dev/zero of="$dir/$1.image" bs=1M count=$(($(stat --format %s "$dir/$1.image") >> 20)) conv=notrunc,fsync status=none
    loop=$(losetup --find --show --direct-io=on "$dir/$1.image")
    loops+=("$loop")
    mkdir "$dir/$1"
    mounts+=("$dir/$1")
}
place ext4
mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$loop"
mount "$loop" "$dir/ext4"
for n in "${!programs[@]}"; do
    place "nenrin-$n"
    "${programs[$n]}" mkfs --force "$loop" >/dev/null
    "${programs[$n]}" mount "$loop" "$dir/nenrin-$n"
    say "nenrin-$n is ${programs[$n]}"
done
python3 scripts/work/beside.py "$syncers" "$writers" "${ROUNDS:-3}" "${SECONDS_EACH:-4}" "${OUT:-/dev/null}" "${mounts[@]}"
