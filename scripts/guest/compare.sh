#!/usr/bin/env bash
# compare.sh [OPTION...]: `nenrin compare` in a virtual machine, with the file systems
# that this kernel lacks beside those that it has. Options go to nenrin compare;
# the defaults are below. Results: $OUT (target/guest/out): compare.md, *.svg,
# compare.html. DISK_GIB (10) is the size of the guest's disk.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
work=${GUEST_DIR:-$PWD/target/guest}
out=${OUT:-$work/out}
scripts/guest/setup.sh "$work"
if [ $# = 0 ]; then
    set -- --fs ext4-full,xfs,btrfs,nilfs2,f2fs,exfat,jfs,nenrin --pattern seq,rand --size 1G
fi
job=$(mktemp)
trap 'rm -f "$job"' EXIT
{
    printf 'exec nenrin compare --device /dev/vda --destroy --markdown /host/compare.md --html /host/compare.html'
    printf ' %q' "$@"
    printf '\n'
} >"$job"
scripts/guest/run.sh "$work" "$out" "${DISK_GIB:-10}" "$job"
cat "$out/out"
say "more in $out: compare.html, compare.md"
