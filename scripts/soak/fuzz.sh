#!/bin/sh
# Coverage-guided fuzzing of every target, for its share of the time.
. "$(dirname "$0")/../lib.sh"
cd "$(dirname "$0")/../.." || exit 1
exec scripts/fuzz.sh "$((SOAK_SECONDS / 9 + 1))"
