#!/usr/bin/env bash
# The table of what was tried says of invented logs what follows from them.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
command -v python3 >/dev/null || { say "   skipped: python3 is missing"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf '  Write fails: Reported    9\n  Write Lost: Same    3\n  Write Astray: Damage    4\n  Write Astray: Damage    1\n  Write Other: Error    2\n' >"$dir/crash.log"
printf '   skipped: fio is missing\n== exit 77\n' >"$dir/fio-verify.log"
printf 'a stressor failed\n== exit 1\n' >"$dir/stress.log"
python3 scripts/work/figures.py "$dir" >"$dir/table"
said() { grep -qxF -- "$1" "$dir/table" || { cat "$dir/table" >&2; fail "the table does not say: $1"; }; }
said '| writes that failed, one a run, by answer | Reported 9 |'
said '| writes that went lost without a word, one a run, by what was seen | Same 3 |'
said '| writes that went onto the one before without a word, one a run, by what was seen | Damage 5 |'
said '| writes that went Other, one a run, by what was seen | Error 2 |'
said '| fio-verify | skipped |'
said '| stress | FAILED |'
printf 'fine\n== exit 0\n' >"$dir/stress.log"
python3 scripts/work/figures.py "$dir" >"$dir/table"
said '| stress | passed |'
say "the table of what was tried: as its logs say"
