#!/usr/bin/env bash
# The first steps of README.md, as they stand there, line by line.
set -eu
cd "$(dirname "$0")/../.."
[ -e /dev/fuse ] || { echo "skipped: no /dev/fuse"; exit 77; }
[ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null || { echo "skipped: no fusermount3"; exit 77; }
. scripts/lib.sh
PATH="$(release):$PATH"
HOME=$(mktemp -d)
export HOME PATH
cleanup() {
    for dir in "$HOME/monday" "$HOME/work"; do nenrin umount "$dir" >/dev/null 2>&1 || true; done
    rm -rf "$HOME"
}
trap cleanup EXIT

steps=$(sed -n '/^## First steps/,/^`nenrin help`/p' README.md | sed -n 's/^    //p')
[ "$(wc -l <<<"$steps")" -ge 12 ] || { echo "the first steps were not found in README.md"; exit 1; }
# Smaller, so that it does not take long.
steps=${steps//10G/64M}
out=$(bash -eu -c "$steps" 2>&1) || { echo "$out"; exit 1; }
for wanted in '^first$' 'monday' '^health *good$' 'clean;'; do
    grep -q "$wanted" <<<"$out" || { echo "$out"; echo "missing in the output: $wanted"; exit 1; }
done
echo "the first steps of README.md work"
