#!/bin/sh
# umount.sh DIR: undoes mount.sh; the image stays.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
dir=$1
nenrin=$(release)/nenrin
[ -x "$nenrin" ] || fail "$nenrin is missing: make build"
# It knows best: a dead mount is none for mountpoint(1).
if said=$("$nenrin" umount "$dir" 2>&1); then
    [ -z "$said" ] || say "$said" >&2
else
    case $said in
    *": nothing is mounted here"* | *": No such file or directory"*) say "Nothing is mounted at $dir." ;;
    *) fail "$said" ;;
    esac
fi
rmdir "$dir" 2>/dev/null || true
