#!/usr/bin/env bash
# trace-cost.sh: what recording costs the work that is recorded. As root. Two loads,
# both on a loop device over memory, each PAIRS (15) times without and with `nenrin
# trace record`, in turn; medians, spread, and whether the counts are the device's own:
#   files     fio writes and overwrites files of ext4, 4 KiB to 256 KiB, with fsyncs
#   requests  REQUESTS (200000) of 4 KiB at random places, as fast as they go
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
export NENRIN=${NENRIN:-$(release)/nenrin}
[ "$(id -u)" = 0 ] || fail "trace-cost.sh: must be run as root"
for program in fio losetup python3 mkfs.ext4; do
    command -v "$program" >/dev/null || fail "trace-cost.sh: $program is missing"
done
dir=$(mktemp -d /dev/shm/nenrin-trace-cost.XXXXXX)
loop=
cleanup() {
    ! mountpoint -q "$dir/mnt" || umount "$dir/mnt"
    [ -z "$loop" ] || losetup --detach "$loop"
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
# Written once, so that the memory is there.
dd if=/dev/zero of="$dir/disk" bs=1M count=512 status=none
loop=$(losetup --find --show "$dir/disk")
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
mkdir "$dir/mnt"
mount "$loop" "$dir/mnt"
python3 scripts/work/trace_cost.py files "$loop" "$dir" "${PAIRS:-15}" 0
umount "$dir/mnt"
python3 scripts/work/trace_cost.py requests "$loop" "$dir" "${PAIRS:-15}" "${REQUESTS:-200000}"
