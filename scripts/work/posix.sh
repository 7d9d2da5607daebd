#!/usr/bin/env bash
# posix.sh: sparse files, mappings, two programs on one file, open files without a name,
# appending, locks; on a volume of 1 GiB, in both cache modes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
need python3
begin posix
for options in cache=writethrough cache=writeback; do
    say "   $options"
    volume 1G
    up "$options"
    timeout 200 python3 "$HERE/posix.py" write "$MNT"
    again "$options"
    timeout 200 python3 "$HERE/posix.py" verify "$MNT"
    timeout 200 python3 "$HERE/posix.py" live "$MNT"
    again "$options"
    timeout 200 python3 "$HERE/posix.py" verify "$MNT"
    down
    checked
done
