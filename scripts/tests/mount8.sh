#!/usr/bin/env bash
# mount(8), umount(8), mkfs(8) and fsck(8) with the helpers that make install links, the line of
# README.md for /etc/fstab and its unit: in a mount namespace, with a /sbin and a /etc/fstab of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
is_root || skip "needs root"
need unshare findmnt
if [ "${1:-}" != inside ]; then
    begin mount8
    mkdir -p "$W/up" "$W/work"
    unshare --mount --propagation private mount -t overlay -o "lowerdir=/usr/sbin,upperdir=$W/up,workdir=$W/work" none /usr/sbin 2>/dev/null ||
        skip "no overlay file system here"
    unshare --mount --propagation private "$0" inside "$W"
    exit 0
fi

W=$2
sbin=$(readlink -f /sbin)
mount -t overlay -o "lowerdir=$sbin,upperdir=$W/up,workdir=$W/work" none "$sbin"
mkdir -p "$W/run" /run/mount
mount --bind "$W/run" /run/mount
RULES=$W/rules
export RULES
PREFIX=$W/usr DESTDIR='' RULES=$W/rules scripts/install.sh >/dev/null
nenrin=$W/usr/bin/nenrin
man=$W/usr/share/man/man8
grep -q barrier "$man/nenrin-mount.8" || wrong "the manual of mount is not there"
if command -v groff >/dev/null; then
    for page in "$man"/*.8; do
        said=$(cd "$man/.." && groff -man -ww -z -s "$page" 2>&1)
        [ -z "$said" ] || wrong "groff: $page: $said"
    done
fi
trap 'umount -l "$W/dir" 2>/dev/null || true' EXIT
img=$W/work.img dir=$W/dir
mkdir "$dir"
state() { findmnt -n -o "$1" "$dir"; }
# No daemon holds the image any more.
gone() {
    ! mountpoint -q "$dir" || wrong "still mounted"
    "$nenrin" check "$img" >/dev/null || wrong "umount(8) did not wait for the daemon"
    ! grep -q nenrin /run/mount/utab || wrong "umount(8) still knows it"
}

# umount(8) of util-linux 2.38 sees only "fuse" in a FUSE mount that is not in its table.
mkfs -t nenrin --size 64M "$img" >/dev/null
fsck -t nenrin -a "$img" >/dev/null

mount -t nenrin "$img" "$dir"
[ "$(state FSTYPE) $(state SOURCE)" = "fuse.nenrin $img" ] || wrong "shown as $(state FSTYPE) $(state SOURCE)"
echo one >"$dir/note"
mount -o remount,ro "$dir"
! touch "$dir/x" 2>/dev/null || wrong "read-only, and yet written to"
mount -o remount,rw "$dir"
echo two >"$dir/note"
umount "$dir"
gone
mount -t nenrin -o ro,noatime "$img" "$dir"
[ "$(cat "$dir/note")" = two ]
! touch "$dir/x" 2>/dev/null || wrong "read-only, and yet written to"
umount "$dir"
gone
code=0
mount -t nenrin -o frob "$img" "$dir" 2>"$W/said" || code=$?
[ $code != 0 ] && grep -q frob "$W/said" || wrong "an unknown option: $code, $(cat "$W/said")"

# Nothing is done in another place than was asked for.
unshare --mount --propagation private sleep 300 &
other=$!
until [ "$(readlink /proc/$other/ns/mnt)" != "$(readlink /proc/self/ns/mnt)" ]; do sleep 0.05; done
! mount -N "$other" -t nenrin "$img" "$dir" 2>"$W/said" || wrong "mounted where it was not to be"
grep -q "another mount name space" "$W/said" || wrong "mount -N: $(cat "$W/said")"
! mountpoint -q "$dir" || wrong "mount -N mounted here"
mount -t nenrin "$img" "$dir"
! umount -N "$other" "$dir" 2>"$W/said" || wrong "unmounted what was not meant"
mountpoint -q "$dir" || wrong "umount -N unmounted here"
umount "$dir"
gone
kill "$other"
wait "$other" 2>/dev/null || true

for _ in 1 2 3 4 5; do
    mount -t nenrin "$img" "$dir"
    echo two >"$dir/note"
    umount "$dir"
    gone
    "$nenrin" mount "$img" "$dir"
    echo two >"$dir/note"
    "$nenrin" umount "$dir"
    gone
    "$nenrin" mount "$img" "$dir"
    umount "$dir"
    gone
done

# The line of README.md, and what people put beside it.
line=$(sed -n 's|^    /srv/work.img  /srv/work  nenrin|nenrin|p' README.md)
[ -n "$line" ] || wrong "README.md has no line for fstab"
for more in "" ,noatime,x-systemd.device-timeout=5 ,noauto,user,comment=mine ,defaults,rw,dev,suid; do
    echo "$img $dir ${line/nofail/nofail$more}" >"$W/fstab"
    mount --bind "$W/fstab" /etc/fstab
    if [[ $more = *noauto* ]]; then
        mount -a
        ! mountpoint -q "$dir" || wrong "noauto, and yet mounted by mount -a"
        mount "$dir"
    else
        mount -a
        mount -a   # does not mount it twice
    fi
    [ "$(cat "$dir/note")" = two ] || wrong "fstab $more"
    [[ "$(state OPTIONS)" = *allow_other* ]] || wrong "allow_other did not arrive: $(state OPTIONS)"
    umount "$dir"
    umount /etc/fstab
    gone
done

# What systemd does with the unit of README.md: mount WHAT WHERE -t TYPE -o OPTIONS, umount WHERE -c.
unit=$W/srv-work.mount
sed -n '/^    \[Unit\]/,/^    WantedBy/s/^    //p' README.md >"$unit"
value() { sed -n "s/^$1=//p" "$unit"; }
[ "$(value Where) $(value Type)" = "/srv/work nenrin" ] || wrong "README.md has no unit"
if command -v systemd-analyze >/dev/null; then
    # It wants the program in place, and says everything that it does not know.
    said=$(systemd-analyze verify "$unit" 2>&1 | grep -F srv-work.mount || true)
    [ -z "$said" ] || wrong "systemd-analyze: $said"
    [ "$(systemd-escape -p --suffix=mount "$(value Where)")" = srv-work.mount ] || wrong "the name of the unit"
fi
mount "$img" "$dir" -t "$(value Type)" -o "$(value Options)"
[ "$(cat "$dir/note")" = two ]
umount "$dir" -c
gone
PREFIX=$W/usr DESTDIR='' RULES=$W/rules scripts/install.sh --remove
[ -z "$(ls "$man")" ] || wrong "make uninstall left $(ls "$man")"
say "   mount(8), umount(8), mkfs(8), fsck(8), fstab and the unit work"
