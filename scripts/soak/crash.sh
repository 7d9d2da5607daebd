#!/bin/sh
# As many crash images as there is time for.
. "$(dirname "$0")/../lib.sh"
cd "$(dirname "$0")/../.." && find_cargo
"$CARGO" build --release --locked --quiet -p nenrin-sim
exec target/release/nenrin-sim run --seeds 1000000..2000000000 --minutes $((SOAK_SECONDS / 60 + 1))
