#!/usr/bin/env bash
# A directory of 1,000,000 entries: index nodes counted, then on a mount.
cd "$(dirname "$0")/../.." || exit 1
. scripts/lib.sh
find_cargo
"$CARGO" test --release --locked --quiet -p nenrin-core --test it -- --ignored --nocapture a_million || exit 1
exec scripts/work/bigdir.sh 1000000
