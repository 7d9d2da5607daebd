#!/usr/bin/env bash
# docs/UNDO.md says what its steps really say, but for dates.
set -eu
cd "$(dirname "$0")/../.."
[ -w /dev/fuse ] || { echo "skipped: no /dev/fuse"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "skipped: the guide shows what root sees"; exit 77; }
same() { sed -E 's/[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}(:[0-9]{2})?( [+-][0-9]{2}:[0-9]{2})?)?/DATE/g; s/ +/ /g; s/ $//'; }
said=$(scripts/undo-guide.sh | same)
# Without the lines before the first step, and what follows the last.
told=$(sed -n '/^You saved over/,/^A copy that/p' docs/UNDO.md | sed '$d' | same)
diff <(sed '/./,$!d' <<<"$said") <(sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' <<<"$told") ||
    { echo "undo: docs/UNDO.md (>) does not say what scripts/undo-guide.sh does (<)"; exit 1; }
echo "   the guide says what the commands say"
