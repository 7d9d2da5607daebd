#!/usr/bin/env bash
# Fill and delete, a short round.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || { echo "   skipped: python3 is missing"; exit 77; }
# What each round leaves adds up: 2 % less than before the round is let pass, 4 % less than after mkfs is not.
python3 - <<'END'
import sys
sys.path.insert(0, "scripts/work")
import fill
fill.PATIENCE, fill.available = 0, lambda _: 96
fill.regained("", 98, 98)
try:
    fill.regained("", 98, 100)
except SystemExit:
    sys.exit()
sys.exit("a leak of 2 % in each round is not noticed")
END
exec scripts/work/fill.sh 1 1500 256M
