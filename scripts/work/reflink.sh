#!/usr/bin/env bash
# reflink.sh MIB: plain cp(1) shares blocks: it writes no content and takes no space; then either side changes,
# is cut and goes, over remounts and SIGKILL, in both cache modes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
mib=${1:-64}
need cmp python3
begin reflink
rm -rf --one-file-system "$W"/kept.*

available() { df -B1 --output=avail "$MNT" | tail -n 1; }
committed() { "$NENRIN" checkpoint create "$MNT" >/dev/null; }
equal() { cmp "$1" "$2" || wrong "$1 differs from $2"; }

for options in cache=writethrough cache=writeback; do
    volume "$((mib * 4 + 256))M"
    up "$options"
    for name in large small tiny odd; do
        case $name in large) bytes=$((mib << 20)) ;; small) bytes=40960 ;; tiny) bytes=100 ;; odd) bytes=1234567 ;; esac
        head -c $bytes /dev/urandom >"$MNT/$name"
        cp "$MNT/$name" "$W/kept.$name"
    done
    truncate -s "$((mib))M" "$MNT/sparse"
    printf data | dd of="$MNT/sparse" bs=1 seek=$((5 << 20)) conv=notrunc status=none
    cp "$MNT/sparse" "$W/kept.sparse"
    committed
    free=$(available) written=$(counter data_blocks) shared=$(counter shared_bytes)
    for name in large small tiny odd sparse; do
        cp "$MNT/$name" "$MNT/$name.copy"
        equal "$W/kept.$name" "$MNT/$name.copy"
    done
    committed
    [ "$(counter data_blocks)" = "$written" ] || wrong "$options: cp wrote content: $written, then $(counter data_blocks) blocks"
    [ $(($(counter shared_bytes) - shared)) -ge $((mib << 20)) ] || wrong "$options: info does not show what is shared"
    [ $((free - $(available))) -lt $((4 << 20)) ] || wrong "$options: cp took $((free - $(available))) bytes"
    figure "$options: bytes that five copies of $mib MiB took" $((free - $(available)))
    # Just written, and copied before anything was synced.
    cp "$W/kept.odd" "$MNT/fresh" && cp "$MNT/fresh" "$MNT/fresh.copy"
    equal "$W/kept.odd" "$MNT/fresh.copy"
    # Over a file that is there and in the cache, and a part of it.
    cat "$MNT/small.copy" >/dev/null
    cp "$MNT/odd" "$MNT/small.copy"
    equal "$W/kept.odd" "$MNT/small.copy"
    python3 - "$MNT/odd" "$MNT/small.copy" "$W/kept.odd" <<'P'
import os, sys
a, b, kept = (os.open(n, os.O_RDWR) for n in sys.argv[1:])
whole = bytearray(os.pread(kept, 1 << 24, 0))
os.pread(b, 1 << 24, 0)
for source, target, n in [(0, 8192, 40960), (100, 4196, 9000), (5, 70000, 9999)]:
    done = 0
    while done < n:
        done += os.copy_file_range(a, b, n - done, source + done, target + done)
    whole[target:target + n] = os.pread(a, n, source)
    assert os.pread(b, 1 << 24, 0) == whole, (source, target, n)
P
    # Either side goes its own way.
    dd if=/dev/zero of="$MNT/large" bs=4096 seek=100 count=300 conv=notrunc status=none
    truncate -s 500000 "$MNT/odd.copy"
    rm "$MNT/small"
    again "$options"
    equal "$W/kept.large" "$MNT/large.copy"
    equal "$W/kept.odd" "$MNT/odd"
    equal <(head -c 500000 "$W/kept.odd") "$MNT/odd.copy"
    rm "$MNT/large"
    # O_SYNC: what copy_file_range acknowledged survives SIGKILL.
    python3 - "$MNT/odd" "$MNT/synced" <<'P'
import os, sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_SYNC, 0o644)
while os.copy_file_range(a, b, 1 << 24):
    pass
P
    DAEMON=$(daemon_pid)
    cut
    up "$options"
    equal "$W/kept.odd" "$MNT/synced"
    equal "$W/kept.large" "$MNT/large.copy"
    down
    checked
done
