#!/usr/bin/env bash
# A sync in an image file costs the host's disk a write and a flush, and no commit of the host's journal.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
is_root || skip "needs root"
need python3 losetup mkfs.ext4
begin image-file
NENRIN=$NENRIN python3 scripts/work/image_file.py "$W"
