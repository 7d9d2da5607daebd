#!/bin/sh
# umount.sh DIR: undoes mount.sh; the image stays.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
dir=$1
# A dead mount is no mount point for mountpoint(1), and cannot be looked at.
if mountpoint -q "$dir" || { ls -d "$(dirname "$dir")" && ! stat "$dir" 2>&1 | grep -q 'No such file' && ! stat "$dir"; } >/dev/null 2>&1; then
    target/release/nenrin umount "$dir"
else
    say "Nothing is mounted at $dir."
fi
rmdir "$dir" 2>/dev/null || true
