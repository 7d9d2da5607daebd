#!/bin/sh
# umount.sh DIR: undoes mount.sh; the image stays.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
dir=$1
# Not with mountpoint(1): a dead mount is none for it.
path=$(cd "$(dirname "$dir")" && pwd -P)/$(basename "$dir")
if grep -qF " $path fuse" /proc/mounts; then
    target/release/nenrin umount "$dir"
else
    say "Nothing is mounted at $dir."
fi
rmdir "$dir" 2>/dev/null || true
