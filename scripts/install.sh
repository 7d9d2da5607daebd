#!/bin/sh
# install.sh [--remove]: the program and its manual pages under PREFIX, and in
# /sbin the names by which mount(8), fsck(8) and mkfs(8) find it.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
bin="${DESTDIR:-}${PREFIX:-/usr/local}/bin"
sbin="${DESTDIR:-}/sbin"
man="${DESTDIR:-}${PREFIX:-/usr/local}/share/man/man8"
names=$(sed -n 's/^ *helper("\([a-z.]*\)",.*/\1/p' crates/cli/src/personality.rs | paste -sd' ')
[ -n "$names" ] || fail "the names for mount(8) and the others are not in crates/cli/src/personality.rs"

if [ "${1:-}" = --remove ]; then
    rm -f "$bin/nenrin" "$man/nenrin.8" "$man"/nenrin-*.8
    for name in $names; do rm -f "$man/$name.8"; done
    for name in $names; do
        if [ "$(readlink "$sbin/$name" || true)" = "${PREFIX:-/usr/local}/bin/nenrin" ]; then rm "$sbin/$name"; fi
    done
    exit 0
fi
[ -w "$bin" ] || mkdir -p "$bin" 2>/dev/null || fail "cannot write to $bin: run sudo make install"
install -D -m 755 target/release/nenrin "$bin/nenrin"
mkdir -p "$man" 2>/dev/null || fail "cannot write to $man: run sudo make install"
target/release/nenrin help --man "$man" || fail "the manual is not in $man"
mkdir -p "$sbin" 2>/dev/null || true
for name in $names; do
    ln -sf "${PREFIX:-/usr/local}/bin/nenrin" "$sbin/$name" || fail "cannot write to $sbin: run sudo make install"
done
say "$bin/nenrin, its manual in $man, and $names in $sbin"
