#!/usr/bin/env bash
# A directory of 1,000,000 entries.
exec "$(dirname "$0")/../work/bigdir.sh" 1000000
