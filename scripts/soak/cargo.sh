#!/usr/bin/env bash
# This workspace, built on a volume; then a second build that has nothing to do.
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib-volume.sh
find_cargo
volume 6G
up
git clone -q . "$MNT/nenrin"
(cd "$MNT/nenrin" && "$CARGO" build --locked --quiet && "$CARGO" build --locked 2>&1 | grep -q Finished)
"$MNT/nenrin/target/debug/nenrin" version
down
