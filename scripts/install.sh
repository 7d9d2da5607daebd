#!/bin/sh
# install.sh [--remove]: the program and its manual pages under PREFIX, in /sbin the names by which
# mount(8), fsck(8) and mkfs(8) find it, and a rule by which udev asks it (RULES says where to).
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
prefix=${PREFIX:-/usr/local}
bin="${DESTDIR:-}$prefix/bin"
sbin="${DESTDIR:-}/sbin"
man="${DESTDIR:-}$prefix/share/man/man8"
# Where every udev looks: what belongs to the system has its place, and so has what its administrator adds.
case $prefix in /usr) rules=/usr/lib/udev/rules.d ;; *) rules=/etc/udev/rules.d ;; esac
rule="${DESTDIR:-}${RULES:-$rules}/66-nenrin.rules"
names=$(sed -n 's/^ *helper("\([a-z.]*\)",.*/\1/p' crates/cli/src/personality.rs | paste -sd' ')
[ -n "$names" ] || fail "the names for mount(8) and the others are not in crates/cli/src/personality.rs"

if [ "${1:-}" = --remove ]; then
    rm -f "$bin/nenrin" "$man/nenrin.8" "$man"/nenrin-*.8
    for name in $names; do rm -f "$man/$name.8"; done
    for name in $names; do
        if [ "$(readlink "$sbin/$name" || true)" = "$prefix/bin/nenrin" ]; then rm "$sbin/$name"; fi
    done
    # Another one's, of another PREFIX, stays.
    if grep -qsF "\"$prefix/bin/nenrin probe" "$rule"; then rm "$rule"; fi
    exit 0
fi
[ -w "$bin" ] || mkdir -p "$bin" 2>/dev/null || fail "cannot write to $bin: run sudo make install"
program=$(release)/nenrin
[ -x "$program" ] || fail "$program is missing: make build"
install -D -m 755 "$program" "$bin/nenrin"
mkdir -p "$man" 2>/dev/null || fail "cannot write to $man: run sudo make install"
"$program" help --man "$man" || fail "the manual is not in $man"
mkdir -p "$sbin" 2>/dev/null || true
for name in $names; do
    ln -sf "$prefix/bin/nenrin" "$sbin/$name" || fail "cannot write to $sbin: run sudo make install"
done
# udev takes a program and its arguments apart at spaces, and means something by other signs.
case $prefix in
*[!A-Za-z0-9/._+-]*) say "no rule for udev: it cannot have the path $prefix/bin/nenrin" ;;
*)
    mkdir -p "$(dirname "$rule")" 2>/dev/null || true
    # Nobody ever reads half of it.
    sed "s|@NENRIN@|$prefix/bin/nenrin|" packaging/66-nenrin.rules >"$rule.new" 2>/dev/null && chmod 644 "$rule.new" &&
        mv "$rule.new" "$rule" || fail "cannot write to $rule: run sudo make install"
    ;;
esac
say "$bin/nenrin, its manual in $man, $names in $sbin, and $rule"
if [ -z "${DESTDIR:-}" ] && [ -e /run/udev/control ]; then
    say "Links for volumes that are there already: udevadm trigger --subsystem-match=block"
fi
