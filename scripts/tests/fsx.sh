#!/usr/bin/env bash
# Random operations on one file against a model of it.
exec "$(dirname "$0")/../work/suites.sh" fsx 16
