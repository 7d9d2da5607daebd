#!/usr/bin/env bash
# samba.sh: a share with vfs_shadow_copy2 shows the past of a directory as Previous Versions. A real smbd and
# smbclient, on loopback. Needs root, and Debian's samba, samba-vfs-modules and smbclient, which it installs.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
[ "$(id -u)" = 0 ] || { say "skipped: needs root"; exit 77; }
[ -e /dev/fuse ] || { say "skipped: no /dev/fuse"; exit 77; }
PATH="$(release):$PATH:/usr/sbin:/sbin"
if ! command -v smbd >/dev/null || ! command -v smbclient >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends samba samba-vfs-modules smbclient; } </dev/null >/dev/null 2>&1 ||
        { say "skipped: no smbd to be had (apt-get install samba samba-vfs-modules smbclient)"; exit 77; }
fi
dir=$(mktemp -d)
mnt=$dir/mnt
smbd=
cleanup() {
    [ -z "$smbd" ] || { kill "$smbd" 2>/dev/null || true; wait "$smbd" 2>/dev/null || true; }
    nenrin umount "$mnt" >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

nenrin mkfs --size 64M "$dir/image" >/dev/null
mkdir "$mnt" "$dir/run"
nenrin mount -o checkpoint=0,allow_other "$dir/image" "$mnt"
mkdir "$mnt/share" "$mnt/share/inner"
port=$((20000 + RANDOM % 20000))
cat >"$dir/smb.conf" <<CONF
[global]
    server role = standalone server
    map to guest = Bad User
    smb ports = $port
    interfaces = lo
    bind interfaces only = yes
    load printers = no
    disable spoolss = yes
    log file = $dir/run/log
    lock directory = $dir/run
    state directory = $dir/run
    cache directory = $dir/run
    private dir = $dir/run
    pid directory = $dir/run
    ncalrpc dir = $dir/run/ncalrpc
[work]
    path = $mnt/share
    guest ok = yes
    force user = root
    read only = no
    vfs objects = shadow_copy2
    shadow:mountpoint = $mnt
    shadow:snapdir = .snapshots
    shadow:format = @GMT-%Y.%m.%d-%H.%M.%S
    shadow:sort = desc
CONF
# In a group of its own: at its end it ends the whole group.
smbd --foreground --configfile="$dir/smb.conf" >"$dir/run/out" 2>&1 &
smbd=$!
client() { smbclient --no-pass --port="$port" //127.0.0.1/work --configfile="$dir/smb.conf" -c "$1" 2>&1; }
for _ in $(seq 50); do
    client ls >/dev/null && break
    sleep 0.2
done

wrong() { say "WRONG: $*"; tail -n 20 "$dir/run/out" "$dir/run"/log* 2>/dev/null; exit 1; }
# Three versions, a second or more apart, which is how finely these names tell them.
for version in first second third; do
    say $version >"$mnt/share/inner/note"
    nenrin checkpoint create "$mnt" >/dev/null
    sleep 1.1
done
say now >"$mnt/share/inner/note"
versions=$(client 'allinfo inner/note' | sed -n 's/^\(@GMT-[0-9.]*-[0-9.]*\)$/\1/p' | sort -u)
[ "$(wc -l <<<"$versions")" = 3 ] || wrong "not three previous versions: $(client 'allinfo inner/note')"
number=0
for version in first second third; do
    number=$((number + 1))
    name=$(sed -n "${number}p" <<<"$versions")
    client "get $name/inner/note $dir/got" >/dev/null
    [ "$(cat "$dir/got")" = $version ] || wrong "$name holds '$(cat "$dir/got")', not '$version'"
done
client "get inner/note $dir/got" >/dev/null
[ "$(cat "$dir/got")" = now ] || wrong "the live file holds '$(cat "$dir/got")'"
# What was removed is found in the directory's previous version.
rm "$mnt/share/inner/note"
client "ls $name/inner/*" | grep -q ' note ' || wrong "a removed file is not in the previous version of its directory"
# Nothing of it can be written, or is listed beside the files.
say x >"$dir/x"
client "put $dir/x $name/inner/note" >/dev/null || true
client "del $name/inner/note" >/dev/null || true
client "get $name/inner/note $dir/got" >/dev/null
[ "$(cat "$dir/got")" = third ] || wrong "the past could be changed: it holds '$(cat "$dir/got")'"
client 'ls' | grep -qi snapshots && wrong ".snapshots is listed"
say "   previous versions by smbd $(smbd --version | sed 's/Version //'): $(wc -l <<<"$versions") of a file, all right"
