#!/bin/sh
# A directory of 1,000,000 entries, a state 10,000 operations old.
ENTRIES=1000000 OPERATIONS=10000 SIZE=6G exec "$(dirname "$0")/../tests/large.sh"
