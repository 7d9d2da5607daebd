#!/usr/bin/env bash
# compare.sh: what file systems write for the same work, into docs/COMPARISON.md and
# docs/comparison. As root. SIZE (8G) is for the file systems of this kernel, WORK_SIZE
# (512M) for small files, database and log, GUEST_SIZE (1G) for the virtual machine, in
# which all run. IMAGE_SIZE (10G) is that of every device; IMAGE_DIR says where images are
# made; RUNS (3) how often each is run. PARTS (large work guest guest-work) leaves some out:
# their last results stay in the document.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
nenrin=${NENRIN:-$(release)/nenrin}
out=${OUT:-$PWD/docs/comparison}
size=${SIZE:-8G} work_size=${WORK_SIZE:-512M} guest_size=${GUEST_SIZE:-1G} runs=${RUNS:-3}
image_size=${IMAGE_SIZE:-10G} parts=" ${PARTS:-large work guest guest-work} "
known "$parts" large work guest guest-work
[ "$(id -u)" = 0 ] || fail "compare.sh: must be run as root, since it makes and mounts file systems"
mkdir -p "$out"
dir=$(mktemp -d "${IMAGE_DIR:-/var/tmp}/nenrin-compare.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# Those of the list that can be made and mounted here.
list=
for fs in ext4 ext4-full xfs btrfs nenrin; do
    type=${fs%-full}
    [ "$fs" = nenrin ] || { command -v "mkfs.$type" >/dev/null && { modprobe -q "$type" 2>/dev/null; grep -qw "$type" /proc/filesystems; }; } || continue
    list="$list${list:+,}$fs"
done
wanted() { case $parts in *" $1 "*) ;; *) return 1 ;; esac; }
# here PART PATTERNS SIZE: on this kernel.
here() {
    wanted "$1" || return 0
    say "$1: $list"
    TMPDIR=$dir "$nenrin" compare --fs "$list" --pattern "$2" --size "$3" --image-size "$image_size" --runs "$runs" \
        --markdown "$out/$1.md" --html "$out/$1.html"
}
# guest PART PATTERNS SIZE: in the virtual machine.
guest() {
    wanted "$1" || return 0
    say "$1: in a virtual machine"
    OUT=$dir/guest DISK_GIB=$((${image_size%G})) scripts/guest/compare.sh --fs ext4-full,xfs,btrfs,nilfs2,f2fs,exfat,jfs,nenrin \
        --pattern "$2" --size "$3" --runs "$runs"
    for file in "$dir/guest"/compare*.{md,svg,html}; do
        cp "$file" "$out/$1${file##*/compare}"
    done
    sed -i "s|(compare-|($1-|" "$out/$1.md"
}
here large seq,rand "$size"
here work small,db,log "$work_size"
guest guest seq,rand "$guest_size"
guest guest-work small,db,log "$work_size"
scripts/comparison.sh "$out" >docs/COMPARISON.md
say "docs/COMPARISON.md is written; pages with plots are in $out"
