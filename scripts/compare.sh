#!/usr/bin/env bash
# compare.sh: what file systems write for the same work, into docs/COMPARISON.md and
# docs/comparison. As root. SIZE (8G) is for the file systems of this kernel, WORK_SIZE
# (512M) for small files, database and log, GUEST_SIZE (1G) for the virtual machine
# with those it lacks; GUEST=no leaves that out. IMAGE_DIR says where images are made.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
nenrin=${NENRIN:-$PWD/target/release/nenrin}
out=${OUT:-$PWD/docs/comparison}
size=${SIZE:-8G} work_size=${WORK_SIZE:-512M} guest_size=${GUEST_SIZE:-1G} runs=${RUNS:-1}
[ "$(id -u)" = 0 ] || fail "compare.sh: must be run as root, since it makes and mounts file systems"
mkdir -p "$out"
dir=$(mktemp -d "${IMAGE_DIR:-/var/tmp}/nenrin-compare.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# Those of the list that can be made and mounted here.
here=
for fs in ext4 ext4-full xfs btrfs nenrin; do
    type=${fs%-full}
    [ "$fs" = nenrin ] || { command -v "mkfs.$type" >/dev/null && { modprobe -q "$type" 2>/dev/null; grep -qw "$type" /proc/filesystems; }; } || continue
    here="$here${here:+,}$fs"
done
say "here: $here"
TMPDIR=$dir "$nenrin" compare --fs "$here" --pattern seq,rand --size "$size" --runs "$runs" --markdown "$out/large.md" --html "$out/large.html"
TMPDIR=$dir "$nenrin" compare --fs "$here" --pattern small,db,log --size "$work_size" --runs "$runs" --markdown "$out/work.md" --html "$out/work.html"
if [ "${GUEST:-yes}" = yes ]; then
    OUT=$dir/guest scripts/guest/compare.sh --fs ext4-full,xfs,btrfs,nilfs2,f2fs,exfat,jfs,nenrin --pattern seq,rand --size "$guest_size" --runs "$runs"
    for file in "$dir/guest"/compare*.{md,svg,html}; do
        cp "$file" "$out/guest${file##*/compare}"
    done
    sed -i 's|(compare-|(guest-|' "$out/guest.md"
fi
scripts/comparison.sh "$out" >docs/COMPARISON.md
say "docs/COMPARISON.md is written; pages with plots are in $out"
