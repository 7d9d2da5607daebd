#!/usr/bin/env bash
# fsx with many seeds.
exec "$(dirname "$0")/../work/suites.sh" fsx 600
