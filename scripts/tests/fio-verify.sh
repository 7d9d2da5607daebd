#!/usr/bin/env bash
# Checksummed blocks, verified after a remount.
exec "$(dirname "$0")/../work/suites.sh" fio
