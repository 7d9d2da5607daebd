#!/bin/sh
# Formatting and lints; warnings are errors.   lint.sh [all|format|clippy]
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
known "$*" all format clippy
find_cargo
# A newer clippy knows lints that this code has not met: there they only warn.
newest=95
deny='-D warnings'
if [ "$(cargo_minor "$CARGO")" -gt "$newest" ]; then
    say "cargo is newer than 1.$newest: warnings are shown and do not fail"
    deny=
fi
status=0
case "${1:-all}" in all | format)
    # What a merge left behind.
    ! git grep -nE '^(<<<<<<<|>>>>>>>) ' || status=1
    if "$CARGO" fmt --version >/dev/null 2>&1; then
        "$CARGO" fmt --all --check || status=1
    fi ;;
esac
case "${1:-all}" in all | clippy)
    if "$CARGO" clippy --version >/dev/null 2>&1; then
        # shellcheck disable=SC2086
        "$CARGO" clippy --locked --workspace --all-targets --quiet -- $deny || status=1
    fi ;;
esac
exit "$status"
