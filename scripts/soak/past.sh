#!/usr/bin/env bash
# Twenty states of the past, the oldest 200,000 operations old.
exec "$(dirname "$0")/../work/past.sh" 20 10000
