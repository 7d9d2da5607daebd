#!/bin/sh
# install.sh [--remove]: the program under PREFIX, and in /sbin the names by
# which mount(8), fsck(8) and mkfs(8) find it.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
bin="${DESTDIR:-}${PREFIX:-/usr/local}/bin"
sbin="${DESTDIR:-}/sbin"
names='mount.nenrin mount.fuse.nenrin umount.nenrin umount.fuse.nenrin mkfs.nenrin fsck.nenrin'

if [ "${1:-}" = --remove ]; then
    rm -f "$bin/nenrin"
    for name in $names; do
        if [ "$(readlink "$sbin/$name" || true)" = "${PREFIX:-/usr/local}/bin/nenrin" ]; then rm "$sbin/$name"; fi
    done
    exit 0
fi
[ -w "$bin" ] || mkdir -p "$bin" 2>/dev/null || fail "cannot write to $bin: run sudo make install"
install -D -m 755 target/release/nenrin "$bin/nenrin"
mkdir -p "$sbin" 2>/dev/null || true
for name in $names; do
    ln -sf "${PREFIX:-/usr/local}/bin/nenrin" "$sbin/$name" || fail "cannot write to $sbin: run sudo make install"
done
say "$bin/nenrin, and $names in $sbin"
