# For scripts that work on a mounted volume. Sourced, not run.
#   volume SIZE     makes a volume in $DIR/image and sets IMAGE and MNT
#   up [OPTIONS]    mounts it            down     unmounts it and checks it
# shellcheck shell=bash

. scripts/lib.sh
NENRIN=$PWD/target/release/nenrin

skip() { echo "skipped: $*"; exit 77; }
need() { for p in "$@"; do command -v "$p" >/dev/null || skip "$p is missing"; done; }
wrong() { echo "WRONG: $*"; exit 1; }

[ -e /dev/fuse ] || skip "no /dev/fuse"
[ "$(id -u)" = 0 ] || need fusermount3
[ -x "$NENRIN" ] || scripts/build.sh

DIR=$(mktemp -d "${TMPDIR:-/tmp}/nenrin-test.XXXXXX")
IMAGE=$DIR/image
MNT=$DIR/mnt
mkdir "$MNT"

leave() {
    code=$?
    for mount in $(awk -v d="$DIR/" 'index($2, d) == 1 { print $2 }' /proc/mounts | sort -r); do
        "$NENRIN" umount "$mount" >/dev/null 2>&1 || umount -l "$mount" || true
    done
    rm -rf "$DIR"
    exit "$code"
}
trap leave EXIT
trap 'exit 1' INT TERM

volume() { "$NENRIN" mkfs --size "$1" "$IMAGE" >/dev/null; }

up() { "$NENRIN" mount ${1:+-o "$1"} "$IMAGE" "$MNT"; }

check() {
    local out
    out=$("$NENRIN" check "$@" "$IMAGE") || { echo "$out"; wrong "nenrin check finds damage"; }
}

down() {
    "$NENRIN" umount "$MNT"
    check --data
}

# The daemon goes as in a power cut.
cut() {
    local pid
    pid=$("$NENRIN" info --json "$MNT" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
    kill -9 "$pid"
    while [ -e "/proc/$pid" ]; do sleep 0.02; done
}
