#!/bin/sh
# Installs what one target of the Makefile needs: as root with apt, otherwise it
# prints the one line to run and goes on with what is there.
#   setup.sh build|mount|lint|test|bench|bench-sync|bench-clean|bench-stripe|soak
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

# program:package, one for each thing the target runs.
build='cc:gcc ld:binutils /usr/include/stdio.h:libc6-dev'
mount="$build fusermount3:fuse3"
test="$mount rsync:rsync git:git sqlite3:sqlite3 setfacl:acl setfattr:attr mkfs.ext4:e2fsprogs mountpoint:util-linux python3:python3 setcap:libcap2-bin useradd:passwd"
# What the public suites are, or are built from.
suites="fio:fio stress-ng:stress-ng dbench:dbench /usr/include/sys/acl.h:libacl1-dev /usr/include/sqlite3.h:libsqlite3-dev xz:xz-utils"
guest="qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod"
case "${1:-}" in
build | lint) needs=$build ;;
mount) needs=$mount ;;
test) needs="$test $suites" ;;
bench) needs="$mount fio:fio mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs losetup:mount" ;;
bench-sync) needs="$mount $guest fio:fio mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs losetup:mount python3:python3 psql:postgresql db_bench:rocksdb-tools" ;;
bench-stripe) needs="$mount mkfs.ext4:e2fsprogs mkfs.btrfs:btrfs-progs losetup:mount python3:python3" ;;
bench-clean) needs="$mount $guest mkfs.ext4:e2fsprogs mkfs.btrfs:btrfs-progs losetup:mount python3:python3" ;;
soak) needs="$test $suites debootstrap:debootstrap $guest" ;;
*) fail "setup.sh: build, mount, lint, test, bench, bench-sync, bench-clean, bench-stripe or soak, not '${1:-}'" ;;
esac

missing=
for need in $needs; do
    program=${need%%:*}
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null 2>&1 || [ -e "$program" ] ||
        missing="$missing ${need##*:}"
done

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        say "Missing here, and there is no apt to install them with:$missing" >&2
    elif [ "$(id -u)" = 0 ]; then
        say "Installing$missing"
        export DEBIAN_FRONTEND=noninteractive
        # The lists of a fresh machine are old or empty; updates that run by themselves hold the lock.
        install='apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=600'
        # shellcheck disable=SC2086
        if ! { $install $missing || { apt-get update -qq && $install $missing; }; } </dev/null >/dev/null 2>&1; then
            # One that cannot be had does not keep the others away.
            for package in $missing; do
                why=$($install "$package" </dev/null 2>&1) ||
                    say "apt could not install $package; going on without: $(printf %s "$why" | tail -n 1)" >&2
            done
        fi
    else
        say "Some programs are missing. One line to get them (going on without):" >&2
        say "    sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
    fi
fi

find_cargo
case "$1" in
lint | test)
    for part in fmt clippy; do
        "$CARGO" "$part" --version >/dev/null 2>&1 && continue
        component=$(printf %s "$part" | sed 's/^fmt$/rustfmt/')
        rustup component add "$component" >/dev/null 2>&1 ||
            say "cargo $part is missing: rustup component add $component (going on without)" >&2
    done
    ;;
esac
case "$1" in test | soak) scripts/tools.sh ;; esac
