#!/usr/bin/env bash
# fsx with two hundred seeds in each cache mode.
exec "$(dirname "$0")/../work/suites.sh" fsx 200
