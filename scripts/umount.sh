#!/bin/sh
# umount.sh DIR: undoes mount.sh; the image stays.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
dir=$1
nenrin=$(release)/nenrin
# By the list of mounts: a dead mount is none for mountpoint(1), and not there for test(1).
is_mounted() {
    real=$(readlink -f -- "$dir") || real=
    if [ -z "$real" ]; then
        above=$(cd "$(dirname -- "$dir")" 2>/dev/null && pwd -P) || return 1
        real=$above/$(basename -- "$dir")
    fi
    listed=$(printf %s "$real" | sed 's/\\/\\134/g; s/ /\\040/g; s/	/\\011/g')
    cut -d' ' -f5 /proc/self/mountinfo | grep -Fxq -- "$listed"
}
if [ -x "$nenrin" ]; then
    # Before, since a mount that ends without its last commit is none afterwards, either.
    was_mounted=false
    ! is_mounted || was_mounted=true
    if said=$("$nenrin" umount "$dir" 2>&1); then
        [ -z "$said" ] || say "$said" >&2
    elif $was_mounted || is_mounted; then
        fail "$said"
    else
        say "Nothing is mounted at $dir."
    fi
elif is_mounted; then
    # What serves it commits after either of these.
    umount "$dir" 2>/dev/null || fusermount3 -u -- "$dir" || fail "$dir is still mounted, and $nenrin is missing: make build, and make umount again"
    say "$dir is unmounted; its image is free a moment later." >&2
else
    say "Nothing is mounted at $dir."
fi
rmdir "$dir" 2>/dev/null || true
