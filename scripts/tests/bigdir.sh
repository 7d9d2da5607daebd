#!/usr/bin/env bash
# A directory of 50,000 entries.
exec "$(dirname "$0")/../work/bigdir.sh" 50000
