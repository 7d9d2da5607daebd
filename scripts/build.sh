#!/bin/sh
# The release build of the program.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
find_cargo
built=$("$CARGO" build --release --locked --quiet --message-format json-render-diagnostics -p nenrin | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
[ -n "$built" ] || exit 1
# What is installed and tested is this, and no old one.
built=$(realpath "$built")
note=$(target_directory)/$RELEASE_NOTE
rm -f "$note"
is_found() { [ "$built" = "$(realpath "$(release)/nenrin" 2>/dev/null)" ]; }
is_found || dirname "$built" >"$note"
is_found || fail "cargo put the program at $built, and not in $(release)"
