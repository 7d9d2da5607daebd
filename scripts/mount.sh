#!/bin/sh
# mount.sh IMAGE SIZE DIR: makes a volume in IMAGE if there is none, and mounts
# it at DIR. Doing it again changes nothing.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
image=$1 size=$2 dir=$3
nenrin=$(release)/nenrin

# The kernel still knows the attributes of a dead mount, so ask its program.
if mountpoint -q "$dir" && stat -f "$dir" >/dev/null 2>&1; then
    say "$dir is a mount point already. Try:"
else
    [ -e "$image" ] || "$nenrin" mkfs --size "$size" "$image"
    mkdir -p "$dir" 2>/dev/null || true   # a dead mount is there and cannot be made; mount clears it
    "$nenrin" mount "$image" "$dir"
    say "$image is mounted at $dir. Try:"
fi
# What is to be typed: where the program is within the repository, by its short name.
nenrin=$(quoted "${nenrin#"$PWD"/}") image=$(quoted "$image") dir=$(quoted "$dir")
cat <<T
    echo hello > $dir/note; $nenrin snapshot create $dir first; echo bye > $dir/note
    mkdir -p past; $nenrin mount -o at=first $image past; cat past/note; $nenrin umount past
    $nenrin checkpoint list $dir
    $nenrin info $dir
    make umount; $nenrin check $image --data
T
