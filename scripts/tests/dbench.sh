#!/usr/bin/env bash
# The load of a file server.
exec "$(dirname "$0")/../work/suites.sh" dbench 8
