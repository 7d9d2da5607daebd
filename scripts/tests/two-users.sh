#!/usr/bin/env bash
# Two users and a warm cache: nobody walks through a directory that was closed to him, whatever
# the kernel still remembers of what is below.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
is_root || skip "needs root"
need setpriv
begin two-users
chmod 755 "$W"
as() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups "$@"; }
A=50001 B=50002
may() { as "$@" >/dev/null 2>"$W/said" || wrong "$*: $(cat "$W/said")"; }
may_not() { ! as "$@" >/dev/null 2>"$W/said" || wrong "may, and must not: $*"; grep -qE "Permission denied|can't cd" "$W/said" || wrong "$*: $(cat "$W/said")"; }
warm() { find "$1" -type f -exec cat {} + >/dev/null; find "$1" -ls >/dev/null; getfattr -R -d "$1" >/dev/null 2>&1 || true; }

for options in cache=writethrough cache=writeback; do
    volume 64M
    up "$options"
    chmod 755 "$MNT"
    d=$MNT/home
    mkdir -p "$d/deep/er"
    echo secret >"$d/file"; echo deeper >"$d/deep/er/file"
    chmod 644 "$d/file" "$d/deep/er/file"
    chmod 666 "$d/file"
    ln -s home "$MNT/link"
    chown -R $A:$A "$d"
    # Both have walked it: the kernel knows every name and page.
    warm "$d"; export -f warm
    for user in $A $B; do may $user bash -c "warm '$d'; warm '$MNT/link/'; cat '$MNT/link/deep/er/file'"; done
    # Closed by its owner: at once, for names, attributes, content, listing, and by every way in.
    may $A chmod 700 "$d"
    for path in "$d/file" "$d/deep" "$d/deep/er/file" "$MNT/link/file"; do
        may_not $B stat "$path"
        may_not $B cat "$path"
        may $A stat "$path"
    done
    may_not $B ls "$d"
    may_not $B touch "$d/new"
    may_not $B sh -c "echo x >>'$d/file'"
    may_not $B rm -f "$d/file"
    may_not $B mv "$d/file" "$MNT/"
    may_not $B ln "$d/file" "$d/other"
    may_not $B sh -c "cd '$d/deep'"
    may_not $B sh -c "cd '$d' && cat file"
    # Only the way in is closed: who is inside may stay, who has it open may read on.
    may $A chmod 755 "$d"
    mkfifo "$W/go"
    exec 7< <(as $B sh -c "cd '$d/deep/er' && exec 8<'$d/file' && echo in && read -r _ <'$W/go' && cat file && cat <&8 && ! cat ../../file 2>&1")
    read -r said <&7 && [ "$said" = in ] || wrong "who should be inside did not get there"
    may $A chmod 700 "$d"
    timeout 60 sh -c "echo >'$W/go'"
    said=$(timeout 60 cat <&7); rm "$W/go"
    [[ "$said" = *deeper*secret*"Permission denied"* ]] || wrong "who was inside: $said"
    # Search without read: known names only. Read without search: names, nothing behind them.
    may $A chmod 711 "$d"; may $B cat "$d/file"; may_not $B ls "$d"
    may $A chmod 744 "$d"; may $B ls "$d" ; may_not $B cat "$d/file"
    # Given away, opened by a list, and closed again by it.
    chmod 700 "$d"; chown $B "$d"; may_not $A cat "$d/file"; may $B cat "$d/file"; chown $A "$d"; may_not $B cat "$d/file"
    if command -v setfacl >/dev/null; then
        setfacl -m "u:$B:rx" "$d"; may $B cat "$d/file"
        setfacl -x "u:$B" "$d"; may_not $B cat "$d/file"
    fi
    # The same after a remount, cold, and for root in spite of all.
    again "$options"
    may_not $B cat "$d/file"; may $A cat "$d/file"; cat "$d/deep/er/file" >/dev/null
    down
    checked
done
say "   nobody walks through a closed directory"
