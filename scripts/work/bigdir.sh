#!/usr/bin/env bash
# bigdir.sh COUNT: a directory of that many entries, and what the daemon needs
# in memory for it. Times are told, never asserted.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
count=${1:-50000}
need python3
begin bigdir

volume 3G
up
figure "daemon resident at the start, MiB" "$(memory_mib VmRSS)"
python3 "$HERE/bigdir.py" create "$MNT/big" "$count"
figure "daemon resident after creating, MiB" "$(memory_mib VmRSS)"
python3 "$HERE/bigdir.py" list "$MNT/big" "$count"
begin_ms=$(now_ms)
again
figure "umount and mount, ms" "$(($(now_ms) - begin_ms))"
# Cold: nothing of it in the kernel nor in the daemon.
python3 "$HERE/bigdir.py" list "$MNT/big" "$count"
begin_ms=$(now_ms)
walked=$(find "$MNT" -type f -size -1 -printf x | wc -c)
[ "$walked" = "$count" ] || wrong "find saw $walked of $count"
figure "find, every inode, s" "$((($(now_ms) - begin_ms) / 1000))"
resident=$(memory_mib VmRSS)
figure "daemon resident, $count files walked, MiB (limit 381, which is 400 MB)" "$resident"
figure "daemon peak, MiB" "$(memory_mib VmHWM)"
[ "$resident" -le 381 ] || wrong "the daemon needs $resident MiB"
python3 "$HERE/bigdir.py" stat "$MNT/big" "$count"
python3 "$HERE/bigdir.py" remove "$MNT/big" "$count"
figure "daemon resident after removing, MiB" "$(memory_mib VmRSS)"
down
checked
