#!/bin/sh
# Benchmarks against other file systems; arguments go to the harness.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh
find_cargo
scripts/build.sh
exec "$CARGO" run --release --locked --quiet -p nenrin-bench -- "$@"
