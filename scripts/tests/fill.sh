#!/usr/bin/env bash
# Fill and delete, a short round.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || { echo "   skipped: python3 is missing"; exit 77; }
# What each round leaves adds up: less than 1 % of what was before the round is let pass, more of what was after mkfs is not.
python3 - <<'END'
import sys
sys.path.insert(0, "scripts/work")
import fill
fill.PATIENCE, fill.available = 0, lambda _: 988
fill.regained("", 994, 994)
try:
    fill.regained("", 994, 1000)
except SystemExit:
    sys.exit()
sys.exit("a leak of 0.6 % in each round is not noticed")
END
exec scripts/work/fill.sh 1 1500 256M
