#!/bin/sh
# The release build of the program.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
find_cargo
exec "$CARGO" build --release --locked --quiet -p nenrin
