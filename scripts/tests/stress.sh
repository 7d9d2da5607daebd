#!/usr/bin/env bash
# Odd system calls.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
# A stressor that finds no room has failed, and where none runs to its end nothing was tried.
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/nenrin-stress.XXXXXX")
trap 'rm -rf --one-file-system "$dir"' EXIT
for said in 'stress-ng: open failed, errno=28 (No space left on device)' 'stress-ng: not supported'; do
    printf '#!/bin/sh\necho "%s"\nexit 3\n' "$said" >"$dir/stress-ng"
    chmod +x "$dir/stress-ng"
    code=0
    PATH="$dir:$PATH" TMPDIR=$dir scripts/work/suites.sh stress-ng 45 >"$dir/out" 2>&1 || code=$?
    [ $code != 77 ] || { cat "$dir/out"; exit 77; }
    [ $code = 1 ] || { cat "$dir/out" >&2; fail "'$said' with code 3 is taken for good: $code"; }
done
grep -q 'of [0-9]* stressors only 0 ran' "$dir/out" || { cat "$dir/out" >&2; fail "nobody says that nothing ran"; }
scripts/work/suites.sh stress-ng 45
