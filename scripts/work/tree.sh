#!/usr/bin/env bash
# tree.sh small|full: a tree with everything in it, copied in with rsync and
# compared byte for byte and attribute for attribute after a remount.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
size=${1:-small}
need python3 rsync getfattr getfacl
begin tree

if [ ! -e "$W/source.done" ]; then
    chmod -R u+rwx "$W/source" 2>/dev/null || true
    rm -rf "$W/source"
    mkdir -p "$W/source"
    python3 "$HERE/tree.py" special "$W/source/special"
    case $size in
    small) python3 "$HERE/tree.py" plain "$W/source/plain" 3000 1 ;;
    full)
        # A tree that exists: the newest kernel source package of this distribution.
        package=$(apt-cache search --names-only '^linux-source-[0-9]' 2>/dev/null | command cut -d' ' -f1 | sort -V | tail -n 1 || true)
        if [ -n "$package" ] && ( cd "$W" && apt-get download -qq "$package" >/dev/null 2>&1 ); then
            mkdir -p "$W/unpacked"
            dpkg-deb -x "$W"/linux-source-*.deb "$W/unpacked"
            tar -xf "$(find "$W/unpacked" -name '*.tar.*' -size +10M | head -n 1)" -C "$W/source"
            rm -rf "$W/unpacked" "$W"/linux-source-*.deb
            figure "package" "$package"
        else
            say "   note: no linux-source package to be had, a generated tree stands in"
            python3 "$HERE/tree.py" plain "$W/source/plain" 55000 1
        fi ;;
    esac
    touch "$W/source.done"
fi
figure "files, MiB in the source" "$(find "$W/source" -type f | wc -l), $(du -sm --apparent-size "$W/source" | command cut -f1)"

flags="-aHAXS --modify-window=-1"
is_root || flags="-aHXS --modify-window=-1"
for options in ${TREE_OPTIONS:-cache=writethrough cache=writeback}; do
    ! done_before "$options" || continue
    volume "$([ "$size" = full ] && echo 6G || echo 1G)"
    up "$options"
    begin_ms=$(now_ms)
    rsync $flags "$W/source/" "$MNT/tree/"
    figure "$options: rsync, s" "$((($(now_ms) - begin_ms) / 1000))"
    begin_ms=$(now_ms)
    again "$options"
    figure "$options: umount and mount, ms" "$(($(now_ms) - begin_ms))"
    begin_ms=$(now_ms)
    same "$W/source" "$MNT/tree"
    figure "$options: compared, s" "$((($(now_ms) - begin_ms) / 1000))"
    figure "$options: daemon resident, MiB" "$(memory_mib VmRSS)"
    begin_ms=$(now_ms)
    rm -rf "$MNT/tree"
    figure "$options: rm -r, s" "$((($(now_ms) - begin_ms) / 1000))"
    [ -z "$(ls -A "$MNT")" ] || wrong "rm -r left something"
    # Once more, so that the space came back, and for check.
    [ "$size" = full ] || rsync $flags "$W/source/" "$MNT/tree/"
    down
    checked
    is_done "$options"
    enough_for_now
done
