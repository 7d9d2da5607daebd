#!/usr/bin/env bash
# Over io_uring, which is measured too and which the simulator does not reach: SIGKILL under SQLite, git and files, and fsx.
# Root may switch it on; afterwards it is what it was.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
switch=/sys/module/fuse/parameters/enable_uring
before=$(cat "$switch" 2>/dev/null) || { say "   skipped: this kernel has no FUSE over io_uring"; exit 77; }
if [ "$before" = N ]; then
    [ "$(id -u)" = 0 ] || { say "   skipped: FUSE over io_uring is off, and only root may switch it on"; exit 77; }
    trap 'echo N >"$switch"' EXIT
    echo Y >"$switch"
fi
MOUNTS=transport=uring scripts/work/kill.sh 2
MOUNTS=transport=uring scripts/work/suites.sh fsx 8
